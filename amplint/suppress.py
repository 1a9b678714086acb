"""Comments that silence findings: `# amplint: ignore[AMP201] reason`, `file-ignore[...]`, and `# noqa: AMP201`.

A directive counts on any line of the finding's statement, alone on the line above it, or at any of the
finding's steps; `file-ignore` stands above the first statement of a file and counts everywhere in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from amplint import registry
from amplint.config import rule_spellings, suggestion
from amplint.finding import Confidence, Edit, Finding, Fix, Place
from amplint.source import SourceModule

UNUSED = "AMP901"
#: a file without these bytes has no directive that could be unused
NEEDLE = b"amplint:"
Kind = Literal["ignore", "file-ignore", "noqa", "unknown"]

_PRAGMA = re.compile(
    r"#\s*amplint:\s*(?P<kind>[\w-]+)(?:\s*\[(?P<codes>[^\]\r\n]*)\])?(?P<reason>(?:(?!\s#\s|\s#\s*\w+:)[^\r\n])*)"
)
_NOQA = re.compile(
    r"#\s*noqa(?P<named>\s*:\s*(?P<codes>[A-Za-z][\w-]*(?:(?:\s*,\s*|\s+)[A-Z]+[0-9]+|\s*,\s*[A-Za-z][\w-]*)*))?(?![\w:-])",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Directive:
    """One comment. `spelled` are the rules as written, `codes` the ones among them that exist.

    `place` covers the directive's own text, `removal` also the white space and line end that go with it.
    `alone` says that no code stands before it on its line, `on_top` that none stands before it in the file.
    """

    kind: Kind
    spelled: tuple[str, ...]
    codes: tuple[str, ...]
    place: Place
    removal: Place
    alone: bool
    on_top: bool
    reason: str
    word: str

    def covers(self, code: str) -> bool:
        return not self.spelled or code in self.codes


@dataclass(frozen=True, slots=True)
class Suppressed:
    """A finding that is not shown because the user said so, in the source or in the baseline."""

    finding: Finding
    kind: Literal["ignore", "file-ignore", "noqa", "baseline"]
    reason: str = ""

    @classmethod
    def by(cls, directive: Directive, finding: Finding) -> Suppressed:
        kind = "ignore" if directive.kind == "unknown" else directive.kind
        return cls(finding, kind, directive.reason)


def directives(module: SourceModule) -> list[Directive]:
    """The directives of a file, in order."""
    lowered = module.text.lower()
    if "amplint:" not in lowered and "noqa" not in lowered:
        return []
    top = _lines_above_code(module)
    return [
        directive
        for line, column, comment in module.comments()
        for directive in _in_comment(module, line, column, comment, line <= top)
    ]


def _in_comment(module: SourceModule, line: int, column: int, comment: str, on_top: bool) -> Iterator[Directive]:
    cell, shown = module.locate(line)
    before = module.line_text(line)[: column - 1]

    def directive(match: re.Match[str], kind: Kind, word: str) -> Directive:
        spelled = tuple(code for code in re.split(r"[,\s]+", match["codes"] or "") if code)
        found = (registry.find(code) for code in spelled)
        codes = tuple(rule.code for rule in found if rule)
        start, end = column + match.start(), column + match.start() + len(match.group().rstrip())
        place = Place(module.path, shown, start, shown, end, cell)
        text = before + comment
        left, right = text[: start - 1], text[end - 1 :]
        if not left.strip() and not right.strip() and line < len(module.line_starts):
            removal = Place(module.path, shown, 1, shown + 1, 1, cell)
        elif right.strip():
            removal = replace(place, end_column=end + len(right) - len(right.lstrip()))
        else:
            removal = Place(module.path, shown, len(left.rstrip()) + 1, shown, len(text) + 1, cell)
        reason = (match.groupdict().get("reason") or "").strip()
        return Directive(kind, spelled, codes, place, removal, not before.strip(), on_top, reason, word)

    for match in _PRAGMA.finditer(comment):
        word = match["kind"]
        kind: Kind = "ignore" if word == "ignore" else "file-ignore" if word == "file-ignore" else "unknown"
        yield directive(match, kind, word)
    for match in _NOQA.finditer(comment):
        yield directive(match, "noqa", "noqa")


def _lines_above_code(module: SourceModule) -> int:
    """The last line of `text` above the first statement that is not the docstring."""
    text = module.text
    head = re.compile(r"(?:\s|#[^\r\n]*|\\\r?\n)*").match(text)
    at = head.end() if head else 0
    docstring = re.compile(r"""[rRuU]?(?:'{3}(?s:.*?)'{3}|"{3}(?s:.*?)"{3}|'[^'\r\n]*'|"[^"\r\n]*")(?=\s|#|$)""").match(
        text, at
    )
    if docstring:
        rest = re.compile(r"(?:\s|#[^\r\n]*)*").match(text, docstring.end())
        at = rest.end() if rest else docstring.end()
    return len(module.line_starts) if at >= len(text) else module.line_of(at) - 1


