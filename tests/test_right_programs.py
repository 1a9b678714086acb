"""Right programs of which nothing is said, as public code writes them.

They are no fixtures because no rule is the one that they are about, or a replay cannot tell them from wrong ones.
"""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import pytest

from amplint.config import Settings
from amplint.engine import check
from amplint.finding import Finding, Severity

PROGRAMS = sorted((Path(__file__).parent / "right").glob("*.py"))


#: what may be done with scaled gradients: changes that keep their scale, questions for their form, comparisons with
#: zero, the order of their elements, a division by the scale, a statement of what they are
KEEPING = [
    "torch._foreach_div_([p.grad for p in model.parameters()], world)",
    "torch._foreach_mul_([p.grad for p in model.parameters()], 0.5)",
    "torch._foreach_mul_([p.grad for p in model.parameters()], 1.0 / world)",
    (
        "grads = [p.grad for p in model.parameters() if p.grad is not None]\n"
        "torch._foreach_div_(grads, torch.distributed.get_world_size())"
    ),
    ("g = model.b.weight.grad\nm = torch.ones(g.shape)\ng.mul_(m)"),
    ("g = model.b.weight.grad\nm = (torch.rand(g.shape[0], 1, device=g.device) > 0.5).to(g)\ng.mul_(m)"),
    ("for p in model.last_layer.parameters():\n    p.grad = None"),
    (
        "g = model.emb.weight.grad\n"
        "keep = torch.ones(g.size(0), dtype=torch.bool, device=g.device)\n"
        "keep[k] = False\n"
        "g[keep] = 0"
    ),
    ("g = model.emb.weight.grad\nkeep = torch.arange(len(g)) != k\ng.data[keep, :] = g.data[keep, :].fill_(0)"),
    "print({n: p.grad.stride() for n, p in model.named_parameters()})",
    (
        "grads = [p.grad for p in model.parameters()]\n"
        "vec = torch.nn.utils.parameters_to_vector(grads)\n"
        "torch.distributed.all_reduce(vec)\n"
        "vec /= world\n"
        "torch.nn.utils.vector_to_parameters(vec, grads)"
    ),
    (
        "grads = [p.grad for p in model.parameters()]\n"
        "flat = torch._utils._flatten_dense_tensors(grads)\n"
        "torch.distributed.all_reduce(flat)\n"
        "flat /= world"
    ),
    "model.a.weight.grad = model.a.weight.grad.tril()",
    "model.a.weight.grad = torch.flip(model.a.weight.grad, (0,))",
    "model.dec.weight.grad = model.enc.weight.grad.t().clone()",
    ("g = model.a.weight.grad\nmodel.a.weight.grad = torch.where(model.mask, g, torch.zeros_like(g))"),
    ("for p in model.parameters():\n    p.grad.data = torch.where(p == 0, torch.zeros_like(p), p.grad)"),
    ("for p in model.parameters():\n    p.grad.data.masked_fill_(p.data == 0, 0)"),
    ("g = model.b.weight.grad\ng -= g.mean(dim=1, keepdim=True)"),
    "assert model.a.weight.grad.abs().sum() > 0",
    "if model.a.weight.grad.norm() == 0: print('no gradient')",
    ("dead = (model.a.weight.grad.abs().sum(1) == 0).sum()\nprint(dead)"),
    ("used = [n for n, p in model.named_parameters() if p.grad.abs().sum() > 0]\nprint(used)"),
    ("top = model.weight.grad.abs().argmax()\nprint(top)"),
    ("top = model.weight.grad.abs().flatten().topk(10).indices\nprint(top)"),
    ("scale = scaler.get_scale()\nprint([p.grad.norm().item() / scale for p in model.parameters()])"),
    "assert torch.equal(model.weight.grad, torch.full((2, 2), 8.0))",
    "for p, g in zip(model.parameters(), zip(*branches)): p.grad = torch.stack(g).mean(0)",
]
STEP = """\
import torch


def train(model, loader, opt, world, k, branches):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda"):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
{change}
        scaler.step(opt)
        scaler.update()
"""


def findings(program: Path) -> list[Finding]:
    run = check([program], Settings(min_severity=Severity.INFO), jobs=1)
    assert not run.errors
    return [f for f in run.findings if f.rule != "AMP601"]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_nothing_is_said_of_what_is_right(program: Path) -> None:
    assert [(f.rule, f.place.line, f.message) for f in findings(program)] == []


@pytest.mark.parametrize("change", KEEPING)
def test_what_keeps_the_scale_is_right(tmp_path: Path, change: str) -> None:
    (tmp_path / "train.py").write_text(STEP.format(change=indent(change, " " * 8)))
    assert [(f.rule, f.place.line, f.message) for f in findings(tmp_path / "train.py")] == []


def test_a_region_of_a_with_is_not_left_by_the_exit_of_something_else(tmp_path: Path) -> None:
    change = "with torch.autocast('cuda'):\n    world.__exit__(None, None, None)\n    model(x).sum().backward()"
    (tmp_path / "train.py").write_text(STEP.format(change=indent(change, " " * 8)))
    assert "AMP101" in {f.rule for f in findings(tmp_path / "train.py")}
