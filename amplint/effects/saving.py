"""What is written to disk, and what is copied."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amplint.program import Call
from amplint.rule import Site
from amplint.values import (
    NONE,
    AttrOf,
    Const,
    DictV,
    Ext,
    Instance,
    ItemOf,
    Net,
    Result,
    Scaler,
    Sequence,
    StateOf,
    Sym,
    Value,
)

if TYPE_CHECKING:
    from amplint.effects.dispatch import Effects
    from amplint.machine import CallOutcome, Machine


class Saving:
    """What is written to disk, and what is copied, for one executor."""

    def __init__(self, effects: Effects) -> None:
        self.effects = effects
        self.x = effects.x

    def save_call(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        """`torch.save(payload, file)`, or an object that will save what it is given."""
        named = (kw[name] for name in ("obj", "to_save", "state_dict") if name in kw)
        payload = pos[0] if pos else next(named, Sym("payload", id(site.node)))
        self.save(payload, callee.dotted, site, state)
        return [(state, NONE, None)]

    def checkpointer_call(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        """`Checkpointer(model, folder, optimizer=optimizer)`, made once for all that it will save."""
        self.checkpointables(callee.dotted, kw, site, state)
        return [(state, Result(callee, tuple(pos), state.loops), None)]

    def checkpointables(self, function: str, kw: dict[str, Value], site: Site, state: Machine) -> None:
        """Record that the objects given by keyword will be saved with a model (fvcore/common/checkpoint.py,
        `Checkpointer.__init__`); a file that adds others to them says too little here."""
        if "add_checkpointable" in site.module.text:
            return
        payload = DictV(state.allocate((id(site.node), "checkpointables")))
        state.heap[(payload, "#items")] = tuple(Sequence(Const.of(name), held) for name, held in kw.items())
        state.heap[(payload, "#open")] = "**" in kw
        self.save(payload, function, site, state)

    def save(self, payload: Value, function: str, site: Site, state: Machine) -> None:
        """Record that something is written to disk."""
        holder = self._holder(payload, state)
        self.x.record(
            "save",
            site,
            state,
            details={
                "payload": payload,
                "contents": tuple(self.effects.containers.contents(payload, state)),
                "function": function,
                "open": self.effects.containers.is_open(payload, state),
                "holder": holder,
                "entries": state.heap.get((holder, "#items"), ()) if isinstance(holder, DictV) else (),
                "literal": self.x.sites.get(holder) if holder is not None else None,
                "stages": {scaler: book.stages for scaler, book in state.books.items()},
            },
        )

    def _holder(self, payload: Value, state: Machine) -> Value | None:
        """The dict or object that holds states, where it is the payload itself or a part of it."""
        if isinstance(payload, (DictV, Instance)):
            return payload
        return next(
            (
                value
                for value in self.effects.containers.parts_of(payload, state)
                if isinstance(value, DictV)
                and any(isinstance(part, StateOf) for part in self.effects.containers.parts_of(value, state))
            ),
            None,
        )

    def copy(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        """`copy.deepcopy(value)`."""
        value = pos[0] if pos else NONE
        if isinstance(value, Scaler):
            self.x.record("copy", site, state, scaler=value, details={"of": value, "stages": state.book(value).stages})
        if isinstance(value, (Net, Instance, Sym, AttrOf, Result, ItemOf)):
            return [(state, Net(state.allocate(id(site.node)), "copy"), None)]
        return [(state, value, None)]
