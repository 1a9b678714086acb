"""Whose parameters: which optimizers a value's gradients belong to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amplint import guards
from amplint.states import (
    Gradients,
)
from amplint.values import (
    AttrOf,
    Const,
    DictV,
    Ext,
    Func,
    Grad,
    Instance,
    ItemOf,
    ListV,
    Many,
    Net,
    Optimizer,
    OpV,
    Param,
    Params,
    Result,
    Sequence,
    Sym,
    Value,
)

if TYPE_CHECKING:
    from amplint.effects.dispatch import Effects
    from amplint.machine import Machine


class Owners:
    """Whose parameters, for one executor."""

    def __init__(self, effects: Effects) -> None:
        self.effects = effects
        self.x = effects.x

    def everything(self, state: Machine) -> dict[Value | None, Gradients]:
        """The gradient states of all optimizers."""
        known: dict[Value | None, Gradients] = {None: state.default}
        for optimizer, gradients in state.grads.items():
            known[optimizer] = gradients
        return known

    def of(self, optimizer: Value, state: Machine) -> dict[Value | None, Gradients]:
        """The gradient state of one optimizer."""
        return {optimizer: state.gradients(optimizer)}

    def concerned(self, owners: frozenset[Value], state: Machine) -> dict[Value | None, Gradients]:
        """The gradient states of the optimizers that may own parameters of `owners`."""
        relations = {o: self.related(owners, o, state) for o in state.grads}
        if not any(relations.values()):
            # what is visible does not link the parameters to any optimizer, so nothing rules one out
            known = [o for o, r in relations.items() if r is None or len(relations) == 1 or not self._solid(owners)]
            chosen = known or list(relations)
        else:
            chosen = [o for o, r in relations.items() if r is not False]
        found: dict[Value | None, Gradients] = {o: state.grads[o] for o in chosen}
        if not any(relations.values()):
            found[None] = state.default
        return found

    def _solid(self, owners: frozenset[Value]) -> bool:
        return bool(owners) and not any(_opaque(o) for o in owners)

    def related(self, owners: frozenset[Value], optimizer: Value, state: Machine) -> bool | None:
        """Whether an optimizer owns parameters of `owners`; None where nothing tells."""
        if optimizer in owners:
            return True
        theirs = optimizer.owners if isinstance(optimizer, Optimizer) else None
        if theirs is None or not owners:
            return None
        for mine in owners:
            for other in theirs:
                if within(mine, other) or within(other, mine):
                    return True
        if any(_opaque(o) for o in owners) or any(_opaque(o) for o in theirs):
            return None
        return False

    def several(self, state: Machine) -> bool:
        """Whether more than one optimizer may be in play."""
        if len(state.grads) > 1:
            return True
        marker = state.frame.get("#scope")
        env = state.links[state.stack[-1]][0]
        scope = marker.parts[1] if marker is not None else env.program.body
        return sum(1 for role in env.roles[scope].values() if role == "optimizer") > 1

    def parameter_owners(self, value: Value, state: Machine, depth: int = 0) -> frozenset[Value]:
        """The modules (or optimizers) whose parameters a value holds."""
        if depth > 6:
            return frozenset()
        if isinstance(value, (Params, Param, Grad)):
            return value.owners
        if isinstance(value, Optimizer):
            return value.owners or frozenset((value,))
        if isinstance(value, (Sequence, Many, ListV, DictV)):
            found: frozenset[Value] = frozenset()
            for part in self.effects.containers.parts_of(value, state):
                found |= self.parameter_owners(part, state, depth + 1)
            return found
        if isinstance(value, OpV):
            found = frozenset()
            for part in value.args:
                if isinstance(part, Value):
                    found |= self.parameter_owners(part, state, depth + 1)
            return found
        if isinstance(value, Result):
            if isinstance(value.callee, AttrOf) and value.callee.name in ("named_parameters", "modules", "children"):
                return frozenset((value.callee.base,))
            found = frozenset()
            for part in value.args:
                if isinstance(part, Value):
                    found |= self.parameter_owners(part, state, depth + 1)
            if not found and not isinstance(value.callee, Ext):
                nets = [
                    a
                    for a in value.args
                    if isinstance(a, (Net, Instance)) or (isinstance(a, Sym) and guards.describe(a) in ("model", "net"))
                ]
                found = frozenset(nets)
            return found
        if isinstance(value, ItemOf):
            return (
                self.parameter_owners(value.parts[0], state, depth + 1)
                if isinstance(value.parts[0], Value)
                else frozenset()
            )
        if isinstance(value, AttrOf) and value.name == "param_groups":
            return self.parameter_owners(self.x.binding.as_optimizer(value.base), state, depth + 1)
        return frozenset()

    def element_owners(self, value: Value) -> frozenset[Value]:
        """The owners of an element of an unknown sequence that can only hold parameters."""
        if isinstance(value, ItemOf):
            base = value.parts[0]
            index = value.parts[1]
            if isinstance(base, ItemOf) and isinstance(base.parts[0], AttrOf) and base.parts[0].name == "param_groups":
                if isinstance(index, Const) and index.value == "params":
                    optimizer = self.x.binding.as_optimizer(base.parts[0].base)
                    assert isinstance(optimizer, Optimizer)
                    return optimizer.owners or frozenset((optimizer,))
        if isinstance(value, Result) and isinstance(value.callee, Ext):
            for arg in value.args:
                if isinstance(arg, Params):
                    return arg.owners
        return frozenset()


def _opaque(value: Value) -> bool:
    """Whether a callable may stand for any module: a function, a method of an own object, an unknown result."""
    if isinstance(value, AttrOf):
        root: Value = value
        while isinstance(root, AttrOf):
            root = root.base
        return isinstance(root, Result) or value.name.startswith("*")
    return isinstance(value, (Func, Result, ItemOf)) or (
        isinstance(value, Sym) and value.parts[0] in ("join", "returned", "global")
    )


def within(inner: Value, outer: Value) -> bool:
    """Whether `inner` is `outer` or a part of it."""
    current: Value | None = inner
    while current is not None:
        if current is outer:
            return True
        if isinstance(current, AttrOf):
            current = current.base
        elif isinstance(current, Func):
            current = current.self
        else:
            break
    return isinstance(outer, Net) and any(within(inner, child) for child in outer.children)
