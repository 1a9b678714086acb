"""From faults to findings: places in other files, merging, what is reported, and how much it costs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import libcst as cst
import libcst.matchers as m
import pytest

from amplint import analysis, registry
from amplint.config import Settings
from amplint.engine import check
from amplint.finding import Confidence
from amplint.rule import Fault, Rule, Site
from amplint.run import Run
from amplint.source import SourceModule

NEEDLES = "'scaler.scale(clip_grad_norm_,autocast,.update(),.step(optimizer),unscale_,backward()'\n"
Analyse = Callable[[SourceModule, object, Sequence[Rule], str], list[tuple[Rule, Fault]]]


@pytest.fixture
def analysed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Analyse], None]:
    return lambda analyse: monkeypatch.setattr(analysis, "analyse", analyse)


def rule(code: str) -> Rule:
    found = registry.find(code)
    assert found is not None
    return found


def calls(module: SourceModule, name: str) -> list[Site]:
    return [Site(module, call) for call in m.findall(module.tree, m.Call(func=m.Name(name)))]


def run(*paths: str, settings: Settings | None = None, **more: object) -> Run:
    return check([Path(p) for p in paths or (".",)], settings or Settings(), **more)  # type: ignore[arg-type]


def found(run: Run) -> list[tuple[str, str, int]]:
    return [(f.rule, f.place.path, f.place.line) for f in run.findings]


HELPER = "def helper():\n    clip()\n    loss.backward()\n"


def test_a_finding_belongs_to_the_file_of_its_site(here: Path, analysed: Callable[[Analyse], None]) -> None:
    (here / "train.py").write_text(NEEDLES + "from lib import helper\nhelper()\n")
    (here / "lib.py").write_text(HELPER)

    def across(module: SourceModule, *_: object) -> list[tuple[Rule, Fault]]:
        lib = SourceModule.from_path(here / "lib.py")  # the project names it in its own way
        step = (calls(module, "helper")[0], "called here")
        return [(rule("AMP201"), Fault(calls(lib, "clip")[0], "bad", steps=(step,)))]

    analysed(across)
    both = run()
    assert found(both) == found(run("lib.py")) == [("AMP201", "lib.py", 2)]
    assert [step.place.path for step in both.findings[0].steps] == ["train.py"]
    assert found(run("train.py")) == []
    (here / "lib.py").write_text(HELPER.replace("clip()", "clip()  # amplint: ignore[AMP201]"))
    assert found(run()) == []
    (here / "lib.py").write_text(HELPER)
    (here / "train.py").write_text(NEEDLES + "from lib import helper\nhelper()  # amplint: ignore[AMP201]\n")
    assert found(run()) == []
    (here / "train.py").write_text(NEEDLES + "helper()\n")
    assert found(run()) == []


def test_what_several_files_lead_to_is_said_once_and_most_certainly(
    here: Path, analysed: Callable[[Analyse], None]
) -> None:
    (here / "lib.py").write_text(HELPER)
    for name in ("a.py", "b.py"):
        (here / name).write_text(NEEDLES + "from lib import helper\nhelper()\n")

    def across(module: SourceModule, *_: object) -> list[tuple[Rule, Fault]]:
        lib = SourceModule.from_path(here / "lib.py", "lib.py")
        sure = Confidence.HIGH if module.path == "b.py" else Confidence.MEDIUM
        return [(rule("AMP201"), Fault(calls(lib, "clip")[0], f"from {module.path}", confidence=sure))]

    analysed(across)
    (finding,) = run().findings
    assert (finding.message, finding.confidence) == ("from b.py", Confidence.HIGH)


def test_the_more_specific_rule_speaks_whichever_file_it_was_found_from(
    here: Path, analysed: Callable[[Analyse], None]
) -> None:
    general = next(r for r in registry.all_rules() if r.yields_to)
    specific = rule(general.yields_to[0])
    (here / "lib.py").write_text(NEEDLES + HELPER)
    (here / "a.py").write_text(NEEDLES + "from lib import helper\nhelper()\n")

    def across(module: SourceModule, *_: object) -> list[tuple[Rule, Fault]]:
        lib = SourceModule.from_path(here / "lib.py", "lib.py")
        return [(specific if module.path == "a.py" else general, Fault(calls(lib, "clip")[0], "bad"))]

    analysed(across)
    every = Settings(min_severity=specific.severity.__class__(0))
    assert [f.rule for f in run(settings=every).findings] == [specific.code]


def test_equal_statements_have_fingerprints_of_their_own_that_survive_a_move(
    here: Path, analysed: Callable[[Analyse], None]
) -> None:
    analysed(lambda module, *_: [(rule("AMP201"), Fault(site, "bad")) for site in calls(module, "clip")])
    (here / "a.py").write_text(NEEDLES + "clip()\nclip()\nclip(1)\n")
    before = [f.fingerprint for f in run().findings]
    assert len(set(before)) == 3
    (here / "a.py").write_text("import os\n\n" + NEEDLES + "def f():\n    clip()\n    clip()\n    clip(1)\n")
    assert [f.fingerprint for f in run().findings] == before


def test_an_editors_buffer_stands_in_for_the_file(here: Path, analysed: Callable[[Analyse], None]) -> None:
    analysed(lambda module, *_: [(rule("AMP201"), Fault(site, "bad")) for site in calls(module, "clip")])
    (here / "a.py").write_text("x = 1\n")
    assert found(run("a.py", contents={here / "a.py": (NEEDLES + "clip()\n").encode()})) == [("AMP201", "a.py", 2)]
    assert found(run("new.py", contents={here / "new.py": (NEEDLES + "clip()\n").encode()})) != []


def test_nesting_that_the_analysis_cannot_follow_is_unreadable_and_no_fault_of_amplint(
    here: Path, analysed: Callable[[Analyse], None]
) -> None:
    def recursive(module: SourceModule, *_: object) -> list[tuple[Rule, Fault]]:
        def visit(node: cst.CSTNode) -> None:
            for child in node.children:
                visit(child)

        sys.setrecursionlimit(500)
        visit(module.tree)
        return []

    analysed(recursive)
    (here / "deep.py").write_text(NEEDLES + "x = " + "-" * 900 + "1\n")
    deep = run()
    assert found(deep) == [("AMP902", "deep.py", 1)]
    assert deep.errors == []

    def endless(*_: object) -> list[tuple[Rule, Fault]]:
        return endless()

    analysed(endless)
    (here / "deep.py").write_text(NEEDLES + "x = 1\n")
    assert [error.path for error in run().errors] == ["deep.py"]


def test_many_files_without_amp_cost_little(here: Path) -> None:
    text = "def f(x):\n    return x + 1\n" * 400
    for number in range(1500):
        folder = here / f"pkg{number % 20}"
        folder.mkdir(exist_ok=True)
        (folder / f"m{number}.py").write_text(text)
    started = time.perf_counter()
    looked = run()
    assert (len(looked.files), looked.screened_out, looked.parsed) == (1500, 1500, 0)
    assert time.perf_counter() - started < 5


def test_hash_seeds_do_not_change_the_result(here: Path) -> None:
    text = Path(__file__).with_name("conftest.py").read_text().split('CLIPPED = """\\\n')[1].split('"""')[0]
    for number in range(3):
        (here / f"f{number}.py").write_text(text)
    outputs = set()
    for seed in ("0", "1", "2"):
        done = subprocess.run(
            [sys.executable, "-m", "amplint", "--output-format", "concise", "."],
            env={"PYTHONHASHSEED": seed, "PATH": ""},
            capture_output=True,
            text=True,
            check=False,
        )
        outputs.add((done.returncode, done.stdout, done.stderr))
    assert len(outputs) == 1


@pytest.mark.parametrize(
    ("lines", "parsed", "rules"),
    [
        (["import torch\n", 'torch.autocast("cuda")\n', "x = 1"], 1, ["AMP103"]),
        (["# autocast, GradScaler and 1e-8 in float16\n", "print('the scaler is off')"], 0, []),
        (["from torch.cuda.amp import autocast\n", "with autocast(False):\n", "    y = x"], 0, []),
    ],
)
def test_a_notebook_is_screened_by_its_program(here: Path, lines: list[str], parsed: int, rules: list[str]) -> None:
    cell = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": lines}
    for indent in (None, 1):
        notebook = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
        (here / "a.ipynb").write_text(json.dumps(notebook, indent=indent))
        looked = run()
        assert (looked.parsed, [finding.rule for finding in looked.findings]) == (parsed, rules)


def test_a_broken_notebook_is_said_to_be_one(here: Path) -> None:
    (here / "a.ipynb").write_text('{"cells": [{"source": ["with torch.autocast(device): scaler.step(optimizer)"')
    assert [finding.rule for finding in run().findings] == ["AMP902"]
