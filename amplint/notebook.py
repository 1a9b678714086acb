"""Jupyter notebooks: their code cells as one program, and edits written back into the JSON in place.

Everything that is not an edited cell's source keeps its bytes: the file is never dumped anew.
"""

from __future__ import annotations

import ast
import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from json.decoder import JSONDecodeError
from typing import Any

_SPACE = re.compile(r"[ \t\r\n]*")
_NEWLINE = re.compile(r"\r\n?|\n")
#: cell magics whose body is this program's own Python; any other body is another language or process
_PYTHON_CELL_MAGICS = frozenset({"capture", "debug", "prun", "time", "timeit"})
_MAGIC_ASSIGNMENT = re.compile(r"(?P<target>[^=#'\"(\[{]+=\s*)(?:!|%\w)")
#: line magics that people write without their `%`, as IPython's automagic lets them
_BARE_MAGIC = re.compile(
    r"(?:pip|conda|mamba|micromamba|uv|cd|ls|ll|mkdir|rmdir|rm|cp|mv|cat|env|load_ext|matplotlib|run|time|timeit)[ \t]+"
    r"(?!(?:in|is|and|or|not|if)\b)[-\w./~'\"]"
)
_HELP = re.compile(r"\s*(?:\?{1,2}\s*)?[\w.*%]+\s*\?{1,2}\s*$")
_PIECES = re.compile(
    r"#[^\r\n]*|'''|\"\"\"|'(?:[^\\'\r\n]|\\.)*'|\"(?:[^\\\"\r\n]|\\.)*\"|[\[({]|[\])}]|\\(?=\r|\n|$)", re.DOTALL
)


class NotebookError(Exception):
    """A file that is no notebook. `line` and `column` are 1-based, in the JSON text."""

    def __init__(self, message: str, line: int = 1, column: int = 1) -> None:
        super().__init__(message)
        self.line = line
        self.column = column


@dataclass(frozen=True, slots=True)
class Cell:
    """A code cell: its 1-based index among all cells, its source, where the JSON of the source lies, and
    the line of the program at which it begins."""

    index: int
    source: str
    span: tuple[int, int]
    first_line: int


@dataclass(frozen=True, slots=True)
class Notebook:
    """A parsed notebook. `text` is its JSON, `program` the Python of all its code cells."""

    text: str
    cells: tuple[Cell, ...]
    program: str

    @classmethod
    def parse(cls, text: str) -> Notebook:
        """Raises NotebookError for what is no notebook of format 4."""
        try:
            found = list(_code_cells(text))
        except JSONDecodeError as error:
            raise NotebookError(f"not valid JSON: {error.msg}", error.lineno, error.colno) from None
        except (RecursionError, ValueError, TypeError, AttributeError):
            raise NotebookError("not a notebook of format 4") from None
        cells, parts, line = [], [], 1
        for index, source, span in found:
            cells.append(Cell(index, source, span, line))
            code = python_of(source)
            if code and not code.endswith(("\n", "\r")):
                code += "\n"
            parts.append(code)
            line += len(_NEWLINE.findall(code))
        return cls(text, tuple(cells), "".join(parts))

    def locate(self, line: int, cell: int | None = None) -> tuple[int | None, int]:
        """The (cell, line within the cell) of a line of the program."""
        if not self.cells:
            return None, line
        if cell is None:
            firsts = [c.first_line for c in self.cells]
            holder = self.cells[max(bisect_right(firsts, line) - 1, 0)]
        else:
            holder = self.by_index[cell]
        return holder.index, line - holder.first_line + 1

    def program_line(self, line: int, cell: int) -> int:
        """The line of the program of a line of a cell."""
        return self.by_index[cell].first_line + line - 1

    def line(self, line: int, cell: int) -> str | None:
        """A line of a cell as the user wrote it, magics and all, without its end; None where there is none."""
        lines = _NEWLINE.split(self.by_index[cell].source) if cell in self.by_index else []
        return lines[line - 1] if 1 <= line <= len(lines) else None

    def file_line(self, line: int, cell: int) -> int:
        """The line of the JSON text that holds a line of a cell; where the source is one string, the string's."""
        start, _ = self.by_index[cell].span
        if self.text[start : start + 1] == "[":
            items = list(_items(self.text, start))
            start = items[min(line, len(items)) - 1][0] if items else start
        return len(_NEWLINE.findall(self.text, 0, start)) + 1

    @property
    def by_index(self) -> Mapping[int, Cell]:
        return {cell.index: cell for cell in self.cells}

    def with_sources(self, sources: Mapping[int, str]) -> str:
        """The notebook's JSON with the source of some cells (by index) replaced."""
        text = self.text
        for cell in sorted(self.cells, key=lambda c: c.span, reverse=True):
            if cell.index in sources and sources[cell.index] != cell.source:
                start, end = cell.span
                text = text[:start] + _encoded(sources[cell.index], text[start:end]) + text[end:]
        return text


def _code_cells(text: str) -> Iterator[tuple[int, str, tuple[int, int]]]:
    """(index, source, span of the source's JSON value) of the Python code cells."""
    top = dict(_members(text, _skip(text, 0)))
    metadata = _value(text, top["metadata"]) if "metadata" in top else {}
    if "cells" not in top:
        raise ValueError("no cells")
    json.loads(text)  # what lies outside of the members that are read must be JSON as well
    if not _is_python(metadata):
        return
    for index, (start, _) in enumerate(_items(text, top["cells"][0]), 1):
        members = dict(_members(text, start))
        if "source" not in members or "cell_type" not in members or _value(text, members["cell_type"]) != "code":
            continue
        value = _value(text, members["source"])
        source = value if isinstance(value, str) else "".join(value)
        yield index, source, members["source"]


