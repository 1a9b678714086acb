"""Classes of the project: their lineage, methods, properties, and attributes that some method binds."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from amplint import library
from amplint.execution.transplants import transplant, transplanted
from amplint.machine import Machine, Outcome
from amplint.program import (
    Assign,
    Attr,
    Call,
    Name,
    Scope,
    Seq,
    path_of,
)
from amplint.program import (
    Const as ConstE,
)
from amplint.rule import Site
from amplint.values import (
    NONE,
    AttrOf,
    Class,
    Const,
    Ext,
    Func,
    Instance,
    Sequence,
    Sym,
    Value,
    interesting,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amplint.execution.executor import Executor


def _makes_record(decorator: str) -> bool:
    """Whether a decorator gives a class an `__init__` of its fields."""
    return decorator.rpartition(".")[2] in ("dataclass", "define", "frozen", "mutable", "attrs", "s")


class Classes:
    """Classes of the project of one executor."""

    def __init__(self, executor: Executor) -> None:
        self.x = executor
        self._materialising: set[tuple[Value, str]] = set()
        self._materialised: dict[tuple[Value, str], tuple[Value | None, dict[Any, Any]]] = {}

    def lineage(self, cls: Class, state: Machine) -> tuple[list[Class], list[str]]:
        """The classes of the project that `cls` inherits from, itself first, and the library bases' names."""
        key = ("lineage", cls.scope)
        cached = self.x.known.get(key)
        if cached is not None:
            return cached  # type: ignore[no-any-return]
        classes: list[Class] = [cls]
        externals: list[str] = []
        self.x.known[key] = (classes, externals)
        scratch = state.clone()
        self.x.modules.enter_globals(cls.env, scratch)
        scratch.stack = (cls.parts[2] if cls.parts[2] in scratch.frames else -cls.env.number,)
        for base in cls.scope.bases:
            value = self.x.expressions.value(base, scratch)
            if isinstance(value, Class) and value.scope is not cls.scope:
                inner, outside = self.lineage(value, state)
                classes.extend(c for c in inner if c not in classes)
                externals.extend(outside)
            elif isinstance(value, Ext):
                externals.append(value.dotted)
            else:
                externals.append("?")
        return classes, externals

    def fields(self, cls: Class, state: Machine) -> list[str]:
        """The names of the positional arguments of a dataclass or a named tuple, those of its bases first."""
        lineage, libraries = self.lineage(cls, state)
        records = [owner for owner in lineage if any(map(_makes_record, self._names_of_decorators(owner.scope)))]
        if not records and not any(name.endswith("NamedTuple") for name in libraries):
            return []
        return list(dict.fromkeys(name for owner in reversed(lineage) for name in owner.scope.fields))

    def fields_of_tuple(self, instance: Instance, state: Machine) -> tuple[Value, ...] | None:
        """The elements of an object that is a named tuple, None of any other."""
        if not any(name.endswith("NamedTuple") for name in self.lineage(instance.cls, state)[1]):
            return None
        return tuple(self.x.expressions.attribute(instance, name, state) for name in self.fields(instance.cls, state))

    @staticmethod
    def _names_of_decorators(scope: Scope) -> Iterator[str]:
        made = {stmt.result: path_of(stmt.func) for stmt in scope.prelude if isinstance(stmt, Call)}
        for decorator in scope.decorators:
            path = path_of(decorator)
            yield made.get(path, path)

    def method(self, cls: Class, name: str, state: Machine) -> tuple[Class, Scope] | None:
        """The method that an attribute of an object of `cls` names, with the class that defines it."""
        for candidate in self.lineage(cls, state)[0]:
            scope = candidate.scope.children.get(name)
            if scope is not None and scope.kind == "function":
                return candidate, scope
        return None

    def assign_property(self, base: Value, name: str, value: Value, site: Site, state: Machine) -> list[Outcome] | None:
        """Assign to a property of an object of the project: call its setter. None where it is no such property."""
        if not isinstance(base, Instance):
            return None
        found = self.method(base.cls, f"{name}.setter", state)
        if found is None:
            return None
        owner, scope = found
        setter = Func(owner.env, scope, owner.parts[2], base)
        if self.x.calls.too_deep(setter, state):
            return [(state, None)]
        for attribute, methods in owner.scope.bound_attributes.items():
            if f"{name}.setter" in methods:
                # in case the setter says nothing of mixed precision and is not executed
                state.heap.pop((base, attribute), None)
        outcomes = self.x.calls.invoke(setter, [value], {}, site, state, None)
        return [(after, signal) for after, _, signal in outcomes]

    def is_module_class(self, cls: Class, state: Machine) -> bool:
        """Whether objects of the class are torch modules, as far as the names of its bases tell."""
        return any(
            b.endswith(("Module", "PreTrainedModel")) or library.role(b) == "module"
            for b in self.lineage(cls, state)[1]
        )

    def instance_attribute(self, base: Instance, name: str, state: Machine) -> Value:
        """An attribute of an object of the project: a method, a property, or what some method binds."""
        found = self.method(base.cls, name, state)
        if found is not None:
            owner, scope = found
            func = Func(owner.env, scope, owner.parts[2], base)
            kinds = [self.x.effects.contexts.decorator_kind(d) for d in self.x.calls.decorators(func, state)]
            if "property" in kinds:
                return self._property(func, state)
            if "staticmethod" in kinds:
                return Func(owner.env, scope, owner.parts[2], None)
            if "classmethod" in kinds:
                return Func(owner.env, scope, owner.parts[2], base.cls)
            return func
        made = self.materialise(base, name, state)
        if made is not None:
            return made
        shared = self.class_attribute(base.cls, name, state)
        if shared is None or (isinstance(shared, Const) and base.is_given):
            # what a field starts with says nothing of an object that somebody else has made
            return AttrOf(base, name)
        if isinstance(shared, Func) and shared.self is None:
            # a function that a class body binds is a method
            return Func(shared.env, shared.scope, shared.frame, base)
        return shared

    def _property(self, func: Func, state: Machine) -> Value:
        if self.x.calls.too_deep(func, state):
            return AttrOf(func.self, func.scope.name)
        scratch = state.clone()
        results = self._quietly_run(func, scratch)
        values = {value for _, value in results}
        if len(values) == 1:
            value = values.pop()
            for after, _ in results[:1]:
                for slot, held in after.heap.items():
                    state.heap.setdefault(slot, held)
            return value
        return AttrOf(func.self, func.scope.name)

    def _quietly_run(self, func: Func, state: Machine) -> list[tuple[Machine, Value]]:
        out = self.x.quietly(lambda: self.x.calls.run(func, [], {}, None, state))
        return [(after, value) for after, value, signal in out if signal is None]  # type: ignore[misc]

    def class_attribute(self, cls: Class, name: str, state: Machine) -> Value | None:
        """An attribute that a class body binds, None where no class of the lineage does."""
        for candidate in self.lineage(cls, state)[0]:
            for stmt in candidate.scope.body:
                if isinstance(stmt, Assign) and isinstance(stmt.target, Name) and stmt.target.id == name:
                    if isinstance(stmt.value, ConstE):
                        # an object may override it; only its being there is certain
                        return Const.of(stmt.value.value) if stmt.value.value is not None else None
                    items = stmt.value.items if isinstance(stmt.value, Seq) else (stmt.value,)
                    if all(isinstance(item, (ConstE, Attr, Name)) for item in items):
                        if any(isinstance(item, Name) and item.id.startswith("%") for item in items):
                            return self._made_in_body(candidate, name, state)
                        scratch = state.clone()
                        self.x.modules.enter_globals(candidate.env, scratch)
                        scratch.stack = (-candidate.env.number,)
                        values = [self.x.expressions.value(item, scratch) for item in items]
                        return Sequence(*values) if isinstance(stmt.value, Seq) else values[0]
        return None

    def _made_in_body(self, cls: Class, name: str, state: Machine) -> Value | None:
        """What a class body makes by a call: it is executed once, silently."""
        key = ("class body", cls.scope)
        if key not in self.x.known:
            self.x.known[key] = {}, {}, {}
            scratch = state.clone()
            self.x.modules.enter_globals(cls.env, scratch)
            number = scratch.next_frame
            scratch.next_frame += 1
            scratch.links[number] = (cls.env, -cls.env.number)
            scratch.frames[number] = {}
            scratch.stack = (number,)
            out = self.x.quietly(lambda: self.x.block(cls.env.pruned(cls.scope), scratch))
            if out:
                after = out[0][0]
                body = after.frames.pop(number)
                values, frames = transplanted(tuple(body.values()), after, self.x.transplants)
                made_heap = {slot: held for slot, held in after.heap.items() if slot not in state.heap}
                self.x.known[key] = dict(zip(body, values, strict=True)), frames, made_heap
        frame, frames, heap = self.x.known[key]
        made: Value | None = frame.get(name)
        if made is not None:
            transplant(frames, state)
            for slot, held in heap.items():
                state.heap.setdefault(slot, held)
        return made

    def materialise(self, instance: Instance, name: str, state: Machine) -> Value | None:
        """An attribute that no executed method has bound: run, silently, the method that binds it."""
        key = (instance, name)
        if key in self._materialising or len(self._materialising) > 2:
            return None
        known = self._materialised.get(key)
        if known is not None:
            value, extra = known
            if value is not None:
                state.heap[key] = value
                for slot, held in extra.items():
                    state.heap.setdefault(slot, held)
            return value
        self._materialising.add(key)
        self._materialised[key] = (None, {})
        try:
            for cls in self.lineage(instance.cls, state)[0]:
                for method in cls.scope.bound_attributes.get(name, ()):
                    scope = cls.scope.children.get(method)
                    if scope is None or scope not in cls.env.relevant:
                        continue
                    if any(state.frames[n].get("#scope") is Sym("scope", scope) for n in state.stack):
                        continue
                    bound = self._bound_by(Func(cls.env, scope, cls.parts[2], instance), key, state)
                    bound = bound or self._constructed_in(scope, cls, name, state)
                    if bound is None:
                        continue
                    value, heap = bound
                    extra = {slot: held for slot, held in heap.items() if slot[0] is value}
                    self._materialised[key] = (value, extra)
                    state.heap[key] = value
                    for slot, held in extra.items():
                        state.heap.setdefault(slot, held)
                    return value
        finally:
            self._materialising.discard(key)
        return None

    def _bound_by(self, func: Func, key: tuple[Value, str], state: Machine) -> tuple[Value, dict[Any, Any]] | None:
        """The object that running a method binds to an attribute, with the heap in which it was made."""
        for after, _ in self._quietly_run(func, state.clone()):
            held = after.heap.get(key)
            if held is not None and held is not NONE and interesting(held):
                return held, after.heap
        return None

    def _constructed_in(
        self, method: Scope, cls: Class, name: str, state: Machine
    ) -> tuple[Value, dict[Any, Any]] | None:
        """The same for a method that is too long to be run: the statement `self.name = SomeClass(...)` by itself, with
        arguments of which nothing is known."""
        calls = {stmt.result: stmt for stmt in method.statements if isinstance(stmt, Call)}
        for stmt in method.statements:
            if (
                not isinstance(stmt, Assign)
                or path_of(stmt.target) != f"self.{name}"
                or not isinstance(stmt.value, Name)
            ):
                continue
            call = calls.get(stmt.value.id)
            if call is None:
                continue
            scratch = state.clone()
            self.x.modules.enter_globals(cls.env, scratch)
            scratch.stack = (-cls.env.number,)
            made = self.x.expressions.value(call.func, scratch)
            if isinstance(made, Class):
                site, origin = Site(cls.env.source, call.node), ("made", id(call.node))
                results = self.x.quietly(partial(self.x.calls.instantiate, made, [], {}, site, scratch, origin))
                for after, value, signal in results:  # type: ignore[misc]
                    if signal is None:
                        return value, after.heap
        return None
