"""Every fixture before the oracle: no right program is ever confirmed, no faulty one refuted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amplint import registry
from amplint.finding import Verdict
from amplint.verify.building import STATIC, STATIC_SHAPES, NoReplay, build, sources_around
from amplint.verify.findings import judged
from amplint.verify.host import Worker
from amplint.verify.replay import Replay
from amplint.verify.rulepages import ELSEWHERE, event_lines
from amplint.verify.texts import statement_end

pytest.importorskip("torch")

ROOT = Path(__file__).parent.parent
EXECUTED = {rule.name: rule.code for rule in registry.all_rules() if rule.code not in STATIC}
RIGHT = sorted(file for name in EXECUTED for file in (ROOT / "fixtures" / name).glob("good_*.py"))
#: all of them take minutes: every fifth one is enough for each change, all are for a person who asks for them
if "AMPLINT_ALL_FIXTURES" not in os.environ:
    RIGHT = RIGHT[::5]
#: a kept replay of every so many findings is run by itself
KEPT = 12


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker(seconds=60.0) as made:
        yield made


def replays_of(file: Path, code: str) -> list[Replay]:
    """A replay for every line of a program on which a fault could be reported; they share their runs."""
    text = file.read_text(encoding="utf-8")
    sources = sources_around(str(file), text)
    out: list[Replay] = []
    for line in event_lines(text):
        try:
            out.append(build(code, str(file), line, statement_end(text, line), sources))
        except NoReplay:
            continue
    watched = [place for replay in out for place in replay.flagged]
    for replay in out:
        replay.watched = watched
    return out


@pytest.mark.slow
@pytest.mark.parametrize("file", RIGHT, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_right_programs_are_never_confirmed(worker: Worker, file: Path) -> None:
    for replay in replays_of(file, EXECUTED[file.parent.name]):
        verdict: Verdict = judged(worker, replay)
        assert verdict.status in ("refuted", "inconclusive"), (replay.flagged, verdict)
        assert "the comparison broke" not in str(verdict.reason), (replay.flagged, verdict)


@pytest.fixture(scope="module")
def verified(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], Path]:
    """All findings in all fixtures with their verdicts, and the folder that their replays were kept in."""
    kept = tmp_path_factory.mktemp("kept")
    command = [sys.executable, "-m", "amplint", "verify", "fixtures", "--min-severity", "info", "--no-cache"]
    command += ["--output-format", "json", "--device", "cpu", "--keep-replay", str(kept)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    return json.loads(done.stdout)["findings"], kept


def own(finding: dict[str, Any]) -> bool:
    """Whether a finding is the one that its fixture is there for."""
    folder, name = Path(finding["path"]).parts[-2:]
    return bool(name.startswith("bad_") and EXECUTED.get(folder) == finding["rule"])


@pytest.mark.slow
def test_faulty_programs_are_confirmed(verified: tuple[list[dict[str, Any]], Path]) -> None:
    counts: Counter[str] = Counter()
    for finding in verified[0]:
        if not own(finding):
            continue
        verdict = finding["verdict"]
        if verdict["status"] == "static-only":
            assert finding["rule"] in STATIC_SHAPES, finding
            continue
        counts[verdict["status"]] += 1
        assert verdict["status"] != "refuted", finding
        if verdict["status"] == "inconclusive":
            assert verdict["reason"].startswith(ELSEWHERE), finding
        else:
            assert verdict["figure"], finding
    assert counts["confirmed"] + counts["conditional"] >= 0.9 * counts.total(), counts


@pytest.mark.slow
def test_no_finding_at_all_is_refuted(verified: tuple[list[dict[str, Any]], Path]) -> None:
    refuted = [f for f in verified[0] if f["verdict"]["status"] == "refuted"]
    assert refuted == []


@pytest.mark.slow
def test_fixes_take_the_faults_away(verified: tuple[list[dict[str, Any]], Path]) -> None:
    seen: Counter[bool | None] = Counter()
    for finding in verified[0]:
        if finding["fix"] is not None and finding["verdict"]["status"] in ("confirmed", "conditional"):
            seen[finding["verdict"]["fix_verified"]] += 1
            if finding["verdict"]["fix_verified"] is False:
                assert finding["fix"]["safety"] == "unsafe", finding
    assert seen[True] >= 0.9 * seen.total(), seen


@pytest.mark.slow
def test_kept_replays_say_the_same_with_torch_alone(
    verified: tuple[list[dict[str, Any]], Path], tmp_path: Path
) -> None:
    """They run in a folder of their own, and where amplint cannot be imported."""
    findings, kept = verified
    by_name: dict[str, list[dict[str, Any]]] = {}
    for finding in findings:
        name = f"replay_{finding['rule']}_{Path(finding['path']).stem}_{finding['line']}.py"
        if finding["verdict"]["status"] in ("confirmed", "conditional"):
            by_name.setdefault(name, []).append(finding)
    blocked = "import sys; sys.modules['libcst'] = sys.modules['click'] = None\n"
    alone = [name for name, same in sorted(by_name.items()) if len(same) == 1]
    for name in alone[::KEPT]:
        verdict = by_name[name][0]["verdict"]
        script = tmp_path / name
        text = (kept / name).read_text(encoding="utf-8")
        script.write_text(text.replace("import sys\n", "import sys\n" + blocked, 1), encoding="utf-8")
        done = subprocess.run([sys.executable, "-I", str(script)], cwd=tmp_path, capture_output=True, text=True)
        first = done.stdout.splitlines()[0] if done.stdout else done.stderr
        assert f": {verdict['status']} [{verdict['variant']}] {verdict['figure']}" in first, (name, first)
