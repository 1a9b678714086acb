"""What the terminal is told besides reports: failures, colours, progress."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import click

#: the status that shells report for a program that Ctrl-C ended
INTERRUPTED = 130


class Failure(click.ClickException):
    """What ends amplint with status 2: wrong usage, a bad configuration, a missing path."""

    exit_code = 2

    def show(self, file: Any = None) -> None:
        head = click.style("error", fg="red", bold=True)
        click.echo(f"{head}: {self.message}", err=True, color=use_color("auto", sys.stderr))


def say(text: str) -> None:
    """Tell the user something that is no part of a report."""
    click.echo(text, err=True)


def use_color(choice: str, stream: Any) -> bool:
    """Whether to colour what goes to a stream, by `--color` ("auto", "always", "never") and the environment."""
    if choice != "auto":
        return choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return bool(stream.isatty()) and os.environ.get("TERM") != "dumb"


class Progress:
    """A count on standard error, while somebody watches and it takes long enough to matter."""

    def __init__(self, wanted: bool, what: str = "files analysed") -> None:
        self._what = what
        self._wanted = wanted and sys.stderr.isatty()
        self._due = time.monotonic() + 2.0
        self._shown = False

    def __call__(self, done: int, total: int) -> None:
        if self._wanted and time.monotonic() >= self._due:
            self._due = time.monotonic() + 0.1
            self._shown = True
            sys.stderr.write(f"\r{done} of {total} {self._what}")
            sys.stderr.flush()

    def clear(self) -> None:
        """Take the count off the screen."""
        if self._shown:
            sys.stderr.write("\r\x1b[K")
