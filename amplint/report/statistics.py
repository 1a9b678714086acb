"""How often each rule was broken (`--statistics`)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TextIO

from amplint.report import Options, summary

if TYPE_CHECKING:
    from amplint.run import Run


def render(run: Run, stream: TextIO, options: Options) -> None:
    """One line per rule, the most frequent first; `[*]` marks rules of which every finding has a fix."""
    counts = Counter((finding.rule, finding.name) for finding in run.findings)
    unfixable = {finding.rule for finding in run.findings if finding.fix is None}
    width = len(str(max(counts.values(), default=0)))
    for (rule, name), count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        mark = "[ ]" if rule in unfixable else "[*]"
        stream.write(f"{count:>{width}}  {rule}  {mark} {name}\n")
    if not options.quiet:
        stream.write(summary(run) + "\n")
