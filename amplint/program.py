"""The AMP program: what is left of a module once everything that cannot matter is gone.

A `Scope` (module body, function, class) holds a tree of statements. Expressions are small and free
of calls: every call stands in a `Call` statement of its own and binds its result to a temporary
name (`%1`, `%2`, ...), so that only statements can branch, have effects or be inlined.

Nodes compare by identity. `node` is the LibCST node they came from; positions are looked up there
for the few places that end up in a finding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    import libcst as cst


# --- expressions ---------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Name:
    """A variable; temporaries begin with `%`."""

    id: str


@dataclass(slots=True, eq=False)
class Const:
    """A literal: None, bool, int, float, str, bytes or Ellipsis."""

    value: object


@dataclass(slots=True, eq=False)
class Attr:
    """`base.name`"""

    base: Expr
    name: str
    node: cst.CSTNode | None = None


@dataclass(slots=True, eq=False)
class Item:
    """`base[index]`"""

    base: Expr
    index: Expr


@dataclass(slots=True, eq=False)
class Op:
    """An operator over its operands: arithmetic, comparison (`==`, `is`, `in`, ...), `not`, `and`, `or`,
    `ite` (conditional expression: test, then, else), `slice`, `fstring`."""

    op: str
    args: tuple[Expr, ...]


@dataclass(slots=True, eq=False)
class Seq:
    """A tuple, list or set display; starred items are `Star`."""

    kind: Literal["tuple", "list", "set"]
    items: tuple[Expr, ...]
    node: cst.CSTNode | None = None


@dataclass(slots=True, eq=False)
class Star:
    """`*value` inside a display or a target."""

    value: Expr


@dataclass(slots=True, eq=False)
class DictDisplay:
    """`{key: value, **other}`; the key of a `**` entry is None."""

    items: tuple[tuple[Expr | None, Expr], ...]
    node: cst.CSTNode


@dataclass(slots=True, eq=False)
class Closure:
    """A lambda or a nested function as a value."""

    scope: Scope


Expr: TypeAlias = Name | Const | Attr | Item | Op | Seq | Star | DictDisplay | Closure


# --- statements ----------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Arg:
    """One argument of a call: positional, keyword, `*star` or `**star`."""

    value: Expr
    keyword: str | None = None
    star: Literal["", "*", "**"] = ""


@dataclass(slots=True, eq=False)
class Call:
    """`result = func(args)`; what the call means is decided when it is executed."""

    result: str
    func: Expr
    args: tuple[Arg, ...]
    node: cst.CSTNode
    #: the value is thrown away (the call is an expression statement)
    dropped: bool = False


@dataclass(slots=True, eq=False)
class Assign:
    """`target = value`; an augmented assignment reads its target in `value`."""

    target: Expr
    value: Expr
    node: cst.CSTNode
    augmented: bool = False


@dataclass(slots=True, eq=False)
class Evaluate:
    """An expression statement that is no call (`torch.autocast` without parentheses, say)."""

    value: Expr
    node: cst.CSTNode


@dataclass(slots=True, eq=False)
class Branch:
    """`if test: then else: orelse`"""

    test: Expr
    then: list[Stmt]
    orelse: list[Stmt]
    node: cst.CSTNode


@dataclass(slots=True, eq=False)
class Loop:
    """A `for` (target, iterable), a `while` (prelude computes `test` anew each time round), or a
    comprehension (`collect` names the temporary that gathers `element`)."""

    kind: Literal["for", "while", "comprehension"]
    target: Expr | None
    iterable: Expr | None
    prelude: list[Stmt]
    test: Expr | None
    body: list[Stmt]
    orelse: list[Stmt]
    node: cst.CSTNode
    collect: str = ""
    element: Expr | None = None
    shape: Literal["list", "dict", ""] = ""
    key: Expr | None = None


@dataclass(slots=True, eq=False)
class Handler:
    """One `except` clause; `type` is None where it catches everything."""

    type: Expr | None
    name: str | None
    body: list[Stmt]
    node: cst.CSTNode


@dataclass(slots=True, eq=False)
class Try:
    """`try` with its handlers, `else` and `finally`.

    `raising` are positions in the body where a statement that was left out may raise.
    """

    body: list[Stmt]
    handlers: list[Handler]
    orelse: list[Stmt]
    final: list[Stmt]
    node: cst.CSTNode
    raising: frozenset[int] = frozenset()


@dataclass(slots=True, eq=False)
class Region:
    """`with context [as target]: body`; a statement with several items nests."""

    context: Expr
    target: Expr | None
    body: list[Stmt]
    node: cst.CSTNode


@dataclass(slots=True, eq=False)
class Jump:
    """`return`, `break`, `continue` or `raise`."""

    kind: Literal["return", "break", "continue", "raise"]
    value: Expr | None
    node: cst.CSTNode


@dataclass(slots=True, eq=False)
class Yield:
    """A suspension point: the body of a `with` runs here when the function is a context manager."""

    value: Expr | None
    node: cst.CSTNode
    result: str = ""


@dataclass(slots=True, eq=False)
class Define:
    """`def` or `class`: binds the scope's name."""

    scope: Scope
    node: cst.CSTNode


