"""AMP401: a model is cast to fp16 as a whole and then trained with automatic mixed precision."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from amplint.finding import Severity
from amplint.layout import receiver_text
from amplint.needles import ENABLES, TRAINS, UNSCALES
from amplint.protocol import keeps_masters, options_disagree
from amplint.rule import Change, Fault, FixPlan, Rule
from amplint.values import Instance, Net, Optimizer, Result, Value

if TYPE_CHECKING:
    from amplint.analysis import Unit
    from amplint.states import Event
    from amplint.traces import Trace


class HalfModelWithAmp(Rule):
    """A model is cast to fp16 by hand and then trained under autocast or with a scaler.

    ## What it does

    Reports the cast of a whole model to fp16 when the same model is trained under autocast or through a `GradScaler`:
    `.half()`, `.to(torch.float16)`, `.to(dtype=...)`, `.type(torch.HalfTensor)`, `torch_dtype=torch.float16` of a
    pretrained model, a loop or `apply` over parameters that are halved one by one, and
    `torch.set_default_dtype(torch.float16)` before the model is built.

    ## Why is this bad

    Automatic mixed precision keeps the weights in fp32 and casts copies of them where that is safe. With fp16 weights
    there is no fp32 copy left to update:

    - `scaler.unscale_` and `scaler.step` refuse fp16 gradients: `ValueError: Attempting to unscale FP16 gradients.`
    - An optimizer with `fused=True` accepts them, and the updates are lost without a word. A weight of 1 with
      `lr * gradient = 1e-4` per step still was exactly 1.0 after 1000 steps; it should have been 0.9, but the step is
      smaller than half the distance between neighbouring fp16 numbers there (2^-11 below 1).
    - Adam with its default `eps=1e-8` divides by zero: on fp16 weights a gradient of 0 made the weight NaN, one of
      1e-4 made it infinite.

    ## Example

    ```python
    import torch
    from torch import nn

    torch.manual_seed(0)


    def train(batches):
        model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to("cuda")
        model = model.half()  # <- here
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        scaler = torch.amp.GradScaler("cuda")
        for x, y in batches:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return model


    inputs = torch.randn(3, 8, 16, device="cuda")
    labels = torch.randint(4, (3, 8), device="cuda")
    train(list(zip(inputs, labels)))
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn

    torch.manual_seed(0)


    def train(batches):
        model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to("cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        scaler = torch.amp.GradScaler("cuda")
        for x, y in batches:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return model


    inputs = torch.randn(3, 8, 16, device="cuda")
    labels = torch.randint(4, (3, 8), device="cuda")
    train(list(zip(inputs, labels)))
    ```

    ## Known limits

    - Reported only where the cast model is seen to be trained. A model that is frozen (`requires_grad_(False)`, a
      teacher, a text encoder), cast for inference, copied for export, or cast back with `.float()` is left alone.
    - Optimizers that keep fp32 master weights of their own (apex, DeepSpeed, `FusedLAMB`) are known by their names, and
      those of the project by what their class speaks of: masters, fp32, or `_step_supports_amp_scaling`.
    - A dtype that is chosen at run time (`model.to(dtype=args.dtype)`) is not followed.

    ## Fix safety

    Unsafe. The cast is removed: training then takes the memory of fp32 weights, and inputs that the program casts by
    hand (`x.half()`) may no longer fit a layer that is called outside of the region.

    ## How it is confirmed

    The replay trains the cast model with torch itself: the `ValueError` of the scaler confirms the finding. With a
    fused optimizer nothing raises; there the verifier applies small updates and compares the weights with an fp32
    run.

    ## References

    - `torch/amp/grad_scaler.py`, `GradScaler._unscale_grads_`: "Attempting to unscale FP16 gradients."
    - https://docs.pytorch.org/docs/stable/amp.html#autocasting: "You should not call half() or bfloat16() on your
      model(s) or inputs when using autocasting."
    """

    code = "AMP401"
    name = "half-model-with-amp"
    severity = Severity.ERROR
    needles = ((b"GradScaler", b".scale(", UNSCALES, ENABLES), TRAINS)
    fix = "unsafe"
    confirmed_by = "raise"

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        for trace, position, event in unit.events("cast"):
            if event.details["dtype"] != "float16":
                continue
            step = _trained(unit, trace, position, event)
            if step is None:
                continue
            yield Fault(
                event.site,
                "the whole model is cast to float16 and then trained with mixed precision",
                (*unit.call_steps(event), (step.site, "its weights are stepped here")),
                unit.assumptions(step),
                unit.confidence(step.scaler, step.optimizer),
                _fix(event),
            )
        yield from _default_dtype(unit)


def _trained(unit: Unit, trace: Trace, position: int, cast: Event) -> Event | None:
    """The step of an optimizer over the cast model, while the cast stands and the model is not frozen."""
    target = cast.details["target"]
    owners = frozenset((target,))
    for event in trace.events:
        if event.kind == "freeze" and unit.overlap(owners, frozenset((event.details["target"],))):
            return None
    in_region = False
    for event in trace.events[position + 1 :]:
        if event.kind == "cast" and event.details["dtype"] == "float32" and event.details["target"] is target:
            return None
        if event.kind == "forward" and unit.overlap(owners, frozenset((event.details["module"],))):
            in_region = in_region or unit.autocast(event, trace) is not None
        if event.kind == "step" or (event.kind == "opt_step" and in_region):
            origin = event.state.origin
            if origin is None:
                continue
            optimizer = event.optimizer
            if keeps_masters(trace, optimizer) or options_disagree(event.assume):
                continue
            theirs = optimizer.owners if isinstance(optimizer, Optimizer) else None
            if theirs is not None and not unit.overlap(owners, theirs):
                continue
            if theirs is None and not (
                unit.overlap(owners, origin.details["value"].taint.owners)
                and not event.state.maybe
                and not _given_to_masters(unit, trace, event, owners)
            ):
                continue
            return event
    return None


def _given_to_masters(unit: Unit, trace: Trace, step: Event, owners: frozenset[Value]) -> bool:
    """Whether gradients are put onto other tensors by hand before a step: fp32 copies, which the optimizer has."""
    last = step.state.last
    return any(
        event.kind == "grad_write"
        and event.details["operation"] == "assign"
        and last is not None
        and last.index < event.index < step.index
        and not unit.overlap(owners, event.details["owners"])
        for event in trace.events
    )


def _default_dtype(unit: Unit) -> Iterator[Fault]:
    """`torch.set_default_dtype(torch.float16)` before a module is built that is trained with a scaler."""
    settings = [event for _, _, event in unit.events("default_dtype")]
    if not any(event.details["dtype"] == "float16" for event in settings):
        return
    never_reset = all(event.details["dtype"] == "float16" for event in settings)
    for trace in unit.traces:
        current: Event | None = None
        born: dict[Value, Event] = {}
        for event in trace.events:
            if event.kind == "default_dtype":
                current = event if event.details["dtype"] == "float16" else None
            elif event.kind == "construct_module" and current is not None:
                born[event.details["module"]] = current
            elif event.kind == "step" and not keeps_masters(trace, event.optimizer):
                owners = event.optimizer.owners if isinstance(event.optimizer, Optimizer) else None
                for owner in owners or ():
                    setting = born.get(owner)
                    if setting is None and never_reset and isinstance(owner, (Net, Result, Instance)):
                        setting = settings[0]
                    if setting is not None:
                        yield Fault(
                            setting.site,
                            "modules are built in float16 by default and then trained with mixed precision",
                            ((event.site, "their weights are stepped here"),),
                            unit.assumptions(event),
                            unit.confidence(event.scaler),
                        )


def _fix(cast: Event) -> FixPlan | None:
    """Take the cast away where it is a call of its own."""
    how = cast.details["how"]
    receiver = receiver_text(cast.site)
    if how != "half" or not receiver:
        return None
    holder = cast.site.module.parent(cast.site.node)
    nothing_else = isinstance(holder, cst.Expr) or (
        isinstance(holder, cst.Assign)
        and [cast.site.module.segment(target.target) for target in holder.targets] == [receiver]
    )
    change = Change("delete", cast.site) if nothing_else else Change("replace", cast.site, receiver)
    return FixPlan("unsafe", "remove the cast", (change,))
