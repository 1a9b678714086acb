"""What a file defines, read off its text: nothing is parsed, so that a whole project can be asked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from functools import cached_property
from typing import NamedTuple

from amplint.optable import WITHOUT_HALF
from amplint.screen import code_of

#: without one of these words a file or a definition says nothing about mixed precision
VOCABULARY = re.compile(
    rb"scaler|autocast|backward|\.grad\b|clip_grad|state_dict|\.half\(|HalfTensor|float16|zero_grad|\.step\(|unscale|\bamp\b|torch\.save|no_grad"
)
#: what can be wrong in a definition, though only those who call it know why: an operation of the protocol, a cast to
#: 16 bits, a save or a load, what autocast refuses or caches. The schedulers of inference step with arguments, and
#: progress bars update as well.
ANSWERABLE = re.compile(
    rb"scaler|autocast|backward\b|\.grad\b|clip_\w{0,20}grad|unscale_\b|zero_grad|\bamp\b|torch\.save"
    rb"|\.step\((?:(?<!scheduler\.step\()|(?=\)))|\.update\(\)(?<!bar\.update\(\))"
    rb"|(?:opt|sched)\w{0,20}\.(?:load_)?state_dict\("
    rb"|\.half\(|HalfTensor|\.to\([^)\n]{0,80}(?:float16|half)|dtype ?= ?torch\.(?:float16|half)|set_default_"
    rb"|\bwith [\w.]{0,20}no_grad|binary_cross_entropy\b|BCELoss"
)
#: what opens regions or casts to 16 bit
CASTING = re.compile(rb"autocast|\.half\(|HalfTensor|float16|custom_fwd")
#: what a rule about dtypes may judge: constants that 16 bit cannot hold, operators that autocast refuses or has no
#: kernel for, functions with a backward of their own, casts
COMPUTES = re.compile(
    rb"\d\.?[eE][-+]?\d|\.0000000|\d{5}|0x[\da-fA-F]{4}|\b[fi]info\b|\bfft\b|\blinalg\b|autograd\.Function|\bFunction\)"
    rb"|\bno_grad\b|\binference_mode\b|masked_fill|\bfill_\(|full_like|\bclamp|\b(?:eps|EPS)"
    rb"|\b(?:%b)\(|" % "|".join(sorted(WITHOUT_HALF)).encode() + CASTING.pattern
)
WORD = re.compile(rb"[A-Za-z_]\w*")
#: a top-level definition with its body
_DEFINITION = re.compile(
    rb"^(?:@.*\n(?:[ \t)].*\n){0,40}){0,20}(?:(?P<class>class)|(?:async )?def) +(?P<name>\w+).*\n"
    rb"(?:(?:[ \t#)\]}].*)?\n)*",
    re.MULTILINE,
)
#: the bases of a class, with type parameters or not
_CLASS = re.compile(rb"^class\b", re.MULTILINE)
_HEAD = re.compile(rb"^class +\w+ *(?:\[[^\]\n]*\])? *\(([^)]*)\)", re.MULTILINE)
_ASSIGNMENT = re.compile(rb"^(?P<name>\w+)[ \t]*(?::[^=\n]*)?=(?!=)(?P<value>.*)$", re.MULTILINE)
_FROM_IMPORT = re.compile(rb"^from +(?P<dots>\.*)(?P<module>[\w.]*) +import +(?P<names>\([^)]*\)|[^\n]*)", re.MULTILINE)
_PLAIN_IMPORT = re.compile(rb"^import +([^\n#;]*)", re.MULTILINE)
_MODULE = re.compile(rb"([\w.]+)(?:\s+as\s+(\w+))?")
#: a name that an import brings in, and the one it is bound to
_IMPORTED = re.compile(rb"(?P<name>\w+|\*)(?:\s+as\s+(?P<as>\w+))?")
_PATH = re.compile(rb"[\w.]+")
_METHOD = re.compile(rb"^(?P<indent>[ \t]+)(?:async )?def +(?P<name>\w+)", re.MULTILINE)
_IMPORTS = re.compile(rb"^(?:from|import)\b(?:[^\n(]*\([^)]*\)|[^\n]*)", re.MULTILINE)


def words_in(text: bytes) -> frozenset[str]:
    """The names and other words in a text."""
    return frozenset(word.decode() for word in WORD.findall(text))


class Part(NamedTuple):
    """A piece of a definition that is used or not: a function, a method, what a class holds besides its methods."""

    name: str
    text: bytes
    words: frozenset[str]

    def is_used(self, said: AbstractSet[str]) -> bool:
        return not self.name or self.name.startswith("__") or self.name == "forward" or self.name in said


class Outline:
    """The top-level definitions of one file by name; comments and docstrings do not count."""

    def __init__(self, text: bytes) -> None:
        self.text = code_of(text.replace(b"\r\n", b"\n")) + b"\n"
        self._told_of: dict[str, frozenset[str]] = {}

    @cached_property
    def words(self) -> frozenset[str]:
        """Every word in the file."""
        return words_in(self.text)

    @cached_property
    def definitions(self) -> dict[str, tuple[Part, ...]]:
        """A function has one part, a class one for each of its methods and one more."""
        found: dict[str, tuple[Part, ...]] = {}
        for match in _DEFINITION.finditer(self.text):
            texts = _methods(match[0]) if match["class"] else (("", match[0]),)
            found[match["name"].decode()] = tuple(Part(name, text, words_in(text)) for name, text in texts)
        return found

    @cached_property
    def assignments(self) -> dict[str, bytes]:
        """What the top-level variables are assigned first, as far as that stands on one line."""
        found: dict[str, bytes] = {}
        for match in _ASSIGNMENT.finditer(self.text):
            found.setdefault(match["name"].decode(), match["value"])
        return found

    @cached_property
    def from_imports(self) -> tuple[tuple[str, int, dict[str, str]], ...]:
        """The top-level `from` imports: module, leading dots, and the original of every name that is bound; `*` where
        all are."""
        return tuple(
            (
                match["module"].decode(),
                len(match["dots"]),
                {(n["as"] or n["name"]).decode(): n["name"].decode() for n in _IMPORTED.finditer(match["names"])},
            )
            for match in _FROM_IMPORT.finditer(self.text)
        )

    @cached_property
    def outside(self) -> bytes:
        """What an import of the file executes, but for its own imports."""
        return _IMPORTS.sub(b"", _DEFINITION.sub(b"", self.text))

    @cached_property
    def telling(self) -> frozenset[str]:
        """The definitions that have AMP vocabulary, or call by name one that has."""
        return self._with(VOCABULARY)

    @cached_property
    def answerable(self) -> frozenset[str]:
        """The definitions in which something can be wrong that shows only from their callers, or that call one."""
        told = self._closed({*self.protocol, *self.computing})
        # `mul = Mul.apply`
        return told | {name for name, value in self.assignments.items() if not told.isdisjoint(words_in(value))}

    @cached_property
    def protocol(self) -> frozenset[str]:
        """The definitions in which something of the protocol happens, or that call one."""
        return self._with(ANSWERABLE)

    @cached_property
    def casting(self) -> frozenset[str]:
        """The definitions that open regions or cast to 16 bit, or call by name one that does."""
        return self._with(CASTING)

    @cached_property
    def computing(self) -> frozenset[str]:
        """The definitions, and the constants, in which a rule about dtypes may find something to judge."""
        constants = {name for name, value in self.assignments.items() if COMPUTES.search(value)}
        return frozenset(constants | {n for n, parts in self.definitions.items() if _found_in(parts, COMPUTES)})

    @cached_property
    def words_of_definitions(self) -> dict[str, frozenset[str]]:
        """The words in each definition."""
        return {name: frozenset().union(*(p.words for p in parts)) for name, parts in self.definitions.items()}

    def said_by(self, names: AbstractSet[str]) -> frozenset[str]:
        """These names, with the words in their definitions and in those that are mentioned there."""
        said, new = set(names), set(names)
        while new:
            mentioned = frozenset().union(*map(self._words_behind, new))
            new = {word for word in mentioned - said if word in self.definitions}
            said |= mentioned
        return frozenset(said)

    def _words_behind(self, name: str) -> frozenset[str]:
        return self.words_of_definitions.get(name) or words_in(self.assignments.get(name, b""))

    def is_callable(self, name: str) -> bool:
        """Whether something of the protocol happens where an object of a class is called."""
        return not self._told(name).isdisjoint({"__call__", "forward"})

    def methods(self, name: str) -> frozenset[str]:
        """The methods of a class in which something of the protocol happens, or that call one of these or such a
        definition."""
        return frozenset(method for method in self._told(name) if not method.startswith("__"))

    @cached_property
    def speaking_classes(self) -> frozenset[str]:
        """The classes with a method in which something of the protocol happens."""
        return frozenset(name for name, parts in self.definitions.items() if len(parts) > 1 and self._told(name))

    def _told(self, name: str) -> frozenset[str]:
        if name not in self._told_of:
            self._told_of[name] = self._find_told(name)
        return self._told_of[name]

    def _find_told(self, name: str) -> frozenset[str]:
        parts = {part.name: part for part in self.definitions.get(name, ()) if part.name}
        told = {method for method, part in parts.items() if ANSWERABLE.search(part.text)}
        told |= {method for method, part in parts.items() if not (self.protocol - {name}).isdisjoint(part.words)}
        while more := {m for m, part in parts.items() if m not in told and not told.isdisjoint(part.words)}:
            told |= more
        return frozenset(told)

    def is_bound_once(self, name: str) -> bool:
        """Whether a variable of the module is assigned in one place, and no function says that it is global."""
        word = re.escape(name.encode())
        bound = re.findall(rb"^[ \t]*%b[ \t]*(?::[^=\n]{0,80})?[-+*/|]?=(?!=)" % word, self.text, re.MULTILINE)
        return len(bound) == 1 and not re.search(rb"\bglobal\b[^\n]{0,200}\b%b\b" % word, self.text)

    def has_forward(self, name: str) -> bool:
        """Whether a definition is a class of networks, or of layers."""
        return any(part.name == "forward" for part in self.definitions.get(name, ()))

    @cached_property
    def plain_imports(self) -> tuple[tuple[str, str], ...]:
        """The top-level imports of whole modules: the name that is bound, and the module that is looked into by it."""
        found: list[tuple[str, str]] = []
        for match in _PLAIN_IMPORT.finditer(self.text):
            for dotted, alias in _MODULE.findall(match[1]):
                found.append(((alias or dotted.partition(b".")[0]).decode(), dotted.decode()))
        return tuple(found)

    def is_class(self, name: str) -> bool:
        """Whether a definition is a class."""
        return name in self.definitions and _CLASS.search(self.definitions[name][0].text) is not None

    def bases(self, name: str) -> frozenset[str]:
        """The last names of a class's bases."""
        head = _HEAD.search(self.definitions[name][0].text) if name in self.definitions else None
        if head is None:
            return frozenset()
        listed = [base.partition(b"[")[0].strip() for base in head[1].split(b",") if b"=" not in base]
        return frozenset(base.rpartition(b".")[2].decode() for base in listed if _PATH.fullmatch(base))

    def mentioning(self, names: AbstractSet[str]) -> frozenset[str]:
        """The definitions that mention one of these names, or one that does."""
        return self._closed({n for n, words in self.words_of_definitions.items() if not names.isdisjoint(words)})

    def _with(self, vocabulary: re.Pattern[bytes]) -> frozenset[str]:
        return self._closed({n for n, parts in self.definitions.items() if _found_in(parts, vocabulary)})

    def _closed(self, told: set[str]) -> frozenset[str]:
        """These definitions, with those that mention one of them."""
        words = self.words_of_definitions
        while more := {n for n, used in words.items() if n not in told and not told.isdisjoint(used)}:
            told |= more
        return frozenset(told)

    def behind(self, names: AbstractSet[str], words: Iterable[str], bases: AbstractSet[str]) -> Iterator[bytes]:
        """The text behind some names for a file with these words: what an import executes, the definitions, of a class
        the methods that somebody mentions, and what they mention in turn; all of a class that is one of `bases`."""
        yield self.outside
        said, waiting, reached = set(words), list[Part](), set[str]()
        new = names & self.definitions.keys()
        while new:
            reached |= new
            for name in new:
                waiting.extend(self.definitions[name])
                said.update(part.name for part in self.definitions[name] if name in bases)
            new = set()
            while used := [part for part in waiting if part.is_used(said)]:
                waiting = [part for part in waiting if not part.is_used(said)]
                for part in used:
                    yield part.text
                    said |= part.words
                    new |= part.words & self.definitions.keys() - reached


def _found_in(parts: Iterable[Part], vocabulary: re.Pattern[bytes]) -> bool:
    return any(vocabulary.search(part.text) for part in parts)


def _methods(text: bytes) -> Iterator[tuple[str, bytes]]:
    """What a class holds before its first method, under no name, and its methods."""
    name, begin, indent = "", 0, b""
    for match in _METHOD.finditer(text):
        indent = indent or match["indent"]
        if match["indent"] == indent:
            yield name, text[begin : match.start()]
            name, begin = match["name"].decode(), match.start()
    yield name, text[begin:]
