"""Optimizers and schedulers: construction, `step`, `zero_grad`, and who counts as one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from amplint import guards, library
from amplint.effects.gradients import is_part
from amplint.program import Call
from amplint.rule import Site
from amplint.states import (
    NOTHING,
    UNKNOWN,
    Gradients,
)
from amplint.values import (
    NONE,
    AttrOf,
    Ext,
    Func,
    Instance,
    Net,
    Optimizer,
    Result,
    Scheduler,
    StateOf,
    Super,
    Value,
)

if TYPE_CHECKING:
    from amplint.effects.dispatch import Effects
    from amplint.machine import CallOutcome, Machine


class Optimizers:
    """Optimizers and schedulers, for one executor."""

    def __init__(self, effects: Effects) -> None:
        self.effects = effects
        self.x = effects.x

    def optimizer(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        """An optimizer of a library is made."""
        params = pos[0] if pos else kw.get("params", kw.get("model_params", kw.get("model_or_params", NONE)))
        owners = self.effects.owners.parameter_owners(params, state) or None
        if owners is None and isinstance(params, (Net, Instance)):
            owners = frozenset((params,))
        optimizer = Optimizer(self.new_optimizer(state), owners)
        self.x.sites.setdefault(optimizer, site)
        self._replace(optimizer, site, state)
        state.grads[optimizer] = NOTHING
        self.x.record(
            "construct_optimizer",
            site,
            state,
            optimizer=optimizer,
            details={
                "owners": owners,
                "keywords": dict(kw),
                "callee": callee.dotted,
                "masters": library.keeps_masters(callee.dotted),
            },
        )
        return [(state, optimizer, None)]

    def _replace(self, optimizer: Optimizer, site: Site, state: Machine) -> None:
        """Forget the optimizer that was made for the same weights when this place was last reached: a training that is
        begun anew leaves it behind, and what happens to its gradients is nobody's matter."""
        if optimizer.owners is None:
            return
        for known in list(state.grads):
            if isinstance(known, Optimizer) and known is not optimizer and known.owners == optimizer.owners:
                made = self.x.sites.get(known)
                if made is not None and made.identity == site.identity:
                    del state.grads[known]

    @staticmethod
    def new_optimizer(state: Machine) -> tuple[object, int]:
        """The origin of an optimizer: the n-th one that a function makes, whichever arm makes it, so that a factory
        that chooses a class by name gives one optimizer and not a dozen."""
        return state.allocate(("optimizer", state.frame.get("#scope"), state.stack[-1] < 0))

    def optimizer_method(
        self, optimizer: Optimizer, name: str, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine
    ) -> list[CallOutcome]:
        """A method of an optimizer."""
        if name == "zero_grad":
            self.x.record(
                "zero_grad",
                site,
                state,
                before=self.effects.owners.of(optimizer, state),
                optimizer=optimizer,
                details={"arguments": tuple(pos), "keywords": dict(kw)},
            )
            self.effects.scaling.identify(optimizer, state.gradients(optimizer), state)
            state.grads[optimizer] = NOTHING
            return [(state, NONE, None)]
        if name == "step":
            before = self.effects.owners.of(optimizer, state)
            self.x.record(
                "opt_step",
                site,
                state,
                before=before,
                optimizer=optimizer,
                details={"arguments": tuple(pos), "keywords": dict(kw)},
            )
            if before[optimizer].kind == "P":
                state.grads[optimizer] = Gradients("N", last=before[optimizer].last)
            for position, closure in enumerate((*pos, *kw.values())):
                if isinstance(closure, Func):
                    # an optimizer of the user's own may hand its closure what it was given besides
                    given = pos[position + 1 :]
                    outcomes = self.x.calls.invoke(closure, given, {}, site, state, None)
                    return [(s, v, signal) for s, v, signal in outcomes]
            return [(state, NONE, None)]
        if name == "state_dict":
            self.x.record("state_dict", site, state, optimizer=optimizer, details={"of": optimizer})
            return [(state, StateOf(optimizer), None)]
        if name == "load_state_dict":
            self.x.record(
                "load_state",
                site,
                state,
                optimizer=optimizer,
                details={"of": optimizer, "value": pos[0] if pos else NONE},
            )
            return [(state, NONE, None)]
        if name == "add_param_group":
            return [(state, NONE, None)]
        if name == "backward" and pos:
            return self.effects.losses.foreign_backward(optimizer, pos, site, state, AttrOf(optimizer, name), kw)
        return self.effects.unknown.unknown(AttrOf(optimizer, name), pos, kw, site, state)

    def scheduler(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        """A learning rate scheduler is made."""
        optimizer = pos[0] if pos else kw.get("optimizer", NONE)
        return [(state, Scheduler(state.allocate(id(site.node)), callee.dotted, optimizer), None)]

    def scheduler_method(
        self, scheduler: Scheduler, name: str, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine
    ) -> list[CallOutcome]:
        """A method of a scheduler."""
        if name == "step":
            self.x.record("sched_step", site, state, details={"scheduler": scheduler, "arguments": tuple(pos)})
            return [(state, NONE, None)]
        if name == "state_dict":
            self.x.record("state_dict", site, state, details={"of": scheduler})
            return [(state, StateOf(scheduler), None)]
        if name == "load_state_dict":
            self.x.record("load_state", site, state, details={"of": scheduler, "value": pos[0] if pos else NONE})
        return [(state, Result(AttrOf(scheduler, name), tuple(pos), state.loops), None)]

    def zero_module(self, module: Value, site: Site, state: Machine) -> None:
        """`model.zero_grad()`: zero the gradients of the optimizers that own its parameters."""
        owners = frozenset((module,))
        before = self.effects.owners.concerned(owners, state)
        if before and all(is_part(owners, *held) for held in before.items()):
            for optimizer in before:
                self.effects.losses.assign(optimizer, UNKNOWN, state)
            return
        self.x.record("zero_grad", site, state, before=before, details={"module": module})
        several = self.effects.owners.several(state)
        for optimizer in [o for o in before if o is not None]:
            certain = self.effects.owners.related(owners, optimizer, state) or not several
            state.grads[optimizer] = NOTHING if certain else UNKNOWN
        state.default = UNKNOWN if several else NOTHING

    def is_optimizer_like(self, base: Value, site: Site, state: Machine) -> bool:
        """Whether the name or the use of an unknown object makes it an optimizer."""
        if isinstance(base, (Net, Instance, Super)) or base.taint.foreign:
            return False
        last = guards.describe(base).rpartition(".")[2].lower()
        return bool(re.search(r"(^|_)(optim\w*|opt)($|_|\d|\[)", last)) or base in {
            o.inferred_from for o in state.grads if isinstance(o, Optimizer)
        }
