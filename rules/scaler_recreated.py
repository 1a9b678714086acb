"""AMP215: the scaler is built again and again, so the scale never adapts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from amplint.finding import Severity
from amplint.layout import block_of, enclosing
from amplint.rule import Change, Fault, FixPlan, Rule, Site
from amplint.source import children
from amplint.values import FALSE, Optimizer, Value

if TYPE_CHECKING:
    from amplint.analysis import Unit
    from amplint.states import Event
    from amplint.traces import Trace


#: a scaler that a factory makes
_MADE = re.compile(rb"scaler\w{0,40} {0,9}=[^=\n]{0,200}\(")


class ScalerRecreated(Rule):
    """A `GradScaler` is constructed for every iteration, batch or epoch of one training run.

    ## What it does
    Reports a construction of `GradScaler` inside the loop that uses it, in a function that is called from such a loop,
    or as a temporary (`GradScaler().scale(loss)`), while model and optimizer live on.

    ## Why is this bad
    The scaler finds its scale by trying: it starts at 65536, halves at each overflow and doubles after 2000 good
    steps. A new one starts from 65536 again. Where that scale overflows, a scaler per iteration took 0 of 60 steps,
    one for the whole run took 49. A scaler per epoch repeats the skipped steps in every epoch and never reaches its
    growth interval. It also hides a missing `update()`.

    ## Example
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    for _ in range(4):
        scaler = torch.amp.GradScaler("cuda")  # <- here
        x = torch.randn(16, 8, device=device)
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).square().mean()
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
    A scaler per fold, trial or run is right when the model is made there too, and silent. A function is reported only
    when a call of it inside a loop is in sight, or when it is given something, such as a batch, and trains one step of
    weights and an optimizer that outlive it; a function named as a test is not taken for one that is called again. A
    scaler that is constantly disabled is silent, and so is one that is given the state of another.

    ## Fix safety
    Unsafe: the construction is moved in front of the loop when it depends on nothing in it. The training changes,
    since the scale now survives.

    ## How it is confirmed
    The replay runs gradients that overflow at the initial scale and counts the steps taken, as written and with one
    scaler for all iterations.

    ## References
    - `torch/amp/grad_scaler.py`: `GradScaler.update`
    - [Gradient scaling](https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling)
    """

    code = "AMP215"
    name = "scaler-recreated"
    severity = Severity.WARNING
    needles = ((b"Scaler", _MADE),)
    near = (((b"scaler",),), ((b"epoch",), (b"optim",)))
    fix = "unsafe"
    confirmed_by = "own"

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        restored = {site.identity for _, _, e in unit.events("load_state") if (site := unit.site_of(e.scaler))}
        for trace in unit.traces:
            earlier: dict[tuple[str, int], list[Event]] = {}
            for event in trace.events:
                if event.kind != "construct_scaler" or event.scaler is None or event.scaler.enabled is FALSE:
                    continue
                if event.site.identity in restored or _goes_on(event.site) or _made_once(event.site):
                    continue
                known = earlier.setdefault(event.site.identity, [])
                for first in known:
                    use = _lasting_use(trace, first, event)
                    if use is None or not (_in_one_loop(trace, first, event) or _takes_one_step(trace, first, event)):
                        continue
                    yield Fault(
                        event.site,
                        "the scaler is built anew each time round, so its scale never adapts",
                        (*unit.call_steps(event), (use.site, "the same weights are trained with each new scaler")),
                        unit.assumptions(event),
                        unit.confidence(use.optimizer),
                        _fix(trace, event, use),
                    )
                    break
                known.append(event)


def _goes_on(site: Site) -> bool:
    """Whether a scaler begins with a scale that the loop around it computes: where another one stopped."""
    loop = enclosing(site, cst.For, cst.While)
    arguments = site.node.args if isinstance(site.node, cst.Call) else ()
    given = (a.value for a in arguments if a.keyword is not None and a.keyword.value == "init_scale")
    return loop is not None and any(not _names_read(value).isdisjoint(_names_bound(loop)) for value in given)


def _made_once(site: Site) -> bool:
    """Whether a scaler is made where the condition around it finds none: `if name not in scalers: scalers[name] = ...`,
    `if not hasattr(step, "scaler"): step.scaler = ...`."""
    around = enclosing(site, cst.If, cst.FunctionDef, cst.For, cst.While)
    holder = site.module.parent(site.node)
    while isinstance(holder, cst.Arg):
        holder = site.module.parent(holder)
    target: cst.CSTNode | None = None
    if isinstance(holder, cst.Assign):
        target = holder.targets[0].target
    elif isinstance(holder, cst.Call):
        target = holder.func
    while isinstance(target, (cst.Attribute, cst.Subscript)):
        target = target.value
    return isinstance(around, cst.If) and isinstance(target, cst.Name) and target.value in _names_read(around.test)


def _in_one_loop(trace: Trace, first: Event, second: Event) -> bool:
    """Whether two constructions are rounds of a loop in sight (the caller of an entry is not in sight)."""
    for (loop, one), (other, two) in zip(first.loops, second.loops, strict=False):
        if loop != other:
            return False
        if one != two:
            return loop != id(trace.entry)
    return False


def _takes_one_step(trace: Trace, first: Event, second: Event) -> bool:
    """Whether a function that is given its batch trains one step with what outlives it: it is called for every batch,
    wherever its caller stands."""
    entry = trace.entry
    if second.calls or len(second.loops) != 1 or first.loops[:1] == second.loops[:1]:
        return False
    if entry.name.startswith("test") or len(entry.params) <= entry.is_method:
        return False
    uses = _uses(trace, second.scaler)
    # one that goes through many batches before its step may be given all of them, and be called once
    return any(event.kind == "step" for event in uses) and all(event.loops == second.loops for event in uses)


def _lasting_use(trace: Trace, first: Event, second: Event) -> Event | None:
    """A use of the second scaler on what the first one was used on before: an optimizer, else the weights of a loss."""
    before, after = _uses(trace, first.scaler), _uses(trace, second.scaler)
    stepped = {event.optimizer for event in before if event.kind == "step"}
    for event in after:
        if event.kind == "step" and event.optimizer in stepped:
            return event
    if stepped or any(event.kind == "step" for event in after):
        return None
    trained: frozenset[Value] = frozenset().union(*(event.details["value"].taint.owners for event in before))
    for event in after:
        if not trained.isdisjoint(event.details["value"].taint.owners):
            return event
    return None


def _uses(trace: Trace, scaler: Value | None) -> list[Event]:
    return [event for event in trace.events if event.scaler is scaler and event.kind in ("step", "backward")]


def _fix(trace: Trace, event: Event, use: Event) -> FixPlan | None:
    """Move the construction in front of all loops, where it is a plain assignment that depends on nothing in them."""
    module, call = event.site.module, event.site.node
    assign = module.parent(call)
    if not isinstance(assign, cst.Assign) or len(assign.targets) != 1 or block_of(event.site) is None:
        return None
    made = [e for e in trace.events if e.kind == "construct_optimizer" and e.optimizer is use.optimizer]
    if not isinstance(use.optimizer, Optimizer) or any(e.loops for e in made):
        return None
    loop: cst.CSTNode | None = None
    node = module.parent(assign)
    while node is not None and not isinstance(node, (cst.FunctionDef, cst.ClassDef, cst.Lambda)):
        if isinstance(node, (cst.For, cst.While)):
            loop = node
        elif isinstance(node, (cst.If, cst.Try, cst.With, cst.Match)):
            return None
        node = module.parent(node)
    if loop is None or not _names_read(call).isdisjoint(_names_bound(loop)):
        return None
    text = module.segment(assign)
    changes = (Change("insert-before", Site(module, loop), text), Change("delete", event.site))
    return FixPlan("unsafe", "build the scaler once, before the loop", changes)


def _names_read(node: cst.CSTNode) -> set[str]:
    found = {node.value} if isinstance(node, cst.Name) else set()
    return found.union(*(_names_read(child) for child in children(node)))


def _names_bound(node: cst.CSTNode) -> set[str]:
    """Names that are bound somewhere inside, by assignments, loops and walruses."""
    found: set[str] = set()
    if isinstance(node, (cst.AssignTarget, cst.For, cst.NamedExpr, cst.AnnAssign, cst.AugAssign)):
        found = _names_read(node.target)
    return found.union(*(_names_bound(child) for child in children(node)))
