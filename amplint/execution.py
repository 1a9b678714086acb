"""Bounded symbolic execution of AMP programs: statements, expressions, calls of the project's functions.

One statement at one state gives the states that can follow, each with a signal (None: go on).
Loops run twice, a guard that was decided stays decided while its values stay the same, known
functions are executed in place. What calls of libraries and of unknown objects do is in
`amplint.effects`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from amplint import guards, library
from amplint.machine import HARD_LIMIT, Machine, merge
from amplint.program import (
    Arg,
    Assign,
    Attr,
    Branch,
    Call,
    Closure,
    Define,
    Delete,
    DictDisplay,
    Evaluate,
    Expr,
    Global,
    Import,
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
    expressions_of,
    may_raise,
    parts_of,
    path_of,
    walk,
)
from amplint.program import (
    Const as ConstE,
)
from amplint.project import MAX_MODULES
from amplint.rule import Site
from amplint.states import Entered, Event, Gradients
from amplint.values import (
    CLEAN,
    NONE,
    TRUE,
    AttrOf,
    Class,
    Const,
    Context,
    DictV,
    Ext,
    Framework,
    Func,
    Grad,
    Instance,
    ItemOf,
    ListV,
    Many,
    Net,
    Optimizer,
    OpV,
    Param,
    Params,
    Partial,
    Result,
    Scaler,
    Sequence,
    StateOf,
    Super,
    Sym,
    Taint,
    Value,
    cond,
)

if TYPE_CHECKING:
    from amplint.project import ModuleEnv, Project

Signal = tuple[str, Any]
Outcome = tuple[Machine, Signal | None]
Arguments = tuple[list[Value], dict[str, Value]]

MAX_DEPTH = 9
MAX_ITERATIONS = 4
#: statements that one entry may execute, those of a silent run, and those of a whole module
STEP_BUDGET = 12_000
SILENT_BUDGET = 1_200
MODULE_BUDGET = 40_000
SILENT_LIMIT = 3
#: events of a function that only looks: it is executed once per entry
_QUIET_EVENTS = frozenset(
    {"forward", "enter", "construct_autocast", "state_dict", "get_scale", "load_state", "call", "bce"}
)


class OutOfBudget(Exception):
    """The entry has run through its steps; what was found so far stands."""


@dataclass
class Settings:
    """Names of a project's own wrappers, from its configuration."""

    scaler_factories: frozenset[str] = frozenset()
    optimizer_factories: frozenset[str] = frozenset()
    clip_functions: frozenset[str] = frozenset()
    backward_functions: frozenset[str] = frozenset()
    torch: str = "2.9"


