"""Files become text, trees and places; what is no Python is refused with a place, and never ends the process."""

from __future__ import annotations

import json

import libcst as cst
import libcst.matchers as m
import pytest
from conftest import notebook
from hypothesis import given
from hypothesis import strategies as st

from amplint.finding import Place
from amplint.notebook import Notebook, python_of
from amplint.source import SourceError, SourceModule


def find(module: SourceModule, name: str) -> cst.CSTNode:
    return m.findall(module.tree, m.Name(name))[0]


def module(text: str, path: str = "a.py") -> SourceModule:
    return SourceModule.from_bytes(text.encode(), path)


def refusal(data: bytes, path: str = "a.py") -> SourceError:
    with pytest.raises(SourceError) as refused:
        SourceModule.from_bytes(data, path).tree  # noqa: B018
    return refused.value


@pytest.mark.parametrize(
    ("data", "encoding", "text"),
    [
        pytest.param(b"x = 1\n", "utf-8", "x = 1\n", id="default"),
        pytest.param(b"\xef\xbb\xbfx = 1\n", "utf-8-sig", "x = 1\n", id="byte-order-mark"),
        pytest.param(
            "# coding: latin-1\nx = 'é'\n".encode("latin-1"), "iso-8859-1", "# coding: latin-1\nx = 'é'\n", id="cookie"
        ),
        pytest.param(b"#!/bin/sh\n# vim: fileencoding=cp1252\nx\n", "cp1252", None, id="second-line"),
    ],
)
def test_encodings_are_read_and_kept(data: bytes, encoding: str, text: str | None) -> None:
    read = SourceModule.from_bytes(data, "a.py")
    assert read.encoding == encoding
    assert text is None or read.text == text
    assert read.text.encode(read.encoding) == data


@pytest.mark.parametrize(
    ("data", "line", "message"),
    [
        pytest.param(b"x = 1\n\xe9\n", 2, "utf-8", id="not-utf-8"),
        pytest.param(b"# coding: nonsense\n", 1, "unknown encoding", id="unknown-encoding"),
        pytest.param(b"# coding: rot13\n", 1, "not a text encoding", id="no-text-encoding"),
        pytest.param(b"\xff\xfex\x00", 1, "encoding", id="utf-16"),
        pytest.param(b"x\n\x00\n", 2, "null bytes", id="null"),
        pytest.param(b"\x7fELF\x02\x01\x01\x00\x00", 1, "null bytes", id="binary"),
        pytest.param(b"x\nprint 'a'\n", 2, "print", id="python-2"),
        pytest.param(b"if x:\n\ty\n        z\n", 3, "", id="tabs"),
        pytest.param(b"f(1,\n  2", 1, "never closed", id="open-bracket"),
        pytest.param(b"(" * 5000 + b")" * 5000, 1, "nested too deeply", id="parentheses"),
        pytest.param(b"f(" * 5000, 1, "nested too deeply", id="calls"),
        pytest.param(b"[" * 5000, 1, "nested too deeply", id="open-lists"),
        pytest.param(b"lambda: " * 5000 + b"1", 1, "nested too deeply", id="lambdas"),
    ],
)
def test_what_is_no_python_is_refused_with_a_place(data: bytes, line: int, message: str) -> None:
    error = refusal(data)
    assert message in error.message
    assert (error.line, error.cell) == (line, None)


def test_python_that_the_parser_does_not_know_is_named_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(text: str) -> cst.Module:
        raise cst.ParserSyntaxError(
            "parser error: error at 2:3: expected one of ...", lines=[text], raw_line=2, raw_column=0
        )

    monkeypatch.setattr(cst, "parse_module", stuck)
    error = refusal(b"x = 1\ny = 2\n")
    assert (error.line, error.column) == (2, 3)
    assert "LibCST" in error.message


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("+".join(["1"] * 1000), id="sum"),
        pytest.param("if a: pass\n" + "elif b: pass\n" * 500, id="elifs"),
        pytest.param("not " * 500 + "x", id="nots"),
    ],
)
def test_deep_trees_have_places(text: str) -> None:
    read = module(text + "\n")
    assert read.place(read.tree.body[0]).line == 1


def test_long_lines_are_parsed() -> None:
    read = module("x = '" + "a" * 10_000_000 + "'\ny = 2\n")
    assert read.place(find(read, "y")) == Place("a.py", 2, 1, 2, 2)


def test_columns_count_characters() -> None:
    read = module("é = '😀'; b = 1\n")
    assert read.place(find(read, "b")) == Place("a.py", 1, 10, 1, 11)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_end_where_python_ends_them(end: str) -> None:
    read = module(f"a = 1{end}s = '\u2028\f'{end}b = 2{end}")
    assert read.newline == end
    assert read.place(find(read, "b")) == Place("a.py", 3, 1, 3, 2)
    assert read.segment(find(read, "b")) == "b"
    assert read.line_text(3) == "b = 2"


