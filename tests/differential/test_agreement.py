"""A minute of the campaign, the truth about programs that are known, and the injected faults of some programs."""

from __future__ import annotations

import random
import time

import pytest

pytest.importorskip("torch")

from .agreement import compare, lint
from .campaign import Count, agreement_on, examine, program_of
from .grammar import SHAPES, Writer, plan_of
from .injection import injections, programs
from .stage import staged
from .tree import Line, Program
from .truth import Truth, truth_of

SEED = 7
BUDGET = 40.0
#: programs of seed 2026, one of each kind of disagreement that was mended last
ONCE_APART = (303, 582, 2763, 3700, 4286, 4833, 4891, 6633, 9243, 9417, 9493, 9619, 11428, 11908, 13331, 16236)

HEAD = """\
import torch
from torch import nn
from data import loader
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for i, (x, y) in enumerate(loader):
"""


def truth(*body: str, window: int = 0) -> Truth:
    """What is wrong in a loop with this body."""
    lines = [Line(line) for line in [*HEAD.splitlines(), *("    " + line for line in body)]]
    with staged():
        return truth_of(Program(list(lines), window=window))


def answers(found: Truth) -> set[tuple[str, int]]:
    """The findings that answer to the first faults; lines are counted from the first of the body."""
    above = HEAD.count("\n")
    return {(code, line - above) for fault in found.roots for code, line in fault.answers}


FORWARD = ('with torch.autocast("cuda"):', "    loss = (model(x) - y).square().mean()")
CLIP = "nn.utils.clip_grad_norm_(model.parameters(), 1.0)"


def test_what_is_right_has_no_fault() -> None:
    right = truth(
        "optimizer.zero_grad()",
        *FORWARD,
        "scaler.scale(loss).backward()",
        "scaler.unscale_(optimizer)",
        CLIP,
        "scaler.step(optimizer)",
        "scaler.update()",
    )
    assert (right.invalid, right.roots) == ("", [])


def test_a_clip_of_scaled_gradients_is_seen_in_what_the_optimizer_gets() -> None:
    clipped = truth(
        "optimizer.zero_grad()",
        *FORWARD,
        "scaler.scale(loss).backward()",
        CLIP,
        "scaler.step(optimizer)",
        "scaler.update()",
    )
    assert {fault.kind for fault in clipped.roots} == {"step on wrong gradients"}
    assert ("AMP201", 5) in answers(clipped)


def test_what_torch_raises_is_a_fault_of_what_led_there() -> None:
    missing = truth("optimizer.zero_grad()", *FORWARD, "scaler.scale(loss).backward()", "scaler.step(optimizer)")
    assert {fault.kind for fault in missing.roots} == {"step: step() has already been called since the last update()"}
    assert ("AMP205", 5) in answers(missing)


def test_a_step_past_the_scaler_shows_in_an_overflow() -> None:
    bypassed = truth(
        "optimizer.zero_grad()",
        *FORWARD,
        "scaler.scale(loss).backward()",
        "scaler.unscale_(optimizer)",
        "optimizer.step()",
        "scaler.update()",
    )
    assert [fault.circumstances for fault in bypassed.roots] == ["overflow@1/0"]
    assert ("AMP204", 6) in answers(bypassed)


def test_an_update_inside_a_window_shows_where_torch_raises() -> None:
    early = truth(
        *FORWARD,
        "scaler.scale(loss).backward()",
        "if (i + 1) % 2 == 0:",
        "    scaler.step(optimizer)",
        "    optimizer.zero_grad()",
        "scaler.update()",
        window=2,
    )
    assert ("AMP301", 7) in answers(early)


def test_a_loss_scaled_twice_shows_on_gradients_that_a_clip_leaves_alone() -> None:
    twice = truth(
        "optimizer.zero_grad()",
        *FORWARD,
        "scaler.scale(scaler.scale(loss)).backward()",
        "scaler.unscale_(optimizer)",
        CLIP,
        "scaler.step(optimizer)",
        "scaler.update()",
    )
    assert ("AMP217", 4) in answers(twice)


def test_an_overflow_at_the_end_of_a_window_is_tried() -> None:
    cleared = truth(
        *FORWARD,
        "scaler.scale(loss).backward()",
        "if (i + 1) % 3 == 0:",
        "    scaler.unscale_(optimizer)",
        "    optimizer.step()",
        "    scaler.update()",
        "optimizer.zero_grad()",
        window=3,
    )
    assert {fault.circumstances for fault in cleared.roots} == {"overflow@3/0"}
    assert ("AMP204", 6) in answers(cleared)


