"""Python's own functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amplint import library
from amplint.program import Call
from amplint.rule import Site
from amplint.values import (
    CLEAN,
    FALSE,
    NONE,
    TRUE,
    AttrOf,
    Class,
    Const,
    DictV,
    Ext,
    Func,
    Grad,
    Instance,
    ListV,
    Many,
    Params,
    Partial,
    Result,
    Scaler,
    Sequence,
    Spread,
    Super,
    Sym,
    Taint,
    Value,
    cond,
)

if TYPE_CHECKING:
    from amplint.effects.dispatch import Effects
    from amplint.machine import CallOutcome, Machine


#: the kinds of containers that a display or a constructor makes; a tuple may be a list that was computed
_CONTAINERS: dict[str, type[Value]] = {"list": ListV, "dict": DictV}


#: terms of a `sum` that are added one by one
MAX_TERMS = 8
_SETS_ANY = frozenset({"setattr", "__dict__", "vars", "__setattr__", "__slots__"})


class Builtins:
    """Python's own functions, for one executor."""

    def __init__(self, effects: Effects) -> None:
        self.effects = effects
        self.x = effects.x

    def builtin(
        self,
        name: str,
        callee: Ext,
        pos: list[Value],
        kw: dict[str, Value],
        site: Site,
        state: Machine,
        stmt: Call | None,
    ) -> list[CallOutcome]:
        """A call of one of Python's builtins."""
        first = pos[0] if pos else NONE
        result: Value
        if name in ("exit", "quit"):
            return [(state, NONE, ("raise", None))]
        if name == "super":
            return [(state, self._super(pos, state), None)]
        if name == "getattr" and len(pos) >= 2 and isinstance(pos[1], Const) and isinstance(pos[1].value, str):
            return [(state, self.x.expressions.attribute(first, pos[1].value, state), None)]
        if name == "setattr" and len(pos) == 3 and isinstance(pos[1], Const):
            state.heap[(first, pos[1].value)] = pos[2]
            return [(state, NONE, None)]
        if name == "dict":
            made = DictV(state.allocate(id(site.node)))
            self.x.sites.setdefault(made, site)
            pairs: tuple[Any, ...] = ()
            if isinstance(first, DictV):
                pairs = state.heap.get((first, "#items"), ())
            pairs = (*pairs, *(Sequence(Const.of(k), v) for k, v in kw.items() if k != "**"))
            state.heap[(made, "#items")] = pairs
            state.heap[(made, "#open")] = (
                "**" in kw or (bool(pos) and not isinstance(first, DictV)) or bool(state.heap.get((first, "#open")))
            )
            return [(state, made, None)]
        if name in ("list", "tuple", "iter", "set", "sorted", "frozenset"):
            if not pos:
                made_list = ListV(state.allocate(id(site.node)))
                state.heap[(made_list, "#items")] = ()
                return [(state, made_list, None)]
            ordered = name == "sorted" and any(
                isinstance(item, Const) for item in self.effects.containers.contents(first, state)
            )
            if isinstance(first, (Params, Many, ListV, Sequence)) and name != "iter" and not ordered:
                return [(state, first, None)]
        if name == "filter" and len(pos) == 2 and isinstance(pos[1], (Params, Many)):
            return [(state, pos[1], None)]
        if name == "bool" and pos:
            return [(state, first, None)]
        if name == "float" and isinstance(first, Const) and isinstance(first.value, str):
            try:
                return [(state, Const.of(float(first.value)), None)]
            except ValueError:
                pass
        if name in ("float", "int") and isinstance(first, Const) and isinstance(first.value, (int, float)):
            return [(state, Const.of(float(first.value) if name == "float" else int(first.value)), None)]
        if name == "isinstance" and len(pos) == 2:
            known = self._isinstance(first, pos[1])
            if known is not None:
                return [(state, known, None)]
        if name in ("hasattr", "callable") and len(pos) == 1 + (name == "hasattr"):
            asked = "__call__" if name == "callable" else pos[1].value if isinstance(pos[1], Const) else None
            known = self._has(first, asked, state) if isinstance(asked, str) else None
            if known is not None:
                return [(state, known, None)]
        if name == "len" and isinstance(first, Grad):
            return [(state, Result(callee, (), state.loops), None)]
        if name == "sum" and pos:
            taint = first.taint
            for value in self.effects.containers.contents(first, state):
                taint = taint | value.taint
            gradients = [v for v in [first, *self.effects.containers.contents(first, state)] if isinstance(v, Grad)]
            if gradients:
                return [(state, Grad(gradients[0].owners, "derived"), None)]
            terms = self.x.loops.items_of(first, state) if len(pos) == 1 and not isinstance(first, DictV) else None
            if terms and len(terms) <= MAX_TERMS and any(term.taint is not CLEAN for term in terms):
                total = terms[0]
                for term in terms[1:]:
                    total = cond("+", total, term)
                return [(state, total, None)]
            return [(state, Result(callee, tuple(pos), taint=taint), None)]
        if name == "map" and len(pos) == 2 and isinstance(first, Func):
            outcomes = self.x.calls.invoke(
                first, [self.x.loops.nth(pos[1], 0, None, state.loops)], {}, site, state, stmt
            )
            return [(s, Many(v), signal) for s, v, signal in outcomes]
        if name == "map" and len(pos) == 2 and isinstance(first, AttrOf) and isinstance(first.base, Scaler):
            # `list(map(scaler.step, optimizers))`
            live = [state]
            for number in range(2):
                element = self.x.loops.nth(pos[1], number, None, ())
                live = [s for at in live for s, _, _ in self.x.calls.invoke(first, [element], {}, site, at, stmt)]
            return [(s, Many(NONE), None) for s in live]
        if name == "next":
            result = Result(callee, tuple(pos), state.loops)
        elif name == "print":
            result = NONE
        else:
            taint = CLEAN
            if name in ("float", "int", "abs", "max", "min"):
                for value in pos:
                    taint = taint | (Taint(inverse=True) if value.taint.inverse else CLEAN)
            gradients = [v for v in pos if isinstance(v, Grad)]
            if gradients and name in ("float", "max", "min", "abs"):
                return [(state, gradients[0], None)]
            result = Result(callee, (*pos, *(v for _, v in sorted(kw.items()))), taint=taint)
        return [(state, result, None)]

    def _super(self, pos: list[Value], state: Machine) -> Value:
        marker = state.frame.get("#scope")
        if marker is None:
            return Sym("super")
        scope = marker.parts[1]
        env = state.links[state.stack[-1]][0]
        instance = state.frame.get(scope.params[0].name) if scope.params else None
        if isinstance(instance, Instance) and scope.parent is not None and scope.parent.kind == "class":
            for cls in self.x.classes.lineage(instance.cls, state)[0]:
                if cls.scope is scope.parent:
                    return Super(instance, cls)
            return Super(instance, Class(env, scope.parent, -env.number))
        return Sym("super", scope)

    @staticmethod
    def _isinstance(value: Value, cls: Value) -> Value | None:
        if isinstance(value, Scaler) and isinstance(cls, Ext):
            role = library.role(cls.dotted)
            if role == "scaler":
                return TRUE
            return FALSE if value.constructed and role != "sharded_scaler" else None
        if isinstance(value, Instance) and isinstance(cls, Class) and value.cls is cls:
            return TRUE
        if isinstance(value, (ListV, DictV)) and isinstance(cls, Ext) and cls.dotted in _CONTAINERS:
            return TRUE if _CONTAINERS[cls.dotted] is type(value) else FALSE
        if value is NONE:
            return FALSE
        return None

    def _has(self, value: Value, name: str, state: Machine) -> Value | None:
        """Whether an object has an attribute, as far as its class and what was executed tell."""
        if name == "__call__" and isinstance(value, (Func, Class, Partial, Const)):
            return FALSE if isinstance(value, Const) else TRUE
        if not isinstance(value, Instance):
            return None
        if self.x.classes.method(value.cls, name, state) is not None or (value, name) in state.heap:
            return TRUE
        lineage, libraries = self.x.classes.lineage(value.cls, state)
        if libraries or value.is_given or self.x.classes.method(value.cls, "__getattr__", state) is not None:
            return None
        envs = {state.links[state.stack[-1]][0], *(cls.env for cls in lineage)}
        # whoever sets the attribute, or defines it, writes its name, or says that it does so by other means
        written = _SETS_ANY | {name}
        return None if any(not written.isdisjoint(env.program.body.words) for env in envs) else FALSE

    def exit(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        """`sys.exit()` and its like leave the path."""
        return [(state, NONE, ("raise", None))]

    def same_value(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        """A function that hands its argument back."""
        return [(state, pos[0] if pos else NONE, None)]

    def typing_cast(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        """`typing.cast(type, value)` is its value."""
        return [(state, pos[1] if len(pos) > 1 else NONE, None)]

    def launch(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        """`Thread(target=function, args=...)`, `spawn(function, args=...)`: the function runs once, here."""
        role = library.role(callee.dotted)
        first = 1 if role == "runs_target" else 0
        given = pos[first : first + 1] or [kw[name] for name in ("target", "fn", "function") if name in kw]
        target = given[0] if given else NONE
        launched = Result(callee, tuple(pos), state.loops)
        if not isinstance(target, (Func, Partial)):
            return [(state, launched, None)]
        arguments = kw.get("args", pos[first + 1] if len(pos) > first + 1 else Sequence())
        values = list(self.x.loops.items_of(arguments, state) or (Spread(arguments),))
        if role == "runs_ranked":
            values.insert(0, Sym("rank", id(site.node)))
        outcomes = self.x.calls.invoke(target, values, {}, site, state, stmt)
        return [(after, launched, signal) for after, _, signal in outcomes]

    def partial(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        """`functools.partial(function, ...)`."""
        if not pos:
            return [(state, Result(callee, (), state.loops), None)]
        return [(state, Partial(pos[0], tuple(pos[1:]), tuple(kw.items())), None)]
