"""Which files a run looks at: the paths it was given, walked with respect for ignore files and excludes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePath
from typing import NamedTuple

import pathspec

from amplint.config import Settings

#: what is looked at inside of folders; a file that is named is looked at whatever its suffix
SUFFIXES = (".py", ".pyw", ".ipynb")
SettingsOf = Callable[[Path], Settings]


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to check. `path` is absolute, `display` is how people are shown it; `named` on the command line."""

    path: Path
    display: str
    named: bool = False


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file or folder that the system does not let amplint read, and why."""

    display: str
    reason: str


def display_path(path: PurePath, base: PurePath) -> str:
    """An absolute path as it is shown: relative to `base` where it lies inside, with forward slashes."""
    try:
        return path.relative_to(base).as_posix()
    except ValueError:
        return path.as_posix()


def discover(
    paths: Sequence[Path], settings_of: SettingsOf, base: Path, force_exclude: bool = False
) -> tuple[list[SourceFile], list[Unreadable]]:
    """The files under `paths`, sorted by path, each once; and what could not be read.

    `settings_of` gives the settings of the files in a folder. Symbolic links to folders are followed only
    when they are named, so loops cannot arise. Excludes and ignore files bind named files only with
    `force_exclude`.
    """
    found: dict[Path, SourceFile] = {}
    problems: list[Unreadable] = []
    for given in paths:
        path = Path(os.path.abspath(base / given))
        if force_exclude and _is_excluded_from_above(path, settings_of):
            continue
        if os.path.isdir(path):
            for inside in filter(None, _walk(path, settings_of, base, problems)):
                found.setdefault(inside, SourceFile(inside, display_path(inside, base)))
        else:
            found[path] = SourceFile(path, display_path(path, base), named=True)
    return _without_second_names([found[path] for path in sorted(found)]), problems


class _Listing(NamedTuple):
    """The files of a project, with what they were listed by: settings, and when folders and ignore files changed."""

    settings: Settings
    stamps: dict[Path, int]
    files: list[Path]


#: by root; an editor asks again and again, and folders rarely change in between
_listings: dict[Path, _Listing] = {}


def project_files(root: Path, settings_of: SettingsOf, entries: int) -> list[Path]:
    """What a run over a whole project would look at; nothing where its folders hold more than `entries` names."""
    settings = settings_of(root)
    known = _listings.get(root)
    if known is not None and known.settings == settings and all(_stamp(p) == when for p, when in known.stamps.items()):
        return known.files
    folders: list[Path] = []
    files = list(_walk(root, settings_of, root, [], entries, folders))
    if None in files:
        files = []
    stamps = {path: _stamp(path) for folder in folders for path in (folder, folder / ".gitignore")}
    listing = _listings[root] = _Listing(settings, stamps, sorted(filter(None, files)))
    return listing.files


def _stamp(path: Path) -> int:
    """When a file or folder last changed, in nanoseconds; 0 where there is none."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def _without_second_names(files: Sequence[SourceFile]) -> list[SourceFile]:
    """Leave out symbolic links to files that are looked at anyway."""
    links = {file.path for file in files if not file.named and os.path.islink(file.path)}
    if not links:
        return list(files)
    seen = {os.path.realpath(file.path) for file in files if file.path not in links}
    kept: list[SourceFile] = []
    for file in files:
        real = os.path.realpath(file.path)
        if file.path not in links or real not in seen:
            kept.append(file)
        seen.add(real)
    return kept


def _is_excluded_from_above(path: Path, settings_of: SettingsOf) -> bool:
    """Whether a path or a folder around it is excluded by the settings, as the walk would have found it."""
    folder = path if os.path.isdir(path) else path.parent
    settings = settings_of(folder)
    try:
        relative = path.relative_to(settings.root)
    except ValueError:
        return False
    parts = relative.parts
    tails = (PurePath(*parts[: i + 1]).as_posix() for i in range(len(parts)))
    return any(
        _excludes(settings.excluded, tail, i + 1 < len(parts) or os.path.isdir(path)) for i, tail in enumerate(tails)
    )


def _excludes(patterns: tuple[str, ...], relative: str, is_folder: bool) -> bool:
    return bool(_spec(patterns).match_file(relative + "/" if is_folder else relative))


