"""What the screens let through: every way to write what a rule reports, and not whatever looks alike."""

from __future__ import annotations

import pytest

from amplint import registry
from amplint.screen import Screen, code_of


def passes(code: str, text: str) -> bool:
    rule = registry.find(code)
    assert rule is not None
    return bool(Screen([rule]).rules_for(code_of(text.encode())))


@pytest.mark.parametrize(
    "number",
    "1e9 1.0e+5 -1E5 1e10 65505. 100000 1_000_000 0xFFFFFF -9999*10 1e3*1e3 (1e3)**2 2**16 1<<17 -1/1e-6 "
    "finfo(x).max".split(),
)
def test_numbers_beyond_half_precision(number: str) -> None:
    assert passes("AMP403", f"x.half().masked_fill(mask, {number})")


@pytest.mark.parametrize("number", ["1e3", "0.5", "-100.0", "float('-inf')"])
def test_numbers_within_half_precision(number: str) -> None:
    assert not passes("AMP403", f"def f(x, **kwargs):\n    return x.half().masked_fill(mask, {number})")


@pytest.mark.parametrize(
    "number", "1e-8 1.e-12 0.1e-7 1E-08 1e-4**2 1e-4*1e-4 1e-5/1000 1/1e8 10**(-8) 2**-30 0.00000001".split()
)
def test_constants_that_vanish(number: str) -> None:
    assert passes("AMP404", f"x.half() / (y.half() + {number})")


def test_constants_that_stay() -> None:
    assert not passes("AMP404", "def step(x, eps=1e-5):\n    steps = 3\n    return x.half() / (y.half() + eps)")


@pytest.mark.parametrize(
    "call",
    ["torch.fft.rfft(x)", "x.stft(9)", "torch.inverse(x)", "x.det()", "torch.linalg.eigh(x)", "torch.lu(x)", "x.svd()"],
)
def test_operators_without_half(call: str) -> None:
    assert passes("AMP406", f"x = x.half()\ny = {call}")


def test_words_that_only_hold_the_name_of_an_operator() -> None:
    assert not passes("AMP406", "weight = x.half()\nvalue = plus(included, height)")


@pytest.mark.parametrize(
    "imported",
    [
        "from torch.nn.utils import clip_grad_norm_",
        "from torch.nn import Linear, utils",
        "from torch.nn import (\n    utils,\n)",
        "import torch.nn.utils as u",
    ],
)
def test_clips_beside_a_framework(imported: str) -> None:
    program = f"from accelerate import Accelerator\n{imported}\nAccelerator().backward(loss)\nclip_grad_norm_(p, 1)"
    assert passes("AMP225", program)


def test_what_looks_like_a_scaler() -> None:
    assert not passes("AMP215", "up = Upscaler()\nStandardScaler().fit(upscaler)")
    assert passes("AMP215", "scaler = LossPreScaler()")
    assert not passes("AMP207", "self.unscale_lora_layers(model)")
    assert passes("AMP207", "undo = self.amp.unscale_\nundo(optimizer)")


def test_a_word_among_the_choices_of_an_option_is_no_cast() -> None:
    text = "parser.add_argument('--dtype', choices=['float32', {}])\nx = y / (z + 1e-8)"
    assert not passes("AMP404", text.format("'float16'"))
    assert not passes("AMP404", text.format("'bfloat16'"))
    for cast in ("torch.float16", "float16", "torch.bfloat16", "half"):
        assert passes("AMP404", text.format("'float64'") + f"\nz = z.to({cast})\nz.half()")
    for named in ("torch_dtype='float16'", "**{'torch_dtype': 'float16'}", "torch_dtype=('float16')"):
        assert passes("AMP404", f"model = load(name, {named})\nx = y / (z + 1e-8)")
    assert passes("AMP404", "y = y.to(getattr(torch, 'float16'))\nx = y / (z + 1e-8)")


CUDA = "from torch.cuda.amp import autocast, GradScaler"
BODY = "\n    loss = net(x)\n    loss.backward()\nloss_fn = 1\noptimizer.step()"


