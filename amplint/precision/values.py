"""What is known of a value where a statement meets it: a tensor's dtype, a number, a network, an open region."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amplint import library
from amplint.program import Jump, Scope, Stmt
from amplint.rule import CALLED, Site

if TYPE_CHECKING:
    import libcst as cst

    from amplint.project import ModuleEnv

#: containers of layers that hand out one after the other
_LISTS_OF_LAYERS = frozenset({"ModuleList", "Sequential"})


@dataclass(frozen=True, slots=True)
class Unknown:
    """Anything; `key` names where it came from, for what is called like a network, `own` is the function of autograd
    that is applied."""

    key: tuple[str, ...] = ()
    own: Own | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a dtype; `sure` where it follows from operators and casts, `born` the region it was computed in."""

    dtype: str
    sure: bool = True
    born: int = 0
    #: tells tensors of one region apart; a view is the tensor that it is a view of
    origin: int = field(default=0, compare=False)
    #: how many calls deep its dtype was decided; what only keeps the dtype of what a function is given decides nothing
    decided: int = 0

    @property
    def is_float16(self) -> bool:
        """Whether it is float16 for certain."""
        return self.sure and self.dtype == "float16"


@dataclass(frozen=True, slots=True)
class Number:
    """A Python number, or a tensor made of one; `value` is None where only its type is known."""

    value: float | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """A string."""

    value: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What `torch.is_autocast_enabled()` returns."""

    outcome: bool


@dataclass(frozen=True, slots=True)
class Library:
    """Something of a library, by its dotted name; the instance of a class where `made` holds its arguments."""

    dotted: str
    made: tuple[Any, ...] | None = None
    #: tells objects of one class apart
    where: int = 0

    @property
    def last(self) -> str:
        return self.dotted.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Own:
    """A function or class of the project; `holder` is the object it is bound to, `made` says it is an instance."""

    env: ModuleEnv
    scope: Scope
    holder: Own | None = None
    made: Made | None = None

    @property
    def key(self) -> tuple[str, ...]:
        """Tells it apart from others; its name comes last."""
        return (str(self.env.number), self.scope.qualname)


@dataclass(frozen=True, slots=True)
class Made:
    """What a class was called with."""

    positional: tuple[Any, ...] = ()
    keywords: tuple[tuple[str, Any], ...] = ()

    @property
    def values(self) -> tuple[Any, ...]:
        """All of them."""
        return (*self.positional, *(value for _, value in self.keywords))


@dataclass(frozen=True, slots=True)
class Distant:
    """A function or class of another module that has not been read yet; `made` says it is an instance."""

    file: Path
    name: str
    made: Made | None = None
    #: the attribute of it that is meant
    attribute: str = ""


@dataclass(frozen=True, slots=True)
class Bases:
    """What `super()` is: the classes behind one, for an instance."""

    cls: Own
    holder: Own


@dataclass(frozen=True, slots=True)
class Module:
    """Another module of the project, as a whole; it has not been read."""

    file: Path


@dataclass(frozen=True, slots=True)
class DtypeOf:
    """The dtype of a tensor, as a value."""

    tensor: Any


@dataclass(frozen=True, slots=True)
class BytesOf:
    """How many bytes an element of a tensor takes."""

    tensor: Any


@dataclass(frozen=True, slots=True)
class Items:
    """A tuple or list of known values."""

    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A dictionary whose keys are known strings."""

    pairs: tuple[tuple[str, Any], ...]

    def get(self, key: Value) -> Value:
        """What stands under a key; nothing where that is not known."""
        return dict(self.pairs).get(key.value, NOTHING) if isinstance(key, Text) else NOTHING


@dataclass(frozen=True, slots=True)
class Opened:
    """An open region: autocast, or `no_grad`. `enabled` and `cache` are None where they are decided at run time."""

    kind: str
    dtype: str | None = None
    enabled: bool | None = True
    cache: bool | None = True
    device: str | None = None
    number: int = 0
    site: Site | None = field(default=None, compare=False)
    #: how many calls deep it was entered
    depth: int = 0


#: the largest numbers of dtypes
LARGEST = {"float16": 65504.0, "bfloat16": 3.3895e38, "float32": 3.4028235e38, "float64": 1.7976931348623157e308}


@dataclass(frozen=True, slots=True)
class Managed:
    """What a context manager of the project opens."""

    regions: tuple[Opened, ...]


NOTHING = Unknown()
#: the keyword that stands for arguments which nobody knows, of `*args` and `**kwargs`
MORE = "**"
Value = Any
Frame = dict[str, Value]


