"""Fix plans, which speak of syntax nodes, as edits of text that keep the user's layout."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import libcst as cst

from amplint.finding import Edit, Fix, Place
from amplint.rule import Change, FixPlan
from amplint.source import NEWLINE, SourceModule, children


class _CannotFix(Exception):
    """The plan does not fit the way the code is written."""


def fix_of(plan: FixPlan) -> Fix | None:
    """The edits of a plan; None where the code is written in a way they cannot express."""
    edits: list[Edit] = []
    deleted: set[cst.CSTNode] = {
        _small_statement(change) or change.site.module.statement(change.site.node)
        for change in plan.changes
        if change.kind == "delete"
    }
    unneeded = (_unneeded(change) for change in plan.changes if change.kind == "unimport")
    deleted.update(statement for statement, aliases, _ in filter(None, unneeded) if len(aliases) == 1)
    try:
        for change in plan.changes:
            for edit in _EDITS[change.kind](change, deleted):
                if edit not in edits:
                    edits.append(edit)
    except _CannotFix:
        return None
    return Fix(plan.safety, plan.title, tuple(edits)) if edits else None


def _statement(change: Change) -> cst.CSTNode:
    statement = change.site.module.statement(change.site.node)
    if isinstance(statement, cst.Module):
        raise _CannotFix
    return statement


def _small_statement(change: Change) -> cst.BaseSmallStatement | None:
    """The one of several statements on a line (or after a colon) that holds the site; None if it is alone."""
    module = change.site.module
    node: cst.CSTNode | None = change.site.node
    while node is not None and not isinstance(node, cst.BaseSmallStatement):
        node = module.parent(node)
    holder = module.parent(node) if node is not None else None
    if isinstance(holder, cst.SimpleStatementSuite) or (
        isinstance(holder, cst.SimpleStatementLine) and len(holder.body) > 1
    ):
        return node
    return None


def _indent(module: SourceModule, place: Place) -> str:
    """The white space before a place; whatever else stands there makes the fix impossible."""
    text = _line(module, place.line, place.cell)[: place.column - 1]
    if text.strip():
        raise _CannotFix
    return text


def _line(module: SourceModule, line: int, cell: int | None) -> str:
    if module.notebook is not None and cell is not None:
        return module.notebook.line(line, cell) or ""
    return module.line_text(line)


def _start(module: SourceModule, statement: cst.CSTNode) -> Place:
    """Where a statement begins, its decorators included."""
    decorators: Sequence[cst.Decorator] = getattr(statement, "decorators", ())
    return module.place(decorators[0] if decorators else statement)


def _at(place: Place, line: int, column: int) -> Place:
    return Place(place.path, line, column, line, column, place.cell)


def _insert_before(change: Change, _deleted: set[cst.CSTNode]) -> Iterator[Edit]:
    module, small = change.site.module, _small_statement(change)
    if small is not None:
        place = module.place(small)
        yield Edit(_at(place, place.line, place.column), _inline(change.text) + "; ")
        return
    place = _start(module, _statement(change))
    indent = _indent(module, place)
    text = _indented(change.text, indent, module.newline)
    yield Edit(_at(place, place.line, place.column), text + module.newline + indent)


def _insert_after(change: Change, _deleted: set[cst.CSTNode]) -> Iterator[Edit]:
    module, small = change.site.module, _small_statement(change)
    if small is not None:
        place = module.place(small)
        yield Edit(_at(place, place.end_line, place.end_column), "; " + _inline(change.text))
        return
    statement = _statement(change)
    indent = _indent(module, _start(module, statement))
    place = module.place(statement)
    line, end = _last_line(module, statement)
    text = _indented(change.text, indent, module.newline)
    yield Edit(_at(place, line, end), module.newline + indent + text)


def _last_line(module: SourceModule, statement: cst.CSTNode) -> tuple[int, int]:
    """The last line of a statement and the column behind its text, a trailing comment included."""
    place = module.place(statement)
    line = place.end_line
    return line, len(_line(module, line, place.cell)) + 1


def _inline(text: str) -> str:
    if NEWLINE.search(text) or text.rstrip().endswith(":"):
        raise _CannotFix
    return text


def _indented(text: str, indent: str, newline: str) -> str:
    return (newline + indent).join(NEWLINE.split(text))


def _replace(change: Change, _deleted: set[cst.CSTNode]) -> Iterator[Edit]:
    module = change.site.module
    yield Edit(module.place(change.site.node), NEWLINE.sub(module.newline, change.text))


def _delete(change: Change, deleted: set[cst.CSTNode]) -> Iterator[Edit]:
    module, small = change.site.module, _small_statement(change)
    if small is not None:
        yield from _delete_small(module, small, deleted)
        return
    statement = _statement(change)
    block = module.parent(statement)
    siblings: Sequence[cst.CSTNode] = block.body if isinstance(block, (cst.IndentedBlock, cst.Module)) else ()
    start, end = _start(module, statement), module.place(statement)
    _indent(module, start)
    if isinstance(block, cst.IndentedBlock) and all(s in deleted for s in siblings) and statement is siblings[-1]:
        yield Edit(Place(start.path, start.line, start.column, end.end_line, end.end_column, start.cell), "pass")
        return
    yield Edit(_whole_lines(module, start, end), "")


def _whole_lines(module: SourceModule, start: Place, end: Place) -> Place:
    """The lines from one place to another with the line end behind (or, at the end of a file, before) them."""
    length = len(_line(module, end.end_line, end.cell))
    if _has_line(module, end.end_line + 1, end.cell):
        return Place(start.path, start.line, 1, end.end_line + 1, 1, start.cell)
    if start.line > 1:
        before = len(_line(module, start.line - 1, start.cell))
        return Place(start.path, start.line - 1, before + 1, end.end_line, length + 1, start.cell)
    return Place(start.path, start.line, 1, end.end_line, length + 1, start.cell)


def _has_line(module: SourceModule, line: int, cell: int | None) -> bool:
    if module.notebook is not None and cell is not None:
        return module.notebook.line(line, cell) is not None
    return line <= len(module.line_starts)


def _delete_small(module: SourceModule, small: cst.BaseSmallStatement, deleted: set[cst.CSTNode]) -> Iterator[Edit]:
    holder = module.parent(small)
    siblings = list(holder.body) if isinstance(holder, (cst.SimpleStatementLine, cst.SimpleStatementSuite)) else []
    place = module.place(small)
    if all(s in deleted for s in siblings):
        yield Edit(place, "pass")
        return
    index = siblings.index(small)
    if index + 1 < len(siblings):
        following = module.place(siblings[index + 1])
        yield Edit(Place(place.path, place.line, place.column, following.line, following.column, place.cell), "")
    else:
        before = module.place(siblings[index - 1])
        yield Edit(
            Place(place.path, before.end_line, before.end_column, place.end_line, place.end_column, place.cell), ""
        )


def _dedent(change: Change, _deleted: set[cst.CSTNode]) -> Iterator[Edit]:
    """Move the last statement of a block to the indentation of the statement that the block belongs to."""
    module = change.site.module
    statement = _statement(change)
    if _small_statement(change) is not None:
        raise _CannotFix
    block = module.parent(statement)
    outer = module.parent(block) if block is not None else None
    if not isinstance(block, cst.IndentedBlock) or outer is None:
        raise _CannotFix
    start, end = _start(module, statement), module.place(statement)
    indent = _indent(module, start)
    outer_indent = _indent(module, _start(module, outer))
    first = start.line - _comment_lines_above(module, start)
    inside_strings = _lines_inside_strings(module, statement)
    if statement is block.body[0]:
        yield Edit(_at(start, first, 1), f"{indent}pass{module.newline}")
    for line in range(first, end.end_line + 1):
        if line not in inside_strings and _line(module, line, start.cell).startswith(indent):
            yield Edit(Place(start.path, line, 1, line, len(indent) + 1, start.cell), outer_indent)


def _comment_lines_above(module: SourceModule, start: Place) -> int:
    count = 0
    while start.line - count > 1 and _line(module, start.line - count - 1, start.cell).lstrip().startswith("#"):
        count += 1
    return count


def _lines_inside_strings(module: SourceModule, statement: cst.CSTNode) -> set[int]:
    """Lines that begin inside a string that several lines make up: their white space is the string's."""
    inside: set[int] = set()
    stack: list[cst.CSTNode] = [statement]
    while stack:
        node = stack.pop()
        if isinstance(node, (cst.SimpleString, cst.FormattedString)):
            place = module.place(node)
            inside.update(range(place.line + 1, place.end_line + 1))
        else:
            stack.extend(children(node))
    return inside


