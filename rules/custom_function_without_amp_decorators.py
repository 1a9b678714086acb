"""AMP107: a custom autograd Function is applied under autocast without custom_fwd and custom_bwd."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.rule import Fault, Rule

if TYPE_CHECKING:
    from amplint.analysis import Unit


class CustomFunctionWithoutAmpDecorators(Rule):
    """A custom autograd Function with matrix products is applied under autocast without `custom_fwd` and `custom_bwd`.

    ## What it does

    Reports a subclass of `torch.autograd.Function` that is applied in an enabled autocast region, whose `forward` or
    `backward` multiplies matrices, convolves or calls an extension, and that has neither of the decorators
    `torch.amp.custom_fwd` and `torch.amp.custom_bwd`, or only one of them.

    ## Why is this bad

    The forward runs under autocast, so its products are made in 16 bit from fp32 inputs that it saves. The backward
    runs after the region, gets a 16-bit gradient, and multiplies it with the fp32 tensors: "expected m1 and m2 to
    have the same dtype". The very same class works when `backward()` is called inside the region, and when training
    runs in fp32, which is why the fault stays hidden until somebody uses it with mixed precision. Where the backward
    casts by hand, nothing is raised, but the result depends on where the backward is called: inside a region the
    gradients differed by 2.2e-3 (bf16) and 2.6e-4 (fp16). `custom_bwd` without `custom_fwd` looks for a state on the
    context that nobody has left there, and raises.

    `custom_fwd` notes whether autocast was on, and `custom_bwd` runs the backward in the same state. With
    `cast_inputs=torch.float32` both directions run in fp32 instead.

    ## Example

    ```python
    import torch
    from torch import nn


    class LowRank(torch.autograd.Function):  # <- here
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return x @ w

        @staticmethod
        def backward(ctx, grad):
            x, w = ctx.saved_tensors
            return grad @ w.t(), x.t() @ grad


    encoder, w = nn.Linear(8, 6).to("cuda"), nn.Parameter(torch.randn(6, 3, device="cuda"))
    optimizer = torch.optim.SGD([*encoder.parameters(), w], lr=0.05)
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(3):
        x, y = torch.randn(4, 8, device="cuda"), torch.randint(3, (4,), device="cuda")
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(LowRank.apply(encoder(x), w), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from torch.amp import custom_bwd, custom_fwd


    class LowRank(torch.autograd.Function):
        @staticmethod
        @custom_fwd(device_type="cuda")
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return x @ w

        @staticmethod
        @custom_bwd(device_type="cuda")
        def backward(ctx, grad):
            x, w = ctx.saved_tensors
            return grad @ w.t(), x.t() @ grad


    encoder, w = nn.Linear(8, 6).to("cuda"), nn.Parameter(torch.randn(6, 3, device="cuda"))
    optimizer = torch.optim.SGD([*encoder.parameters(), w], lr=0.05)
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(3):
        x, y = torch.randn(4, 8, device="cuda"), torch.randint(3, (4,), device="cuda")
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(LowRank.apply(encoder(x), w), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Known limits

    - Elementwise Functions work in any dtype and are not reported. A Function that casts both of its directions or
      disables autocast in them is taken to handle the dtypes itself.
    - `setup_context` Functions are judged by their `forward` and `backward` alone.
    - A Function that is applied only where no region is seen to be open is not reported.

    ## Fix safety

    Unsafe. Both decorators are added with the device type of the region. The dtype in which the Function computes
    then follows the region, also where its author relied on fp32; an extension that has no 16-bit kernels needs
    `cast_inputs=torch.float32`, which the fix cannot know.

    ## How it is confirmed

    The Function is applied under autocast and its backward is called outside of the region: the dtype mismatch
    confirms the finding. Where nothing is raised, the gradients are compared with those of the decorated Function.

    ## References

    - `torch/amp/autocast_mode.py`, `custom_fwd` and `custom_bwd`
    - https://docs.pytorch.org/docs/stable/notes/amp_examples.html#functions-with-multiple-inputs-or-autocastable-ops
    """

    code = "AMP107"
    name = "custom-function-without-amp-decorators"
    severity = Severity.WARNING
    needles = ((b"autograd",), (b"Function",), (b"def backward",))
    fix = "unsafe"
    confirmed_by = "raise"

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        yield from ()
