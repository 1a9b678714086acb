"""timm's NativeScaler: one call scales, runs the backward, unscales, clips, steps and updates.

Source: timm/utils/cuda.py, `NativeScaler.__call__`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amplint.machine import FRESH_BOOK
from amplint.program import Call
from amplint.rule import Site
from amplint.values import NONE, TRUE, Ext, Scaler, Sym, Value

if TYPE_CHECKING:
    from amplint.effects.dispatch import Effects
    from amplint.machine import CallOutcome, Machine

_ARGUMENTS = ("loss", "optimizer", "clip_grad", "clip_mode", "parameters", "create_graph", "need_update")


class NativeScalers:
    """Objects of timm's NativeScaler, for one executor; their states are saved and loaded like any scaler's."""

    def __init__(self, effects: Effects) -> None:
        self.effects = effects
        self.x = effects.x

    def construct(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        """`NativeScaler()`: it makes a GradScaler that is always enabled."""
        scaler = Scaler(state.allocate(id(site.node)), "native", TRUE)
        self.x.sites.setdefault(scaler, site)
        state.books[scaler] = FRESH_BOOK
        details = {"arguments": (), "keywords": {}, "callee": callee.dotted}
        self.x.record("construct_scaler", site, state, scaler=scaler, details=details)
        return [(state, scaler, None)]

    def call(
        self, scaler: Scaler, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine
    ) -> list[CallOutcome]:
        """`loss_scaler(loss, optimizer, clip_grad=..., parameters=..., need_update=...)`"""
        given = {**dict(zip(_ARGUMENTS, pos, strict=False)), **kw}
        loss = given.get("loss", Sym("loss", id(site.node)))
        # an enabled scaler has one way through each of its methods
        ((state, scaled, _),) = self.effects.scaling.scaler_method(scaler, "scale", [loss], {}, site, state, None)
        self.effects.losses.backward(scaled, site, state)
        out: list[CallOutcome] = []
        for after, steps in self.x.split(state, given.get("need_update", TRUE)):
            if steps and "optimizer" in given:
                # whether it clips or not, the gradients are unscaled first
                for method, arguments in (
                    ("unscale_", [given["optimizer"]]),
                    ("step", [given["optimizer"]]),
                    ("update", []),
                ):
                    self.effects.scaling.scaler_method(scaler, method, arguments, {}, site, after, None)
            out.append((after, NONE, None))
        return out
