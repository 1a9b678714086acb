"""What amplint says: a `Finding` with places, steps, and edits; plain data, free of syntax trees.

Rules do not build findings. They yield a `Fault` (see `amplint.rule`), which names syntax nodes;
the engine turns the nodes of the few faults there are into places.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal

Safety = Literal["safe", "unsafe"]
VerdictStatus = Literal["confirmed", "conditional", "refuted", "inconclusive", "static-only"]


class Severity(IntEnum):
    """How much harm a finding means; ordered, so thresholds compare with `>=`."""

    INFO = 0
    WARNING = 1
    ERROR = 2

    def __str__(self) -> str:
        return self.name.lower()


class Confidence(IntEnum):
    """How sure amplint is of the objects and the path of a finding; ordered."""

    LOW = 0
    MEDIUM = 1
    HIGH = 2

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A range in a file. Lines and columns are 1-based and count characters; `end_column` is exclusive.

    In a notebook `cell` is the 1-based index of the cell and lines count within it; else it is None.
    """

    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    cell: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One labelled stop on the path that leads to the fault, e.g. "scaled backward"."""

    place: Place
    message: str


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace the text at `place` by `text`; an empty range inserts."""

    place: Place
    text: str


@dataclass(frozen=True, slots=True)
class Fix:
    """Edits that belong together: all of them are applied, or none."""

    safety: Safety
    title: str
    edits: tuple[Edit, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the verifier saw when it executed the flagged statements.

    `seconds` is the wall time of the replay; `figure` the one line of numbers a person reads;
    `assumptions` list what the replay decided on its own (a condition, a loop driven from outside).
    """

    status: VerdictStatus
    device: str = "cpu"
    torch: str = ""
    figure: str = ""
    variant: str = ""
    seconds: float = 0.0
    reason: str | None = None
    assumptions: tuple[str, ...] = ()
    fix_verified: bool | None = None


@dataclass(slots=True)
class Finding:
    """One report about the user's code, ready to be printed, suppressed, fixed or verified."""

    rule: str
    name: str
    severity: Severity
    confidence: Confidence
    place: Place
    message: str
    steps: tuple[Step, ...] = ()
    assumptions: tuple[str, ...] = ()
    fix: Fix | None = None
    url: str = ""
    target: str | None = None
    fingerprint: str = ""
    verdict: Verdict | None = None
    #: first and last line of the whole statement, on which a suppression comment may stand
    statement: tuple[int, int] = field(default=(0, 0))

    @property
    def sort_key(self) -> tuple[object, ...]:
        p = self.place
        return (p.path, p.cell or 0, p.line, p.column, self.rule, self.message)


def fingerprint(rule: str, path: str, text: str, occurrence: int) -> str:
    """A hash that stays the same when the code above a finding moves.

    `text` is the flagged statement's source; its white space is folded. `occurrence` counts equal
    statements of one rule in one file.
    """
    folded = " ".join(text.split())
    digest = hashlib.sha256("\0".join((rule, path, folded, str(occurrence))).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:20]
