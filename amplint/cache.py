"""The results of earlier runs, by file: what a file's analysis found, and all that it asked of the project.

An entry holds only where asking again gives the same answers: the file's own bytes, every import that was looked up
(whether a file was there, and its bytes), the settings, the target, the rules, and the program itself. Entries are
plain JSON, each in a file of its own that is replaced at once, so that runs side by side cannot harm each other and
nothing from the cache is ever executed.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import amplint
from amplint.finding import Confidence, Edit, Finding, Fix, Place, Severity, Step
from amplint.project import Project

if TYPE_CHECKING:
    from amplint.config import Settings

FOLDER = ".amplint_cache"
_TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# Created by amplint.\n"


class Question(NamedTuple):
    """An import that was looked up: in which file, what, and from how many folders up."""

    importer: str
    dotted: str
    level: int


#: the files that answer a question, each with a hash of its bytes
Answer = tuple[tuple[str, str], ...]


class ObservedProject(Project):
    """A project that remembers which imports were looked up, by the file that imports.

    Facts of a module are computed once and serve every analysis that enters it, so what one analysis depends on is
    what was asked by all modules that it can reach. A file counts with the bytes that it had when it was first seen.
    """

    def __init__(self, root: Path, settings: object = None, searched: Path | None = None) -> None:
        super().__init__(root, settings, searched)
        self._asked: dict[str, dict[Question, Answer]] = {}
        self._digests: dict[str, str] = {}

    def candidates(self, importer: Path, dotted: str, level: int) -> Iterator[Path]:
        found = list(super().candidates(importer, dotted, level))
        question = Question(str(importer), dotted, level)
        known = self._asked.setdefault(os.path.realpath(importer), {})
        if question not in known:
            known[question] = _answer(found, self._digests)
        yield from found

    def saw(self, file: Path, data_digest: str) -> None:
        """Remember the bytes with which a file is analysed that the project did not read itself."""
        self._digests.setdefault(os.path.realpath(file), data_digest)

    def asked_from(self, file: Path) -> dict[Question, Answer]:
        """Every import that can have had a part in the analysis of a file, with what was found."""
        everything: dict[Question, Answer] = {}
        pending, seen = [os.path.realpath(file)], set()
        while pending:
            importer = pending.pop()
            if importer in seen:
                continue
            seen.add(importer)
            own = self._asked.get(importer, {})
            everything.update(own)
            pending.extend(path for answer in own.values() for path, _ in answer)
        return everything

    def answers(self, questions: Iterable[Question], digests: dict[str, str]) -> dict[Question, Answer]:
        """The answers that a new analysis would get now. `digests` holds the hashes of files that were read already."""
        return {
            question: _answer(super(ObservedProject, self).candidates(Path(question.importer), *question[1:]), digests)
            for question in questions
        }


def _answer(files: Iterable[Path], digests: dict[str, str]) -> Answer:
    answer = []
    for file in files:
        path = os.path.realpath(file)
        if path not in digests:
            try:
                digests[path] = digest(file.read_bytes())
            except OSError:
                digests[path] = ""
        answer.append((path, digests[path]))
    return tuple(answer)


def digest(data: bytes) -> str:
    """A hash of a file's bytes."""
    return hashlib.sha256(data).hexdigest()


@cache
def _program() -> str:
    """A hash of all that decides what amplint says: its own sources and the rules', the parser, Python."""
    from importlib.metadata import version

    from amplint import registry

    modules = {sys.modules[name] for name in ["amplint", *(type(rule).__module__ for rule in registry.all_rules())]}
    folders = {Path(module.__file__).parent for module in modules if module.__file__}
    hashed = hashlib.sha256("\0".join([amplint.__version__, version("libcst"), sys.version]).encode())
    for file in sorted({path for folder in folders for path in folder.rglob("*.py")}):
        hashed.update(f"\0{file.name}\0".encode())
        hashed.update(file.read_bytes())
    return hashed.hexdigest()


class Cache:
    """A folder of entries. What cannot be read or written is as good as not there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._digests: dict[str, str] = {}

    def get(self, key: str, data_digest: str, project: ObservedProject) -> list[tuple[Finding, str]] | None:
        """The findings, each with the text of its statement, of a file with these bytes; None where it must be
        analysed. `key` is what `key_of` gives."""
        try:
            entry = json.loads(self._path(key).read_bytes())
            if entry["program"] != _program() or entry["data"] != data_digest:
                return None
            asked = {Question(*question): tuple(map(tuple, answer)) for question, answer in entry["asked"]}
            if project.answers(asked, self._digests) != asked:
                return None
            return [(_finding(found), text) for found, text in entry["found"]]
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return None

    def put(
        self,
        key: str,
        data_digest: str,
        asked: Mapping[Question, Answer],
        found: Iterable[tuple[Finding, str]],
        project: ObservedProject,
    ) -> None:
        """Keep what an analysis found, unless a file that it saw has changed since."""
        if project.answers(asked, {}) != dict(asked):
            return
        entry = {
            "program": _program(),
            "data": data_digest,
            "asked": list(asked.items()),
            "found": [(asdict(finding), text) for finding, text in found],
        }
        with suppress(OSError, ValueError):
            self._prepare()
            path = self._path(key)
            path.parent.mkdir(exist_ok=True)
            _replace(path, json.dumps(entry).encode("ascii"))

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key[2:]}.json"

    def _prepare(self) -> None:
        """Make the folder, out of sight of version control and backups."""
        if not (self._folder / "CACHEDIR.TAG").exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / ".gitignore").write_text("*\n", encoding="utf-8")
            (self._folder / "CACHEDIR.TAG").write_text(_TAG, encoding="utf-8")


def _replace(path: Path, data: bytes) -> None:
    """Write a file at once, so that a run beside this one sees the old entry or the new one."""
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def key_of(file: Path, display: str, codes: Sequence[str], target: str, settings: Settings, root: Path) -> str:
    """The name of a file's entry: which file it is, as what it is shown, and what it is checked for."""
    parts = (
        os.fspath(file),
        os.path.realpath(file),
        display,
        os.getcwd(),
        ",".join(codes),
        target,
        repr(settings),
        os.fspath(root),
    )
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()


# -- findings as plain data ------------------------------------------------------------------------------


def _finding(data: Mapping[str, Any]) -> Finding:
    """A finding of the analysis, which has neither a fingerprint nor a verdict yet."""
    fix = data["fix"]
    return Finding(
        rule=data["rule"],
        name=data["name"],
        severity=Severity(data["severity"]),
        confidence=Confidence(data["confidence"]),
        place=Place(**data["place"]),
        message=data["message"],
        steps=tuple(Step(Place(**step["place"]), step["message"]) for step in data["steps"]),
        assumptions=tuple(data["assumptions"]),
        fix=fix
        and Fix(
            fix["safety"], fix["title"], tuple(Edit(Place(**edit["place"]), edit["text"]) for edit in fix["edits"])
        ),
        url=data["url"],
        target=data["target"],
        statement=tuple(data["statement"]),
    )
