"""The cache of results: what it saves, what makes it ask again, and that it never changes what is said."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import CLIPPED, Amplint

from amplint import analysis, cache, jobs
from amplint.config import Settings
from amplint.engine import check
from amplint.run import Run

CLIP = "        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
PROGRAM = CLIPPED.replace(
    "def train(model, optimizer, loader):\n",
    "def train(model, loader):\n    optimizer = torch.optim.SGD(model.parameters(), 0.1)\n",
)
HELPER = "import torch\n\n\ndef limit(model):\n    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
MAIN = "from tools.clips import limit\n" + PROGRAM.replace(CLIP, "        limit(model)\n")


@pytest.fixture
def analysed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are really analysed, as they are."""
    real, seen = jobs.analyse_job, []

    def counted(job: jobs.Job) -> jobs.Result:
        seen.append(job.file.display)
        return real(job)

    monkeypatch.setattr(jobs, "analyse_job", counted)
    return seen


@pytest.fixture
def project(here: Path) -> Path:
    (here / "pyproject.toml").write_text("")
    (here / "tools").mkdir()
    (here / "tools" / "clips.py").write_text(HELPER)
    (here / "main.py").write_text(MAIN)
    (here / "alone.py").write_text(PROGRAM)
    return here


def run(caching: bool = True, settings: Settings | None = None, **more: object) -> Run:
    result = check([Path()], settings or Settings(), jobs=1, caching=caching, **more)  # type: ignore[arg-type]
    assert result.errors == [], result.errors[0].traceback
    return result


def said(result: Run) -> list[str]:
    return [repr(finding) for finding in result.findings]


def test_a_second_run_analyses_nothing_and_says_the_same(project: Path, analysed: list[str]) -> None:
    first = run()
    assert sorted(analysed) == ["alone.py", "main.py"]
    assert [finding.rule for finding in first.findings] == ["AMP201", "AMP201"]
    assert first.findings[0].fix is not None
    analysed.clear()
    second = run()
    assert analysed == []
    assert said(second) == said(first) == said(run(caching=False))
    assert (second.parsed, second.screened_out) == (first.parsed, first.screened_out)


Change = Callable[[Path], object]


@pytest.mark.parametrize(
    ("change", "again"),
    [
        (lambda folder: (folder / "main.py").write_text("# more\n" + MAIN), ["main.py"]),
        (lambda folder: (folder / "alone.py").write_text(PROGRAM.replace(CLIP, "")), ["alone.py"]),
        (lambda folder: (folder / "tools" / "clips.py").write_text(HELPER + "# more\n"), ["main.py"]),
        (lambda folder: (folder / "tools" / "clips.py").write_text("def limit(model):\n    pass\n"), ["main.py"]),
        (lambda folder: (folder / "tools" / "clips.py").unlink(), ["main.py"]),
        # a file of that name nearer to the importer takes the place of the one that was found
        (lambda folder: (folder / "tools" / "clips").mkdir() or (folder / "tools/clips/__init__.py").touch(), []),
        (lambda folder: (folder / "unrelated.py").write_text("x = 1\n"), []),
        (lambda folder: (folder / "main.py").touch(), []),
    ],
    ids=["itself", "alone", "imported", "imported-emptied", "imported-removed", "shadowed", "unrelated", "touched"],
)
def test_only_what_a_change_can_concern_is_analysed_again(
    project: Path, analysed: list[str], change: Change, again: list[str]
) -> None:
    run()
    analysed.clear()
    change(project)
    result = run()
    assert analysed == again
    assert said(result) == said(run(caching=False))


def test_a_file_that_appears_is_seen_by_those_that_import_it(project: Path, analysed: list[str]) -> None:
    clips = project / "tools" / "clips.py"
    clips.unlink()
    assert [finding.place.path for finding in run().findings] == ["alone.py"]
    clips.write_text(HELPER)
    analysed.clear()
    assert [finding.place.path for finding in run().findings] == ["alone.py", "tools/clips.py"]
    assert analysed == ["main.py"]


