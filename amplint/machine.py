"""The state of one path of the execution, and how paths that have become alike are merged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amplint.states import NOTHING, UNKNOWN, Book, Entered, Event, Gradients
from amplint.values import AttrOf, ItemOf, OpV, Result, Sym, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from amplint.guards import Atom
    from amplint.project import ModuleEnv
    from amplint.rule import Site
    from amplint.values import Scaler

Frame = dict[str, Value]
#: a linked list of events, newest first
Chain = tuple["Chain", Event] | None if False else Any

SOFT_LIMIT = 6
HARD_LIMIT = 24


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
        self.links: dict[int, tuple[ModuleEnv, int | None]] = {}
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

    # --- merging ---------------------------------------------------------------------------------

    def key(self, temporaries: frozenset[str], coarse: bool) -> tuple[Any, ...]:
        """What tells this state from another at the same point of the program."""
        frames = []
        for number in self.stack:
            frame = self.frames[number]
            frames.append(
                frozenset(
                    (name, "~" if coarse and type(value) in _COARSE else value)
                    for name, value in frame.items()
                    if not name.startswith("%") or name in temporaries
                )
            )
        heap = self.heap
        if coarse:
            objects = frozenset((slot, "~" if type(v) in _COARSE else v) for slot, v in heap.items())
        else:
            objects = frozenset(heap.items())
        return (
            self.stack,
            tuple(frames),
            objects,
            self.regions,
            frozenset((o, g.key()) for o, g in self.grads.items()),
            self.default.key(),
            frozenset(self.books.items()),
            self.signature,
            self.pending is None,
        )


_COARSE = frozenset({Result, OpV, ItemOf, AttrOf, Sym})
_UNKNOWN_BOOK = Book()
FRESH_BOOK = Book(checked=False, live=False)
FRESH_GRADIENTS = NOTHING


def merge(states: list[Machine], point: object) -> tuple[list[Machine], bool]:
    """States at one point of the program, with those that cannot be told apart joined.

    Guards that the joined paths decided differently become free again. Where many are left, unknown
    values that differ are joined as well (a flag's constant never is). Returns the states and
    whether some had to be dropped.
    """
    if len(states) < 2:
        return states, False
    temporaries = _common_temporaries(states)
    states = _group(states, temporaries, False, point)
    if len(states) > SOFT_LIMIT:
        states = _group(states, temporaries, True, point)
    if len(states) > HARD_LIMIT:
        return states[:HARD_LIMIT], True
    return states, False


def _common_temporaries(states: list[Machine]) -> frozenset[str]:
    common = {name for name in states[0].frame if name.startswith("%")}
    for state in states[1:]:
        common &= state.frame.keys()
    return frozenset(common)


def _group(states: list[Machine], temporaries: frozenset[str], coarse: bool, point: object) -> list[Machine]:
    groups: dict[tuple[Any, ...], Machine] = {}
    for state in states:
        key = state.key(temporaries, coarse)
        first = groups.get(key)
        if first is None:
            groups[key] = state
            continue
        first.assume = {a: v for a, v in first.assume.items() if state.assume.get(a) is v}
        if coarse:
            for number in first.stack:
                _join(first.frames[number], state.frames[number].items(), point, first)
            for slot, value in state.heap.items():
                if first.heap.get(slot) is not value and type(value) in _COARSE:
                    first.heap[slot] = Sym("join", id(point), slot, first.loops)
    return list(groups.values())


def _join(frame: Frame, other: Iterable[tuple[str, Value]], point: object, state: Machine) -> None:
    for name, value in other:
        mine = frame.get(name)
        if mine is not None and mine is not value and type(value) in _COARSE:
            taint = mine.taint | value.taint
            frame[name] = Sym("join", id(point), state.loops, name, taint=taint)
