"""Executes flagged statements on real torch, and says which findings it confirms.

The linter's process never imports torch: a worker does (see `host` and `worker`). What the worker runs is
no code of the user's but an interpretation of it, on stand-ins (see `machine` and `world`).
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amplint.finding import Confidence, Edit, Finding, Severity, Verdict
from amplint.verify.evidence import file_name, kept_replay
from amplint.verify.host import NO_TORCH, Unavailable, Worker
from amplint.verify.replay import STATIC, NoReplay, Replay, build, sources_around

if TYPE_CHECKING:
    from amplint.engine import Run

__all__ = ["NO_TORCH", "verify_rules", "verify_run", "verify_text"]

EVENT_LINE = re.compile(
    r"autocast|GradScaler|\.scale\(|\.unscale_\(|\.backward\(|autograd\.|clip_grad|\.step\(|\.update\(|zero_grad|\.grad\b"
    r"|torch\.save|state_dict|\.half\(|get_scale|binary_cross_entropy|masked_fill|eps|float16|bfloat16"
)


@dataclass
class _Request:
    """A finding on its way to the worker."""

    finding: Finding
    replay: Replay
    fixed: Replay | None


def verify_run(run: Run, settings: Any) -> None:
    """Set `verdict` on every finding of a run; refuted findings get confidence low.

    `settings` may have `device` ("auto", "cpu", "cuda", "cuda:N"), `keep_replay` (a folder) and `no_sandbox`.
    Replays run on the CPU whatever the device, and a verdict asked for on cuda lists that as an assumption:
    the scaler's protocol is the same there, and what only the CUDA dispatcher shows goes to fake tensors.
    """
    findings = list(run.findings)
    if not findings:
        return
    device = str(getattr(settings, "device", None) or "auto")
    texts: dict[str, str | None] = {}
    requests: list[_Request] = []
    for finding in findings:
        if finding.rule in STATIC:
            finding.verdict = Verdict("static-only", device="", reason=STATIC[finding.rule])
            continue
        try:
            requests.append(_request(run, finding, texts))
        except NoReplay as error:
            finding.verdict = Verdict("inconclusive", reason=str(error))
    _share(requests)
    with Worker(no_sandbox=bool(getattr(settings, "no_sandbox", False))) as worker:
        for request in requests:
            judgement = _ask(worker, request.replay, request.fixed)
            finding = request.finding
            if device.startswith("cuda"):
                judgement.setdefault("assumptions", []).append(f"{device} behaves as the cpu, where the replay ran")
            finding.verdict = _verdict(judgement, worker.torch)
            if finding.verdict.status == "refuted":
                finding.confidence = Confidence.LOW
            keep = getattr(settings, "keep_replay", None)
            if keep is not None and worker.torch and finding.verdict.status != "static-only":
                folder = Path(keep)
                folder.mkdir(parents=True, exist_ok=True)
                name = file_name(finding.rule, finding.place.path, finding.place.line)
                (folder / name).write_text(kept_replay(request.replay, judgement), encoding="utf-8")


def verify_text(
    source: str, code: str, line: int, assumptions: Iterable[str] = (), worker: Worker | None = None
) -> Verdict:
    """Put one line of a program before the oracle, as if `code` had been reported there."""
    if code in STATIC:
        return Verdict("static-only", device="", reason=STATIC[code])
    try:
        replay = build(code, "<text>", line, _statement_end(source, line), {"<text>": source}, assumptions=assumptions)
    except NoReplay as error:
        return Verdict("inconclusive", reason=str(error))
    if worker is not None:
        return _verdict(_ask(worker, replay, None), worker.torch)
    with Worker() as own:
        return _verdict(_ask(own, replay, None), own.torch)


def verify_rules(codes: Iterable[str], settings: Any) -> list[dict[str, Any]]:
    """Put the programs on the rules' own pages before the oracle.

    The Example must be confirmed (or conditional), its Use instead must not. The verdict of a row is the
    Example's; it is "refuted" where either program does not hold what its page says.
    """
    from amplint.registry import all_rules

    wanted = set(codes)
    rows: list[dict[str, Any]] = []
    with Worker(no_sandbox=bool(getattr(settings, "no_sandbox", False)), seconds=15.0) as worker:
        for rule in all_rules():
            if rule.code not in wanted:
                continue
            example, instead = _block(rule.page, "Example"), _block(rule.page, "Use instead")
            verdict, fixed = _example(worker, rule.code, example)
            seconds = verdict.seconds
            status, reason = str(verdict.status), verdict.reason
            if verdict.status in ("confirmed", "conditional") and instead:
                bad, seconds_more = _instead(worker, rule.code, instead, example)
                seconds += seconds_more
                if bad is not None:
                    status, reason = "refuted", f"the page's Use instead shows the fault as well: {bad}"
            rows.append(
                {
                    "rule": rule.code,
                    "name": rule.name,
                    "verdict": status,
                    "figure": verdict.figure,
                    "variant": verdict.variant,
                    "reason": reason,
                    "fix_verified": fixed,
                    "seconds": round(seconds, 3),
                    "torch": worker.torch,
                    "device": verdict.device,
                }
            )
    return rows


# ------------------------------------------------------------------- building


def _request(run: Run, finding: Finding, texts: dict[str, str | None]) -> _Request:
    path = _key(run, finding.place.path)
    text = _program(run, finding.place.path, texts)
    if text is None:
        raise NoReplay("the file cannot be read any more")
    steps = [(_key(run, s.place.path), _line(run, s.place.path, s.place.line, s.place.cell)) for s in finding.steps]
    first = _line(run, finding.place.path, finding.place.line, finding.place.cell)
    last = _line(run, finding.place.path, finding.place.end_line, finding.place.cell)
    last = min(last, _header_end(text, first))
    sources = sources_around(path, text, [p for p, _ in steps])
    replay = build(finding.rule, path, first, last, sources, steps, finding.assumptions)
    fixed = None
    if finding.fix is not None:
        try:
            fixed = _fixed(run, finding, path, first, last, sources, steps)
        except (NoReplay, ValueError):
            fixed = None
    return _Request(finding, replay, fixed)


def _fixed(
    run: Run, finding: Finding, path: str, first: int, last: int, sources: dict[str, str], steps: list[tuple[str, int]]
) -> Replay | None:
    """The replay of the program with the finding's repair applied."""
    assert finding.fix is not None
    changed = dict(sources)
    moved = 0
    by_file: dict[str, list[tuple[int, int, int, int, str]]] = {}
    for edit in finding.fix.edits:
        place = edit.place
        at = _line(run, place.path, place.line, place.cell)
        end = _line(run, place.path, place.end_line, place.cell)
        by_file.setdefault(_key(run, place.path), []).append((at, place.column, end, place.end_column, edit.text))
        if _key(run, place.path) == path and at <= first:
            moved += edit.text.count("\n") - (end - at)
    for name, edits in by_file.items():
        if name not in changed:
            return None
        changed[name] = apply_edits(changed[name], edits)
    line = max(first + moved, 1)
    return build(finding.rule, path, line, max(last + moved, line), changed, steps, finding.assumptions)


