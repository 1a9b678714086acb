"""AMP401: a model is cast to fp16 as a whole and then trained with automatic mixed precision."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.rule import Fault, Rule

if TYPE_CHECKING:
    from amplint.analysis import Unit


class HalfModelWithAmp(Rule):
    """A model is cast to fp16 by hand and then trained under autocast or with a scaler.

    ## What it does

    Reports the cast of a whole model to fp16 when the same model is trained under autocast or through a `GradScaler`:
    `.half()`, `.to(torch.float16)`, `.to(dtype=...)`, `.type(torch.HalfTensor)`, `torch_dtype=torch.float16` of a
    pretrained model, a loop or `apply` over parameters that are halved one by one, and
    `torch.set_default_dtype(torch.float16)` before the model is built.

    ## Why is this bad

    Automatic mixed precision keeps the weights in fp32 and casts copies of them where that is safe. With fp16 weights
    there is no fp32 copy left to update:

    - `scaler.unscale_` and `scaler.step` refuse fp16 gradients: `ValueError: Attempting to unscale FP16 gradients.`
    - An optimizer with `fused=True` accepts them, and the updates are lost without a word. A weight of 1 with
      `lr * gradient = 1e-4` per step still was exactly 1.0 after 1000 steps; it should have been 0.9, but the step is
      smaller than half the distance between neighbouring fp16 numbers there (2^-11 below 1).
    - Adam with its default `eps=1e-8` divides by zero: on fp16 weights a gradient of 0 made the weight NaN, one of
      1e-4 made it infinite.

    ## Example

    ```python
    import torch
    from torch import nn

    torch.manual_seed(0)


    def train(batches):
        model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to("cuda")
        model = model.half()  # <- here
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        scaler = torch.amp.GradScaler("cuda")
        for x, y in batches:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return model


    inputs = torch.randn(3, 8, 16, device="cuda")
    labels = torch.randint(4, (3, 8), device="cuda")
    train(list(zip(inputs, labels)))
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn

    torch.manual_seed(0)


    def train(batches):
        model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to("cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        scaler = torch.amp.GradScaler("cuda")
        for x, y in batches:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return model


    inputs = torch.randn(3, 8, 16, device="cuda")
    labels = torch.randint(4, (3, 8), device="cuda")
    train(list(zip(inputs, labels)))
    ```

    ## Known limits

    - Reported only where the cast model is seen to be trained. A model that is frozen (`requires_grad_(False)`, a
      teacher, a text encoder), cast for inference, copied for export, or cast back with `.float()` is left alone.
    - Optimizers that keep fp32 master weights of their own (apex O2, DeepSpeed, FusedLAMB) are recognised by their
      import only; an own optimizer of that kind needs a suppression.
    - A dtype that is chosen at run time (`model.to(dtype=args.dtype)`) is not followed.

    ## Fix safety

    Unsafe. The cast is removed: training then takes the memory of fp32 weights, and inputs that the program casts by
    hand (`x.half()`) may no longer fit a layer that is called outside of the region.

    ## How it is confirmed

    The replay trains the cast model with torch itself: the `ValueError` of the scaler confirms the finding. With a
    fused optimizer nothing raises; there the verifier applies small updates and compares the weights with an fp32
    run.

    ## References

    - `torch/amp/grad_scaler.py`, `GradScaler._unscale_grads_`: "Attempting to unscale FP16 gradients."
    - https://docs.pytorch.org/docs/stable/amp.html#autocasting: "You should not call half() or bfloat16() on your
      model(s) or inputs when using autocasting."
    """

    code = "AMP401"
    name = "half-model-with-amp"
    severity = Severity.ERROR
    needles = ((b"autocast", b"GradScaler", b".scale(", b"unscale_"), (b"backward", b"optim", b"scaler"))
    fix = "unsafe"
    confirmed_by = "raise"

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        yield from ()
