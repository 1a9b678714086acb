"""The linter's side of the worker: starts it, asks it, kills it when it hangs, and starts it again."""

from __future__ import annotations

import importlib.util
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from amplint.verify import sandbox

START_SECONDS = 120.0
SECONDS_PER_FINDING = 5.0
#: a worker's own alarm counts processor time; it is killed after so many times that on the clock, and a little more
PATIENCE, GRACE = 4.0, 3.0
#: what a worker may say in one line, in characters, and how many lines may wait to be taken
LONGEST_LINE, MOST_LINES = 1 << 22, 16
NO_TORCH = "torch is not installed: pip install 'amplint[verify]'"


class Unavailable(Exception):
    """There is no worker to be had; the text is what the user reads."""


class _Silent(Exception):
    """A worker gives no answer that could be read; the text says why."""


class Worker:
    """One warm child process.

    `torch` is its version, `device` where its replays run, `kept` the walls that stand around it.
    """

    def __init__(self, no_sandbox: bool = False, seconds: float = SECONDS_PER_FINDING, device: str = "auto") -> None:
        self.seconds = seconds
        self._wanted = device
        self._no_sandbox = no_sandbox
        self._process: subprocess.Popen[str] | None = None
        self._greeted = False
        self._lines: queue.Queue[str] = queue.Queue()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._unavailable: Unavailable | None = None
        self.torch = ""
        self.device = ""
        self.kept: list[str] = []
        self.starts = 0

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def launch(self) -> None:
        """Start the child and do not wait: torch is imported while the caller does something else. What goes wrong is
        said when the first question is asked. No thread is started, so that the caller can still fork."""
        if self._process is None:
            with suppress(Unavailable):
                self._spawn(*self._walls())

    def start(self) -> None:
        """Start the child and wait until torch is imported. Raises Unavailable, the second time at once."""
        if self._unavailable is not None:
            raise self._unavailable
        try:
            self._start()
        except Unavailable as error:
            self._unavailable = error
            raise

    def _start(self) -> None:
        prefix, level = self._walls()
        if self._greeted:
            self._kill()
        if self._process is None:
            self._spawn(prefix, level)
        hello = self._greeting()
        if hello.get("lost_device") and level == "namespaces" and sandbox.limits() is None:
            # a driver that does not work in namespaces of its own: limits and the audit hook remain
            self._kill()
            self._spawn([], "limits")
            hello = self._greeting()
        if not hello.get("hello"):
            self._kill()
            raise Unavailable(str(hello.get("reason")))
        self.torch = str(hello["torch"])
        self.device = str(hello["device"])
        self.kept = list(hello["kept"])

    def _walls(self) -> tuple[list[str], str]:
        """The command that the child is run by, and the level of its sandbox."""
        if importlib.util.find_spec("torch") is None:
            raise Unavailable(NO_TORCH)
        try:
            return sandbox.prefix(self._no_sandbox)
        except sandbox.Refused as error:
            raise Unavailable(str(error)) from None

    def _spawn(self, prefix: list[str], level: str) -> None:
        """Start a child behind these walls."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="amplint-")
        root = Path(__file__).resolve().parents[2]
        script = Path(__file__).with_name("worker.py")
        self._greeted = False
        self.starts += 1
        try:
            self._process = subprocess.Popen(
                [*prefix, sys.executable, "-I", str(script), str(root), level, self._wanted],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                encoding="utf-8",
                errors="replace",
                cwd=self._folder.name,
                env=sandbox.environment(self._folder.name),
                start_new_session=True,
            )
        except OSError as error:
            raise Unavailable(f"the worker did not start: {error}") from None

    def _greeting(self) -> dict[str, Any]:
        """What a new child says first."""
        self._lines = queue.Queue()
        self._greeted = True
        threading.Thread(target=_read, args=(self._process, self._lines), daemon=True).start()
        try:
            return self._receive(START_SECONDS)
        except _Silent:
            self._kill()
            raise Unavailable("the worker did not start") from None

    def _receive(self, seconds: float) -> dict[str, Any]:
        """The next answer of the worker. Raises _Silent."""
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            raise _Silent(f"timeout: the replay took more than {self.seconds:g} s") from None
        if not line:
            raise _Silent("the worker died")
        try:
            reply = json.loads(line)
        except ValueError:
            reply = None
        if not isinstance(reply, dict):
            raise _Silent("the worker gave no answer that could be read")
        return reply

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The judgement on one replay. A worker that hangs or dies is replaced for the next one."""
        if self._greeted and not self._lines.empty():  # it has ended, or speaks without being asked
            self._kill()
        if not self._greeted:
            self.start()
        assert self._process is not None
        text = json.dumps({"seconds": self.seconds, **request}) + "\n"
        # a worker that does not read fills its pipe: the writer waits then, and not this thread
        threading.Thread(target=_write, args=(self._process, text), daemon=True).start()
        try:
            return self._receive(self.seconds * PATIENCE + GRACE)
        except _Silent as error:
            self._kill()
            return {"status": "inconclusive", "reason": str(error)}

    def _kill(self) -> None:
        """End the child and everything in its process group."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (AttributeError, OSError):  # no process groups here, or nobody left in it
            process.kill()
        process.wait()
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError):
            process.stdin.close()
        if not self._greeted:  # else a thread reads it to its end
            process.stdout.close()
        self._greeted = False

    def stop(self) -> None:
        """End the child and remove its folder."""
        self._kill()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def _read(process: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
    """Hand on what a worker says, line by line; an empty one when it has ended."""
    assert process.stdout is not None
    with process.stdout:
        while True:
            line = process.stdout.readline(LONGEST_LINE)
            lines.put(line)
            if not line.endswith("\n") or lines.qsize() > MOST_LINES:
                return


def _write(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(text)
        process.stdin.flush()
    except (OSError, ValueError):  # it has died, or was killed meanwhile: whoever reads its answers sees that
        return
