"""Which tensors are 16 bit, statement by statement: the dtypes that autocast and casts by hand give them.

Every function of a module is walked once, with unknown arguments; what it calls in the module is walked in place,
under the regions that are open there. The result is a list of facts (`Fact`): operators, calls and item assignments
whose operands are known well enough for the rules to judge.

A dtype is certain where an operator of the list in `amplint.optable` or a cast gave it, and likely where an unknown
network computed it in a 16-bit region: most networks end in a matrix product.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from amplint import library, optable
from amplint.names import Names, names_of
from amplint.program import (
    Assign,
    Attr,
    Branch,
    Call,
    Closure,
    Const,
    Define,
    Evaluate,
    Expr,
    Item,
    Jump,
    Loop,
    Name,
    Op,
    Region,
    Scope,
    Seq,
    Star,
    Stmt,
    Try,
    Yield,
    path_of,
)
from amplint.regions import DEFAULT_IS_SET
from amplint.torch_facts import parameters_of

if TYPE_CHECKING:
    import libcst as cst

    from amplint.project import ModuleEnv

_MAX_DEPTH = 4
#: statements that are walked for one module; what was found until then stands
_BUDGET = 40_000
#: a module without one of these words holds no 16-bit tensor that could be known
_SIXTEEN_BITS = frozenset({"autocast", "half", "float16", "bfloat16", "HalfTensor"})
_FP16_BY_DEFAULT = frozenset({"cuda", "xpu", "mps", "mtia", "npu"})
_BINARY = frozenset({"+", "-", "*", "/", "//", "%", "**"})
_LARGEST = {"float16": 65504.0, "bfloat16": 3.3895e38, "float32": 3.4028235e38, "float64": 1.7976931348623157e308}


# --- values --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Unknown:
    """Anything; `key` names where it came from, for what is called like a network."""

    key: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a dtype; `sure` where it follows from operators and casts, `born` the region it was computed in."""

    dtype: str
    sure: bool = True
    born: int = 0
    #: tells tensors of one region apart; a view is the tensor that it is a view of
    origin: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Number:
    """A Python number, or a tensor made of one; `value` is None where only its type is known."""

    value: float | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """A string."""

    value: str


@dataclass(frozen=True, slots=True)
class Library:
    """Something of a library, by its dotted name; the instance of a class where `made` holds its arguments."""

    dotted: str
    made: tuple[Any, ...] | None = None
    #: tells objects of one class apart
    where: int = 0

    @property
    def last(self) -> str:
        return self.dotted.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Own:
    """A function or class of the module; `holder` is the object it is bound to, `made` says it is an instance."""

    scope: Scope
    holder: Own | None = None
    made: bool = False


@dataclass(frozen=True, slots=True)
class DtypeOf:
    """The dtype of a tensor, as a value."""

    tensor: Any


@dataclass(frozen=True, slots=True)
class Items:
    """A tuple or list of known values."""

    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Opened:
    """An open region: autocast, or `no_grad`. `enabled` and `cache` are None where they are decided at run time."""

    kind: str
    dtype: str | None = None
    enabled: bool | None = True
    cache: bool | None = True
    device: str | None = None
    number: int = 0
    node: cst.CSTNode | None = field(default=None, compare=False)
    #: how many calls deep it was entered
    depth: int = 0


NOTHING = Unknown()
Value = Any
Frame = dict[str, Value]


@dataclass(frozen=True, slots=True)
class Fact:
    """An operation with the values it met.

    kind: "binary" (operation is the operator), "call" (the function's full name, or the method's), "setitem",
    "apply" (a network, by the key in `receiver`). `scope` is the function that holds it, `node` the statement or call.
    """

    kind: str
    operation: str
    node: cst.CSTNode
    scope: Scope
    receiver: Value
    arguments: tuple[Value, ...]
    keywords: dict[str, Value]
    regions: tuple[Opened, ...]
    #: the calls that lead here from where the walk began
    calls: tuple[cst.CSTNode, ...]

    @property
    def operands(self) -> tuple[Value, ...]:
        """Receiver and arguments, containers taken apart."""
        found: list[Value] = []
        for value in (self.receiver, *self.arguments, *self.keywords.values()):
            found.extend(value.values if isinstance(value, Items) else (value,))
        return tuple(found)

    @property
    def region(self) -> Opened | None:
        """The autocast region that decides about the operation."""
        return _deciding(self.regions)


def facts_of(env: ModuleEnv, target: str) -> tuple[Fact, ...]:
    """The facts of a module that is written for a version of torch, computed at most once."""
    known = env.shared.get("precision")
    if known is None:
        known = env.shared["precision"] = _Walk(env, target).facts()
    return known


