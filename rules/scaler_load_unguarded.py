"""AMP503: a scaler state is loaded that can be empty or missing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import libcst as cst

from amplint.finding import Severity
from amplint.layout import argument_text, under_condition
from amplint.rule import Fault, FixPlan, Rule, Site
from amplint.values import FALSE, NONE, Const, ItemOf, OpV, Result, Scaler, StateOf, Value

if TYPE_CHECKING:
    from amplint.analysis import Unit
    from amplint.states import Event


class ScalerLoadUnguarded(Rule):
    """A scaler loads a state that can be empty or None, because a run without one saved it, or it can be None itself.

    ## What it does
    Reports `scaler.load_state_dict(checkpoint["scaler"])` without a guard when the state may come from a disabled
    scaler (its `enabled=` is a flag) or from a run that had none and saved None under the key, and a load into a scaler
    that is None under some flag.

    ## Why is this bad
    A disabled scaler's `state_dict()` is `{}`. An enabled one refuses it: `The source state dict is empty, possibly
    because it was saved from a disabled instance of GradScaler.` None has no length and raises a TypeError. So a run
    that was started with AMP off cannot be resumed with AMP on. A scaler that is None raises an AttributeError in the
    opposite direction.

    ## Example
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"

    def train(use_amp, checkpoint=None):
        model = nn.Linear(8, 1).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cuda", enabled=use_amp)
        if checkpoint is not None:
            model.load_state_dict(checkpoint["model"])
            optimizer.load_state_dict(checkpoint["optimizer"])
            scaler.load_state_dict(checkpoint["scaler"])  # <- here
        for _ in range(2):
            x = torch.randn(16, 8, device=device)
            optimizer.zero_grad()
            with torch.autocast("cuda", enabled=use_amp):
                loss = model(x).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}


    train(use_amp=True, checkpoint=train(use_amp=False))
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"

    def train(use_amp, checkpoint=None):
        model = nn.Linear(8, 1).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cuda", enabled=use_amp)
        if checkpoint is not None:
            model.load_state_dict(checkpoint["model"])
            optimizer.load_state_dict(checkpoint["optimizer"])
            if checkpoint["scaler"]:
                scaler.load_state_dict(checkpoint["scaler"])
        for _ in range(2):
            x = torch.randn(16, 8, device=device)
            optimizer.zero_grad()
            with torch.autocast("cuda", enabled=use_amp):
                loss = model(x).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}


    train(use_amp=True, checkpoint=train(use_amp=False))
    ```

    ## Known limits
    A scaler that is enabled by a constant is silent unless a save of the same program puts None under the key, as its
    state is never empty. Any test of the state, the scaler or its flag before the load counts as a guard, and so does a
    `try` around it. A test whether the checkpoint has the key expects checkpoints of runs without a scaler. It counts
    unless the same program saves the state of a scaler that may be off, or None, under that key; there the flag of the
    run that resumes is no guard either.

    ## Fix safety
    Safe: the load is put under `if checkpoint["scaler"]:`.

    ## How it is confirmed
    The replay loads the state of a disabled scaler into an enabled one and torch raises.

    ## References
    - `torch/amp/grad_scaler.py`: `GradScaler.state_dict`, `GradScaler.load_state_dict`
    """

    code = "AMP503"
    name = "scaler-load-unguarded"
    severity = Severity.INFO
    needles = ((b"load_state_dict",), (b"scaler", b"Scaler"))
    fix = "safe"
    confirmed_by = "raise"

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        loads: dict[tuple[str, int], Scaler] = {}
        saves_empty = _saves_empty(unit)
        saved_as_none = _saved_as_none(unit)
        for _, _, event in unit.events("load_state"):
            scaler = event.details["of"]
            if not isinstance(scaler, Scaler):
                continue
            loads.setdefault(event.site.identity, scaler)
            built = unit.site_of(scaler)
            if built is None or _is_tried(event.site):
                continue
            state = event.details["value"]
            key = _key(state)
            none = saved_as_none.get(key) if key is not None else None
            if none is not None and _asks_only_for_key(event, state):
                message = "the state is None if a run without a scaler has saved it, and loading it raises then"
                step = (none, "saved here, with None under the key where there is no scaler")
            elif _can_be_empty(scaler, state) and not _is_guarded(event, scaler, saves_empty):
                message = (
                    "the state is empty if a run with the scaler switched off has saved it, and loading it raises then"
                )
                step = (built, "the scaler is switched on by a flag")
            else:
                continue
            yield Fault(
                event.site,
                message,
                (step, *unit.call_steps(event)),
                unit.assumptions(event, scaler.enabled),
                unit.confidence(scaler),
                _fix(event.site),
            )
        for _, _, event in unit.events("none_used"):
            loaded = loads.get(event.site.identity)
            built = unit.site_of(loaded)
            if event.details["name"] == "load_state_dict" and built is not None and not _is_tried(event.site):
                yield Fault(
                    event.site,
                    "a state is loaded into a scaler that is None here",
                    ((built, "the scaler is made under a condition"), *unit.call_steps(event)),
                    unit.assumptions(event),
                    unit.confidence(loaded),
                )


def _can_be_empty(scaler: Scaler, state: Value) -> bool:
    """Whether a run with other flags, or a scaler in sight that is off, leaves an empty state for one that is on."""
    if isinstance(state, StateOf) and isinstance(state.of, Scaler) and state.of.enabled is FALSE:
        return scaler.enabled is not FALSE
    return not isinstance(scaler.enabled, Const)


def _saves_empty(unit: Unit) -> bool:
    """Whether a scaler is asked for its state where it may be off, so that a key may have an empty state under it."""
    for _, _, event in unit.events("state_dict"):
        of = event.details["of"]
        if isinstance(of, Scaler) and of.constructed and not unit.certain(of.enabled, event.assume):
            return True
    return False


def _saved_as_none(unit: Unit) -> dict[Value, Site]:
    """The keys under which a save puts a scaler's state on one path and None on another, with such a save."""
    states: set[Value] = set()
    nones: dict[Value, Site] = {}
    for _, _, event in unit.events("save"):
        for pair in event.details["entries"]:
            key, value = pair.items
            if isinstance(value, StateOf) and isinstance(value.of, Scaler):
                states.add(key)
            elif value is NONE:
                nones.setdefault(key, event.site)
    return {key: site for key, site in nones.items() if key in states}


