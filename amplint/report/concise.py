"""One line per finding, as editors and greps expect it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from amplint.report import Options, where
from amplint.report.full import COLORS, printable, verdict_line

if TYPE_CHECKING:
    from amplint.run import Run


def render(run: Run, stream: TextIO, options: Options) -> None:
    """`path:line:column: AMP201 [clip-before-unscale] error: message`, and the verdict where there is one."""
    from click import style

    for finding in run.findings:
        severity = str(finding.severity)
        verdict = verdict_line(finding)
        tail = f" ({verdict})" if verdict else ""
        text = f"[{finding.name}] {{severity}}: {printable(finding.message)}{tail}"
        if options.color:
            severity = style(severity, fg=COLORS[finding.severity], bold=True)
            code = style(finding.rule, bold=True)
        else:
            code = finding.rule
        stream.write(f"{printable(where(finding.place))}: {code} {text.replace('{severity}', severity, 1)}\n")
