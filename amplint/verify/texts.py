"""Places in the text of a program: where statements end, and the text after edits."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

#: an edit of a text: line, column, end line, end column (all 1-based), new text
Change = tuple[int, int, int, int, str]
#: methods that a training step cannot do without
PROTOCOL = {"backward", "unscale_", "step", "update"}


def apply_edits(text: str, edits: Iterable[Change]) -> str:
    """The text after edits, of which none overlap."""
    starts = [0]
    for match in re.finditer("\n", text):
        starts.append(match.end())

    def offset(line: int, column: int) -> int:
        return starts[line - 1] + column - 1 if line <= len(starts) else len(text)

    for line, column, end_line, end_column, new in sorted(edits, reverse=True):
        text = text[: offset(line, column)] + new + text[offset(end_line, end_column) :]
    return text


def moved(text: str, line: int, edits: Iterable[Change]) -> int:
    """Where the statement that begins on a line is after edits of the text: those before it move it."""
    lines = text.splitlines()
    shown = lines[line - 1] if line <= len(lines) else ""
    start = (line, len(shown) - len(shown.lstrip()) + 1)
    above = (new.count("\n") - (end - at) for at, column, end, _, new in edits if (at, column) <= start)
    return max(line + sum(above), 1)


def header_end(text: str, first: int) -> int:
    """The last line of the header of the compound statement that begins on a line; a large number for any other."""
    for node in _statements(text):
        body = getattr(node, "body", None)
        if node.lineno == first and isinstance(body, list) and body:
            return max(first, int(body[0].lineno) - 1)
    return 10**9


def statement_end(text: str, line: int) -> int:
    """The last line of the innermost simple statement that begins on a line; else the line itself."""
    ends = [node.end_lineno or line for node in _statements(text) if node.lineno == line and not hasattr(node, "body")]
    return min(ends, default=line)


def without_statement(text: str, first: int, last: int) -> list[Change]:
    """The edit that puts `pass` in the place of the call that stands on some lines as a statement; none without one.

    Only statements that are calls are taken out: nothing else in the program reads what they return. Those of the
    protocol stay, because the program would be faulty without them.
    """
    for node in _statements(text):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and first <= node.lineno <= last:
            if isinstance(node.value.func, ast.Attribute) and node.value.func.attr in PROTOCOL:
                continue
            end = node.end_lineno or node.lineno
            blank = "pass" + "\n" * (end - node.lineno)
            lines = text.splitlines()
            start = len(lines[node.lineno - 1].encode()[: node.col_offset].decode())
            stop = len(lines[end - 1].encode()[: node.end_col_offset].decode())
            return [(node.lineno, start + 1, end, stop + 1, blank)]
    return []


def _statements(text: str) -> Iterator[ast.stmt]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            yield node
