"""Functions that a configuration names are taken for what it says they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from amplint.config import Settings
from amplint.engine import check
from amplint.wrappers import wrappers_of

TRAIN = """
import torch
{imports}


def train(model, loader):
    optimizer = {optimizer}
    scaler = {scaler}
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        {backward}
        {clip}
        scaler.step(optimizer)
        scaler.update()
"""
PLAIN = {
    "imports": "",
    "optimizer": "torch.optim.SGD(model.parameters())",
    "scaler": "torch.amp.GradScaler('cuda')",
    "backward": "scaler.scale(loss).backward()",
    "clip": "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
}


def codes(folder: Path, settings: Settings, **parts: str) -> list[tuple[str, int]]:
    (folder / "pyproject.toml").touch()
    (folder / "train.py").write_text(TRAIN.format(**{**PLAIN, **parts}))
    run = check([folder / "train.py"], settings)
    assert not run.errors
    return [(f.rule, f.place.line) for f in run.findings]


def test_every_list_of_the_configuration_gives_a_role() -> None:
    settings = Settings(scaler_factories=("a.b",), optimizer_factories=("c",), clip_functions=("d.e.f",))
    assert wrappers_of(settings) == {"a.b": "scaler", "c": "optimizer", "d.e.f": "clip"}
    assert wrappers_of(Settings(backward_functions=("g",))) == {"g": "backward"}


@pytest.mark.parametrize("name", ["lib.tools.limit", "tools.limit"])
def test_a_clip_function_clips_wherever_it_is_defined(tmp_path: Path, name: str) -> None:
    module, _, function = name.rpartition(".")
    use = {"imports": f"from {module} import {function}", "clip": f"{function}(model)"}
    assert codes(tmp_path, Settings(), **use) == []
    assert codes(tmp_path, Settings(clip_functions=(name,)), **use) == [("AMP201", 14)]
    package = tmp_path / "src" / module.replace(".", "/")
    package.parent.mkdir(parents=True)
    package.with_suffix(".py").write_text("def limit(model):\n    clever_library_call(model)\n")
    assert codes(tmp_path, Settings(clip_functions=(name,)), **use) == [("AMP201", 14)]


def test_a_scaler_factory_makes_a_scaler(tmp_path: Path) -> None:
    use = {"imports": "from lib import make", "scaler": "make()", "clip": "scaler = make()"}
    assert ("AMP216", 15) not in codes(tmp_path, Settings(), **use)
    assert ("AMP216", 15) in codes(tmp_path, Settings(scaler_factories=("lib.make",)), **use)


def test_a_backward_function_runs_the_backward_of_its_loss(tmp_path: Path) -> None:
    use = {"imports": "from lib import descend", "backward": "descend(loss, scaler)"}
    assert codes(tmp_path, Settings(), **use) == []
    assert codes(tmp_path, Settings(backward_functions=("lib.descend",)), **use) == [("AMP201", 14)]


def test_an_optimizer_factory_ties_parameters_to_their_optimizer(tmp_path: Path) -> None:
    use = {
        "imports": "from lib import build",
        "optimizer": "build(model.parameters())\n    other = build(extra.parameters())",
        "clip": "scaler.unscale_(other)\n        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
    }
    assert codes(tmp_path, Settings(), **use) == []
    assert "AMP201" in dict(codes(tmp_path, Settings(optimizer_factories=("lib.build",)), **use))
