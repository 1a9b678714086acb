"""AMP404: an epsilon that is zero in fp16 is added to a 16-bit tensor."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint import library
from amplint.finding import Severity
from amplint.needles import CASTS_TO_HALF, ENABLES, HALVES, REGION_OR_TRAINING
from amplint.precision import Fact, Number, Tensor, Value, facts_of
from amplint.rule import Fault, Rule
from amplint.values import Const, Optimizer

if TYPE_CHECKING:
    from amplint.analysis import Unit

#: how such a constant can be written, or computed
_SMALL = re.compile(
    rb"\d\.?[eE]-(?:0?[789]|\d\d)|\.0000000|finfo|\*\* ?\(?-|[eE]-\d{1,9}\){0,9} ?(?:\*|/)"
    rb"|/ ?\({0,9}\d[\d.]{0,40}[eE]\+?\d"
)
#: below half of the smallest float16 number, 2**-24, a constant is rounded to zero
SMALLEST = 2.0**-25
_BOUNDS = frozenset({"clamp", "clamp_", "clamp_min", "clamp_min_", "clip"})


class HalfEpsilon(Rule):
    """An epsilon below the range of fp16 is added to, or clamps, a tensor that is 16 bit there.

    ## What it does

    Reports a constant below 3e-8 that is added to an fp16 tensor, or that is the lower bound of `clamp` or
    `clamp_min` on one, when the tensor was made in an fp16 autocast region or cast by hand. Also reports Adam and its
    relatives with such an `eps` (the default is 1e-8) on fp16 weights.

    ## Why is this bad

    The smallest positive number of fp16 is 5.96e-8. An epsilon of 1e-8 is rounded to zero when it meets an fp16
    tensor: 0 / (0 + 1e-8) is NaN, the logarithm of it is minus infinity, `clamp(min=1e-8)` lets zero through. 1e-7
    survives, as 1.19e-7. The guard is gone in the one case for which it was written, and only there, so that the
    fault shows after hours of training as a NaN in the loss. Adam on fp16 weights turned a weight with gradient 0
    into NaN in its first step.

    ## Example

    ```python
    import torch
    from torch import nn


    class Gate(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.inner = nn.Linear(width, width)

        def forward(self, x):
            with torch.autocast("cuda", dtype=torch.float16):
                h = torch.relu(self.inner(x))
                peak = h.amax(-1, keepdim=True)
                return h / (peak + 1e-8)  # <- here


    gate = Gate(4).to("cuda")
    nn.init.constant_(gate.inner.bias, -20.0)
    with torch.no_grad():
        print(gate(torch.randn(2, 4, device="cuda")))
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn


    class Gate(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.inner = nn.Linear(width, width)

        def forward(self, x):
            with torch.autocast("cuda", dtype=torch.float16):
                h = torch.relu(self.inner(x))
                peak = h.amax(-1, keepdim=True)
                return h / (peak.float() + 1e-8)


    gate = Gate(4).to("cuda")
    nn.init.constant_(gate.inner.bias, -20.0)
    with torch.no_grad():
        print(gate(torch.randn(2, 4, device="cuda")))
    ```

    ## Known limits

    - Sums, norms, softmax, logarithms and exponentials give fp32 in a cuda region; an epsilon on their results is not
      reported. On cpu they stay in 16 bit.
    - A tensor whose dtype is not known is not reported, and neither is an epsilon that is read from a configuration.
    - With mixed precision beside a half model, `half-model-with-amp` speaks about the optimizer's default eps.

    ## Fix safety

    No fix. A larger epsilon changes results everywhere, a cast to fp32 costs memory; both are right.

    ## How it is confirmed

    The operation is executed on an fp16 tensor of zeros: a sum that is still zero, a clamp that lets zero through, or
    a weight that is not finite after one step confirms the finding. Which operators keep 16 bit on cuda is decided
    with fake tensors.

    ## References

    - https://docs.pytorch.org/docs/stable/type_info.html#torch.torch.finfo
    - https://docs.pytorch.org/docs/stable/amp.html#cuda-ops-that-can-autocast-to-float32
    """

    code = "AMP404"
    name = "half-epsilon"
    severity = Severity.WARNING
    needles = (
        HALVES,
        (_SMALL, b"Adam"),
        (_SMALL, *CASTS_TO_HALF),
    )
    near = REGION_OR_TRAINING
    beyond = ((ENABLES,),)
    confirmed_by = "state"
    yields_to = ("AMP401",)

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        for fact in facts_of(unit.env, unit.target):
            tensor, constant = _meeting(fact)
            if not isinstance(tensor, Tensor) or not tensor.is_float16 or not isinstance(constant, Number):
                continue
            if constant.value is not None and 0 < abs(constant.value) < SMALLEST:
                yield Fault(
                    fact.site,
                    f"{constant.value:g} is zero in float16, so that it protects from nothing here",
                    fact.steps,
                )
        if "Adam" in unit.source.code:
            yield from _optimizers(unit)


def _meeting(fact: Fact) -> tuple[Value, Value]:
    """The tensor, and the constant that keeps it away from zero."""
    if fact.kind == "binary" and fact.operation in ("+", "-"):
        first, second = fact.arguments
        return (first, second) if isinstance(first, Tensor) else (second, first)
    name = fact.operation.rpartition(".")[2]
    if fact.kind == "call" and name in _BOUNDS:
        operands = [fact.receiver, *fact.arguments] if isinstance(fact.receiver, Tensor) else list(fact.arguments)
        given = fact.keywords.get("min", operands[1] if len(operands) > 1 else None)
        return (operands[0] if operands else None), given
    if fact.kind == "call" and name in ("add", "add_") and isinstance(fact.receiver, Tensor) and fact.arguments:
        return fact.receiver, fact.arguments[0]
    return None, None


def _optimizers(unit: Unit) -> Iterator[Fault]:
    """Adam over weights that were cast to half: its eps is added to square roots of half tensors."""
    if any(
        scope.kind == "class"
        and {"step", "param_groups"} <= {*scope.words, *scope.children}
        and library.keeps_masters(scope.name, scope.words)
        for env in (unit.env, *unit.executor.entered)
        for scope in env.program.scopes
    ):
        # an optimizer of the project's own may put copies in fp32 in the place of the weights
        return
    for trace, position, event in unit.events("construct_optimizer"):
        if not event.details["callee"].rpartition(".")[2].startswith("Adam") or not isinstance(
            event.optimizer, Optimizer
        ):
            continue
        eps = event.details["keywords"].get("eps", Const.of(1e-8))
        owners = event.optimizer.owners
        if (
            owners is None
            or not isinstance(eps, Const)
            or not isinstance(eps.value, float)
            or not 0 < eps.value < SMALLEST
        ):
            continue
        before = [e for e in trace.events[:position] if e.kind in ("cast", "freeze")]
        touched = [e for e in before if unit.overlap(owners, frozenset((e.details["target"],)))]
        if any(e.kind == "freeze" for e in touched):
            # what is trained of a frozen model was added to it, or cast back
            continue
        casts = [e for e in touched if e.kind == "cast"]
        stepped = any(
            e.kind in ("step", "opt_step") and e.optimizer is event.optimizer for e in trace.events[position:]
        )
        if stepped and casts and casts[-1].details["dtype"] == "float16":
            yield Fault(
                event.site,
                f"eps of {eps.value:g} is zero for weights in float16; a weight without a gradient becomes NaN",
                ((casts[-1].site, "the model is cast here"),),
            )
