"""A run in the words of the language server protocol: diagnostics, code actions, hovers.

The protocol counts lines from 0, and columns in units that client and server agree on; amplint counts lines and
columns from 1, and columns in characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lsprotocol import types
from pygls.uris import from_fs_path
from pygls.workspace import PositionCodec

from amplint import pages, registry
from amplint.finding import Edit, Finding, Place, Severity
from amplint.fix import attempt
from amplint.ignores import ignore_edit
from amplint.report.full import printable
from amplint.run import Run
from amplint.source import NEWLINE, SourceModule

SOURCE = "amplint"
FIX_ALL = "source.fixAll.amplint"
#: what editors ask for when a whole notebook is saved
FIX_ALL_OF_NOTEBOOK = "notebook.source.fixAll.amplint"
_SEVERITIES = {
    Severity.ERROR: types.DiagnosticSeverity.Error,
    Severity.WARNING: types.DiagnosticSeverity.Warning,
    Severity.INFO: types.DiagnosticSeverity.Information,
}


@dataclass(frozen=True, slots=True)
class Documents:
    """How an editor names what is open: files by absolute path, and of its notebooks the cells, in order."""

    uris: Mapping[Path, str]
    cells: Mapping[Path, Sequence[str]]

    def path_of(self, uri: str) -> Path | None:
        """The file that a document is, or that a cell belongs to."""
        of_files = (path for path, own in self.uris.items() if own == uri)
        return next(of_files, None) or next((path for path, own in self.cells.items() if uri in own), None)

    def uri(self, path: Path, cell: int | None) -> str:
        """The document that holds what lies in a file, open or not."""
        if cell is not None and path in self.cells:
            return self.cells[path][cell - 1]
        return self.uris.get(path) or from_fs_path(str(path)) or path.as_uri()


class View:
    """What a run says of the documents that are open in an editor.

    `versions` are the versions of the texts that were checked; `versioned_edits` says whether the editor takes edits
    that name a version.
    """

    def __init__(
        self,
        run: Run,
        documents: Documents,
        versions: Mapping[str, int | None],
        codec: PositionCodec,
        versioned_edits: bool,
    ) -> None:
        self.run = run
        self.versions = versions
        self._documents = documents
        self._codec = codec
        self._versioned_edits = versioned_edits
        self._by_uri: dict[str, list[Finding]] = {}
        for finding in run.findings:
            self._by_uri.setdefault(self._uri(finding.place), []).append(finding)

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
            if fix is not None and self._can_be_edited(fix.edits) and attempt([finding], self.run.sources):
                safe = fix.safety == "safe"
                title = f"{fix.title} ({finding.rule})" if safe else f"{fix.title} ({finding.rule}, unsafe fix)"
                fixes.append(self._action(title, finding, fix.edits, safe))
            comment = ignore_edit(finding, self.run.sources)
            if comment is not None and self._can_be_edited([comment]):
                comments.append(self._action(f"ignore {finding.rule} here", finding, [comment], False))
        fixes.sort(key=lambda action: not action.is_preferred)
        return [*fixes, *comments]

    def fix_all_action(self, after: Mapping[str, bytes], kind: str) -> types.CodeAction | None:
        """The action that gives files (by display path) the bytes that fixing left them with."""
        edits: list[Edit] = []
        for display, data in after.items():
            before = self.run.sources.module(display)
            if before is None:
                return None
            edits += _rewritten(before, SourceModule.from_bytes(data, display))
        if not edits or not self._can_be_edited(edits):
            return None
        return types.CodeAction("amplint: apply all safe fixes", kind=kind, edit=self._workspace_edit(edits))

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
            changes.setdefault(self._uri(edit.place), []).append(types.TextEdit(self._range(edit.place), edit.text))
        if not self._versioned_edits:
            return types.WorkspaceEdit(changes=changes)
        return types.WorkspaceEdit(
            document_changes=[
                types.TextDocumentEdit(types.OptionalVersionedTextDocumentIdentifier(uri, self.versions.get(uri)), own)
                for uri, own in changes.items()
            ]
        )

    def _location(self, place: Place) -> types.Location:
        return types.Location(self._uri(place), self._range(place))

    def _uri(self, place: Place) -> str:
        return self._documents.uri(self.run.sources.path(place.path), place.cell)

    def _can_be_edited(self, edits: Iterable[Edit]) -> bool:
        """Whether all edits are of texts: the JSON of a notebook that is not open as one is left alone."""
        return all(e.place.cell is None or self._is_open_notebook(e.place) for e in edits)

    def _is_open_notebook(self, place: Place) -> bool:
        return self.run.sources.path(place.path) in self._documents.cells

    def _range(self, place: Place) -> types.Range:
        if place.cell is not None and not self._is_open_notebook(place):  # JSON, where only lines mean something
            line, _, end_line, _ = self.run.sources.file_range(place)
            return types.Range(types.Position(line - 1, 0), types.Position(end_line, 0))
        return types.Range(
            self._position(place, place.line, place.column), self._position(place, place.end_line, place.end_column)
        )

    def _position(self, place: Place, line: int, column: int) -> types.Position:
        before = (self.run.sources.line(place.path, line, place.cell) or "")[: column - 1]
        return types.Position(line - 1, self._codec.client_num_units(before))


def _rewritten(before: SourceModule, after: SourceModule) -> Iterator[Edit]:
    """The edits that turn one version of a file into another: all of its text, or of a notebook, that of some cells."""
    if before.notebook is None or after.notebook is None:
        yield Edit(_whole(before.path, before.text, None), after.text)
        return
    for cell in before.notebook.cells:
        new = after.notebook.by_index[cell.index].source
        if new != cell.source:
            yield Edit(_whole(before.path, cell.source, cell.index), new)


def _whole(display: str, text: str, cell: int | None) -> Place:
    lines = NEWLINE.split(text)
    return Place(display, 1, 1, len(lines), len(lines[-1]) + 1, cell)


def _holds(place: types.Range, position: types.Position) -> bool:
    """Whether a position is in a range or at its end."""

    def key(at: types.Position) -> tuple[int, int]:
        return (at.line, at.character)

    return key(place.start) <= key(position) <= key(place.end)
