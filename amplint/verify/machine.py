"""A small interpreter for the user's statements: nothing of the user's is ever executed by Python itself.

The replay of a finding walks the syntax tree of the flagged functions. Only the node types that have a
method here, or in `expressions`, mean anything; every other node ends the replay with `Unsupported`. Names
bind to the values of `objects` or to stand-ins of a `World`; attributes of real objects are reached through the
world's tables only. So a replay can neither import nor open, and a loop or a recursion without end runs into a
budget. What is unknown is an `Unknown`: it absorbs operations, and every decision that it forces
(a condition, a number) is written down as an assumption.

This module does not import torch; the world it is given does.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Protocol

from amplint.verify.expressions import Expressions
from amplint.verify.objects import (
    EXCEPTION,
    Arms,
    Bound,
    BudgetSpent,
    Dotted,
    Function,
    GeneratorCall,
    Instance,
    LoopBreak,
    LoopContinue,
    ModuleValue,
    Native,
    Partial,
    Property,
    Returned,
    Scope,
    Unknown,
    UserClass,
    UserError,
)
from amplint.verify.plain import Unsupported

#: statements that a program can go on without when stand-ins are not good enough for them
LEFT_OUT = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.For, ast.Delete, ast.Assert)


class World(Protocol):
    """What the interpreter asks of its surroundings."""

    path: str
    line: int
    span: tuple[int, int]
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
    def decided_by_number(self, op: ast.cmpop, left: object, right: object, arms: Arms, held: bool) -> None: ...
    def truth(self, value: object, branches: Arms | None) -> bool: ...
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
    def harmless(self, path: str, node: ast.stmt | ast.expr) -> bool: ...
    def passable(self, path: str, node: ast.stmt) -> bool: ...
    def assume(self, text: str) -> None: ...
    def saw_dict(self, path: str, node: ast.AST, content: object) -> None: ...
    def matches(self, error: UserError, kinds: list[object]) -> bool: ...


class Machine(Expressions):
    """Interprets modules, functions and methods in a world."""

    def __init__(
        self, world: World, trees: dict[str, ast.Module], modules: dict[str, str], budget: int, more: int = 0
    ) -> None:
        """`modules` maps dotted module names to the paths in `trees` that hold them."""
        super().__init__(world, budget, more)
        self.trees = trees
        self.modules = modules
        self.scopes: dict[str, Scope] = {}
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
            error.made_here = error.made_here and self.world.harmless(scope.path, node)
            if not error.made_here or self.trying or not self._left_out(node, scope):
                raise
        except (Unsupported, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError, AttributeError):
            # a stand-in in a place where it does not work
            if self.trying or not self.world.harmless(scope.path, node) or not self._left_out(node, scope):
                raise

    def _left_out(self, node: ast.stmt, scope: Scope) -> bool:
        """Go on without a statement that stand-ins are not good enough for; False for one that decides what runs."""
        if not isinstance(node, LEFT_OUT):
            return False
        self.world.assume(f"line {node.lineno} is left out")
        for child in ast.walk(node):
            if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                scope.rebinds.get(child.id, scope).names[child.id] = Unknown(child.id)
        return True

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
        self.world.observe(value)
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
        chosen = node.body if self.condition(node.test, scope, arms) else node.orelse
        if chosen and isinstance(chosen[-1], ast.Raise) and not self.trying and self.world.passable(scope.path, node):
            self.world.assume(f"the check in line {node.lineno} is passed")
            chosen = node.orelse if chosen is node.body else node.body
        self.block(chosen, scope)

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
            except LoopContinue:
                continue
            except LoopBreak:
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
            except LoopContinue:
                pass
            except LoopBreak:
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
        while self.condition(node.test, scope, arms):
            self.budget -= 1
            if self.budget < 0:
                raise BudgetSpent
            self.world.enter_line(scope.path, node)
            try:
                self.block(node.body, scope)
            except LoopContinue:
                continue
            except LoopBreak:
                return
        self.block(node.orelse, scope)

    def do_Break(self, node: ast.Break, scope: Scope) -> None:
        raise LoopBreak

    def do_Continue(self, node: ast.Continue, scope: Scope) -> None:
        raise LoopContinue

    def do_Return(self, node: ast.Return, scope: Scope) -> None:
        value = self.eval(node.value, scope) if node.value is not None else None
        self.world.observe(value)
        raise Returned(value)

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
                self._tried(node, scope)
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

    def _tried(self, node: ast.Try, scope: Scope) -> None:
        """The body of a `try`: what rises in it is for its handlers, if it has any."""
        inside = bool(node.handlers)
        self.trying += inside
        try:
            self.block(node.body, scope)
        finally:
            self.trying -= inside

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
        raise UserError(value, scope.path, node.lineno, made_here=True)

    def do_Assert(self, node: ast.Assert, scope: Scope) -> None:
        if self.condition(node.test, scope, ((0, 0), EXCEPTION)):
            return
        if not isinstance(node.test, ast.Constant) and self.world.harmless(scope.path, node):
            # of shapes and sizes, mostly, which are those of the stand-ins here
            self.world.assume(f"the assertion in line {node.lineno} holds")
        else:
            raise UserError(AssertionError("assertion of the program"), scope.path, node.lineno, made_here=True)

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
        if self.world.library(base) or self.world.library(joined):
            return self.world.dotted(joined)
        return self._handed_on(base.lstrip("."), name, scope)

    def _handed_on(self, package: str, name: str, scope: Scope) -> object:
        """A name that a package, which is not at hand itself, imports from one of its modules, which is."""
        for dotted, path in self.modules.items():
            if dotted.startswith(f"{package}.") and path in self.trees and path != scope.path:
                found = self.module(path).names.get(name)
                if found is not None and not isinstance(found, Unknown):
                    return found
        return Unknown(name)

    def do_FunctionDef(self, node: ast.FunctionDef, scope: Scope) -> None:
        scope.names[node.name] = self.function(node, scope, None)

    do_AsyncFunctionDef = do_FunctionDef

    def function(self, node: ast.FunctionDef, scope: Scope, owner: UserClass | None) -> object:
        value: object = self._plain_function(node, scope, owner)
        known = owner.namespace.get(node.name) if owner is not None else None
        if isinstance(known, Property) and any(_belongs_to_property(d, node.name) for d in node.decorator_list):
            if any(isinstance(d, ast.Attribute) and d.attr == "setter" for d in node.decorator_list):
                known.setter = value
            return known
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
        if isinstance(decorator, Native) and decorator.name in ("custom_fwd", "custom_bwd"):
            return decorator.fn(value)
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


def _belongs_to_property(decorator: ast.expr, name: str) -> bool:
    """Whether a decorator is `@name.setter` or `@name.deleter`."""
    return isinstance(decorator, ast.Attribute) and isinstance(decorator.value, ast.Name) and decorator.value.id == name


def _mentions_main(test: ast.expr) -> bool:
    return any(isinstance(n, ast.Name) and n.id == "__name__" for n in ast.walk(test))
