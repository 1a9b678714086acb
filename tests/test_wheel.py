"""What is installed: the wheel, built from the sdist, holds package and rules, and works far from the checkout."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from conftest import CLIPPED

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(wheel, sdist)"""
    out = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "build", "--outdir", out, ROOT], check=True, capture_output=True)
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, sdist


def in_tree(folder: str, suffix: str = ".py") -> set[str]:
    return {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / folder).rglob(f"*{suffix}")
        if "__pycache__" not in path.parts
    }


def test_the_wheel_holds_the_package_and_the_rules_and_nothing_else(built: tuple[Path, Path]) -> None:
    names = {name for name in zipfile.ZipFile(built[0]).namelist() if ".dist-info/" not in name}
    rules = {f"amplint/{name}" for name in in_tree("rules")}
    assert names == in_tree("amplint") | rules | {"amplint/py.typed"}


def test_the_sdist_holds_what_its_tests_need(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert in_tree("amplint") | in_tree("rules") | in_tree("tests") | in_tree("fixtures") <= names
    assert (
        in_tree("tests", ".json") | {"README.md", "LICENSE", "CHANGELOG.md", "constraints.txt", "action.yml"} <= names
    )


def test_the_wheel_works_far_from_the_checkout(built: tuple[Path, Path], tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    bin_ = tmp_path / "venv" / ("Scripts" if sys.platform == "win32" else "bin")
    subprocess.run([bin_ / "python", "-m", "pip", "install", "-q", built[0]], check=True, capture_output=True)
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text(CLIPPED.replace("\n\ndef train(", "\noptimizer = None\n\n\ndef train("))

    def amplint(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([bin_ / "amplint", *arguments], cwd=project, capture_output=True, text=True, check=False)

    listed = json.loads(amplint("rules", "--format", "json").stdout)
    assert len(listed) == len(in_tree("rules")) - 1
    done = amplint("--output-format", "json", ".")
    assert done.returncode in (0, 1), done.stderr
    assert json.loads(done.stdout)["summary"]["parsed"] == 1
    assert json.loads(done.stdout)["errors"] == []
    as_module = subprocess.run(
        [bin_ / "python", "-m", "amplint", "explain", "AMP201"],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )
    assert as_module.returncode == 0
    leaked = subprocess.run([bin_ / "python", "-c", "import rules"], cwd=project, capture_output=True, check=False)
    assert leaked.returncode == 1
    without_torch = amplint("verify", ".")
    assert "Traceback" not in without_torch.stderr
    assert without_torch.returncode in (0, 1, 2)
