"""AMP208: the scale is updated between the backward and the step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.rule import Fault, Rule

if TYPE_CHECKING:
    from amplint.analysis import Unit


class UpdateBeforeStep(Rule):
    """`scaler.update()` stands between the scaled backward and the `scaler.step` of the same gradients.

    ## What it does
    Reports an `update()` after a scaled backward, or after `unscale_`, and before the `step` that consumes those
    gradients, in a loop without accumulation.

    ## Why is this bad
    `update()` forgets that the optimizer was unscaled, so the step divides by S a second time: the optimizer gets g /
    S. Without `unscale_` before it torch raises `No inf checks were recorded prior to update.`, unless another
    optimizer left a check; then the step divides by the new scale gradients that were multiplied by the old one (a
    factor 2 or 0.5 whenever it changed). In all forms the check for infinities is lost for this step.

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
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        scaler.update()  # <- here
        scaler.step(optimizer)
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
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Known limits
    A deliberate skip, `unscale_`, `update()` and `zero_grad()` with no step, is right and silent. In an accumulation
    window the finding is AMP301 or AMP302, between the steps of several optimizers AMP304.

    ## Fix safety
    Unsafe: `update()` is moved behind the last `step` of the iteration. With several optimizers the right place may be
    another one.

    ## How it is confirmed
    The gradients handed to the optimizer differ by 1 / S from those of a run with a disabled scaler, or torch raises.

    ## References
    - `torch/amp/grad_scaler.py`: `GradScaler.update`, `GradScaler.step`
    - [Gradient scaling](https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling)
    """

    code = "AMP208"
    name = "update-before-step"
    severity = Severity.ERROR
    needles = ((b".update(", b".scale("), (b".scale(", b"scaler", b"Scaler", b"unscale_"))
    fix = "unsafe"
    confirmed_by = "grad"
    yields_to = ("AMP204", "AMP213", "AMP301", "AMP302", "AMP304")

    def check(self, unit: Unit) -> Iterator[Fault]:
        yield from ()
