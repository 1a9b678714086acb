"""Output formats: what each one holds, that it is valid, and that no text of the user's can break it."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest
from conftest import CLIPPED, Amplint, notebook

from amplint.config import Settings
from amplint.files import SourceFile
from amplint.finding import Confidence, Edit, Finding, Fix, Place, Severity, Step, Verdict
from amplint.report import FORMATS, Options, render
from amplint.run import InternalError, Run, Sources
from amplint.suppress import Suppressed

SOURCE = 'scaler.scale(loss).backward()\n\n\n\n\nclip("é", 1)\nscaler.step(optimizer)\n'
HOSTILE = 'a|b <c> `d` "e" %0A ::error:: \x1b[31m\x00 é 😀 ]]>&'


def finding(line: int = 6, path: str = "train.py", **changes: Any) -> Finding:
    place = Place(path, line, 1, line, 13)
    there = Finding(
        rule="AMP201",
        name="clip-before-unscale",
        severity=Severity.ERROR,
        confidence=Confidence.HIGH,
        place=place,
        message="clipped while scaled",
        steps=(
            Step(Place(path, 1, 1, 1, 30), "scaled backward"),
            Step(place, "clipped"),
            Step(Place("lib.py", 1, 1, 1, 5), "in a helper"),
        ),
        assumptions=("use_amp is true",),
        fix=Fix("safe", "insert scaler.unscale_(optimizer)", (Edit(Place(path, line, 1, line, 1), "unscale\n"),)),
        url="https://amplint.readthedocs.io/rules/clip-before-unscale/",
        fingerprint="0123456789abcdef",
        statement=(line, line),
    )
    return replace(there, **changes)


def made(*findings: Finding, **more: Any) -> Run:
    root = Path("/project")
    contents = {root / "train.py": SOURCE.encode(), root / "lib.py": b"help()\n"}
    files = (SourceFile(root / "train.py", "train.py"), SourceFile(root / "lib.py", "lib.py"))
    contents |= {root / "book.ipynb": notebook(("markdown", "#"), ("code", ["%time\n", "clip()\n"])).encode()}
    sources = Sources({**{f.display: f.path for f in files}, "book.ipynb": root / "book.ipynb"}, contents)
    return Run(Settings(root), "2.9", sources, files, parsed=2, findings=list(findings), **more)


def text(name: str, run: Run, **options: bool) -> str:
    stream = io.StringIO()
    render(name, run, stream, Options(**options))
    return stream.getvalue()


def parsed(name: str, run: Run) -> Any:
    return json.loads(text(name, run))


def valid(name: str, run: Run) -> Any:
    schema = json.loads((Path(__file__).parent / "schemas" / f"{name}.json").read_text())
    form = {"sarif-2.1.0": "sarif", "gitlab-code-quality": "gitlab"}.get(name, name)
    data = parsed(form, run)
    checker = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    checker.validate(data)
    return data


CONFIRMED = Verdict("confirmed", "cpu", "2.13.0", "norm 1.5e-05, reference 1.0", "nominal", 0.21, fix_verified=True)
REFUTED = Verdict("refuted", "cpu", "2.13.0", "gradients agree in 7 variants")
IN_NOTEBOOK = finding(path="book.ipynb", place=Place("book.ipynb", 2, 1, 2, 7, 2), steps=(), fix=None)
SHOWN = [
    pytest.param((), id="nothing"),
    pytest.param((finding(),), id="one"),
    pytest.param((finding(), finding(7, severity=Severity.WARNING, steps=(), fix=None, target="2.3")), id="two"),
    pytest.param((finding(verdict=CONFIRMED),), id="confirmed"),
    pytest.param((finding(verdict=REFUTED, confidence=Confidence.LOW),), id="refuted"),
    pytest.param((IN_NOTEBOOK,), id="notebook"),
    pytest.param((finding(message=HOSTILE, assumptions=(HOSTILE,)),), id="hostile-message"),
    pytest.param((finding(path="odd %|`é\udcff name.py"),), id="hostile-path"),
    pytest.param((finding(severity=Severity.INFO),), id="info"),
]


# -- full ------------------------------------------------------------------------------------------------


def test_a_frame_shows_every_step() -> None:
    assert (
        text("full", made(finding())).split("\nFound")[0]
        == """\
error[AMP201]: clipped while scaled
 --> train.py:6:1
  |
1 | scaler.scale(loss).backward()
  | ----------------------------- scaled backward
...
6 | clip("é", 1)
  | ^^^^^^^^^^^^ clipped
 ::: lib.py:1:1
  |
