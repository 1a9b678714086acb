"""Gradients that are divided by hand by a scale that was read after `update()`."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import pytest

from amplint.config import Settings
from amplint.engine import check

PROGRAM = """
import torch


def train(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
{before}
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
{body}
"""
STEP = "scaler.step(optimizer)\nscaler.update()\n"


def findings(folder: Path, body: str, before: str = "pass") -> list[tuple[str, str]]:
    file = folder / "train.py"
    file.write_text(PROGRAM.format(before=" " * 8 + before, body=indent(body, " " * 8)))
    run = check([file], Settings())
    assert not run.errors
    lines = file.read_text().splitlines()
    return [(f.rule, lines[f.place.line - 1].strip()) for f in run.findings]


@pytest.mark.parametrize(
    "use",
    [
        "norms = [(p.grad / scaler.get_scale()).norm() for p in model.parameters()]",
        "inverse = 1.0 / scaler.get_scale(); norms = [(p.grad * inverse).norm() for p in model.parameters()]",
        "scale = scaler.get_scale(); norm = sum(p.grad.norm() for p in model.parameters()) / scale",
    ],
)
def test_gradients_that_the_step_has_unscaled_are_not_divided_again(tmp_path: Path, use: str) -> None:
    *bound, last = use.split("; ")
    assert findings(tmp_path, STEP + "\n".join([*bound, last])) == [("AMP220", last)]


@pytest.mark.parametrize("divide", ["p.grad.div_(scaler.get_scale())", "p.grad /= scaler.get_scale()"])
def test_the_division_is_what_is_wrong_and_not_the_step_after_it(tmp_path: Path, divide: str) -> None:
    body = f"scaler.update(128.0)\nfor p in model.parameters():\n    {divide}\noptimizer.step()"
    assert findings(tmp_path, body) == [("AMP220", divide)]


def test_a_scale_that_was_read_before_the_gradients_were_made_is_theirs(tmp_path: Path) -> None:
    norm = "print([(p.grad / scale).norm() for p in model.parameters()])"
    assert findings(tmp_path, f"{norm}\n{STEP}", "scale = scaler.get_scale()") == []
    assert findings(tmp_path, f"scale = scaler.get_scale()\n{norm}\n{STEP}") == []


def test_a_scale_that_is_logged_or_divides_something_else_is_silent(tmp_path: Path) -> None:
    assert findings(tmp_path, f"{STEP}print(scaler.get_scale(), loss.item() / scaler.get_scale())") == []


@pytest.mark.parametrize("divide", ["p.grad.div_(scaler.get_scale())", "p.grad = p.grad.div(scaler.get_scale())"])
def test_gradients_divided_by_the_scale_they_carry_may_be_stepped_past_the_scaler(tmp_path: Path, divide: str) -> None:
    body = f"for p in model.parameters():\n    {divide}\noptimizer.step()"
    assert findings(tmp_path, body) == []
    assert findings(tmp_path, f"{body}\nscaler.update()") == [("AMP204", "optimizer.step()")]
