"""What is written to disk, and what is copied."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amplint.program import Call
from amplint.rule import Site
from amplint.values import (
    NONE,
    AttrOf,
    DictV,
    Ext,
    Instance,
    ItemOf,
    Net,
    Result,
    Scaler,
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
        """`torch.save(payload, file)`."""
        payload = pos[0] if pos else kw.get("obj", Sym("payload", id(site.node)))
        self.save(payload, callee.dotted, site, state)
        return [(state, NONE, None)]

    def save(self, payload: Value, function: str, site: Site, state: Machine) -> None:
        """Record that something is written to disk."""
        self.x.record(
            "save",
            site,
            state,
            details={
                "payload": payload,
                "contents": tuple(self.effects.containers.contents(payload, state)),
                "function": function,
                "open": self.effects.containers.is_open(payload, state),
                "literal": self.x.sites.get(payload) if isinstance(payload, (DictV, Instance)) else None,
                "stages": {scaler: book.stages for scaler, book in state.books.items()},
            },
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
