"""AMP207: gradients are unscaled a second time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.guards import asks_for_stage
from amplint.layout import same_function
from amplint.needles import SCALER_HERE, SCALES, UNSCALES
from amplint.protocol import between, previous, remembers_unscale, same_round
from amplint.rule import Change, Fault, FixPlan, Rule

if TYPE_CHECKING:
    from amplint.analysis import Unit
    from amplint.states import Event


class UnscaleTwice(Rule):
    """`scaler.unscale_` is called twice for one optimizer, or after its `step`, without `update()` in between.

    ## What it does
    Reports an `unscale_(optimizer)` on a path on which this optimizer was already unscaled or stepped since the last
    `update()`: two call sites in one step, a helper that unscales for a caller that has done so, a call after the
    step.

    ## Why is this bad
    torch raises `unscale_() has already been called on this optimizer since the last update().` or `unscale_() is
    being called after step().` With a disabled scaler both calls do nothing, so the fault waits for the first run on a
    GPU. When the second call goes through a wrapper object around the same optimizer, torch does not recognise it and
    the gradients are silently divided by S again.

    ## Example
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda")

    for _ in range(4):
        x = torch.randn(16, 8, device=device)
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.stack([w.grad.norm() for w in model.parameters()]).norm()
        print(f"gradient norm {norm:.3f}")
        scaler.unscale_(optimizer)  # <- here
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda")

    for _ in range(4):
        x = torch.randn(16, 8, device=device)
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.stack([w.grad.norm() for w in model.parameters()]).norm()
        print(f"gradient norm {norm:.3f}")
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Known limits
    Calls in branches that exclude each other are silent, also when the two conditions are written twice with the same
    text. Optimizers in containers are told apart only by a constant index or key. Unscaling every micro-batch of an
    accumulation window is AMP302.

    ## Fix safety
    Safe: the second call is removed when both calls are certain to run for the same optimizer on every path that
    reaches the second.

    ## How it is confirmed
    The path is replayed with an enabled scaler and torch raises at the second call.

    ## References
    - `torch/amp/grad_scaler.py`: `GradScaler.unscale_`
    - [Gradient clipping](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-clipping)
    """

    code = "AMP207"
    name = "unscale-twice"
    severity = Severity.ERROR
    needles = ((UNSCALES, b".scale("), SCALES)
    near = (SCALER_HERE,)
    fix = "safe"
    confirmed_by = "raise"
    yields_to = ("AMP205", "AMP209", "AMP216", "AMP301", "AMP302", "AMP304")

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        for trace, position, event in unit.events("unscale_"):
            if (
                event.stage not in ("unscaled", "stepped")
                or asks_for_stage(event.assume)
                or remembers_unscale(unit, event.site)
            ):
                continue
            found = previous(trace, position, event, "unscale_" if event.stage == "unscaled" else "step")
            if found is None:
                continue
            start, first = found
            backwards = [b for b in between(trace, start, position, "backward") if event.optimizer in b.before]
            if event.stage == "stepped" and backwards:
                # a new step has begun: what is missing is the update
                continue
            if any(_mixes(b, event) and same_round(b, event) and same_round(b, first) for b in backwards):
                # the backward in between is what is wrong
                continue
            if any(e.optimizer is event.optimizer for e in between(trace, start, position, "opt_step")):
                continue
            again = "already unscaled" if event.stage == "unscaled" else "already unscaled by their step"
            yield Fault(
                event.site,
                f"unscale_ is called on gradients that are {again}",
                (
                    (first.site, "unscaled here" if event.stage == "unscaled" else "stepped here"),
                    *unit.call_steps(event),
                ),
                unit.assumptions(event),
                unit.confidence(event.scaler, event.optimizer),
                _fix(unit, first, event),
            )


def _mixes(backward: Event, event: Event) -> bool:
    """Whether a backward adds to gradients, and not to what `zero_grad` has left."""
    return backward.before[event.optimizer].kind != "N"


def _fix(unit: Unit, first: Event, second: Event) -> FixPlan | None:
    """Remove the second call, where every path reaches it with gradients that are unscaled."""
    if first.site.identity == second.site.identity or not same_function(first.site, second.site):
        return None
    if any(
        e.stage in ("ready", "?") or e.state.kind in ("S", "M", "?")
        for _, _, e in unit.events("unscale_")
        if e.site.identity == second.site.identity
    ):
        return None
    return FixPlan("safe", "remove the second unscale_", (Change("delete", second.site),))
