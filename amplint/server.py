"""`amplint server`: findings while one types, from the text as it is in the editor.

All open documents are checked together, so that a finding that one file causes in another is seen as on the command
line. A check starts when nobody has typed for a moment; only one runs at a time.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import io
import json
import os
import sys
import threading
import tokenize
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.uris import to_fs_path
from pygls.workspace import TextDocument

import amplint
from amplint import target
from amplint.config import KEYS, ConfigError, Configuration, Selection, settings_from
from amplint.engine import check
from amplint.files import SUFFIXES
from amplint.fix import fix_all
from amplint.found import UNREADABLE
from amplint.lsp import FIX_ALL, FIX_ALL_OF_NOTEBOOK, Documents, View
from amplint.run import Run
from amplint.source import lines_of

#: the notebooks that are checked, and the cells of them that editors need to send
_NOTEBOOKS = types.NotebookDocumentFilterWithNotebook(
    types.NotebookDocumentFilterNotebookType("jupyter-notebook"), [types.NotebookCellLanguage("python")]
)
#: seconds without a change after which a check starts
PAUSE = 0.25
#: recursive walks over deep trees need more than what some systems give a thread
STACK = 64 << 20


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """What is open: the contents by absolute path, how the editor names them, and the versions of it all."""

    contents: Mapping[Path, bytes]
    documents: Documents
    versions: Mapping[str, int | None]


class Server(LanguageServer):
    """A language server on standard input and output."""

    def __init__(self) -> None:
        super().__init__(
            "amplint",
            amplint.__version__,
            types.TextDocumentSyncKind.Incremental,
            types.NotebookDocumentSyncOptions([_NOTEBOOKS], save=True),
        )
        self._worker = _worker_thread()
        self._busy = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[View | None]] = set()
        self._view: View | None = None
        self._outdated = 0  # how often something else than an open text has changed
        self._published: set[str] = set()
        self._complaint = ""
        self._options: Mapping[str, Any] = {}

    def configure(self, options: object) -> None:
        """Take settings from the editor, named as the TOML keys are; they count over all configuration files."""
        self._options = options if isinstance(options, Mapping) else {}
        self._view = None

    def schedule(self, outdated: bool = False) -> None:
        """Check when nothing has changed for a moment; `outdated` says that it is not the open texts that changed."""
        if outdated:
            self._outdated += 1
            self._view = None
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(PAUSE, self._start)

    def _start(self) -> None:
        task = asyncio.ensure_future(self.view())
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[View | None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            text = "".join(traceback.format_exception(error))
            self.window_log_message(types.LogMessageParams(types.MessageType.Error, text))

    async def view(self) -> View | None:
        """What is known of the texts as they are now, checked again where they changed; None without a usable
        configuration. The diagnostics are published."""
        async with self._busy:
            snapshot = self._snapshot()
            if self._view is not None and self._view.versions == snapshot.versions:
                return self._view
            self._view, outdated = None, self._outdated
            try:
                run = await asyncio.get_running_loop().run_in_executor(self._worker, self._check, snapshot.contents)
            except ConfigError as error:
                self._complain(str(error))
                self._publish(None, snapshot)
                return None
            self._complaint = ""
            for fault in run.errors:
                text = f"internal error on {fault.path} [{fault.hash}]: {fault.message}\n{fault.traceback}"
                self.window_log_message(types.LogMessageParams(types.MessageType.Error, text))
            edits = self.client_capabilities.workspace and self.client_capabilities.workspace.workspace_edit
            versioned = bool(edits and edits.document_changes)
            view = View(run, snapshot.documents, snapshot.versions, self.workspace.position_codec, versioned)
            self._publish(view, snapshot)
            if outdated == self._outdated and self._snapshot().versions == snapshot.versions:
                self._view = view
            return view

    async def fix_all(self, view: View, uri: str, kind: str) -> types.CodeAction | None:
        """The action that applies every safe fix of a document, or of the notebook of a cell, as `--fix` would."""
        snapshot = self._snapshot()
        path = snapshot.documents.path_of(uri)
        if path is None or snapshot.versions != view.versions:
            return None

        def fixed() -> Mapping[str, bytes]:
            run = self._check(snapshot.contents, [path])
            return fix_all(run, lambda new: self._check({**snapshot.contents, **new}, [path]))[0].after

        try:
            after = await asyncio.get_running_loop().run_in_executor(self._worker, fixed)
        except ConfigError:
            return None
        return view.fix_all_action(after, kind)

    # -- inside --------------------------------------------------------------------------------------

    def _snapshot(self) -> _Snapshot:
        contents: dict[Path, bytes] = {}
        uris: dict[Path, str] = {}
        cells: dict[Path, tuple[str, ...]] = {}
        versions: dict[str, int | None] = {}
        for notebook in self.workspace.notebook_documents.values():
            path = _path_of(notebook.uri)
            if path is None or path.suffix != ".ipynb":
                continue
            texts = [self.workspace.text_documents.get(unquote(cell.document)) for cell in notebook.cells]
            contents[path] = _as_file(texts)
            uris[path], cells[path] = notebook.uri, tuple(cell.document for cell in notebook.cells)
            versions[notebook.uri] = notebook.version
            versions |= {text.uri: text.version for text in texts if text is not None}
        for document in self._texts():
            path = _path_of(document.uri)
            if path is not None and path not in contents and _is_checked(document, path):
                contents[path], uris[path] = _encoded(document.source), document.uri
                versions[document.uri] = document.version
        return _Snapshot(contents, Documents(uris, cells), versions)

    def _texts(self) -> Iterator[TextDocument]:
        """The documents that are no cells of a notebook."""
        for document in self.workspace.text_documents.values():
            if self.workspace.get_notebook_document(cell_uri=document.uri) is None:
                yield document

    def _check(self, contents: Mapping[Path, bytes], paths: list[Path] | None = None) -> Run:
        target.asked_for.cache_clear()
        overrides, selection = _overrides(self._options)
        configuration = Configuration({"force_exclude": True, **overrides}, selection)
        run = check(list(contents) if paths is None else paths, configuration, contents=contents, jobs=1)
        run.findings = [f for f in run.findings if f.rule != UNREADABLE or _is_python(run, f.place.path)]
        return run

    def _publish(self, view: View | None, snapshot: _Snapshot) -> None:
        texts = {document.uri for document in self.workspace.text_documents.values()}
        for uri, version in snapshot.versions.items():
            if uri in texts:
                self._send(uri, view.diagnostics(uri) if view is not None else [], version)
        for uri in self._published - texts:
            self._send(uri, [], None)
        self._published = set(snapshot.versions) & texts

    def _send(self, uri: str, diagnostics: list[types.Diagnostic], version: int | None) -> None:
        self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, diagnostics, version))

    def _complain(self, message: str) -> None:
        """Say once, not with every letter that is typed, that there is no usable configuration."""
        if message != self._complaint:
            self._complaint = message
            self.window_show_message(types.ShowMessageParams(types.MessageType.Error, f"amplint: {message}"))


def _worker_thread() -> ThreadPoolExecutor:
    """A pool of one thread that has the stack for deep trees."""
    pool = ThreadPoolExecutor(1, "amplint")
    with contextlib.suppress(ValueError, RuntimeError):
        before = threading.stack_size(STACK)
        pool.submit(int).result()  # starts the thread
        threading.stack_size(before)
    return pool


def _path_of(uri: str) -> Path | None:
    """The file that a document is; None for what was never saved."""
    path = to_fs_path(uri) if uri.startswith("file:") else None
    return Path(path).absolute() if path else None


def _is_checked(document: TextDocument, path: Path) -> bool:
    return document.language_id == "python" or path.name.endswith(SUFFIXES)


def _as_file(cells: Sequence[TextDocument | None]) -> bytes:
    """The notebook file that holds these cells; one that the editor does not send, or that is no Python, is empty."""

    def cell(document: TextDocument | None) -> dict[str, str]:
        if document is None or document.language_id != "python":
            return {"cell_type": "raw", "source": ""}
        return {"cell_type": "code", "source": document.source}

    return json.dumps({"cells": [cell(document) for document in cells], "metadata": {}}).encode()


def _encoded(text: str) -> bytes:
    """The bytes that an editor would write; a coding cookie is followed, as whoever decodes them will follow it."""
    data = text.encode("utf-8", "surrogatepass")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return text.encode(encoding)
    except (SyntaxError, UnicodeError):
        return data


def _is_python(run: Run, display: str) -> bool:
    """Whether CPython's own parser takes a file: what it refuses, every editor reports by itself."""
    module = run.sources.module(display)
    if module is None:
        return True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(module.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _overrides(table: Mapping[str, Any]) -> tuple[dict[str, Any], Selection | None]:
    """What the editor's settings put over the configuration files. Raises ConfigError."""
    settings = settings_from(table, Path.cwd(), None)
    attributes = {key.replace("-", "_") for key in table if key in KEYS}
    selection = settings.layers[0] if settings.layers else None
    own = {name: getattr(settings, name) for name in attributes if hasattr(settings, name)}
    return own, selection


def create() -> Server:
    """A server with its features, not started yet."""
    server = Server()

    @server.feature(types.INITIALIZE)
    def initialize(params: types.InitializeParams) -> None:
        server.configure(params.initialization_options)

    @server.feature(types.INITIALIZED)
    def initialized(params: types.InitializedParams) -> None:
        workspace = server.client_capabilities.workspace
        watching = workspace.did_change_watched_files if workspace is not None else None
        if watching is not None and watching.dynamic_registration:
            globs = ("**/*.py", "**/{pyproject,amplint}.toml", "**/requirements*.txt", "**/setup.cfg")
            options = types.DidChangeWatchedFilesRegistrationOptions([types.FileSystemWatcher(glob) for glob in globs])
            registration = types.Registration("amplint-files", types.WORKSPACE_DID_CHANGE_WATCHED_FILES, options)
            server.client_register_capability(types.RegistrationParams([registration]))

    @server.feature(types.WORKSPACE_DID_CHANGE_WATCHED_FILES)
    def files_changed(params: types.DidChangeWatchedFilesParams) -> None:
        server.schedule(outdated=True)

    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def opened(params: types.DidOpenTextDocumentParams) -> None:
        server.schedule()

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    def changed(params: types.DidChangeTextDocumentParams) -> None:
        server.schedule()

    @server.feature(types.TEXT_DOCUMENT_DID_SAVE)
    def saved(params: types.DidSaveTextDocumentParams) -> None:
        server.schedule(outdated=True)

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def closed(params: types.DidCloseTextDocumentParams) -> None:
        server.schedule(outdated=True)

    @server.feature(types.NOTEBOOK_DOCUMENT_DID_OPEN)
    def notebook_opened(params: types.DidOpenNotebookDocumentParams) -> None:
        server.schedule()

    @server.feature(types.NOTEBOOK_DOCUMENT_DID_CHANGE)
    def notebook_changed(params: types.DidChangeNotebookDocumentParams) -> None:
        server.schedule()

    @server.feature(types.NOTEBOOK_DOCUMENT_DID_SAVE)
    def notebook_saved(params: types.DidSaveNotebookDocumentParams) -> None:
        server.schedule(outdated=True)

    @server.feature(types.NOTEBOOK_DOCUMENT_DID_CLOSE)
    def notebook_closed(params: types.DidCloseNotebookDocumentParams) -> None:
        server.schedule(outdated=True)

    @server.feature(
        types.TEXT_DOCUMENT_CODE_ACTION,
        types.CodeActionOptions(code_action_kinds=[types.CodeActionKind.QuickFix, FIX_ALL, FIX_ALL_OF_NOTEBOOK]),
    )
    async def actions(params: types.CodeActionParams) -> list[types.CodeAction]:
        view = await server.view()
        if view is None:
            return []
        uri, only = params.text_document.uri, params.context.only
        found = view.actions(uri, params.range) if _wanted(only, types.CodeActionKind.QuickFix) else []
        kinds = [kind for kind in (FIX_ALL, FIX_ALL_OF_NOTEBOOK) if only is not None and _wanted(only, kind)]
        if kinds:  # it takes several checks, so only on demand
            everything = await server.fix_all(view, uri, kinds[0])
            found += [everything] if everything is not None else []
        return found

    @server.feature(types.TEXT_DOCUMENT_HOVER)
    async def hover(params: types.HoverParams) -> types.Hover | None:
        view = await server.view()
        return view.hover(params.text_document.uri, params.position) if view is not None else None

    return server


def _wanted(only: Sequence[types.CodeActionKind | str] | None, kind: str) -> bool:
    """Whether a kind of action is among those asked for; a kind stands for those below it as well."""
    kinds = [wanted.value if isinstance(wanted, types.CodeActionKind) else wanted for wanted in only or ()]
    return only is None or any(kind == wanted or kind.startswith(f"{wanted}.") for wanted in kinds)


def serve() -> None:
    """Speak the protocol on standard input and output until the editor ends it."""
    # pygls resolves positions by str.splitlines, which takes a form feed for the end of a line; the protocol does not
    TextDocument.lines = property(lambda document: lines_of(document.source))  # type: ignore[assignment]
    # the protocol has a stream of its own, which pygls closes; whatever is printed by accident cannot get into it
    protocol = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    with contextlib.redirect_stdout(sys.stderr):
        create().start_io(stdout=protocol)
