"""The judge: the replay with the scaler against the same replay without it.

By the definition of the API a disabled scaler makes the fp32 program, so the optimizer must be handed the
same gradients, step by step, except for steps that the scaler skipped. Gradients are compared where the
optimizer sees them, never weights or losses: Adam hides a factor completely. Each misuse shows in some
set-ups only, so several are run; what shows in the plain ones is confirmed, what needs an overflow, a
growing scale or an fp32 layer is conditional.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from amplint.verify.guesses import INTEGER
from amplint.verify.objects import UserError
from amplint.verify.replay import Replay
from amplint.verify.stage import Outcome, Setting, Stage
from amplint.verify.standins import Run, StepRecord

REFERENCE = Run("reference", scaled=False)
PLAIN = (Run("nominal"), Run("small gradients", gain=2.0**-9))
CONDITIONS = (
    Run("overflow at micro-batch 1", overflow_at=1),
    Run("overflow at micro-batch 2", overflow_at=2),
    Run("overflow at micro-batch 4", overflow_at=4),
    Run("growing scale", growth=True),
    Run("scalers at different scales", apart=True),
    Run("a loss that is not finite", bad_loss_at=2),
    Run("NaN at micro-batch 2", overflow_at=2, nan=True),
)
HALF = Run("fp16 gradients", half_grads=True, scale=65536.0, gain=16.0)
TOLERANCE = 1e-4
#: what two orders of the same sums may make of a gradient
ROUNDING = 5e-6
#: rules of which nothing is refuted where autocast was never on
WITH_REGION = {"AMP101", "AMP102", "AMP105", "AMP106", "AMP111"}
#: what the search for a way to the flagged line may take, in processor time
SEARCH_SECONDS = 2.0
#: a run of more work is cut to so many backwards where that leads to the flagged line too
MUCH_WORK, FEWER = 3000, 8
#: how long the loops are where a run takes twice as much: there are others in it besides those of the training
SHORT_LENGTH = 3


@dataclass
class Judgement:
    """A verdict before it travels: plain data."""

    status: str
    figure: str = ""
    variant: str = ""
    reason: str | None = None
    assumptions: list[str] = field(default_factory=list)
    seconds: float = 0.0
    events: list[str] = field(default_factory=list)
    way: str = ""
    fix_verified: bool | None = None
    #: whether the verdict rests on a comparison of gradients, which any fault of the program may spoil
    general: bool = False

    def to_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)


@dataclass
class Difference:
    """How the gradients of one run differ from the reference."""

    figure: str
    bad: int
    total: int


@dataclass
class _Attempt:
    """One way to drive a replay, and how far it led."""

    score: tuple[int, ...]
    setting: Setting
    changes: dict[str, Any]
    outcome: Outcome
    limit: int

    @property
    def work(self) -> int:
        """What the run costs, in statements; every backward costs some for each two weights."""
        world = self.outcome.world
        return world.statements + self.outcome.ledger.backwards * world.weights // 2


def _score(outcome: Outcome) -> tuple[int, ...]:
    """How useful a run is: 2 in the first place for one that can be judged. Longer runs are no better."""
    raised = outcome.error is not None and outcome.error.from_torch
    complete = outcome.reached and (outcome.steps_taken >= 2 or raised) and outcome.ledger.events != []
    scaled = any(e.kind == "scale" for e in outcome.ledger.events)
    level = 2 if complete and (outcome.broke is None) else 1 if outcome.reached else 0
    steps, backwards = min(outcome.steps_taken, 8), min(outcome.ledger.backwards, 8)
    return (level, int(outcome.broke is None), int(scaled), steps, backwards)


@dataclass(frozen=True)
class Complete:
    """What runs must have done before their silence counts: so many optimizer steps, and the flagged line."""

    steps: int = 2
    reached: bool = True


class Case:
    """One replay with the way that leads to its flagged line; runs are made on demand and kept."""

    def __init__(self, replay: Replay) -> None:
        self.replay = replay
        self.stage = Stage(replay)
        self.setting = Setting(replay.drivers[0])
        self.assignment: Any = None
        self.limit = 24
        self.changes: dict[str, Any] = {}
        self.runs: dict[Run, Outcome] = {}
        self.extra: list[Outcome] = []
        self.scout: Outcome | None = None
        #: nothing leads to the flagged line, nothing was raised on the way, and every other run would be slow
        self.hopeless = False

    def find_way(self) -> Outcome | None:
        """Look for drivers, flags, numbers and loop lengths with which the flagged line runs and two steps are made.

        First every driver as it is. Where that reaches the line and makes no steps: longer loops, gradients and
        limits that a condition on a norm lets through. Then decisions that were taken before they led past the
        line, and intervals that no loop here is long enough for; with the two outermost drivers, the flags around
        the line the other way, and the faults that lead to it (a bad loss, an exception).
        """
        deadline = time.process_time() + SEARCH_SECONDS
        tried: list[_Attempt] = []

        def attempt(setting: Setting, changes: dict[str, Any] | None = None, limit: int = 24) -> bool:
            if tried and time.process_time() > deadline:
                return True
            outcome = self.stage.execute(replace(PLAIN[0], **(changes or {})), setting, None, limit)
            tried.append(_Attempt(_score(outcome), setting, changes or {}, outcome, limit))
            return tried[-1].score[0] == 2

        def search() -> bool:
            drivers = self.replay.drivers
            if any(attempt(Setting(driver)) for driver in drivers):
                return True
            for first in list(tried):
                seen, driver = first.outcome, first.setting.driver
                if not (seen.reached and seen.broke is None and seen.error is None and seen.ledger.backwards):
                    continue
                limits = {name: 1e4 for name in seen.world.guessed if not INTEGER.search(name)}
                if (
                    attempt(Setting(driver, {}, 16), None, 48)
                    or attempt(Setting(driver, numbers=limits), {"gain": PLAIN[1].gain})
                    or attempt(Setting(driver, {}, 64), None, 160)
                ):
                    return True
            flags: list[dict[str, bool]] = []
            for name in self.replay.guards:
                flags += [{name: True}, {name: False}, {f"{name} is None": False}, {f"{name} is None": True}]
            for first in list(tried):
                world = first.outcome.world
                turned = {**first.setting.flags, **world.unfortunate}
                numbers = {**first.setting.numbers, **world.numbers_wanted}
                if first.outcome.reached or not (world.unfortunate or world.numbers_wanted):
                    continue
                if attempt(replace(first.setting, flags=turned, numbers=numbers)):
                    return True
            if any(not first.outcome.reached and attempt(replace(first.setting, short=True)) for first in list(tried)):
                return True
            for driver in drivers[:2]:
                if any(attempt(Setting(driver), change) for change in ({"bad_loss_at": 2}, {"fail": True})):
                    return True
                if any(attempt(Setting(driver, turned)) for turned in flags):
                    return True
            return False

        search()
        if not tried:
            return None
        best = max(tried, key=lambda a: a.score)
        self.setting, self.changes, self.limit = best.setting, best.changes, best.limit
        self.scout = self._shortened(best)
        self.hopeless = not best.outcome.reached and best.outcome.error is None and best.work > MUCH_WORK
        reference = self.stage.execute(replace(REFERENCE, **self.changes), self.setting, None, self.limit)
        self.assignment = reference.world.plan.assign(reference.world)
        if not self.assignment:
            # whose the weights are was clear from the start: these runs need not be repeated
            self.runs.update({outcome.run: outcome for outcome in (self.scout, reference)})
        return self.scout

    def _shortened(self, best: _Attempt) -> Outcome:
        """The run that was found, or a shorter one in its place where it is slow and has more steps than needed."""
        if best.work < MUCH_WORK or best.limit <= FEWER or best.outcome.steps_taken < FEWER:
            return best.outcome
        lengths = [best.setting.length] if best.work < 2 * MUCH_WORK else [SHORT_LENGTH, best.setting.length]
        for length in lengths:
            setting = replace(best.setting, length=length)
            shorter = self.stage.execute(best.outcome.run, setting, None, FEWER)
            if _score(shorter)[:3] == best.score[:3] and shorter.steps_taken > FEWER // 2:
                self.setting, self.limit = setting, FEWER
                return shorter
        return best.outcome

    def adopt(self, replay: Replay) -> bool:
        """Take another finding of the same program, if the way found already leads to its line."""
        mine = self.replay
        if (replay.files, replay.drivers, replay.flags) != (mine.files, mine.drivers, mine.flags) or self.scout is None:
            return False
        if not all(f in mine.watched for f in replay.flagged) or self.changes:
            return False
        if not any(_reaches(o, replay.flagged) for o in [self.scout]) or self.scout.steps_taken < 2:
            return False
        self.replay = replay
        return True

    def is_flagged(self, path: str, line: int) -> bool:
        return any(path == p and first <= line <= last for p, first, last in self.replay.flagged)

    def reached(self, outcome: Outcome) -> bool:
        return _reaches(outcome, self.replay.flagged)

    def reached_all(self, outcome: Outcome) -> bool:
        """Whether the flagged line was reached, and what does the harm in a helper that it calls."""
        return all(_reaches(outcome, [place]) for place in self.replay.flagged)

    def observed(self, outcome: Outcome) -> list[float]:
        """The numbers that the flagged lines produced."""
        return [value for path, line, value in outcome.world.observed if self.is_flagged(path, line)]

    def halves(self, outcome: Outcome) -> list[tuple[str, int, bool, bool]]:
        """Operations of the flagged lines that 16-bit tensors reached."""
        return [h for h in outcome.world.halves if self.is_flagged(h[0], h[1])]

    def aside(self, run: Run, setting: Setting, limit: int = 24) -> Outcome:
        """An execution in a setting of its own, kept for what lines it reached."""
        self.extra.append(self.stage.execute(run, setting, self.assignment, limit))
        return self.extra[-1]

    def run(self, run: Run) -> Outcome:
        run = replace(run, **self.changes)
        if run not in self.runs:
            self.runs[run] = self.stage.execute(run, self.setting, self.assignment, self.limit)
        return self.runs[run]

    def reference(self, run: Run) -> Outcome:
        return self.run(
            replace(
                run,
                name="reference",
                scaled=False,
                overflow_at=0,
                nan=False,
                growth=False,
                apart=False,
                half_grads=False,
                autocast=False,
                dtype=None,
                scale=1024.0,
                backward_outside=False,
                single=False,
                empty_state=False,
                no_state=False,
            )
        )

    def way(self) -> str:
        driver = self.setting.driver
        called = f"{driver.name}()" if driver.kind == "function" else driver.name or "the module body"
        return f"driven from {called}, loops of {self.setting.length}"

    def assumptions(self) -> list[str]:
        out: dict[str, None] = {}
        for name, value in self.setting.flags.items():
            out.setdefault(f"{name} is {'true' if value else 'false'}")
        if "gain" in self.changes:
            out.setdefault("gradients are small")
        if self.changes.get("fail"):
            out.setdefault("something in the try block raises")
        if self.changes.get("bad_loss_at"):
            out.setdefault("the loss of one micro-batch is not finite")
        for outcome in self.runs.values():
            if outcome.run.scaled:
                out.update(outcome.world.assumed)
                break
        return list(out)[:12]


def _reaches(outcome: Outcome, flagged: list[tuple[str, int, int]]) -> bool:
    executed = outcome.world.executed
    return any((path, line) in executed for path, first, last in flagged for line in range(first, last + 1))


# ---------------------------------------------------------------- comparisons


def difference(reference: Outcome, seen: Outcome, tolerance: float = TOLERANCE) -> Difference | None:
    """What is wrong with the gradients of `seen`, or None if they are those of the reference."""
    wanted = {s.key: s for s in reference.ledger.steps if s.gradients is not None}
    skipped = {s.backwards for s in seen.ledger.steps if s.gradients is None}
    bad: list[tuple[StepRecord, str]] = []
    total = 0
    parted = False
    for record in seen.ledger.steps:
        if record.gradients is None:
            continue
        total += 1
        expected = wanted.get(record.key)
        if seen.ledger.injected and expected is not None and expected.turns != record.turns:
            # the program itself took another way on an overflow: from here on the runs see other batches
            parted = True
            total -= 1
            break
        if expected is None:
            bad.append((record, "a step that the run without AMP does not make"))
            continue
        if seen.ledger.injected and record.backwards in skipped and not bool(record.gradients.any()):
            # one clip over several optimizers: an overflow in one of them leaves the others a step of 0
            continue
        text = _compare(expected.gradients, record.gradients, tolerance)
        if text is not None:
            bad.append((record, text))
    if bad:
        record, text = bad[0]
        return Difference(f"{text}, in {len(bad)} of {total} steps", len(bad), total)
    lost = None if parted else _lost(reference, seen)
    return Difference(lost, 1, max(total, 1)) if lost else None


def _nearly(reference: Outcome, seen: Outcome) -> float | None:
    """By how much of their norm the gradients of two runs differ, where that is more than rounding and less than what
    counts: a term with a tiny weight may have lost its scale."""
    wanted = {s.key: s.gradients for s in reference.ledger.steps if s.gradients is not None}
    pairs = [(wanted[s.key], s.gradients) for s in seen.ledger.steps if s.gradients is not None and s.key in wanted]
    differences = [
        float((a - b).norm()) / max(float(a.norm()), 1e-12) for a, b in pairs if a is not None and a.shape == b.shape
    ]
    worst = max(differences, default=0.0)
    return worst if ROUNDING < worst < TOLERANCE else None


def _compare(expected: Any, got: Any, tolerance: float) -> str | None:
    if expected.shape != got.shape:
        return None
    if not bool(torch.isfinite(expected).all()):
        return None
    if not bool(torch.isfinite(got).all()):
        return "the optimizer is handed inf or NaN where the run without AMP is finite"
    norm, seen = float(expected.norm()), float(got.norm())
    error = float((expected - got).norm())
    if error <= tolerance * max(norm, 1e-12) or (norm == 0 and seen == 0):
        return None
    if norm == 0:
        return f"gradient norm {seen:.3g} instead of 0"
    cosine = float((expected @ got) / max(norm * seen, 1e-300))
    if abs(seen / norm - 1) > 1e-3:
        digits = next((d for d in range(3, 8) if f"{seen:.{d}g}" != f"{norm:.{d}g}"), 8)
        return f"gradient norm {seen:.{digits}g} instead of {norm:.{digits}g}"
    return f"gradient off by {error / norm:.2g} of its norm (cosine {cosine:.3f})"


def _lost(reference: Outcome, seen: Outcome) -> str | None:
    """Steps that only the reference makes, outside of the windows with an injected overflow."""
    if seen.error is not None or seen.broke or reference.error is not None or reference.broke:
        return None
    made = {s.key for s in seen.ledger.steps}
    missing = [s for s in reference.ledger.steps if s.key not in made]
    allowed = len(seen.ledger.injected)
    owners = {s.optimizer for s in missing}
    if len(missing) > allowed * max(len(owners), 1):
        return f"{len(missing)} of {len(reference.ledger.steps)} optimizer steps are never made"
    return None


def raised(reference: Outcome, seen: Outcome) -> str | None:
    """The exception of torch's AMP code in `seen` that the reference does not have."""
    error = seen.error
    if error is None or not error.from_torch:
        return None
    other = reference.error
    alike = other is not None and other.from_torch and other.text == error.text and other.line == error.line
    # a disabled scaler asks for its arguments as well
    if alike and "required positional argument" not in error.text:
        return None
    text = error.text.split("\n")[0]
    if len(text) > 120:
        text = text[:117] + "..."
    return f"raises {text} (line {error.line}, after {seen.steps_taken} optimizer steps)"


