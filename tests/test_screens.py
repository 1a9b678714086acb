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
