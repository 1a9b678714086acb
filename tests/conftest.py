"""Shared by the tests: the command line in this process, and an analysis that stands in for the real one."""

from __future__ import annotations

import io
import json
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import libcst as cst
import pytest

from amplint import registry
from amplint.finding import Confidence
from amplint.rule import Change, Fault, FixPlan, Rule, Site
from amplint.source import SourceModule

# a shell that runs the tests in the background has Ctrl-C ignored, and what is started below inherits that
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.out)


Amplint = Callable[..., Result]


@pytest.fixture
def amplint(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Amplint:
    """Run the command line in this process: `amplint("check", ".", stdin=b"...")`."""
    from amplint.cli import main

    def run(*arguments: object, stdin: bytes = b"") -> Result:
        capfdbinary.readouterr()
        monkeypatch.setattr(sys, "argv", ["amplint", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as exit_:
            main()
        sys.stdout.flush()
        sys.stderr.flush()
        out, err = capfdbinary.readouterr()
        return Result(int(exit_.value.code or 0), out.decode(), err.decode())

    return run


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the machine that runs the tests changes what is printed."""
    for name in (
        "NO_COLOR",
        "FORCE_COLOR",
        "GITHUB_ACTIONS",
        "GITHUB_STEP_SUMMARY",
        "GITHUB_WORKSPACE",
        "CI_PROJECT_DIR",
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


#: has what the stand-in reports: a clip between a scaled backward and the step
CLIPPED = """\
import torch

scaler = torch.amp.GradScaler("cuda")


def train(model, optimizer, loader):
    for x, y in loader:
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
"""
CLIP_LINE = 11


class _Collector(cst.CSTVisitor):
    """The interesting calls of a module: backwards, unscales and clips, in order."""

    def __init__(self) -> None:
        self.backwards: list[cst.Call] = []
        self.clips: list[tuple[cst.Call, list[cst.Call]]] = []
        self.unscaled = False

    def visit_Call(self, node: cst.Call) -> None:
        name = node.func.attr.value if isinstance(node.func, cst.Attribute) else getattr(node.func, "value", "")
        if name == "backward":
            self.backwards.append(node)
            self.unscaled = False
        elif name == "unscale_":
            self.unscaled = True
        elif name == "crash":
            raise RuntimeError("the stand-in was told to fail")
        elif name.startswith("clip_grad") and self.backwards and not self.unscaled:
            self.clips.append((node, [self.backwards[-1]]))


def stand_in(module: SourceModule, project: object, rules: list[Rule], target: str) -> list[tuple[Rule, Fault]]:
    """AMP201 at every clip after a backward that no `unscale_` lies between, with a safe fix; else nothing."""
    rule = next((rule for rule in rules if rule.code == "AMP201"), None)
    collector = _Collector()
    module.tree.visit(collector)
    found = []
    for clip, backwards in collector.clips if rule else ():
        site = Site(module, clip)
        keyword = {arg.keyword.value: arg.value for arg in clip.args if arg.keyword}
        confidence = Confidence.LOW if "guess" in keyword else Confidence.HIGH
        found.append(
            (
                rule,
                Fault(
                    site,
                    "gradients are clipped while they still carry the loss scale",
                    steps=(*((Site(module, b), "scaled backward") for b in backwards), (site, "clipped here")),
                    assumptions=("use_amp is true",),
                    confidence=confidence,
                    fix=FixPlan(
                        "safe",
                        "insert scaler.unscale_(optimizer)",
                        (Change("insert-before", site, "scaler.unscale_(optimizer)"),),
                    ),
                ),
            )
        )
    return found


@pytest.fixture
def fake_analysis(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real analysis replaced by `stand_in`."""
    import amplint.analysis

    assert registry.find("AMP201") is not None
    monkeypatch.setattr(amplint.analysis, "analyse", stand_in)


def notebook(*cells: tuple[str, str | list[str]], **metadata: Any) -> str:
    """A notebook's JSON: ("code" or "markdown", source) pairs."""
    return json.dumps(
        {
            "cells": [
                {"cell_type": kind, "metadata": {}, "source": source, **({"outputs": []} if kind == "code" else {})}
                for kind, source in cells
            ],
            "metadata": metadata,
            "nbformat": 4,
            "nbformat_minor": 5,
        },
        indent=1,
        ensure_ascii=False,
    )
