"""The linter's side of the worker: starts it, asks it, kills it when it hangs, and starts it again."""

from __future__ import annotations

import importlib.util
import json
import queue
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from amplint.verify import sandbox

START_SECONDS = 120.0
SECONDS_PER_FINDING = 5.0
#: what a worker may take beyond its own alarm before it is killed
GRACE = 3.0
NO_TORCH = "torch is not installed: pip install 'amplint[verify]'"


class Unavailable(Exception):
    """There is no worker to be had; the text is what the user reads."""


class Worker:
    """One warm child process. `torch` is its version, `kept` the walls that stand around it."""

    def __init__(self, no_sandbox: bool = False, seconds: float = SECONDS_PER_FINDING) -> None:
        self.seconds = seconds
        self._no_sandbox = no_sandbox
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self.torch = ""
        self.kept: list[str] = []
        self.starts = 0

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the child and wait until torch is imported. Raises Unavailable."""
        if importlib.util.find_spec("torch") is None:
            raise Unavailable(NO_TORCH)
        try:
            prefix, level = sandbox.prefix(self._no_sandbox)
        except sandbox.Refused as error:
            raise Unavailable(str(error)) from None
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="amplint-")
        root = Path(__file__).resolve().parents[2]
        command = [*prefix, sys.executable, "-I", str(Path(__file__).with_name("worker.py")), str(root), level]
        self._lines = queue.Queue()
        self.starts += 1
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                encoding="utf-8",
                cwd=self._folder.name,
                env=sandbox.environment(self._folder.name),
                start_new_session=True,
            )
        except OSError as error:
            raise Unavailable(f"the worker did not start: {error}") from None
        threading.Thread(target=self._read, args=(self._process, self._lines), daemon=True).start()
        hello = self._receive(START_SECONDS)
        if hello is None:
            self._kill()
            raise Unavailable("the worker did not start")
        if not hello.get("hello"):
            self._kill()
            raise Unavailable(str(hello.get("reason")))
        self.torch = str(hello["torch"])
        self.kept = list(hello["kept"])

    @staticmethod
    def _read(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    def _receive(self, seconds: float) -> dict[str, Any] | None:
        try:
            line = self._lines.get(timeout=seconds)
            return json.loads(line) if line is not None else None
        except (queue.Empty, ValueError):
            return None

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The judgement on one replay. A worker that hangs or dies is replaced for the next one."""
        if self._process is None or self._process.poll() is not None:
            self.start()
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"seconds": self.seconds, **request}) + "\n")
            self._process.stdin.flush()
        except OSError:
            self._kill()
            return {"status": "inconclusive", "reason": "the worker died"}
        reply = self._receive(self.seconds + GRACE)
        if reply is None:
            gone = self._process.poll() is not None
            self._kill()
            reason = "the worker died" if gone else f"timeout: the replay took more than {self.seconds:g} s"
            return {"status": "inconclusive", "reason": reason}
        return reply

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except OSError:
                    continue

    def stop(self) -> None:
        """End the child and remove its folder."""
        self._kill()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
