"""Loops: how often they run, what their targets are bound to, what a comprehension gathers."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from amplint import guards
from amplint.machine import Machine, Outcome, merge
from amplint.program import (
    Assign,
    Attr,
    Branch,
    Call,
    Expr,
    Jump,
    Loop,
    Name,
    Op,
    Seq,
    Stmt,
    parts_of,
    path_of,
    walk,
)
from amplint.program import Const as Literal
from amplint.values import (
    CLEAN,
    AttrOf,
    Const,
    DictV,
    Ext,
    Instance,
    ItemOf,
    ListV,
    Many,
    Net,
    Optimizer,
    OpV,
    Param,
    Params,
    Result,
    Scaler,
    Sequence,
    Sym,
    Taint,
    Value,
    cond,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from amplint.execution.executor import Executor


#: rounds of a loop over known elements, and of one over known names
MAX_ITERATIONS, MAX_NAMES = 4, 16

#: marks the number of a batch some batches on
LATER = "later"


#: what happens to one optimizer or scaler, and then to the next
_PROTOCOL = frozenset({"backward", "unscale_", "step", "opt_step", "update", "zero_grad"})


class Loops:
    """Loops of one executor."""

    def __init__(self, executor: Executor) -> None:
        self.x = executor

    def loop(self, stmt: Loop, state: Machine) -> list[Outcome]:
        """A `for` loop, a `while` loop or a comprehension."""
        if stmt.kind == "while":
            return self._while(stmt, state)
        assert stmt.iterable is not None
        iterable = self.x.expressions.value(stmt.iterable, state)
        outer = state.loops
        if stmt.kind == "for":
            self._free_counters(stmt, state)
        leaving = self.x.after
        needed = leaving | self.x.names_carried(stmt)
        gathered: list[Value] = []
        live: list[tuple[Machine, list[Value]]] = [(state, gathered)]
        done: list[Outcome] = []
        for settled, sequence in self.x.settle(state, iterable):
            live = [(settled, [])]
            count = self.iterations(stmt, sequence, settled)
            known = self.items_of(sequence, settled)
            finished: list[tuple[Machine, list[Value]]] = []
            start = settled.trace
            for index in range(2 if stmt.kind == "comprehension" and count == 1 and known is None else count):
                if index == count and not any(self._tells_apart(stmt, state, items, start) for state, items in live):
                    break
                following: list[tuple[Machine, list[Value]]] = []
                between: list[Machine] = []
                for current, items in live:
                    if index and _was_last(stmt, index - 1, current):
                        finished.append((current, items))
                        continue
                    # the list may be out of reach by now, and its items forgotten
                    element = known[index] if known is not None else self.element(stmt, sequence, index, current, outer)
                    met = _boundaries(current, stmt, outer)
                    ends = self._round(stmt, current, element, (id(stmt), index), outer, needed)
                    if met:
                        # a window has ended before this batch, and none ends with it
                        between += [s for s, _ in ends if _boundaries(s, stmt, outer) == met]
                    self._sort(stmt, ends, items, outer, following, finished, done)
                live = self._merge_gathered(following, stmt, needed)
            if known is not None and count == len(known):
                live = [pair for pair in live if not _found_none(known, pair[0])] or live
            if known is None and stmt.kind == "for" and count > 1:
                live = self._next_boundary(stmt, sequence, live, between, outer, needed, finished, done)
            for after, items in live:
                if stmt.orelse:
                    for last, signal in self.x.block(stmt.orelse, after, leaving):
                        (done if signal is not None else finished).append((last, signal if signal else items))  # type: ignore[arg-type]
                else:
                    finished.append((after, items))
            for after, items in finished:
                if stmt.kind == "comprehension":
                    after.frame[stmt.collect] = self._collected(stmt, after, items, sequence)
                done.append((after, None))
        return done

    def _round(
        self, stmt: Loop, state: Machine, element: Value, number: tuple[int, int], outer: Any, needed: frozenset[str]
    ) -> list[Outcome]:
        """One round of a loop, from one state."""
        if stmt.kind == "comprehension":
            # the element is what the round is for
            needed = needed | self.x.names_read(stmt)
        state.loops = (*outer, number)
        if stmt.target is not None:
            self.x.binding.bind(stmt.target, element, state, stmt)
        return self.x.block(stmt.body, state, needed)

    def _sort(
        self,
        stmt: Loop,
        ends: list[Outcome],
        items: list[Value],
        outer: Any,
        following: list[tuple[Machine, list[Value]]],
        finished: list[tuple[Machine, list[Value]]],
        done: list[Outcome],
    ) -> None:
        """Tell the ends of a round apart: another round follows, the loop is left, the function is left."""
        for after, signal in ends:
            after.loops = outer
            kind = signal[0] if signal is not None else None
            if kind in (None, "continue"):
                following.append((after, self._gather(stmt, after, items, kind)))
            elif kind == "break":
                finished.append((after, items))
            else:
                done.append((after, signal))

    def _next_boundary(
        self,
        stmt: Loop,
        sequence: Value,
        live: list[tuple[Machine, list[Value]]],
        between: list[Machine],
        outer: Any,
        needed: frozenset[str],
        finished: list[tuple[Machine, list[Value]]],
        done: list[Outcome],
    ) -> list[tuple[Machine, list[Value]]]:
        """A further round, some batches on, for the paths `between` two ends of a window.

        Two rounds cannot hold both ends, and what the first leaves behind shows at the second.
        """
        kept: list[tuple[Machine, list[Value]]] = []
        following: list[tuple[Machine, list[Value]]] = []
        for state, items in live:
            if state not in between:
                kept.append((state, items))
                continue
            length = _window(_boundaries(state, stmt, outer))
            if length:
                # the data may also end here
                kept.append((state.clone(), items))
            self._free_counters(stmt, state)
            if length:
                element = self.nth(sequence, length, stmt, outer)
            else:
                element = self.nth(sequence, 0, stmt, (*outer, (LATER, id(stmt))))
            ends = self._round(stmt, state, element, (id(stmt), 2), outer, needed)
            self._sort(stmt, ends, items, outer, following, finished, done)
        return [*kept, *self._merge_gathered(following, stmt, needed)] if following else kept

    def _gather(self, stmt: Loop, state: Machine, items: list[Value], kind: str | None) -> list[Value]:
        if stmt.kind != "comprehension" or stmt.element is None or kind == "continue":
            return items
        value = self.x.expressions.value(stmt.element, state)
        if stmt.shape == "dict" and stmt.key is not None:
            value = Sequence(self.x.expressions.value(stmt.key, state), value)
        return [*items, value]

    def _tells_apart(self, stmt: Loop, state: Machine, items: list[Value], start: Any) -> bool:
        """Whether a comprehension is worth a second round: something is trained in it, or it makes objects, of which a
        later loop is to meet different ones."""
        if _trained(state.trace, start):
            return True
        return bool(items) and not any(isinstance(s, (Branch, Jump)) for s in walk(stmt.body)) and _is_object(items[-1])

    def _merge_gathered(
        self, pairs: list[tuple[Machine, list[Value]]], stmt: Loop, needed: frozenset[str]
    ) -> list[tuple[Machine, list[Value]]]:
        if len(pairs) < 2:
            return pairs
        self.x.forget([state for state, _ in pairs], needed)
        groups: dict[tuple[Value, ...], list[Machine]] = {}
        for state, items in pairs:
            groups.setdefault(tuple(items), []).append(state)
        merged: list[tuple[Machine, list[Value]]] = []
        for gathered, states in groups.items():
            kept, dropped = merge(states, stmt, self.x.limit)
            self.x.truncated |= dropped
            merged.extend((state, list(gathered)) for state in kept)
        return merged[:12]

    def _collected(self, stmt: Loop, state: Machine, items: list[Value], sequence: Value) -> Value:
        if stmt.shape == "dict":
            made = DictV(state.allocate((id(stmt), "dict")))
            state.heap[(made, "#items")] = tuple(items)
            state.heap[(made, "#open")] = not self._exact(sequence, state)
            state.heap[(made, "#each")] = True
            return made
        if stmt.shape == "":
            # nested comprehension: the inner loop has gathered
            return state.frame.get(stmt.collect, Many(Sym("element", id(stmt))))
        if isinstance(stmt.element, Name) and isinstance(stmt.target, Name) and stmt.element.id == stmt.target.id:
            # a filter keeps what its elements are
            stepping = isinstance(sequence, Many) and isinstance(sequence.element, (Optimizer, Instance))
            owners = frozenset() if stepping else self.x.effects.owners.parameter_owners(sequence, state)
            if owners:
                return Params(owners)
            if not self._exact(sequence, state):
                return sequence
        if self._exact(sequence, state):
            made_list = ListV(state.allocate((id(stmt), "list")))
            state.heap[(made_list, "#items")] = tuple(items)
            return made_list
        return Many(*dict.fromkeys(items[:2])) if items else Many(Sym("element", id(stmt), state.loops))

    def _exact(self, sequence: Value, state: Machine) -> bool:
        return self.items_of(sequence, state) is not None

    def items_of(self, value: Value, state: Machine) -> tuple[Value, ...] | None:
        """The elements of a sequence, if all of them are known."""
        if isinstance(value, Sequence):
            return value.items
        if isinstance(value, ListV) and not state.heap.get((value, "#open")):
            return tuple(state.heap.get((value, "#items"), ()))
        if isinstance(value, Instance):
            return self.x.classes.fields_of_tuple(value, state)
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
                inner = self.items_of(value.args[0], state)
                numbers = inner is not None and any(isinstance(item, Const) for item in inner)
                # in which order constants come is not looked at
                return None if name == "sorted" and numbers else inner
            if name == "reversed":
                inner = self.items_of(value.args[0], state)
                return inner[::-1] if inner is not None else None
            if name == "zip":
                columns = [self.items_of(a, state) for a in value.args if isinstance(a, Value)]
                lengths = [len(column) for column in columns if column is not None]
                # what is not known has as many elements as what is
                whole = [
                    column if column is not None else [self.nth(given, i, None, ()) for i in range(max(lengths))]
                    for given, column in zip(value.args, columns, strict=False)
                    if lengths
                ]
                if whole:
                    return tuple(Sequence(*row) for row in zip(*whole, strict=False))
            if name == "enumerate":
                inner = self.items_of(value.args[0], state)
                if inner is not None:
                    return tuple(Sequence(Const.of(i), v) for i, v in enumerate(inner))
        return None

    def joined(self, parts: Iterable[Value], origin: object, state: Machine) -> Value | None:
        """One list of several sequences, of which some are not fully known; None unless it holds optimizers."""
        known: list[Value] = []
        rest: list[Value] = []
        for part in parts:
            items = self.items_of(part, state)
            if items is None:
                rest.append(part if isinstance(part, Many) else Many(self.nth(part, 0, None, ())))
            else:
                known.extend(items)
        held = (*known, *(many.element for many in rest if isinstance(many, Many)))
        if not any(isinstance(value, Optimizer) for value in held):
            return None
        made = ListV(state.allocate(origin))
        state.heap[(made, "#items")] = (*known, *rest)
        state.heap[(made, "#open")] = bool(rest)
        return made

    def _seen_items(self, sequence: Value, state: Machine) -> tuple[Value, ...]:
        """Those elements of a list that are known, where it may hold others."""
        items = state.heap.get((sequence, "#items"), ()) if isinstance(sequence, ListV) else ()
        return tuple(item for item in items if not isinstance(item, Many))

    def iterations(self, stmt: Loop, sequence: Value, state: Machine) -> int:
        """How often a loop runs: as often as its elements are known, else twice (a comprehension once)."""
        known = self.items_of(sequence, state)
        if known is not None:
            return min(len(known), MAX_NAMES if all(map(_is_named, known)) else MAX_ITERATIONS)
        seen = self._seen_items(sequence, state)
        if seen and stmt.kind == "for":
            return min(len(seen) + 1, MAX_ITERATIONS)
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
        if isinstance(stmt.target, Seq) and isinstance(sequence, Result) and isinstance(sequence.callee, Ext):
            roles = {self.x.binding.role(path_of(part), state) for item in stmt.target.items for part in parts_of(item)}
            if (
                sequence.callee.dotted == "enumerate"
                and len(sequence.args) == 1
                and not roles.isdisjoint(("optimizer", "scaler"))
            ):
                # the same few objects every time: their numbers are theirs in every such loop
                return Sequence(Const.of(index), self.nth(sequence.args[0], index, stmt, ()))
            if sequence.callee.dotted == "zip" and len(sequence.args) == len(stmt.target.items):
                each = zip(sequence.args, stmt.target.items, strict=True)
                return Sequence(*(self.nth(a, index, stmt, self._outer(item, outer, state)) for a, item in each))
        seen = self._seen_items(sequence, state)
        if index < len(seen) and stmt.kind == "for":
            return seen[index]
        if isinstance(sequence, ListV) and stmt.kind == "for":
            rest = next((item for item in state.heap.get((sequence, "#items"), ()) if isinstance(item, Many)), None)
            if rest is not None and isinstance(rest.element, Optimizer):
                return self.nth(rest, index - len(seen), stmt, ())
        if isinstance(sequence, Many) and index:
            return sequence.another or self._another(sequence.element, index, state)
        return self.nth(sequence, index, stmt, self._outer(stmt.target, outer, state))

    def _outer(self, target: Expr | None, outer: Any, state: Machine) -> Any:
        """The loops around that tell elements apart: none of them where these are the same few objects every time."""
        role = self.x.binding.role(path_of(target), state) if target is not None else None
        return () if role in ("optimizer", "scaler", "model", "scheduler") else outer

    def _another(self, value: Value, number: int, state: Machine) -> Value:
        """A further one of many similar values: an object with an optimizer of its own, and a scaler of its own unless
        others have it too."""
        if isinstance(value, Sequence):
            return Sequence(*(self._another(item, number, state) for item in value.items))
        if not isinstance(value, Instance):
            return self.nth(Many(value), number, None, ())
        twin = Instance(value.cls, (value.parts[1], number))
        for (holder, name), held in list(state.heap.items()):
            if holder is value and (twin, name) not in state.heap:
                own = isinstance(held, Optimizer) or (
                    isinstance(held, Scaler)
                    and not any(other is held and slot[0] is not value for slot, other in state.heap.items())
                    and not any(held is other for frame in state.frames.values() for other in frame.values())
                )
                state.heap[(twin, name)] = self.nth(Many(held), number, None, ()) if own else held
        return twin

    def nth(self, sequence: Value, index: int, stmt: Loop | None, outer: Any) -> Value:
        """An element of a sequence that is not fully known, in the round `index`."""
        if isinstance(sequence, Params):
            return Param(sequence.owners, "each")
        if isinstance(sequence, Sequence) and index < len(sequence.items):
            return sequence.items[index]
        if isinstance(sequence, Many):
            element = sequence.element
            if index and sequence.another is not None:
                return sequence.another
            if isinstance(element, Optimizer):
                return Optimizer((element.parts[0], index), *element.parts[1:])
            if isinstance(element, Scaler):
                return Scaler((element.parts[0], index), *element.parts[1:])
            return element
        if isinstance(sequence, Result) and isinstance(sequence.callee, Ext):
            name, args = sequence.callee.dotted, [a for a in sequence.args if isinstance(a, Value)]
            if name == "range":
                # the same numbers whenever the loop is run between the same bounds
                later = outer[-1:] if outer and outer[-1][0] == LATER else ()
                first = Sym("index", id(stmt), (*sequence.args, *later), _target_name(stmt))
                return cond("+", first, Const.of(index)) if index else first
            if name == "enumerate" and args:
                base = Sym("index", id(stmt), outer, _target_name(stmt, 0))
                counter = cond("+", base, Const.of(index)) if index else base
                return Sequence(counter, self.nth(args[0], index, stmt, outer))
            if name == "zip" and args:
                return Sequence(*(self.nth(a, index, stmt, outer) for a in args))
            if name in ("list", "tuple", "iter", "reversed", "sorted", "filter", "set") and args:
                return self.nth(args[-1], index, stmt, outer)
        if isinstance(sequence, Result) and isinstance(sequence.callee, AttrOf):
            holder, name = sequence.callee.base, sequence.callee.name
            if name == "items":
                return Sequence(ItemOf(holder, "key", index, outer), ItemOf(holder, "value", index, outer))
            if name == "values":
                return ItemOf(holder, "value", index, outer)
            if name in ("modules", "children", "named_modules", "named_children"):
                # children are apart, and modules hold one another
                part = AttrOf(holder, f"*{index or ''}" if name.endswith("children") else "*")
                return Sequence(ItemOf(sequence, "name", index, outer), part) if name.startswith("named") else part
            if name == "named_parameters":
                return Sequence(ItemOf(sequence, "name", index, outer), Param(frozenset((holder,)), "each"))
        owners = self.x.effects.owners.element_owners(sequence)
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
                base = self.x.expressions.value(target.base, state)
                if _is_number(state.heap.get((base, target.name))):
                    state.heap[(base, target.name)] = Sym("counter", id(stmt), state.loops, target.name)
        for holder in _called_objects(stmt):
            # the method may be the one that counts
            called = self.x.expressions.value(holder, state)
            for name in called.cls.env.counters if isinstance(called, Instance) else ():
                if _is_number(state.heap.get((called, name))):
                    state.heap[(called, name)] = Sym("counter", id(stmt), state.loops, name)

    def free_attributes(self, instance: Value, names: frozenset[str], state: Machine) -> None:
        """The same for attributes of an object whose methods are called again and again."""
        for name in names:
            if _is_number(state.heap.get((instance, name))):
                state.heap[(instance, name)] = Sym("counter", instance, name)

    def _while(self, stmt: Loop, state: Machine) -> list[Outcome]:
        outer = state.loops
        self._free_counters(stmt, state)
        leaving = self.x.after
        needed = leaving | self.x.names_carried(stmt)
        # the test and the body read what is computed for them
        ready_for = leaving | self.x.names_read(stmt)
        live = [state]
        done: list[Outcome] = []
        assert stmt.test is not None
        for index in range(2):
            following: list[Machine] = []
            for current in live:
                current.loops = (*outer, (id(stmt), index))
                for ready, signal in (
                    self.x.block(stmt.prelude, current, ready_for) if stmt.prelude else [(current, None)]
                ):
                    if signal is not None:
                        ready.loops = outer
                        done.append((ready, signal))
                        continue
                    lit = guards.literal(self.x.expressions.value(stmt.test, ready))
                    if lit is False:
                        ready.loops = outer
                        done.append((ready, None))
                        continue
                    for after, inner in self.x.block(stmt.body, ready, needed):
                        after.loops = outer
                        kind = inner[0] if inner is not None else None
                        if kind in (None, "continue"):
                            following.append(after)
                        elif kind == "break":
                            done.append((after, None))
                        else:
                            done.append((after, inner))
            self.x.forget(following, needed)
            live, dropped = merge(following, stmt, self.x.limit)
            self.x.truncated |= dropped
        if done and isinstance(stmt.test, Literal) and stmt.test.value:
            # `while True` is left from inside: whoever is still in it goes round again until something raises
            return [*done, *((after, ("raise", None)) for after in live)]
        for after in live:
            done.extend(self.x.block(stmt.orelse, after, leaving) if stmt.orelse else [(after, None)])
        return done


def _is_object(value: Value) -> bool:
    """Whether an element of a comprehension may be a network, an optimizer or a scaler, or hold one."""
    if isinstance(value, Sequence):
        return any(map(_is_object, value.items))
    return isinstance(value, (Optimizer, Scaler, Net, Instance, DictV, ListV, Result, AttrOf, ItemOf))


def _is_named(element: Value) -> bool:
    """Whether an element of a sequence is a name, or comes with one."""
    first = element.items[0] if isinstance(element, Sequence) and element.items else element
    return isinstance(first, Const) and isinstance(first.value, str)


def _found_none(elements: tuple[Value, ...], state: Machine) -> bool:
    """Whether a path has compared one value with the number or the name of every element, and it was none of them:
    who looks for one of a few means one that is there."""
    keys = [e.items[0] if isinstance(e, Sequence) and e.items else e for e in elements]
    if len(keys) < 2 or not all(isinstance(key, Const) for key in keys):
        return False
    refused = Counter(
        atom[1] for atom, outcome in state.assume.items() if atom[0] == "eq" and not outcome and atom[2] in keys
    )
    return len(keys) in refused.values()


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


def _boundaries(state: Machine, stmt: Loop, outer: Any) -> frozenset[Any]:
    """The ends of windows that a path has met in a loop: by the number of the batch, or by a counter."""
    return frozenset(
        atom
        for atom, outcome in state.assume.items()
        if outcome and any(_counts(term, kind, stmt, outer) for kind, term in _counted(atom))
    )


def _window(boundaries: frozenset[Any]) -> int:
    """How many batches a window has, 0 where that is not known: so many behind one end comes the next."""
    lengths = {atom[2] for atom in boundaries if atom[0] == "mod"}
    if len(lengths) == 1 and len(boundaries) == 1:
        (length,) = lengths
        if isinstance(length, Const) and isinstance(length.value, int) and length.value > 1:
            return length.value
    return 0


def _counts(term: Value, kind: str, stmt: Loop, outer: Any) -> bool:
    if not isinstance(term, Sym) or term.parts[:2] != (kind, id(stmt)):
        return False
    # the numbers of a `range` go by its bounds
    by_bounds = bool(term.parts[2]) and isinstance(term.parts[2][0], Value)
    return kind == "counter" or by_bounds or bool(term.parts[2] == outer)


def _counted(atom: guards.Atom) -> list[tuple[str, Value]]:
    if atom[0] == "mod":
        return [(kind, term) for term, _ in atom[1][0] for kind in ("index", "counter")]
    if atom[0] in ("eq", "lt"):
        sides = [side for side in atom[1:] if isinstance(side, Value)]
        return [("counter", term) for side in sides for term, _ in guards.linear(side)[0]]
    return []


def _trained(link: Any, start: Any) -> bool:
    """Whether something of the protocol happened since `start`: such a body is worth a second round even in a
    comprehension."""
    while link is not start and link is not None:
        link, event = link
        if event.kind in _PROTOCOL:
            return True
    return False


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


def _called_objects(stmt: Stmt) -> Iterator[Expr]:
    """The objects whose methods a statement calls, each once, as far as they are not computed in it."""
    called = [s.func.base for s in walk([stmt]) if isinstance(s, Call) and isinstance(s.func, Attr)]
    bases = {path_of(base): base for base in called}
    return (base for path, base in bases.items() if path and not path.startswith("%"))


def _is_number(value: Value | None) -> bool:
    return isinstance(value, Const) and isinstance(value.value, (int, float)) and not isinstance(value.value, bool)


def _target_name(stmt: Loop | None, position: int | None = None) -> str:
    target = stmt.target if stmt is not None else None
    if position is not None and isinstance(target, Seq) and position < len(target.items):
        target = target.items[position]
    return path_of(target) or "index"
