"""Rules whose fault is no wrong gradient: what is compared in their replays instead."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from amplint.library import keeps_masters
from amplint.verify import device
from amplint.verify.cuda_facts import bce_message
from amplint.verify.oracle import CONDITIONS, HALF, PLAIN, REFERENCE, Case, Judgement, by_gradients, difference, raised
from amplint.verify.stage import Outcome
from amplint.verify.standins import SCALER_KEY, Run

AUTOCAST = Run("autocast on", autocast=True, gain=1.0)
NOMINAL = PLAIN[0]
OVERFLOW = CONDITIONS[0]
#: the share of gradients that a factor of the program's own may lose where a scaler is missing
LOST = 0.1
#: what becomes of the scale in a number that is made of gradients
POWERS = (1.0, 2.0, 0.5, -1.0)
#: newer ones keep the casts that were made under no_grad apart
LAST_WITH_SHARED_CACHE = (2, 9)

#: rules that are shown without two optimizer steps: the operation itself is wrong
STEPLESS = {
    "AMP103",
    "AMP104",
    "AMP105",
    "AMP106",
    "AMP107",
    "AMP108",
    "AMP109",
    "AMP403",
    "AMP404",
    "AMP405",
    "AMP406",
    "AMP111",
    "AMP503",
}


def needs(rule: str) -> int:
    """Optimizer steps without which nothing is refuted."""
    return 0 if rule in STEPLESS else 2


def backward_in_autocast(case: Case) -> Judgement | None:
    """Whether autocast was on when the flagged backward ran; then, whether that moves any gradient."""
    seen = case.run(AUTOCAST)
    calls = [e for e in seen.ledger.events if e.kind in ("backward", "grad") and case.is_flagged(e.path, e.line)]
    inside = sum(1 for e in calls if e.data.get("autocast"))
    if not inside:
        return None
    figure = f"autocast was on in {inside} of {len(calls)} calls"
    island = replace(AUTOCAST, name="an fp32 layer", island=True)
    for run in (AUTOCAST, island):
        outside = case.run(replace(run, name=f"{run.name}, backward outside", backward_outside=True))
        found = difference(outside, case.run(run), 1e-5)
        if found is not None and found.bad:
            return Judgement("confirmed", f"{figure}; with {run.name}: {found.figure}", run.name)
    return Judgement("confirmed", f"{figure}; no difference of gradients measured here", AUTOCAST.name)


def frozen_weights(case: Case) -> Judgement | None:
    """The loss of one repeated batch: it must fall as it does without autocast."""
    run = replace(AUTOCAST, name="autocast on, one batch repeated", learn=True, repeat=True)
    seen, plain = case.run(run), case.run(replace(run, name="reference", scaled=False, autocast=False))
    losses, expected = seen.world.losses, plain.world.losses
    count = min(len(losses), len(expected))
    frozen = best = 1
    start = 0
    for i in range(1, count):
        moved = abs(expected[i] - expected[i - 1]) > 1e-3 * max(abs(expected[i - 1]), 1e-6)
        frozen = frozen + 1 if losses[i] == losses[i - 1] and moved else 1
        if frozen > best:
            best, start = frozen, i + 1 - frozen
    if best < 3:
        fresh = case.run(replace(run, name="no weight cache", no_cache=True))
        found = difference(fresh, seen, 1e-3)
        if found is not None and found.bad:
            return Judgement("confirmed", f"against the same run without the weight cache: {found.figure}", run.name)
        pairs = zip(seen.world.outputs, fresh.world.outputs, strict=False)
        stale = [(a, b) for a, b in pairs if abs(a - b) > 1e-2 * max(abs(b), 1e-6)]
        if not stale or len(seen.world.outputs) != len(fresh.world.outputs):
            return None
        return Judgement(
            "confirmed",
            f"{len(stale)} of {len(seen.world.outputs)} outputs are those of the weights before: "
            f"{stale[0][0]:.4g} instead of {stale[0][1]:.4g}",
            run.name,
        )
    return Judgement(
        "confirmed",
        f"loss of a repeated batch stood still over {best} steps; without autocast it went from "
        f"{expected[start]:.4g} to {expected[start + best - 1]:.4g}",
        run.name,
    )


def _errors(case: Case, run: Run = NOMINAL) -> list[Any]:
    seen = case.run(run)
    return [*seen.world.declared, *([seen.error] if seen.error is not None else [])]


def _raised_at(case: Case, run: Run = NOMINAL) -> Judgement | None:
    """An exception of torch's that rises on the flagged lines."""
    for error in _errors(case, run):
        if error.from_torch and case.is_flagged(error.path, error.line):
            return Judgement("confirmed", f"raises {error.text.splitlines()[0][:140]}", run.name)
    return None


