"""The walk that finds out which tensors are 16 bit.

Every function of a module is walked once, with unknown arguments; what it calls in the module is walked in place,
under the regions that are open there. So is what it calls in another module, where that opens regions or is called in
one: the model that a loop trains seldom stands in its file.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from amplint import library, optable
from amplint.names import names_of
from amplint.precision.dtypes import CASTS, IN_PLACE, VIEWS
from amplint.precision.guesses import CASTING_NAME, CASTING_WORDS, OF_ITSELF, like_network
from amplint.precision.objects import Objects
from amplint.precision.values import (
    LARGEST,
    MORE,
    NOTHING,
    Answer,
    Bases,
    BytesOf,
    Distant,
    DtypeOf,
    Fact,
    Frame,
    Items,
    Library,
    Made,
    Managed,
    Module,
    Number,
    Opened,
    Own,
    Tensor,
    Text,
    Unknown,
    Value,
    dtype_name,
    ends,
    fold,
    is_harmless,
    is_network,
    is_object,
    joined,
    number,
    truth,
)
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
from amplint.rule import Site
from amplint.torch_facts import parameters_of

if TYPE_CHECKING:
    import libcst as cst

    from amplint.names import Names
    from amplint.project import ModuleEnv

_MAX_DEPTH = 7
#: statements that are walked for one module; what was found until then stands
_BUDGET = 40_000
#: a module without one of these words holds no 16-bit tensor that could be known, unless other modules do
_SIXTEEN_BITS = frozenset({"autocast", "half", "float16", "bfloat16", "HalfTensor"})
_FP16_BY_DEFAULT = frozenset({"cuda", "xpu", "mps", "mtia", "npu"})
_BINARY = frozenset({"+", "-", "*", "/", "//", "%", "**"})
_SELF_RETURNING = frozenset(["to", "cuda", "cpu", "xpu", "npu", "train", "eval", "requires_grad_", "share_memory"])
#: containers of layers that hand out one after the other
_LISTS_OF_LAYERS = frozenset({"ModuleList", "Sequential"})
#: different networks of one list that are walked in turn
_MAX_NETWORKS = 6
_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


def facts_of(env: ModuleEnv, target: str) -> tuple[Fact, ...]:
    """The facts of a module that is written for a version of torch, computed at most once."""
    known = env.shared.get("precision")
    if known is None:
        known = env.shared["precision"] = Walk(env, target).facts()
    return known


class Walk(Objects):
    """One walk over the functions of a module; `facts` returns what it met."""

    def __init__(self, env: ModuleEnv, target: str) -> None:
        super().__init__(env)
        self.target = target
        self.entries = 0
        self.returned: list[list[Value]] = []
        #: the regions in which each of the functions yields
        self.yielded: list[list[tuple[Opened, ...]]] = [[]]
        #: functions that somebody gives a network
        self.given: set[Scope] = set()
        self.globals: dict[ModuleEnv, Frame] = {}
        self.node: cst.CSTNode | None = None
        self.budget = _BUDGET
        #: results of functions by what they were given, so that none is walked twice for the same
        self.results: dict[Any, tuple[Value, Frame]] = {}

    def facts(self) -> tuple[Fact, ...]:
        env, program = self.env, self.env.program
        if program.body.words.isdisjoint(_SIXTEEN_BITS) and not env.relevant_imports:
            return ()
        self.stack.append(program.body)
        self.globals[env] = {}
        self._block(program.body.body, self.globals[env])
        alone: list[tuple[Scope, int, int]] = []
        for scope in program.scopes:
            if scope.kind == "function" and not scope.name.startswith("<lambda"):
                holder = Own(env, scope.parent, made=Made()) if scope.is_method and scope.parent is not None else None
                begin = len(self.found)
                self.run(Own(env, scope, holder), (), {})
                alone.append((scope, begin, len(self.found)))
        # what a function guesses of a network does not count where somebody gives it one
        guessed = {n for scope, *span in alone if scope in self.given for n in range(*span)}
        return tuple(f for n, f in enumerate(self.found) if n not in guessed or not _is_guess(f))

    @property
    def names(self) -> Names:
        return names_of(self.env)

    # --- functions -------------------------------------------------------------------------------

    def run(
        self,
        func: Own,
        positional: tuple[Value, ...],
        keywords: dict[str, Value],
        call: cst.CSTNode | None = None,
        caller: Frame | None = None,
    ) -> Value:
        """Walk a function with these arguments; its result. `caller` is what the function knows that calls it."""
        scope = func.scope
        if scope in self.stack or len(self.stack) > _MAX_DEPTH or self.budget <= 0:
            return NOTHING
        if call is not None and any(map(is_network, (*positional, *keywords.values()))):
            self.given.add(scope)
        key = (scope, func.holder, positional, tuple(sorted(keywords.items())), self.regions)
        if key in self.results:
            result, kept = self.results[key]
            self._keep(func, kept, caller)
            return _handed_back(result, len(self.calls))
        env = self.env
        self._enter(func.env)
        frame = self._frame(func, positional, keywords)
        saved, node, calls = self.regions, self.node, self.calls
        if call is not None:
            self.calls = (*calls, Site(env.source, call))
        self.stack.append(scope)
        self.holders.append(func.holder)
        self.returned.append([])
        self.yielded.append([])
        given = self._casts_inputs(scope)
        if given is not None:
            frame = {n: replace(v, dtype=given) if isinstance(v, Tensor) else v for n, v in frame.items()}
            self.regions = (*self.regions, Opened("autocast", enabled=False))
        for decorator in self._decorators(scope):
            self.regions = (*self.regions, decorator)
            if decorator.kind == "autocast" and decorator.enabled is None and decorator.dtype is None:
                # it may cast what is given
                frame = {n: NOTHING if isinstance(v, Tensor) else v for n, v in frame.items()}
        manages = self._is_manager(scope)
        self._block(scope.body, frame)
        self.regions, self.node, self.calls, self.env = saved, node, calls, env
        self.stack.pop()
        self.holders.pop()
        kept = _kept(scope, frame) if func.holder is not None else {}
        if scope.name == "__init__" and func.holder is not None and call is None:
            self.attributes.setdefault(func.holder, kept)
        returned, yielded = joined(self.returned.pop()), self.yielded.pop()
        result = _held(yielded, len(saved)) if manages else returned
        self.results[key] = result, kept
        self._keep(func, kept, caller)
        return _handed_back(result, len(self.calls))

    def _frame(self, func: Own, positional: tuple[Value, ...], keywords: dict[str, Value]) -> Frame:
        """What a function's parameters are."""
        scope = func.scope
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
            elif param.default is not None and MORE not in keywords:
                default = self._constant(param.default)
                frame[param.name] = default if default is not NOTHING else self._parameter(scope, param.name)
            else:
                frame[param.name] = self._parameter(scope, param.name)
        return frame

    def _keep(self, func: Own, kept: Frame, caller: Frame | None) -> None:
        """Let the caller, a method of the same object, know the attributes that a method has set."""
        if caller is not None and kept and self.stack and func.holder is not None:
            params = self.stack[-1].params
            if params and caller.get(params[0].name) == func.holder:
                caller.update((f"{params[0].name}.{name}", value) for name, value in kept.items())

    def _enter(self, env: ModuleEnv) -> None:
        """Go to a module; what its body binds is found out when it is entered first."""
        self.env = env
        if env in self.globals:
            return
        saved = self.regions, self.stack, self.node, self.calls, len(self.found)
        self.regions, self.stack, self.calls, self.globals[env] = (), [env.program.body], (), {}
        self._block(env.program.body.body, self.globals[env])
        self.regions, self.stack, self.node, self.calls, mark = saved
        del self.found[mark:]

    def _parameter(self, scope: Scope, name: str) -> Value:
        annotation = next((p.annotation for p in scope.params if p.name == name), "")
        cls = self.env.program.body.children.get(annotation)
        if cls is not None and cls.kind == "class":
            return Own(self.env, cls, made=Made())
        return Unknown(("param", scope.qualname, name))

    def _is_static(self, scope: Scope) -> bool:
        return any(isinstance(d, Name) and d.id == "staticmethod" for d in scope.decorators)

    def _is_manager(self, scope: Scope) -> bool:
        """Whether a function is a context manager by its decorator."""
        if not scope.is_generator or scope.parent is None:
            return False
        names = (dotted for d in scope.decorators for dotted in self.names.of(d, scope.parent))
        return any(library.role(dotted) == "contextmanager" for dotted in names)

    def _constant(self, expr: Expr) -> Value:
        return self.value(expr, {}) if isinstance(expr, (Const, Op, Attr, Name)) else NOTHING

    def _casts_inputs(self, scope: Scope) -> str | None:
        """The dtype that `custom_fwd(cast_inputs=...)` casts a function's arguments to, out of autocast."""
        for stmt in scope.prelude:
            if isinstance(stmt, Call) and path_of(stmt.func).rpartition(".")[2] == "custom_fwd":
                for arg in stmt.args:
                    if arg.keyword == "cast_inputs":
                        return dtype_name(self.value(arg.value, {}))
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
        made = {stmt.result: stmt.func for stmt in scope.prelude if isinstance(stmt, Call)}
        found = []
        for decorator in scope.decorators:
            value = self.value(decorator, frame)
            if isinstance(value, Library) and library.role(value.dotted) == "no_grad":
                value = Opened("no_grad")
            if not isinstance(value, Opened):
                func = made.get(decorator.id, decorator) if isinstance(decorator, Name) else decorator
                if not self._may_cast(func):
                    continue
                value = Opened("autocast", None, None, None)
            found.append(self._entered(value, scope.node))
        self.stack.pop()
        return found

    def _may_cast(self, decorator: Expr) -> bool:
        """Whether a decorator, by its name or by what it does, may have to do with dtypes."""
        value = self.value(decorator, {})
        if isinstance(value, Library) and value.dotted.startswith("torch."):
            return False
        if isinstance(value, Own):
            return not value.scope.words.isdisjoint(CASTING_WORDS)
        if isinstance(value, Distant):
            return not self.elsewhere.words_in(value).isdisjoint(CASTING_WORDS)
        return bool(CASTING_NAME.search(path_of(decorator).rpartition(".")[2]))

    # --- statements ------------------------------------------------------------------------------

    def _block(self, body: list[Stmt], frame: Frame) -> bool:
        """Walk statements in turn; whether a decided branch leaves them for certain."""
        for stmt in body:
            self.budget -= 1
            if self.budget <= 0:
                return False
            node = getattr(stmt, "node", None)
            if node is not None and not isinstance(stmt, (Branch, Loop, Region, Try, Define)):
                self.node = node
            if self._statement(stmt, frame):
                return True
        return ends(body)

    def _statement(self, stmt: Stmt, frame: Frame) -> bool:
        if isinstance(stmt, Branch):
            decided = self._outcome(stmt.test, frame)
            if decided is not None:
                return self._block(stmt.then if decided else stmt.orelse, frame)
            then, orelse = dict(frame), dict(frame)
            left = self._block(stmt.then, then), self._block(stmt.orelse, orelse)
            frame.clear()
            if left[0] != left[1]:
                frame.update(orelse if left[0] else then)
            else:
                for key in then.keys() | orelse.keys():
                    frame[key] = joined([then.get(key, NOTHING), orelse.get(key, NOTHING)])
            return all(left)
        if isinstance(stmt, Region):
            return self._region(stmt, frame)
        self._simple(stmt, frame)
        return False

    def _simple(self, stmt: Stmt, frame: Frame) -> None:
        if isinstance(stmt, Call):
            frame[stmt.result] = self._call_value(stmt, frame)
        elif isinstance(stmt, Assign):
            value = self.value(stmt.value, frame)
            self._bind(stmt.target, value, frame, stmt.node)
        elif isinstance(stmt, Evaluate):
            self.value(stmt.value, frame)
        elif isinstance(stmt, Loop):
            self._loop(stmt, frame)
        elif isinstance(stmt, Try):
            self._block(stmt.body, frame)
            for handler in stmt.handlers:
                self._block(handler.body, dict(frame))
            self._block(stmt.orelse, frame)
            self._block(stmt.final, frame)
        elif isinstance(stmt, Jump):
            value = self.value(stmt.value, frame) if stmt.value is not None else NOTHING
            if stmt.kind == "return" and self.returned:
                self.returned[-1].append(value)
        elif isinstance(stmt, Yield):
            if stmt.value is not None:
                self.value(stmt.value, frame)
            frame[stmt.result] = NOTHING
            self.yielded[-1].append(self.regions)
        elif isinstance(stmt, Define) and stmt.scope.kind == "function":
            frame[stmt.scope.name] = Own(self.env, stmt.scope)

    def _outcome(self, test: Expr | None, frame: Frame) -> bool | None:
        """Whether a test about dtypes holds, None where that is not known."""
        value = self.value(test, frame)
        if not isinstance(test, Op):
            return value.outcome if isinstance(value, Answer) else None
        if test.op == "not":
            inner = self._outcome(test.args[0], frame)
            return None if inner is None else not inner
        if test.op in ("and", "or"):
            outcomes = [self._outcome(part, frame) for part in test.args]
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

    def _loop(self, stmt: Loop, frame: Frame) -> None:
        if stmt.kind == "while":
            self._block(stmt.prelude, frame)
        elif stmt.iterable is not None and stmt.target is not None:
            iterable = self.value(stmt.iterable, frame)
            for network in self._networks(iterable)[:-1]:
                self._bind(stmt.target, network, frame, None)
                self._block(stmt.body, frame)
            last = self._networks(iterable)[-1:]
            self._bind(stmt.target, last[0] if last else self._element(iterable), frame, None)
        before = dict(frame)
        self._block(stmt.body, frame)
        if stmt.collect:
            element = self.value(stmt.element, frame) if stmt.element is not None else NOTHING
            frame[stmt.collect] = Items((element,)) if stmt.shape == "list" else NOTHING
        for key, value in before.items():
            if frame.get(key) is not value and isinstance(value, Tensor):
                frame[key] = joined([value, frame.get(key, NOTHING)])
        self._block(stmt.orelse, frame)

    def _networks(self, value: Value) -> tuple[Value, ...]:
        """The elements of a list of different networks; none where they are alike, or something else."""
        elements = _elements(value)
        differ = len(set(elements)) > 1 and all(map(is_network, elements)) and len(elements) <= _MAX_NETWORKS
        return elements if differ else ()

    @staticmethod
    def _element(value: Value) -> Value:
        if isinstance(value, Items) or (isinstance(value, Library) and value.made):
            return joined(list(_elements(value)))
        return value if isinstance(value, Tensor) else NOTHING

    def _region(self, stmt: Region, frame: Frame) -> bool:
        context = self.value(stmt.context, frame)
        if isinstance(context, Library) and library.role(context.dotted) == "no_grad":
            context = Opened("no_grad")
        saved = self.regions
        if isinstance(context, (Opened, Managed)):
            opened = (context,) if isinstance(context, Opened) else context.regions
            self.regions = (*saved, *(self._entered(region, stmt.node) for region in opened))
        elif not isinstance(context, Own) and not is_harmless(context):
            # it may be a region of its own: nothing computed in it is certain
            self.regions = (*saved, self._entered(Opened("autocast", None, None, None), stmt.node))
        if stmt.target is not None:
            self._bind(stmt.target, NOTHING, frame, None)
        left = self._block(stmt.body, frame)
        self.regions = saved
        return left

    def _entered(self, context: Opened, node: cst.CSTNode) -> Opened:
        self.entries += 1
        return replace(context, number=self.entries, site=Site(self.env.source, node), depth=len(self.calls))

    def _bind(self, target: Expr, value: Value, frame: Frame, node: cst.CSTNode | None) -> None:
        if isinstance(target, Name):
            if self.stack and target.id in self.stack[-1].outer_names:
                self.globals[self.env][target.id] = value
            frame[target.id] = value
        elif isinstance(target, Attr):
            path = path_of(target)
            if path:
                frame[path] = value
            holder = self.value(target.base, frame)
            if isinstance(holder, Own) and holder.made is not None and holder not in self.holders:
                self.forget(holder, target.name)
        elif isinstance(target, Item):
            base = self.value(target.base, frame)
            if node is not None:
                self._fact("setitem", "=", base, (value,), {}, node)
        elif isinstance(target, Seq):
            for position, inner in enumerate(target.items):
                self._bind(inner, _unpacked(value, position, inner, len(target.items)), frame, None)
        elif isinstance(target, Star):
            self._bind(target.value, NOTHING, frame, None)

    # --- expressions -----------------------------------------------------------------------------

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
            if isinstance(base, Items) and isinstance(index, Number) and index.value is not None:
                position = int(index.value)
                return base.values[position] if -len(base.values) <= position < len(base.values) else NOTHING
            return base if isinstance(base, Tensor) else self._element(base)
        if isinstance(expr, Op):
            return self._operator(expr, frame)
        if isinstance(expr, Seq):
            return Items(tuple(self.value(i, frame) for i in expr.items))
        if isinstance(expr, Star):
            return self._element(self.value(expr.value, frame))
        if isinstance(expr, Closure):
            return Own(self.env, expr.scope)
        return NOTHING

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
            base = self._read(base, ()) or base
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
            decided = self._outcome(expr.args[0], frame)
            return joined(args[1:]) if decided is None else args[1] if decided else args[2]
        if op in ("neg", "pos") and args:
            if isinstance(args[0], Number) and args[0].value is not None:
                return Number(-args[0].value if op == "neg" else args[0].value)
            return args[0]
        if op == "@" and len(args) == 2:
            self._fact("binary", op, args[0], (args[0], args[1]), {}, self.node)
            return self.product(args)
        if op in _BINARY and len(args) == 2:
            folded = fold(op, args[0], args[1])
            if folded is not None:
                return folded
            self._fact("binary", op, args[0], (args[0], args[1]), {}, self.node)
            if any(isinstance(a, Tensor) for a in args) and (op == "**" or (op == "/" and isinstance(args[0], Number))):
                # a number divided by a tensor is the tensor's reciprocal
                return self.raised(args)
            return self.promoted(op, args)
        if op in ("or", "and"):
            return joined(args)
        return Tensor("other") if any(isinstance(a, Tensor) for a in args) else NOTHING

    # --- calls -----------------------------------------------------------------------------------

    def _call_value(self, stmt: Call, frame: Frame, quiet: bool = False) -> Value:
        func = stmt.func
        positional: list[Value] = []
        keywords: dict[str, Value] = {}
        for arg in stmt.args:
            value = self.value(arg.value, frame)
            if arg.keyword is not None:
                keywords[arg.keyword] = value
            elif arg.star:
                keywords[MORE] = NOTHING
            else:
                positional.append(value)
        if isinstance(func, Attr) and path_of(func) not in frame:
            base = self.value(func.base, frame)
            if (
                func.name in _SELF_RETURNING
                and is_object(base)
                and not any(map(dtype_name, (*positional, *keywords.values())))
            ):
                return base
            if isinstance(base, Number) and (func.name in CASTS or func.name in VIEWS):
                return base
            path = path_of(func.base)
            if func.name == "append" and isinstance(base, Library) and base.last == "ModuleList" and path in frame:
                frame[path] = replace(base, made=(Items((*_elements(base), *positional)),))
                return NOTHING
            if isinstance(base, Tensor) and func.name == "element_size":
                return BytesOf(base)
            if isinstance(base, Tensor) or (isinstance(base, Unknown) and self._is_tensor_method(func.name)):
                return self._method(base, func.name, positional, keywords, stmt)
        return self._called(self.value(func, frame), positional, keywords, stmt, frame, quiet)

    def _called(
        self,
        callee: Value,
        positional: list[Value],
        keywords: dict[str, Value],
        stmt: Call,
        frame: Frame | None = None,
        quiet: bool = False,
    ) -> Value:
        if isinstance(callee, Library) and callee.dotted == "super" and not positional:
            return self.parents()
        if isinstance(callee, Library):
            return self._library(callee, positional, keywords, stmt)
        if quiet:
            return NOTHING
        if isinstance(callee, Distant):
            if callee.made is None and not callee.attribute and self.elsewhere.is_class(callee):
                return replace(callee, made=_made(positional, keywords))
            read = self._read(callee, (*positional, *keywords.values()))
            if read is not None and callee.attribute:
                return self._called(Unknown(("function", *read.key), read), positional, keywords, stmt)
            if read is None:
                if callee.made is not None and self.elsewhere.is_network(callee):
                    network = Unknown(("own", callee.file.as_posix(), callee.name))
                    self._fact("apply", "", network, tuple(positional), keywords, stmt.node)
                return NOTHING
            callee = read
        if isinstance(callee, Own):
            return self._own(callee, tuple(positional), keywords, stmt, frame)
        if isinstance(callee, Unknown) and callee.key:
            return self._unknown(callee, positional, keywords, stmt)
        return NOTHING

    @staticmethod
    def _is_tensor_method(name: str) -> bool:
        return name in optable.LOWER or name in CASTS or name in ("masked_fill", "masked_fill_", "clamp", "clamp_min")

    def _read(self, value: Distant, given: tuple[Value, ...]) -> Own | None:
        """The definition of another module, where its operators meet tensors that are 16 bit, or may make them so."""
        region = self.inner
        reached = region is not None or any(isinstance(v, Tensor) and v.dtype in ("float16", "bfloat16") for v in given)
        held = [each for v in (*given, *(value.made.values if value.made is not None else ())) for each in _each(v)]
        if (
            (self.elsewhere.opens_regions(value) and (any(map(is_network, held)) or self.elsewhere.is_context(value)))
            or (reached and (self.elsewhere.computes(value) or any(map(is_network, held))))
            or (value.made is None and self.elsewhere.makes_networks(value))
        ):
            return self.elsewhere.read(value)
        return None

    def _own(
        self,
        callee: Own,
        positional: tuple[Value, ...],
        keywords: dict[str, Value],
        stmt: Call,
        frame: Frame | None = None,
    ) -> Value:
        if callee.scope.kind != "class":
            return self.run(callee, positional, keywords, stmt.node, frame)
        if callee.made is None:
            return replace(callee, made=_made(positional, keywords))
        method = self.member(callee, "forward")
        if isinstance(method, Own):
            self._fact("apply", "", Unknown(("own", *callee.key)), positional, keywords, stmt.node)
        else:
            method = self.member(callee, "__call__")
        return self.run(method, positional, keywords, stmt.node) if isinstance(method, Own) else NOTHING

    def _unknown(self, callee: Unknown, positional: list[Value], keywords: dict[str, Value], stmt: Call) -> Value:
        """A call of something that was passed in or kept: it may be a network."""
        self._fact("apply", "", callee, tuple(positional), keywords, stmt.node)
        region = self.inner
        if region is None or region.enabled is False or region.dtype is None:
            return NOTHING
        return self.tensor(region.dtype, False) if like_network(callee.key) else NOTHING

    def _library(self, callee: Library, positional: list[Value], keywords: dict[str, Value], stmt: Call) -> Value:
        if callee.made is not None:
            return self._module(callee, positional, keywords, stmt)
        role, last = library.role(callee.dotted), callee.last
        if role in ("autocast", "device_autocast"):
            return self._autocast(callee.dotted, role, positional, keywords)
        if (role == "same_module" or last == "Parameter") and positional:
            return positional[0]
        if role == "no_grad":
            return Opened("no_grad")
        if role == "enable_grad":
            return Opened("enable_grad")
        if role == "partial" and positional and isinstance(positional[0], Library):
            return NOTHING
        if callee.dotted in ("float", "int", "len", "abs", "round") or callee.dotted.startswith(("math.", "numpy.")):
            return self.scalar(callee.dotted, positional)
        if last == "is_autocast_enabled" and self.inner is not None and self.inner.enabled is not None:
            return Answer(self.inner.enabled)
        if last == "finfo":
            return Library(callee.dotted, tuple(positional))
        if role == "module" or (callee.dotted.startswith("torch.nn.") and last[:1].isupper()):
            return Library(callee.dotted, tuple(positional), id(stmt))
        if not callee.dotted.startswith("torch."):
            return NOTHING
        self._fact("call", callee.dotted, NOTHING, tuple(positional), keywords, stmt.node)
        return self.function(last, positional, keywords)

    def _module(self, module: Library, positional: list[Value], keywords: dict[str, Value], stmt: Call) -> Value:
        """An object of `torch.nn` is called."""
        self._fact("call", module.dotted, module, tuple(positional), keywords, stmt.node)
        return self._through(module, [*positional, *keywords.values()], stmt)

    def _through(self, module: Library, args: list[Value], stmt: Call) -> Value:
        name = module.last
        if name == "Sequential" and module.made:
            value: Value = NOTHING
            for layer in module.made:
                known = isinstance(layer, Library) and layer.made is not None
                value = self._through(layer, args, stmt) if known else self._called(layer, args, {}, stmt)
                args = [value]
            return value
        if name in optable.LOWER_MODULES:
            result = self.product(args)
            # the second result is the attention's weights, or the state
            return Items((result, NOTHING)) if name in optable.WITH_STATE else result
        if name in optable.RAISED_MODULES or name.endswith("Loss"):
            return self.raised(args)
        return self.kept(args[:1]) if name in optable.KEEPING_MODULES else NOTHING

    def _method(self, base: Value, name: str, positional: list[Value], keywords: dict[str, Value], stmt: Call) -> Value:
        if name in CASTS:
            return self.cast(base, name, positional, keywords)
        self._fact("call", name, base, tuple(positional), keywords, stmt.node)
        if not isinstance(base, Tensor) and name not in optable.LOWER:
            return NOTHING
        if name in ("item", "size", "dim", "numel", "tolist", "numpy"):
            return Number() if name == "item" else NOTHING
        if name.startswith("new_"):
            other = "dtype" in keywords or MORE in keywords or not isinstance(base, Tensor)
            return NOTHING if other else self.tensor(base.dtype, base.sure)
        if name in VIEWS or name in IN_PLACE:
            return base
        return self.function(name, [base, *positional], keywords)

    def _autocast(self, dotted: str, role: str, positional: list[Value], keywords: dict[str, Value]) -> Opened:
        given = dict(zip(parameters_of(dotted, self.target), positional, strict=False))
        given.update(keywords)
        device: str | None = None
        if role != "autocast":
            device = library.autocast_device(dotted)
        elif isinstance(given.get("device_type"), Text):
            device = given["device_type"].value.partition(":")[0]
        dtype: str | None
        if MORE in given:
            return Opened("autocast", dtype_name(given.get("dtype")), None, None, device)
        if "dtype" in given:
            dtype = dtype_name(given["dtype"])
        else:
            chosen = device is None or DEFAULT_IS_SET.search(self.env.source.text)
            dtype = None if chosen else "float16" if device in _FP16_BY_DEFAULT else "bfloat16"
        return Opened(
            "autocast", dtype, truth(given.get("enabled"), True), truth(given.get("cache_enabled"), True), device
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
                    kind,
                    operation,
                    node,
                    self.env,
                    self.stack[-1],
                    receiver,
                    arguments,
                    keywords,
                    self.regions,
                    self.calls,
                )
            )


