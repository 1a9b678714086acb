"""Programs that try to get out of the replay, and workers that hang."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from verify_programs import HERE, SCALED, STEP, UPDATE, line_of, loop

from amplint.verify import host, sandbox, verify_text
from amplint.verify.host import Worker

pytest.importorskip("torch")

SMUGGLED = {
    "call": "open('{victim}', 'w').write('x')",
    "f-string": "f\"{open('{victim}', 'w')}\"",
    "comprehension": "[open('{victim}', 'w') for _ in range(1)]",
    "lambda": "(lambda: open('{victim}', 'w'))()",
    "import": "__import__('os').mkdir('{victim}')",
    "import statement": "import os; os.mkdir('{victim}')",
    "dunder": "().__class__.__base__.__subclasses__()[0]('{victim}')",
    "dunder of a tensor": "error.__class__.__init__.__globals__['os'].mkdir('{victim}')",
    "getattr": "getattr(getattr(error, '__cl' + 'ass__'), '__init__')",
    "eval": "eval(\"open('{victim}', 'w')\")",
    "exec": "exec(\"open('{victim}', 'w')\")",
    "compile": "compile('1', 'x', 'exec')",
    "format": "'{0.__class__.__init__.__globals__}'.format(error)",
    "torch.save": "torch.save(net.state_dict(), '{victim}')",
    "torch.load": "torch.load('{victim}')",
    "torch.hub": "torch.hub.load('a/b', 'c')",
    "torch's os": "torch.os.mkdir('{victim}')",
    "torch's sys": "torch.sys.modules['os'].mkdir('{victim}')",
    "tensor to file": "torch.from_file('{victim}', shared=True, size=8)",
    "numpy": "net.weight.numpy().tofile('{victim}')",
    "fork": "os.fork()",
    "socket": "import socket; socket.create_connection(('localhost', 9))",
    "subprocess": "import subprocess; subprocess.run(['touch', '{victim}'])",
    "pickle": "import pickle; pickle.loads(b'')",
    "setattr": "setattr(torch, 'manual_seed', None)",
    "functools": "import functools; functools.partial(open, '{victim}', 'w')()",
    "map": "list(map(open, ['{victim}'], ['w']))",
    "walrus": "(f := open)('{victim}', 'w')",
}


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker(seconds=5.0) as made:
        yield made


@pytest.mark.parametrize("name", SMUGGLED)
def test_nothing_of_the_user_is_executed(worker: Worker, tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    program = loop(SMUGGLED[name].replace("{victim}", str(victim)), SCALED, STEP + HERE, UPDATE)
    before = worker.pid
    verify_text(program, "AMP201", line_of(program), worker=worker)
    assert not victim.exists()
    assert before is None or worker.pid == before, "the worker died"


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("decorator", "@open('{victim}', 'w').write\ndef helper(): pass\n"),
        ("default argument", "def helper(x=open('{victim}', 'w')): pass\n"),
        ("class body", "class Helper:\n    x = open('{victim}', 'w')\n"),
        ("base class", "class Helper(open('{victim}', 'w').__class__): pass\n"),
        ("metaclass", "class Helper(metaclass=__import__('os').mkdir('{victim}')): pass\n"),
        ("module level", "HANDLE = open('{victim}', 'w')\n"),
        ("annotation", "HANDLE: open('{victim}', 'w') = 1\n"),
    ],
)
def test_definitions_are_not_executed_either(worker: Worker, tmp_path: Path, where: str, text: str) -> None:
    victim = tmp_path / "victim"
    program = text.replace("{victim}", str(victim)) + loop(SCALED, STEP + HERE, UPDATE)
    verify_text(program, "AMP201", line_of(program), worker=worker)
    assert not victim.exists()


@pytest.mark.parametrize(
    "statement",
    [
        "while True: pass",
        "for i in range(10**12): pass",
        "n = 10 ** 10 ** 10",
        "n = 1 << 10 ** 9",
        "n = [0] * 10 ** 12",
        "n = 'x' * 10 ** 12",
        "n = list(range(10 ** 12))",
        "n = sum(range(10 ** 12))",
        "n = torch.zeros(10 ** 6, 10 ** 6)",
        "n = torch.ones(3).repeat(10 ** 12)",
        "n = torch.ones(3).expand(10 ** 12, 3).contiguous()",
        "n = [x for x in iter(int, 1)]",
        "n = int('9' * 5000)",
        "import itertools; n = list(itertools.count())",
        "import itertools; n = sum(1 for _ in itertools.count())",
    ],
)
def test_huge_things_end(worker: Worker, statement: str) -> None:
    program = loop(statement, SCALED, STEP + HERE, UPDATE)
    begin = time.monotonic()
    verdict = verify_text(program, "AMP201", line_of(program), worker=worker)
    assert verdict.status in ("inconclusive", "refuted")
    assert time.monotonic() - begin < 12


def test_recursion_ends(worker: Worker) -> None:
    program = "def again(x):\n    return again(x)\n" + loop("again(inputs)", SCALED, STEP + HERE, UPDATE)
    verdict = verify_text(program, "AMP201", line_of(program), worker=worker)
    assert verdict.status == "inconclusive"


def test_a_hanging_worker_is_killed_and_replaced() -> None:
    with Worker(seconds=1.0) as worker:
        worker.start()
        first = worker.pid
        assert first is not None
        program = loop(SCALED, STEP + HERE, UPDATE)
        os.killpg(first, signal.SIGSTOP)
        begin = time.monotonic()
        verdict = verify_text(program, "AMP201", line_of(program), worker=worker)
        assert verdict.status == "inconclusive"
        assert "timeout" in str(verdict.reason)
        assert time.monotonic() - begin < 10
        worker.seconds = 20.0
        again = verify_text(program, "AMP201", line_of(program), worker=worker)
        assert again.status == "refuted"
        assert worker.starts == 2


def test_the_walls_stand() -> None:
    """What the audit hook and the limits refuse, tried from Python inside a confined process."""
    tries = (
        "import os, socket, sys, subprocess\n"
        "from amplint.verify import sandbox\n"
        "print(sandbox.confine('limits'))\n"
        "for name, act in {'write': lambda: open(sys.argv[1], 'w'), 'socket': lambda: socket.socket(),\n"
        "                  'fork': os.fork, 'run': lambda: subprocess.run(['true']),\n"
        "                  'remove': lambda: os.remove(sys.argv[1])}.items():\n"
        "    try:\n"
        "        act()\n"
        "        print(name, 'went through')\n"
        "    except PermissionError:\n"
        "        print(name, 'refused')\n"
    )
    root = str(Path(sandbox.__file__).resolve().parents[2])
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {root!r})\n{tries}", "/nonexistent/file"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "went through" not in done.stdout
    assert done.stdout.count("refused") == 5


def test_without_any_wall_the_replay_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "namespaces", lambda: "no unshare")
    monkeypatch.setattr(sandbox, "limits", lambda: "no limits")
    program = loop(SCALED, STEP + HERE, UPDATE)
    verdict = verify_text(program, "AMP201", line_of(program))
    assert verdict.status == "inconclusive"
    assert "no sandbox here (no unshare; no limits)" in str(verdict.reason)
    assert sandbox.prefix(no_sandbox=True) == ([], "none")


def test_without_torch_every_verdict_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.importlib.util, "find_spec", lambda name: None)
    program = loop(SCALED, STEP + HERE, UPDATE)
    verdict = verify_text(program, "AMP201", line_of(program))
    assert (verdict.status, verdict.reason) == ("inconclusive", host.NO_TORCH)


def test_the_linter_does_not_import_torch() -> None:
    code = "import sys, amplint.verify; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
