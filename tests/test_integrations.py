"""What runs amplint elsewhere: the pre-commit hooks, the GitHub Action, and the commands of the README."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from conftest import CLIPPED, Amplint

ROOT = Path(__file__).parent.parent
HOOKS = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
#: a whole program, so that the real analysis is sure of every object
PROGRAM = CLIPPED.replace(
    "def train(model, optimizer, loader):\n",
    "def train(model, loader):\n    optimizer = torch.optim.SGD(model.parameters(), 0.1)\n",
)


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def project(here: Path) -> Path:
    """A repository with one faulty and one excluded file, both staged."""
    git(here, "init", "-q")
    (here / "train.py").write_text(PROGRAM)
    (here / "legacy.py").write_text(PROGRAM)
    (here / "amplint.toml").write_text('extend-exclude = ["legacy.py"]\n')
    git(here, "add", ".")
    return here


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook["id"])
def test_hooks_call_what_there_is(hook: dict[str, object], here: Path, amplint: Amplint) -> None:
    assert hook["language"] == "python"
    assert hook["require_serial"] is True
    command = str(hook["entry"]).split()
    assert command[0] == "amplint"
    (here / "clean.py").write_text("x = 1\n")
    assert amplint(*command[1:], "clean.py").status == 0


@pytest.fixture(scope="module")
def hooks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the files of this one as they are now, committed or not."""
    folder = tmp_path_factory.mktemp("hooks")
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, text=True, check=False).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file() and not name.startswith(("fixtures/", "tests/")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "a")
    return folder


def pre_commit(hooks: Path, hook: str, project: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a hook on all files of a project, in an environment that pre-commit makes for it."""
    command = [sys.executable, "-m", "pre_commit", "try-repo", str(hooks), hook, "--all-files"]
    environment = {**os.environ, "PRE_COMMIT_HOME": str(hooks.parent / "pre-commit"), **variables}
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_pre_commit_runs_the_hooks(project: Path, hooks: Path) -> None:
    found = pre_commit(hooks, "amplint", project)
    assert found.returncode == 1, found.stdout + found.stderr
    assert "train.py:" in found.stdout
    assert "AMP201" in found.stdout
    assert "legacy.py" not in found.stdout
    assert "exit code: 1" in found.stdout
    fixed = pre_commit(hooks, "amplint-fix", project)
    assert "files were modified by this hook" in fixed.stdout
    assert "scaler.unscale_(optimizer)" in (project / "train.py").read_text()
    assert (project / "legacy.py").read_text() == PROGRAM
    assert pre_commit(hooks, "amplint", project).returncode == 0


def torch_that_is_here(folder: Path) -> dict[str, str]:
    """The settings of pip under which torch is a wheel that only leads to the one that is installed: nothing is
    downloaded."""
    torch = pytest.importorskip("torch")
    version = f"{torch.__version__.partition('+')[0]}+here"
    about = f"torch-{version}.dist-info"
    members = {
        "torch_that_is_here.pth": f"{Path(torch.__file__).parent.parent}\n",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    members[f"{about}/RECORD"] = "".join(f"{name},,\n" for name in [*members, f"{about}/RECORD"])
    with zipfile.ZipFile(folder / f"torch-{version}-py3-none-any.whl", "w") as wheel:
        for name, text in members.items():
            wheel.writestr(name, text)
    (folder / "constraints.txt").write_text(f"torch=={version}\n")
    links = f"{folder} {os.environ.get('PIP_FIND_LINKS', '')}".strip()
    return {"PIP_FIND_LINKS": links, "PIP_CONSTRAINT": str(folder / "constraints.txt")}


@pytest.mark.slow
def test_pre_commit_verifies(project: Path, hooks: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    found = pre_commit(hooks, "amplint-verify", project, **torch_that_is_here(tmp_path_factory.mktemp("wheels")))
    assert found.returncode == 1, found.stdout + found.stderr
    assert "error[AMP201]" in found.stdout
    assert re.search(r"verdict: confirmed on (cpu|cuda)", found.stdout), found.stdout
    assert "legacy.py" not in found.stdout


def test_the_action_takes_inputs_through_the_environment_only() -> None:
    assert ACTION["runs"]["using"] == "composite"
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step["run"]
        for value in step["env"].values():
            name = re.fullmatch(r"\$\{\{ inputs\.([\w-]+) \}\}", value)
            assert name is not None
            assert name[1] in ACTION["inputs"]


@pytest.mark.slow
def test_the_action_checks_annotates_and_writes_sarif(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    work = tmp_path_factory.mktemp("runner")
    environment = {**os.environ, "RUNNER_TEMP": str(work), "GITHUB_ACTION_PATH": str(ROOT)}
    environment |= {"GITHUB_PATH": str(work / "path"), "GITHUB_OUTPUT": str(work / "output"), "GITHUB_ACTIONS": "true"}
    inputs = {name: str(entry["default"]) for name, entry in ACTION["inputs"].items()}
    inputs |= {"sarif-file": "out.sarif", "paths": "train.py legacy.py", "args": "--force-exclude --color never"}

    def run(step: dict[str, object]) -> subprocess.CompletedProcess[str]:
        given = {key: inputs[value.split(".")[1].split()[0]] for key, value in step["env"].items()}  # type: ignore[attr-defined]
        paths = (work / "path").read_text().split() if (work / "path").exists() else []
        variables = {**environment, **given, "PATH": os.pathsep.join([*paths, os.environ["PATH"]])}
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", str(step["run"])]
        return subprocess.run(command, cwd=project, env=variables, capture_output=True, text=True, check=False)

    install, check = ACTION["runs"]["steps"]
    installed = run(install)
    assert installed.returncode == 0, installed.stderr
    checked = run(check)
    assert checked.returncode == 1, checked.stderr
    assert "error[AMP201]" in checked.stdout
    assert "::error title=AMP201" in checked.stdout
    assert "legacy.py" not in checked.stdout
    assert (project / "out.sarif").is_file()
    assert (work / "output").read_text() == "sarif-file=out.sarif\n"
    git(project, "commit", "-q", "-m", "a")
    inputs |= {"since": "HEAD", "format": "concise json:out.json"}
    assert run(check).returncode == 0
    (project / "train.py").write_text(PROGRAM.replace("1.0)", "2.0)"))
    again = run(check)
    assert again.returncode == 1, again.stderr
    assert "AMP201 [clip-before-unscale]" in again.stdout
    assert "::error title=AMP201" in again.stdout
    assert (project / "out.json").is_file()
    inputs["since"] = "nowhere"
    assert run(check).returncode == 2
    inputs |= {"since": "", "paths": ""}
    (project / "train.py").write_text("x = 1\n")
    assert run(check).returncode == 0


def test_the_readme_shows_commands_and_keys_that_exist(amplint: Amplint, here: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    options = {*re.findall(r"(?<![\w-])--[a-z][a-z-]+", amplint("check", "--help").out)}
    options |= {*re.findall(r"(?<![\w-])--[a-z][a-z-]+", amplint("verify", "--help").out)}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", readme)) <= options
    (table,) = re.findall(r"```toml\n(.*?)```", readme, re.DOTALL)
    (here / "pyproject.toml").write_text(table)
    (here / "a.py").write_text("x = 1\n")
    result = amplint(".")
    assert result.status == 0, result.err
