"""Lint a program in this process, and compare the findings with what its execution showed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from amplint import registry
from amplint.analysis import analyse
from amplint.finding import Severity
from amplint.plan import OWN_RULES
from amplint.project import Project
from amplint.screen import Screen
from amplint.source import SourceModule

from .truth import Answer, Observed, Truth

#: a folder that is not there: nothing that a program imports is resolved
_NOWHERE = Path("/nonexistent/amplint")

_SCREEN = Screen([rule for rule in registry.all_rules() if rule.code not in OWN_RULES])


@dataclass(frozen=True)
class Reported:
    """A finding: its rule, its severity, and the lines of the statement that it points at."""

    code: str
    severity: Severity
    first: int
    last: int
    message: str

    def answers(self, answers: frozenset[Answer] | set[Answer]) -> bool:
        """Whether it is one of the right answers."""
        return any(code == self.code and self.first <= line <= self.last for code, line in answers)

    def __str__(self) -> str:
        return f"{self.code} line {self.first}: {self.message}"


def lint(source: str, target: str = "2.9", least: Severity = Severity.INFO) -> list[Reported]:
    """Everything that the rules say about a source, from a severity on."""
    data = source.encode()
    rules = [rule for rule in _SCREEN.rules_for(data) if rule.severity >= least]
    if not rules:
        return []
    module = SourceModule.from_bytes(data, "train.py")
    found = []
    for rule, fault in analyse(module, Project(_NOWHERE), rules, target):
        if fault.site.module is module:
            first, last = module.logical_line_range(fault.site.node)
            found.append(Reported(rule.code, rule.severity, first, last, fault.message))
    return found


@dataclass
class Agreement:
    """The two sides of one program.

    missed    faults that some error rule could have answered and nothing did
    false     findings of severity error that no run justifies
    beyond    faults for which the catalogue has no rule, or only one that warns, and that were not reported
    """

    faults: int = 0
    errors: int = 0
    missed: list[Observed] = field(default_factory=list)
    false: list[Reported] = field(default_factory=list)
    beyond: list[Observed] = field(default_factory=list)
    answered: list[tuple[Observed, Reported]] = field(default_factory=list)

    @property
    def disagrees(self) -> bool:
        return bool(self.missed or self.false)


_SEVERITY = {rule.code: rule.severity for rule in registry.all_rules()}


def compare(truth: Truth, findings: list[Reported]) -> Agreement:
    """Every fault must be answered, and every error must be justified."""
    agreement = Agreement()
    for fault in distinct(truth.roots):
        found = next((finding for finding in findings if finding.answers(fault.answers)), None)
        if found is None and ("already been called" in fault.kind or "after step" in fault.kind):
            # where update() and step() are exchanged, the update is what is reported
            truth.go_on()
            found = next((f for f in findings if f.code in ("AMP208", "AMP301") and f.answers(truth.possible)), None)
        grave = any(_SEVERITY[code] is Severity.ERROR for code, _ in fault.answers)
        agreement.faults += grave
        if found is not None:
            agreement.answered.append((fault, found))
        elif grave:
            agreement.missed.append(fault)
        else:
            agreement.beyond.append(fault)
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    agreement.errors = len(errors)
    if not all(finding.answers(truth.possible) for finding in errors):
        truth.go_on()
        agreement.false = [finding for finding in errors if not finding.answers(truth.possible)]
    return agreement


def distinct(faults: list[Observed]) -> Iterator[Observed]:
    """One observation a fault: what shows in several variants in the same place is the same."""
    merged: dict[tuple[str, tuple[int, ...]], Observed] = {}
    for fault in faults:
        key = (fault.kind, fault.lines)
        known = merged.get(key)
        answers = fault.answers | known.answers if known else fault.answers
        merged[key] = Observed(fault.kind, fault.lines, answers, known.circumstances if known else fault.circumstances)
    yield from merged.values()
