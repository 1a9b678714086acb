"""The typestate of gradients, cell by cell, and what one scaler knows of itself, on whole programs."""

from __future__ import annotations

from pathlib import Path

import libcst as cst
import pytest
from tracing import HEAD, Laboratory, states

from amplint.rule import Site
from amplint.source import SourceModule
from amplint.states import (
    NOTHING,
    UNKNOWN,
    Book,
    Event,
    Gradients,
    Kind,
    after_backward,
    after_step,
    after_unscale,
    after_update,
)
from amplint.values import TRUE, Optimizer, Scaler

SCALER = Scaler(("made", "scaler"), "torch", TRUE)
OTHER = Scaler(("made", "another scaler"), "torch", TRUE)
OPTIMIZER = Optimizer(("made", "optimizer"), None)
MODULE = SourceModule("train.py", "")


def event(kind: str) -> Event:
    return Event(kind, Site(MODULE, cst.Pass()), 0, {}, (), {}, (), ())


#: an earlier backward and an earlier unscale_
BEFORE, UNSCALED = event("backward"), event("unscale_")


def gradients(kind: Kind) -> Gradients:
    """Gradients of a kind as they come about."""
    return {
        "N": NOTHING,
        "P": Gradients("P", origin=BEFORE, last=BEFORE, window=1),
        "S": Gradients("S", SCALER, 0, BEFORE, BEFORE, window=1),
        "U": Gradients("U", SCALER, 0, BEFORE, BEFORE, UNSCALED, window=1),
        "T": Gradients("T", SCALER, 0, BEFORE, BEFORE, UNSCALED, window=1),
        "L": Gradients("L", SCALER, 0, BEFORE, BEFORE, UNSCALED, window=1),
        "M": Gradients("M", SCALER, 0, BEFORE, BEFORE, UNSCALED, window=2),
        "?": UNKNOWN,
    }[kind]


@pytest.mark.parametrize(
    ("kind", "scaled", "plain", "unscaled", "stepped", "updated"),
    [
        # no gradients: unscale_ runs, a step has nothing to check
        ("N", "S", "P", "U", "T", "N"),
        # true gradients: scaled ones on top of them mix, more true ones do not
        ("P", "M", "P", "P", "T", "P"),
        # scaled gradients: more scaled ones accumulate, true ones mix
        ("S", "S", "M", "U", "T", "S"),
        # unscaled gradients: scaled ones mix silently; update() leaves them behind
        ("U", "M", "U", "U", "T", "L"),
        ("T", "S", "P", "T", "T", "N"),
        ("L", "M", "P", "L", "T", "L"),
        ("M", "M", "M", "M", "T", "M"),
        ("?", "S", "P", "U", "T", "?"),
    ],
)
def test_transitions(kind: Kind, scaled: Kind, plain: Kind, unscaled: Kind, stepped: Kind, updated: Kind) -> None:
    state = gradients(kind)
    assert after_backward(state, event("backward"), SCALER, 0, False).kind == scaled
    assert after_backward(state, event("backward"), None, 0, False).kind == plain
    assert after_unscale(state, event("unscale_")).kind == unscaled
    assert after_step(state).kind == stepped
    assert after_update(state, SCALER, event("update")).kind == updated


# --- details of the states -----------------------------------------------------------------------


def test_scaled_gradients_know_their_scale_and_where_they_come_from() -> None:
    first, second = event("backward"), event("backward")
    state = after_backward(NOTHING, first, SCALER, 3, False)
    assert (state.scaler, state.epoch, state.origin, state.last, state.window) == (SCALER, 3, first, first, 1)
    state = after_backward(state, second, SCALER, 4, False)
    assert (state.epoch, state.origin, state.last, state.window) == (3, first, second, 2)


def test_unscaled_gradients_know_what_unscaled_them() -> None:
    unscale = event("unscale_")
    state = after_unscale(gradients("S"), unscale)
    assert (state.unscaled, state.scaler, state.origin) == (unscale, SCALER, BEFORE)


def test_the_second_unscale_changes_nothing() -> None:
    assert after_unscale(gradients("U"), event("unscale_")).unscaled is UNSCALED


def test_an_update_makes_scaled_gradients_stale_once() -> None:
    first, second = event("update"), event("update")
    state = after_update(gradients("S"), SCALER, first)
    assert (state.kind, state.stale) == ("S", first)
    assert after_update(state, SCALER, second).stale is first


def test_a_step_ends_staleness() -> None:
    state = after_update(gradients("S"), SCALER, event("update"))
    assert after_step(state).stale is None


@pytest.mark.parametrize("kind", ["S", "U", "T"])
def test_the_update_of_another_scaler_is_no_matter(kind: Kind) -> None:
    state = gradients(kind)
    assert after_update(state, OTHER, event("update")) is state