@cache
def _spec(patterns: tuple[str, ...]) -> pathspec.GitIgnoreSpec:
    return pathspec.GitIgnoreSpec.from_lines(patterns)


@dataclass(frozen=True, slots=True)
class _IgnoreFile:
    """The patterns of one .gitignore, which bind what lies under its folder."""

    folder: Path
    spec: pathspec.GitIgnoreSpec

    def verdict(self, path: Path, is_folder: bool) -> bool | None:
        relative = path.relative_to(self.folder).as_posix()
        return self.spec.check_file(relative + "/" if is_folder else relative).include


def _ignore_file(folder: Path, name: str = ".gitignore") -> list[_IgnoreFile]:
    try:
        lines = (folder / name).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    try:
        spec = pathspec.GitIgnoreSpec.from_lines(lines)
    except ValueError:
        spec = pathspec.GitIgnoreSpec.from_lines(filter(_is_pattern, lines))
    return [_IgnoreFile(folder, spec)]


def _is_pattern(line: str) -> bool:
    """Whether a line of an ignore file means something; git passes over one that does not."""
    try:
        pathspec.GitIgnoreSpec.from_lines([line])
    except ValueError:
        return False
    return True


def _ignore_files_above(folder: Path) -> tuple[_IgnoreFile, ...]:
    """The ignore files from the repository's root down to, but not in, a folder; none outside of one."""
    above: list[Path] = []
    for parent in (folder, *folder.parents):
        if parent != folder:
            above.append(parent)
        if os.path.exists(parent / ".git"):
            own = _ignore_file(parent, ".git/info/exclude")
            return (*own, *(found for p in reversed(above) for found in _ignore_file(p)))
    return ()


def _is_ignored(path: Path, is_folder: bool, ignore_files: Sequence[_IgnoreFile]) -> bool:
    """The deepest ignore file that speaks of a path decides."""
    for ignore_file in reversed(ignore_files):
        verdict = ignore_file.verdict(path, is_folder)
        if verdict is not None:
            return verdict
    return False


def _walk(
    top: Path,
    settings_of: SettingsOf,
    base: Path,
    problems: list[Unreadable],
    limit: int | None = None,
    visited: list[Path] | None = None,
) -> Iterator[Path | None]:
    """The files under a folder; None, and no more, once `limit` names have been read. `visited` gets the folders."""
    seen = 0
    above = _ignore_files_above(top)
    # a folder that is named is looked into though a pattern names it as well
    stack = [(top, () if _is_ignored(top, True, above) else above)]
    top_is_excluded = _is_excluded(top, True, settings_of(top))
    while stack:
        folder, ignore_files = stack.pop()
        if visited is not None:
            visited.append(folder)
        settings = settings_of(folder)
        try:
            with os.scandir(folder) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError as error:
            problems.append(Unreadable(display_path(folder, base), error.strerror or str(error)))
            continue
        seen += len(entries)
        if limit is not None and seen > limit:
            yield None
            return
        if any(entry.name == ".gitignore" for entry in entries):
            ignore_files = (*ignore_files, *_ignore_file(folder))
        for entry in entries:
            is_folder = entry.is_dir(follow_symlinks=False)
            if not is_folder and not entry.name.endswith(SUFFIXES):
                continue
            path = folder / entry.name
            if is_folder and entry.name.startswith("."):
                continue
            if _is_excluded(path, is_folder, settings, top if top_is_excluded else None):
                continue
            if _is_ignored(path, is_folder, ignore_files):
                continue
            if is_folder:
                stack.append((path, ignore_files))
            elif _is_regular_file(entry):
                yield path


def _is_regular_file(entry: os.DirEntry[str]) -> bool:
    """False for pipes and devices, which would hang, and for links that lead nowhere or into themselves."""
    try:
        return entry.is_file()
    except OSError:
        return False


def _is_excluded(path: Path, is_folder: bool, settings: Settings, anchor: Path | None = None) -> bool:
    """Whether the settings exclude a path; with `anchor`, what they say of folders above it does not count."""
    try:
        relative = path.relative_to(anchor or settings.root).as_posix()
    except ValueError:
        relative = path.name
    return _excludes(settings.excluded, relative, is_folder)
