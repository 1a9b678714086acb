"""One source file or notebook as text, as a LibCST module, and as places in what the user wrote.

Parsing and positions are dear, so both are lazy: the tree is built when it is first asked for, positions
and parents at most once per module, and only for modules that something is said about.
"""

from __future__ import annotations

import ast
import codecs
import io
import re
import sys
import tokenize
import warnings
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import libcst as cst

from amplint.finding import Place
from amplint.notebook import Notebook, NotebookError
from amplint.screen import code_of

if TYPE_CHECKING:
    from libcst.metadata import CodeRange

#: what Python ends a line at (not what `str.splitlines` ends one at)
NEWLINE = re.compile(r"\r\n?|\n")
#: CPython's own bound for brackets inside brackets; far deeper, LibCST's parser overruns the stack
MAX_BRACKETS = 200
#: the same for lambda inside lambda, which has no brackets to count
MAX_LAMBDAS = 500
#: how many frames an analysis may use; LibCST spends about a dozen per level of an expression
RECURSION_LIMIT = 10_000

#: strings and comments are consumed whole, so that only what is code is counted; a line that begins a top-level
#: statement ends whatever a string that was read wrongly (quotes in an f-string's field) left open
_TOKENS = re.compile(
    r"""#[^\r\n]*"""
    r"""|'{3}[^\\']*(?:(?:\\.|'(?!''))[^\\']*)*'{3}|"{3}[^\\"]*(?:(?:\\.|"(?!""))[^\\"]*)*"{3}"""
    r"""|'[^\\'\r\n]*(?:\\.[^\\'\r\n]*)*'|"[^\\"\r\n]*(?:\\.[^\\"\r\n]*)*\""""
    r"""|[\[({]|[\])}]|\blambda\b|,[ \t]*(?=[\r\n])|[\r\n](?:(?:def|class|import|from|@)\b)?""",
    re.DOTALL,
)
_CLAUSES = (cst.ExceptHandler, cst.ExceptStarHandler, cst.MatchCase, cst.Else, cst.Finally)
_STATEMENTS = (cst.SimpleStatementLine, cst.BaseCompoundStatement)
_SPACE = (
    cst.BaseParenthesizableWhitespace,
    cst.TrailingWhitespace,
    cst.EmptyLine,
    cst.Newline,
    cst.Comment,
)