def apply_edits(text: str, edits: Iterable[tuple[int, int, int, int, str]]) -> str:
    """The text after edits (line, column, end line, end column, new text); 1-based, none overlapping."""
    starts = [0]
    for match in re.finditer("\n", text):
        starts.append(match.end())

    def offset(line: int, column: int) -> int:
        return starts[line - 1] + column - 1 if line <= len(starts) else len(text)

    for line, column, end_line, end_column, new in sorted(edits, reverse=True):
        text = text[: offset(line, column)] + new + text[offset(end_line, end_column) :]
    return text


def _key(run: Run, display: str) -> str:
    """How a file is called in replays: relative to the working folder where it lies inside."""
    path = Path(os.path.abspath(run.sources.path(display)))
    try:
        return path.relative_to(Path.cwd()).as_posix()
    except ValueError:
        return path.as_posix()


def _program(run: Run, display: str, texts: dict[str, str | None]) -> str | None:
    if display not in texts:
        module = run.sources.module(display)
        texts[display] = module.text if module is not None else None
    return texts[display]


def _line(run: Run, display: str, line: int, cell: int | None) -> int:
    """The line in the program: notebooks count within cells."""
    if cell is None:
        return line
    module = run.sources.module(display)
    return module.notebook.program_line(line, cell) if module is not None and module.notebook is not None else line


def _header_end(text: str, first: int) -> int:
    """The last line that counts as flagged when a compound statement is: its header's."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return first
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(node, ast.stmt) and node.lineno == first and isinstance(body, list) and body:
            return max(first, int(body[0].lineno) - 1)
    return 10**9


def _statement_end(text: str, line: int) -> int:
    """The last line of the innermost simple statement that begins on a line; else the line itself."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return line
    ends = [
        node.end_lineno or line
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and node.lineno == line and not hasattr(node, "body")
    ]
    return min(ends, default=line)


