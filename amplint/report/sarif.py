"""SARIF 2.1.0, for code scanning: with the path that leads to each fault, its fix, and what silenced it."""

from __future__ import annotations

import json
import os
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, TextIO
from urllib.parse import quote

import amplint
from amplint import registry
from amplint.finding import Confidence, Finding, Fix, Place, Severity
from amplint.report import Options
from amplint.report.json import verdict_dict
from amplint.suppress import Suppressed

if TYPE_CHECKING:
    from amplint.run import Run, Sources

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
HOME = "https://amplint.readthedocs.io/"
LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
PRECISIONS = {Confidence.HIGH: "very-high", Confidence.MEDIUM: "high", Confidence.LOW: "low"}


def render(run: Run, stream: TextIO, options: Options) -> None:
    """One SARIF log with one run. It is plain ASCII, so that no locale can break it."""
    json.dump(as_dict(run), stream, indent=2)
    stream.write("\n")


def as_dict(run: Run) -> dict[str, Any]:
    """The log as plain data.

    In GitHub Actions it leaves out what is suppressed: code scanning would open an alert for it all the same.
    """
    shown: list[tuple[Finding, Suppressed | None]] = [(finding, None) for finding in run.findings]
    if os.environ.get("GITHUB_ACTIONS") != "true":
        shown += [(suppressed.finding, suppressed) for suppressed in run.suppressed]
    codes = sorted({finding.rule for finding, _ in shown})
    driver = {
        "name": "amplint",
        "version": amplint.__version__,
        "informationUri": HOME,
        "rules": [_rule(code) for code in codes],
    }
    notifications = [
        {
            "level": "error",
            "message": {"text": f"{error.path}: {error.message} [{error.hash}]"},
            "locations": [{"physicalLocation": {"artifactLocation": _artifact(error.path)}}],
        }
        for error in run.errors
    ]
    invocation = {"executionSuccessful": not run.errors, "toolExecutionNotifications": notifications}
    results = [_result(finding, suppressed, codes.index(finding.rule), run.sources) for finding, suppressed in shown]
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                "invocations": [invocation],
                "columnKind": "unicodeCodePoints",
                "results": results,
            }
        ],
    }


def _rule(code: str) -> dict[str, Any]:
    rule = registry.by_code_or_name()[code]
    return {
        "id": rule.code,
        "name": "".join(word.capitalize() for word in rule.name.split("-")),
        "shortDescription": {"text": rule.summary},
        "help": {"text": f"{rule.summary} See {rule.url}", "markdown": rule.page},
        "helpUri": rule.url,
        "defaultConfiguration": {"level": LEVELS[rule.severity]},
        "properties": {"tags": ["pytorch", "amp", rule.name], "problem.severity": _problem(rule.severity)},
    }


def _problem(severity: Severity) -> str:
    return "recommendation" if severity is Severity.INFO else str(severity)


def _result(finding: Finding, suppressed: Suppressed | None, index: int, sources: Sources) -> dict[str, Any]:
    properties: dict[str, Any] = {
        "confidence": str(finding.confidence),
        "precision": PRECISIONS[finding.confidence],
        "assumptions": list(finding.assumptions),
    }
    if finding.target is not None:
        properties["target"] = finding.target
    refuted = False
    if finding.verdict is not None:
        properties["verdict"] = verdict_dict(finding.verdict)
        refuted = finding.verdict.status == "refuted"
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": "note" if refuted else LEVELS[finding.severity],
        "message": {"text": finding.message},
        "locations": [_location(finding.place, sources)],
        "partialFingerprints": {"amplint/v1": finding.fingerprint},
        "properties": properties,
    }
    if finding.steps:
        steps = [_location(step.place, sources, step.message) for step in finding.steps]
        result["relatedLocations"] = [{"id": number, **step} for number, step in enumerate(steps, 1)]
        result["codeFlows"] = [{"threadFlows": [{"locations": [{"location": step} for step in steps]}]}]
    if finding.fix is not None and all(edit.place.cell is None for edit in finding.fix.edits):
        result["fixes"] = [_fix(finding.fix)]
    if suppressed is not None:
        kind = "external" if suppressed.kind == "baseline" else "inSource"
        justification = {"justification": suppressed.reason} if suppressed.reason else {}
        result["suppressions"] = [{"kind": kind, "status": "accepted", **justification}]
    return result


def _location(place: Place, sources: Sources, message: str | None = None) -> dict[str, Any]:
    line, column, end_line, end_column = sources.file_range(place)
    region = {"startLine": line, "startColumn": column, "endLine": end_line, "endColumn": end_column}
    location: dict[str, Any] = {
        "physicalLocation": {
            "artifactLocation": _artifact(place.path),
            "region": {key: value for key, value in region.items() if value is not None},
        }
    }
    if place.cell is not None:
        name = f"cell {place.cell}, line {place.line}"
        location["logicalLocations"] = [{"name": name, "kind": "module"}]
    if message is not None:
        location["message"] = {"text": message}
    return location


def _artifact(path: str) -> dict[str, str]:
    """A relative path hangs off the checkout's root, wherever that is."""
    if PurePath(path).is_absolute():
        return {"uri": Path(path).as_uri()}
    return {"uri": quote(os.fsencode(path)), "uriBaseId": "%SRCROOT%"}


def _fix(fix: Fix) -> dict[str, Any]:
    changes: dict[str, list[dict[str, Any]]] = {}
    for edit in fix.edits:
        place = edit.place
        region = {
            "startLine": place.line,
            "startColumn": place.column,
            "endLine": place.end_line,
            "endColumn": place.end_column,
        }
        replacement = {"deletedRegion": region, "insertedContent": {"text": edit.text}}
        changes.setdefault(place.path, []).append(replacement)
    return {
        "description": {"text": f"{fix.title} ({fix.safety} fix)"},
        "artifactChanges": [
            {"artifactLocation": _artifact(path), "replacements": replacements}
            for path, replacements in changes.items()
        ],
    }