def not_entered(case: Case) -> Judgement | None:
    found = _raised_at(case)
    if found is not None:
        return found
    seen = case.run(AUTOCAST)
    for path, line in seen.world.unentered:
        if seen.reached and case.is_flagged(path, line):
            return Judgement("confirmed", "the region is made and never entered: autocast stayed off", AUTOCAST.name)
    return None


def bad_argument(case: Case) -> Judgement | None:
    found = _raised_at(case)
    if found is not None:
        return found
    seen = case.run(NOMINAL)
    for event in seen.events("constructed"):
        if not case.is_flagged(event.path, event.line):
            continue
        device, scale = event.data["device"], event.data["scale"]
        if not str(device).split(":")[0].isalpha() or device in ("True", "False"):
            return Judgement("confirmed", f"the scaler's device is {device} and its scale stays {scale}", NOMINAL.name)
        if isinstance(scale, bool | str) or (isinstance(scale, int | float) and scale <= 0):
            return Judgement("confirmed", f"the initial scale is {scale!r}", NOMINAL.name)
    for event in seen.events("autocast"):
        if event.data["misplaced"] and case.is_flagged(event.path, event.line):
            return Judgement(
                "confirmed",
                f"{event.data['misplaced']} is taken for `enabled`, and the dtype stays float16",
                NOMINAL.name,
            )
    if any(":" in e.data["device"] for e in seen.events("autocast") if case.is_flagged(e.path, e.line)):
        return Judgement("inconclusive", reason="version: an index in device_type raises before torch 2.4 only")
    return None


def bce(case: Case) -> Judgement | None:
    seen = case.run(AUTOCAST)
    for event in seen.events("refused"):
        if case.is_flagged(event.path, event.line):
            return Judgement("confirmed", f"raises RuntimeError: {event.data['text']}", AUTOCAST.name)
    if any(case.is_flagged(e.path, e.line) for e in seen.events("bce")):
        message = bce_message()
        if message is None:
            return Judgement("inconclusive", reason="needs cuda: no FakeTensor for it here")
        return Judgement(
            "confirmed", f"raises RuntimeError: {message} (FakeTensor, device cuda)", "device cuda, FakeTensor"
        )
    return None


def island_without_cast(case: Case) -> Judgement | None:
    seen = case.run(AUTOCAST)
    hits = [h for h in case.halves(seen) if h[2] and not h[3]]
    if hits:
        return Judgement("confirmed", f"16-bit tensors reach the fp32 region in {len(hits)} operations", AUTOCAST.name)
    return _raised_at(case, AUTOCAST) or _unseen(case, seen)


def loss_outside(case: Case) -> Judgement | None:
    seen = case.run(AUTOCAST)
    hits = [h for h in case.halves(seen) if not h[2]]
    if hits:
        return Judgement("confirmed", f"the loss is computed on 16-bit tensors ({len(hits)} operations)", AUTOCAST.name)
    return _unseen(case, seen)


def half_values(case: Case) -> Judgement | None:
    """A constant or an operator that 16 bits do not carry: what torch says, or the tensors that meet it."""
    run = AUTOCAST
    seen = case.run(run)
    refusals = [text for path, line, text in seen.world.refusals if case.is_flagged(path, line)]
    if refusals:
        return Judgement("confirmed", f"raises {refusals[0]}", run.name)
    rule = case.replay.rule
    if rule == "AMP404":
        tiny = next((value for path, line, value in seen.world.tiny if case.is_flagged(path, line)), None)
        if tiny is not None:
            return Judgement("confirmed", f"an fp16 tensor meets the eps, and {tiny:g} is 0 in fp16", run.name)
        text = "\n".join(case.replay.texts)
        half = any(p.dtype == torch.float16 for o in seen.world.optimizers.values() for p in o.parameters())
        if half and "Adam" in text and "eps" not in text:
            return Judgement("confirmed", "the weights are fp16, where the optimizer's eps of 1e-8 is 0", run.name)
    infinite = any(case.is_flagged(path, line) for path, line in seen.world.infinite)
    if rule == "AMP403" and infinite and "inf" not in "\n".join(case.replay.texts):
        return Judgement("confirmed", "the constant becomes inf in an fp16 tensor, without an exception", run.name)
    if rule == "AMP406" and case.halves(seen) and device.kind() == "cpu":
        return Judgement("inconclusive", reason="needs cuda: autocast on the CPU runs the operator in fp32")
    return _unseen(case, seen)


