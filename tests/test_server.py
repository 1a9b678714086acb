"""The language server, driven by a client over its standard input and output as an editor does it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from conftest import CLIPPED, Amplint

types = pytest.importorskip("lsprotocol.types")
from pygls.lsp.client import LanguageClient  # noqa: E402

#: a whole program, so that the analysis is sure of every object
PROGRAM = CLIPPED.replace(
    "def train(model, optimizer, loader):\n",
    "def train(model, loader):\n    optimizer = torch.optim.SGD(model.parameters(), 0.1)\n",
)
CLIP = "        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
UNSCALE = "        scaler.unscale_(optimizer)\n"
FIXED = PROGRAM.replace(CLIP, UNSCALE + CLIP)
PATIENCE = 20.0


class Editor:
    """A client that keeps what the server publishes."""

    def __init__(self, folder: Path, client: LanguageClient) -> None:
        self.folder = folder
        self.client = client
        self.published: list[Any] = []
        self.said: list[str] = []
        self.registered: list[Any] = []
        self._news = asyncio.Event()
        self._version = 0

        @client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        def publish(params: Any) -> None:
            self.published.append(params)
            self._news.set()

        @client.feature(types.WINDOW_SHOW_MESSAGE)
        def show(params: Any) -> None:
            self.said.append(params.message)
            self._news.set()

        @client.feature(types.CLIENT_REGISTER_CAPABILITY)
        def register(params: Any) -> None:
            self.registered += params.registrations

    async def initialize(self, options: object = None, **capabilities: Any) -> Any:
        result = await self.client.initialize_async(
            types.InitializeParams(
                capabilities=types.ClientCapabilities(**capabilities),
                root_uri=self.folder.as_uri(),
                initialization_options=options,
            )
        )
        self.client.initialized(types.InitializedParams())
        return result

    def uri(self, name: str) -> str:
        return (self.folder / name).as_uri()

    def open(self, name: str, text: str) -> None:
        self._version += 1
        item = types.TextDocumentItem(self.uri(name), "python", self._version, text)
        self.client.text_document_did_open(types.DidOpenTextDocumentParams(item))

    def change(self, name: str, text: str) -> None:
        self._version += 1
        self.client.text_document_did_change(
            types.DidChangeTextDocumentParams(
                types.VersionedTextDocumentIdentifier(self._version, self.uri(name)),
                [types.TextDocumentContentChangeWholeDocument(text)],
            )
        )

    def insert(self, name: str, line: int, text: str) -> None:
        """Put text at the begin of a line, and send no more than that."""
        self._version += 1
        at = types.Position(line, 0)
        self.client.text_document_did_change(
            types.DidChangeTextDocumentParams(
                types.VersionedTextDocumentIdentifier(self._version, self.uri(name)),
                [types.TextDocumentContentChangePartial(types.Range(at, at), text)],
            )
        )

    def close(self, name: str) -> None:
        identifier = types.TextDocumentIdentifier(self.uri(name))
        self.client.text_document_did_close(types.DidCloseTextDocumentParams(identifier))

    def save(self, name: str) -> None:
        identifier = types.TextDocumentIdentifier(self.uri(name))
        self.client.text_document_did_save(types.DidSaveTextDocumentParams(identifier))

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE) if sys.version_info >= (3, 11) else _no_timeout():
            while not holds():
                await asyncio.wait_for(self._news.wait(), PATIENCE)
                self._news.clear()

    async def diagnostics(self, name: str, version: int | None = None) -> list[Any]:
        """What is published for the newest (or a certain) version of a document."""
        return await self.diagnostics_of(self.uri(name), self._version if version is None else version)

    async def diagnostics_of(self, uri: str, version: int) -> list[Any]:
        def last() -> Any:
            return next((p for p in reversed(self.published) if (p.uri, p.version) == (uri, version)), None)

        await self.until(last)
        return list(last().diagnostics)

    async def actions(self, name: str, line: int, only: list[str] | None = None) -> list[Any]:
        return await self.actions_in(self.uri(name), line, only)

    async def actions_in(self, uri: str, line: int, only: list[str] | None = None) -> list[Any]:
        at = types.Range(types.Position(line, 0), types.Position(line, 0))
        params = types.CodeActionParams(types.TextDocumentIdentifier(uri), at, types.CodeActionContext([], only=only))
        return list(await self.client.text_document_code_action_async(params) or ())

    async def hover(self, name: str, line: int, character: int) -> Any:
        return await self.hover_in(self.uri(name), line, character)

    async def hover_in(self, uri: str, line: int, character: int) -> Any:
        return await self.client.text_document_hover_async(
            types.HoverParams(types.TextDocumentIdentifier(uri), types.Position(line, character))
        )


class _no_timeout:
    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *error: object) -> None: ...


Story = Callable[[Editor], Coroutine[Any, Any, None]]


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Story], None]:
    """Run a story with a server of its own, and end the server as an editor does."""

    async def whole(story: Story) -> None:
        client = LanguageClient("test", "1")
        editor = Editor(tmp_path, client)
        await client.start_io(sys.executable, "-m", "amplint", "server", "--stdio", cwd=str(tmp_path))
        process = client._server
        assert process is not None
        try:
            await story(editor)
            await asyncio.wait_for(client.shutdown_async(None), PATIENCE)
            client.exit(None)
            assert await asyncio.wait_for(process.wait(), PATIENCE) == 0
        finally:
            if process.returncode is None:
                process.kill()
            await client.stop()

    return lambda story: asyncio.run(whole(story))


def applied(text: str, edits: list[Any]) -> str:
    """Text after edits whose positions count UTF-16 units in lines that end with a line feed."""

    def offset(position: Any) -> int:
        lines = text.splitlines(keepends=True)
        before = "".join(lines[: position.line])
        line = lines[position.line] if position.line < len(lines) else ""
        return len(before) + len(line.encode("utf-16-le")[: 2 * position.character].decode("utf-16-le"))

    for edit in sorted(edits, key=lambda e: (e.range.start.line, e.range.start.character), reverse=True):
        text = text[: offset(edit.range.start)] + edit.new_text + text[offset(edit.range.end) :]
    return text


def line_of(text: str, part: str) -> int:
    return text[: text.index(part)].count("\n")


def test_diagnostics_follow_the_text_that_is_typed(play: Callable[[Story], None]) -> None:
    async def story(editor: Editor) -> None:
        await editor.initialize()
        editor.open("train.py", PROGRAM)
        (found,) = await editor.diagnostics("train.py")
        assert (found.code, found.source, found.severity) == ("AMP201", "amplint", types.DiagnosticSeverity.Error)
        assert found.code_description.href == "https://amplint.readthedocs.io/rules/clip-before-unscale/"
        line = line_of(PROGRAM, CLIP)
        assert found.range == types.Range(types.Position(line, 8), types.Position(line, len(CLIP) - 1))
        related = [(place.location.range.start.line, place.message) for place in found.related_information]
        assert related[0] == (line_of(PROGRAM, "        scaler.scale"), "scaled backward")
        assert all(place.location.uri == editor.uri("train.py") for place in found.related_information)
        editor.change("train.py", FIXED)
        assert await editor.diagnostics("train.py") == []
        editor.change("train.py", "\n\n" + PROGRAM)
        (moved,) = await editor.diagnostics("train.py")
        assert moved.range.start.line == line + 2
        assert not (editor.folder / "train.py").exists()

    play(story)


def test_many_changes_in_a_row_are_checked_once(play: Callable[[Story], None]) -> None:
    async def story(editor: Editor) -> None:
        await editor.initialize()
        editor.open("train.py", PROGRAM)
        await editor.diagnostics("train.py")
        before = len(editor.published)
        for number in range(20):
            editor.change("train.py", f"{PROGRAM}# {number}\n")
        await editor.diagnostics("train.py")
        assert len(editor.published) <= before + 2

    play(story)


def test_a_closed_document_has_no_diagnostics(play: Callable[[Story], None]) -> None:
    async def story(editor: Editor) -> None:
        await editor.initialize()
        editor.open("train.py", PROGRAM)
        assert await editor.diagnostics("train.py")
        editor.close("train.py")
        await editor.until(lambda: not editor.published[-1].diagnostics)

    play(story)


@pytest.mark.parametrize("versioned", [False, True])
def test_actions_fix_and_suppress(play: Callable[[Story], None], versioned: bool) -> None:
    capability = types.WorkspaceClientCapabilities(
        workspace_edit=types.WorkspaceEditClientCapabilities(document_changes=versioned)
    )

    async def story(editor: Editor) -> None:
        def edits(action: Any) -> list[Any]:
            if not versioned:
                assert list(action.edit.changes) == [editor.uri("train.py")]
                return list(action.edit.changes[editor.uri("train.py")])
            (change,) = action.edit.document_changes
            assert (change.text_document.uri, change.text_document.version) == (editor.uri("train.py"), 1)
            return list(change.edits)

        await editor.initialize(workspace=capability)
        editor.open("train.py", PROGRAM)
        line = line_of(PROGRAM, CLIP)
        fix, comment = await editor.actions("train.py", line)
        assert (fix.kind, fix.is_preferred) == ("quickfix", True)
        assert "(AMP201)" in fix.title
        assert [diagnostic.code for diagnostic in fix.diagnostics] == ["AMP201"]
        assert applied(PROGRAM, edits(fix)) == FIXED
        assert comment.title == "ignore AMP201 here"
        assert not comment.is_preferred
        ignored = applied(PROGRAM, edits(comment))
        assert f"{CLIP.rstrip()}  # amplint: ignore[AMP201]\n" in ignored
        assert await editor.actions("train.py", 0) == []
        editor.change("train.py", ignored)
        assert await editor.diagnostics("train.py") == []

    play(story)


def test_actions_of_a_text_that_was_not_checked_yet(play: Callable[[Story], None]) -> None:
    async def story(editor: Editor) -> None:
        await editor.initialize()
        editor.open("train.py", FIXED)
        editor.change("train.py", "\n" + PROGRAM)
        fix, _ = await editor.actions("train.py", line_of("\n" + PROGRAM, CLIP))
        assert applied("\n" + PROGRAM, fix.edit.changes[editor.uri("train.py")]) == "\n" + FIXED

    play(story)


def test_all_safe_fixes_at_once(play: Callable[[Story], None]) -> None:
    second = PROGRAM[PROGRAM.index("def train") :].replace("def train", "def again")
    text = PROGRAM + "\n\n" + second
    fixed = FIXED + "\n\n" + second.replace(CLIP, UNSCALE + CLIP)

    async def story(editor: Editor) -> None:
        await editor.initialize()
        editor.open("train.py", text)
        assert len(await editor.diagnostics("train.py")) == 2
        (action,) = await editor.actions("train.py", 0, ["source.fixAll"])
        assert action.kind == "source.fixAll.amplint"
        assert applied(text, action.edit.changes[editor.uri("train.py")]) == fixed
        assert await editor.actions("train.py", 0, ["source.organizeImports"]) == []
        editor.change("train.py", fixed)
        assert await editor.actions("train.py", 0, ["source.fixAll"]) == []

    play(story)


def test_hover_shows_the_page_of_the_rule(play: Callable[[Story], None]) -> None:
    async def story(editor: Editor) -> None:
        await editor.initialize()
        editor.open("train.py", PROGRAM)
        line = line_of(PROGRAM, CLIP)
        shown = await editor.hover("train.py", line, 20)
        assert shown.contents.kind == types.MarkupKind.Markdown
        assert "# clip-before-unscale (AMP201)" in shown.contents.value
        assert "## Use instead" in shown.contents.value
        assert shown.range.start == types.Position(line, 8)
        assert await editor.hover("train.py", 0, 0) is None

    play(story)


def test_columns_count_utf_16_units(play: Callable[[Story], None]) -> None:
    text = PROGRAM.replace(CLIP, CLIP.replace("        torch", '        "\U0001f40d"; torch'))

    async def story(editor: Editor) -> None:
        await editor.initialize()
        editor.open("train.py", text)
        (found,) = await editor.diagnostics("train.py")
        assert (found.range.start.character, found.range.end.character) == (14, len(CLIP) - 1 + 6)
        assert found.range.end.character > found.range.start.character

    play(story)


def test_a_form_feed_ends_no_line(play: Callable[[Story], None]) -> None:
    text = "\f\n" + PROGRAM.replace("\n\ndef", "\n\f\ndef")

    async def story(editor: Editor) -> None:
        await editor.initialize()
        editor.open("train.py", text)
        (found,) = await editor.diagnostics("train.py")
        assert found.range.start.line == line_of(text, CLIP)

    play(story)


def test_only_what_changes_needs_to_be_sent(play: Callable[[Story], None]) -> None:
    text = "\f\n" + PROGRAM

    async def story(editor: Editor) -> None:
        initialized = await editor.initialize()
        assert initialized.capabilities.text_document_sync.change == types.TextDocumentSyncKind.Incremental
        editor.open("train.py", text)
        assert len(await editor.diagnostics("train.py")) == 1
        editor.insert("train.py", line_of(text, CLIP), UNSCALE)
        assert await editor.diagnostics("train.py") == []
        editor.insert("train.py", 0, "\N{SNAKE} = (\n")
        editor.insert("train.py", 0, "# \N{SNAKE}\n\n")
        assert await editor.diagnostics("train.py") == []

    play(story)


class Notebook:
    """A notebook in the editor: its cells are documents of their own, between text that no one sends."""

    def __init__(self, editor: Editor, *sources: str) -> None:
        self._client = editor.client
        self._uri = editor.uri("train.ipynb")
        self._version = 1
        self.cells = [f"vscode-notebook-cell:{self._uri.removeprefix('file:')}#W{n}" for n in range(len(sources))]
        described = [types.NotebookCell(types.NotebookCellKind.Code, uri) for uri in self.cells]
        described.insert(1, types.NotebookCell(types.NotebookCellKind.Markup, "vscode-notebook-cell:/text#X"))
        texts = [types.TextDocumentItem(uri, "python", 1, text) for uri, text in zip(self.cells, sources, strict=True)]
        self._client.notebook_document_did_open(
            types.DidOpenNotebookDocumentParams(
                types.NotebookDocument(self._uri, "jupyter-notebook", 1, described), texts
            )
        )

    def _change(self, cells: Any) -> None:
        self._version += 1
        self._client.notebook_document_did_change(
            types.DidChangeNotebookDocumentParams(
                types.VersionedNotebookDocumentIdentifier(self._version, self._uri),
                types.NotebookDocumentChangeEvent(cells=cells),
            )
        )

    def insert(self, cell: int, version: int, line: int, text: str) -> None:
        """Put text at the begin of a line of a cell."""
        at = types.Position(line, 0)
        self._change(
            types.NotebookDocumentCellChanges(
                text_content=[
                    types.NotebookDocumentCellContentChanges(
                        types.VersionedTextDocumentIdentifier(version, self.cells[cell]),
                        [types.TextDocumentContentChangePartial(types.Range(at, at), text)],
                    )
                ]
            )
        )

    def remove_first(self) -> None:
        structure = types.NotebookDocumentCellChangeStructure(
            types.NotebookCellArrayChange(0, 1), did_close=[types.TextDocumentIdentifier(self.cells[0])]
        )
        self._change(types.NotebookDocumentCellChanges(structure))

    def close(self) -> None:
        self._client.notebook_document_did_close(
            types.DidCloseNotebookDocumentParams(
                types.NotebookDocumentIdentifier(self._uri), [types.TextDocumentIdentifier(uri) for uri in self.cells]
            )
        )


def test_the_cells_of_a_notebook_are_one_program(play: Callable[[Story], None]) -> None:
    first, second = PROGRAM[: PROGRAM.index("def train")], PROGRAM[PROGRAM.index("def train") :]
    second = f"%matplotlib inline\n{second}"
    line = line_of(second, CLIP)
    versioned = types.WorkspaceClientCapabilities(
        workspace_edit=types.WorkspaceEditClientCapabilities(document_changes=True)
    )
    synchronization = types.NotebookDocumentClientCapabilities(types.NotebookDocumentSyncClientCapabilities())

    async def story(editor: Editor) -> None:
        initialized = await editor.initialize(workspace=versioned, notebook_document=synchronization)
        (kind,) = initialized.capabilities.notebook_document_sync.notebook_selector
        assert kind.notebook.notebook_type == "jupyter-notebook"
        notebook = Notebook(editor, first, second)
        setup, training = notebook.cells
        (found,) = await editor.diagnostics_of(training, 1)
        assert await editor.diagnostics_of(setup, 1) == []
        assert found.range == types.Range(types.Position(line, 8), types.Position(line, len(CLIP) - 1))
        assert {place.location.uri for place in found.related_information} == {training}
        fix, comment = await editor.actions_in(training, line)
        (change,) = fix.edit.document_changes
        assert (change.text_document.uri, change.text_document.version) == (training, 1)
        assert applied(second, change.edits) == second.replace(CLIP, UNSCALE + CLIP)
        assert comment.title == "ignore AMP201 here"
        (change,) = comment.edit.document_changes
        assert f"{CLIP.rstrip()}  # amplint: ignore[AMP201]\n" in applied(second, change.edits)
        assert "# clip-before-unscale (AMP201)" in (await editor.hover_in(training, line, 20)).contents.value
        for only, kind in (("source.fixAll", "source.fixAll.amplint"), ("notebook", "notebook.source.fixAll.amplint")):
            (everything,) = await editor.actions_in(setup, 0, [only])
            assert everything.kind == kind
            (change,) = everything.edit.document_changes
            assert (change.text_document.uri, applied(second, change.edits)) == (
                training,
                second.replace(CLIP, UNSCALE + CLIP),
            )
        notebook.insert(1, 2, line, UNSCALE)
        assert await editor.diagnostics_of(training, 2) == []
        notebook.insert(1, 3, line, "        # why\n\n")
        assert await editor.diagnostics_of(training, 3) == []
        notebook.insert(1, 4, 1, first)
        notebook.remove_first()
        assert await editor.diagnostics_of(training, 4) == []
        notebook.close()

    play(story)


def test_a_notebook_that_is_closed_has_no_diagnostics(play: Callable[[Story], None]) -> None:
    async def story(editor: Editor) -> None:
        await editor.initialize()
        notebook = Notebook(editor, PROGRAM)
        (cell,) = notebook.cells
        assert await editor.diagnostics_of(cell, 1)
        notebook.close()
        await editor.until(lambda: not editor.published[-1].diagnostics)
        assert editor.published[-1].uri == cell

    play(story)


def test_a_finding_that_another_open_document_causes(play: Callable[[Story], None]) -> None:
    helper = "import torch\n\n\ndef limit(model):\n    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
    main = "from helper import limit\n" + PROGRAM.replace(CLIP, "        limit(model)\n")

    async def story(editor: Editor) -> None:
        (editor.folder / "pyproject.toml").write_text("")
        (editor.folder / "helper.py").write_text(helper)
        await editor.initialize()
        editor.open("train.py", main)
        assert await editor.diagnostics("train.py", 1) == []
        editor.open("helper.py", helper)
        await editor.until(lambda: any(params.diagnostics for params in editor.published))
        (found,) = next(params.diagnostics for params in editor.published if params.diagnostics)
        assert found.code == "AMP201"
        places = {place.location.uri for place in found.related_information}
        assert editor.uri("train.py") in places

    play(story)


def test_the_projects_configuration_counts_and_the_editors_over_it(play: Callable[[Story], None]) -> None:
    async def story(editor: Editor) -> None:
        (editor.folder / "amplint.toml").write_text('extend-exclude = ["vendored"]\nmin-severity = "error"\n')
        (editor.folder / "vendored").mkdir()
        await editor.initialize({"ignore": ["AMP201"]})
        editor.open("train.py", PROGRAM)
        assert await editor.diagnostics("train.py") == []
        editor.open("vendored/train.py", PROGRAM)
        assert await editor.diagnostics("vendored/train.py") == []

    play(story)


def test_a_broken_configuration_is_told_once_and_its_repair_is_seen(play: Callable[[Story], None]) -> None:
    watching = types.WorkspaceClientCapabilities(
        did_change_watched_files=types.DidChangeWatchedFilesClientCapabilities(dynamic_registration=True)
    )

    async def story(editor: Editor) -> None:
        config = editor.folder / "amplint.toml"
        config.write_text("selct = []\n")
        await editor.initialize(workspace=watching)
        editor.open("train.py", PROGRAM)
        assert await editor.diagnostics("train.py") == []
        assert await editor.actions("train.py", line_of(PROGRAM, CLIP)) == []
        assert len(editor.said) == 1
        assert "did you mean 'select'?" in editor.said[0]
        config.write_text("")
        assert [r.method for r in editor.registered] == ["workspace/didChangeWatchedFiles"]
        event = types.FileEvent(config.as_uri(), types.FileChangeType.Changed)
        editor.client.workspace_did_change_watched_files(types.DidChangeWatchedFilesParams([event]))
        await editor.until(lambda: editor.published[-1].diagnostics)

    play(story)


def test_what_is_no_python_is_left_to_others(play: Callable[[Story], None]) -> None:
    async def story(editor: Editor) -> None:
        await editor.initialize()
        editor.open("train.py", PROGRAM + "def (\n")
        assert await editor.diagnostics("train.py") == []
        editor.change("train.py", PROGRAM)
        assert len(await editor.diagnostics("train.py")) == 1

    play(story)


def test_without_its_library_the_server_says_what_is_missing(amplint: Amplint, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("pygls", "lsprotocol")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("amplint.server", "amplint.lsp"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "pygls", None)
    monkeypatch.setitem(sys.modules, "lsprotocol", None)
    result = amplint("server")
    assert result.status == 2
    assert "pip install 'amplint[server]'" in result.err
