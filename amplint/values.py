"""Abstract values: what a variable can hold while a program is executed symbolically.

Values are interned: two values with the same parts are the same object, so identity is equality and
hashing is free. Unknown things are `Sym` (named by where they came from) and `Result` (of an
unknown call); the same expression over the same values is the same value, which is what makes two
tests of one flag have one outcome.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amplint.program import Scope
    from amplint.project import ModuleEnv


@dataclass(frozen=True, slots=True)
class Taint:
    """What a tensor-like value is made of.

    owners    the modules (or unknown callables) whose parameters it depends on by gradient
    scales    the scalers whose scale it carries, once per multiplication
    unscaled  it also has a differentiable term that does not carry the scale
    inverse   it was divided by a scaler's scale, or is made from `get_scale()`
    foreign   it comes from a framework (accelerate, apex, ...) that scales by a protocol of its own
    """

    owners: frozenset[Value] = frozenset()
    scales: tuple[Value, ...] = ()
    unscaled: bool = False
    inverse: bool = False
    foreign: bool = False

    def __or__(self, other: Taint) -> Taint:
        if other is CLEAN or other == self:
            return self
        if self is CLEAN:
            return other
        scales = self.scales if len(self.scales) >= len(other.scales) else other.scales
        return Taint(
            self.owners | other.owners,
            scales,
            self.unscaled or other.unscaled,
            self.inverse or other.inverse,
            self.foreign or other.foreign,
        )


CLEAN = Taint()


class Value:
    """Base of all values; `parts` name it completely."""

    __slots__ = ("parts", "taint", "uid")
    _table: ClassVar[dict[tuple[Any, ...], Value]] = {}
    parts: tuple[Any, ...]
    uid: int
    taint: Taint

    def __new__(cls, *parts: Any, taint: Taint = CLEAN) -> Value:
        key = (cls, parts, taint) if taint is not CLEAN else (cls, parts)
        found = Value._table.get(key)
        if found is None:
            found = object.__new__(cls)
            found.parts = parts
            found.taint = taint
            found.uid = len(Value._table)
            Value._table[key] = found
        return found

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self.parts!r}"


class Const(Value):
    """A literal; `Const.of(1)` and `Const.of(True)` differ."""

    __slots__ = ()

    @staticmethod
    def of(value: object) -> Const:
        try:
            return Const(type(value).__name__, value)
        except TypeError:
            return Const("opaque", repr(value))

    @property
    def value(self) -> Any:
        return self.parts[1]


NONE = Const.of(None)
TRUE = Const.of(True)
FALSE = Const.of(False)


class Sym(Value):
    """Something unknown, named by its origin: ("param", scope, name), ("loop", ...), ("join", ...)."""

    __slots__ = ()


class AttrOf(Value):
    """An attribute of something unknown: (base, name)."""

    __slots__ = ()

    @property
    def base(self) -> Value:
        return self.parts[0]  # type: ignore[no-any-return]

    @property
    def name(self) -> str:
        return self.parts[1]  # type: ignore[no-any-return]


class ItemOf(Value):
    """An item of something unknown: (base, index); also the n-th element of an unknown iterable."""

    __slots__ = ()


class Result(Value):
    """The result of an unknown call: (callee, arguments, loop iteration)."""

    __slots__ = ()

    @property
    def callee(self) -> Value:
        return self.parts[0]  # type: ignore[no-any-return]

    @property
    def args(self) -> tuple[Value, ...]:
        return self.parts[1]  # type: ignore[no-any-return]


class OpV(Value):
    """An operator over values: (op, *operands)."""

    __slots__ = ()

    @property
    def op(self) -> str:
        return self.parts[0]  # type: ignore[no-any-return]

    @property
    def args(self) -> tuple[Value, ...]:
        return self.parts[1:]


class Ext(Value):
    """Something of a library, by its canonical dotted name."""

    __slots__ = ()

    @property
    def dotted(self) -> str:
        return self.parts[0]  # type: ignore[no-any-return]


class Func(Value):
    """A function of the project: (environment, scope, frame it closes over, bound self or None)."""

    __slots__ = ()

    @property
    def env(self) -> ModuleEnv:
        return self.parts[0]  # type: ignore[no-any-return]

    @property
    def scope(self) -> Scope:
        return self.parts[1]  # type: ignore[no-any-return]

    @property
    def frame(self) -> int:
        return self.parts[2]  # type: ignore[no-any-return]

    @property
    def self(self) -> Value | None:
        return self.parts[3]  # type: ignore[no-any-return]

    @property
    def scope_value(self) -> Value:
        """The function's scope as a value, kept in its frames."""
        return Sym("scope", self.parts[1])