def test_gradients_are_scaled_where_only_what_was_there_before_was_unscaled() -> None:
    early = truth(
        "optimizer.zero_grad()",
        *FORWARD,
        "scaler.scale(loss)",
        "scaler.unscale_(optimizer)",
        "scaler.scale(loss).backward()",
        CLIP,
        "scaler.step(optimizer)",
        "scaler.update()",
    )
    assert ("AMP201", 7) in answers(early)


def test_an_update_forgets_what_was_unscaled_and_stepped_past_the_scaler() -> None:
    again = truth(
        "optimizer.zero_grad()",
        *FORWARD,
        "scaler.scale(loss).backward()",
        "scaler.unscale_(optimizer)",
        "optimizer.step()",
        "scaler.update()",
        "scaler.step(optimizer)",
    )
    assert ("AMP208", 7) in answers(again)


def test_a_shorter_epoch_is_tried_where_no_scaler_was_used_before_its_end() -> None:
    flushed = truth(
        *FORWARD,
        "loss.backward()",
        "if i == 4 and len(loader) % 2 != 0:",
        "    scaler.step(optimizer)",
        window=2,
    )
    assert {fault.circumstances for fault in flushed.roots} == {"shorter"}


def test_states_are_seen() -> None:
    inside = truth("optimizer.zero_grad()", FORWARD[0], "    model(x).sum().backward()", "    optimizer.step()")
    assert answers(inside) == {("AMP101", 3)}


def test_a_program_that_fails_for_other_reasons_says_nothing() -> None:
    assert truth("unknown()").invalid.startswith("NameError")


@pytest.mark.parametrize("shape", sorted(set(SHAPES)))
def test_right_programs_of_every_shape_are_right_for_both(shape: str) -> None:
    with staged():
        for number in range(4):
            rng = random.Random(f"{shape}/{number}")
            plan = plan_of(rng, 3)
            while plan.shape != shape:
                plan = plan_of(rng, 3)
            program = Writer(plan, rng).program()
            found = truth_of(program)
            findings = lint(program.source)
            agreement = compare(found, findings)
            assert (found.invalid, found.roots, agreement.false) == ("", [], []), program.source


def test_a_program_is_the_same_whenever_it_is_written() -> None:
    assert [program_of(3, n).source for n in range(20)] == [program_of(3, n).source for n in range(20)]


@pytest.mark.slow
def test_random_programs_agree() -> None:
    total, number, started = Count(), 0, time.monotonic()
    while time.monotonic() - started < BUDGET and number < 400:
        total.add(examine(SEED, range(number, number + 20)))
        number += 20
    print(total)
    assert total.recall >= 0.97, "\n".join([str(total), *total.disagreements])
    assert total.precision >= 0.99 or total.numbers["false"] <= 1, "\n".join([str(total), *total.disagreements])


@pytest.mark.parametrize("number", ONCE_APART)
def test_programs_that_once_told_both_sides_apart_do_not_any_more(number: int) -> None:
    with staged():
        agreement, _ = agreement_on(program_of(2026, number))
    assert agreement is not None
    assert ([str(finding) for finding in agreement.false], agreement.missed) == ([], [])


def test_both_sides_are_compared_for_mutated_programs_too() -> None:
    with staged():
        agreement, runs = agreement_on(program_of(SEED, 0))
    assert agreement is not None
    assert runs > 0


RIGHT = dict(programs())


@pytest.mark.parametrize("name", sorted(RIGHT))
def test_programs_to_inject_faults_into_are_right(name: str) -> None:
    assert [str(finding) for finding in lint(RIGHT[name]) if finding.severity > 0] == []


@pytest.mark.parametrize("name", ["clip_norm", "window_modulo", "two_optimizers_unclipped", "checkpoint_class"])
def test_injected_faults_are_found(name: str) -> None:
    missed = [
        f"{injected.code} on {sorted(injected.lines)}\n{injected.source}"
        for injected in injections(name, RIGHT[name])
        if not any(f.answers({(injected.code, line) for line in injected.lines}) for f in lint(injected.source))
    ]
    assert not missed, "\n".join(missed)
