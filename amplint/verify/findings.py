"""The verdicts on the findings of a run: replays are built and put before the worker, and what it says is noted."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amplint.finding import Confidence, Finding, Verdict
from amplint.rule import HOOKED_IN_HELPER, READ_IN_HELPER
from amplint.verify.building import STATIC, STATIC_SHAPES, NoReplay, build, sources_around
from amplint.verify.evidence import file_name, kept_replay
from amplint.verify.host import Unavailable, Worker
from amplint.verify.replay import Replay
from amplint.verify.texts import Change, apply_edits, header_end, moved, statement_end, without_statement

if TYPE_CHECKING:
    from amplint.run import Run

INTERRUPTED = "interrupted before it was verified"
#: rules whose faults change gradients, or end a training step with an exception
SPOILERS = re.compile(r"AMP(102|107|108|20\d|21[0-8]|30[1-4]|401)")


@dataclass
class _Request:
    """A finding on its way to the worker, with the program that it stands in."""

    finding: Finding
    replay: Replay
    sources: dict[str, str]
    steps: list[tuple[str, int]]
    #: edits that take the fault away, by file; empty where nothing is known to
    repair: dict[str, list[Change]] = field(default_factory=dict)

    @property
    def program(self) -> object:
        replay = self.replay
        return tuple(sorted(replay.files.items())), repr(replay.drivers), tuple(sorted(replay.flags.items()))


def worker_for(settings: Any) -> Worker:
    """A worker as `settings` ask for it; see `verify_run`."""
    return Worker(
        no_sandbox=bool(getattr(settings, "no_sandbox", False)),
        device=str(getattr(settings, "device", None) or "auto"),
    )


def verify_run(
    run: Run, settings: Any, progress: Callable[[int, int], None] | None = None, worker: Worker | None = None
) -> bool:
    """Set `verdict` on every finding of a run; refuted findings get confidence low.

    `settings` may have `device` ("auto", "cpu", "cuda", "cuda:N"), `keep_replay` (a folder) and `no_sandbox`; a
    `worker` may have been launched before. `progress` is told how many findings of how many have a verdict. Ctrl-C
    ends the verification, not the run: what has no verdict by then is inconclusive, and the result is False. Raises
    OSError where a replay cannot be kept.
    """
    findings = list(run.findings)
    if not findings:
        return True
    try:
        with nullcontext(worker) if worker is not None else worker_for(settings) as worker:
            _verify(run, findings, settings, progress, worker)
    except KeyboardInterrupt:
        for finding in findings:
            if finding.verdict is None:
                finding.verdict = Verdict("inconclusive", reason=INTERRUPTED)
        return False
    return True


def verify_text(
    source: str, code: str, line: int, assumptions: Iterable[str] = (), worker: Worker | None = None
) -> Verdict:
    """Put one line of a program before the oracle, as if `code` had been reported there."""
    if code in STATIC:
        return Verdict("static-only", device="", reason=STATIC[code])
    try:
        replay = build(code, "<text>", line, statement_end(source, line), {"<text>": source}, assumptions=assumptions)
    except NoReplay as error:
        return Verdict("inconclusive", reason=str(error))
    if worker is not None:
        return judged(worker, replay)
    with Worker() as own:
        return judged(own, replay)


def static_reason(finding: Finding) -> str | None:
    """Why a finding has nothing to execute, None where it has."""
    shape, reason = STATIC_SHAPES.get(finding.rule, ("", ""))
    return reason if shape and finding.message.startswith(shape) else STATIC.get(finding.rule)


def judged(worker: Worker, replay: Replay) -> Verdict:
    """The worker's verdict on a replay."""
    return _verdict(_ask(worker, replay), worker)


# -------------------------------------------------------------------- verdicts


def _verify(
    run: Run,
    findings: list[Finding],
    settings: Any,
    progress: Callable[[int, int], None] | None,
    worker: Worker,
) -> None:
    texts: dict[str, str | None] = {}
    requests: list[_Request] = []
    for finding in findings:
        reason = static_reason(finding)
        if reason is not None:
            finding.verdict = Verdict("static-only", device="", reason=reason)
            continue
        try:
            requests.append(_request(run, finding, texts))
        except NoReplay as error:
            finding.verdict = Verdict("inconclusive", reason=str(error))
        except (RecursionError, LookupError, ValueError, TypeError, AttributeError) as error:
            # whatever is strange about the program: it costs this verdict, not the others
            finding.verdict = Verdict("inconclusive", reason=f"no replay could be built: {type(error).__name__}")
    requests = _grouped(requests)
    keep = getattr(settings, "keep_replay", None)
    for request in requests:
        judgement = _ask(worker, request.replay)
        finding = request.finding
        finding.verdict = _verdict(judgement, worker)
        _settle(finding, finding.verdict)
        if keep is not None and worker.torch and finding.verdict.status != "static-only":
            _keep(Path(keep), request, judgement, worker.device)
        if progress is not None:
            progress(sum(1 for f in findings if f.verdict is not None), len(findings))


def _settle(finding: Finding, verdict: Verdict) -> None:
    """What a verdict means for its finding: less confidence if refuted; a fix that does not help is not safe."""
    if verdict.status == "refuted":
        finding.confidence = Confidence.LOW
    if verdict.fix_verified is False and finding.fix is not None:
        finding.fix = replace(finding.fix, safety="unsafe")