1 | help()
  | ---- in a helper
  |
  = assuming: use_amp is true
  = help: insert scaler.unscale_(optimizer) (safe fix)
  = see: https://amplint.readthedocs.io/rules/clip-before-unscale/
"""
    )


def test_steps_that_do_not_read_downwards_are_numbered() -> None:
    steps = (Step(Place("train.py", 7, 1, 7, 5), "stepped"), Step(Place("train.py", 1, 1, 1, 5), "scaled again"))
    shown = text("full", made(finding(steps=steps)))
    assert "---- 1. stepped" in shown
    assert "---- 2. scaled again" in shown


def test_columns_are_those_of_a_terminal() -> None:
    source = "\tx = '広い', clip()\n"
    run = made(finding(1, steps=(), place=Place("train.py", 1, 12, 1, 18)))
    run.sources._contents = {Path("/project/train.py"): source.encode()}
    lines = text("full", run).splitlines()
    assert lines[3] == "1 |     x = '広い', clip()"
    assert lines[4] == "  | " + " " * (4 + len("x = '") + 4 + len("', ")) + "^^^^^^"


def test_a_long_line_is_cut_around_what_matters() -> None:
    source = "x = '" + "a" * 5000 + "'; clip(); y = '" + "b" * 5000 + "'\n"
    column = source.index("clip") + 1
    run = made(finding(1, steps=(), place=Place("train.py", 1, column, 1, column + 6)))
    run.sources._contents = {Path("/project/train.py"): source.encode()}
    code, mark = text("full", run).splitlines()[3:5]
    assert len(code) < 180
    start = mark.index("^")
    assert code[start : start + 6] == "clip()"


def test_nothing_of_the_users_steers_the_terminal() -> None:
    run = made(finding(message="a\x1b[2Jb", path="a\x1b]0;x\x07.py"))
    for name in ("full", "concise", "markdown"):
        assert "\x1b" not in text(name, run)
        assert "\x07" not in text(name, run)


def test_verdicts_are_shown_and_refuted_findings_dimmed() -> None:
    shown = text("full", made(finding(verdict=CONFIRMED)), color=False)
    assert "= verdict: confirmed on cpu, torch 2.13.0: norm 1.5e-05, reference 1.0" in shown
    assert "\x1b[2m" in text("full", made(finding(verdict=REFUTED)), color=True)
    static = Verdict("static-only")
    assert "static-only" in text("full", made(finding(verdict=static)))
    inconclusive = Verdict("inconclusive", reason="needs cuda")
    assert "inconclusive on cpu: needs cuda" in text("full", made(finding(verdict=inconclusive)))


def test_a_frame_for_a_cell() -> None:
    shown = text("full", made(IN_NOTEBOOK))
    assert " --> book.ipynb:cell 2:2:1\n" in shown
    assert "2 | clip()\n" in shown


def test_a_file_that_is_gone_has_no_frame_but_a_finding() -> None:
    assert "gone.py:6:1" in text("full", made(finding(path="gone.py")))


# -- concise, json ---------------------------------------------------------------------------------------


def test_concise_is_one_line_each() -> None:
    lines = text("concise", made(finding(), IN_NOTEBOOK)).splitlines()
    assert lines[0] == "train.py:6:1: AMP201 [clip-before-unscale] error: clipped while scaled"
    assert lines[1].startswith("book.ipynb:cell 2:2:1: AMP201 ")


def test_json_is_as_promised() -> None:
    run = made(finding(verdict=CONFIRMED, target="2.3"), screened_out=7, seconds=0.41234)
    run.suppressed = [Suppressed(finding(7), "ignore", "known")]
    run.errors = [InternalError("a.py", "AMP101", "0123456789ab", "ValueError: x", "Traceback ...")]
    data = parsed("json", run)
    assert data["version"] == 1
    assert data["tool"]["name"] == "amplint"
    assert data["target"] == {"torch": "2.9"}
    assert data["summary"] == {
        "files": 2,
        "screened_out": 7,
        "parsed": 2,
        "findings": 1,
        "suppressed": 1,
        "fixable": 1,
        "seconds": 0.412,
    }
    (found,) = data["findings"]
    assert found == {
        "rule": "AMP201",
        "name": "clip-before-unscale",
        "severity": "error",
        "confidence": "high",
        "path": "train.py",
        "cell": None,
        "line": 6,
        "column": 1,
        "end_line": 6,
        "end_column": 13,
        "message": "clipped while scaled",
        "steps": found["steps"],
        "assumptions": ["use_amp is true"],
        "fix": {
            "safety": "safe",
            "title": "insert scaler.unscale_(optimizer)",
            "edits": [
                {
                    "path": "train.py",
                    "cell": None,
                    "line": 6,
                    "column": 1,
                    "end_line": 6,
                    "end_column": 1,
                    "text": "unscale\n",
                }
            ],
        },
        "fingerprint": "0123456789abcdef",
        "url": "https://amplint.readthedocs.io/rules/clip-before-unscale/",
        "verdict": {
            "status": "confirmed",
            "device": "cpu",
            "torch": "2.13.0",
            "figure": "norm 1.5e-05, reference 1.0",
            "variant": "nominal",
            "seconds": 0.21,
            "reason": None,
            "assumptions": [],
            "fix_verified": True,
        },
        "target": "2.3",
    }
    assert found["steps"][0] == {
        "path": "train.py",
        "cell": None,
        "line": 1,
        "column": 1,
        "end_line": 1,
        "end_column": 30,
        "message": "scaled backward",
    }
    assert data["suppressed"][0]["suppression"] == {"kind": "ignore", "reason": "known"}
    assert data["errors"] == [
        {"file": "a.py", "rule": "AMP101", "traceback_hash": "0123456789ab", "message": "ValueError: x"}
    ]
    assert parsed("json", made(IN_NOTEBOOK))["findings"][0]["cell"] == 2
    assert parsed("json", made(IN_NOTEBOOK))["findings"][0]["verdict"] is None


# -- sarif -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("findings", SHOWN)
def test_sarif_is_valid(findings: tuple[Finding, ...]) -> None:
    errors = [InternalError("a.py", None, "0123456789ab", HOSTILE, HOSTILE)]
    data = valid(
        "sarif-2.1.0", made(*findings, suppressed=[Suppressed(f, "baseline") for f in findings], errors=errors)
    )
    (run,) = data["runs"]
    assert not run["invocations"][0]["executionSuccessful"]
    for result in run["results"]:
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]


def test_sarif_for_code_scanning_is_silent_about_what_is_suppressed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    data = valid("sarif-2.1.0", made(finding(), suppressed=[Suppressed(finding(7), "ignore", "known")]))
    assert len(data["runs"][0]["results"]) == 1


def test_sarif_tells_the_path_the_fix_and_the_suppression() -> None:
    run = made(finding(verdict=CONFIRMED), suppressed=[Suppressed(finding(7), "ignore", "known")])
    shown, silenced = valid("sarif-2.1.0", run)["runs"][0]["results"]
    flow = shown["codeFlows"][0]["threadFlows"][0]["locations"]
    assert [step["location"]["message"]["text"] for step in flow] == ["scaled backward", "clipped", "in a helper"]
    assert [location["id"] for location in shown["relatedLocations"]] == [1, 2, 3]
    assert shown["fixes"][0]["artifactChanges"][0]["replacements"][0]["insertedContent"] == {"text": "unscale\n"}
    assert shown["partialFingerprints"] == {"amplint/v1": "0123456789abcdef"}
    assert shown["properties"]["verdict"]["status"] == "confirmed"
    assert "suppressions" not in shown
    assert silenced["suppressions"] == [{"kind": "inSource", "status": "accepted", "justification": "known"}]


def test_sarif_finds_cells_in_the_file() -> None:
    (result,) = valid("sarif-2.1.0", made(IN_NOTEBOOK))["runs"][0]["results"]
    location = result["locations"][0]
    assert location["logicalLocations"][0]["name"] == "cell 2, line 2"
    line = location["physicalLocation"]["region"]["startLine"]
    assert "clip()" in notebook(("markdown", "#"), ("code", ["%time\n", "clip()\n"])).splitlines()[line - 1]


# -- github, gitlab, junit, rdjson, markdown -------------------------------------------------------------


def test_github_escapes_and_names_the_place() -> None:
    (line,) = text("github", made(finding(message="100%\nsure", path="a,b:c.py"))).splitlines()
    assert line == (
        "::error title=AMP201 (clip-before-unscale),file=a%2Cb%3Ac.py,line=6,endLine=6,col=1,endColumn=13"
        "::a,b:c.py:6:1: 100%25%0Asure%0Ahttps://amplint.readthedocs.io/rules/clip-before-unscale/"
    )
    several = text("github", made(finding(place=Place("train.py", 6, 1, 7, 2))))
    assert ",col=" not in several
    assert "line=6,endLine=7::" in several
    assert text("github", made(finding(severity=Severity.INFO))).startswith("::notice ")


def test_github_shows_the_most_severe_and_puts_the_rest_into_the_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [finding(i, severity=Severity.WARNING) for i in range(1, 15)] + [finding(i) for i in range(1, 13)]
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    lines = text("github", made(*many)).splitlines()
    assert [line.split()[0] for line in lines] == ["::error"] * 10 + ["::warning"] * 10
    summary = (tmp_path / "summary.md").read_text()
    assert summary.count("| `train.py:") == 6
    text("github", made(finding()))
    assert (tmp_path / "summary.md").read_text() == summary


def test_github_paths_are_relative_to_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_WORKSPACE", "/")
    assert "file=project/train.py," in text("github", made(finding()))


@pytest.mark.parametrize("findings", SHOWN)
def test_gitlab_is_valid(findings: tuple[Finding, ...]) -> None:
    issues = valid("gitlab-code-quality", made(*findings))
    assert len(issues) == len(findings)


def test_gitlab_paths_are_relative_to_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI_PROJECT_DIR", "/")
    (issue,) = parsed("gitlab", made(finding()))
    assert issue["location"] == {"path": "project/train.py", "lines": {"begin": 6, "end": 6}}
    assert issue["severity"] == "major"


@pytest.mark.parametrize("findings", SHOWN)
def test_rdjson_is_valid(findings: tuple[Finding, ...]) -> None:
    assert len(valid("rdjson", made(*findings))["diagnostics"]) == len(findings)


def test_rdjson_counts_columns_in_bytes() -> None:
    (diagnostic,) = parsed("rdjson", made(finding()))["diagnostics"]
    assert diagnostic["location"]["range"] == {"start": {"line": 6, "column": 1}, "end": {"line": 6, "column": 14}}
    assert diagnostic["suggestions"][0]["text"] == "unscale\n"
    (in_cell,) = parsed("rdjson", made(IN_NOTEBOOK))["diagnostics"]
    assert "column" not in in_cell["location"]["range"]["start"]


@pytest.mark.parametrize("findings", SHOWN)
def test_junit_is_well_formed(findings: tuple[Finding, ...]) -> None:
    errors = [InternalError("a.py", None, "0123456789ab", HOSTILE, HOSTILE)] if findings else []
    shown = text("junit", made(*findings, errors=errors)).encode("utf-8", "backslashreplace")
    root = ElementTree.fromstring(shown)
    assert root.tag == "testsuites"
    cases = list(root.iter("testcase"))
    assert int(root.get("tests", "")) == len(cases) == max(len(findings) + len(errors), 1)
    for total, tag in (("failures", "failure"), ("errors", "error")):
        assert int(root.get(total, "")) == len(list(root.iter(tag)))
    for suite in root:
        assert suite.tag == "testsuite"
        assert int(suite.get("tests", "")) == len(suite)
        assert all(case.get("name") and case.get("classname") for case in suite)


def test_junit_passes_without_findings_and_skips_the_refuted() -> None:
    assert 'failures="0"' in text("junit", made())
    assert "<skipped" in text("junit", made(finding(verdict=REFUTED)))


@pytest.mark.parametrize("findings", SHOWN)
def test_markdown_has_one_row_each(findings: tuple[Finding, ...]) -> None:
    rows = [line for line in text("markdown", made(*findings)).splitlines() if line.startswith("|")]
    assert len(rows) == (len(findings) + 2 if findings else 0)
    for row in rows:
        assert row.replace("\\|", "").count("|") == 5


# -- several at once -------------------------------------------------------------------------------------


@pytest.fixture
def clipped(here: Path, fake_analysis: None) -> Iterator[Path]:
    (here / "train.py").write_text(CLIPPED)
    return here


def test_several_formats_in_one_run(clipped: Path, amplint: Amplint) -> None:
    outputs = [f"--output-format={name}:out.{name}" for name in FORMATS]
    result = amplint("--output-format", "concise", *outputs, ".")
    assert result.status == 1
    assert result.out.startswith("train.py:11:9: AMP201")
    for name in FORMATS:
        assert "AMP201" in (clipped / f"out.{name}").read_text()
    assert json.loads((clipped / "out.json").read_text())["summary"]["findings"] == 1


def test_annotations_are_added_in_github_actions(
    clipped: Path, amplint: Amplint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    both = amplint(".").out
    assert "error[AMP201]" in both
    assert "::error " in both
    assert "::error " not in amplint("--output-format", "full", ".").out


@pytest.mark.parametrize("name", list(FORMATS))
def test_an_empty_run_is_a_valid_report(here: Path, amplint: Amplint, name: str) -> None:
    result = amplint("--output-format", name, ".")
    assert result.status == 0
    if name in ("json", "sarif", "gitlab", "rdjson"):
        json.loads(result.out)
