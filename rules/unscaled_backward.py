"""AMP203: a loss is backpropagated without the scale that its optimizer's scaler divides by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from amplint.finding import Severity
from amplint.layout import receiver_text
from amplint.needles import SCALER_HERE, SCALES
from amplint.protocol import is_asserted_absent, is_certain, right_elsewhere, scaler_text
from amplint.rule import Change, Fault, FixPlan, Rule, Site
from amplint.values import TRUE, Scaler

if TYPE_CHECKING:
    from amplint.analysis import Unit
    from amplint.states import Event, Gradients
    from amplint.traces import Trace


class UnscaledBackward(Rule):
    """The loss is backpropagated without `scaler.scale`, and the optimizer is stepped by an enabled scaler.

    ## What it does
    Reports `loss.backward()` or `torch.autograd.backward(loss)` on an unscaled loss when the gradients go into an
    optimizer that is stepped with `scaler.step(optimizer)` on the same path. A class that asserts somewhere that it has
    no scaler is not judged: which of its modes has one does not show in its training.

    ## Why is this bad
    `scaler.step` divides the gradients by S whether or not they were multiplied before, so the optimizer gets g / S.
    If no loss was scaled before, torch raises `Attempted step but _scale is None`. If another loss was scaled, or
    `scale()` was called and its result dropped, nothing is raised: SGD learns nothing (factor 1024 in the run, 65536
    at the default scale), and Adam hides it, since the size of the gradient cancels out (difference 2e-5). In fp16 the
    small gradients underflow on top, which is what the scale is for.

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
            penalty = 0.1 * output.abs().mean()
        scaler.scale(loss).backward(retain_graph=True)
        penalty.backward()  # <- here
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
            penalty = 0.1 * output.abs().mean()
        scaler.scale(loss).backward(retain_graph=True)
        scaler.scale(penalty).backward()
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Known limits
    Silent in the branch without a scaler (`if scaler is None`, the else arm of `if use_amp`), for a scaler that is
    constantly disabled, for gradients of another model, and where the loss comes out of a call that may have scaled
    it. A scaled and an unscaled loss that are summed before the backward are AMP217.

    ## Fix safety
    Unsafe: the loss is wrapped in `scaler.scale(...)`. It changes every step of the training, and a learning rate that
    was tuned around the fault has to be tuned again.

    ## How it is confirmed
    The gradients handed to the optimizer are g / S, or mixed, against a run with a disabled scaler; or torch raises at
    the step.

    ## References
    - [Typical mixed precision
      training](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#typical-mixed-precision-training)
    - `torch/amp/grad_scaler.py`: `GradScaler.scale`, `GradScaler.step`
    """

    code = "AMP203"
    name = "unscaled-backward"
    severity = Severity.ERROR
    needles = ((b".backward", b".scale("), SCALES)
    near = (SCALER_HERE, ((b".backward(",),))
    fix = "unsafe"
    confirmed_by = "grad"
    yields_to = ("AMP216", "AMP217")

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        for trace, position, event in unit.events("backward"):
            if event.scaler is not None or not event.details["certain"]:
                continue
            step = _stepped(unit, trace, position, event)
            if step is None or not isinstance(step.scaler, Scaler):
                continue
            if not _surely_enabled(step.scaler) and right_elsewhere(unit, event, "backward"):
                # the code knows of a branch with a scaler, and the two flags need not agree
                continue
            if is_asserted_absent(unit, step.scaler):
                continue
            yield Fault(
                event.site,
                "the loss is backpropagated without the scale that the step divides by",
                (*unit.call_steps(event), (step.site, "this step divides the gradients by the scale")),
                unit.assumptions(step),
                unit.confidence(step.scaler, step.optimizer),
                _fix(unit, trace, event, step),
            )


def _surely_enabled(scaler: Scaler) -> bool:
    return scaler.constructed and scaler.enabled is TRUE


def _stepped(unit: Unit, trace: Trace, position: int, backward: Event) -> Event | None:
    """The `scaler.step` or `unscale_` that takes the gradients of an unscaled backward, as far as that is certain.

    A plain `optimizer.step()` does not clear them.
    """
    for optimizer, gradients in backward.before.items():
        if gradients.kind in ("U", "M"):
            continue
        for later in trace.events[position + 1 :]:
            if later.optimizer is not optimizer and not (optimizer is None and later.optimizer not in backward.before):
                continue
            if later.kind == "zero_grad" and later.optimizer is not None:
                break
            if later.kind in ("step", "unscale_"):
                if (
                    is_certain(later.state, optimizer)
                    and _holds(later.state, backward)
                    and not _thrown_away(unit, trace, later)
                ):
                    return later
                break
    return None


def _thrown_away(unit: Unit, trace: Trace, unscale: Event) -> bool:
    """Whether the gradients of an `unscale_` are cleared, wherever one sees what becomes of them, before any step.

    A scaler that has scaled nothing before raises at `unscale_` itself.
    """
    live = any(e.kind == "scale" and e.scaler is unscale.scaler and e.index < unscale.index for e in trace.events)
    if unscale.kind != "unscale_" or not live:
        return False
    cleared = False
    for trace, position, event in unit.events("unscale_"):
        if event.site.identity != unscale.site.identity or event.optimizer is not unscale.optimizer:
            continue
        for later in trace.events[position + 1 :]:
            if later.kind in ("step", "opt_step") and later.optimizer is event.optimizer:
                return False
            if later.kind == "zero_grad" and event.optimizer in later.before:
                cleared = True
                break
    return cleared


def _holds(state: Gradients, backward: Event) -> bool:
    if state.kind == "N":
        return state.last is backward
    if state.kind not in ("P", "M") or state.origin is None or state.last is None:
        return False
    return state.origin.index <= backward.index <= state.last.index


def _fix(unit: Unit, trace: Trace, backward: Event, step: Event) -> FixPlan | None:
    """Scale the loss where it is a plain `loss.backward()` and the scaler has a name there."""
    scaler = scaler_text(unit, trace, step.scaler, backward.site)
    node = backward.site.node
    if not scaler or not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
        return None
    loss = receiver_text(backward.site)
    if not loss or backward.details["functional"]:
        return None
    text = f"{scaler}.scale({loss})"
    if node.func.value.lpar:
        # the parentheses around the loss are those of the call
        whole, value = backward.site.module.segment(node), backward.site.module.segment(node.func.value)
        inside = whole.partition(value)[2].lstrip().removeprefix(")") if len(node.func.value.lpar) == 1 else ""
        if inside.startswith("."):
            change = Change("replace", backward.site, text + inside)
            return FixPlan("unsafe", f"scale the loss with {scaler}", (change,))
    change = Change("replace", Site(backward.site.module, node.func.value), text)
    return FixPlan("unsafe", f"scale the loss with {scaler}", (change,))
