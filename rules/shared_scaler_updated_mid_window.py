"""AMP304: a shared scaler is updated while another optimizer holds scaled gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.layout import same_block
from amplint.needles import SCALER_HERE, SCALES
from amplint.protocol import other_stepped
from amplint.rule import Change, Fault, FixPlan, Rule

if TYPE_CHECKING:
    from amplint.analysis import Unit
    from amplint.states import Event


class SharedScalerUpdatedMidWindow(Rule):
    """`scaler.update()` runs between the steps of two optimizers whose gradients carry the same scale.

    ## What it does
    Reports an `update()` after one optimizer's `step` while another optimizer still holds gradients scaled by the same
    scaler and is stepped after it, also in a loop over optimizers or a helper that steps and updates.

    ## Why is this bad
    `update()` may change the scale: it halves after an overflow of the first optimizer and doubles at the end of a
    growth interval. The second optimizer's gradients were multiplied by the old scale and are divided by the new one:
    exactly 2 or 0.5 times the true gradient whenever the scale changes, and right otherwise. Two updates per iteration
    also make the growth counter run twice as fast.

    ## Example
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    encoder = nn.Linear(8, 4).to(device)
    decoder = nn.Linear(4, 8).to(device)
    encoder_optimizer = torch.optim.SGD(encoder.parameters(), lr=0.01)
    decoder_optimizer = torch.optim.SGD(decoder.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda", growth_interval=1)

    for _ in range(4):
        x = torch.randn(16, 8, device=device)
        encoder_optimizer.zero_grad()
        decoder_optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = (decoder(encoder(x)) - x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(encoder_optimizer)
        scaler.update()  # <- here
        scaler.step(decoder_optimizer)
        scaler.update()
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    encoder = nn.Linear(8, 4).to(device)
    decoder = nn.Linear(4, 8).to(device)
    encoder_optimizer = torch.optim.SGD(encoder.parameters(), lr=0.01)
    decoder_optimizer = torch.optim.SGD(decoder.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda", growth_interval=1)

    for _ in range(4):
        x = torch.randn(16, 8, device=device)
        encoder_optimizer.zero_grad()
        decoder_optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = (decoder(encoder(x)) - x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(encoder_optimizer)
        scaler.step(decoder_optimizer)
        scaler.update()
    ```

    ## Known limits
    An `update()` is right when the other optimizer's backward comes after it, as in the usual GAN; that is silent. A
    loop over optimizers is taken to run more than once. Where two optimizers share parameters nothing is reported.

    ## Fix safety
    Safe: all updates but the last of the iteration are removed, when they stand in the same block. No fix in loops and
    helpers.

    ## How it is confirmed
    The replay sets `growth_interval=1` or injects an overflow; the gradients handed to the second optimizer are 0.5 or
    2 times those of a run with a disabled scaler.

    ## References
    - [Working with multiple models, losses, and
      optimizers](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#working-with-multiple-models-losses-and-optimizers)
    - `torch/amp/grad_scaler.py`: `GradScaler.update`
    """

    code = "AMP304"
    name = "shared-scaler-updated-mid-window"
    severity = Severity.WARNING
    needles = ((b".update(", b".scale("), SCALES)
    near = (SCALER_HERE,)
    fix = "safe"
    confirmed_by = "grad"
    yields_to = ("AMP301",)

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        for trace, _, event in unit.events("step", "unscale_"):
            gradients = event.state
            update = gradients.stale if gradients.kind == "S" else None
            if gradients.last is None or update is None or update.scaler is not event.scaler:
                continue
            if gradients.last.index > update.index:
                # a backward ran under the new scale: the usual order of two halves
                continue
            if not other_stepped(trace, gradients.last, update, event.optimizer):
                continue
            yield Fault(
                update.site,
                "the shared scaler is updated while another optimizer still holds gradients of the old scale",
                (
                    (gradients.last.site, "scaled backward"),
                    *unit.call_steps(update),
                    (event.site, "these gradients are divided by the new scale"),
                ),
                unit.assumptions(event),
                unit.confidence(event.scaler, event.optimizer),
                _fix(unit, update, event),
            )


def _fix(unit: Unit, update: Event, later: Event) -> FixPlan | None:
    """Keep the last update of the iteration, where all of it stands in one block."""
    if (
        update.calls != later.calls
        or not same_block(update.site, later.site)
        or update.details["new_scale"] is not None
    ):
        return None
    start = update.site.module.place(update.site.node).line
    for _, _, other in unit.events("update"):
        beside = other.scaler is update.scaler and same_block(other.site, update.site)
        if beside and other.site.module.place(other.site.node).line > start:
            return FixPlan("safe", "remove the update() between the steps", (Change("delete", update.site),))
    return None
