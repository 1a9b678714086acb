"""A table in Markdown, for job summaries and comments."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, TextIO

from amplint.finding import Finding
from amplint.report import Options, summary, where
from amplint.report.full import printable, verdict_line

if TYPE_CHECKING:
    from amplint.run import Run


def render(run: Run, stream: TextIO, options: Options) -> None:
    """A heading, a table with one row per finding, and one sentence about the run."""
    stream.write("## amplint\n\n")
    if run.findings:
        stream.write(table(run.findings) + "\n")
    if not options.quiet:
        stream.write(_text(summary(run)) + "\n")


def table(findings: Iterable[Finding]) -> str:
    """The findings as a Markdown table."""
    lines = ["| where | rule | severity | what is wrong |", "| --- | --- | --- | --- |"]
    for finding in findings:
        said = [_text(finding.message)]
        if finding.steps:
            said.append(" → ".join(f"{_text(step.message)} (line {step.place.line})" for step in finding.steps))
        verdict = verdict_line(finding)
        if verdict:
            said.append(f"**{_text(verdict)}**")
        rule = f"[{finding.rule}]({finding.url}) {finding.name}"
        lines.append(f"| {_code(where(finding.place))} | {rule} | {finding.severity} | {'<br>'.join(said)} |")
    return "\n".join([*lines, ""])


def _text(text: str) -> str:
    """Text in which nothing is markup any more, apart from code in backquotes."""
    parts = re.split(r"(`[^`]*`)", printable(text))
    escaped = [p if p.startswith("`") and len(p) > 1 else re.sub(r"([\\*_<>\[\]`])", r"\\\1", p) for p in parts]
    return "".join(escaped).replace("|", "\\|")


def _code(text: str) -> str:
    """Text as inline code, whatever backquotes it holds."""
    text = printable(text).replace("|", "\\|")
    fence = "`" * (max((len(run) for run in re.findall(r"`+", text)), default=0) + 1)
    padding = " " if fence != "`" else ""
    return f"{fence}{padding}{text}{padding}{fence}"
