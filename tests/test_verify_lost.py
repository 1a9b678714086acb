"""Workers that are killed, flooded, stopped or interrupted: the report is complete, and nobody is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from test_verify_run import Files, OneRun, finding, settings
from verify_programs import FAULTY, SCALED, STEP, UPDATE, line_of, loop

from amplint.verify import host, verify_run
from amplint.verify.findings import INTERRUPTED
from amplint.verify.host import Worker

pytest.importorskip("torch")
if not hasattr(os, "killpg"):
    pytest.skip("needs process groups", allow_module_level=True)

BAD = FAULTY["clip while scaled"][1]


def several(folder: Path, programs: list[str]) -> OneRun:
    """A run with one finding in each of some programs."""
    run = OneRun(Files(folder))
    for i, program in enumerate(programs):
        (folder / f"train_{i}.py").write_text(program)
        run.findings.append(finding("AMP201", f"train_{i}.py", line_of(program)))
    return run


def group_of(pid: int) -> list[int]:
    """The living processes of a worker: those in its group, and what was started below them."""
    out = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[2]) == pid and fields[0] != "Z":
            out.append(int(stat.parent.name))
    return out


def nobody_left(pids: list[int]) -> bool:
    """Whether all of some processes end within a few seconds."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            return True
        time.sleep(0.05)
    return False


def statuses(run: OneRun) -> list[tuple[str, str]]:
    return [(str(f.verdict.status), str(f.verdict.reason or "")) for f in run.findings if f.verdict is not None]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[Worker], None]], list[int]]:
    """Does something to the worker right before the request of a number is sent; collects all workers' processes."""
    pids: list[int] = []

    def before(number: int, act: Callable[[Worker], None]) -> list[int]:
        ask, count = Worker.ask, iter(range(1000))

        def asked(self: Worker, request: dict[str, object]) -> dict[str, object]:
            if self.pid is None:
                self.start()
            assert self.pid is not None
            pids.extend(group_of(self.pid))
            if next(count) == number:
                act(self)
            return ask(self, request)

        monkeypatch.setattr(Worker, "ask", asked)
        return pids

    return before