def is_unsupported(fact: Fact) -> bool:
    """Whether an operator has no 16-bit kernel, or one for some sizes only."""
    package, _, name = fact.operation.rpartition(".")
    if package == "torch.fft":
        return name not in optable.FFT_OF_ANY_DTYPE
    if package == "torch.linalg":
        return name not in optable.LINALG_OF_ANY_DTYPE
    if package == "" and not isinstance(fact.receiver, Tensor):
        return False
    return package in ("", "torch") and name in optable.WITHOUT_HALF


class _Walk:
    def __init__(self, env: ModuleEnv, target: str) -> None:
        self.env = env
        self.target = target
        self.names: Names = names_of(env)
        self.found: list[Fact] = []
        self.regions: tuple[Opened, ...] = ()
        self.entries = 0
        self.stack: list[Scope] = []
        self.returned: list[list[Value]] = []
        self.attributes: dict[Scope, Frame] = {}
        self.globals: Frame = {}
        self.node: cst.CSTNode | None = None
        self.made = 0
        self.budget = _BUDGET
        #: results of functions by what they were given, so that none is walked twice for the same
        self.results: dict[Any, Value] = {}
        self.call_nodes: tuple[cst.CSTNode, ...] = ()

    def facts(self) -> tuple[Fact, ...]:
        program = self.env.program
        if program.body.words.isdisjoint(_SIXTEEN_BITS):
            return ()
        self.stack.append(program.body)
        self._block(program.body.body, self.globals)
        for scope in program.scopes:
            if scope.kind == "function" and not scope.name.startswith("<lambda"):
                holder = Own(scope.parent, made=True) if scope.is_method and scope.parent is not None else None
                self._run(Own(scope, holder), (), {})
        return tuple(self.found)

    # --- functions -------------------------------------------------------------------------------

    def _run(
        self,
        func: Own,
        positional: tuple[Value, ...],
        keywords: dict[str, Value],
        call: cst.CSTNode | None = None,
    ) -> Value:
        """Walk a function with these arguments; its result."""
        scope = func.scope
        if scope in self.stack or len(self.stack) > _MAX_DEPTH or self.budget <= 0:
            return NOTHING
        key = (scope, func.holder and func.holder.scope, positional, tuple(sorted(keywords.items())), self.regions)
        if key in self.results:
            return self.results[key]
        frame: Frame = {}
        values = list(positional)
        plain = [p for p in scope.params if p.kind == "plain"]
        if func.holder is not None and plain and not self._is_static(scope):
            values.insert(0, func.holder)
        for param in scope.params:
            if param.kind == "plain" and values:
                frame[param.name] = values.pop(0)
            elif param.name in keywords:
                frame[param.name] = keywords[param.name]
            elif param.default is not None:
                default = self._constant(param.default)
                frame[param.name] = default if default is not NOTHING else self._parameter(scope, param.name)
            else:
                frame[param.name] = self._parameter(scope, param.name)
        saved, node, calls = self.regions, self.node, self.call_nodes
        if call is not None:
            self.call_nodes = (*calls, call)
        self.stack.append(scope)
        self.returned.append([])
        given = self._casts_inputs(scope)
        if given is not None:
            frame = {n: replace(v, dtype=given) if isinstance(v, Tensor) else v for n, v in frame.items()}
            self.regions = (*self.regions, Opened("autocast", enabled=False))
        for decorator in self._decorators(scope):
            self.regions = (*self.regions, decorator)
        self._block(scope.body, frame)
        self.regions, self.node, self.call_nodes = saved, node, calls
        self.stack.pop()
        if scope.name == "__init__" and scope.parent is not None and func.holder is not None:
            own = f"{plain[0].name}." if plain else "self."
            kept = {k.removeprefix(own): v for k, v in frame.items() if k.startswith(own)}
            self.attributes.setdefault(scope.parent, kept)
        result = self.results[key] = _joined(self.returned.pop())
        return result

    def _parameter(self, scope: Scope, name: str) -> Value:
        annotation = next((p.annotation for p in scope.params if p.name == name), "")
        cls = self.env.program.body.children.get(annotation)
        if cls is not None and cls.kind == "class":
            return Own(cls, made=True)
        return Unknown(("param", scope.qualname, name))

    def _is_static(self, scope: Scope) -> bool:
        return any(isinstance(d, Name) and d.id == "staticmethod" for d in scope.decorators)

    def _constant(self, expr: Expr) -> Value:
        return self._value(expr, {}) if isinstance(expr, (Const, Op, Attr, Name)) else NOTHING

    def _casts_inputs(self, scope: Scope) -> str | None:
        """The dtype that `custom_fwd(cast_inputs=...)` casts a function's arguments to, out of autocast."""
        for stmt in scope.prelude:
            if isinstance(stmt, Call) and path_of(stmt.func).rpartition(".")[2] == "custom_fwd":
                for arg in stmt.args:
                    if arg.keyword == "cast_inputs":
                        return dtype_name(self._value(arg.value, {}))
        return None

    def _decorators(self, scope: Scope) -> list[Opened]:
        frame: Frame = {}
        outer = scope.parent
        if outer is None or not scope.decorators:
            return []
        self.stack.append(outer)
        for stmt in scope.prelude:
            if isinstance(stmt, Call):
                frame[stmt.result] = self._call_value(stmt, frame, quiet=True)
        opened = [self._value(d, frame) for d in scope.decorators]
        self.stack.pop()
        found = []
        for value in opened:
            if isinstance(value, Library) and library.role(value.dotted) == "no_grad":
                value = Opened("no_grad")
            if isinstance(value, Opened):
                found.append(self._entered(value, scope.node))
        return found

    # --- statements ------------------------------------------------------------------------------

    def _block(self, body: list[Stmt], frame: Frame) -> None:
        for stmt in body:
            self.budget -= 1
            if self.budget <= 0:
                return
            node = getattr(stmt, "node", None)
            if node is not None and not isinstance(stmt, (Branch, Loop, Region, Try, Define)):
                self.node = node
            self._statement(stmt, frame)

    def _statement(self, stmt: Stmt, frame: Frame) -> None:
        if isinstance(stmt, Call):
            frame[stmt.result] = self._call_value(stmt, frame)
        elif isinstance(stmt, Assign):
            value = self._value(stmt.value, frame)
            self._bind(stmt.target, value, frame, stmt.node)
        elif isinstance(stmt, Evaluate):
            self._value(stmt.value, frame)
        elif isinstance(stmt, Branch):
            self._value(stmt.test, frame)
            then, orelse = dict(frame), dict(frame)
            self._block(stmt.then, then)
            self._block(stmt.orelse, orelse)
            frame.clear()
            left = _ends(stmt.then), _ends(stmt.orelse)
            if left[0] != left[1]:
                frame.update(orelse if left[0] else then)
            else:
                for key in then.keys() | orelse.keys():
                    frame[key] = _joined([then.get(key, NOTHING), orelse.get(key, NOTHING)])
        elif isinstance(stmt, Loop):
            self._loop(stmt, frame)
        elif isinstance(stmt, Region):
            self._region(stmt, frame)
        elif isinstance(stmt, Try):
            self._block(stmt.body, frame)
            for handler in stmt.handlers:
                self._block(handler.body, dict(frame))
            self._block(stmt.orelse, frame)
            self._block(stmt.final, frame)
        elif isinstance(stmt, Jump):
            value = self._value(stmt.value, frame) if stmt.value is not None else NOTHING
            if stmt.kind == "return" and self.returned:
                self.returned[-1].append(value)
        elif isinstance(stmt, Yield):
            if stmt.value is not None:
                self._value(stmt.value, frame)
            frame[stmt.result] = NOTHING
        elif isinstance(stmt, Define) and stmt.scope.kind == "function":
            frame[stmt.scope.name] = Own(stmt.scope)

    def _loop(self, stmt: Loop, frame: Frame) -> None:
        if stmt.kind == "while":
            self._block(stmt.prelude, frame)
        elif stmt.iterable is not None and stmt.target is not None:
            self._bind(stmt.target, self._element(self._value(stmt.iterable, frame)), frame, None)
        before = dict(frame)
        self._block(stmt.body, frame)
        if stmt.collect:
            element = self._value(stmt.element, frame) if stmt.element is not None else NOTHING
            frame[stmt.collect] = Items((element,)) if stmt.shape == "list" else NOTHING
        for key, value in before.items():
            if frame.get(key) is not value and isinstance(value, Tensor):
                frame[key] = _joined([value, frame.get(key, NOTHING)])
        self._block(stmt.orelse, frame)

    @staticmethod
    def _element(value: Value) -> Value:
        if isinstance(value, Items):
            return _joined(list(value.values))
        if isinstance(value, Library) and value.made:
            return _joined(list(value.made))
        return value if isinstance(value, Tensor) else NOTHING

    def _region(self, stmt: Region, frame: Frame) -> None:
        context = self._value(stmt.context, frame)
        if isinstance(context, Library) and library.role(context.dotted) == "no_grad":
            context = Opened("no_grad")
        saved = self.regions
        if isinstance(context, Opened):
            self.regions = (*saved, self._entered(context, stmt.node))
        elif not isinstance(context, Own) and not _is_harmless(context):
            # it may be a region of its own: nothing computed in it is certain
            self.regions = (*saved, self._entered(Opened("autocast", None, None, None), stmt.node))
        if stmt.target is not None:
            self._bind(stmt.target, NOTHING, frame, None)
        self._block(stmt.body, frame)
        self.regions = saved

    def _entered(self, context: Opened, node: cst.CSTNode) -> Opened:
        self.entries += 1
        return replace(context, number=self.entries, node=node, depth=len(self.call_nodes))

    def _bind(self, target: Expr, value: Value, frame: Frame, node: cst.CSTNode | None) -> None:
        if isinstance(target, Name):
            if self.stack and target.id in self.stack[-1].outer_names:
                self.globals[target.id] = value
            frame[target.id] = value
        elif isinstance(target, Attr):
            path = path_of(target)
            if path:
                frame[path] = value
        elif isinstance(target, Item):
            base = self._value(target.base, frame)
            if node is not None:
                self._fact("setitem", "=", base, (value,), {}, node)
        elif isinstance(target, Seq):
            items = value.values if isinstance(value, Items) else ()
            for position, inner in enumerate(target.items):
                known = (
                    items[position]
                    if len(items) == len(target.items)
                    else value
                    if isinstance(value, Tensor)
                    else NOTHING
                )
                self._bind(inner, known, frame, None)
        elif isinstance(target, Star):
            self._bind(target.value, NOTHING, frame, None)

    # --- expressions -----------------------------------------------------------------------------

    def _value(self, expr: Expr | None, frame: Frame) -> Value:
        if isinstance(expr, Const):
            if isinstance(expr.value, (int, float)) and not isinstance(expr.value, bool):
                return _number(expr.value)
            return Text(expr.value) if isinstance(expr.value, str) else Library(f"const.{expr.value}")
        if isinstance(expr, Name):
            return self._name(expr, frame)
        if isinstance(expr, Attr):
            return self._attribute(expr, frame)
        if isinstance(expr, Item):
            base = self._value(expr.base, frame)
            index = self._value(expr.index, frame)
            if isinstance(base, Items) and isinstance(index, Number) and index.value is not None:
                position = int(index.value)
                return base.values[position] if -len(base.values) <= position < len(base.values) else NOTHING
            return base if isinstance(base, Tensor) else self._element(base)
        if isinstance(expr, Op):
            return self._operator(expr, frame)
        if isinstance(expr, Seq):
            return Items(tuple(self._value(i, frame) for i in expr.items))
        if isinstance(expr, Star):
            return self._element(self._value(expr.value, frame))
        if isinstance(expr, Closure):
            return Own(expr.scope)
        return NOTHING

    def _name(self, expr: Name, frame: Frame) -> Value:
        found = frame.get(expr.id)
        if found is not None:
            return found
        if expr.id.startswith("%"):
            return NOTHING
        dotted = self.names.of(expr, self.stack[-1])
        if len(dotted) == 1:
            return Library(next(iter(dotted)))
        found = self.globals.get(expr.id)
        if found is not None:
            return found
        scope = self.env.program.body.children.get(expr.id)
        if scope is not None:
            return Own(scope)
        return Library(expr.id) if library.is_builtin(expr.id) else NOTHING

    def _attribute(self, expr: Attr, frame: Frame) -> Value:
        path = path_of(expr)
        if path in frame:
            return frame[path]
        base = self._value(expr.base, frame)
        name = expr.name
        if isinstance(base, Library):
            return Library(f"{base.dotted}.{name}") if base.made is None else self._library_attribute(base, name)
        if isinstance(base, Tensor):
            if name in ("T", "mT", "H", "data", "real"):
                return base
            return DtypeOf(base) if name == "dtype" else NOTHING
        if isinstance(base, Own) and base.made:
            return self._member(base, name)
        if isinstance(base, Own) and base.scope.kind == "class" and name == "apply":
            return Unknown(("function", base.scope.qualname))
        if name == "dtype":
            return DtypeOf(base)
        if isinstance(base, Unknown) and base.key:
            return Unknown((*base.key, name))
        return NOTHING

    @staticmethod
    def _library_attribute(base: Library, name: str) -> Value:
        if base.last == "finfo" and name in ("min", "max") and base.made:
            largest = _LARGEST.get(dtype_name(base.made[0]) or "")
            return Number(None if largest is None else largest if name == "max" else -largest)
        if base.last == "finfo":
            return Number(None)
        return Unknown(("attr", base.dotted, name))

    def _member(self, holder: Own, name: str) -> Value:
        seen: list[Scope] = []
        queue = [holder.scope]
        while queue:
            cls = queue.pop(0)
            if cls in seen:
                continue
            seen.append(cls)
            method = cls.children.get(name)
            if method is not None and method.kind == "function":
                return Own(method, holder)
            found = self._attributes(cls).get(name)
            if found is not None and found is not NOTHING:
                return found
            for base in cls.bases:
                parent = self.env.program.body.children.get(base.id) if isinstance(base, Name) else None
                if parent is not None:
                    queue.append(parent)
        return Unknown(("attr", holder.scope.qualname, name))

    def _attributes(self, cls: Scope) -> Frame:
        known = self.attributes.get(cls)
        if known is None:
            init = cls.children.get("__init__")
            self.attributes[cls] = {}
            if init is not None and init not in self.stack:
                del self.attributes[cls]
                saved, self.regions = self.regions, ()
                mark, stack = len(self.found), self.stack
                self.stack = stack[:1]
                self._run(Own(init, Own(cls, made=True)), (), {})
                self.stack, self.regions = stack, saved
                del self.found[mark:]
            known = self.attributes.setdefault(cls, {})
            for stmt in cls.body:
                if isinstance(stmt, Assign) and isinstance(stmt.target, Name) and isinstance(stmt.value, (Const, Op)):
                    known.setdefault(stmt.target.id, self._value(stmt.value, {}))
        return known

    def _operator(self, expr: Op, frame: Frame) -> Value:
        args = [self._value(a, frame) for a in expr.args]
        op = expr.op
        if op == "ite":
            return _joined(args[1:])
        if op in ("neg", "pos") and args:
            if isinstance(args[0], Number) and args[0].value is not None:
                return Number(-args[0].value if op == "neg" else args[0].value)
            return args[0]
        if op == "@" and len(args) == 2:
            self._fact("binary", op, args[0], (args[0], args[1]), {}, self.node)
            return self._product(args)
        if op in _BINARY and len(args) == 2:
            folded = _fold(op, args[0], args[1])
            if folded is not None:
                return folded
            self._fact("binary", op, args[0], (args[0], args[1]), {}, self.node)
            if op == "**" and isinstance(args[0], Tensor):
                return self._raised(args)
            return self._promoted(op, args)
        if op in ("or", "and"):
            return _joined(args)
        return Tensor("other") if any(isinstance(a, Tensor) for a in args) else NOTHING

    # --- dtypes of results -----------------------------------------------------------------------

    @property
    def _inner(self) -> Opened | None:
        return _deciding(self.regions)

    def _tensor(self, dtype: str, sure: bool = True) -> Tensor:
        """A tensor that is computed here."""
        region = self._inner
        self.made += 1
        return Tensor(dtype, sure, region.number if region is not None else 0, self.made)

    def _product(self, args: list[Value]) -> Value:
        """The result of an operator that autocast runs in 16 bit."""
        region = self._inner
        if region is not None and region.enabled is not False:
            if region.dtype is None:
                return NOTHING
            if any(isinstance(a, Tensor) and a.dtype == "float64" for a in args):
                return NOTHING
            return self._tensor(region.dtype)
        return self._kept(args)

    def _raised(self, args: list[Value]) -> Value:
        """The result of an operator that autocast runs in fp32."""
        region = self._inner
        if region is not None and region.enabled is not False:
            if region.enabled is None and region.dtype is None:
                return NOTHING
            return self._tensor("float32") if region.device != "cpu" else self._kept(args)
        return self._kept(args)

    def _kept(self, args: list[Value]) -> Value:
        """The result of an operator that follows its inputs."""
        return self._promoted("+", [a for a in args if isinstance(a, Tensor)])

    def _promoted(self, op: str, args: list[Value]) -> Value:
        tensors = [a for a in args if isinstance(a, Tensor)]
        if not tensors:
            return Number() if args and all(isinstance(a, Number) for a in args) else NOTHING
        dtypes = {t.dtype for t in tensors} - {"other"}
        if not dtypes:
            return tensors[0] if len(tensors) == len(args) else NOTHING
        dtype = (
            next(iter(dtypes))
            if len(dtypes) == 1
            else "float32"
            if dtypes <= {"float16", "bfloat16", "float32"}
            else None
        )
        if dtype is None:
            return NOTHING
        sure = all(t.sure for t in tensors)
        strangers = [a for a in args if not isinstance(a, (Tensor, Number))]
        if strangers and dtype != "float32":
            if op not in ("*", "/"):
                return NOTHING
            sure = False
        return self._tensor(dtype, sure)

    # --- calls -----------------------------------------------------------------------------------

    def _call_value(self, stmt: Call, frame: Frame, quiet: bool = False) -> Value:
        func = stmt.func
        positional: list[Value] = []
        keywords: dict[str, Value] = {}
        for arg in stmt.args:
            value = self._value(arg.value, frame)
            if arg.keyword is not None:
                keywords[arg.keyword] = value
            elif arg.star != "**":
                positional.append(self._element(value) if arg.star else value)
        if isinstance(func, Attr) and path_of(func) not in frame:
            base = self._value(func.base, frame)
            if (
                func.name in _SELF_RETURNING
                and _is_object(base)
                and not any(map(dtype_name, (*positional, *keywords.values())))
            ):
                return base
            if isinstance(base, Number) and (func.name in _CASTS or func.name in VIEWS):
                return base
            if isinstance(base, Tensor) or (isinstance(base, Unknown) and self._is_tensor_method(func.name)):
                return self._method(base, func.name, positional, keywords, stmt)
        callee = self._value(func, frame)
        if isinstance(callee, Library):
            return self._library(callee, positional, keywords, stmt)
        if quiet:
            return NOTHING
        if isinstance(callee, Own):
            return self._own(callee, tuple(positional), keywords, stmt)
        if isinstance(callee, Unknown) and callee.key:
            return self._unknown(callee, positional, keywords, stmt)
        return NOTHING

    @staticmethod
    def _is_tensor_method(name: str) -> bool:
        return name in optable.LOWER or name in _CASTS or name in ("masked_fill", "masked_fill_", "clamp", "clamp_min")

    def _own(self, callee: Own, positional: tuple[Value, ...], keywords: dict[str, Value], stmt: Call) -> Value:
        if callee.scope.kind == "class":
            if not callee.made:
                return Own(callee.scope, made=True)
            if callee.scope.children.get("forward") is not None:
                self._fact("apply", "", Unknown(("own", callee.scope.qualname)), positional, keywords, stmt.node)
            method = callee.scope.children.get("forward") or callee.scope.children.get("__call__")
            if method is None:
                return NOTHING
            return self._run(Own(method, callee), positional, keywords, stmt.node)
        return self._run(callee, positional, keywords, stmt.node)

    def _unknown(self, callee: Unknown, positional: list[Value], keywords: dict[str, Value], stmt: Call) -> Value:
        """A call of something that was passed in or kept: it may be a network."""
        self._fact("apply", "", callee, tuple(positional), keywords, stmt.node)
        region = self._inner
        if region is None or region.enabled is False or region.dtype is None:
            return NOTHING
        return self._tensor(region.dtype, False) if like_network(callee.key) else NOTHING

    def _library(self, callee: Library, positional: list[Value], keywords: dict[str, Value], stmt: Call) -> Value:
        if callee.made is not None:
            return self._module(callee, positional, keywords, stmt)
        role = library.role(callee.dotted)
        if role in ("autocast", "device_autocast"):
            return self._autocast(callee.dotted, role, positional, keywords)
        if role == "no_grad":
            return Opened("no_grad")
        if role == "enable_grad":
            return Opened("enable_grad")
        if role == "partial" and positional and isinstance(positional[0], Library):
            return NOTHING
        last = callee.last
        if callee.dotted in ("float", "int", "len", "abs", "round") or callee.dotted.startswith(("math.", "numpy.")):
            return self._scalar(callee.dotted, positional)
        if last == "finfo":
            return Library(callee.dotted, tuple(positional))
        if role == "module" or (callee.dotted.startswith("torch.nn.") and last[:1].isupper()):
            return Library(callee.dotted, tuple(positional), id(stmt))
        if not callee.dotted.startswith("torch."):
            return NOTHING
        self._fact("call", callee.dotted, NOTHING, tuple(positional), keywords, stmt.node)
        return self._function(last, positional, keywords)

    def _function(self, name: str, positional: list[Value], keywords: dict[str, Value]) -> Value:
        args = [*positional, *keywords.values()]
        plain = name.rstrip("_") or name
        if name in ("tensor", "as_tensor", "scalar_tensor") and positional and isinstance(positional[0], Number):
            # without dimensions it decides no dtype, as a number does not
            return positional[0]
        if "dtype" in keywords:
            dtype = dtype_name(keywords["dtype"])
            return self._tensor(dtype, True) if dtype is not None else NOTHING
        if name in optable.FACTORIES:
            return (
                self._tensor("float32", True)
                if name not in ("arange", "tensor", "as_tensor", "full", "from_numpy")
                else NOTHING
            )
        if name in optable.NO_FLOAT:
            return Tensor("other")
        if plain in optable.LOWER:
            return self._product(args)
        if plain in optable.RAISED:
            return self._raised(args)
        if name in ("cat", "concat", "stack", "hstack", "vstack", "meshgrid"):
            parts = [v for a in args for v in (a.values if isinstance(a, Items) else (a,)) if not isinstance(a, Number)]
            return self._promoted("+", parts)
        if name == "where" and len(positional) == 3:
            return self._promoted("+", positional[1:])
        if name in ("einsum",):
            return self._product(args)
        first = next((a for a in positional if isinstance(a, (Tensor, Unknown))), NOTHING)
        if name in VIEWS:
            return first
        return self._tensor(first.dtype, first.sure) if isinstance(first, Tensor) and name not in _OPAQUE else NOTHING

    @staticmethod
    def _scalar(name: str, positional: list[Value]) -> Value:
        first = positional[0] if positional else NOTHING
        if name == "float" and isinstance(first, Text):
            try:
                return Number(float(first.value))
            except ValueError:
                return Number()
        if name in ("float", "abs") and isinstance(first, Number) and first.value is not None:
            return Number(abs(first.value) if name == "abs" else first.value)
        return first if name == "abs" and isinstance(first, Tensor) else Number()

    def _module(self, module: Library, positional: list[Value], keywords: dict[str, Value], stmt: Call) -> Value:
        """An object of `torch.nn` is called."""
        self._fact("call", module.dotted, module, tuple(positional), keywords, stmt.node)
        return self._through(module, [*positional, *keywords.values()])

    def _through(self, module: Library, args: list[Value]) -> Value:
        name = module.last
        if name == "Sequential" and module.made:
            value: Value = NOTHING
            for layer in module.made:
                value = self._through(layer, args) if isinstance(layer, Library) and layer.made is not None else NOTHING
                args = [value]
            return value
        if name in optable.LOWER_MODULES:
            return self._product(args)
        if name in optable.RAISED_MODULES or name.endswith("Loss"):
            return self._raised(args)
        return self._kept(args[:1]) if name in optable.KEEPING_MODULES else NOTHING

    def _method(self, base: Value, name: str, positional: list[Value], keywords: dict[str, Value], stmt: Call) -> Value:
        if name in _CASTS:
            return self._cast(base, name, positional, keywords)
        self._fact("call", name, base, tuple(positional), keywords, stmt.node)
        if not isinstance(base, Tensor) and name not in optable.LOWER:
            return NOTHING
        if name in ("item", "size", "dim", "numel", "tolist", "numpy"):
            return Number() if name == "item" else NOTHING
        if name.startswith("new_"):
            return (
                NOTHING if "dtype" in keywords or not isinstance(base, Tensor) else self._tensor(base.dtype, base.sure)
            )
        if name in VIEWS or name in _IN_PLACE:
            return base
        return self._function(name, [base, *positional], keywords)

    def _cast(self, base: Value, name: str, positional: list[Value], keywords: dict[str, Value]) -> Value:
        fixed = _CASTS[name]
        if fixed is not None:
            return self._tensor(fixed, True)
        if name == "type_as":
            other = positional[0] if positional else NOTHING
            return self._tensor(other.dtype, other.sure) if isinstance(other, Tensor) else NOTHING
        asked = [v for v in (*positional, keywords.get("dtype")) if isinstance(v, (DtypeOf, Tensor)) or dtype_name(v)]
        if not asked:
            loose = [
                v for v in (*positional, keywords.get("dtype")) if isinstance(v, Unknown) and not _like_device(v.key)
            ]
            return NOTHING if loose or not isinstance(base, Tensor) else base
        wanted = asked[0]
        source = wanted.tensor if isinstance(wanted, DtypeOf) else wanted
        if isinstance(source, Tensor):
            return self._tensor(source.dtype, source.sure)
        dtype = dtype_name(wanted)
        return self._tensor(dtype, True) if dtype is not None else NOTHING

    def _autocast(self, dotted: str, role: str, positional: list[Value], keywords: dict[str, Value]) -> Opened:
        given = dict(zip(parameters_of(dotted, self.target), positional, strict=False))
        given.update(keywords)
        device: str | None = None
        if role != "autocast":
            device = library.autocast_device(dotted)
        elif isinstance(given.get("device_type"), Text):
            device = given["device_type"].value.partition(":")[0]
        dtype: str | None
        if "dtype" in given:
            dtype = dtype_name(given["dtype"])
        else:
            chosen = device is None or DEFAULT_IS_SET.search(self.env.source.text)
            dtype = None if chosen else "float16" if device in _FP16_BY_DEFAULT else "bfloat16"
        return Opened(
            "autocast", dtype, _truth(given.get("enabled"), True), _truth(given.get("cache_enabled"), True), device
        )

    def _fact(
        self,
        kind: str,
        operation: str,
        receiver: Value,
        arguments: tuple[Value, ...],
        keywords: dict[str, Value],
        node: Any,
    ) -> None:
        if node is not None:
            self.found.append(
                Fact(
                    kind, operation, node, self.stack[-1], receiver, arguments, keywords, self.regions, self.call_nodes
                )
            )


