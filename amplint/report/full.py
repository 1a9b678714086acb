"""Findings as a person reads them: the source, with every step of the path that leads to the fault labelled."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from amplint.finding import Finding, Place, Severity
from amplint.report import Options, summary, where

if TYPE_CHECKING:
    from amplint.run import Run, Sources

COLORS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}
#: lines between two labelled ones that are shown rather than left out
MAX_GAP = 2
#: columns of source that are shown of a line
MAX_WIDTH = 160
TAB = 4


@dataclass(frozen=True, slots=True)
class _Mark:
    """A labelled range; `main` is the finding itself."""

    place: Place
    label: str
    main: bool


def render(run: Run, stream: TextIO, options: Options) -> None:
    """A frame per finding, then one sentence about the run."""
    for finding in run.findings:
        for line in _frame(finding, run.sources, options):
            stream.write(line.rstrip() + "\n")
        stream.write("\n")
    if not options.quiet:
        stream.write(summary(run) + "\n")


def _frame(finding: Finding, sources: Sources, options: Options) -> Iterator[str]:
    paint = _Painter(options.color, dim=finding.verdict is not None and finding.verdict.status == "refuted")
    tint = COLORS[finding.severity]
    groups = _groups(finding)
    last = max(mark.place.line for marks in groups for mark in marks)
    margin = len(str(last))
    bar = paint("|", "blue")
    head = paint(f"{finding.severity}[{finding.rule}]", tint)
    yield f"{head}{paint(': ' + printable(finding.message))}"
    for number, marks in enumerate(groups):
        arrow = paint("-->" if number == 0 else ":::", "blue")
        shown = finding.place if number == 0 else marks[0].place
        yield f"{' ' * margin}{arrow} {printable(where(shown))}"
        yield f"{' ' * margin} {bar}"
        yield from _excerpt(marks, sources, margin, tint, paint)
    notes = list(_notes(finding, options))
    if notes:
        yield f"{' ' * margin} {bar}"
    for title, text in notes:
        yield f"{' ' * margin} {paint('=', 'blue')} {paint(title)}: {printable(text)}"


def _groups(finding: Finding) -> list[list[_Mark]]:
    """The marks by file and cell, the finding's own first; labels are numbered where they do not read downwards."""
    labels = {step.place: step.message for step in finding.steps}
    by_file: dict[tuple[str, int | None], list[Place]] = {(finding.place.path, finding.place.cell): []}
    for place in dict.fromkeys([*labels, finding.place]):
        by_file.setdefault((place.path, place.cell), []).append(place)
    groups = [sorted(places, key=lambda p: (p.line, p.column, p == finding.place)) for places in by_file.values()]
    numbers = {place: number for number, place in enumerate(labels, 1)}
    read = [numbers[place] for places in groups for place in places if place in numbers]

    def label(place: Place) -> str:
        message = labels.get(place, "")
        return f"{numbers[place]}. {message}" if place in labels and read != sorted(read) else message

    return [[_Mark(place, label(place), place == finding.place) for place in places] for places in groups]


def _excerpt(marks: list[_Mark], sources: Sources, margin: int, tint: str, paint: _Painter) -> Iterator[str]:
    bar = paint("|", "blue")
    at: int | None = None
    for line in sorted({mark.place.line for mark in marks}):
        place = marks[0].place
        if at is not None and line - at - 1 > MAX_GAP:
            yield paint("...", "blue")
        elif at is not None:
            for between in range(at + 1, line):
                text = sources.line(place.path, between, place.cell) or ""
                yield f"{paint(str(between).rjust(margin), 'blue')} {bar} {_cropped(text, 1, 2)[0]}"
        at = line
        here = [mark for mark in marks if mark.place.line == line]
        text = sources.line(place.path, line, place.cell) or ""
        first = min(mark.place.column for mark in here)
        last = max(_end_on_line(mark.place, text) for mark in here)
        shown, offset = _cropped(text, first, last)
        yield f"{paint(str(line).rjust(margin), 'blue')} {bar} {shown}"
        for mark in here:
            start = _width(text[: mark.place.column - 1]) - offset
            length = max(_width(text[: _end_on_line(mark.place, text) - 1]) - offset - start, 1)
            length = min(length, max(MAX_WIDTH - start, 1))
            under = ("^" if mark.main else "-") * length
            label = f"{under} {printable(mark.label)}".rstrip()
            yield f"{' ' * margin} {bar} {' ' * max(start, 0)}{paint(label, tint if mark.main else 'blue')}"


