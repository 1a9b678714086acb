"""A small interpreter for the user's statements: nothing of the user's is ever executed by Python itself.

The replay of a finding walks the syntax tree of the flagged functions. Only the node types that have a
method here mean anything; every other node ends the replay with `Unsupported`. Names bind to values of
this module or to stand-ins of a `World`; attributes of real objects are reached through the world's
tables only. So a replay can neither import nor open, and a loop or a recursion without end runs into a
budget. What is unknown is an `Unknown`: it absorbs operations, and every decision that it forces
(a condition, a number) is written down as an assumption.

This module does not import torch; the world it is given does.
"""

from __future__ import annotations

import ast
import itertools
import operator
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

#: attribute names with two leading underscores never leave the interpreter, but for these
HARMLESS_DUNDERS = {"__init__", "__call__", "__enter__", "__exit__", "__len__", "__name__", "__iter__", "__next__"}
MAX_BITS = 4096
MAX_ITEMS = 100_000


class Unsupported(Exception):
    """The replay met something it does not interpret."""


class BudgetSpent(Exception):
    """The replay ran through its number of statements."""


class EnoughSeen(Exception):
    """The planned number of micro-batches has run; a clean end."""


class UserError(Exception):
    """An exception inside the replayed program, with the user's place where it rose.

    `error` is the Python exception or an interpreted instance; `from_torch` tells whether torch's AMP
    code or a clip raised it, which is what makes it evidence.
    """

    def __init__(self, error: object, path: str, line: int, from_torch: bool = False) -> None:
        super().__init__(error)
        self.error = error
        self.path = path
        self.line = line
        self.from_torch = from_torch

    @property
    def kind(self) -> str:
        return self.error.cls.name if isinstance(self.error, Instance) else type(self.error).__name__

    @property
    def text(self) -> str:
        return f"{self.kind}: {self.error}" if not isinstance(self.error, Instance) else self.kind


class _Break(Exception):
    pass


class _Continue(Exception):
    pass


class _Return(Exception):
    def __init__(self, value: object) -> None:
        self.value = value


class Unknown:
    """A value the file does not tell: a parameter, an import, the result of an unknown call.

    `label` is how a reader would name it ("args.clip", "loader"); `tick` numbers the batch it came
    with; `bound` is the stand-in that its use has turned it into.
    """

    __slots__ = ("attrs", "bound", "data", "label", "tick")

    def __init__(self, label: str, tick: int = 0, data: bool = False) -> None:
        self.label = label
        self.tick = tick
        self.data = data
        self.attrs: dict[object, object] = {}
        self.bound: Any = None

    @property
    def name(self) -> str:
        """The last part of the label, which carries the meaning."""
        return self.label.rsplit(".", 1)[-1]

    def child(self, key: object, label: str, data: bool | None = None) -> Any:
        if key not in self.attrs:
            if len(self.attrs) > MAX_ITEMS:
                raise BudgetSpent
            self.attrs[key] = Unknown(label, self.tick, self.data if data is None else data)
        return self.attrs[key]


class Dotted:
    """A name of a library that the world knows, e.g. torch.nn.utils.clip_grad_norm_."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class Native:
    """A callable of the interpreter's own, safe for any arguments."""

    __slots__ = ("fn", "name")

    def __init__(self, name: str, fn: Callable[..., object]) -> None:
        self.name = name
        self.fn = fn


class Scope:
    """Variables of one function call or module; unknown names are looked up in the enclosing scopes."""

    __slots__ = ("globals_", "locals_", "names", "outer", "path", "rebinds")

    def __init__(self, outer: Scope | None, path: str) -> None:
        self.names: dict[str, object] = {}
        self.outer = outer
        self.path = path
        self.rebinds: dict[str, Scope] = {}
        self.locals_: frozenset[str] = frozenset()
        self.globals_: Scope = self if outer is None else outer.globals_

    def find(self, name: str) -> Scope | None:
        scope: Scope | None = self.rebinds.get(name, self)
        while scope is not None:
            if name in scope.names:
                return scope
            scope = scope.outer
        return None


class Function:
    """A function of the user's, to be interpreted when called."""

    __slots__ = ("defaults", "generator", "kw_defaults", "manager", "name", "node", "owner", "scope")

    def __init__(
        self,
        node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda,
        scope: Scope,
        defaults: list[object],
        kw_defaults: list[object],
        owner: UserClass | None,
    ) -> None:
        self.node = node
        self.scope = scope
        self.defaults = defaults
        self.kw_defaults = kw_defaults
        self.owner = owner
        self.name = getattr(node, "name", "<lambda>")
        self.generator = not isinstance(node, ast.Lambda) and _has_yield(node)
        self.manager = False


class Bound:
    """A method together with its object."""

    __slots__ = ("function", "receiver")

    def __init__(self, function: object, receiver: object) -> None:
        self.function = function
        self.receiver = receiver


class Wrapped:
    """A function inside a context that is entered anew (the same object) for every call."""

    __slots__ = ("context", "function")

    def __init__(self, function: object, context: object) -> None:
        self.function = function
        self.context = context


class Partial:
    __slots__ = ("args", "function", "keywords")

    def __init__(self, function: object, args: list[object], keywords: dict[str, object]) -> None:
        self.function = function
        self.args = args
        self.keywords = keywords


