"""AMP225: a framework scales the loss and the script does it again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.rule import Fault, Rule

if TYPE_CHECKING:
    from amplint.analysis import Unit


class ScalerWithFramework(Rule):
    """A `GradScaler`, or a clip of `torch.nn.utils`, stands beside a framework that scales gradients by itself.

    ## What it does
    Reports an own `GradScaler` in code that trains with accelerate's `Accelerator`, Lightning's `Trainer` or `Fabric`,
    or the Hugging Face `Trainer` in float16, and `nn.utils.clip_grad_norm_` or `clip_grad_value_` between their
    backward and their step.

    ## Why is this bad
    These frameworks hold a scaler of their own. A second one multiplies the loss again, which the framework never
    divides out, and asks for steps that the framework's optimizer has skipped or postponed.
    `torch.nn.utils.clip_grad_norm_` after `accelerator.backward` clips gradients that carry the framework's scale: the
    norm that arrives is `max_norm / S` (AMP201). Their own `clip_grad_norm_` and `clip_gradients` unscale first.

    ## Example
    ```python
    import torch
    from accelerate import Accelerator
    from torch import nn

    accelerator = Accelerator(mixed_precision="fp16")
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer = accelerator.prepare(model, optimizer)

    for _ in range(4):
        x = torch.randn(16, 8, device=accelerator.device)
        optimizer.zero_grad()
        with accelerator.autocast():
            loss = model(x).square().mean()
        accelerator.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # <- here
        optimizer.step()
    ```

    ## Use instead
    ```python
    import torch
    from accelerate import Accelerator
    from torch import nn

    accelerator = Accelerator(mixed_precision="fp16")
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer = accelerator.prepare(model, optimizer)

    for _ in range(4):
        x = torch.randn(16, 8, device=accelerator.device)
        optimizer.zero_grad()
        with accelerator.autocast():
            loss = model(x).square().mean()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    ```

    ## Known limits
    Silent when the framework's scaling is off: `mixed_precision="no"` or `"bf16"`, Lightning's manual optimization
    with a plain precision, DeepSpeed. A precision that comes from a configuration file is unknown and silent.

    ## Fix safety
    No fix: the scaler and every use of it have to go, or the framework's method has to replace the clip, with
    arguments that differ.

    ## How it is confirmed
    Not at all: the frameworks are not part of the replay.

    ## References
    - [accelerate:
      `clip_grad_norm_`](https://huggingface.co/docs/accelerate/package_reference/accelerator#accelerate.Accelerator.clip_grad_norm_)
    - [Lightning: N-bit precision](https://lightning.ai/docs/pytorch/stable/common/precision_basic.html)
    """

    code = "AMP225"
    name = "scaler-with-framework"
    severity = Severity.ERROR
    needles = ((b"ccelerat", b"ightning", b"Fabric", b"transformers", b"Trainer"), (b"Scaler", b"clip_grad"))

    def check(self, unit: Unit) -> Iterator[Fault]:
        yield from ()
