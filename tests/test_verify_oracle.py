"""What the verifier says of programs with one fault each, and of their right neighbours."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from verify_programs import FAULTY, HERE, RIGHT, SCALED, STEP, UPDATE, line_of, loop

from amplint.verify import verify_text
from amplint.verify.host import Worker

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker(seconds=30.0) as made:
        yield made


@pytest.mark.parametrize("name", FAULTY)
def test_fault_is_seen(worker: Worker, name: str) -> None:
    rule, program, status = FAULTY[name]
    verdict = verify_text(program, rule, line_of(program), worker=worker)
    assert verdict.status == status, verdict
    assert verdict.figure
    assert (verdict.variant != "nominal") or status == "confirmed"


@pytest.mark.parametrize("name", RIGHT)
def test_right_program_is_refuted(worker: Worker, name: str) -> None:
    rule, program = RIGHT[name]
    verdict = verify_text(program, rule, line_of(program), worker=worker)
    assert verdict.status == "refuted", verdict


@pytest.mark.parametrize("name", RIGHT)
def test_right_program_is_never_confirmed_for_any_protocol_rule(worker: Worker, name: str) -> None:
    _, program = RIGHT[name]
    for rule in ("AMP201", "AMP203", "AMP204", "AMP205", "AMP207", "AMP208", "AMP301"):
        verdict = verify_text(program, rule, line_of(program), worker=worker)
        assert verdict.status in ("refuted", "inconclusive"), (rule, verdict)


def test_clip_leaves_the_limit_divided_by_the_scale(worker: Worker) -> None:
    rule, program, _ = FAULTY["clip while scaled"]
    verdict = verify_text(program, rule, line_of(program), worker=worker)
    assert "0.000977 instead of 1" in verdict.figure  # 1 / 1024


def test_assumption_of_the_finding_decides_a_flag(worker: Worker) -> None:
    _, program = RIGHT["one flag, three ifs"]
    off = verify_text(program, "AMP201", line_of(program), ["mixed is false"], worker=worker)
    on = verify_text(program, "AMP201", line_of(program), ["mixed is true"], worker=worker)
    assert off.status == "inconclusive"
    assert "no loss was scaled" in str(off.reason)
    assert on.status == "refuted"


def test_a_line_that_never_runs_is_not_refuted(worker: Worker) -> None:
    program = loop(SCALED, STEP, UPDATE, "if 1 > 2:", "    scaler.update()" + HERE)
    verdict = verify_text(program, "AMP206", line_of(program), worker=worker)
    assert verdict.status == "inconclusive"
    assert "not reached" in str(verdict.reason)


def test_fewer_than_two_steps_are_not_enough_to_refute(worker: Worker) -> None:
    program = loop(SCALED, STEP + HERE, UPDATE, "break").replace("for inputs", "for inputs")
    single = program.replace("def learn(net, loader, optimizer", "def learn(net, loader, optimizer").replace(
        "    for inputs, wanted in loader:", "    for inputs, wanted in loader:"
    )
    verdict = verify_text(single, "AMP205", line_of(single), worker=worker)
    assert verdict.status == "inconclusive", verdict


def test_an_exception_of_the_program_itself_is_no_evidence(worker: Worker) -> None:
    program = loop(SCALED, STEP + HERE, UPDATE, "raise RuntimeError('step() has already been called')")
    verdict = verify_text(program, "AMP205", line_of(program), worker=worker)
    assert verdict.status == "inconclusive", verdict


def test_unknown_wrapper_with_the_optimizer_is_not_refuted(worker: Worker) -> None:
    program = loop(SCALED, "tidy_up(optimizer, scaler)", STEP + HERE, UPDATE)
    verdict = verify_text(program, "AMP201", line_of(program), worker=worker)
    assert verdict.status == "inconclusive"
    assert "tidy_up" in str(verdict.reason)


def test_decisions_are_listed(worker: Worker) -> None:
    program = loop("if settings.use_amp:", f"    {SCALED}", "else:", "    error.backward()", STEP + HERE, UPDATE)
    verdict = verify_text(program.replace("ceiling=1.0", "settings"), "AMP205", line_of(program), worker=worker)
    assert any("use_amp is true" in assumption for assumption in verdict.assumptions)
