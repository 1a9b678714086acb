"""AMP212: one clip covers unscaled and scaled gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.layout import argument_text, is_plain_path, receiver_text, same_block
from amplint.needles import SCALER_HERE, UNSCALES
from amplint.rule import Change, Fault, FixPlan, Rule
from amplint.values import Optimizer

if TYPE_CHECKING:
    from amplint.analysis import Unit
    from amplint.states import Event, Gradients
    from amplint.traces import Trace


class PartialUnscale(Rule):
    """One clip covers the parameters of several optimizers, of which only some were unscaled.

    ## What it does
    Reports a clip over parameters of two or more optimizers when `unscale_` was called for some of them and not for
    all.

    ## Why is this bad
    The joint norm is dominated by the gradients that are still scaled: measured 370728 instead of 7.07. All gradients
    are multiplied by the same tiny factor, so the unscaled ones nearly vanish (1.1e-5 and 1.5e-5 instead of 0.6 and
    0.8), and the others are divided by S once more in their step. Nothing is raised.

    ## Example
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    body = nn.Linear(8, 8).to(device)
    head = nn.Linear(8, 1).to(device)
    body_optimizer = torch.optim.SGD(body.parameters(), lr=0.01)
    head_optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")

    for _ in range(4):
        x = torch.randn(16, 8, device=device)
        body_optimizer.zero_grad()
        head_optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = head(body(x)).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(head_optimizer)
        nn.utils.clip_grad_norm_([*body.parameters(), *head.parameters()], max_norm=0.1)  # <- here
        scaler.step(body_optimizer)
        scaler.step(head_optimizer)
        scaler.update()
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    body = nn.Linear(8, 8).to(device)
    head = nn.Linear(8, 1).to(device)
    body_optimizer = torch.optim.SGD(body.parameters(), lr=0.01)
    head_optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")

    for _ in range(4):
        x = torch.randn(16, 8, device=device)
        body_optimizer.zero_grad()
        head_optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = head(body(x)).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(head_optimizer)
        scaler.unscale_(body_optimizer)
        nn.utils.clip_grad_norm_([*body.parameters(), *head.parameters()], max_norm=0.1)
        scaler.step(body_optimizer)
        scaler.step(head_optimizer)
        scaler.update()
    ```

    ## Known limits
    The parameters of the clip must be traceable to the optimizers: through `parameters()` of the same modules, of a
    module that holds them, or the same lists. Where they cannot be traced nothing is reported. A clip with no
    `unscale_` at all is AMP201.

    ## Fix safety
    Safe: `scaler.unscale_(...)` for each optimizer that lacks it is inserted before the clip, when each of them is
    stepped through the same scaler on that path.

    ## How it is confirmed
    The gradients handed to the optimizers differ from those of a run with a disabled scaler.

    ## References
    - [Working with multiple models, losses, and
      optimizers](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#working-with-multiple-models-losses-and-optimizers)
    - `torch/amp/grad_scaler.py`: `GradScaler.unscale_`
    """

    code = "AMP212"
    name = "partial-unscale"
    severity = Severity.ERROR
    needles = ((UNSCALES,), (b"clip", b".grad"))
    near = (SCALER_HERE,)
    fix = "safe"
    confirmed_by = "grad"

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        for trace, position, event in unit.events("clip"):
            limit = event.details["limit"]
            if limit is not None and limit.taint.inverse:
                continue
            covered = {o: g for o, g in event.before.items() if isinstance(o, Optimizer) and _covers(unit, event, o)}
            unscaled = [g.unscaled for g in covered.values() if g.kind == "U" and g.unscaled is not None]
            lacking = [(o, g) for o, g in covered.items() if g.kind == "S" and not g.maybe]
            taken = [(step, g) for o, g in lacking if (step := _consumer(trace, position, o, g)) is not None]
            if not unscaled or not taken:
                continue
            step, gradients = taken[0]
            yield Fault(
                event.site,
                "one clip covers gradients that are unscaled and gradients that still carry the loss scale",
                (
                    (unscaled[0].site, "only these are unscaled"),
                    *unit.call_steps(event),
                    (step.site, "these are unscaled only here"),
                ),
                unit.assumptions(event),
                unit.confidence(gradients.scaler, step.optimizer),
                _fix(event, [step for step, _ in taken]),
            )


def _covers(unit: Unit, clip: Event, optimizer: Optimizer) -> bool:
    """Whether the clip reaches parameters of an optimizer for certain."""
    owners = clip.details["owners"]
    return optimizer in owners or (optimizer.owners is not None and unit.overlap(owners, optimizer.owners))


def _consumer(trace: Trace, position: int, optimizer: Optimizer, gradients: Gradients) -> Event | None:
    """The `unscale_` or `step` that takes the scaled gradients after the clip."""
    for later in trace.events[position + 1 :]:
        if later.optimizer is optimizer and later.kind in ("unscale_", "step", "zero_grad", "opt_step"):
            return later if later.kind in ("unscale_", "step") and later.scaler is gradients.scaler else None
    return None


def _fix(clip: Event, lacking: list[Event]) -> FixPlan | None:
    """Unscale the others as well, where they are stepped beside the clip."""
    changes = []
    for step in lacking:
        scaler, optimizer = receiver_text(step.site), argument_text(step.site)
        beside = same_block(clip.site, step.site) and step.calls == clip.calls and step.loops == clip.loops
        if step.kind != "step" or not beside or not is_plain_path(scaler) or not is_plain_path(optimizer):
            return None
        changes.append(Change("insert-before", clip.site, f"{scaler}.unscale_({optimizer})"))
    return FixPlan("safe", "unscale every optimizer before the clip", tuple(changes))