def _unseen(case: Case, seen: Outcome) -> Judgement | None:
    """Nothing can be said about dtypes where no operation on tensors ran."""
    if seen.world.floats:
        return None
    return Judgement("inconclusive", reason="no tensor operation of the flagged line ran in the replay")


def leaked_region(case: Case) -> Judgement | None:
    seen = case.run(AUTOCAST)
    if seen.left_on:
        return Judgement("confirmed", "autocast is still on after the outermost exit", AUTOCAST.name)
    if seen.world.leaks:
        _, line = seen.world.leaks[0]
        return Judgement("confirmed", f"code outside of the region runs under autocast (line {line})", AUTOCAST.name)
    return None


def no_scaler(case: Case) -> Judgement | None:
    """Small gradients in fp16 without a scale: how many become zero."""
    seen = case.run(NOMINAL)
    region = entered = False
    for event in seen.ledger.events:
        if event.kind == "region" and event.data["enabled"]:
            entered = event.data["dtype"] == "torch.float16"
        elif event.kind == "backward":
            region = region or entered
            entered = False
    if not region or seen.events("scale") or not any(s.direct for s in seen.ledger.steps):
        return None
    if seen.world.outside and seen.world.scalers:
        return Judgement("inconclusive", reason=f"unknown wrapper: {seen.world.outside[0]}() was given the scaler")
    run = Run("gradients around 1e-7", half_grads=True, gain=2.0**-24)
    small, exact = case.run(run), case.run(replace(run, name="reference", half_grads=False, scaled=False))
    zeros = total = 0
    for got, expected in zip(small.ledger.steps, exact.ledger.steps, strict=False):
        if (
            got.gradients is not None
            and expected.gradients is not None
            and got.gradients.shape == expected.gradients.shape
        ):
            nonzero = expected.gradients != 0
            total += int(nonzero.sum())
            zeros += int((got.gradients[nonzero] == 0).sum())
    if zeros < LOST * total:
        return None
    return Judgement("conditional", f"{100 * zeros / total:.0f} % of the gradients are 0 where fp32 has none", run.name)


def gradient_read(case: Case) -> Judgement | None:
    """The numbers that the flagged lines produce: S times too large, or the step they spoil."""
    if ".grad" in "\n".join(case.replay.texts) or "norm" in "\n".join(case.replay.texts):
        seen, plain = case.run(NOMINAL), case.reference(NOMINAL)
        scale = 1024.0
        pairs = [
            (a, b)
            for a, b in zip(case.observed(seen), case.observed(plain), strict=False)
            if b not in (0.0,) and math.isfinite(a) and math.isfinite(b)
        ]
        factor = [p for p in pairs if any(abs(p[0] / p[1] / scale**power - 1) < 1e-3 for power in POWERS)]
        if factor and len(case.observed(seen)) == len(case.observed(plain)):
            return Judgement(
                "confirmed", f"reads {factor[0][0]:.4g} where the gradient gives {factor[0][1]:.4g}", NOMINAL.name
            )
    return by_gradients(case)


