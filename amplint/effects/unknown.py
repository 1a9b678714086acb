"""Calls of which nothing is known, and what they may have done with what they were given."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import libcst as cst

from amplint import library
from amplint.effects.containers import is_namespace
from amplint.program import Handler, Jump
from amplint.rule import Site
from amplint.states import (
    UNKNOWN,
)
from amplint.values import (
    CLEAN,
    TRUE,
    AttrOf,
    Class,
    Const,
    DictV,
    Ext,
    Framework,
    Func,
    Instance,
    ItemOf,
    ListV,
    Many,
    Net,
    Optimizer,
    Result,
    Scaler,
    Sequence,
    StateOf,
    Super,
    Sym,
    Taint,
    Value,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from amplint.effects.dispatch import Effects
    from amplint.machine import CallOutcome, Machine


_BENIGN_EXT = re.compile(
    r"^(torch\.(?!amp|autograd|cuda\.amp)|numpy|math|random|os|json|logging|wandb|time|tqdm|copy|itertools|functools|print$)"
)

#: a method that stores what it is given
_KEEPS = re.compile(r"register|append|add|attach|set|insert|init|extend")


@cache
def _saves(name: str) -> bool:
    return bool(re.search(r"save|dump|checkpoint|ckpt|snapshot", name, re.IGNORECASE))


@cache
def _is_harmless(name: str) -> bool:
    """Whether a call of this name leaves gradients and scales alone."""
    return bool(library.HARMLESS_NAMES.search(name)) and not re.search(
        r"unscale|backward|optimi[sz]e|update_param|step", name
    )


class Unknown:
    """Calls of which nothing is known, and what they may have done with what they were given, for one executor."""

    def __init__(self, effects: Effects) -> None:
        self.effects = effects
        self.x = effects.x

    def unknown(
        self, callee: Value, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine
    ) -> list[CallOutcome]:
        """A call of which nothing is known: its result depends on its arguments, and a call that gets hold
        of a scaler or an optimizer may have used it."""
        if isinstance(callee, Class):
            return self.effects.modules.construct(callee, pos, kw, site, state)
        name = _call_name(callee)
        if isinstance(callee, Result) and callee.taint.foreign:
            return [(state, Result(callee, tuple(pos), state.loops, taint=Taint(foreign=True)), None)]
        arguments = [*pos, *(v for _, v in sorted(kw.items()))]
        if _saves(name) and not isinstance(callee, Ext):
            for value in arguments:
                if isinstance(value, (DictV, StateOf, Instance)) and self.effects.containers.contents(value, state):
                    self.effects.saving.save(value, name, site, state)
        if isinstance(kw.get("to_save"), DictV):
            # ignite's word for the objects whose states go into a checkpoint
            self.effects.saving.save(kw["to_save"], name, site, state)
        self._hand_over(callee, name, arguments, state)
        self._call_back(arguments, site, state)
        if isinstance(callee, Net) and callee.constructor.rpartition(".")[2] == "BCELoss":
            self.x.record("bce", site, state)
        if isinstance(callee, (Sym, AttrOf, Net, Instance)) and self.effects.modules.may_be_module(callee, state):
            self.effects.modules.forward(callee, site, state)
        taint = self.result_taint(callee, arguments, state)
        identity = tuple(pos) + tuple(Sequence(Const.of(k), v) for k, v in sorted(kw.items()))
        lasting = isinstance(callee, Ext) and callee.dotted in library.LASTING
        return [(state, Result(callee, identity, () if lasting else state.loops, taint=taint), None)]

    def result_taint(self, callee: Value, arguments: list[Value], state: Machine) -> Taint:
        """What the result of an unknown call may have been computed from."""
        if self.effects.contexts.no_grad(state):
            return CLEAN
        taint = CLEAN
        for value in arguments:
            taint = taint | value.taint
            if isinstance(value, (Sequence, ListV, DictV, Many)):
                for part in self.effects.containers.contents(value, state):
                    taint = taint | part.taint
        owners: frozenset[Value] = frozenset()
        if isinstance(callee, AttrOf):
            base = callee.base
            taint = taint | base.taint
            if isinstance(base, (Net, Instance, Sym, AttrOf, ItemOf)) and base.taint is CLEAN:
                owners = frozenset((callee if isinstance(base, Instance) else base,))
            if isinstance(base, Framework):
                taint = taint | Taint(foreign=True)
        elif isinstance(callee, (Net, Instance, Sym, ItemOf, Func)):
            owners = frozenset((callee,))
        elif isinstance(callee, Result):
            taint = taint | callee.taint
            owners = frozenset((callee,))
        if taint.scales and "unscale" in _call_name(callee):
            taint = replace(taint, scales=(), inverse=False)
        return taint | Taint(owners) if owners else taint

    def _call_back(self, arguments: list[Value], site: Site, state: Machine) -> None:
        """Look at what a nested function does that is handed to an unknown call, which may run it again and again; the
        path itself goes on as if it had not."""
        for value in arguments:
            if not isinstance(value, Func) or value.scope in self.x.executed or value.scope not in value.env.relevant:
                continue
            if value.scope.parent is None or value.scope.parent.kind != "function" or self.x.silent:
                continue
            first = self.x.calls.invoke(value, [], {}, site, state.clone(), None)
            for after, _, signal in first[:1]:
                if signal is None:
                    self.x.calls.invoke(value, [], {}, site, after, None)

    def entrust(self, holder: Value, values: Collection[Value], state: Machine) -> None:
        """Note that something unknown has been given a scaler, to use whenever it is called."""
        while isinstance(holder, (AttrOf, ItemOf)):
            holder = holder.parts[0]
        if isinstance(holder, (Sym, Result)) and self._with_scaler(values, state):
            known = state.heap.get((holder, "#holds"), ())
            state.heap[(holder, "#holds")] = (*known, *(value for value in values if value not in known))

    def _with_scaler(self, values: Collection[Value], state: Machine) -> bool:
        """Whether a scaler is among some values, or in a container that is."""
        return any(
            isinstance(part, Scaler)
            for value in values
            for part in (value, *self.effects.containers.contents(value, state))
        )

    def _entrusted(self, callee: Value, name: str, state: Machine) -> Iterator[Value]:
        """What the holder of a function, or what made it, has been given before."""
        if isinstance(callee, AttrOf) and not library.RUNS.search(name):
            return
        while True:
            yield from state.heap.get((callee, "#holds"), ())
            if isinstance(callee, Result):
                yield from callee.args if self._with_scaler(callee.args, state) else ()
                callee = callee.callee
            elif isinstance(callee, (AttrOf, ItemOf)):
                callee = callee.parts[0]
            else:
                return

    @staticmethod
    def _lasting(state: Machine) -> list[Scaler]:
        """The scalers in attributes of objects and in variables of modules."""
        variables = (value for number, frame in state.frames.items() if number < 0 for value in frame.values())
        return [value for value in (*state.heap.values(), *variables) if isinstance(value, Scaler)]

    def _hand_over(self, callee: Value, name: str, arguments: list[Value], state: Machine) -> None:
        """Forget what is known of scalers and optimizers that an unknown call gets hold of."""
        receiver = callee.base if isinstance(callee, AttrOf) else callee.self if isinstance(callee, Func) else None
        if isinstance(callee, Ext) and _BENIGN_EXT.search(callee.dotted):
            return
        for value in self._entrusted(callee, name, state):
            self._lose(value, state, 0)
        if isinstance(callee, Sym) and library.RUNS.search(name):
            # a function that was handed over may know what lasts longer than the call
            for scaler in self._lasting(state):
                self.effects.scaling.lose_scaler(scaler, state)
        if receiver is not None and (_KEEPS.search(name) or not _is_harmless(name)):
            self.entrust(receiver, arguments, state)
        if not _is_harmless(name):
            for value in arguments:
                self._lose(value, state, 0)
        looked_up_in = _looked_up_in(callee)
        if looked_up_in is not None:
            # a method whose name is not known may be any of the object's
            self._lose(looked_up_in, state, 0)
        if isinstance(receiver, (Instance, Super)):
            holder = receiver.parts[0] if isinstance(receiver, Super) else receiver
            if library.HOOK_NAMES.search(name) and not isinstance(callee, Func):
                self._lose(holder, state, 0)
        elif receiver is not None and re.search(r"unscale|amp|scaler", name):
            for optimizer in list(state.grads):
                state.grads[optimizer] = UNKNOWN
            state.default = UNKNOWN

    def _lose(self, value: Value, state: Machine, depth: int) -> None:
        if depth > 3:
            return
        if isinstance(value, Scaler):
            self.effects.scaling.lose_scaler(value, state)
        elif isinstance(value, Optimizer):
            state.grads[value] = UNKNOWN
            for scaler, book in list(state.books.items()):
                state.books[scaler] = book.with_stage(value, "?")
        elif isinstance(value, Instance):
            for (holder, _), held in list(state.heap.items()):
                if (
                    holder is value
                    and isinstance(held, (Scaler, Optimizer, Instance, ListV, DictV))
                    and held is not value
                ):
                    self._lose(held, state, depth + 1)
        elif isinstance(value, (Sequence, ListV, DictV, Many)) or is_namespace(value):
            for part in self.effects.containers.contents(value, state):
                self._lose(part, state, depth + 1)
        elif isinstance(value, (Sym, AttrOf, ItemOf)):
            inferred = Scaler(("inferred", value), "inferred", TRUE)
            if inferred in state.books:
                self.effects.scaling.lose_scaler(inferred, state)
            optimizer = Optimizer(("inferred", value), None)
            if optimizer in state.grads:
                state.grads[optimizer] = UNKNOWN

    def jumped(self, stmt: Jump, state: Machine) -> None:
        """`return`, `break`, `continue`: of interest while a step is under way. The filter of a comprehension leaves
        nothing out but an element, and a function that only computes an answer leaves itself."""
        marker = state.frame.get("#scope")
        computes = marker is not None and marker.parts[1].is_formula
        if not isinstance(stmt.node, cst.CompIf) and not computes:
            self._left(stmt.kind, stmt.node, state)

    def caught(self, handler: Handler, state: Machine) -> None:
        """An exception is swallowed: of interest while a step is under way."""
        self._left("except", handler.node, state)

    def _left(self, kind: str, node: cst.CSTNode, state: Machine) -> None:
        stages = (stage for book in state.books.values() for _, stage in book.stages)
        if any(g.kind in ("U", "T") for g in state.grads.values()) or not {"unscaled", "stepped"}.isdisjoint(stages):
            env, _ = state.links[state.stack[-1]]
            self.x.record(
                "jump",
                Site(env.source, node),
                state,
                before=self.effects.owners.everything(state),
                details={"kind": kind},
            )


def _looked_up_in(callee: Value) -> Value | None:
    """The object of `getattr(self, name)` where it is called, by a name that only the program knows."""
    if isinstance(callee, Result) and isinstance(callee.callee, Ext) and callee.callee.dotted == "getattr":
        return callee.args[0] if callee.args and isinstance(callee.args[0], Instance) else None
    return None


def _call_name(callee: Value) -> str:
    if isinstance(callee, AttrOf):
        return callee.name
    if isinstance(callee, Ext):
        return callee.dotted.rpartition(".")[2]
    if isinstance(callee, Func):
        return callee.scope.name
    if isinstance(callee, Sym):
        return str(callee.parts[-1]).rpartition(".")[2]
    return ""
