"""AMP204: the optimizer is stepped past the scaler."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import TYPE_CHECKING

from amplint.effects.owners import within
from amplint.finding import Severity
from amplint.layout import argument_text, receiver_text
from amplint.needles import DERIVED, SCALER_HERE, SCALES
from amplint.protocol import is_certain, right_elsewhere, scaled_in_other_arm, scaler_text
from amplint.rule import Change, Fault, FixPlan, Rule
from amplint.values import TRUE, Ext, Grad, Optimizer, Result, Scaler, Value, sources_of

if TYPE_CHECKING:
    from amplint.analysis import Unit
    from amplint.states import Event, Gradients
    from amplint.traces import Trace


class StepBypassesScaler(Rule):
    """`optimizer.step()` is called on gradients that belong to a scaler, instead of `scaler.step(optimizer)`.

    ## What it does
    Reports a direct `optimizer.step()` after a scaled backward, with or without `unscale_`, and one that follows
    `scaler.step` of the same optimizer.

    ## Why is this bad
    On scaled gradients the step is S times too large: SGD diverges within a few steps, while Adam shows no difference
    at all until the first overflow writes NaN into the weights. After `unscale_` the numbers are right, but nobody
    skips the step when a gradient is infinite: measured w = -inf after one overflow. After `scaler.step` it is a
    second step (6 instead of 3), and it undoes a skip.

    The `update()` that follows then often raises `No inf checks were recorded prior to update.`; where a branch
    without AMP shares the line, it does not.

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
        optimizer.step()  # <- here
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
    Silent where another protocol owns the step (apex, accelerate's prepared optimizer, a DeepSpeed engine), in
    branches without a scaler, for a step before any backward (it silences the scheduler's warning and does nothing),
    for optimizers whose gradients do not come from a scaled loss, where the gradients are divided by
    `scaler.get_scale()` by hand and no `update()` follows, and where the path has found a norm of the unscaled
    gradients finite. An optimizer that reaches the step through a container is followed only while it can be told
    apart from the others.

    ## Fix safety
    Unsafe: `optimizer.step()` becomes `scaler.step(optimizer)`, with `scaler.update()` behind it where there is none.
    From then on steps can be skipped, and arguments such as a closure are no longer possible.

    ## How it is confirmed
    The gradients seen inside `optimizer.step` are S times those of a run with a disabled scaler. After `unscale_` the
    difference needs an overflow, which the replay injects; the verdict then names that condition.

    ## References
    - [Gradient scaling](https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling)
    - `torch/amp/grad_scaler.py`: `GradScaler.step`, `GradScaler._maybe_opt_step`
    """

    code = "AMP204"
    name = "step-bypasses-scaler"
    severity = Severity.ERROR
    needles = ((b".step(", b".scale("), SCALES)
    near = (SCALER_HERE, ((b".step(",), (DERIVED,)))
    fix = "unsafe"
    confirmed_by = "grad"
    yields_to = ("AMP213", "AMP214", "AMP220")
    uncovers = ("AMP219",)

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        for trace, position, event in unit.events("opt_step"):
            gradients, by_hand = event.state, False
            if gradients.kind in ("T", "N"):
                if event.details["arguments"] or event.details["keywords"]:
                    # a closure makes the gradients that it steps on
                    continue
                first = _scaler_step(trace, position, event)
                if first is None:
                    continue
                message = "the optimizer is stepped a second time, past the scaler"
                steps = [(first.site, "stepped through the scaler here")]
                scaler = first.scaler
            elif gradients.kind in ("S", "U", "L", "M") and gradients.last is not None:
                scaler = gradients.scaler
                is_sure = gradients.kind == "S" and is_certain(gradients, event.optimizer)
                if gradients.kind == "U" and gradients.unscaled is not None:
                    # whatever the backward reached, the scaler was asked for these
                    is_sure = gradients.unscaled.optimizer is event.optimizer
                if gradients.maybe and not is_sure and not _is_only_step(trace, position, gradients):
                    continue
                by_hand = _divided_by_scale(trace, gradients.last, event)
                if by_hand and (scaler is None or _update(trace, position, scaler) is None):
                    continue
                if gradients.kind == "U" and _found_finite(event):
                    continue
                scaled = gradients.kind == "S" and not by_hand
                message = (
                    "the optimizer is stepped on gradients that still carry the loss scale"
                    if scaled
                    else "the optimizer is stepped past the scaler, so that infinite gradients are not skipped"
                )
                steps = [(gradients.last.site, "scaled backward")]
            else:
                continue
            own = gradients.last.calls if gradients.last is not None else ()
            if any(call.identity == event.site.identity for call in own) and scaled_in_other_arm(event.site):
                # the closure asks the same question once more
                continue
            if scaler is None or (not _surely_enabled(scaler) and right_elsewhere(unit, event, "step")):
                continue
            update = _update(trace, position, scaler)
            if update is not None:
                steps.append((update.site, "the scaler is updated without a check of its own"))
            yield Fault(
                event.site,
                message,
                (*steps, *unit.call_steps(event)),
                unit.assumptions(event),
                unit.confidence(scaler, event.optimizer),
                _fix(unit, trace, event, scaler) if not by_hand else None,
            )


def _surely_enabled(scaler: Scaler) -> bool:
    return scaler.constructed and scaler.enabled is TRUE


def _found_finite(event: Event) -> bool:
    """Whether the path was decided by a norm of the optimizer's own gradients that only a finite one passes."""
    owners = event.optimizer.owners if isinstance(event.optimizer, Optimizer) else None
    if not owners:
        return False
    for atom, outcome in event.assume.items():
        if not outcome or atom[0] not in ("true", "lt") or not isinstance(atom[1], Value):
            continue
        test = atom[1]
        if atom[0] == "true" and not (
            isinstance(test, Result) and isinstance(test.callee, Ext) and test.callee.dotted.endswith("isfinite")
        ):
            continue
        measured = frozenset().union(*(norm.owners for norm in sources_of(test) if isinstance(norm, Grad)))
        if all(any(within(owner, o) for o in measured) for owner in owners):
            return True
    return False


def _scaler_step(trace: Trace, position: int, event: Event) -> Event | None:
    """The `scaler.step` of the same gradients, which are still there."""
    for earlier in reversed(trace.events[:position]):
        if earlier.optimizer is event.optimizer:
            return earlier if earlier.kind == "step" else None
        if earlier.kind in ("backward", "zero_grad") and event.optimizer in earlier.before:
            return None
    return None


def _divided_by_scale(trace: Trace, backward: Event, step: Event) -> bool:
    """Whether the gradients are divided by the scale by hand on their way to the step."""
    between = [e for e in trace.events if backward.index < e.index < step.index]
    changed = [e for e in between if e.kind == "grad_write" and step.optimizer in e.before]
    inverse = any(isinstance(a, Value) and a.taint.inverse for e in changed for a in e.details["arguments"])
    return bool(changed) and (inverse or any(e.kind == "get_scale" for e in between))


def _is_only_step(trace: Trace, position: int, gradients: Gradients) -> bool:
    """Whether the scaler is updated behind a step without a step of its own since the backward: whichever optimizers
    the backward reached, they are stepped past it."""
    if gradients.kind != "S" or gradients.scaler is None or gradients.last is None:
        return False
    earlier = takewhile(lambda e: e is not gradients.last, reversed(trace.events[:position]))
    checked = any(e.kind in ("step", "unscale_") for e in earlier)
    return not checked and _update(trace, position, gradients.scaler) is not None


def _update(trace: Trace, position: int, scaler: Scaler) -> Event | None:
    """The update that follows in the same round of the loop around both, and has nothing to decide from."""
    step = trace.events[position]
    between: list[Event] = [step]
    for later in trace.events[position + 1 :]:
        if later.kind == "update" and later.scaler is scaler:
            # the backward of another optimizer may come first, in the same batch
            same_batch = all(e.loops[: len(later.loops)] == later.loops for e in between)
            return later if same_batch else None
        if later.kind in ("step", "unscale_"):
            return None
        if later.kind == "backward":
            between.append(later)
    return None


def _fix(unit: Unit, trace: Trace, event: Event, scaler: Scaler) -> FixPlan | None:
    if event.state.kind in ("T", "N"):
        others = (e for _, _, e in unit.events("opt_step") if e.site.identity == event.site.identity)
        if any(e.state.kind not in ("T", "N") for e in others):
            # on another path it is the only step
            return None
        return FixPlan("unsafe", "remove the second step", (Change("delete", event.site),))
    if event.state.kind not in ("S", "U"):
        # more than the step is wrong
        return None
    name, optimizer = scaler_text(unit, trace, scaler, event.site), receiver_text(event.site)
    if (
        not name
        or not optimizer
        or event.details["arguments"]
        or event.details["keywords"]
        or argument_text(event.site)
    ):
        return None
    changes = [Change("replace", event.site, f"{name}.step({optimizer})")]
    if not any(e.kind == "update" and e.scaler is scaler for e in trace.events):
        changes.append(Change("insert-after", event.site, f"{name}.update()"))
    return FixPlan("unsafe", f"step through {name}", tuple(changes))
