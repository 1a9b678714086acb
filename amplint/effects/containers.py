"""Dictionaries and lists, and what is found inside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amplint import library
from amplint.rule import Site
from amplint.values import (
    NONE,
    AttrOf,
    Const,
    DictV,
    Ext,
    Instance,
    ItemOf,
    ListV,
    Many,
    OpV,
    Result,
    Sequence,
    StateOf,
    Sym,
    Value,
)

if TYPE_CHECKING:
    from amplint.effects.dispatch import Effects
    from amplint.machine import Machine


class Containers:
    """Dictionaries and lists, and what is found inside them, for one executor."""

    def __init__(self, effects: Effects) -> None:
        self.effects = effects
        self.x = effects.x

    def dict_method(
        self, base: DictV, name: str, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine
    ) -> Value:
        """A method of a dictionary that was seen being made."""
        pairs: tuple[Any, ...] = state.heap.get((base, "#items"), ())
        is_open = bool(state.heap.get((base, "#open")))
        if name in ("get", "pop", "setdefault") and pos:
            for pair in reversed(pairs):
                if pair.items[0] is pos[0]:
                    return pair.items[1]  # type: ignore[no-any-return]
            if name == "setdefault" and len(pos) > 1:
                state.heap[(base, "#items")] = (*pairs, Sequence(pos[0], pos[1]))
                return pos[1]
            if not is_open:
                return pos[1] if len(pos) > 1 else NONE
        if name == "update":
            added = [Sequence(Const.of(k), v) for k, v in kw.items() if k != "**"]
            for value in pos:
                if isinstance(value, DictV):
                    added.extend(state.heap.get((value, "#items"), ()))
                    is_open |= bool(state.heap.get((value, "#open")))
                else:
                    is_open = True
            state.heap[(base, "#items")] = (*pairs, *added)
            state.heap[(base, "#open")] = is_open or "**" in kw
            return NONE
        if not is_open:
            if name == "items":
                return Sequence(*pairs)
            if name == "values":
                return Sequence(*(p.items[1] for p in pairs))
            if name == "keys":
                return Sequence(*(p.items[0] for p in pairs))
        elif pairs and state.heap.get((base, "#each")):
            # made by a comprehension: the others are like the first
            if name in ("items", "values", "keys"):
                at = {"keys": 0, "values": 1}.get(name)
                return Many(*(pair if at is None else pair.items[at] for pair in pairs[:2]))
        if name == "copy":
            made = DictV(state.allocate((id(site.node), "copy")))
            state.heap[(made, "#items")] = pairs
            state.heap[(made, "#open")] = is_open
            return made
        return Result(AttrOf(base, name), tuple(pos), state.loops)

    def list_method(self, base: ListV, name: str, pos: list[Value], state: Machine) -> Value:
        """A method of a list that was seen being made."""
        items: tuple[Any, ...] = state.heap.get((base, "#items"), ())
        if name == "append" and pos:
            state.heap[(base, "#items")] = (*items, pos[0])[:16]
            return NONE
        if name == "extend" and pos:
            more = self.x.loops.items_of(pos[0], state)
            if more is not None:
                state.heap[(base, "#items")] = (*items, *more)[:16]
            else:
                state.heap[(base, "#items")] = (*items, Many(pos[0]))[:16]
                state.heap[(base, "#open")] = True
            return NONE
        if name == "pop" and items:
            return items[-1]  # type: ignore[no-any-return]
        return Result(AttrOf(base, name), tuple(pos), state.loops)

    def parts_of(self, value: Value, state: Machine) -> list[Value]:
        """What a value directly holds."""
        if isinstance(value, Sequence):
            return [v for v in value.items if isinstance(v, Value)]
        if isinstance(value, Many):
            return list(value.parts)
        if isinstance(value, ListV):
            return list(state.heap.get((value, "#items"), ()))
        if isinstance(value, DictV):
            return [pair.items[1] for pair in state.heap.get((value, "#items"), ())]
        if isinstance(value, Instance):
            return self._held(value, state)
        if isinstance(value, OpV) and value.op in ("ite", "or", "and"):
            return [a for a in value.args[1 if value.op == "ite" else 0 :] if isinstance(a, Value)]
        if isinstance(value, Result):
            given = [a for a in value.args if isinstance(a, Value)]
            return given + self._held(value, state) if is_namespace(value) else given
        if isinstance(value, AttrOf) and _is_record(value.base):
            # whichever of its fields it is
            return self.parts_of(value.base, state)
        return []

    @staticmethod
    def _held(value: Value, state: Machine) -> list[Value]:
        """What the attributes of an object hold."""
        return [held for (holder, _), held in state.heap.items() if holder is value and isinstance(held, Value)]

    def contents(self, value: Value, state: Machine) -> list[Value]:
        """Everything that a container holds, nested containers flattened."""
        found: list[Value] = []
        seen: set[Value] = set()

        def visit(v: Value, depth: int) -> None:
            if v in seen or depth > 5:
                return
            seen.add(v)
            inner = self.parts_of(v, state)
            if not isinstance(v, (Sequence, Many, ListV, DictV)):
                found.append(v)
            for part in inner:
                visit(part, depth + 1)

        for part in self.parts_of(value, state):
            visit(part, 0)
        if isinstance(value, StateOf):
            found.append(value)
        return found

    def is_open(self, value: Value, state: Machine) -> bool:
        """Whether a container may hold more than what is known."""
        if isinstance(value, DictV):
            return bool(state.heap.get((value, "#open")))
        return isinstance(value, (Sym, Result, ItemOf, AttrOf)) and not self.parts_of(value, state)


def is_namespace(value: Value) -> bool:
    """Whether a value is an object of attributes alone, such as a `SimpleNamespace`."""
    callee = value.callee if isinstance(value, Result) else None
    return isinstance(callee, Ext) and library.role(callee.dotted) == "namespace"


def _is_record(value: Value) -> bool:
    """Whether a value is an object of an unknown class that was made from its fields."""
    if not isinstance(value, Result) or not value.args or not isinstance(value.callee, Ext):
        return False
    return value.callee.dotted.rpartition(".")[2][:1].isupper()