class Bare(Func):
    """A function of the project without its decorators, as they get it."""

    __slots__ = ()


class Class(Value):
    """A class of the project: (environment, scope, frame)."""

    __slots__ = ()

    @property
    def env(self) -> ModuleEnv:
        return self.parts[0]  # type: ignore[no-any-return]

    @property
    def scope(self) -> Scope:
        return self.parts[1]  # type: ignore[no-any-return]


class Instance(Value):
    """An object of a class of the project: (class, origin)."""

    __slots__ = ()

    @property
    def cls(self) -> Class:
        return self.parts[0]  # type: ignore[no-any-return]

    @property
    def is_given(self) -> bool:
        """Whether the object comes in as an argument, so that nothing of its making is known."""
        return isinstance(self.parts[1], tuple) and self.parts[1][:1] == ("param",)


class Super(Value):
    """`super()` in a method: (instance, class that the method belongs to)."""

    __slots__ = ()


class Partial(Value):
    """functools.partial: (function, positional arguments, keyword arguments)."""

    __slots__ = ()


class Scaler(Value):
    """A GradScaler: (origin, flavour, enabled).

    flavour: "torch", "sharded", "subclass", "native" (timm's), "inferred" (known by its use). `enabled` is a value; a
    scaler that is inferred may also be None.
    """

    __slots__ = ()

    @property
    def flavour(self) -> str:
        return self.parts[1]  # type: ignore[no-any-return]

    @property
    def enabled(self) -> Value:
        return self.parts[2]  # type: ignore[no-any-return]

    @property
    def constructed(self) -> bool:
        return self.flavour != "inferred"

    @property
    def switch(self) -> Value:
        """What `is_enabled()` answers: the argument of the constructor, else an attribute that nobody has seen."""
        return self.enabled if self.constructed else AttrOf(self, "enabled")


class Optimizer(Value):
    """A torch optimizer: (origin, owners or None). The event `construct_optimizer` tells its class and arguments."""

    __slots__ = ()

    @property
    def owners(self) -> frozenset[Value] | None:
        return self.parts[1]  # type: ignore[no-any-return]

    @property
    def inferred_from(self) -> Value | None:
        """What is known to be an optimizer by its use only, None where it was seen constructed."""
        kind, known_by = self.parts[0]
        return known_by if kind == "inferred" else None


class Scheduler(Value):
    """A learning-rate scheduler: (origin, constructor, optimizer)."""

    __slots__ = ()

    @property
    def constructor(self) -> str:
        return self.parts[1]  # type: ignore[no-any-return]

    @property
    def optimizer(self) -> Value:
        return self.parts[2]  # type: ignore[no-any-return]


class Net(Value):
    """A module constructed from a library class, or returned by one: (origin, constructor[, modules that it holds])."""

    __slots__ = ()

    @property
    def children(self) -> tuple[Value, ...]:
        return self.parts[2] if len(self.parts) > 2 else ()

    @property
    def constructor(self) -> str:
        return self.parts[1]  # type: ignore[no-any-return]


class Framework(Value):
    """An accelerate / Fabric / DeepSpeed / apex object with an AMP protocol of its own: (origin, name)."""

    __slots__ = ()

    @property
    def name(self) -> str:
        return self.parts[1]  # type: ignore[no-any-return]


class Params(Value):
    """Parameters of one or more modules: (owners,)."""

    __slots__ = ()

    @property
    def owners(self) -> frozenset[Value]:
        return self.parts[0]  # type: ignore[no-any-return]


class Param(Value):
    """One parameter of some modules: (owners, origin)."""

    __slots__ = ()

    @property
    def owners(self) -> frozenset[Value]:
        return self.parts[0]  # type: ignore[no-any-return]


class Grad(Value):
    """Gradients of parameters, or something computed from them: (owners, origin).

    origin: "grad", "power" (of a gradient), "shifted" (by a term of another size), "norm", "derived".
    """

    __slots__ = ()

    @property
    def owners(self) -> frozenset[Value]:
        return self.parts[0]  # type: ignore[no-any-return]


def is_raw(value: Value) -> bool:
    """Whether a value is a gradient, or a power of one, whose size nothing has been computed from yet."""
    return isinstance(value, Grad) and value.parts[1] in ("grad", "power")