def _is_python(metadata: Any) -> bool:
    info = metadata.get("language_info", {}).get("name") or metadata.get("kernelspec", {}).get("language")
    return info is None or str(info).lower() in {"python", "ipython", "python3"}


def _value(text: str, span: tuple[int, int]) -> Any:
    return json.loads(text[span[0] : span[1]])


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _members(text: str, at: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """Keys of the JSON object at `at`, with the spans of their values."""
    return _elements(text, at, "{", "}")


def _items(text: str, at: int) -> Iterator[tuple[int, int]]:
    for _, span in _elements(text, at, "[", "]"):
        yield span


def _elements(text: str, at: int, opening: str, closing: str) -> Iterator[tuple[str, tuple[int, int]]]:
    if text[at : at + 1] != opening:
        raise JSONDecodeError(f"Expecting {opening!r}", text, at)
    decoder = json.JSONDecoder()
    at = _skip(text, at + 1)
    while text[at : at + 1] != closing:
        key = ""
        if opening == "{":
            if text[at : at + 1] != '"':
                raise JSONDecodeError("Expecting property name", text, at)
            key, at = decoder.raw_decode(text, at)
            at = _skip(text, at)
            if text[at : at + 1] != ":":
                raise JSONDecodeError("Expecting ':' delimiter", text, at)
            at = _skip(text, at + 1)
        _, end = decoder.raw_decode(text, at)
        yield key, (at, end)
        at = _skip(text, end)
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)
        elif text[at : at + 1] != closing:
            raise JSONDecodeError("Expecting ',' delimiter", text, at)


def _encoded(source: str, raw: str) -> str:
    """`source` as JSON in the shape of `raw`: one string, or a list of lines with the list's own layout."""
    ascii_only = raw.isascii() and "\\u" in raw
    if not raw.startswith("["):
        return json.dumps(source, ensure_ascii=ascii_only)
    kept = {json.loads(raw[a:b]): raw[a:b] for a, b in _items(raw, 0)}
    lines = re.findall(r"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+$", source)
    literals = [kept.get(line) or json.dumps(line, ensure_ascii=ascii_only) for line in lines]
    layout = re.match(r"\[(\s*)", raw)
    lead = layout[1] if layout else ""
    tail = re.search(r"(\s*)\]$", raw)
    trail = tail[1] if tail else ""
    if not literals:
        return "[]"
    separator = "," + lead if "\n" in lead else ", "
    return "[" + lead + separator.join(literals) + trail + "]"


def python_of(source: str) -> str:
    """A cell's source with IPython's own syntax blanked, line for line.

    A magic, shell or help line becomes `pass`, so that a block it stands alone in stays one; an assignment
    from a magic or the shell keeps its target.
    """
    first = source.lstrip()
    if first.startswith("%%"):
        name = re.match(r"%%(\w*)", first)
        skipped = source[: len(source) - len(first)]
        if name is None or name[1] not in _PYTHON_CELL_MAGICS:
            return "".join(_NEWLINE.findall(source))
        end = _NEWLINE.search(first)
        return skipped + (first[end.start() :] if end else "")
    if not any(mark in source for mark in "%!?/,;") and not _BARE_MAGIC.search(source):
        return source
    return _without_magics(source)


def _without_magics(source: str) -> str:
    lines = re.findall(r"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+$", source)
    out: list[str] = []
    depth, quote, joined, blanking = 0, "", False, False
    for line in lines:
        body = line.rstrip("\r\n")
        end = line[len(body) :]
        if blanking:
            blanking = body.endswith("\\")
            out.append(end)
            continue
        if depth == 0 and not quote and not joined:
            replaced = _blanked(body)
            if replaced is not None:
                blanking = body.endswith("\\")
                out.append(replaced + end)
                continue
        depth, quote, joined = _state_after(body, depth, quote)
        out.append(line)
    return "".join(out)


def _blanked(line: str) -> str | None:
    """What stands in for a line of IPython's own syntax; None for Python."""
    stripped = line.lstrip()
    indent = line[: len(line) - len(stripped)]
    if stripped.startswith(("%", "!", "?", "/", ",", ";")):
        return indent + "pass"
    assignment = _MAGIC_ASSIGNMENT.match(line)
    if assignment and not line[: assignment.end("target")].rstrip().endswith(("==", "!=", "<=", ">=")):
        return assignment["target"] + "..."
    if _HELP.match(line) or (_BARE_MAGIC.match(line) and not _is_statement(line)):
        return indent + "pass"
    return None


def _is_statement(line: str) -> bool:
    """Whether a line is Python by itself: `ls -l` is, as a difference."""
    try:
        ast.parse(line)
    except (SyntaxError, ValueError):
        return False
    return True


def _state_after(line: str, depth: int, quote: str) -> tuple[int, str, bool]:
    """(open brackets, open triple quote, joined by a backslash) after a line of Python."""
    at = 0
    while True:
        if quote:
            end = re.compile(r"(?:[^\\]|\\.)*?" + quote).match(line, at)
            if end is None:
                return depth, quote, False
            at, quote = end.end(), ""
        match = _PIECES.search(line, at)
        if match is None:
            return depth, "", False
        piece, at = match.group(), match.end()
        if piece in ("'''", '"""'):
            quote = piece
        elif piece in "([{":
            depth += 1
        elif piece in ")]}":
            depth = max(depth - 1, 0)
        elif piece == "\\":
            return depth, "", True