@dataclass(slots=True, eq=False)
class Import:
    """Binds `name` to `dotted` (`member` of it for `from dotted import member`). A star import has member `*`.

    `level` counts the leading dots of a relative import.
    """

    name: str
    dotted: str
    member: str | None
    level: int
    node: cst.CSTNode

    @property
    def full_name(self) -> str:
        """What is imported, by its whole name: "torch.amp.GradScaler"."""
        return self.dotted if self.member is None else f"{self.dotted}.{self.member}".lstrip(".")


@dataclass(slots=True, eq=False)
class Global:
    """`global` / `nonlocal` names."""

    names: tuple[str, ...]


@dataclass(slots=True, eq=False)
class Delete:
    """`del target`"""

    target: Expr
    node: cst.CSTNode


Stmt: TypeAlias = (
    Call | Assign | Evaluate | Branch | Loop | Try | Region | Jump | Yield | Define | Import | Global | Delete
)


@dataclass(slots=True, eq=False)
class Param:
    """A parameter; `default` is an expression without calls, or None where there is none."""

    name: str
    default: Expr | None = None
    annotation: str = ""
    kind: Literal["plain", "keyword", "*", "**"] = "plain"


#: statements of a function that only computes something from its arguments, and the builtins that it may call
MAX_FORMULA = 12
_COUNTING = frozenset({"len", "int", "bool", "min", "max", "abs"})


@dataclass(slots=True, eq=False)
class Scope:
    """A module body, a function (a lambda too) or a class body.

    `number` is unique within the module and follows the source order, which makes results
    independent of hash seeds.
    """

    kind: Literal["module", "function", "class"]
    name: str
    qualname: str
    node: cst.CSTNode = field(repr=False)
    number: int
    parent: Scope | None = None
    params: tuple[Param, ...] = ()
    decorators: tuple[Expr, ...] = ()
    #: statements that compute the decorators, the defaults and the bases
    prelude: list[Stmt] = field(default_factory=list)
    bases: tuple[Expr, ...] = ()
    body: list[Stmt] = field(default_factory=list)
    is_generator: bool = False
    #: nested functions and classes by name
    children: dict[str, Scope] = field(default_factory=dict)
    #: names declared global or nonlocal here
    outer_names: frozenset[str] = frozenset()
    #: every name and attribute that occurs in the source of this scope, nested scopes included
    words: frozenset[str] = frozenset()
    _statements: tuple[Stmt, ...] | None = field(default=None, init=False, repr=False)
    _is_formula: bool | None = field(default=None, init=False, repr=False)
    #: attributes of `self` that a method binds, for classes: attribute -> methods that bind it
    bound_attributes: dict[str, list[str]] = field(default_factory=dict)
    #: names that a class body annotates, in order: the fields of a dataclass or a named tuple
    fields: list[str] = field(default_factory=list)

    @property
    def statements(self) -> tuple[Stmt, ...]:
        """Every statement of the body, nested ones too, in source order."""
        if self._statements is None:
            self._statements = tuple(walk(self.body))
        return self._statements

    @property
    def is_method(self) -> bool:
        return self.kind == "function" and self.parent is not None and self.parent.kind == "class"

    @property
    def is_formula(self) -> bool:
        """Whether a function only computes a number or an answer from its arguments: `return (i + 1) % n == 0`."""
        if self._is_formula is None:
            self._is_formula = (
                self.kind == "function"
                and not self.decorators
                and not self.is_generator
                and len(self.statements) <= MAX_FORMULA
                and all(map(_computes, self.statements))
                and any(isinstance(s, Jump) and isinstance(s.value, (Op, Name)) for s in self.statements)
            )
        return self._is_formula


@dataclass(slots=True, eq=False)
class Program:
    """A lowered module: its body, and every scope in source order."""

    body: Scope
    scopes: tuple[Scope, ...]