@dataclass(slots=True)
class Suppressions:
    """The directives of the files of a run, loaded when they are needed, and what they silenced."""

    load: Callable[[str], Sequence[Directive]]
    _by_file: dict[str, dict[tuple[int | None, int], list[Directive]]] = field(default_factory=dict)
    _used: dict[Directive, set[str]] = field(default_factory=dict)

    def silencing(self, finding: Finding, by_name: bool = False) -> Directive | None:
        """The directive that silences a finding, if any; every one that does counts as used.

        With `by_name`, a directive that names no rule does not count.
        """
        found = [d for d in self._near(finding) if d.covers(finding.rule) and (d.spelled or not by_name)]
        for directive in found:
            self._used.setdefault(directive, set()).add(finding.rule)
        return found[0] if found else None

    def _near(self, finding: Finding) -> Iterator[Directive]:
        place = finding.place
        for directive in self._all(place.path):
            if directive.kind == "file-ignore" and directive.on_top:
                yield directive
        first, last = finding.statement if finding.statement != (0, 0) else (place.line, place.line)
        yield from self._on_lines(place.path, place.cell, first, last, with_noqa=True)
        for step in finding.steps:
            at = step.place
            yield from self._on_lines(at.path, at.cell, at.line, at.end_line, with_noqa=False)

    def _on_lines(self, path: str, cell: int | None, first: int, last: int, with_noqa: bool) -> Iterator[Directive]:
        lines = self._lines(path)
        for line in range(first, last + 1):
            for directive in lines.get((cell, line), ()):
                if directive.kind == "ignore" or (with_noqa and directive.kind == "noqa"):
                    yield directive
        above = first - 1
        while any(d.alone and d.kind == "ignore" for d in lines.get((cell, above), ())):
            yield from (d for d in lines[cell, above] if d.kind == "ignore")
            above -= 1

    def _lines(self, path: str) -> dict[tuple[int | None, int], list[Directive]]:
        found = self._by_file.get(path)
        if found is None:
            found = self._by_file[path] = {}
            for directive in self.load(path):
                found.setdefault((directive.place.cell, directive.place.line), []).append(directive)
        return found

    def _all(self, path: str) -> Iterator[Directive]:
        for on_line in self._lines(path).values():
            yield from on_line

    def unused(self, path: str, ran: Collection[str]) -> Iterator[Finding]:
        """AMP901 for the directives of a file that silence nothing; call it when all findings are known.

        `ran` are the codes of the rules that ran on the file: of others nobody knows whether they would
        have been silenced.
        """
        rule = registry.find(UNUSED)
        if rule is None:
            return
        for directive in self._all(path):
            if directive.kind == "noqa":
                continue
            said = self._complaint(directive, ran)
            if said is None:
                continue
            message, kept = said
            yield Finding(
                rule=rule.code,
                name=rule.name,
                severity=rule.severity,
                confidence=Confidence.HIGH,
                place=directive.place,
                message=message,
                fix=_without(directive, kept),
                url=rule.url,
                statement=(directive.place.line, directive.place.line),
            )

    def _complaint(self, directive: Directive, ran: Collection[str]) -> tuple[str, tuple[str, ...]] | None:
        """What is wrong with a directive, and the rules it should go on naming."""
        used = self._used.get(directive, set())
        if directive.kind == "unknown":
            known = ["ignore", "file-ignore"]
            return f"`{directive.word}` is no suppression{suggestion(directive.word, known)}", directive.spelled
        if directive.kind == "file-ignore" and not directive.on_top:
            return "`file-ignore` counts only above the first statement of a file", ()
        if not directive.spelled:
            return "the suppression names no rule", tuple(sorted(used))
        kept, unknown, unused = [], [], []
        for spelled in directive.spelled:
            rule = registry.find(spelled)
            if rule is None:
                unknown.append(f"{spelled!r} is no rule{suggestion(spelled, rule_spellings())}")
            elif rule.code in used or rule.code not in ran:
                kept.append(spelled)
            else:
                unused.append(spelled)
        if not unknown and not unused:
            return None
        parts = [*unknown, *([f"nothing is suppressed here for {', '.join(unused)}"] if unused else [])]
        return "; ".join(parts), tuple(kept)


def _without(directive: Directive, kept: tuple[str, ...]) -> Fix | None:
    """The edit that leaves only `kept` of a directive, or removes it."""
    if directive.kind == "unknown":
        return None
    if kept:
        reason = f" {directive.reason}" if directive.reason else ""
        text = f"# amplint: {directive.word}[{', '.join(kept)}]{reason}"
        return Fix("safe", f"name only {', '.join(kept)}", (Edit(directive.place, text),))
    return Fix("safe", "remove the suppression", (Edit(directive.removal, ""),))
