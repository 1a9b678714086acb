"""Output formats: one module each, with `render(run, stream, options)`, behind one `Run`."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from amplint.finding import Place, Severity

if TYPE_CHECKING:
    from amplint.run import Run

#: format names, and whether a program reads them (then nothing else may be written beside them)
FORMATS: Mapping[str, bool] = {
    "full": False,
    "concise": False,
    "github": False,
    "json": True,
    "sarif": True,
    "gitlab": True,
    "junit": True,
    "rdjson": True,
    "markdown": True,
}


@dataclass(frozen=True, slots=True)
class Options:
    """How a report is written. `quiet` leaves out what is not a finding, `verbose` adds how the run went."""

    color: bool = False
    quiet: bool = False
    verbose: bool = False


def render(name: str, run: Run, stream: TextIO, options: Options) -> None:
    """Write a report in one of FORMATS."""
    importlib.import_module(f"amplint.report.{name}").render(run, stream, options)


def where(place: Place) -> str:
    """`path:line:column`, with the cell of a notebook."""
    cell = "" if place.cell is None else f":cell {place.cell}"
    return f"{place.path}{cell}:{place.line}:{place.column}"


def plural(count: int, noun: str) -> str:
    """`1 file`, `2 files`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def summary(run: Run) -> str:
    """One sentence that says what was looked at and what was found."""
    looked = f"{plural(len(run.files), 'file')} checked, {run.parsed} of them parsed, in {run.seconds:.1f} s"
    if not run.files and not run.findings:
        return "No Python files found."
    extra = []
    verdicts = Counter(f.verdict.status for f in run.findings if f.verdict is not None)
    if verdicts:
        extra.append(", ".join(f"{count} {status}" for status, count in verdicts.most_common()))
    if run.suppressed:
        extra.append(f"{len(run.suppressed)} suppressed")
    safe = sum(f.fix is not None and f.fix.safety == "safe" for f in run.findings)
    unsafe = sum(f.fix is not None and f.fix.safety == "unsafe" for f in run.findings)
    if safe:
        extra.append(f"{safe} fixable with --fix")
    if unsafe:
        extra.append(f"{unsafe}{' more' if safe else ''} fixable with --fix --unsafe-fixes")
    tail = "".join(f"; {part}" for part in extra)
    if not run.findings:
        return f"No findings: {looked}{tail}."
    counts = [
        plural(count, str(severity)) if severity is not Severity.INFO else f"{count} info"
        for severity in sorted(Severity, reverse=True)
        if (count := sum(f.severity is severity for f in run.findings))
    ]
    files = plural(len({f.place.path for f in run.findings}), "file")
    return f"Found {', '.join(counts)} in {files} ({looked}){tail}."
