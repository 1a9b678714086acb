"""What was wrong in what happened, and which findings are right answers to it.

A fault is what torch raises, gradients that reach an optimizer and are not those of the reference, a step for which
nothing was left, a backward under autocast, a forward with stale weights. The statements that may be held
responsible are those which, by the gradients measured before and after them, brought the gradients out of order
since the last moment at which everything was in order. That is a reading of numbers: nothing here is shared with
the analysis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import product

from .stage import Happening, Log, Runaway, Stage, Variant, Vector
from .tree import Program

#: a code and a line that it may stand on
Answer = tuple[str, int]
#: reference runs by the branches that they take, the number of batches and their size
References = dict[tuple[tuple[tuple[int, bool], ...], int, bool], Log]

NONE, MIXED, LOST = 0.0, math.nan, math.inf
TOLERANCE = 1e-3

NOMINAL = Variant("nominal")
GROWTH = Variant("growth", growth=True)
SURPRISES = tuple(Variant(f"surprise@{number}", surprise=number) for number in (1, 3))
SHORTER = Variant("shorter", batches=-1)
SHORTER_SURPRISES = tuple(Variant(f"shorter, surprise@{n}", surprise=n, batches=-1) for n in (1, 2, 3))
MOVING = Variant("moving", moving=True)
SMALL = Variant("small gradients, growth", growth=True, small=True)


@dataclass(frozen=True)
class Observed:
    """A fault that was seen: `kind` in words, where it showed, and the findings that answer to it."""

    kind: str
    lines: tuple[int, ...]
    answers: frozenset[Answer]
    circumstances: str = field(compare=False)


@dataclass
class Truth:
    """All that was seen of a program.

    roots      the first fault of each run, and the states that are wrong by themselves
    possible   every finding that some run justifies
    further    runs that have not been made yet, and go on after torch has raised
    invalid    why the program says nothing: it fails for reasons that are no matter of AMP
    """

    roots: list[Observed] = field(default_factory=list)
    possible: set[Answer] = field(default_factory=set)
    further: list[Callable[[], None]] = field(default_factory=list)
    invalid: str = ""
    runs: int = 0

    def go_on(self) -> None:
        """Make the runs that show what else is wrong, behind the first fault of each."""
        for run in self.further:
            run()
        self.further.clear()


def truth_of(program: Program) -> Truth:
    """Execute a program for every value of its flags and in every variant that can make a difference."""
    truth = Truth()
    try:
        stage = Stage(program)
    except SyntaxError as error:
        truth.invalid = f"SyntaxError: {error.msg}"
        return truth
    for values in product((True, False), repeat=len(program.flags)):
        flags = dict(zip(program.flags, values, strict=True))
        if not _explore(stage, flags, truth):
            return truth
    truth.roots = list(dict.fromkeys(truth.roots))
    return truth


def _explore(stage: Stage, flags: dict[str, bool], truth: Truth) -> bool:
    """All variants for one value of the flags; False if the program is of no use."""
    references: References = {}
    waiting = [NOMINAL]
    while waiting:
        variant = waiting.pop(0)
        log = stage.run(flags, variant, tolerant=variant.moving)
        truth.runs += 1
        if log.error:
            truth.invalid = log.error
            return False
        circumstances = ", ".join([variant.name, *(f"{name}={value}" for name, value in flags.items())])
        if variant.moving:
            _add(truth, list(_stale(log, circumstances)))
            continue
        if variant is NOMINAL:
            fuller = stage.run(flags, variant, tolerant=True) if log.raised else log
            waiting = list(_variants(stage, fuller))
        reference = _reference(stage, flags, variant, log, references, truth)
        if reference.error:
            truth.invalid = reference.error
            return False
        reading = Reading(log, reference, circumstances)
        seen = [*_states(log, circumstances)]
        wrong = next(reading.faults(), None)
        _add(truth, seen if wrong is None else [*seen, wrong])
        for clip in reading.clips():
            truth.possible |= clip.answers
        if log.raised or wrong is not None:
            truth.further.append(partial(_go_on, stage, flags, variant, circumstances, truth, references))
    return True


def _go_on(
    stage: Stage,
    flags: dict[str, bool],
    variant: Variant,
    circumstances: str,
    truth: Truth,
    references: References,
) -> None:
    """Run on behind what torch raises, and add what that justifies."""
    log = stage.run(flags, variant, tolerant=True)
    truth.runs += 1
    if log.error:
        return
    reading = Reading(log, _reference(stage, flags, variant, log, references, truth), circumstances)
    for fault in (*reading.faults(), *reading.clips()):
        truth.possible |= fault.answers


def _reference(
    stage: Stage, flags: dict[str, bool], variant: Variant, log: Log, references: References, truth: Truth
) -> Log:
    """The run with disabled scalers that takes the same branches on the same data."""
    key = (tuple(log.decisions), variant.batches, variant.small)
    if key not in references:
        references[key] = stage.run(flags, variant, reference=log.decisions)
        truth.runs += 1
    return references[key]


def _variants(stage: Stage, log: Log) -> Iterator[Variant]:
    """The variants in which something else can happen than in the nominal run."""
    source = stage.program.source
    flushes = "len(loader)" in source or " != 0:" in source
    if any(h.enabled for h in log.happened):
        # behind a clip a wrong scale shows on small gradients alone
        yield SMALL if any(h.kind == "clip" for h in log.happened) else GROWTH
        count = max(len(h.before) for h in log.happened)
        for index in range(count):
            yield from (overflow(number, index) for number in _telling(log, index, stage.program.window))
        if flushes:
            last = stage.program.batches - 1
            yield from (Variant(f"shorter, overflow@{last}/{i}", (last, i), batches=-1) for i in range(count))
    if flushes:
        yield SHORTER
    if log.measured:
        yield from SURPRISES
        if flushes:
            yield from SHORTER_SURPRISES
    if any(h.kind in ("step", "opt_step") and h.autocast for h in log.happened):
        yield MOVING


def _telling(log: Log, optimizer: int, window: int) -> list[int]:
    """The numbers of the backwards of an optimizer whose overflow can show something: one that begins a window, one
    that ends it, and the last of all if the optimizer does not have its step in every window."""
    backwards = sum(h.kind == "backward" and _reached(h, optimizer) for h in log.happened)
    steps = sum(h.kind in ("step", "opt_step") and h.optimizer == optimizer for h in log.happened)
    numbers = {1, window or 1}
    if steps != backwards // (window or 1):
        numbers.add(backwards)
    return sorted(numbers)


def _reached(backward: Happening, optimizer: int) -> bool:
    after = backward.after
    return after is not None and optimizer < len(after) and after[optimizer] != backward.before[optimizer]


def _add(truth: Truth, faults: list[Observed]) -> None:
    truth.roots.extend(faults)
    for fault in faults:
        truth.possible |= fault.answers


def _states(log: Log, circumstances: str) -> Iterator[Observed]:
    """Backwards under autocast."""
    for h in log.happened:
        if h.kind == "backward" and h.autocast:
            yield Observed("backward under autocast", h.lines, _answers(("AMP101",), h.lines), circumstances)


def overflow(number: int, index: int) -> Variant:
    """An overflow of one optimizer."""
    return Variant(f"overflow@{number}/{index}", overflow=(number, index))


def _stale(log: Log, circumstances: str) -> Iterator[Observed]:
    """Forwards that used an old copy of a weight; the region around may be held responsible, or the step in it."""
    for number, h in enumerate(log.happened):
        if h.kind == "stale":
            steps = [e.lines for e in log.happened[:number] if e.kind in ("step", "opt_step") and e.autocast]
            lines = (*h.regions, *(line for lines in steps for line in lines))
            yield Observed("stale weights", h.lines, _answers(("AMP102",), lines), circumstances)
            return


def _answers(codes: tuple[str, ...], lines: tuple[int, ...]) -> frozenset[Answer]:
    return frozenset(product(codes, lines))


class Reading:
    """A run beside its reference: the multiple of the true gradients that every optimizer holds at every moment."""

    def __init__(self, log: Log, reference: Log, circumstances: str) -> None:
        self.circumstances = circumstances
        self.happened = log.happened
        self.reference = reference.happened
        self.count = min(len(self.happened), len(self.reference))

    # --- numbers ---------------------------------------------------------------------------------

    def held(self, at: int, optimizer: int) -> float:
        """The multiple of the true gradients before an operation."""
        mine, true = self.happened[at].before, self.reference[at].before
        if optimizer >= len(mine) or optimizer >= len(true):
            return NONE
        return multiple(mine[optimizer], true[optimizer])

    def added(self, at: int, optimizer: int) -> float:
        """The multiple of the true gradients that a backward has added."""
        mine, true = self.happened[at], self.reference[at]
        if mine.after is None or true.after is None or optimizer >= len(mine.before):
            return NONE
        return multiple(
            _difference(mine.after[optimizer], mine.before[optimizer]),
            _difference(true.after[optimizer], true.before[optimizer]),
        )

    def stage(self, at: int, scaler: int, optimizer: int) -> str:
        """What a scaler has last done with an optimizer before an operation."""
        for h in reversed(self.happened[:at]):
            if h.scaler == scaler and "already" not in h.failed and "after step" not in h.failed:
                if h.kind == "update":
                    return "ready"
                if h.kind in ("unscale_", "step") and h.optimizer == optimizer:
                    return "unscaled" if h.kind == "unscale_" else "stepped"
        return "ready"

    def clips(self) -> Iterator[Observed]:
        """Clips of scaled gradients that a scaler takes afterwards, whatever else becomes of them."""
        for at in range(self.count):
            h = self.happened[at]
            for o in h.covers if h.kind == "clip" else ():
                if self._scaled(at, o) and self._taken(at, o):
                    yield self._fault("clip of scaled gradients", at, set(_answers(("AMP201", "AMP202"), h.lines)))

    def _taken(self, at: int, optimizer: int) -> bool:
        for h in self.happened[at:]:
            if h.kind in ("unscale_", "step") and h.optimizer == optimizer:
                return True
            if h.kind == "zero_grad" and h.optimizer in (optimizer, None):
                return False
        return False

    # --- faults ----------------------------------------------------------------------------------

    def faults(self) -> Iterator[Observed]:
        """What went wrong, in order."""
        for at in range(self.count):
            h = self.happened[at]
            if h.kind != self.reference[at].kind:
                raise Runaway(f"the reference took another path: {h} {self.reference[at]}")
            if h.failed:
                yield self._fault(f"{h.kind}: {h.failed.partition('.')[0]}", at, self._refused(at))
            elif h.handed is not None and h.optimizer is not None:
                got = multiple(h.handed, self.reference[at].handed)
                if got == NONE and h.enabled:
                    if self._cleared(at, h.optimizer):
                        yield self._fault("a step for which nothing is left", at, self._suspects(at, h.optimizer))
                elif (got not in (NONE, LOST) and not _same(got, 1)) or not all(map(math.isfinite, h.handed)):
                    answers = self._suspects(at, h.optimizer)
                    if h.kind == "opt_step":
                        answers |= _answers(("AMP204",), h.lines)
                    else:
                        answers |= self._foreign(at, h.optimizer)
                    yield self._fault(f"{h.kind} on wrong gradients", at, answers)

    def _fault(self, kind: str, at: int, answers: set[Answer]) -> Observed:
        return Observed(kind, self.happened[at].lines, frozenset(answers), self.circumstances)

    def _refused(self, at: int) -> set[Answer]:
        """The answers to what torch has raised."""
        h = self.happened[at]
        optimizers = range(len(h.before)) if h.optimizer is None else [h.optimizer]
        answers = {answer for optimizer in optimizers for answer in self._suspects(at, optimizer)}
        if h.kind == "unscale_" and "_scale is None" not in h.failed:
            answers |= _answers(("AMP207", "AMP302"), h.lines)
            for e in self.happened[:at]:
                if e.kind == "unscale_" and e.optimizer == h.optimizer and "already" in h.failed:
                    answers |= _answers(("AMP209",), e.lines)
        if h.kind == "update":
            answers |= _answers(("AMP206", "AMP208", "AMP301", "AMP304"), h.lines)
            others = {e.scaler for e in self.happened[:at] if e.scaler is not None} - {h.scaler}
            if any(self.stage(at, other, o) != "ready" for other in others for o in optimizers):
                answers |= _answers(("AMP216",), h.lines)
        if h.kind == "step" and "already" in h.failed:
            answers |= _answers(("AMP205",), h.lines)
        if h.optimizer is not None:
            answers |= self._foreign(at, h.optimizer)
        return answers

    def _foreign(self, at: int, optimizer: int) -> set[Answer]:
        """An operation of a scaler on gradients that another has scaled."""
        h = self.happened[at]
        last: int | None = None
        others: set[int | None] = set()
        for i in range(self._start(at, optimizer), at):
            if self.happened[i].kind == "scale":
                last = self.happened[i].scaler
            elif self.added(i, optimizer) != NONE:
                others.add(last)
        return set(_answers(("AMP216",), h.lines)) if others - {h.scaler, None} else set()

    def _start(self, at: int, optimizer: int) -> int:
        """The last moment before an operation at which an optimizer had no gradients and no scaler a claim on it.

        Gradients that were cleared before the operation could use them belong to its past.
        """
        scalers = {h.scaler for h in self.happened if h.scaler is not None}
        end = at
        if self.held(at, optimizer) == NONE:
            end = next((j for j in range(at - 1, -1, -1) if self.added(j, optimizer) != NONE), 0)
        for j in range(end - 1, -1, -1):
            if self.held(j, optimizer) == NONE and all(self.stage(j, s, optimizer) == "ready" for s in scalers):
                while j and self.happened[j - 1].kind == "scale":
                    j -= 1
                return j
        return 0

    def _pending(self, at: int, optimizer: int) -> bool:
        """Whether gradients wait for their step."""
        if self.held(at, optimizer) == NONE:
            return False
        for j in range(at - 1, -1, -1):
            h = self.happened[j]
            if h.kind in ("step", "opt_step") and h.optimizer == optimizer and not h.failed:
                return False
            if h.kind == "backward" and self.added(j, optimizer) != NONE:
                return True
        return False

    def _scaled(self, at: int, optimizer: int) -> bool:
        """Whether gradients wait for their step that are not the true ones, and no scaler has unscaled them."""
        if not self._untrue(at, optimizer):
            return False
        for j in range(at - 1, -1, -1):
            h = self.happened[j]
            if self.held(j, optimizer) == NONE:
                # an operation on what was there before says nothing of these gradients
                return True
            if h.optimizer == optimizer and h.kind in ("unscale_", "step") and "already" not in h.failed:
                return False
        return True

    def _forgets(self, at: int, optimizer: int) -> bool:
        """Whether an `update()` makes its scaler forget that it has unscaled gradients which it has not stepped."""
        scaler = self.happened[at].scaler
        return (
            scaler is not None and self.stage(at, scaler, optimizer) == "unscaled" and self.held(at, optimizer) != NONE
        )

    def _untrue(self, at: int, optimizer: int) -> bool:
        """Whether gradients wait for their step that are not the true ones, and not for what an older step left."""
        held = self.held(at, optimizer)
        if not self._pending(at, optimizer) or held == LOST or _same(held, 1):
            return False
        for j in range(at - 1, -1, -1):
            h = self.happened[j]
            if self.held(j, optimizer) == NONE:
                return True
            if h.kind in ("step", "opt_step") and h.optimizer == optimizer:
                return False
        return True

    def _unscaled_since_step(self, start: int, at: int, optimizer: int) -> tuple[int, ...]:
        """The lines of the `unscale_` calls since the last step."""
        lines: tuple[int, ...] = ()
        for h in self.happened[start:at]:
            if h.optimizer == optimizer and h.kind in ("step", "opt_step"):
                lines = ()
            elif h.optimizer == optimizer and h.kind == "unscale_":
                lines += h.lines
        return lines

    def _lost_scale(self, at: int, optimizer: int) -> bool:
        """Whether the backward behind a `scale()` does not add gradients of that scale."""
        for j in range(at + 1, self.count):
            if self.happened[j].kind == "update":
                return False
            added = self.added(j, optimizer)
            if added != NONE:
                return not _same(added, self.happened[at].scale)
        return False

    def _cleared(self, at: int, optimizer: int) -> bool:
        return any(code == "AMP211" for code, _ in self._suspects(at, optimizer))

    def _suspects(self, at: int, optimizer: int) -> set[Answer]:
        """The statements since everything was in order that have brought an optimizer's gradients out of order."""
        start = self._start(at, optimizer)
        found: set[Answer] = set()

        def suspect(lines: tuple[int, ...], *codes: str) -> None:
            found.update(product(codes, lines))

        for i in range(start, at):
            h = self.happened[i]
            held = self.held(i, optimizer)
            if h.kind == "clip" and optimizer in h.covers and any(self._scaled(i, o) for o in h.covers):
                suspect(h.lines, "AMP201", "AMP202")
            if h.kind == "clip" and optimizer in h.covers and len({self._untrue(i, o) for o in h.covers}) > 1:
                suspect(h.lines, "AMP212")
            elif h.kind == "touch" and self._scaled(i, optimizer):
                suspect(h.lines, "AMP201", "AMP202")
            elif h.kind == "scale":
                if self._lost_scale(i, optimizer):
                    suspect(h.lines, "AMP217")
            elif h.kind == "backward":
                added = self.added(i, optimizer)
                if added == NONE:
                    continue
                if _same(added, 1):
                    suspect(h.lines, "AMP203", "AMP217")
                early = self._unscaled_since_step(start, i, optimizer)
                if early and (held == NONE or not _same(held, added)):
                    suspect(early, "AMP302")
                    suspect(h.lines, "AMP210")
                if held != NONE and not _same(held, added):
                    for e in self.happened[start:i]:
                        if e.optimizer == optimizer and e.kind == "step":
                            suspect(e.lines, "AMP303")
            elif h.kind == "update":
                if self._pending(i, optimizer) or self._forgets(i, optimizer):
                    suspect(h.lines, "AMP206", "AMP208", "AMP301", "AMP304")
            elif h.kind == "zero_grad":
                after = h.after[optimizer] if h.after is not None and optimizer < len(h.after) else None
                if self._pending(i, optimizer) and (after is None or not any(after)):
                    suspect(h.lines, "AMP211")
            elif h.kind == "jump":
                scalers = {e.scaler for e in self.happened[:i] if e.scaler is not None}
                if any(self.stage(i, s, optimizer) != "ready" for s in scalers):
                    suspect(h.lines, "AMP209")
            elif h.kind in ("unscale_", "step") and h.optimizer == optimizer:
                found |= self._foreign(i, optimizer)
                if h.kind == "step" and h.scaler is not None and self.stage(at, h.scaler, optimizer) == "stepped":
                    suspect(h.lines, "AMP205")
            elif h.kind == "step" and h.scaler is not None and self.stage(at, h.scaler, optimizer) == "stepped":
                # the update is missing behind the last of several steps
                suspect(h.lines, "AMP205")
            elif h.kind == "opt_step" and h.optimizer == optimizer:
                suspect(h.lines, "AMP204")
        return found


def _same(one: float, other: float) -> bool:
    return abs(one - other) <= TOLERANCE * abs(other)


def _difference(after: Vector | None, before: Vector | None) -> Vector | None:
    if after is None or before is None:
        return after
    return [a - b for a, b in zip(after, before, strict=True)]


def multiple(mine: Vector | None, true: Vector | None) -> float:
    """How many times the true gradients some gradients are: MIXED for no single number, LOST where all is infinite."""
    if mine is None:
        return NONE
    if not any(mine):
        # an infinite norm of others has clipped them to nothing
        return LOST if true is not None and any(true) else NONE
    pairs = [(m, t) for m, t in zip(mine, true or [0.0] * len(mine), strict=True) if math.isfinite(m)]
    if len(pairs) < len(mine) and not any(m for m, _ in pairs):
        # an infinite norm has clipped all that was finite to nothing
        return LOST
    top_mine, top_true = max(pairs, key=lambda pair: abs(pair[1]))
    if top_true == 0.0:
        return MIXED
    factor = top_mine / top_true
    allowed = TOLERANCE * max(abs(factor * top_true), 1e-30)
    return factor if all(abs(m - factor * t) <= allowed for m, t in pairs) else MIXED