def compare_with_reference(case: Case, run: Run) -> str | None:
    """The figure of one variant, or None where the run equals the reference."""
    reference, seen = case.reference(run), case.run(run)
    text = raised(reference, seen)
    if text is not None:
        # without any backward in sight, a state that the callers have to bring about is missing
        driver = case.setting.driver
        partial = not driver.once and driver.kind != "module"
        missing = partial and not seen.ledger.backwards and re.search(r"Attempted|No inf checks", text)
        return None if missing else text
    if not seen.ledger.backwards:
        return None
    found = difference(reference, seen)
    return found.figure if found is not None else None


def by_gradients(
    case: Case, runs: tuple[Run, ...] = PLAIN, conditions: tuple[Run, ...] = CONDITIONS
) -> Judgement | None:
    """The general comparison: confirmed by a plain run, conditional by a run with a condition."""
    for run in runs:
        figure = compare_with_reference(case, run)
        if figure is not None:
            return Judgement("confirmed", figure, run.name, general=True)
    for run in conditions:
        if run.bad_loss_at and not case.run(PLAIN[0]).world.tests_losses:
            continue
        if run.apart and len(case.run(PLAIN[0]).world.scalers) < 2:
            continue
        if run.nan and not case.stage.asks_for_nan:
            continue
        figure = compare_with_reference(case, run)
        if figure is not None:
            return Judgement("conditional", figure, run.name, general=True)
    return None


