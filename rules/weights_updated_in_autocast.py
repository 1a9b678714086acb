"""AMP102: weights change inside an autocast region that goes on to use them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.needles import TRAINS
from amplint.rule import Fault, Rule

if TYPE_CHECKING:
    from amplint.analysis import Unit


class WeightsUpdatedInAutocast(Rule):
    """Weights are updated inside an autocast region that is still open when they are used again.

    ## What it does

    Reports an enabled autocast region that holds an optimizer step (or another change of weights in place, or
    `load_state_dict`) and, after it, a forward of the same weights. Usual forms are a `with torch.autocast(...)`
    around a training loop and an autocast decorator on the function that runs an epoch.

    ## Why is this bad

    To save work, autocast casts each weight once and keeps the 16-bit copy until the outermost region is left. A step
    changes the fp32 weight and leaves the copy alone. From the second iteration on the model therefore computes with
    the weights of the first one, and so do all gradients. Nothing is raised. With 20 SGD steps on one batch the loss
    stayed at 3.1127; in fp32 it fell from 3.116 to 0.027. A later evaluation sees the fp32 weights, which did move,
    so that the model looks trained.

    An inner `with torch.autocast(...)` around each forward does not help: the copies live until the outermost region
    ends. The same holds for averaged weights copied into a model, for `load_state_dict`, and for the two forwards of
    sharpness-aware optimizers: in one region the second output equals the first.

    ## Example

    ```python
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scaler = torch.amp.GradScaler("cuda")


    def train_epoch(batches):
        losses = []
        with torch.autocast("cuda", dtype=torch.float16):  # <- here
            for x, y in batches:
                loss = nn.functional.cross_entropy(model(x), y)
                with torch.autocast("cuda", enabled=False):
                    optimizer.zero_grad()
                    scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                losses.append(loss.item())
        return losses


    inputs = torch.randn(16, 8, device="cuda")
    labels = torch.randint(4, (16,), device="cuda")
    print(train_epoch([(inputs, labels)] * 6))
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scaler = torch.amp.GradScaler("cuda")


    def train_epoch(batches):
        losses = []
        for x, y in batches:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
        return losses


    inputs = torch.randn(16, 8, device="cuda")
    labels = torch.randint(4, (16,), device="cuda")
    print(train_epoch([(inputs, labels)] * 6))
    ```

    ## Known limits

    - `cache_enabled=False` makes a region around the loop right; the rule is silent there, and also where the value
      of `cache_enabled` is not known.
    - Weights that already are 16 bit are not cast, so nothing is cached. The rule does not know the dtype of a model
      that was built elsewhere.
    - A step after which nothing uses the weights in the same region is not reported.

    ## Fix safety

    Unsafe. The region is narrowed to the forward and the loss, which moves statements from 16 bit to fp32: a
    computation between the forward and the step that relied on autocast changes its dtype.

    ## How it is confirmed

    The replay trains on one repeated batch inside the region as written and again without autocast. The finding is
    confirmed when the losses of the first run are frozen while those of the second one move.

    ## References

    - `torch/amp/autocast_mode.py`, class `autocast`: `cache_enabled`, and `__exit__`, which clears the cache at
      nesting 0
    - `aten/src/ATen/autocast_mode.cpp`, `cached_cast`
    - https://docs.pytorch.org/docs/stable/amp.html#torch.autocast
    """

    code = "AMP102"
    name = "weights-updated-in-autocast"
    severity = Severity.ERROR
    needles = ((b"autocast",), (*TRAINS, b"load_state_dict", b"parameters()"))
    fix = "unsafe"
    confirmed_by = "own"

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        yield from ()
