"""The state of one path of the execution, and how paths that have become alike are merged."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from amplint import library
from amplint.renaming import decided_alike
from amplint.states import NOTHING, UNKNOWN, Book, Entered, Event, Gradients
from amplint.values import NONE, AttrOf, DictV, ItemOf, ListV, OpV, Result, Sym, Value, is_counter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from amplint.guards import Atom
    from amplint.project import ModuleEnv
    from amplint.rule import Site
    from amplint.values import Scaler

Frame = dict[str, Value]
#: the module of a frame, and the frame around it
Link = tuple["ModuleEnv", "int | None"]

#: states kept at one point of the program
HARD_LIMIT = 12

#: how a path leaves a statement: ("return", value), ("raise", None), ("break", None), ("continue", None)
Signal = tuple[str, Any]


class Machine:
    """Variables, heap, guards, regions and gradient states at one point of one path.

    frames   local variables by frame number; module globals have negative numbers
    stack    the frames being executed, innermost last
    links    frame -> (module, enclosing frame or None)
    heap     (object, attribute or "#slot") -> value
    assume   guards decided on this path
    """

    __slots__ = (
        "allocations",
        "assume",
        "books",
        "calls",
        "count",
        "default",
        "entries",
        "frames",
        "grads",
        "heap",
        "links",
        "loops",
        "next_frame",
        "pending",
        "regions",
        "signature",
        "stack",
        "trace",
        "yields",
    )

    def __init__(self) -> None:
        self.frames: dict[int, Frame] = {}
        self.links: dict[int, Link] = {}
        self.stack: tuple[int, ...] = ()
        self.next_frame = 1
        self.heap: dict[tuple[Value, Any], Any] = {}
        self.assume: dict[Atom, bool] = {}
        self.regions: tuple[Entered, ...] = ()
        self.entries = 0
        self.grads: dict[Value, Gradients] = {}
        self.default: Gradients = UNKNOWN
        self.books: dict[Scaler, Book] = {}
        self.loops: tuple[tuple[int, int], ...] = ()
        self.calls: tuple[Site, ...] = ()
        self.allocations: dict[Any, int] = {}
        #: a linked list of events, newest first: (older, event)
        self.trace: Any = None
        self.count = 0
        self.signature: frozenset[Any] = frozenset()
        self.pending: Any = None
        self.yields: tuple[Callable[..., Any], ...] = ()

    def clone(self) -> Machine:
        """An independent copy; events and values are shared."""
        new = Machine.__new__(Machine)
        new.frames = {number: dict(frame) for number, frame in self.frames.items()}
        new.links = dict(self.links)
        new.stack = self.stack
        new.next_frame = self.next_frame
        new.heap = dict(self.heap)
        new.assume = dict(self.assume)
        new.regions = self.regions
        new.entries = self.entries
        new.grads = dict(self.grads)
        new.default = self.default
        new.books = dict(self.books)
        new.loops = self.loops
        new.calls = self.calls
        new.allocations = dict(self.allocations)
        new.trace = self.trace
        new.count = self.count
        new.signature = self.signature
        new.pending = self.pending
        new.yields = self.yields
        return new

    # --- variables -------------------------------------------------------------------------------

    @property
    def frame(self) -> Frame:
        return self.frames[self.stack[-1]]

    def allocate(self, key: object) -> tuple[object, int]:
        """A fresh origin for an object made at `key`: the first one made there is number 0."""
        number = self.allocations.get(key, 0)
        self.allocations[key] = number + 1
        return (key, number)

    # --- gradients -------------------------------------------------------------------------------

    def gradients(self, optimizer: Value) -> Gradients:
        """The state of an optimizer's gradients; one that has not been seen shares the default."""
        return self.grads.get(optimizer, self.default)

    def book(self, scaler: Scaler) -> Book:
        """What is known of a scaler; one that was constructed on this path starts fresh."""
        return self.books.get(scaler, _UNKNOWN_BOOK)

    def events(self) -> list[Event]:
        """The events so far, in order."""
        found: list[Event] = []
        link = self.trace
        while link is not None:
            link, event = link
            found.append(event)
        found.reverse()
        return found


