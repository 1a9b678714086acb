"""A loss that is divided by the length of a window that no micro-batch is counted for.

A run without AMP divides it as well, so that no replay can tell the two apart: these programs are no fixtures.
"""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent, indent

import pytest

from amplint.config import Settings
from amplint.engine import check
from amplint.finding import Finding

PROGRAM = """
import torch


def train(model, loader, accumulate=4, args=None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for number, x in enumerate(loader):
        with torch.autocast("cuda"):
            loss = model(x).mean()
{body}
"""
STEP = "scaler.step(optimizer)\nscaler.update()\noptimizer.zero_grad()\n"


def findings(folder: Path, body: str) -> list[Finding]:
    file = folder / "train.py"
    file.write_text(PROGRAM.format(body=indent(body, " " * 8)))
    run = check([file], Settings())
    assert not run.errors
    return list(run.findings)


@pytest.mark.parametrize(
    "backward",
    [
        "scaler.scale(loss / accumulate).backward()",
        "loss = loss / accumulate\nscaler.scale(loss).backward()",
        "loss /= args.grad_accum_steps\nscaler.scale(loss).backward()",
        "(scaler.scale(loss) / args.update_freq).backward()",
    ],
)
def test_a_division_for_a_window_that_nothing_counts_is_reported_at_the_step(tmp_path: Path, backward: str) -> None:
    found = findings(tmp_path, f"{backward}\n{STEP}")
    assert [(f.rule, f.place.line) for f in found] == [("AMP303", 10 + backward.count("\n") + 2)]
    assert "as in a window" in found[0].message


@pytest.mark.parametrize(
    "body",
    [
        # a world, a batch
        f"scaler.scale(loss / args.world_size).backward()\n{STEP}",
        f"scaler.scale(loss / len(x)).backward()\n{STEP}",
        # a window
        f"scaler.scale(loss / accumulate).backward()\nif (number + 1) % accumulate == 0:\n{indent(STEP, '    ')}",
        f"scaler.scale(loss / accumulate).backward()\nif args.is_boundary(number):\n{indent(STEP, '    ')}",
        f"for _ in range(accumulate):\n    scaler.scale(model(x).mean() / accumulate).backward()\n{STEP}",
        # a window of one
        f"accumulate = 1\nscaler.scale(loss / accumulate).backward()\n{STEP}",
        dedent(
            """
            scaler.scale(loss / accumulate).backward()
            if accumulate == 1:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            """
        ),
    ],
)
def test_other_divisions_and_windows_that_are_counted_are_silent(tmp_path: Path, body: str) -> None:
    assert findings(tmp_path, body) == []
