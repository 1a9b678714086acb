"""Reviewdog's diagnostic format, which can post findings and fixes to most code reviews."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TextIO

from amplint.finding import Finding, Place
from amplint.report import Options
from amplint.report.full import verdict_line

if TYPE_CHECKING:
    from amplint.run import Run, Sources


def render(run: Run, stream: TextIO, options: Options) -> None:
    """One object with all findings."""
    source = {"name": "amplint", "url": "https://amplint.readthedocs.io/"}
    diagnostics = [_diagnostic(finding, run.sources) for finding in run.findings]
    json.dump({"source": source, "diagnostics": diagnostics}, stream, indent=2)
    stream.write("\n")


def _diagnostic(finding: Finding, sources: Sources) -> dict[str, Any]:
    verdict = verdict_line(finding)
    refuted = finding.verdict is not None and finding.verdict.status == "refuted"
    diagnostic: dict[str, Any] = {
        "message": f"{finding.message} ({verdict})" if verdict else finding.message,
        "location": _location(finding.place, sources),
        "severity": "INFO" if refuted else str(finding.severity).upper(),
        "code": {"value": finding.rule, "url": finding.url},
    }
    if finding.steps:
        diagnostic["related_locations"] = [
            {"message": step.message, "location": _location(step.place, sources)} for step in finding.steps
        ]
    edits = finding.fix.edits if finding.fix is not None else ()
    if edits and all(e.place.path == finding.place.path and e.place.cell is None for e in edits):
        diagnostic["suggestions"] = [{"range": _range(e.place, sources), "text": e.text} for e in edits]
    return diagnostic


def _location(place: Place, sources: Sources) -> dict[str, Any]:
    return {"path": place.path, "range": _range(place, sources)}


def _range(place: Place, sources: Sources) -> dict[str, Any]:
    line, column, end_line, end_column = sources.file_range(place)
    if column is None or end_column is None:  # whole lines
        return {"start": {"line": line}, "end": {"line": end_line}}
    start = _bytes_before(sources.line(place.path, line, None), column)
    end = _bytes_before(sources.line(place.path, end_line, None), end_column)
    return {"start": {"line": line, "column": start}, "end": {"line": end_line, "column": end}}


def _bytes_before(line: str | None, column: int) -> int:
    """A 1-based column in characters as the format counts it: in bytes of UTF-8."""
    return len((line or "")[: column - 1].encode("utf-8", "surrogatepass")) + 1 if line is not None else column
