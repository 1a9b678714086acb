"""AMP305: accumulated losses are summed and not averaged."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.layout import argument_text, function_of, is_plain_path
from amplint.needles import SCALER_HERE, SCALES
from amplint.protocol import same_round
from amplint.rule import Fault, Rule
from amplint.values import AttrOf, Const, Ext, Net, Optimizer, OpV, Result, Scaler, Sequence, Value

if TYPE_CHECKING:
    from amplint.analysis import Unit
    from amplint.states import Event
    from amplint.traces import Trace


class AccumulatedLossNotAveraged(Rule):
    """Micro-batches of an accumulation window are summed, and nothing divides by their number.

    ## What it does
    Reports the backward of a window of n > 1 micro-batches when neither the loss nor the gradients are divided by n
    before the step.

    ## Why is this bad
    The scaler divides by S and by nothing else. With losses that are means, the gradient of a window is n times that
    of one large batch, so the learning rate is n times what it seems to be, and a clip threshold means something else.
    It is the same without AMP; here the sum also overflows sooner.

    ## Example
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda")
    accumulate = 4

    for i in range(8):
        x = torch.randn(16, 8, device=device)
        with torch.autocast("cuda"):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()  # <- here
        if (i + 1) % accumulate == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda")
    accumulate = 4

    for i in range(8):
        x = torch.randn(16, 8, device=device)
        with torch.autocast("cuda"):
            loss = model(x).square().mean()
        scaler.scale(loss / accumulate).backward()
        if (i + 1) % accumulate == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    ```

    ## Known limits
    Losses reduced by a sum, a division anywhere before the step, and losses that come out of a call which may divide
    are silent. Some authors want the sum; that is why it is an info.

    ## Fix safety
    No fix: the learning rate may have been chosen for the sum.

    ## How it is confirmed
    Not at all: a run without AMP does the same.

    ## References
    - [Gradient accumulation](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation)
    """

    code = "AMP305"
    name = "accumulated-loss-not-averaged"
    severity = Severity.INFO
    needles = ((b".backward", b".scale("), SCALES)
    near = (SCALER_HERE,)

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        for trace, position, step in unit.events("step"):
            gradients = step.state
            first, last = gradients.origin, gradients.last
            if (
                gradients.kind not in ("S", "U")
                or gradients.maybe
                or first is None
                or last is None
                or first.kind != "backward"
            ):
                continue
            if first.site.identity != last.site.identity or same_round(first, last):
                continue
            between = [e for e in trace.events[:position] if e.index > first.index]
            if any(e.kind == "grad_write" for e in between):
                continue
            losses = [e.details["value"] for e in (first, *between) if e.kind == "backward"]
            theirs = step.optimizer.owners if isinstance(step.optimizer, Optimizer) else None
            if theirs and not all(unit.overlap(theirs, value.taint.owners) for value in losses):
                # each of several trainers backpropagates a loss of its own
                continue
            if not all(_is_mean(unit, value) for value in losses) or _divided_in_place(trace, last):
                continue
            yield Fault(
                last.site,
                "the losses of a window are summed: nothing divides them by their number",
                (*unit.call_steps(last), (step.site, "the step that ends the window")),
                unit.assumptions(step),
                unit.confidence(step.scaler, step.optimizer),
            )


def _divided_in_place(trace: Trace, backward: Event) -> bool:
    """Whether the loss is changed under its own name before it is scaled: `loss.div_(window)`."""
    scale = next((e for e in reversed(trace.events) if e.kind == "scale" and e.index < backward.index), None)
    function = function_of(scale.site) if scale is not None else None
    name = argument_text(scale.site) if scale is not None else ""
    if function is None or scale is None or not is_plain_path(name):
        return False
    return re.search(rf"\b{re.escape(name)}\.(?:div|mul)_\(", scale.site.module.rough_text(function)) is not None


def _is_mean(unit: Unit, value: Value) -> bool:
    """Whether a backpropagated value is a loss averaged over its own batch, scaled and otherwise unchanged."""
    while isinstance(value, Result) and isinstance(value.callee, AttrOf) and isinstance(value.callee.base, Scaler):
        value = value.args[0]
    if isinstance(value, OpV) and value.op in ("+", "neg"):
        return all(_is_mean(unit, arg) for arg in value.args)
    if not isinstance(value, Result) or _reduction(value.args) != "mean":
        return False
    callee = value.callee
    if isinstance(callee, AttrOf):
        return callee.name == "mean"
    if isinstance(callee, Ext):
        name = callee.dotted
        return name == "torch.mean" or (
            name.startswith("torch.nn.functional.") and ("loss" in name or "entropy" in name)
        )
    if not isinstance(callee, Net) or not re.fullmatch(r"torch\.nn\..*Loss", callee.constructor):
        return False
    made = unit.site_of(callee)
    return made is None or not re.search(r"\breduction\s*=\s*(?!['\"]mean)", made.module.rough_text(made.node))


def _reduction(arguments: tuple[Value, ...]) -> str:
    """The `reduction` that a loss function is called with; "" where that is not known."""
    for argument in arguments:
        if isinstance(argument, Sequence) and len(argument.items) == 2 and argument.items[0] is Const.of("reduction"):
            return argument.items[1].value if isinstance(argument.items[1], Const) else ""
    return "mean"
