"""All fixes of all bad fixtures: the findings go, nothing new comes, and the text is otherwise as it was.

Everything happens in this process and in memory; a text is analysed once before and once after each round of fixing.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from amplint.config import Settings
from amplint.engine import check
from amplint.finding import Severity
from amplint.fix import fix_all, is_applicable
from amplint.run import Run
from amplint.target import NEWEST, asked_for

FIXTURES = Path(__file__).parent.parent / "fixtures"
BAD = sorted(FIXTURES.glob("*/bad_*.py"))
COOKIE, LATIN = "# -*- coding: latin-1 -*-\n", "# caf\xe9\n"


def findings_in(file: Path, data: bytes) -> Run:
    """Everything that amplint can say about a file with other contents."""
    settings = Settings(min_severity=Severity.INFO, torch=asked_for(file.parent) or NEWEST)
    run = check([file], settings, contents={file: data}, jobs=1)
    assert run.errors == [], run.errors[0].traceback
    return run


@dataclass(frozen=True)
class Repaired:
    """What is left of a file after all of its fixes."""

    data: bytes
    applied: int


def repaired(file: Path, data: bytes, unsafe: bool) -> Repaired:
    before = findings_in(file, data)
    found = Counter(finding.rule for finding in before.findings)
    fixed, after = fix_all(before, lambda new: findings_in(file, {file: data, **new}[file]), unsafe)
    left = Counter(finding.rule for finding in after.findings)
    gone = Counter(finding.rule for finding in fixed.applied)
    assert left <= found - gone, "a finding stayed after its fix, or a new one came"
    again = [f"{f.rule} at line {f.place.line}: {f.fix}" for f in after.findings if is_applicable(f, unsafe)]
    assert again == [], "a second run would change more"
    return Repaired(fixed.after.get(before.files[0].display, data), len(fixed.applied))


def _tabs(text: str) -> str:
    return re.sub(r"^(?: {4})+", lambda spaces: "\t" * (len(spaces.group()) // 4), text, flags=re.MULTILINE)


def _in_latin_1(text: str) -> bytes:
    return f"{COOKIE}{_tabs(text)}{LATIN}".encode("latin-1", "replace")


def _windows(text: str) -> bytes:
    return ("\ufeff" + text.rstrip("\n").replace("\n", "\r\n")).encode()


def _cells(text: str) -> bytes:
    """A notebook with a cell for every statement at the top."""
    cells = re.split(r"(?<=\n)(?=(?:@|def|class|if|for|while|with|try)\b|@)", text)
    code: list[dict[str, object]] = [
        {"cell_type": "code", "metadata": {}, "outputs": [], "source": c.splitlines(True)} for c in cells if c
    ]
    return json.dumps({"cells": code, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, indent=1).encode()


def _of_cells(data: bytes) -> str:
    return "".join("".join(cell["source"]) for cell in json.loads(data)["cells"])


class Storage(NamedTuple):
    """Another way to store the same program. `spelled` is what `loaded` gives back where nothing went wrong."""

    suffix: str
    stored: Callable[[str], bytes]
    loaded: Callable[[bytes], str]
    spelled: Callable[[str], str]


STORAGES = [
    Storage(".py", _windows, lambda data: data.decode(), lambda text: _windows(text).decode()),
    Storage(".py", _in_latin_1, lambda data: data.decode("latin-1"), lambda text: _in_latin_1(text).decode("latin-1")),
    Storage(".ipynb", _cells, _of_cells, str),
]


@pytest.mark.parametrize("file", BAD, ids=lambda file: file.relative_to(FIXTURES).as_posix())
def test_all_fixes_of_a_fixture(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    safe = repaired(file, text.encode(), unsafe=False)
    everything = repaired(file, text.encode(), unsafe=True)
    assert everything.applied >= safe.applied
    if not everything.applied:
        return
    for way in STORAGES if "AMPLINT_ALL_FIXTURES" in os.environ else (STORAGES[BAD.index(file) % len(STORAGES)],):
        same = repaired(file.with_suffix(way.suffix), way.stored(text), unsafe=True)
        assert same.applied == everything.applied
        assert way.loaded(same.data) == way.spelled(everything.data.decode())
