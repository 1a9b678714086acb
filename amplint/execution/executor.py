"""Bounded symbolic execution of AMP programs: statements, expressions, calls of the project's functions.

One statement at one state gives the states that can follow, each with a signal (None: go on).
Loops run twice, a guard that was decided stays decided while its values stay the same, known
functions are executed in place. What calls of libraries and of unknown objects do is in
`amplint.effects`.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from amplint import guards
from amplint.execution.binding import Binding
from amplint.execution.calls import Calls
from amplint.execution.classes import Classes
from amplint.execution.expressions import Expressions
from amplint.execution.idleness import Idleness
from amplint.execution.liveness import carried
from amplint.execution.loops import Loops
from amplint.execution.modules import Modules
from amplint.machine import HARD_LIMIT, Machine, Outcome, merge
from amplint.program import (
    Assign,
    Attr,
    Branch,
    Call,
    Closure,
    Define,
    Delete,
    Evaluate,
    Global,
    Import,
    Jump,
    Loop,
    Name,
    Region,
    Scope,
    Stmt,
    Try,
    Yield,
    expressions_of,
    may_raise,
    parts_of,
    walk,
)
from amplint.rule import Site
from amplint.states import Entered, Event, Gradients
from amplint.values import (
    FALSE,
    NONE,
    TRUE,
    Class,
    DictV,
    Func,
    ListV,
    OpV,
    Scaler,
    StateOf,
    Sym,
    Value,
)

if TYPE_CHECKING:
    from amplint.project import ModuleEnv, Project


#: statements that one entry may execute, those of a silent run, and those of a whole module
STEP_BUDGET = 14_000
SILENT_BUDGET = 1_200
MODULE_BUDGET = 40_000
SILENT_LIMIT = 3
#: frames from here on come from another state
TRANSPLANTS = 10**9

#: events whose meaning depends on what follows: paths with and without them are kept apart
_PENDING_EVENTS = frozenset({"cast", "freeze", "hook", "jump", "default_dtype"})
_PENDING_WHILE_SCALED = frozenset({"clip", "grad_write", "grad_read", "update"})
_EQUALITIES = frozenset({"is", "is not", "==", "!="})
_COMPOUND = frozenset({Branch, Loop, Try, Region})


class OutOfBudget(Exception):
    """The entry has run through its steps; what was found so far stands."""


class Executor:
    """Executes scopes of one project. `silent` runs record no events; `truncated` says that paths were dropped."""

    def __init__(self, project: Project, torch: str) -> None:
        from amplint.effects import Effects

        self.project = project
        #: the torch version that the code is meant for
        self.torch = torch
        self.silent = 0
        self.limit = HARD_LIMIT
        self.budget = STEP_BUDGET
        self.total = MODULE_BUDGET
        #: what the budget may fall to before fewer paths are followed
        self._narrow = STEP_BUDGET // 2
        #: first path to every (event, gradient state) of the entry
        self.observed: dict[Any, tuple[Any, dict[Any, bool]]] = {}
        self.idleness = Idleness()
        #: whether a function under way mentions what training does
        self.trains = False
        #: numbers of frames that are put into a state from another one
        self.transplants = itertools.count(TRANSPLANTS)
        #: the conditions that the functions under way have met and found decided
        self.asked: set[Any] = set()
        self.truncated = False
        self.executed: set[Scope] = set()
        #: what imports, modules, classes and decorators come to. Another analysis may look into other modules before it
        #: has seen enough of them, and must find it out anew.
        self.known: dict[Any, Any] = {}
        #: other modules of the project that the execution has looked into
        self.entered: list[ModuleEnv] = []
        self.cut: set[Scope] = set()
        #: calls of the project's functions that are under way
        self.depth = 0
        #: by block: the block (kept alive, its id is the key) and what is read after each statement
        self._read_after: dict[int, tuple[list[Stmt], list[frozenset[str]]]] = {}
        self._reads: dict[Stmt, frozenset[str]] = {}
        self._carried: dict[Loop, frozenset[str]] = {}
        #: the names that are read after the statement being executed
        self.after: frozenset[str] = frozenset()
        #: where an object was made
        self.sites: dict[Value, Site] = {}
        #: the project's class of a scaler or optimizer that is a subclass
        self.classes_of: dict[Value, Class] = {}
        self.modules = Modules(self)
        self.classes = Classes(self)
        self.binding = Binding(self)
        self.expressions = Expressions(self)
        self.calls = Calls(self)
        self.loops = Loops(self)
        self.effects = Effects(self)
        self._dispatch: dict[type, Any] = {
            Assign: self._assign,
            Evaluate: self._evaluate,
            Call: self.calls.call,
            Branch: self._branch,
            Loop: self.loops.loop,
            Try: self._try,
            Region: self._region,
            Jump: self._jump,
            Yield: self._yield,
            Define: self._define,
            Import: self._import,
            Global: self._global,
            Delete: self._delete,
        }

    def block(self, body: list[Stmt], start: Machine, after: frozenset[str] = frozenset()) -> list[Outcome]:
        """Execute statements in order; the outcomes of all paths. `after` are the names that are read afterwards."""
        live = [start]
        done: list[Outcome] = []
        needed = self._names_read_after(body, after)
        for position, stmt in enumerate(body):
            following: list[Machine] = []
            self.after = needed[position]
            for state in live:
                for reached, signal in self.stmt(stmt, state):
                    if signal is None:
                        following.append(reached)
                    else:
                        done.append((reached, signal))
                self.after = needed[position]
            if len(following) > 1 and (len(following) > len(live) or type(stmt) in _COMPOUND):
                self.forget(following, needed[position])
                following, dropped = merge(following, stmt, self.limit)
                self.truncated |= dropped
            live = following
            if not live:
                break
        return [(state, None) for state in live] + self._merge_signals(done, body)

    def _names_read_after(self, body: list[Stmt], after: frozenset[str]) -> list[frozenset[str]]:
        """For each statement of a block, the variables that are read once it is done."""
        known = self._read_after.get(id(body))
        if known is not None:
            return known[1]
        needed: list[frozenset[str]] = []
        reading = after
        for stmt in reversed(body):
            needed.append(reading)
            reading = reading | self.names_read(stmt)
        needed.reverse()
        self._read_after[id(body)] = (body, needed)
        return needed

    def names_read(self, stmt: Stmt) -> frozenset[str]:
        """Every variable that a statement reads, nested statements and functions included."""
        known = self._reads.get(stmt)
        if known is None:
            found: set[str] = set()
            for inner in walk([stmt]):
                for expr in expressions_of(inner):
                    for part in parts_of(expr):
                        if isinstance(part, Name):
                            found.add(part.id)
                        elif isinstance(part, Closure):
                            found |= part.scope.words
                if isinstance(inner, Define):
                    found |= inner.scope.words
            known = self._reads[stmt] = frozenset(found)
        return known

    def names_carried(self, loop: Loop) -> frozenset[str]:
        """The variables that a round of a loop may have from the round before it."""
        known = self._carried.get(loop)
        if known is None:
            known = self._carried[loop] = carried(loop)
        return known

    @staticmethod
    def forget(states: list[Machine], needed: frozenset[str]) -> None:
        """Drop variables that nothing reads any more, so that they keep no paths apart."""
        for state in states:
            env, _ = state.links[state.stack[-1]]
            frame = state.frame
            for name in [n for n in frame if n not in needed and not n.startswith("#")]:
                if (state.stack[-1] > 0 and name not in env.captured) or name.startswith("%"):
                    del frame[name]

    def _merge_signals(self, done: list[Outcome], point: object) -> list[Outcome]:
        if len(done) < 2:
            return done
        by_signal: dict[Any, list[Machine]] = {}
        for state, signal in done:
            by_signal.setdefault(signal, []).append(state)
        merged: list[Outcome] = []
        for signal, states in by_signal.items():
            kept, dropped = merge(states, (id(point), signal and signal[0]))
            self.truncated |= dropped
            merged.extend((state, signal) for state in kept)
        return merged

    def stmt(self, stmt: Stmt, state: Machine) -> list[Outcome]:
        """Execute one statement. The given state is consumed."""
        self.budget -= 1
        if self.budget < self._narrow:
            self._run_short()
        return self._dispatch[type(stmt)](stmt, state)  # type: ignore[no-any-return]

    @property
    def runs_short(self) -> bool:
        """Whether fewer paths than usual are followed, so that a part of what is called may not have been reached."""
        return self.limit < HARD_LIMIT

    def start_entry(self) -> None:
        """Begin a new entry: a budget of its own, as far as the module's is not used up."""
        self.truncated, self.limit = False, HARD_LIMIT
        self.total -= STEP_BUDGET - max(self.budget, 0)
        self.budget = STEP_BUDGET if self.total > 0 else STEP_BUDGET // 8
        self._narrow = self.budget // 2
        self.idleness = Idleness()
        self.asked = set()
        self.observed = {}

    def _run_short(self) -> None:
        """Half of the budget is gone: follow fewer paths, so that what is left reaches the end."""
        if self.budget < -STEP_BUDGET // 2 or (self.silent and self.budget < 0):
            raise OutOfBudget
        if not self.silent:
            self.limit = 4 if self.limit > 4 else 1
            self._narrow = self.budget // 2 if self.limit > 1 else -STEP_BUDGET // 2

    def _assign(self, stmt: Assign, state: Machine) -> list[Outcome]:
        value = self.expressions.value(stmt.value, state)
        self.effects.losses.assignment(stmt, value, state)
        if stmt.augmented:
            self.effects.gradients.changed_in_place(stmt, state)
        if isinstance(stmt.target, Attr):
            env, _ = state.links[state.stack[-1]]
            base = self.expressions.value(stmt.target.base, state)
            called = self.classes.assign_property(base, stmt.target.name, value, Site(env.source, stmt.node), state)
            if called is not None:
                return called
        self.binding.bind(stmt.target, value, state, stmt)
        return [(state, None)]

    def _evaluate(self, stmt: Evaluate, state: Machine) -> list[Outcome]:
        value = self.expressions.value(stmt.value, state)
        self.effects.contexts.evaluated(stmt, value, state)
        return [(state, None)]

    def _global(self, stmt: Global, state: Machine) -> list[Outcome]:
        return [(state, None)]

    def _delete(self, stmt: Delete, state: Machine) -> list[Outcome]:
        if isinstance(stmt.target, Name):
            state.frame.pop(stmt.target.id, None)
        return [(state, None)]

    def _define(self, stmt: Define, state: Machine) -> list[Outcome]:
        env, _ = state.links[state.stack[-1]]
        out = self.block(stmt.scope.prelude, state) if stmt.scope.prelude else [(state, None)]
        for after, _signal in out:
            kind = Func if stmt.scope.kind == "function" else Class
            frame = after.stack[-1]
            value = kind(env, stmt.scope, frame, None) if kind is Func else Class(env, stmt.scope, frame)
            after.frame[stmt.scope.name] = value
            if stmt.scope.decorators:
                after.heap[(value, "#decorators")] = tuple(
                    self.expressions.value(d, after) for d in stmt.scope.decorators
                )
        return [(after, None) for after, _ in out]

    def _import(self, stmt: Import, state: Machine) -> list[Outcome]:
        env, _ = state.links[state.stack[-1]]
        if stmt.member != "*":
            # resolved when the name is used; most imports never are
            state.frame[stmt.name] = Sym("lazy", env, stmt)
        return [(state, None)]

    def quietly(self, run: Any) -> list[Outcome]:
        """Run without recording events, on a small budget of its own."""
        saved = self.budget, self.truncated, self.limit, self._narrow
        self.budget, self.limit, self._narrow = SILENT_BUDGET, SILENT_LIMIT, 0
        self.silent += 1
        try:
            return run()  # type: ignore[no-any-return]
        except OutOfBudget:
            return []
        finally:
            self.silent -= 1
            self.budget, self.truncated, self.limit, self._narrow = saved

    def split(self, state: Machine, value: Value) -> list[tuple[Machine, bool]]:
        """The outcomes that a condition can have here; each state knows its own."""
        if isinstance(value, StateOf) and isinstance(value.of, Scaler) and value.of.constructed:
            return self.split(state, value.of.enabled)
        if isinstance(value, OpV):
            if value.op == "not":
                return [(s, not truth) for s, truth in self.split(state, value.args[0])]
            if value.op in ("and", "or"):
                whole = ("true", value)
                decided = state.assume.get(whole)
                if decided is not None:
                    self.asked.add(whole)
                    return [(state, decided)]
                found = self._split_chain(state, value.args, value.op == "and")
                if len(found) > 2:
                    # paths that came to one outcome in several ways may be merged, and must not forget it
                    for s, truth in found:
                        s.assume[whole] = truth
                return found
            if value.op == "ite":
                test, then, orelse = value.args
                return [
                    pair for s, truth in self.split(state, test) for pair in self.split(s, then if truth else orelse)
                ]
            if value.op in _EQUALITIES and isinstance(value.args[0], OpV) and value.args[1] in (TRUE, FALSE):
                # `(a and b) is True`
                same = (value.args[1] is TRUE) is (value.op in ("==", "is"))
                return [(s, truth is same) for s, truth in self.split(state, value.args[0])]
            if value.op in _EQUALITIES and isinstance(value.args[0], OpV) and value.args[0].op == "ite":
                # what a choice is compared with is asked of the one that is chosen
                return [
                    pair
                    for settled, choice in self.settle(state, value.args[0])
                    for pair in self.split(settled, OpV(value.op, choice, value.args[1]))
                ]
        if isinstance(value, (ListV, DictV)) and state.heap.get((value, "#items")):
            return [(state, True)]
        lit = guards.literal(value)
        if isinstance(lit, bool):
            return [(state, lit)]
        atom, polarity = lit
        outcome = guards.known(atom, state.assume)
        if outcome is not None:
            self.asked.add(atom)
            return [(state, outcome is polarity)]
        other = state.clone()
        state.assume[atom] = True
        other.assume[atom] = False
        found = [(state, polarity), (other, not polarity)]
        return [(s, truth) for s, truth in found if not guards.contradictory(s.assume, atom)] or found

    def _split_chain(self, state: Machine, parts: tuple[Value, ...], conjunction: bool) -> list[tuple[Machine, bool]]:
        if not parts:
            return [(state, conjunction)]
        found: list[tuple[Machine, bool]] = []
        for s, truth in self.split(state, parts[0]):
            if truth is conjunction:
                found.extend(self._split_chain(s, parts[1:], conjunction))
            else:
                found.append((s, truth))
        return found

    def settle(self, state: Machine, value: Value) -> list[tuple[Machine, Value]]:
        """`value` without conditional expressions at its top: one state per choice."""
        if isinstance(value, OpV):
            if value.op == "ite":
                test, then, orelse = value.args
                return [
                    pair for s, truth in self.split(state, test) for pair in self.settle(s, then if truth else orelse)
                ]
            if value.op == "or" and len(value.args) == 2:
                return [
                    (s, value.args[0]) if truth else (s, value.args[1]) for s, truth in self.split(state, value.args[0])
                ]
        return [(state, value)]

    def _branch(self, stmt: Branch, state: Machine) -> list[Outcome]:
        out: list[Outcome] = []
        needed = self.after
        for after, truth in self.split(state, self.expressions.value(stmt.test, state)):
            body = stmt.then if truth else stmt.orelse
            out.extend(self.block(body, after, needed) if body else [(after, None)])
        return out

    def _jump(self, stmt: Jump, state: Machine) -> list[Outcome]:
        value = self.expressions.value(stmt.value, state) if stmt.value is not None else NONE
        if stmt.kind == "return" and isinstance(value, OpV) and value.op == "ite":
            return [(s, ("return", v)) for s, v in self.settle(state, value)]
        if stmt.kind in ("return", "break", "continue"):
            self.effects.unknown.jumped(stmt, state)
        return [(state, (stmt.kind, value if stmt.kind == "return" else None))]

    def _yield(self, stmt: Yield, state: Machine) -> list[Outcome]:
        value = self.expressions.value(stmt.value, state) if stmt.value is not None else NONE
        if not state.yields:
            self.effects.contexts.suspended(stmt, state)
            state.frame[stmt.result] = Sym("sent", id(stmt), state.loops)
            return [(state, None)]
        *outer, resume = state.yields
        state.yields = tuple(outer)
        out: list[Outcome] = []
        for after, signal in resume(state, value):
            after.yields = (*after.yields, resume)
            if signal is not None and signal[0] == "raise":
                out.append((after, signal))
                continue
            # the with-block's own signal is delivered once the manager has finished
            after.pending = signal
            after.frame[stmt.result] = NONE
            out.append((after, None))
        return out

    def _region(self, stmt: Region, state: Machine) -> list[Outcome]:
        out: list[Outcome] = []
        for settled, context in self.settle(state, self.expressions.value(stmt.context, state)):
            out.extend(self.effects.contexts.enter(stmt, context, settled))
        return out

    def within(self, stmt: Region, entered: Entered | None, state: Machine, target: Value) -> list[Outcome]:
        """Run the body of a `with`, inside the entered region if there is one."""
        saved = state.regions
        if entered is not None:
            state.regions = (*saved, entered)
        if stmt.target is not None:
            self.binding.bind(stmt.target, target, state, stmt)
        out = self.block(stmt.body, state, self.after)
        for after, _ in out:
            after.regions = saved
        return out

    def _try(self, stmt: Try, state: Machine) -> list[Outcome]:
        leaving = self.after
        whole = leaving | self.names_read(stmt)
        handled: list[Outcome] = []
        interrupted: list[Machine] = []
        out: list[Outcome] = []
        live = [state]
        for position, inner in enumerate(stmt.body):
            following: list[Machine] = []
            for current in live:
                if stmt.handlers and not self.silent and (position in stmt.raising or may_raise(inner)):
                    interrupted.append(self._raised_at(inner, current))
                self.after = whole
                for after, signal in self.stmt(inner, current):
                    if signal is None:
                        following.append(after)
                    elif signal[0] == "raise" and stmt.handlers:
                        interrupted.append(after)
                    else:
                        out.append((after, signal))
            live, dropped = merge(following, inner, self.limit)
            self.truncated |= dropped
        for current in live:
            if stmt.handlers and not self.silent and len(stmt.body) in stmt.raising:
                interrupted.append(self._raised_at(stmt, current))
            out.extend(self.block(stmt.orelse, current, whole) if stmt.orelse else [(current, None)])
        if stmt.handlers:
            interrupted, dropped = merge(interrupted, stmt, self.limit)
            self.truncated |= dropped
            for current in interrupted:
                for handler in stmt.handlers[:2]:
                    entry = current.clone()
                    if handler.name:
                        entry.frame[handler.name] = Sym("exception", id(handler))
                    self.effects.unknown.caught(handler, entry)
                    handled.extend(self.block(handler.body, entry, whole))
        out.extend(handled)
        if not stmt.final:
            return out
        finished: list[Outcome] = []
        for current, signal in out:
            for after, last in self.block(stmt.final, current, leaving):
                finished.append((after, last if last is not None else signal))
        return finished

    def _raised_at(self, stmt: Stmt, state: Machine) -> Machine:
        interrupted = state.clone()
        interrupted.assume[("true", Sym("raised", id(stmt), state.loops, "an exception in the try block"))] = True
        return interrupted

    def record(
        self,
        kind: str,
        site: Site,
        state: Machine,
        *,
        before: dict[Value | None, Gradients] | None = None,
        **fields: Any,
    ) -> Event | None:
        """Add an event to the trace; nothing is recorded on silent runs."""
        details = fields.pop("details", {})
        known = before if before is not None else {}
        event = Event(
            kind,
            site,
            state.count,
            known,
            state.regions,
            dict(state.assume),
            state.calls,
            state.loops,
            details=details,
            **fields,
        )
        if self.silent:
            return event
        state.count += 1
        state.trace = (state.trace, event)
        met = tuple((o, g.kind, g.maybe, g.stale is None, g.leftover, g.window > 1) for o, g in known.items())
        caller = id(state.calls[-1].node) if state.calls else None
        torch_knows = (fields.get("stage"), details.get("checked"))
        states = frozenset(value for value in details.get("contents", ()) if isinstance(value, StateOf))
        # what is pending is judged by the backward or the step that meets it
        pending = state.signature if kind in ("backward", "step", "unscale_") else None
        regions = tuple(region.context for region in state.regions)
        self.observe((kind, id(site.node), caller, met, torch_knows, regions, pending, states), state)
        if (
            kind in _PENDING_EVENTS
            or (kind == "unfreeze" and any(waiting == "freeze" for waiting, *_ in state.signature))
            or (kind == "load_state" and "scaler" in fields)
            or (kind in _PENDING_WHILE_SCALED and any(g.kind in ("S", "M") for g in known.values()))
        ):
            state.signature = state.signature | {(kind, id(site.node), met)}
        return event

    def observe(self, key: Any, state: Machine) -> None:
        """Remember the first path to every event in every gradient state: the path may be given up later, what
        happened on it has been seen."""
        self.observed.setdefault(key, (state.trace, dict(state.assume)))


def initial(env: ModuleEnv, executor: Executor) -> Machine:
    """A state in which the module's globals are known and nothing has happened."""
    state = Machine()
    executor.modules.enter_globals(env, state)
    state.stack = (-env.number,)
    return state
