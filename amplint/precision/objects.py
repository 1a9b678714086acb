"""Instances of the project's classes: their attributes and methods, and what they inherit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.precision.dtypes import Dtypes
from amplint.precision.elsewhere import Elsewhere
from amplint.precision.values import NOTHING, Bases, Distant, Fact, Frame, Own, Unknown, Value
from amplint.program import Assign, Const, Expr, Name, Op, Scope

if TYPE_CHECKING:
    import libcst as cst

    from amplint.project import ModuleEnv


class Objects(Dtypes, ABC):
    """What is known of instances where a walk meets them."""

    def __init__(self, env: ModuleEnv) -> None:
        super().__init__()
        #: the module in which the walk is
        self.env = env
        self.elsewhere = Elsewhere(env)
        self.found: list[Fact] = []
        self.stack: list[Scope] = []
        #: the objects whose methods are on the stack
        self.holders: list[Own | None] = []
        self.attributes: dict[Own, Frame] = {}

    @abstractmethod
    def value(self, expr: Expr | None, frame: Frame) -> Value:
        """What an expression stands for."""

    @abstractmethod
    def run(
        self,
        func: Own,
        positional: tuple[Value, ...],
        keywords: dict[str, Value],
        call: cst.CSTNode | None = None,
        caller: Frame | None = None,
    ) -> Value:
        """Walk a function with these arguments; its result. A method that is called on `self` leaves what it sets in
        the frame of its caller."""

    def member(self, holder: Own, name: str) -> Value:
        """An attribute of an instance: a method, what `__init__` sets, what a class or its bases hold."""
        method = holder.scope.children.get(name)
        if method is not None and method.kind == "function":
            return Own(holder.env, method, holder)
        found = self._attributes(holder).get(name, NOTHING)
        if found is not NOTHING:
            return found
        cls = Own(holder.env, holder.scope)
        found = self._constants(cls).get(name, NOTHING)
        if found is NOTHING:
            found = self.inherited(Bases(cls, holder), name)
        if found is not NOTHING:
            return found
        # of a wrapper, which is as good as what it wraps
        return holder if name == "module" else Unknown(("attr", holder.scope.qualname, name))

    def inherited(self, bases: Bases, name: str) -> Value:
        """A method or class variable that comes from a base class."""
        for cls in self._ancestry(bases.cls):
            method = cls.scope.children.get(name)
            if method is not None and method.kind == "function":
                return Own(cls.env, method, bases.holder)
            found = self._constants(cls).get(name, NOTHING)
            if found is not NOTHING:
                return found
        return NOTHING

    def _ancestry(self, cls: Own) -> Iterator[Own]:
        """The classes behind one, the nearest first."""
        seen: list[Scope] = [cls.scope]
        queue = list(self._bases(cls))
        while queue:
            base = queue.pop(0)
            if base.scope not in seen:
                seen.append(base.scope)
                yield base
                queue.extend(self._bases(base))

    def _bases(self, cls: Own) -> Iterator[Own]:
        """The base classes that the project defines; those in other modules are read."""
        for base in cls.scope.bases:
            scope = cls.env.program.body.children.get(base.id) if isinstance(base, Name) else None
            if scope is not None:
                yield Own(cls.env, scope)
                continue
            env, stack = self.env, self.stack
            self.env, self.stack = cls.env, [cls.env.program.body]
            found = self.value(base, {})
            self.env, self.stack = env, stack
            parent = self.elsewhere.read(found) if isinstance(found, Distant) else None
            if parent is not None:
                yield parent

    def _attributes(self, holder: Own) -> Frame:
        """The attributes of an instance as its `__init__` leaves them."""
        known = self.attributes.get(holder)
        if known is not None or holder.made is None:
            return known or {}
        init = holder.scope.children.get("__init__")
        found = Own(holder.env, init, holder) if init is not None else self.inherited(Bases(holder, holder), "__init__")
        if not isinstance(found, Own) or found.scope in self.stack:
            return {}
        saved, self.regions = self.regions, ()
        mark, stack = len(self.found), self.stack
        self.stack = stack[:1]
        self.run(found, holder.made.positional, dict(holder.made.keywords))
        self.stack, self.regions = stack, saved
        del self.found[mark:]
        return self.attributes.setdefault(holder, {})

    def forget(self, holder: Own, name: str) -> None:
        """An attribute is set from outside; from then on it may be anything."""
        unknown = Unknown(("attr", holder.scope.qualname, name))
        self.attributes[holder] = {**self._attributes(holder), name: unknown}

    def _constants(self, cls: Own) -> Frame:
        """The variables of a class."""
        return {
            stmt.target.id: self.value(stmt.value, {})
            for stmt in cls.scope.body
            if isinstance(stmt, Assign) and isinstance(stmt.target, Name) and isinstance(stmt.value, (Const, Op))
        }

    @staticmethod
    def of_class(cls: Own, method: Scope) -> Value:
        """A method that is taken from its class."""
        kinds = {d.id for d in method.decorators if isinstance(d, Name)}
        if "classmethod" in kinds:
            return Own(cls.env, method, cls)
        return Own(cls.env, method) if method.kind == "function" else NOTHING

    def parents(self) -> Value:
        """What `super()` is in the method that is walked."""
        holder, cls = (self.holders[-1] if self.holders else None), self.stack[-1].parent
        return Bases(Own(self.env, cls), holder) if holder is not None and cls is not None else NOTHING