# -------------------------------------------------------------------- verdict


def judge(
    replay: Replay, known: list[Case] | None = None, settled: Callable[[Judgement], None] | None = None
) -> Judgement:
    """Execute a replay in all the set-ups its rule asks for, and say what was seen.

    `known` holds the cases of findings judged before; one that leads to this line as well serves again. Where
    the program has other faults, a wrong gradient counts as far as it is still wrong without them. Where the
    finding has a repair, the repaired program must not show the fault any more; `settled` is told the verdict
    before that is tried.
    """
    begin = time.perf_counter()
    case = _case(replay, known)
    result = _judged(case)
    found = result.status in ("confirmed", "conditional")
    several = found and result.general and bool(replay.others)
    if several:
        case, result = _credited(case, result)
    elif result.status == "inconclusive" and replay.alone is not None:
        case, result = _undisturbed(case, result)
    if result.status == "confirmed" and case.changes.get("bad_loss_at"):
        # the line is reached with such a loss alone
        result.status, result.variant = "conditional", "a loss that is not finite"
    result.assumptions = [*result.assumptions, *case.assumptions()][:12]
    result.events = trail(case)
    result.way = case.way()
    result.seconds = round(time.perf_counter() - begin, 4)
    if settled is not None:
        settled(result)
    if case.replay.fixed is not None and result.status in ("confirmed", "conditional"):
        result.fix_verified = repaired(case, case.replay.fixed)
        if several and case.replay is replay and not result.fix_verified:
            # what is left after the repair may be the other faults' doing
            result.fix_verified = None
    result.seconds = round(time.perf_counter() - begin, 4)
    return result


