"""AMP301: the scale is updated inside an accumulation window."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.layout import is_plain_path, receiver_text, same_function
from amplint.needles import SCALER_HERE, SCALES
from amplint.protocol import inside_window, same_round
from amplint.rule import Change, Fault, FixPlan, Rule

if TYPE_CHECKING:
    from amplint.analysis import Unit
    from amplint.states import Event, Gradients
    from amplint.traces import Trace
    from amplint.values import Scaler, Value


class UpdateInsideAccumulation(Rule):
    """`scaler.update()` runs between two backwards whose gradients go into one optimizer step.

    ## What it does
    Reports an `update()` that can run between two scaled backwards of the same accumulation window: it stands outside
    the condition that guards `scaler.step`, or its own condition is another one. `update(new_scale)` inside a window
    is reported as well, and so is an `update()` that runs when all optimizers were unscaled and only some have stepped.

    ## Why is this bad
    All gradients that are summed in one window must carry the same scale. Without `unscale_` or `step` since the last
    `update()` nothing was checked for infinities, and torch raises `No inf checks were recorded prior to update.` at
    the first micro-batch. That is the lucky case. With `unscale_` on every micro-batch, or with a second optimizer
    that was stepped, `update()` succeeds and the window mixes scales: measured 2.0010 instead of 3.75, only the last
    micro-batch survives; 20 % off when an overflow of another optimizer halves the scale in the window, 10 % off when
    the scale grows there; 0.79 of the true gradient with `update(new_scale)`.
    Where several optimizers were unscaled together, an `update()` after the first step makes the scaler forget that
    the others are: their `step` divides by the scale once more, and they take steps that are thousands of times short.

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
        if (i + 1) % accumulate == 0:
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()  # <- here
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
    A window whose boundary is decided in code that amplint cannot follow (a method of a framework, a callback) is not
    reported. Guards are compared by their text and the names in them: two different expressions that are always equal
    count as different. A window of one micro-batch is silent when its length is a constant.

    ## Fix safety
    Safe: the `update()` is moved to the end of the branch that holds `scaler.step`, when there is exactly one such
    branch and both stand in the same function. No fix for `update(new_scale)` and for calls across functions.

    ## How it is confirmed
    The replay runs several windows. Either torch itself raises at the `update()`, or the gradients handed to the
    optimizer differ from those with a disabled scaler. Where the harm needs a change of the scale, the replay sets
    `growth_interval=1` or injects an overflow, and the verdict names that condition.

    ## References
    - [Gradient accumulation](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation)
    - `torch/amp/grad_scaler.py`: `GradScaler.update`
    """

    code = "AMP301"
    name = "update-inside-accumulation"
    severity = Severity.ERROR
    needles = (SCALES,)
    near = (SCALER_HERE, ((b".backward(",),))
    fix = "safe"
    confirmed_by = "raise"
    yields_to = ("AMP204", "AMP214")

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        yield from self._between_backwards(unit)
        yield from self._between_optimizers(unit)

    def _between_backwards(self, unit: Unit) -> Iterator[Fault]:
        for trace, position, event in unit.events("backward"):
            if event.scaler is None:
                continue
            for optimizer, gradients in event.before.items():
                update = gradients.stale if gradients.kind == "S" else _after_unscale(trace, position, event, gradients)
                if update is None or update.scaler is not event.scaler:
                    continue
                if _used(trace, optimizer, gradients, update):
                    # a window that has had its step, past the scaler, and was not cleared
                    continue
                if gradients.maybe and not all(map(_waits, event.before.values())):
                    continue
                others = [stage for o, stage in update.details["stages"] if o is not optimizer]
                if "stepped" in others and (optimizer is None or gradients.maybe or gradients.window < 2):
                    # another optimizer was stepped: a shared scaler, not certainly a window
                    continue
                if _is_left_behind(trace, optimizer, gradients):
                    continue
                if gradients.kind == "L" and (same_round(update, event) or not inside_window(unit, event, optimizer)):
                    # a step was left out on purpose, and that is no window
                    continue
                assert gradients.origin is not None
                step = _step(unit, trace, event.scaler)
                steps = [(gradients.origin.site, "the window's first scaled backward"), *unit.call_steps(update)]
                if event.site.node is not gradients.origin.site.node:
                    steps.append((event.site, "the next backward of the same window"))
                if step is not None:
                    steps.append((step.site, "the step that ends the window"))
                yield Fault(
                    update.site,
                    "update() runs between two backwards of one accumulation window",
                    tuple(steps),
                    unit.assumptions(update),
                    unit.confidence(event.scaler),
                    _fix(unit, update) if update.details["new_scale"] is None else None,
                )

    def _between_optimizers(self, unit: Unit) -> Iterator[Fault]:
        """All optimizers were unscaled, and the update() that follows the first step makes the others forget it."""
        for trace, position, event in unit.events("step"):
            update = _after_unscale(trace, position, event, event.state)
            if update is None or update.details["new_scale"] is not None or event.state.origin is None:
                continue
            others = [stage for o, stage in update.details["stages"] if o is not event.optimizer]
            if "stepped" not in others:
                continue
            assert event.state.unscaled is not None
            yield Fault(
                update.site,
                "update() runs before all optimizers have stepped, so what is unscaled already is unscaled again",
                (
                    (event.state.unscaled.site, "unscaled here"),
                    *unit.call_steps(update),
                    (event.site, "the step divides by the scale once more"),
                ),
                unit.assumptions(event),
                unit.confidence(event.scaler, event.optimizer),
            )


def _is_left_behind(trace: Trace, optimizer: Value | None, gradients: Gradients) -> bool:
    """Whether nobody waits for these gradients: the optimizer of another stage, or of a part of the model, gets them
    along with the one that is stepped, and is not stepped before they are cleared."""
    assert gradients.origin is not None
    later = [e for e in trace.events if e.index > gradients.origin.index]
    steps = [e for e in later if e.kind in ("step", "unscale_") and e.scaler is gradients.scaler]
    own = next((e.index for e in steps if e.optimizer is optimizer), None)
    if optimizer is None or not steps:
        return False
    return own is None or any(e.kind == "zero_grad" and optimizer in e.before for e in later if e.index < own)


def _waits(gradients: Gradients) -> bool:
    """Whether gradients of an old scale wait for their step; where those of all optimizers do, the next backward adds
    to some of them, whichever it is."""
    return gradients.kind == "S" and gradients.stale is not None


def _used(trace: Trace, optimizer: Value | None, gradients: Gradients, update: Event) -> bool:
    """Whether a step past the scaler has used the gradients before an update."""
    return gradients.last is not None and any(
        e.kind == "opt_step" and e.optimizer is optimizer and gradients.last.index < e.index < update.index
        for e in trace.events
    )


def _after_unscale(trace: Trace, position: int, backward: Event, gradients: Gradients) -> Event | None:
    """The update that ran after the gradients were unscaled, if they wait for the rest of their window."""
    if gradients.kind != "L" or gradients.unscaled is None:
        return None
    for event in trace.events[:position]:
        if event.kind == "update" and event.scaler is backward.scaler and event.index > gradients.unscaled.index:
            return event
    return None


def _step(unit: Unit, trace: Trace, scaler: Scaler) -> Event | None:
    """A step of the scaler, of the same trace if there is one."""
    for event in trace.events:
        if event.kind == "step" and event.scaler is scaler:
            return event
    return next((event for _, _, event in unit.events("step") if event.scaler is scaler), None)


def _fix(unit: Unit, update: Event) -> FixPlan | None:
    """Move the update behind the step, where there is one step and it stands in the same function."""
    steps = {e.site.identity: e for _, _, e in unit.events("step") if e.scaler is update.scaler}
    updates = {e.site.identity for _, _, e in unit.events("update") if e.scaler is update.scaler}
    if len(steps) != 1 or len(updates) != 1:
        return None
    (step,) = steps.values()
    scaler = receiver_text(update.site)
    if not same_function(step.site, update.site) or not is_plain_path(scaler) or step.calls != update.calls:
        return None
    if len(step.loops) != len(update.loops):
        return None
    changes = (Change("insert-after", step.site, f"{scaler}.update()"), Change("delete", update.site))
    return FixPlan("safe", "move update() behind the step", changes)
