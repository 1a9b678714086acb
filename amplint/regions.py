"""What an autocast region computes in: its device type and dtype, as far as they are certain.

Source: torch/amp/autocast_mode.py (`autocast.__init__`), `torch.get_autocast_dtype` (2.13).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from amplint.values import NONE, AttrOf, Const, OpV, Sym, Value

if TYPE_CHECKING:
    from amplint.analysis import Unit
    from amplint.values import AutocastArguments, Context

#: a module that sets the dtype of regions that name none
DEFAULT_IS_SET = re.compile(r"\bset_autocast_(gpu_|cpu_)?dtype\(")
#: device types whose autocast is fp16 where no dtype is given; cpu, hpu and xla are bf16
_FP16_BY_DEFAULT = frozenset({"cuda", "xpu", "mps", "mtia", "npu", "musa", "mlu"})


def device_of(unit: Unit, context: Context) -> str | None:
    """The device type of a region, None where it is unknown; the default of a parameter counts."""
    return _device(unit, context.details.device)


def _device(unit: Unit, value: Value | None) -> str | None:
    if isinstance(value, Const) and isinstance(value.value, str):
        return value.value.partition(":")[0]
    if isinstance(value, OpV) and value.op == "fstring" and value.args:
        return _device(unit, value.args[0])
    if isinstance(value, AttrOf) and value.name == "type":
        return _device(unit, value.base)
    if isinstance(value, Sym) and value.parts[0] == "param" and value.parts[1] == unit.source.path:
        for scope in unit.env.program.scopes:
            if scope.qualname == value.parts[2]:
                default = next((p.default for p in scope.params if p.name == value.parts[-1]), None)
                text = getattr(default, "value", None)
                return text.partition(":")[0] if isinstance(text, str) else None
    return None


def _sets_default(unit: Unit) -> bool:
    """Whether the module sets the dtype of regions that name none; looked up once."""
    known = unit.env.shared.get("sets_autocast_dtype")
    if known is None:
        known = unit.env.shared["sets_autocast_dtype"] = DEFAULT_IS_SET.search(unit.source.code) is not None
    return bool(known)


def sure_dtype_of(unit: Unit, context: Context) -> str | None:
    """`dtype_of`, where the device is written as a string: the default of a parameter says nothing here."""
    details: AutocastArguments = context.details
    if details.dtype is None and not isinstance(details.device, Const):
        return None
    return dtype_of(unit, context)


def dtype_of(unit: Unit, context: Context) -> str | None:
    """ "float16" or "bfloat16" where a region certainly computes in it, None where it is chosen at run time."""
    details: AutocastArguments = context.details
    if details.dtype is None or details.dtype is NONE:
        device = device_of(unit, context)
        if device is None or _sets_default(unit):
            return None
        return "float16" if device in _FP16_BY_DEFAULT else "bfloat16"
    return unit.executor.effects.modules.dtype(details.dtype)
