"""Values that were made in a state of their own, and are used in others: decorators, class bodies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amplint.values import Func, Value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amplint.machine import Frame, Link, Machine

#: frames by number, as they are before a state takes them over
Frames = dict[int, tuple["Frame", "Link"]]


def transplanted(
    values: tuple[Value, ...], source: Machine, numbers: Iterator[int]
) -> tuple[tuple[Value, ...], Frames]:
    """Values out of a state, and the frames that functions among them close over, under `numbers` that no other state
    has."""
    taken: dict[int, int] = {}
    frames: Frames = {}

    def moved(value: Value) -> Value:
        if isinstance(value, Func) and value.frame > 0:
            return type(value)(value.env, value.scope, number_of(value.frame), value.self)
        return value

    def number_of(old: int | None) -> int | None:
        if old is None or old <= 0 or old not in source.frames:
            return old
        if old not in taken:
            taken[old] = new = next(numbers)
            env, parent = source.links[old]
            held = {name: moved(value) for name, value in source.frames[old].items()}
            frames[new] = (held, (env, number_of(parent)))
        return taken[old]

    return tuple(map(moved, values)), frames


def transplant(frames: Frames, state: Machine) -> None:
    """Put such frames into a state."""
    for number, (frame, link) in frames.items():
        if number not in state.frames:
            state.frames[number], state.links[number] = dict(frame), link
