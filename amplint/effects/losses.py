"""Backward passes: plain, scaled, mixed, and those of a framework."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amplint.effects.gradients import HOOKS
from amplint.program import Assign, Call
from amplint.rule import Site
from amplint.states import (
    UNKNOWN,
    Gradients,
    after_backward,
)
from amplint.values import (
    CLEAN,
    FALSE,
    NONE,
    AttrOf,
    Const,
    Ext,
    Framework,
    Func,
    Instance,
    ItemOf,
    ListV,
    Many,
    Net,
    OpV,
    Result,
    Sequence,
    Super,
    Sym,
    Value,
    computed_from_gradients,
)

if TYPE_CHECKING:
    from amplint.effects.dispatch import Effects
    from amplint.machine import CallOutcome, Machine


def hands_on_gradients(given: Value | None) -> bool:
    """Whether what `backward(gradient=...)` is given may be gradients of a graph behind it, and not just ones; what is
    made empty is filled by somebody."""
    if given is None or given is NONE or isinstance(given, Const):
        return False
    made = isinstance(given, Result) and isinstance(given.callee, Ext) and given.callee.dotted.startswith("torch.")
    empty = made and "empty" in given.callee.dotted  # type: ignore[attr-defined]
    return not made or empty or computed_from_gradients(given) or bool(given.taint.scales)


class Losses:
    """Backward passes, for one executor."""

    def __init__(self, effects: Effects) -> None:
        self.effects = effects
        self.x = effects.x

    def autograd_backward(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        """`torch.autograd.backward(losses)`."""
        loss = pos[0] if pos else kw.get("tensors", Sym("tensors", id(site.node)))
        if isinstance(loss, (Sequence, Many, ListV)):
            losses = self.effects.containers.contents(loss, state)
            loss = next((value for value in losses if value.taint.scales), losses[0] if losses else loss)
        given = pos[1] if len(pos) > 1 else kw.get("grad_tensors")
        self.backward(loss, site, state, functional=True, carries=hands_on_gradients(given), inputs=kw.get("inputs"))
        return [(state, NONE, None)]

    def autograd_grad(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        """`torch.autograd.grad(outputs, inputs)` returns gradients and accumulates none."""
        loss = pos[0] if pos else kw.get("outputs", Sym("outputs", id(site.node)))
        create_graph = kw.get("create_graph", pos[4] if len(pos) > 4 else FALSE)
        taint = CLEAN
        for value in self.effects.containers.contents(loss, state):
            taint = taint | value.taint
        taint = taint | loss.taint
        self.x.record(
            "autograd_grad", site, state, details={"value": loss, "create_graph": create_graph, "scales": taint.scales}
        )
        return [(state, Result(callee, (loss,), state.loops, taint=taint), None)]

    def bce(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        """Binary cross entropy on probabilities."""
        self.x.record("bce", site, state)
        return self.effects.unknown.unknown(callee, pos, kw, site, state)

    def backward(
        self,
        value: Value,
        site: Site,
        state: Machine,
        functional: bool = False,
        framework: Value | None = None,
        carries: bool = False,
        inputs: Value | None = None,
    ) -> None:
        """Gradients of `value` reach the optimizers that own the parameters it depends on, or its `inputs` alone; it
        `carries` others on where `backward(gradient=...)` gets them from a graph behind it.

        A framework that runs the backward of a loss that carries the scale of the user's own scaler adds to it at most.
        """
        taint = value.taint
        if taint.foreign:
            self.foreign(site, state, value)
            return
        scaler = taint.scales[-1] if taint.scales else None
        # gradients that are handed on carry what scale they have
        carries = carries or computed_from_gradients(value)
        certain = scaler is not None or (not carries and self._known_plain(value))
        reached = taint.owners
        if inputs is not None and inputs is not NONE:
            reached = self.effects.owners.parameter_owners(inputs, state)
            carries, scaler = carries or not reached, scaler if reached else None
        before = self.effects.owners.concerned(reached, state)
        event = self.x.record(
            "backward",
            site,
            state,
            before=before,
            scaler=scaler,
            details={
                "value": value,
                "certain": certain,
                "functional": functional,
                "scales": taint.scales,
                "mixed": self._mixed(value),
                **({"framework": framework} if framework is not None else {}),
            },
        )
        assert event is not None
        if scaler is None and not certain:
            for optimizer in before:
                self.assign(optimizer, UNKNOWN, state)
            return
        if HOOKS in self.x.known:
            for known in list(state.books):
                self.effects.scaling.lose_scaler(known, state)
            for optimizer in before:
                self.assign(optimizer, UNKNOWN, state)
            return
        epoch = state.book(scaler).epoch if scaler is not None else 0  # type: ignore[arg-type]
        several = self.effects.owners.several(state)
        for optimizer, gradients in before.items():
            maybe = several and (optimizer is None or not self.effects.owners.related(reached, optimizer, state))
            self.assign(optimizer, after_backward(gradients, event, scaler, epoch, maybe), state)  # type: ignore[arg-type]

    @staticmethod
    def assign(optimizer: Value | None, gradients: Gradients, state: Machine) -> None:
        """The gradient state of one optimizer, or of those that nothing names."""
        if optimizer is None:
            state.default = gradients
        else:
            state.grads[optimizer] = gradients

    def _mixed(self, value: Value) -> bool:
        """Whether a scaled loss holds a sum with a term that is known not to be scaled."""
        if not value.taint.scales or not value.taint.unscaled:
            return False
        if isinstance(value, OpV) and value.op in ("+", "-") and len(value.args) == 2:
            for term, other in (value.args, value.args[::-1]):
                if other.taint.scales and not term.taint.scales and term.taint.owners and self._known_plain(term):
                    return True
        parts = value.args if isinstance(value, (OpV, Result)) else ()
        return any(self._mixed(part) for part in parts if isinstance(part, Value))

    def _known_plain(self, value: Value) -> bool:
        """Whether a loss without a visible scale was computed here, so that it cannot be scaled."""
        if isinstance(value, OpV):
            return any(self._known_plain(a) for a in value.args if isinstance(a, Value) and not isinstance(a, Const))
        if isinstance(value, Many):
            return self._known_plain(value.element)
        if isinstance(value, AttrOf):
            return self._known_plain(value.base)
        if isinstance(value, ItemOf):
            return isinstance(value.parts[0], Value) and self._known_plain(value.parts[0])
        if isinstance(value, Result):
            callee = value.callee
            if isinstance(callee, Ext) and callee.dotted == "sum":
                return any(map(self._known_plain, value.args))
            if isinstance(callee, Ext):
                return callee.dotted.startswith("torch.")
            if isinstance(callee, Func):
                # what is not worth executing scales nothing
                return callee.scope not in callee.env.relevant
            if isinstance(callee, AttrOf):
                if isinstance(callee.base, (Result, OpV)):
                    return self._known_plain(callee.base)
                return not isinstance(callee.base, (Instance, Super, Framework))
            return isinstance(callee, (Net, Sym, Instance))
        return False

    def foreign_backward(
        self, base: Value, pos: list[Value], site: Site, state: Machine, callee: Value, kw: dict[str, Value]
    ) -> list[CallOutcome]:
        """`accelerator.backward(loss)`: a framework scales, or does not, by a protocol of its own."""
        if isinstance(base, Framework) or pos[0].taint.owners or pos[0].taint.scales:
            if pos[0].taint.scales and not pos[0].taint.foreign:
                self.backward(pos[0], site, state, framework=base if isinstance(base, Framework) else None)
            else:
                self.foreign(site, state, pos[0], base)
            return [(state, NONE, None)]
        return self.effects.unknown.unknown(callee, pos, kw, site, state)

    def foreign(self, site: Site, state: Machine, value: Value, framework: Value | None = None) -> None:
        """A backward that a framework runs: nothing is known of the gradients afterwards."""
        self.x.record(
            "backward",
            site,
            state,
            before=self.effects.owners.everything(state),
            details={"value": value, "framework": framework or value, "certain": False, "scales": (), "mixed": False},
        )
        for optimizer in list(state.grads):
            state.grads[optimizer] = UNKNOWN
        state.default = UNKNOWN

    def assignment(self, stmt: Assign, value: Value, state: Machine) -> None:
        """Seen before a value is bound: a sum of scaled and unscaled losses is wrong where it is formed."""
        if isinstance(value, OpV) and value.taint.unscaled and self._mixed(value):
            env, _ = state.links[state.stack[-1]]
            self.x.record("mix", Site(env.source, stmt.node), state, details={"value": value})
