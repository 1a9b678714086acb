"""Traces: which orders of AMP operations can happen, from every place where execution can begin.

Entries are the module body, the functions and methods that nothing in the module calls, and then
whatever has not been executed on the way, inherited methods included. A method starts on an object
whose `__init__` has run. A function that holds a whole step but no loop is driven twice, as its
unknown caller would.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from amplint.execution import MODULE_BUDGET, Executor, OutOfBudget, initial, worth_keeping
from amplint.library import names_framework
from amplint.library import role as library_role
from amplint.machine import Machine, merge
from amplint.program import (
    Assign,
    Attr,
    Call,
    Jump,
    Loop,
    Name,
    Region,
    Scope,
    Stmt,
    expressions_of,
    parts_of,
    path_of,
    walk,
)
from amplint.project import TRAINING_WORDS
from amplint.pruning import TELLING
from amplint.states import UNKNOWN
from amplint.values import (
    FALSE,
    NONE,
    TRUE,
    Class,
    Const,
    Ext,
    Func,
    Instance,
    ListV,
    Net,
    Optimizer,
    Scaler,
    Sequence,
    Spread,
    Sym,
    Value,
)

if TYPE_CHECKING:
    from amplint.project import ModuleEnv
    from amplint.states import Event

#: a scope without any of these has nothing to say as an entry
_ENTRY_WORDS = frozenset(
    "backward unscale_ autocast GradScaler ShardedGradScaler clip_grad_norm_ clip_grad_value_ clip_grad_norm "
    "step update grad half bfloat16 float16 state_dict "
    "load_state_dict get_scale zero_grad custom_fwd custom_bwd save set_default_dtype register_hook scale_loss "
    "amp".split()
)
#: names of methods that nearly every class has: to mention one says nothing
_COMMON_METHODS = frozenset({"__init__", "__call__", "forward", "run", "main", "get", "items", "to", "eval"})
MAX_STARTS = 3


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """One feasible order of events from one entry.

    `assume` holds the guards as they were decided at the end; `truncated` says that some path of the
    entry was given up for lack of budget.
    """

    entry: Scope
    events: tuple[Event, ...]
    assume: dict[Any, bool]
    truncated: bool


class _Entry(NamedTuple):
    """A function to start in, the module that defines it, and the class whose object a method runs on."""

    scope: Scope
    home: ModuleEnv
    cls: Scope | None


def explore(env: ModuleEnv, executor: Executor) -> list[Trace]:
    """All traces that start in a module."""
    traces: list[Trace] = []
    program = env.program
    traces.extend(_module_body(env, executor))
    relevant = env.relevant
    functions = [
        s for s in program.scopes if s.kind == "function" and s in relevant and not s.name.startswith("<lambda")
    ]
    speaking = {s.name for s in functions if not _ENTRY_WORDS.isdisjoint(s.words)}
    # a function that only calls others of the module knows what they are called with
    telling = _ENTRY_WORDS | env.kept_contexts | (speaking - _COMMON_METHODS)
    classes = {s.parent.name for s in functions if s.name in speaking and s.parent is not None and s.is_method}
    candidates = [
        s
        for s in functions
        if s.name in speaking
        or not telling.isdisjoint(s.words - {s.name})
        # calls what a variable or a table holds
        or not env.held_names.isdisjoint(s.words - {s.name})
        # makes an object and calls a method whose name says nothing
        or not (classes.isdisjoint(s.words) or (speaking & _COMMON_METHODS).isdisjoint(s.words))
        or _opens_a_region(s)
        or _drives(s, env.relevant_imports)
    ]
    called = _called_names(env)
    roots = [s for s in candidates if s.name not in called]
    rest = [s for s in candidates if s.name in called]
    inits: dict[Scope, list[Machine]] = {}
    for scope in (*roots, *rest):
        if executor.total < -MODULE_BUDGET:
            break
        if scope in executor.executed and scope not in executor.cut:
            continue
        if scope.parent is not None and scope.parent.kind == "function":
            # a nested function needs its encloser's variables; it is reached from there or not at all
            continue
        if scope.name == "__init__" and scope.parent is not None and not relevant.isdisjoint(_other_methods(scope)):
            # it runs before every one of them
            continue
        traces.extend(_entry(env, executor, _Entry(scope, env, scope.parent if scope.is_method else None), inits))
    for entry in _inherited(env, executor):
        if executor.total >= -MODULE_BUDGET and entry.scope not in executor.executed:
            traces.extend(_entry(env, executor, entry, inits))
    for entry in _completed(env, executor):
        if executor.total >= -MODULE_BUDGET:
            traces.extend(_entry(env, executor, entry, inits))
    return traces


def _drives(scope: Scope, imports: frozenset[str]) -> bool:
    """Whether a function tells of what it calls in other modules more than these do themselves: in which order, how
    often, or with which scaler."""
    called = imports & scope.words
    return len(called) > 1 or (
        bool(called)
        and (
            any(map(TELLING.search, scope.words))
            or any(isinstance(stmt, Loop) and stmt.kind != "comprehension" for stmt in scope.statements)
        )
    )


def _opens_a_region(scope: Scope) -> bool:
    """Whether a decorator puts the function into an autocast region."""
    return any(isinstance(s, Call) and path_of(s.func).rpartition(".")[2] == "autocast" for s in scope.prelude)


def _inherited(env: ModuleEnv, executor: Executor) -> Iterator[_Entry]:
    """Methods that classes of this module inherit from other modules, and that nothing has called so far: there the
    base class may step, clip or save what the derived class has made, if that is anything to train with."""
    state = initial(env, executor)
    for cls in env.program.scopes:
        if cls.kind != "class" or not cls.bases or cls not in env.relevant:
            continue
        if not any(map(TRAINING_WORDS.search, cls.words)):
            continue
        overridden = set(cls.children)
        for owner in executor.classes.lineage(Class(env, cls, -env.number), state)[0][1:]:
            for name, method in owner.scope.children.items():
                speaks = method in owner.env.relevant and not _ENTRY_WORDS.isdisjoint(method.words)
                if owner.env is not env and speaks and name not in overridden and name != "__init__":
                    yield _Entry(method, owner.env, cls)
            overridden.update(owner.scope.children)


def _completed(env: ModuleEnv, executor: Executor) -> Iterator[_Entry]:
    """Methods of a base class of this module that call what a derived class overrides, once more for each of these."""
    state = initial(env, executor)
    for cls in env.program.scopes:
        if cls.kind != "class" or not cls.bases or cls not in env.relevant:
            continue
        filled_in = {name for name, method in cls.children.items() if method in env.relevant and name != "__init__"}
        for owner in executor.classes.lineage(Class(env, cls, -env.number), state)[0][1:] if filled_in else ():
            if owner.env is not env:
                continue
            methods = owner.scope.children
            replaced = filled_in & methods.keys()
            init = methods.get("__init__")
            # what the constructor asks the derived class for is in all that follows
            made = filled_in & init.words if init is not None and "__init__" not in cls.children else ()
            for name, method in methods.items():
                asks = bool(made) or not replaced.isdisjoint(method.words)
                speaks = method in env.relevant and not _ENTRY_WORDS.isdisjoint(method.words)
                if asks and speaks and name not in cls.children and name != "__init__":
                    yield _Entry(method, env, cls)


def _other_methods(init: Scope) -> list[Scope]:
    assert init.parent is not None
    return [m for m in init.parent.children.values() if m is not init]


def _called_names(env: ModuleEnv) -> frozenset[str]:
    """Names that occur in some other scope than the one they name."""
    names: set[str] = set()
    for scope in env.program.scopes:
        if scope.kind != "function" and scope.kind != "module":
            continue
        names |= scope.words - {scope.name}
    return frozenset(names)


def _finish(executor: Executor, scope: Scope, states: list[Machine]) -> list[Trace]:
    """The traces of an entry: of the paths that reached its end, then of those to events that none of them holds."""
    traces = [Trace(scope, tuple(s.events()), s.assume, executor.truncated) for s in states if s.trace is not None]
    seen = {event for trace in traces for event in trace.events}
    for link, assume in executor.observed.values():
        if link is not None and link[1] not in seen:
            events = _unlinked(link)
            seen.update(events)
            traces.append(Trace(scope, events, assume, True))
    return traces


def _unlinked(link: Any) -> tuple[Event, ...]:
    events = []
    while link is not None:
        link, event = link
        events.append(event)
    return tuple(reversed(events))


def _module_body(env: ModuleEnv, executor: Executor) -> list[Trace]:
    scope = env.program.body
    executor.start_entry()
    state = Machine()
    number = -env.number
    state.links[number] = (env, None)
    state.frames[number] = {"__name__": Const.of("__main__")}
    state.stack = (number,)
    before = set(executor.executed)
    try:
        outcomes = executor.block(env.pruned(scope), state)
    except OutOfBudget:
        executor.executed, executor.truncated = before, True
        return _finish(executor, scope, [])
    states = [s for s, _ in outcomes]
    if states and env not in executor.known:
        executor.known[env] = (dict(states[0].frames[number]), worth_keeping(states[0].heap))
    if executor.runs_short:
        executor.executed = before
    return _finish(executor, scope, states)


def _starts(env: ModuleEnv, executor: Executor, cls: Scope, inits: dict[Scope, list[Machine]]) -> list[Machine]:
    """States in which an object of the class exists and its `__init__` has run with unknown arguments."""
    known = inits.get(cls)
    if known is None:
        state = initial(env, executor)
        value = _class_value(env, cls, state)
        found: list[Machine] = []
        try:
            init = executor.classes.method(value, "__init__", state)
            instance = Instance(value, ("self", cls.qualname))
            state.frames[-env.number]["#self"] = instance
            if init is not None and init[1] in init[0].env.relevant:
                owner, scope = init
                func = Func(owner.env, scope, owner.parts[2], instance)
                results = executor.calls.run(
                    func,
                    _parameters(owner.env, executor, scope, state, 1, None),
                    _keywords(owner.env, scope),
                    None,
                    state,
                )
                found = [s for s, _, signal in results if signal is None]
            else:
                found = [state]
        except OutOfBudget:
            found = [initial(env, executor)]
            found[0].frames[-env.number]["#self"] = Instance(value, ("self", cls.qualname))
        for made in found:
            _forget_placeholders(executor, value, made, made.frames[-env.number]["#self"])
        found, _ = merge(found, cls)
        inits[cls] = known = _telling_starts(found)
    return [s.clone() for s in known]


def _telling_starts(states: list[Machine]) -> list[Machine]:
    """At most `MAX_STARTS` of the states after an `__init__`: those with the most scalers, optimizers and modules, and
    the one with the fewest; among equals, by the objects that stand in lists, as callbacks do."""
    if len(states) <= MAX_STARTS:
        return states

    def equipment(state: Machine) -> tuple[int, int]:
        lists = (held for (holder, name), held in state.heap.items() if isinstance(holder, ListV) and name == "#items")
        return (
            sum(map(_equips, state.heap.values())),
            sum(isinstance(item, Instance) for items in lists for item in items),
        )

    ordered = sorted(states, key=equipment, reverse=True)
    return [*ordered[: MAX_STARTS - 1], ordered[-1]]


def _equips(held: object) -> bool:
    """Whether an attribute holds a scaler, an optimizer or a module, or several of them."""
    return isinstance(held, (Scaler, Optimizer, Net)) or (isinstance(held, Sequence) and any(map(_equips, held.items)))


def _able(starts: list[Machine], entry: _Entry, env: ModuleEnv) -> list[Machine]:
    """The starts in which the object has what the method reads on every path. An attribute that only a helper of
    `__init__` sets, under a flag, is not there without the flag, and the method is never called then. A scaler that is
    missing is a fault of its own (AMP222)."""
    assert entry.cls is not None
    if not starts:  # an `__init__` that always raises
        return starts
    instance = starts[0].frames[-env.number]["#self"]
    for name in dict.fromkeys(_read_at_once(entry.scope.body)):
        holders = [state for state in starts if (instance, name) in state.heap]
        if holders and "__init__" not in entry.cls.bound_attributes.get(name, ("__init__",)):
            if not any(isinstance(state.heap[(instance, name)], Scaler) for state in holders):
                starts = holders
    return starts


def _read_at_once(body: list[Stmt]) -> Iterator[str]:
    """The attributes of `self` that a block reads on every path through it."""
    for stmt in body:
        for expr in expressions_of(stmt):
            written = expr is stmt.target if isinstance(stmt, Assign) else False
            for part in parts_of(expr):
                if isinstance(part, Attr) and path_of(part.base) == "self" and not (written and part is expr):
                    yield part.name
        if isinstance(stmt, Region):
            yield from _read_at_once(stmt.body)
        elif any(isinstance(inner, Jump) for inner in walk([stmt])):
            return


def _forget_placeholders(executor: Executor, cls: Class, state: Machine, instance: Value) -> None:
    """An attribute that `__init__` sets to None, True or False and another method sets anew can be anything when a
    step runs, and a list that `__init__` leaves empty has been filled."""
    for owner in executor.classes.lineage(cls, state)[0]:
        for name, methods in owner.scope.bound_attributes.items():
            held = state.heap.get((instance, name))
            if held in (NONE, TRUE, FALSE) and any(m != "__init__" for m in methods):
                del state.heap[(instance, name)]
            elif isinstance(held, ListV) and not state.heap.get((held, "#items")):
                del state.heap[(instance, name)]


def _class_value(env: ModuleEnv, cls: Scope, state: Machine) -> Class:
    return Class(env, cls, -env.number)


def _parameters(
    env: ModuleEnv, executor: Executor, scope: Scope, state: Machine, skip: int, drive: int | None
) -> list[Value]:
    """Unknown arguments for an entry; what is used as a scaler, an optimizer or a model stays the same when the
    entry is driven again, the rest is new."""
    roles = env.roles.get(scope, {})
    values: list[Value] = []
    for param in scope.params[skip:]:
        if param.kind != "plain":
            if param.kind == "*":
                values.append(Spread(Sym("param", env.source.path, scope.qualname, param.name)))
            break
        annotated = _annotated(env, executor, param.annotation, scope, param.name, state)
        if annotated is not None:
            values.append(annotated)
            continue
        lasting = param.name in roles or names_framework(param.name) or drive is None
        tag = () if lasting else (drive,)
        values.append(Sym("param", env.source.path, scope.qualname, *tag, param.name))
    return values


def _keywords(env: ModuleEnv, scope: Scope) -> dict[str, Value]:
    """Unknown values for keyword-only parameters, and for any number of others."""
    return {
        "**" if p.kind == "**" else p.name: Sym("param", env.source.path, scope.qualname, p.name)
        for p in scope.params
        if p.kind in ("keyword", "**")
    }


def _annotated(
    env: ModuleEnv, executor: Executor, annotation: str, scope: Scope, name: str, state: Machine
) -> Value | None:
    if not annotation:
        return None
    executor.modules.enter_globals(env, state)
    saved = state.stack
    state.stack = (-env.number,)
    first, *rest = annotation.split(".")
    value = executor.binding.lookup(first, state)
    for part in rest:
        value = executor.expressions.attribute(value, part, state)
    state.stack = saved
    if isinstance(value, Ext) and library_role(value.dotted) in ("scaler", "sharded_scaler"):
        return Scaler(("inferred", Sym("param", env.source.path, scope.qualname, name)), "inferred", TRUE)
    if isinstance(value, Class):
        return Instance(value, ("param", scope.qualname, name))
    return None


def _entry(env: ModuleEnv, executor: Executor, entry: _Entry, inits: dict[Scope, list[Machine]]) -> list[Trace]:
    scope = entry.scope
    executor.start_entry()
    before = set(executor.executed)
    finals: list[Machine] = []
    try:
        if entry.cls is not None:
            starts = _able(_starts(env, executor, entry.cls, inits), entry, env)
            for state in starts:
                executor.loops.free_attributes(state.frames[-env.number]["#self"], entry.home.counters, state)
        else:
            starts = [initial(env, executor)]
            _know_optimizers(env, scope, starts[0])
        first, raised = _drive(env, executor, entry, starts, 0)
        finals = [*first, *raised]
        if _holds_a_step(finals):
            updates = [(state, _updated_by(state)) for state in first]
            for state in first:
                _caller_may_update(executor, state, updates)
            again, raised_again = _drive(env, executor, entry, [s.clone() for s in first], 1)
            finals = [*again, *raised, *raised_again]
    except OutOfBudget:
        executor.truncated = True
    if executor.runs_short:
        # not all of what was called has been seen from here
        executor.executed = before | {scope}
    return _finish(executor, scope, finals)


def _know_optimizers(env: ModuleEnv, scope: Scope, state: Machine) -> None:
    """Tell the optimizers of a module that a function names apart from the start.

    The function's first backward would else reach one that nothing names, and each of them would be it.
    """
    local = {param.name for param in scope.params}
    local |= {s.target.id for s in scope.statements if isinstance(s, Assign) and isinstance(s.target, Name)}
    named = [
        value
        for name, value in state.frames[-env.number].items()
        if name in scope.words - local and isinstance(value, Optimizer) and value.owners
    ]
    if len(named) > 1:
        for optimizer in named:
            state.grads.setdefault(optimizer, UNKNOWN)


def _drive(
    env: ModuleEnv, executor: Executor, entry: _Entry, starts: list[Machine], number: int
) -> tuple[list[Machine], list[Machine]]:
    """The states after a call of an entry: where it returns, and where an exception leaves it, after which nobody calls
    it again."""
    returned: list[Machine] = []
    raised: list[Machine] = []
    scope, home = entry.scope, entry.home
    for state in starts:
        instance = state.frames[-env.number].get("#self")
        state.loops = ((id(scope), number),)
        func = Func(home, scope, -home.number, instance if scope.is_method else None)
        kinds = [executor.effects.contexts.decorator_kind(d) for d in executor.calls.decorators(func, state)]
        skip = 1 if scope.is_method and "staticmethod" not in kinds else 0
        if scope.is_method and "staticmethod" in kinds:
            func = Func(home, scope, -home.number, None)
        arguments = _parameters(home, executor, scope, state, skip, number)
        for after, value, signal in executor.calls.run(
            func, arguments, _keywords(home, scope), None, state, executor.calls.decorators(func, state)
        ):
            after.loops = ()
            if signal is None:
                returned.extend(_called_later(executor, value, after))
            else:
                raised.append(after)
    returned, dropped = merge(returned, scope)
    raised, dropped_too = merge(raised, scope)
    executor.truncated |= dropped or dropped_too
    return returned, raised


def _called_later(executor: Executor, value: Value, state: Machine) -> list[Machine]:
    """The states after the calls of a function that an entry makes and returns: whoever gets it calls it again and
    again."""
    if not isinstance(value, Func) or value.frame <= 0 or value.scope in executor.executed:
        return [state]
    scope, env = value.scope, value.env
    if scope.is_generator or scope not in env.relevant or "step" not in scope.words:
        return [state]
    states = [state]
    for number in range(2):
        called: list[Machine] = []
        for before in states:
            before.loops = ((id(scope), number),)
            arguments = _parameters(env, executor, scope, before, 0, number)
            for after, _, signal in executor.calls.run(value, arguments, _keywords(env, scope), None, before):
                after.loops = ()
                if signal is None:
                    called.append(after)
        states, dropped = merge(called, scope)
        executor.truncated |= dropped
        updates = [(after, _updated_by(after)) for after in states]
        for after in states:
            _caller_may_update(executor, after, updates)
    return states


def _updated_by(state: Machine) -> set[Scaler | None]:
    return {event.scaler for event in state.events() if event.kind == "update"}


_STEPS = frozenset({"step", "opt_step"})
_BETWEEN_BACKWARD_AND_STEP = frozenset({"unscale_", "clip", "update", "zero_grad"})


def _holds_a_step(states: list[Machine]) -> bool:
    """Whether the entry is one step of an unknown caller's loop: it runs a step outside of any loop of its own, and a
    backward; that may be in a loop over losses or micro-batches, where nothing else of the protocol is."""
    alone: set[str] = set()
    looped: set[str] = set()
    for state in states:
        for event in state.events():
            (looped if len(event.loops) > 1 else alone).add(event.kind)
    return not alone.isdisjoint(_STEPS) and (
        "backward" in alone or ("backward" in looped and looped.isdisjoint(_STEPS | _BETWEEN_BACKWARD_AND_STEP))
    )


def _caller_may_update(executor: Executor, state: Machine, updates: list[tuple[Machine, set[Scaler | None]]]) -> None:
    """Forget scalers that the entry does not update, on this path or on another one that the same calls may take:
    whoever calls it must do so."""
    for scaler in list(state.books):
        if not any(scaler in updated and not _by_argument(state, other) for other, updated in updates):
            executor.effects.scaling.lose_scaler(scaler, state)


def _by_argument(state: Machine, other: Machine) -> bool:
    """Whether an argument decides which of two paths is taken: whoever gives it knows what is left to do."""
    return any(
        atom[0] == "true" and isinstance(atom[1], Sym) and atom[1].parts[0] == "param"
        for atom, outcome in state.assume.items()
        if other.assume.get(atom, outcome) is not outcome
    )
