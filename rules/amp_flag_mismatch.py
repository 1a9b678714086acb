"""AMP222: autocast and scaler obey different conditions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.rule import Fault, Rule

if TYPE_CHECKING:
    from amplint.analysis import Unit


class AmpFlagMismatch(Rule):
    """Autocast and scaler depend on different flags, or a scaler is used on a path where it is None or unbound.

    ## What it does
    Reports a scaler whose `enabled=` (or the condition it is made under) is a different flag than that of the autocast
    region it belongs to, and a use of a scaler on a path on which it was never bound or is None.

    ## Why is this bad
    With autocast on and the scaler off, float16 gradients underflow: 6.7 % of a small network's gradients were exactly
    zero and the rest 10 % off, silently (AMP110). With the scaler on and autocast off, the scaling costs time for
    nothing. A scaler that is None or unbound raises an AttributeError or NameError, in the configuration that nobody
    tests.

    ## Example
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"

    def train(mixed_precision, loss_scaling):
        model = nn.Linear(8, 1).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cuda", enabled=loss_scaling)  # <- here
        for _ in range(4):
            x = torch.randn(16, 8, device=device)
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16, enabled=mixed_precision):
                loss = model(x).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return loss.item()


    train(mixed_precision=True, loss_scaling=False)
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"

    def train(mixed_precision):
        model = nn.Linear(8, 1).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cuda", enabled=mixed_precision)
        for _ in range(4):
            x = torch.randn(16, 8, device=device)
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16, enabled=mixed_precision):
                loss = model(x).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return loss.item()


    train(mixed_precision=True)
    ```

    ## Known limits
    Flags that imply each other are silent: one is computed from the other, or from the same dtype or device. Two
    attributes of a configuration object are taken to be independent unless the code relates them.

    ## Fix safety
    No fix: which of the two flags should rule is for the author to say.

    ## How it is confirmed
    The replay runs the flag values that disagree and observes float16 autocast with a disabled scaler, or the
    exception at the use.

    ## References
    - [Typical mixed precision
      training](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#typical-mixed-precision-training)
    - `torch/amp/grad_scaler.py`: `GradScaler.is_enabled`
    """

    code = "AMP222"
    name = "amp-flag-mismatch"
    severity = Severity.WARNING
    needles = ((b"Scaler", b"scaler"),)
    confirmed_by = "state"
    yields_to = ("AMP503",)

    def check(self, unit: Unit) -> Iterator[Fault]:
        yield from ()
