"""What of a program is worth executing: everything that cannot matter for AMP is dropped before a scope runs.

A call matters when it can be an AMP event, reaches a function of the project that holds one, or gets
hold of a scaler or an optimizer. What such statements read matters, and so do the guards around
them. Branches and loops that are left empty go.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from amplint import library
from amplint.carriers import carriers, uses
from amplint.holding import calls_in, container, held_names, only_looks, own_statements
from amplint.program import (
    Assign,
    Attr,
    Branch,
    Call,
    Closure,
    Const,
    Define,
    Delete,
    DictDisplay,
    Evaluate,
    Expr,
    Global,
    Handler,
    Import,
    Item,
    Jump,
    Loop,
    Name,
    Region,
    Scope,
    Seq,
    Star,
    Stmt,
    Try,
    Yield,
    call_name,
    may_raise,
    parts_of,
    path_of,
    root_of,
    walk,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amplint.project import ModuleEnv

#: names of calls that are events whatever they are called on
_EVENTS = frozenset(
    "backward unscale_ zero_grad get_scale scale state_dict half bfloat16 register_hook autocast GradScaler "
    "ShardedGradScaler "
    "set_default_dtype set_default_tensor_type requires_grad_ enter_context manual_backward scale_loss "
    "Accelerator Fabric nullcontext ExitStack AsyncExitStack get_total_norm "
    "register_post_accumulate_grad_hook custom_fwd custom_bwd FullyShardedDataParallel FSDP "
    "binary_cross_entropy BCELoss".split()
)
#: events that matter where something else happens, and make no function worth executing by themselves
_MINOR_EVENTS = frozenset(
    "load_state_dict set_grad_enabled no_grad inference_mode from_pretrained DistributedDataParallel "
    "fully_shard".split()
)
#: parts of a value that is a setting and no table
MAX_TABLE = 24
#: what is resumed along with the weights
_RESUMED = re.compile(r"opt|scal|amp", re.IGNORECASE)
#: operations that change weights in place, where a scope walks over parameters
_WEIGHT_CHANGES = frozenset("add_ sub_ mul_ div_ copy_ lerp_ addcmul_ addcdiv_".split())
_EVENT_PARTS = re.compile(r"clip|scaler|autocast|optimizer$|^(Adam|SGD|RMSprop|LBFGS)")
#: what libraries of arrays are called, which know of no gradients
_ARRAYS = frozenset({"np", "numpy", "jnp", "jax.numpy", "cp", "tf"})
_STEPPED = re.compile(r"opt|sch|scal|lr|engine|accel|fabric|model|trainer|agent|solver")
_SAVES = re.compile(r"save|dump|checkpoint|ckpt|snapshot")
#: what a scope mentions that saves more than weights
_STATEFUL = frozenset({"state_dict", "optimizer", "optim", "scaler", "checkpoint"})
_HALF_WORDS = re.compile(r"half|float16|dtype|bf16|fp16|float32|\bfloat\b", re.IGNORECASE)
_SIXTEEN_BITS = re.compile(r"half|float16|bf16|fp16", re.IGNORECASE)
#: a scope with such a word deals with AMP, even where it only hands something on
TELLING = re.compile(r"scaler|autocast|clip_grad", re.IGNORECASE)
#: methods of containers and files, which say nothing about the project's classes
_COMMON = frozenset(
    "update get items keys values append extend add pop copy join format close write read split strip sort "
    "insert remove count index clear flush "
    "setdefault mean sum item size view reshape to cpu cuda eval parameters detach apply log info debug "
    "warning error print load loads parse "
    "plot open reset forward loss process check draw show search match exists".split()
)


def relevant_scopes(env: ModuleEnv) -> frozenset[Scope]:
    """The scopes that hold an event, or call something by the name of a function of the module that does."""
    direct: set[Scope] = set()
    calls: dict[Scope, frozenset[str]] = {}
    for scope in env.program.scopes:
        names: set[str] = set()
        for stmt in own_statements(scope):
            if isinstance(stmt, Call):
                name = call_name(stmt.func.base if isinstance(stmt.func, Item) else stmt.func)
                if name not in _COMMON or _is_of_project(stmt.func, env):
                    names.add(name)
                for arg in () if only_looks(stmt) else stmt.args:
                    if isinstance(arg.value, (Name, Attr)):
                        # a function that is handed on may be called
                        names.add(call_name(arg.value))
            if scope not in direct and _is_event(stmt, env, scope) and not _is_minor_event(stmt):
                direct.add(scope)
        if scope not in direct and (
            any(TELLING.search(w) for w in scope.words) or _hands_itself_on(scope) or _fills_callbacks(scope, env)
        ):
            direct.add(scope)
        calls[scope] = frozenset(names)
    found = set(direct)
    while True:
        for scope in list(found):
            # a class is relevant through its methods, a function through the functions it defines
            if scope.parent is not None and scope.parent.kind != "module":
                found.add(scope.parent)
        known = {s.name for s in found if s.kind != "module"} - {"__init__"}
        known |= held_names(env, frozenset(known) | env.relevant_imports, found)
        known |= env.relevant_imports | env.imported_methods
        more = {s for s in env.program.scopes if s not in found and not known.isdisjoint(calls[s])}
        if not more:
            return frozenset(found)
        found |= more


def _is_of_project(func: Expr, env: ModuleEnv) -> bool:
    """Whether what is called is a function by its name, or a method of an object of the project."""
    if isinstance(func, Name) or path_of(func).startswith("self."):
        return True
    return isinstance(func, Attr) and call_name(func.base) in env.own_objects


def _hands_itself_on(scope: Scope) -> bool:
    """Whether a method gives its object to something that is only known when it runs, as
    `getattr(callback, event)(self)` and `for callback in self.callbacks: callback.begin(self)` do."""
    if not scope.is_method or not scope.params:
        return False
    own = scope.params[0].name
    local: set[str] = set()
    handing: list[Expr] = []
    for stmt in own_statements(scope):
        if isinstance(stmt, Call) and any(isinstance(arg.value, Name) and arg.value.id == own for arg in stmt.args):
            handing.append(stmt.func.base if isinstance(stmt.func, Attr) else stmt.func)
        elif isinstance(stmt, Loop) and isinstance(stmt.target, Name):
            local.add(stmt.target.id)
        elif isinstance(stmt, Assign) and isinstance(stmt.target, Name):
            local.add(stmt.target.id)
    return any(isinstance(func, Name) and (func.id in local or func.id.startswith("%")) for func in handing)


def _fills_callbacks(scope: Scope, env: ModuleEnv) -> bool:
    """Whether a scope adds to a list or dict of objects that are called in turn."""
    if not env.called_in_turn:
        return False
    for stmt in own_statements(scope):
        filled: Expr | None = None
        if isinstance(stmt, Call) and isinstance(stmt.func, Attr) and stmt.func.name in library.FILLS:
            filled = stmt.func.base
        elif isinstance(stmt, Assign) and isinstance(stmt.target, Item):
            filled = stmt.target
        if filled is not None:
            held = container(filled, {})
            if isinstance(held, Attr) and held.name in env.called_in_turn:
                return True
    return False


def may_be_event(name: str) -> bool:
    """Whether a call by this name is an event whatever it is called on."""
    return name in _EVENTS or bool(_EVENT_PARTS.search(name))


def _is_event(stmt: Stmt, env: ModuleEnv, scope: Scope) -> bool:
    """Whether a statement can be an AMP event by itself."""
    if isinstance(stmt, Call):
        return _is_event_call(stmt, env, scope)
    if isinstance(stmt, Assign):
        written = _writes_gradient(stmt.target) or _writes_scaler_state(stmt.target) or _changes_weight(stmt, scope)
        return written or any(_reads_gradient(e) for e in parts_of(stmt.value))
    if isinstance(stmt, (Evaluate, Jump)) and stmt.value is not None:
        return any(isinstance(e, Attr) and e.name in ("autocast", "grad") for e in parts_of(stmt.value))
    if isinstance(stmt, Region):
        # one object, kept in a variable, that may be entered inside itself
        return path_of(stmt.context).rpartition(".")[2] in env.kept_contexts
    return False


def _is_minor_event(stmt: Stmt) -> bool:
    """Whether a call is an event only in the company of others."""
    if not isinstance(stmt, Call):
        return False
    name = call_name(stmt.func)
    if name in ("to", "type", "float", "double", "from_pretrained"):
        return not any(_SIXTEEN_BITS.search(_text(a.value)) for a in stmt.args)
    if name == "load_state_dict" and isinstance(stmt.func, Attr):
        return not _RESUMED.search(path_of(stmt.func.base).rpartition(".")[2])
    return name in _MINOR_EVENTS


def _is_event_call(stmt: Call, env: ModuleEnv, scope: Scope) -> bool:
    name = call_name(stmt.func)
    if name in _MINOR_EVENTS:
        return True
    if name == "clip" and isinstance(stmt.func, Attr) and path_of(stmt.func.base) in _ARRAYS:
        return False
    if may_be_event(name) or name in env.wrapper_names or name in env.event_aliases:
        return True
    if (call_name(stmt.func.base) if isinstance(stmt.func, Item) else name) in env.kept_losses:
        return True
    if name in _WEIGHT_CHANGES and not scope.words.isdisjoint({"parameters", "named_parameters"}):
        return True
    base = stmt.func.base if isinstance(stmt.func, Attr) else None
    path = path_of(base.base if isinstance(base, Item) else base)
    if name == "grad":
        return base is None or path.rpartition(".")[2] == "autograd"
    if name == "step":
        stepped = env.roles.get(scope, {}).get(path) in ("optimizer", "scheduler")
        named = bool(_STEPPED.search(path.rpartition(".")[2].lower())) or path.startswith("%")
        return bool(stmt.args) or stepped or named
    if name == "update":
        # without arguments it is no update of a dict or a metric
        named = base is not None and "scal" in _text(base).lower()
        return not stmt.args or named or env.roles.get(scope, {}).get(path) == "scaler"
    if name in ("to", "type", "float", "double"):
        if name in ("float", "double"):
            return stmt.dropped
        return any(_HALF_WORDS.search(_text(a.value)) or (a.keyword or "") == "dtype" for a in stmt.args)
    if name in ("__enter__", "__exit__") or (
        name in ("close", "pop_all") and "enter_context" in env.program.body.words
    ):
        return True
    if _SAVES.search(name) and (
        not scope.words.isdisjoint(_STATEFUL) or (path == "torch" and not _is_filled_here(stmt, scope))
    ):
        return True
    if any(_reads_gradient(e) for a in stmt.args for e in parts_of(a.value)) or (
        base is not None and any(_reads_gradient(e) for e in parts_of(base))
    ):
        return True
    return ".optim." in f".{path}." and name[:1].isupper()


def _is_filled_here(stmt: Call, scope: Scope) -> bool:
    """Whether what is saved is a container that the scope makes empty and fills itself, as a cache of files is."""
    payload = stmt.args[0].value if stmt.args else None
    if not isinstance(payload, Name):
        return False
    bound = [s.value for s in scope.statements if isinstance(s, Assign) and _is_name(s.target, payload.id)]
    return bool(bound) and all(isinstance(value, (DictDisplay, Seq)) and not [*parts_of(value)][1:] for value in bound)


def _is_name(expr: Expr, name: str) -> bool:
    return isinstance(expr, Name) and expr.id == name


def _changes_weight(stmt: Assign, scope: Scope) -> bool:
    """Whether a statement may be `p -= rate * p.grad`, where `p` comes from a loop over parameters."""
    target = stmt.target
    if not stmt.augmented or not isinstance(target, Name):
        return False
    if scope.words.isdisjoint({"parameters", "named_parameters"}):
        return False
    loops = (s.target for s in scope.statements if isinstance(s, Loop) and s.kind == "for")
    return any(isinstance(part, Name) and part.id == target.id for t in loops for part in parts_of(t))


def _writes_scaler_state(target: Expr) -> bool:
    return isinstance(target, Attr) and target.name in library.SCALER_STATE


def _writes_gradient(target: Expr) -> bool:
    if isinstance(target, Attr):
        return target.name in ("grad", "requires_grad") or (target.name == "data")
    if isinstance(target, Item):
        return any(_reads_gradient(e) for e in parts_of(target.base))
    return False


def _reads_gradient(expr: Expr) -> bool:
    return isinstance(expr, Attr) and expr.name == "grad" and path_of(expr.base) not in ("torch.autograd", "autograd")


def _text(expr: Expr) -> str:
    return " ".join(
        e.name if isinstance(e, Attr) else e.id if isinstance(e, Name) else str(e.value)
        for e in parts_of(expr)
        if isinstance(e, (Attr, Name, Const))
    )


def words_of(expr: Expr | None) -> Iterator[str]:
    """The attribute names in an expression."""
    for part in parts_of(expr):
        if isinstance(part, Attr):
            yield part.name


def prune(env: ModuleEnv, scope: Scope, given: frozenset[str] = frozenset()) -> list[Stmt]:
    """The part of a scope's body that is worth executing, where the parameters in `given` hold gradients."""
    return _Slice(env, scope, given).body()


