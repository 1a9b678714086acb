"""The values that a program in a replay handles: unknowns, functions, classes, objects, and its exceptions.

Nothing here executes anything, and nothing imports torch.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from amplint.verify.plain import MAX_ITEMS


class BudgetSpent(Exception):
    """The replay ran through its number of statements."""


class EnoughSeen(Exception):
    """The planned number of micro-batches has run; a clean end."""


class UserError(Exception):
    """An exception inside the replayed program, with the user's place where it rose.

    `error` is the Python exception or an interpreted instance; `from_torch` tells whether torch's AMP
    code or a clip raised it, which is what makes it evidence. `made_here` is set for what the stand-ins
    may be to blame for.
    """

    def __init__(self, error: object, path: str, line: int, from_torch: bool = False, made_here: bool = False) -> None:
        super().__init__(error)
        self.error = error
        self.path = path
        self.line = line
        self.from_torch = from_torch
        self.made_here = made_here

    @property
    def kind(self) -> str:
        if isinstance(self.error, Unknown):
            return self.error.label
        return self.error.cls.name if isinstance(self.error, Instance) else type(self.error).__name__

    @property
    def text(self) -> str:
        return self.kind if isinstance(self.error, Instance | Unknown) else f"{self.kind}: {self.error}"


#: what runs when a condition is true, and when it is not: first and last line of each; (0, 0) for nothing
Arms = tuple[tuple[int, int], tuple[int, int]]
#: the arm of an assertion that fails
EXCEPTION = (-1, -1)


class LoopBreak(Exception):
    """`break` on its way to its loop."""


class LoopContinue(Exception):
    """`continue` on its way to its loop."""


class Returned(Exception):
    """`return` on its way to its call."""

    def __init__(self, value: object) -> None:
        self.value = value


class Unknown:
    """A value the file does not tell: a parameter, an import, the result of an unknown call.

    `label` is how a reader would name it ("args.clip", "loader"); `tick` numbers the batch it came
    with; `bound` is the stand-in that its use has turned it into.
    """

    __slots__ = ("attrs", "bound", "data", "label", "tick")

    def __init__(self, label: str, tick: int = 0, data: bool = False) -> None:
        self.label = label
        self.tick = tick
        self.data = data
        self.attrs: dict[object, object] = {}
        self.bound: Any = None

    @property
    def name(self) -> str:
        """The last part of the label, which carries the meaning."""
        return self.label.rsplit(".", 1)[-1]

    def child(self, key: object, label: str, data: bool | None = None) -> Any:
        if key not in self.attrs:
            if len(self.attrs) > MAX_ITEMS:
                raise BudgetSpent
            self.attrs[key] = Unknown(label, self.tick, self.data if data is None else data)
        return self.attrs[key]


class Dotted:
    """A name of a library that the world knows, e.g. torch.nn.utils.clip_grad_norm_."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class DeviceOf(Dotted):
    """The device of a tensor or a network: an object, where an autocast region wants a string."""

    __slots__ = ()


class Native:
    """A callable of the interpreter's own, safe for any arguments."""

    __slots__ = ("fn", "name")

    def __init__(self, name: str, fn: Callable[..., object]) -> None:
        self.name = name
        self.fn = fn


class Scope:
    """Variables of one function call or module; unknown names are looked up in the enclosing scopes."""

    __slots__ = ("globals_", "locals_", "names", "outer", "path", "rebinds")

    def __init__(self, outer: Scope | None, path: str) -> None:
        self.names: dict[str, object] = {}
        self.outer = outer
        self.path = path
        self.rebinds: dict[str, Scope] = {}
        self.locals_: frozenset[str] = frozenset()
        self.globals_: Scope = self if outer is None else outer.globals_

    def find(self, name: str) -> Scope | None:
        scope: Scope | None = self.rebinds.get(name, self)
        while scope is not None:
            if name in scope.names:
                return scope
            scope = scope.outer
        return None


