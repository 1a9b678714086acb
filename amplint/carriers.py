"""Local names that hold gradients, or lists of them, judged by how a scope makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amplint.library import FILLS, KEEPS_SIZE
from amplint.program import (
    Assign,
    Attr,
    Call,
    Expr,
    Item,
    Loop,
    Name,
    Op,
    Scope,
    Seq,
    Star,
    call_name,
    parts_of,
    path_of,
)

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

#: what gathers the gradients it is given
_GATHERS = frozenset("list tuple zip enumerate iter reversed stack cat".split())


def carriers(scope: Scope, given: AbstractSet[str] = frozenset()) -> frozenset[str]:
    """The names of a scope that hold gradients; `given` are those of its parameters that do."""
    if not given and "grad" not in scope.words:
        return frozenset()
    names = set(given)
    while True:
        before = len(names)
        for stmt in scope.statements:
            if isinstance(stmt, Assign):
                if _holds(stmt.value, names):
                    names |= _targets(stmt.target)
            elif isinstance(stmt, Call):
                _called(stmt, names)
            elif isinstance(stmt, Loop):
                if stmt.target is not None and _holds(stmt.iterable, names):
                    names |= _targets(stmt.target)
                if stmt.collect and _holds(stmt.element, names):
                    names.add(stmt.collect)
        if len(names) == before:
            return frozenset(names)


def uses(stmt: Call, names: AbstractSet[str]) -> bool:
    """Whether a call gets hold of one of these names, or is a method of it."""
    handed = [stmt.func.base if isinstance(stmt.func, Attr) else stmt.func, *(arg.value for arg in stmt.args)]
    return any(isinstance(part, Name) and part.id in names for expr in handed for part in parts_of(expr))


def _called(stmt: Call, names: set[str]) -> None:
    name = call_name(stmt.func)
    base = stmt.func.base if isinstance(stmt.func, Attr) else None
    handed = any(_holds(arg.value, names) for arg in stmt.args)
    if (name in KEEPS_SIZE and (handed or _holds(base, names))) or (name in _GATHERS and handed):
        names.add(stmt.result)
    elif name in FILLS and handed and isinstance(base, Name):
        names.add(base.id)


def _holds(expr: Expr | None, names: AbstractSet[str]) -> bool:
    """Whether an expression is a gradient, or a container of some."""
    if isinstance(expr, Name):
        return expr.id in names
    if isinstance(expr, Attr):
        if expr.name == "grad":
            return path_of(expr.base) not in ("torch.autograd", "autograd", "torch")
        return expr.name == "data" and _holds(expr.base, names)
    if isinstance(expr, Item):
        return _holds(expr.base, names)
    if isinstance(expr, Seq):
        return any(_holds(item, names) for item in expr.items)
    if isinstance(expr, Star):
        return _holds(expr.value, names)
    if isinstance(expr, Op):
        return expr.op in ("ite", "**", "or") and any(_holds(arg, names) for arg in expr.args)
    return False


def _targets(target: Expr) -> frozenset[str]:
    return frozenset(part.id for part in parts_of(target) if isinstance(part, Name))
