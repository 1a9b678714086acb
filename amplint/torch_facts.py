"""What changed in torch from version to version, as one table with sources; everything else asks it.

A span is half open: ("1.10", "1.12") holds for 1.10 and 1.11. Sources are files of the torch repository at the tags
named, or its documentation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

Bounds = tuple[str | None, str | None]


@dataclass(frozen=True, slots=True)
class Span:
    """Versions in which something holds, and where that can be read."""

    low: str | None
    high: str | None
    source: str

    @property
    def bounds(self) -> Bounds:
        return (self.low, self.high)


@dataclass(frozen=True, slots=True)
class Signature:
    """What the positional arguments of some callables mean, in order, in some versions."""

    names: tuple[str, ...]
    positional: tuple[str, ...]
    span: Span


_GENERIC_AUTOCAST = (
    "torch.autocast",
    "torch.amp.autocast",
    "torch.amp.autocast_mode.autocast",
    "torch.autocast_mode.autocast",
)
_DEVICE_AUTOCAST = (
    "torch.cuda.amp.autocast",
    "torch.cuda.amp.autocast_mode.autocast",
    "torch.cpu.amp.autocast",
    "torch.cpu.amp.autocast_mode.autocast",
)
_GENERIC_SCALER = ("torch.GradScaler", "torch.amp.GradScaler", "torch.amp.grad_scaler.GradScaler")
_DEVICE_SCALER = (
    "torch.cuda.amp.GradScaler",
    "torch.cuda.amp.grad_scaler.GradScaler",
    "torch.cpu.amp.GradScaler",
    "torch.cpu.amp.grad_scaler.GradScaler",
)
_SHARDED_SCALER = ("torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler",)
_GROWTH = ("init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled")

SIGNATURES = (
    Signature(
        _GENERIC_AUTOCAST,
        ("device_type", "enabled"),
        Span("1.10", "1.12", "v1.10.0 torch/autocast_mode.py: autocast(device_type, enabled=True, **kwargs)"),
    ),
    Signature(
        _GENERIC_AUTOCAST,
        ("device_type", "dtype", "enabled", "cache_enabled"),
        Span("1.12", None, "v1.12.0 torch/amp/autocast_mode.py: autocast.__init__; unchanged in v2.13.0"),
    ),
    Signature(
        _DEVICE_AUTOCAST,
        ("enabled",),
        Span("1.6", "1.10", "v1.6.0 torch/cuda/amp/autocast_mode.py: autocast(enabled=True)"),
    ),
    Signature(
        _DEVICE_AUTOCAST,
        ("enabled", "dtype", "cache_enabled"),
        Span("1.10", None, "v1.10.0 torch/cuda/amp/autocast_mode.py, torch/cpu/amp/autocast_mode.py; same in v2.13.0"),
    ),
    Signature(
        _DEVICE_SCALER,
        _GROWTH,
        Span("1.6", None, "v1.6.0 torch/cuda/amp/grad_scaler.py: GradScaler.__init__; torch/cpu/amp since v2.3.0"),
    ),
    Signature(
        _SHARDED_SCALER,
        ("device", "init_scale", "backoff_factor", "growth_factor", "growth_interval", "enabled", "process_group"),
        Span(None, None, "v2.13.0 torch/distributed/fsdp/sharded_grad_scaler.py: ShardedGradScaler.__init__"),
    ),
    Signature(
        _GENERIC_SCALER,
        ("device", *_GROWTH),
        Span("2.3", None, "v2.3.0 torch/amp/grad_scaler.py: GradScaler.__init__; unchanged in v2.13.0"),
    ),
)

#: `torch.cuda.amp.*`, `torch.cpu.amp.*` and the `is_autocast_cpu_enabled` family warn when they are used
DEPRECATED_NAMES = Span(
    "2.4",
    None,
    "v2.4.0 torch/cuda/amp/, torch/cpu/amp/ (@deprecated), torch/csrc/autograd/init.cpp (deprecated getters)",
)
#: `torch.amp.custom_fwd(device_type=...)` and `custom_bwd` exist
GENERIC_CUSTOM_FUNCTION = Span("2.4", None, "v2.4.0 torch/amp/autocast_mode.py: custom_fwd, custom_bwd")
#: `device_type="cuda:0"` raises; from 2.4 on the index is accepted
INDEX_IS_REFUSED = Span("1.10", "2.4", "v2.3.0 and v2.4.0 torch/amp/autocast_mode.py: autocast.__init__")
#: a weight cast under `no_grad` is cached without its graph, and a later forward with grad gets no gradient
NO_GRAD_CAST_IS_CACHED = Span(None, "2.10", "pytorch/pytorch pull request 165068, aten/src/ATen/autocast_mode.cpp")


def parameters_of(dotted: str, torch: str) -> tuple[str, ...]:
    """What the positional arguments of an autocast or a GradScaler of torch mean; of an unknown name, those of the
    device-specific class that it is modelled on.

    A version before the first one that has the name gets the first meaning.

    >>> parameters_of("torch.autocast", "1.11"), parameters_of("torch.amp.GradScaler", "2.6")[:2]
    (('device_type', 'enabled'), ('device', 'init_scale'))
    """
    known = [signature for signature in SIGNATURES if dotted in signature.names]
    if not known:
        like = _DEVICE_SCALER if dotted.endswith("GradScaler") else _DEVICE_AUTOCAST
        known = [signature for signature in SIGNATURES if signature.names == like]
    for signature in known:
        if in_range(torch, signature.span.bounds):
            return signature.positional
    return known[0].positional


def holds(span: Span, torch: str) -> bool:
    """Whether something holds in a version of torch.

    >>> holds(INDEX_IS_REFUSED, "2.3.1"), holds(INDEX_IS_REFUSED, "2.10")
    (True, False)
    """
    return in_range(torch, span.bounds)


def in_range(version: str, bounds: Bounds) -> bool:
    """Whether a version lies in a half-open range; None leaves a side open."""
    low, high = bounds
    at = release(version)
    return (low is None or at >= release(low)) and (high is None or at < release(high))


@cache
def release(version: str) -> tuple[int, ...]:
    """A version for comparison: "2.10" is newer than "2.9", and "2.4.0+cu121" is "2.4"."""
    parts = [int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3]]
    while parts and parts[-1] == 0:
        parts.pop()
    return tuple(parts)