def test_what_an_imported_file_imports_counts_as_well(here: Path, analysed: list[str]) -> None:
    (here / "pyproject.toml").write_text("")
    (here / "main.py").write_text(MAIN.replace("tools.clips", "middle"))
    (here / "middle.py").write_text("from last import limit\n\n# backward\n")
    (here / "last.py").write_text(HELPER)
    first = run()
    (here / "last.py").write_text(HELPER.replace("clip_grad_norm_(model.parameters(), 1.0)", "clip_grad_norm_"))
    analysed.clear()
    second = run()
    assert "main.py" in analysed
    assert said(second) == said(run(caching=False))
    assert said(first) != said(second)


def test_settings_and_targets_have_entries_of_their_own(project: Path, analysed: list[str]) -> None:
    run()
    analysed.clear()
    run(settings=Settings(torch="2.4"))
    assert sorted(analysed) == ["alone.py", "main.py"]
    run(settings=Settings(clip_functions=("a.b",)))
    assert len(analysed) == 4
    run()
    assert len(analysed) == 4


def test_another_program_knows_nothing(project: Path, analysed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    run()
    monkeypatch.setattr(cache, "_program", lambda: "another")
    analysed.clear()
    run()
    assert len(analysed) == 2


def test_a_file_that_changes_during_the_run_is_not_kept(
    project: Path, analysed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = analysis.analyse

    def meddling(*arguments: object, **more: object) -> object:
        found = real(*arguments, **more)  # type: ignore[arg-type]
        (project / "tools" / "clips.py").write_text(HELPER.replace("1.0", "2.0"))
        return found

    with monkeypatch.context() as patch:
        patch.setattr(analysis, "analyse", meddling)
        run()
    analysed.clear()
    assert said(run()) == said(run(caching=False))
    assert "main.py" in analysed


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"program": 1}', b"\xff\xfe", b"null"])
def test_a_damaged_entry_is_as_good_as_none(project: Path, analysed: list[str], damage: bytes) -> None:
    first = run()
    entries = list((project / cache.FOLDER).rglob("*.json"))
    assert len(entries) == 2
    for entry in entries:
        entry.write_bytes(damage)
    analysed.clear()
    assert said(run()) == said(first)
    assert len(analysed) == 2
    analysed.clear()
    run()
    assert analysed == []


def test_entries_are_plain_data_out_of_sight(project: Path) -> None:
    run()
    folder = project / cache.FOLDER
    assert (folder / ".gitignore").read_text() == "*\n"
    assert (folder / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55")
    for entry in folder.rglob("*.json"):
        assert set(json.loads(entry.read_bytes())) == {"program", "data", "asked", "found"}
    assert not list(folder.rglob("*.tmp"))


def test_a_folder_that_cannot_be_written_is_no_fault(project: Path, amplint: Amplint) -> None:
    (project / "file").write_text("")
    result = amplint("--cache-dir", "file/inside", "--output-format", "concise", ".")
    assert result.status == 1
    assert "AMP201" in result.out


def test_options(project: Path, amplint: Amplint) -> None:
    assert amplint("--no-cache", ".").status == 1
    assert not (project / cache.FOLDER).exists()
    assert amplint("--cache-dir", "kept/here", ".").status == 1
    assert list((project / "kept" / "here").rglob("*.json"))
    assert not (project / cache.FOLDER).exists()
    (project / "sub").mkdir()
    (project / "amplint.toml").write_text("")
    assert amplint(".").status == 1
    assert (project / cache.FOLDER).is_dir()


def test_fixes_see_the_text_as_it_is(project: Path, amplint: Amplint) -> None:
    amplint(".")
    assert "scaler.unscale_(optimizer)" in amplint("--diff", "alone.py").out
    amplint("--fix", "alone.py")
    assert amplint("alone.py").status == 0


def test_results_of_worker_processes_are_kept(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "MIN_PARALLEL_FILES", 1)
    monkeypatch.setattr(jobs, "MIN_PARALLEL_BYTES", 1)
    first = check([Path()], Settings(), jobs=2, caching=True)
    monkeypatch.setattr(jobs, "analyse_job", None)
    assert said(check([Path()], Settings(), caching=True)) == said(first)


def test_runs_side_by_side_say_the_same(project: Path) -> None:
    command = [sys.executable, "-m", "amplint", "--output-format", "concise", "--quiet", "."]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outs = {process.communicate()[0] for process in running}
    assert len(outs) == 1
    assert outs == {subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout}
    assert [process.returncode for process in running] == [1, 1, 1]