def test_places_leave_out_parentheses_and_comments() -> None:
    read = module("x = (a\n     + b)  # why\n")
    addition = m.findall(read.tree, m.BinaryOperation())[0]
    assert read.place(addition) == Place("a.py", 1, 6, 2, 9)
    assert read.segment(addition) == "a\n     + b"
    assert read.place(read.tree.body[0]) == Place("a.py", 1, 1, 2, 10)


COMPOUND = """\
@deco
@other(arg)
def f(
    a,
):  # what

    # for
    @inner
    def g(): quick
    if (cond
            and more):
        x = (one +
             two)
    elif also: short
    else:
        last
    try:
        trial
    except (A,
            B):
        caught
    with outer(p) as q, \\
            second:
        body
    match subject:
        case Pattern(): pass
"""


@pytest.mark.parametrize(
    ("name", "kind", "lines"),
    [
        ("deco", cst.FunctionDef, (1, 5)),
        ("arg", cst.FunctionDef, (1, 5)),
        ("a", cst.FunctionDef, (1, 5)),
        ("quick", cst.FunctionDef, (8, 9)),
        ("more", cst.If, (10, 11)),
        ("two", cst.SimpleStatementLine, (12, 13)),
        ("short", cst.If, (14, 14)),
        ("last", cst.SimpleStatementLine, (16, 16)),
        ("B", cst.Try, (19, 20)),
        ("second", cst.With, (22, 23)),
        ("subject", cst.Match, (25, 25)),
        ("Pattern", cst.Match, (26, 26)),
    ],
)
def test_statements_and_their_lines(name: str, kind: type, lines: tuple[int, int]) -> None:
    read = module(COMPOUND)
    node = find(read, name)
    assert type(read.statement(node)) is kind
    assert read.logical_line_range(node) == lines


def test_parents_lead_to_the_module() -> None:
    read = module("def f():\n    return g(x)\n")
    node: cst.CSTNode | None = find(read, "x")
    kinds = []
    while node is not None:
        kinds.append(type(node).__name__)
        node = read.parent(node)
    assert kinds == ["Name", "Arg", "Call", "Return", "SimpleStatementLine", "IndentedBlock", "FunctionDef", "Module"]


def test_comments_are_not_looked_for_in_strings() -> None:
    read = module("a = '# no'  # yes\n'''\n# no\n'''\n# also\n")
    assert list(read.comments()) == [(1, 13, "# yes"), (5, 1, "# also")]


# -- notebooks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "python"),
    [
        pytest.param("%matplotlib inline\nx = 1", "pass\nx = 1", id="line-magic"),
        pytest.param("if x:\n    !ls\ny", "if x:\n    pass\ny", id="shell-in-a-block"),
        pytest.param("!pip install \\\n  torch\ny", "pass\n\ny", id="continued-shell-line"),
        pytest.param("files = !ls\n", "files = ...\n", id="assignment-from-the-shell"),
        pytest.param("t = %timeit -o f()\n", "t = ...\n", id="assignment-from-a-magic"),
        pytest.param("torch.amp?\n?x\nx??\n", "pass\npass\npass\n", id="help"),
        pytest.param("%%bash\nls -la\necho 1", "\n\n", id="cell-of-another-language"),
        pytest.param("%%time\nx = 1\n", "\nx = 1\n", id="cell-magic-over-python"),
        pytest.param("\n%%capture out\nx = 1\n", "\n\nx = 1\n", id="blank-line-before-a-cell-magic"),
        pytest.param("x = (a\n% b)\n", "x = (a\n% b)\n", id="modulo-in-brackets"),
        pytest.param("x = a \\\n% b\n", "x = a \\\n% b\n", id="modulo-after-a-backslash"),
        pytest.param("'''\n%x\n!y\n'''\n", "'''\n%x\n!y\n'''\n", id="in-a-string"),
        pytest.param('"""a""" # """\n%x\n', '"""a""" # """\npass\n', id="quotes-in-a-comment"),
        pytest.param("x == y\nx != y\nf(a=!b)\n", None, id="no-magic"),
        pytest.param(
            "pip install -r requirements.txt\ncd ..\nx = 1\n", "pass\npass\nx = 1\n", id="magic-without-percent"
        ),
        pytest.param(
            "ls -l\ncat = f(\n    a)\ntime = 3\nrun (\n    b)\ncp if a else b\n", None, id="names-like-magics"
        ),
    ],
)
def test_what_belongs_to_ipython_is_blanked_line_for_line(cell: str, python: str | None) -> None:
    assert python_of(cell) == (cell if python is None else python)


