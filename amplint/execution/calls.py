"""Calls: arguments, functions of the project executed in place, objects made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amplint import guards, library
from amplint.execution.idleness import constants, is_quiet
from amplint.execution.transplants import transplant, transplanted
from amplint.machine import Arguments, CallOutcome, Machine, Outcome, Signal, merge
from amplint.program import (
    Arg,
    Call,
    Define,
    Expr,
)
from amplint.program import (
    Const as ConstE,
)
from amplint.rule import Site
from amplint.values import (
    NONE,
    AttrOf,
    Bare,
    Class,
    Const,
    Context,
    DictV,
    Ext,
    Func,
    Instance,
    ItemOf,
    ListV,
    Many,
    Optimizer,
    OpV,
    Result,
    Scaler,
    Sequence,
    Spread,
    Sym,
    Value,
    interesting,
    is_raw,
)
from amplint.wrappers import role_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amplint.execution.executor import Executor
    from amplint.program import Scope


MAX_DEPTH = 9
#: what a function that trains mentions, or one that it calls
_TRAINS = frozenset("backward unscale_ step zero_grad clip_grad_norm_ clip_grad_value_ GradScaler".split())


class Calls:
    """Calls of one executor."""

    def __init__(self, executor: Executor) -> None:
        self.x = executor

    def call(self, stmt: Call, state: Machine) -> list[Outcome]:
        """A call statement."""
        env, _ = state.links[state.stack[-1]]
        func = self.x.expressions.value(stmt.func, state)
        positional, keywords = self.arguments(stmt.args, state)
        site = Site(env.source, stmt.node)
        out: list[Outcome] = []
        for settled, callee in self.x.settle(state, func):
            for after, value, signal in self.invoke(callee, positional, keywords, site, settled, stmt):
                if signal is None:
                    after.frame[stmt.result] = value
                out.append((after, signal))
        return out

    def arguments(self, args: tuple[Arg, ...], state: Machine) -> Arguments:
        """The values of a call's arguments; `*args` is spread where its elements are known."""
        positional: list[Value] = []
        keywords: dict[str, Value] = {}
        for arg in args:
            value = self.x.expressions.value(arg.value, state)
            if arg.star == "*":
                known = self.x.loops.items_of(value, state)
                if known is not None:
                    positional.extend(known)
                else:
                    positional.append(Spread(value))
            elif arg.star == "**":
                pairs = state.heap.get((value, "#items"))
                if isinstance(value, DictV) and pairs is not None:
                    for pair in pairs:
                        if isinstance(pair.items[0], Const) and isinstance(pair.items[0].value, str):
                            keywords[pair.items[0].value] = pair.items[1]
                    if state.heap.get((value, "#open")):
                        keywords["**"] = value
                else:
                    keywords["**"] = value
            elif arg.keyword is not None:
                keywords[arg.keyword] = value
            else:
                positional.append(value)
        return positional, keywords

    def invoke(
        self,
        callee: Value,
        positional: list[Value],
        keywords: dict[str, Value],
        site: Site,
        state: Machine,
        stmt: Call | None,
    ) -> list[CallOutcome]:
        """Call a value: a function of the project is executed in place, the rest is left to the effects."""
        if isinstance(callee, Func) and callee.env.wrapper_names:
            role = role_of(callee.scope.qualname, callee.env, self.x.project.wrappers)
            if role is not None:
                name = callee.scope.qualname
                return self.x.effects.wrapped.call(role, name, positional, keywords, site, state, stmt)
        if isinstance(callee, Func):
            scope = callee.scope
            telling = (
                scope in callee.env.relevant or _receives(scope, (*positional, *keywords.values())) or scope.is_formula
            )
            if telling:
                decided = self.x.idleness.decided_for(callee, positional, keywords, state)
                # whoever calls it depends on the same
                self.x.asked.update(decided or ())
                telling = decided is None
            if telling or self._gradients_among((*positional, *keywords.values()), state):
                if not self.too_deep(callee, state):
                    return self.inline(callee, positional, keywords, site, state)
                self.x.cut.add(scope)
        return self.x.effects.call(callee, positional, keywords, site, state, stmt)

    def _gradients_among(self, values: Iterable[Value], state: Machine) -> bool:
        """Whether a gradient, or a container of some, is among these values."""
        return any(
            is_raw(value)
            or (
                isinstance(value, (Sequence, Many, ListV))
                and any(map(is_raw, self.x.effects.containers.contents(value, state)))
            )
            for value in values
        )

    def too_deep(self, callee: Func, state: Machine) -> bool:
        """Whether a call is not followed: the function is running already, or too many others are."""
        return self.x.depth >= MAX_DEPTH or any(
            state.frames[number].get("#scope") is callee.scope_value for number in state.stack
        )

    def decorators(self, callee: Func, state: Machine) -> tuple[Value, ...]:
        """The values of a function's decorators."""
        plain = Func(callee.env, callee.scope, callee.frame, None)
        # those of a module's functions were made in a state of their own
        found = state.heap.get((plain, "#decorators")) if callee.frame > 0 else None
        if found is not None:
            return found  # type: ignore[no-any-return]
        if not callee.scope.decorators:
            return ()
        key = ("decorators", callee.scope)
        cached = self.x.known.get(key)
        if cached is None:
            scratch = state.clone()
            number = -callee.env.number
            self.x.modules.enter_globals(callee.env, scratch)
            scratch.stack = (*scratch.stack, number)
            out = self.x.quietly(lambda: self.x.block(callee.scope.prelude, scratch))
            cached = (), {}
            if out:
                after = out[0][0]
                values = tuple(self.x.expressions.value(d, after) for d in callee.scope.decorators)
                cached = transplanted(values, after, self.x.transplants)
            self.x.known[key] = cached
        made, frames = cached
        transplant(frames, state)
        return made

    def inline(
        self, callee: Func, positional: list[Value], keywords: dict[str, Value], site: Site | None, state: Machine
    ) -> list[CallOutcome]:
        """Execute a function of the project with these arguments."""
        decorators = self.decorators(callee, state)
        kinds = [self.x.effects.contexts.decorator_kind(d) for d in decorators]
        if "contextmanager" in kinds and not state.pending:
            origin = (callee, tuple(positional), tuple(sorted(keywords.items(), key=lambda kv: kv[0])))
            return [(state, Context("generator", origin, None), None)]
        if callee.scope.is_generator and "contextmanager" not in kinds:
            if not self.x.silent:
                self.x.executed.add(callee.scope)
        if any(map(_remembers, decorators)):
            return self._remembered(callee, positional, keywords, site, state, decorators)
        wrappers = [d for d in decorators if isinstance(d, Func) and d.scope in d.env.relevant]
        if wrappers and site is not None and not isinstance(callee, Bare):
            return self._decorated(callee, wrappers, decorators, positional, keywords, site, state)
        return self.run(callee, positional, keywords, site, state, decorators)

    def _remembered(
        self,
        callee: Func,
        positional: list[Value],
        keywords: dict[str, Value],
        site: Site | None,
        state: Machine,
        decorators: tuple[Value, ...],
    ) -> list[CallOutcome]:
        """A call of a function with a cache: the same arguments bring the same object."""
        slot = (
            callee.scope_value,
            ("#cached", tuple(positional), tuple(sorted(keywords.items(), key=lambda kv: kv[0]))),
        )
        if slot in state.heap:
            return [(state, state.heap[slot], None)]
        outcomes = self.run(callee, positional, keywords, site, state, decorators)
        for after, value, signal in outcomes:
            if signal is None:
                after.heap[slot] = value
        return outcomes

    def _decorated(
        self,
        callee: Func,
        wrappers: list[Func],
        decorators: tuple[Value, ...],
        positional: list[Value],
        keywords: dict[str, Value],
        site: Site,
        state: Machine,
    ) -> list[CallOutcome]:
        """Execute what the project's own decorators make of a function. They run at every call and not once, which
        makes no difference to what they return."""
        if self.x.depth >= MAX_DEPTH:
            return self.run(callee, positional, keywords, site, state, decorators)
        live: list[tuple[Machine, Value]] = [(state, Bare(callee.env, callee.scope, callee.frame, None))]
        for wrapper in reversed(wrappers):
            if self.too_deep(wrapper, state):
                return self.run(callee, positional, keywords, site, state, decorators)
            made = [outcome for s, value in live for outcome in self.run(wrapper, [value], {}, site, s)]
            live = [(after, value) for after, value, signal in made if signal is None]
        given = positional if callee.self is None else [callee.self, *positional]
        out: list[CallOutcome] = []
        self.x.depth += 1
        for s, value in live:
            if isinstance(value, Func):
                out.extend(self.invoke(value, given, keywords, site, s, None))
            else:
                out.extend(self.run(callee, positional, keywords, site, s, decorators))
        self.x.depth -= 1
        return out

    def run(
        self,
        callee: Func,
        positional: list[Value],
        keywords: dict[str, Value],
        site: Site | None,
        state: Machine,
        decorators: tuple[Value, ...] = (),
    ) -> list[CallOutcome]:
        """Execute a function's body in a new frame."""
        self.x.modules.enter_globals(callee.env, state)
        number = state.next_frame
        state.next_frame += 1
        parent = callee.frame if callee.frame in state.frames else -callee.env.number
        state.links[number] = (callee.env, parent)
        frame: dict[str, Value] = {"#scope": callee.scope_value}
        state.frames[number] = frame
        self.bind_parameters(callee, positional, keywords, frame, state)
        outer_stack, outer_calls, outer_regions = state.stack, state.calls, state.regions
        state.stack = (*outer_stack, number)
        if site is not None:
            state.calls = (*outer_calls, site)
        for decorator in decorators:
            entered = self.x.effects.contexts.decorating_region(decorator, callee, state)
            if entered is not None:
                state.regions = (*state.regions, entered)
        inside = state.regions
        decorating = inside[len(outer_regions) :]
        if not self.x.silent:
            self.x.executed.add(callee.scope)
        self.x.depth += 1
        start, heap, grads, books = state.trace, state.heap.copy(), state.grads.copy(), state.books.copy()
        assume, asked, budget, trains = dict(state.assume), self.x.asked, self.x.budget, self.x.trains
        self.x.asked, self.x.trains = set(), not _TRAINS.isdisjoint(callee.scope.words)
        caller_needs = self.x.after
        try:
            given = frozenset(name for name, value in frame.items() if self._gradients_among((value,), state))
            outcomes = self.x.block(callee.env.pruned(callee.scope, given), state)
        finally:
            self.x.depth -= 1
            self.x.after = caller_needs
            # what was decided before the call, and not on the way
            known = ((atom, guards.known(atom, assume)) for atom in self.x.asked)
            decided = {atom: outcome for atom, outcome in known if outcome is not None}
            self.x.asked = asked | decided.keys()
            may_train, self.x.trains = self.x.trains, self.x.trains or trains
        if not given and all(after.books == books and is_quiet(after, start, grads) for after, _ in outcomes):
            if not may_train:
                self.x.idleness.looked(callee.scope, budget - self.x.budget)
            if all(after.regions == inside and _changed_nothing(after, signal, heap) for after, signal in outcomes):
                handed = constants(callee, positional, keywords, heap, state)
                self.x.idleness.changed_nothing(callee.scope, handed, decided)
        results: list[CallOutcome] = []
        keep = callee.scope in callee.env.closed_over or any(isinstance(s, Define) for s in callee.scope.body)
        for after, signal in outcomes:
            after.stack, after.calls = outer_stack, outer_calls
            # a region that was entered by hand stays open
            after.regions = tuple(region for region in after.regions if region not in decorating)
            returned = signal[1] if signal is not None and signal[0] == "return" else NONE
            if not keep and not isinstance(returned, Func):
                after.frames.pop(number, None)
                after.links.pop(number, None)
            if signal is None:
                results.append((after, NONE, None))
            elif signal[0] == "return":
                results.append((after, signal[1], None))
            elif signal[0] == "raise":
                results.append((after, NONE, signal))
        return self._merge_results(results, callee)

    def _merge_results(self, results: list[CallOutcome], callee: Func) -> list[CallOutcome]:
        if len(results) < 2:
            return results
        groups: dict[Any, list[Machine]] = {}
        for state, value, signal in results:
            groups.setdefault((value, signal), []).append(state)
        if len(groups) > 6:
            # values that nobody can tell apart need not keep the paths apart
            groups = {}
            for state, value, signal in results:
                unknown = isinstance(value, (Result, OpV, ItemOf, AttrOf, Sym))
                group = (
                    Sym("returned", id(callee.scope), state.loops, callee.scope.name, taint=value.taint)
                    if unknown
                    else value
                )
                groups.setdefault((group, signal), []).append(state)
        merged: list[CallOutcome] = []
        for (value, signal), states in groups.items():
            kept, dropped = merge(states, callee.scope, self.x.limit)
            self.x.truncated |= dropped
            merged.extend((state, value, signal) for state in kept)
        return merged

    def bind_parameters(
        self, callee: Func, positional: list[Value], keywords: dict[str, Value], frame: dict[str, Value], state: Machine
    ) -> None:
        """Give a function's parameters their values; what is not passed gets its default."""
        values = list(positional)
        scope = callee.scope
        params = list(scope.params)
        if callee.self is not None:
            values.insert(0, callee.self)
        rest = dict(keywords)
        for param in params:
            if param.kind == "*":
                frame[param.name] = _rest(values, param.name)
                values = []
            elif param.kind == "**":
                made = DictV(state.allocate((id(scope), "kwargs")))
                state.heap[(made, "#items")] = tuple(Sequence(Const.of(k), v) for k, v in rest.items() if k != "**")
                state.heap[(made, "#open")] = "**" in rest
                frame[param.name] = made
            elif param.kind == "plain" and values and not isinstance(values[0], Spread):
                frame[param.name] = values.pop(0)
                rest.pop(param.name, None)
            elif param.name in rest:
                frame[param.name] = rest.pop(param.name)
            elif values or "**" in rest:
                frame[param.name] = Sym("param", callee.env.source.path, scope.qualname, param.name)
            elif param.default is not None:
                frame[param.name] = self._default(param.default, callee, state)
            else:
                frame[param.name] = Sym("param", callee.env.source.path, scope.qualname, param.name)

    def _default(self, expr: Expr, callee: Func, state: Machine) -> Value:
        if isinstance(expr, ConstE):
            return Const.of(expr.value)
        saved = state.stack
        state.stack = (-callee.env.number,)
        value = self.x.expressions.value(expr, state)
        state.stack = saved
        return value

    def instantiate(
        self,
        cls: Class,
        positional: list[Value],
        keywords: dict[str, Value],
        site: Site | None,
        state: Machine,
        origin: Any,
    ) -> list[CallOutcome]:
        """Make an object of a class of the project and run its `__init__`."""
        instance = Instance(cls, origin)
        if site is not None:
            self.x.sites.setdefault(instance, site)
        init = self.x.classes.method(cls, "__init__", state)
        if init is None:
            for keyword, value in keywords.items():
                state.heap[(instance, keyword)] = value
            fields = self.x.classes.fields(cls, state)
            for number, value in enumerate(positional):
                state.heap[(instance, fields[number] if number < len(fields) else f"#{number}")] = value
            for base in self.x.classes.lineage(cls, state)[1]:
                if site is not None and library.role(base) == "checkpointer":
                    self.x.effects.saving.checkpointables(cls.scope.name, keywords, site, state)
            return [(state, instance, None)]
        owner, scope = init
        if self.x.classes.is_module_class(cls, state) and not owner.env.deals_with_training(scope):
            return [(state, instance, None)]
        if scope not in owner.env.relevant and not any(interesting(v) for v in (*positional, *keywords.values())):
            return [(state, instance, None)]
        bound = Func(owner.env, scope, owner.parts[2], instance)
        if self.too_deep(bound, state):
            return [(state, instance, None)]
        return [(after, instance, signal) for after, _, signal in self.run(bound, positional, keywords, site, state)]


