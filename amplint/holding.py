"""Which functions the variables, attributes and containers of a module may hold, by their names alone.

A callback in a list, a strategy by name, what `partial` or a decorator makes of a function: whoever calls such a
variable may call what it holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from amplint import library
from amplint.program import (
    Assign,
    Attr,
    Call,
    Closure,
    Const,
    DictDisplay,
    Expr,
    Item,
    Jump,
    Loop,
    Name,
    Op,
    Scope,
    Seq,
    Stmt,
    call_name,
    parts_of,
    walk,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from collections.abc import Set as AbstractSet

    from amplint.project import ModuleEnv

#: methods that run when an object is called
_CALLED = frozenset({"__call__", "forward"})
#: what `getattr` finds in an object by a name that is not written there
_ANY = "getattr()"
#: methods that hand out what a container holds, and functions that make a container of the same
_ELEMENTS = frozenset({"values", "items", "get", "copy", "pop"})
_SAME_ELEMENTS = frozenset({"list", "tuple", "sorted", "reversed", "enumerate", "iter", "set"})


class Functions(NamedTuple):
    """What an expression can be, as far as it is a function: names of functions, and lambdas. `f()` is the name of what
    a function `f` of the module returns."""

    names: frozenset[str] = frozenset()
    lambdas: frozenset[Scope] = frozenset()

    def __or__(self, other: Functions) -> Functions:
        return Functions(self.names | other.names, self.lambdas | other.lambdas)

    @staticmethod
    def union(several: Iterable[Functions]) -> Functions:
        """What is in any of several."""
        found = Functions()
        for some in several:
            found |= some
        return found


class Binding(NamedTuple):
    """A variable, an attribute, a parameter or a result, by its last name, and what it is bound to."""

    name: str
    to: Functions


def held_names(env: ModuleEnv, functions: frozenset[str], scopes: AbstractSet[Scope]) -> frozenset[str]:
    """The last names of the variables, attributes and parameters that may hold one of these functions or lambdas."""
    functions = functions | {_ANY}
    held: set[str] = set()
    while True:
        more = {
            name
            for name, (names, lambdas) in env.bindings
            if name not in held
            and not (names.isdisjoint(functions) and names.isdisjoint(held) and lambdas.isdisjoint(scopes))
        }
        if not more:
            return frozenset(held)
        held |= more


def bindings(env: ModuleEnv) -> Iterator[Binding]:
    """What variables, attributes, parameters and containers are bound to, as far as it can be a function: what is
    written there, or handed to the call whose result is bound, as in `partial(f)` and `torch.compile(f)`."""
    callees = _Callees(env)
    for scope in env.program.scopes:
        for binding in _Bindings(scope, callees).all():
            if binding.name and any(binding.to):
                yield binding


class _Callees:
    """The functions and classes of a module, as those who call them by name see them."""

    def __init__(self, env: ModuleEnv) -> None:
        self._callable_imports = env.callable_imports
        self._functions: dict[str, Scope] = {}
        #: classes without an `__init__`, with their methods
        self._bare: dict[str, frozenset[str]] = {}
        for scope in env.program.scopes:
            made = scope.children.get("__init__") if scope.kind == "class" else scope
            if made is not None:
                self._functions.setdefault(scope.name, made)
            elif scope.kind == "class":
                self._bare.setdefault(scope.name, frozenset(scope.children))

    def parameters(self, call: Call, handed: list[Functions]) -> Iterator[Binding]:
        """What the parameters of the function that is called are bound to."""
        callee = self._functions.get(call_name(call.func))
        if callee is not None:
            plain = [p.name for p in callee.params if p.kind == "plain"][callee.is_method :]
            for position, (arg, given) in enumerate(zip(call.args, handed, strict=True)):
                yield Binding(arg.keyword or (plain[position] if position < len(plain) else ""), given)

    def result(self, call: Call) -> Functions:
        """What a call comes to: what its function returns, or an object that is called like a function."""
        name = call_name(call.func)
        callee = self._functions.get(name)
        if callee is not None:
            own = callee.parent.children if callee.name == "__init__" and callee.parent is not None else {}
            return Functions(frozenset((f"{callee.name}()",)) | _CALLED.intersection(own))
        if name in self._bare:
            return Functions(_CALLED & self._bare[name])
        return Functions(frozenset((name,)) if name in self._callable_imports else frozenset())


class _Bindings:
    """The bindings of one scope, statement by statement."""

    def __init__(self, scope: Scope, callees: _Callees) -> None:
        self._scope = scope
        self._callees = callees
        self._calls = calls_in(scope)
        self._temporaries: dict[str, Functions] = {}
        #: variables of loops over lists and dicts
        self._elements: set[str] = set()

    def all(self) -> Iterator[Binding]:
        for stmt in own_statements(self._scope):
            if isinstance(stmt, Call):
                if not only_looks(stmt):
                    yield from self._call(stmt)
            elif isinstance(stmt, Assign):
                for target, value in _pairs(stmt.target, stmt.value):
                    yield Binding(call_name(container(target, self._calls)), self._functions_of(value))
            elif isinstance(stmt, Jump) and stmt.kind == "return" and stmt.value is not None:
                yield Binding(f"{self._scope.name}()", self._functions_of(stmt.value))
            elif isinstance(stmt, Loop):
                yield from self._loop(stmt)

    def _call(self, stmt: Call) -> Iterator[Binding]:
        handed = [self._functions_of(arg.value) for arg in stmt.args]
        yield from self._callees.parameters(stmt, handed)
        result = Functions.union(handed) | self._callees.result(stmt)
        if isinstance(stmt.func, Attr) and stmt.func.name in library.FILLS:
            yield Binding(call_name(container(stmt.func.base, self._calls)), result)
        result |= Functions(self._looked_up(stmt))
        self._temporaries[stmt.result] = result
        yield Binding(stmt.result, result)

    def _loop(self, stmt: Loop) -> Iterator[Binding]:
        holder = gone_through(stmt, self._calls)
        for part in parts_of(stmt.target):
            if isinstance(part, Name) and isinstance(holder, (Name, Attr)):
                self._elements.add(part.id)
                yield Binding(part.id, Functions(frozenset((call_name(holder),))))

    def _looked_up(self, call: Call) -> frozenset[str]:
        """The name of the method that `getattr(self, "name")` finds; any, where the name is not written there and the
        object is an element of a list."""
        if call_name(call.func) != "getattr" or len(call.args) < 2:
            return frozenset()
        holder, asked = call.args[0].value, call.args[1].value
        if isinstance(asked, Const):
            return frozenset((asked.value,)) if isinstance(asked.value, str) else frozenset()
        return frozenset((_ANY,)) if isinstance(holder, Name) and holder.id in self._elements else frozenset()

    def _functions_of(self, value: Expr) -> Functions:
        """The functions that an expression can be, or holds."""
        if isinstance(value, Item):
            return self._functions_of(value.base)
        found = Functions()
        # what is in a display or an operation is one of its parts; `a.b` is b, whatever a is
        for part in parts_of(value) if isinstance(value, (Op, Seq, DictDisplay)) else (value,):
            if isinstance(part, Closure):
                found |= Functions(lambdas=frozenset((part.scope,)))
            elif isinstance(part, Name) and part.id in self._temporaries:
                found |= self._temporaries[part.id]
            elif isinstance(part, (Name, Attr)):
                found |= Functions(frozenset((call_name(part),)))
        return found


def _pairs(target: Expr, value: Expr) -> Iterator[tuple[Expr, Expr]]:
    """What is assigned to what, tuples element by element."""
    if isinstance(target, Seq) and isinstance(value, Seq) and len(target.items) == len(value.items):
        yield from zip(target.items, value.items, strict=True)
    else:
        yield target, value


def own_statements(scope: Scope) -> Iterator[Stmt]:
    """Every statement that computes a scope's decorators and defaults, and every one of its body."""
    yield from walk(scope.prelude)
    yield from scope.statements