class Executor:
    """Executes scopes of one project. `silent` runs record no events; `truncated` says that paths were dropped."""

    def __init__(self, project: Project, settings: Settings | None = None) -> None:
        from amplint.effects import Effects

        self.project = project
        self.settings = settings or Settings()
        self.effects = Effects(self)
        self.silent = 0
        self.limit = HARD_LIMIT
        self.budget = STEP_BUDGET
        self.total = MODULE_BUDGET
        #: what the budget may fall to before fewer paths are followed
        self._narrow = STEP_BUDGET // 2
        #: first path to every (event, gradient state) of the entry
        self.observed: dict[Any, tuple[Any, dict[Any, bool]]] = {}
        #: functions that were seen to change nothing, by entry
        self.inert: set[Scope] = set()
        self.truncated = False
        self.executed: set[Scope] = set()
        #: other modules of the project that the execution has looked into
        self.entered: list[ModuleEnv] = []
        self.cut: set[Scope] = set()
        self._depth = 0
        #: by block: the block (kept alive, its id is the key) and what is read after each statement
        self._read_after: dict[int, tuple[list[Stmt], list[frozenset[str]]]] = {}
        self._reads: dict[Stmt, frozenset[str]] = {}
        #: the names that are read after the statement being executed
        self.after: frozenset[str] = frozenset()
        self._materialising: set[tuple[Value, str]] = set()
        self._materialised: dict[tuple[Value, str], tuple[Value | None, dict[Any, Any]]] = {}
        #: where an object was made
        self.sites: dict[Value, Site] = {}
        #: the project's class of a scaler or optimizer that is a subclass
        self.classes: dict[Value, Class] = {}

    # --- blocks and statements -------------------------------------------------------------------

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
                self._forget(following, needed[position])
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

    @staticmethod
    def _forget(states: list[Machine], needed: frozenset[str]) -> None:
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
        return _DISPATCH[type(stmt)](self, stmt, state)  # type: ignore[no-any-return]

    def start_entry(self) -> None:
        """Begin a new entry: a budget of its own, as far as the module's is not used up."""
        self.truncated, self.limit = False, HARD_LIMIT
        self.total -= STEP_BUDGET - max(self.budget, 0)
        self.budget = STEP_BUDGET if self.total > 0 else STEP_BUDGET // 8
        self._narrow = self.budget // 2
        self.inert = set()
        self.observed = {}

    def _run_short(self) -> None:
        """Half of the budget is gone: follow fewer paths, so that what is left reaches the end."""
        if self.budget < -STEP_BUDGET // 2 or (self.silent and self.budget < 0):
            raise OutOfBudget
        if not self.silent:
            self.limit = 4 if self.limit > 4 else 1
            self._narrow = self.budget // 2 if self.limit > 1 else -STEP_BUDGET // 2

    def _assign(self, stmt: Assign, state: Machine) -> list[Outcome]:
        value = self.value(stmt.value, state)
        self.effects.assignment(stmt, value, state)
        self.bind(stmt.target, value, state, stmt)
        return [(state, None)]

    def _evaluate(self, stmt: Evaluate, state: Machine) -> list[Outcome]:
        value = self.value(stmt.value, state)
        self.effects.evaluated(stmt, value, state)
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
                after.heap[(value, "#decorators")] = tuple(self.value(d, after) for d in stmt.scope.decorators)
        return [(after, None) for after, _ in out]

    def _import(self, stmt: Import, state: Machine) -> list[Outcome]:
        env, _ = state.links[state.stack[-1]]
        if stmt.member != "*":
            # resolved when the name is used; most imports never are
            state.frame[stmt.name] = Sym("lazy", env, stmt)
        return [(state, None)]

    def imported(self, env: ModuleEnv, stmt: Import, state: Machine, depth: int = 0) -> Value:
        """What an import binds: a value of the project's module, or a library name."""
        full = stmt.dotted if stmt.member is None else f"{stmt.dotted}.{stmt.member}".lstrip(".")
        if stmt.level == 0 and library.role(full) is not None:
            return Ext(full)
        if stmt.member is not None:
            module = self._module(env, stmt.dotted, stmt.level)
            if module is not None:
                found = self.module_attribute(module, stmt.member, state, depth + 1)
                if found is not None:
                    return found
            sub = self._module(env, full, stmt.level)
            if sub is not None:
                return Sym("module", sub)
        elif stmt.level == 0:
            module = self._module(env, stmt.dotted, 0)
            if module is not None:
                return Sym("module", module)
        if stmt.level:
            return Sym("import", stmt.level, full)
        return Ext(full)

    def _module(self, importer: ModuleEnv, dotted: str, level: int) -> ModuleEnv | None:
        """A module of the project, as long as this analysis has not looked into too many."""
        module = self.project.resolve(importer, dotted, level)
        if module is None or module is importer:
            return None
        if module not in self.entered:
            if len(self.entered) >= MAX_MODULES:
                return None
            self.entered.append(module)
        return module

    def module_attribute(self, module: ModuleEnv, name: str, state: Machine, depth: int = 0) -> Value | None:
        """A global of another module of the project, None where it has none of that name."""
        if depth > 6:
            return None
        scope = module.program.body.children.get(name)
        if scope is not None:
            kind = Func if scope.kind == "function" else Class
            return Func(module, scope, -module.number, None) if kind is Func else Class(module, scope, -module.number)
        for stmt in module.imports:
            if stmt.name == name and stmt.member != "*":
                return self.imported(module, stmt, state, depth + 1)
        starred = self._starred(module, name, state, depth)
        if starred is not None:
            return starred
        if name in module.assigned:
            self.enter_globals(module, state)
            return state.frames[-module.number].get(name)
        return None

    def _starred(self, module: ModuleEnv, name: str, state: Machine, depth: int = 0) -> Value | None:
        """A name that a star import brings in; only files that hold the word are read."""
        for stmt in module.imports:
            if stmt.member == "*" and self.project.mentions(module, stmt, name):
                target = self._module(module, stmt.dotted, stmt.level)
                if target is not None:
                    found = self.module_attribute(target, name, state, depth + 1)
                    if found is not None:
                        return found
        return None

    def enter_globals(self, module: ModuleEnv, state: Machine) -> None:
        """Make the globals of a module part of the state; its body is executed once, silently."""
        number = -module.number
        if number in state.frames:
            return
        state.links[number] = (module, None)
        state.frames[number] = {}
        cached = module.shared.get("globals")
        if cached is None:
            module.shared["globals"] = cached = ({}, {})
            finals = self.run_silently(module)
            if finals:
                frame, heap = finals[0].frames[number], finals[0].heap
                module.shared["globals"] = cached = (frame, worth_keeping(heap))
        frame, heap = cached
        state.frames[number] = dict(frame)
        for slot, value in heap.items():
            state.heap.setdefault(slot, value)

    def run_silently(self, module: ModuleEnv) -> list[Machine]:
        """The states at the end of a module's body, without events and with a budget of its own."""
        state = Machine()
        state.links[-module.number] = (module, None)
        state.frames[-module.number] = {"__name__": Const.of("__imported__")}
        state.stack = (-module.number,)
        return [s for s, _ in self._quietly(lambda: self.block(module.pruned(module.program.body), state))]

    def _quietly(self, run: Any) -> list[Outcome]:
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

    # --- control flow ----------------------------------------------------------------------------

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
        lit = guards.literal(value)
        if isinstance(lit, bool):
            return [(state, lit)]
        atom, polarity = lit
        outcome = guards.known(atom, state.assume)
        if outcome is not None:
            return [(state, outcome is polarity)]
        other = state.clone()
        state.assume[atom] = True
        other.assume[atom] = False
        return [(state, polarity), (other, not polarity)]

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
        for after, truth in self.split(state, self.value(stmt.test, state)):
            body = stmt.then if truth else stmt.orelse
            out.extend(self.block(body, after, needed) if body else [(after, None)])
        return out

    def _jump(self, stmt: Jump, state: Machine) -> list[Outcome]:
        value = self.value(stmt.value, state) if stmt.value is not None else NONE
        if stmt.kind == "return" and isinstance(value, OpV) and value.op == "ite":
            return [(s, ("return", v)) for s, v in self.settle(state, value)]
        if stmt.kind in ("return", "break", "continue"):
            self.effects.jumped(stmt, state)
        return [(state, (stmt.kind, value if stmt.kind == "return" else None))]

    def _yield(self, stmt: Yield, state: Machine) -> list[Outcome]:
        value = self.value(stmt.value, state) if stmt.value is not None else NONE
        if not state.yields:
            self.effects.suspended(stmt, state)
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

    def _loop(self, stmt: Loop, state: Machine) -> list[Outcome]:
        if stmt.kind == "while":
            return self._while(stmt, state)
        assert stmt.iterable is not None
        iterable = self.value(stmt.iterable, state)
        outer = state.loops
        if stmt.kind == "for":
            self._free_counters(stmt, state)
        leaving = self.after
        needed = leaving | self.names_read(stmt)
        gathered: list[Value] = []
        live: list[tuple[Machine, list[Value]]] = [(state, gathered)]
        done: list[Outcome] = []
        for settled, sequence in self.settle(state, iterable):
            live = [(settled, [])]
            count = self.iterations(stmt, sequence, settled)
            known = self.items_of(sequence, settled)
            finished: list[tuple[Machine, list[Value]]] = []
            start = settled.trace
            for index in range(2 if stmt.kind == "comprehension" and count == 1 and known is None else count):
                if index == count and not any(_trained(current.trace, start) for current, _ in live):
                    break
                following: list[tuple[Machine, list[Value]]] = []
                for current, items in live:
                    if index and _was_last(stmt, index - 1, current):
                        finished.append((current, items))
                        continue
                    current.loops = (*outer, (id(stmt), index))
                    # the list may be out of reach by now, and its items forgotten
                    element = known[index] if known is not None else self.element(stmt, sequence, index, current, outer)
                    if stmt.target is not None:
                        self.bind(stmt.target, element, current, stmt)
                    for after, signal in self.block(stmt.body, current, needed):
                        after.loops = outer
                        kind = signal[0] if signal is not None else None
                        if kind in (None, "continue"):
                            following.append((after, self._gather(stmt, after, items, kind)))
                        elif kind == "break":
                            finished.append((after, items))
                        else:
                            done.append((after, signal))
                live = self._merge_gathered(following, stmt)
            for after, items in live:
                if stmt.orelse:
                    for last, signal in self.block(stmt.orelse, after, leaving):
                        (done if signal is not None else finished).append((last, signal if signal else items))  # type: ignore[arg-type]
                else:
                    finished.append((after, items))
            for after, items in finished:
                if stmt.kind == "comprehension":
                    after.frame[stmt.collect] = self._collected(stmt, after, items, sequence)
                done.append((after, None))
        return done

    def _gather(self, stmt: Loop, state: Machine, items: list[Value], kind: str | None) -> list[Value]:
        if stmt.kind != "comprehension" or stmt.element is None or kind == "continue":
            return items
        value = self.value(stmt.element, state)
        if stmt.shape == "dict" and stmt.key is not None:
            value = Sequence(self.value(stmt.key, state), value)
        return [*items, value]

    def _merge_gathered(
        self, pairs: list[tuple[Machine, list[Value]]], stmt: Loop
    ) -> list[tuple[Machine, list[Value]]]:
        if len(pairs) < 2:
            return pairs
        groups: dict[tuple[Value, ...], list[Machine]] = {}
        for state, items in pairs:
            groups.setdefault(tuple(items), []).append(state)
        merged: list[tuple[Machine, list[Value]]] = []
        for gathered, states in groups.items():
            kept, dropped = merge(states, stmt, self.limit)
            self.truncated |= dropped
            merged.extend((state, list(gathered)) for state in kept)
        return merged[:12]

    def _collected(self, stmt: Loop, state: Machine, items: list[Value], sequence: Value) -> Value:
        if stmt.shape == "dict":
            made = DictV(state.allocate((id(stmt), "dict")))
            state.heap[(made, "#items")] = tuple(items)
            state.heap[(made, "#open")] = not self._exact(sequence, state)
            return made
        if stmt.shape == "":
            # nested comprehension: the inner loop has gathered
            return state.frame.get(stmt.collect, Many(Sym("element", id(stmt))))
        if isinstance(stmt.element, Name) and isinstance(stmt.target, Name) and stmt.element.id == stmt.target.id:
            # a filter keeps what its elements are
            owners = self.effects.parameter_owners(sequence, state)
            if owners:
                return Params(owners)
        if self._exact(sequence, state):
            made_list = ListV(state.allocate((id(stmt), "list")))
            state.heap[(made_list, "#items")] = tuple(items)
            return made_list
        element = items[0] if items else Sym("element", id(stmt), state.loops)
        return Many(element)

    def _exact(self, sequence: Value, state: Machine) -> bool:
        return self.items_of(sequence, state) is not None

    def items_of(self, value: Value, state: Machine) -> tuple[Value, ...] | None:
        """The elements of a sequence, if all of them are known."""
        if isinstance(value, Sequence):
            return value.items
        if isinstance(value, ListV) and not state.heap.get((value, "#open")):
            return tuple(state.heap.get((value, "#items"), ()))
        if isinstance(value, DictV) and not state.heap.get((value, "#open")):
            return tuple(pair.items[0] for pair in state.heap.get((value, "#items"), ()))
        if (
            isinstance(value, Result)
            and isinstance(value.callee, Ext)
            and value.args
            and isinstance(value.args[0], Value)
        ):
            name = value.callee.dotted
            if name in ("list", "tuple", "iter", "set", "sorted") and len(value.args) == 1:
                return self.items_of(value.args[0], state)
            if name == "reversed":
                inner = self.items_of(value.args[0], state)
                return inner[::-1] if inner is not None else None
            if name == "zip":
                columns = [self.items_of(a, state) for a in value.args if isinstance(a, Value)]
                if columns and all(c is not None for c in columns):
                    return tuple(Sequence(*row) for row in zip(*columns, strict=False))
            if name == "enumerate":
                inner = self.items_of(value.args[0], state)
                if inner is not None:
                    return tuple(Sequence(Const.of(i), v) for i, v in enumerate(inner))
        return None

    def iterations(self, stmt: Loop, sequence: Value, state: Machine) -> int:
        """How often a loop runs: as often as its elements are known, else twice (a comprehension once)."""
        known = self.items_of(sequence, state)
        if known is not None:
            return min(len(known), MAX_ITERATIONS)
        usual = 1 if stmt.kind == "comprehension" else 2
        if isinstance(sequence, Result) and isinstance(sequence.callee, Ext) and sequence.callee.dotted == "range":
            bounds = [a.value for a in sequence.args if isinstance(a, Const) and isinstance(a.value, int)]
            if bounds and len(bounds) == len(sequence.args):
                try:
                    return min(len(range(*bounds)), usual)
                except (TypeError, ValueError):
                    return usual
        return usual

    def element(self, stmt: Loop, sequence: Value, index: int, state: Machine, outer: Any) -> Value:
        """The element of an unknown sequence that a loop's target is bound to in one iteration."""
        role = None
        if stmt.target is not None:
            role = self.role(path_of(stmt.target), state)
        if isinstance(stmt.target, Seq) and isinstance(sequence, Result) and isinstance(sequence.callee, Ext):
            roles = {self.role(path_of(part), state) for item in stmt.target.items for part in parts_of(item)}
            if (
                sequence.callee.dotted == "enumerate"
                and len(sequence.args) == 1
                and not roles.isdisjoint(("optimizer", "scaler"))
            ):
                # the same few objects every time: their numbers are theirs in every such loop
                return Sequence(Const.of(index), self._element(sequence.args[0], index, stmt, ()))
        return self._element(
            sequence, index, stmt, outer if role not in ("optimizer", "scaler", "model", "scheduler") else ()
        )

    def _element(self, sequence: Value, index: int, stmt: Loop, outer: Any) -> Value:
        if isinstance(sequence, Params):
            return Param(sequence.owners, "each")
        if isinstance(sequence, Sequence) and index < len(sequence.items):
            return sequence.items[index]
        if isinstance(sequence, Many):
            element = sequence.element
            if isinstance(element, Optimizer):
                return Optimizer((element.parts[0], index), *element.parts[1:])
            if isinstance(element, Scaler):
                return Scaler((element.parts[0], index), *element.parts[1:])
            return element
        if isinstance(sequence, Result) and isinstance(sequence.callee, Ext):
            name, args = sequence.callee.dotted, [a for a in sequence.args if isinstance(a, Value)]
            if name == "range":
                return (
                    cond("+", Sym("index", id(stmt), outer, _target_name(stmt)), Const.of(index))
                    if index
                    else Sym("index", id(stmt), outer, _target_name(stmt))
                )
            if name == "enumerate" and args:
                base = Sym("index", id(stmt), outer, _target_name(stmt, 0))
                counter = cond("+", base, Const.of(index)) if index else base
                return Sequence(counter, self._element(args[0], index, stmt, outer))
            if name == "zip" and args:
                return Sequence(*(self._element(a, index, stmt, outer) for a in args))
            if name in ("list", "tuple", "iter", "reversed", "sorted", "filter", "set") and args:
                return self._element(args[-1], index, stmt, outer)
        if isinstance(sequence, Result) and isinstance(sequence.callee, AttrOf):
            holder, name = sequence.callee.base, sequence.callee.name
            if name == "items":
                return Sequence(ItemOf(holder, "key", index, outer), ItemOf(holder, "value", index, outer))
            if name == "values":
                return ItemOf(holder, "value", index, outer)
            if name in ("modules", "children"):
                return AttrOf(holder, "*")
            if name in ("named_modules", "named_children"):
                return Sequence(ItemOf(sequence, "name", index, outer), AttrOf(holder, "*"))
            if name == "named_parameters":
                return Sequence(ItemOf(sequence, "name", index, outer), Param(frozenset((holder,)), "each"))
        owners = self.effects.element_owners(sequence)
        if owners:
            return Param(owners, "each")
        return ItemOf(
            sequence,
            "each",
            index,
            outer,
            taint=Taint(foreign=sequence.taint.foreign) if sequence.taint.foreign else CLEAN,
        )

    def _free_counters(self, stmt: Loop, state: Machine) -> None:
        """A number that a loop counts up can be anything after the first rounds: forget where it started."""
        for target in counters(stmt):
            if isinstance(target, Name):
                if _is_number(state.frame.get(target.id)):
                    state.frame[target.id] = Sym("counter", id(stmt), state.loops, target.id)
            elif isinstance(target, Attr):
                base = self.value(target.base, state)
                if _is_number(state.heap.get((base, target.name))):
                    state.heap[(base, target.name)] = Sym("counter", id(stmt), state.loops, target.name)

    def free_attributes(self, instance: Value, names: frozenset[str], state: Machine) -> None:
        """The same for attributes of an object whose methods are called again and again."""
        for name in names:
            if _is_number(state.heap.get((instance, name))):
                state.heap[(instance, name)] = Sym("counter", instance, name)

    def _while(self, stmt: Loop, state: Machine) -> list[Outcome]:
        outer = state.loops
        self._free_counters(stmt, state)
        leaving = self.after
        needed = leaving | self.names_read(stmt)
        live = [state]
        done: list[Outcome] = []
        assert stmt.test is not None
        for index in range(2):
            following: list[Machine] = []
            for current in live:
                current.loops = (*outer, (id(stmt), index))
                for ready, signal in self.block(stmt.prelude, current, needed) if stmt.prelude else [(current, None)]:
                    if signal is not None:
                        ready.loops = outer
                        done.append((ready, signal))
                        continue
                    lit = guards.literal(self.value(stmt.test, ready))
                    if lit is False:
                        ready.loops = outer
                        done.append((ready, None))
                        continue
                    for after, inner in self.block(stmt.body, ready, needed):
                        after.loops = outer
                        kind = inner[0] if inner is not None else None
                        if kind in (None, "continue"):
                            following.append(after)
                        elif kind == "break":
                            done.append((after, None))
                        else:
                            done.append((after, inner))
            live, dropped = merge(following, stmt, self.limit)
            self.truncated |= dropped
        for after in live:
            done.extend(self.block(stmt.orelse, after, leaving) if stmt.orelse else [(after, None)])
        return done

    def _region(self, stmt: Region, state: Machine) -> list[Outcome]:
        out: list[Outcome] = []
        for settled, context in self.settle(state, self.value(stmt.context, state)):
            out.extend(self.effects.enter(stmt, context, settled))
        return out

    def within(self, stmt: Region, entered: Entered | None, state: Machine, target: Value) -> list[Outcome]:
        """Run the body of a `with`, inside the entered region if there is one."""
        saved = state.regions
        if entered is not None:
            state.regions = (*saved, entered)
        if stmt.target is not None:
            self.bind(stmt.target, target, state, stmt)
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
                    self.effects.caught(handler, entry)
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

    # --- calls -----------------------------------------------------------------------------------

    def _call(self, stmt: Call, state: Machine) -> list[Outcome]:
        env, _ = state.links[state.stack[-1]]
        func = self.value(stmt.func, state)
        positional, keywords = self.arguments(stmt.args, state)
        site = Site(env.source, stmt.node)
        out: list[Outcome] = []
        for settled, callee in self.settle(state, func):
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
            value = self.value(arg.value, state)
            if arg.star == "*":
                known = self.items_of(value, state)
                if known is not None:
                    positional.extend(known)
                else:
                    positional.append(Many(value))
            elif arg.star == "**":
                pairs = state.heap.get((value, "#items"))
                if isinstance(value, DictV) and pairs is not None:
                    for pair in pairs:
                        if isinstance(pair.items[0], Const) and isinstance(pair.items[0].value, str):
                            keywords[pair.items[0].value] = pair.items[1]
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
    ) -> list[tuple[Machine, Value, Signal | None]]:
        """Call a value: a function of the project is executed in place, the rest is left to the effects."""
        if isinstance(callee, Func) and callee.scope not in self.inert:
            scope = callee.scope
            if scope in callee.env.relevant and self._depth < MAX_DEPTH and not self._recursive(callee, state):
                return self.inline(callee, positional, keywords, site, state)
            if scope in callee.env.relevant:
                self.cut.add(scope)
        return self.effects.call(callee, positional, keywords, site, state, stmt)

    def _recursive(self, callee: Func, state: Machine) -> bool:
        return sum(1 for number in state.stack if state.frames[number].get("#scope") is callee.scope_value) >= 1

    def decorators(self, callee: Value, state: Machine) -> tuple[Value, ...]:
        """The values of a function's decorators."""
        plain = Func(callee.env, callee.scope, callee.frame, None) if isinstance(callee, Func) else callee
        found = state.heap.get((plain, "#decorators"))
        if found is not None:
            return found  # type: ignore[no-any-return]
        if not callee.scope.decorators:  # type: ignore[attr-defined]
            return ()
        key = ("decorators", callee.scope)  # type: ignore[attr-defined]
        cached = callee.env.shared.get(key)  # type: ignore[attr-defined]
        if cached is None:
            scratch = state.clone()
            number = -callee.env.number  # type: ignore[attr-defined]
            self.enter_globals(callee.env, scratch)  # type: ignore[attr-defined]
            scratch.stack = (*scratch.stack, number)
            out = self._quietly(lambda: self.block(callee.scope.prelude, scratch))  # type: ignore[attr-defined]
            cached = ()
            if out:
                cached = tuple(self.value(d, out[0][0]) for d in callee.scope.decorators)  # type: ignore[attr-defined]
            callee.env.shared[key] = cached  # type: ignore[attr-defined]
        return cached  # type: ignore[no-any-return]

    def inline(
        self, callee: Func, positional: list[Value], keywords: dict[str, Value], site: Site | None, state: Machine
    ) -> list[tuple[Machine, Value, Signal | None]]:
        """Execute a function of the project with these arguments."""
        decorators = self.decorators(callee, state)
        kinds = [self.effects.decorator_kind(d) for d in decorators]
        if "contextmanager" in kinds and not state.pending:
            origin = (callee, tuple(positional), tuple(sorted(keywords.items(), key=lambda kv: kv[0])))
            return [(state, Context("generator", origin, None), None)]
        if callee.scope.is_generator and "contextmanager" not in kinds:
            if not self.silent:
                self.executed.add(callee.scope)
        return self.run(callee, positional, keywords, site, state, decorators)

    def run(
        self,
        callee: Func,
        positional: list[Value],
        keywords: dict[str, Value],
        site: Site | None,
        state: Machine,
        decorators: tuple[Value, ...] = (),
    ) -> list[tuple[Machine, Value, Signal | None]]:
        """Execute a function's body in a new frame."""
        self.enter_globals(callee.env, state)
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
            entered = self.effects.decorating_region(decorator, callee, state)
            if entered is not None:
                state.regions = (*state.regions, entered)
        decorating = state.regions[len(outer_regions) :]
        if not self.silent:
            self.executed.add(callee.scope)
        self._depth += 1
        start, heap, grads, books = state.trace, state.heap.copy(), state.grads.copy(), state.books.copy()
        caller_needs = self.after
        try:
            outcomes = self.block(callee.env.pruned(callee.scope), state)
        finally:
            self._depth -= 1
            self.after = caller_needs
        if all(
            after.books == books and _changed_nothing(after, signal, start, heap, grads) for after, signal in outcomes
        ):
            self.inert.add(callee.scope)
        results: list[tuple[Machine, Value, Signal | None]] = []
        keep = bool(callee.scope.children) or any(isinstance(s, Define) for s in callee.scope.body)
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

    def _merge_results(
        self, results: list[tuple[Machine, Value, Signal | None]], callee: Func
    ) -> list[tuple[Machine, Value, Signal | None]]:
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
        merged: list[tuple[Machine, Value, Signal | None]] = []
        for (value, signal), states in groups.items():
            kept, dropped = merge(states, callee.scope, self.limit)
            self.truncated |= dropped
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
                frame[param.name] = Sequence(*values)
                values = []
            elif param.kind == "**":
                made = DictV(state.allocate((id(scope), "kwargs")))
                state.heap[(made, "#items")] = tuple(Sequence(Const.of(k), v) for k, v in rest.items() if k != "**")
                state.heap[(made, "#open")] = "**" in rest
                frame[param.name] = made
            elif param.kind == "plain" and values and not isinstance(values[0], Many):
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
        value = self.value(expr, state)
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
    ) -> list[tuple[Machine, Value, Signal | None]]:
        """Make an object of a class of the project and run its `__init__`."""
        instance = Instance(cls, origin)
        if site is not None:
            self.sites.setdefault(instance, site)
        init = self.method(cls, "__init__", state)
        if init is None:
            for keyword, value in keywords.items():
                state.heap[(instance, keyword)] = value
            for number, value in enumerate(positional):
                state.heap[(instance, f"#{number}")] = value
            return [(state, instance, None)]
        owner, scope = init
        if self.is_module_class(cls, state) and not owner.env.deals_with_training(scope):
            return [(state, instance, None)]
        if scope not in owner.env.relevant and not any(_interesting(v) for v in (*positional, *keywords.values())):
            return [(state, instance, None)]
        bound = Func(owner.env, scope, owner.parts[2], instance)
        if self._depth >= MAX_DEPTH or self._recursive(bound, state):
            return [(state, instance, None)]
        return [(after, instance, signal) for after, _, signal in self.run(bound, positional, keywords, site, state)]

    # --- classes ---------------------------------------------------------------------------------

    def lineage(self, cls: Class, state: Machine) -> tuple[list[Class], list[str]]:
        """The classes of the project that `cls` inherits from, itself first, and the library bases' names."""
        key = ("lineage", cls.scope)
        cached = cls.env.shared.get(key)
        if cached is not None:
            return cached  # type: ignore[no-any-return]
        classes: list[Class] = [cls]
        externals: list[str] = []
        cls.env.shared[key] = (classes, externals)
        scratch = state.clone()
        self.enter_globals(cls.env, scratch)
        scratch.stack = (cls.parts[2] if cls.parts[2] in scratch.frames else -cls.env.number,)
        for base in cls.scope.bases:
            value = self.value(base, scratch)
            if isinstance(value, Class) and value.scope is not cls.scope:
                inner, outside = self.lineage(value, state)
                classes.extend(c for c in inner if c not in classes)
                externals.extend(outside)
            elif isinstance(value, Ext):
                externals.append(value.dotted)
            else:
                externals.append("?")
        return classes, externals

    def method(self, cls: Class, name: str, state: Machine) -> tuple[Class, Scope] | None:
        """The method that an attribute of an object of `cls` names, with the class that defines it."""
        for candidate in self.lineage(cls, state)[0]:
            scope = candidate.scope.children.get(name)
            if scope is not None and scope.kind == "function":
                return candidate, scope
        return None

    def is_module_class(self, cls: Class, state: Machine) -> bool:
        """Whether objects of the class are torch modules, as far as the names of its bases tell."""
        return any(b.rpartition(".")[2].endswith(("Module", "PreTrainedModel")) for b in self.lineage(cls, state)[1])

    # --- names and attributes --------------------------------------------------------------------

    def lookup(self, name: str, state: Machine) -> Value:
        """The value of a variable in the innermost frame."""
        number: int | None = state.stack[-1]
        env = state.links[state.stack[-1]][0]
        while number is not None:
            frame = state.frames.get(number)
            if frame is None:
                break
            found = frame.get(name)
            if found is not None:
                return self._resolved(found, frame, name, state)
            link = state.links.get(number)
            number = link[1] if link is not None else None
        globals_frame = state.frames.get(-env.number)
        if globals_frame is not None and name in globals_frame:
            return self._resolved(globals_frame[name], globals_frame, name, state)
        scope = env.program.body.children.get(name)
        if scope is not None:
            return Func(env, scope, -env.number, None) if scope.kind == "function" else Class(env, scope, -env.number)
        if name == "__name__":
            return Const.of(env.source.path)
        if library.is_builtin(name):
            return Ext(name)
        marker = state.frame.get("#scope")
        scope = marker.parts[1] if marker is not None else env.program.body
        if name in env.assigned_in(scope):
            # on this path nothing has bound the variable yet
            return Sym("unbound", env.source.path, scope.qualname, name)
        return self._starred(env, name, state) or Sym("global", env.source.path, name)

    def _resolved(self, found: Value, frame: dict[str, Value], name: str, state: Machine) -> Value:
        """A variable's value; an import is resolved at its first use."""
        if isinstance(found, Sym) and found.parts[0] == "lazy":
            _, env, stmt = found.parts
            known = env.shared.get(stmt)
            if known is None:
                known = env.shared[stmt] = self.imported(env, stmt, state)
            return known  # type: ignore[no-any-return]
        return found

    def role(self, path: str, state: Machine) -> str | None:
        """What the use of an access path in the running scope says it is."""
        if not path:
            return None
        frame = state.frame
        env = state.links[state.stack[-1]][0]
        marker = frame.get("#scope")
        scope = marker.parts[1] if marker is not None else env.program.body
        roles = env.roles.get(scope)
        return roles.get(path) if roles else None

    def value(self, expr: Expr, state: Machine) -> Value:
        """The value of an expression; expressions are free of calls, so the state does not change."""
        return _EVALUATE[type(expr)](self, expr, state)  # type: ignore[no-any-return]

    def _name_value(self, expr: Name, state: Machine) -> Value:
        found = state.frame.get(expr.id)
        if found is None or (type(found) is Sym and found.parts[0] == "lazy"):
            found = self.lookup(expr.id, state)
        if isinstance(found, _OPEN):
            return self.refine(found, expr.id, state)
        return found

    def refine(self, value: Value, path: str, state: Machine) -> Value:
        """An unknown value as what its use shows it to be."""
        role = self.role(path, state)
        if role == "scaler":
            return self.as_scaler(value, state)
        if role == "optimizer" and not value.taint.foreign:
            return self.as_optimizer(value)
        last = path.rpartition(".")[2]
        if library.FRAMEWORK_NAMES.search(last):
            return Framework(("inferred", value), last)
        return value

    def as_scaler(self, value: Value, state: Machine) -> Value:
        """An unknown value that is used as a scaler."""
        if isinstance(value, Scaler) or not isinstance(value, _OPEN) or value.taint.foreign:
            return value
        return Scaler(("inferred", value), "inferred", TRUE)

    def as_optimizer(self, value: Value) -> Value:
        """A value that is used as an optimizer."""
        if isinstance(value, Optimizer):
            return value
        return Optimizer(("inferred", value), None)

    def _attr_value(self, expr: Attr, state: Machine) -> Value:
        found = self.attribute(self.value(expr.base, state), expr.name, state)
        if isinstance(found, _OPEN):
            path = path_of(expr)
            if path and not path.startswith("%"):
                return self.refine(found, path, state)
        return found

    def attribute(self, base: Value, name: str, state: Machine) -> Value:
        """An attribute of a value."""
        stored = state.heap.get((base, name))
        if stored is not None:
            return stored  # type: ignore[no-any-return]
        if isinstance(base, OpV) and base.op == "ite":
            test, then, orelse = base.args
            return OpV("ite", test, self.attribute(then, name, state), self.attribute(orelse, name, state))
        if isinstance(base, Ext):
            return Ext(f"{base.dotted}.{name}")
        if isinstance(base, Instance):
            return self._instance_attribute(base, name, state)
        if isinstance(base, Class):
            found = self.method(base, name, state)
            if found is not None:
                owner, scope = found
                return Func(owner.env, scope, owner.parts[2], None)
            return self._class_attribute(base, name, state) or AttrOf(base, name)
        if isinstance(base, Super):
            instance, cls = base.parts
            for candidate in self.lineage(instance.cls, state)[0]:
                if candidate.scope is not cls.scope and candidate in self.lineage(cls, state)[0][1:]:
                    inherited = candidate.scope.children.get(name)
                    if inherited is not None and inherited.kind == "function":
                        return Func(candidate.env, inherited, candidate.parts[2], instance)
            return AttrOf(base, name)
        if isinstance(base, Sym) and base.parts[0] == "module":
            found_value = self.module_attribute(base.parts[1], name, state)
            if found_value is not None:
                return found_value
            env = base.parts[1]
            if env.file is not None and env.file.name == "__init__.py":
                sub = self._module(env, name, 1)
                if sub is not None:
                    return Sym("module", sub)
            return AttrOf(base, name)
        if isinstance(base, (Scaler, Optimizer)) and base in self.classes and name not in library.SCALER_METHODS:
            found = self.method(self.classes[base], name, state)
            if found is not None and name not in ("step", "zero_grad"):
                owner, scope = found
                return Func(owner.env, scope, owner.parts[2], base)
        if name == "grad":
            if isinstance(base, Param):
                return Grad(base.owners, "grad")
            if isinstance(base, (Net, Sym, AttrOf, ItemOf, Result)):
                return Grad(frozenset((self._parameter_base(base),)), "grad")
        if isinstance(base, Param):
            return base if name == "data" else AttrOf(base, name)
        if isinstance(base, Grad):
            return base if name == "data" else AttrOf(base, name)
        if name in ("data",) and isinstance(base, (Result, OpV)):
            return base
        if name in ("module", "_orig_mod") and isinstance(base, (Net, Sym, AttrOf, Result)):
            return base
        if isinstance(base, (Result, OpV, ItemOf, AttrOf)) and base.taint is not CLEAN:
            return AttrOf(base, name, taint=base.taint)
        return AttrOf(base, name)

    def _parameter_base(self, value: Value) -> Value:
        # `self.net.weight.grad` belongs to `self.net`
        if isinstance(value, AttrOf) and value.name in ("weight", "bias"):
            return value.base
        return value

    def _instance_attribute(self, base: Instance, name: str, state: Machine) -> Value:
        found = self.method(base.cls, name, state)
        if found is not None:
            owner, scope = found
            func = Func(owner.env, scope, owner.parts[2], base)
            kinds = [self.effects.decorator_kind(d) for d in self.decorators(func, state)]
            if "property" in kinds:
                return self._property(func, state)
            if "staticmethod" in kinds:
                return Func(owner.env, scope, owner.parts[2], None)
            if "classmethod" in kinds:
                return Func(owner.env, scope, owner.parts[2], base.cls)
            return func
        made = self.materialise(base, name, state)
        if made is not None:
            return made
        return self._class_attribute(base.cls, name, state) or AttrOf(base, name)

    def _property(self, func: Func, state: Machine) -> Value:
        if self._depth >= MAX_DEPTH or self._recursive(func, state):
            return AttrOf(func.self, func.scope.name)
        scratch = state.clone()
        results = self._quietly_run(func, scratch)
        values = {value for _, value in results}
        if len(values) == 1:
            value = values.pop()
            for after, _ in results[:1]:
                for slot, held in after.heap.items():
                    state.heap.setdefault(slot, held)
            return value
        return AttrOf(func.self, func.scope.name)

    def _quietly_run(self, func: Func, state: Machine) -> list[tuple[Machine, Value]]:
        out = self._quietly(lambda: self.run(func, [], {}, None, state))
        return [(after, value) for after, value, signal in out if signal is None]  # type: ignore[misc]

    def _class_attribute(self, cls: Class, name: str, state: Machine) -> Value | None:
        for candidate in self.lineage(cls, state)[0]:
            for stmt in candidate.scope.body:
                if isinstance(stmt, Assign) and isinstance(stmt.target, Name) and stmt.target.id == name:
                    if isinstance(stmt.value, ConstE):
                        # an object may override it; only its being there is certain
                        return Const.of(stmt.value.value) if stmt.value.value is not None else None
                    if isinstance(stmt.value, Attr | Name):
                        scratch = state.clone()
                        self.enter_globals(candidate.env, scratch)
                        scratch.stack = (-candidate.env.number,)
                        return self.value(stmt.value, scratch)
        return None

    def materialise(self, instance: Instance, name: str, state: Machine) -> Value | None:
        """An attribute that no executed method has bound: run, silently, the method that binds it."""
        key = (instance, name)
        if key in self._materialising or len(self._materialising) > 2:
            return None
        known = self._materialised.get(key)
        if known is not None:
            value, extra = known
            if value is not None:
                state.heap[key] = value
                for slot, held in extra.items():
                    state.heap.setdefault(slot, held)
            return value
        self._materialising.add(key)
        self._materialised[key] = (None, {})
        try:
            for cls in self.lineage(instance.cls, state)[0]:
                for method in cls.scope.bound_attributes.get(name, ()):
                    scope = cls.scope.children.get(method)
                    if scope is None or scope not in cls.env.relevant:
                        continue
                    if any(state.frames[n].get("#scope") is Sym("scope", scope) for n in state.stack):
                        continue
                    func = Func(cls.env, scope, cls.parts[2], instance)
                    best: Value | None = None
                    for after, _ in self._quietly_run(func, state.clone()):
                        held = after.heap.get(key)
                        if held is None or held is NONE:
                            continue
                        if best is None or (_interesting(held) and not _interesting(best)):
                            best = held
                            heap = after.heap
                    if best is not None and _interesting(best):
                        extra = {slot: value for slot, value in heap.items() if slot[0] is best}
                        self._materialised[key] = (best, extra)
                        state.heap[key] = best
                        for slot, value in extra.items():
                            state.heap.setdefault(slot, value)
                        return best
        finally:
            self._materialising.discard(key)
        return None

    def _item_value(self, expr: Item, state: Machine) -> Value:
        base = self.value(expr.base, state)
        index = self.value(expr.index, state)
        return self.item(base, index, state)

    def item(self, base: Value, index: Value, state: Machine) -> Value:
        """An item of a value."""
        if isinstance(index, OpV) and index.op == "slice":
            owners = self.effects.parameter_owners(base, state)
            return Params(owners) if owners and isinstance(base, Params) else OpV("slice", base, index)
        stored = state.heap.get((base, ("item", index)))
        if stored is not None:
            return stored  # type: ignore[no-any-return]
        if isinstance(base, DictV):
            for pair in reversed(state.heap.get((base, "#items"), ())):
                if pair.items[0] is index:
                    return pair.items[1]  # type: ignore[no-any-return]
        if isinstance(index, Const) and isinstance(index.value, int):
            known = self.items_of(base, state)
            if known is not None and -len(known) <= index.value < len(known):
                return known[index.value]
        if isinstance(base, Params):
            return Param(base.owners, index)
        if isinstance(base, Many):
            return self._element(base, index.value if isinstance(index, Const) else index, None, ())  # type: ignore[arg-type]
        return ItemOf(base, index, taint=base.taint)

    def _op_value(self, expr: Op, state: Machine) -> Value:
        # a display that is only compared with needs no identity
        args = [
            Sequence(*(self.value(i, state) for i in a.items))
            if isinstance(a, Seq) and not _has_star(a)
            else self.value(a, state)
            for a in expr.args
        ]
        op = expr.op
        if op in ("+", "-", "*", "/", "//", "%", "**") and len(args) == 2:
            left, right = args
            if isinstance(left, Const) and isinstance(right, Const):
                folded = _fold(op, left.value, right.value)
                if folded is not None:
                    return folded
            if op == "+" and (
                isinstance(left, (ListV, Params, Sequence, Many)) or isinstance(right, (ListV, Params, Many))
            ):
                return self._concatenate(left, right, expr, state)
            if isinstance(left, Grad) or isinstance(right, Grad):
                return self._gradient_of(args)
        if op == "|" and isinstance(args[0], DictV):
            return args[0]
        if op == "*" and len(args) == 2 and isinstance(args[0], (ListV, Sequence)):
            repeated = self.items_of(args[0], state)
            if repeated is not None and len(repeated) == 1:
                # one object under several names; two of them show what more would show
                times = args[1].value if isinstance(args[1], Const) and isinstance(args[1].value, int) else 2
                return Sequence(*(repeated * min(times, 16)))
        if op == "ite":
            lit = guards.literal(args[0])
            if isinstance(lit, bool):
                return args[1] if lit else args[2]
            if args[1] is args[2]:
                return args[1]
        return cond(op, *args)

    def _gradient_of(self, args: list[Value]) -> Value:
        owners: frozenset[Value] = frozenset()
        for arg in args:
            if isinstance(arg, Grad):
                owners |= arg.owners
        inverse = any(a.taint.inverse for a in args)
        return Grad(owners, "derived", taint=Taint(inverse=True)) if inverse else Grad(owners, "derived")

    def _concatenate(self, left: Value, right: Value, expr: Op, state: Machine) -> Value:
        first, second = self.items_of(left, state), self.items_of(right, state)
        if first is not None and second is not None:
            return Sequence(*first, *second)
        owners = self.effects.parameter_owners(left, state) | self.effects.parameter_owners(right, state)
        return Params(owners) if owners else OpV("+", left, right)

    def _seq_value(self, expr: Seq, state: Machine) -> Value:
        items: list[Value] = []
        spread: frozenset[Value] = frozenset()
        exact = True
        for item in expr.items:
            if isinstance(item, Star):
                value = self.value(item.value, state)
                known = self.items_of(value, state)
                if known is not None:
                    items.extend(known)
                else:
                    exact = False
                    spread |= self.effects.parameter_owners(value, state)
            else:
                items.append(self.value(item, state))
        if not exact:
            for value in items:
                spread |= self.effects.parameter_owners(value, state)
            return Params(spread) if spread else Many(items[0] if items else Sym("element", id(expr)))
        if expr.kind == "tuple":
            return Sequence(*items)
        made = ListV(state.allocate(id(expr)))
        state.heap[(made, "#items")] = tuple(items)
        return made

    def _dict_value(self, expr: DictDisplay, state: Machine) -> Value:
        made = DictV(state.allocate(id(expr)))
        env, _ = state.links[state.stack[-1]]
        self.sites[made] = Site(env.source, expr.node)
        pairs: list[Sequence] = []
        is_open = False
        for key, value_expr in expr.items:
            value = self.value(value_expr, state)
            if key is not None:
                pairs.append(Sequence(self.value(key, state), value))
            elif isinstance(value, DictV):
                pairs.extend(state.heap.get((value, "#items"), ()))
                is_open |= bool(state.heap.get((value, "#open")))
            else:
                is_open = True
                pairs.append(Sequence(Const.of("**"), value))
        state.heap[(made, "#items")] = tuple(pairs)
        state.heap[(made, "#open")] = is_open
        return made

    def _closure_value(self, expr: Closure, state: Machine) -> Value:
        env, _ = state.links[state.stack[-1]]
        return Func(env, expr.scope, state.stack[-1], None)

    # --- binding ---------------------------------------------------------------------------------

    def bind(self, target: Expr, value: Value, state: Machine, stmt: Stmt) -> None:
        """Assign a value to a target: a name, an attribute, an item, or several of them."""
        if isinstance(target, Name):
            marker = state.frame.get("#scope")
            if marker is not None and target.id in marker.parts[1].outer_names:
                number = self._holder(target.id, state)
                state.frames[number][target.id] = value
                return
            state.frame[target.id] = value
        elif isinstance(target, Attr):
            base = self.value(target.base, state)
            env, _ = state.links[state.stack[-1]]
            kept = target.name in env.attribute_words or _interesting(value)
            for choice in _choices(base):
                self.effects.attribute_bound(choice, target, value, state, stmt)
                if kept:
                    state.heap[(choice, target.name)] = value
        elif isinstance(target, Item):
            base, index = self.value(target.base, state), self.value(target.index, state)
            self.effects.item_bound(base, index, value, state, stmt)
            if isinstance(base, DictV):
                pairs = tuple(p for p in state.heap.get((base, "#items"), ()) if p.items[0] is not index)
                state.heap[(base, "#items")] = (*pairs, Sequence(index, value))
            else:
                state.heap[(base, ("item", index))] = value
        elif isinstance(target, Seq):
            known = self.items_of(value, state)
            for position, inner in enumerate(target.items):
                if isinstance(inner, Star):
                    rest = value if isinstance(value, Many) else Many(Sym("rest", id(stmt), state.loops))
                    self.bind(inner.value, rest, state, stmt)
                    known = None
                elif known is not None and len(known) == len(target.items):
                    self.bind(inner, known[position], state, stmt)
                else:
                    self.bind(inner, self._unpacked(value, position, state), state, stmt)
        elif isinstance(target, Star):
            self.bind(target.value, Many(value), state, stmt)

    def _unpacked(self, value: Value, position: int, state: Machine) -> Value:
        if isinstance(value, OpV) and value.op == "ite":
            test, then, orelse = value.args
            return OpV("ite", test, self._unpacked(then, position, state), self._unpacked(orelse, position, state))
        known = self.items_of(value, state)
        if known is not None and position < len(known):
            return known[position]
        return ItemOf(value, Const.of(position), taint=value.taint)

    def _holder(self, name: str, state: Machine) -> int:
        number: int | None = state.links[state.stack[-1]][1]
        while number is not None:
            if name in state.frames.get(number, {}):
                return number
            link = state.links.get(number)
            number = link[1] if link is not None else None
        env = state.links[state.stack[-1]][0]
        self.enter_globals(env, state)
        return -env.number

    # --- events ----------------------------------------------------------------------------------

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
        self.observe(
            (kind, id(site.node), caller, met, fields.get("stage"), tuple(r.context for r in state.regions)), state
        )
        if (
            kind in _PENDING_EVENTS
            or (kind == "load_state" and "scaler" in fields)
            or (kind in _PENDING_WHILE_SCALED and any(g.kind in ("S", "M") for g in known.values()))
        ):
            state.signature = state.signature | {(kind, id(site.node), met)}
        return event

    def observe(self, key: Any, state: Machine) -> None:
        """Remember the first path to every event in every gradient state: the path may be given up later, what
        happened on it has been seen."""
        self.observed.setdefault(key, (state.trace, dict(state.assume)))


