"""The walk that finds out which tensors are 16 bit.

Every function of a module is walked once, with unknown arguments; what it calls in the module is walked in place,
under the regions that are open there. So is what it calls in another module, where that opens regions or is called in
one: the model that a loop trains seldom stands in its file.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from amplint import library
from amplint.precision.expressions import Expressions
from amplint.precision.guesses import CASTING_NAME, CASTING_WORDS, OF_ITSELF
from amplint.precision.values import (
    MORE,
    NOTHING,
    Distant,
    Fact,
    Frame,
    Items,
    Library,
    Made,
    Managed,
    Opened,
    Own,
    Table,
    Tensor,
    Unknown,
    Value,
    dtype_name,
    elements,
    ends,
    is_harmless,
    is_network,
    joined,
)
from amplint.program import (
    Assign,
    Attr,
    Branch,
    Call,
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
from amplint.rule import Site

if TYPE_CHECKING:
    import libcst as cst

    from amplint.project import ModuleEnv

_MAX_DEPTH = 7
#: statements that are walked for one module; what was found until then stands
_BUDGET = 40_000
#: a module without one of these words holds no 16-bit tensor that could be known, unless other modules do
_SIXTEEN_BITS = frozenset({"autocast", "half", "float16", "bfloat16", "HalfTensor"})
#: different networks of one list that are walked in turn
_MAX_NETWORKS = 6


def facts_of(env: ModuleEnv, target: str) -> tuple[Fact, ...]:
    """The facts of a module that is written for a version of torch, computed at most once."""
    known = env.shared.get("precision")
    if known is None:
        known = env.shared["precision"] = Walk(env, target).facts()
    return known


class Walk(Expressions):
    """One walk over the functions of a module; `facts` returns what it met."""

    def __init__(self, env: ModuleEnv, target: str) -> None:
        super().__init__(env, target)
        self.entries = 0
        self.returned: list[list[Value]] = []
        #: the regions in which each of the functions yields
        self.yielded: list[list[tuple[Opened, ...]]] = [[]]
        #: functions that somebody gives a network
        self.given: set[Scope] = set()
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
                frame[stmt.result] = self.call_value(stmt, frame, quiet=True)
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
            decided = self.outcome(stmt.test, frame)
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
            frame[stmt.result] = self.call_value(stmt, frame)
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

    def _loop(self, stmt: Loop, frame: Frame) -> None:
        if stmt.kind == "while":
            self._block(stmt.prelude, frame)
        elif stmt.iterable is not None and stmt.target is not None:
            iterable = self.value(stmt.iterable, frame)
            for network in self._networks(iterable)[:-1]:
                self._bind(stmt.target, network, frame, None)
                self._block(stmt.body, frame)
            last = self._networks(iterable)[-1:]
            self._bind(stmt.target, last[0] if last else self.element(iterable), frame, None)
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
        listed = elements(value)
        differ = len(set(listed)) > 1 and all(map(is_network, listed)) and len(listed) <= _MAX_NETWORKS
        return listed if differ else ()

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
            if isinstance(base, (Table, Items)) and path_of(target.base) in frame:
                frame[path_of(target.base)] = NOTHING
            if node is not None:
                self.note("setitem", "=", base, (value,), {}, node)
        elif isinstance(target, Seq):
            for position, inner in enumerate(target.items):
                self._bind(inner, _unpacked(value, position, inner, len(target.items)), frame, None)
        elif isinstance(target, Star):
            self._bind(target.value, NOTHING, frame, None)


def _unpacked(value: Value, position: int, target: Expr, length: int) -> Value:
    """What one of several targets gets."""
    if isinstance(value, Items):
        return value.values[position] if len(value.values) == length else NOTHING
    if isinstance(value, Unknown) and len(value.key) == OF_ITSELF and isinstance(target, Name):
        return Unknown((*value.key[:-1], target.id))
    # of several results that a network is guessed to have, the first is its output
    return value if isinstance(value, Tensor) and (value.sure or not position) else NOTHING


def _handed_back(value: Value, depth: int) -> Value:
    """A result as the caller sees it, for whom its dtype was decided by the call."""
    if isinstance(value, Items):
        return Items(tuple(_handed_back(each, depth) for each in value.values))
    return replace(value, decided=depth) if isinstance(value, Tensor) and value.decided > depth else value


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