def zero_grad_before_step(case: Case) -> Judgement | None:
    found = by_gradients(case)
    if found is not None:
        return found
    seen = case.run(NOMINAL)
    taken = [s for s in seen.ledger.steps if s.gradients is not None]
    empty = [s for s in taken if s.gradients is not None and float(s.gradients.abs().sum()) == 0.0]
    if taken and len(empty) >= 2 and len(empty) == len(taken):
        return Judgement("confirmed", f"all gradients are 0 in {len(empty)} of {len(taken)} steps", NOMINAL.name)
    for run in (NOMINAL, *CONDITIONS[:3]):
        cleared = steps = 0
        pending = False
        emptied: set[str] = set()
        stepped: set[str] = set()
        for event in case.run(run).ledger.events:
            if event.kind == "backward":
                pending = True
                emptied.clear()
                stepped.clear()
            elif event.kind == "zero_grad" and pending and case.is_flagged(event.path, event.line):
                emptied |= {event.data["optimizer"]} - stepped
            elif event.kind == "scaler.step":
                steps, cleared = steps + 1, cleared + (event.data["optimizer"] in emptied)
                stepped.add(event.data["optimizer"])
        if cleared:
            status = "confirmed" if run is NOMINAL else "conditional"
            return Judgement(status, f"{cleared} of {steps} steps find their gradients cleared", run.name)
    return None


def closure(case: Case) -> Judgement | None:
    """What a scaler of the project's own does with a closure is its own affair."""
    if any(scaler.own_step for scaler in case.run(NOMINAL).world.scalers):
        return Judgement("inconclusive", reason="unknown wrapper: the scaler has a step of its own")
    return by_gradients(case)


def recreated(case: Case) -> Judgement | None:
    """Steps that the program takes when gradients overflow at first, against one scaler for all of it."""
    seen = case.run(HALF)
    owners: dict[int, set[int]] = {}
    for event in seen.events("scaler.step"):
        owners.setdefault(event.data["owner"], set()).update(event.data["weights"])
    shared = [a for a in owners for b in owners if a < b and owners[a] & owners[b]]
    if len(seen.world.scalers) < 2 and case.setting.driver.once and seen.world.passes < 2:
        return Judgement(
            "inconclusive", reason="loop driven elsewhere: how often the function is called is not in sight"
        )
    if len(seen.world.scalers) < 2 or not shared:
        return None
    for gain in (16.0, 4.0, 1.0):
        run = replace(HALF, gain=gain)
        seen, once = case.run(run), case.run(replace(run, name="one scaler", single=True))
        if seen.steps_taken < once.steps_taken:
            return Judgement(
                "confirmed",
                f"{seen.steps_taken} of {len(seen.ledger.steps)} steps taken with {len(seen.world.scalers)} scalers, "
                f"{once.steps_taken} with one",
                HALF.name,
            )
    return Judgement("inconclusive", reason="several scalers for the same weights, but no step was lost in this replay")


def scheduler_counts(case: Case) -> Judgement | None:
    """A scheduler must not move on where the optimizer that it was made for, or any one, was not stepped."""
    nominal = case.run(NOMINAL)
    for paced in dict.fromkeys(event.data["paced"] for event in nominal.events("scheduler")):
        before, usual, _ = _paces(nominal, paced)
        for run in CONDITIONS[:3]:
            after, taken, skipped = _paces(case.run(run), paced)
            if usual and before >= usual and skipped and after > taken:
                return Judgement("conditional", f"{after} scheduler steps for {taken} optimizer steps", run.name)
    return None


def _paces(seen: Outcome, paced: str | None) -> tuple[int, int, int]:
    """How often the schedulers of an optimizer were stepped, how often it was itself, and how often that was skipped;
    all of them together where it is not known which one a scheduler is for."""
    schedulers = [event for event in seen.events("scheduler") if event.data["paced"] == paced]
    steps = [step for step in seen.ledger.steps if paced in (None, step.optimizer)]
    taken = sum(step.gradients is not None for step in steps)
    return len(schedulers), taken, len(steps) - taken


def scale_compared(case: Case) -> Judgement | None:
    """A growing scale must not look like a skipped step, and must not change what is read."""
    growth = CONDITIONS[3]
    nominal, seen = case.run(NOMINAL), case.run(growth)
    if len(case.observed(nominal)) == len(case.observed(seen)):
        plain = case.reference(growth)
        for a, b, c in zip(case.observed(seen), case.observed(plain), case.observed(nominal), strict=False):
            if b and math.isfinite(a) and abs(c / b - 1) < 1e-3 and abs(a / b - 1) > 1e-2:
                return Judgement(
                    "conditional", f"reads {a:.4g} instead of {b:.4g} when the scale has grown", growth.name
                )
    kinds = (
        [e.kind for e in o.ledger.events if e.kind in ("scheduler", "zero_grad", "backward", "scaler.step")]
        for o in (nominal, seen)
    )
    first, second = kinds
    lines = nominal.world.executed ^ seen.world.executed
    if first != second or lines:
        where = f" (line {min(line for _, line in lines)})" if lines else ""
        return Judgement("conditional", f"takes a grown scale for a skipped step{where}", growth.name)
    # gradients that were divided by another scale than theirs
    found = by_gradients(case)
    if found is None and _reads_scaled(case, nominal):
        return Judgement("inconclusive", reason="what is read differs by the scale in every run")
    return found