#: events whose meaning depends on what follows: paths with and without them are kept apart
_PENDING_EVENTS = frozenset({"cast", "freeze", "hook", "jump", "default_dtype"})
_PENDING_WHILE_SCALED = frozenset({"clip", "grad_write", "grad_read", "update"})
_COMPOUND = frozenset({Branch, Loop, Try, Region})
_OPEN = (Sym, AttrOf, ItemOf, Result)


def _changed_nothing(
    after: Machine, signal: Signal | None, start: Any, heap: dict[Any, Any], grads: dict[Any, Any]
) -> bool:
    """Whether a function came back with the objects and gradients it found, having only looked at them."""
    if after.grads != grads or (signal is not None and (signal[0] != "return" or _interesting(signal[1]))):
        return False
    link = after.trace
    while link is not start and link is not None:
        link, event = link
        if event.kind not in _QUIET_EVENTS:
            return False
    return all(heap.get(slot) is value for slot, value in after.heap.items())


def _was_last(stmt: Loop, index: int, state: Machine) -> bool:
    """Whether the path has found that the last round was the last one: `i == len(loader) - 1`."""
    for atom, outcome in state.assume.items():
        if outcome and atom[0] == "eq" and isinstance(atom[1], Value) and isinstance(atom[2], Value):
            terms, constant = guards.linear(OpV("-", atom[1], atom[2]))
            counter = [
                factor
                for term, factor in terms
                if isinstance(term, Sym) and term.parts[:3] == ("index", id(stmt), state.loops)
            ]
            lengths = [
                f
                for term, f in terms
                if isinstance(term, Result) and isinstance(term.callee, Ext) and term.callee.dotted == "len"
            ]
            if (
                len(terms) == 2
                and counter
                and lengths
                and counter[0] * lengths[0] == -1
                and counter[0] * constant - index in (0, 1)
            ):
                return True
    return False


