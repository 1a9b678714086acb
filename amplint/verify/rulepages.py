"""The programs on the rules' own pages, put before the oracle: the Example must show the fault, the other not."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from amplint.finding import Severity, Verdict
from amplint.verify.building import STATIC, NoReplay, build
from amplint.verify.findings import judged
from amplint.verify.host import Worker
from amplint.verify.texts import Change, apply_edits, moved, statement_end

#: a page's program may take longer than a finding: nothing else waits for it
SECONDS_PER_PROGRAM = 15.0
#: lines that a program is tried at when nothing tells where its fault is
MOST_LINES = 12
#: why a rule may stay without a confirmation: there is nothing to be seen on this machine
ELSEWHERE = ("needs cuda", "needs several processes", "version:")
EVENT_LINE = re.compile(
    r"autocast|GradScaler|\.scale\(|\.unscale_\(|\.backward\(|autograd\.|clip_grad|\.step\(|\.update\(|zero_grad|\.grad\b"
    r"|torch\.save|state_dict|\.half\(|get_scale|binary_cross_entropy|masked_fill|eps|float16|bfloat16"
)


def verify_rules(
    codes: Iterable[str], settings: Any, progress: Callable[[int, int], None] | None = None
) -> list[dict[str, Any]]:
    """Put the programs on the rules' own pages before the oracle.

    The Example must be confirmed (or conditional), its Use instead must not. The verdict of a row is the
    Example's; it is "refuted" where either program does not hold what its page says.
    """
    from amplint.registry import all_rules

    wanted = set(codes)
    chosen = [rule for rule in all_rules() if rule.code in wanted]
    rows: list[dict[str, Any]] = []
    with Worker(
        no_sandbox=bool(getattr(settings, "no_sandbox", False)),
        seconds=SECONDS_PER_PROGRAM,
        device=str(getattr(settings, "device", None) or "auto"),
    ) as worker:
        for rule in chosen:
            verdict = _example(worker, rule.code, _block(rule.page, "Example"))
            seconds = verdict.seconds
            status, reason = str(verdict.status), verdict.reason
            instead = _block(rule.page, "Use instead")
            if verdict.status in ("confirmed", "conditional") and instead:
                bad, seconds_more = _instead(worker, rule.code, instead)
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
                    "fix_verified": verdict.fix_verified,
                    "seconds": round(seconds, 3),
                    "torch": worker.torch,
                    "device": verdict.device,
                }
            )
            if progress is not None:
                progress(len(rows), len(chosen))
    return rows


def holds(row: Mapping[str, Any]) -> bool:
    """Whether a row of `verify_rules` is as it should be: confirmed, or with nothing to confirm on this machine."""
    if row["verdict"] == "inconclusive":
        return str(row["reason"]).startswith(ELSEWHERE)
    return bool(row["verdict"] != "refuted")


def event_lines(text: str) -> list[int]:
    """The lines of a program on which something may happen to a scaler, an optimizer, a gradient or a dtype."""
    return [
        i
        for i, line in enumerate(text.splitlines(), 1)
        if EVENT_LINE.search(line) and not line.lstrip().startswith(("#", "import ", "from ", '"""'))
    ]


def _block(page: str, heading: str) -> str:
    """The python block under a heading of a rule's page."""
    match = re.search(rf"^## {re.escape(heading)}\s*$(.*?)(?=^## |\Z)", page, re.M | re.S)
    found = re.search(r"```python\n(.*?)```", match[1], re.S) if match else None
    return found[1] if found else ""


def _example(worker: Worker, code: str, text: str) -> Verdict:
    """The verdict on a page's Example, at the place that is marked, else reported, else first seen."""
    if code in STATIC:
        return Verdict("static-only", device="", reason=STATIC[code])
    if not text:
        return Verdict("static-only", device="", reason="the page has no example")
    marked = [i for i, line in enumerate(text.splitlines(), 1) if "# <- here" in line]
    found, edits = _linted(code, text)
    first: Verdict | None = None
    for line in (marked or ([found] if found else []) or event_lines(text))[:MOST_LINES]:
        try:
            replay = build(code, "<text>", line, statement_end(text, line), {"<text>": text})
            if edits:
                repaired, at = apply_edits(text, edits), moved(text, line, edits)
                replay.fixed = build(code, "<text>", at, statement_end(repaired, at), {"<text>": repaired})
        except NoReplay as error:
            first = first or Verdict("inconclusive", reason=str(error))
            continue
        verdict = judged(worker, replay)
        if verdict.status in ("confirmed", "conditional"):
            return verdict
        first = first or verdict
    return first or Verdict("inconclusive", reason="the example has no event")


def _linted(code: str, text: str) -> tuple[int | None, list[Change]]:
    """Where the linter reports the fault in an example, and what its fix changes there."""
    from amplint.config import Configuration
    from amplint.engine import check

    path = Path(os.path.abspath("example.py"))
    run = check(
        [path], Configuration({"min_severity": Severity.INFO}, isolated=True), contents={path: text.encode()}, jobs=1
    )
    for finding in run.findings:
        if finding.rule == code:
            places = [(edit.place, edit.text) for edit in finding.fix.edits] if finding.fix is not None else []
            return finding.place.line, [(p.line, p.column, p.end_line, p.end_column, new) for p, new in places]
    return None, []


def _instead(worker: Worker, code: str, text: str) -> tuple[str | None, float]:
    """What is wrong with a page's Use instead (None if nothing), and how long it took."""
    seconds = 0.0
    for line in event_lines(text)[:MOST_LINES]:
        try:
            replay = build(code, "<text>", line, statement_end(text, line), {"<text>": text})
        except NoReplay:
            continue
        verdict = judged(worker, replay)
        seconds += verdict.seconds
        if verdict.status in ("confirmed", "conditional"):
            return f"{verdict.figure} (line {line})", seconds
    return None, seconds
