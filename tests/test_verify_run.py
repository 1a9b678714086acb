"""verify_run over findings with places, steps and fixes; kept replays; the rules' own pages."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from verify_programs import FAULTY, RIGHT, SCALED, STEP, UPDATE, line_of, loop

from amplint.finding import Confidence, Edit, Finding, Fix, Place, Severity, Step
from amplint.rule import READ_IN_HELPER
from amplint.source import SourceModule
from amplint.verify import verify_rules, verify_run
from amplint.verify.building import build, parse_assumptions, sources_around
from amplint.verify.texts import apply_edits

pytest.importorskip("torch")


class Files:
    """The text of a run's files, as the engine offers it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, display: str) -> Path:
        return self.folder / display

    def module(self, display: str) -> SourceModule | None:
        return SourceModule.from_path(self.path(display), display)


@dataclass
class OneRun:
    sources: Files
    findings: list[Finding] = field(default_factory=list)


def finding(rule: str, path: str, line: int, **more: Any) -> Finding:
    place = Place(path, line, 1, line, 80)
    return Finding(rule, "name", Severity.ERROR, Confidence.HIGH, place, "message", **more)


def settings(**values: Any) -> SimpleNamespace:
    return SimpleNamespace(**values)


def inserting(path: str, line: int, text: str) -> Fix:
    return Fix("safe", "insert", (Edit(Place(path, line, 1, line, 1), text),))


def test_every_finding_gets_a_verdict_and_the_refuted_lose_confidence(tmp_path: Path) -> None:
    bad, good = FAULTY["clip while scaled"][1], RIGHT["documented order"][1]
    (tmp_path / "bad.py").write_text(bad)
    (tmp_path / "good.py").write_text(good)
    run = OneRun(Files(tmp_path))
    run.findings = [
        finding("AMP201", "bad.py", line_of(bad)),
        finding("AMP201", "good.py", line_of(good)),
        finding("AMP601", "good.py", 5),
    ]
    verify_run(run, settings())  # type: ignore[arg-type]
    verdicts = [f.verdict for f in run.findings]
    assert [v.status if v else None for v in verdicts] == ["confirmed", "refuted", "static-only"]
    assert [f.confidence for f in run.findings][:2] == [Confidence.HIGH, Confidence.LOW]
    assert verdicts[0] is not None
    assert verdicts[0].torch
    assert verdicts[0].device == "cpu"


def test_a_helper_that_its_package_hands_on_is_called(tmp_path: Path) -> None:
    helper = "def limit(net):\n    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n"
    engine = "from .utils import limit\n" + loop(SCALED, "limit(net)", STEP, UPDATE)
    (tmp_path / "utils").mkdir()
    (tmp_path / "utils" / "__init__.py").write_text("from .grad import limit\n")
    (tmp_path / "utils" / "grad.py").write_text("import torch\n" + helper)
    (tmp_path / "engine.py").write_text(engine)
    called = engine.splitlines().index("        limit(net)") + 1
    steps = (Step(Place("engine.py", called, 1, called, 80), "called here"),)
    run = OneRun(Files(tmp_path), [finding("AMP201", "utils/grad.py", 3, steps=steps)])
    verify_run(run, settings(device="cpu"))  # type: ignore[arg-type]
    verdict = run.findings[0].verdict
    assert verdict is not None
    assert verdict.status == "confirmed", verdict


def test_a_right_repair_is_verified_and_a_wrong_one_is_not(tmp_path: Path) -> None:
    bad = FAULTY["clip while scaled"][1]
    line = line_of(bad)
    (tmp_path / "bad.py").write_text(bad)
    run = OneRun(Files(tmp_path))
    right = inserting("bad.py", line, "        scaler.unscale_(optimizer)\n")
    wrong = inserting("bad.py", line + 1, "        scaler.unscale_(optimizer)\n")
    run.findings = [finding("AMP201", "bad.py", line, fix=right), finding("AMP201", "bad.py", line, fix=wrong)]
    verify_run(run, settings())  # type: ignore[arg-type]
    assert [f.verdict.fix_verified for f in run.findings if f.verdict] == [True, False]


