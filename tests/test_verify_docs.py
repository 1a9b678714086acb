"""docs/verified.md speaks of all rules, and its script changes no more than the section of one torch and device."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from amplint import registry

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "verified.md").read_text(encoding="utf-8")


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("verify_table", ROOT / "tests" / "bench" / "verify_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_section_lists_every_rule() -> None:
    sections = {part.splitlines()[0]: part for part in PAGE.split("\n## ")[1:]}
    tables = {title: part for title, part in sections.items() if title.startswith("torch ")}
    assert {"torch 2.13.0, cpu", "torch 2.9.1, cpu"} <= set(tables)
    codes = [rule.code for rule in registry.all_rules()]
    for title, part in tables.items():
        assert re.findall(r"^\| (AMP\d+) \|", part, re.M) == codes, title
        assert "| refuted |" not in part, title


def test_the_page_says_that_there_was_no_gpu_until_there_is_a_table_of_one() -> None:
    assert ("No GPU was at hand" in PAGE) == (", cuda\n" not in PAGE)


def test_the_readme_links_the_page() -> None:
    assert "(docs/verified.md)" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_a_section_is_put_in_or_replaced(script: ModuleType) -> None:
    page = "# Title\n\nText.\n\n## torch 1, cpu\n\nold\n\n## torch 2, cpu\n\nother\n"
    replaced = script.with_section(page, "torch 1, cpu", "new")
    assert replaced == page.replace("old", "new")
    assert script.with_section(page, "torch 2, cpu", "new") == page.replace("other", "new")
    assert script.with_section(page, "torch 2, cuda", "new") == page + "\n## torch 2, cuda\n\nnew\n"


def test_a_row_is_one_line_of_the_table(script: ModuleType) -> None:
    row = {"rule": "AMP1", "name": "x", "verdict": "conditional", "fix_verified": True, "figure": "a | b\nc"}
    text = script.table([{**row, "variant": "overflow", "reason": None}])
    assert text.splitlines()[2:] == ["| AMP1 | x | conditional | verified | a \\| b c [overflow] |"]
