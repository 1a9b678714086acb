"""Objects around a training program: loaders, namespaces, argument parsers, exit stacks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.verify.guesses import (
    AMP_FLAG,
    OFF,
)
from amplint.verify.objects import Instance, Unknown
from amplint.verify.standins import (
    Optimizer,
    Scaler,
    State,
)

if TYPE_CHECKING:
    from amplint.verify.surroundings import Surroundings


class Loader:
    """A data loader: `plan.length` batches per epoch, each with a number of its own."""

    def __init__(self, world: Surroundings, label: str) -> None:
        self.world = world
        self.label = label
        self.ticks = 0

    def __len__(self) -> int:
        return self.world.plan.length

    def _batch(self) -> Unknown:
        self.ticks += 1
        return Unknown(f"{self.label}.batch", self.ticks, data=True)

    def fresh(self) -> Iterator[object]:
        self.world.passes += 1
        for _ in range(self.world.plan.length):
            yield self._batch()

    def endless(self) -> Iterator[object]:
        while True:
            yield self._batch()


class Stack:
    """contextlib.ExitStack."""

    def __init__(self) -> None:
        self.entered: list[object] = []


class Namespace:
    """Attributes with known values; the rest is unknown."""

    def __init__(self, world: Surroundings, values: dict[str, object]) -> None:
        self.world = world
        self.values = values

    def get(self, name: str) -> object:
        if name not in self.values:
            self.values[name] = Unknown(f"args.{name}")
        return self.values[name]

    def set(self, name: str, new: object) -> None:
        self.values[name] = new


class Keeper:
    """A checkpointer of a library's: it saves the objects that it was given, at first or later."""

    def __init__(self, held: list[object]) -> None:
        self.held = held


class Feed(Iterator[object]):
    """The batches of a loader, one by one: without an end, but for a program that waits for it."""

    def __init__(self, items: Iterator[object]) -> None:
        self.items = items
        self.taken = 0

    def __next__(self) -> object:
        self.taken += 1
        return next(self.items)


class Parser:
    """argparse: the defaults of the arguments that the program adds; flags are on where AMP hangs on them."""

    def __init__(self, world: Surroundings) -> None:
        self.world = world
        self.values: dict[str, object] = {}

    def call(self, name: str, args: list[object], keywords: dict[str, object]) -> object:
        if name == "add_argument":
            self._add(args, keywords)
            return None
        if name in ("parse_args", "parse_known_args"):
            made = Namespace(self.world, self.values)
            return made if name == "parse_args" else (made, [])
        if name.startswith("add_"):
            return self
        if name == "set_defaults":
            self.values.update(keywords)
        return Unknown(name)

    def _add(self, args: list[object], keywords: dict[str, object]) -> None:
        names = [a for a in args if isinstance(a, str)]
        if not names:
            return
        name = str(keywords.get("dest") or max(names, key=len).lstrip("-").replace("-", "_"))
        value: object
        if keywords.get("action") in ("store_true", "store_false"):
            given = self.world.plan.flag(name)
            default = keywords["action"] == "store_false"
            value = (
                given if given is not None else (True if AMP_FLAG.search(name) and not OFF.search(name) else default)
            )
            if value != default:
                self.world.assume(f"args.{name} is {'true' if value else 'false'}")
        elif "default" in keywords and keywords["default"] is not None:
            value = keywords["default"]
            given = self.world.plan.flag(name)
            if isinstance(value, bool) and given is not None:
                value = given
        else:
            value = Unknown(f"args.{name}")
        self.values[name] = value


def kinds_in(value: object, depth: int = 0) -> set[str]:
    """Of what the states are that a saved object holds: model, optimizer, scheduler, scaler."""
    if depth > 5:
        return set()
    if isinstance(value, State):
        return {value.what}
    if isinstance(value, Scaler):
        return {"scaler"}
    if isinstance(value, Optimizer):
        return {"optimizer"}
    if isinstance(value, dict):
        return set().union(*(kinds_in(v, depth + 1) for v in value.values())) if value else set()
    if isinstance(value, list | tuple):
        return set().union(*(kinds_in(v, depth + 1) for v in value)) if value else set()
    if isinstance(value, Instance):
        return set().union(*(kinds_in(v, depth + 1) for v in value.attrs.values())) if value.attrs else set()
    if isinstance(value, Unknown):
        return (
            kinds_in(value.bound, depth + 1)
            if value.bound is not None
            else kinds_in({k: v for k, v in value.attrs.items() if not isinstance(v, Unknown)}, depth + 1)
        )
    return set()


def scalers_in(value: object) -> list[Scaler]:
    """Scaler objects (not their states) that an object to be saved holds, and that pickle would ask for theirs."""
    if isinstance(value, Scaler):
        return [value]
    if isinstance(value, dict):
        return [s for v in value.values() for s in scalers_in(v)]
    if isinstance(value, list | tuple):
        return [s for v in value for s in scalers_in(v)]
    return []