def _reads_scaled(case: Case, nominal: Outcome) -> bool:
    """Whether the flagged statements read other numbers than in the run without a scale."""
    pairs = zip(case.observed(nominal), case.observed(case.reference(NOMINAL)), strict=False)
    return any(b and math.isfinite(a) and abs(a / b - 1) > 1e-2 for a, b in pairs)


def scaler_with_bf16(case: Case) -> Judgement | None:
    seen = case.run(AUTOCAST)
    regions = [e for e in seen.events("region") if e.data["enabled"]]
    enabled = any(getattr(s, "wanted", True) for s in seen.world.scalers)
    if not regions or any("bfloat16" not in e.data["dtype"] for e in regions) or not enabled:
        return None
    without = case.run(replace(AUTOCAST, name="no scaler", scaled=False))
    found = difference(without, seen, 0.0)
    if found is not None:
        return Judgement("inconclusive", reason=f"the scaler makes a difference here: {found.figure}")
    return Judgement("confirmed", f"{seen.steps_taken} steps bitwise equal without the scaler", AUTOCAST.name)


def flag_mismatch(case: Case) -> Judgement | None:
    """Some values of the flags put fp16 autocast beside an absent scaler, or use a scaler that is None."""
    turns: list[dict[str, bool]] = [{}]
    for name in _switches(case):
        turns += [{name: False}, {name: True}]
    # an argument that was taken to be there may be left out
    turns += [{name.replace(" is not None", " is None"): True} for name in _assumed(case) if " is not None" in name]
    for turn in turns:
        seen = case.aside(NOMINAL, replace(case.setting, flags={**case.setting.flags, **turn}))
        shown = ", ".join(k if " is " in k else f"{k} {'true' if v else 'false'}" for k, v in turn.items())
        shown = shown or "as written"
        error = seen.error
        if (
            error is not None
            and error.kind in ("AttributeError", "UnboundLocalError")
            and case.is_flagged(error.path, error.line)
        ):
            return Judgement("confirmed", f"raises {error.text} ({shown})", shown)
        on = any(e.data["enabled"] and "bfloat16" not in e.data["dtype"] for e in seen.events("region"))
        wanted = [e.data["wanted"] for e in seen.events("scaler")]
        if on and wanted and not any(wanted) and seen.ledger.steps:
            return Judgement("conditional", f"fp16 autocast runs while the scaler is off ({shown})", shown)
        plain = any(e.kind == "backward" and case.is_flagged(e.path, e.line) for e in seen.ledger.events)
        # a scaler that is there and false is a contradiction of the replay's
        there = {name.partition(" is not None")[0] for name in seen.world.assumed if name.endswith(" is not None")}
        plain = plain and not any(f"{name} is false" in seen.world.assumed for name in there)
        if on and plain and not seen.events("scale") and any(s.direct for s in seen.ledger.steps):
            return Judgement("conditional", f"fp16 autocast runs and nothing scales the loss ({shown})", shown)
    return by_gradients(case)


