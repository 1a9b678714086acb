"""Which tensors are 16 bit: what operators, casts, regions and calls make of a dtype."""

from __future__ import annotations

from pathlib import Path

import pytest

from amplint.precision import Tensor, facts_of
from amplint.project import Project
from amplint.source import SourceModule
from amplint.target import NEWEST

PRELUDE = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"


def dtype_of(body: str) -> tuple[str, bool] | None:
    """The dtype (and whether it is certain) of what `f` hands to `torch.abs` last."""
    text = PRELUDE + body
    module = SourceModule.from_bytes(text.encode(), "a.py")
    env = Project(Path("/nowhere")).enter(module)
    seen = [fact.arguments[0] for fact in facts_of(env, NEWEST) if fact.operation == "torch.abs"]
    last = seen[-1]
    return (last.dtype, last.sure) if isinstance(last, Tensor) else None


def inside(expression: str, region: str = 'torch.autocast("cuda")') -> str:
    return f"def f(net, x, w, s=2.0):\n    with {region}:\n        y = x @ w\n        torch.abs({expression})\n"


CASES = [
    pytest.param(inside("x @ w"), ("float16", True), id="product"),
    pytest.param(inside("F.linear(x, w)"), ("float16", True), id="function-of-the-list"),
    pytest.param(inside("nn.Linear(2, 3)(x)"), ("float16", True), id="module-of-the-list"),
    pytest.param(inside("nn.Sequential(nn.Linear(2, 3), nn.ReLU())(x)"), ("float16", True), id="sequential"),
    pytest.param(
        inside("nn.Sequential(nn.Linear(2, 3), nn.Softmax(1))(x)"), ("float32", True), id="sequential-in-fp32"
    ),
    pytest.param(inside("net(x)"), ("float16", False), id="unknown-network"),
    pytest.param(inside("y.relu().mean(0)"), ("float16", True), id="keeps"),
    pytest.param(inside("y.softmax(-1)"), ("float32", True), id="fp32-by-the-list"),
    pytest.param(inside("y * s"), ("float16", True), id="number"),
    pytest.param(inside("y + y.float()"), ("float32", True), id="promoted"),
    pytest.param(inside("y + x"), None, id="unknown-operand"),
    pytest.param(inside("y.to(torch.float32)"), ("float32", True), id="cast"),
    pytest.param(inside("y.float().to(y.dtype)"), ("float16", True), id="cast-to-the-dtype-of"),
    pytest.param(inside("y.to('cuda')"), ("float16", True), id="moved"),
    pytest.param(inside("x @ w", 'torch.autocast("cpu")'), ("bfloat16", True), id="cpu"),
    pytest.param(inside("x @ w", "torch.autocast(s, dtype=torch.bfloat16)"), ("bfloat16", True), id="dtype-given"),
    pytest.param(inside("x @ w", 'torch.autocast("cuda", dtype=net.dtype)'), None, id="dtype-at-run-time"),
    pytest.param(inside("x @ w", 'torch.autocast("cuda", enabled=False)'), None, id="disabled"),
    pytest.param(inside("x @ w", "net.autocast()"), None, id="unknown-context"),
    pytest.param(
        'def f(x, w):\n    with torch.autocast("cuda"):\n        y = x @ w\n    torch.abs(y)\n',
        ("float16", True),
        id="after-the-region",
    ),
    pytest.param(
        'def f(x, w, flag):\n    with torch.autocast("cuda"):\n        y = x @ w\n'
        "        if flag:\n            y = y.float()\n"
        "        torch.abs(y)\n",
        None,
        id="branches-that-differ",
    ),
    pytest.param(
        'def g(x):\n    return x @ x\n\n\ndef f(x):\n    with torch.autocast("cuda"):\n        torch.abs(g(x))\n',
        ("float16", True),
        id="function-of-the-module",
    ),
    pytest.param(
        "class M(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.inner = nn.Linear(2, 2)\n\n"
        '    @torch.autocast("cuda")\n    def forward(self, x):\n        return self.inner(x)\n\n\n'
        "def f(m: M, x):\n    torch.abs(m(x))\n",
        ("float16", True),
        id="decorated-forward",
    ),
]


@pytest.mark.parametrize(("body", "expected"), CASES)
def test_dtypes(body: str, expected: tuple[str, bool] | None) -> None:
    assert dtype_of(body) == expected


def test_a_module_without_16_bits_is_not_walked() -> None:
    module = SourceModule.from_bytes(b"import torch\ntorch.abs(torch.zeros(2))\n", "a.py")
    assert facts_of(Project(Path("/nowhere")).enter(module), NEWEST) == ()
