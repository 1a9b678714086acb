"""Findings as JSON, version 1: a format that stays as it is; what is added later has new keys."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TextIO

import amplint
from amplint.finding import Finding, Fix, Place, Verdict
from amplint.report import Options

if TYPE_CHECKING:
    from amplint.run import Run

VERSION = 1


def render(run: Run, stream: TextIO, options: Options) -> None:
    """The whole run as one JSON object. It is plain ASCII, so that no terminal or locale can break it."""
    json.dump(as_dict(run), stream, indent=2)
    stream.write("\n")


def as_dict(run: Run) -> dict[str, Any]:
    """The run in the shape of the format."""
    return {
        "version": VERSION,
        "tool": {"name": "amplint", "version": amplint.__version__},
        "target": {"torch": run.target},
        "summary": {
            "files": len(run.files),
            "screened_out": run.screened_out,
            "parsed": run.parsed,
            "findings": len(run.findings),
            "suppressed": len(run.suppressed),
            "fixable": sum(finding.fix is not None for finding in run.findings),
            "seconds": round(run.seconds, 3),
        },
        "findings": [finding_dict(finding) for finding in run.findings],
        "suppressed": [
            {**finding_dict(s.finding), "suppression": {"kind": s.kind, "reason": s.reason}} for s in run.suppressed
        ],
        "errors": [
            {"file": error.path, "rule": error.rule, "traceback_hash": error.hash, "message": error.message}
            for error in run.errors
        ],
    }


def finding_dict(finding: Finding) -> dict[str, Any]:
    """One finding; `target` is there only where it differs from the run's."""
    found: dict[str, Any] = {
        "rule": finding.rule,
        "name": finding.name,
        "severity": str(finding.severity),
        "confidence": str(finding.confidence),
        **_place(finding.place),
        "message": finding.message,
        "steps": [{**_place(step.place), "message": step.message} for step in finding.steps],
        "assumptions": list(finding.assumptions),
        "fix": None if finding.fix is None else _fix(finding.fix),
        "fingerprint": finding.fingerprint,
        "url": finding.url,
        "verdict": None if finding.verdict is None else verdict_dict(finding.verdict),
    }
    if finding.target is not None:
        found["target"] = finding.target
    return found


def _place(place: Place) -> dict[str, Any]:
    return {
        "path": place.path,
        "cell": place.cell,
        "line": place.line,
        "column": place.column,
        "end_line": place.end_line,
        "end_column": place.end_column,
    }


def _fix(fix: Fix) -> dict[str, Any]:
    edits = [{**_place(edit.place), "text": edit.text} for edit in fix.edits]
    return {"safety": fix.safety, "title": fix.title, "edits": edits}


def verdict_dict(verdict: Verdict) -> dict[str, Any]:
    """A verdict; `reason` says why there is none, `fix_verified` what the fix did to the difference."""
    return {
        "status": verdict.status,
        "device": verdict.device,
        "torch": verdict.torch,
        "figure": verdict.figure,
        "variant": verdict.variant,
        "seconds": round(verdict.seconds, 3),
        "reason": verdict.reason,
        "assumptions": list(verdict.assumptions),
        "fix_verified": verdict.fix_verified,
    }
