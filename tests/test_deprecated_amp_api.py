"""AMP601: what counts as a use of an old name, and rewrites that keep the meaning of every argument."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Amplint

from amplint.deprecations import repair, uses
from amplint.edits import fix_of
from amplint.fix import apply_edits
from amplint.source import SourceModule


def today(text: str) -> str:
    """A program after the repairs of all of its old names, one round after the other."""
    for _ in range(20):
        module = SourceModule.from_bytes(text.encode(), "a.py")
        plans = [plan for plan in (repair(module, use) for use in uses(module)) if plan is not None]
        if not plans:
            return text
        fix = fix_of(plans[0])
        assert fix is not None
        text = apply_edits(module, fix.edits).decode()
        compile(text, "a.py", "exec")
    raise AssertionError("the repairs do not come to an end")


REWRITES = [
    pytest.param(
        "import torch\ntorch.cuda.amp.autocast(False)\n",
        'import torch\ntorch.amp.autocast("cuda", enabled=False)\n',
        id="a-flag-does-not-become-the-dtype",
    ),
    pytest.param(
        "import torch\ntorch.cuda.amp.autocast(True, torch.bfloat16)\n",
        'import torch\ntorch.amp.autocast("cuda", enabled=True, dtype=torch.bfloat16)\n',
        id="flag-and-dtype-keep-their-places",
    ),
    pytest.param(
        "from torch.cuda.amp import autocast\nwith autocast(False):\n    pass\n",
        'from torch.amp import autocast\nwith autocast("cuda", enabled=False):\n    pass\n',
        id="the-import-moves-with-the-use",
    ),
    pytest.param(
        "import torch.cuda.amp as camp\ncamp.autocast()\n",
        'import torch.amp as camp\ncamp.autocast("cuda")\n',
        id="module-under-an-alias",
    ),
    pytest.param(
        "from torch.cuda import amp\namp.GradScaler()\n",
        'from torch import amp\namp.GradScaler("cuda")\n',
        id="module-from-its-package",
    ),
    pytest.param(
        "import torch as th\nth.cuda.amp.autocast()\n",
        'import torch as th\nth.amp.autocast("cuda")\n',
        id="torch-under-an-alias",
    ),
    pytest.param(
        "import torch\ntorch.cuda.amp.GradScaler(2.**10, 2., .5, 100, amp)\n",
        "import torch\n"
        'torch.amp.GradScaler("cuda", init_scale=2.**10, growth_factor=2., backoff_factor=.5, '
        "growth_interval=100, enabled=amp)\n",
        id="the-scale-does-not-become-the-device",
    ),
    pytest.param(
        "import torch\ntorch.cuda.amp.GradScaler(enabled=amp, **options)\n",
        'import torch\ntorch.amp.GradScaler("cuda", enabled=amp, **options)\n',
        id="keywords-stay",
    ),
    pytest.param(
        "from torch.cuda.amp import GradScaler, autocast\n"
        "s = GradScaler(1024.)\nwith autocast(): pass\nt = GradScaler()\n",
        "from torch.amp import GradScaler, autocast\n"
        's = GradScaler("cuda", init_scale=1024.)\nwith autocast("cuda"): pass\nt = GradScaler("cuda")\n',
        id="no-use-is-left-behind",
    ),
    pytest.param(
        "from torch.cuda.amp import GradScaler as Scaler, autocast\nScaler()\n",
        'from torch.amp import GradScaler as Scaler\nfrom torch.cuda.amp import autocast\nScaler("cuda")\n',
        id="a-name-for-others-to-import-stays",
    ),
    pytest.param(
        "def f():\n    from torch.cuda.amp import GradScaler, autocast_mode\n    return GradScaler()\n",
        "def f():\n    from torch.amp import GradScaler\n    from torch.cuda.amp import autocast_mode\n"
        '    return GradScaler("cuda")\n',
        id="import-in-a-function",
    ),
    pytest.param(
        "from torch.cuda import Stream, amp\nStream()\namp.autocast(on)\n",
        'from torch import amp\nfrom torch.cuda import Stream\nStream()\namp.autocast("cuda", enabled=on)\n',
        id="the-rest-of-an-import-stays",
    ),
    pytest.param(
        "from torch.cuda.amp import custom_bwd, custom_fwd\n@custom_fwd\ndef f(x): pass\n@custom_bwd\ndef b(x): pass\n",
        "from torch.amp import custom_bwd, custom_fwd\n"
        '@custom_fwd(device_type="cuda")\ndef f(x): pass\n@custom_bwd(device_type="cuda")\ndef b(x): pass\n',
        id="decorators-without-a-call",
    ),
    pytest.param(
        "import torch\n@torch.cuda.amp.custom_fwd(cast_inputs=torch.float32)\ndef f(x): pass\n",
        'import torch\n@torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)\ndef f(x): pass\n',
        id="decorator-with-an-argument",
    ),
    pytest.param(
        "import torch\ng = torch.cuda.amp.custom_fwd(f)\n",
        'import torch\ng = torch.amp.custom_fwd(f, device_type="cuda")\n',
        id="decorator-as-a-function",
    ),
    pytest.param(
        "import torch\ntorch.cpu.amp.autocast(dtype=torch.bfloat16)\n",
        'import torch\ntorch.amp.autocast("cpu", dtype=torch.bfloat16)\n',
        id="cpu",
    ),
    pytest.param(
        "import torch\ntorch.set_autocast_gpu_dtype(d)\ntorch.is_autocast_cpu_enabled()\n",
        'import torch\ntorch.set_autocast_dtype("cuda", d)\ntorch.is_autocast_enabled("cpu")\n',
        id="state",
    ),
    pytest.param(
        "from torch.cuda.amp import GradScaler\n"
        "def f(s: GradScaler | None):\n    isinstance(s, GradScaler)\n    GradScaler()\n",
        "from torch.amp import GradScaler\ndef f(s: GradScaler | None):\n    isinstance(s, GradScaler)\n"
        '    GradScaler("cuda")\n',
        id="annotations-follow-the-import",
    ),
    pytest.param(
        "from torch import cuda\ncuda.amp.autocast()\n",
        'from torch import cuda\nimport torch\ntorch.amp.autocast("cuda")\n',
        id="a-name-that-is-missing-is-imported",
    ),
    pytest.param(
        "import torch\ntorch.cuda.amp.autocast_mode.autocast()\ntorch.cuda.amp.grad_scaler.GradScaler()\n",
        'import torch\ntorch.amp.autocast("cuda")\ntorch.amp.GradScaler("cuda")\n',
        id="sub-modules",
    ),
]

REPORTED_ONLY = [
    pytest.param("import torch\nold = torch.cuda.amp.autocast\nwith old():\n    pass\n", id="under-another-name"),
    pytest.param("from torch.cuda.amp import autocast\nold = autocast\nautocast(True)\n", id="one-use-is-handed-on"),
    pytest.param("from torch.cuda.amp import GradScaler\nclass S(GradScaler): pass\n", id="subclass"),
    pytest.param("from torch.cuda.amp import GradScaler\nGradScaler(*a)\n", id="unknown-number-of-positions"),
    pytest.param("import torch\ntorch.cuda.amp.GradScaler('cuda')\n", id="argument-of-the-new-class"),
    pytest.param("import torch\ntorch.cuda.amp.autocast(\n    True,  # why\n)\n", id="a-comment-inside"),
    pytest.param(
        "try:\n    from torch.cuda.amp import autocast\nexcept ImportError:\n    autocast = None\nautocast()\n",
        id="optional-import",
    ),
    pytest.param("from torch import cuda\ntorch = 1\ncuda.amp.autocast()\n", id="torch-is-something-else"),
]

SILENT = [
    pytest.param(
        "try:\n    from torch.amp import autocast\nexcept ImportError:\n    from torch.cuda.amp import autocast\n"
        'autocast("cuda")\n',
        id="fallback",
    ),
    pytest.param(
        "import torch\ntry:\n    a = torch.amp.GradScaler\nexcept AttributeError:\n    a = torch.cuda.amp.GradScaler\n",
        id="fallback-by-attribute",
    ),
    pytest.param(
        "import torch\n"
        's = torch.amp.GradScaler() if hasattr(torch.amp, "GradScaler") else torch.cuda.amp.GradScaler()\n',
        id="gate",
    ),
    pytest.param("from torch.cuda.amp import autocast\n", id="import-alone"),
    pytest.param("import torch\ntorch.amp.autocast('cuda')\ntorch.is_autocast_enabled('cpu')\n", id="new-names"),
    pytest.param("from mine.cuda.amp import autocast\nautocast(True)\n", id="of-another-package"),
    pytest.param("from .cuda.amp import autocast\nautocast(True)\n", id="relative"),
    pytest.param("import torch\ndef f(torch):\n    torch.cuda.amp.autocast()\n", id="shadowed"),
]


@pytest.mark.parametrize(("old", "new"), REWRITES)
def test_rewrites(old: str, new: str) -> None:
    assert today(old) == new


@pytest.mark.parametrize("text", REPORTED_ONLY)
def test_reported_and_left_alone(text: str) -> None:
    module = SourceModule.from_bytes(text.encode(), "a.py")
    assert uses(module)
    assert today(text) == text


@pytest.mark.parametrize("text", SILENT)
def test_silent(text: str) -> None:
    assert uses(SourceModule.from_bytes(text.encode(), "a.py")) == []


def test_all_uses_of_a_file_are_fixed_in_one_run(here: Path, amplint: Amplint) -> None:
    (here / "pyproject.toml").write_text('[project]\nname = "x"\ndependencies = ["torch>=2.6"]\n')
    (here / "a.py").write_text(
        "import torch\nfrom torch.cuda.amp import GradScaler, autocast\n\n"
        "scaler = GradScaler(1024.)\nother = torch.cuda.amp.GradScaler()\n\n\n"
        "def forward(net, x, mixed):\n    with autocast(mixed):\n        return net(x)\n"
    )
    amplint("check", "--fix", "--min-severity", "info", "--select", "AMP601", "a.py")
    assert (here / "a.py").read_text() == (
        "import torch\nfrom torch.amp import GradScaler, autocast\n\n"
        'scaler = GradScaler("cuda", init_scale=1024.)\nother = torch.amp.GradScaler("cuda")\n\n\n'
        'def forward(net, x, mixed):\n    with autocast("cuda", enabled=mixed):\n        return net(x)\n'
    )


@pytest.mark.parametrize(
    ("holder", "expected"),
    [
        ("from torch.cuda.amp import GradScaler, autocast\n", {2, 4, 6}),
        ("import torch\nautocast = torch.cuda.amp.autocast\nGradScaler = torch.cuda.amp.GradScaler\n", {2, 4, 6}),
        ("from torch.amp import GradScaler, autocast\n", set()),
        ("try:\n    from torch.amp import GradScaler, autocast\nexcept ImportError:\n"
         "    from torch.cuda.amp import GradScaler, autocast\n", set()),
        ("from torch.cuda.amp import GradScaler\n\n\ndef autocast():\n    pass\n", {6}),
    ],
    ids=["import", "alias", "new", "fallback", "function"],
)  # fmt: skip
def test_names_that_another_module_hands_on(here: Path, amplint: Amplint, holder: str, expected: set[int]) -> None:
    (here / "compat.py").write_text(holder)
    (here / "use.py").write_text(
        "from compat import autocast as region, GradScaler\n@region()\ndef f(net, x):\n    with region():\n"
        "        return net(x)\nscaler = GradScaler()\n"
    )
    run = amplint("--no-cache", "--min-severity", "info", "--select", "AMP601", "--output-format", "concise", "use.py")
    assert {int(line.split(":")[1]) for line in run.out.splitlines() if "AMP601" in line} == expected
