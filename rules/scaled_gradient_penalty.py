"""AMP218: a gradient penalty is built from scaled gradients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.needles import SCALER_HERE
from amplint.rule import Fault, Rule
from amplint.values import FALSE, AttrOf, Ext, ItemOf, Many, OpV, Result, Scaler, Sequence, Value, parts_of_value

if TYPE_CHECKING:
    from amplint.analysis import Unit


class ScaledGradientPenalty(Rule):
    """A gradient penalty is computed from gradients of a scaled output and never divided by the scale.

    ## What it does
    Reports `torch.autograd.grad(scaler.scale(x), ..., create_graph=True)` whose result goes into a penalty that is not
    linear in it (a norm, a square) without a division by `scaler.get_scale()`.

    ## Why is this bad
    The penalty sees gradients that are S times too large; a squared norm grows with S squared, and then the total is
    scaled once more: measured 1367 instead of 0.0041, followed by infinite gradients and skipped steps. Taking the
    gradient of the unscaled output is not the cure in fp16: there the gradients underflow (27 % zeros in the run,
    whose norm then has an infinite derivative).

    ## Example
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)

    for _ in range(4):
        x = torch.randn(16, 8, device=device, requires_grad=True)
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            output = model(x)
            loss = output.square().mean()
        scaled_slope = torch.autograd.grad(scaler.scale(output.sum()), x, create_graph=True)[0]  # <- here
        with torch.autocast("cuda"):
            penalty = scaled_slope.norm(dim=1).sub(1.0).square().mean()
            total = loss + 0.1 * penalty
        scaler.scale(total).backward()
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
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)

    for _ in range(4):
        x = torch.randn(16, 8, device=device, requires_grad=True)
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            output = model(x)
            loss = output.square().mean()
        scaled_slope = torch.autograd.grad(scaler.scale(output.sum()), x, create_graph=True)[0]
        slope = scaled_slope / scaler.get_scale()
        with torch.autocast("cuda"):
            penalty = slope.norm(dim=1).sub(1.0).square().mean()
            total = loss + 0.1 * penalty
        scaler.scale(total).backward()
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Known limits
    A use that is linear in the scaled gradient is right when it is not scaled again, and silent. A gradient that
    leaves the function is not followed further than one call.

    ## Fix safety
    No fix: where to divide, and whether the penalty is computed in the region, has to be decided with the formula at
    hand. The documentation shows the pattern.

    ## How it is confirmed
    The gradients handed to the optimizer differ from those of a run with a disabled scaler.

    ## References
    - [Gradient penalty](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-penalty)
    """

    code = "AMP218"
    name = "scaled-gradient-penalty"
    severity = Severity.ERROR
    needles = ((b"create_graph",), (b".scale(",))
    near = (SCALER_HERE, ((b".backward(",),))
    confirmed_by = "grad"

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        for trace, position, event in unit.events("autograd_grad"):
            if not event.details["scales"] or event.details["create_graph"] is FALSE:
                continue
            for later in trace.events[position + 1 :]:
                if later.kind != "backward":
                    continue
                uses = _uses(later.details["value"], event.details["value"], {})
                if any(not use.divided and (use.bent or use.rescaled) for use in uses):
                    yield Fault(
                        event.site,
                        "a penalty is computed from gradients that still carry the loss scale",
                        (*unit.call_steps(event), (later.site, "the penalty is backpropagated here")),
                        unit.assumptions(event),
                        unit.confidence(*event.details["scales"]),
                    )
                    break


@dataclass(frozen=True, slots=True)
class _Use:
    """How a scaled gradient gets into a loss.

    divided   by the scale, before anything that is not linear
    bent      through something that is not linear
    rescaled  through another `scale()`
    """

    divided: bool = False
    bent: bool = False
    rescaled: bool = False


_LINEAR = frozenset(
    {
        "sum",
        "mean",
        "view",
        "reshape",
        "flatten",
        "squeeze",
        "unsqueeze",
        "transpose",
        "permute",
        "t",
        "float",
        "double",
        "half",
        "to",
        "type",
        "contiguous",
        "clone",
        "expand",
        "cpu",
        "cuda",
        "stack",
        "cat",
        "concat",
        "list",
        "tuple",
        "neg",
        "chunk",
        "split",
        "index_select",
        "gather",
        "requires_grad_",
        "view_as",
        # twice the gradient has twice the norm
        "norm",
        "vector_norm",
        "abs",
    }
)
_SCALE_FREE = frozenset({"normalize", "cosine_similarity", "sign", "argmax", "isnan", "isinf", "isfinite"})
_PRODUCTS = frozenset({"mul", "div", "multiply", "divide", "true_divide", "mul_", "div_"})


def _uses(value: Value, output: Value, known: dict[Value, frozenset[_Use]]) -> frozenset[_Use]:
    """Every way in which the gradient of `output` gets into a value."""
    found = known.get(value)
    if found is not None:
        return found
    known[value] = frozenset()
    if _is_gradient(value, output):
        result = frozenset((_Use(),))
    else:
        inner = [(part, _uses(part, output, known)) for part in parts_of_value(value)]
        reached = [part for part, uses in inner if uses]
        result = frozenset(
            changed for _, uses in inner for use in uses for changed in _through(value, use, len(reached))
        )
    known[value] = result
    return result


def _is_gradient(value: Value, output: Value) -> bool:
    return (
        isinstance(value, Result)
        and isinstance(value.callee, Ext)
        and value.callee.dotted.endswith("autograd.grad")
        and bool(value.args)
        and value.args[0] is output
    )


def _through(value: Value, use: _Use, operands: int) -> Iterator[_Use]:
    """A use after one more operation; none where it cannot be followed."""
    if isinstance(value, (ItemOf, Many, Sequence)):
        yield use
    elif isinstance(value, OpV):
        if value.op != "/" or operands < 2:  # a gradient divided by its own norm has no scale
            yield _combined(value.op, value.args, use, operands)
    elif isinstance(value, Result):
        name = _name(value.callee)
        if name is None or name in _SCALE_FREE:
            return
        if isinstance(value.callee, AttrOf) and isinstance(value.callee.base, Scaler):
            yield replace(use, rescaled=True)
        elif name in _PRODUCTS:
            yield _combined("*", value.args, use, operands)
        elif name in _LINEAR:
            yield use
        else:
            yield replace(use, bent=True)


def _combined(op: str, args: tuple[Value, ...], use: _Use, operands: int) -> _Use:
    if op in ("*", "/"):
        if any(arg.taint.inverse and not arg.taint.scales for arg in args):
            return use if use.bent else replace(use, divided=True)
        return replace(use, bent=True) if operands > 1 else use
    return use if op in ("+", "-", "neg", "pos", "ite") else replace(use, bent=True)


def _name(callee: Value) -> str | None:
    """The last name of a method or a library function; None for what the project defines."""
    if isinstance(callee, AttrOf):
        return callee.name
    return callee.dotted.rpartition(".")[2] if isinstance(callee, Ext) else None