def _case(replay: Replay, known: list[Case] | None = None) -> Case:
    case = next((c for c in known or [] if c.adopt(replay)), None)
    if case is None:
        case = Case(replay)
        case.find_way()
        if known is not None:
            known.append(case)
    return case


def _credited(case: Case, result: Judgement) -> tuple[Case, Judgement]:
    """What is left of a verdict on gradients when the other faults of the program are taken away.

    Where nothing can be said of that program (it does not train any more), the verdict stays, and says so.
    """
    others = " and ".join(case.replay.others)
    if case.replay.alone is not None:
        apart = _case(case.replay.alone)
        single = _judged(apart)
        broken = single.figure.startswith("raises") and not result.figure.startswith("raises")
        if single.status in ("confirmed", "conditional") and not broken:
            return apart, replace(single, assumptions=[f"without {others}"])
        if single.status == "refuted" and not _needed(case):
            return case, Judgement("inconclusive", reason=f"no difference is left without {others}")
    return case, replace(result, assumptions=[f"{others} may have a part in it"])


def _needed(case: Case) -> bool:
    """Whether the other faults do no harm without this one: it has a part in the difference then."""
    spared = case.replay.spared
    return spared is not None and _judged(_case(spared), Complete(reached=False)).status == "refuted"


def _undisturbed(case: Case, result: Judgement) -> tuple[Case, Judgement]:
    """The verdict in a program without the other faults, which may have ended this one before its time."""
    assert case.replay.alone is not None
    apart = _case(case.replay.alone)
    single = _judged(apart)
    if single.status == "inconclusive":
        return case, result
    return apart, replace(single, assumptions=[f"without {' and '.join(case.replay.others)}"])


