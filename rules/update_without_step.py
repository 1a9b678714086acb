"""AMP206: update() runs where nothing was unscaled or stepped."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from amplint.finding import Severity
from amplint.layout import block_of, receiver_text
from amplint.needles import SCALER_HERE, SCALES
from amplint.protocol import excluded_by_flag
from amplint.rule import Fault, Rule

if TYPE_CHECKING:
    from amplint.analysis import Unit
    from amplint.states import Event
    from amplint.traces import Trace
    from amplint.values import Scaler


class UpdateWithoutStep(Rule):
    """`scaler.update()` is reached with neither `unscale_` nor `step` since the last `update()`.

    ## What it does
    Reports a call of `update()` without arguments on a path on which no optimizer was unscaled or stepped since the
    scaler's construction or its last `update()`, outside of an accumulation window.

    ## Why is this bad
    `update()` decides from the checks for infinities that `unscale_` and `step` leave behind. Without one it raises
    `No inf checks were recorded prior to update.` The path is often a rare one (a bad loss, an empty batch), so the
    training stops after hours. In torch 2.9 and older the check is a plain `assert`, which `python -O` removes.

    ## Example
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda")

    for i in range(4):
        x = torch.randn(16, 8, device=device)
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).square().mean()
        if i == 2:
            print("batch rejected")
            scaler.update()  # <- here
            continue
        scaler.scale(loss).backward()
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

    for i in range(4):
        x = torch.randn(16, 8, device=device)
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).square().mean()
        if i == 2:
            print("batch rejected")
            continue
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Known limits
    `update(new_scale)` needs no check and is silent. So is the deliberate skip that calls `unscale_`, leaves the step
    out and updates. A scaler that was handed to a call which amplint cannot follow may have been stepped there and is
    not reported. An `update()` behind all loops is not reported for a run in which every batch was left early.

    ## Fix safety
    No fix. Either the `update()` has to go or the step that belongs to it is missing; the code does not say which.

    ## How it is confirmed
    The path is replayed with an enabled scaler and torch raises at the `update()`.

    ## References
    - `torch/amp/grad_scaler.py`: `GradScaler.update`
    - [Gradient scaling](https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling)
    """

    code = "AMP206"
    name = "update-without-step"
    severity = Severity.ERROR
    needles = ((b".update(", b".scale("), SCALES)
    near = (SCALER_HERE,)
    confirmed_by = "raise"
    yields_to = ("AMP204", "AMP208", "AMP213", "AMP216", "AMP301", "AMP302", "AMP304")

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        for trace, position, event in unit.events("update"):
            if event.details["checked"] is not False or event.details["new_scale"] is not None:
                continue
            if _all_left_out(unit, event) or _stepped_by_another(trace, position, event) or _has_choices(event):
                continue
            if not _is_used_here(unit, event.scaler):
                continue
            steps = [*unit.call_steps(event)]
            last = _last_update(trace, position, event)
            if last is not None:
                steps.append((last.site, "the last update() was here"))
            yield Fault(
                event.site,
                "update() runs although nothing was unscaled or stepped since the last one",
                tuple(steps),
                unit.assumptions(event),
                unit.confidence(event.scaler),
            )


def _is_used_here(unit: Unit, scaler: Scaler | None) -> bool:
    """Whether a scaler that came from somewhere else scales or steps in sight at all: whoever has it as well may step
    it, in a method of which nothing is known here."""
    if scaler is None or scaler.constructed:
        return True
    return any(event.scaler is scaler for _, _, event in unit.events("scale", "step", "unscale_"))


def _all_left_out(unit: Unit, event: Event) -> bool:
    """Whether an update behind a loop, over batches or over optimizers, had nothing to decide from because nothing in
    the loop came as far as its step.

    The same update behind a loop in which something did, and under the same flags, is in order.
    """
    around = [loop for loop, _ in event.loops]
    steps = (step for _, _, step in unit.events("step") if step.scaler is event.scaler)
    if not any([loop for loop, _ in step.loops[:-1]][: len(around)] == around and step.loops for step in steps):
        return False
    return any(
        other.site.identity == event.site.identity
        and other.details["checked"] is not False
        and not excluded_by_flag(event.assume, other.assume)
        for _, _, other in unit.events("update")
    )


def _has_choices(event: Event) -> bool:
    """Whether several `if` before an update, in its block, each hold a step of the same scaler, on flags of their own.

    That nobody sets all of them against a step goes without saying; where they count batches the paths are followed.
    """
    held = block_of(event.site)
    if held is None:
        return False
    module, (block, position) = event.site.module, held
    steps = re.compile(rf"(?<![\w.]){re.escape(receiver_text(event.site))}\.(step|unscale_)\(")
    choices = 0
    for statement in block.body[:position]:
        arm: cst.BaseStatement | cst.Else | None = statement
        while isinstance(arm, cst.If):
            if steps.search(module.segment(arm.body)):
                if "%" in module.segment(arm.test):
                    return False
                choices += 1
            arm = arm.orelse
    return choices > 1


def _stepped_by_another(trace: Trace, position: int, event: Event) -> bool:
    """Whether another scaler has stepped what this one has scaled, which is what is wrong."""
    for earlier in reversed(trace.events[:position]):
        if earlier.kind == "update" and earlier.scaler is event.scaler:
            return False
        if earlier.kind == "step" and earlier.scaler is not event.scaler and earlier.state.scaler is event.scaler:
            return True
    return False


def _last_update(trace: Trace, position: int, event: Event) -> Event | None:
    for earlier in reversed(trace.events[:position]):
        if earlier.kind == "update" and earlier.scaler is event.scaler:
            return earlier
    return None