class Property:
    __slots__ = ("function",)

    def __init__(self, function: object) -> None:
        self.function = function


class UserClass:
    """A class of the user's: its namespace and bases, interpreted."""

    __slots__ = ("bases", "fields", "name", "namespace", "node", "path")

    def __init__(self, name: str, bases: list[object], node: ast.ClassDef, path: str) -> None:
        self.name = name
        self.bases = bases
        self.node = node
        self.path = path
        self.namespace: dict[str, object] = {}
        self.fields: list[str] | None = None

    def find(self, name: str) -> object | None:
        if name in self.namespace:
            return self.namespace[name]
        for base in self.bases:
            if isinstance(base, UserClass):
                found = base.find(name)
                if found is not None:
                    return found
        return None

    def library_base(self) -> str | None:
        """The dotted name of the first library class among its ancestors."""
        for base in self.bases:
            if isinstance(base, Dotted):
                return base.name
            if isinstance(base, UserClass):
                found = base.library_base()
                if found is not None:
                    return found
        return None


class Instance:
    """An object of a user's class; `native` is the stand-in for a library base, once there is one."""

    __slots__ = ("attrs", "cls", "native")

    def __init__(self, cls: UserClass) -> None:
        self.cls = cls
        self.attrs: dict[str, object] = {}
        self.native: Any = None


class Super:
    __slots__ = ("cls", "receiver")

    def __init__(self, cls: UserClass, receiver: object) -> None:
        self.cls = cls
        self.receiver = receiver


class GeneratorCall:
    """A call of a generator function that has not started yet."""

    __slots__ = ("args", "function", "keywords")

    def __init__(self, function: object, args: list[object], keywords: dict[str, object]) -> None:
        self.function = function
        self.args = args
        self.keywords = keywords


class ModuleValue:
    """A project file, seen from another one."""

    __slots__ = ("name", "scope")

    def __init__(self, name: str, scope: Scope) -> None:
        self.name = name
        self.scope = scope


class World(Protocol):
    """What the interpreter asks of its surroundings."""

    path: str
    line: int
    declared: list[UserError]

    def at_yield(self, manager: bool) -> None: ...
    def enter_line(self, path: str, node: ast.stmt) -> None: ...
    def dotted(self, name: str) -> object: ...
    def attribute(self, value: object, name: str) -> object: ...
    def set_attribute(self, value: object, name: str, new: object) -> None: ...
    def call(self, function: object, args: list[object], keywords: dict[str, object]) -> object: ...
    def method(self, value: object, name: str, args: list[object], keywords: dict[str, object]) -> object: ...
    def binary(self, op: ast.operator, left: object, right: object) -> object: ...
    def unary(self, op: ast.unaryop, value: object) -> object: ...
    def compare(self, op: ast.cmpop, left: object, right: object) -> object: ...
    def truth(self, value: object, branches: tuple[tuple[int, int], tuple[int, int]] | None) -> bool: ...
    def item(self, value: object, key: object) -> object: ...
    def set_item(self, value: object, key: object, new: object) -> None: ...
    def iterate(self, value: object) -> Iterator[object]: ...
    def unpack(self, value: object, count: int) -> list[object]: ...
    def enter(self, value: object) -> object: ...
    def leave(self, value: object) -> None: ...
    def library(self, name: str) -> bool: ...
    def construct(
        self, cls: UserClass, instance: Instance, args: list[object], keywords: dict[str, object]
    ) -> None: ...
    def observe(self, value: object) -> None: ...
    def saw_dict(self, path: str, node: ast.AST, content: object) -> None: ...
    def matches(self, error: UserError, kinds: list[object]) -> bool: ...


