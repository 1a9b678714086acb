"""AMP303: the optimizer is stepped on every micro-batch of a window."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from amplint.finding import Severity
from amplint.protocol import counts_batches, same_round
from amplint.rule import Fault, Rule

if TYPE_CHECKING:
    from amplint.analysis import Unit
    from amplint.states import Event
    from amplint.traces import Trace


class StepInsideAccumulation(Rule):
    """`scaler.step` runs on every micro-batch although `zero_grad` belongs to an accumulation window.

    ## What it does
    Reports a `scaler.step` and `update()` on every micro-batch when `zero_grad` (or the division of the loss) shows
    that several micro-batches were to be accumulated.

    ## Why is this bad
    After the step the gradients stay where they are, unscaled, and the next backward adds scaled ones to them;
    `scaler.step` then divides the sum by S, and the old part vanishes. Four micro-batches gave steps of 0.25, 0.50,
    1.00 and 2.00 where fp32 gives 0.25, 0.75, 1.75 and 3.75. The scaler hides the fault: nothing is raised, the loss
    falls, and only the accumulation does not take place.

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
            loss = model(x).square().mean() / accumulate
        scaler.scale(loss).backward()
        scaler.step(optimizer)  # <- here
        scaler.update()
        if (i + 1) % accumulate == 0:
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
            loss = model(x).square().mean() / accumulate
        scaler.scale(loss).backward()
        if (i + 1) % accumulate == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    ```

    ## Known limits
    Loops without a window, in which `zero_grad` runs for each batch, are silent. A window that the caller keeps (it
    clears the gradients) is not seen from inside a function.

    ## Fix safety
    No fix: either the step belongs into the window's branch or `zero_grad` out of it, and the batch size differs
    between the two.

    ## How it is confirmed
    The gradients handed to the optimizer differ from those of a run with a disabled scaler.

    ## References
    - [Gradient accumulation](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation)
    """

    code = "AMP303"
    name = "step-inside-accumulation"
    severity = Severity.WARNING
    needles = ((b".step(", b".scale("), (b".scale(", b"scaler", b"Scaler", b"unscale_"))
    confirmed_by = "grad"

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        for trace, _, step in unit.events("step"):
            gradients = step.state
            if not gradients.leftover or gradients.maybe or gradients.origin is None:
                continue
            clearing = _window_clears(unit, trace, step)
            if clearing is None:
                continue
            yield Fault(
                step.site,
                "the optimizer is stepped on every micro-batch of a window that zero_grad keeps",
                (
                    *unit.call_steps(step),
                    (gradients.origin.site, "adds scaled gradients to those of the last step"),
                    (clearing.site, "the gradients are cleared once per window"),
                ),
                unit.assumptions(step),
                unit.confidence(step.scaler, step.optimizer),
            )


def _window_clears(unit: Unit, trace: Trace, step: Event) -> Event | None:
    """A `zero_grad` of the optimizer that a boundary guards, or that stands outside of the loop over micro-batches."""
    for _, _, event in unit.events("zero_grad"):
        if step.optimizer not in event.before and event.optimizer is not step.optimizer:
            continue
        if same_round(event, step) and len(event.loops) == len(step.loops):
            guards = {atom for atom, outcome in event.assume.items() if counts_batches(atom) and outcome}
            if any(step.assume.get(atom) is not True for atom in guards) or _left_out(unit, event, guards):
                return event
        outer = [loop for loop in event.loops if loop[0] != id(trace.entry)]
        if outer and len(event.loops) < len(step.loops) and event.loops == step.loops[: len(event.loops)]:
            return event
    return None


def _left_out(unit: Unit, clearing: Event, guards: set[Any]) -> bool:
    """Whether some step runs although the boundary before it was not met."""
    return any(
        other.optimizer is clearing.optimizer and any(other.assume.get(atom) is False for atom in guards)
        for _, _, other in unit.events("step")
    )
