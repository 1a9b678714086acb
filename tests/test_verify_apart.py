"""Several faults in one function: a wrong gradient counts for the finding that it comes from, not for the others."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_verify_run import Files, OneRun, finding, inserting, settings
from verify_programs import CLIP, HERE, SCALED, STEP, UNSCALE, UPDATE, line_of, loop

from amplint.finding import Edit, Fix, Place
from amplint.verify import verify_run
from amplint.verify.texts import apply_edits, header_end, moved, statement_end, without_statement

pytest.importorskip("torch")


def statuses(tmp_path: Path, program: str, *found: tuple[str, int, Fix | None]) -> list[tuple[str, str]]:
    """The verdicts on findings in one program: status, and reason or figure."""
    (tmp_path / "train.py").write_text(program)
    run = OneRun(Files(tmp_path))
    run.findings = [finding(rule, "train.py", line, fix=fix) for rule, line, fix in found]
    verify_run(run, settings(device="cpu"))  # type: ignore[arg-type]
    verdicts = [f.verdict for f in run.findings]
    return [(str(v.status), str(v.reason or v.figure)) for v in verdicts if v is not None]


def at(program: str, statement: str) -> int:
    return next(i for i, line in enumerate(program.splitlines(), 1) if line.strip() == statement)


def test_a_right_line_beside_a_faulty_one_is_not_confirmed(tmp_path: Path) -> None:
    program = loop(SCALED, CLIP + HERE, STEP, UPDATE)
    clip, step = line_of(program), at(program, STEP)
    repair = inserting("train.py", clip, f"        {UNSCALE}\n")
    (first, _), (second, reason) = statuses(tmp_path, program, ("AMP201", clip, repair), ("AMP205", step, None))
    assert first == "confirmed"
    assert second == "inconclusive"
    assert reason == f"no difference is left without AMP201 in line {clip}"


def test_a_fault_without_a_fix_is_taken_out_of_its_neighbours_program(tmp_path: Path) -> None:
    program = loop(SCALED, "net.weight.grad.mul_(scaler.get_scale())" + HERE, UNSCALE, CLIP, STEP, UPDATE)
    loud, clip = line_of(program), at(program, CLIP)
    found = statuses(tmp_path, program, ("AMP201", clip, None), ("AMP207", loud, None))
    assert found[0][0] == "inconclusive"
    assert f"without AMP207 in line {loud}" in found[0][1]
    assert found[1][0] == "confirmed"


def test_two_faults_are_both_confirmed_with_figures_of_their_own(tmp_path: Path) -> None:
    program = loop(SCALED, CLIP, STEP, UPDATE, "optimizer.zero_grad()", "error.backward()", STEP, UPDATE)
    clip, plain = at(program, CLIP), at(program, "error.backward()")
    repair = inserting("train.py", clip, f"        {UNSCALE}\n")
    scaled = Fix(
        "safe", "scale the loss",
        (Edit(Place("train.py", plain, 9, plain, 25), "scaler.scale(error).backward()"),),
    )  # fmt: skip
    found = statuses(tmp_path, program, ("AMP201", clip, repair), ("AMP203", plain, scaled))
    assert [status for status, _ in found] == ["confirmed", "confirmed"]
    assert found[0][1] != found[1][1]


def test_a_fix_is_judged_without_the_other_faults(tmp_path: Path) -> None:
    program = loop(SCALED, CLIP, STEP, UPDATE, "optimizer.zero_grad()", "error.backward()", STEP, UPDATE)
    clip, plain = at(program, CLIP), at(program, "error.backward()")
    (tmp_path / "train.py").write_text(program)
    scaled = Fix(
        "safe", "scale the loss",
        (Edit(Place("train.py", plain, 9, plain, 25), "scaler.scale(error).backward()"),),
    )  # fmt: skip
    run = OneRun(Files(tmp_path))
    repair = inserting("train.py", clip, f"        {UNSCALE}\n")
    run.findings = [
        finding("AMP201", "train.py", clip, fix=repair),
        finding("AMP203", "train.py", plain, fix=scaled),
    ]
    verify_run(run, settings(device="cpu"))  # type: ignore[arg-type]
    assert [f.verdict.fix_verified for f in run.findings if f.verdict] == [True, True]
    assert [f.fix.safety for f in run.findings if f.fix] == ["safe", "safe"]


def test_a_fix_that_does_not_help_is_no_longer_safe(tmp_path: Path) -> None:
    program = loop(SCALED, CLIP + HERE, STEP, UPDATE)
    clip = line_of(program)
    (tmp_path / "train.py").write_text(program)
    run = OneRun(Files(tmp_path))
    run.findings = [finding("AMP201", "train.py", clip, fix=inserting("train.py", clip + 1, f"        {UNSCALE}\n"))]
    verify_run(run, settings(device="cpu"))  # type: ignore[arg-type]
    only = run.findings[0]
    assert only.verdict is not None
    assert only.verdict.fix_verified is False
    assert only.fix is not None
    assert only.fix.safety == "unsafe"


# --------------------------------------------------------------------- texts


def test_a_line_moves_with_what_is_put_above_it() -> None:
    text = "a()\nif b:\n    c()\n    d()\n"
    above, behind = (3, 5, 3, 5, "new()\n    "), (3, 8, 3, 8, "\n    new()")
    assert moved(text, 3, [above]) == 4
    assert moved(text, 3, [behind]) == 3
    assert moved(text, 4, [behind]) == 5
    assert moved(text, 4, [(3, 1, 4, 1, "")]) == 3
    assert apply_edits(text, [above]).splitlines()[3] == "    c()"


def test_a_call_is_taken_out_without_moving_a_line() -> None:
    text = "def f():\n    clip(\n        a,\n        b,\n    )\n    x = clip(a)\n"
    assert apply_edits(text, without_statement(text, 2, 5)) == "def f():\n    pass\n\n\n\n    x = clip(a)\n"
    assert without_statement(text, 6, 6) == []
    assert without_statement("é = 'é'; clip(é)\n", 1, 1) == [(1, 10, 1, 17, "pass")]


def test_where_statements_end() -> None:
    text = "with a(\n    b\n):\n    c(\n        d)\n"
    assert (header_end(text, 1), header_end(text, 4)) == (3, 10**9)
    assert (statement_end(text, 4), statement_end(text, 1)) == (5, 1)
    assert statement_end("def broken(:", 1) == 1
