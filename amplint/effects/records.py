"""Objects whose fields are what they were made from: named tuples and namespaces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amplint import library
from amplint.program import Call
from amplint.rule import Site
from amplint.values import Const, Ext, ListV, Result, Sequence, Spread, Sym, Value

if TYPE_CHECKING:
    from amplint.effects.dispatch import Effects
    from amplint.machine import CallOutcome, Machine


class Records:
    """Named tuples and namespaces, for one executor. Their fields are kept in the heap, as attributes are."""

    def __init__(self, effects: Effects) -> None:
        self.effects = effects
        self.x = effects.x

    def namespace(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        """`SimpleNamespace(model=model, ...)`: an object of its own, unlike the results of functions, which are the
        same for the same arguments."""
        fields = [Sequence(Const.of(name), value) for name, value in sorted(kw.items())]
        made = Result(callee, (*pos, *fields, Sym("made", *state.allocate(id(site.node)))), state.loops)
        for name, value in kw.items():
            state.heap[(made, name)] = value
        return [(state, made, None)]

    def named_tuple(self, cls: Result, pos: list[Value], kw: dict[str, Value], state: Machine) -> Value | None:
        """A call of what `collections.namedtuple` or `typing.NamedTuple` has returned; None of anything else."""
        names = self._fields(cls, state)
        if names is None or len(pos) > len(names) or any(isinstance(value, Spread) for value in pos):
            return None
        values = {**dict(zip(names, pos, strict=False)), **kw}
        if values.keys() != set(names):
            # there are defaults
            return None
        made = Sequence(*(values[name] for name in names))
        for name, value in values.items():
            state.heap[(made, name)] = value
        return made

    def _fields(self, cls: Result, state: Machine) -> list[str] | None:
        """The names of the fields, as `"a b"`, `"a, b"`, `["a", "b"]` or `[("a", int), ("b", int)]`."""
        if not isinstance(cls.callee, Ext) or library.role(cls.callee.dotted) != "tuple_class" or len(cls.args) < 2:
            return None
        listed = cls.args[1]
        if isinstance(listed, Const) and isinstance(listed.value, str):
            return listed.value.replace(",", " ").split()
        items = self.x.loops.items_of(listed, state) if isinstance(listed, (Sequence, ListV)) else None
        if items is None:
            return None
        first = [item.items[0] if isinstance(item, Sequence) and item.items else item for item in items]
        names = [item.value for item in first if isinstance(item, Const) and isinstance(item.value, str)]
        return names if len(names) == len(items) else None