@pytest.mark.parametrize("code", ["AMP101", "AMP102", "AMP105", "AMP108", "AMP110"])
@pytest.mark.parametrize(
    ("head", "region", "enabled"),
    [
        (CUDA, "autocast()", True),
        (CUDA, "autocast(enabled=amp)", True),
        ("from torch.cuda.amp import GradScaler, autocast", "autocast(amp)", True),
        ("import torch", "torch.autocast('cuda', dtype=torch.float16)", True),
        ("from torch.cuda.amp import autocast as cast", "cast()", True),
        ("from torch.cuda.amp import autocast\n_, cast = 1, autocast", "cast()", True),
        ("from torch.cuda import amp", "amp.autocast()", True),
        ("from torch.cuda.amp import autocast", "autocast(False)", False),
        ("from torch.cuda.amp import autocast", "autocast(enabled=False)", False),
        ("from torch.cuda.amp import autocast, GradScaler", "autocast( enabled = False )", False),
        ("import torch", "torch.autocast('cuda', enabled=False)", False),
        ("import torch", "torch.autocast(device_type='cuda', dtype=dtype, enabled=False)", False),
        ("import torch", "torch.autocast('cuda', enabled=not off)", True),
        ("import torch", "torch.autocast('cuda', enabled=False if cpu else True)", True),
        ("import torch", "torch.autocast('cuda', enabled=False or not cpu)", True),
        ("from torch import autocast \\\n    as cast", "cast()", True),
        ("from torch.cuda.amp import (\n    autocast\n    as cast,\n)", "cast()", True),
        ("from contextlib import *\ndef autocast(enabled): yield", "autocast(False)", False),
    ],
)
def test_a_region_that_may_be_enabled(code: str, head: str, region: str, enabled: bool) -> None:
    grad = "torch.no_grad(); x.grad; load_state_dict(parameters())"
    assert passes(code, f"{head}\n{grad}\nwith {region}:{BODY}") is enabled


@pytest.mark.parametrize(
    "line",
    [
        "torch.autocast('cuda')",
        "if amp: autocast()",
        "with torch.autocast: pass",
        "with autocast as region: pass",
        "@torch.autocast\ndef f(x): pass",
        "from torch.cuda.amp import autocast as cast\ncast()",
        "cast = torch.autocast\ncast('cuda')",
        "import torch; cast = torch.autocast\ncast('cuda')",
        "(autocast())",
        "torch . autocast('cuda')",
        "from helpers import autocast_context as context\ncontext()",
    ],
)
def test_autocast_that_is_not_entered(line: str) -> None:
    assert passes("AMP103", line)


@pytest.mark.parametrize("line", ["with torch.autocast('cuda'): pass", "@autocast()\ndef f(x): pass", CUDA])
def test_autocast_that_is_entered(line: str) -> None:
    assert not passes("AMP103", line)


@pytest.mark.parametrize(
    "line",
    [
        "with torch.autocast(x.device): pass",
        "with torch.autocast(False): pass",
        "from torch.amp import GradScaler\nscaler = GradScaler(False)",
        "from torch import amp\nwith amp.autocast(True): pass",
        "from compat import autocast\nwith autocast(False): pass",
        "from torch.cuda.amp import autocast\nwith autocast(torch.bfloat16): pass",
        "from torch.cuda.amp import autocast as cast\nwith cast(torch.half): pass",
        "make = partial(autocast, device)",
        "scaler.update(2)",
        "with fp16_autocast(x.device): pass",
        "from torch.cuda.amp import GradScaler\nscaler = GradScaler(False)",
        "from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler\nShardedGradScaler(True)",
        "import torch as th\nwith th.autocast(False): pass",
        "scaler = GradScaler ('cuda')",
        "with autocast (torch.bfloat16): pass",
        "from torch.amp import GradScaler \\\n    as Scaler\nScaler(False)",
        "from torch.amp import GradScaler\tas Scaler\nScaler(False)",
        "scaler = GradScaler()\nscaler.update (2)",
    ],
)
def test_arguments_that_may_be_wrong(line: str) -> None:
    assert passes("AMP104", line)


@pytest.mark.parametrize(
    "line",
    [
        "from torch.cuda.amp import autocast\nwith autocast(False): pass",
        "import torch\nscaler = torch.amp.GradScaler()\nwith torch.autocast(enabled=True): scaler.update()",
        "from torch.amp import GradScaler\nscaler = GradScaler(enabled=False)",
        "class Fabric:\n    def autocast(self): return self.plugin.context()",
    ],
)
def test_arguments_that_cannot_be_wrong(line: str) -> None:
    assert not passes("AMP104", line)


@pytest.mark.parametrize(
    ("text", "may_be_entered_twice"),
    [
        ("region = torch.autocast('cuda')\nwith region:\n    with region: pass", True),
        ("with torch.autocast('cuda') as region:\n    with region: pass", True),
        ("@torch.autocast('cuda')\ndef f(x): return f(x)", True),
        ("def f():\n    with torch.autocast('cuda'):\n        yield 1", True),
        ("cast = torch.autocast\n@cast('cuda')\ndef f(n): return f(n - 1)", True),
        ("def __init__(self): self.region = torch.autocast('cuda')", True),
        ("with (region := torch.autocast('cuda')):\n    with region: pass", True),
        ("with torch.device('cuda'): region = torch.autocast('cuda')", True),
        ("with torch.autocast('cuda'):\n    x = f(x)", False),
        ("@contextmanager\ndef autocast(enabled=True):\n    yield\nwith autocast(False): pass", False),
    ],
)
def test_objects_that_may_be_entered_twice(text: str, may_be_entered_twice: bool) -> None:
    assert passes("AMP109", text) is may_be_entered_twice


