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
    pytest.param(inside("x.abs()"), None, id="method-of-something-unknown"),
    pytest.param(inside("x @ w", 'torch.autocast("cuda", **s)'), None, id="region-with-options"),
    pytest.param(inside("y.to(**s)"), None, id="cast-with-options"),
    pytest.param(inside("y.to(*s)"), None, id="cast-with-arguments"),
    pytest.param(inside("torch.clone(torch.sigmoid(y, **s))"), None, id="function-with-options"),
    pytest.param(inside("F.linear(y, w, **s)"), ("float16", True), id="product-with-options"),
    pytest.param(inside("net.scale * y"), ("float16", False), id="called-like-a-number"),
    pytest.param(inside("net.gamma * y"), None, id="perhaps-a-weight"),
    pytest.param(inside("nn.Parameter(torch.ones(2)) * y"), ("float32", True), id="weight"),
    pytest.param(inside("y.square()"), ("float32", True), id="square-is-a-power"),
    pytest.param(inside("1 / y"), ("float32", True), id="reciprocal"),
    pytest.param(inside("2 ** y"), ("float32", True), id="number-to-a-power"),
    pytest.param(inside("F.interpolate(y, scale_factor=2)"), ("float32", True), id="upsampled"),
    pytest.param(inside("torch.tensordot(y, y.float(), 1)"), ("float32", True), id="widest-input"),
    pytest.param(inside("torch.maximum(y, y.float())"), ("float32", True), id="greater-of-two"),
    pytest.param(inside("y.max(1)"), None, id="pair"),
    pytest.param(inside("y.max(1)[0]"), ("float16", True), id="greatest"),
    pytest.param(inside("y.max(1).indices"), ("other", True), id="where-the-greatest-is"),
    pytest.param(inside("y.topk(3)[1]"), ("other", True), id="indices"),
    pytest.param(inside("y.sort().values"), ("float16", True), id="sorted"),
    pytest.param(inside("y.to(torch.int64)"), ("other", True), id="cast-to-integers"),
    pytest.param(inside("nn.LSTM(2, 2)(x)[0]"), ("float16", True), id="output-of-a-recurrent-net"),
    pytest.param(inside("nn.LSTM(2, 2)(x)[1]"), None, id="state-of-a-recurrent-net"),
    pytest.param(
        "def g(s):\n    if s.dtype == torch.float16:\n        return s.float()\n    return s\n\n\n"
        'def f(x, w):\n    with torch.autocast("cuda"):\n        torch.abs(g(x @ w))\n',
        ("float32", True),
        id="return-in-a-branch-that-is-decided",
    ),
    pytest.param(
        "def g(s):\n    if s.element_size() == 2:\n        return s.float()\n    return s\n\n\n"
        'def f(x, w):\n    with torch.autocast("cuda"):\n        torch.abs(g(x @ w))\n',
        ("float32", True),
        id="size-of-an-element",
    ),
    pytest.param(
        "def g(s):\n    if torch.is_autocast_enabled():\n        return s.float()\n    return s\n\n\n"
        'def f(x, w):\n    with torch.autocast("cuda"):\n        torch.abs(g(x @ w))\n',
        ("float32", True),
        id="asked-for-the-region",
    ),
    pytest.param(
        "def g(s, half=True):\n    return s if half else s.float()\n\n\n"
        'def f(x, w, options):\n    with torch.autocast("cuda"):\n        torch.abs(g(x @ w, **options))\n',
        None,
        id="options-that-nobody-knows",
    ),
    pytest.param(
        "def force_fp32(f):\n    return lambda *args: f(*(a.float() for a in args))\n\n\n"
        "@force_fp32\ndef g(s):\n    return s\n\n\n"
        'def f(x, w):\n    with torch.autocast("cuda"):\n        torch.abs(g(x @ w))\n',
        None,
        id="decorator-that-casts",
    ),
    pytest.param(
        "class A(nn.Module):\n    def __init__(self, inner=None):\n        super().__init__()\n"
        "        self.inner = inner\n\n"
        "class B(A):\n    def __init__(self):\n        super().__init__(inner=nn.Linear(2, 2))\n\n"
        "    def forward(self, x):\n        return self.inner(x)\n\n\n"
        'def f(x):\n    with torch.autocast("cuda"):\n        torch.abs(B()(x))\n',
        ("float16", True),
        id="what-a-base-class-is-given",
    ),
    pytest.param(
        "class A(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.build()\n\n"
        "    def build(self):\n        self.inner = nn.Linear(2, 2)\n\n"
        "    def forward(self, x):\n        return self.inner(x)\n\n\n"
        'def f(x):\n    with torch.autocast("cuda"):\n        torch.abs(A()(x))\n',
        ("float16", True),
        id="what-a-method-builds",
    ),
    pytest.param(
        "class A(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.layers = nn.ModuleList()\n        self.layers.append(nn.Linear(2, 2))\n\n"
        "    def forward(self, x):\n        for layer in self.layers:\n            x = layer(x)\n        return x\n\n\n"
        'def f(x):\n    with torch.autocast("cuda"):\n        torch.abs(A()(x))\n',
        ("float16", True),
        id="appended-layers",
    ),
    pytest.param(
        "class A(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.inner = nn.Linear(2, 2)\n\n"
        "    def forward(self, x):\n        return self.inner(x)\n\n\n"
        "def f(x, other):\n    a = A()\n    a.inner = other\n"
        '    with torch.autocast("cuda"):\n        torch.abs(a(x))\n',
        ("float16", False),
        id="layer-that-is-set-from-outside",
    ),
    pytest.param(
        "class A:\n    @staticmethod\n    def product(x):\n        return x @ x\n\n\n"
        'def f(x):\n    with torch.autocast("cuda"):\n        torch.abs(A.product(x))\n',
        ("float16", True),
        id="static-method",
    ),
    pytest.param(
        "class N(nn.Module):\n    def forward(self, x):\n        return (x @ x).float()\n\n\n"
        'def f(model, x):\n    with torch.autocast("cuda"):\n        torch.abs(model(x))\n\n\n'
        "f(N(), 1)\n",
        ("float32", True),
        id="network-that-a-caller-gives",
    ),
    pytest.param(
        inside("LAYERS['net'](x)").replace("def f", "LAYERS = {'net': nn.Linear(2, 3)}\n\n\ndef f"),
        ("float16", True),
        id="network-of-a-table",
    ),
    pytest.param(
        inside("LAYERS['net'](x)").replace("def f", "LAYERS = {'net': nn.Linear(2, 3)}\nfill(LAYERS)\n\n\ndef f"),
        None,
        id="table-that-is-handed-on",
    ),
    pytest.param(inside("nn.ModuleDict({'a': nn.Linear(2, 3)})['a'](x)"), ("float16", True), id="module-dict"),
    pytest.param(
        'def f(x, w):\n    with torch.autocast("cuda"):\n        d = {"y": x @ w}\n        torch.abs(d["y"])\n',
        ("float16", True),
        id="result-of-a-dictionary",
    ),
    pytest.param(
        'def f(x, w):\n    with torch.autocast("cuda"):\n        d = {"y": x @ w}\n        d["y"] = x\n'
        '        torch.abs(d["y"])\n',
        None,
        id="dictionary-filled-anew",
    ),
]


@pytest.mark.parametrize(("body", "expected"), CASES)
def test_dtypes(body: str, expected: tuple[str, bool] | None) -> None:
    assert dtype_of(body) == expected


def test_a_module_without_16_bits_is_not_walked() -> None:
    module = SourceModule.from_bytes(b"import torch\ntorch.abs(torch.zeros(2))\n", "a.py")
    assert facts_of(Project(Path("/nowhere")).enter(module), NEWEST) == ()