class Context(Value):
    """A context manager: (kind, origin, arguments).

    kind: "autocast", "null", "no_grad", "enable_grad", "apex", "stack", "generator", "other".
    """

    __slots__ = ()

    @property
    def kind(self) -> str:
        return self.parts[0]  # type: ignore[no-any-return]

    @property
    def origin(self) -> Any:
        return self.parts[1]

    @property
    def details(self) -> Any:
        return self.parts[2]


@dataclass(frozen=True, slots=True)
class AutocastArguments:
    """The arguments of an autocast region, as values; None where they were not given."""

    device: Value | None
    dtype: Value | None
    enabled: Value
    cache_enabled: Value | None


class Sequence(Value):
    """A tuple: (*items)."""

    __slots__ = ()

    @property
    def items(self) -> tuple[Value, ...]:
        return self.parts


class Many(Value):
    """Any number of similar elements: (element,), or (element, another) where two of them were seen being made."""

    __slots__ = ()

    @property
    def element(self) -> Value:
        return self.parts[0]  # type: ignore[no-any-return]

    @property
    def another(self) -> Value | None:
        return self.parts[1] if len(self.parts) > 1 else None


class Spread(Many):
    """`*args` of unknown length among the arguments of a call: (what is spread,)."""

    __slots__ = ()


class ListV(Value):
    """A list object; its items live in the heap: (origin,)."""

    __slots__ = ()


class DictV(Value):
    """A dict object; its items live in the heap: (origin,)."""

    __slots__ = ()


class StateOf(Value):
    """The `state_dict()` of an object: (object,)."""

    __slots__ = ()

    @property
    def of(self) -> Value:
        return self.parts[0]  # type: ignore[no-any-return]


def cond(op: str, *args: Value) -> Value:
    """An `OpV` whose taint is that of its operands."""
    taint = CLEAN
    if op in _ARITHMETIC:
        for arg in args:
            taint = taint | arg.taint
        if op in ("+", "-") and taint.scales and any(_adds_unscaled(a) for a in args):
            taint = Taint(taint.owners, taint.scales, True, taint.inverse, taint.foreign)
        if op == "/" and len(args) == 2 and args[1].taint.inverse:
            taint = Taint(taint.owners, taint.scales, taint.unscaled, True, taint.foreign)
    return OpV(op, *args, taint=taint)


def _adds_unscaled(value: Value) -> bool:
    return not value.taint.scales and bool(value.taint.owners)


_ARITHMETIC = frozenset({"+", "-", "*", "/", "//", "**", "@", "neg", "pos", "ite", "%"})


def interesting(value: Value) -> bool:
    """Whether a value is an object that the protocol is about, or that may hold one."""
    return isinstance(
        value, (Scaler, Optimizer, Context, Instance, Partial, Func, Params, Net, ListV, DictV, StateOf, Framework)
    )


def parts_of_value(value: Value) -> list[Value]:
    """What a tensor-like value was computed from, one level down."""
    if isinstance(value, OpV):
        return [part for part in value.args if isinstance(part, Value)]
    if isinstance(value, Result):
        receiver = value.callee.base if isinstance(value.callee, AttrOf) else None
        found = [part for part in value.args if isinstance(part, Value)]
        return [receiver, *found] if receiver is not None else found
    if isinstance(value, (ItemOf, Many, Sequence, AttrOf)):
        return [part for part in value.parts if isinstance(part, Value)]
    return []


def is_counter(value: Value) -> bool:
    """Whether a value numbers rounds, or is computed from one that does."""
    if isinstance(value, Sym):
        return value.parts[0] in ("index", "counter")
    if isinstance(value, OpV) and value.op in ("+", "-", "*", "//", "%"):
        if value.op in ("+", "-") and isinstance(value.args[-1], Const) and isinstance(value.args[0], (AttrOf, Sym)):
            return True
        return any(is_counter(part) for part in value.args if isinstance(part, Value))
    return False


def sources_of(value: Value) -> Iterator[Value]:
    """A value and everything it was computed from, each once."""
    seen: set[Value] = set()
    waiting = [value]
    while waiting:
        current = waiting.pop()
        if current not in seen:
            seen.add(current)
            yield current
            waiting.extend(parts_of_value(current))


def computed_from_gradients(value: Value, depth: int = 0) -> bool:
    """Whether a value is a parameter's gradient, or was computed from one."""
    if isinstance(value, Grad):
        return True
    return depth < 6 and any(computed_from_gradients(part, depth + 1) for part in parts_of_value(value))
