"""Expressions, calls and attributes of the user's program, interpreted."""

from __future__ import annotations

import ast
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from amplint.verify.objects import (
    AmpDecorated,
    Arms,
    Bound,
    BudgetSpent,
    Dotted,
    Function,
    GeneratorCall,
    Instance,
    ModuleValue,
    Native,
    Partial,
    Property,
    Returned,
    Scope,
    Super,
    Unknown,
    UserClass,
    UserError,
    Wrapped,
)
from amplint.verify.plain import MAX_BITS, MAX_ITEMS, PLAIN, Unsupported

if TYPE_CHECKING:
    from amplint.verify.machine import World

#: how deep a function may call itself
DEEPEST = 3
#: attribute names with two leading underscores never leave the interpreter, but for these
HARMLESS_DUNDERS = {"__init__", "__call__", "__enter__", "__exit__", "__len__", "__name__", "__iter__", "__next__"}


class Expressions:
    """What an expression is worth in a scope. Statements, which a call executes, are the layer above."""

    def __init__(self, world: World, budget: int, more: int = 0) -> None:
        """`budget` counts statements; `more` of them are granted with the first backward."""
        self.world = world
        self.budget = budget
        self.more = more
        self.depth = 0
        self.yields: list[Callable[[object], object]] = []
        self.managers: list[bool] = []
        #: how many constructors of networks run
        self.constructing = 0
        #: how many `try` blocks with handlers run
        self.trying = 0
        #: how many calls of each function run
        self.active: Counter[int] = Counter()
        self._locals: dict[int, frozenset[str]] = {}

    # what the layer above defines, and this one needs

    def block(self, body: list[ast.stmt], scope: Scope) -> None:
        raise NotImplementedError

    def assign(self, target: ast.expr, value: object, scope: Scope) -> None:
        raise NotImplementedError

    def _plain_function(self, node: Any, scope: Scope, owner: UserClass | None) -> Function:
        defaults = [self.eval(d, scope) for d in node.args.defaults]
        kw_defaults = [self.eval(d, scope) if d is not None else None for d in node.args.kw_defaults]
        return Function(node, scope, defaults, kw_defaults, owner)

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
        if node.id in scope.locals_ and not self.trying and self.world.harmless(scope.path, node):
            # where a condition on stand-ins has gone the other way
            self.world.assume(f"{node.id} is set")
            value = scope.names[node.id] = Unknown(node.id)
            return value
        if node.id in scope.locals_:
            error = UnboundLocalError(
                f"cannot access local variable '{node.id}' where it is not associated with a value"
            )
            raise UserError(error, scope.path, node.lineno, made_here=True)
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
        arms = ((node.body.lineno, node.body.lineno), (node.orelse.lineno, node.orelse.lineno))
        return self.eval(node.body if self.condition(node.test, scope, arms) else node.orelse, scope)

    def condition(self, node: ast.expr, scope: Scope, arms: Arms) -> bool:
        """Whether a condition holds; `arms` is what hangs on it, and tells how to decide where it is unknown."""
        swapped = (arms[1], arms[0])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return not self.condition(node.operand, scope, swapped)
        if isinstance(node, ast.BoolOp):
            every = all if isinstance(node.op, ast.And) else any
            return every(self.condition(part, scope, arms) for part in node.values)
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.NotEq | ast.NotIn):
            left, right = self.eval(node.left, scope), self.eval(node.comparators[0], scope)
            positive = ast.Eq() if isinstance(node.ops[0], ast.NotEq) else ast.In()
            same = self.world.compare(positive, left, right)
            if isinstance(same, Unknown):
                return not self.world.truth(same, swapped)
            return self.world.truth(self.world.compare(node.ops[0], left, right), arms)
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and arms != ((0, 0), (0, 0)):
            left, right = self.eval(node.left, scope), self.eval(node.comparators[0], scope)
            held = self.world.truth(self.world.compare(node.ops[0], left, right), arms)
            self.world.decided_by_number(node.ops[0], left, right, arms, held)
            return held
        return self.world.truth(self.eval(node, scope), arms)

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
        if isinstance(receiver, Native) and name in ("to", "cuda", "cpu", "float", "eval", "train"):
            # a loss is moved like any other module
            return receiver
        return self.world.method(receiver, name, args, keywords)

    def call(self, function: object, args: list[object], keywords: dict[str, object]) -> Any:
        if isinstance(function, Function):
            return self.call_function(function, args, keywords)
        if isinstance(function, Bound):
            return self.call(function.function, [function.receiver, *args], keywords)
        if isinstance(function, AmpDecorated):
            return self.call(function.function, args, keywords)
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
        if _is_abstract(function.node):
            # what another class does there is not in sight
            return self.world.call(Unknown(function.name), args[function.owner is not None :], keywords)
        node = function.node
        if self.active[id(node)] >= DEEPEST and any(isinstance(part, ast.For | ast.If) for part in ast.walk(node)):
            # a recursion over the parts of something ends where those of a stand-in do not
            self.world.assume(f"{function.name}() ends")
            return Unknown(f"{function.name}()")
        scope = self._frame(function, args, keywords)
        place = (self.world.path, self.world.line)
        span = self.world.span
        self.depth += 1
        self.active[id(node)] += 1
        try:
            if isinstance(node, ast.Lambda):
                return self.eval(node.body, scope)
            self.block(node.body, scope)
            return None
        except Returned as result:
            return result.value
        finally:
            self.depth -= 1
            self.active[id(node)] -= 1
            self.world.path, self.world.line = place
            self.world.span = span

    def _frame(self, function: Function, args: list[object], keywords: dict[str, object]) -> Scope:
        scope = Scope(function.scope, function.scope.path)
        if not isinstance(function.node, ast.Lambda):
            known = self._locals.get(id(function.node))
            if known is None:
                known = self._locals[id(function.node)] = _assigned_names(function.node)
            scope.locals_ = known
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
            network = (cls.library_base() or "").endswith("Module")
            self.constructing += network
            try:
                self.call_function(init, [instance, *args], keywords)
            finally:
                self.constructing -= network
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
            found = value.cls.find(name)
            if isinstance(found, Property) and found.setter is not None:
                self.call(found.setter, [value, new], {})
                return
            value.attrs[name] = new
            self.world.set_attribute(value, name, new)
        elif isinstance(value, UserClass):
            value.namespace[name] = new
        else:
            self.world.set_attribute(value, name, new)


def _is_abstract(node: Any) -> bool:
    """Whether a function does nothing but say that it is not there."""
    if isinstance(node, ast.Lambda):
        return False
    body = [s for s in node.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    if len(body) != 1 or not isinstance(body[0], ast.Raise) or body[0].exc is None:
        return not body and any("abstract" in ast.unparse(d) for d in node.decorator_list)
    return "NotImplementedError" in ast.unparse(body[0].exc)


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
