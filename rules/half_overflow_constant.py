"""AMP403: a constant beyond the range of fp16 meets a 16-bit tensor."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from amplint.finding import Severity
from amplint.layout import is_plain_path
from amplint.names import names_of
from amplint.needles import ENABLES, HALVES, REGION_OR_TRAINING
from amplint.precision import MORE, Fact, Number, Tensor, Value, dtype_name, facts_of
from amplint.program import Name
from amplint.rule import Change, Fault, FixPlan, Rule, Site

if TYPE_CHECKING:
    from amplint.analysis import Unit

#: how a number beyond it can be written, or computed
_LARGE = re.compile(
    rb"(?<!\w)\d[\d_.]{0,40}[eE]\+?(?:[4-9]|\d\d)|(?<![\w.])\d{5}|\d_\d{3}|0x[\da-fA-F]{4}|[fi]info"
    rb"|\d\){0,9} ?(?:\*\*|<<|\*) ?\({0,9}-?\d|/ ?\({0,9}-?\d[\d.]{0,40}[eE]-"
)
#: the largest number of float16
LARGEST = 65504
_FILLS = frozenset(["masked_fill", "masked_fill_", "fill_", "full_like", "new_full", "index_fill", "index_fill_"])


class HalfOverflowConstant(Rule):
    """A constant beyond the range of fp16 is written into a tensor that is 16 bit there.

    ## What it does

    Reports a constant beyond ±65504 that meets an fp16 tensor in `masked_fill`, `torch.where`, `torch.full` and its
    relatives, or in an assignment to items, when the tensor was made in an fp16 autocast region or cast by hand. The
    constant may be a literal, a name of the module, or `torch.finfo` of another dtype.

    ## Why is this bad

    65504 is the largest number of fp16. `masked_fill(mask, -1e9)` raises "value cannot be converted to type c10::Half
    without overflow". `torch.where(mask, -1e9, scores)` and `scores[mask] = -1e9` do not: they write minus infinity.
    A row that is masked as a whole then becomes NaN in softmax, and the loss with it. The same program runs in fp32
    and in bf16.

    ## Example

    ```python
    import torch
    from torch import nn


    class Attention(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.query = nn.Linear(width, width)
            self.key = nn.Linear(width, width)

        def forward(self, x, padding):
            with torch.autocast("cuda", dtype=torch.float16):
                scores = self.query(x) @ self.key(x).transpose(1, 2)
                scores = scores.masked_fill(padding.unsqueeze(1), -1e9)  # <- here
                return scores.softmax(-1) @ x


    attention = Attention(8).to("cuda")
    words = torch.randn(2, 5, 8, device="cuda")
    padding = torch.zeros(2, 5, dtype=torch.bool, device="cuda")
    padding[0, 3:] = True
    print(attention(words, padding).shape)
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn


    class Attention(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.query = nn.Linear(width, width)
            self.key = nn.Linear(width, width)

        def forward(self, x, padding):
            with torch.autocast("cuda", dtype=torch.float16):
                scores = self.query(x) @ self.key(x).transpose(1, 2)
                scores = scores.masked_fill(padding.unsqueeze(1), torch.finfo(scores.dtype).min)
                return scores.softmax(-1) @ x


    attention = Attention(8).to("cuda")
    words = torch.randn(2, 5, 8, device="cuda")
    padding = torch.zeros(2, 5, dtype=torch.bool, device="cuda")
    padding[0, 3:] = True
    print(attention(words, padding).shape)
    ```

    ## Known limits

    - Reported only where the tensor is known to be fp16: the result of a layer or a product in an fp16 region, or a
      cast by hand. What a region's operator list keeps in fp32 on cuda (softmax, sums, norms) is not.
    - A constant that is computed or read from a configuration is not followed.

    ## Fix safety

    Unsafe. The constant becomes `torch.finfo(x.dtype).min` (or `.max`): the masked places then hold -65504 instead of
    what was written, which is enough for softmax and may not be for other uses.

    ## How it is confirmed

    The operation is executed on an fp16 tensor: an exception of torch or an infinite value in its result confirms the
    finding.

    ## References

    - https://docs.pytorch.org/docs/stable/type_info.html#torch.torch.finfo
    - https://docs.pytorch.org/docs/stable/amp.html#cuda-op-specific-behavior
    """

    code = "AMP403"
    name = "half-overflow-constant"
    severity = Severity.WARNING
    needles = (
        HALVES,
        (b"masked_fill", b"where(", b"full", b"fill_(", b"] = "),
        (_LARGE,),
    )
    near = REGION_OR_TRAINING
    beyond = ((ENABLES,),)
    fix = "unsafe"
    confirmed_by = "raise"

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        for fact in facts_of(unit.env, unit.target):
            tensor, constant = _meeting(fact)
            if not isinstance(tensor, Tensor) or not tensor.is_float16 or not isinstance(constant, Number):
                continue
            value = constant.value
            if value is not None and LARGEST < abs(value) < math.inf:
                yield Fault(
                    fact.site,
                    f"{value:g} does not fit into a float16 tensor, whose largest number is {LARGEST:g}",
                    fact.steps,
                    fix=_limit(fact, value),
                )


def _limit(fact: Fact, value: float) -> FixPlan | None:
    """Take the limit of the tensor's own dtype, where the tensor is a name and the constant the last argument."""
    call = fact.node
    if (
        not isinstance(call, cst.Call)
        or not isinstance(fact.receiver, Tensor)
        or not isinstance(call.func, cst.Attribute)
    ):
        return None
    tensor, last = fact.env.source.segment(call.func.value), call.args[-1]
    named = last.keyword is None or last.keyword.value == "value"
    if (
        not is_plain_path(tensor)
        or last.star
        or not named
        or names_of(fact.env).of(Name("torch"), fact.scope) != {"torch"}
    ):
        return None
    text = f"torch.finfo({tensor}.dtype).{'min' if value < 0 else 'max'}"
    return FixPlan("unsafe", f"write {text}", (Change("replace", Site(fact.env.source, last.value), text),))


def _meeting(fact: Fact) -> tuple[Value, Value]:
    """The tensor and the constant that an operation writes into it."""
    if fact.kind == "setitem":
        return fact.receiver, fact.arguments[0]
    if fact.kind != "call":
        return None, None
    operands = [fact.receiver, *fact.arguments] if isinstance(fact.receiver, Tensor) else list(fact.arguments)
    name = fact.operation.rpartition(".")[2]
    if name == "full_like" and not fact.keywords.keys().isdisjoint(("dtype", MORE)):
        dtype = dtype_name(fact.keywords.get("dtype"))
        return (Tensor(dtype), operands[-1]) if dtype is not None else (None, None)
    if name == "full" and len(fact.arguments) > 1 and dtype_name(fact.keywords.get("dtype")) is not None:
        return Tensor(str(dtype_name(fact.keywords["dtype"]))), fact.arguments[1]
    if name in _FILLS and operands:
        given = fact.keywords.get("value", fact.keywords.get("fill_value", operands[-1]))
        return operands[0], given
    if name == "where" and len(operands) == 3:
        first, second = (operands[0], operands[2]) if isinstance(fact.receiver, Tensor) else (operands[1], operands[2])
        return (first, second) if isinstance(first, Tensor) else (second, first)
    return None, None
