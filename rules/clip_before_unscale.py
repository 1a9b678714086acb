"""AMP201: gradients are clipped while they still carry the loss scale."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.guards import asks_for_stage
from amplint.layout import (
    argument_text,
    is_plain_path,
    once_before,
    receiver_text,
    same_block,
    same_function,
    stands_before,
)
from amplint.protocol import consumed_scaled, remembers_unscale
from amplint.rule import HOOKED_IN_HELPER, Change, Fault, FixPlan, Rule
from amplint.values import NONE, Const, Func, Optimizer, Value, computed_from_gradients

if TYPE_CHECKING:
    from amplint.analysis import Unit
    from amplint.states import Event, Gradients
    from amplint.traces import Trace


class ClipBeforeUnscale(Rule):
    """Gradients are clipped while they are still multiplied by the loss scale.

    ## What it does
    Reports a gradient clip that is reached after `scaler.scale(loss).backward()` and before
    `scaler.unscale_(optimizer)`, when the same optimizer is stepped through the scaler afterwards. A clip is
    `clip_grad_norm_`, `clip_grad_value_`, `clip_grads_with_norm_`, FSDP's `model.clip_grad_norm_`, adaptive gradient
    clipping, clamping `.grad` by hand, a hook on a parameter that clamps, or a function of the project that does one of
    these.

    ## Why is this bad
    The threshold is compared with gradients that are S times too large (S starts at 65536), so nearly every step is
    clipped, and `scaler.step` then divides by S once more. The norm that reaches the optimizer is `max_norm / S`:
    measured 3.9e-3, 2.4e-4 and 1.5e-5 for S = 2^8, 2^12 and 2^16 and `max_norm=1`. With a threshold that should never
    have fired (1000, true norm 11) SGD still moved 718 times too little. Adam and AdamW hide it, because they divide by
    the size of the gradient: 0.2 % difference after one step, 2.5 % after fifty.
    `clip_grad_value_` and clamping do more harm: they turn an overflow into a finite number, so the scaler does not see
    it, takes the step with garbage and keeps the scale.

    ## Example
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")

    for _ in range(4):
        x = torch.randn(16, 8, device=device)
        y = 10 * x.sum(dim=1, keepdim=True)
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)  # <- here
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")

    for _ in range(4):
        x = torch.randn(16, 8, device=device)
        y = 10 * x.sum(dim=1, keepdim=True)
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Known limits
    Silent where the gradients may already be unscaled: the scaler or the optimizer went through a call that amplint
    cannot follow, or the clip belongs to accelerate, Lightning, Fabric or apex, which unscale by themselves. A clip
    inside an optimizer's own `step` is right, since `scaler.step` has unscaled by then. A threshold multiplied by
    `scaler.get_scale()` is right too. Clip functions of a project that amplint does not recognise can be named under
    `clip-functions` in the configuration. A clip over the parameters of several optimizers of which only some were
    unscaled is AMP212; reading or changing gradients in other ways is AMP202.

    ## Fix safety
    Safe: `scaler.unscale_(optimizer)` is inserted before the clip when the optimizer is certain and the clip runs once
    per `scaler.step`. Inside an accumulation window, in a helper without access to the scaler, and for hooks no fix is
    offered.

    ## How it is confirmed
    The statements are replayed twice, with the scaler and with `GradScaler(enabled=False)`. The gradients handed to the
    optimizer differ: their norm is `max_norm / S` instead of `max_norm`.

    ## References
    - [Gradient clipping with scaled gradients](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-clipping)
    - `torch/amp/grad_scaler.py`: `GradScaler.unscale_`
    - `torch/nn/utils/clip_grad.py`
    """

    code = "AMP201"
    name = "clip-before-unscale"
    severity = Severity.ERROR
    needles = ((b".scale(", b"clip", b".grad", b"register_hook"), (b".scale(", b"scaler", b"Scaler"))
    near = (((b".scale(", b"scaler", b"Scaler"),), ((b"clip_grad",),), ((b".grad", b"register_hook"), (b".step(",)))
    fix = "safe"
    confirmed_by = "grad"
    yields_to = ("AMP212", "AMP213", "AMP225", "AMP302")

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        for trace, position, event in unit.events("clip", "grad_write", "hook"):
            if event.kind == "hook":
                yield from self._hook(unit, trace, position, event)
                continue
            if not _clips(event, trace, position):
                continue
            met = _scaled_and_consumed(trace, position, event)
            if met is None or asks_for_stage(event.assume) or remembers_unscale(unit, event.site):
                continue
            gradients, consumer = met
            assert gradients.last is not None
            late = "unscaled only here" if consumer.kind == "unscale_" else "unscaled only inside this step"
            yield Fault(
                event.site,
                "gradients are clipped while they still carry the loss scale",
                (
                    (gradients.last.site, "scaled backward"),
                    *unit.call_steps(event),
                    (consumer.site, late),
                ),
                unit.assumptions(event),
                unit.confidence(gradients.scaler, consumer.optimizer),
                _fix(unit, trace, gradients.last, event, consumer),
            )

    @staticmethod
    def _hook(unit: Unit, trace: Trace, position: int, event: Event) -> Iterator[Fault]:
        """A hook clips during every backward, so it always meets scaled gradients."""
        if not event.details["clips"]:
            return
        for later in trace.events[position + 1 :]:
            if later.kind == "backward" and later.scaler is not None:
                # a function that was not looked into may have asked any module
                owners = frozenset(o for o in later.details["value"].taint.owners if not isinstance(o, Func))
                # of a loss of unknown origin one optimizer trains it all
                alone = not owners and _trains_all(unit, later, event.details["owners"])
                if alone or unit.overlap(event.details["owners"], owners):
                    asked = unit.asked_here(event)
                    steps = unit.call_steps(event) if asked is None else ((event.site, HOOKED_IN_HELPER),)
                    yield Fault(
                        asked or event.site,
                        "the hook clips gradients while they carry the loss scale",
                        (*steps, (later.site, "the hook runs during this scaled backward")),
                        unit.assumptions(later),
                        unit.confidence(later.scaler),
                    )
                    return


_CLAMPS = frozenset({"clamp_", "clip_", "clamp_min_", "clamp_max_"})


def _clips(event: Event, trace: Trace, position: int) -> bool:
    """Whether an event limits gradients by an absolute threshold."""
    if event.kind == "clip":
        limit = event.details["limit"]
        return (limit is None and event.details["function"] == "adaptive_clip_grad") or not _measures(limit)
    operation, arguments = event.details["operation"], event.details["arguments"]
    if any(isinstance(a, Value) and a.taint.inverse for a in arguments):
        return False
    if operation in _CLAMPS:
        return True
    if operation in ("mul_", "div_"):
        # a coefficient that was computed from the gradients' own norm
        return any(computed_from_gradients(a) for a in arguments if isinstance(a, Value))
    if operation == "assign" and position:
        before = trace.events[position - 1]
        return (
            before.kind == "grad_read"
            and before.details["operation"] in ("clamp", "clip")
            and before.loops == event.loops
        )
    return False


def _measures(limit: Value | None) -> bool:
    """Whether a threshold clips nothing, or is scaled as the gradients are."""
    if limit is None or limit is NONE or limit.taint.inverse:
        return True
    return isinstance(limit, Const) and limit.value == float("inf")


def _scaled_and_consumed(trace: Trace, position: int, event: Event) -> tuple[Gradients, Event] | None:
    """The scaled gradients that a clip meets, with the `unscale_` or `step` that takes them afterwards."""
    if any(g.kind == "U" for g in event.before.values()):
        # a clip over several optimizers is another rule's matter
        return None
    return consumed_scaled(trace, position, event)


def _fix(unit: Unit, trace: Trace, backward: Event, clip: Event, consumer: Event) -> FixPlan | None:
    """Unscale before the clip, where the step follows in the same block and the clip always meets scaled gradients.

    A factor that was computed from the gradients has to be that of unscaled ones as well.
    """
    first = clip
    if clip.kind == "grad_write":
        reads = (e for e in trace.events if e.kind == "grad_read" and backward.index < e.index < clip.index)
        first = next(reads, clip)
    elif clip.details["function"] == "clip_grads_with_norm_":
        # the norm that it is given was measured before
        reads = (e for e in trace.events if e.kind == "grad_read" and backward.index < e.index < clip.index)
        first = next((e for e in reads if e.details["operation"] == "total_norm"), clip)
    if first.calls != clip.calls or clip.calls != consumer.calls or clip.loops[: len(consumer.loops)] != consumer.loops:
        return None
    place = once_before(first.site, consumer.site)
    if place is None or (same_function(backward.site, place) and not stands_before(backward.site, place)):
        return None
    if consumer.kind == "unscale_" and not same_block(place, consumer.site):
        # who does not clip may need that one
        return None
    for _, _, other in unit.events(clip.kind):
        if other.site.node is clip.site.node and any(g.kind != "S" for g in other.before.values()):
            return None
    scaler, optimizer = receiver_text(consumer.site), argument_text(consumer.site)
    if not is_plain_path(scaler) or not is_plain_path(optimizer):
        return None
    text = f"{scaler}.unscale_({optimizer})"
    changes = [Change("insert-before", place, text)]
    if consumer.kind == "unscale_":
        changes.append(Change("delete", consumer.site))
        return FixPlan("safe", f"move {text} before the clip", tuple(changes))
    return FixPlan("safe", f"insert {text} before the clip", tuple(changes))


def _trains_all(unit: Unit, backward: Event, owners: frozenset[Value]) -> bool:
    """Whether there is one optimizer, and it may be the one of these modules."""
    known = [optimizer for optimizer in backward.before if optimizer is not None]
    theirs = known[0].owners if len(known) == 1 and isinstance(known[0], Optimizer) else None
    return len(known) == 1 and (theirs is None or unit.overlap(owners, theirs))