def _asks_only_for_key(event: Event, state: Value) -> bool:
    """Whether the checkpoint was asked for the key on the way, and for nothing that it holds."""
    checkpoint = state.parts[0] if isinstance(state, ItemOf) else None
    if not isinstance(checkpoint, Value):
        return False
    asked = False
    for atom in event.assume:
        parts = frozenset(_parts(atom))
        if checkpoint in parts:
            if not _asks_for_key(atom) or _key(state) not in parts:
                # what stands under this key, or another one, tells which kind of run has saved it
                return False
            asked = True
    return asked


def _is_guarded(event: Event, scaler: Scaler, saves_empty: bool) -> bool:
    """Whether the state, its key in the checkpoint, or the scaler's flag was tested on the way."""
    tests = [atom for atom in event.assume if not (saves_empty and _asks_for_key(atom))]
    tested = {part for atom in tests for part in _parts(atom)}
    state = event.details["value"]
    if state in tested or scaler in tested or not tested.isdisjoint(_flags(scaler.enabled)):
        return True
    key = _key(state)
    return key is not None and key in tested


def _asks_for_key(atom: tuple[Any, ...]) -> bool:
    return isinstance(atom[1], OpV) and atom[1].op == "in"


def _parts(value: Any) -> Iterator[Value]:
    """A value, or an atom's values, with all that they are made of."""
    if isinstance(value, Value):
        yield value
    for part in value.parts if isinstance(value, Value) else value if isinstance(value, tuple) else ():
        yield from _parts(part)


def _flags(condition: Value) -> Iterator[Value]:
    if isinstance(condition, OpV):
        for arg in condition.args:
            yield from _flags(arg)
    elif not isinstance(condition, Const):
        yield condition


def _key(state: Value) -> Value | None:
    """The key under which a state was found in a checkpoint, by index or by `get`."""
    if isinstance(state, ItemOf) and isinstance(state.parts[1], Const):
        return state.parts[1]
    if isinstance(state, Result) and state.args and isinstance(state.args[0], Const):
        return state.args[0]
    return None


def _is_tried(site: Site) -> bool:
    """Whether the load stands in a `try` with handlers, in its own function."""
    node, parent = site.node, site.module.parent(site.node)
    while parent is not None and not isinstance(parent, cst.FunctionDef):
        if isinstance(parent, (cst.Try, cst.TryStar)) and parent.handlers and node is parent.body:
            return True
        node, parent = parent, site.module.parent(parent)
    return False


def _fix(site: Site) -> FixPlan | None:
    """Load only what is not empty."""
    call, state = site.node, argument_text(site)
    if not isinstance(call, cst.Call) or len(call.args) != 1 or not state:
        return None
    if not isinstance(call.args[0].value, (cst.Name, cst.Subscript)):
        return None
    guarded = under_condition(site, state)
    return FixPlan("safe", f"load only where {state} is not empty", (guarded,)) if guarded is not None else None