# --- small questions -----------------------------------------------------------------------------

#: casts by method: the dtype, or None where the arguments tell
_CASTS: dict[str, str | None] = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "bfloat16": "bfloat16",
    "to": None,
    "type": None,
    "type_as": None,
}
#: methods that leave the dtype of the tensor they are called on
_IN_PLACE = frozenset(
    [
        "masked_fill_",
        "clamp_",
        "clamp_min_",
        "add_",
        "sub_",
        "mul_",
        "div_",
        "copy_",
        "fill_",
        "zero_",
        "relu_",
        "detach",
        "clone",
        "contiguous",
    ]
)
#: operations that show a tensor as it is, or copy it; none of them computes
VIEWS = frozenset(
    [
        "view",
        "reshape",
        "flatten",
        "transpose",
        "permute",
        "t",
        "squeeze",
        "unsqueeze",
        "expand",
        "expand_as",
        "repeat",
        "narrow",
        "select",
        "split",
        "chunk",
        "unbind",
        "contiguous",
        "clone",
        "detach",
        "swapaxes",
        "swapdims",
        "movedim",
        "unflatten",
        "view_as",
        "diagonal",
        "cpu",
        "cuda",
        "requires_grad_",
        "retain_grad",
        "gather",
        "index_select",
        "roll",
        "flip",
        "tile",
        "repeat_interleave",
        "broadcast_to",
    ]
)
_SELF_RETURNING = frozenset(["to", "cuda", "cpu", "xpu", "npu", "train", "eval", "requires_grad_", "share_memory"])
#: functions of torch whose result says nothing about the dtypes that matter here
_OPAQUE = frozenset(
    ["tensor", "as_tensor", "stft", "istft", "view_as_real", "view_as_complex", "load", "save", "compile"]
)
_NOT_NETWORKS = re.compile(
    r"loss|criter|(^|_)(metric|fn|func|device|norm|aug|prep|token|transform(?!er)|sampl|sched|get|log|print|collate|"
    r"callback|scal|optim|step|dist|noise|mask|time)"
)


