"""AMP501: a resume checkpoint leaves out the state of the loss scaler."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from amplint.finding import Severity
from amplint.guards import describe
from amplint.layout import class_of, function_of, is_plain_path, receiver_text, same_function, text_before
from amplint.rule import Change, Fault, FixPlan, Rule, Site
from amplint.values import DictV, Func, ItemOf, Optimizer, Result, Scaler, Scheduler, StateOf, Value

if TYPE_CHECKING:
    from amplint.analysis import Unit
    from amplint.source import SourceModule
    from amplint.states import Event
    from amplint.traces import Trace

#: a collection of optimizers, by its name
_OPTIMIZERS = re.compile(r"(^|[._])(optim\w*|opts)s?$")
#: whose state makes a checkpoint one to resume from
_RESUMED = re.compile(rb"optimi[sz]er|opts?\b|sched")


class CheckpointWithoutScaler(Rule):
    """A checkpoint for resuming holds the optimizer's state and not the scaler's.

    ## What it does
    Reports a checkpoint that holds the state of an optimizer or a scheduler, written where an enabled `GradScaler`
    takes part in the training, without that scaler's `state_dict()`. The checkpoint may be a dict literal, a
    `dict(...)` call, a dict filled key by key, a dataclass, one file per object, or the work of a helper in another
    function or file.

    ## Why is this bad
    The scaler's state is the current scale and the number of good steps since it last changed. A run that resumes
    without it starts at 65536 again, overflows, and skips steps until the scale has come down, while the scheduler
    and the step counter go on. Measured: 8 of 40 steps skipped after the resume and weights that differ by 1.7e-2;
    with the state restored no step was skipped and the weights were bitwise equal to those of an uninterrupted run.

    ## Example
    ```python
    import io

    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda")

    for step in range(4):
        x = torch.randn(16, 8, device=device)
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}  # <- here
    torch.save(checkpoint, io.BytesIO())
    ```

    ## Use instead
    ```python
    import io

    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda")

    for step in range(4):
        x = torch.randn(16, 8, device=device)
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    checkpoint = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scaler": scaler.state_dict(),
        "step": step,
    }
    torch.save(checkpoint, io.BytesIO())
    ```

    ## Known limits
    Checkpoints with weights only, checkpoints of a run whose scaler is constantly disabled or whose autocast is
    constantly bfloat16, and checkpoints that a framework writes are silent. So are checkpoints that receive the
    scaler's state later, under whatever key, and saves that come along with one of the scaler's state, be it in a
    file of its own. Loading is the matter of AMP502 and AMP503.

    ## Fix safety
    Safe: a key `"scaler": scaler.state_dict()` is added where the checkpoint is a dict literal and the scaler is bound
    at that place. No fix for other forms. Readers of the file that demand an exact set of keys have to be adapted by
    hand.

    ## How it is confirmed
    A short run with a scale that must come down is saved and resumed with exactly the keys of the checkpoint. The
    resumed run repeats the skipped steps; the run with the scaler's state does not.

    ## References
    - [Saving and resuming](https://docs.pytorch.org/tutorials/recipes/recipes/amp_recipe.html#saving-resuming)
    - `torch/amp/grad_scaler.py`: `GradScaler.state_dict`, `GradScaler.load_state_dict`
    """

    code = "AMP501"
    name = "checkpoint-without-scaler"
    severity = Severity.WARNING
    needles = ((b"scaler", b"Scaler"), (b"save", b"state", b"heckpoint", b"ckpt", b"dump"))
    near = (((b"scaler", b"Scaler"),), ((b"state_dict",), (b"save", b"dump"), (_RESUMED,)))
    uncovers = ("AMP502",)
    fix = "safe"
    confirmed_by = "own"

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        driven = _driven(unit)
        if not driven or _may_be_saved_unseen(unit):
            return
        complete = _complete(unit)
        wholes: set[int] = set()
        for trace, position, event in unit.events("save"):
            step = _resumable(event, driven)
            if step is None or id(event.site.node) in complete:
                continue
            built = event.details["literal"]
            site = _literal(event) or event.site
            if _asks_beside(site):
                continue
            # one file for each object: the function is the checkpoint; what is put together once is one, however often
            # it is saved
            whole = id(function_of(site)) if built is None else id(built.node)
            if whole in wholes and site is event.site:
                continue
            wholes.add(whole)
            steps = [(step.site, "the scaler is in use here")]
            if built is not None and built is not site:
                steps.append((built, "the checkpoint is put together here"))
                steps.extend(_entries(trace, position, event))
            if site is not event.site:
                steps.append((event.site, "saved here"))
            yield Fault(
                _without_argument(event, site),
                "the checkpoint holds the optimizer's state and not the scaler's",
                (*unit.call_steps(event), *steps),
                unit.assumptions(event),
                unit.confidence(step.scaler, step.optimizer),
                _fix(unit, event, _steps_of_missing(event, driven) or [step]),
            )


_STATE_OF_SCALER = re.compile(
    r"scaler\w*(\(\))?(\[[^\]]*\])?\.state_dict\(|\[['\"]\w*scalers?['\"]\](?:\s*=(?!=)|\.append\()"
)


def _asks_beside(site: Site) -> bool:
    """Whether the function that puts a checkpoint together asks a scaler for its state as well, where there is one."""
    function = function_of(site)
    return function is not None and _STATE_OF_SCALER.search(site.module.rough_text(function)) is not None


def _driven(unit: Unit) -> dict[Value, Event]:
    """Optimizers that a live scaler steps, with such a step."""
    found: dict[Value, Event] = {}
    for trace, _, event in unit.events("step"):
        if event.optimizer is not None and event.optimizer not in found and not unit.only_bfloat16(trace):
            found[event.optimizer] = event
    return found


def _asks_for_scaler_state(event: Event) -> bool:
    if event.kind == "state_dict":
        return isinstance(event.details["of"], Scaler)
    return event.kind == "save" and any(isinstance(v, Scaler) for v in event.details["contents"])


def _may_be_saved_unseen(unit: Unit) -> bool:
    """Whether the text asks a scaler for its state in a place that no trace leads to, or where torch asks for more than
    a module's weights."""
    if "def get_extra_state" in unit.source.code and unit.mentions_scaler_state():
        return True
    return unit.mentions_scaler_state() and not any(
        _asks_for_scaler_state(event) for _, _, event in unit.events("state_dict", "save")
    )


def _complete(unit: Unit) -> frozenset[int]:
    """The saves that come along with the scaler's state, in the same file or in another one, on some path."""
    return frozenset(
        id(event.site.node)
        for trace in unit.traces
        if any(map(_asks_for_scaler_state, trace.events))
        for event in trace.events
        if event.kind == "save"
    )


def _resumable(event: Event, driven: dict[Value, Event]) -> Event | None:
    """The scaler's step, if a run could resume from what is saved and the scaler's state is not in it."""
    if event.details["open"]:
        return None
    states = [v.of for v in event.details["contents"] if isinstance(v, StateOf)]
    states += [v for v in event.details["contents"] if isinstance(v, (Optimizer, Scheduler))]
    if any(isinstance(of, Scaler) or _is_handed_out(of) for of in states):
        return None
    for of in states:
        optimizer = of.optimizer if isinstance(of, Scheduler) else of
        if optimizer in driven:
            return driven[optimizer]
        if isinstance(of, ItemOf) and _OPTIMIZERS.search(describe(of.parts[0])):
            # one of all the optimizers that there are
            return next(iter(driven.values()))
    return None


def _steps_of_missing(event: Event, driven: dict[Value, Event]) -> list[Event]:
    """A step of each scaler whose optimizer's state is saved."""
    states = [v.of for v in event.details["contents"] if isinstance(v, StateOf)]
    steps = {driven[of].scaler: driven[of] for of in states if of in driven}
    return list(steps.values())


def _is_handed_out(of: Value) -> bool:
    """Whether a state is that of one of the objects that a method hands to a loop, which may be scalers."""
    holder = of.parts[0] if isinstance(of, ItemOf) and of.parts[1] == "each" else None
    return (
        isinstance(holder, Result) and isinstance(holder.callee, Func) and not _OTHERS.search(holder.callee.scope.name)
    )


#: what a method is called that hands out other objects than scalers
_OTHERS = re.compile(r"model|net|optim|sched|module|ema", re.IGNORECASE)


def _entries(trace: Trace, position: int, save: Event) -> Iterator[tuple[Site, str]]:
    """Where the optimizer's state is put into a checkpoint that is no single literal."""
    saved = save.details["contents"]
    for event in trace.events[:position]:
        if event.kind == "state_dict" and event.optimizer is not None and StateOf(event.optimizer) in saved:
            yield event.site, "the optimizer's state goes in here"


def _without_argument(event: Event, site: Site) -> Site:
    """The call that leaves the scaler out, where the function that saves would take it; else `site`."""
    for call in reversed(event.calls):
        function = function_of(site)
        if not isinstance(function, cst.FunctionDef) or not _takes_scaler(function, site.module):
            break
        if _hands_scaler(call):
            # it is given the scaler, and does not save its state
            break
        site = call
    return site


def _hands_scaler(call: Site) -> bool:
    """Whether a call is given a scaler, by the names of its arguments."""
    arguments = call.node.args if isinstance(call.node, cst.Call) else ()
    return any("scaler" in call.module.rough_text(argument).lower() for argument in arguments)


def _takes_scaler(function: cst.FunctionDef, module: SourceModule) -> bool:
    """Whether a function has a parameter for the scaler, or saves whatever else it is given."""
    parameters = function.params
    if any("scaler" in p.name.value.lower() for p in (*parameters.params, *parameters.kwonly_params)):
        return True
    rest = parameters.star_kwarg
    if rest is None:
        return False
    handed_on = rf"(\.update\(\s*(\*\*)?|[(,{{]\s*\*\*)\s*{rest.name.value}\b"
    return re.search(handed_on, module.rough_text(function.body)) is not None


def _literal(event: Event) -> Site | None:
    """Where the dict that is saved is written down, if the optimizer's state is named there."""
    literal: Site | None = event.details["literal"]
    if literal is None or not isinstance(event.details["holder"], DictV):
        return None
    return literal if "state_dict" in literal.module.segment(literal.node) else None


def _fix(unit: Unit, event: Event, steps: list[Event]) -> FixPlan | None:
    """Add the scalers' states to a dict literal where the scalers are bound."""
    literal = _literal(event)
    if literal is None or not all(_is_bound(unit, event, step.scaler) for step in steps):
        return None
    scalers = [_name_of(unit, literal, step) for step in steps]
    if "" in scalers or len(set(scalers)) < len(scalers):
        return None
    elements = literal.node.elements if isinstance(literal.node, cst.Dict) else ()
    if not elements or not isinstance(elements[-1], cst.DictElement):
        return None
    module = literal.module
    text, last = module.segment(literal.node), module.segment(elements[-1])
    begin, _, rest = text.rpartition(last)
    quote = "'" if module.segment(elements[-1].key).startswith("'") else '"'
    entries = [f"{quote}{_key(name, scalers)}{quote}: {name}.state_dict()" for name in scalers]
    multiline = module.place(literal.node).line != module.place(elements[-1].key).line
    if multiline:
        # behind what stands on the last entry's line
        line = re.match(r"(?P<comma>,?)(?P<comment>[^\n]*)", rest)
        assert line is not None
        indent = re.sub(r"\S", " ", text_before(Site(module, elements[-1].key)))
        added = f",\n{indent}".join(entries)
        rest = rest[line.end() :]
        if rest.startswith("\n"):
            new = f"{begin}{last},{line['comment']}\n{indent}{added}{line['comma']}{rest}"
        else:
            new = f"{begin}{last},\n{indent}{added}{line[0]}{rest}"
    else:
        new = f"{begin}{last}, {', '.join(entries)}{rest}"
    return FixPlan(
        "safe",
        "add the scaler's state" if len(scalers) == 1 else "add the scalers' states",
        (Change("replace", literal, new),),
    )


def _name_of(unit: Unit, literal: Site, step: Event) -> str:
    """What a scaler is called where a checkpoint is put together; "" where that is not known."""
    made, names = unit.site_of(step.scaler), []
    holder = made.module.parent(made.node) if made is not None else None
    if made is not None and isinstance(holder, cst.Assign) and len(holder.targets) == 1:
        # the step may call it by the variable of a loop
        names.append((made, made.module.segment(holder.targets[0].target)))
    names.append((step.site, receiver_text(step.site)))
    for site, name in names:
        of_object = name.startswith("self.") and class_of(literal) is not None and class_of(literal) is class_of(site)
        if is_plain_path(name) and (of_object or same_function(site, literal)):
            return name
    return ""


def _key(scaler: str, scalers: list[str]) -> str:
    """The key for a scaler's state: "scaler" where there is one."""
    name = scaler.rpartition(".")[2].strip("_")
    return "scaler" if len(scalers) == 1 else name if "scaler" in name.lower() else f"scaler_{name}"


def _is_bound(unit: Unit, save: Event, scaler: Scaler | None) -> bool:
    """Whether every path to a save has met the scaler, which then is neither None nor yet to be made."""
    for trace, position, event in unit.events("save"):
        if event.site.identity == save.site.identity and not any(e.scaler is scaler for e in trace.events[:position]):
            return False
    return True
