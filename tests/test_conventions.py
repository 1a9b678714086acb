"""What holds for every rule, so that nothing but its own file has to name it, and for the repository as a whole."""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from amplint import registry
from amplint.plan import OWN_RULES
from amplint.rule import Rule
from amplint.screen import Screen, code_of

ROOT = Path(__file__).parent.parent
FIXTURES = ROOT / "fixtures"
HEADINGS = [
    "What it does",
    "Why is this bad",
    "Example",
    "Use instead",
    "Known limits",
    "Fix safety",
    "How it is confirmed",
    "References",
]
MARK = "# <- here"
#: one sentence: the only full stop that white space or the end follows is the last character
SENTENCE = re.compile(r"[A-Z`](?:[^.!?]|[.!?](?=\S))*\.")

RULES = registry.all_rules()
#: rules with a predicate; the engine speaks for the others, and they have tests of their own
ANALYSING = [rule for rule in RULES if rule.code not in OWN_RULES]

every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
every_predicate = pytest.mark.parametrize("rule", ANALYSING, ids=lambda rule: rule.code)


def sections(rule: Rule) -> dict[str, str]:
    """The text of a page by heading."""
    parts = re.split(r"^## (.+)$", rule.page, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def fixtures(rule: Rule, kind: str) -> list[Path]:
    """The bad or the good fixtures of a rule."""
    return sorted((FIXTURES / rule.name).glob(f"{kind}_*.py"))


@every_rule
def test_a_page_has_all_headings_in_order(rule: Rule) -> None:
    assert re.findall(r"^## (.+)$", rule.page, re.MULTILINE) == HEADINGS
    empty = [heading for heading, text in sections(rule).items() if not text.strip()]
    assert not empty


@every_rule
def test_the_summary_is_one_sentence(rule: Rule) -> None:
    assert SENTENCE.fullmatch(rule.summary), rule.summary


@every_rule
def test_the_file_and_the_class_are_named_after_the_rule(rule: Rule) -> None:
    module = type(rule).__module__
    assert module == f"amplint.rules.{rule.name.replace('-', '_')}"
    assert type(rule).__name__ == "".join(word.capitalize() for word in rule.name.split("-"))


def test_codes_names_and_classes_are_unique() -> None:
    package = importlib.import_module("amplint.rules")
    classes = [
        member
        for info in pkgutil.iter_modules(package.__path__)
        for member in vars(importlib.import_module(f"amplint.rules.{info.name}")).values()
        if isinstance(member, type) and issubclass(member, Rule) and member is not Rule
    ]
    assert len(classes) == len(set(classes)), "a rule imports another one"
    for what in ("code", "name", "__name__"):
        twice = [value for value, count in Counter(getattr(cls, what) for cls in classes).items() if count > 1]
        assert not twice
    assert {cls.code for cls in classes} == {rule.code for rule in RULES}


@every_rule
def test_codes_that_a_rule_yields_to_exist(rule: Rule) -> None:
    codes = {other.code for other in RULES}
    assert set(rule.yields_to) <= codes - {rule.code}


@every_rule
def test_no_two_rules_yield_to_each_other(rule: Rule) -> None:
    mutual = [other.code for other in RULES if other.code in rule.yields_to and rule.code in other.yields_to]
    assert not mutual


@every_predicate
def test_the_example_shows_where_the_finding_points(rule: Rule) -> None:
    page = sections(rule)
    assert page["Example"].count(MARK) >= 1
    assert MARK not in page["Use instead"]
    for heading in ("Example", "Use instead"):
        blocks = re.findall(r"^```python\n(.*?)^```$", page[heading], re.MULTILINE | re.DOTALL)
        assert len(blocks) == 1, f"{heading}: one complete program"
        compile(blocks[0], heading, "exec")


@every_predicate
def test_a_rule_has_bad_and_good_fixtures(rule: Rule) -> None:
    assert len(fixtures(rule, "bad")) >= 3
    assert len(fixtures(rule, "good")) >= 3


@every_predicate
def test_every_bad_fixture_has_a_good_twin(rule: Rule) -> None:
    good = {file.name.removeprefix("good_") for file in fixtures(rule, "good")}
    bad = {file.name.removeprefix("bad_") for file in fixtures(rule, "bad")}
    assert bad <= good


@every_predicate
def test_bad_fixtures_and_the_example_pass_the_needles(rule: Rule) -> None:
    screen = Screen([rule])
    stopped = [file.name for file in fixtures(rule, "bad") if not screen.rules_for(code_of(file.read_bytes()))]
    assert not stopped
    assert screen.rules_for(sections(rule)["Example"].encode())


def test_folders_of_fixtures_belong_to_rules() -> None:
    folders = {folder.name for folder in FIXTURES.iterdir() if folder.is_dir()}
    assert folders <= {rule.name for rule in RULES}


def test_the_table_of_rules_in_the_readme_is_the_registry() -> None:
    row = re.compile(r"^\| *\[?(AMP\d{3})\]?(?:\([^)]*\))? *\| *`?([a-z0-9-]+)`? *\|", re.MULTILINE)
    rows = row.findall(_text(ROOT / "README.md"))
    if rows:
        assert rows == [(rule.code, rule.name) for rule in RULES]


def test_no_file_of_the_project_holds_a_path_of_a_machine() -> None:
    machine = re.compile(r"(?<![\w*.])(?:/home/\w+/|/Users/\w+/|/roo[t]/|[A-Z]:\\\\?Users\\)")
    found = []
    for file in _project_files():
        text = _text(file)
        if str(ROOT) in text or machine.search(text):
            found.append(file.relative_to(ROOT).as_posix())
    assert not found


def _project_files() -> list[Path]:
    """The files under version control; in an unpacked sdist, those of the project's folders."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode == 0 and listed.stdout:
        return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]
    folders = ("amplint", "rules", "fixtures", "tests")
    return [*ROOT.glob("*.*"), *(file for folder in folders for file in (ROOT / folder).rglob("*.*") if file.is_file())]


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace")
