"""AMP211: the gradients are cleared before they are used."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from amplint.finding import Severity
from amplint.layout import same_function
from amplint.needles import SCALER_HERE, SCALES
from amplint.protocol import counts_batches, same_round
from amplint.rule import Fault, Rule

if TYPE_CHECKING:
    from amplint.analysis import Unit
    from amplint.states import Event, Gradients
    from amplint.traces import Trace
    from amplint.values import Value

_MEASURED = re.compile(r"norm|finite|isnan|isinf|skip", re.IGNORECASE)


class ZeroGradBeforeStep(Rule):
    """`zero_grad` clears the gradients of an optimizer between their backward and its `scaler.step`.

    ## What it does
    Reports `zero_grad()` of an optimizer, or of the module that holds its parameters, after a scaled backward and
    before the `scaler.step` of that optimizer.

    ## Why is this bad
    The step has nothing to work with. After a plain backward torch raises `No inf checks were recorded for this
    optimizer.` After `unscale_`, or with `set_to_none=False` (the default before torch 2.0), the check is there and
    the step silently does nothing: three steps left the weights unchanged. The same order is wrong without AMP, where
    it never raises.

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
        with torch.autocast("cuda"):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        optimizer.zero_grad()  # <- here
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
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Known limits
    Clearing another optimizer's gradients is silent, and so is `zero_grad` between the forward and the backward. A
    deliberate skip that clears the gradients and does not step is silent. `model.zero_grad()` counts only when the
    optimizer is known to hold that model's parameters.

    ## Fix safety
    No fix: the call belongs before the backward or behind the step, and accumulation decides which.

    ## How it is confirmed
    torch raises at the step, or the replay sees that all gradients are zero or missing inside `optimizer.step`. A run
    without AMP does the same, so it is no reference here.

    ## References
    - `torch/amp/grad_scaler.py`: `GradScaler.step`
    - [Typical mixed precision
      training](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#typical-mixed-precision-training)
    """

    code = "AMP211"
    name = "zero-grad-before-step"
    severity = Severity.ERROR
    needles = ((b"zero_grad", b".scale("), SCALES)
    near = (SCALER_HERE,)
    confirmed_by = "raise"

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        for trace, position, event in unit.events("zero_grad"):
            for optimizer, gradients in event.before.items():
                if gradients.kind not in ("S", "U", "L") or gradients.last is None:
                    continue
                if gradients.maybe and (optimizer is None or not _follows_at_once(trace, position, gradients.last)):
                    continue
                step = _emptied_step(trace, position, optimizer)
                if step is None or step.scaler is not gradients.scaler or _used(trace, position, optimizer, gradients):
                    continue
                if (
                    gradients.kind == "L"
                    and step.loops != event.loops
                    and not _slipped_out(unit, gradients, event, step)
                ):
                    # a complete skip; whether that step is reached after it is not known
                    continue
                if _filled_on_another_path(unit, event, step) or (
                    gradients.kind in ("U", "L") and _skips_on_purpose(event, step)
                ):
                    continue
                yield Fault(
                    event.site,
                    "the gradients are cleared between their backward and their step",
                    (
                        (gradients.last.site, "scaled backward"),
                        *unit.call_steps(event),
                        (step.site, "nothing is left to step with"),
                    ),
                    unit.assumptions(event),
                    unit.confidence(gradients.scaler, optimizer),
                )


def _follows_at_once(trace: Trace, position: int, backward: Event) -> bool:
    """Whether a clearing comes right after a backward of the same round: whatever that reached, the step that follows
    has nothing left."""
    event = trace.events[position]
    between = [e for e in trace.events[:position] if e.index > backward.index]
    return same_round(backward, event) and not any(e.kind in ("step", "opt_step") for e in between)


def _slipped_out(unit: Unit, gradients: Gradients, clearing: Event, step: Event) -> bool:
    """Whether a step stands behind the loop whose batches it was meant for.

    It finds nothing on any path, or nothing but the end of a window leads to it from where all was cleared.
    """
    assert gradients.last is not None
    ends = clearing.assume.keys() - gradients.last.assume.keys()
    if all(map(counts_batches, ends)) and not step.assume.keys() - clearing.assume.keys():
        return True
    return all(
        e.state.kind == "N" and e.state.last is None
        for _, _, e in unit.events("step")
        if e.site.identity == step.site.identity and e.optimizer is step.optimizer
    )


def _filled_on_another_path(unit: Unit, clearing: Event, step: Event) -> bool:
    """Whether the usual order stands here, with a backward of its own between the clearing and the step, which a
    condition has left out on this path."""
    for trace, position, other in unit.events("zero_grad"):
        if other.site.identity != clearing.site.identity:
            continue
        for later in trace.events[position + 1 :]:
            if not same_round(other, later):
                break
            if later.kind == "backward" and step.optimizer in later.before:
                return True
            if later.kind in ("step", "opt_step") and later.site.identity == step.site.identity:
                # with a disabled scaler it is the optimizer's own
                break
    return False


def _skips_on_purpose(clearing: Event, step: Event) -> bool:
    """Whether what was measured decides on a clearing and the step behind it: the step is to do nothing, and only the
    scaler is to take note of the gradients."""
    if not same_function(clearing.site, step.site):
        return False
    module, node = clearing.site.module, clearing.site.module.parent(clearing.site.node)
    while node is not None and not isinstance(node, cst.FunctionDef):
        if isinstance(node, cst.If) and _MEASURED.search(module.segment(node.test)):
            first, last = module.place(node), module.place(step.site.node)
            return first.line <= last.line <= first.end_line
        node = module.parent(node)
    return False


def _used(trace: Trace, position: int, optimizer: Value | None, gradients: Gradients) -> bool:
    """Whether the gradients went to a step past the scaler before they were cleared."""
    last = gradients.last
    return last is not None and any(
        e.kind == "opt_step" and e.optimizer is optimizer and e.index > last.index for e in trace.events[:position]
    )


def _emptied_step(trace: Trace, position: int, optimizer: Value | None) -> Event | None:
    """The step that finds the gradients cleared: no backward comes before it."""
    for later in trace.events[position + 1 :]:
        if later.kind == "backward" and optimizer in later.before:
            return None
        if later.kind == "step" and later.optimizer is optimizer:
            unscaled = later.state.unscaled if later.state.kind in ("U", "L") else None
            empty = later.state.kind == "N" or (unscaled is not None and unscaled.index > trace.events[position].index)
            return later if empty else None
    return None
