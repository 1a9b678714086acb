"""The typestate of gradients: N, S, U, T and what else can be true of them.

torch itself tracks a stage per optimizer (ready, unscaled, stepped) and nothing about the gradients,
which is why every silent misuse passes. This module tracks the gradients:

    N  none                         P  true gradients of a backward without a scaler
    S  carry the scale of a scaler  U  unscaled by `unscale_`
    T  stepped, `update()` is due   L  left over unscaled: `update()` ran after `unscale_`, no step
    M  scaled and unscaled mixed    ?  unknown

    N --scale().backward()--> S --unscale_--> U --step--> T --update()--> N
    S --step--> T     U --update()--> L (zero_grad must come before the next backward)

Source: torch/amp/grad_scaler.py (GradScaler.unscale_, step, update), torch 2.9 and 2.13.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from amplint.rule import Site
    from amplint.values import Scaler, Value

Kind = Literal["N", "P", "S", "U", "T", "L", "M", "?"]
Stage = Literal["ready", "unscaled", "stepped", "?"]


@dataclass(slots=True, eq=False)
class Event:
    """One AMP operation on a trace, with the state it met.

    before    gradient state of every optimizer concerned; the key None stands for optimizers that have not
              been seen yet
    stages    torch's own stage of (scaler, optimizer), for events of a scaler
    regions   the active regions, outermost first
    assume    the guards decided so far
    calls     the call sites that lead here, outermost first
    loops     (loop, iteration) of the loops around, outermost first
    details   whatever else the kind of event has to say; see `amplint.effects`
    """

    kind: str
    site: Site
    index: int
    before: dict[Value | None, Gradients]
    regions: tuple[Entered, ...]
    assume: dict[Any, bool]
    calls: tuple[Site, ...]
    loops: tuple[tuple[int, int], ...]
    scaler: Scaler | None = None
    optimizer: Value | None = None
    stage: Stage = "?"
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def state(self) -> Gradients:
        """The gradient state of the event's own optimizer."""
        return self.before.get(self.optimizer, UNKNOWN)


@dataclass(frozen=True, slots=True)
class Entered:
    """A region that is active: its context value, where it was entered, which entry that was, and whether by hand, so
    that it stays open until it is left by hand."""

    context: Any
    site: Site
    number: int
    by_hand: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Gradients:
    """What is true of the gradients of one optimizer.

    scaler, epoch   whose scale they carry, and how many `update()` calls that scaler had seen
    origin          the backward they come from (the first since they were zeroed)
    last            the latest backward into them; with N: they were stepped and not cleared since
    unscaled        the `unscale_` that made them U
    stale           the first `update()` that ran while they were S
    maybe           several optimizers exist and nothing tells which of them the backward reached
    window          number of backwards since they were last zeroed or stepped
    leftover        gradients of an earlier step are part of them: nothing cleared those
    """

    kind: Kind
    scaler: Scaler | None = None
    epoch: int = 0
    origin: Event | None = None
    last: Event | None = None
    unscaled: Event | None = None
    stale: Event | None = None
    maybe: bool = False
    window: int = 0
    leftover: bool = False
    #: what distinguishes two states when paths are merged
    key: tuple[object, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        key = (
            self.kind,
            self.scaler,
            self.epoch,
            self.origin.site.identity if self.origin else None,
            self.last.site.identity if self.last else None,
            self.stale.site.identity if self.stale else None,
            self.maybe,
            min(self.window, 2),
            self.leftover,
        )
        object.__setattr__(self, "key", key)


NOTHING = Gradients("N")
UNKNOWN = Gradients("?")


@dataclass(frozen=True, slots=True)
class Book:
    """What one scaler knows: `epoch` counts its updates; `checked` says whether an inf check was recorded
    since the last one (None: unknown); `live` whether `scale()` has run (None: unknown)."""

    epoch: int = 0
    stages: tuple[tuple[Value, Stage], ...] = ()
    checked: bool | None = None
    live: bool | None = None

    def stage(self, optimizer: Value) -> Stage:
        for known, stage in self.stages:
            if known is optimizer:
                return stage
        return "ready" if self.checked is False else "?"

    def with_stage(self, optimizer: Value, stage: Stage) -> Book:
        kept = tuple((o, s) for o, s in self.stages if o is not optimizer)
        return replace(self, stages=(*kept, (optimizer, stage)))


def after_backward(state: Gradients, event: Event, scaler: Scaler | None, epoch: int, maybe: bool) -> Gradients:
    """The state after a backward whose loss carries the scale of `scaler` (None: of no scaler)."""
    window = state.window + 1 if state.kind in ("S", "P", "U", "M") else 1
    origin = state.origin if state.kind in ("S", "P", "U", "M") and state.origin is not None else event
    if scaler is None:
        if state.kind in ("U", "M"):
            # a true gradient added to true gradients
            return replace(state, last=event, window=window)
        if state.kind == "S":
            return replace(state, kind="M", last=event, maybe=state.maybe or maybe, window=window)
        return Gradients("P", origin=origin, last=event, maybe=maybe, window=window)
    if state.kind in ("U", "P", "M", "L"):
        return Gradients("M", scaler, epoch, origin, event, state.unscaled, None, maybe or state.maybe, window)
    if state.kind == "S" and state.maybe and not maybe and state.stale is not None:
        # whether there was anything of the old scale is not known; of the new one there is
        return Gradients("S", scaler, epoch, event, event)
    if state.kind == "S":
        return replace(state, last=event, window=window, maybe=state.maybe and maybe)
    leftover = state.kind == "N" and state.last is not None
    return Gradients("S", scaler, epoch, origin, event, None, None, maybe, window, leftover)


def after_unscale(state: Gradients, event: Event) -> Gradients:
    """The state after `scaler.unscale_(optimizer)`."""
    if state.kind in ("S", "N", "?"):
        return replace(state, kind="U", unscaled=event)
    return state


def after_step(state: Gradients) -> Gradients:
    """The state after `scaler.step(optimizer)`: stepped or skipped, gradients unscaled in place."""
    return replace(state, kind="T", stale=None)


def after_update(state: Gradients, scaler: Scaler, event: Event) -> Gradients:
    """The state after `scaler.update()`."""
    if state.kind == "T" and state.scaler in (scaler, None):
        # used up, but still there until they are cleared
        return Gradients("N", last=state.last)
    if state.kind == "U" and state.scaler in (scaler, None):
        return replace(state, kind="L")
    if state.kind == "S" and state.scaler is scaler and state.stale is None:
        return replace(state, stale=event)
    return state