def _computes(stmt: Stmt) -> bool:
    """Whether a statement is one of a formula."""
    if isinstance(stmt, Assign):
        return isinstance(stmt.target, Name)
    if isinstance(stmt, Call):
        return isinstance(stmt.func, Name) and stmt.func.id in _COUNTING
    return isinstance(stmt, Branch) or (isinstance(stmt, Jump) and stmt.kind == "return")


def blocks(stmt: Stmt) -> Iterator[list[Stmt]]:
    """The statement lists nested directly in a statement."""
    if isinstance(stmt, Branch):
        yield stmt.then
        yield stmt.orelse
    elif isinstance(stmt, Loop):
        yield stmt.prelude
        yield stmt.body
        yield stmt.orelse
    elif isinstance(stmt, Try):
        yield stmt.body
        for handler in stmt.handlers:
            yield handler.body
        yield stmt.orelse
        yield stmt.final
    elif isinstance(stmt, Region):
        yield stmt.body


_COMPOUND = frozenset({Branch, Loop, Try, Region})


def walk(body: list[Stmt]) -> Iterator[Stmt]:
    """Every statement of a block, nested ones too, in source order."""
    for stmt in body:
        yield stmt
        if type(stmt) in _COMPOUND:
            for block in blocks(stmt):
                yield from walk(block)


#: calls that raise only where the protocol is broken, which is no reason of the user's own
_PROTOCOL = frozenset(
    "scale unscale_ step update backward zero_grad get_scale clip_grad_norm_ clip_grad_value_ parameters item "
    "detach".split()
)


def may_raise(stmt: Stmt) -> bool:
    """Whether a statement of a `try` block may raise for reasons of the user's own."""
    return any(
        isinstance(s, Call) and not (isinstance(s.func, Attr) and s.func.name in _PROTOCOL) for s in walk([stmt])
    )


def path_of(expr: Expr | None) -> str:
    """The access path of a name or attribute chain (`self.scaler`), else ""."""
    if isinstance(expr, Name):
        return expr.id
    if isinstance(expr, Attr):
        base = path_of(expr.base)
        return f"{base}.{expr.name}" if base else ""
    return ""


def root_of(expr: Expr) -> str:
    """The variable at the beginning of an access path: `engine` of `engine.parts[0].step`; "" where there is none."""
    while isinstance(expr, (Attr, Item)):
        expr = expr.base
    return expr.id if isinstance(expr, Name) else ""


def call_name(func: Expr) -> str:
    """The last name of what is called: `step` of `self.scaler.step`."""
    if isinstance(func, Attr):
        return func.name
    return func.id if isinstance(func, Name) else ""


_LEAVES = frozenset({Name, Const})


def parts_of(expr: Expr | None) -> Iterator[Expr]:
    """An expression and everything in it."""
    if expr is None:
        return
    yield expr
    if type(expr) in _LEAVES:
        return
    if isinstance(expr, Attr):
        yield from parts_of(expr.base)
    elif isinstance(expr, Item):
        yield from parts_of(expr.base)
        yield from parts_of(expr.index)
    elif isinstance(expr, Op):
        for arg in expr.args:
            yield from parts_of(arg)
    elif isinstance(expr, Seq):
        for item in expr.items:
            yield from parts_of(item)
    elif isinstance(expr, Star):
        yield from parts_of(expr.value)
    elif isinstance(expr, DictDisplay):
        for key, value in expr.items:
            yield from parts_of(key)
            yield from parts_of(value)


def expressions_of(stmt: Stmt) -> Iterator[Expr]:
    """The expressions that a statement itself evaluates, nested statements aside."""
    found: list[Expr | None] = []
    if isinstance(stmt, Call):
        found = [stmt.func, *(arg.value for arg in stmt.args)]
    elif isinstance(stmt, Assign):
        found = [stmt.value, stmt.target]
    elif isinstance(stmt, Evaluate):
        found = [stmt.value]
    elif isinstance(stmt, Branch):
        found = [stmt.test]
    elif isinstance(stmt, Loop):
        found = [stmt.iterable, stmt.test, stmt.element, stmt.key, stmt.target]
    elif isinstance(stmt, Region):
        found = [stmt.context, stmt.target]
    elif isinstance(stmt, (Jump, Yield)):
        found = [stmt.value]
    elif isinstance(stmt, Try):
        found = [h.type for h in stmt.handlers]
    elif isinstance(stmt, Define):
        found = [*stmt.scope.decorators, *stmt.scope.bases, *(p.default for p in stmt.scope.params)]
    elif isinstance(stmt, Delete):
        found = [stmt.target]
    yield from (expr for expr in found if expr is not None)
