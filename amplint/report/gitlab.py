"""GitLab's code quality report."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any, TextIO

from amplint.finding import Finding, Severity
from amplint.report import Options
from amplint.report.full import verdict_line

if TYPE_CHECKING:
    from amplint.run import Run, Sources

SEVERITIES = {Severity.ERROR: "major", Severity.WARNING: "minor", Severity.INFO: "info"}


def render(run: Run, stream: TextIO, options: Options) -> None:
    """A JSON array with one issue per finding."""
    json.dump([_issue(finding, run.sources) for finding in run.findings], stream, indent=2)
    stream.write("\n")


def _issue(finding: Finding, sources: Sources) -> dict[str, Any]:
    line, _, end_line, _ = sources.file_range(finding.place)
    verdict = verdict_line(finding)
    refuted = finding.verdict is not None and finding.verdict.status == "refuted"
    return {
        "description": f"{finding.message} ({verdict})" if verdict else finding.message,
        "check_name": f"{finding.rule} {finding.name}",
        "fingerprint": hashlib.md5(finding.fingerprint.encode(), usedforsecurity=False).hexdigest(),
        "severity": "info" if refuted else SEVERITIES[finding.severity],
        "content": {"body": finding.url},
        "location": {"path": _in_project(finding.place.path, sources), "lines": {"begin": line, "end": end_line}},
    }


def _in_project(display: str, sources: Sources) -> str:
    """A path relative to the checkout, which is what GitLab resolves it against."""
    project, path = os.environ.get("CI_PROJECT_DIR"), sources.path(display)
    return path.relative_to(project).as_posix() if project and path.is_relative_to(project) else display
