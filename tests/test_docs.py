"""The documentation site: it builds without a warning, has a page for every rule, and shows what exists."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest
from conftest import Amplint

from amplint import registry
from amplint.config import KEYS, settings_from
from amplint.toml import loads

pytest.importorskip("mkdocs")
ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "docs").glob("*.md"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def text_of(page: Path) -> str:
    """A page's article without its markup."""
    article = re.search(r"<article.*?</article>", page.read_text(encoding="utf-8"), re.DOTALL)
    assert article is not None
    return unescape(re.sub(r"<[^>]+>", "", article[0]))


def test_every_rule_has_the_page_that_its_findings_lead_to(site: Path) -> None:
    index = text_of(site / "rules" / "index.html")
    for rule in registry.all_rules():
        path = rule.url.removeprefix("https://amplint.readthedocs.io/")
        text = text_of(site / path / "index.html")
        assert f"{rule.name} ({rule.code})" in text
        assert rule.code in index


def test_the_programs_of_a_page_are_tabs_and_whole(site: Path) -> None:
    for rule in registry.all_rules():
        page = site / "rules" / rule.name / "index.html"
        programs = re.findall(r"^```python\n(.*?)^```$", rule.page, re.MULTILINE | re.DOTALL)
        text = text_of(page)
        for program in programs:
            assert "".join(program.split()) in "".join(text.split()), rule.name
        if "## Use instead" in rule.page:
            assert '<label for="__tabbed_1_2">Use instead</label>' in page.read_text(encoding="utf-8"), rule.name
        assert "```" not in text, rule.name


def test_every_key_is_documented(site: Path) -> None:
    page = (site / "configuration" / "index.html").read_text(encoding="utf-8")
    for key in KEYS:
        assert f'<h3 id="{key}">' in page


def test_the_schema_is_where_it_says_it_is(site: Path) -> None:
    assert (site / "amplint.schema.json").read_bytes() == (ROOT / "docs" / "amplint.schema.json").read_bytes()
    assert not list(site.rglob("*.py"))


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_pages_show_options_that_exist(source: Path, amplint: Amplint) -> None:
    options = {*re.findall(r"(?<![\w-])--[a-z][a-z-]+", amplint("verify", "--help").out)}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", source.read_text(encoding="utf-8"))) <= options


def test_pages_show_configurations_that_are_read(tmp_path: Path) -> None:
    for source in SOURCES:
        for block in re.findall(r"```toml\n(.*?)```", source.read_text(encoding="utf-8"), re.DOTALL):
            settings_from(loads(block).get("tool", {}).get("amplint", {}), tmp_path, None)
