"""A run in the words of the language server protocol: diagnostics, code actions, hovers.

The protocol counts lines from 0, and columns in units that client and server agree on; amplint counts lines and
columns from 1, and columns in characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from lsprotocol import types
from pygls.uris import from_fs_path
from pygls.workspace import PositionCodec

from amplint import pages, registry
from amplint.engine import Run
from amplint.finding import Edit, Finding, Place, Severity
from amplint.fix import attempt
from amplint.ignores import ignore_edit
from amplint.report.full import printable
from amplint.source import NEWLINE

SOURCE = "amplint"
FIX_ALL = "source.fixAll.amplint"
_SEVERITIES = {
    Severity.ERROR: types.DiagnosticSeverity.Error,
    Severity.WARNING: types.DiagnosticSeverity.Warning,
    Severity.INFO: types.DiagnosticSeverity.Information,
}


class View:
    """What a run says of the documents that are open in an editor.

    `uris` are the documents by absolute path, spelled as the editor spells them; `versions` the versions of their
    text that were checked. `versioned_edits` says whether the editor takes edits that name a version.
    """

    def __init__(
        self,
        run: Run,
        uris: Mapping[Path, str],
        versions: Mapping[str, int | None],
        codec: PositionCodec,
        versioned_edits: bool,
    ) -> None:
        self.run = run
        self.versions = versions
        self._uris = uris
        self._codec = codec
        self._versioned_edits = versioned_edits
        self._by_uri: dict[str, list[Finding]] = {}
        for finding in run.findings:
            self._by_uri.setdefault(self._uri(finding.place.path), []).append(finding)

    def diagnostics(self, uri: str) -> list[types.Diagnostic]:
        """What is wrong with a document."""
        return [self._diagnostic(finding) for finding in self._by_uri.get(uri, ())]

    def actions(self, uri: str, within: types.Range) -> list[types.CodeAction]:
        """What can be done about the findings on the lines of a range: fixes, the safe ones first, and comments."""
        fixes: list[types.CodeAction] = []
        comments: list[types.CodeAction] = []
        for finding in self._by_uri.get(uri, ()):
            place = self._range(finding.place)
            if place.start.line > within.end.line or place.end.line < within.start.line:
                continue
            fix = finding.fix
            if (
                fix is not None
                and all(e.place.cell is None for e in fix.edits)
                and attempt([finding], self.run.sources)
            ):
                safe = fix.safety == "safe"
                title = f"{fix.title} ({finding.rule})" if safe else f"{fix.title} ({finding.rule}, unsafe fix)"
                fixes.append(self._action(title, finding, fix.edits, safe))
            comment = ignore_edit(finding, self.run.sources)
            if comment is not None and comment.place.cell is None:
                comments.append(self._action(f"ignore {finding.rule} here", finding, [comment], False))
        fixes.sort(key=lambda action: not action.is_preferred)
        return [*fixes, *comments]

    def fix_all_action(self, after: Mapping[str, bytes]) -> types.CodeAction | None:
        """The action that gives files (by display path) the bytes that fixing left them with."""
        edits = []
        for display in after:
            module = self.run.sources.module(display)
            if module is None or module.notebook is not None:
                return None
            lines = NEWLINE.split(module.text)
            whole = Place(display, 1, 1, len(lines), len(lines[-1]) + 1)
            edits.append(Edit(whole, after[display].decode(module.encoding)))
        if not edits:
            return None
        return types.CodeAction("amplint: apply all safe fixes", kind=FIX_ALL, edit=self._workspace_edit(edits))

    def hover(self, uri: str, position: types.Position) -> types.Hover | None:
        """The findings at a position, each with its rule's page."""
        found = [f for f in self._by_uri.get(uri, ()) if _holds(self._range(f.place), position)]
        if not found:
            return None
        by_rule = {finding.rule: finding for finding in found}
        texts = [
            f"**{finding.message}**\n\n{pages.markdown(registry.by_code_or_name()[code])}\n[{finding.url}]({finding.url})"
            for code, finding in by_rule.items()
        ]
        contents = types.MarkupContent(types.MarkupKind.Markdown, "\n\n---\n\n".join(texts))
        return types.Hover(contents, self._range(found[0].place))

    # -- parts ---------------------------------------------------------------------------------------

    def _diagnostic(self, finding: Finding) -> types.Diagnostic:
        message = printable(finding.message)
        if finding.assumptions:
            message += f"\nassuming {printable(', '.join(finding.assumptions))}"
        return types.Diagnostic(
            range=self._range(finding.place),
            message=message,
            severity=_SEVERITIES[finding.severity],
            code=finding.rule,
            code_description=types.CodeDescription(finding.url),
            source=SOURCE,
            related_information=[
                types.DiagnosticRelatedInformation(self._location(step.place), printable(step.message))
                for step in finding.steps
            ],
        )

    def _action(self, title: str, finding: Finding, edits: Iterable[Edit], preferred: bool) -> types.CodeAction:
        return types.CodeAction(
            title,
            kind=types.CodeActionKind.QuickFix,
            diagnostics=[self._diagnostic(finding)],
            is_preferred=preferred,
            edit=self._workspace_edit(edits),
        )

    def _workspace_edit(self, edits: Iterable[Edit]) -> types.WorkspaceEdit:
        changes: dict[str, list[types.TextEdit]] = {}
        for edit in dict.fromkeys(edits):
            changes.setdefault(self._uri(edit.place.path), []).append(
                types.TextEdit(self._range(edit.place), edit.text)
            )
        if not self._versioned_edits:
            return types.WorkspaceEdit(changes=changes)
        return types.WorkspaceEdit(
            document_changes=[
                types.TextDocumentEdit(types.OptionalVersionedTextDocumentIdentifier(uri, self.versions.get(uri)), own)
                for uri, own in changes.items()
            ]
        )

    def _location(self, place: Place) -> types.Location:
        return types.Location(self._uri(place.path), self._range(place))

    def _uri(self, display: str) -> str:
        path = self.run.sources.path(display)
        return self._uris.get(path) or from_fs_path(str(path)) or path.as_uri()

    def _range(self, place: Place) -> types.Range:
        line, column, end_line, end_column = self.run.sources.file_range(place)
        if column is None or end_column is None:  # a notebook's JSON, where only lines mean something
            return types.Range(types.Position(line - 1, 0), types.Position(end_line, 0))
        return types.Range(self._position(place.path, line, column), self._position(place.path, end_line, end_column))

    def _position(self, display: str, line: int, column: int) -> types.Position:
        before = (self.run.sources.line(display, line, None) or "")[: column - 1]
        return types.Position(line - 1, self._codec.client_num_units(before))


def _holds(place: types.Range, position: types.Position) -> bool:
    """Whether a position is in a range or at its end."""

    def key(at: types.Position) -> tuple[int, int]:
        return (at.line, at.character)

    return key(place.start) <= key(position) <= key(place.end)