def _share(requests: list[_Request]) -> None:
    """Let findings of one program watch each other's lines, so that they can share their runs."""
    groups: dict[object, list[_Request]] = {}
    for request in requests:
        replay = request.replay
        key = (tuple(sorted(replay.files.items())), repr(replay.drivers), tuple(sorted(replay.flags.items())))
        groups.setdefault(key, []).append(request)
    for group in groups.values():
        watched = [place for request in group for place in request.replay.flagged]
        for request in group:
            request.replay.watched = watched
    order = {id(r): i for i, g in enumerate(groups.values()) for r in g}
    requests.sort(key=lambda r: order[id(r)])


def _ask(worker: Worker, replay: Replay, fixed: Replay | None) -> dict[str, Any]:
    try:
        group = hash((tuple(sorted(replay.files)), repr(replay.drivers)))
        return worker.ask(
            {"replay": replay.to_dict(), "fixed": fixed.to_dict() if fixed is not None else None, "group": group}
        )
    except Unavailable as error:
        return {"status": "inconclusive", "reason": str(error)}


def _verdict(judgement: dict[str, Any], torch: str) -> Verdict:
    return Verdict(
        status=judgement["status"],
        device="cpu",
        torch=torch,
        figure=judgement.get("figure", ""),
        variant=judgement.get("variant", ""),
        seconds=float(judgement.get("seconds", 0.0)),
        reason=judgement.get("reason"),
        assumptions=tuple(judgement.get("assumptions", ())),
        fix_verified=judgement.get("fix_verified"),
    )


# ---------------------------------------------------------------------- rules


def _block(page: str, heading: str) -> str:
    """The python block under a heading of a rule's page."""
    match = re.search(rf"^## {re.escape(heading)}\s*$(.*?)(?=^## |\Z)", page, re.M | re.S)
    found = re.search(r"```python\n(.*?)```", match[1], re.S) if match else None
    return found[1] if found else ""


def _event_lines(text: str) -> list[int]:
    return [
        i
        for i, line in enumerate(text.splitlines(), 1)
        if EVENT_LINE.search(line) and not line.lstrip().startswith(("#", "import ", "from ", '"""'))
    ]


def _example(worker: Worker, code: str, text: str) -> tuple[Verdict, bool | None]:
    """The verdict on a page's Example, at the place that is marked, else reported, else first seen."""
    if code in STATIC:
        return Verdict("static-only", device="", reason=STATIC[code]), None
    if not text:
        return Verdict("static-only", reason="the page has no example"), None
    marked = [i for i, line in enumerate(text.splitlines(), 1) if "# <- here" in line]
    found, fixed_text = _linted(code, text)
    lines = marked or ([found] if found else []) or _event_lines(text)
    first: Verdict | None = None
    for line in lines[:12]:
        try:
            replay = build(code, "<text>", line, _statement_end(text, line), {"<text>": text})
            fixed = None
            if fixed_text is not None:
                shift = max(line + fixed_text.count("\n") - text.count("\n"), 1) if line == found else line
                fixed = build(code, "<text>", shift, shift, {"<text>": fixed_text})
        except NoReplay as error:
            first = first or Verdict("inconclusive", reason=str(error))
            continue
        verdict = _verdict(_ask(worker, replay, fixed), worker.torch)
        if verdict.status in ("confirmed", "conditional", "static-only"):
            return verdict, verdict.fix_verified
        first = first or verdict
    return first or Verdict("inconclusive", reason="the example has no event"), None


def _linted(code: str, text: str) -> tuple[int | None, str | None]:
    """Where the linter reports the fault in an example, and the text after its repair."""
    from amplint.config import Configuration
    from amplint.engine import check

    path = Path(os.path.abspath("example.py"))
    run = check(
        [path], Configuration({"min_severity": Severity.INFO}, isolated=True), contents={path: text.encode()}, jobs=1
    )
    for finding in run.findings:
        if finding.rule == code:
            edits = [_plain(edit) for edit in finding.fix.edits] if finding.fix is not None else []
            return finding.place.line, apply_edits(text, edits) if edits else None
    return None, None


def _plain(edit: Edit) -> tuple[int, int, int, int, str]:
    place = edit.place
    return (place.line, place.column, place.end_line, place.end_column, edit.text)


def _instead(worker: Worker, code: str, text: str, example: str) -> tuple[str | None, float]:
    """What is wrong with a page's Use instead (None if nothing), and how long it took."""
    seconds = 0.0
    for line in _event_lines(text)[:12]:
        try:
            replay = build(code, "<text>", line, _statement_end(text, line), {"<text>": text})
        except NoReplay:
            continue
        verdict = _verdict(_ask(worker, replay, None), worker.torch)
        seconds += verdict.seconds
        if verdict.status in ("confirmed", "conditional") and code not in ("AMP221",):
            return f"{verdict.figure} (line {line})", seconds
    return None, seconds
