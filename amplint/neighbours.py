"""Files of a project that import one another, found by their text alone: nothing is parsed for it.

A step, a clip or a save often stands in a helper that knows nothing of the scaler; only the file that calls the
helper does. What is wrong in a helper is therefore looked for from its callers as well, and a file that holds half of
a rule's needles is read where the files that it imports hold the other half.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from amplint.outline import VOCABULARY, Outline, words_in

if TYPE_CHECKING:
    from amplint.project import Project

#: callers of one file that are looked at, the nearest first
MAX_CALLERS = 8
#: calls from file to file on the way to a helper
MAX_HOPS = 3

_IMPORT = re.compile(
    rb"[ \t]*(?:from[ \t]+(?P<dots>\.*)(?P<module>[\w.]*)[ \t]+import[ \t]+(?P<names>\([^)]*\)|[^\n#]*)"
    rb"|import[ \t]+(?P<modules>[^\n#;]*))"
)
_NAME = re.compile(rb"(\*|\w+)(?:\s+as\s+(\w+))?")
#: without one of these words a file is on the way to a helper at most; no rule begins there
_STARTS = re.compile(VOCABULARY.pattern + rb"|optim|Trainer\(|TrainingArguments|Accelerator|Fabric")
#: what a file that trains with mixed precision holds
_MIXES = re.compile(rb"[sS]caler|autocast")
#: the base classes in the head of a class
_BASES = re.compile(rb"^[ \t]*class +\w+\(([^)]*)\)", re.MULTILINE)
_LOOP = re.compile(rb"^[ \t]*(?:async )?(?:for|while)\b", re.MULTILINE)
_DOTTED = re.compile(rb"([\w.]+)(?:\s+as\s+\w+)?")


class _Import(NamedTuple):
    """One import in a file: the module, and the names taken from it with what they are called here (none where the
    module itself is imported)."""

    importer: Path
    level: int
    module: str
    named: frozenset[tuple[str, str]]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.named)


class _User(NamedTuple):
    """A file that imports: the words in it, and those of them that its classes are derived from."""

    words: frozenset[str]
    bases: frozenset[str]


#: the imports of files as they were when last read; an editor's runs follow each other closely
_known_imports: dict[Path, tuple[tuple[int, int], list[_Import]]] = {}


class Neighbours:
    """Who imports whom among the files that a run over the whole project would look at.

    `files` lists them when the first question is asked; `contents` stands in for what is on disk.
    """

    def __init__(self, project: Project, files: Callable[[], Iterable[Path]], contents: Mapping[Path, bytes]) -> None:
        self._project = project
        self._files = files
        self._contents = contents
        self._callers: dict[Path, tuple[Path, ...]] = {}

    def callers(self, file: Path) -> tuple[Path, ...]:
        """The files that use a function or class of `file` in which something can be wrong: directly, through what a
        package re-exports, or through a few other files. At most `MAX_CALLERS` of those that train something, whatever
        else is being checked."""
        known = self._callers.get(file)
        if known is None:
            known = self._callers[file] = tuple(self._find_callers(file))
        return known

    def drives(self, caller: Path, file: Path) -> bool:
        """Whether a file calls methods of another one's classes in an order of its own, or does so with a file that
        calls into that one; or makes objects of such classes and brings them together with what a third file has."""
        if any(self._orders(caller, called) for called in (file, *self.callers(file)) if called != caller):
            return True
        return self.assembles(caller, file)

    def assemblers(self, file: Path) -> Iterator[Path]:
        """The callers of a file that assemble its objects with those of others."""
        if self._outline(file).speaking_classes:
            yield from (caller for caller in self.callers(file) if self.assembles(caller, file))

    def assembles(self, caller: Path, file: Path) -> bool:
        """Whether a file makes objects of another one's classes and uses a third one that deals with AMP: it may hand
        them over, callbacks to a trainer, and then neither of the two others knows of the other."""
        text = self.text(caller)
        if not any(b"%b(" % name.encode() in text for name in self._outline(file).speaking_classes):
            return False
        words = words_in(text)
        for statement in self._statements(caller):
            for module in self._resolved(statement):
                if module not in (file, caller):
                    outline, taken = self._outline(module), statement.names or words
                    if not _MIXES.search(outline.text):
                        continue
                    if not outline.protocol.isdisjoint(words if "*" in taken else taken & words):
                        return True
        return False

    def _orders(self, caller: Path, file: Path) -> bool:
        """Whether a file calls several methods of another one's classes, or one in a loop."""
        outline, text = self._project.outline(file), self._outline(caller).text
        methods = frozenset().union(*map(outline.methods, outline.definitions))
        called = [name for name in sorted(methods) if b".%b(" % name.encode() in text]
        return len(called) > 1 or (bool(called) and _LOOP.search(text) is not None)

    def reached(self, file: Path) -> Iterator[bytes]:
        """The text of what `file` uses of the project's other files: the definitions whose names it takes or mentions,
        from where a package re-exports them."""
        text = self.text(file)
        user = _User(words_in(text), frozenset().union(*map(words_in, _BASES.findall(text))))
        for statement in self._statements(file):
            yield from self._behind(statement, user.words & statement.names, user, 0)

    def computes(self, file: Path) -> bool:
        """Whether something that `file` mentions of other modules is one in which a rule about dtypes may find
        something, as far as the imports of that and of its own imports lead."""
        words = words_in(self.text(file))
        for statement in self._statements(file):
            for name in sorted(words & statement.names):
                for module in self._resolved(statement):
                    home = self._project.definition(module, name)
                    if home is not None and self._project.computes(*home):
                        return True
                for module in self._resolved(statement, name):
                    if self._mentions_computing(module, words):
                        return True
            whole = not statement.names or "*" in statement.names
            if whole and any(self._mentions_computing(m, words) for m in self._resolved(statement)):
                return True
        return False

    def _mentions_computing(self, module: Path, words: frozenset[str]) -> bool:
        mentioned = sorted(words & self._project.outline(module).definitions.keys())
        return any(self._project.computes(module, name) for name in mentioned)

    def _behind(self, statement: _Import, names: frozenset[str], user: _User, hops: int) -> Iterator[bytes]:
        """The text behind these names of an import; of a module as a whole, behind those that the user mentions."""
        for name in sorted(names):
            for module in self._resolved(statement, name):
                yield from self._outline(module).behind(user.words, *user)
        wanted = names or user.words
        for module in self._resolved(statement):
            outline = self._outline(module)
            yield from outline.behind(wanted, *user)
            if hops == MAX_HOPS:
                continue
            bases = frozenset().union(*(outline.bases(name) for name in wanted & user.bases))
            for inner in self._statements(module) if bases else ():
                # what a base class inherits from another file
                inherited = frozenset(name for name, here in inner.named if here in bases)
                if inherited:
                    yield from self._behind(inner, inherited, _User(user.words, user.bases | inherited), hops + 1)
            if module.name == "__init__.py":
                for inner in self._statements(module):
                    called = frozenset(name for name, here in inner.named if here in wanted)
                    taken = wanted if "*" in inner.names else called
                    if taken:
                        yield from self._behind(inner, taken, user, hops + 1)

    def _outline(self, file: Path) -> Outline:
        return Outline(self._contents[file]) if file in self._contents else self._project.outline(file)

    def text(self, file: Path) -> bytes:
        """A file's bytes; nothing where it cannot be read."""
        data = self._contents.get(file)
        if data is not None:
            return data
        try:
            return file.read_bytes()
        except OSError:
            return b""

    def _find_callers(self, file: Path) -> list[Path]:
        distance: dict[Path, int] = {}
        front = [(file, self._outline(file).answerable, 0)]
        visited = {file}
        while front:
            target, names, hops = front.pop(0)
            if not names:
                continue
            for importer, used in self._importers(target, names):
                if importer in visited:
                    continue
                visited.add(importer)
                if importer.name == "__init__.py":
                    front.append((importer, used | self._outline(importer).mentioning(used), hops))
                    continue
                outline = self._outline(importer)
                if _STARTS.search(outline.text):
                    distance[importer] = hops + 1
                if hops + 1 < MAX_HOPS:
                    front.append((importer, outline.answerable | used | outline.mentioning(used), hops + 1))

        def nearness(caller: Path) -> tuple[int, int, str]:
            apart = len(Path(os.path.relpath(caller, file.parent)).parts)
            return distance[caller], apart, caller.as_posix()

        return sorted(distance, key=nearness)[:MAX_CALLERS]

    def _importers(self, target: Path, names: frozenset[str]) -> Iterator[tuple[Path, frozenset[str]]]:
        """The files that import some of the names of `target` or the module itself, with the names they use."""
        package = target.name == "__init__.py"
        word = target.parent.name if package else target.stem
        found: dict[Path, frozenset[str]] = {}
        for statement in (*self._index.get(word, ()), *(self._index.get("", ()) if package else ())):
            if statement.importer == target:
                continue
            used: frozenset[str] = frozenset()
            if statement.module.rpartition(".")[2] in (word, "") and target in self._resolved(statement):
                taken = frozenset(here for name, here in statement.named if name in names)
                used = names if "*" in statement.names else taken
                if not statement.names:
                    used = self._mentioned(statement.importer, names)
            if not used and word in statement.names and target in self._resolved(statement, word):
                used = self._mentioned(statement.importer, names)
            if used:
                found[statement.importer] = found.get(statement.importer, frozenset()) | used
        yield from sorted(found.items())

    def _mentioned(self, importer: Path, names: frozenset[str]) -> frozenset[str]:
        text = self.text(importer)
        return frozenset(name for name in names if b"." + name.encode() in text)

    def _resolved(self, statement: _Import, member: str | None = None) -> tuple[Path, ...]:
        dotted = statement.module if member is None else f"{statement.module}.{member}".strip(".")
        return tuple(self._project.candidates(statement.importer, dotted, statement.level))

    def _statements(self, file: Path) -> list[_Import]:
        if file in self._contents:
            return self._parsed(file)
        try:
            status = os.stat(file)
        except OSError:
            return []
        stamp = (status.st_mtime_ns, status.st_size)
        known = _known_imports.get(file)
        if known is None or known[0] != stamp:
            known = _known_imports[file] = (stamp, self._parsed(file))
        return known[1]

    def _parsed(self, file: Path) -> list[_Import]:
        found: list[_Import] = []
        for match in _import_lines(self.text(file)):
            if match["modules"] is not None:
                for dotted in _DOTTED.findall(match["modules"]):
                    found.append(_Import(file, 0, dotted.decode(), frozenset()))
            else:
                listed = _without_comments(match["names"]) if b"#" in match["names"] else match["names"]
                names = frozenset((name.decode(), (here or name).decode()) for name, here in _NAME.findall(listed))
                found.append(_Import(file, len(match["dots"]), match["module"].decode(), names))
        return found

    @cached_property
    def _index(self) -> dict[str, list[_Import]]:
        """Imports by the last word of the module and by the names taken from it."""
        index: dict[str, list[_Import]] = {}
        for file in self._files():
            if file.suffix == ".ipynb":
                continue
            for statement in self._statements(file):
                for word in {statement.module.rpartition(".")[2], *statement.names}:
                    index.setdefault(word, []).append(statement)
        return index


def _import_lines(text: bytes) -> Iterator[re.Match[bytes]]:
    """The import statements in a text, found by their keyword, which is much rarer than lines are."""
    position = text.find(b"import")
    while position >= 0:
        match = _IMPORT.match(text, text.rfind(b"\n", 0, position) + 1)
        if match:
            yield match
        position = text.find(b"import", max(position + 6, match.end() if match else 0))


def _without_comments(names: bytes) -> bytes:
    return re.sub(rb"#[^\n]*", b"", names)
