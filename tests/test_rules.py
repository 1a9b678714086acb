"""Every fixture is linted with all rules on, and gets exactly the findings that its marks announce.

A mark is a trailing comment, `# expect: AMP201` (several codes by comma), on any line of the flagged statement.
Findings of severity info count in the folder of their own rule only: elsewhere they are beside the point.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from amplint import registry
from amplint.config import Settings
from amplint.engine import check
from amplint.finding import Finding, Severity
from amplint.plan import OWN_RULES
from amplint.rule import Rule
from amplint.target import NEWEST, asked_for

FIXTURES = Path(__file__).parent.parent / "fixtures"
FILES = sorted(FIXTURES.rglob("*.py"))
ANALYSING = [rule for rule in registry.all_rules() if rule.code not in OWN_RULES]
MARK = re.compile(r"#\s*expect:\s*(AMP\d{3}(?:\s*,\s*AMP\d{3})*)")


@dataclass(frozen=True, order=True)
class Mark:
    """A finding that a fixture announces."""

    line: int
    rule: str


def marks_of(file: Path) -> list[Mark]:
    """The marks of a file, by line."""
    lines = enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
    return [
        Mark(number, code)
        for number, line in lines
        for found in MARK.findall(line)
        for code in re.split(r"[\s,]+", found)
    ]


def findings_of(file: Path, rule_name: str) -> list[Finding]:
    """What amplint says about a file by itself, as far as the marks of that rule's programs speak of it."""
    folder = FIXTURES / rule_name
    target = asked_for(folder) if (folder / "pyproject.toml").exists() else NEWEST
    settings = Settings(min_severity=Severity.INFO, torch=target)
    run = check([file], settings, jobs=1)
    assert run.errors == [], "\n".join(error.traceback for error in run.errors)
    return [f for f in run.findings if f.severity > Severity.INFO or f.name == rule_name]


def difference(marks: list[Mark], findings: list[Finding]) -> list[str]:
    """What is announced and not found, and what is found and not announced."""
    open_marks = list(marks)
    lines: list[str] = []
    for finding in findings:
        first, last = finding.statement
        match = next((m for m in open_marks if m.rule == finding.rule and first <= m.line <= last), None)
        if match is not None:
            open_marks.remove(match)
        else:
            lines.append(
                f"not announced: line {finding.place.line}: {finding.rule} {finding.severity}: {finding.message}"
            )
    return [f"not found: line {mark.line}: {mark.rule}" for mark in open_marks] + lines


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(FIXTURES).as_posix())
def test_a_fixture_gets_the_findings_it_announces(file: Path) -> None:
    wrong = difference(marks_of(file), findings_of(file, file.relative_to(FIXTURES).parts[0]))
    assert not wrong, "\n".join([file.relative_to(FIXTURES).as_posix(), *wrong])


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(FIXTURES).as_posix())
def test_bad_fixtures_announce_their_own_rule_and_good_ones_nothing(file: Path) -> None:
    rule = registry.find(file.relative_to(FIXTURES).parts[0])
    assert rule is not None, "the folder of fixtures is named after no rule"
    marks = marks_of(file)
    if file.name.startswith("good_"):
        assert marks == []
    else:
        assert rule.code in {mark.rule for mark in marks}


@pytest.mark.parametrize("heading", ["Example", "Use instead"])
@pytest.mark.parametrize("rule", ANALYSING, ids=lambda rule: rule.code)
def test_the_programs_of_a_page_are_what_the_page_says(rule: Rule, heading: str, tmp_path: Path) -> None:
    block = re.search(rf"^## {heading}\n+```python\n(.*?)^```$", rule.page, re.MULTILINE | re.DOTALL)
    assert block is not None
    file = tmp_path / "program.py"
    file.write_text(block[1], encoding="utf-8")
    marks = [Mark(n, rule.code) for n, line in enumerate(block[1].splitlines(), 1) if line.endswith("# <- here")]
    assert bool(marks) == (heading == "Example")
    wrong = difference(marks, findings_of(file, rule.name))
    assert not wrong, "\n".join([f"{rule.name}, {heading}", *wrong])


@pytest.mark.parametrize("rule", [r for r in ANALYSING if r.fix is not None], ids=lambda rule: rule.code)
def test_a_repair_that_a_rule_declares_is_shown_by_a_fixture(rule: Rule) -> None:
    files = sorted((FIXTURES / rule.name).glob("bad_*.py"))
    fixes = (f.fix for file in files for f in findings_of(file, rule.name) if f.rule == rule.code)
    assert any(fix is not None and fix.safety == rule.fix for fix in fixes)


@pytest.mark.parametrize("rule", [r for r in ANALYSING if r.fix is None], ids=lambda rule: rule.code)
def test_a_rule_without_repair_offers_none(rule: Rule) -> None:
    file = min((FIXTURES / rule.name).glob("bad_*.py"))
    assert all(f.fix is None for f in findings_of(file, rule.name) if f.rule == rule.code)
