"""AMP213: a scaler method gets an object that it cannot work on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from amplint.finding import Severity
from amplint.layout import argument_text
from amplint.needles import SCALER_HERE, SCALES, UNSCALES
from amplint.rule import Change, Fault, FixPlan, Rule, Site
from amplint.values import (
    NONE,
    AttrOf,
    Func,
    Instance,
    Net,
    Optimizer,
    Params,
    Result,
    Scaler,
    Scheduler,
    Sequence,
    Value,
)

if TYPE_CHECKING:
    from amplint.analysis import Unit
    from amplint.states import Event
    from amplint.traces import Trace


class WrongScalerOperand(Rule):
    """`scaler.step`, `scale` or `unscale_` is given a scheduler, a bound method, a model, or nothing to work on.

    ## What it does
    Reports `scaler.step(scheduler)`, `scaler.step(optimizer.step)`, `scaler.step(optimizer.step())`, the halves of a
    step of SAM (`scaler.step(optimizer.first_step())`), `scaler.step(None)`, `scaler.step()`,
    `scaler.step([optimizer])`, `scaler.step(model.parameters())`, `scaler.scale(optimizer)`, `scaler.scale(model)`,
    `scaler.scale(loss.item())`, `scaler.unscale_(model)` and `scaler.unscale_(loss)`.

    ## Why is this bad
    The call raises an AttributeError, TypeError or ValueError on the first step with an enabled scaler. A disabled
    scaler passes everything on (`scale` returns its argument, `unscale_` does nothing, `step(x)` calls `x.step()`), so
    the code runs on a machine without a GPU: `scaler.step(scheduler)` even does the right thing there.
    `scaler.step(optimizer.step())` steps on scaled gradients before it fails.

    ## Example
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
    scaler = torch.amp.GradScaler("cuda")

    for epoch in range(2):
        for _ in range(2):
            x = torch.randn(16, 8, device=device)
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = model(x).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        scaler.step(scheduler)  # <- here
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
    scaler = torch.amp.GradScaler("cuda")

    for epoch in range(2):
        for _ in range(2):
            x = torch.randn(16, 8, device=device)
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = model(x).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        scheduler.step()
    ```

    ## Known limits
    The operand's kind must be certain: constructed in sight, a bound method of a known optimizer, a loss that is scaled
    as well, a model whose parameters an optimizer is made over. Names alone prove nothing. Wrappers around optimizers
    and lists that are stepped one by one are silent.

    ## Fix safety
    Safe for `scaler.scale(optimizer)`, which becomes `scaler.step(optimizer)`. No fix for the others, where the code
    does not say what was meant.

    ## How it is confirmed
    The call is replayed with an enabled scaler and torch raises.

    ## References
    - `torch/amp/grad_scaler.py`: `GradScaler.step`, `GradScaler.scale`
    - [Gradient scaling](https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling)
    """

    code = "AMP213"
    name = "wrong-scaler-operand"
    severity = Severity.ERROR
    needles = ((b".step(", b".scale(", UNSCALES), SCALES)
    near = (SCALER_HERE,)
    fix = "safe"
    confirmed_by = "raise"

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        for trace, position, event in unit.events("step", "unscale_", "scale"):
            operand = event.details["argument" if event.kind == "scale" else "operand"]
            problem = _problem(trace, position, event, operand)
            if problem is None:
                continue
            steps = [*unit.call_steps(event)]
            if position and trace.events[position - 1].kind == "opt_step" and operand is NONE:
                steps.append((trace.events[position - 1].site, "the optimizer is stepped here, past the scaler"))
            steps += _consequences(trace, position, event)
            yield Fault(
                event.site,
                f"{event.kind}() is given {problem}",
                tuple(steps),
                unit.assumptions(event),
                unit.confidence(event.scaler),
                _fix(event) if problem.startswith("an optimizer") else None,
            )


def _problem(trace: Trace, position: int, event: Event, operand: Value) -> str | None:
    """What the operand is, where it is certain that the scaler cannot work on it."""
    if operand is NONE and _is_bare(event):
        return "nothing"
    if event.kind == "scale":
        if isinstance(operand, (Net, Instance)) and _is_called(trace, position, operand):
            return "a model instead of a loss"
        if isinstance(operand, Result) and isinstance(operand.callee, AttrOf) and operand.callee.name == "item":
            return "a number instead of a loss"
        return "an optimizer instead of a loss" if _is_optimizer(trace, operand) else None
    if isinstance(operand, Params):
        return "parameters instead of an optimizer"
    if any(e.kind == "scale" and e.details["argument"] == operand for e in trace.events[:position]):
        return "a loss instead of an optimizer"
    if isinstance(operand, Scheduler):
        return "a learning rate scheduler instead of an optimizer"
    sam = _half_step(event.site)
    if sam is not None:
        return sam
    if isinstance(operand, Optimizer) and operand.inferred_from is not None:
        operand = operand.inferred_from
        if _SCHEDULER.search(argument_text(event.site)) and not _is_cleared(trace, event.optimizer):
            return "a learning rate scheduler instead of an optimizer"
    if isinstance(operand, AttrOf) and operand.name == "step" and _is_optimizer(trace, operand.base):
        return "the bound method instead of the optimizer"
    if operand is NONE:
        return _nothing(event.site)
    if isinstance(operand, Sequence) and any(_is_optimizer(trace, item) for item in operand.items):
        return "a list of optimizers instead of one" if _is_torchs(event.scaler) else None
    if _is_called(trace, position, operand) and (isinstance(operand, (Net, Instance)) or _is_trained(trace, operand)):
        return "a model instead of an optimizer"
    return None


#: what a scheduler is called that comes from outside
_SCHEDULER = re.compile(r"(?:^|[._])(?:lr_?)?sched(?:uler)?$")


def _is_cleared(trace: Trace, optimizer: Value | None) -> bool:
    return any(e.kind == "zero_grad" and e.optimizer is optimizer for e in trace.events)


def _is_called(trace: Trace, position: int, module: Value) -> bool:
    return any(e.kind == "forward" and e.details["module"] == module for e in trace.events[:position])


def _is_trained(trace: Trace, module: Value) -> bool:
    """Whether an optimizer is constructed over the parameters of this very object."""
    made = (e.optimizer for e in trace.events if e.kind == "construct_optimizer")
    return any(isinstance(o, Optimizer) and o.owners is not None and module in o.owners for o in made)


def _is_torchs(scaler: Value | None) -> bool:
    """Whether a scaler is certain to be one of torch's, and no class of the project with other methods."""
    return isinstance(scaler, Scaler) and scaler.constructed


def _is_bare(event: Event) -> bool:
    """Whether one of torch's scalers is called without arguments."""
    node = event.site.node
    return isinstance(node, cst.Call) and not node.args and _is_torchs(event.scaler)


def _is_optimizer(trace: Trace, value: Value) -> bool:
    """Whether a value was constructed, or has been used, as an optimizer; what a call returns that was given one may be
    anything."""
    if isinstance(value, (Func, Scheduler, Net)):
        return False
    optimizer = value if isinstance(value, Optimizer) else Optimizer(("inferred", value), None)
    return any(
        e.optimizer is optimizer and e.kind in ("construct_optimizer", "zero_grad", "opt_step") for e in trace.events
    )


def _half_step(site: Site) -> str | None:
    """A half of a step of SAM, https://github.com/davda54/sam: called in the place of the optimizer, or handed over."""
    node = site.node
    argument = node.args[0].value if isinstance(node, cst.Call) and node.args else None
    method = argument.func if isinstance(argument, cst.Call) else argument
    if not isinstance(method, cst.Attribute) or method.attr.value not in ("first_step", "second_step"):
        return None
    if method is argument:
        return "the bound method instead of the optimizer"
    return f"the result of optimizer.{method.attr.value}() instead of the optimizer"


def _nothing(site: Site) -> str | None:
    """None, where it is written there, or what a method called there returns; a variable may hold something else."""
    node = site.node
    if not isinstance(node, cst.Call) or not node.args:
        return None
    argument = node.args[0].value
    if isinstance(argument, cst.Name) and argument.value == "None":
        return "None instead of an optimizer"
    if not isinstance(argument, cst.Call) or not isinstance(argument.func, cst.Attribute):
        return None
    called = argument.func.attr.value
    return f"the result of optimizer.{called}() instead of the optimizer" if called in ("step", "zero_grad") else None


def _consequences(trace: Trace, position: int, event: Event) -> Iterator[tuple[Site, str]]:
    """What comes out wrong for that reason alone: the clip that follows a failed `unscale_`, the next `update()`."""
    for later in trace.events[position + 1 :]:
        if later.kind == "clip" and event.kind == "unscale_":
            yield later.site, "meets gradients that nothing has unscaled"
        if later.kind == "update" and later.scaler is event.scaler:
            yield later.site, "the update() after it"
            return


def _fix(event: Event) -> FixPlan | None:
    node = event.site.node
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute) or not event.details["dropped"]:
        return None
    change = Change("replace", Site(event.site.module, node.func.attr), "step")
    return FixPlan("safe", "step instead of scale", (change,))
