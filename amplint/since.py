"""`--since REV`: only findings that touch lines which changed since a git revision."""

from __future__ import annotations

import difflib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from amplint.config import ConfigError
from amplint.source import SourceError, SourceModule

if TYPE_CHECKING:
    from amplint.finding import Finding
    from amplint.run import Run

Lines = set[tuple[int | None, int]]


def keep_changed(run: Run, revision: str) -> None:
    """Drop the findings of which no line (of the statement, or of a step) changed since `revision`.

    Files are compared as programs, so in a notebook only cells count, not outputs. Raises ConfigError
    outside of a repository and for what is no revision.
    """
    history = _History(Path.cwd(), revision)
    changed: dict[str, Lines] = {}

    def touched(finding: Finding) -> bool:
        first, last = finding.statement
        spans = [(finding.place.path, finding.place.cell, min(first, finding.place.line), last)]
        spans += [(s.place.path, s.place.cell, s.place.line, s.place.end_line) for s in finding.steps]
        for path, cell, start, end in spans:
            if path not in changed:
                changed[path] = _changed_lines(run, path, history)
            if any((cell, line) in changed[path] for line in range(start, end + 1)):
                return True
        return False

    run.findings[:] = [finding for finding in run.findings if touched(finding)]


class _History:
    """The files of a revision, with what git knows of renames since."""

    def __init__(self, folder: Path, revision: str) -> None:
        self._folder = folder
        self._root = Path(os.fsdecode(self._git("rev-parse", "--show-toplevel")).rstrip("\n"))
        commit = self._git(
            "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}", what=revision
        )
        self._commit = commit.decode().strip()
        renamed = self._git("diff", "--name-status", "-M", "-z", "--diff-filter=R", self._commit, "--")
        fields = os.fsdecode(renamed).split("\0")
        self._before = dict(zip(fields[2::3], fields[1::3], strict=False))

    def _git(self, *arguments: str, what: str = "") -> bytes:
        command = ["git", "-C", str(self._folder), *arguments]
        try:
            return subprocess.run(command, capture_output=True, check=True).stdout
        except FileNotFoundError:
            raise ConfigError("--since needs git, which is not installed") from None
        except subprocess.CalledProcessError as error:
            said = error.stderr.decode(errors="replace").strip().removeprefix("fatal: ")
            raise ConfigError(f"--since: {said or f'{what!r} is no revision'}") from None

    def content(self, path: Path) -> bytes | None:
        """A file as it was; None where it was not there."""
        try:
            relative = Path(os.path.realpath(path)).relative_to(os.path.realpath(self._root)).as_posix()
        except ValueError:
            return None
        command = ["git", "-C", str(self._root), "show", f"{self._commit}:{self._before.get(relative, relative)}"]
        done = subprocess.run(command, capture_output=True, check=False)
        return done.stdout if done.returncode == 0 else None


def _changed_lines(run: Run, display: str, history: _History) -> Lines:
    """The (cell, line) of every line of a file that is not as it was."""
    now = run.sources.module(display)
    if now is None:
        return {(None, 1)}
    before = _program(history.content(run.sources.path(display)), display)
    lines = [now.line_text(line) for line in range(1, len(now.line_starts) + 1)]
    matcher = difflib.SequenceMatcher(None, before, lines, autojunk=False)
    new = [line for tag, _, _, a, b in matcher.get_opcodes() if tag != "equal" for line in range(a + 1, b + 1)]
    # where lines were only removed, the ones around the gap count as changed
    new += [line for tag, _, _, a, b in matcher.get_opcodes() if tag == "delete" for line in (a, a + 1)]
    return {now.locate(line) for line in new if 1 <= line <= len(lines)}


def _program(data: bytes | None, display: str) -> Sequence[str]:
    if data is None:
        return []
    try:
        before = SourceModule.from_bytes(data, display)
    except SourceError:
        return []
    return [before.line_text(line) for line in range(1, len(before.line_starts) + 1)]
