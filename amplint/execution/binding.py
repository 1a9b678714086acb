"""Variables: what a name stands for, what its use shows it to be, and assignment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amplint import library
from amplint.machine import Machine
from amplint.program import (
    Attr,
    Expr,
    Item,
    Name,
    Seq,
    Star,
    Stmt,
)
from amplint.values import (
    TRUE,
    AttrOf,
    Class,
    Const,
    DictV,
    Ext,
    Framework,
    Func,
    Grad,
    Instance,
    ItemOf,
    Many,
    Optimizer,
    OpV,
    Result,
    Scaler,
    Sequence,
    StateOf,
    Sym,
    Value,
    interesting,
)

if TYPE_CHECKING:
    from amplint.execution.executor import Executor


#: what is not known
OPEN = (Sym, AttrOf, ItemOf, Result)


class Binding:
    """Variables of one executor."""

    def __init__(self, executor: Executor) -> None:
        self.x = executor

    def lookup(self, name: str, state: Machine) -> Value:
        """The value of a variable in the innermost frame."""
        number: int | None = state.stack[-1]
        env = state.links[state.stack[-1]][0]
        while number is not None:
            frame = state.frames.get(number)
            if frame is None:
                break
            found = frame.get(name)
            if found is not None:
                return self._resolved(found, frame, name, state)
            link = state.links.get(number)
            number = link[1] if link is not None else None
        globals_frame = state.frames.get(-env.number)
        if globals_frame is not None and name in globals_frame:
            return self._resolved(globals_frame[name], globals_frame, name, state)
        scope = env.program.body.children.get(name)
        if scope is not None:
            return Func(env, scope, -env.number, None) if scope.kind == "function" else Class(env, scope, -env.number)
        if name == "__name__":
            return Const.of(env.source.path)
        if library.is_builtin(name):
            return Ext(name)
        marker = state.frame.get("#scope")
        scope = marker.parts[1] if marker is not None else env.program.body
        if name in env.assigned_in(scope):
            # on this path nothing has bound the variable yet
            return Sym("unbound", env.source.path, scope.qualname, name)
        return self.x.modules.starred(env, name, state) or Sym("global", env.source.path, name)

    def _resolved(self, found: Value, frame: dict[str, Value], name: str, state: Machine) -> Value:
        """A variable's value; an import is resolved at its first use."""
        if isinstance(found, Sym) and found.parts[0] == "lazy":
            _, env, stmt = found.parts
            known = self.x.known.get(stmt)
            if known is None:
                known = self.x.known[stmt] = self.x.modules.imported(env, stmt, state)
            return known
        return found

    def role(self, path: str, state: Machine) -> str | None:
        """What the use of an access path in the running scope says it is."""
        if not path:
            return None
        frame = state.frame
        env = state.links[state.stack[-1]][0]
        marker = frame.get("#scope")
        scope = marker.parts[1] if marker is not None else env.program.body
        roles = env.roles.get(scope)
        return roles.get(path) if roles else None

    def refine(self, value: Value, path: str, state: Machine) -> Value:
        """An unknown value, or each that is chosen among, as what its use shows it to be."""
        role = self.role(path, state)
        if isinstance(value, OpV):
            choosing = value.op == "ite" and role in ("scaler", "optimizer")
            return self._refined_choices(value, path, state) if choosing else value
        if role == "scaler":
            return self.as_scaler(value, state)
        if role == "optimizer" and not value.taint.foreign:
            return self.as_optimizer(value)
        last = path.rpartition(".")[2]
        if library.names_framework(last):
            return Framework(("inferred", value), last)
        return value

    def _refined_choices(self, value: OpV, path: str, state: Machine) -> Value:
        test, *choices = value.args
        refined = [self.refine(choice, path, state) if isinstance(choice, OPEN) else choice for choice in choices]
        return value if refined == choices else OpV("ite", test, *refined)

    def as_scaler(self, value: Value, state: Machine) -> Value:
        """An unknown value that is used as a scaler."""
        if isinstance(value, Scaler) or not isinstance(value, OPEN) or value.taint.foreign:
            return value
        return Scaler(("inferred", value), "inferred", TRUE)

    def as_optimizer(self, value: Value) -> Value:
        """A value that is used as an optimizer."""
        if isinstance(value, Optimizer):
            return value
        handed_back = _handed_back(value)
        return handed_back if handed_back is not None else Optimizer(("inferred", value), None)

    def bind(self, target: Expr, value: Value, state: Machine, stmt: Stmt) -> None:
        """Assign a value to a target: a name, an attribute, an item, or several of them."""
        if isinstance(target, Name):
            marker = state.frame.get("#scope")
            if marker is not None and target.id in marker.parts[1].outer_names:
                number = self._holder(target.id, state)
                state.frames[number][target.id] = value
                return
            state.frame[target.id] = value
        elif isinstance(target, Attr):
            base = self.x.expressions.value(target.base, state)
            env, _ = state.links[state.stack[-1]]
            kept = target.name in env.attribute_words or interesting(value)
            for choice in _choices(base):
                # of an object of another module's class, that module may read it
                kept = kept or (isinstance(choice, Instance) and choice.cls.env is not env)
                self.x.effects.gradients.attribute_bound(choice, target, value, state, stmt)
                if isinstance(choice, Scaler) and target.name in library.SCALER_STATE:
                    self.x.effects.scaling.lose_scaler(choice, state)
                if target.name == "grad" and isinstance(value, Grad):
                    # whatever was computed from it, it is the gradient from now on
                    state.heap.pop((choice, "grad"), None)
                elif kept:
                    state.heap[(choice, target.name)] = value
                    self.x.effects.unknown.entrust(choice, (value,), state)
        elif isinstance(target, Item):
            base, index = self.x.expressions.value(target.base, state), self.x.expressions.value(target.index, state)
            self.x.effects.gradients.item_bound(base, index, value, state, stmt)
            if isinstance(base, DictV):
                pairs = tuple(p for p in state.heap.get((base, "#items"), ()) if p.items[0] is not index)
                state.heap[(base, "#items")] = (*pairs, Sequence(index, value))
                if isinstance(value, StateOf) and isinstance(value.of, OPEN) and not isinstance(index, Const):
                    # the state of whatever it is, under its name
                    state.heap[(base, "#open")] = True
            else:
                state.heap[(base, ("item", index))] = value
                self.x.effects.unknown.entrust(base, (value,), state)
        elif isinstance(target, Seq):
            known = self.x.loops.items_of(value, state)
            for position, inner in enumerate(target.items):
                if isinstance(inner, Star):
                    rest = value if isinstance(value, Many) else Many(Sym("rest", id(stmt), state.loops))
                    self.bind(inner.value, rest, state, stmt)
                    known = None
                elif known is not None and len(known) == len(target.items):
                    self.bind(inner, known[position], state, stmt)
                else:
                    self.bind(inner, self._unpacked(value, position, state), state, stmt)
        elif isinstance(target, Star):
            self.bind(target.value, Many(value), state, stmt)

    def _unpacked(self, value: Value, position: int, state: Machine) -> Value:
        if isinstance(value, OpV) and value.op == "ite":
            test, then, orelse = value.args
            return OpV("ite", test, self._unpacked(then, position, state), self._unpacked(orelse, position, state))
        known = self.x.loops.items_of(value, state)
        if known is not None and position < len(known):
            return known[position]
        return ItemOf(value, Const.of(position), taint=value.taint)

    def _holder(self, name: str, state: Machine) -> int:
        number: int | None = state.links[state.stack[-1]][1]
        while number is not None:
            if name in state.frames.get(number, {}):
                return number
            link = state.links.get(number)
            number = link[1] if link is not None else None
        env = state.links[state.stack[-1]][0]
        self.x.modules.enter_globals(env, state)
        return -env.number


def _choices(value: Value) -> list[Value]:
    if isinstance(value, OpV) and value.op == "ite":
        return [*_choices(value.args[1]), *_choices(value.args[2])]
    return [value]


def _handed_back(value: Value) -> Optimizer | None:
    """The optimizer that an unknown function was given, where what it returns (or a part of that) is used as one:
    `model, optimizer, step = resume(model, optimizer)`, `optimizer = Wrapper(optimizer)`."""
    result = value.parts[0] if isinstance(value, ItemOf) else value
    if not isinstance(result, Result) or result.taint.foreign:
        return None
    given = [part for part in result.args if isinstance(part, Optimizer)]
    return given[0] if len(given) == 1 else None