def calls_in(scope: Scope) -> dict[str, Call]:
    """The calls of a scope by the names of their results."""
    return {stmt.result: stmt for stmt in own_statements(scope) if isinstance(stmt, Call)}


def gone_through(loop: Loop, calls: Mapping[str, Call]) -> Expr:
    """The list or dict whose elements a loop goes through."""
    return container(loop.iterable, calls) if loop.iterable is not None else Const(None)


def container(value: Expr, calls: Mapping[str, Call]) -> Expr:
    """The list or dict that an expression is an element of, its elements, or a copy: `self.hooks` of
    `self.hooks[event]`, of `self.hooks.items()` and of `list(self.hooks)`."""
    if isinstance(value, Item):
        return container(value.base, calls)
    call = calls.get(value.id) if isinstance(value, Name) else None
    if call is not None and isinstance(call.func, Attr) and call.func.name in _ELEMENTS:
        return container(call.func.base, calls)
    if call is not None and isinstance(call.func, Name) and call.func.id in _SAME_ELEMENTS and call.args:
        return container(call.args[0].value, calls)
    return value


def only_looks(call: Call) -> bool:
    """Whether a call does not call what it is handed, nor give it back: `isinstance(x, Class)` does not."""
    return isinstance(call.func, Name) and call.func.id in library.ONLY_LOOK
