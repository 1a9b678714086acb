"""What two paths decided alike about values that become one where the paths are joined.

`if index is not None` may have been asked of two different values of `index`; where both came out the same, the joined
path knows it of the value that stands for both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from amplint import guards
from amplint.guards import Atom
from amplint.values import OpV, Value

#: atoms that name a value as it was asked about; what divides what is kept in an order of its own
_RENAMED = frozenset({"true", "none", "eq", "lt"})


def decided_alike(
    mine: dict[Atom, bool], theirs: dict[Atom, bool], joined: Iterable[tuple[Value, Value, Value]]
) -> dict[Atom, bool]:
    """The decisions that both paths made, in terms of the joined values; `joined` holds what each of them was on either
    path and what it is now."""
    found: dict[Atom, bool] = {}
    for first, second, now in joined:
        here = _renamed(mine, first, now)
        there = _renamed(theirs, second, now) if here else {}
        found.update((atom, outcome) for atom, outcome in here.items() if there.get(atom) is outcome)
        if isinstance(first, OpV) or isinstance(second, OpV):
            # a flag on one path, and a comparison on the other
            truth = guards.outcome(first, mine)
            if truth is not None and guards.outcome(second, theirs) is truth:
                found["true", now] = truth
    return found


def _renamed(assume: Mapping[Atom, bool], old: Value, new: Value) -> dict[Atom, bool]:
    """The decisions about one value as if they were about another."""
    found: dict[Atom, bool] = {}
    for atom, outcome in assume.items():
        if atom[0] in _RENAMED and old in _values_in(atom):
            renamed = (atom[0], *(_replaced(part, old, new) for part in atom[1:]))
            if atom[0] == "eq":
                # which side comes first depends on the values
                literal = guards.literal(OpV("==", *renamed[1:]))
                if isinstance(literal, bool):
                    continue
                renamed, outcome = literal[0], outcome is literal[1]
            found[renamed] = outcome
    return found


@lru_cache(maxsize=4096)
def _values_in(part: Any) -> frozenset[Value]:
    """Every value that an atom, or a value, is made of."""
    own = frozenset((part,)) if isinstance(part, Value) else frozenset()
    inner = part.parts if isinstance(part, Value) else part
    return own.union(*(_values_in(each) for each in inner if isinstance(each, (Value, tuple))))


def _replaced(part: Any, old: Value, new: Value) -> Any:
    if part is old:
        return new
    if not isinstance(part, (Value, tuple)) or old not in _values_in(part):
        return part
    if isinstance(part, tuple):
        return tuple(_replaced(each, old, new) for each in part)
    return type(part)(*(_replaced(each, old, new) for each in part.parts), taint=part.taint)