def test_a_killed_worker_loses_one_finding(
    tmp_path: Path, told: Callable[[int, Callable[[Worker], None]], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill_while_it_works(worker: Worker) -> None:
        assert worker.pid is not None
        os.killpg(worker.pid, signal.SIGSTOP)  # so that it cannot answer before it is killed
        write = host._write

        def written(process: subprocess.Popen[str], text: str) -> None:
            write(process, text)
            os.killpg(process.pid, signal.SIGKILL)
            monkeypatch.setattr(host, "_write", write)

        monkeypatch.setattr(host, "_write", written)

    pids = told(1, kill_while_it_works)
    run = several(tmp_path, [BAD, BAD + "\n", BAD + "\n\n"])
    assert verify_run(run, settings(device="cpu"))  # type: ignore[arg-type]
    assert statuses(run) == [("confirmed", ""), ("inconclusive", "the worker died"), ("confirmed", "")]
    assert nobody_left(pids)


def test_a_worker_that_does_not_read_fills_its_pipe(
    tmp_path: Path, told: Callable[[int, Callable[[Worker], None]], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "SECONDS_PER_FINDING", 1.0)
    monkeypatch.setattr(host, "GRACE", 1.0)

    def stop(worker: Worker) -> None:
        assert worker.pid is not None
        worker.seconds = 1.0
        os.killpg(worker.pid, signal.SIGSTOP)

    pids = told(1, stop)
    long = BAD + "".join(f"TEXT_{i} = '{'x' * 90}'\n" for i in range(3000))  # far more than a pipe holds
    run = several(tmp_path, [BAD, long])
    begin = time.monotonic()
    assert verify_run(run, settings(device="cpu"))  # type: ignore[arg-type]
    assert time.monotonic() - begin < 60
    assert [status for status, _ in statuses(run)] == ["confirmed", "inconclusive"]
    assert "timeout" in statuses(run)[1][1]
    assert nobody_left(pids)


@pytest.mark.parametrize(
    ("speech", "reason"),
    [
        ('while True: print(\'{"status": "confirmed"}\', flush=True)', "the worker"),
        ("import os\nwhile True: os.write(1, b'x' * 65536)", "the worker"),
        ("print('no json', flush=True); import time; time.sleep(60)", "no answer that could be read"),
        ("print('[1]', flush=True); import time; time.sleep(60)", "no answer that could be read"),
        ("pass", "the worker died"),
    ],
    ids=["floods lines", "floods one line", "speaks no JSON", "speaks other JSON", "ends"],
)
def test_nonsense_of_a_worker_is_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, speech: str, reason: str
) -> None:
    """A worker that says hello and then talks nonsense into its pipe."""
    (tmp_path / "fake").mkdir()
    hello = {"hello": True, "torch": "0", "device": "cpu", "kept": []}
    script = tmp_path / "fake" / "worker.py"
    script.write_text(f"import sys\nprint({json.dumps(hello)!r}, flush=True)\nsys.stdin.readline()\n{speech}\n")
    popen = subprocess.Popen

    def faked(command: list[str], **keywords: object) -> subprocess.Popen[str]:
        return popen([sys.executable, str(script)], **keywords)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr("amplint.verify.host.subprocess.Popen", faked)
    with Worker(seconds=1.0) as worker:
        worker.start()
        assert worker.pid is not None
        pids = group_of(worker.pid)
        answers = [worker.ask({}) for _ in range(3)]
    for answer in answers:
        assert answer["status"] == "inconclusive" or speech.startswith("while True: print"), answer
    assert any(reason in str(answer.get("reason")) or answer["status"] == "confirmed" for answer in answers)
    assert nobody_left(pids)


@pytest.mark.parametrize("statement", ["while True: pass", "while 1 < 2: size = [0] * 9"])
def test_a_replay_without_end_loses_one_finding(tmp_path: Path, statement: str) -> None:
    endless = loop(statement, SCALED, STEP + "  # <- here", UPDATE)
    run = several(tmp_path, [BAD, endless, BAD + "\n"])
    assert verify_run(run, settings(device="cpu"))  # type: ignore[arg-type]
    assert [status for status, _ in statuses(run)] == ["confirmed", "inconclusive", "confirmed"]


def test_an_interrupt_keeps_what_was_seen(
    tmp_path: Path, told: Callable[[int, Callable[[Worker], None]], list[int]]
) -> None:
    def interrupt(worker: Worker) -> None:
        raise KeyboardInterrupt

    pids = told(1, interrupt)
    run = several(tmp_path, [BAD, BAD + "\n", BAD + "\n\n"])
    assert not verify_run(run, settings(device="cpu"))  # type: ignore[arg-type]
    assert statuses(run) == [("confirmed", ""), ("inconclusive", INTERRUPTED), ("inconclusive", INTERRUPTED)]
    assert nobody_left(pids)


def test_ctrl_c_leaves_a_complete_report_and_no_process(tmp_path: Path) -> None:
    """The whole program, with a terminal's signal."""
    for i in range(60):
        (tmp_path / f"train_{i:02}.py").write_text(BAD + "\n" * i)
    command = [sys.executable, "-m", "amplint", "verify", str(tmp_path), "--output-format", "json", "--no-cache"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    workers: list[int] = []
    end = time.monotonic() + 60
    while not workers and time.monotonic() < end:
        workers = [pid for pid in children_of(process.pid) if "worker.py" in command_of(pid)]
        time.sleep(0.05)
    time.sleep(3.0)
    below = children_of(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    verdicts = [f["verdict"] for f in json.loads(out)["findings"]]
    assert len(verdicts) == 60
    assert all(v is not None for v in verdicts)
    assert any(v["reason"] == INTERRUPTED for v in verdicts)
    assert nobody_left(below)


def test_a_linter_that_is_killed_takes_its_worker_along(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import time
        from amplint.verify.host import Worker
        with Worker() as worker:
            worker.start()
            print(worker.pid, flush=True)
            time.sleep(60)
        """
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    pids = group_of(pid)
    assert pids
    process.kill()
    process.wait()
    process.stdout.close()
    assert nobody_left(pids)


def test_a_linter_that_is_killed_while_it_lints_leaves_nobody(tmp_path: Path) -> None:
    for i in range(200):
        (tmp_path / f"train_{i:03}.py").write_text(BAD + "\n" * i + "#" * 4000)
    command = [sys.executable, "-m", "amplint", "verify", str(tmp_path), "--no-cache", "--jobs", "2"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    below: list[int] = []
    end = time.monotonic() + 60
    while len(below) < 3 and time.monotonic() < end:
        below = children_of(process.pid)
        time.sleep(0.02)
    assert len(below) >= 3, "a worker of the verifier and two of the linter"
    process.kill()
    process.wait()
    assert nobody_left(below)


def test_a_launched_worker_is_the_one_that_answers() -> None:
    with Worker(device="cpu") as worker:
        worker.launch()
        launched = worker.pid
        assert launched is not None
        worker.start()
        assert (worker.pid, worker.starts, worker.device) == (launched, 1, "cpu")


def test_a_worker_that_runs_is_not_launched_again_and_can_be_started_anew() -> None:
    with Worker(device="cpu") as worker:
        worker.launch()
        first = worker.pid
        worker.launch()
        assert worker.pid == first
        worker.start()
        assert worker.pid == first
        worker.start()
        assert worker.pid != first
        assert first is not None
        assert nobody_left([first])


def children_of(pid: int) -> list[int]:
    """All processes below a process."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    out: list[int] = []
    queue = [pid]
    while queue:
        found = parents.get(queue.pop(), [])
        out.extend(found)
        queue.extend(found)
    return out


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
