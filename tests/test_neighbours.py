"""What is found in a file depends on the project around it and not on what else is being checked."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from amplint.config import Settings
from amplint.engine import check
from amplint.finding import Severity
from amplint.neighbours import MAX_CALLERS, Neighbours
from amplint.project import Project
from amplint.run import Run

STEP = """
import torch
from kit import limit
from kit.base import Trainer
from kit.io import keep


class Own(Trainer):
    def __init__(self, net):
        super().__init__(net)
        self.scaler = torch.amp.GradScaler("cuda")

    def batch(self, x):
        with torch.autocast("cuda"):
            loss = self.net(x).mean()
        self.scaler.scale(loss).backward()
        limit(self.net)
        self.scaler.step(self.optimizer)
        self.scaler.update()
"""
FILES = {
    "pyproject.toml": "",
    "train.py": STEP,
    "other.py": STEP.replace("Own", "Other").replace("limit(self.net)", "keep(self.optimizer, 'x.pt')"),
    "kit/__init__.py": "from .clips import limit\n",
    "kit/clips.py": "import torch\n\n\ndef limit(net):\n    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n",
    "kit/io.py": "import torch\n\n\ndef keep(opt, path):\n    torch.save({'optimizer': opt.state_dict()}, path)\n",
    "kit/base.py": """
import torch


class Trainer:
    def __init__(self, net):
        self.net = net
        self.optimizer = torch.optim.Adam(net.parameters())

    def snapshot(self, path):
        torch.save({"optimizer": self.optimizer.state_dict()}, path)
""",
    "kit/unrelated.py": "import torch\n\n\ndef cut(net):\n    torch.nn.utils.clip_grad_norm_(net.parameters(), 1)\n",
}
EXPECTED = [("AMP201", "kit/clips.py", 5), ("AMP501", "kit/base.py", 11), ("AMP501", "kit/io.py", 5)]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*paths: str, jobs: int | None = 1) -> Run:
    return check([Path(path) for path in paths], Settings(min_severity=Severity.WARNING), jobs=jobs)


def found(result: Run) -> list[tuple[str, str, int]]:
    assert not result.errors
    return sorted((f.rule, f.place.path, f.place.line) for f in result.findings)


def test_helpers_bases_and_savers_are_judged_from_those_that_use_them(tree: Path) -> None:
    assert found(run(".")) == EXPECTED


def test_one_file_alone_gives_what_it_gives_in_the_whole_tree(tree: Path) -> None:
    python = [name for name in FILES if name.endswith(".py")]
    alone = [finding for name in python for finding in found(run(name))]
    assert sorted(alone) == EXPECTED


@pytest.mark.parametrize("seed", range(4))
def test_order_company_and_processes_change_nothing(tree: Path, seed: int) -> None:
    python = [name for name in FILES if name.endswith(".py")]
    chance = random.Random(seed)
    chosen = chance.sample(python, chance.randint(1, len(python)))
    expected = [f for f in EXPECTED if f[1] in chosen]
    assert found(run(*chosen)) == expected
    chance.shuffle(chosen)
    assert found(run(*chosen, jobs=2)) == expected


def test_hash_seeds_change_nothing(tree: Path) -> None:
    def said(seed: int) -> object:
        done = subprocess.run(
            [sys.executable, "-m", "amplint", "check", "--no-cache", "--output-format", "json", "."],
            capture_output=True,
            check=False,
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
        )
        return json.loads(done.stdout)["findings"]

    first, *others = [said(seed) for seed in (0, 1, 42)]
    assert first
    assert all(other == first for other in others)


def test_callers_are_the_nearest_and_not_too_many(tree: Path) -> None:
    for number in range(2 * MAX_CALLERS):
        text = "from kit import limit\n\n\ndef f(net, optimizer):\n    limit(net)\n    optimizer.step()\n"
        (tree / f"user{number:02}.py").write_text(text)
        # what trains nothing takes no room
        (tree / f"a{number:02}.py").write_text("from kit import limit\n\n\ndef f(net):\n    limit(net)\n")
    project = Project(tree)
    neighbours = Neighbours(project, lambda: sorted(tree.rglob("*.py")), {})
    callers = neighbours.callers(tree / "kit" / "clips.py")
    assert len(callers) == MAX_CALLERS
    assert callers == tuple(sorted(callers))
    assert tree / "kit" / "unrelated.py" not in callers
    assert neighbours.callers(tree / "kit" / "unrelated.py") == ()


@pytest.mark.parametrize(
    ("statement", "use"),
    list(
        itertools.chain.from_iterable(
            ((statement, use) for statement in statements)
            for use, statements in {
                "limit(net)": ("from kit.clips import limit", "from kit import limit", "from kit.clips import *"),
                "cut(net)": ("from kit.clips import limit as cut", "from kit.clips import (\n    limit as cut,\n)"),
                "clips.limit(net)": ("from kit import clips", "import kit.clips as clips"),
            }.items()
        )
    ),
)
def test_every_form_of_import_makes_a_caller(tree: Path, statement: str, use: str) -> None:
    user = tree / "user.py"
    user.write_text(f"{statement}\n\n\ndef f(net, optimizer):\n    {use}\n")
    neighbours = Neighbours(Project(tree), lambda: sorted(tree.rglob("*.py")), {})
    assert user in neighbours.callers(tree / "kit" / "clips.py")
    assert b"def limit(" in b"".join(neighbours.reached(user))


def test_a_helper_that_is_not_saved_counts_as_it_is_in_the_editor(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    kit, user = tmp_path / "kit.py", tmp_path / "train.py"
    kit.write_text("")
    user.write_text("from kit import half_way\n\n\ndef f(net):\n    half_way(net)\n")
    contents = {kit: b"def half_way(net):\n    net.scaler.update()\n"}
    neighbours = Neighbours(Project(tmp_path), lambda: [kit, user], contents)
    assert b"scaler" in b"".join(neighbours.reached(user))


def test_what_lies_around_a_package_without_a_mark_is_not_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "plugin"
    (tmp_path / "other").mkdir()
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "clips.py").write_text("")
    (tmp_path / "other" / "user.py").write_text("from plugin.clips import limit\n")
    monkeypatch.chdir(package)
    project = Project.for_file(package / "clips.py")
    assert (project.root, project.searched) == (tmp_path, package)
    monkeypatch.chdir(tmp_path)
    project = Project.for_file(package / "clips.py")
    assert (project.root, project.searched) == (tmp_path, tmp_path)


def test_a_helper_that_registers_hooks_can_know_nothing_of_scales(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kit.py").write_text(
        "def clamp_tensor(g, limit):\n    return g.clamp(-limit, limit)\n\n\n"
        "def clip_in_backward(net, limit):\n    for p in net.parameters():\n"
        "        p.register_hook(lambda g: clamp_tensor(g, limit))\n"
    )
    (tmp_path / "train.py").write_text(
        "import torch\nfrom kit import clip_in_backward\n\n\ndef train(net, loader):\n"
        "    optimizer = torch.optim.SGD(net.parameters())\n    scaler = torch.amp.GradScaler('cuda')\n"
        "    clip_in_backward(net, 1.0)\n    for x in loader:\n        optimizer.zero_grad()\n"
        "        with torch.autocast('cuda'):\n            loss = net(x).mean()\n"
        "        scaler.scale(loss).backward()\n        scaler.step(optimizer)\n        scaler.update()\n"
    )
    monkeypatch.chdir(tmp_path)
    assert found(run("kit.py")) == []
    assert found(run(".")) == found(run("train.py")) == [("AMP201", "train.py", 8)]