def _judged(case: Case, asked: Complete | None = None) -> Judgement:
    from amplint.verify.comparisons import OWN, needs

    if case.scout is None:
        return Judgement("inconclusive", reason="nothing could be driven")
    foreign = case.stage.foreign_scaler
    if foreign is not None and case.replay.rule.startswith(("AMP2", "AMP3", "AMP5")):
        return Judgement("inconclusive", reason=f"unknown wrapper: the scaler is a {foreign}")
    if not case.scout.reached and case.hopeless:
        return Judgement(
            "inconclusive", reason=f"line not reached: {case.scout.broke or 'nothing in the file leads to it'}"
        )
    own: Callable[[Case], Judgement | None] | None = OWN.get(case.replay.rule)
    try:
        result = own(case) if own is not None else by_gradients(case)
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError, AttributeError) as error:
        return Judgement("inconclusive", reason=f"the comparison broke: {type(error).__name__}: {error}"[:200])
    if result is None:
        return refutation(case, asked or Complete(needs(case.replay.rule)))
    if result.status in ("confirmed", "conditional") and not any(
        case.reached(o) for o in [*case.runs.values(), *case.extra]
    ):
        raised_early = "raises" in result.figure
        if not (raised_early and _raised_nearby(case)):
            return Judgement("inconclusive", reason="line not reached, although the program around it is wrong")
    return result


def _raised_nearby(case: Case) -> bool:
    """Whether an exception that kept the flagged line from running rose in a function that the finding is about."""
    errors = [o.error for o in [*case.runs.values(), *case.extra] if o.error is not None and o.error.from_torch]
    places = {(path, case.stage.unit_at(path, line)) for path, line in case.replay.wanted}
    return any((error.path, case.stage.unit_at(error.path, error.line)) in places for error in errors)


