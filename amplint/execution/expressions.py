"""The values of expressions, which are free of calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amplint import guards, library
from amplint.execution.binding import OPEN
from amplint.machine import Machine
from amplint.program import (
    Attr,
    Closure,
    DictDisplay,
    Expr,
    Item,
    Name,
    Op,
    Seq,
    Star,
    path_of,
)
from amplint.program import (
    Const as ConstE,
)
from amplint.rule import Site
from amplint.values import (
    CLEAN,
    AttrOf,
    Class,
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
    Scaler,
    Sequence,
    Super,
    Sym,
    Taint,
    Value,
    computed_from_gradients,
    cond,
    is_raw,
)

if TYPE_CHECKING:
    from amplint.execution.executor import Executor


class Expressions:
    """The values of expressions, which are free of calls of one executor."""

    def __init__(self, executor: Executor) -> None:
        self.x = executor

    def value(self, expr: Expr, state: Machine) -> Value:
        """The value of an expression; expressions are free of calls, so the state does not change."""
        return _EVALUATE[type(expr)](self, expr, state)  # type: ignore[no-any-return]

    def _name_value(self, expr: Name, state: Machine) -> Value:
        found = state.frame.get(expr.id)
        if found is None or (type(found) is Sym and found.parts[0] == "lazy"):
            found = self.x.binding.lookup(expr.id, state)
        if isinstance(found, OPEN) or _is_choice(found):
            return self.x.binding.refine(found, expr.id, state)
        return found

    def _attr_value(self, expr: Attr, state: Machine) -> Value:
        found = self.attribute(self.value(expr.base, state), expr.name, state)
        if isinstance(found, OPEN) or _is_choice(found):
            path = path_of(expr)
            if path and not path.startswith("%"):
                return self.x.binding.refine(found, path, state)
        return found

    def attribute(self, base: Value, name: str, state: Machine) -> Value:
        """An attribute of a value."""
        stored = state.heap.get((base, name))
        if stored is not None:
            return stored  # type: ignore[no-any-return]
        if isinstance(base, OpV) and base.op == "ite":
            test, then, orelse = base.args
            return OpV("ite", test, self.attribute(then, name, state), self.attribute(orelse, name, state))
        if isinstance(base, OpV) and base.op == "or" and len(base.args) == 2:
            first, second = base.args
            return OpV("ite", first, self.attribute(first, name, state), self.attribute(second, name, state))
        if isinstance(base, Ext):
            return Ext(f"{base.dotted}.{name}")
        if isinstance(base, Instance):
            return self.x.classes.instance_attribute(base, name, state)
        if isinstance(base, Class):
            found = self.x.classes.method(base, name, state)
            if found is not None:
                owner, scope = found
                return Func(owner.env, scope, owner.parts[2], None)
            return self.x.classes.class_attribute(base, name, state) or AttrOf(base, name)
        if isinstance(base, Super):
            instance, cls = base.parts
            for candidate in self.x.classes.lineage(instance.cls, state)[0]:
                if candidate.scope is not cls.scope and candidate in self.x.classes.lineage(cls, state)[0][1:]:
                    inherited = candidate.scope.children.get(name)
                    if inherited is not None and inherited.kind == "function":
                        return Func(candidate.env, inherited, candidate.parts[2], instance)
            return AttrOf(base, name)
        if isinstance(base, Sym) and base.parts[0] == "module":
            found_value = self.x.modules.module_attribute(base.parts[1], name, state)
            if found_value is not None:
                return found_value
            env = base.parts[1]
            if env.file is not None and env.file.name == "__init__.py":
                sub = self.x.modules.module(env, name, 1)
                if sub is not None:
                    return Sym("module", sub)
            return AttrOf(base, name)
        if isinstance(base, (Scaler, Optimizer)) and base in self.x.classes_of and name not in library.SCALER_METHODS:
            found = self.x.classes.method(self.x.classes_of[base], name, state)
            if found is not None and name not in ("step", "zero_grad"):
                owner, scope = found
                return Func(owner.env, scope, owner.parts[2], base)
        if name == "grad":
            if isinstance(base, Param):
                return Grad(base.owners, "grad")
            if isinstance(base, (Net, Sym, AttrOf, ItemOf, Result)):
                return Grad(frozenset((self._parameter_base(base),)), "grad")
        if isinstance(base, Param):
            return base if name == "data" else AttrOf(base, name)
        if isinstance(base, Grad):
            if name in library.METADATA:
                return Sym("metadata", name)
            return base if name in ("data", "T", "mT") else AttrOf(base, name)
        if name in ("data",) and isinstance(base, (Result, OpV)):
            return base
        if name in ("module", "_orig_mod") and isinstance(base, (Net, Sym, AttrOf, Result)):
            return base
        if isinstance(base, (Result, OpV, ItemOf, AttrOf)) and base.taint is not CLEAN:
            return AttrOf(base, name, taint=base.taint)
        return AttrOf(base, name)

    def _parameter_base(self, value: Value) -> Value:
        # `self.x.net.weight.grad` belongs to `self.x.net`
        if isinstance(value, AttrOf) and value.name in ("weight", "bias"):
            return value.base
        return value

    def _item_value(self, expr: Item, state: Machine) -> Value:
        base = self.value(expr.base, state)
        index = self.value(expr.index, state)
        return self.item(base, index, state)

    def item(self, base: Value, index: Value, state: Machine) -> Value:
        """An item of a value."""
        if isinstance(index, OpV) and index.op == "slice":
            owners = self.x.effects.owners.parameter_owners(base, state)
            return Params(owners) if owners and isinstance(base, Params) else OpV("slice", base, index)
        stored = state.heap.get((base, ("item", index)))
        if stored is not None:
            return stored  # type: ignore[no-any-return]
        if isinstance(base, DictV):
            for pair in reversed(state.heap.get((base, "#items"), ())):
                if pair.items[0] is index:
                    return pair.items[1]  # type: ignore[no-any-return]
        if isinstance(index, Const) and isinstance(index.value, int):
            known = self.x.loops.items_of(base, state)
            if known is not None and -len(known) <= index.value < len(known):
                return known[index.value]
        if isinstance(base, Params):
            return Param(base.owners, index)
        if isinstance(base, Many) and base.another is not None:
            # `parts[i]` in the rounds of `for i in range(len(parts))`
            first = (isinstance(index, Sym) and index.parts[0] == "index") or index is Const.of(0)
            return base.element if first else base.another
        if isinstance(base, Many):
            return self.x.loops.nth(base, index.value if isinstance(index, Const) else index, None, ())  # type: ignore[arg-type]
        return ItemOf(base, index, taint=base.taint)

    def _op_value(self, expr: Op, state: Machine) -> Value:
        # a display that is only compared with needs no identity; `given or []` is a list that will be filled
        chosen = expr.op in ("or", "and", "ite")
        args = [
            Sequence(*(self.value(i, state) for i in a.items))
            if isinstance(a, Seq) and not _has_star(a) and not chosen
            else self.value(a, state)
            for a in expr.args
        ]
        op = expr.op
        if op in ("+", "-", "*", "/", "//", "%", "**") and len(args) == 2:
            left, right = args
            if isinstance(left, Const) and isinstance(right, Const):
                folded = _fold(op, left.value, right.value)
                if folded is not None:
                    return folded
            if op == "+" and (
                isinstance(left, (ListV, Params, Sequence, Many)) or isinstance(right, (ListV, Params, Many))
            ):
                return self._concatenate(left, right, expr, state)
            if isinstance(left, Grad) or isinstance(right, Grad):
                return self._gradient_of(op, args)
        if op == "|" and isinstance(args[0], DictV):
            return self._merged(args[0], args[1], expr, state)
        if op == "*" and len(args) == 2 and isinstance(args[0], (ListV, Sequence)):
            repeated = self.x.loops.items_of(args[0], state)
            if repeated is not None and len(repeated) == 1:
                # one object under several names; two of them show what more would show
                times = args[1].value if isinstance(args[1], Const) and isinstance(args[1].value, int) else 2
                return Sequence(*(repeated * min(times, 16)))
        if op == "ite":
            lit = guards.literal(args[0])
            if isinstance(lit, bool):
                return args[1] if lit else args[2]
            if args[1] is args[2]:
                return args[1]
        return cond(op, *args)

    def _merged(self, left: DictV, right: Value, expr: Op, state: Machine) -> Value:
        """The entries of two dicts."""
        made = DictV(state.allocate((id(expr), "|")))
        known = isinstance(right, DictV)
        added = state.heap.get((right, "#items"), ()) if known else ()
        state.heap[(made, "#items")] = (*state.heap.get((left, "#items"), ()), *added)
        opened = [state.heap.get((each, "#open"), False) for each in (left, right)]
        state.heap[(made, "#open")] = any(opened) or not known
        return made

    def _gradient_of(self, op: str, args: list[Value]) -> Value:
        owners: frozenset[Value] = frozenset()
        plain = [arg for arg in args if not isinstance(arg, Grad)]
        if op in ("+", "-") and plain and not plain[0].taint.inverse and not computed_from_gradients(plain[0]):
            # a term of a size of its own, such as weight decay or noise
            return Grad(next(arg.owners for arg in args if isinstance(arg, Grad)), "shifted")
        for arg in args:
            if isinstance(arg, Grad):
                owners |= arg.owners
        inverse = any(a.taint.inverse for a in args)
        if not inverse and is_raw(args[0]) and (op == "**" or (op == "*" and is_raw(args[1]))):
            return Grad(owners, "power")
        return Grad(owners, "derived", taint=Taint(inverse=True)) if inverse else Grad(owners, "derived")

    def _concatenate(self, left: Value, right: Value, expr: Op, state: Machine) -> Value:
        first, second = self.x.loops.items_of(left, state), self.x.loops.items_of(right, state)
        if first is not None and second is not None:
            return Sequence(*first, *second)
        joined = self.x.loops.joined((left, right), (id(expr), "+"), state)
        if joined is not None:
            return joined
        owners = self.x.effects.owners.parameter_owners(left, state) | self.x.effects.owners.parameter_owners(
            right, state
        )
        return Params(owners) if owners else OpV("+", left, right)

    def _seq_value(self, expr: Seq, state: Machine) -> Value:
        items: list[Value] = []
        parts: list[Value] = []
        spread: frozenset[Value] = frozenset()
        exact = True
        for item in expr.items:
            if isinstance(item, Star):
                value = self.value(item.value, state)
                parts.append(value)
                known = self.x.loops.items_of(value, state)
                if known is not None:
                    items.extend(known)
                else:
                    exact = False
                    spread |= self.x.effects.owners.parameter_owners(value, state)
            else:
                items.append(self.value(item, state))
                parts.append(Sequence(items[-1]))
        if not exact:
            joined = self.x.loops.joined(parts, id(expr), state)
            if joined is not None:
                return joined
            for value in items:
                spread |= self.x.effects.owners.parameter_owners(value, state)
            return Params(spread) if spread else Many(items[0] if items else Sym("element", id(expr)))
        if expr.kind == "tuple":
            return Sequence(*items)
        made = ListV(state.allocate(id(expr)))
        state.heap[(made, "#items")] = tuple(items)
        return made

    def _dict_value(self, expr: DictDisplay, state: Machine) -> Value:
        made = DictV(state.allocate(id(expr)))
        env, _ = state.links[state.stack[-1]]
        self.x.sites[made] = Site(env.source, expr.node)
        pairs: list[Sequence] = []
        is_open = False
        for key, value_expr in expr.items:
            value = self.value(value_expr, state)
            if key is not None:
                pairs.append(Sequence(self.value(key, state), value))
            elif isinstance(value, DictV):
                pairs.extend(state.heap.get((value, "#items"), ()))
                is_open |= bool(state.heap.get((value, "#open")))
            else:
                is_open = True
                pairs.append(Sequence(Const.of("**"), value))
        state.heap[(made, "#items")] = tuple(pairs)
        state.heap[(made, "#open")] = is_open
        return made

    def _closure_value(self, expr: Closure, state: Machine) -> Value:
        env, _ = state.links[state.stack[-1]]
        return Func(env, expr.scope, state.stack[-1], None)


def _is_choice(value: Value) -> bool:
    """Whether a value is one of two, whichever a condition says."""
    return isinstance(value, OpV) and value.op == "ite"


def _has_star(expr: Seq) -> bool:
    return any(isinstance(item, Star) for item in expr.items)


def _fold(op: str, left: Any, right: Any) -> Const | None:
    if not isinstance(left, (int, float, str)) or not isinstance(right, (int, float, str)):
        return None
    try:
        if isinstance(left, str) or isinstance(right, str):
            return Const.of(left + right) if op == "+" and type(left) is type(right) else None  # type: ignore[operator]
        if op == "+":
            return Const.of(left + right)
        if op == "-":
            return Const.of(left - right)
        if op == "*":
            return Const.of(left * right)
        if op == "/":
            return Const.of(left / right)
        if op == "//":
            return Const.of(left // right)
        if op == "%":
            return Const.of(left % right)
        if op == "**" and abs(right) <= 128 and abs(left) <= 1e6:
            return Const.of(left**right)
    except (ArithmeticError, TypeError, ValueError):
        return None
    return None


_EVALUATE: dict[type, Any] = {
    Name: Expressions._name_value,
    ConstE: lambda _self, expr, _state: Const.of(expr.value),
    Attr: Expressions._attr_value,
    Item: Expressions._item_value,
    Op: Expressions._op_value,
    Seq: Expressions._seq_value,
    Star: lambda self, expr, state: Many(self.value(expr.value, state)),
    DictDisplay: Expressions._dict_value,
    Closure: Expressions._closure_value,
}