def incomplete_window(case: Case) -> Judgement | None:
    """Batches whose gradients are cleared, or left behind, before any step sees them."""
    drivers = [case.setting.driver, *(d for d in case.replay.drivers if d.once and d != case.setting.driver)]
    left = False
    for driver in drivers:
        whole = driver.once or driver.kind == "module"
        for length, run in ((5, NOMINAL), (6, NOMINAL), (7, NOMINAL), (6, replace(NOMINAL, short=True))):
            seen = case.aside(run, replace(case.setting, driver=driver, length=length), 80)
            pending = lost = total = 0
            for event in seen.ledger.events:
                if event.kind == "backward":
                    pending, total = pending + 1, total + 1
                elif event.kind == "scaler.step":
                    pending = 0
                elif event.kind == "zero_grad":
                    lost, pending = lost + pending, 0
            complete = seen.error is None and seen.broke is None and total < 80
            if complete and whole:
                lost += pending
            left = left or (complete and pending > 0)
            if lost and seen.steps_taken:
                variant = "batches in fewer parts" if run.short else f"epochs of {length}"
                return Judgement("confirmed", f"{lost} of {total} batches have no effect ({variant})", variant)
    if left:
        return Judgement("inconclusive", reason="loop driven elsewhere: what follows the last window is not in sight")
    return None


def half_model(case: Case) -> Judgement | None:
    masters = _with_masters(case)
    if masters:
        return Judgement("inconclusive", reason=f"unknown wrapper: {masters}() may keep fp32 weights of its own")
    found = by_gradients(case)
    if found is not None:
        return found
    seen = case.run(NOMINAL)
    if not seen.events("scale") and not seen.events("region"):
        return None
    wanted = torch.bfloat16 if case.replay.rule == "AMP402" else torch.float16
    if case.replay.rule == "AMP402" and not any(getattr(s, "wanted", True) for s in seen.world.scalers):
        return None
    if wanted in seen.ledger.stepped_dtypes:
        one = torch.tensor(1.0, dtype=wanted)
        step = 1e-3 if wanted == torch.bfloat16 else 1e-4
        left = float(one - torch.tensor(step, dtype=wanted))
        return Judgement(
            "confirmed", f"the weights are {str(wanted)[6:]}: 1 - {step} is {left:.6g} there", NOMINAL.name
        )
    return None


def _with_masters(case: Case) -> str:
    """A class that the program makes an object of, if it may be an optimizer that no stand-in can take the place of."""
    text = "\n".join(case.replay.files.values())
    made = [name for name in re.findall(r"\b([A-Z]\w+)\(\s*[^()]*param", text) if keeps_masters(name)]
    return made[0] if made else "the optimizer" if "_step_supports_amp_scaling" in text else ""


def half_average(case: Case) -> Judgement | None:
    run = Run("weights that move", learn=True, gain=1.0)
    seen = case.run(run)
    if not seen.world.moves:
        return Judgement("inconclusive", reason="no 16-bit average was updated in the replay")
    still = sum(1 for moved, _ in seen.world.moves if moved == 0.0)
    lost = float(torch.tensor(1.0).half() * 0.999 + torch.tensor(1.1).half() * 0.001)
    return Judgement(
        "confirmed",
        f"{len(seen.world.moves)} updates of 16-bit averages, {still} without any change; "
        f"0.999 * 1 + 0.001 * 1.1 is {lost:.6g} in fp16",
        run.name,
    )


def checkpoint(case: Case) -> Judgement | None:
    """What the saved objects hold, and what a resume from them repeats."""
    seen = case.run(OVERFLOW)
    saves = seen.events("save") or [
        e
        for e in seen.events("dict")
        if any(case.is_flagged(e.path, i) for i in range(e.data["first"], e.data["last"] + 1))
    ]
    kinds: set[str] = set().union(*(set(e.data["kinds"]) for e in saves)) if saves else set()
    if not saves:
        if seen.reached and seen.broke is None and seen.error is None:
            return Judgement("inconclusive", reason="nothing that holds a state was saved in the replay")
        return None
    if "scaler" in kinds:
        return None
    if not kinds & {"optimizer", "scheduler"}:
        return Judgement("inconclusive", reason="no state of an optimizer was saved in the replay")
    live = [pair for e in saves for pair in e.data["live"]]
    if not live:
        return Judgement("inconclusive", reason="no scaler is alive where the checkpoint is made")
    if not seen.world.scalers or all(not getattr(s, "wanted", True) for s in seen.world.scalers):
        return None
    if not seen.steps_taken:
        return Judgement(
            "conditional",
            f"a scaler is alive, and what is saved holds the state of {' and '.join(sorted(kinds))} alone",
            "a scale that has changed",
        )
    half = case.run(HALF)
    settled = half.world.scalers[0].get_scale() if half.world.scalers else 0.0
    again = case.run(replace(HALF, name="resumed with the scaler's state", scale=settled)) if settled > 1 else half
    return Judgement(
        "confirmed",
        f"no scaler state is saved: a resume starts at 65536 instead of {settled:g} and skips "
        f"{half.steps_skipped} steps again ({again.steps_skipped} with the state)",
        HALF.name,
    )