def like_network(key: tuple[str, ...]) -> bool:
    """Whether something unknown that is called is a network, as far as its name tells."""
    last = key[-1].lower()
    return not last.startswith("_") and not _NOT_NETWORKS.search(last)


def _deciding(regions: tuple[Opened, ...]) -> Opened | None:
    """The innermost autocast region; one that is off for another device than the region around it switches nothing
    off."""
    found = [r for r in regions if r.kind == "autocast"]
    while len(found) > 1 and found[-1].enabled is False and _apart(found[-1].device, found[-2].device):
        found.pop()
    return found[-1] if found else None


def _apart(first: str | None, second: str | None) -> bool:
    return first is not None and second is not None and first != second


def _like_device(key: tuple[str, ...]) -> bool:
    return bool(key) and any(word in key[-1].lower() for word in ("device", "rank", "gpu", "cuda"))


def _is_object(value: Value) -> bool:
    """Whether a value may be a network: something passed in, or an object that was made."""
    return (
        (isinstance(value, Unknown) and bool(value.key))
        or (isinstance(value, Own) and value.made)
        or (isinstance(value, Library) and value.made is not None)
    )


def _is_harmless(value: Value) -> bool:
    return value is NOTHING or isinstance(value, (Library, Text))


def dtype_name(value: Value) -> str | None:
    """ "float16", "bfloat16", "float32" or "float64" where a value is that dtype, None where it is not known to be."""
    if isinstance(value, Library):
        if value.dotted in library.FLOAT16:
            return "float16"
        if value.dotted in library.BFLOAT16:
            return "bfloat16"
        if value.dotted in ("torch.float64", "torch.double"):
            return "float64"
        return "float32" if value.dotted in library.FLOAT32 else None
    if isinstance(value, DtypeOf) and isinstance(value.tensor, Tensor):
        return value.tensor.dtype
    return None


def _number(value: float) -> Number:
    try:
        return Number(float(value))
    except OverflowError:
        return Number()


def _truth(value: Value, default: bool) -> bool | None:
    if value is None:
        return default
    if isinstance(value, Library) and value.dotted in ("const.True", "const.False", "const.None"):
        return {"const.True": True, "const.False": False}.get(value.dotted, default)
    return None


def _joined(values: list[Value]) -> Value:
    """What is known of a value that is one of several."""
    if not values:
        return NOTHING
    first = values[0]
    for other in values[1:]:
        if isinstance(first, Tensor) and isinstance(other, Tensor) and first.dtype == other.dtype:
            first = Tensor(first.dtype, first.sure and other.sure, max(first.born, other.born))
        elif first != other:
            return NOTHING
    return first


def _ends(block: list[Stmt]) -> bool:
    return bool(block) and isinstance(block[-1], Jump)


_ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
}


def _fold(op: str, left: Value, right: Value) -> Number | None:
    if not isinstance(left, Number) or not isinstance(right, Number):
        return None
    if left.value is None or right.value is None:
        return Number()
    try:
        return Number(float(_ARITHMETIC[op](left.value, right.value)))
    except (ArithmeticError, TypeError, ValueError):
        return Number()