def _trained(link: Any, start: Any) -> bool:
    """Whether a backward was run since `start`: such a body is worth a second round even in a comprehension."""
    while link is not start and link is not None:
        link, event = link
        if event.kind == "backward":
            return True
    return False


def worth_keeping(heap: dict[Any, Any]) -> dict[Any, Any]:
    """The part of a module's heap that says more than constants do; tables of settings can be long."""
    return {slot: held for slot, held in heap.items() if not (isinstance(held, tuple) and all(_plain(v) for v in held))}


def _plain(value: Any) -> bool:
    if isinstance(value, Sequence):
        return all(_plain(v) for v in value.items)
    return isinstance(value, Const)


def _has_star(expr: Seq) -> bool:
    return any(isinstance(item, Star) for item in expr.items)


def counters(stmt: Stmt) -> list[Expr]:
    """The names and attributes that a statement counts up or down somewhere inside."""
    return [
        inner.target
        for inner in walk([stmt])
        if isinstance(inner, Assign)
        and inner.augmented
        and isinstance(inner.value, Op)
        and inner.value.op in ("+", "-")
    ]


def _is_number(value: Value | None) -> bool:
    return isinstance(value, Const) and isinstance(value.value, (int, float)) and not isinstance(value.value, bool)


def _interesting(value: Value) -> bool:
    return isinstance(
        value, (Scaler, Optimizer, Context, Instance, Partial, Func, Params, Net, ListV, DictV, StateOf, Framework)
    )


