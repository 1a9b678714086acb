"""Calls of a project's own wrappers, which its configuration names (see `amplint.wrappers`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amplint.machine import FRESH_BOOK
from amplint.values import FALSE, NONE, TRUE, AttrOf, Ext, Grad, Instance, Net, Result, Scaler, Sym, Value

if TYPE_CHECKING:
    from amplint.effects.dispatch import Effects
    from amplint.machine import CallOutcome, Machine
    from amplint.program import Call
    from amplint.rule import Site


class Wrapped:
    """The meaning of a project's own wrappers, for one executor."""

    def __init__(self, effects: Effects) -> None:
        self.effects = effects
        self.x = effects.x

    def call(
        self,
        role: str,
        dotted: str,
        pos: list[Value],
        kw: dict[str, Value],
        site: Site,
        state: Machine,
        stmt: Call | None,
    ) -> list[CallOutcome]:
        """Call a wrapper as what the configuration says it is; its body is not looked at."""
        callee = Ext(dotted)
        if role == "optimizer":
            return self.effects.optimizers.optimizer(callee, pos, kw, site, state, stmt)
        if role == "scaler":
            return [(state, self._scaler(callee, pos, kw, site, state), None)]
        if role == "clip":
            return [(state, self._clip(callee, pos, kw, site, state), None)]
        self._backward(pos, kw, site, state)
        return [(state, NONE, None)]

    def _scaler(self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine) -> Value:
        unknown = AttrOf(Result(callee, (*pos, *(value for _, value in sorted(kw.items())))), "enabled")
        enabled = kw.get("enabled", unknown if pos or kw else TRUE)
        scaler = Scaler(state.allocate(id(site.node)), "torch", enabled)
        self.x.sites.setdefault(scaler, site)
        state.books[scaler] = FRESH_BOOK
        return scaler

    def _clip(self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine) -> Value:
        owners: frozenset[Value] = frozenset()
        for value in (*pos, *kw.values()):
            owners |= self.effects.owners.parameter_owners(value, state)
            if isinstance(value, (Net, Instance)) or (not owners and isinstance(value, (Sym, AttrOf))):
                owners |= {value}
        # a wrapper may keep its limit to itself
        limit = kw.get("max_norm", pos[1] if len(pos) > 1 else Sym("limit", callee))
        self.effects.gradients.clip(owners, limit, callee.dotted.rpartition(".")[2], FALSE, site, state)
        return Grad(owners, "norm")

    def _backward(self, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine) -> None:
        """The first argument is the loss; a scaler among the others scales it."""
        loss = pos[0] if pos else kw.get("loss", Sym("loss", id(site.node)))
        for value in (*pos, *kw.values()):
            if isinstance(value, Scaler):
                loss = self.effects.scaling.scaled(loss, value, state)
        self.effects.losses.backward(loss, site, state)
