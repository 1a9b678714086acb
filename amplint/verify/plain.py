"""Operators and methods of plain Python values, with bounds on what they may make."""

from __future__ import annotations

import ast
import operator
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

MAX_BITS = 4096
MAX_ITEMS = 100_000


class Unsupported(Exception):
    """The replay met something it does not interpret."""


BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.MatMult: operator.matmul,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}
COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
}
PLAIN = (int, float, complex, str, bool, bytes, type(None))
CONTAINERS = (list, tuple, dict, set, deque, OrderedDict, range)


def bounded_binary(op: ast.operator, left: Any, right: Any) -> object:
    """`left op right` for plain Python values, refused where the result could be huge."""
    if isinstance(op, ast.Pow):
        if isinstance(left, int) and isinstance(right, int) and abs(left) > 1:
            if right < 0:
                return float(left) ** right
            if left.bit_length() * right > MAX_BITS:
                raise Unsupported("a power too large to compute")
    elif isinstance(op, ast.LShift) and isinstance(right, int) and right > MAX_BITS:
        raise Unsupported("a shift too large to compute")
    elif isinstance(op, ast.Mult):
        for sequence, count in ((left, right), (right, left)):
            if (
                isinstance(sequence, str | bytes | list | tuple)
                and isinstance(count, int)
                and (len(sequence) * max(count, 0) > MAX_ITEMS)
            ):
                raise Unsupported("a sequence too long to repeat")
        if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > MAX_BITS:
            raise Unsupported("a product too large to compute")
    elif isinstance(op, ast.Add) and isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
        if len(left) + len(right) > MAX_ITEMS:
            raise Unsupported("a sequence too long to build")
    elif isinstance(op, ast.Mod) and isinstance(left, str | bytes):
        return left
    return BINARY[type(op)](left, right)


#: methods of plain containers that stay inside the interpreter
LIST_METHODS = {
    "append",
    "extend",
    "insert",
    "pop",
    "remove",
    "index",
    "count",
    "reverse",
    "clear",
    "copy",
    "appendleft",
    "popleft",
}
DICT_METHODS = {"get", "items", "keys", "values", "pop", "update", "setdefault", "copy", "clear"}
SET_METHODS = {"add", "discard", "remove", "update", "union", "copy", "clear"}
STR_METHODS = {
    "lower",
    "upper",
    "startswith",
    "endswith",
    "split",
    "strip",
    "lstrip",
    "rstrip",
    "replace",
    "title",
    "capitalize",
    "partition",
    "rpartition",
    "find",
    "isdigit",
    "splitlines",
    "removeprefix",
    "removesuffix",
}


def container_method(value: object, name: str) -> Callable[..., object] | None:
    """The bound method of a plain container or string, if it is one of the harmless ones."""
    if isinstance(value, str):
        if name in ("format", "join", "encode", "decode"):
            return lambda *args, **keywords: value
        allowed = STR_METHODS
    elif isinstance(value, list | tuple | deque):
        allowed = LIST_METHODS
    elif isinstance(value, dict):
        allowed = DICT_METHODS
    elif isinstance(value, set):
        allowed = SET_METHODS
    elif isinstance(value, int | float) and name in ("item", "float", "detach", "cpu", "mean", "sum", "double"):
        return lambda *args, **keywords: value
    elif isinstance(value, float | int) and name == "is_integer":
        return lambda: float(value).is_integer()
    else:
        return None
    if name not in allowed or not hasattr(value, name):
        return None
    method: Callable[..., object] = getattr(value, name)
    if name in ("items", "keys", "values"):
        return lambda: list(method())  # type: ignore[call-overload]
    return method