# -- imports ---------------------------------------------------------------------------------------------


def _import(change: Change, deleted: set[cst.CSTNode]) -> Iterator[Edit]:
    """Make sure that `package:name` or `package` is imported at the top level, above the site."""
    module = change.site.module
    package, _, name = change.text.partition(":")
    above = _top_level_statements_before(module, change.site.node)
    imports = [(statement, small) for statement in above if statement not in deleted for small in _imports(statement)]
    if any(_provides(small, package, name) for _, small in imports):
        return
    if name:
        same = [s for _, s in imports if isinstance(s, cst.ImportFrom) and _module_of(s) == package and not _is_star(s)]
        if same:
            yield _added_name(module, same[-1], name)
            return
    text = f"from {package} import {name}" if name else f"import {package}"
    if imports:
        anchor = imports[-1][0]
        line, column = _last_line(module, anchor)
        yield Edit(_at(module.place(anchor), line, column), module.newline + text)
        return
    first = next((s for s in module.tree.body if not _is_docstring(s)), None)
    if first is None:
        raise _CannotFix
    place = _start(module, first)
    yield Edit(_at(place, place.line, place.column), text + module.newline)


def _top_level_statements_before(module: SourceModule, node: cst.CSTNode) -> list[cst.SimpleStatementLine]:
    holder: cst.CSTNode = node
    parent = module.parent(node)
    while parent is not None and not isinstance(parent, cst.Module):
        holder, parent = parent, module.parent(parent)
    found: list[cst.SimpleStatementLine] = []
    for statement in module.tree.body:
        if statement is holder and not (isinstance(holder, cst.SimpleStatementLine) and list(_imports(holder))):
            break
        if isinstance(statement, cst.SimpleStatementLine):
            found.append(statement)
    return found


