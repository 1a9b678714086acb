"""What names, attributes and operators stand for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from amplint import library
from amplint.names import names_of
from amplint.precision.calls import READS_DICT, Calls
from amplint.precision.values import (
    LARGEST,
    NOTHING,
    Answer,
    Bases,
    BytesOf,
    Distant,
    DtypeOf,
    Frame,
    Items,
    Library,
    Module,
    Number,
    Own,
    Table,
    Tensor,
    Text,
    Unknown,
    Value,
    dtype_name,
    elements,
    fold,
    joined,
    number,
)
from amplint.program import Assign, Attr, Call, Closure, Const, DictDisplay, Expr, Item, Name, Op, Seq, Star, path_of

if TYPE_CHECKING:
    import libcst as cst

    from amplint.names import Names
    from amplint.project import ModuleEnv

_BINARY = frozenset({"+", "-", "*", "/", "//", "%", "**"})
_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


class Expressions(Calls):
    """Expressions of one walk."""

    def __init__(self, env: ModuleEnv, target: str) -> None:
        super().__init__(env, target)
        #: the variables of the modules that were entered
        self.globals: dict[ModuleEnv, Frame] = {}
        #: the statement that is walked
        self.node: cst.CSTNode | None = None

    @property
    def names(self) -> Names:
        """What the names of the module at hand stand for."""
        return names_of(self.env)

    def value(self, expr: Expr | None, frame: Frame) -> Value:
        if isinstance(expr, Const):
            if isinstance(expr.value, (int, float)) and not isinstance(expr.value, bool):
                return number(expr.value)
            return Text(expr.value) if isinstance(expr.value, str) else Library(f"const.{expr.value}")
        if isinstance(expr, Name):
            return self._name(expr, frame)
        if isinstance(expr, Attr):
            return self._attribute(expr, frame)
        if isinstance(expr, Item):
            base = self.value(expr.base, frame)
            index = self.value(expr.index, frame)
            if (
                isinstance(base, Library)
                and base.last == "ModuleDict"
                and base.made
                and isinstance(base.made[0], Table)
            ):
                base = base.made[0]
            if isinstance(base, Table):
                return base.get(index)
            if isinstance(base, Items) and isinstance(index, Number) and index.value is not None:
                position = int(index.value)
                return base.values[position] if -len(base.values) <= position < len(base.values) else NOTHING
            return base if isinstance(base, Tensor) else self.element(base)
        if isinstance(expr, Op):
            return self._operator(expr, frame)
        if isinstance(expr, Seq):
            return Items(tuple(self.value(i, frame) for i in expr.items))
        if isinstance(expr, Star):
            return self.element(self.value(expr.value, frame))
        if isinstance(expr, Closure):
            return Own(self.env, expr.scope)
        return self._table(expr, frame) if isinstance(expr, DictDisplay) else NOTHING

    def _table(self, expr: DictDisplay, frame: Frame) -> Value:
        keys = [self.value(key, frame) for key, _ in expr.items]
        if not all(isinstance(key, Text) for key in keys):
            return NOTHING
        return Table(
            tuple((key.value, self.value(item, frame)) for key, (_, item) in zip(keys, expr.items, strict=True))
        )

    def _name(self, expr: Name, frame: Frame) -> Value:
        found = frame.get(expr.id)
        if found is not None:
            return found
        if expr.id.startswith("%"):
            return NOTHING
        stmt = self.names.import_of(expr.id, self.stack[-1])
        imported = self.elsewhere.imported(self.env, stmt) if stmt is not None else None
        if imported is not None:
            return imported
        dotted = self.names.of(expr, self.stack[-1])
        if len(dotted) == 1:
            return Library(next(iter(dotted)))
        found = self.globals.get(self.env, {}).get(expr.id)
        if isinstance(found, Table) and expr.id in _filled(self.env):
            return NOTHING
        if found is not None:
            return found
        scope = self.env.program.body.children.get(expr.id)
        if scope is not None:
            return Own(self.env, scope)
        starred = self.elsewhere.starred(self.env, expr.id)
        if starred is not None:
            return starred
        return Library(expr.id) if library.is_builtin(expr.id) else NOTHING

    def _attribute(self, expr: Attr, frame: Frame) -> Value:
        path = path_of(expr)
        if path in frame:
            return frame[path]
        base = self.value(expr.base, frame)
        name = expr.name
        if isinstance(base, Library):
            return Library(f"{base.dotted}.{name}") if base.made is None else self._library_attribute(base, name)
        if isinstance(base, Tensor):
            if name in ("T", "mT", "H", "data", "real"):
                return base
            return DtypeOf(base) if name == "dtype" else NOTHING
        if isinstance(base, Module):
            return self.elsewhere.member(base.file, name) or NOTHING
        if isinstance(base, Bases):
            return self.inherited(base, name)
        if isinstance(base, Items) and name in ("values", "indices") and len(base.values) == 2:
            return base.values[name == "indices"]
        if isinstance(base, Distant) and name == "apply" and base.made is None:
            return replace(base, attribute=name)
        if isinstance(base, Distant):
            base = self.read(base, ()) or base
        if isinstance(base, Own) and base.made is not None:
            return self.member(base, name)
        if isinstance(base, Own) and base.scope.kind == "class" and name in base.scope.children:
            return self.of_class(base, base.scope.children[name])
        if isinstance(base, Own) and base.scope.kind == "class" and name == "apply":
            return Unknown(("function", *base.key), base)
        if name == "dtype":
            return DtypeOf(base)
        if isinstance(base, Unknown) and base.key:
            return Unknown((*base.key, name))
        return NOTHING

    @staticmethod
    def _library_attribute(base: Library, name: str) -> Value:
        if base.last == "finfo" and name in ("min", "max") and base.made:
            largest = LARGEST.get(dtype_name(base.made[0]) or "")
            return Number(None if largest is None else largest if name == "max" else -largest)
        if base.last == "finfo":
            return Number(None)
        return Unknown(("attr", base.dotted, "", name))

    def _operator(self, expr: Op, frame: Frame) -> Value:
        args = [self.value(a, frame) for a in expr.args]
        op = expr.op
        if op == "ite":
            decided = self.outcome(expr.args[0], frame)
            return joined(args[1:]) if decided is None else args[1] if decided else args[2]
        if op in ("neg", "pos") and args:
            if isinstance(args[0], Number) and args[0].value is not None:
                return Number(-args[0].value if op == "neg" else args[0].value)
            return args[0]
        if op == "@" and len(args) == 2:
            self.note("binary", op, args[0], (args[0], args[1]), {}, self.node)
            return self.product(args)
        if op in _BINARY and len(args) == 2:
            folded = fold(op, args[0], args[1])
            if folded is not None:
                return folded
            self.note("binary", op, args[0], (args[0], args[1]), {}, self.node)
            if any(isinstance(a, Tensor) for a in args) and (op == "**" or (op == "/" and isinstance(args[0], Number))):
                # a number divided by a tensor is the tensor's reciprocal
                return self.raised(args)
            return self.promoted(op, args)
        if op in ("or", "and"):
            return joined(args)
        return Tensor("other") if any(isinstance(a, Tensor) for a in args) else NOTHING

    def outcome(self, test: Expr | None, frame: Frame) -> bool | None:
        """Whether a test about dtypes holds, None where that is not known."""
        value = self.value(test, frame)
        if not isinstance(test, Op):
            return value.outcome if isinstance(value, Answer) else None
        if test.op == "not":
            inner = self.outcome(test.args[0], frame)
            return None if inner is None else not inner
        if test.op in ("and", "or"):
            outcomes = [self.outcome(part, frame) for part in test.args]
            deciding = test.op == "or"
            return deciding if deciding in outcomes else None if None in outcomes else not deciding
        if test.op in ("==", "is", "in", "!=", "is not", "not in"):
            left, right = (self.value(part, frame) for part in test.args)
            if isinstance(left, BytesOf) and isinstance(right, Number):
                size = _BYTES.get(left.tensor.dtype)
                return None if size is None else (size == right.value) == (test.op in ("==", "is"))
            seen = dtype_name(left) if isinstance(left, DtypeOf) else None
            asked = [dtype_name(v) for v in (right.values if isinstance(right, Items) else (right,))]
            if seen is None or None in asked:
                return None
            return (seen in asked) == (test.op in ("==", "is", "in"))
        return None

    @staticmethod
    def element(value: Value) -> Value:
        if isinstance(value, Items) or (isinstance(value, Library) and value.made):
            return joined(list(elements(value)))
        return value if isinstance(value, Tensor) else NOTHING


def _filled(env: ModuleEnv) -> frozenset[str]:
    """The names of the dictionaries that some function of a module may change."""
    known: frozenset[str] | None = env.shared.get("filled")
    if known is None:
        found: set[str] = set()
        for stmt in (stmt for scope in env.program.scopes for stmt in scope.statements):
            if isinstance(stmt, Assign) and isinstance(stmt.target, Item):
                found.add(path_of(stmt.target.base))
            elif isinstance(stmt, Call):
                # whoever is given it may fill it as well
                found.update(path_of(arg.value) for arg in stmt.args)
                if isinstance(stmt.func, Attr) and stmt.func.name not in READS_DICT:
                    found.add(path_of(stmt.func.base))
        known = env.shared["filled"] = frozenset(found)
    return known
