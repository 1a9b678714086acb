"""What the project's other modules define, as far as it matters for dtypes; a module is read when it is called."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from amplint.precision.values import NOTHING, Distant, Module, Own, Value, number
from amplint.program import Import

if TYPE_CHECKING:
    from amplint.project import ModuleEnv

_CONTEXT = re.compile(rb"\byield\b|\breturn\b[^\n]{0,200}(?:autocast|amp\b)|__enter__")
_APPLY = re.compile(rb"(\w+)\.apply")
#: other modules that the walk of one reads
_MAX_MODULES = 24


class Elsewhere:
    """Looks up definitions of other modules for the walk of one."""

    def __init__(self, env: ModuleEnv) -> None:
        self._env = env
        self._project = env.project
        self._read: dict[Path, ModuleEnv | None] = {}

    def starred(self, importer: ModuleEnv, name: str) -> Value | None:
        """What the star imports of a module bring in under a name."""
        if importer.file is None:
            return None
        for stmt in importer.imports:
            if stmt.member != "*":
                continue
            for file in self._project.candidates(importer.file, stmt.dotted, stmt.level):
                found = self.member(file, name)
                if found is not None:
                    return found
        return None

    def imported(self, importer: ModuleEnv, stmt: Import) -> Value | None:
        """What an import binds, None where that is not the project's."""
        if importer.file is None or stmt.member == "*":
            return None
        for file in self._project.candidates(importer.file, stmt.dotted, stmt.level):
            return Module(file) if stmt.member is None else self.member(file, stmt.member)
        if stmt.member is not None:
            for file in self._project.candidates(importer.file, f"{stmt.dotted}.{stmt.member}".strip("."), stmt.level):
                return Module(file)
        return None

    def member(self, file: Path, name: str) -> Value | None:
        """What a module offers under a name: a definition, a number, the `apply` of a function."""
        home = self._project.definition(file, name)
        if home is not None:
            assigned = self._project.outline(home[0]).assignments.get(home[1])
            return self._assigned(*home, assigned) if assigned is not None else Distant(*home)
        for inner in self._project.candidates(file, name, 1) if file.name == "__init__.py" else ():
            return Module(inner)
        return None

    def _assigned(self, file: Path, name: str, text: bytes) -> Value:
        if not self._project.outline(file).is_bound_once(name):
            return NOTHING
        applied = _APPLY.fullmatch(text.strip())
        if applied is not None and applied[1].decode() in self._project.outline(file).definitions:
            return Distant(file, applied[1].decode(), attribute="apply")
        try:
            return number(float(text))
        except ValueError:
            return NOTHING

    def computes(self, value: Distant) -> bool:
        """Whether a definition, or something that it mentions, is one that a rule about dtypes may judge."""
        return self._project.computes(value.file, value.name)

    def makes_networks(self, value: Distant) -> bool:
        """Whether a function of another module mentions a class of networks, as a factory does."""
        return not self.is_class(value) and self._project.mentions_network(value.file, value.name)

    def opens_regions(self, value: Distant) -> bool:
        """Whether a definition, or one of its module that it mentions, opens regions or casts to 16 bit."""
        return value.name in self._project.outline(value.file).casting

    def words_in(self, value: Distant) -> frozenset[str]:
        """The words of a definition."""
        return self._project.outline(value.file).words_of_definitions.get(value.name, frozenset())

    def is_class(self, value: Distant) -> bool:
        """Whether it is a class."""
        return self._project.outline(value.file).is_class(value.name)

    def is_context(self, value: Distant) -> bool:
        """Whether a definition hands out a region, or is one."""
        parts = self._project.outline(value.file).definitions.get(value.name, ())
        return any(_CONTEXT.search(part.text) for part in parts)

    def is_network(self, value: Distant) -> bool:
        """Whether a class looks like a network."""
        return self._project.outline(value.file).has_forward(value.name)

    def read(self, value: Distant) -> Own | None:
        """The definition itself; None where its module cannot be read, or too many were."""
        if value.file not in self._read:
            full = len(self._read) >= _MAX_MODULES
            self._read[value.file] = None if full else self._project.load(self._env, value.file)
        env = self._read[value.file]
        scope = env.program.body.children.get(value.name) if env is not None else None
        return Own(env, scope, made=value.made) if env is not None and scope is not None else None