def _keep(folder: Path, request: _Request, judgement: dict[str, Any], device: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    place = request.finding.place
    name = file_name(request.finding.rule, place.path, place.line)
    (folder / name).write_text(kept_replay(request.replay, judgement, device), encoding="utf-8")


def _ask(worker: Worker, replay: Replay) -> dict[str, Any]:
    try:
        group = hash((tuple(sorted(replay.files)), repr(replay.drivers)))
        return worker.ask({"replay": replay.to_dict(), "group": group})
    except Unavailable as error:
        return {"status": "inconclusive", "reason": str(error)}


def _verdict(judgement: dict[str, Any], worker: Worker) -> Verdict:
    return Verdict(
        status=judgement["status"],
        device=worker.device,
        torch=worker.torch,
        figure=judgement.get("figure", ""),
        variant=judgement.get("variant", ""),
        seconds=float(judgement.get("seconds", 0.0)),
        reason=judgement.get("reason"),
        assumptions=tuple(judgement.get("assumptions", ())),
        fix_verified=judgement.get("fix_verified"),
    )


# -------------------------------------------------------------------- requests


def _request(run: Run, finding: Finding, texts: dict[str, str | None]) -> _Request:
    path = _key(run, finding.place.path)
    text = _program(run, finding.place.path, texts)
    if text is None:
        raise NoReplay("the file cannot be read any more")
    steps = [(_key(run, s.place.path), _line(run, s.place.path, s.place.line, s.place.cell)) for s in finding.steps]
    first = _line(run, finding.place.path, finding.place.line, finding.place.cell)
    last = _line(run, finding.place.path, finding.place.end_line, finding.place.cell)
    last = min(last, header_end(text, first))
    sources = sources_around(path, text, [p for p, _ in steps])
    helped = [
        place
        for place, step in zip(steps, finding.steps, strict=True)
        if step.message in (READ_IN_HELPER, HOOKED_IN_HELPER)
    ]
    replay = build(finding.rule, path, first, last, sources, steps, finding.assumptions, helped)
    request = _Request(finding, replay, sources, steps)
    if finding.fix is not None:
        request.repair = _edits(run, finding)
        replay.fixed = _changed(request, request.repair)
    else:
        removal = without_statement(text, first, last)
        request.repair = {path: removal} if removal else {}
    return request


def _edits(run: Run, finding: Finding) -> dict[str, list[Change]]:
    """The edits of a finding's fix, by file as replays call it."""
    out: dict[str, list[Change]] = {}
    for edit in finding.fix.edits if finding.fix is not None else ():
        place = edit.place
        at = _line(run, place.path, place.line, place.cell)
        end = _line(run, place.path, place.end_line, place.cell)
        out.setdefault(_key(run, place.path), []).append((at, place.column, end, place.end_column, edit.text))
    return out


def _changed(request: _Request, edits: dict[str, list[Change]]) -> Replay | None:
    """The replay of a finding in its program after edits; None where that cannot be built."""
    path, first, last = request.replay.flagged[0]
    if not all(name in request.sources for name in edits):
        return None
    sources = {name: apply_edits(text, edits.get(name, ())) for name, text in request.sources.items()}
    begin = _found_again(request.sources[path], first, sources[path], edits.get(path, ()))
    steps = [
        (name, moved(request.sources[name], line, edits.get(name, ())))
        for name, line in request.steps
        if name in request.sources
    ]
    try:
        finding = request.finding
        return build(finding.rule, path, begin, begin + last - first, sources, steps, finding.assumptions)
    except (NoReplay, ValueError, IndexError):
        return None


def _found_again(before: str, line: int, after: str, edits: Iterable[Change]) -> int:
    """Where a statement is after edits: behind those above it, or where they have put the same text."""
    begin = moved(before, line, edits)
    wanted, lines = before.splitlines()[line - 1].strip(), [text.strip() for text in after.splitlines()]
    same = [i for i, text in enumerate(lines, 1) if text == wanted]
    return min(same, key=lambda i: abs(i - begin), default=begin)


def _grouped(requests: list[_Request]) -> list[_Request]:
    """The requests, those of one program together: they watch each other's lines, so that they can share their runs.

    Where a program has several faults, each is judged in that program without the others as well.
    """
    groups: dict[object, list[_Request]] = {}
    for request in requests:
        groups.setdefault(request.program, []).append(request)
    for group in groups.values():
        watched = [place for request in group for place in request.replay.flagged]
        for request in group:
            request.replay.watched = watched
            _set_apart(request, [other for other in group if other is not request])
    return [request for group in groups.values() for request in group]


def _set_apart(request: _Request, others: list[_Request]) -> None:
    """Give a replay its program with the other findings' faults taken away, as far as they can be."""
    path, first, last = request.replay.flagged[0]
    edits: dict[str, list[Change]] = {}
    for other in others:
        where, begin, end = other.replay.flagged[0]
        if not SPOILERS.fullmatch(other.finding.rule) or (where == path and begin <= last and first <= end):
            continue
        request.replay.others.append(f"{other.finding.rule} in line {begin}")
        new = other.repair
        if not new or any(_overlap(edits.get(name, []) + changes) for name, changes in new.items()):
            continue
        if any(at <= last and first <= stop for at, _, stop, _, _ in new.get(path, []) if at != stop or at != first):
            continue
        for name, changes in new.items():
            edits.setdefault(name, []).extend(c for c in changes if c not in edits.get(name, []))
    if not edits:
        return
    if request.repair:
        request.replay.spared = _changed(request, request.repair)
    alone = request.replay.alone = _changed(request, edits)
    if alone is not None and request.finding.fix is not None:
        both = {name: [*edits.get(name, []), *request.repair.get(name, [])] for name in {*edits, *request.repair}}
        if not any(map(_overlap, both.values())):
            alone.fixed = _changed(request, both)


def _overlap(changes: list[Change]) -> bool:
    spans = sorted({(line, column, end, stop) for line, column, end, stop, _ in changes})
    return any(a[2:] > b[:2] for a, b in pairwise(spans))


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
