"""Which torch version a file is written for: what was asked for, else what its project depends on.

Of a range the lowest version counts, since a finding must be true for every version the project supports.
"""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from amplint import toml

#: the newest torch that the rules were checked against; the target where nothing is known
NEWEST = "2.13"
#: the first torch with autocast and GradScaler: the target of a project that only names an upper bound
OLDEST = "1.6"
_TORCH_LINE = re.compile(r"torch\s*(?:$|[<>=!~;\[ ,@#])", re.IGNORECASE)
_REPOSITORY = (".git", ".hg", ".svn")


def target_of(folder: Path, explicit: str | None) -> str:
    """The target version of the files in an absolute folder."""
    return explicit or asked_for(folder) or NEWEST


def lowest(text: str) -> str | None:
    """The lowest version that "2.4", "^2.4" or ">=2.3,<3" allows; None for what is no version or range."""
    text = text.strip().replace(" ", "")
    try:
        return str(Version(text).base_version)
    except InvalidVersion:
        pass
    poetry = re.fullmatch(r"\^(\d+(?:\.\d+)*)(?:,.*)?", text)
    if poetry:
        return poetry[1]
    try:
        specifiers = SpecifierSet(text)
    except InvalidSpecifier:
        return None
    floors = [
        Version(s.version.removesuffix(".*")).base_version for s in specifiers if s.operator in (">=", ">", "==", "~=")
    ]
    if floors:
        return max(floors, key=Version)
    return OLDEST if any(s.operator in ("<", "<=") for s in specifiers) else None


@cache
def asked_for(folder: Path) -> str | None:
    """The lowest torch that the nearest project around a folder asks for, up to the repository's root."""
    found = [version for version in map(lowest, _torch_ranges(folder)) if version]
    if found:
        return min(found, key=Version)
    if folder.parent == folder or any(os.path.exists(folder / name) for name in _REPOSITORY):
        return None
    return asked_for(folder.parent)


def _torch_ranges(folder: Path) -> Iterator[str]:
    """The ranges under which the files of one folder ask for torch."""
    pyproject = folder / "pyproject.toml"
    if os.path.isfile(pyproject):
        yield from _from_pyproject(pyproject)
    setup = folder / "setup.cfg"
    if os.path.isfile(setup):
        yield from _from_setup_cfg(setup)
    try:
        requirements = sorted(folder.glob("requirements*.txt"))
    except OSError:
        requirements = []
    for path in requirements:
        yield from _of_torch(_read(path).splitlines())


def _from_pyproject(path: Path) -> Iterator[str]:
    try:
        table = toml.loads(_read(path))
    except toml.TOMLDecodeError:
        return
    project = _table(table.get("project"))
    yield from _of_torch(_list(project.get("dependencies")))
    groups = (_table(project.get("optional-dependencies")), _table(table.get("dependency-groups")))
    for group in (member for table in groups for member in table.values()):
        yield from _of_torch(_list(group))
    poetry = _table(_table(table.get("tool")).get("poetry"))
    version = _table(poetry.get("dependencies")).get("torch")
    version = version.get("version") if isinstance(version, dict) else version
    if isinstance(version, str):
        yield version


def _from_setup_cfg(path: Path) -> Iterator[str]:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(_read(path))
    except configparser.Error:
        return
    yield from _of_torch(parser.get("options", "install_requires", fallback="").splitlines())
    if parser.has_section("options.extras_require"):
        for _, lines in parser.items("options.extras_require"):
            yield from _of_torch(lines.splitlines())


def _of_torch(lines: Iterable[object]) -> Iterator[str]:
    for line in lines:
        if not isinstance(line, str) or not _TORCH_LINE.match(line.strip()):
            continue
        try:
            specifier = Requirement(line.partition(" #")[0].partition(" --")[0].strip()).specifier
        except InvalidRequirement:
            continue
        if str(specifier):
            yield str(specifier)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError:
        return ""


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
