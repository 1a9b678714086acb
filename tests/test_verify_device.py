"""Where replays run: what is asked for, what is there, and that everything of a replay lands on the same device."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from verify_programs import FAULTY, RIGHT, line_of

from amplint.verify import holds, verify_rules, verify_text
from amplint.verify.host import Worker

torch = pytest.importorskip("torch")

from amplint.verify import device, standins  # noqa: E402

NO_CUDA = not torch.cuda.is_available()
needs_cuda = pytest.mark.skipif(NO_CUDA, reason=f"torch {torch.__version__} sees no CUDA device")
without_cuda = pytest.mark.skipif(not NO_CUDA, reason="there is a CUDA device")


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A device that is not the CPU and that every torch has: its tensors have no content."""
    monkeypatch.setattr(device, "_chosen", torch.device("meta"))
    monkeypatch.setattr(device, "autocast_enabled", lambda: False)
    with torch.device("meta"):
        yield


def test_the_cpu_is_taken_where_nothing_else_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_chosen", torch.device("cpu"))
    assert device.choose("cpu") == "cpu"
    assert device.kind() == "cpu"
    if NO_CUDA:
        assert device.choose("auto") == "cpu"


@without_cuda
@pytest.mark.parametrize("wanted", ["cuda", "cuda:1"])
def test_a_device_that_is_missing_is_named(wanted: str) -> None:
    with pytest.raises(device.NoDevice, match=r"needs cuda: torch [\d.]+\S* sees no CUDA device"):
        device.choose(wanted)


@without_cuda
def test_a_verdict_asked_for_on_cuda_is_inconclusive_without_it() -> None:
    rule, program, _ = FAULTY["clip while scaled"]
    with Worker(device="cuda") as worker:
        verdicts = [verify_text(program, rule, line_of(program), worker=worker) for _ in range(3)]
        assert worker.starts == 1, "a device that is missing is looked for once"
    for verdict in verdicts:
        assert (verdict.status, verdict.device) == ("inconclusive", "")
        assert str(verdict.reason).startswith("needs cuda: torch")


def test_the_device_is_chosen_among_those_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[object] = []
    monkeypatch.setattr(device, "_chosen", torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", used.append)
    monkeypatch.setattr(torch, "set_default_device", used.append)
    assert device.choose("auto") == "cuda:0"
    assert device.choose("cuda") == "cuda:0"
    assert device.choose("cuda:1") == "cuda:1"
    assert device.kind() == "cuda"
    assert used == [torch.device("cuda:0")] * 4 + [torch.device("cuda:1")] * 2
    with pytest.raises(device.NoDevice, match="sees 2 CUDA devices"):
        device.choose("cuda:2")
    assert device.choose("cpu") == "cpu"


def test_stand_ins_are_made_on_the_device(elsewhere: None) -> None:
    ledger = standins.Ledger(standins.Run("nominal", half_grads=True), 4)
    model = standins.Model("net", ledger)
    batch = standins.noise("batch", 1)
    composite = standins.Composite("own", ledger, [model])
    made = [*model.parameters(), batch, standins.fitted(batch[:2]), standins.mixture("loss", [batch], scalar=True)]
    made += [model(batch), model(), composite(batch)]
    assert {tensor.device.type for tensor in made} == {"meta"}


def test_autocast_and_the_scaler_are_those_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(device, "_chosen", torch.device("cuda:0"))
    monkeypatch.setattr(
        torch.amp.GradScaler, "__init__", lambda self, device="none", **settings: made.append(str(device))
    )
    ledger = standins.Ledger(standins.Run("autocast on", autocast=True), 4)
    standins.Scaler("scaler", ledger)
    assert made == ["cuda"]
    regions: list[str] = []

    class Region:
        def __init__(self, device_type: str, **settings: object) -> None:
            regions.append(device_type)

    monkeypatch.setattr(torch, "autocast", Region)
    for written in ("cuda", "cpu"):
        standins.Region(ledger, written, torch.float16, True, None)
    assert regions == ["cuda", "cuda"]


def test_autocast_is_switched_off_behind_a_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("cpu", "cuda"):
        monkeypatch.setattr(device, "_chosen", torch.device(kind))
        torch.set_autocast_enabled(kind, True)
        assert device.autocast_enabled()
        assert device.leave_autocast()
        assert not torch.is_autocast_enabled(kind)
        assert not device.leave_autocast()


def test_the_limit_on_addresses_is_for_the_cpu_alone() -> None:
    """A CUDA driver reserves far more addresses than there is memory."""
    code = (
        "import resource, sys\nfrom amplint.verify import sandbox\nsandbox.confine('limits', sys.argv[1])\n"
        "addresses, size = (resource.getrlimit(which)[0] for which in (resource.RLIMIT_AS, resource.RLIMIT_FSIZE))\n"
        "print(addresses == sandbox.MEMORY, size)"
    )
    pytest.importorskip("resource")
    seen = [
        subprocess.run([sys.executable, "-c", code, kind], capture_output=True, text=True, check=True).stdout.split()
        for kind in ("cpu", "cuda")
    ]
    assert seen == [["True", "0"], ["False", "0"]]


def test_a_driver_that_fails_behind_walls_is_tried_with_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def spawn(self: Worker, prefix: list[str], level: str) -> None:
        tried.append(level)

    def greeting(self: Worker) -> dict[str, object]:
        if tried[-1] == "namespaces":
            return {"hello": False, "lost_device": True, "reason": "the device does not work"}
        return {"hello": True, "torch": "2.13.0", "device": "cuda:0", "kept": ["limits"]}

    monkeypatch.setattr("amplint.verify.sandbox.prefix", lambda no_sandbox: (["unshare"], "namespaces"))
    monkeypatch.setattr("amplint.verify.sandbox.limits", lambda: None)
    monkeypatch.setattr(Worker, "_spawn", spawn)
    monkeypatch.setattr(Worker, "_greeting", greeting)
    worker = Worker(device="cuda")
    worker.start()
    assert tried == ["namespaces", "limits"]
    assert (worker.device, worker.kept) == ("cuda:0", ["limits"])


@pytest.mark.cuda
@needs_cuda
@pytest.mark.parametrize("name", FAULTY)
def test_faults_are_seen_on_cuda(name: str) -> None:
    rule, program, status = FAULTY[name]
    with Worker(device="cuda", seconds=60.0) as worker:
        verdict = verify_text(program, rule, line_of(program), worker=worker)
    assert verdict.status == status, verdict
    assert verdict.device.startswith("cuda")


@pytest.mark.cuda
@needs_cuda
@pytest.mark.parametrize("name", RIGHT)
def test_right_programs_are_refuted_on_cuda(name: str) -> None:
    rule, program = RIGHT[name]
    with Worker(device="cuda", seconds=60.0) as worker:
        verdict = verify_text(program, rule, line_of(program), worker=worker)
    assert verdict.status == "refuted", verdict


@pytest.mark.cuda
@needs_cuda
def test_the_pages_hold_on_cuda() -> None:
    rows = verify_rules([], SimpleNamespace(device="cuda"))
    assert rows == []
    from amplint.registry import all_rules

    rows = verify_rules([rule.code for rule in all_rules()], SimpleNamespace(device="cuda"))
    assert [row for row in rows if not holds(row)] == []