_COARSE = frozenset({Result, OpV, ItemOf, AttrOf, Sym})
_CONTAINERS = frozenset({ListV, DictV})
_UNKNOWN_BOOK = Book()
FRESH_BOOK = Book(checked=False, live=False)
FRESH_GRADIENTS = NOTHING


_ABSENT = object()


def _unset(slot: Any) -> Any:
    """What stands for a slot of the heap that nothing was bound to; an item of an unknown object is unknown as well."""
    holder, name = slot
    return None if type(holder) in _COARSE and type(name) is tuple and name[0] == "item" else _ABSENT


def _is_vague(value: Any) -> bool:
    return value is NONE or type(value) in _COARSE


def _exactly(value: Any) -> Any:
    """What tells a value from others: unknown values count as alike, as long as the same scalers have scaled them."""
    return (value.taint.scales or None) if type(value) in _COARSE else value


def _loosely(value: Any) -> Any:
    """The same where there are too many states: None counts as unknown as well, and so does what was never set."""
    return None if value is _ABSENT or _is_vague(value) else value


#: a state that can follow a statement, and how the path leaves it (None: it goes on)
Outcome = tuple[Machine, Signal | None]
#: the same for a call, with the call's value
CallOutcome = tuple[Machine, Value, Signal | None]
#: positional and keyword arguments
Arguments = tuple[list[Value], dict[str, Value]]


_GOLDEN = 0.6180339887498949


def merge(states: list[Machine], point: object, limit: int = HARD_LIMIT) -> tuple[list[Machine], bool]:
    """States at one point of the program, with those that cannot be told apart joined.

    Guards that the joined paths decided differently become free again, and unknown values that
    differ become one unknown value. A constant does not, since it may be a flag; None does where there are too
    many states otherwise. Returns at most `limit` states and whether some had to be dropped.
    """
    if len(states) < 2:
        return states, False
    states = _group(states, point, _exactly)
    if len(states) > limit:
        states = _group(states, point, _loosely)
    if len(states) > limit:
        return _diverse(states, limit), True
    return states, False


def _diverse(states: list[Machine], limit: int) -> list[Machine]:
    """As many states as the limit allows: one of every different history before the second of any, and of one history
    one of every state of the gradients before the second of any. Those in which scalers are in use come first, and
    those of a round that nothing singles out before those of the last one."""
    by_history: dict[frozenset[Any], dict[Any, list[Machine]]] = {}
    for state in sorted(states, key=lambda state: (-len(state.books), _singled_out(state))):
        by_history.setdefault(state.signature, {}).setdefault(_standing(state), []).append(state)
    groups = [_in_turn([_spread(group) for group in alike.values()]) for alike in by_history.values()]
    return _in_turn(groups)[:limit]


def _singled_out(state: Machine) -> int:
    """How often a path has asked for one round of a loop and is in it: `epoch + 1 == epochs`."""
    return sum(
        outcome and atom[0] == "eq" and any(isinstance(part, Value) and is_counter(part) for part in atom[1:])
        for atom, outcome in state.assume.items()
    )


def _standing(state: Machine) -> Any:
    """How the gradients of all optimizers stand, and what the scalers know."""
    gradients = frozenset([(optimizer, known.key) for optimizer, known in state.grads.items()])
    return gradients, state.default.key, frozenset(state.books.items())


def _in_turn(groups: list[list[Machine]]) -> list[Machine]:
    """The first of every group, then the second of every group, and so on."""
    return [state for row in zip_longest(*groups) for state in row if state is not None]


def _spread(states: list[Machine]) -> list[Machine]:
    """States in an order that soon shows both outcomes of every guard: neighbours share their early decisions, and
    equal strides would share the late ones, so the strides follow the golden ratio."""
    left = list(range(len(states)))
    ordered: list[Machine] = []
    place = 0.0
    while left:
        ordered.append(states[left.pop(int(place * len(left)))])
        place = (place + _GOLDEN) % 1
    return ordered


