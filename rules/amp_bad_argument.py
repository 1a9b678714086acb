"""AMP104: an argument of autocast or GradScaler stands in the wrong place or has the wrong type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.needles import TRAINS
from amplint.rule import Fault, Rule

if TYPE_CHECKING:
    from amplint.analysis import Unit


class AmpBadArgument(Rule):
    """An argument of `autocast`, `GradScaler` or `update` stands in the wrong place or has the wrong type.

    ## What it does

    Reports arguments that torch refuses, or that mean something else than their author thought:

    | call | what happens |
    |---|---|
    | `torch.autocast(torch.device("cuda"))` | `ValueError`: the device type must be a string |
    | `torch.autocast("cuda:0")`, `torch.autocast(f"cuda:{gpu}")` | `RuntimeError` before torch 2.4, accepted since |
    | `torch.amp.autocast(use_amp)` | `ValueError`: a flag in the place of the device type |
    | `torch.autocast("cuda", use_amp)` | a flag as the dtype: cuda raises on entry, cpu warns and stays off |
    | `torch.amp.GradScaler(1024.0)` | silent: the number is taken for the device, the scale stays at 65536 |
    | `torch.amp.GradScaler(False)` | silent: the scaler is enabled |
    | `torch.amp.GradScaler("cuda", False)` | silent: the initial scale is 0 |
    | `torch.cuda.amp.GradScaler("cuda")` | the initial scale is a string, which fails in the first `scale()` |
    | `scaler.update(2)` | `AttributeError`: an int is taken for a tensor; a float is right |

    ## Why is this bad

    The silent rows are the dangerous ones. `torch.cuda.amp` and `torch.amp` order their arguments differently: the
    first place of `torch.cuda.amp.GradScaler` is the initial scale, that of `torch.amp.GradScaler` the device. The
    first place of `torch.cuda.amp.autocast` is `enabled`, while `torch.autocast` takes device type and dtype first. A
    rename of the module therefore changes the meaning of a call that still runs. With an initial scale of 0 every
    gradient is 0 or not a number.

    ## Example

    ```python
    import torch
    from torch import nn


    class Regressor:
        def __init__(self, where="cuda"):
            self.device = torch.device(where)
            self.net = nn.Linear(8, 1).to(self.device)
            self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05)
            self.scaler = torch.amp.GradScaler("cuda")

        def step(self, x, y):
            self.optimizer.zero_grad()
            with torch.autocast(self.device, dtype=torch.float16):  # <- here
                loss = nn.functional.mse_loss(self.net(x), y)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            return loss.item()


    regressor = Regressor()
    for _ in range(3):
        regressor.step(torch.randn(6, 8, device="cuda"), torch.randn(6, 1, device="cuda"))
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn


    class Regressor:
        def __init__(self, where="cuda"):
            self.device = torch.device(where)
            self.net = nn.Linear(8, 1).to(self.device)
            self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05)
            self.scaler = torch.amp.GradScaler("cuda")

        def step(self, x, y):
            self.optimizer.zero_grad()
            with torch.autocast(self.device.type, dtype=torch.float16):
                loss = nn.functional.mse_loss(self.net(x), y)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            return loss.item()


    regressor = Regressor()
    for _ in range(3):
        regressor.step(torch.randn(6, 8, device="cuda"), torch.randn(6, 1, device="cuda"))
    ```

    ## Known limits

    - The positions are those of the torch that the project targets. For torch 1.10 and 1.11 the second place of
      `torch.autocast` still was `enabled`.
    - A variable is judged by what it is bound to, by its annotation or by its use as a condition; a plain parameter
      without either is not judged.

    ## Fix safety

    Safe where the meaning is certain: `.type` is added to a `torch.device`, a number or a flag becomes the keyword
    that its author meant (`init_scale=`, `enabled=`), an int of `update()` becomes a float. For the other rows no fix
    is offered.

    ## How it is confirmed

    The call is executed. An exception of torch confirms the finding; for the silent rows the verifier reads the scale
    and whether the scaler is enabled, and compares them with what the argument says.

    ## References

    - `torch/amp/autocast_mode.py`, `autocast.__init__`; `torch/cuda/amp/autocast_mode.py`, `autocast.__init__`
    - `torch/amp/grad_scaler.py`, `GradScaler.__init__` and `GradScaler.update`
    - https://docs.pytorch.org/docs/stable/amp.html
    """

    code = "AMP104"
    name = "amp-bad-argument"
    severity = Severity.ERROR
    needles = (
        (b"autocast(", b"GradScaler(", b"scaler.update("),
        (*TRAINS, b"Scaler", b"torch.device(", b"cuda:", b'autocast("', b"autocast('", b"autocast(self", b"use_amp"),
    )
    fix = "safe"
    confirmed_by = "raise"

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        yield from ()
