"""Clauses of the catalogue, a few lines each: what is reported, and the nearest thing that is not.

Here stands what a fixture cannot show: programs that are judged by their text, or whose replay ends before the fault.
"""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from amplint.config import Settings
from amplint.engine import check

HEAD = """
import torch
from torch import nn

model = nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = [torch.randn(2, 4).cuda() for _ in range(4)]
"""


def codes(folder: Path, program: str, torch: str | None = None) -> list[str]:
    file = folder / "train.py"
    file.write_text(HEAD + dedent(program))
    run = check([file], Settings(torch=torch))
    assert not run.errors
    return [finding.rule for finding in run.findings]


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ('torch.cuda.amp.GradScaler(device="cuda")', 'torch.amp.GradScaler(device="cuda")'),
        ('torch.amp.GradScaler(device_type="cuda")', 'torch.amp.GradScaler("cuda")'),
        ('torch.cuda.amp.autocast(device_type="cuda")', 'torch.autocast(device_type="cuda")'),
        ('torch.autocast(device="cuda")', "torch.cuda.amp.autocast()"),
        ("torch.autocast(batches[0].device)", "torch.autocast(batches[0].device.type)"),
        ("torch.autocast(model(batches[0]).device)", "torch.autocast(model(batches[0]).device.type)"),
        ("torch.autocast(model.weight.device)", "torch.autocast(model.weight.device.type)"),
    ],
)
def test_the_device_goes_to_its_place_as_a_string(tmp_path: Path, wrong: str, right: str) -> None:
    assert codes(tmp_path, f"context = {wrong}\n") == ["AMP104"]
    assert codes(tmp_path, f"context = {right}\n") == []


def test_the_class_of_an_older_torch_is_not_judged_behind_a_failed_import(tmp_path: Path) -> None:
    program = """
        try:
            from torch.amp import GradScaler
        except ImportError:
            from torch.cuda.amp import GradScaler
        scaler = GradScaler(device="cuda")
    """
    assert codes(tmp_path, program) == []


def test_whether_an_annotated_parameter_is_a_tensor_decides(tmp_path: Path) -> None:
    program = """
        def predict(x{}):
            with torch.autocast(x.device):
                return model(x)
    """
    assert codes(tmp_path, program.format(": torch.Tensor")) == ["AMP104"]
    assert codes(tmp_path, program.format("")) == []
