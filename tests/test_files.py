"""Which files a run looks at, which version of torch they are for, and which rules the byte screen leaves."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import ClassVar

import pytest

from amplint.config import Configuration, Settings
from amplint.files import discover, display_path
from amplint.finding import Severity
from amplint.rule import Rule
from amplint.screen import Screen, code_of
from amplint.target import NEWEST, OLDEST, asked_for, lowest, target_of
from amplint.torch_facts import in_range


def tree(root: Path, *paths: str, **contents: str) -> None:
    for path in paths:
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x = 1\n")


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def found(root: Path, *paths: str, force: bool = False, settings: Settings | None = None) -> list[str]:
    configuration = Configuration() if settings is None else Configuration.fixed(settings)
    files, _ = discover([Path(p) for p in paths or (".",)], configuration.for_folder, root, force)
    return [file.display for file in files]


def test_python_files_and_notebooks_are_found_in_order(here: Path) -> None:
    tree(here, "b.py", "a.py", "n.ipynb", "w.pyw", "sub/c.py", "README.md", "data.json", "stub.pyi")
    assert found(here) == ["a.py", "b.py", "n.ipynb", "sub/c.py", "w.pyw"]


def test_a_path_is_checked_once_however_often_it_is_given(here: Path) -> None:
    tree(here, "sub/a.py")
    assert found(here, "sub", "sub/a.py", ".", "./sub/../sub/a.py") == ["sub/a.py"]


def test_hidden_and_foreign_folders_are_skipped_unless_named(here: Path) -> None:
    tree(
        here,
        "a.py",
        ".hidden/b.py",
        ".venv/c.py",
        "venv/d.py",
        "build/e.py",
        "node_modules/f.py",
        "src/__pycache__/g.py",
    )
    assert found(here) == ["a.py"]
    assert found(here, "build", ".hidden") == [".hidden/b.py", "build/e.py"]


def test_a_named_file_is_looked_at_whatever_it_is_called(here: Path) -> None:
    tree(here, "script", "a.txt")
    assert found(here) == []
    assert found(here, "script", "a.txt") == ["a.txt", "script"]


def test_ignore_files_bind_what_lies_under_them_and_the_deepest_decides(here: Path) -> None:
    (here / ".git").mkdir()
    tree(here, "a.py", "gen/b.py", "gen/keep.py", "sub/gen_c.py", "sub/deep/gen_d.py", "sub/x.py", "other/x.py")
    write(here / ".gitignore", "/gen/*\n!gen/keep.py\ngen_*\n")
    write(here / "sub" / ".gitignore", "/x.py\n!gen_c.py\n")
    assert found(here) == ["a.py", "gen/keep.py", "other/x.py", "sub/gen_c.py"]


def test_ignore_files_above_the_named_folder_count_inside_a_repository(here: Path) -> None:
    (here / ".git" / "info").mkdir(parents=True)
    write(here / ".git" / "info" / "exclude", "local.py\n")
    write(here / ".gitignore", "gen.py\n/data/\n")
    tree(here, "sub/a.py", "sub/gen.py", "sub/local.py", "data/b.py")
    assert found(here, "sub") == ["sub/a.py"]
    assert found(here, "data") == ["data/b.py"]
    assert found(here, "sub/gen.py") == ["sub/gen.py"]


def test_a_line_of_an_ignore_file_that_means_nothing_is_passed_over(here: Path) -> None:
    (here / ".git").mkdir()
    write(here / ".gitignore", "!\ngen.py\n[\n")
    tree(here, "a.py", "gen.py")
    assert found(here) == ["a.py"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="everything is open to root")
def test_a_folder_that_nobody_may_search_ends_no_run(here: Path) -> None:
    tree(here, "a.py", "closed/b.py")
    (here / "closed").chmod(0)
    try:
        assert found(here) == ["a.py"]
        assert found(here, "closed/b.py", "a.py") == ["a.py", "closed/b.py"]
    finally:
        (here / "closed").chmod(0o755)


def test_paths_are_shown_alike_on_every_system() -> None:
    base = PureWindowsPath(r"C:\project")
    assert display_path(PureWindowsPath(r"C:\project\src\a b.py"), base) == "src/a b.py"
    assert display_path(PureWindowsPath(r"D:\other\a.py"), base) == "D:/other/a.py"
    assert display_path(PurePosixPath("/project/a.py"), PurePosixPath("/project")) == "a.py"


def test_excludes_are_relative_to_the_configuration(here: Path) -> None:
    write(here / "pyproject.toml", '[tool.amplint]\nextend-exclude = ["legacy", "sub/old_*.py", "*_pb2.py"]\n')
    tree(here, "a.py", "legacy/b.py", "sub/legacy/c.py", "sub/old_d.py", "old_e.py", "sub/f_pb2.py", "build/g.py")
    assert found(here) == ["a.py", "old_e.py"]
    assert found(here / "sub") == []
    assert found(here, "legacy/b.py") == ["legacy/b.py"]


def test_exclude_replaces_the_default(here: Path) -> None:
    write(here / "amplint.toml", 'exclude = ["a.py"]\n')
    tree(here, "a.py", "build/g.py")
    assert found(here) == ["build/g.py"]


def test_force_exclude_binds_named_paths(here: Path) -> None:
    tree(here, "a.py", "legacy/b.py", "build/c.py")
    settings = Settings(extend_exclude=("legacy",))
    assert found(here, "a.py", "legacy/b.py", "build/c.py", force=True, settings=settings) == ["a.py"]
    assert found(here, "legacy", "build", force=True, settings=settings) == []


def test_symbolic_links_cannot_make_loops_or_doubles(here: Path) -> None:
    tree(here, "pkg/a.py")
    (here / "pkg" / "loop").symlink_to(here / "pkg", target_is_directory=True)
    (here / "pkg" / "again.py").symlink_to(here / "pkg" / "a.py")
    (here / "pkg" / "nowhere.py").symlink_to(here / "missing.py")
    (here / "pkg" / "self.py").symlink_to(here / "pkg" / "self.py")
    assert found(here) == ["pkg/a.py"]
    assert found(here, "pkg/loop") == ["pkg/loop/a.py"]


def test_pipes_are_left_alone(here: Path) -> None:
    os.mkfifo(here / "pipe.py")
    assert found(here) == []


def test_a_folder_that_cannot_be_listed_is_reported_and_the_walk_goes_on(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(here, "a.py", "closed/b.py", "open/c.py")
    scandir = os.scandir

    def guarded(folder: Path) -> object:
        if Path(folder).name == "closed":
            raise PermissionError(13, "Permission denied")
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", guarded)
    files, problems = discover([Path()], Configuration().for_folder, here)
    assert [file.display for file in files] == ["a.py", "open/c.py"]
    assert [(p.display, p.reason) for p in problems] == [("closed", "Permission denied")]


def test_paths_outside_of_the_current_folder_are_shown_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path, "in/a.py", "out/b.py")
    monkeypatch.chdir(tmp_path / "in")
    assert found(Path.cwd(), ".", "../out") == ["a.py", (tmp_path / "out/b.py").as_posix()]


# -- target ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("2.4", "2.4"),
        ("2.13.0+cpu", "2.13.0"),
        (">=2.3,<3", "2.3"),
        (">=1.13, !=2.0.0", "1.13"),
        ("==2.1.*", "2.1"),
        ("~=2.2", "2.2"),
        ("^2.4", "2.4"),
        (">2.0", "2.0"),
        ("<2.5", OLDEST),
        ("!=2.5", None),
        ("new", None),
        ("", None),
    ],
)
def test_of_a_range_the_lowest_version_counts(text: str, version: str | None) -> None:
    assert lowest(text) == version


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("pyproject.toml", '[project]\ndependencies = ["torchvision>=0.1", "torch>=2.4 ; python_version > \'3\'"]\n'),
        ("pyproject.toml", '[project]\n[project.optional-dependencies]\ntrain = ["Torch >= 2.4, < 3"]\n'),
        ("pyproject.toml", '[dependency-groups]\ndev = ["torch~=2.4", {include-group = "x"}]\n'),
        ("pyproject.toml", '[tool.poetry.dependencies]\ntorch = {version = "^2.4", optional = true}\n'),
        ("requirements-train.txt", "numpy\n-r base.txt\ntorch==2.4  # pinned\n"),
        ("requirements.txt", "torch[opt]>=2.4 --hash=sha256:00\ntorchaudio==0.1\n"),
        ("setup.cfg", "[options]\ninstall_requires =\n    numpy\n    torch>=2.4\n"),
        ("setup.cfg", "[options.extras_require]\nall =\n    torch>=2.4\n"),
    ],
)
def test_the_target_is_what_the_project_asks_for(here: Path, file: str, text: str) -> None:
    (here / ".git").mkdir()
    write(here / file, text)
    (here / "src" / "pkg").mkdir(parents=True)
    asked_for.cache_clear()
    assert target_of(here / "src" / "pkg", None) == "2.4"
    assert target_of(here / "src" / "pkg", "2.9") == "2.9"


def test_the_lowest_of_several_requirements_counts_and_the_nearest_folder(here: Path) -> None:
    (here / ".git").mkdir()
    write(here / "pyproject.toml", '[project]\ndependencies = ["torch>=2.6"]\n')
    write(here / "requirements.txt", "torch>=2.5\n")
    write(here / "sub" / "requirements.txt", "torch>=2.8\n")
    write(here / "bare" / "requirements.txt", "torch\n")
    asked_for.cache_clear()
    assert [target_of(here / name, None) for name in ("", "sub", "bare")] == ["2.5", "2.8", "2.5"]


def test_without_any_word_the_target_is_the_newest(here: Path) -> None:
    (here / ".git").mkdir()
    write(here / "pyproject.toml", "[broken")
    write(here / "setup.cfg", "nonsense")
    asked_for.cache_clear()
    assert target_of(here, None) == NEWEST


def test_versions_compare_as_numbers() -> None:
    assert in_range("2.13", ("2.4", None))
    assert not in_range("2.3.1", ("2.4", None))
    assert in_range("2.4.0", ("2.4", "2.5"))
    assert not in_range("2.10", (None, "2.10.0"))


# -- screen ----------------------------------------------------------------------------------------------


def rule(*groups: tuple[bytes, ...]) -> Rule:
    class Screened(Rule):
        code: ClassVar[str] = "AMP999"
        name = "screened"
        severity = Severity.ERROR
        needles = groups

        def check(self, unit: object) -> object:  # type: ignore[override]
            return iter(())

    return Screened()


@pytest.mark.parametrize(
    ("data", "passes"),
    [
        (b"with autocast(): loss.backward()", True),
        (b"with amp.foo(): loss.backward()", True),
        (b"with autocast(): pass", False),
        (b"loss.backward()", False),
        (b"", False),
    ],
)
def test_a_rule_passes_when_every_group_has_a_member(data: bytes, passes: bool) -> None:
    assert bool(Screen([rule((b"autocast", b"amp."), (b".backward(",))]).rules_for(data)) is passes


def test_quotes_in_notebooks_are_seen_through_json() -> None:
    screen = Screen([rule((b'"cuda"',))])
    assert screen.rules_for(rb'["autocast(\"cuda\")"]', is_notebook=True)
    assert not screen.rules_for(rb'["autocast(\"cpu\")"]', is_notebook=True)


def test_git_and_the_walk_agree(here: Path) -> None:
    subprocess.run(["git", "init", "-q"], check=True)
    write(here / ".gitignore", "*.py\n!keep*.py\n/sub/deep/\n**/scratch/\nsp\\ ace.py\n")
    write(here / "sub" / ".gitignore", "keep_not.py\n!again.py\n")
    tree(
        here, "a.py", "keep.py", "sub/keep_not.py", "sub/again.py", "sub/deep/keep.py", "x/scratch/keep.py", "sp ace.py"
    )
    listed = subprocess.run(
        ["git", "ls-files", "-o", "--exclude-standard", "*.py"], check=True, capture_output=True, text=True
    )
    assert found(here) == sorted(listed.stdout.splitlines())


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ('"""half"""\nx = 1  # .half\n', '""\nx = 1  \n'),
        ("x = 'is #none'  # but this is one\n", "x = 'is #none'  \n"),
        ("x = 'it is # no comment'  # but this is\n", "x = ''  \n"),
        ("x = r'''a \\''' b'''\ny = '\"\"\"'\nz = '\"\"\"'\n", "x = ''\ny = '\"\"\"'\nz = '\"\"\"'\n"),
        ('x = f"""{model.half()}"""\n', 'x = "{model.half()}"\n'),
        ('"never closed\nmodel.half()  # here\n', '"never closed\nmodel.half()  \n'),
        ('"""never closed\nmodel.half()\n', '"""never closed\nmodel.half()\n'),
    ],
)
def test_docstrings_and_comments_are_no_code(source: str, code: str) -> None:
    assert code_of(source.encode()).decode() == code


def test_hostile_quotes_take_no_time() -> None:
    for data in (b"b" * 3_000_000, b"'" * 3_000_001, b'"' * 1_000_001, b"\\" * 3_000_000, b"f'" * 1_000_001):
        code_of(data)