def _choices(value: Value) -> list[Value]:
    if isinstance(value, OpV) and value.op == "ite":
        return [*_choices(value.args[1]), *_choices(value.args[2])]
    return [value]


def _target_name(stmt: Loop | None, position: int | None = None) -> str:
    target = stmt.target if stmt is not None else None
    if position is not None and isinstance(target, Seq) and position < len(target.items):
        target = target.items[position]
    return path_of(target) or "index"


def _fold(op: str, left: Any, right: Any) -> Const | None:
    if not isinstance(left, (int, float, str)) or not isinstance(right, (int, float, str)):
        return None
    try:
        if isinstance(left, str) or isinstance(right, str):
            return Const.of(left + right) if op == "+" and type(left) is type(right) else None  # type: ignore[operator]
        if op == "+":
            return Const.of(left + right)
        if op == "-":
            return Const.of(left - right)
        if op == "*":
            return Const.of(left * right)
        if op == "/":
            return Const.of(left / right)
        if op == "//":
            return Const.of(left // right)
        if op == "%":
            return Const.of(left % right)
        if op == "**" and abs(right) <= 128 and abs(left) <= 1e6:
            return Const.of(left**right)
    except (ArithmeticError, TypeError, ValueError):
        return None
    return None


def initial(env: ModuleEnv, executor: Executor) -> Machine:
    """A state in which the module's globals are known and nothing has happened."""
    state = Machine()
    executor.enter_globals(env, state)
    state.stack = (-env.number,)
    return state


_DISPATCH: dict[type, Any] = {
    Assign: Executor._assign,
    Evaluate: Executor._evaluate,
    Call: Executor._call,
    Branch: Executor._branch,
    Loop: Executor._loop,
    Try: Executor._try,
    Region: Executor._region,
    Jump: Executor._jump,
    Yield: Executor._yield,
    Define: Executor._define,
    Import: Executor._import,
    Global: Executor._global,
    Delete: Executor._delete,
}

_EVALUATE: dict[type, Any] = {
    Name: Executor._name_value,
    ConstE: lambda _self, expr, _state: Const.of(expr.value),
    Attr: Executor._attr_value,
    Item: Executor._item_value,
    Op: Executor._op_value,
    Seq: Executor._seq_value,
    Star: lambda self, expr, state: Many(self.value(expr.value, state)),
    DictDisplay: Executor._dict_value,
    Closure: Executor._closure_value,
}
