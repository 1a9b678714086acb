"""The command line: commands, exit codes, what is said of mistakes, and that nothing ends in a traceback."""

from __future__ import annotations

import io
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.shell_completion import BashComplete
from conftest import CLIP_LINE, CLIPPED, Amplint, notebook, stand_in

import amplint as package
from amplint import analysis, jobs, registry
from amplint.cli import cli
from amplint.terminal import Progress

FIXED = CLIPPED.replace("        torch.nn", "        scaler.unscale_(optimizer)\n        torch.nn")


@pytest.fixture
def clipped(here: Path, fake_analysis: None) -> Path:
    (here / "train.py").write_text(CLIPPED)
    (here / "clean.py").write_text("x = 1\n")
    return here


# -- exit codes ------------------------------------------------------------------------------------------


def test_status_0_without_findings_and_1_with(clipped: Path, amplint: Amplint) -> None:
    assert amplint("clean.py").status == 0
    assert amplint(".").status == 1
    assert amplint("check", ".").status == 1
    assert amplint("--exit-zero", ".").status == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.py"], "no such file or folder: 'missing.py'"),
        (["clean.py", "missing.py"], "'missing.py'"),
        (["chekc"], "did you mean 'check'?"),
        (["explian"], "did you mean 'explain'?"),
        (["--selct", "AMP201", "."], "--select"),
        (["--select", "AMP777", "."], "unknown rule 'AMP777'"),
        (["--ignore", "clip-befor-unscale", "."], "did you mean 'clip-before-unscale'?"),
        (["--min-severity", "fatal", "."], "fatal"),
        (["--output-format", "jsn", "."], "did you mean 'json'?"),
        (["--output-format", "json:", "."], "names no file"),
        (["--output-format", "json", "--output-format", "sarif", "."], "cannot share standard output"),
        (["--output-format", "json:no/such/folder.json", "."], "no/such/folder.json"),
        (["--torch", "new", "."], "--torch: must be a torch version"),
        (["--device", "tpu", "."], "--device: must be"),
        (["--config", "missing.toml", "."], "missing.toml"),
        (["--baseline", "missing.json", "."], "missing.json"),
        (["--since", "HEAD", "."], "--since"),
        (["--jobs", "0", "."], "0"),
        (["-", "clean.py"], "cannot be checked together"),
        (["explain", "AMP777"], "no such rule: 'AMP777'"),
        (["explain", "clip-befor-unscale"], "did you mean 'clip-before-unscale'?"),
    ],
)
def test_status_2_for_wrong_usage(clipped: Path, amplint: Amplint, arguments: list[str], said: str) -> None:
    result = amplint(*arguments)
    assert result.status == 2
    assert said in result.err
    assert "Traceback" not in result.err


def test_a_path_named_like_a_command(clipped: Path, amplint: Amplint) -> None:
    (clipped / "check").mkdir()
    (clipped / "check" / "a.py").write_text(CLIPPED)
    assert "check/a.py" in amplint("./check", "--output-format", "concise").out