def repaired(case: Case, fixed: Replay) -> bool | None:
    """Whether the repaired program shows the fault no more; None where its replay says nothing."""
    other = Case(fixed)
    driver = next(
        (d for d in fixed.drivers if (d.kind, d.name) == (case.setting.driver.kind, case.setting.driver.name)), None
    )
    if driver is None:
        return None
    faulty = case.run(PLAIN[0])
    steps = faulty.steps_taken if faulty.error is None and faulty.broke is None else 2
    other.changes = case.changes
    for length, limit in ((case.setting.length, case.limit), (16, 48), (64, 160)):
        # the fault may have ended its program before a long window did
        other.setting, other.limit = replace(case.setting, driver=driver, length=length), limit
        other.runs.clear()
        reference = other.run(REFERENCE)
        other.assignment = reference.world.plan.assign(reference.world)
        other.runs.clear()
        other.scout = other.run(PLAIN[0])
        if other.scout.steps_taken >= min(steps, 2) or other.scout.error is not None or other.scout.broke:
            break
    verdict = _judged(other, Complete(min(steps, 2), reached=False)).status
    return {"refuted": True, "confirmed": False, "conditional": False}.get(verdict)


def refutation(case: Case, asked: Complete) -> Judgement:
    """`refuted`, unless something kept the runs from being complete."""
    nominal = case.run(PLAIN[0])
    if asked.reached and not any(case.reached_all(seen) for seen in case.runs.values() if seen.run.scaled):
        if nominal.broke:
            return Judgement("inconclusive", reason=f"line not reached: {nominal.broke}")
        if nominal.error is not None:
            return Judgement(
                "inconclusive",
                reason=f"line not reached: the replay raised {nominal.error.text[:100]} {_where(case, nominal.error)}",
            )
        return Judgement("inconclusive", reason="line not reached: nothing in the file leads to it")
    for seen in case.runs.values():
        if seen.broke:
            return Judgement("inconclusive", reason=f"the replay ended early: {seen.broke}")
        if seen.error is not None and seen.run.scaled:
            return Judgement(
                "inconclusive",
                reason=f"the replay ended early: {seen.error.text[:100]} {_where(case, seen.error)}",
            )
    if nominal.steps_taken < asked.steps:
        return Judgement("inconclusive", reason=f"only {nominal.steps_taken} optimizer steps were made")
    near = _nearly(case.reference(PLAIN[0]), nominal)
    if near is not None:
        return Judgement("inconclusive", reason=f"the gradients differ by {near:.2g} of their norm, too little to tell")
    handed = [step.gradients for step in nominal.ledger.steps if step.gradients is not None]
    if handed and not any(bool(gradients.any()) for gradients in handed):
        return Judgement("inconclusive", reason="every gradient that the optimizer was handed is zero")
    if nominal.world.outside:
        return Judgement(
            "inconclusive",
            reason=f"unknown wrapper: {nominal.world.outside[0]}() was given the scaler or the optimizer",
        )
    if not any(e.kind == "scale" for e in nominal.ledger.events) and case.replay.rule[:4] in ("AMP2", "AMP3"):
        return Judgement("inconclusive", reason="no loss was scaled on the way to the flagged line")
    if case.replay.rule in WITH_REGION and not any(e.data["enabled"] for e in nominal.events("region")):
        return Judgement("inconclusive", reason="no autocast region was entered on the way to the flagged line")
    count = sum(1 for r in case.runs.values() if r.run.scaled)
    return Judgement("refuted", f"{nominal.steps_taken} steps equal to the run without AMP in {count} set-ups", "all")


def _where(case: Case, error: UserError) -> str:
    elsewhere = f" of {error.path}" if error.path != case.replay.flagged[0][0] else ""
    return f"in line {error.line}{elsewhere}"


def trail(case: Case) -> list[str]:
    """The first events of the nominal run, a line each."""
    seen = case.runs.get(PLAIN[0])
    if seen is None:
        return []
    out = []
    for event in seen.ledger.events[:40]:
        numbers = " ".join(f"{k}={_short(v)}" for k, v in event.data.items() if isinstance(v, int | float | str | bool))
        out.append(f"{event.line} {event.kind} {numbers}".strip())
    return out


def _short(value: object) -> str:
    if isinstance(value, float) and not isinstance(value, bool):
        return f"{value:.4g}" if math.isfinite(value) else str(value)
    return str(value)
