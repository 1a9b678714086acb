"""What the command line shows of rules: a page, the table of all, and how they fared when they were verified."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from click import style

from amplint.finding import Severity
from amplint.report.full import COLORS
from amplint.rule import Rule

_VERDICTS = {"confirmed": "green", "conditional": "yellow", "refuted": "red", "inconclusive": "cyan"}


def row(rule: Rule) -> dict[str, Any]:
    """A rule's data, as `rules --format json` lists it."""
    return {
        "code": rule.code,
        "name": rule.name,
        "severity": str(rule.severity),
        "summary": rule.summary,
        "fix": rule.fix,
        "confirmed_by": rule.confirmed_by,
        "since": rule.since,
        "url": rule.url,
    }


def facts(rule: Rule) -> list[tuple[str, str]]:
    """What the head of a page says of a rule."""
    low, high = rule.torch
    versions = " and ".join(p for p in (f"from {low} on" if low else "", f"before {high}" if high else "") if p)
    shown = "" if rule.severity >= Severity.WARNING else " (shown only on request)"
    return [
        ("Severity", f"{rule.severity}{shown}"),
        ("Fix", rule.fix or "none"),
        ("Confirmed by", rule.confirmed_by if rule.confirmed_by != "–" else "nothing that runs"),
        ("torch", versions or "all versions"),
        ("Since", f"amplint {rule.since}"),
    ]


def markdown(rule: Rule) -> str:
    """A rule's page in Markdown."""
    head = " · ".join(f"**{key}**: {value}" for key, value in facts(rule))
    return f"# {rule.name} ({rule.code})\n\n{head}\n\n{rule.page}\n"


def text(rule: Rule) -> str:
    """A rule's page for a terminal."""
    lines = [style(f"{rule.code} {rule.name}", bold=True, fg=COLORS[rule.severity]), ""]
    lines += [f"{style(key, bold=True)}: {value}" for key, value in facts(rule)]
    lines.append("")
    in_code = False
    for line in rule.page.splitlines():
        if line.startswith("```"):
            in_code = not in_code
        elif in_code:
            lines.append(style(f"    {line}", fg="cyan") if line else "")
        elif line.startswith("#"):
            lines.append(style(line.lstrip("# "), bold=True, underline=True))
        else:
            lines.append(_inline(line))
    return "\n".join([*lines, "", style(rule.url, fg="blue", underline=True), ""])


def _inline(line: str) -> str:
    line = re.sub(r"\[([^\]]+)\]\((\S+?)\)", r"\1 (\2)", line)
    line = re.sub(r"`([^`]+)`", lambda code: style(code[1], fg="cyan"), line)
    return re.sub(r"\*\*([^*]+)\*\*", lambda strong: style(strong[1], bold=True), line)


def table(rules: Sequence[Rule]) -> str:
    """All rules, one a line."""
    rows = [
        [
            style(rule.code, bold=True),
            rule.name,
            style(str(rule.severity), fg=COLORS[rule.severity]),
            rule.fix or "–",
            rule.confirmed_by,
            rule.summary,
        ]
        for rule in rules
    ]
    return _columns(["code", "name", "severity", "fix", "confirmed by", "what it reports"], rows)


def markdown_table(rules: Iterable[Rule], link: Callable[[Rule], str] = lambda rule: rule.url) -> str:
    """All rules as a Markdown table; `link` is where a rule's name leads to."""
    lines = [
        "| code | name | severity | fix | confirmed by | what it reports |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for rule in rules:
        summary = rule.summary.replace("|", "\\|")
        name = f"[{rule.name}]({link(rule)})"
        cells = [rule.code, name, rule.severity, rule.fix or "–", rule.confirmed_by, summary]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join([*lines, ""])


def verdicts(rows: Iterable[Mapping[str, Any]]) -> str:
    """What became of each rule when its page was executed."""
    cells = [
        [
            style(str(entry["rule"]), bold=True),
            str(entry["name"]),
            style(str(entry["verdict"]), fg=_VERDICTS.get(entry["verdict"])),
            str(entry.get("device") or "–"),
            {True: "verified", False: "fails", None: "–"}[entry.get("fix_verified")],
            str(entry.get("figure") or entry.get("reason") or ""),
        ]
        for entry in rows
    ]
    return _columns(["rule", "name", "verdict", "device", "fix", "figure"], cells)


def _columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Text in columns; the last one is not padded."""
    from click import unstyle

    widths = [max(len(unstyle(row[i])) for row in [head, *rows]) for i in range(len(head))]
    lines = []
    for cells in [[style(title, underline=True) for title in head], *rows]:
        padded = [cell + " " * (width - len(unstyle(cell))) for cell, width in zip(cells, widths, strict=True)]
        lines.append("  ".join(padded).rstrip())
    return "\n".join([*lines, ""])
