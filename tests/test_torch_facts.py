"""Facts about versions of torch: the table against the torch that is installed, and what rules make of it."""

from __future__ import annotations

import importlib
import inspect
import textwrap
from pathlib import Path

import pytest
import torch

from amplint.config import Settings
from amplint.engine import check
from amplint.finding import Severity
from amplint.target import NEWEST, OLDEST
from amplint.torch_facts import (
    DEPRECATED_NAMES,
    GENERIC_CUSTOM_FUNCTION,
    INDEX_IS_REFUSED,
    NO_GRAD_CAST_IS_CACHED,
    SIGNATURES,
    Signature,
    Span,
    holds,
    in_range,
    parameters_of,
    release,
)

VERSION = torch.__version__
CURRENT = [(name, s) for s in SIGNATURES if in_range(VERSION, s.span.bounds) for name in s.names]


def found(dotted: str) -> object | None:
    """What a dotted name is in the installed torch, None where it is not there."""
    module, _, name = dotted.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None


@pytest.mark.parametrize(("name", "signature"), CURRENT, ids=[name for name, _ in CURRENT])
def test_signatures_are_those_of_torch(name: str, signature: Signature) -> None:
    known = found(name)
    if known is None:
        pytest.skip(f"torch {VERSION} has no {name}")
    parameters = list(inspect.signature(known.__init__).parameters)[1:]  # type: ignore[misc]
    assert tuple(parameters) == signature.positional


def test_every_fact_has_a_source_and_a_span_that_is_not_empty() -> None:
    facts = [DEPRECATED_NAMES, GENERIC_CUSTOM_FUNCTION, INDEX_IS_REFUSED, NO_GRAD_CAST_IS_CACHED]
    for span in [*facts, *(s.span for s in SIGNATURES)]:
        assert len(span.source) > 20
        assert span.low is None or span.high is None or release(span.low) < release(span.high)


def test_the_meaning_of_a_name_is_one_in_every_version() -> None:
    for name in {name for s in SIGNATURES for name in s.names}:
        spans = [s.span for s in SIGNATURES if name in s.names]
        for version in ("1.6", "1.9", "1.10.2", "1.11", "1.12", "2.3.1", "2.4", "2.10", NEWEST):
            assert sum(holds(span, version) for span in spans) <= 1


@pytest.mark.parametrize(
    ("dotted", "version", "first"),
    [
        ("torch.autocast", "1.10.2", ("device_type", "enabled")),
        ("torch.autocast", "1.12", ("device_type", "dtype")),
        ("torch.amp.autocast", "2.13", ("device_type", "dtype")),
        ("torch.cuda.amp.autocast", "1.9", ("enabled",)),
        ("torch.cuda.amp.autocast", "2.1", ("enabled", "dtype")),
        ("torch.amp.GradScaler", OLDEST, ("device", "init_scale")),
        ("torch.cuda.amp.GradScaler", "2.13", ("init_scale", "growth_factor")),
        ("torch_npu.npu.amp.GradScaler", "2.1", ("init_scale", "growth_factor")),
        ("torch_npu.npu.amp.autocast", "2.1", ("enabled", "dtype")),
    ],
)
def test_positions(dotted: str, version: str, first: tuple[str, ...]) -> None:
    assert parameters_of(dotted, version)[:2] == first


def test_versions() -> None:
    assert release("2.10") > release("2.9.1")
    assert release("2.4.0+cu121") == release("2.4")
    assert holds(Span("2.4", None, ""), "2.4.0")
    assert not holds(Span(None, "2.10", ""), "2.10")


def codes(folder: Path, source: str, target: str | None, **files: str) -> set[str]:
    """What is found in a program of a project, for a target that is asked for or that the project's files name."""
    for name, text in files.items():
        (folder / name.replace("_toml", ".toml").replace("_cfg", ".cfg").replace("_txt", ".txt")).write_text(text)
    file = folder / "program.py"
    file.write_text(textwrap.dedent(source))
    run = check([file], Settings(min_severity=Severity.INFO, torch=target), jobs=1)
    assert run.errors == []
    return {finding.rule for finding in run.findings}


POSITION = """
    import torch
    from torch import nn

    net = nn.Linear(4, 4)
    with torch.autocast("cuda", True):
        net(torch.randn(2, 4))
"""
INDEX = POSITION.replace('"cuda", True', '"cuda:1", dtype=torch.float16')
DTYPE = POSITION.replace('"cuda", True', '"cuda", torch.bfloat16')
OLD_NAME = POSITION.replace('torch.autocast("cuda", True)', "torch.cuda.amp.autocast(True)")
CACHE = """
    import torch
    from torch import nn

    net = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x in torch.randn(3, 2, 4):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            with torch.no_grad():
                target = net(x)
            loss = (net(x) - target).abs().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("source", "code", "silent", "spoken"),
    [
        (POSITION, "AMP104", ("1.10", "1.10.2", "1.11"), ("1.12", "2.2", NEWEST)),
        (DTYPE, "AMP104", ("1.12", NEWEST), ("1.10", "1.11.0")),
        (INDEX, "AMP104", ("2.4", "2.10", NEWEST), ("1.13", "2.3.1")),
        (OLD_NAME, "AMP601", ("1.13", "2.3.1"), ("2.4", "2.10", NEWEST)),
        (CACHE, "AMP108", ("2.10", NEWEST), ("1.13", "2.9", "2.9.1")),
    ],
    ids=["position", "dtype", "index", "old-name", "cache"],
)
def test_gates(tmp_path: Path, source: str, code: str, silent: tuple[str, ...], spoken: tuple[str, ...]) -> None:
    for version in silent:
        assert code not in codes(tmp_path, source, version), version
    for version in spoken:
        assert code in codes(tmp_path, source, version), version


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pyproject_toml", '[project]\nname = "p"\nversion = "1"\ndependencies = ["torch>=2.1,<3"]\n'),
        ("pyproject_toml", '[tool.poetry.dependencies]\ntorch = "^2.2"\n'),
        ("pyproject_toml", '[dependency-groups]\ntrain = ["torch==2.3.1"]\n'),
        ("requirements_txt", "numpy\ntorch==2.3.1  # pinned\n"),
        ("setup_cfg", "[options]\ninstall_requires =\n    torch >= 1.13\n"),
    ],
    ids=["project", "poetry", "groups", "requirements", "setup.cfg"],
)
def test_the_project_decides(tmp_path: Path, name: str, text: str) -> None:
    bare, project = tmp_path / "bare", tmp_path / "project"
    for folder in (bare, project):
        (folder / ".git").mkdir(parents=True)
    assert "AMP601" in codes(bare, OLD_NAME, None)
    assert "AMP601" not in codes(project, OLD_NAME, None, **{name: text})
    assert "AMP601" in codes(project, OLD_NAME, "2.6"), "what is asked for comes first"