def test_mixed_gradients_name_the_backward_that_mixed_them() -> None:
    mixing = event("backward")
    state = after_backward(gradients("U"), mixing, SCALER, 1, False)
    assert (state.origin, state.last, state.unscaled, state.window) == (BEFORE, mixing, UNSCALED, 2)


def test_stepped_gradients_that_nothing_cleared_are_part_of_the_next_window() -> None:
    state = after_update(gradients("T"), SCALER, event("update"))
    assert state.last is BEFORE
    state = after_backward(state, event("backward"), SCALER, 1, False)
    assert (state.kind, state.window, state.leftover) == ("S", 1, True)
    assert not after_backward(NOTHING, event("backward"), SCALER, 1, False).leftover


@pytest.mark.parametrize(
    ("first", "second", "expected"), [(False, False, False), (True, False, False), (True, True, True)]
)
def test_one_backward_that_surely_reaches_the_optimizer_is_enough(first: bool, second: bool, expected: bool) -> None:
    state = after_backward(NOTHING, event("backward"), SCALER, 0, first)
    assert after_backward(state, event("backward"), SCALER, 0, second).maybe is expected


def test_a_true_gradient_that_perhaps_comes_to_scaled_ones_perhaps_mixes() -> None:
    assert after_backward(gradients("S"), event("backward"), None, 0, True).maybe


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "U"},
        {"scaler": OTHER},
        {"epoch": 1},
        {"origin": event("backward")},
        {"last": event("backward")},
        {"stale": event("update")},
        {"maybe": True},
        {"window": 2},
        {"leftover": True},
    ],
)
def test_what_tells_two_states_apart(change: dict[str, object]) -> None:
    parts: dict[str, object] = {"kind": "S", "scaler": SCALER, "origin": BEFORE, "last": BEFORE, "window": 1}
    assert Gradients(**parts).key == Gradients(**parts).key  # type: ignore[arg-type]
    assert Gradients(**{**parts, **change}).key != Gradients(**parts).key  # type: ignore[arg-type]


def test_long_windows_are_alike() -> None:
    assert Gradients("S", window=2).key == Gradients("S", window=7).key


# --- the book of a scaler ------------------------------------------------------------------------


@pytest.mark.parametrize(("checked", "stage"), [(False, "ready"), (True, "?"), (None, "?")])
def test_the_stage_of_an_optimizer_that_was_not_seen(checked: bool | None, stage: str) -> None:
    assert Book(checked=checked).stage(OPTIMIZER) == stage


def test_the_stage_of_an_optimizer_is_replaced() -> None:
    book = Book(checked=True).with_stage(OPTIMIZER, "unscaled").with_stage(OPTIMIZER, "stepped")
    assert book.stages == ((OPTIMIZER, "stepped"),)
    assert book.stage(OPTIMIZER) == "stepped"


# --- the protocol on whole programs --------------------------------------------------------------

SITUATIONS = {
    "init": "",
    "ready, no gradients": "scaler.scale(torch.ones(1))",
    "ready, scaled": "scaler.scale(model(x).sum()).backward()",
    "unscaled": "scaler.scale(model(x).sum()).backward(); scaler.unscale_(optimizer)",
    "stepped": "scaler.scale(model(x).sum()).backward(); scaler.step(optimizer)",
}
OPERATIONS = {
    "scale": "scaler.scale(torch.ones(1))",
    "scaled backward": "scaler.scale(model(x).sum()).backward()",
    "plain backward": "model(x).sum().backward()",
    "unscale_": "scaler.unscale_(optimizer)",
    "step": "scaler.step(optimizer)",
    "optimizer step": "optimizer.step()",
    "update": "scaler.update()",
    "update with a scale": "scaler.update(2.0)",
    "zero_grad": "optimizer.zero_grad()",
    "model zero_grad": "model.zero_grad()",
    "state_dict": "saved = scaler.state_dict()",
    "load_state_dict": "scaler.load_state_dict({})",
}
#: (gradients, torch's stage) as a `step` right afterwards meets them; None where torch has raised before
EXPECTED: dict[str, list[tuple[str, str] | None]] = {
    #                      init            ready, none       ready, scaled    unscaled           stepped
    "scale": [("N", "ready"), ("N", "ready"), ("S", "ready"), ("U", "unscaled"), ("T", "stepped")],
    "scaled backward": [("S", "ready"), ("S", "ready"), ("S", "ready"), ("M", "unscaled"), ("S", "stepped")],
    "plain backward": [("P", "ready"), ("P", "ready"), ("M", "ready"), ("U", "unscaled"), ("P", "stepped")],
    "unscale_": [None, ("U", "unscaled"), ("U", "unscaled"), None, None],
    "step": [None, None, ("T", "stepped"), ("T", "stepped"), None],
    "optimizer step": [("N", "ready"), ("N", "ready"), ("S", "ready"), ("U", "unscaled"), ("T", "stepped")],
    "update": [None, None, ("S!", "ready"), ("L", "ready"), ("N", "ready")],
    "update with a scale": [None, ("N", "ready"), ("S!", "ready"), ("L", "ready"), ("N", "ready")],
    "zero_grad": [("N", "ready"), ("N", "ready"), ("N", "ready"), ("N", "unscaled"), ("N", "stepped")],
    "model zero_grad": [("N", "ready"), ("N", "ready"), ("N", "ready"), ("N", "unscaled"), ("N", "stepped")],
    "state_dict": [("N", "ready"), ("N", "ready"), ("S", "ready"), ("U", "unscaled"), ("T", "stepped")],
    "load_state_dict": [("N", "ready"), ("N", "ready"), ("S", "ready"), ("U", "unscaled"), ("T", "stepped")],
}
CELLS = [
    pytest.param(situation, operation, cell, id=f"{operation} in {situation}")
    for operation, cells in EXPECTED.items()
    for situation, cell in zip(SITUATIONS, cells, strict=True)
    if cell is not None
]