class SourceError(Exception):
    """A file that cannot be decoded or parsed. Line and column are 1-based, in `cell` where there are cells."""

    def __init__(self, message: str, line: int = 1, column: int = 1, cell: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.line = line
        self.column = column
        self.cell = cell


class SourceModule:
    """A file's text and what can be asked about it.

    `path` is the path as it is shown to people, with forward slashes. `text` is the program: for a notebook
    the code cells in order, with IPython's own lines blanked. `encoding` writes the text back as it was read
    (so it keeps a byte order mark), `newline` is the line end that new lines get.
    """

    def __init__(
        self, path: str, text: str, encoding: str = "utf-8", newline: str = "\n", notebook: Notebook | None = None
    ) -> None:
        self.path = path
        self.text = text
        self.encoding = encoding
        self.newline = newline
        self.notebook = notebook
        self._rough_texts: dict[int, tuple[cst.CSTNode, str]] = {}

    @classmethod
    def from_path(cls, path: Path, display: str | None = None) -> SourceModule:
        """Read a file. Raises OSError and SourceError."""
        return cls.from_bytes(path.read_bytes(), path.as_posix() if display is None else display)

    @classmethod
    def from_bytes(cls, data: bytes, path: str) -> SourceModule:
        """Decode a file's bytes; a path that ends in `.ipynb` is a notebook. Raises SourceError."""
        text, encoding = decode(data, is_notebook=path.endswith(".ipynb"))
        if not path.endswith(".ipynb"):
            first_end = NEWLINE.search(text)
            return cls(path, text, encoding, first_end.group() if first_end else "\n")
        try:
            notebook = Notebook.parse(text)
        except NotebookError as error:
            raise SourceError(str(error), error.line, error.column) from None
        return cls(path, notebook.program, encoding, "\n", notebook)

    def __repr__(self) -> str:
        return f"SourceModule({self.path!r})"

    @cached_property
    def code(self) -> str:
        """The text without comments, docstrings and messages (see `amplint.screen.code_of`)."""
        return code_of(self.text.encode(errors="replace")).decode()

    @property
    def is_notebook(self) -> bool:
        return self.notebook is not None

    @cached_property
    def tree(self) -> cst.Module:
        """The concrete syntax tree. Raises SourceError when there is none."""
        self._refuse_deep_nesting()
        try:
            return cst.parse_module(self.text)
        except cst.ParserSyntaxError as error:
            raise self._syntax_error(error) from None
        except RecursionError:
            raise SourceError("nested too deeply to be parsed") from None
        except UnicodeEncodeError as error:  # half a surrogate pair, which JSON can spell
            raise self._error_at(error.start, "holds characters that no encoding can write") from None
        except BaseException as error:
            # a panic of the native parser derives from BaseException and has no importable class
            if type(error).__name__ != "PanicException":
                raise
            raise self._syntax_error(None) from None

    # -- positions -----------------------------------------------------------------------------------

    def place(self, node: cst.CSTNode) -> Place:
        """Where a node stands, without the parentheses and the white space around it."""
        code_range = self._range(node)
        cell, line = self.locate(code_range.start.line)
        _, end_line = self.locate(code_range.end.line, cell)
        return Place(self.path, line, code_range.start.column + 1, end_line, code_range.end.column + 1, cell)

    def locate(self, line: int, cell: int | None = None) -> tuple[int | None, int]:
        """The (cell, line in that cell) of a line of `text`; (None, line) outside of notebooks.

        With `cell`, the line is counted in that cell even where it lies behind its end.
        """
        return (None, line) if self.notebook is None else self.notebook.locate(line, cell)

    def program_line(self, line: int, cell: int | None) -> int:
        """The line of `text` that a place's line (in its cell) is; the reverse of `locate`."""
        return line if self.notebook is None or cell is None else self.notebook.program_line(line, cell)

    def segment(self, node: cst.CSTNode) -> str:
        """The source text of a node, as it is written."""
        code_range = self._range(node)
        return self.text[self._offset(code_range.start) : self._offset(code_range.end)]

    def rough_text(self, node: cst.CSTNode) -> str:
        """What a node says, for a look at its words: with its parentheses, without the indentation around it and
        without comments. Unlike `segment` it needs no positions, which are there for findings alone."""
        known = self._rough_texts.get(id(node))
        if known is None:
            # the node is kept along with its text, since its id is the key
            known = self._rough_texts[id(node)] = (node, self._written(node))
        return known[1]

    def _written(self, node: cst.CSTNode) -> str:
        if isinstance(node, cst.SimpleStatementLine):
            return "; ".join(map(self.rough_text, node.body))
        if isinstance(node, cst.BaseCompoundStatement):
            node = node.with_changes(leading_lines=())
        text = self.tree.code_for_node(node)
        return _TOKENS.sub(lambda token: "" if token[0][0] == "#" else token[0], text) if "#" in text else text

    def offset(self, line: int, column: int) -> int:
        """The index in `text` of a 1-based line and column of `text`."""
        starts = self.line_starts
        return min(starts[min(line, len(starts)) - 1] + column - 1, len(self.text))

    def line_of(self, offset: int) -> int:
        """The 1-based line of `text` that holds the character at an index."""
        return bisect_right(self.line_starts, offset)

    @cached_property
    def line_starts(self) -> tuple[int, ...]:
        """The index in `text` at which each line begins."""
        return (0, *(match.end() for match in NEWLINE.finditer(self.text)))

    def logical_line_range(self, node: cst.CSTNode) -> tuple[int, int]:
        """First and last line of the statement that holds `node`; of a compound statement only its header.

        In a notebook the lines count within the cell, as they do in places.
        """
        holder = self._enclosing(node, (*_STATEMENTS, *_CLAUSES))
        first, last = self._range(holder).start.line, self._header_end(holder)
        decorators = getattr(holder, "decorators", ())
        if decorators:
            first = min(first, self._range(decorators[0]).start.line)
        cell, line = self.locate(first)
        return line, self.locate(last, cell)[1]

    # -- structure -----------------------------------------------------------------------------------

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """The node that holds `node`; None for the module itself."""
        return self._parents.get(node)

    def statement(self, node: cst.CSTNode) -> cst.CSTNode:
        """The statement that holds `node`: a simple statement line, or the compound statement whose header
        (or one-line body) the node is in. The module itself where there is none."""
        return self._enclosing(node, _STATEMENTS)

    def block(self, node: cst.CSTNode) -> tuple[cst.IndentedBlock | cst.Module, int] | None:
        """The block that holds the statement of `node`, and the statement's position in it; None in a one-line body."""
        if node not in self._blocks:
            statement = self.statement(node)
            block = self.parent(statement)
            found = None
            if isinstance(block, (cst.IndentedBlock, cst.Module)):
                at = next((i for i, candidate in enumerate(block.body) if candidate is statement), None)
                found = None if at is None else (block, at)
            self._blocks[node] = found
        return self._blocks[node]

    def comments(self) -> Iterator[tuple[int, int, str]]:
        """(line, column, text) of the comments of `text`, found without parsing it; lines are those of `text`."""
        for match in _TOKENS.finditer(self.text):
            if match.group().startswith("#"):
                line = self.line_of(match.start())
                yield line, match.start() - self.line_starts[line - 1] + 1, match.group()

    def line_text(self, line: int) -> str:
        """A line of `text`, without its line end."""
        start = self.line_starts[line - 1]
        end = self.line_starts[line] if line < len(self.line_starts) else len(self.text)
        return self.text[start:end].rstrip("\r\n")

    @property
    def depth(self) -> int:
        """How many nodes lie inside each other at the deepest point of the tree."""
        depths: dict[cst.CSTNode, int] = {self.tree: 1}
        for node, parent in self._parents.items():  # parents come first
            depths[node] = depths[parent] + 1
        return max(depths.values())

    # -- inside --------------------------------------------------------------------------------------

    def _enclosing(self, node: cst.CSTNode, kinds: tuple[type, ...]) -> cst.CSTNode:
        at: cst.CSTNode | None = node
        while at is not None and not isinstance(at, kinds):
            at = self._parents.get(at)
        return self.tree if at is None else at

    @cached_property
    def _blocks(self) -> dict[cst.CSTNode, tuple[cst.IndentedBlock | cst.Module, int] | None]:
        return {}

    @cached_property
    def _parents(self) -> Mapping[cst.CSTNode, cst.CSTNode]:
        parents: dict[cst.CSTNode, cst.CSTNode] = {}
        stack: list[cst.CSTNode] = [self.tree]
        while stack:
            node = stack.pop()
            for child in children(node):
                parents[child] = node
                stack.append(child)
        return parents

    @cached_property
    def _ranges(self) -> Mapping[cst.CSTNode, CodeRange]:
        from libcst.metadata import MetadataWrapper, PositionProvider

        try:
            with deep_recursion():
                wrapper = MetadataWrapper(self.tree, unsafe_skip_copy=True)
                ranges: Mapping[cst.CSTNode, CodeRange] = wrapper.resolve(PositionProvider)
                return ranges
        except (RecursionError, KeyError):  # LibCST turns some of the first into the second
            raise SourceError("nested too deeply to be analysed") from None

    def _range(self, node: cst.CSTNode) -> CodeRange:
        at: cst.CSTNode | None = node
        while at is not None and at not in self._ranges:  # white space and the like have no position
            at = self._parents.get(at)
        return self._ranges[self.tree if at is None else at]

    def _offset(self, position: object) -> int:
        return self.offset(position.line, position.column + 1)  # type: ignore[attr-defined]

    def _header_end(self, holder: cst.CSTNode) -> int:
        """The last line of a compound statement's header (and one-line body), or of a simple statement."""
        body = getattr(holder, "body", None)
        if isinstance(body, cst.SimpleStatementSuite):
            return self._range(body).end.line
        inner = holder.cases if isinstance(holder, cst.Match) else getattr(body, "body", ())
        if not isinstance(holder, (cst.BaseCompoundStatement, *_CLAUSES)) or not inner:
            return self._range(holder).end.line
        first = inner[0]
        start = self._range(first).start.line
        decorators = getattr(first, "decorators", ())
        if decorators:
            start = self._range(decorators[0]).start.line - len(decorators[0].leading_lines)
        return start - len(getattr(first, "leading_lines", ())) - 1

    def _refuse_deep_nesting(self) -> None:
        """Raise before LibCST's recursive parser overruns the stack, which would end the process."""
        depth = lambdas = 0
        for match in _TOKENS.finditer(self.text):
            token = match.group()
            if token in "([{":
                depth += 1
                if depth > MAX_BRACKETS:
                    raise self._error_at(match.start(), "brackets nested too deeply to be parsed")
            elif token in ")]}":
                depth = max(depth - 1, 0)
            elif token == "lambda":
                lambdas += 1
                if lambdas > MAX_LAMBDAS:
                    raise self._error_at(match.start(), "lambdas nested too deeply to be parsed")
            elif token[0] == ",":
                # the end of an element in a long display: a table of lambdas is not a nest of them
                lambdas = 0
            elif token[0] in "\r\n" and (depth == 0 or len(token) > 1):
                depth = lambdas = 0

    def _error_at(self, offset: int, message: str) -> SourceError:
        before = NEWLINE.split(self.text[:offset])
        cell, line = self.locate(len(before))
        return SourceError(message, line, len(before[-1]) + 1, cell)

    def _syntax_error(self, error: cst.ParserSyntaxError | None) -> SourceError:
        """CPython's message where it refuses the text as well: it is written for people."""
        message, line, column = "LibCST, which amplint parses with, does not understand this", 1, 1
        if error is not None:
            line, column = error.raw_line, error.raw_column + 1
            found = re.search(r"error at (\d+):(\d+)", error.message)
            if found:
                line, column = int(found[1]), int(found[2])
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ast.parse(self.text)
        except SyntaxError as refused:
            message = refused.msg
            line, column = refused.lineno or line, refused.offset or column
        except (ValueError, RecursionError, MemoryError):
            message = "cannot be parsed"
        cell, line = self.locate(min(max(line, 1), len(self.line_starts)))
        return SourceError(message, line, max(column, 1), cell)


def decode(data: bytes, is_notebook: bool = False) -> tuple[str, str]:
    """(text, encoding that writes it back). Raises SourceError for bytes that are no text.

    A byte order mark and a PEP 263 cookie are honoured; without them the encoding is UTF-8. A notebook is
    JSON, so it is UTF-8 whatever its first lines look like.
    """
    if is_notebook:
        encoding = "utf-8-sig" if data.startswith(codecs.BOM_UTF8) else "utf-8"
    else:
        try:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        except SyntaxError as error:
            raise SourceError(str(error)) from None
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        before = NEWLINE.split(data[: error.start].decode("latin-1"))
        raise SourceError(f"not valid {encoding}: {error.reason}", len(before), len(before[-1]) + 1) from None
    except (LookupError, ValueError, UnicodeError) as error:
        raise SourceError(f"cannot be decoded as {encoding}: {error}") from None
    if "\0" in text:
        before = NEWLINE.split(text[: text.index("\0")])
        raise SourceError("source code cannot contain null bytes", len(before), len(before[-1]) + 1)
    return text, encoding


def lines_of(text: str) -> list[str]:
    """The lines of a text with their ends, as Python splits them (and not as `str.splitlines` does)."""
    return re.findall(r"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+$", text)


@contextmanager
def deep_recursion() -> Iterator[None]:
    """Room for recursive walks over deeply nested, but legal, code."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, RECURSION_LIMIT))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def children(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The nodes directly inside `node`, white space and comments left out."""
    for name in _fields(type(node)):
        value = getattr(node, name)
        if isinstance(value, cst.CSTNode):
            if not isinstance(value, _SPACE):
                yield value
        elif isinstance(value, (list, tuple)):
            for member in value:
                if isinstance(member, cst.CSTNode) and not isinstance(member, _SPACE):
                    yield member


@cache
def _fields(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    return tuple(name for name in kind.__dataclass_fields__ if "whitespace" not in name)
