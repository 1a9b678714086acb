"""AMP901: a suppression comment that suppresses nothing, or names no rule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.rule import Fault, Rule

if TYPE_CHECKING:
    from amplint.analysis import Unit


class UnusedSuppression(Rule):
    """A suppression comment suppresses nothing, or does not say what it suppresses.

    ## What it does
    Reports `# amplint: ignore[...]` and `# amplint: file-ignore[...]` comments that silence no finding, that name a
    rule which does not exist, or that name no rule at all. Only rules that ran on the file count: one that is not
    selected, lies below the severity threshold, or does not apply to the torch version of the project might have been
    silenced, and is left alone.

    ## Why is this bad
    A comment that outlived its reason hides the next real fault at the same place. A comment with a misspelled rule
    hides nothing, and the reader believes that it does. A comment that names no rule hides faults that nobody has
    thought of when it was written.

    ## Example
    ```python
    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")

    for _ in range(4):
        optimizer.zero_grad()
        with torch.autocast("cpu"):
            loss = model(torch.randn(8, 4)).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # amplint: ignore[AMP201]
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Use instead
    ```python
    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")

    for _ in range(4):
        optimizer.zero_grad()
        with torch.autocast("cpu"):
            loss = model(torch.randn(8, 4)).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Known limits
    `# noqa` comments are never reported, since other linters read them as well. A finding that shows only when a
    calling file is checked too is not there when its file is checked alone, and then neither is a use for the comment
    that silences it.

    ## Fix safety
    Safe: only comments change. What is still in use stays, with its reason.

    ## How it is confirmed
    Not by running anything: the comment has no effect on the program.

    ## References
    - https://amplint.readthedocs.io/suppression/
    """

    code = "AMP901"
    name = "unused-suppression"
    severity = Severity.WARNING
    needles = ((b"amplint:",),)
    fix = "safe"

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield nothing: only the engine knows what the other rules found."""
        yield from ()