def last_event(folder: Path, *statements: str) -> Event:
    source = HEAD + "x = torch.ones(2)\n" + "\n".join(statements)
    (trace,) = Laboratory(folder).traces_of(source)
    return trace.events[-1]


@pytest.mark.parametrize(("situation", "operation", "expected"), CELLS)
def test_what_a_step_meets(tmp_path: Path, situation: str, operation: str, expected: tuple[str, str]) -> None:
    eye = last_event(tmp_path, SITUATIONS[situation], OPERATIONS[operation], "scaler.step(optimizer)")
    assert (states(eye), eye.stage) == expected


@pytest.mark.parametrize(
    ("situation", "state", "stage", "checked", "live"),
    [
        ("init", "N", "ready", False, False),
        ("ready, no gradients", "N", "ready", False, True),
        ("ready, scaled", "S", "ready", False, True),
        ("unscaled", "U", "unscaled", True, True),
        ("stepped", "T", "stepped", True, True),
    ],
)
def test_the_situations(tmp_path: Path, situation: str, state: str, stage: str, checked: bool, live: bool) -> None:
    eye = last_event(tmp_path, SITUATIONS[situation], "scaler.step(optimizer)")
    assert (states(eye), eye.stage, eye.details["checked"], eye.details["live"]) == (state, stage, checked, live)


def test_an_update_needs_a_new_check(tmp_path: Path) -> None:
    eye = last_event(tmp_path, SITUATIONS["stepped"], "scaler.update()", "scaler.update()")
    assert eye.details["checked"] is False
    assert eye.details["live"] is True


def test_the_check_of_any_optimizer_will_do(tmp_path: Path) -> None:
    other = "other = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1.0)"
    eye = last_event(tmp_path, other, SITUATIONS["ready, scaled"], "scaler.step(other)", "scaler.update()")
    assert eye.details["checked"] is True


def test_updates_are_counted(tmp_path: Path) -> None:
    round_ = f"{SITUATIONS['stepped']}; scaler.update(); optimizer.zero_grad()"
    eye = last_event(tmp_path, round_, round_, SITUATIONS["ready, scaled"], "scaler.step(optimizer)")
    assert eye.state.epoch == 2


def test_a_scaler_that_came_from_elsewhere_is_unknown(tmp_path: Path) -> None:
    source = "def train(scaler, optimizer):\n    scaler.unscale_(optimizer)\n    scaler.update()\n"
    (trace,) = Laboratory(tmp_path).traces_of(source)
    unscale, update = trace.events
    assert (states(unscale), unscale.stage, update.details["live"]) == ("?", "?", None)


def test_no_protocol_event_where_the_scaler_is_disabled(tmp_path: Path) -> None:
    statements = [
        SITUATIONS["ready, scaled"],
        "scaler.unscale_(optimizer)",
        "scaler.step(optimizer)",
        "scaler.update()",
    ]
    source = HEAD.replace('"cuda"', '"cuda", enabled=False') + "x = torch.ones(2)\n" + "\n".join(statements)
    (trace,) = Laboratory(tmp_path).traces_of(source)
    kinds = [e.kind for e in trace.events]
    assert kinds[-2:] == ["backward", "opt_step"]
    assert not {"scale", "unscale_", "step", "update"} & set(kinds)
    assert trace.events[-1].state.kind == "P"
