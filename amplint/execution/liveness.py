"""Which variables one round of a loop hands to the next.

What a round binds anew before it reads it says nothing about the round before, and need not keep paths apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amplint.program import (
    Assign,
    Branch,
    Call,
    Closure,
    Define,
    Loop,
    Name,
    Region,
    Seq,
    Star,
    Try,
    Yield,
    expressions_of,
    parts_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from amplint.program import Expr, Stmt


def carried(loop: Loop) -> frozenset[str]:
    """The variables that a round of a loop, or its `else`, may read before it has bound them."""
    read: set[str] = set()
    bound = _targets(loop.target)
    _follow(loop.prelude, bound, read)
    _read((loop.test,), bound, read)
    _follow(loop.body, bound, read)
    _read((loop.element, loop.key), bound, read)
    _follow(loop.orelse, set(), read)
    return frozenset(read)


def _follow(block: list[Stmt], bound: set[str], read: set[str]) -> None:
    """Go through a block: what it may read unbound is added to `read`, what it has bound at its end to `bound`."""
    for stmt in block:
        if isinstance(stmt, Assign):
            _read((stmt.value, *([stmt.target] if stmt.augmented else _places(stmt.target))), bound, read)
            bound |= _targets(stmt.target)
        elif isinstance(stmt, (Call, Yield)):
            _read(expressions_of(stmt), bound, read)
            bound.add(stmt.result)
        elif isinstance(stmt, Branch):
            _read((stmt.test,), bound, read)
            then, orelse = set(bound), set(bound)
            _follow(stmt.then, then, read)
            _follow(stmt.orelse, orelse, read)
            bound |= then & orelse
        elif isinstance(stmt, Loop):
            _read((stmt.iterable,), bound, read)
            read |= carried(stmt) - bound
            bound |= {stmt.collect} - {""}
        elif isinstance(stmt, Region):
            _read((stmt.context, *_places(stmt.target)), bound, read)
            bound |= _targets(stmt.target)
            _follow(stmt.body, bound, read)
        elif isinstance(stmt, Try):
            _read(expressions_of(stmt), bound, read)
            _follow(stmt.body + stmt.orelse, set(bound), read)
            for handler in stmt.handlers:
                _follow(handler.body, bound | {handler.name or ""}, read)
            _follow(stmt.final, bound, read)
        elif isinstance(stmt, Define):
            # whenever it is called
            read |= stmt.scope.words
            bound.add(stmt.scope.name)
        else:
            _read(expressions_of(stmt), bound, read)


def _read(expressions: Iterable[Expr | None], bound: set[str], read: set[str]) -> None:
    for expression in expressions:
        for part in parts_of(expression):
            if isinstance(part, Name) and part.id not in bound:
                read.add(part.id)
            elif isinstance(part, Closure):
                read |= part.scope.words


def _targets(target: Expr | None) -> set[str]:
    """The variables that an assignment to a target binds."""
    if isinstance(target, Name):
        return {target.id}
    if isinstance(target, Star):
        return _targets(target.value)
    return set().union(*map(_targets, target.items)) if isinstance(target, Seq) else set()


def _places(target: Expr | None) -> Iterator[Expr]:
    """The parts of a target that have to be looked up: attributes and items, and no plain variables."""
    if isinstance(target, Star):
        yield from _places(target.value)
    elif isinstance(target, Seq):
        for item in target.items:
            yield from _places(item)
    elif target is not None and not isinstance(target, Name):
        yield target
