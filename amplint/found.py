"""From faults to findings: places, statements, fixes, and files that cannot be read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from amplint import registry
from amplint.finding import Confidence, Finding, Place, Step
from amplint.source import SourceError, SourceModule

if TYPE_CHECKING:
    import libcst as cst

    from amplint.rule import Fault, Rule


UNREADABLE = "AMP902"


@dataclass(slots=True)
class Raw:
    """A finding before it is known what else was found; `text` is the statement's source, `origin` the file from
    which execution came there."""

    finding: Finding
    text: str
    origin: Path | None = None


def unreadable_finding(display: str, error: SourceError) -> Finding:
    rule = registry.by_code_or_name()[UNREADABLE]
    place = Place(display, error.line, error.column, error.line, error.column + 1, error.cell)
    return _finding(rule, place, error.message, Confidence.HIGH, statement=(error.line, error.line))


def raw_of(rule: Rule, fault: Fault, target: str) -> Raw:
    from amplint.edits import fix_of

    module, node = fault.site.module, fault.site.node
    first, last = module.logical_line_range(node)
    place = module.place(node)
    steps: list[Step] = []
    for site, message in fault.steps:
        step = Step(site.module.place(site.node), message)
        if step not in steps:
            steps.append(step)
    finding = _finding(
        rule,
        place,
        fault.message,
        fault.confidence,
        steps=tuple(steps),
        assumptions=fault.assumptions,
        fix=fix_of(fault.fix) if fault.fix is not None else None,
        target=target,
        statement=(first, last),
    )
    return Raw(finding, _lines(module, node, first, last))


def _lines(module: SourceModule, node: cst.CSTNode, first: int, last: int) -> str:
    cell = module.place(node).cell
    start, end = module.program_line(first, cell), module.program_line(last, cell)
    return "\n".join(module.line_text(line) for line in range(start, end + 1))


def _finding(
    rule: Rule,
    place: Place,
    message: str,
    confidence: Confidence,
    statement: tuple[int, int],
    **more: object,
) -> Finding:
    return Finding(
        rule=rule.code,
        name=rule.name,
        severity=rule.severity,
        confidence=confidence,
        place=place,
        message=message,
        url=rule.url,
        statement=statement,
        **more,  # type: ignore[arg-type]
    )