def not_restored(case: Case) -> Judgement | None:
    seen = case.run(OVERFLOW)
    loads = [e for e in seen.ledger.events if e.kind in ("load", "scaler")]
    loaded = {e.data["what"] for e in loads if e.kind == "load"}
    if not loaded & {"optimizer", "scheduler"}:
        return None
    scale = seen.world.scalers[-1].get_scale() if seen.world.scalers else 0.0
    if "scaler" not in loaded:
        return Judgement(
            "confirmed",
            f"the optimizer is loaded and the scaler is not: it starts at its initial scale (live {scale:g})",
            OVERFLOW.name,
        )
    last_load = max(i for i, e in enumerate(loads) if e.kind == "load" and e.data["what"] == "scaler")
    if any(e.kind == "scaler" for e in loads[last_load + 1 :]):
        return Judgement("confirmed", "a new scaler replaces the one that was loaded", OVERFLOW.name)
    return None


def _assumed(case: Case) -> list[str]:
    """What the search for a way has taken for granted."""
    return list(case.scout.world.assumed) if case.scout is not None else []


def _switches(case: Case) -> list[str]:
    """Names of flags that the program decides by, as far as the search for a way met them."""
    assumed = (name for name in _assumed(case) if name.endswith((" is true", " is false")))
    flags = {name.split(" is ")[0].rsplit(".", 1)[-1] for name in assumed}
    return sorted(flags | set(case.replay.guards))[:5]


def _has_none_for_scaler(content: object) -> bool:
    """Whether a checkpoint holds None where a scaler's state would stand."""
    return isinstance(content, dict) and any(
        value is None and isinstance(key, str) and SCALER_KEY.search(key) for key, value in content.items()
    )


def load_unguarded(case: Case) -> Judgement | None:
    leaves_none = False
    for name in _switches(case):
        setting = replace(case.setting, flags={**case.setting.flags, name: False})
        without = case.aside(NOMINAL, setting)
        error = without.error
        if error is not None and error.kind == "AttributeError" and case.is_flagged(error.path, error.line):
            return Judgement("conditional", f"raises {error.text}", f"{name} is false")
        leaves_none |= any(_has_none_for_scaler(content) for content, *_ in without.world.saved)
    if leaves_none:
        run = Run("a checkpoint of a run without a scaler", no_state=True)
        text = raised(case.run(REFERENCE), case.run(run))
        if text is not None:
            return Judgement("conditional", text, run.name)
    run = Run("a checkpoint of a disabled scaler", empty_state=True)
    nominal = case.run(NOMINAL)
    made = nominal.events("scaler")
    if not made or any(e.data["switchable"] for e in made):
        text = raised(case.run(REFERENCE), case.run(run))
        if text is not None:
            return Judgement("conditional", text, run.name)
    loads = [e for e in nominal.events("load") if e.data["what"] == "scaler"]
    if loads and not any(e.data["known"] for e in loads):
        return Judgement("inconclusive", reason="what is loaded is not made in the replay")
    return None


def saved_mid_step(case: Case) -> Judgement | None:
    nominal = case.run(NOMINAL)
    kept = any("scaler" in e.data["kinds"] for e in [*nominal.events("save"), *nominal.events("dict")])
    if nominal.events("scaler.read") and not kept and nominal.error is None:
        # single numbers of the state are looked at, and the state goes nowhere
        return None
    for run in (NOMINAL, *CONDITIONS[:4]):
        seen = case.run(run)
        text = raised(case.reference(run), seen)
        if text is not None:
            return Judgement("confirmed" if run is NOMINAL else "conditional", text, run.name)
        events = [e for e in seen.ledger.events if e.kind in ("scaler.step", "unscale_", "update", "scaler.state_dict")]
        for i, event in enumerate(events):
            if event.kind != "scaler.state_dict" or i == 0 or events[i - 1].kind not in ("scaler.step", "unscale_"):
                continue
            after = next((e for e in events[i + 1 :] if e.kind == "update"), None)
            if after is not None and after.data["scale"] != event.data["scale"]:
                return Judgement(
                    "conditional",
                    f"scale {event.data['scale']:g} saved, {after.data['scale']:g} real after that step",
                    run.name,
                )
    return None


