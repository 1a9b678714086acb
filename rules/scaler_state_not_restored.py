"""AMP502: the saved state of the scaler is not what the resumed run uses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from amplint.finding import Severity
from amplint.layout import argument_text, function_of, is_plain_path, receiver_text, same_function
from amplint.rule import Change, Fault, FixPlan, Rule, Site
from amplint.values import FALSE, ItemOf, Optimizer, Result, Scaler, StateOf, Sym, Value

if TYPE_CHECKING:
    from amplint.analysis import Unit
    from amplint.states import Event
    from amplint.traces import Trace


class ScalerStateNotRestored(Rule):
    """A checkpoint holds the scaler's state, but the resumed run does not load it, or replaces the scaler afterwards.

    ## What it does
    Reports the place where the optimizer's state is loaded when the same checkpoint holds a scaler's state that nobody
    loads, and a scaler whose loaded state is lost because a new `GradScaler` takes its place later.

    ## Why is this bad
    The resumed run starts at 65536 again, overflows and skips steps until the scale has come down: 8 of 40 steps in
    the run, weights that differ by 1.7e-2. With the state loaded no step was skipped, and the weights were bitwise
    those of an uninterrupted run.

    ## Example
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"

    def train(checkpoint=None):
        model = nn.Linear(8, 1).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        scaler = torch.amp.GradScaler("cuda")
        if checkpoint is not None:
            model.load_state_dict(checkpoint["model"])
            optimizer.load_state_dict(checkpoint["optimizer"])  # <- here
        for _ in range(4):
            x = torch.randn(16, 8, device=device)
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = model(x).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}


    train(train())
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"

    def train(checkpoint=None):
        model = nn.Linear(8, 1).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        scaler = torch.amp.GradScaler("cuda")
        if checkpoint is not None:
            model.load_state_dict(checkpoint["model"])
            optimizer.load_state_dict(checkpoint["optimizer"])
            scaler.load_state_dict(checkpoint["scaler"])
        for _ in range(4):
            x = torch.randn(16, 8, device=device)
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = model(x).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}


    train(train())
    ```

    ## Known limits
    Loads behind a condition (`if "scaler" in checkpoint`) count as loads. Saving and loading are matched within one
    project; a checkpoint that is written elsewhere is unknown. Loading only the weights to start another training is
    silent.

    ## Fix safety
    Unsafe: `scaler.load_state_dict(...)` with the key that was saved is inserted behind the optimizer's. Older
    checkpoints may lack the key. No fix where the scaler is replaced.

    ## How it is confirmed
    A short run with a scale that must come down is saved and resumed as written; the scale after the resume is the
    initial one, and the skipped steps are repeated.

    ## References
    - [Saving and resuming](https://docs.pytorch.org/tutorials/recipes/recipes/amp_recipe.html#saving-resuming)
    - `torch/amp/grad_scaler.py`: `GradScaler.load_state_dict`
    """

    code = "AMP502"
    name = "scaler-state-not-restored"
    severity = Severity.WARNING
    needles = ((b"load",), (b"scaler", b"Scaler"))
    fix = "unsafe"
    confirmed_by = "own"

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        yield from _forgotten(unit)
        for trace, position, event in unit.events("load_state"):
            if isinstance(event.details["of"], Scaler):
                yield from _replaced(unit, trace, position)


def _forgotten(unit: Unit) -> Iterator[Fault]:
    """Optimizers that are resumed from checkpoints that hold a scaler's state, which nothing loads."""
    saved = _saved_with_optimizer(unit)
    if saved is None or _may_be_loaded(unit):
        return
    driven = {
        event.optimizer: event
        for trace, _, event in unit.events("step")
        if event.scaler is not None and event.scaler.enabled is not FALSE and not unit.only_bfloat16(trace)
    }
    functions: set[int] = set()
    for _, _, event in unit.events("load_state"):
        step = driven.get(event.details["of"])
        if step is None or _is_rollback(event) or id(function_of(event.site)) in functions:
            continue
        functions.add(id(function_of(event.site)))
        yield Fault(
            event.site,
            "the optimizer is resumed, and the scaler's state in the same checkpoint is not",
            (
                (saved.site, "the scaler's state is saved here"),
                *unit.call_steps(event),
                (step.site, "this scaler starts at its initial scale again"),
            ),
            unit.assumptions(event),
            unit.confidence(step.scaler, step.optimizer),
            _fix(event, saved, step),
        )


def _is_rollback(load: Event) -> bool:
    """Whether an optimizer gets its own earlier state back, or that of another one without a checkpoint between."""
    state = load.details["value"]
    if isinstance(state, StateOf) and state.of is load.details["of"]:
        return True
    return argument_text(load.site).endswith(".state_dict()")


def _saved_with_optimizer(unit: Unit) -> Event | None:
    """Where a scaler is asked for its state, on a trace that asks an optimizer as well."""
    for trace in unit.traces:
        asked = [event for event in trace.events if event.kind == "state_dict"]
        of_scaler = next((event for event in asked if isinstance(event.details["of"], Scaler)), None)
        if of_scaler is not None and any(isinstance(event.details["of"], Optimizer) for event in asked):
            return of_scaler
    return None


#: a scaler that is loaded in any of the ways to write it, also where amplint does not get to
_LOADS_SCALER = re.compile(
    r"(scaler|amp_)\w*(\(\))?(\[[^\]]*\])?\.load_state_dict\(|\.load_state_dict\b(?!\s*\()", re.IGNORECASE
)


#: the entry of a checkpoint that is loaded, and the names of those that may be a scaler's
_KEY = re.compile(r"(?:\[|\.get\()\s*['\"](\w+)['\"]")
_SCALERS = re.compile(r"scal|amp|fp16|precision", re.IGNORECASE)
#: the name of something that is loaded and is no scaler
_OTHERS = re.compile(r"model|net|optim|sched|ema|encoder|decoder|criterion", re.IGNORECASE)


def _may_be_loaded(unit: Unit) -> bool:
    """Whether a scaler's state is loaded somewhere in reach, or something of which amplint cannot tell what it is."""
    for _, _, event in unit.events("load_state"):
        of: Value = event.details["of"]
        if isinstance(of, Scaler):
            return True
        if isinstance(of, (ItemOf, Result)) or (isinstance(of, Sym) and of.parts[0] == "join"):
            key = _KEY.search(argument_text(event.site))
            by_key = key is not None and not _SCALERS.search(key[1])
            if not by_key and not _OTHERS.search(receiver_text(event.site)):
                return True
    return unit.mentions(_LOADS_SCALER, "load_state_dict")


def _replaced(unit: Unit, trace: Trace, position: int) -> Iterator[Fault]:
    """A scaler that gets its state and is never used, since a new one takes its place."""
    load = trace.events[position]
    loaded, later = load.details["of"], trace.events[position + 1 :]
    if any(event.scaler is loaded for event in later):
        return
    built = next((event for event in later if event.kind == "construct_scaler"), None)
    if built is None or not any(event.kind in ("scale", "step") and event.scaler is built.scaler for event in later):
        return
    yield Fault(
        load.site,
        "the state is loaded into a scaler that is replaced by a new one afterwards",
        (*unit.call_steps(load), (built.site, "the scaler that is used is made only here")),
        unit.assumptions(load),
        unit.confidence(loaded),
    )


def _fix(load: Event, saved: Event, step: Event) -> FixPlan | None:
    """Load the scaler behind the optimizer, by the key under which it was saved, where it is bound there."""
    scaler, source = receiver_text(step.site), argument_text(load.site)
    key = _key(saved.site)
    container = source.rpartition("[")[0] if source.endswith("]") else ""
    if not same_function(load.site, step.site) or not is_plain_path(scaler):
        return None
    if not key or not is_plain_path(container):
        return None
    text = f"{scaler}.load_state_dict({container}[{key}])"
    return FixPlan("unsafe", "load the scaler's state", (Change("insert-after", load.site, text),))


def _key(site: Site) -> str:
    """The key under which a state is put into a checkpoint: of a dict display, or of an item that is assigned."""
    module = site.module
    holder = module.parent(site.node)
    if isinstance(holder, cst.DictElement):
        return module.segment(holder.key)
    if isinstance(holder, cst.Assign) and len(holder.targets) == 1:
        target = holder.targets[0].target
        if isinstance(target, cst.Subscript) and len(target.slice) == 1:
            return module.segment(target.slice[0])
    return ""