def _group(states: list[Machine], point: object, telling: Callable[[Any], Any]) -> list[Machine]:
    # the history tells most states apart, and costs nothing to look at
    rough: dict[tuple[Any, ...], list[Machine]] = {}
    for state in states:
        rough.setdefault((state.signature, state.stack, state.regions), []).append(state)
    out: list[Machine] = []
    for group in rough.values():
        if len(group) == 1:
            out.extend(group)
        else:
            out.extend(_alike(group, point, telling))
    return out


def _alike(states: list[Machine], point: object, telling: Callable[[Any], Any]) -> list[Machine]:
    variables, differing = _differences(states)
    numbers = [number for number in states[0].stack if any(number == other for other, _ in variables)]
    slots = [slot for slot in differing if type(slot[0]) not in _CONTAINERS]
    contents = [slot for slot in differing if type(slot[0]) in _CONTAINERS]
    groups: dict[tuple[Any, ...], list[Machine]] = {}
    for state in states:
        key = (
            tuple([telling(state.frames[number].get(name, _ABSENT)) for number, name in variables]),
            tuple([telling(state.heap.get(slot, _unset(slot))) for slot in slots]),
            _standing(state),
            state.pending is None,
        )
        alike = groups.setdefault(key, [])
        first = next((other for other in alike if _hold_alike(other, state, contents)), None)
        if first is None:
            alike.append(state)
            continue
        joined: list[tuple[Value, Value, Value]] = []
        for number in numbers:
            joined += _join(first.frames[number], state.frames[number].items(), point, first)
        for slot in contents:
            if slot in state.heap:
                first.heap.setdefault(slot, state.heap[slot])
        for slot, value in state.heap.items() if slots else ():
            mine = first.heap.get(slot)
            if mine is not value and _is_vague(value):
                first.heap[slot] = now = Sym("join", id(point), slot, first.loops)
                if isinstance(mine, Value):
                    joined.append((mine, value, now))
        both = {a: v for a, v in first.assume.items() if state.assume.get(a) is v}
        first.assume = {**both, **decided_alike(first.assume, state.assume, joined)} if joined else both
    return [state for alike in groups.values() for state in alike]


def _hold_alike(first: Machine, second: Machine, contents: list[Any]) -> bool:
    """Whether two paths have the same in the lists and dicts that both have made. One that only one of them has made is
    out of reach there, since no variable tells the paths apart."""
    return all(
        first.heap.get(slot, second.heap.get(slot)) == second.heap.get(slot, first.heap.get(slot)) for slot in contents
    )


def _differences(states: list[Machine]) -> tuple[list[tuple[int, str]], list[Any]]:
    """The variables and heap slots in which some of the states differ; most are the same in all of them."""
    first, *others = states
    variables: dict[tuple[int, str], None] = {}
    slots: dict[Any, None] = {}
    for other in others:
        # whether they differ is much cheaper to ask than where
        if other.heap != first.heap:
            slots.update((slot, None) for slot, _ in other.heap.items() ^ first.heap.items())
        for number in first.stack:
            if other.frames[number] != first.frames[number]:
                differing = other.frames[number].items() ^ first.frames[number].items()
                variables.update(((number, name), None) for name, _ in differing)
    return list(variables), list(slots)


def _join(
    frame: Frame, other: Iterable[tuple[str, Value]], point: object, state: Machine
) -> Iterator[tuple[Value, Value, Value]]:
    """Make one of the values in which two frames differ; yields what they were, and what they are now."""
    for name, value in other:
        mine = frame.get(name)
        if mine is not None and mine is not value and _is_vague(value) and not _name_one_thing(mine, value):
            taint = mine.taint | value.taint
            frame[name] = Sym("join", id(point), state.loops, name, taint=taint)
            yield mine, value, frame[name]


def _name_one_thing(first: Value, second: Value) -> bool:
    """Whether two imports bring the same in by another name: `from torch.amp import GradScaler` where torch is new
    enough, else `from torch.cuda.amp import GradScaler`."""
    names = [value.parts[2].full_name for value in (first, second) if type(value) is Sym and value.parts[0] == "lazy"]
    if len(names) < 2 or ("cpu" in names[0]) is not ("cpu" in names[1]):
        return False
    roles = {library.role(name) for name in names}
    return roles == {"autocast", "device_autocast"} or (len(roles) == 1 and None not in roles)
