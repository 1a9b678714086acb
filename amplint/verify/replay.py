"""What travels to the worker: a replay is plain data, the program's text and how to drive it."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Any

GRADIENT_EVENT = re.compile(
    r"\.unscale_\(|\.backward\(|\.step\(|scal\w*\.update\(|\.update\(\)|\.scale\(|clip_grad|autograd\.grad"
)


@dataclass
class Driver:
    """What starts the replay: the module body, a function, or the methods of a class in turn.

    `once` is set where the function makes its own scaler and loops: calling it again would make the
    scaler anew, a fault of the replay and not of the program. `loops` is set where the driven code has a
    loop of its own.
    """

    kind: str
    path: str
    name: str = ""
    methods: list[str] = field(default_factory=list)
    once: bool = False
    loops: bool = False
    tail: list[str] = field(default_factory=list)


@dataclass
class Replay:
    """Everything that the worker needs to execute one finding."""

    rule: str
    files: dict[str, str]
    modules: dict[str, str]
    flagged: list[tuple[str, int, int]]
    wanted: list[tuple[str, int]]
    flags: dict[str, bool]
    drivers: list[Driver]
    guards: list[str]
    texts: list[str] = field(default_factory=list)
    #: flagged places of all findings that may share this replay's runs
    watched: list[tuple[str, int, int]] = field(default_factory=list)
    #: the same program with the finding's repair applied, where it has one
    fixed: Replay | None = None
    #: the same program with the faults of its other findings taken away, and which those are
    alone: Replay | None = None
    others: list[str] = field(default_factory=list)
    #: the same program with the fault of this finding taken away, where there are others
    spared: Replay | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Replay:
        fields = dict(data)
        fields["drivers"] = [Driver(**d) for d in data["drivers"]]
        fields["flagged"] = [tuple(f) for f in data["flagged"]]
        fields["watched"] = [tuple(f) for f in data["watched"]]
        fields["wanted"] = [tuple(w) for w in data["wanted"]]
        for name in ("fixed", "alone", "spared"):
            fields[name] = cls.from_dict(data[name]) if data.get(name) else None
        return cls(**fields)
