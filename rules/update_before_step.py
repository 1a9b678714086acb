"""AMP208: the scale is updated between the backward and the step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.layout import is_plain_path, receiver_text, same_block
from amplint.needles import SCALER_HERE, SCALES
from amplint.protocol import other_stepped
from amplint.rule import Change, Fault, FixPlan, Rule

if TYPE_CHECKING:
    from amplint.analysis import Unit
    from amplint.states import Event
    from amplint.traces import Trace


class UpdateBeforeStep(Rule):
    """`scaler.update()` stands between the scaled backward and the `scaler.step` of the same gradients.

    ## What it does
    Reports an `update()` after a scaled backward, or after `unscale_`, and before the `step` that consumes those
    gradients, in a loop without accumulation.

    ## Why is this bad
    `update()` forgets that the optimizer was unscaled, so the step divides by S a second time: the optimizer gets g /
    S. Without `unscale_` before it torch raises `No inf checks were recorded prior to update.`, unless another
    optimizer left a check; then the step divides by the new scale gradients that were multiplied by the old one (a
    factor 2 or 0.5 whenever it changed). In all forms the check for infinities is lost for this step.

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
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        scaler.update()  # <- here
        scaler.step(optimizer)
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
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Known limits
    A deliberate skip, `unscale_`, `update()` and `zero_grad()` with no step, is right and silent. In an accumulation
    window the finding is AMP301 or AMP302, between the steps of several optimizers AMP304.

    ## Fix safety
    Unsafe: `update()` is moved behind the last `step` of the iteration. With several optimizers the right place may be
    another one.

    ## How it is confirmed
    The gradients handed to the optimizer differ by 1 / S from those of a run with a disabled scaler, or torch raises.

    ## References
    - `torch/amp/grad_scaler.py`: `GradScaler.update`, `GradScaler.step`
    - [Gradient scaling](https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling)
    """

    code = "AMP208"
    name = "update-before-step"
    severity = Severity.ERROR
    needles = ((b".update(", b".scale("), SCALES)
    near = (SCALER_HERE,)
    fix = "unsafe"
    confirmed_by = "grad"
    yields_to = ("AMP204", "AMP213", "AMP301", "AMP302", "AMP304")

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        fixes: dict[tuple[tuple[str, int], ...], FixPlan | None] = {}
        for trace, position, step in unit.events("step"):
            update = _update_in_between(trace, position, step)
            if update is None:
                continue
            gradients = step.state
            assert gradients.last is not None
            taken = gradients.unscaled if gradients.kind != "S" else gradients.last
            steps = [(gradients.last.site, "scaled backward")]
            if taken is not None and taken is not gradients.last:
                steps.append((taken.site, "unscaled here"))
            places = (update.site.identity, step.site.identity)
            if places not in fixes:
                fixes[places] = _fix(unit, update, step)
            yield Fault(
                update.site,
                "update() runs between the backward and the step of the same gradients",
                (*steps, *unit.call_steps(update), (step.site, "the step divides by the scale once more")),
                unit.assumptions(step),
                unit.confidence(step.scaler, step.optimizer),
                fixes[places],
            )


def _update_in_between(trace: Trace, position: int, step: Event) -> Event | None:
    """The update that came between the gradients' last backward, or their `unscale_`, and their step."""
    gradients = step.state
    if gradients.last is None or gradients.maybe:
        return None
    if gradients.kind == "S" or (gradients.kind == "U" and gradients.stale is not None):
        update = gradients.stale
        if update is None or update.scaler is not step.scaler or update.index < gradients.last.index:
            return None
        others = [stage for optimizer, stage in update.details["stages"] if optimizer is not step.optimizer]
        return None if "?" in others or other_stepped(trace, gradients.last, update, step.optimizer) else update
    if gradients.kind not in ("L", "M") or gradients.unscaled is None or gradients.scaler is not step.scaler:
        return None
    for event in trace.events[:position]:
        if event.index > gradients.unscaled.index and event.kind == "update" and event.scaler is step.scaler:
            return event
    return None


def _fix(unit: Unit, update: Event, step: Event) -> FixPlan | None:
    """Move the update behind the step, where both stand in one block."""
    scaler = receiver_text(update.site)
    if update.details["new_scale"] is not None or not is_plain_path(scaler) or not same_block(update.site, step.site):
        return None
    changes = [Change("delete", update.site)]
    behind = [
        e
        for _, _, e in unit.events("update")
        if same_block(e.site, step.site) and e.site.identity != update.site.identity
    ]
    if not behind:
        changes.insert(0, Change("insert-after", _last_step(unit, step).site, f"{scaler}.update()"))
    return FixPlan("unsafe", "move update() behind the step", tuple(changes))


def _last_step(unit: Unit, step: Event) -> Event:
    """The last step through the same scaler in the block of a step: other optimizers share the scaler."""
    steps = [e for _, _, e in unit.events("step") if e.scaler is step.scaler and same_block(e.site, step.site)]
    return max(steps, key=lambda e: e.site.module.place(e.site.node).line)