def test_the_version_is_instant() -> None:
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "amplint", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"amplint {package.__version__}\n"
    assert time.perf_counter() - started < 1.5
    code = "import sys, amplint.cli; print(sorted({'libcst', 'pathspec', 'torch', 'rich'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_ctrl_c_while_the_program_starts_is_no_failure_of_it() -> None:
    code = """
import sys
class Interrupting:
    def find_spec(self, name, *_):
        if name == "amplint.cli":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
from amplint.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_checking_does_not_import_torch(here: Path) -> None:
    (here / "train.py").write_text(CLIPPED)
    code = (
        "import sys; from amplint.engine import check; from amplint.config import Settings; from pathlib import Path\n"
    )
    code += "check([Path()], Settings()); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_help_is_shown_for_every_command(amplint: Amplint) -> None:
    for command in ([], ["check"], ["verify"], ["explain"], ["rules"]):
        result = amplint(*command, "--help")
        assert result.status == 0
        assert "Usage: amplint" in result.out


# -- what is checked -------------------------------------------------------------------------------------


def test_a_folder_is_checked_by_default(clipped: Path, amplint: Amplint) -> None:
    assert "train.py:11:9: AMP201 [clip-before-unscale] error: " in amplint("check", "--output-format", "concise").out


def test_standard_input(here: Path, amplint: Amplint, fake_analysis: None) -> None:
    result = amplint("--output-format", "concise", "-", stdin=CLIPPED.encode())
    assert result.status == 1
    assert result.out.startswith("-:11:9: AMP201")
    named = amplint("--stdin-filename", "src/a.py", "--output-format", "concise", "-", stdin=CLIPPED.encode())
    assert named.out.startswith("src/a.py:11:9: AMP201")
    book = notebook(("markdown", "#"), ("code", CLIPPED)).encode()
    cells = amplint("--stdin-filename", "a.ipynb", "--output-format", "concise", "-", stdin=book)
    assert cells.out.startswith("a.ipynb:cell 2:11:9: AMP201")


def test_standard_input_has_the_settings_of_its_name(here: Path, amplint: Amplint, fake_analysis: None) -> None:
    (here / "sub").mkdir()
    (here / "sub" / "amplint.toml").write_text('ignore = ["AMP201"]\n')
    assert amplint("--stdin-filename", "sub/a.py", "-", stdin=CLIPPED.encode()).status == 0
    assert amplint("--stdin-filename", "a.py", "-", stdin=CLIPPED.encode()).status == 1


def test_a_file_that_cannot_be_parsed_is_a_finding_and_the_run_goes_on(clipped: Path, amplint: Amplint) -> None:
    (clipped / "broken.py").write_text(CLIPPED + "def f(:\n")
    (clipped / "screened.py").write_text("def f(:\n")
    (clipped / "deep.py").write_text("scaler.scale(clip(" * 900)
    (clipped / "book.ipynb").write_text('{"scaler.scale(clip": ')
    result = amplint("--output-format", "concise", ".")
    assert result.status == 1
    reported = [(line.split(":")[0], line.split(": ")[1].split()[0]) for line in result.out.splitlines()]
    assert reported == [
        ("book.ipynb", "AMP902"),
        ("broken.py", "AMP902"),
        ("deep.py", "AMP902"),
        ("train.py", "AMP201"),
    ]
    alone = amplint("--output-format", "concise", "--select", "AMP902", ".").out
    assert [line.split(":")[0] for line in alone.splitlines()] == ["book.ipynb", "broken.py", "deep.py"]
    assert "screened.py:1:7: AMP902" in amplint("--output-format", "concise", "screened.py").out
    assert amplint("--ignore", "AMP902", "screened.py").status == 0


def test_a_file_that_cannot_be_read_is_a_finding(
    clipped: Path, amplint: Amplint, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_bytes = Path.read_bytes

    def guarded(path: Path) -> bytes:
        if path.name == "clean.py":
            raise PermissionError(13, "Permission denied")
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", guarded)
    result = amplint("--output-format", "concise", ".")
    assert "clean.py:1:1: AMP902 [unreadable-file] error: cannot be read: Permission denied" in result.out
    assert "train.py:11:9: AMP201" in result.out


def test_names_that_are_no_utf_8_do_not_stop_the_run(here: Path, amplint: Amplint, fake_analysis: None) -> None:
    (Path(os.fsdecode(os.fsencode(str(here)) + b"/\xff.py"))).write_text(CLIPPED)
    assert amplint(".").status == 1
    assert json.loads(amplint("--output-format", "json", ".").out)["summary"]["findings"] == 1
    assert amplint("--output-format", "sarif", ".").status == 1


def test_the_summary_says_what_was_looked_at(clipped: Path, amplint: Amplint) -> None:
    assert amplint(".").out.splitlines()[-1].startswith("Found 1 error in 1 file (2 files checked, 1 of them parsed")
    assert amplint("clean.py").out.startswith("No findings: 1 file checked, 0 of them parsed")
    (clipped / "empty").mkdir()
    assert amplint("empty").out == "No Python files found.\n"
    assert amplint("-q", "clean.py").out == ""


def test_findings_of_another_target_say_so(here: Path, amplint: Amplint, fake_analysis: None) -> None:
    (here / ".git").mkdir()
    for name, version in (("old", "2.3"), ("new", "2.9")):
        (here / name).mkdir()
        (here / name / "requirements.txt").write_text(f"torch>={version}\n")
        (here / name / "a.py").write_text(CLIPPED)
    run = amplint("--output-format", "json", ".").json
    assert run["target"] == {"torch": "2.13"}
    assert [f["target"] for f in run["findings"]] == ["2.9", "2.3"]
    assert "target" not in amplint("--output-format", "json", "old").json["findings"][0]
    assert amplint("--output-format", "json", "--torch", "2.6", ".").json["target"] == {"torch": "2.6"}


# -- faults of amplint's own -----------------------------------------------------------------------------


def test_an_internal_error_is_told_and_the_run_goes_on(clipped: Path, amplint: Amplint) -> None:
    (clipped / "odd.py").write_text(CLIPPED + "crash()\n")
    result = amplint("--output-format", "json", ".")
    assert result.status == 2
    run = result.json
    assert [f["path"] for f in run["findings"]] == ["train.py"]
    (error,) = run["errors"]
    assert (error["file"], error["rule"]) == ("odd.py", None)
    assert len(error["traceback_hash"]) == 12
    assert "internal error on odd.py" in result.err
    assert "Traceback" not in result.err
    assert amplint("--exit-zero", ".").status == 2
    assert "Traceback" in amplint("--verbose", ".").err
    assert amplint("--output-format", "json", ".").json["errors"] == run["errors"]


def test_a_rule_that_fails_does_not_silence_the_others(
    clipped: Path, amplint: Amplint, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = registry.find("AMP203")
    assert broken is not None

    namespace = {"__name__": type(broken).__module__}
    exec("def check(self, unit):\n    raise ValueError('of the rule')\n", namespace)
    monkeypatch.setattr(type(broken), "check", namespace["check"])

    def analyse(module: object, project: object, rules: list[object], target: str) -> object:
        for rule in rules:
            if rule is broken:
                broken.check(None)  # type: ignore[arg-type]
        return stand_in(module, project, rules, target)  # type: ignore[arg-type]

    monkeypatch.setattr(analysis, "analyse", analyse)
    run = amplint("--output-format", "json", ".").json
    assert [error["rule"] for error in run["errors"]] == ["AMP203"]
    assert [f["rule"] for f in run["findings"]] == ["AMP201"]


def test_what_fails_in_several_rules_is_told_once(
    clipped: Path, amplint: Amplint, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = [rule for rule in map(registry.find, ("AMP203", "AMP204")) if rule is not None]
    for rule in broken:
        namespace = {"__name__": type(rule).__module__}
        exec("def check(self, unit):\n    raise ValueError('of the engine')\n", namespace)
        monkeypatch.setattr(type(rule), "check", namespace["check"])

    def analyse(module: object, project: object, rules: list[object], target: str) -> object:
        for rule in broken:
            if rule in rules:
                rule.check(None)  # type: ignore[arg-type]
        return stand_in(module, project, rules, target)  # type: ignore[arg-type]

    monkeypatch.setattr(analysis, "analyse", analyse)
    result = amplint("--output-format", "json", ".")
    assert [error["rule"] for error in result.json["errors"]] == ["AMP203", "AMP204"]
    told = [line for line in result.err.splitlines() if line.startswith("internal error")]
    assert len(told) == 1
    assert told[0].endswith("of the engine (and in 1 more rule)")


def test_interruption_ends_with_130_and_no_traceback(here: Path) -> None:
    os.mkfifo(here / "pipe.py")
    process = subprocess.Popen(
        [sys.executable, "-m", "amplint", "pipe.py"], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    writer = _writer_of(here / "pipe.py")
    process.send_signal(signal.SIGINT)
    os.close(writer)  # Python sees a signal that comes just before read() only when that returns
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert out == err.strip() == ""


def _writer_of(pipe: Path) -> int:
    """The writing end of a pipe, as soon as somebody waits at the other one."""
    while True:
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            time.sleep(0.05)


def test_a_closed_pipe_is_no_fault(here: Path) -> None:
    (here / "a.py").write_text("def f(:\n" * 3)
    command = f"{sys.executable} -m amplint rules | head -n 1"
    done = subprocess.run(["bash", "-c", f"{command}; exit ${{PIPESTATUS[0]}}"], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.returncode in (0, 141)


# -- color -----------------------------------------------------------------------------------------------


def test_color_follows_the_option_and_the_environment(
    clipped: Path, amplint: Amplint, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "\x1b[" not in amplint(".").out
    assert "\x1b[" in amplint("--color", "always", ".").out
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in amplint(".").out
    assert "\x1b[" not in amplint("--color", "never", ".").out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in amplint(".").out
    assert "\x1b[" not in amplint("--output-format", "json", ".").out


# -- fixes -----------------------------------------------------------------------------------------------


def test_fixes_are_applied_and_told(clipped: Path, amplint: Amplint) -> None:
    result = amplint("--fix", ".")
    assert result.status == 0
    assert "fixed 1 finding in 1 file" in result.err
    assert (clipped / "train.py").read_text() == FIXED


def test_a_diff_changes_nothing_and_ends_with_1(clipped: Path, amplint: Amplint) -> None:
    result = amplint("--diff", ".")
    assert result.status == 1
    assert "+        scaler.unscale_(optimizer)\n" in result.out
    assert result.out.startswith("--- train.py\n+++ train.py\n@@ ")
    assert (clipped / "train.py").read_text() == CLIPPED
    assert amplint("--diff", "clean.py").status == 0
    assert amplint("--diff", "--exit-zero", ".").status == 0
    patched = subprocess.run(["patch", "-p0"], input=result.out, text=True, capture_output=True, check=False)
    assert patched.returncode == 0
    assert (clipped / "train.py").read_text() == FIXED


def test_a_file_that_changes_under_the_run_is_left_alone(
    clipped: Path, amplint: Amplint, monkeypatch: pytest.MonkeyPatch
) -> None:
    from amplint import fix

    def edited_meanwhile(*arguments: object) -> object:
        result = fix_all(*arguments)  # type: ignore[arg-type]
        (clipped / "train.py").write_text("x = 2\n")
        return result

    fix_all = fix.fix_all
    monkeypatch.setattr(fix, "fix_all", edited_meanwhile)
    assert "train.py has changed meanwhile" in amplint("--fix", "--no-cache", ".").err
    assert (clipped / "train.py").read_text() == "x = 2\n"


def test_standard_input_is_fixed_to_standard_output(here: Path, amplint: Amplint, fake_analysis: None) -> None:
    assert amplint("--fix", "-", stdin=CLIPPED.encode()).out == FIXED
    assert amplint("--fix", "-", stdin=b"x = 1\r\n").out == "x = 1\r\n"
    assert "+        scaler.unscale_" in amplint("--diff", "-", stdin=CLIPPED.encode()).out


# -- baseline, statistics, since -------------------------------------------------------------------------


def test_a_baseline_hides_what_is_known(clipped: Path, amplint: Amplint) -> None:
    assert amplint("--write-baseline", "known.json", ".").status == 0
    assert amplint("--baseline", "known.json", ".").status == 0
    (clipped / "train.py").write_text("# moved\n\n" + CLIPPED + CLIPPED.replace("train(", "again("))
    run = amplint("--baseline", "known.json", "--output-format", "json", ".").json
    assert [f["line"] for f in run["findings"]] == [2 * CLIP_LINE + 4]
    assert run["suppressed"][0]["suppression"]["kind"] == "baseline"
    (clipped / "amplint.toml").write_text('baseline = "known.json"\n')
    assert len(amplint("--output-format", "json", ".").json["findings"]) == 1


def test_stale_entries_of_a_baseline_are_told(clipped: Path, amplint: Amplint) -> None:
    amplint("--write-baseline", "known.json", ".")
    (clipped / "train.py").write_text("x = 1\n")
    assert "known.json holds 1 stale finding" in amplint("--baseline", "known.json", ".").err
    assert "stale" not in amplint("--baseline", "known.json", "clean.py").err
    assert "stale" not in amplint("--baseline", "known.json", "--select", "AMP101", ".").err
    assert "stale" not in amplint("--baseline", "known.json", "--min-confidence", "low", ".").err
    (clipped / "train.py").unlink()
    assert "1 stale finding" in amplint("--baseline", "known.json", ".").err
    assert "1 stale finding" in amplint("--baseline", "known.json", "clean.py").err
    (clipped / "known.json").write_text("[]")
    assert amplint("--baseline", "known.json", ".").status == 2


def test_a_baseline_names_files_from_its_own_folder(
    clipped: Path, amplint: Amplint, monkeypatch: pytest.MonkeyPatch
) -> None:
    (clipped / "amplint.toml").write_text('baseline = "known.json"\n')
    (clipped / "sub").mkdir()
    monkeypatch.chdir(clipped / "sub")
    assert amplint("--write-baseline", "../known.json", "..").status == 0
    assert [entry["path"] for entry in json.loads((clipped / "known.json").read_text())["findings"]] == ["train.py"]
    assert amplint("..").status == 0
    (clipped / "train.py").write_text("x = 1\n")
    assert "1 stale finding" in amplint("..").err


def test_fingerprints_do_not_depend_on_the_folder(
    clipped: Path, amplint: Amplint, monkeypatch: pytest.MonkeyPatch
) -> None:
    (clipped / ".git").mkdir()
    (clipped / "sub").mkdir()
    (clipped / "sub" / "a.py").write_text(CLIPPED)
    from_above = amplint("--output-format", "json", "sub").json["findings"][0]["fingerprint"]
    monkeypatch.chdir(clipped / "sub")
    assert amplint("--output-format", "json", ".").json["findings"][0]["fingerprint"] == from_above


def test_statistics_count_rules(clipped: Path, amplint: Amplint) -> None:
    result = amplint("--statistics", ".")
    assert result.status == 1
    assert result.out.splitlines()[0] == "1  AMP201  [*] clip-before-unscale"
    again = amplint("--statistics", "--output-format", "concise", "--output-format", "json:out.json", ".")
    assert again.out.splitlines()[0] == result.out.splitlines()[0]
    assert len(json.loads((clipped / "out.json").read_text())["findings"]) == 1


def test_statistics_stand_for_what_actions_would_show(
    clipped: Path, amplint: Amplint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert amplint("--statistics", ".").out.count("AMP201") == 1


def test_a_summary_that_cannot_be_written_is_told(
    here: Path, amplint: Amplint, fake_analysis: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "no/such/summary.md")
    for number in range(12):
        (here / f"f{number}.py").write_text(CLIPPED)
    result = amplint("--output-format", "github", ".")
    assert (result.status, result.err) == (2, "error: no/such/summary.md: No such file or directory\n")


def git(*arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *arguments], check=True, capture_output=True)


def test_since_shows_what_touches_changed_lines(clipped: Path, amplint: Amplint) -> None:
    (clipped / "book.ipynb").write_text(notebook(("code", CLIPPED)))
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "a")
    assert amplint("--since", "HEAD", ".").status == 0
    (clipped / "new.py").write_text(CLIPPED)
    (clipped / "train.py").write_text(CLIPPED.replace("optimizer.zero_grad()", "pass"))
    (clipped / "book.ipynb").write_text(notebook(("markdown", "new"), ("code", CLIPPED)))
    assert found(amplint("--since", "HEAD", "--output-format", "json", ".")) == [("new.py", CLIP_LINE)]
    (clipped / "train.py").write_text(CLIPPED.replace("scale(loss)", "scale(loss / 2)"))
    assert ("train.py", CLIP_LINE) in found(amplint("--since", "HEAD", "--output-format", "json", "."))
    (clipped / "train.py").write_text(FIXED)
    git("commit", "-q", "-a", "-m", "b")
    (clipped / "train.py").write_text(CLIPPED)
    assert ("train.py", CLIP_LINE) in found(amplint("--since", "HEAD", "--output-format", "json", "."))
    assert amplint("--since", "nowhere", ".").status == 2
    assert amplint("--since", "--output=x", ".").status == 2
    git("checkout", "-q", "train.py")
    git("mv", "clean.py", "moved.py")


def found(result: object) -> list[tuple[str, int]]:
    return [(f["path"], f["line"]) for f in result.json["findings"]]  # type: ignore[attr-defined]


def test_a_renamed_file_is_compared_with_what_it_was(clipped: Path, amplint: Amplint) -> None:
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "a")
    git("mv", "train.py", "moved.py")
    assert amplint("--since", "HEAD", ".").status == 0
    try:
        git("mv", "moved.py", os.fsdecode(b"\xff.py"))
    except subprocess.CalledProcessError:
        pytest.skip("the file system has no such names")
    assert amplint("--since", "HEAD", ".").status == 0


# -- rules and pages -------------------------------------------------------------------------------------


def test_rules_are_listed(amplint: Amplint) -> None:
    listed = json.loads(amplint("rules", "--format", "json").out)
    assert [row["code"] for row in listed] == [rule.code for rule in registry.all_rules()]
    assert all(
        set(row) == {"code", "name", "severity", "summary", "fix", "confirmed_by", "since", "url"} for row in listed
    )
    table = amplint("rules").out
    assert all(row["code"] in table and row["name"] in table for row in listed)


@pytest.mark.parametrize("spelling", ["AMP201", "amp201", "clip-before-unscale"])
def test_a_page_is_shown_by_code_or_name(amplint: Amplint, spelling: str) -> None:
    text = amplint("explain", spelling)
    assert text.status == 0
    assert text.out.startswith("AMP201 clip-before-unscale\n")
    assert "```" not in text.out
    markdown = amplint("explain", spelling, "--format", "markdown").out
    assert markdown.startswith("# clip-before-unscale (AMP201)\n")
    assert "## What it does" in markdown
    assert json.loads(amplint("explain", spelling, "--format", "json").out)["code"] == "AMP201"


# -- progress --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seconds", "shown"), [(1.9, ""), (2.1, "\r2 of 9 files analysed\r\x1b[K")])
def test_progress_is_shown_where_it_takes_time(monkeypatch: pytest.MonkeyPatch, seconds: float, shown: str) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    now = 0.0
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(time, "monotonic", lambda: now)
    progress = Progress(wanted=True)
    progress(1, 9)
    now = seconds
    progress(2, 9)
    progress(3, 9)  # at the same moment: not every file is worth a line
    progress.clear()
    assert sys.stderr.getvalue() == shown  # type: ignore[attr-defined]


def test_progress_is_for_those_who_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(time, "monotonic", itertools.count(0.0, 100.0).__next__)
    progress = Progress(wanted=True)
    progress(1, 9)
    assert sys.stderr.getvalue() == ""  # type: ignore[attr-defined]


# -- shells ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["ex"], ["explain"]),
        (["--extend-s"], ["--extend-select"]),
        (["explain", "AMP50"], ["AMP501", "AMP502", "AMP503", "AMP504"]),
        (["--select", "AMP201,half-e"], ["AMP201,half-ema", "AMP201,half-epsilon"]),
        (["check", "--output-format", "j"], ["json", "junit"]),
        (["--min-confidence", ""], ["low", "medium", "high"]),
    ],
)
def test_shells_complete(words: list[str], offered: list[str]) -> None:
    complete = BashComplete(cli, {}, "amplint", "_AMPLINT_COMPLETE")
    assert sorted(item.value for item in complete.get_completions(words[:-1], words[-1])) == sorted(offered)


def test_shells_complete_paths() -> None:
    complete = BashComplete(cli, {}, "amplint", "_AMPLINT_COMPLETE")
    for words in ([], ["check"], ["--fix"], ["verify", "a.py"], ["--config"]):
        assert [(item.value, item.type) for item in complete.get_completions(words, "sr")] == [("sr", "file")]


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_loads_the_completion() -> None:
    script = """
        eval "$(_AMPLINT_COMPLETE=bash_source amplint)"
        complete -p amplint
        COMP_WORDS=(amplint explain half-ep) COMP_CWORD=2
        _amplint_completion amplint && echo "${COMPREPLY[@]}"
    """
    environment = {**os.environ, "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-2:] == ["complete -o nosort -F _amplint_completion amplint", "half-epsilon"], done


# -- results do not depend on how the run is made --------------------------------------------------------


@pytest.fixture
def eager_to_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes are used however small the files are."""
    monkeypatch.setattr(jobs, "MIN_PARALLEL_BYTES", 0)


