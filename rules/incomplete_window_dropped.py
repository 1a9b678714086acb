"""AMP306: the last, shorter window of an epoch is lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.rule import Fault, Rule

if TYPE_CHECKING:
    from amplint.analysis import Unit


class IncompleteWindowDropped(Rule):
    """The last window of an epoch is thrown away when the number of batches is not a multiple of its length.

    ## What it does
    Reports a window boundary such as `(i + 1) % accumulate == 0` when nothing steps the remaining micro-batches: no
    flush after the loop and no test for the last batch in the condition.

    ## Why is this bad
    The gradients of the last micro-batches are computed and then cleared at the start of the next epoch, or carried
    into it. In two epochs of 6 batches with a window of 4, 4 of 12 batches had no effect. Where they are carried over,
    the scale may change under them through an `update()` by hand or a loaded state.

    ## Example
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda")
    accumulate = 4
    batches = torch.randn(6, 16, 8, device=device)

    for _ in range(2):
        optimizer.zero_grad()
        for i, x in enumerate(batches):
            with torch.autocast("cuda"):
                loss = model(x).square().mean() / accumulate
            scaler.scale(loss).backward()
            if (i + 1) % accumulate == 0:  # <- here
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda")
    accumulate = 4
    batches = torch.randn(6, 16, 8, device=device)

    for _ in range(2):
        optimizer.zero_grad()
        for i, x in enumerate(batches):
            with torch.autocast("cuda"):
                loss = model(x).square().mean() / accumulate
            scaler.scale(loss).backward()
            if (i + 1) % accumulate == 0 or i + 1 == len(batches):
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
    ```

    ## Known limits
    Loops that are known to be endless, and lengths that are constants and multiples of the window, are silent. A data
    loader with a matching `drop_last` is not recognised. A step after the loop silences the rule whatever its
    condition.

    ## Fix safety
    No fix: the last window is divided by the wrong number either way, and the scheduler counts on a number of steps.

    ## How it is confirmed
    The replay runs an epoch whose length is no multiple of the window and counts the micro-batches that reached a
    step.

    ## References
    - [Gradient accumulation](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation)
    """

    code = "AMP306"
    name = "incomplete-window-dropped"
    severity = Severity.INFO
    needles = ((b".step(", b".scale("), (b".scale(", b"scaler", b"Scaler", b"unscale_"))
    confirmed_by = "own"

    def check(self, unit: Unit) -> Iterator[Fault]:
        yield from ()
