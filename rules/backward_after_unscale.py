"""AMP210: scaled gradients are added to gradients that are already unscaled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.needles import SCALER_HERE, SCALES, UNSCALES
from amplint.protocol import same_round
from amplint.rule import CALLED, Fault, Rule

if TYPE_CHECKING:
    from amplint.analysis import Unit
    from amplint.states import Event
    from amplint.traces import Trace
    from amplint.values import Value


class BackwardAfterUnscale(Rule):
    """A scaled backward runs after `unscale_` and before `step`, so scaled and unscaled gradients add up.

    ## What it does
    Reports `scaler.scale(loss).backward()` on a path on which the optimizer of those parameters is unscaled and not
    yet stepped.

    ## Why is this bad
    `.grad` accumulates: the first part is true, the second S times too large, and `step` does not divide again because
    the optimizer counts as unscaled. In the run with S = 4 and a true gradient of 3 the sum was 15 instead of 6; at
    the default scale the first loss is lost entirely and the step is 65536 times too large. Nothing is raised, and
    infinities in the second backward are not noticed either.

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
            output = model(x)
            loss = output.square().mean()
            penalty = output.abs().mean()
        scaler.scale(loss).backward(retain_graph=True)
        scaler.unscale_(optimizer)
        scaler.scale(penalty).backward()  # <- here
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
            output = model(x)
            loss = output.square().mean()
            penalty = output.abs().mean()
        scaler.scale(loss).backward(retain_graph=True)
        scaler.scale(penalty).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Known limits
    Silent when the second backward reaches other parameters only, as in the two halves of a GAN, as far as amplint can
    tell the parameters apart; when it cannot, it says nothing. Unscaling every micro-batch of an accumulation window
    is AMP302.

    ## Fix safety
    No fix: `unscale_` and everything that reads the gradients has to move behind the last backward.

    ## How it is confirmed
    The gradients handed to the optimizer differ from those of a run with a disabled scaler.

    ## References
    - [Working with unscaled
      gradients](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#working-with-unscaled-gradients)
    - `torch/amp/grad_scaler.py`: `GradScaler.unscale_`
    """

    code = "AMP210"
    name = "backward-after-unscale"
    severity = Severity.ERROR
    needles = ((UNSCALES, b".backward", b".scale("), SCALES)
    near = (SCALER_HERE,)
    confirmed_by = "grad"
    yields_to = ("AMP301", "AMP302", "AMP304")

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        for trace, position, event in unit.events("backward"):
            if event.scaler is None:
                continue
            for optimizer, gradients in event.before.items():
                unscaled = gradients.unscaled
                if gradients.kind != "U" or gradients.maybe or unscaled is None or not same_round(unscaled, event):
                    continue
                step = _step(trace, position, optimizer)
                if step is None or step.state.kind != "M" or step.state.maybe:
                    continue
                yield Fault(
                    event.site,
                    "scaled gradients are added to gradients that are already unscaled",
                    (
                        (unscaled.site, "unscaled here"),
                        *((site, CALLED) for site in unscaled.calls),
                        *unit.call_steps(event),
                        (step.site, "the step does not divide again"),
                    ),
                    unit.assumptions(event),
                    unit.confidence(event.scaler, optimizer),
                )


def _step(trace: Trace, position: int, optimizer: Value | None) -> Event | None:
    """The step that takes the mixture."""
    for later in trace.events[position + 1 :]:
        if later.optimizer is optimizer and later.kind in ("zero_grad", "step", "opt_step"):
            return later if later.kind == "step" else None
    return None