@dataclass(frozen=True, slots=True)
class Fact:
    """An operation with the values it met.

    kind: "binary" (operation is the operator), "call" (the function's full name, or the method's), "setitem",
    "apply" (a network, by the key in `receiver`). `scope` is the function of the module `env` that holds it, `node` the
    statement or call.
    """

    kind: str
    operation: str
    node: cst.CSTNode
    env: ModuleEnv
    scope: Scope
    receiver: Value
    arguments: tuple[Value, ...]
    keywords: dict[str, Value]
    regions: tuple[Opened, ...]
    #: the calls that lead here from where the walk began
    calls: tuple[Site, ...]

    @property
    def site(self) -> Site:
        """Where it is."""
        return Site(self.env.source, self.node)

    @property
    def steps(self) -> tuple[tuple[Site, str], ...]:
        """The region that makes tensors 16 bit and the calls on the way here, where that is another module."""
        opened = next((r.site for r in self.regions if r.kind == "autocast" and r.enabled is not False), None)
        if opened is None or opened.module is self.env.source:
            return ()
        return ((opened, "the region of this operation"), *((call, CALLED) for call in self.calls))

    def asked(self, tensor: Tensor) -> Site | None:
        """The call that hands a tensor to a function of another module, which does nothing to its dtype."""
        call = self.calls[-1] if self.calls else None
        if call is None or call.module is self.env.source or self.scope.is_method or tensor.decided >= len(self.calls):
            return None
        return call

    @property
    def operands(self) -> tuple[Value, ...]:
        """Receiver and arguments, containers taken apart."""
        found: list[Value] = []
        for value in (self.receiver, *self.arguments, *self.keywords.values()):
            found.extend(value.values if isinstance(value, Items) else (value,))
        return tuple(found)

    @property
    def region(self) -> Opened | None:
        """The autocast region that decides about the operation."""
        return deciding(self.regions)


def deciding(regions: tuple[Opened, ...]) -> Opened | None:
    """The innermost autocast region; one that is off for another device than the region around it switches nothing
    off."""
    found = [r for r in regions if r.kind == "autocast"]
    while len(found) > 1 and found[-1].enabled is False and _apart(found[-1].device, found[-2].device):
        found.pop()
    return found[-1] if found else None


def _apart(first: str | None, second: str | None) -> bool:
    return first is not None and second is not None and first != second


def is_network(value: Value) -> bool:
    """Whether a value is known to be a network of the project or of torch."""
    if isinstance(value, Own):
        return value.made is not None and "forward" in value.scope.children
    return (isinstance(value, Distant) or (isinstance(value, Library) and value.dotted.startswith("torch.nn."))) and (
        value.made is not None
    )


def is_object(value: Value) -> bool:
    """Whether a value may be a network: something passed in, or an object that was made."""
    return (
        (isinstance(value, Unknown) and bool(value.key))
        or (isinstance(value, (Own, Distant)) and value.made is not None)
        or (isinstance(value, Library) and value.made is not None)
    )


def is_harmless(value: Value) -> bool:
    return value is NOTHING or isinstance(value, (Library, Text))


def dtype_name(value: Value) -> str | None:
    """ "float16", "bfloat16", "float32" or "float64" where a value is that dtype, None where it is not known to be."""
    name = value.dotted if isinstance(value, Library) else ""
    if isinstance(value, Text) and value.value.startswith("torch."):
        # `x.type("torch.cuda.FloatTensor")`
        name = value.value.replace(".cuda.", ".")
    if name:
        if name in library.FLOAT16:
            return "float16"
        if name in library.BFLOAT16:
            return "bfloat16"
        if name in ("torch.float64", "torch.double"):
            return "float64"
        return "float32" if name in library.FLOAT32 else None
    if isinstance(value, DtypeOf) and isinstance(value.tensor, Tensor):
        return value.tensor.dtype
    return None


def number(value: float) -> Number:
    """A number that is written there; one that no float holds is only known to be a number."""
    try:
        return Number(float(value))
    except OverflowError:
        return Number()


def truth(value: Value, default: bool) -> bool | None:
    """A flag that is written there, the default where none is given, None where it is decided at run time."""
    if value is None:
        return default
    if isinstance(value, Library) and value.dotted in ("const.True", "const.False", "const.None"):
        return {"const.True": True, "const.False": False}.get(value.dotted, default)
    return None


def joined(values: list[Value]) -> Value:
    """What is known of a value that is one of several."""
    if not values:
        return NOTHING
    first = values[0]
    for other in values[1:]:
        if isinstance(first, Tensor) and isinstance(other, Tensor) and first.dtype == other.dtype:
            first = Tensor(first.dtype, first.sure and other.sure, max(first.born, other.born))
        elif first != other:
            return NOTHING
    return first


def ends(block: list[Stmt]) -> bool:
    """Whether a block ends with a jump."""
    return bool(block) and isinstance(block[-1], Jump)


_ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
}


def fold(op: str, left: Value, right: Value) -> Number | None:
    """The result of an operator on two numbers, None where one of the operands is none."""
    if not isinstance(left, Number) or not isinstance(right, Number):
        return None
    if left.value is None or right.value is None:
        return Number()
    try:
        return Number(float(_ARITHMETIC[op](left.value, right.value)))
    except (ArithmeticError, TypeError, ValueError):
        return Number()


def elements(value: Value) -> tuple[Value, ...]:
    """The elements of a list, or the layers of a list of layers, as far as they are known."""
    if isinstance(value, Library):
        made = value.made or ()
        listed = made[0] if made and value.last in _LISTS_OF_LAYERS and isinstance(made[0], Items) else None
        return made if listed is None else listed.values
    return value.values if isinstance(value, Items) else ()
