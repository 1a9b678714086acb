"""The scaler: construction, `scale`, `unscale_`, `step`, `update`, and what a no-op of it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amplint import guards, library
from amplint.machine import FRESH_BOOK
from amplint.program import Call
from amplint.rule import Site
from amplint.states import (
    UNKNOWN,
    Book,
    Gradients,
    after_step,
    after_unscale,
    after_update,
)
from amplint.target import NEWEST
from amplint.torch_facts import parameters_of
from amplint.values import (
    NONE,
    TRUE,
    AttrOf,
    Const,
    DictV,
    Ext,
    Func,
    ItemOf,
    Net,
    Optimizer,
    Result,
    Scaler,
    Scheduler,
    Sequence,
    StateOf,
    Taint,
    Value,
)

if TYPE_CHECKING:
    from amplint.effects.dispatch import Effects
    from amplint.machine import CallOutcome, Machine


class Scaling:
    """The scaler, for one executor."""

    def __init__(self, effects: Effects) -> None:
        self.effects = effects
        self.x = effects.x

    def scaler(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        """A GradScaler is made."""
        enabled = self.scaler_enabled(callee.dotted, pos, kw)
        flavour = "sharded" if library.role(callee.dotted) == "sharded_scaler" else "torch"
        scaler = Scaler(state.allocate(id(site.node)), flavour, enabled)
        self.x.sites.setdefault(scaler, site)
        state.books[scaler] = FRESH_BOOK
        self.x.record(
            "construct_scaler",
            site,
            state,
            scaler=scaler,
            details={"arguments": tuple(pos), "keywords": dict(kw), "callee": callee.dotted},
        )
        return [(state, scaler, None)]

    @staticmethod
    def scaler_enabled(dotted: str, pos: list[Value], kw: dict[str, Value]) -> Value:
        """The `enabled` argument of a GradScaler, True where it is not given."""
        given = dict(zip(parameters_of(dotted, NEWEST), pos, strict=False))
        given.update(kw)
        if "enabled" in given:
            return given["enabled"]
        return AttrOf(kw["**"], "enabled") if "**" in kw else TRUE

    def scaler_method(
        self,
        scaler: Scaler,
        name: str,
        pos: list[Value],
        kw: dict[str, Value],
        site: Site,
        state: Machine,
        stmt: Call | None,
    ) -> list[CallOutcome]:
        """A method of a scaler, as a no-op on paths where it is disabled."""
        if name == "is_enabled":
            return [(state, scaler.switch, None)]
        if name == "get_scale":
            epoch = Const.of(state.book(scaler).epoch)
            value = Result(AttrOf(scaler, name), (epoch,), state.loops, taint=Taint(inverse=True))
            self.x.record("get_scale", site, state, scaler=scaler, details={"value": value})
            return [(state, value, None)]
        if name == "state_dict":
            details = {"of": scaler, "stages": state.book(scaler).stages}
            self.x.record(
                "state_dict", site, state, scaler=scaler, details=details, before=self.effects.owners.everything(state)
            )
            return [(state, StateOf(scaler), None)]
        if name == "load_state_dict":
            self.x.record(
                "load_state", site, state, scaler=scaler, details={"of": scaler, "value": pos[0] if pos else NONE}
            )
            return [(state, NONE, None)]
        handler = _SCALER.get(name)
        if handler is None:
            if name.startswith("_"):
                self.x.record("private", site, state, scaler=scaler, details={"name": name})
                self.lose_scaler(scaler, state)
            return [(state, Result(AttrOf(scaler, name), tuple(pos), state.loops), None)]
        out: list[CallOutcome] = []
        for after, enabled in self._enabled(scaler, state):
            out.extend(handler(self, scaler, enabled, pos, kw, site, after, stmt))
        return out

    def _enabled(self, scaler: Scaler, state: Machine) -> list[tuple[Machine, bool]]:
        """The states in which the scaler is enabled and those in which it is a no-op."""
        if not scaler.constructed:
            atom = ("none", scaler)
            if guards.known(atom, state.assume) is None:
                # a method of it is called: it cannot be None here
                state.assume[atom] = False
            flag = ("true", scaler.switch)
            if state.assume.get(flag) is False:
                return [(state, False)]
            return [(state, True)]
        # where only some paths can be followed, those on which something is scaled come first
        return sorted(self.x.split(state, scaler.enabled), key=lambda outcome: not outcome[1])

    def _scale(
        self,
        scaler: Scaler,
        enabled: bool,
        pos: list[Value],
        kw: dict[str, Value],
        site: Site,
        state: Machine,
        stmt: Call | None,
    ) -> list[CallOutcome]:
        value = pos[0] if pos else kw.get("outputs", NONE)
        if not enabled:
            return [(state, value, None)]
        self.x.record(
            "scale",
            site,
            state,
            scaler=scaler,
            details={"argument": value, "dropped": stmt is not None and stmt.dropped},
        )
        book = state.book(scaler)
        state.books[scaler] = Book(book.epoch, book.stages, book.checked, True)
        return [(state, self.scaled(value, scaler, state), None)]

    def scaled(self, value: Value, scaler: Scaler, state: Machine) -> Value:
        """A value multiplied by the scaler's scale."""
        items = self.x.loops.items_of(value, state)
        if items is not None and not isinstance(value, DictV):
            return Sequence(*(self.scaled(v, scaler, state) for v in items))
        taint = value.taint
        taint = Taint(taint.owners, (*taint.scales, scaler), taint.unscaled, taint.inverse, taint.foreign)
        return Result(AttrOf(scaler, "scale"), (value,), state.loops, taint=taint)

    def _unscale(
        self,
        scaler: Scaler,
        enabled: bool,
        pos: list[Value],
        kw: dict[str, Value],
        site: Site,
        state: Machine,
        stmt: Call | None,
    ) -> list[CallOutcome]:
        target = pos[0] if pos else kw.get("optimizer", NONE)
        if not enabled:
            return [(state, NONE, None)]
        optimizer = self.operand(target)
        before = self.effects.owners.of(optimizer, state)
        stage = state.book(scaler).stage(optimizer)
        event = self.x.record(
            "unscale_",
            site,
            state,
            before=before,
            scaler=scaler,
            optimizer=optimizer,
            stage=stage,
            details={"operand": self._taken_apart(target, state)},
        )
        assert event is not None
        self.identify(optimizer, before[optimizer], state)
        state.grads[optimizer] = after_unscale(before[optimizer], event)
        book = state.book(scaler).with_stage(optimizer, "unscaled")
        state.books[scaler] = Book(book.epoch, book.stages, True, book.live)
        return [(state, NONE, None)]

    def _step(
        self,
        scaler: Scaler,
        enabled: bool,
        pos: list[Value],
        kw: dict[str, Value],
        site: Site,
        state: Machine,
        stmt: Call | None,
    ) -> list[CallOutcome]:
        target = pos[0] if pos else kw.get("optimizer", NONE)
        optimizer = self.operand(target)
        if not enabled:
            return self.effects.optimizers.optimizer_method(optimizer, "step", pos[1:], kw, site, state)  # type: ignore[arg-type]
        before = self.effects.owners.of(optimizer, state)
        stage = state.book(scaler).stage(optimizer)
        self.x.record(
            "step",
            site,
            state,
            before=before,
            scaler=scaler,
            optimizer=optimizer,
            stage=stage,
            details={
                "operand": self._taken_apart(target, state),
                "arguments": tuple(pos[1:]),
                "keywords": dict(kw),
                "checked": state.book(scaler).checked,
                "live": state.book(scaler).live,
            },
        )
        self.identify(optimizer, before[optimizer], state)
        state.grads[optimizer] = after_step(before[optimizer])
        book = state.book(scaler).with_stage(optimizer, "stepped")
        state.books[scaler] = Book(book.epoch, book.stages, True, book.live)
        return [(state, Result(AttrOf(scaler, "step"), (optimizer,), state.loops), None)]

    def _update(
        self,
        scaler: Scaler,
        enabled: bool,
        pos: list[Value],
        kw: dict[str, Value],
        site: Site,
        state: Machine,
        stmt: Call | None,
    ) -> list[CallOutcome]:
        if not enabled:
            return [(state, NONE, None)]
        book = state.book(scaler)
        new_scale = pos[0] if pos else kw.get("new_scale")
        checked = book.checked if self._updates_as_torch_does(scaler, state) else None
        event = self.x.record(
            "update",
            site,
            state,
            before=self.effects.owners.everything(state),
            scaler=scaler,
            details={"checked": checked, "live": book.live, "new_scale": new_scale, "stages": book.stages},
        )
        assert event is not None
        for optimizer, gradients in list(state.grads.items()):
            state.grads[optimizer] = after_update(gradients, scaler, event)
        state.default = after_update(state.default, scaler, event)
        state.books[scaler] = Book(book.epoch + 1, (), False, book.live)
        return [(state, NONE, None)]

    def _updates_as_torch_does(self, scaler: Scaler, state: Machine) -> bool:
        """Whether an `update` of the project's own leaves the decision to torch's."""
        cls = self.x.classes_of.get(scaler)
        own = self.x.classes.method(cls, "update", state) if cls is not None else None
        return own is None or "super" in own[1].words

    def _taken_apart(self, value: Value, state: Machine) -> Value:
        """A list or tuple with its elements, anything else as it is."""
        items = self.x.loops.items_of(value, state) if not isinstance(value, DictV) else None
        return Sequence(*items) if items is not None else value

    def operand(self, value: Value) -> Value:
        """What `step` and `unscale_` are given, as an optimizer where it can be one."""
        if isinstance(value, (Optimizer, Scheduler, Const, Net, Func, StateOf)):
            return value
        return self.x.binding.as_optimizer(value)

    def identify(self, optimizer: Value, gradients: Gradients, state: Machine) -> None:
        """Gradients that nothing tied to an optimizer are those of the one that takes them, where there is only one."""
        element = isinstance(optimizer, Optimizer) and isinstance(optimizer.inferred_from, (ItemOf, Result))
        if state.default.origin is not None and state.default.origin is gradients.origin and not element:
            if len(state.grads.keys() | {optimizer}) == 1 and not self.effects.owners.several(state):
                state.default = UNKNOWN

    def lose_scaler(self, scaler: Scaler, state: Machine) -> None:
        """Forget what is known of a scaler and of the gradients that may carry its scale."""
        book = state.book(scaler)
        state.books[scaler] = Book(book.epoch + 1, tuple((o, "?") for o, _ in book.stages), None, None)
        for optimizer, gradients in list(state.grads.items()):
            if gradients.scaler in (scaler, None):
                state.grads[optimizer] = UNKNOWN
        if state.default.scaler in (scaler, None):
            state.default = UNKNOWN


_SCALER: dict[str, Any] = {
    "scale": Scaling._scale,
    "unscale_": Scaling._unscale,
    "step": Scaling._step,
    "update": Scaling._update,
}
