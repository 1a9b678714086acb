"""AMP209: a jump leaves the scaler between unscale_ and update."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.needles import SCALER_HERE, SCALES, UNSCALES
from amplint.protocol import between, counts_batches, inside_window, passed_updates, previous, same_round
from amplint.rule import Fault, Rule

if TYPE_CHECKING:
    from amplint.analysis import Unit
    from amplint.states import Event, Gradients
    from amplint.traces import Trace
    from amplint.values import Value


class SkippedUpdate(Rule):
    """A `continue`, `return`, `break` or swallowed exception leaves the step after `unscale_` and before `update()`.

    ## What it does
    Reports a jump between `unscale_` (or `step`) and `update()` after which the same optimizer is unscaled or stepped
    again: `continue` on a bad norm, an early `return`, an `except` that goes on with the loop. Also reported is an
    `unscale_` that always runs while the step and its `update()` depend on a flag or a norm.

    ## Why is this bad
    The optimizer stays marked as unscaled. The next iteration's `unscale_` raises `unscale_() has already been called
    on this optimizer since the last update().` Where there is no second `unscale_` on the path, the next `step`
    believes that the gradients are unscaled already and applies S times the true gradient, silently. The path that
    jumps is the rare one (an infinite norm), which a disabled scaler and a short test never take.

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
        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        if norm > 0.5:
            continue  # <- here
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
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        if norm > 0.5:
            scaler.update()
            continue
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Known limits
    Silent when `update()` is called on the skipping path or in a `finally`, when the jump leaves the training for
    good, and when the code after the jump hands the scaler to a call that amplint cannot follow. Exceptions are
    considered only where the code catches them.

    ## Fix safety
    No fix. The skip needs `scaler.update()` and gradients that are cleared before the next backward; whether the step
    should be skipped at all is the author's decision: `scaler.step` skips infinite gradients by itself.

    ## How it is confirmed
    The replay takes the jump in one iteration; torch raises in the next, or the gradients handed to the optimizer are
    S times too large.

    ## References
    - `torch/amp/grad_scaler.py`: `OptState`, `GradScaler.unscale_`
    - [Gradient scaling](https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling)
    """

    code = "AMP209"
    name = "skipped-update"
    severity = Severity.ERROR
    needles = ((UNSCALES, b".step(", b".scale("), SCALES)
    near = (SCALER_HERE,)
    confirmed_by = "raise"
    yields_to = ("AMP302",)

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        yield from _without_jump(unit)
        for trace, position, jump in unit.events("jump"):
            caught = [
                met
                for optimizer, gradients in jump.before.items()
                if optimizer is not None and (met := _left(unit, trace, position, optimizer, gradients)) is not None
            ]
            if not caught:
                continue
            start = caught[0][0]
            what = "unscaled" if start.kind == "unscale_" else "stepped"
            yield Fault(
                jump.site,
                f"the optimizer is {what}, and update() is skipped",
                (
                    (start.site, f"{what} here"),
                    *unit.call_steps(jump),
                    *((after.site, "meets the optimizer in the middle of the last step") for _, after in caught),
                ),
                unit.assumptions(jump),
                unit.confidence(start.scaler, start.optimizer),
            )


def _left(
    unit: Unit, trace: Trace, position: int, optimizer: Value, gradients: Gradients
) -> tuple[Event, Event] | None:
    """The operation that a jump leaves without its `update()`, and the later one that meets what it left."""
    jump = trace.events[position]
    start = _operation(trace, position, optimizer)
    if start is None or gradients.maybe or not _under_way(trace, position, gradients, start):
        return None
    if not same_round(start, jump) or (
        jump.details["kind"] in ("continue", "break") and start.loops[: len(jump.loops)] != jump.loops
    ):
        # something before this batch has left the optimizer so, whatever it was
        return None
    after = _next_operation(trace, position, optimizer, start)
    if after is None or not passed_updates(unit, jump, start.scaler):
        return None
    if any(counts_batches(atom) for atom in jump.assume.keys() - start.assume.keys()):
        # the boundary of a window
        return None
    return start, after


def _without_jump(unit: Unit) -> Iterator[Fault]:
    """The step and its `update()` stand under a condition, and the `unscale_` before them does not."""
    for trace, position, event in unit.events("unscale_"):
        found = previous(trace, position, event, "unscale_") if event.stage == "unscaled" else None
        if found is None or same_round(found[1], event):
            continue
        start, first = found
        begun = any(event.optimizer in b.before for b in between(trace, start, position, "backward"))
        if not begun or between(trace, start, position, "jump") or inside_window(unit, event, event.optimizer):
            continue
        left_out = next(
            (e for _, _, e in unit.events("step") if e.scaler is event.scaler and e.optimizer is event.optimizer), None
        )
        if left_out is None:
            continue
        yield Fault(
            first.site,
            "the optimizer is unscaled, and a path to the next unscale_ has neither a step nor an update()",
            (
                *unit.call_steps(first),
                (left_out.site, "left out on that path"),
                (event.site, "meets the optimizer in the middle of the last step"),
            ),
            unit.assumptions(event),
            unit.confidence(event.scaler, event.optimizer),
        )


def _under_way(trace: Trace, position: int, gradients: Gradients, start: Event) -> bool:
    """Whether a step has begun that only `update()` can end; to clear the gradients does not end it."""
    if gradients.kind in ("U", "T"):
        return True
    if gradients.kind != "N" or start.kind != "unscale_":
        return False
    since = trace.events[:position]
    return not any(e.kind == "update" and e.scaler is start.scaler and e.index > start.index for e in since) and any(
        e.kind == "zero_grad" and start.optimizer in e.before and e.index > start.index for e in since
    )


def _operation(trace: Trace, position: int, optimizer: Value) -> Event | None:
    """The last operation of a scaler on an optimizer."""
    for earlier in reversed(trace.events[:position]):
        if earlier.optimizer is optimizer and earlier.kind in ("unscale_", "step"):
            return earlier
    return None


def _next_operation(trace: Trace, position: int, optimizer: Value, start: Event) -> Event | None:
    """The next operation on the optimizer, if a new backward and no `update()` comes before it."""
    begun = False
    for later in trace.events[position + 1 :]:
        if later.kind == "update" and later.scaler is start.scaler:
            return None
        begun = begun or (later.kind == "backward" and optimizer in later.before)
        if later.optimizer is optimizer and later.kind in ("unscale_", "step") and later.scaler is start.scaler:
            return later if begun else None
    return None