def _has_yield(node: ast.AST) -> bool:
    stack = list(ast.iter_child_nodes(node))
    while stack:
        child = stack.pop()
        if isinstance(child, ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            stack.extend(ast.iter_child_nodes(child))
    return False


def _assigned_names(node: ast.FunctionDef | ast.AsyncFunctionDef) -> frozenset[str]:
    """Names that are local to a function because it assigns to them."""
    out: set[str] = set()
    free: set[str] = set()
    stack: list[ast.AST] = list(node.body)
    while stack:
        child = stack.pop()
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            out.add(child.id)
        elif isinstance(child, ast.Global | ast.Nonlocal):
            free.update(child.names)
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            stack.extend(ast.iter_child_nodes(child))
    return frozenset(out - free)


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


class Machine:
    """Interprets modules, functions and methods in a world."""

    def __init__(self, world: World, trees: dict[str, ast.Module], modules: dict[str, str], budget: int) -> None:
        """`modules` maps dotted module names to the paths in `trees` that hold them."""
        self.world = world
        self.trees = trees
        self.modules = modules
        self.scopes: dict[str, Scope] = {}
        self.budget = budget
        self.depth = 0
        self.yields: list[Callable[[object], object]] = []
        self.managers: list[bool] = []
        self.errors: list[UserError] = []

    # ---------------------------------------------------------------- modules

    def module(self, path: str, run_body: bool = False) -> Scope:
        """The scope of a project file: its imports, definitions and plain assignments.

        The rest of a module's body (loops, calls for their effect) runs only where it is the driver.
        """
        if path in self.scopes:
            return self.scopes[path]
        scope = self.scopes[path] = Scope(None, path)
        scope.names["__name__"] = "__main__" if run_body else path
        scope.names["__file__"] = path
        for statement in self.trees[path].body:
            if run_body or _is_declaration(statement):
                if run_body:
                    self.statement(statement, scope)
                else:
                    try:
                        self.statement(statement, scope)
                    except UserError as error:
                        self.world.declared.append(error)
                        self._unbind(statement, scope)
                    except Unsupported:
                        self._unbind(statement, scope)
        return scope

    def _unbind(self, statement: ast.stmt, scope: Scope) -> None:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                scope.names.setdefault(node.id, Unknown(node.id))

    # ------------------------------------------------------------- statements

    def block(self, body: list[ast.stmt], scope: Scope) -> None:
        for statement in body:
            self.statement(statement, scope)

    def statement(self, node: ast.stmt, scope: Scope) -> None:
        self.budget -= 1
        if self.budget < 0:
            raise BudgetSpent
        self.world.enter_line(scope.path, node)
        method = getattr(self, f"do_{type(node).__name__}", None)
        if method is None:
            raise Unsupported(f"{type(node).__name__} in line {node.lineno}")
        try:
            method(node, scope)
        except UserError as error:
            if error.line == 0:
                error.path, error.line = scope.path, node.lineno
            raise

    def do_Expr(self, node: ast.Expr, scope: Scope) -> None:
        self.eval(node.value, scope)

    def do_Pass(self, node: ast.Pass, scope: Scope) -> None:
        pass

    def do_Assign(self, node: ast.Assign, scope: Scope) -> None:
        value = self.eval(node.value, scope)
        self.world.observe(value)
        for target in node.targets:
            self.assign(target, value, scope)

    def do_AnnAssign(self, node: ast.AnnAssign, scope: Scope) -> None:
        if node.value is not None:
            self.assign(node.target, self.eval(node.value, scope), scope)

    def do_AugAssign(self, node: ast.AugAssign, scope: Scope) -> None:
        load = ast.copy_location(_as_load(node.target), node.target)
        value = self.world.binary(node.op, self.eval(load, scope), self.eval(node.value, scope))
        self.assign(node.target, value, scope)

    def do_Delete(self, node: ast.Delete, scope: Scope) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                scope.names.pop(target.id, None)
            elif isinstance(target, ast.Subscript):
                value = self.eval(target.value, scope)
                key = self.eval(target.slice, scope)
                if isinstance(value, dict) and isinstance(key, str | int):
                    value.pop(key, None)

    def do_If(self, node: ast.If, scope: Scope) -> None:
        arms = (_span(node.body), _span(node.orelse))
        test = self.eval(node.test, scope)
        self.block(node.body if self.world.truth(test, arms) else node.orelse, scope)

    def do_For(self, node: ast.For, scope: Scope) -> None:
        iterable = self.eval(node.iter, scope)
        if isinstance(iterable, GeneratorCall):
            self._for_generator(node, iterable, scope)
            return
        for item in self.world.iterate(iterable):
            self.world.enter_line(scope.path, node)
            self.assign(node.target, item, scope)
            try:
                self.block(node.body, scope)
            except _Continue:
                continue
            except _Break:
                return
        self.block(node.orelse, scope)

    do_AsyncFor = do_For

    def _for_generator(self, node: ast.For, call: GeneratorCall, scope: Scope) -> None:
        """Run the generator and, at each of its yields, the body of the loop."""

        class Stop(Exception):
            pass

        def body(item: object) -> object:
            self.assign(node.target, item, scope)
            try:
                self.block(node.body, scope)
            except _Continue:
                pass
            except _Break:
                raise Stop from None
            return None

        try:
            self.run_generator(call, body)
        except Stop:
            return
        self.block(node.orelse, scope)

    def run_generator(self, call: GeneratorCall, at_yield: Callable[[object], object]) -> object:
        """Interpret a generator function; `at_yield` gets what it yields and returns what it is sent."""
        outer = self.yields

        def handler(item: object) -> object:
            inner, self.yields = self.yields, outer
            try:
                return at_yield(item)
            finally:
                self.yields = inner

        self.yields = [handler]
        inner_function = call.function
        while not isinstance(inner_function, Function) and hasattr(inner_function, "function"):
            inner_function = inner_function.function
        self.managers.append(isinstance(inner_function, Function) and inner_function.manager)
        try:
            return self.call_function(call.function, call.args, call.keywords, started=True)
        finally:
            self.managers.pop()
            self.yields = outer

    def do_While(self, node: ast.While, scope: Scope) -> None:
        arms = (_span(node.body), (0, 0))
        while self.world.truth(self.eval(node.test, scope), arms):
            self.budget -= 1
            if self.budget < 0:
                raise BudgetSpent
            try:
                self.block(node.body, scope)
            except _Continue:
                continue
            except _Break:
                return
        self.block(node.orelse, scope)

    def do_Break(self, node: ast.Break, scope: Scope) -> None:
        raise _Break

    def do_Continue(self, node: ast.Continue, scope: Scope) -> None:
        raise _Continue

    def do_Return(self, node: ast.Return, scope: Scope) -> None:
        value = self.eval(node.value, scope) if node.value is not None else None
        self.world.observe(value)
        raise _Return(value)

    def do_With(self, node: ast.With, scope: Scope) -> None:
        self._with(node, 0, scope)

    do_AsyncWith = do_With

    def _with(self, node: ast.With, index: int, scope: Scope) -> None:
        if index == len(node.items):
            self.block(node.body, scope)
            return
        item = node.items[index]
        manager = self.eval(item.context_expr, scope)

        def inside(value: object) -> object:
            if item.optional_vars is not None:
                self.assign(item.optional_vars, value, scope)
            self._with(node, index + 1, scope)
            return None

        if isinstance(manager, GeneratorCall):
            self.run_generator(manager, inside)
            return
        if isinstance(manager, Instance) and manager.cls.find("__enter__") is not None:
            value = self.call(self.attribute(manager, "__enter__"), [], {})
            try:
                inside(value)
            finally:
                self.call(self.attribute(manager, "__exit__"), [None, None, None], {})
            return
        value = self.world.enter(manager)
        try:
            inside(value)
        finally:
            self.world.leave(manager)

    def do_Try(self, node: ast.Try, scope: Scope) -> None:
        try:
            try:
                self.block(node.body, scope)
            except UserError as error:
                for handler in node.handlers:
                    kinds = self._handler_kinds(handler, scope)
                    if kinds is None or self.world.matches(error, kinds):
                        self.errors.append(error)
                        self.world.enter_line(scope.path, handler)  # type: ignore[arg-type]
                        if handler.name:
                            scope.names[handler.name] = Unknown(handler.name)
                        self.block(handler.body, scope)
                        break
                else:
                    raise
            else:
                self.block(node.orelse, scope)
        finally:
            self.block(node.finalbody, scope)

    def _handler_kinds(self, handler: ast.ExceptHandler, scope: Scope) -> list[object] | None:
        if handler.type is None:
            return None
        if isinstance(handler.type, ast.Tuple):
            return [self.eval(item, scope) for item in handler.type.elts]
        return [self.eval(handler.type, scope)]

    def do_Raise(self, node: ast.Raise, scope: Scope) -> None:
        if node.exc is None:
            raise self.errors[-1] if self.errors else UserError(RuntimeError("re-raised"), scope.path, node.lineno)
        value = self.eval(node.exc, scope)
        if isinstance(value, Dotted):
            value = self.world.call(value, [], {})
        raise UserError(value, scope.path, node.lineno)

    def do_Assert(self, node: ast.Assert, scope: Scope) -> None:
        if not self.world.truth(self.eval(node.test, scope), ((node.lineno, node.lineno), (0, 0))):
            raise UserError(AssertionError("assertion of the program"), scope.path, node.lineno)

    def do_Global(self, node: ast.Global, scope: Scope) -> None:
        for name in node.names:
            scope.rebinds[name] = scope.globals_

    def do_Nonlocal(self, node: ast.Nonlocal, scope: Scope) -> None:
        for name in node.names:
            outer = scope.outer.find(name) if scope.outer else None
            if outer is not None:
                scope.rebinds[name] = outer

    def do_Import(self, node: ast.Import, scope: Scope) -> None:
        for alias in node.names:
            if alias.asname:
                scope.names[alias.asname] = self.imported(alias.name, scope)
            else:
                scope.names[alias.name.split(".")[0]] = self.imported(alias.name.split(".")[0], scope)

    def do_ImportFrom(self, node: ast.ImportFrom, scope: Scope) -> None:
        if node.module == "__future__":
            return
        base = "." * node.level + (node.module or "")
        for alias in node.names:
            if alias.name == "*":
                source = self.imported(base, scope)
                if isinstance(source, ModuleValue):
                    scope.names.update({k: v for k, v in source.scope.names.items() if not k.startswith("_")})
                continue
            scope.names[alias.asname or alias.name] = self.imported_name(base, alias.name, scope)

    def imported(self, name: str, scope: Scope) -> object:
        path = self.modules.get(name) or self.modules.get(name.lstrip("."))
        if path is not None and path in self.trees:
            return ModuleValue(name, self.module(path))
        if name == scope.path:
            return ModuleValue(name, scope)
        return self.world.dotted(name) if self.world.library(name) else Unknown(name.lstrip("."))

    def imported_name(self, base: str, name: str, scope: Scope) -> object:
        joined = f"{base}.{name}" if not base.endswith(".") else base + name
        path = self.modules.get(joined.lstrip("."))
        source = self.imported(base, scope) if base.strip(".") else None
        if isinstance(source, ModuleValue) and name in source.scope.names:
            return source.scope.names[name]
        if path is not None:
            return self.imported(joined.lstrip("."), scope)
        if self.world.library(base):
            return self.world.dotted(joined)
        return Unknown(name)

    def do_FunctionDef(self, node: ast.FunctionDef, scope: Scope) -> None:
        scope.names[node.name] = self.function(node, scope, None)

    do_AsyncFunctionDef = do_FunctionDef

    def function(self, node: ast.FunctionDef, scope: Scope, owner: UserClass | None) -> object:
        value: object = self._plain_function(node, scope, owner)
        for decorator in reversed(node.decorator_list):
            self.world.enter_line(scope.path, node)
            self.world.line = decorator.lineno
            try:
                value = self.decorate(self.eval(decorator, scope), value)
            except UserError as error:
                if error.line == 0:
                    error.path, error.line = scope.path, decorator.lineno
                raise
        return value

    def _plain_function(self, node: Any, scope: Scope, owner: UserClass | None) -> Function:
        defaults = [self.eval(d, scope) for d in node.args.defaults]
        kw_defaults = [self.eval(d, scope) if d is not None else None for d in node.args.kw_defaults]
        return Function(node, scope, defaults, kw_defaults, owner)

    def decorate(self, decorator: object, value: object) -> object:
        if isinstance(decorator, Dotted):
            if decorator.name in ("contextlib.contextmanager", "contextlib.asynccontextmanager"):
                if isinstance(value, Function):
                    value.manager = True
                return value
            if decorator.name in ("builtins.staticmethod", "builtins.classmethod", "builtins.property",
                                  "functools.cached_property"):  # fmt: skip
                kind = decorator.name.rsplit(".", 1)[1]
                return Property(value) if "property" in kind else (kind, value)
            if decorator.name.startswith("functools.") or decorator.name == "dataclasses.dataclass":
                return value
        if isinstance(decorator, Unknown | Native | Partial):
            return value
        if isinstance(decorator, Function | Bound):
            # a decorator of the user's own: what it adds is not part of the replay
            return value
        return self.world.call(decorator, [value], {})

    def do_ClassDef(self, node: ast.ClassDef, scope: Scope) -> None:
        bases = [self.eval(base, scope) for base in node.bases]
        cls = UserClass(node.name, bases, node, scope.path)
        inner = Scope(scope, scope.path)
        fields: list[str] = []
        for statement in node.body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                cls.namespace[statement.name] = self.function(statement, inner, cls)  # type: ignore[arg-type]
            elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                fields.append(statement.target.id)
                if statement.value is not None:
                    cls.namespace[statement.target.id] = self.eval(statement.value, inner)
            elif isinstance(statement, ast.Assign | ast.If | ast.Pass | ast.Expr):
                self.statement(statement, inner)
                cls.namespace.update(inner.names)
        for decorator in node.decorator_list:
            value = self.eval(decorator.func if isinstance(decorator, ast.Call) else decorator, scope)
            if isinstance(value, Dotted) and value.name.startswith(("dataclasses.", "attr")):
                cls.fields = fields
        for base in bases:
            if isinstance(base, UserClass) and base.fields is not None and cls.fields is not None:
                cls.fields = [*base.fields, *cls.fields]
            elif isinstance(base, Dotted) and base.name.endswith("NamedTuple"):
                cls.fields = fields
        scope.names[node.name] = cls

    def do_Match(self, node: ast.Match, scope: Scope) -> None:
        subject = self.eval(node.subject, scope)
        for case in node.cases:
            pattern = case.pattern
            if isinstance(pattern, ast.MatchValue):
                fits = self.world.truth(
                    self.world.compare(ast.Eq(), subject, self.eval(pattern.value, scope)),
                    (_span(case.body), (0, 0)),
                )
            elif isinstance(pattern, ast.MatchAs) and pattern.pattern is None:
                fits = True
            else:
                raise Unsupported("a match pattern")
            if fits:
                self.block(case.body, scope)
                return

    # ------------------------------------------------------------ assignments

    def assign(self, target: ast.expr, value: object, scope: Scope) -> None:
        if isinstance(target, ast.Name):
            scope.rebinds.get(target.id, scope).names[target.id] = value
        elif isinstance(target, ast.Attribute):
            self.set_attribute(self.eval(target.value, scope), target.attr, value)
        elif isinstance(target, ast.Subscript):
            owner = self.eval(target.value, scope)
            self.world.set_item(owner, self.eval(target.slice, scope), value)
        elif isinstance(target, ast.Tuple | ast.List):
            self._unpack(target.elts, value, scope)
        else:
            raise Unsupported(f"assignment to {type(target).__name__}")

    def _unpack(self, targets: list[ast.expr], value: object, scope: Scope) -> None:
        starred = [i for i, t in enumerate(targets) if isinstance(t, ast.Starred)]
        if not starred:
            for target, item in zip(targets, self.world.unpack(value, len(targets)), strict=True):
                self.assign(target, item, scope)
            return
        at = starred[0]
        items = list(value) if isinstance(value, list | tuple) else self.world.unpack(value, len(targets))
        after = len(targets) - at - 1
        for target, item in zip(targets[:at], items[:at], strict=False):
            self.assign(target, item, scope)
        star = targets[at]
        assert isinstance(star, ast.Starred)
        self.assign(star.value, items[at : len(items) - after], scope)
        for target, item in zip(targets[at + 1 :], items[len(items) - after :], strict=False):
            self.assign(target, item, scope)

    # ------------------------------------------------------------ expressions

    def eval(self, node: ast.expr, scope: Scope) -> Any:
        method = getattr(self, f"ev_{type(node).__name__}", None)
        if method is None:
            raise Unsupported(f"{type(node).__name__} in line {node.lineno}")
        return method(node, scope)

    def ev_Constant(self, node: ast.Constant, scope: Scope) -> object:
        if isinstance(node.value, int) and node.value.bit_length() > MAX_BITS:
            raise Unsupported("a number too large")
        return node.value

    def ev_Name(self, node: ast.Name, scope: Scope) -> object:
        found = scope.find(node.id)
        if found is not None:
            return found.names[node.id]
        if self.world.library(f"builtins.{node.id}"):
            return self.world.dotted(f"builtins.{node.id}")
        if node.id in scope.locals_:
            error = UnboundLocalError(
                f"cannot access local variable '{node.id}' where it is not associated with a value"
            )
            raise UserError(error, scope.path, node.lineno)
        value = scope.globals_.names[node.id] = Unknown(node.id)
        return value

    def ev_Attribute(self, node: ast.Attribute, scope: Scope) -> object:
        return self.attribute(self.eval(node.value, scope), node.attr)

    def ev_Subscript(self, node: ast.Subscript, scope: Scope) -> object:
        return self.world.item(self.eval(node.value, scope), self.eval(node.slice, scope))

    def ev_Slice(self, node: ast.Slice, scope: Scope) -> object:
        parts = [self.eval(p, scope) if p is not None else None for p in (node.lower, node.upper, node.step)]
        return slice(*(p if isinstance(p, int) else None for p in parts))

    def ev_Tuple(self, node: ast.Tuple, scope: Scope) -> object:
        return tuple(self._elements(node.elts, scope))

    def ev_List(self, node: ast.List, scope: Scope) -> object:
        return self._elements(node.elts, scope)

    def ev_Set(self, node: ast.Set, scope: Scope) -> object:
        return self._elements(node.elts, scope)

    def _elements(self, nodes: list[ast.expr], scope: Scope) -> list[object]:
        out: list[object] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                out.extend(itertools.islice(self.world.iterate(self.eval(node.value, scope)), MAX_ITEMS))
            else:
                out.append(self.eval(node, scope))
        return out

    def ev_Dict(self, node: ast.Dict, scope: Scope) -> object:
        out: dict[object, object] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            result = self.eval(value, scope)
            if key is None:
                if isinstance(result, dict):
                    out.update(result)
            else:
                made = self.eval(key, scope)
                out[made if isinstance(made, PLAIN) else id(made)] = result
        self.world.saw_dict(scope.path, node, out)
        return out

    def ev_JoinedStr(self, node: ast.JoinedStr, scope: Scope) -> object:
        parts = []
        for part in node.values:
            if isinstance(part, ast.Constant):
                parts.append(str(part.value))
            elif isinstance(part, ast.FormattedValue):
                value = self.eval(part.value, scope)
                parts.append(str(value) if isinstance(value, str | int | float) else "0")
        return "".join(parts)[:MAX_ITEMS]

    def ev_IfExp(self, node: ast.IfExp, scope: Scope) -> object:
        test = self.eval(node.test, scope)
        arms = ((node.body.lineno, node.body.lineno), (node.orelse.lineno, node.orelse.lineno))
        return self.eval(node.body if self.world.truth(test, arms) else node.orelse, scope)

    def ev_BoolOp(self, node: ast.BoolOp, scope: Scope) -> object:
        wanted = isinstance(node.op, ast.Or)
        value: object = None
        for i, part in enumerate(node.values):
            value = self.eval(part, scope)
            if i < len(node.values) - 1 and self.world.truth(value, None) == wanted:
                return value
        return value

    def ev_UnaryOp(self, node: ast.UnaryOp, scope: Scope) -> object:
        value = self.eval(node.operand, scope)
        if isinstance(node.op, ast.Not):
            return not self.world.truth(value, None)
        return self.world.unary(node.op, value)

    def ev_BinOp(self, node: ast.BinOp, scope: Scope) -> object:
        return self.world.binary(node.op, self.eval(node.left, scope), self.eval(node.right, scope))

    def ev_Compare(self, node: ast.Compare, scope: Scope) -> object:
        left = self.eval(node.left, scope)
        result: object = True
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.eval(right_node, scope)
            result = self.world.compare(op, left, right)
            if len(node.ops) > 1 and not self.world.truth(result, None):
                return False
            left = right
        return result

    def ev_NamedExpr(self, node: ast.NamedExpr, scope: Scope) -> object:
        value = self.eval(node.value, scope)
        self.assign(node.target, value, scope)
        return value

    def ev_Lambda(self, node: ast.Lambda, scope: Scope) -> object:
        return self._plain_function(node, scope, None)

    def ev_ListComp(self, node: ast.ListComp, scope: Scope) -> object:
        return list(self._comprehend(node.generators, node.elt, scope))

    def ev_GeneratorExp(self, node: ast.GeneratorExp, scope: Scope) -> object:
        return list(self._comprehend(node.generators, node.elt, scope))

    def ev_SetComp(self, node: ast.SetComp, scope: Scope) -> object:
        return list(self._comprehend(node.generators, node.elt, scope))

    def ev_DictComp(self, node: ast.DictComp, scope: Scope) -> object:
        pair = ast.Tuple(elts=[node.key, node.value], ctx=ast.Load())
        out: dict[object, object] = {}
        for key, value in self._comprehend(node.generators, pair, scope):
            out[key if isinstance(key, PLAIN) else id(key)] = value
        return out

    def _comprehend(self, generators: list[ast.comprehension], element: ast.expr, scope: Scope) -> Iterator[Any]:
        inner = Scope(scope, scope.path)

        def run(level: int) -> Iterator[object]:
            if level == len(generators):
                yield self.eval(element, inner)
                return
            generator = generators[level]
            for item in self.world.iterate(self.eval(generator.iter, inner)):
                self.budget -= 1
                if self.budget < 0:
                    raise BudgetSpent
                self.assign(generator.target, item, inner)
                if all(self.world.truth(self.eval(test, inner), None) for test in generator.ifs):
                    yield from run(level + 1)

        return run(0)

    def ev_Starred(self, node: ast.Starred, scope: Scope) -> object:
        return self.eval(node.value, scope)

    def ev_Await(self, node: ast.Await, scope: Scope) -> object:
        return self.eval(node.value, scope)

    def ev_Yield(self, node: ast.Yield, scope: Scope) -> object:
        value = self.eval(node.value, scope) if node.value is not None else None
        if not self.yields:
            raise Unsupported("a yield outside of a loop over its generator")
        self.world.at_yield(self.managers[-1])
        return self.yields[-1](value)

    def ev_YieldFrom(self, node: ast.YieldFrom, scope: Scope) -> object:
        if not self.yields:
            raise Unsupported("a yield outside of a loop over its generator")
        for item in self.world.iterate(self.eval(node.value, scope)):
            self.yields[-1](item)
        return None

    # ------------------------------------------------------------------ calls

    def ev_Call(self, node: ast.Call, scope: Scope) -> object:
        if isinstance(node.func, ast.Name) and node.func.id == "super" and scope.find("super") is None:
            return self._super(node, scope)
        receiver: object = None
        function: object = None
        method = isinstance(node.func, ast.Attribute)
        if isinstance(node.func, ast.Attribute):
            receiver = self.eval(node.func.value, scope)
        else:
            function = self.eval(node.func, scope)
        args = self._elements(node.args, scope)
        keywords: dict[str, object] = {}
        for keyword in node.keywords:
            value = self.eval(keyword.value, scope)
            if keyword.arg is not None:
                keywords[keyword.arg] = value
            elif isinstance(value, dict):
                keywords.update({str(k): v for k, v in value.items()})
        self.world.path, self.world.line = scope.path, node.lineno
        try:
            if method:
                assert isinstance(node.func, ast.Attribute)
                return self.call_method(receiver, node.func.attr, args, keywords)
            return self.call(function, args, keywords)
        except UserError as error:
            if error.line == 0:
                error.path, error.line = scope.path, node.lineno
            raise

    def _super(self, node: ast.Call, scope: Scope) -> object:
        owner: Scope | None = scope
        while owner is not None and "__owner__" not in owner.names:
            owner = owner.outer
        if owner is None:
            return Unknown("super()")
        cls, receiver = owner.names["__owner__"], owner.names.get("__self__")
        return Super(cls, receiver) if isinstance(cls, UserClass) else Unknown("super()")

    def call_method(self, receiver: object, name: str, args: list[object], keywords: dict[str, object]) -> object:
        if isinstance(receiver, Instance):
            if name in receiver.attrs or receiver.cls.find(name) is not None:
                return self.call(self.attribute(receiver, name), args, keywords)
            return self.world.method(receiver, name, args, keywords)
        if isinstance(receiver, Dotted | ModuleValue | UserClass | Super):
            return self.call(self.attribute(receiver, name), args, keywords)
        return self.world.method(receiver, name, args, keywords)

    def call(self, function: object, args: list[object], keywords: dict[str, object]) -> Any:
        if isinstance(function, Function):
            return self.call_function(function, args, keywords)
        if isinstance(function, Bound):
            return self.call(function.function, [function.receiver, *args], keywords)
        if isinstance(function, Partial):
            return self.call(function.function, [*function.args, *args], {**function.keywords, **keywords})
        if isinstance(function, Wrapped):
            self.world.enter(function.context)
            try:
                return self.call(function.function, args, keywords)
            finally:
                self.world.leave(function.context)
        if isinstance(function, UserClass):
            return self.instantiate(function, args, keywords)
        if isinstance(function, tuple) and len(function) == 2 and function[0] in ("staticmethod", "classmethod"):
            return self.call(function[1], args, keywords)
        if isinstance(function, Instance):
            if function.cls.find("__call__") is not None:
                return self.call(self.attribute(function, "__call__"), args, keywords)
            if function.cls.find("forward") is not None and function.native is None:
                return self.call(self.attribute(function, "forward"), args, keywords)
            return self.world.call(function, args, keywords)
        if isinstance(function, Native):
            return function.fn(*args, **keywords)
        return self.world.call(function, args, keywords)

    def call_function(
        self, function: Any, args: list[object], keywords: dict[str, object], started: bool = False
    ) -> object:
        if isinstance(function, Bound):
            return self.call_function(function.function, [function.receiver, *args], keywords, started)
        if isinstance(function, Wrapped):
            self.world.enter(function.context)
            try:
                return self.call_function(function.function, args, keywords, started)
            finally:
                self.world.leave(function.context)
        if function.generator and not started:
            return GeneratorCall(function, args, keywords)
        if self.depth > 40:
            raise BudgetSpent
        scope = self._frame(function, args, keywords)
        node = function.node
        place = (self.world.path, self.world.line)
        self.depth += 1
        try:
            if isinstance(node, ast.Lambda):
                return self.eval(node.body, scope)
            self.block(node.body, scope)
            return None
        except _Return as result:
            return result.value
        finally:
            self.depth -= 1
            self.world.path, self.world.line = place

    def _frame(self, function: Function, args: list[object], keywords: dict[str, object]) -> Scope:
        scope = Scope(function.scope, function.scope.path)
        if not isinstance(function.node, ast.Lambda):
            scope.locals_ = _assigned_names(function.node)
        spec = function.node.args
        positional = [*spec.posonlyargs, *spec.args]
        if function.owner is not None and positional:
            scope.names["__owner__"] = function.owner
            scope.names["__self__"] = args[0] if args else None
        rest = dict(keywords)
        for i, arg in enumerate(positional):
            if i < len(args):
                scope.names[arg.arg] = args[i]
            elif arg.arg in rest:
                scope.names[arg.arg] = rest.pop(arg.arg)
            else:
                at = i - (len(positional) - len(function.defaults))
                scope.names[arg.arg] = function.defaults[at] if at >= 0 else Unknown(arg.arg)
            rest.pop(arg.arg, None)
        for arg, default in zip(spec.kwonlyargs, function.kw_defaults, strict=True):
            scope.names[arg.arg] = rest.pop(arg.arg, default)
        if spec.vararg is not None:
            scope.names[spec.vararg.arg] = tuple(args[len(positional) :])
        if spec.kwarg is not None:
            scope.names[spec.kwarg.arg] = rest
        return scope

    def instantiate(self, cls: UserClass, args: list[object], keywords: dict[str, object]) -> Instance:
        instance = Instance(cls)
        init = cls.find("__init__")
        if isinstance(init, Function):
            self.call_function(init, [instance, *args], keywords)
        elif cls.fields is not None:
            for i, name in enumerate(cls.fields):
                if i < len(args):
                    instance.attrs[name] = args[i]
                elif name in keywords:
                    instance.attrs[name] = keywords[name]
                else:
                    instance.attrs[name] = cls.find(name) if cls.find(name) is not None else Unknown(name)
            after = cls.find("__post_init__")
            if isinstance(after, Function):
                self.call_function(after, [instance], {})
        else:
            self.world.construct(cls, instance, args, keywords)
        return instance

    # ------------------------------------------------------------- attributes

    def attribute(self, value: object, name: str) -> Any:
        if name.startswith("__") and name not in HARMLESS_DUNDERS:
            return Unknown(name)
        if isinstance(value, Instance):
            if name in value.attrs:
                return value.attrs[name]
            found = value.cls.find(name)
            if isinstance(found, Property):
                return self.call(found.function, [value], {})
            if isinstance(found, Function | Wrapped):
                return Bound(found, value)
            if isinstance(found, tuple) and len(found) == 2 and found[0] in ("staticmethod", "classmethod"):
                return found[1] if found[0] == "staticmethod" else Bound(found[1], value.cls)
            if found is not None:
                return found
            return self.world.attribute(value, name)
        if isinstance(value, UserClass):
            found = value.find(name)
            if isinstance(found, tuple) and len(found) == 2 and found[0] in ("staticmethod", "classmethod"):
                return found[1] if found[0] == "staticmethod" else Bound(found[1], value)
            return found if found is not None else self.world.attribute(value, name)
        if isinstance(value, Super):
            for base in value.cls.bases:
                if isinstance(base, UserClass):
                    found = base.find(name)
                    if isinstance(found, Function | Wrapped):
                        return Bound(found, value.receiver)
            return self.world.attribute(value, name)
        if isinstance(value, ModuleValue):
            return value.scope.names.get(name, Unknown(f"{value.name}.{name}"))
        return self.world.attribute(value, name)

    def set_attribute(self, value: object, name: str, new: object) -> None:
        if isinstance(value, Instance):
            value.attrs[name] = new
            self.world.set_attribute(value, name, new)
        elif isinstance(value, UserClass):
            value.namespace[name] = new
        else:
            self.world.set_attribute(value, name, new)


def _as_load(node: ast.expr) -> ast.expr:
    if isinstance(node, ast.Name):
        return ast.Name(id=node.id, ctx=ast.Load())
    if isinstance(node, ast.Attribute):
        return ast.Attribute(value=node.value, attr=node.attr, ctx=ast.Load())
    if isinstance(node, ast.Subscript):
        return ast.Subscript(value=node.value, slice=node.slice, ctx=ast.Load())
    raise Unsupported("an augmented assignment")


def _span(body: list[ast.stmt]) -> tuple[int, int]:
    if not body:
        return (0, 0)
    return (body[0].lineno, body[-1].end_lineno or body[-1].lineno)


def _is_declaration(node: ast.stmt) -> bool:
    if isinstance(node, ast.If):
        return not _mentions_main(node.test) and all(map(_is_declaration, [*node.body, *node.orelse]))
    if isinstance(node, ast.Expr):
        call = node.value
        return (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr.startswith(("set_default", "set_float32", "add_argument", "append", "update"))
        )
    return isinstance(
        node,
        ast.Import | ast.ImportFrom | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assign
        | ast.AnnAssign | ast.Try | ast.Pass,
    )  # fmt: skip


def _mentions_main(test: ast.expr) -> bool:
    return any(isinstance(n, ast.Name) and n.id == "__name__" for n in ast.walk(test))
