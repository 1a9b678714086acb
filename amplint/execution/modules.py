"""Other modules of the project: what imports bind, and the globals of a module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amplint import library
from amplint.machine import Machine
from amplint.program import (
    Import,
)
from amplint.project import MAX_MODULES
from amplint.values import (
    Class,
    Const,
    Ext,
    Func,
    Sequence,
    Sym,
    Value,
)

if TYPE_CHECKING:
    from amplint.execution.executor import Executor
    from amplint.project import ModuleEnv


#: constants in a list or a dict of a module that are kept in mind: more are a table, and no options of a call
MAX_SETTINGS = 8


class Modules:
    """Other modules of the project of one executor."""

    def __init__(self, executor: Executor) -> None:
        self.x = executor

    def imported(self, env: ModuleEnv, stmt: Import, state: Machine, depth: int = 0) -> Value:
        """What an import binds: a value of the project's module, or a library name."""
        full = stmt.full_name
        if stmt.level == 0 and library.role(full) is not None:
            return Ext(full)
        if stmt.member is not None:
            module = self.module(env, stmt.dotted, stmt.level)
            if module is not None:
                found = self.module_attribute(module, stmt.member, state, depth + 1)
                if found is not None:
                    return found
            sub = self.module(env, full, stmt.level)
            if sub is not None:
                return Sym("module", sub)
        elif stmt.level == 0:
            module = self.module(env, stmt.dotted, 0)
            if module is not None:
                return Sym("module", module)
        if stmt.level:
            return Sym("import", stmt.level, full)
        return Ext(full)

    def module(self, importer: ModuleEnv, dotted: str, level: int) -> ModuleEnv | None:
        """A module of the project, as long as this analysis has not looked into too many."""
        entered = self.x.entered
        among = (importer, *entered) if len(entered) >= MAX_MODULES else None
        module = self.x.project.resolve(importer, dotted, level, among)
        if module is None or module is importer:
            return None
        if module not in entered:
            entered.append(module)
        return module

    def module_attribute(self, module: ModuleEnv, name: str, state: Machine, depth: int = 0) -> Value | None:
        """A global of another module of the project, None where it has none of that name."""
        if depth > 6:
            return None
        scope = module.program.body.children.get(name)
        if scope is not None:
            kind = Func if scope.kind == "function" else Class
            return Func(module, scope, -module.number, None) if kind is Func else Class(module, scope, -module.number)
        for stmt in module.imports:
            if stmt.name == name and stmt.member != "*":
                return self.imported(module, stmt, state, depth + 1)
        starred = self.starred(module, name, state, depth)
        if starred is not None:
            return starred
        if name in module.assigned:
            self.enter_globals(module, state)
            return state.frames[-module.number].get(name)
        return None

    def starred(self, module: ModuleEnv, name: str, state: Machine, depth: int = 0) -> Value | None:
        """A name that a star import brings in; only files that hold the word are read."""
        for stmt in module.imports:
            if stmt.member == "*" and self.x.project.mentions(module, stmt, name):
                target = self.module(module, stmt.dotted, stmt.level)
                if target is not None:
                    found = self.module_attribute(target, name, state, depth + 1)
                    if found is not None:
                        return found
        return None

    def enter_globals(self, module: ModuleEnv, state: Machine) -> None:
        """Make the globals of a module part of the state; its body is executed once, silently."""
        number = -module.number
        if number in state.frames:
            return
        state.links[number] = (module, None)
        state.frames[number] = {}
        cached = self.x.known.get(module)
        if cached is None:
            self.x.known[module] = cached = ({}, {})
            finals = self.run_silently(module)
            if finals:
                frame, heap = finals[0].frames[number], finals[0].heap
                self.x.known[module] = cached = (frame, worth_keeping(heap))
        frame, heap = cached
        state.frames[number] = dict(frame)
        for slot, value in heap.items():
            state.heap.setdefault(slot, value)

    def run_silently(self, module: ModuleEnv) -> list[Machine]:
        """The states at the end of a module's body, without events and with a budget of its own."""
        state = Machine()
        state.links[-module.number] = (module, None)
        state.frames[-module.number] = {"__name__": Const.of("__imported__")}
        state.stack = (-module.number,)
        return [s for s, _ in self.x.quietly(lambda: self.x.block(module.pruned(module.program.body), state))]


def worth_keeping(heap: dict[Any, Any]) -> dict[Any, Any]:
    """The part of a module's heap that is not a long table of constants."""
    return {
        slot: held
        for slot, held in heap.items()
        if not (isinstance(held, tuple) and len(held) > MAX_SETTINGS and all(_plain(v) for v in held))
    }


def _plain(value: Any) -> bool:
    if isinstance(value, Sequence):
        return all(_plain(v) for v in value.items)
    return isinstance(value, Const)