CELLS = (
    ("markdown", ["# Title"]),
    ("code", ["%load_ext x\n", "import torch\n"]),
    ("code", "%%bash\nls\n"),
    ("code", ["x = 'é'\n", "\n", "y = x"]),
)


def test_places_in_notebooks_are_cell_and_line() -> None:
    read = module(notebook(*CELLS), "a.ipynb")
    assert read.is_notebook
    assert read.place(find(read, "torch")) == Place("a.ipynb", 2, 8, 2, 13, cell=2)
    assert read.place(find(read, "y")) == Place("a.ipynb", 3, 1, 3, 2, cell=4)
    assert read.logical_line_range(find(read, "y")) == (3, 3)
    assert read.program_line(3, 4) == read.line_of(read.text.index("y = x"))


def test_syntax_errors_in_notebooks_are_in_a_cell() -> None:
    error = refusal(notebook(("code", "x = 1"), ("code", ["y\n", "def f(:\n"])).encode(), "a.ipynb")
    assert (error.cell, error.line) == (2, 2)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"cells": 1}',
        '{"cells": [}',
        "null",
        '{"cells": [{"cell_type": "code", "source": 3}]}',
        "{" * 9999,
    ],
)
def test_broken_notebooks_are_refused(text: str) -> None:
    assert (
        "notebook" in refusal(text.encode(), "a.ipynb").message or "JSON" in refusal(text.encode(), "a.ipynb").message
    )


def test_half_a_surrogate_pair_is_refused() -> None:
    text = json.dumps({"cells": [{"cell_type": "code", "source": "x = '\ud800'"}]})
    error = refusal(text.encode(), "a.ipynb")
    assert (error.cell, error.line, error.column) == (1, 1, 6)


def test_notebooks_of_other_languages_hold_no_python() -> None:
    text = notebook(("code", "x <- 1"), kernelspec={"language": "R"})
    assert module(text, "a.ipynb").text == ""


@pytest.mark.parametrize("indent", [None, 1, 4])
def test_edits_leave_the_rest_of_a_notebook_as_it_was(indent: int | None) -> None:
    text = json.dumps(json.loads(notebook(*CELLS)), indent=indent, ensure_ascii=False) + "\n"
    read = Notebook.parse(text)
    same = read.with_sources({cell.index: cell.source for cell in read.cells})
    assert same == text
    changed = read.with_sources({4: "x = 'é'\n\nz = 1\ny = x"})
    before, after = json.loads(text), json.loads(changed)
    assert after["cells"][3]["source"] == ["x = 'é'\n", "\n", "z = 1\n", "y = x"]
    after["cells"][3]["source"] = before["cells"][3]["source"]
    assert after == before
    assert "é" in changed


def test_a_source_that_is_one_string_stays_one() -> None:
    read = Notebook.parse(notebook(("code", "x = 1\n")))
    assert json.loads(read.with_sources({1: "x = 2\n"}))["cells"][0]["source"] == "x = 2\n"


def test_lines_of_the_file_behind_cells() -> None:
    text = notebook(*CELLS)
    read = Notebook.parse(text)
    assert '"y = x"' in text.splitlines()[read.file_line(3, 4) - 1]


# -- properties ------------------------------------------------------------------------------------------


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for path in ("a.py", "a.ipynb"):
        error = None
        try:
            SourceModule.from_bytes(data, path).tree  # noqa: B018
        except SourceError as refused:
            error = refused
        assert error is None or (error.line >= 1 and error.column >= 1)


@given(st.lists(st.text(max_size=40), max_size=5))
def test_cells_of_any_text_keep_their_lines(sources: list[str]) -> None:
    read = Notebook.parse(notebook(*(("code", source) for source in sources)))
    for cell in read.cells:
        assert read.locate(read.program_line(1, cell.index), cell.index) == (cell.index, 1)
        python = python_of(cell.source)
        assert len(cst_lines(python)) == len(cst_lines(cell.source))


def cst_lines(text: str) -> list[str]:
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def test_a_long_table_of_lambdas_is_no_nest_of_them() -> None:
    table = "table = {\n" + "".join(f"    {key}: lambda a, b: a,\n" for key in range(3000)) + "}\n"
    assert SourceModule.from_bytes(table.encode(), "table.py").tree.body


def test_code_is_text_without_comments_and_messages() -> None:
    module = SourceModule("a.py", "save({'scaler': 1})  # unscale_\nlog('nothing is scaled here')\n")
    assert module.code == "save({'scaler': 1})  \nlog('')\n"
