"""AMP102: weights change inside an autocast region that goes on to use them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from amplint.finding import Severity
from amplint.needles import CACHE_IS_CLEARED, ENABLES, REGION_OF_A_HELPER, TRAINS
from amplint.rule import Change, Fault, FixPlan, Rule, Site
from amplint.values import FALSE, NONE, Optimizer, Scaler, Scheduler, Value

if TYPE_CHECKING:
    from amplint.analysis import Unit
    from amplint.states import Entered, Event
    from amplint.traces import Trace

_UPDATES = ("step", "opt_step", "weights_written", "load_state")
_USES = ("forward", "backward")


class WeightsUpdatedInAutocast(Rule):
    """Weights are updated inside an autocast region that is still open when they are used again.

    ## What it does

    Reports an enabled autocast region that holds an optimizer step (or another change of weights in place, or
    `load_state_dict`) and, after it, a forward of the same weights. Usual forms are a `with torch.autocast(...)`
    around a training loop and an autocast decorator on the function that runs an epoch.

    ## Why is this bad

    To save work, autocast casts each weight once and keeps the 16-bit copy until the outermost region is left. A step
    changes the fp32 weight and leaves the copy alone. From the second iteration on the model therefore computes with
    the weights of the first one, and so do all gradients. Nothing is raised. With 20 SGD steps on one batch the loss
    stayed at 3.1127; in fp32 it fell from 3.116 to 0.027. A later evaluation sees the fp32 weights, which did move,
    so that the model looks trained.

    An inner `with torch.autocast(...)` around each forward does not help: the copies live until the outermost region
    ends. The same holds for averaged weights copied into a model, for `load_state_dict`, and for the two forwards of
    sharpness-aware optimizers: in one region the second output equals the first.

    ## Example

    ```python
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scaler = torch.amp.GradScaler("cuda")


    def train_epoch(batches):
        losses = []
        with torch.autocast("cuda", dtype=torch.float16):  # <- here
            for x, y in batches:
                loss = nn.functional.cross_entropy(model(x), y)
                with torch.autocast("cuda", enabled=False):
                    optimizer.zero_grad()
                    scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                losses.append(loss.item())
        return losses


    inputs = torch.randn(16, 8, device="cuda")
    labels = torch.randint(4, (16,), device="cuda")
    print(train_epoch([(inputs, labels)] * 6))
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scaler = torch.amp.GradScaler("cuda")


    def train_epoch(batches):
        losses = []
        for x, y in batches:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
        return losses


    inputs = torch.randn(16, 8, device="cuda")
    labels = torch.randint(4, (16,), device="cuda")
    print(train_epoch([(inputs, labels)] * 6))
    ```

    ## Known limits

    - `cache_enabled=False` makes a region around the loop right; the rule is silent there, and also where the value
      of `cache_enabled` is not known.
    - Weights that already are 16 bit are not cast, so nothing is cached. The rule does not know the dtype of a model
      that was built elsewhere.
    - A step after which nothing uses the weights in the same region is not reported. Where the forward itself cannot
      be followed, an inner region that is off is taken for where it runs.

    ## Fix safety

    Unsafe. `cache_enabled=False` is added to the call that makes the region, so that each forward casts the weights
    anew. That is right and slower. The better repair is to narrow the region to the forward and the loss, which moves
    statements from 16 bit to fp32 and is left to the author.

    ## How it is confirmed

    The replay trains on one repeated batch inside the region as written and again without autocast. The finding is
    confirmed when the losses of the first run are frozen while those of the second one move.

    ## References

    - `torch/amp/autocast_mode.py`, class `autocast`: `cache_enabled`, and `__exit__`, which clears the cache at
      nesting 0
    - `aten/src/ATen/autocast_mode.cpp`, `cached_cast`
    - https://docs.pytorch.org/docs/stable/amp.html#torch.autocast
    """

    code = "AMP102"
    name = "weights-updated-in-autocast"
    severity = Severity.ERROR
    needles = ((ENABLES,), (*TRAINS, b"load_state_dict", b"parameters()"))
    near = (REGION_OF_A_HELPER,)
    fix = "unsafe"
    confirmed_by = "own"

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        for trace, position, update in unit.events(*_UPDATES):
            region = _outermost(update)
            if region is None or (update.kind == "load_state" and not _is_model(update.details["of"])):
                continue
            before = _use(unit, trace, range(position - 1, -1, -1), update, region)
            after = _use(unit, trace, range(position + 1, len(trace.events)), update, region)
            if before is None or after is None or _frozen(unit, trace, position, update):
                continue
            if CACHE_IS_CLEARED.search(update.site.module.code):
                continue
            yield Fault(
                region.site,
                "weights are updated in a region that stays open; the forward after it uses the old 16-bit copy",
                (
                    (update.site, "the weights change here"),
                    (after.site, "used again here" if after.kind == "forward" else "used again for this loss"),
                ),
                unit.assumptions(update),
                unit.confidence(update.optimizer),
                _without_cache(region.site),
            )


def _without_cache(region: Site) -> FixPlan | None:
    node = region.node
    if isinstance(node, cst.FunctionDef):
        calls = [d.decorator for d in node.decorators if "autocast" in region.module.segment(d.decorator)]
        node = calls[0] if len(calls) == 1 else node
    if not isinstance(node, cst.Call) or "autocast" not in region.module.segment(node.func):
        return None
    inside = region.module.segment(node)[:-1].rstrip()
    separator = "" if inside.endswith("(") else " " if inside.endswith(",") else ", "
    change = Change("replace", Site(region.module, node), f"{inside}{separator}cache_enabled=False)")
    return FixPlan("unsafe", "switch the weight cache of the region off", (change,))


def _outermost(event: Event) -> Entered | None:
    return next((r for r in event.regions if r.context.kind == "autocast"), None)


def _use(unit: Unit, trace: Trace, positions: range, update: Event, region: Entered) -> Event | None:
    """The next use of the updated weights in the same entry of the region, where autocast casts and caches them."""
    forwards = any(e.kind == "forward" for e in trace.events)
    off: set[int] = set()
    for position in positions:
        event = trace.events[position]
        if positions.step > 0 and event.kind == "enter" and _casts_nothing(unit, trace, event, region):
            off.add(event.details["number"])
        if event.kind not in _USES:
            continue
        outer = _outermost(event)
        if outer is None or outer.number != region.number:
            return None
        if event.kind == "forward":
            if _caches(unit, trace, event) and _same_weights(unit, update, frozenset((event.details["module"],))):
                return event
        elif not forwards or not _seen_forward(trace, event):
            if off - {r.number for r in event.regions}:
                # the forward that is not seen has run in a region that casts nothing
                return None
            owners = event.details["value"].taint.owners
            if _enabled(unit, trace, region, event) and _same_weights(unit, update, owners):
                return event
    return None


def _casts_nothing(unit: Unit, trace: Trace, event: Event, region: Entered) -> bool:
    """Whether a region within another is one of autocast and off."""
    context = event.details["context"]
    if context.kind != "autocast" or event.details["number"] == region.number:
        return False
    return not unit.can_hold(context.details.enabled, event.assume, trace)


def _seen_forward(trace: Trace, backward: Event) -> bool:
    owners = backward.details["value"].taint.owners
    return any(e.kind == "forward" and e.details["module"] in owners for e in trace.events)


def _caches(unit: Unit, trace: Trace, event: Event) -> bool:
    """Whether the innermost region casts, and none around says anything of its cache."""
    regions = [r for r in event.regions if r.context.kind == "autocast"]
    if any(r.context.details.cache_enabled not in (None, NONE) for r in regions):
        return False
    return unit.autocast(event, trace) is not None


def _enabled(unit: Unit, trace: Trace, region: Entered, event: Event) -> bool:
    """The same for a forward that is only known by its loss: the outermost region speaks for it."""
    details = region.context.details
    return (
        details.cache_enabled in (None, NONE)
        and details.enabled is not FALSE
        and unit.can_hold(details.enabled, event.assume, trace)
    )


def _is_model(value: Value) -> bool:
    return not isinstance(value, (Optimizer, Scaler, Scheduler))


def _frozen(unit: Unit, trace: Trace, position: int, update: Event) -> bool:
    """Whether the weights were frozen before: autocast keeps copies of weights that require grad alone."""
    return any(
        e.kind == "freeze" and _same_weights(unit, update, frozenset((e.details["target"],)))
        for e in trace.events[:position]
        if update.kind in ("weights_written", "load_state")
    )


def _same_weights(unit: Unit, update: Event, owners: frozenset[Value]) -> bool:
    if update.kind == "weights_written":
        return unit.overlap(owners, update.details["owners"])
    if update.kind == "load_state":
        return unit.overlap(owners, frozenset((update.details["of"],)))
    optimizer = update.optimizer
    theirs = optimizer.owners if isinstance(optimizer, Optimizer) else None
    if theirs is None and update.state.origin is not None:
        # whose parameters the optimizer has is not seen; those that its gradients are for are among them
        theirs = update.state.origin.details["value"].taint.owners or None
    return theirs is not None and unit.overlap(owners, theirs)