def test_a_fault_in_a_helper_is_driven_from_its_caller(tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text(
        "import torch\n\n\ndef tame(params, ceiling):\n    torch.nn.utils.clip_grad_norm_(params, ceiling)\n"
    )
    caller = "from helpers import tame\n" + loop(SCALED, "tame(net.parameters(), ceiling)", STEP, UPDATE)
    (tmp_path / "train.py").write_text(caller)
    run = OneRun(Files(tmp_path))
    step = Step(Place("train.py", 12, 1, 12, 20), "called here")
    run.findings = [finding("AMP201", "helpers.py", 5, steps=(step,))]
    verify_run(run, settings())  # type: ignore[arg-type]
    verdict = run.findings[0].verdict
    assert verdict is not None
    assert verdict.status == "confirmed", verdict


def test_a_kept_replay_runs_alone_and_says_the_same(tmp_path: Path) -> None:
    bad = FAULTY["clip while scaled"][1]
    line = line_of(bad)
    (tmp_path / "bad.py").write_text(bad)
    run = OneRun(Files(tmp_path))
    run.findings = [finding("AMP201", "bad.py", line)]
    verify_run(run, settings(keep_replay=tmp_path / "kept"))  # type: ignore[arg-type]
    kept = tmp_path / "kept" / f"replay_AMP201_bad_{line}.py"
    done = subprocess.run([sys.executable, "-I", str(kept)], capture_output=True, text=True, cwd=tmp_path, check=True)
    verdict = run.findings[0].verdict
    assert verdict is not None
    first = done.stdout.splitlines()[0]
    assert f":{line}: confirmed [nominal] {verdict.figure}" in first
    assert f"line {line} clip" in done.stdout


def test_a_file_that_is_gone_is_inconclusive(tmp_path: Path) -> None:
    run = OneRun(Files(tmp_path))
    run.sources.module = lambda display: None  # type: ignore[method-assign]
    run.findings = [finding("AMP201", "gone.py", 3)]
    verify_run(run, settings())  # type: ignore[arg-type]
    assert run.findings[0].verdict is not None
    assert run.findings[0].verdict.status == "inconclusive"


@pytest.mark.slow
def test_pages_hold_what_they_say() -> None:
    rows = verify_rules(["AMP101", "AMP201", "AMP301", "AMP501"], settings())
    assert {row["rule"]: row["verdict"] for row in rows} == dict.fromkeys(
        ["AMP101", "AMP201", "AMP301", "AMP501"], "confirmed"
    )
    assert all({"rule", "name", "verdict", "figure", "reason", "fix_verified", "seconds"} <= set(row) for row in rows)


# ------------------------------------------------------------------- building


def test_flags_are_read_from_assumptions() -> None:
    assert parse_assumptions(["use_amp is true"]) == {"use_amp": True}
    assert parse_assumptions(["self.fp16 is false"]) == {"self.fp16": False, "fp16": False}
    assert parse_assumptions(["not args.full is true"]) == {"args.full": False, "full": False}
    assert parse_assumptions(["scaler is not None is true"])["scaler is None"] is False
    assert parse_assumptions(["a and b is true"]) == {"a": True, "b": True}
    assert parse_assumptions(["a and b is false"]) == {"a and b": False}
    assert parse_assumptions(["the caller steps"]) == {}


def test_what_is_not_needed_is_blanked_and_lines_stay() -> None:
    text = "def other():\n    secret()\n\n\ndef learn(scaler, optimizer):\n    scaler.step(optimizer)\n"
    replay = build("AMP205", "a.py", 6, 6, {"a.py": text})
    assert "secret" not in replay.files["a.py"]
    assert replay.files["a.py"].splitlines()[5] == "    scaler.step(optimizer)"


def test_the_outermost_caller_drives() -> None:
    text = (
        "class Engine:\n    def __init__(self, net):\n        self.scaler = GradScaler()\n"
        "    def apply(self, optimizer):\n        self.scaler.step(optimizer)\n"
        "    def learn(self, loader, optimizer):\n        for x in loader:\n            self.apply(optimizer)\n\n\n"
        "def main(net, loader, optimizer):\n    engine = Engine(net)\n    engine.learn(loader, optimizer)\n"
    )
    replay = build("AMP205", "a.py", 5, 5, {"a.py": text})
    assert next((d.kind, d.name) for d in replay.drivers) == ("function", "main")
    assert ("class", "Engine") in [(d.kind, d.name) for d in replay.drivers]


def test_files_that_import_the_flagged_one_take_part(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text("def clip(p): ...\n")
    (tmp_path / "train.py").write_text("from tools import clip\n")
    (tmp_path / "other.py").write_text("import json\n")
    path = str(tmp_path / "tools.py")
    assert {Path(p).name for p in sources_around(path, "def clip(p): ...\n")} == {"tools.py", "train.py"}


def test_edits_are_applied_from_the_end() -> None:
    assert apply_edits("ab\ncd\n", [(1, 1, 1, 2, "X"), (2, 2, 2, 3, ""), (2, 1, 2, 1, "__")]) == "Xb\n__c\n"


KIT = """\
import torch


def log_gradients(net, log=None):
    if log is None:
        return
    for p in net.parameters():
        mean = p.grad.abs().mean()
        log.append(mean.item())
"""
ASKS = """\
import torch
from kit import log_gradients


def train(net, loader, log=None):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = torch.nn.functional.mse_loss(net(x), y)
        scaler.scale(loss).backward()
        log_gradients(net, LOG)
        scaler.step(optimizer)
        scaler.update()
"""


@pytest.mark.parametrize(("log", "status"), [("[]", "confirmed"), ("None", "inconclusive")])
def test_what_a_helper_reads_at_the_flagged_call(tmp_path: Path, log: str, status: str) -> None:
    (tmp_path / "kit.py").write_text(KIT)
    text = ASKS.replace("LOG", log)
    (tmp_path / "train.py").write_text(text)
    at = text.splitlines().index(f"        log_gradients(net, {log})") + 1
    run = OneRun(Files(tmp_path))
    read = Step(Place("kit.py", 8, 16, 8, 35), READ_IN_HELPER)
    run.findings.append(finding("AMP202", "train.py", at, steps=(read,)))
    verify_run(run, settings(device="cpu"))  # type: ignore[arg-type]
    verdict = run.findings[0].verdict
    assert verdict is not None
    assert verdict.status == status, verdict