@pytest.mark.parametrize(
    "island", ["torch.autocast('cuda', enabled=False)", "autocast(False)", "cast(enabled = off)\nFalse"]
)
def test_islands_in_a_region(island: str) -> None:
    region = "with torch.autocast('cuda'):\n    x = net(x)\n    with {}: y = x @ x"
    assert passes("AMP106", region.format(island))
    assert not passes("AMP106", region.format("nullcontext()"))
    assert not passes("AMP106", "from torch.cuda.amp import autocast\nwith autocast(False): y = x @ x")


@pytest.mark.parametrize(
    "made",
    [
        "PRECISION = 16\nFabric(precision=PRECISION)",
        "Trainer(precision=\n16)",
        "Made = accelerate.Accelerator\nMade(mixed_precision='fp16')",
        "from accelerate import (\n    Accelerator\n    as Made,\n)\nMade()",
        "from accelerate import Accelerator \\\n    as Made\nMade()",
        "Made: type = \\\n    accelerate.Accelerator\nMade()",
    ],
)
def test_frameworks_in_float16(made: str) -> None:
    assert passes("AMP225", f"from torch.nn.utils import clip_grad_norm_\n{made}\nclip_grad_norm_(p, 1)")


@pytest.mark.parametrize(
    "cast", ["model.to(torch.device('cuda'), torch.float16)", "kind = torch.float16\nmodel.to(kind)", "model.half ()"]
)
def test_models_whose_optimizer_has_an_epsilon(cast: str) -> None:
    assert passes("AMP404", f"{cast}\ntorch.optim.Adam(model.parameters())")


def test_frameworks_that_are_only_spoken_of() -> None:
    clip = "from torch.nn.utils import clip_grad_norm_\nclip_grad_norm_(p, 1)\n"
    assert not passes("AMP225", clip + "raise Error(f'Pass `Trainer(precision=16)` to {name}.')")
    assert passes("AMP225", clip + "make = partial(Accelerator, mixed_precision='fp16')")
    assert passes("AMP225", clip + "Trainer(precision='16-mixed')")
    assert not passes("AMP225", clip + "Trainer(precision='32-true')")


def test_averages_in_half() -> None:
    assert passes("AMP405", "ema = deepcopy(model).half()\nema.update_parameters(model)")
    assert passes("AMP405", "kept = [p.half() for p in model.parameters()]\nkept[0].lerp_(p, 0.1)")
    assert passes(
        "AMP405", "kept = [\n    p.half()\n    for p in (\n        model.parameters()\n    )\n]\nkept[0].add_(p)"
    )
    assert not passes("AMP405", "model.half()\nfor p in model.parameters(): p.grad = None\noptimizer.step()")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("log('the scaler is off')", "log('')"),
        ("log(f'the scaler {scaler.get_scale()} is off')", "log('{scaler.get_scale()}')"),
        ("log(rf'a {b} c {d} e')", "log('{b} c {d}')"),
        ("state['scaler'], state['grad scaler']", "state['scaler'], state['grad scaler']"),
        ('"""A scaler."""\nx = 1', '""\nx = 1'),
        ("x = '#'  # scaler", "x = '#'  "),
    ],
)
def test_what_is_code(text: str, code: str) -> None:
    assert code_of(text.encode()).decode() == code


PATTERNS = {
    needle
    for rule in registry.all_rules()
    for needles in (rule.needles, *rule.near)
    for group in needles
    for needle in group
    if not isinstance(needle, bytes)
}
HOSTILE = (
    "autocast(|autocast|autocast( |(|enabled=| |\n|in |.to(|@|from a import |a.|GradScaler|GradScaler(|enabled = |, |"
    'dtype = |float16|1e|= |Trainer|partial( |as |scaler|.0|1.|getattr(|\'\\|\'"\\|"""\\|""" \''
).split("|")


@pytest.mark.parametrize("repeated", HOSTILE, ids=ascii)
def test_no_pattern_takes_more_than_linear_time(repeated: str) -> None:
    for prefix in ("", "autocast(", "from a import ", "autocast(a, enabled", "with torch.autocast", "partial("):
        data = (prefix + repeated * (300_000 // len(repeated))).encode()
        code_of(data)
        for pattern in PATTERNS:
            pattern.search(data)


def test_patterns_are_no_question_in_notebooks() -> None:
    rule = registry.find("AMP103")
    assert rule is not None
    cell = b'{"cells": [{"source": ["import torch\\n", "torch.autocast(\\"cuda\\")\\n", "x = 1"]}]}'
    assert Screen([rule]).rules_for(cell, is_notebook=True)
