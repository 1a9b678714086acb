"""Baselines: a file with the fingerprints of findings that are known, so that only new ones are shown."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amplint.config import ConfigError
from amplint.suppress import Suppressed

if TYPE_CHECKING:
    from amplint.run import Run

VERSION = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """One known finding. Only the fingerprint counts; the rest tells a reader what it stands for. `path` is relative to
    the folder of the baseline."""

    fingerprint: str
    rule: str
    path: str
    message: str


def read(path: Path) -> dict[str, Entry]:
    """The entries of a baseline file, by fingerprint. Raises ConfigError."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        if table["version"] != VERSION:
            raise ConfigError(f"{path}: baseline version {table['version']!r} is not known to this amplint")
        entries = [Entry(**{key: str(entry[key]) for key in Entry.__slots__}) for entry in table["findings"]]
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{path} is not a baseline that amplint has written") from None
    return {entry.fingerprint: entry for entry in entries}


def write(path: Path, run: Run) -> int:
    """Write the findings of a run as the new baseline; returns how many there are.

    One entry a line, sorted, so that versions of the file compare and merge well.
    """
    entries: list[Mapping[str, Any]] = sorted(
        (
            {
                "fingerprint": f.fingerprint,
                "rule": f.rule,
                "path": _seen_from(path.absolute().parent, run.sources.path(f.place.path)),
                "message": f.message,
            }
            for f in run.findings
        ),
        key=lambda entry: (entry["path"], entry["rule"], entry["fingerprint"]),
    )
    lines = ",\n".join("    " + json.dumps(entry) for entry in entries)
    body = f"[\n{lines}\n  ]" if entries else "[]"
    path.write_text(f'{{\n  "version": {VERSION},\n  "findings": {body}\n}}\n', encoding="utf-8")
    return len(entries)


def _seen_from(folder: Path, file: Path) -> str:
    try:
        return Path(os.path.relpath(file, folder)).as_posix()
    except ValueError:  # another drive
        return file.as_posix()


def apply(run: Run, known: Mapping[str, Entry], folder: Path) -> list[Entry]:
    """Move the findings that are known from what is shown to what is suppressed.

    Returns the stale entries, which nothing answers to any more: their file was checked, or is gone. `folder` is the
    baseline's, from which entries name files.
    """
    shown = [finding for finding in run.findings if finding.fingerprint not in known]
    hidden = [finding for finding in run.findings if finding.fingerprint in known]
    seen = {finding.fingerprint for finding in hidden} | {s.finding.fingerprint for s in run.suppressed}
    run.findings[:] = shown
    run.suppressed.extend(Suppressed(finding, "baseline") for finding in hidden)
    run.suppressed.sort(key=lambda s: s.finding.sort_key)
    checked = {file.path for file in run.files}
    return [e for e in known.values() if e.fingerprint not in seen and _is_settled(folder / e.path, checked)]


def _is_settled(path: Path, checked: Collection[Path]) -> bool:
    return Path(os.path.abspath(path)) in checked or not os.path.lexists(path)