def _remembers(decorator: Value) -> bool:
    """Whether a decorator is `functools.cache` or `functools.lru_cache`."""
    made = decorator.callee if isinstance(decorator, Result) else decorator
    return isinstance(made, Ext) and made.dotted in ("functools.cache", "functools.lru_cache")


def _receives(scope: Scope, handed: Iterable[Value]) -> bool:
    """Whether a function is handed a scaler or an optimizer to load a state into, or the constructor of a base class to
    keep."""
    is_of_interest = "load_state_dict" in scope.words or scope.name == "__init__"
    return is_of_interest and any(isinstance(value, (Scaler, Optimizer)) for value in handed)


def _rest(values: list[Value], name: str) -> Value:
    """What `*args` holds when these values are left over."""
    if len(values) == 1 and isinstance(values[0], Spread):
        return values[0].element
    spread = [value.element for value in values if isinstance(value, Spread)]
    return Many(Sym("rest", name, *spread)) if spread else Sequence(*values)


def _changed_nothing(after: Machine, signal: Signal | None, heap: dict[Any, Any]) -> bool:
    """Whether a function came back with the objects it found, and brought none."""
    if signal is not None and (signal[0] != "return" or interesting(signal[1])):
        return False
    return heap.keys() <= after.heap.keys() and all(heap.get(slot) is value for slot, value in after.heap.items())
