"""Guards: what a condition says, and which conditions decide one another.

A condition is reduced to literals over atoms; an atom that was decided on a path keeps its outcome
as long as the values in it are the same. Atoms:

    ("none", x)      x is None             ("true", x)     x is truthy
    ("eq", x, y)     x == y                ("lt", x, y)    x < y
    ("mod", f, n)    n divides f, where f is a linear form: `(i + 1) % n == 0` and `i % n == n - 1` are one atom
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from amplint.values import (
    NONE,
    AttrOf,
    Class,
    Const,
    Context,
    DictV,
    Ext,
    Framework,
    Func,
    Grad,
    Instance,
    ItemOf,
    ListV,
    Net,
    Optimizer,
    OpV,
    Param,
    Params,
    Partial,
    Result,
    Scaler,
    Scheduler,
    Sequence,
    StateOf,
    Sym,
    Value,
)

Atom = tuple[Any, ...]
Literal = tuple[Atom, bool]

_OBJECTS = (
    Class,
    Context,
    DictV,
    Ext,
    Framework,
    Func,
    Instance,
    ListV,
    Net,
    Optimizer,
    Params,
    Partial,
    Scheduler,
    StateOf,
    Param,
)
_FLIPPED = {"!=": "==", "is not": "is", "not in": "in", ">=": "<"}


@lru_cache(maxsize=8192)
def literal(value: Value) -> bool | Literal:
    """A condition as its truth, where that is known, else as (atom, polarity).

    `and`, `or` and `ite` are not literals; `amplint.execution` splits them first.
    """
    if isinstance(value, Const):
        return bool(value.value)
    if isinstance(value, OpV):
        return _operator(value)
    if isinstance(value, Scaler):
        return True if value.constructed else (("none", value), False)
    if isinstance(value, StateOf) and isinstance(value.of, Scaler):
        # a scaler that is switched off has an empty state
        return literal(value.of.enabled) if value.of.constructed else (("true", AttrOf(value.of, "enabled")), True)
    if isinstance(value, Sequence):
        return bool(value.items)
    if isinstance(value, (DictV, ListV)):
        return ("true", value), True
    if isinstance(value, _OBJECTS):
        return True
    if (
        isinstance(value, Result)
        and isinstance(value.callee, Ext)
        and value.callee.dotted == "bool"
        and len(value.args) == 1
    ):
        return literal(value.args[0])
    return ("true", value), True


def _operator(value: OpV) -> bool | Literal:
    op, args = value.op, value.args
    if op == "not":
        return negate(literal(args[0]))
    if op in _FLIPPED:
        return negate(literal(OpV(_FLIPPED[op], *args)))
    if op == ">":
        return literal(OpV("<", args[1], args[0]))
    if op == "<=":
        return negate(literal(OpV("<", args[1], args[0])))
    if op == "is" and args[1] is NONE:
        return _none(args[0])
    if op in ("==", "is"):
        return _equal(args[0], args[1])
    if op == "<":
        left, right = args
        if isinstance(left, Const) and isinstance(right, Const):
            try:
                return bool(left.value < right.value)
            except TypeError:
                return ("lt", left, right), True
        return ("lt", left, right), True
    if op == "%" and len(args) == 2:
        return negate(_divides(args[0], args[1]))
    return ("true", value), True


def negate(lit: bool | Literal) -> bool | Literal:
    """The opposite of a literal."""
    return not lit if isinstance(lit, bool) else (lit[0], not lit[1])


def _none(value: Value) -> bool | Literal:
    if isinstance(value, Const):
        return value is NONE
    if isinstance(value, Scaler):
        return False if value.constructed else (("none", value), True)
    if isinstance(value, (*_OBJECTS, Sequence, Grad)):
        # gradients are looked at after a backward, where they exist
        return False
    if isinstance(value, OpV) and value.op not in ("ite", "and", "or"):
        return False
    return ("none", value), True


def _equal(left: Value, right: Value) -> bool | Literal:
    if left is right and not isinstance(left, (Sym, Result)):
        return True
    if isinstance(left, Const) and isinstance(right, Const):
        return bool(left.value == right.value)
    if isinstance(left, Ext) and isinstance(right, Ext):
        return left is right
    if isinstance(left, OpV) and left.op == "%" and len(left.args) == 2:
        return _divides(OpV("-", left.args[0], right), left.args[1])
    if isinstance(right, OpV) and right.op == "%" and len(right.args) == 2:
        return _equal(right, left)
    if (
        isinstance(left, Const)
        or (isinstance(left, Ext) and not isinstance(right, Const))
        or (not isinstance(right, (Const, Ext)) and right.uid < left.uid)
    ):
        left, right = right, left
    if isinstance(right, Const) and isinstance(right.value, bool):
        # `flag is True` and `if flag` are one question
        return literal(left) if right.value else negate(literal(left))
    return ("eq", left, right), True


# --- remainders ----------------------------------------------------------------------------------

Linear = tuple[tuple[tuple[Value, int], ...], int]


@lru_cache(maxsize=8192)
def linear(value: Value) -> Linear:
    """`value` as an integer combination of unknown terms and a constant."""
    terms: dict[Value, int] = {}
    constant = 0

    def add(v: Value, factor: int) -> None:
        nonlocal constant
        if isinstance(v, Const) and isinstance(v.value, int):
            constant += factor * int(v.value)
        elif isinstance(v, OpV) and v.op == "+":
            add(v.args[0], factor)
            add(v.args[1], factor)
        elif isinstance(v, OpV) and v.op == "-" and len(v.args) == 2:
            add(v.args[0], factor)
            add(v.args[1], -factor)
        elif isinstance(v, OpV) and v.op == "neg":
            add(v.args[0], -factor)
        else:
            terms[v] = terms.get(v, 0) + factor

    add(value, 1)
    kept = sorted(((v, f) for v, f in terms.items() if f), key=lambda pair: pair[0].uid)
    return tuple(kept), constant


def _divides(form: Value, modulus: Value) -> bool | Literal:
    terms, constant = linear(form)
    if isinstance(modulus, Const) and isinstance(modulus.value, int) and modulus.value:
        n = int(modulus.value)
        terms = tuple((v, f % n) for v, f in terms if f % n)
        constant %= n
        if n == 1:
            return True
        if not terms:
            return constant == 0
    else:
        terms = tuple((v, f) for v, f in terms if v is not modulus)
        if not terms and constant == 0:
            return True
    return ("mod", (terms, constant), modulus), True


#: parameters that count from the beginning of the run on
_COUNTS_THE_RUN = re.compile(
    r"(?:^|_)(?:(?:cur|current|this|n|num|global)_)?(?:iter|iteration|epoch)(?:_?(?:num|idx|count|no|i))?$"
    r"|(?:^|_)global_(?:step|iter)|(?:^|_)total_(?:steps|iters)$",
    re.IGNORECASE,
)

# --- what follows from what ----------------------------------------------------------------------


def known(atom: Atom, assume: dict[Atom, bool]) -> bool | None:
    """The outcome of an atom under what was decided before, None where it is free."""
    direct = assume.get(atom)
    if direct is not None:
        return direct
    return _IMPLIED.get(atom[0], _nothing)(atom, assume)


def excludes(first: dict[Atom, bool], second: dict[Atom, bool]) -> bool:
    """Whether what was decided on one path rules out what was decided on another. Paths that were joined keep the
    events of one of them, which may be of an arm that a later test of the same option excludes."""
    return any(known(atom, second) is (not outcome) for atom, outcome in first.items())


def outcome(value: Value, assume: dict[Atom, bool]) -> bool | None:
    """The outcome of a condition, by its parts or as it was decided as a whole; None where it is free."""
    found = _by_parts(value, assume)
    return assume.get(("true", value)) if found is None else found


def _by_parts(value: Value, assume: dict[Atom, bool]) -> bool | None:
    if isinstance(value, OpV) and value.op == "not":
        inner = outcome(value.args[0], assume)
        return None if inner is None else not inner
    if isinstance(value, OpV) and value.op in ("and", "or"):
        parts = [outcome(part, assume) for part in value.args]
        decisive = value.op == "or"
        return decisive if decisive in parts else None if None in parts else not decisive
    if isinstance(value, OpV) and value.op == "ite":
        test = outcome(value.args[0], assume)
        if test is None:
            both = {outcome(choice, assume) for choice in value.args[1:]}
            return both.pop() if len(both) == 1 else None
        return outcome(value.args[1 if test else 2], assume)
    lit = literal(value)
    if isinstance(lit, bool):
        return lit
    decided = known(lit[0], assume)
    return None if decided is None else decided is lit[1]


def contradictory(assume: dict[Atom, bool], latest: Atom) -> bool:
    """Whether a condition that was decided as a whole cannot have come out as it did, now that `latest`, which may be
    about a part of it, is decided."""
    wholes = [atom for atom in assume if atom[0] == "true" and type(atom[1]) is OpV and atom[1].op in ("and", "or")]
    if not wholes:
        return False
    about = [part for part in latest[1:] if isinstance(part, Value)]
    for atom in wholes:
        asked = _asked(atom[1])
        if any(part in asked for part in about):
            found = _by_parts(atom[1], assume)
            if found is not None and found is not assume[atom]:
                return True
    return False


@lru_cache(maxsize=4096)
def _asked(condition: Value) -> frozenset[Value]:
    """What the parts of a condition ask about."""
    if isinstance(condition, OpV) and condition.op in ("and", "or", "not"):
        return frozenset().union(*map(_asked, condition.args))
    lit = literal(condition)
    return frozenset() if isinstance(lit, bool) else frozenset(part for part in lit[0][1:] if isinstance(part, Value))


def _nothing(_atom: Atom, _assume: dict[Atom, bool]) -> bool | None:
    return None


def _truth(atom: Atom, assume: dict[Atom, bool]) -> bool | None:
    value = atom[1]
    if assume.get(("none", value)):
        return False
    for other, outcome in assume.items():
        if outcome and other[0] == "eq" and other[1] is value and isinstance(other[2], Const):
            return bool(other[2].value)
    return None


def _noneness(atom: Atom, assume: dict[Atom, bool]) -> bool | None:
    value = atom[1]
    if assume.get(("true", value)):
        return False
    for other, outcome in assume.items():
        if outcome and other[0] == "eq" and other[1] is value:
            return other[2] is NONE
        if outcome and other[0] == "lt" and (other[1] is value or other[2] is value):
            return False
    return None


def _equality(atom: Atom, assume: dict[Atom, bool]) -> bool | None:
    value, right = atom[1], atom[2]
    if not isinstance(right, (Const, Ext)):
        return _apart(value, right, assume)
    if right is NONE:
        return assume.get(("none", value))
    if assume.get(("none", value)):
        return False
    truth = assume.get(("true", value))
    if truth is False and isinstance(right, Const) and right.value:
        return False
    if truth is True and isinstance(right, Const) and not right.value:
        return False
    for other, outcome in assume.items():
        if (
            outcome
            and other[0] == "eq"
            and other[1] is value
            and other[2] is not right
            and isinstance(other[2], (Const, Ext))
        ):
            return False
    return _apart(value, right, assume) if _is_integer(right) else None


def _is_integer(value: Value) -> bool:
    return isinstance(value, Const) and isinstance(value.value, int) and not isinstance(value.value, bool)


def _apart(left: Value, right: Value, assume: dict[Atom, bool]) -> bool | None:
    """False where another equation holds that differs by a constant: k == n rules k + 1 == n out."""
    forms: tuple[Linear, ...] = ()
    for other, outcome in assume.items():
        if outcome and other[0] == "eq" and (_is_integer(other[2]) or not isinstance(other[2], (Const, Ext))):
            forms = forms or (linear(OpV("-", left, right)), linear(OpV("-", right, left)))
            terms, constant = linear(OpV("-", other[1], other[2]))
            if any(terms == mine and constant != apart for mine, apart in forms):
                return False
    return None


def _less(atom: Atom, assume: dict[Atom, bool]) -> bool | None:
    left, right = atom[1], atom[2]
    if assume.get(("lt", right, left)):
        return False
    if assume.get(("eq", left, right)) or assume.get(("eq", right, left)):
        return False
    if assume.get(("lt", left, _in_the_call_before(right))):
        return True
    if assume.get(("lt", _in_the_call_before(left), right)) is False:
        return False
    for other, outcome in assume.items():
        if other[0] != "lt":
            continue
        # a bound on one side: 0 < x decides -1 < x, and x < 2 decides x < 3
        if isinstance(left, Const) and other[2] is right and isinstance(other[1], Const):
            if outcome and other[1].value >= left.value:
                return True
            if not outcome and other[1].value <= left.value:
                return False
        if isinstance(right, Const) and other[1] is left and isinstance(other[2], Const):
            if outcome and other[2].value <= right.value:
                return True
            if not outcome and other[2].value >= right.value:
                return False
    return None


def _in_the_call_before(value: Value) -> Value | None:
    """What a counter of the whole run was in the call before, of an entry that is driven again: it only grows."""
    if isinstance(value, Sym) and value.parts[0] == "param" and len(value.parts) == 5:
        *origin, drive, name = value.parts
        if drive and _COUNTS_THE_RUN.search(name):
            return Sym(*origin, drive - 1, name)
    return None


def _remainder(atom: Atom, assume: dict[Atom, bool]) -> bool | None:
    (terms, constant), modulus = atom[1], atom[2]
    number = modulus.value if isinstance(modulus, Const) and isinstance(modulus.value, int) else 0
    excluded = set()
    for other, outcome in assume.items():
        if other[0] != "mod" or other[2] is not modulus:
            continue
        other_terms, other_constant = other[1]
        if other_terms != terms or other_constant == constant:
            continue
        if not outcome:
            excluded.add(other_constant)
            continue
        distance = abs(constant - other_constant)
        if number:
            return bool(distance % number == 0)
        if distance == 1:
            # two boundaries in a row would mean a window of one
            return False
    # one of so many batches in a row is a boundary
    return True if number and len(excluded) == number - 1 else None


_IMPLIED = {"true": _truth, "none": _noneness, "eq": _equality, "lt": _less, "mod": _remainder}


# --- words ---------------------------------------------------------------------------------------


def describe(value: Value) -> str:
    """A value as a person would write it; "" where there is no short way."""
    if isinstance(value, Const):
        return repr(value.value)
    if isinstance(value, Ext):
        return value.dotted
    if isinstance(value, Sym):
        return str(value.parts[-1])
    if isinstance(value, Scaler) and not value.constructed:
        return describe(value.parts[0][1])
    if isinstance(value, Optimizer) and value.inferred_from is not None:
        return describe(value.inferred_from)
    if isinstance(value, AttrOf):
        base = describe(value.base)
        return f"{base}.{value.name}" if base else value.name
    if isinstance(value, Instance):
        return "self"
    if isinstance(value, ItemOf):
        base = describe(value.parts[0])
        index = value.parts[1]
        return f"{base}[{describe(index) if isinstance(index, Value) else index}]"
    if isinstance(value, Result):
        return f"{describe(value.callee)}({', '.join(describe(a) for a in value.args if isinstance(a, Value))})"
    if isinstance(value, Func):
        return value.scope.name
    if isinstance(value, OpV):
        if len(value.args) == 2:
            return f"{describe(value.args[0])} {value.op} {describe(value.args[1])}"
        return f"{value.op} " + " ".join(describe(a) for a in value.args)
    return type(value).__name__.lower()


def sentence(atom: Atom, outcome: bool) -> str:
    """A decided atom in words, e.g. "use_amp is true"."""
    kind = atom[0]
    if kind == "none":
        return f"{describe(atom[1])} is {'' if outcome else 'not '}None"
    if kind == "true":
        return f"{describe(atom[1])} is {'true' if outcome else 'false'}"
    if kind == "eq":
        return f"{describe(atom[1])} {'==' if outcome else '!='} {describe(atom[2])}"
    if kind == "lt":
        return f"{describe(atom[1])} {'<' if outcome else '>='} {describe(atom[2])}"
    (terms, constant), modulus = atom[1], atom[2]
    parts = [describe(v) if f == 1 else f"{f} * {describe(v)}" for v, f in terms]
    if constant:
        parts.append(str(constant))
    return f"({' + '.join(parts)}) % {describe(modulus)} {'==' if outcome else '!='} 0"


_STAGE = re.compile(r"OptState|UNSCALED|_per_optimizer_states|\bstage\b")


def asks_for_stage(assume: Mapping[Any, bool]) -> bool:
    """Whether a path was decided by torch's own record of what has been unscaled, which knows better."""
    return any(_STAGE.search(sentence(atom, True)) for atom in assume if atom[0] != "mod")