def _made(positional: list[Value] | tuple[Value, ...], keywords: dict[str, Value]) -> Made:
    return Made(tuple(positional), tuple(sorted(keywords.items())))


def _unpacked(value: Value, position: int, target: Expr, length: int) -> Value:
    """What one of several targets gets."""
    if isinstance(value, Items):
        return value.values[position] if len(value.values) == length else NOTHING
    if isinstance(value, Unknown) and len(value.key) == OF_ITSELF and isinstance(target, Name):
        return Unknown((*value.key[:-1], target.id))
    # of several results that a network is guessed to have, the first is its output
    return value if isinstance(value, Tensor) and (value.sure or not position) else NOTHING


def _elements(value: Value) -> tuple[Value, ...]:
    """The elements of a list, or the layers of a list of layers, as far as they are known."""
    if isinstance(value, Library):
        made = value.made or ()
        listed = made[0] if made and value.last in _LISTS_OF_LAYERS and isinstance(made[0], Items) else None
        return made if listed is None else listed.values
    return value.values if isinstance(value, Items) else ()


def _handed_back(value: Value, depth: int) -> Value:
    """A result as the caller sees it, for whom its dtype was decided by the call."""
    if isinstance(value, Items):
        return Items(tuple(_handed_back(each, depth) for each in value.values))
    return replace(value, decided=depth) if isinstance(value, Tensor) and value.decided > depth else value


def _each(value: Value) -> tuple[Value, ...]:
    return value.values if isinstance(value, Items) else (value,)


def _kept(scope: Scope, frame: Frame) -> Frame:
    """The attributes that a method has set on its object."""
    own = f"{scope.params[0].name}." if scope.params else "self."
    return {name.removeprefix(own): value for name, value in frame.items() if name.startswith(own)}


def _is_guess(fact: Fact) -> bool:
    return any(isinstance(value, Tensor) and not value.sure for value in fact.operands)


def _held(yielded: list[tuple[Opened, ...]], outside: int) -> Managed:
    """The regions that a context manager opens around what it yields to."""
    first = max((regions[outside:] for regions in yielded), key=len, default=())
    if all(len(regions) - outside == len(first) for regions in yielded):
        return Managed(first)
    return Managed(tuple(replace(region, enabled=None) for region in first))