def weight_cache(case: Case) -> Judgement | None:
    """Gradients with the cache of 16-bit weights against those without it."""
    release = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if release > LAST_WITH_SHARED_CACHE:
        newest = ".".join(map(str, LAST_WITH_SHARED_CACHE))
        return Judgement("inconclusive", reason=f"version: needs torch <= {newest}, this is {torch.__version__}")
    seen, fresh = case.run(AUTOCAST), case.run(replace(AUTOCAST, name="no weight cache", no_cache=True))
    found = difference(fresh, seen, 1e-3)
    if found is not None and found.bad:
        return Judgement("confirmed", f"against the same run without the weight cache: {found.figure}", AUTOCAST.name)
    text = raised(fresh, seen) or _lost_graph(fresh, seen)
    return Judgement("confirmed", text, AUTOCAST.name) if text is not None else None


def _lost_graph(fresh: Outcome, seen: Outcome) -> str | None:
    """What backward says where the cached weights have no graph behind them."""
    error = seen.error
    if error is None or fresh.error is not None or "does not require grad" not in error.text:
        return None
    return f"raises {error.text.splitlines()[0][:120]} (line {error.line})"


def custom_function(case: Case) -> Judgement | None:
    """An autograd Function of the user's: a clash of dtypes in it, or other gradients than with the decorators."""
    seen = case.run(AUTOCAST)
    error = seen.error
    if error is not None and error.from_torch and "_fwd_used_autocast" in error.text:
        return Judgement("confirmed", f"raises {error.text.splitlines()[0][:140]}", AUTOCAST.name)
    clashes = [text for path, line, text in seen.world.clashes if _in_flagged_class(case, path, line)]
    if clashes:
        return Judgement("confirmed", f"raises {clashes[0]}", AUTOCAST.name)
    if not seen.world.reversed_functions:
        return Judgement("inconclusive", reason="no backward of the Function ran in the replay")
    dressed = case.run(replace(AUTOCAST, name="with custom_fwd and custom_bwd", decorated=True))
    found = difference(dressed, seen, 1e-5)
    if found is not None and found.bad:
        return Judgement("confirmed", f"against the decorated Function: {found.figure}", AUTOCAST.name)
    for path, line, name in seen.world.replaced:
        if _in_flagged_class(case, path, line):
            return Judgement("inconclusive", reason=f"{name} of the Function does not run on stand-ins")
    return None


def _in_flagged_class(case: Case, path: str, line: int) -> bool:
    """Whether the class that begins on a line is the flagged one, or holds the flagged line."""
    for node in ast.walk(case.stage.trees[path]):
        if isinstance(node, ast.ClassDef) and node.lineno == line:
            first = min([line, *(d.lineno for d in node.decorator_list)])
            return any(p == path and first <= at <= (node.end_lineno or line) for p, at, _ in case.replay.flagged)
    return False


OWN: dict[str, Callable[[Case], Judgement | None]] = {
    "AMP101": backward_in_autocast,
    "AMP102": frozen_weights,
    "AMP103": not_entered,
    "AMP104": bad_argument,
    "AMP105": bce,
    "AMP106": island_without_cast,
    "AMP107": custom_function,
    "AMP108": weight_cache,
    "AMP109": leaked_region,
    "AMP110": no_scaler,
    "AMP111": loss_outside,
    "AMP202": gradient_read,
    "AMP211": zero_grad_before_step,
    "AMP214": closure,
    "AMP215": recreated,
    "AMP219": scheduler_counts,
    "AMP220": scale_compared,
    "AMP221": scaler_with_bf16,
    "AMP222": flag_mismatch,
    "AMP306": incomplete_window,
    "AMP401": half_model,
    "AMP402": half_model,
    "AMP403": half_values,
    "AMP404": half_values,
    "AMP405": half_average,
    "AMP406": half_values,
    "AMP501": checkpoint,
    "AMP502": not_restored,
    "AMP503": load_unguarded,
    "AMP504": saved_mid_step,
}
