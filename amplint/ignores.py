"""`--add-ignore`: a suppression comment for every finding, so that a project can start clean."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from amplint.finding import Edit, Finding, Place
from amplint.fix import apply_edits
from amplint.plan import OWN_RULES

if TYPE_CHECKING:
    from amplint.run import Run, Sources

_DIRECTIVE = re.compile(r"#\s*amplint:\s*ignore\s*\[([^\]]*)\]")


def with_ignores(run: Run, reason: str = "") -> dict[str, bytes]:
    """The new bytes of the files with findings, by display path.

    The comment goes to the end of the statement's last line, where no string or continued line can be; rules
    that stand there already are kept, and so is their reason. Raises SourceError where a file changed under the run.
    """
    wanted: dict[tuple[str, int | None, int], set[str]] = defaultdict(set)
    for finding in suppressible(run):
        wanted[finding.place.path, finding.place.cell, finding.statement[1]].add(finding.rule)
    edits: dict[str, list[Edit]] = defaultdict(list)
    for (path, cell, line), codes in sorted(wanted.items(), key=str):
        edits[path].append(_edit(run.sources, path, cell, line, codes, reason))
    changed = {}
    for path, own in edits.items():
        module = run.sources.module(path)
        if module is not None and path in run.sources:
            changed[path] = apply_edits(module, own)
    return changed


def suppressible(run: Run) -> list[Finding]:
    """The findings that a comment can suppress."""
    return [finding for finding in run.findings if finding.rule not in OWN_RULES]


def ignore_edit(finding: Finding, sources: Sources) -> Edit | None:
    """The edit that suppresses one finding; None for what no comment can suppress."""
    if finding.rule in OWN_RULES:
        return None
    place = finding.place
    return _edit(sources, place.path, place.cell, finding.statement[1], {finding.rule})


def _edit(sources: Sources, path: str, cell: int | None, line: int, codes: set[str], reason: str = "") -> Edit:
    text = sources.line(path, line, cell) or ""
    there = _DIRECTIVE.search(text)
    if there is not None:
        named = [code.strip() for code in there[1].split(",") if code.strip()]
        listed = ", ".join([*named, *sorted(codes - set(named))])
        return Edit(Place(path, line, there.start(1) + 1, line, there.end(1) + 1, cell), listed)
    end = len(text.rstrip()) + 1
    comment = f"# amplint: ignore[{', '.join(sorted(codes))}] {' '.join(reason.split())}".rstrip()
    return Edit(Place(path, line, end, line, len(text) + 1, cell), f"  {comment}")