@pytest.mark.usefixtures("fake_analysis", "eager_to_fork")
def test_processes_and_order_do_not_change_the_result(here: Path, amplint: Amplint) -> None:
    for number in range(6):
        (here / f"f{number}.py").write_text(CLIPPED + ("crash()\n" if number == 3 else ""))

    def run(*arguments: str) -> dict[str, object]:
        result = amplint("--no-cache", "--output-format", "json", *arguments).json
        result["summary"].pop("seconds")
        return result

    one = run("--jobs", "1", ".")
    assert len(one["findings"]) == 5  # type: ignore[arg-type]
    assert run("--jobs", "3", ".") == one
    assert run("--jobs", "2", *sorted((p.name for p in here.glob("*.py")), reverse=True)) == one


@pytest.mark.usefixtures("eager_to_fork")
def test_a_worker_that_dies_is_an_internal_error(here: Path, amplint: Amplint, monkeypatch: pytest.MonkeyPatch) -> None:
    def deadly(module: object, *rest: object) -> object:
        if module.path == "f2.py":  # type: ignore[attr-defined]
            os._exit(9)
        return stand_in(module, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(analysis, "analyse", deadly)
    for number in range(5):
        (here / f"f{number}.py").write_text(CLIPPED)
    result = amplint("--output-format", "json", "--jobs", "2", ".")
    assert result.status == 2
    assert [error["file"] for error in result.json["errors"]] == ["f2.py"]
    assert [f["path"] for f in result.json["findings"]] == ["f0.py", "f1.py", "f3.py", "f4.py"]