def _end_on_line(place: Place, text: str) -> int:
    """The exclusive end column of a range on its first line."""
    return place.end_column if place.end_line == place.line else len(text.rstrip()) + 1


def _cropped(text: str, first: int, last: int) -> tuple[str, int]:
    """A line as it is shown, cut to a window around the columns that matter, and the columns cut from its left."""
    if len(text) <= MAX_WIDTH:
        return _shown(text), 0
    start = max(min(first - 1 - MAX_WIDTH // 4, len(text) - MAX_WIDTH), 0)
    if last <= MAX_WIDTH:
        start = 0
    window = _shown(text[start : start + MAX_WIDTH])
    offset = _width(text[:start])
    if start:
        window = "…" + window[1:]
    if start + MAX_WIDTH < len(text):
        window = window[:-1] + "…"
    return window, offset


def _shown(text: str) -> str:
    return printable(text.expandtabs(TAB) if text.isascii() else text.replace("\t", " " * TAB))


def _width(text: str) -> int:
    """The columns that text takes in a terminal."""
    if text.isascii():
        return len(text.expandtabs(TAB))
    text = text.replace("\t", " " * TAB)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def printable(text: str) -> str:
    """Text without characters that would steer the terminal instead of being shown."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c in "\r\n\f\v" else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    """A character by its number; a byte that is no text, as Python reads it from a file's name, as that byte."""
    code = ord(character)
    return f"\\x{code - 0xDC00 if 0xDC80 <= code <= 0xDCFF else code:02x}"


def _notes(finding: Finding, options: Options) -> Iterator[tuple[str, str]]:
    if finding.assumptions:
        yield "assuming", ", ".join(finding.assumptions)
    if options.verbose or finding.confidence < 1:
        yield "confidence", str(finding.confidence)
    if finding.target is not None:
        yield "target", f"torch {finding.target}"
    verdict = verdict_line(finding)
    if verdict:
        yield "verdict", verdict
    if finding.fix is not None:
        yield "help", f"{finding.fix.title} ({finding.fix.safety} fix)"
    yield "see", finding.url


def verdict_line(finding: Finding) -> str:
    """What the verifier saw, in one line; empty where it was not asked."""
    verdict = finding.verdict
    if verdict is None:
        return ""
    if verdict.status == "static-only":
        return "static-only: there is nothing to execute"
    device = f" on {verdict.device}" if verdict.device else ""
    torch = f", torch {verdict.torch}" if verdict.torch else ""
    variant = f" [{verdict.variant}]" if verdict.variant not in ("", "nominal") else ""
    fix = {True: "fix verified", False: "the fix does not help", None: ""}[verdict.fix_verified]
    said = "; ".join(part for part in (verdict.figure, verdict.reason, fix) if part)
    assumed = f" (assuming {', '.join(verdict.assumptions)})" if verdict.assumptions else ""
    return f"{verdict.status}{device}{torch}{variant}{': ' if said else ''}{said}{assumed}"


class _Painter:
    """Colours text, or leaves it as it is; all of it is dimmed in the frame of a refuted finding."""

    def __init__(self, color: bool, dim: bool) -> None:
        self._color = color
        self._dim = dim

    def __call__(self, text: str, color: str | None = None) -> str:
        if not self._color:
            return text
        from click import style

        return style(text, dim=True) if self._dim else style(text, fg=color, bold=True)