def _unimport(change: Change, _deleted: set[cst.CSTNode]) -> Iterator[Edit]:
    """Drop the import of the name that a site is, if nothing else in the file spells that name."""
    module, found = change.site.module, _unneeded(change)
    if found is None:
        return
    statement, aliases, index = found
    if len(aliases) == 1:
        place = module.place(statement)
        yield Edit(_whole_lines(module, place, place), "")
        return
    place = module.place(aliases[index])
    if index + 1 < len(aliases):
        following = module.place(aliases[index + 1])
        yield Edit(replace(place, end_line=following.line, end_column=following.column), "")
    else:
        before = module.place(aliases[index - 1])
        yield Edit(replace(place, line=before.end_line, column=before.end_column), "")


def _unneeded(change: Change) -> tuple[cst.SimpleStatementLine, Sequence[cst.ImportAlias], int] | None:
    """The statement that imports what only the site of a change uses, its names, and which of them it is."""
    module, node = change.site.module, change.site.node
    if not isinstance(node, cst.Name) or len(re.findall(rf"\b{node.value}\b", module.text)) != 2:
        return None
    for statement in module.tree.body:
        if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
            continue
        for small in _imports(statement):
            if isinstance(small, cst.ImportFrom) and not isinstance(small.names, cst.ImportStar):
                for index, alias in enumerate(small.names):
                    if node.value == (_alias(alias.asname) if alias.asname else _dotted(alias.name)):
                        return statement, small.names, index
    return None


def _imports(line: cst.SimpleStatementLine) -> Iterator[cst.Import | cst.ImportFrom]:
    for small in line.body:
        if isinstance(small, (cst.Import, cst.ImportFrom)):
            yield small


def _dotted(node: cst.BaseExpression | None) -> str:
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        return f"{_dotted(node.value)}.{node.attr.value}"
    return ""


def _module_of(node: cst.ImportFrom) -> str:
    return "." * len(node.relative) + _dotted(node.module)


def _is_star(node: cst.ImportFrom) -> bool:
    return isinstance(node.names, cst.ImportStar)


def _provides(node: cst.Import | cst.ImportFrom, package: str, name: str) -> bool:
    if isinstance(node, cst.Import):
        return not name and any(
            alias.asname is None and (_dotted(alias.name) + ".").startswith(package + ".") for alias in node.names
        )
    if isinstance(node.names, cst.ImportStar):
        return False
    if not name:
        return False  # `from a import b` binds b, where the plan writes a.b
    return _module_of(node) == package and any(
        _dotted(alias.name) == name and (alias.asname is None or _alias(alias.asname) == name) for alias in node.names
    )


def _alias(asname: cst.AsName) -> str:
    return asname.name.value if isinstance(asname.name, cst.Name) else ""


def _added_name(module: SourceModule, node: cst.ImportFrom, name: str) -> Edit:
    if isinstance(node.names, cst.ImportStar):
        raise _CannotFix
    first, last = module.place(node.names[0]), module.place(node.names[-1])
    line = _line(module, last.line, last.cell)
    column = last.end_column
    if isinstance(node.names[-1].comma, cst.Comma) and line[column - 1 : column] == ",":
        column += 1  # the place of an alias ends before its comma
    has_comma = line[: column - 1].rstrip().endswith(",")
    apart = last.line > first.line and not line[: last.column - 1].strip()
    separator = module.newline + line[: last.column - 1] if apart else " "
    text = f"{separator}{name}," if has_comma else f",{separator}{name}"
    return Edit(_at(last, last.end_line, column), text)


def _is_docstring(statement: cst.CSTNode) -> bool:
    return (
        isinstance(statement, cst.SimpleStatementLine)
        and isinstance(statement.body[0], cst.Expr)
        and isinstance(statement.body[0].value, (cst.SimpleString, cst.ConcatenatedString))
    )


_EDITS: Mapping[str, Callable[[Change, set[cst.CSTNode]], Iterator[Edit]]] = {
    "insert-before": _insert_before,
    "insert-after": _insert_after,
    "replace": _replace,
    "delete": _delete,
    "dedent": _dedent,
    "import": _import,
    "unimport": _unimport,
}
