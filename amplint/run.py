"""What a run saw and found: its findings, its files' text as reports show it, and amplint's own faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from amplint.config import Settings
from amplint.files import SourceFile
from amplint.finding import Finding, Place
from amplint.source import SourceError, SourceModule
from amplint.suppress import Suppressed

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True)
class InternalError:
    """A fault of amplint's own: the file it was working on, the rule (if one was), and a hash that is the
    same wherever the same lines of amplint fail."""

    path: str
    rule: str | None
    hash: str
    message: str
    traceback: str


class Sources:
    """The text of files as findings count it, read when a report first shows it."""

    def __init__(self, files: Mapping[str, Path], contents: Mapping[Path, bytes]) -> None:
        self._files = files
        self._contents = contents
        self._modules: dict[str, SourceModule | None] = {}

    def module(self, display: str) -> SourceModule | None:
        """A file of the run by its display path; None where it cannot be decoded any more."""
        if display not in self._modules:
            self._modules[display] = self._read(display)
        return self._modules[display]

    def _read(self, display: str) -> SourceModule | None:
        try:
            return SourceModule.from_bytes(self.data(display), display)
        except (OSError, SourceError):
            return None

    def data(self, display: str) -> bytes:
        """A file's bytes. Raises OSError."""
        path = self.path(display)
        data = self._contents.get(path)
        return path.read_bytes() if data is None else data

    def line(self, display: str, line: int, cell: int | None) -> str | None:
        """A line as the user wrote it, without its end; None where there is none."""
        module = self.module(display)
        if module is None:
            return None
        if module.notebook is not None and cell is not None:
            return module.notebook.line(line, cell)
        return module.line_text(line) if 1 <= line <= len(module.line_starts) else None

    def file_range(self, place: Place) -> tuple[int, int | None, int, int | None]:
        """(line, column, end line, end column) in the file itself, as other programs count.

        In a notebook that is a line of its JSON, where columns would mean nothing: they are None.
        """
        if place.cell is None:
            return place.line, place.column, place.end_line, place.end_column
        module = self.module(place.path)
        if module is None or module.notebook is None:
            return 1, None, 1, None
        notebook = module.notebook
        return notebook.file_line(place.line, place.cell), None, notebook.file_line(place.end_line, place.cell), None

    def path(self, display: str) -> Path:
        """The absolute path of a file."""
        return self._files.get(display) or Path.cwd() / display

    def __contains__(self, display: str) -> bool:
        """Whether a file is one of those that the run checked."""
        return display in self._files


@dataclass(slots=True)
class Run:
    """What a run saw and found. `seconds` is wall time; `findings` are those to be shown, in order."""

    settings: Settings
    target: str
    sources: Sources
    files: tuple[SourceFile, ...] = ()
    screened_out: int = 0
    parsed: int = 0
    findings: list[Finding] = field(default_factory=list)
    suppressed: list[Suppressed] = field(default_factory=list)
    errors: list[InternalError] = field(default_factory=list)
    seconds: float = 0.0