class Function:
    """A function of the user's, to be interpreted when called."""

    __slots__ = ("defaults", "generator", "kw_defaults", "manager", "name", "node", "owner", "scope")

    def __init__(
        self,
        node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda,
        scope: Scope,
        defaults: list[object],
        kw_defaults: list[object],
        owner: UserClass | None,
    ) -> None:
        self.node = node
        self.scope = scope
        self.defaults = defaults
        self.kw_defaults = kw_defaults
        self.owner = owner
        self.name = getattr(node, "name", "<lambda>")
        self.generator = not isinstance(node, ast.Lambda) and _has_yield(node)
        self.manager = False


class Bound:
    """A method together with its object."""

    __slots__ = ("function", "receiver")

    def __init__(self, function: object, receiver: object) -> None:
        self.function = function
        self.receiver = receiver


class Wrapped:
    """A function inside a context that is entered anew (the same object) for every call."""

    __slots__ = ("context", "function")

    def __init__(self, function: object, context: object) -> None:
        self.function = function
        self.context = context


class AmpDecorated:
    """A direction of an autograd Function under `custom_fwd` or `custom_bwd`, with the decorator's arguments."""

    __slots__ = ("function", "name", "settings")

    def __init__(self, function: object, name: str, settings: dict[str, object]) -> None:
        self.function = function
        self.name = name
        self.settings = settings


class Partial:
    __slots__ = ("args", "function", "keywords")

    def __init__(self, function: object, args: list[object], keywords: dict[str, object]) -> None:
        self.function = function
        self.args = args
        self.keywords = keywords


class Property:
    """A property of a user's class, with what sets it where something does."""

    __slots__ = ("function", "setter")

    def __init__(self, function: object) -> None:
        self.function = function
        self.setter: object = None


class UserClass:
    """A class of the user's: its namespace and bases, interpreted."""

    __slots__ = ("bases", "fields", "name", "namespace", "node", "path")

    def __init__(self, name: str, bases: list[object], node: ast.ClassDef, path: str) -> None:
        self.name = name
        self.bases = bases
        self.node = node
        self.path = path
        self.namespace: dict[str, object] = {}
        self.fields: list[str] | None = None

    def find(self, name: str) -> object | None:
        if name in self.namespace:
            return self.namespace[name]
        for base in self.bases:
            if isinstance(base, UserClass):
                found = base.find(name)
                if found is not None:
                    return found
        return None

    def is_kind_of(self, other: object) -> bool:
        """Whether this is a class or extends it, however far up."""
        return self is other or any(isinstance(base, UserClass) and base.is_kind_of(other) for base in self.bases)

    def library_base(self) -> str | None:
        """The dotted name of the first library class among its ancestors."""
        for base in self.bases:
            if isinstance(base, Dotted):
                return base.name
            if isinstance(base, UserClass):
                found = base.library_base()
                if found is not None:
                    return found
        return None

    def library_loss(self) -> str | None:
        """The name of the loss of `torch.nn` that the class is derived from."""
        base = self.library_base() or ""
        return base.rpartition(".")[2] if base.startswith("torch.nn.") and base.endswith("Loss") else None


class Instance:
    """An object of a user's class; `native` is the stand-in for a library base, once there is one."""

    __slots__ = ("attrs", "cls", "native")

    def __init__(self, cls: UserClass) -> None:
        self.cls = cls
        self.attrs: dict[str, object] = {}
        self.native: Any = None


class Super:
    __slots__ = ("cls", "receiver")

    def __init__(self, cls: UserClass, receiver: object) -> None:
        self.cls = cls
        self.receiver = receiver


class GeneratorCall:
    """A call of a generator function that has not started yet."""

    __slots__ = ("args", "function", "keywords")

    def __init__(self, function: object, args: list[object], keywords: dict[str, object]) -> None:
        self.function = function
        self.args = args
        self.keywords = keywords


class ModuleValue:
    """A project file, seen from another one."""

    __slots__ = ("name", "scope")

    def __init__(self, name: str, scope: Scope) -> None:
        self.name = name
        self.scope = scope


def _has_yield(node: ast.AST) -> bool:
    stack = list(ast.iter_child_nodes(node))
    while stack:
        child = stack.pop()
        if isinstance(child, ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            stack.extend(ast.iter_child_nodes(child))
    return False
