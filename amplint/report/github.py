"""Workflow commands, which GitHub Actions shows as annotations beside the code."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from amplint.finding import Finding, Severity
from amplint.report import Options, where
from amplint.report.full import verdict_line
from amplint.report.markdown import table

if TYPE_CHECKING:
    from amplint.run import Run, Sources

#: GitHub shows ten annotations of a level per step, and drops the others in silence
MAX_PER_LEVEL = 10
LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def render(run: Run, stream: TextIO, options: Options) -> None:
    """The most severe findings as annotations; what GitHub would drop goes into the job's summary."""
    shown: dict[str, int] = dict.fromkeys(LEVELS.values(), 0)
    rest: list[Finding] = []
    for finding in sorted(run.findings, key=lambda f: (-f.severity, -f.confidence, f.sort_key)):
        level = "notice" if _refuted(finding) else LEVELS[finding.severity]
        if shown[level] == MAX_PER_LEVEL:
            rest.append(finding)
            continue
        shown[level] += 1
        stream.write(_command(level, finding, run.sources) + "\n")
    summary_file = os.environ.get("GITHUB_STEP_SUMMARY")
    if rest and summary_file:
        with open(summary_file, "a", encoding="utf-8", errors="backslashreplace") as summary:
            summary.write(f"### amplint: findings without an annotation\n\n{table(rest)}\n")


def _refuted(finding: Finding) -> bool:
    return finding.verdict is not None and finding.verdict.status == "refuted"


def _command(level: str, finding: Finding, sources: Sources) -> str:
    line, column, end_line, end_column = sources.file_range(finding.place)
    properties: dict[str, object] = {
        "title": f"{finding.rule} ({finding.name})",
        "file": _in_workspace(finding.place.path, sources),
        "line": line,
        "endLine": end_line,
    }
    if line == end_line and column is not None:  # GitHub misplaces columns of what spans lines
        properties |= {"col": column, "endColumn": end_column}
    verdict = verdict_line(finding)
    parts = [f"{where(finding.place)}: {finding.message}", *([verdict] if verdict else []), finding.url]
    listed = ",".join(f"{key}={_property(str(value))}" for key, value in properties.items())
    return f"::{level} {listed}::{_data(chr(10).join(parts))}"


def _in_workspace(display: str, sources: Sources) -> str:
    """A path relative to the checkout, which is what GitHub resolves it against."""
    workspace = os.environ.get("GITHUB_WORKSPACE")
    path = sources.path(display)
    if workspace and path.is_relative_to(workspace):
        return path.relative_to(Path(workspace)).as_posix()
    return display


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
