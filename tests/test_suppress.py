"""Suppression comments: where they count, what is said of those that do nothing, and how that is repaired."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import CLIP_LINE, CLIPPED, Amplint, Result, notebook

from amplint.source import SourceModule
from amplint.suppress import directives

pytestmark = pytest.mark.usefixtures("fake_analysis")

LONG = """\
scaler.scale(
    loss
).backward()
torch.nn.utils.clip_grad_norm_(
    model.parameters(),
    1.0,
)
scaler.step(optimizer)
"""


def check(amplint: Amplint, text: str, *options: str, name: str = "a.py") -> Result:
    return amplint("--output-format", "json", *options, "--stdin-filename", name, "-", stdin=text.encode())


def reported(amplint: Amplint, text: str, *options: str, name: str = "a.py") -> list[tuple[str, int]]:
    return [(f["rule"], f["line"]) for f in check(amplint, text, *options, name=name).json["findings"]]


def at(line: int, comment: str, text: str = LONG) -> str:
    lines = text.splitlines(keepends=True)
    lines[line - 1] = f"{lines[line - 1].rstrip()}  {comment}\n"
    return "".join(lines)


@pytest.mark.parametrize("line", [4, 5, 7])
def test_any_line_of_the_statement_will_do(here: Path, amplint: Amplint, line: int) -> None:
    assert reported(amplint, LONG) == [("AMP201", 4)]
    run = check(amplint, at(line, "# amplint: ignore[AMP201] measured, see notes")).json
    assert run["findings"] == []
    assert run["suppressed"][0]["rule"] == "AMP201"
    assert run["suppressed"][0]["suppression"] == {"kind": "ignore", "reason": "measured, see notes"}
    assert run["summary"]["suppressed"] == 1


@pytest.mark.parametrize("line", [1, 3])
def test_any_step_will_do(here: Path, amplint: Amplint, line: int) -> None:
    assert reported(amplint, at(line, "# amplint: ignore[AMP201]")) == []


def test_the_line_above_will_do_if_the_comment_is_alone_there(here: Path, amplint: Amplint) -> None:
    above = LONG.replace("torch.nn", "# amplint: ignore[AMP201] why\ntorch.nn")
    assert reported(amplint, above) == []
    stacked = LONG.replace("torch.nn", "# amplint: ignore[AMP201]\n# amplint: ignore[AMP101]\ntorch.nn")
    assert ("AMP201", 6) not in reported(amplint, stacked)
    apart = LONG.replace("torch.nn", "# amplint: ignore[AMP201]\n\ntorch.nn")
    assert ("AMP201", 6) in reported(amplint, apart)
    of_another = LONG.replace("torch.nn", "x = 1  # amplint: ignore[AMP201]\ntorch.nn")
    assert ("AMP201", 5) in reported(amplint, of_another)


@pytest.mark.parametrize(
    "comment",
    [
        "# amplint: ignore[AMP201]",
        "# amplint: ignore[clip-before-unscale]",
        "# amplint: ignore[AMP203, AMP201]",
        "#amplint:ignore[amp201]",
        "# amplint:  ignore [AMP201,]  reason",
        "# type: ignore  # amplint: ignore[AMP201] reason  # pragma: no cover",
        "# noqa: AMP201",
        "# noqa: E501,AMP201",
        "# noqa: E501 AMP201 reason",
        "#noqa:amp201",
        "# NOQA",
        "# amplint: ignore",
    ],
)
def test_forms_that_silence(here: Path, amplint: Amplint, comment: str) -> None:
    assert ("AMP201", 4) not in reported(amplint, at(4, comment))


@pytest.mark.parametrize(
    "comment",
    [
        "# amplint: ignore[AMP203]",
        "# noqa: E501",
        "# amplint ignore[AMP201]",
        "# amplint: file-ignore[AMP201]",
        "# noqa: AMP2",
        "# noqaAMP201",
    ],
)
def test_forms_that_do_not(here: Path, amplint: Amplint, comment: str) -> None:
    assert ("AMP201", 4) in reported(amplint, at(4, comment))


def test_comments_in_strings_are_no_comments(here: Path, amplint: Amplint) -> None:
    text = LONG.replace("1.0,", "'# amplint: ignore[AMP201]',")
    assert reported(amplint, text) == [("AMP201", 4)]


@pytest.mark.parametrize(
    "head",
    [
        "# amplint: file-ignore[AMP201] generated\n",
        '"""Doc."""\n# amplint: file-ignore[AMP201]\n',
        "#!/usr/bin/python\n\n# amplint: file-ignore[AMP201]\n",
    ],
)
def test_a_file_can_be_silenced_at_its_top(here: Path, amplint: Amplint, head: str) -> None:
    run = check(amplint, head + LONG).json
    assert run["findings"] == []
    assert run["suppressed"][0]["suppression"]["kind"] == "file-ignore"


def test_below_the_first_statement_a_file_is_not_silenced(here: Path, amplint: Amplint) -> None:
    assert reported(amplint, "import torch\n# amplint: file-ignore[AMP201]\n" + LONG) == [("AMP901", 2), ("AMP201", 6)]


# -- unused ----------------------------------------------------------------------------------------------


def unused(amplint: Amplint, text: str, *options: str) -> list[str]:
    return [f["message"] for f in check(amplint, text, *options).json["findings"] if f["rule"] == "AMP901"]


def test_what_silences_nothing_is_reported(here: Path, amplint: Amplint) -> None:
    assert unused(amplint, "x = 1  # amplint: ignore[AMP201]\n") == ["nothing is suppressed here for AMP201"]
    assert unused(amplint, "# amplint: file-ignore[AMP201]\nx = 1\n") == ["nothing is suppressed here for AMP201"]
    assert unused(amplint, at(4, "# amplint: ignore[AMP201, AMP203]")) == ["nothing is suppressed here for AMP203"]
    assert unused(amplint, at(4, "# amplint: ignore[AMP201]")) == []


def test_what_names_no_rule_is_reported(here: Path, amplint: Amplint) -> None:
    assert unused(amplint, at(4, "# amplint: ignore")) == ["the suppression names no rule"]
    assert unused(amplint, at(4, "# amplint: ignore[clip-befor-unscale]")) == [
        "'clip-befor-unscale' is no rule; did you mean 'clip-before-unscale'?"
    ]
    assert unused(amplint, at(4, "# amplint: ignroe[AMP201]")) == ["`ignroe` is no suppression; did you mean 'ignore'?"]


def test_only_rules_that_ran_count(here: Path, amplint: Amplint) -> None:
    text = "x = 1  # amplint: ignore[AMP201]\n"
    assert unused(amplint, text, "--ignore", "AMP201") == []
    assert unused(amplint, text, "--select", "AMP901,AMP1") == []
    assert unused(amplint, "x = 1  # amplint: ignore[AMP601]\n") == []
    assert unused(amplint, "x = 1  # amplint: ignore[AMP601]\n", "--min-severity", "info") != []
    assert unused(amplint, "x = 1  # amplint: ignore[AMP601]\n", "--min-severity", "info", "--torch", "2.3") == []
    assert unused(amplint, text, "--min-severity", "error") == []


def test_a_finding_below_the_confidence_threshold_is_a_use(here: Path, amplint: Amplint) -> None:
    text = at(5, "# amplint: ignore[AMP201]").replace("1.0,", "1.0, guess=1,")
    run = check(amplint, text).json
    assert run["findings"] == run["suppressed"] == []


@pytest.mark.parametrize("comment", ["# noqa: AMP201", "# noqa", "# noqa: E501"])
def test_noqa_is_never_reported(here: Path, amplint: Amplint, comment: str) -> None:
    assert reported(amplint, f"x = 1  {comment}\n") == []


def test_the_report_itself_is_silenced_by_name_only(here: Path, amplint: Amplint) -> None:
    assert unused(amplint, "x = 1  # amplint: ignore[AMP201, AMP901]\n") == []
    assert unused(amplint, "# amplint: file-ignore[unused-suppression]\nx = 1  # amplint: ignore[AMP201]\n") == []
    assert unused(amplint, "x = 1  # amplint: ignore\n") == ["the suppression names no rule"]


def test_files_that_cannot_be_parsed_have_no_unused_suppressions(here: Path, amplint: Amplint) -> None:
    assert reported(amplint, "def f(:  # amplint: ignore[AMP201]\n") == [("AMP902", 1)]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = 1  # amplint: ignore[AMP201] why\n", "x = 1\n"),
        ("if x:\n    # amplint: ignore[AMP201]\n    y\n", "if x:\n    y\n"),
        ("x = 1  # amplint: ignore[AMP201]", "x = 1"),
        ("x = 1  # type: ignore  # amplint: ignore[AMP201]\n", "x = 1  # type: ignore\n"),
        ("x = 1  # amplint: ignore[AMP201]  # type: ignore\n", "x = 1  # type: ignore\n"),
        (at(4, "# amplint: ignore[AMP203, AMP201] why"), at(4, "# amplint: ignore[AMP201] why")),
        (at(4, "# amplint: ignore"), at(4, "# amplint: ignore[AMP201]")),
        ("x = 1  # amplint: ignore[AMP201]\r\ny = 2\r\n", "x = 1\r\ny = 2\r\n"),
    ],
)
def test_what_is_unused_can_be_removed(here: Path, amplint: Amplint, before: str, after: str) -> None:
    (here / "a.py").write_bytes(before.encode())
    amplint("--select", "AMP201,AMP203,AMP901", "--fix", "a.py")
    assert (here / "a.py").read_bytes().decode() == after


# -- notebooks, and adding -------------------------------------------------------------------------------


def test_notebooks_are_silenced_by_cell(here: Path, amplint: Amplint) -> None:
    cells = ("import torch\n", at(4, "# amplint: ignore[AMP201]"), LONG)
    text = notebook(*(("code", cell) for cell in cells))
    run = check(amplint, text, name="a.ipynb").json
    assert [(f["cell"], f["line"]) for f in run["findings"]] == [(3, 4)]
    assert [(f["cell"], f["line"]) for f in run["suppressed"]] == [(2, 4)]


def test_suppressions_can_be_added_for_all_findings(here: Path, amplint: Amplint) -> None:
    (here / "a.py").write_text(LONG + CLIPPED)
    (here / "b.py").write_text(at(7, "# amplint: ignore[AMP101] old  # more"))
    (here / "c.ipynb").write_text(notebook(("code", LONG)))
    assert amplint("--add-ignore", ".").status == 0
    assert amplint("--select", "AMP201", ".").status == 0
    text = (here / "a.py").read_text()
    assert text.splitlines()[6] == ")  # amplint: ignore[AMP201]"
    assert text.splitlines()[8 + CLIP_LINE - 1].endswith("1.0)  # amplint: ignore[AMP201]")
    assert ")  # amplint: ignore[AMP101, AMP201] old  # more\n" in (here / "b.py").read_text()


def test_suppressions_can_be_added_with_a_reason(here: Path, amplint: Amplint) -> None:
    (here / "a.py").write_text(CLIPPED)
    (here / "b.py").write_text(CLIPPED.replace("1.0)", "1.0)  # amplint: ignore[AMP101] mine"))
    assert amplint("--add-ignore=the scale is 1", ".").status == 0
    assert "1.0)  # amplint: ignore[AMP201] the scale is 1\n" in (here / "a.py").read_text()
    assert "1.0)  # amplint: ignore[AMP101, AMP201] mine\n" in (here / "b.py").read_text()
    assert amplint("--select", "AMP201", ".").status == 0


def test_a_suppression_that_the_encoding_cannot_hold(here: Path, amplint: Amplint) -> None:
    text = f"# coding: latin-1\n{CLIPPED}"
    (here / "a.py").write_text(text)
    result = amplint("--add-ignore=→", "a.py")
    assert (result.status, result.err) == (
        2,
        "error: the suppressions cannot be written as iso-8859-1: ordinal not in range(256)\n",
    )
    assert (here / "a.py").read_text() == text


def test_suppressions_for_standard_input(here: Path, amplint: Amplint) -> None:
    result = amplint("--add-ignore", "-", stdin=CLIPPED.encode())
    assert result.out == CLIPPED.replace("1.0)", "1.0)  # amplint: ignore[AMP201]")
    assert amplint("--add-ignore", "-", stdin=b"x = 1\n").out == "x = 1\n"


def test_directives_know_their_own_place() -> None:
    module = SourceModule("a.py", "x = 1  # a  # amplint: ignore[AMP201] because  # b\n")
    (directive,) = directives(module)
    assert (
        module.text[directive.place.column - 1 : directive.place.end_column - 1] == "# amplint: ignore[AMP201] because"
    )
    assert (directive.reason, directive.codes, directive.alone) == ("because", ("AMP201",), False)
