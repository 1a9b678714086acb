"""AMP217: scaled and unscaled parts meet in one loss."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from amplint.finding import Severity
from amplint.layout import argument_text, receiver_text
from amplint.needles import SCALER_HERE
from amplint.protocol import derived_from_grad
from amplint.rule import Change, Fault, FixPlan, Rule, Site
from amplint.source import children
from amplint.values import AttrOf, Const, Ext, OpV, Result, Sequence, Value, sources_of

if TYPE_CHECKING:
    from amplint.analysis import Unit
    from amplint.source import SourceModule
    from amplint.states import Event
    from amplint.traces import Trace


class MixedLossScale(Rule):
    """A scaled loss is added to an unscaled one, scaled twice, or its scaled value is thrown away.

    ## What it does
    Reports a sum of `scaler.scale(a)` and an unscaled term, `scaler.scale(scaler.scale(loss))` in one expression or
    over several statements, a call of `scaler.scale(loss)` whose result is not used, and a nonlinear change of a
    scaled loss before its backward.

    ## Why is this bad
    The scaler divides all gradients by S once. An unscaled term ends up S times too small and vanishes (3.003 instead
    of 6 with S = 1024 and two equal terms), a term that was scaled twice S times too large, and a loss whose `scale()`
    was thrown away is divided without having been multiplied. None of it raises. Adam hides the last two, because it
    divides by the size of the gradient.

    ## Example
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda")

    for _ in range(4):
        x = torch.randn(16, 8, device=device)
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            output = model(x)
            loss = output.square().mean()
            penalty = output.abs().mean()
        total = scaler.scale(loss) + 0.1 * penalty  # <- here
        total.backward()
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda")

    for _ in range(4):
        x = torch.randn(16, 8, device=device)
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            output = model(x)
            loss = output.square().mean()
            penalty = output.abs().mean()
        total = scaler.scale(loss + 0.1 * penalty)
        total.backward()
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Known limits
    Multiplying or dividing a scaled loss by a number is linear and silent, and so is scaling several losses one by one
    with the same scaler. A term that comes out of a call amplint cannot follow may be scaled already and is not
    reported, nor is a loss with two scales that nothing backpropagates.

    ## Fix safety
    Unsafe: the unscaled term is moved into the call of `scale` where both stand in one expression, the inner of two
    calls goes, and a result that was thrown away is backpropagated. The weight between the terms changes to what was
    written, which the training has not seen so far.

    ## How it is confirmed
    The gradients handed to the optimizer differ from those of a run with a disabled scaler.

    ## References
    - [Working with multiple models, losses, and
      optimizers](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#working-with-multiple-models-losses-and-optimizers)
    - `torch/amp/grad_scaler.py`: `GradScaler.scale`
    """

    code = "AMP217"
    name = "mixed-loss-scale"
    severity = Severity.ERROR
    needles = ((b".scale(",),)
    near = (SCALER_HERE,)
    fix = "unsafe"
    confirmed_by = "grad"
    yields_to = ("AMP213",)

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        for trace, position, event in unit.events("scale", "backward"):
            if event.kind == "scale":
                yield from _scaling(unit, trace, position, event)
                continue
            value = event.details["value"]
            if event.scaler is None or derived_from_grad(value):
                continue
            if event.details["mixed"]:
                formed = _formed(trace, position, value) or event
                yield Fault(
                    formed.site,
                    "a scaled loss is added to one that is not scaled",
                    (*unit.call_steps(formed), (event.site, "backpropagated here")),
                    unit.assumptions(event),
                    unit.confidence(event.scaler),
                    _scale_the_sum(formed.site),
                )
            elif _nonlinear(value):
                yield Fault(
                    event.site,
                    "a scaled loss is changed in a way that is not linear",
                    (*unit.call_steps(event),),
                    unit.assumptions(event),
                    unit.confidence(event.scaler),
                )


def _scaling(unit: Unit, trace: Trace, position: int, event: Event) -> Iterator[Fault]:
    """The result of `scale()` is thrown away, or its argument carries a scale already."""
    argument = event.details["argument"]
    if event.details["dropped"]:
        plain = _backpropagated(trace, position, argument)
        if plain is not None:
            yield Fault(
                event.site,
                "the result of scale() is thrown away: it does not change the loss itself",
                (*unit.call_steps(event), (plain.site, "the loss is backpropagated without the scale")),
                unit.assumptions(event),
                unit.confidence(event.scaler),
                _fix(event, plain),
            )
    elif (
        argument.taint.scales
        and not argument.taint.inverse
        and not derived_from_grad(argument)
        and not _never_used(trace, position)
    ):
        yield Fault(
            event.site,
            "a loss that is already scaled is scaled again",
            (*unit.call_steps(event),),
            unit.assumptions(event),
            unit.confidence(event.scaler),
            _scale_once(event.site),
        )


def _never_used(trace: Trace, position: int) -> bool:
    """Whether the loss with two scales is not backpropagated by the code, which backpropagates in sight."""
    argument = trace.events[position].details["argument"]
    backwards = [(index, event) for index, event in enumerate(trace.events) if event.kind == "backward"]
    later = [event.details["value"] for index, event in backwards if index > position]
    return bool(backwards) and not any(len(v.taint.scales) > 1 and argument in sources_of(v) for v in later)


def _backpropagated(trace: Trace, position: int, loss: Value) -> Event | None:
    """The backward of the loss itself."""
    for later in trace.events[position + 1 :]:
        if later.kind == "backward":
            return later if later.details["value"] is loss and later.scaler is None else None
    return None


def _formed(trace: Trace, position: int, value: Value) -> Event | None:
    """Where the sum was formed, if it is on its own line."""
    for earlier in reversed(trace.events[:position]):
        if earlier.kind == "mix" and (earlier.details["value"] is value or _holds(value, earlier.details["value"], 0)):
            return earlier
    return None


def _holds(value: Value, part: Value, depth: int) -> bool:
    if value is part:
        return True
    if depth > 4 or not isinstance(value, (OpV, Result)):
        return False
    inner = [*value.args, *([value.callee] if isinstance(value, Result) else [])]
    return any(_holds(v, part, depth + 1) for v in inner if isinstance(v, Value))


#: functions whose value does not grow with what they are given
_BENDS = frozenset(
    "log log2 log10 log1p exp expm1 square sqrt rsqrt pow reciprocal tanh sigmoid softplus logsigmoid sin cos clamp "
    "clamp_max clamp_min clip logaddexp".split()
)
_ZERO = frozenset({0})


def _nonlinear(value: Value) -> bool:
    """Whether a scaled loss is raised to a power, multiplied by itself, or given to a function that is not linear."""
    if not value.taint.scales or value.taint.inverse:
        return False
    if isinstance(value, Result):
        return _bends(value)
    if not isinstance(value, OpV):
        return False
    if value.op == "**":
        return True
    if value.op == "*" and all(arg.taint.scales for arg in value.args):
        return True
    return any(_nonlinear(arg) for arg in value.args)


def _bends(value: Result) -> bool:
    """Whether a call is `scaled.log()`, `torch.log(scaled)` or the like."""
    if isinstance(value.callee, AttrOf):
        name, operand, rest = value.callee.name, value.callee.base, value.args
    elif isinstance(value.callee, Ext) and value.callee.dotted.startswith("torch.") and value.args:
        name, operand, rest = value.callee.dotted.rpartition(".")[2], value.args[0], value.args[1:]
    else:
        return False
    if name not in _BENDS or not operand.taint.scales:
        return False
    bounds = [part for arg in rest for part in (arg.items[1:] if isinstance(arg, Sequence) else (arg,))]
    # a bound of zero is the same at every scale
    return not bounds or not all(isinstance(bound, Const) and bound.value in _ZERO for bound in bounds)


def _fix(event: Event, plain: Event) -> FixPlan | None:
    """Backpropagate the scaled loss."""
    scaler, loss = receiver_text(event.site), argument_text(event.site)
    if not scaler or not loss or receiver_text(plain.site) != loss or event.calls != plain.calls:
        return None
    arguments = plain.site.module.segment(plain.site.node).partition(".backward")[2]
    text = f"{scaler}.scale({loss}).backward{arguments}"
    changes = (Change("delete", event.site), Change("replace", plain.site, text))
    return FixPlan("unsafe", "backpropagate the scaled loss", changes)


def _scale_the_sum(site: Site) -> FixPlan | None:
    """Move the other term of a sum into the call of `scale`, where both stand in one expression."""
    module, node = site.module, site.node
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        # `(scaler.scale(a) + b).backward()`
        value: cst.CSTNode | None = node.func.value
    else:
        value = node.value if isinstance(node, (cst.Assign, cst.AnnAssign, cst.Return)) else None
    if not isinstance(value, cst.BinaryOperation) or not isinstance(value.operator, (cst.Add, cst.Subtract)):
        return None
    sign = module.segment(value.operator).strip()
    for call, term, leads in ((value.left, value.right, True), (value.right, value.left, False)):
        loss = _scaled_argument(call)
        if loss is None or not isinstance(call, cst.Call):
            continue
        if _scaled_argument(term) is not None or any(_scaled_argument(inner) is not None for inner in _within(term)):
            return None
        first, second = (loss, term) if leads else (term, loss)
        text = f"{module.segment(call.func)}({_operand(module, first)} {sign} {_operand(module, second)})"
        return FixPlan("unsafe", "scale the sum", (Change("replace", Site(module, value), text),))
    return None


def _scale_once(site: Site) -> FixPlan | None:
    """Drop the inner of two calls that stand in one another."""
    node = site.node
    inner = node.args[0].value if isinstance(node, cst.Call) and len(node.args) == 1 else None
    loss = _scaled_argument(inner)
    if loss is None or inner is None:
        return None
    change = Change("replace", Site(site.module, inner), site.module.segment(loss))
    return FixPlan("unsafe", "scale the loss once", (change,))


def _scaled_argument(node: cst.CSTNode | None) -> cst.BaseExpression | None:
    """`loss` of a call `scaler.scale(loss)`."""
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute) or node.func.attr.value != "scale":
        return None
    plain = len(node.args) == 1 and node.args[0].keyword is None and not node.args[0].star
    return node.args[0].value if plain else None


def _within(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    for child in children(node):
        yield child
        yield from _within(child)


def _operand(module: SourceModule, node: cst.BaseExpression) -> str:
    """The text of a term, in parentheses where the sum would tear it apart."""
    text = module.segment(node)
    alone = isinstance(node, (cst.Name, cst.Attribute, cst.Call, cst.Subscript, cst.Integer, cst.Float))
    product = isinstance(node, cst.BinaryOperation) and isinstance(node.operator, (cst.Multiply, cst.Divide))
    return text if alone or (product and not node.lpar) else f"({text})"
