"""Applying fixes: whole or not at all, in rounds where they overlap, and never to a result that is no Python.

A fix after which its rule says as much as before, or any rule says more that the fault had not covered, is taken back.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from amplint import registry
from amplint.finding import Edit, Finding
from amplint.source import NEWLINE, SourceError, SourceModule, lines_of
from amplint.suppress import UNUSED

if TYPE_CHECKING:
    from amplint.run import Run, Sources

#: rounds of fixing and checking; more mean that fixes undo each other
MAX_ROUNDS = 20


def apply_edits(module: SourceModule, edits: Iterable[Edit]) -> bytes:
    """The bytes of a file after edits, which must not overlap. Raises SourceError if they are no Python then."""
    edits = list(edits)
    if module.notebook is not None:
        by_cell: dict[int, list[Edit]] = {}
        for edit in edits:
            by_cell.setdefault(edit.place.cell or 0, []).append(edit)
        sources = {cell: _spliced(module.notebook.by_index[cell].source, own) for cell, own in by_cell.items()}
        text = module.notebook.with_sources(sources)
    else:
        text = _spliced(module.text, edits)
    try:
        data = text.encode(module.encoding)
    except UnicodeEncodeError as error:
        raise SourceError(f"cannot be written as {module.encoding}: {error.reason}") from None
    SourceModule.from_bytes(data, module.path).tree  # noqa: B018 - raises where the result is broken
    return data


def _spliced(text: str, edits: Iterable[Edit]) -> str:
    starts = [0, *(match.end() for match in NEWLINE.finditer(text))]

    def offset(line: int, column: int) -> int:
        return starts[line - 1] + column - 1 if line <= len(starts) else len(text)

    spans = sorted(
        (offset(e.place.line, e.place.column), offset(e.place.end_line, e.place.end_column), e.text) for e in set(edits)
    )
    parts, at = [], 0
    for start, end, new in spans:
        parts += [text[at:start], new]
        at = end
    return "".join([*parts, text[at:]])


def _overlap(a: Edit, b: Edit) -> bool:
    """Whether two edits cannot both be applied; the same edit twice is one edit."""
    if a == b or (a.place.path, a.place.cell) != (b.place.path, b.place.cell):
        return False
    a_start, a_end = (a.place.line, a.place.column), (a.place.end_line, a.place.end_column)
    b_start, b_end = (b.place.line, b.place.column), (b.place.end_line, b.place.end_column)
    if a_start == b_start:
        return True
    return a_start < b_end and b_start < a_end


@dataclass(slots=True)
class Fixed:
    """What fixing did. `before` and `after` are the bytes of the changed files, by display path."""

    before: dict[str, bytes] = field(default_factory=dict)
    after: dict[str, bytes] = field(default_factory=dict)
    applied: list[Finding] = field(default_factory=list)


Recheck = Callable[[Mapping[Path, bytes]], "Run"]


def is_applicable(finding: Finding, unsafe: bool) -> bool:
    """Whether a finding has a fix that may be applied; one that the verifier saw fail may not."""
    fix = finding.fix
    if fix is None or (fix.safety == "unsafe" and not unsafe):
        return False
    verdict = finding.verdict
    return verdict is None or (verdict.status != "refuted" and verdict.fix_verified is not False)


def fix_all(run: Run, recheck: Recheck, unsafe: bool = False) -> tuple[Fixed, Run]:
    """Apply fixes in rounds until none is left, in memory.

    `recheck` checks again with other contents for some files, by absolute path. Returns what changed, and the
    run that saw the changes.
    """
    fixed = Fixed()
    refused: set[tuple[str, str]] = set()
    at_most: int | None = None
    rounds = 0
    while rounds < MAX_ROUNDS:
        known = len(refused)
        wanted = [f for f in run.findings if is_applicable(f, unsafe) and _key(f) not in refused]
        chosen = _usable(_without_overlaps(wanted)[:at_most], run.sources, refused)
        if not chosen:
            if len(refused) == known:
                break
            continue  # what overlapped with a refused fix may do
        new = attempt(chosen, run.sources) or {}
        contents = {run.sources.path(display): data for display, data in {**fixed.after, **new}.items()}
        after = recheck(contents)
        useless = _useless(chosen, run, after)
        if useless:
            refused.update(map(_key, useless))
            continue
        if _is_worse(run, after, chosen):
            if len(chosen) == 1:
                refused.add(_key(chosen[0]))
            at_most = max(len(chosen) // 2, 1)  # which of them it was shows when they are fewer
            continue
        for display, data in new.items():
            fixed.before.setdefault(display, run.sources.data(display))
            fixed.after[display] = data
        fixed.applied.extend(chosen)
        run = after
        at_most = None
        rounds += 1
    return fixed, run


def _useless(chosen: Iterable[Finding], before: Run, after: Run) -> list[Finding]:
    """The findings whose rule says as much of their file after the fixes as before."""
    old, new = _counts(before), _counts(after)
    return [f for f in chosen if new[f.rule, f.place.path] >= old[f.rule, f.place.path]]


def _is_worse(before: Run, after: Run, chosen: Iterable[Finding]) -> bool:
    """Whether a rule says more of a file than before; suppressions that became unused do not count, as they have a
    fix of their own, nor what the faults that were repaired had covered."""
    rules = (registry.find(finding.rule) for finding in chosen)
    uncovered = {code for rule in rules if rule is not None for code in rule.uncovers}
    gained = _counts(after) - _counts(before)
    return len(after.errors) > len(before.errors) or any(rule not in {UNUSED, *uncovered} for rule, _ in gained)


def _key(finding: Finding) -> tuple[str, str]:
    return finding.fingerprint, finding.fix.title if finding.fix else ""


def _counts(run: Run) -> Counter[tuple[str, str]]:
    return Counter((finding.rule, finding.place.path) for finding in run.findings)


def _without_overlaps(findings: Iterable[Finding]) -> list[Finding]:
    chosen: list[Finding] = []
    taken: list[Edit] = []
    for finding in findings:
        edits = finding.fix.edits if finding.fix else ()
        if not any(_overlap(edit, other) for edit in edits for other in taken):
            chosen.append(finding)
            taken.extend(edits)
    return chosen


def _usable(findings: Sequence[Finding], sources: Sources, refused: set[tuple[str, str]]) -> list[Finding]:
    """The findings whose fixes leave Python behind, together; what breaks a file by itself is refused."""
    if not findings or attempt(findings, sources) is not None:
        return list(findings)
    usable: list[Finding] = []
    for finding in findings:
        if attempt([finding], sources) is None:
            refused.add(_key(finding))
        elif attempt([*usable, finding], sources) is not None:
            usable.append(finding)
    return usable


def attempt(findings: Sequence[Finding], sources: Sources) -> dict[str, bytes] | None:
    """The new bytes of the files that fixes touch; None where one of them is not checked, or would not be Python."""
    by_file: dict[str, list[Edit]] = {}
    for finding in findings:
        for edit in finding.fix.edits if finding.fix else ():
            by_file.setdefault(edit.place.path, []).append(edit)
    new: dict[str, bytes] = {}
    for display, edits in by_file.items():
        module = sources.module(display) if display in sources else None
        if module is None:
            return None
        try:
            new[display] = apply_edits(module, edits)
        except (SourceError, KeyError):
            return None
    return new


# -- files -----------------------------------------------------------------------------------------------


def write(path: Path, data: bytes) -> None:
    """Replace a file's contents at once, so that no reader sees half of it; its mode and links stay.

    Raises OSError, also for a file that may not be written although its folder may.
    """
    target = Path(os.path.realpath(path))
    if not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        shutil.copymode(target, name)
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def diff(display: str, before: bytes, after: bytes) -> str:
    """A unified diff of two versions of a file; of a notebook, of its code cells."""
    import difflib

    old, new = SourceModule.from_bytes(before, display), SourceModule.from_bytes(after, display)
    if old.notebook is None or new.notebook is None:
        return _unified(difflib.unified_diff(lines_of(old.text), lines_of(new.text), display, display))
    parts = [
        _unified(difflib.unified_diff(lines_of(a.source), lines_of(b.source), where, where))
        for a, b in zip(old.notebook.cells, new.notebook.cells, strict=True)
        for where in [f"{display}:cell {a.index}"]
    ]
    return "".join(parts)


def _unified(lines: Iterable[str]) -> str:
    out = []
    for line in lines:
        out.append(line if line.endswith(("\n", "\r")) else line + "\n\\ No newline at end of file\n")
    return "".join(out)
