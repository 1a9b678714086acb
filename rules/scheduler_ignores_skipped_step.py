"""AMP219: the learning rate moves on when the scaler skipped the step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from amplint.finding import Severity
from amplint.layout import is_plain_path, receiver_text, same_block, under_condition
from amplint.needles import SCALER_HERE, SCALES
from amplint.rule import Change, Fault, FixPlan, Rule
from amplint.values import Optimizer, Result, Scheduler, Sym, Value

if TYPE_CHECKING:
    from amplint.analysis import Unit
    from amplint.states import Event
    from amplint.traces import Trace


class SchedulerIgnoresSkippedStep(Rule):
    """A per-step scheduler is stepped after `scaler.step` without asking whether the optimizer was stepped.

    ## What it does
    Reports `scheduler.step()` in the loop over batches, after `scaler.step(optimizer)`, when nothing compares the
    scale before and after `update()`.

    ## Why is this bad
    A skipped step leaves the weights and the optimizer's counter alone; the schedule moves anyway. In a run with 4
    skips out of 10 the rate had fallen to 0.3487 instead of 0.5314. With warm-up, the skips cluster at the start,
    where each step counts. torch warns (`lr_scheduler.step()` before `optimizer.step()`) only when the very first step
    is skipped, and never with fused optimizers.

    ## Example
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
    scaler = torch.amp.GradScaler("cuda")

    for _ in range(4):
        x = torch.randn(16, 8, device=device)
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()  # <- here
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
    scaler = torch.amp.GradScaler("cuda")

    for _ in range(4):
        x = torch.randn(16, 8, device=device)
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scale_before = scaler.get_scale()
        scaler.update()
        if scaler.get_scale() >= scale_before:
            scheduler.step()
    ```

    ## Known limits
    Schedulers that are stepped once per epoch are silent: a few skips do not matter there. A scheduler inside a
    wrapper of the project is not recognised.

    ## Fix safety
    Unsafe: the call is put under `if scaler.get_scale() >= scale_before:`. A schedule that counts on a fixed number of
    calls, such as OneCycleLR, will end a few steps early.

    ## How it is confirmed
    The replay injects an overflow and compares the scheduler's counter with the number of steps taken.

    ## References
    - `torch/amp/grad_scaler.py`: `GradScaler.step`
    - [How to adjust the learning rate](https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate)
    """

    code = "AMP219"
    name = "scheduler-ignores-skipped-step"
    severity = Severity.INFO
    needles = ((b".step(",), SCALES)
    near = (SCALER_HERE,)
    fix = "unsafe"
    confirmed_by = "own"

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        for trace, position, event in unit.events("sched_step"):
            if event.details["arguments"] or not event.loops:
                # a scheduler that is told where it is does not count its calls
                continue
            step = _step_before(trace, position)
            if step is None or not _paced_by(event, step) or _asks(event, step):
                continue
            yield Fault(
                event.site,
                "the schedule moves on even where the scaler skipped the step",
                (*unit.call_steps(event), (step.site, "the scaler may skip this step")),
                unit.assumptions(event),
                unit.confidence(step.scaler, step.optimizer),
                _fix(trace, step, event),
            )


def _step_before(trace: Trace, position: int) -> Event | None:
    """The scaler's step of the same round of the same loop, or of the loop around one that steps each of several
    schedulers."""
    schedule = trace.events[position]
    rounds = [schedule.loops]
    if _is_each(schedule):
        rounds.append(schedule.loops[:-1])
    for event in reversed(trace.events[:position]):
        if event.loops[: len(rounds[-1])] != rounds[-1]:
            return None
        if event.kind == "step":
            return event if event.loops in rounds or _taken_with(schedule, event) else None
    return None


def _is_each(schedule: Event) -> bool:
    """Whether the scheduler is one that the innermost loop has come to."""
    scheduler = schedule.details["scheduler"]
    if len(schedule.loops) < 2:
        return False
    return isinstance(scheduler, Scheduler) or _is_of_round(scheduler, schedule.loops[-1][0])


def _taken_with(schedule: Event, step: Event) -> bool:
    """Whether the step is in a loop over optimizers in which the scheduler was taken too, so that both count rounds of
    the loop around it."""
    *around, (inner, _) = step.loops
    return tuple(around) == schedule.loops and _is_of_round(schedule.details["scheduler"], inner)


def _is_of_round(value: Any, loop: int) -> bool:
    """Whether a value is an element that a loop has come to."""
    if isinstance(value, Sym):
        return loop in value.parts
    return isinstance(value, Value) and any(_is_of_round(part, loop) for part in value.parts)


def _paced_by(schedule: Event, step: Event) -> bool:
    """Whether the scheduler may belong to the optimizer that is stepped."""
    scheduler = schedule.details["scheduler"]
    if isinstance(scheduler, Scheduler) and isinstance(scheduler.optimizer, Optimizer):
        return scheduler.optimizer is step.optimizer
    return True


def _asks(schedule: Event, step: Event) -> bool:
    """Whether a condition on something computed, such as the scale or the length of an epoch, was decided between the
    step and the scheduler."""
    decided = [atom for atom in schedule.assume if atom not in step.assume]
    parts = (part for atom in decided for part in (atom[2:] if atom[0] == "mod" else atom[1:]))
    return any(map(_is_computed, parts))


def _is_computed(part: Any) -> bool:
    if isinstance(part, Result):
        return True
    return isinstance(part, Value) and any(_is_computed(inner) for inner in part.parts if isinstance(inner, Value))


def _fix(trace: Trace, step: Event, schedule: Event) -> FixPlan | None:
    """Compare the scale around the update, where step, update and scheduler stand together."""
    updates = [e for e in trace.events if e.kind == "update" and step.index < e.index < schedule.index]
    scaler = receiver_text(step.site)
    if len(updates) != 1 or not is_plain_path(scaler):
        return None
    update = updates[0]
    if not same_block(step.site, update.site) or not same_block(update.site, schedule.site):
        return None
    guarded = under_condition(schedule.site, f"{scaler}.get_scale() >= scale_before")
    if guarded is None:
        return None
    remembered = Change("insert-before", update.site, f"scale_before = {scaler}.get_scale()")
    return FixPlan("unsafe", "step the scheduler only where the scale did not fall", (remembered, guarded))