class _Slice:
    """A backward slice over one scope: statements that matter, then whatever they read, to a fixpoint."""

    def __init__(self, env: ModuleEnv, scope: Scope, given: frozenset[str]) -> None:
        self.env = env
        self.scope = scope
        self.carriers = carriers(scope, given)
        self.calls = calls_in(scope)
        #: results of calls of the project's functions, which may be contexts that do something
        self.managers: set[str] = set()
        self.names: set[str] = set()
        self.kept: set[int] = set()
        #: results of the calls that are kept for their own sake
        self.made: set[str] = set()
        self.roles = env.roles.get(scope, {})
        self.parameters = {param.name for param in scope.params}
        self.entrusted = self._entrusted()
        # an object's attributes are read elsewhere
        self.is_setup = scope.kind != "function" or scope.name in (
            "__init__",
            "__enter__",
            "__post_init__",
            "setup",
            "__call__",
        )

    def body(self) -> list[Stmt]:
        while True:
            before = (len(self.names), len(self.kept))
            self._mark(self.scope.body)
            if (len(self.names), len(self.kept)) == before:
                break
        return self._filter(self.scope.body)

    # --- marking ---------------------------------------------------------------------------------

    def _mark(self, block: list[Stmt]) -> bool:
        """Mark what matters in a block; whether anything does."""
        any_kept = False
        for stmt in reversed(block):
            if self._matters(stmt):
                any_kept = True
                if id(stmt) not in self.kept:
                    self.kept.add(id(stmt))
                self._read(stmt)
        return any_kept

    def _matters(self, stmt: Stmt) -> bool:
        if isinstance(stmt, Call):
            if self._call_matters(stmt):
                self.made.add(stmt.result)
                name = call_name(stmt.func)
                if name in self.env.relevant_names or name in self.env.relevant_imports | self.env.imported_methods:
                    self.managers.add(stmt.result)
                return True
            return stmt.result in self.names
        if isinstance(stmt, Assign):
            if self.scope.kind == "module" and isinstance(stmt.target, Name) and self._may_be_imported(stmt.value):
                return True
            return self._defines_needed(stmt.target) or _is_event(stmt, self.env, self.scope)
        if isinstance(stmt, Branch):
            # both arms must be marked, not only the first that matters
            then, orelse = self._mark(stmt.then), self._mark(stmt.orelse)
            return then or orelse
        if isinstance(stmt, Loop):
            body, prelude, orelse = self._mark(stmt.body), False, self._mark(stmt.orelse)
            needed = stmt.collect in self.names or (
                stmt.target is not None and self._defines_needed(stmt.target) and stmt.kind == "for"
            )
            if stmt.kind == "comprehension":
                return needed or self._has_effect(stmt.body)
            if self._has_effect(stmt.body) or needed or orelse:
                prelude = self._mark(stmt.prelude)
                return True
            return prelude or (body and self._leaves(stmt.body))
        if isinstance(stmt, Region):
            inner = self._mark(stmt.body)
            return (
                inner
                or _is_event(stmt, self.env, self.scope)
                or path_of(stmt.context) in self.managers
                or (stmt.target is not None and self._defines_needed(stmt.target))
            )
        if isinstance(stmt, Try):
            marks = [
                self._mark(stmt.body),
                *(self._mark(h.body) for h in stmt.handlers),
                self._mark(stmt.orelse),
                self._mark(stmt.final),
            ]
            return any(marks)
        if isinstance(stmt, Evaluate):
            return _is_event(stmt, self.env, self.scope)
        return isinstance(stmt, (Jump, Yield, Define, Import, Global, Delete))

    def _may_be_imported(self, value: Expr) -> bool:
        """Whether another module may import what a module's variable is bound to: a setting, or what a call made that
        matters; not a long table."""
        parts = [*itertools.islice(parts_of(value), MAX_TABLE + 1)]
        temporaries = [part.id for part in parts if isinstance(part, Name) and part.id.startswith("%")]
        return all(name in self.made for name in temporaries) and len(parts) <= MAX_TABLE

    def _has_effect(self, block: list[Stmt]) -> bool:
        return any(
            id(s) in self.kept and not isinstance(s, (Jump, Branch, Region, Try, Loop, Import, Define))
            for s in walk(block)
        )

    def _leaves(self, block: list[Stmt]) -> bool:
        return any(isinstance(s, Jump) and s.kind == "return" for s in walk(block))

    def _call_matters(self, stmt: Call) -> bool:
        if _is_event_call(stmt, self.env, self.scope):
            return True
        name = call_name(stmt.func.base if isinstance(stmt.func, Item) else stmt.func)
        path = path_of(stmt.func)
        if isinstance(stmt.func, Name) and (self._is_given_function(stmt.func.id) or self._is_own_method(stmt.func.id)):
            return True
        if self._fills_needed(stmt.func) or (self.carriers and uses(stmt, self.carriers)):
            return True
        env = self.env
        if name not in _COMMON or _is_of_project(stmt.func, env):
            if name in env.relevant_names or name in env.relevant_imports or name in env.held_names:
                return True
            if name in env.imported_methods:
                return True
        if path in self.roles and self.roles[path] == "model":
            return True
        if root_of(stmt.func) in self.entrusted and (isinstance(stmt.func, Name) or library.RUNS.search(name)):
            return True
        if path in self.parameters and library.RUNS.search(name):
            return True
        if path == f"self.{name}" and self._inherits(name):
            return True
        for arg in () if only_looks(stmt) else stmt.args:
            held = [*parts_of(arg.value)] if isinstance(arg.value, (Seq, DictDisplay)) else [arg.value]
            if any(isinstance(e, (Name, Attr)) and call_name(e) in self.env.relevant_names for e in held):
                # a function that is handed on will be called
                return True
            if any(
                path_of(argument) == "self"
                or self.roles.get(path_of(argument)) == "optimizer"
                or self._is_scaler(argument)
                for argument in held
            ):
                return True
        return path.startswith("self.") and bool(library.HOOK_NAMES.search(name)) and name not in _COMMON

    def _entrusted(self) -> frozenset[str]:
        """Variables whose objects are given a scaler: when they are made, in an attribute, or by a call."""
        found: set[str] = set()
        for stmt in self.scope.statements:
            if isinstance(stmt, Assign):
                made = self.calls.get(root_of(stmt.value))
                if (isinstance(stmt.target, (Attr, Item)) and self._is_scaler(stmt.value)) or (
                    made is not None and any(self._is_scaler(arg.value) for arg in made.args)
                ):
                    found.add(root_of(stmt.target))
            elif isinstance(stmt, Call) and any(self._is_scaler(arg.value) for arg in stmt.args):
                found.add(root_of(stmt.func) if isinstance(stmt.func, Attr) else "")
        return frozenset(found - {"", "self"})

    def _is_scaler(self, value: Expr) -> bool:
        """Whether an expression names a scaler."""
        path = path_of(value)
        return bool(path) and (self.roles.get(path) == "scaler" or "scaler" in path)

    def _is_given_function(self, name: str) -> bool:
        """Whether a name is a parameter of the function around this one, in which a decorator gets its function."""
        outer = self.scope.parent
        if outer is None or outer.kind != "function" or name not in {param.name for param in outer.params}:
            return False
        return name not in {param.name for param in self.scope.params}

    def _is_own_method(self, name: str) -> bool:
        """Whether a temporary is a method of the own object that is looked up by a name that is not written there."""
        looked_up = self.calls.get(name)
        if looked_up is None or call_name(looked_up.func) != "getattr" or len(looked_up.args) < 2:
            return False
        own = self.scope.params[0].name if self.scope.is_method and self.scope.params else ""
        return path_of(looked_up.args[0].value) == own and not isinstance(looked_up.args[1].value, Const)

    def _inherits(self, method: str) -> bool:
        """Whether a method comes from a base class in another module of the project that has AMP vocabulary."""
        owner = self.scope.parent
        if owner is None or owner.kind != "class" or method in owner.children:
            return False
        return any(call_name(base) in self.env.relevant_imports for base in owner.bases)

    def _fills_needed(self, func: Expr) -> bool:
        """Whether a call puts something into a list or dict that is read."""
        if not isinstance(func, Attr) or func.name not in library.FILLS:
            return False
        filled = func.base
        while isinstance(filled, Item):
            filled = filled.base
        if isinstance(filled, Name):
            return filled.id in self.names
        return isinstance(filled, Attr) and (
            filled.name in self.env.called_in_turn or bool(_STEPPED.search(filled.name.lower()))
        )

    def _defines_needed(self, target: Expr) -> bool:
        if isinstance(target, Name):
            if target.id in self.names or target.id in self.scope.outer_names or self.scope.kind == "class":
                return True
            return self.scope.kind == "module" and target.id in self.env.global_words
        if isinstance(target, Attr):
            if self.is_setup or root_of(target) in self.entrusted:
                return True
            return target.name in self.env.attribute_words or _writes_gradient(target)
        if isinstance(target, Item):
            return self._defines_needed(target.base) or _writes_gradient(target)
        if isinstance(target, Seq):
            return any(self._defines_needed(item) for item in target.items)
        if isinstance(target, Star):
            return self._defines_needed(target.value)
        return False

    # --- what is read ----------------------------------------------------------------------------

    def _read(self, stmt: Stmt) -> None:
        if isinstance(stmt, Call):
            self._use(stmt.func)
            for arg in stmt.args:
                self._use(arg.value)
        elif isinstance(stmt, Assign):
            self._use(stmt.value)
            self._use_target(stmt.target)
        elif isinstance(stmt, Evaluate):
            self._use(stmt.value)
        elif isinstance(stmt, Branch):
            self._use(stmt.test)
        elif isinstance(stmt, Loop):
            self._use(stmt.iterable)
            self._use(stmt.test)
            self._use(stmt.element)
            self._use(stmt.key)
        elif isinstance(stmt, Region):
            self._use(stmt.context)
        elif isinstance(stmt, (Jump, Yield)):
            self._use(stmt.value)
        elif isinstance(stmt, Define):
            for scope in (stmt.scope,):
                # a nested function may use anything of its encloser
                self.names |= scope.words
        elif isinstance(stmt, Try):
            for handler in stmt.handlers:
                self._use(handler.type)

    def _use(self, expr: Expr | None) -> None:
        for part in parts_of(expr):
            if isinstance(part, Name):
                self.names.add(part.id)
            elif isinstance(part, Closure):
                self.names |= part.scope.words

    def _use_target(self, target: Expr) -> None:
        if isinstance(target, (Attr, Item)):
            self._use(target)
        elif isinstance(target, Seq):
            for item in target.items:
                self._use_target(item)

    # --- filtering -------------------------------------------------------------------------------

    def _filter(self, block: list[Stmt]) -> list[Stmt]:
        out: list[Stmt] = []
        for stmt in block:
            if id(stmt) not in self.kept:
                continue
            out.append(self._filtered(stmt))
        return out

    def _raising(self, block: list[Stmt]) -> frozenset[int]:
        """Where in the filtered block something was left out that may raise."""
        found: set[int] = set()
        position = 0
        for stmt in block:
            if id(stmt) in self.kept:
                position += 1
            elif may_raise(stmt):
                found.add(position)
        return frozenset(found)

    def _filtered(self, stmt: Stmt) -> Stmt:
        if isinstance(stmt, Branch):
            return replace(stmt, then=self._filter(stmt.then), orelse=self._filter(stmt.orelse))
        if isinstance(stmt, Loop):
            prelude = stmt.prelude if stmt.kind == "while" else []
            return replace(stmt, prelude=prelude, body=self._filter(stmt.body), orelse=self._filter(stmt.orelse))
        if isinstance(stmt, Region):
            return replace(stmt, body=self._filter(stmt.body))
        if isinstance(stmt, Try):
            handlers = [Handler(h.type, h.name, self._filter(h.body), h.node) for h in stmt.handlers]
            return replace(
                stmt,
                body=self._filter(stmt.body),
                handlers=handlers,
                orelse=self._filter(stmt.orelse),
                final=self._filter(stmt.final),
                raising=self._raising(stmt.body),
            )
        return stmt
