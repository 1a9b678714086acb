"""AMP205: a step is not followed by an update before the next one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.layout import is_plain_path, receiver_text
from amplint.needles import SCALER_HERE, SCALES
from amplint.protocol import between, previous, same_round
from amplint.rule import Change, Fault, FixPlan, Rule

if TYPE_CHECKING:
    from amplint.analysis import Unit
    from amplint.states import Event


class MissingUpdate(Rule):
    """`scaler.step` is reached a second time with no `scaler.update()` in between.

    ## What it does
    Reports a `scaler.step(optimizer)` from which the next `step` or `unscale_` of that optimizer can be reached
    without `update()`.

    ## Why is this bad
    The scaler remembers that this optimizer has been stepped until `update()` clears it. The next call raises: `step()
    has already been called since the last update().` or `unscale_() is being called after step().` It does not show
    with a disabled scaler, so a run without a GPU passes and the first one with a GPU stops at the second iteration. A
    scaler that is created anew in every iteration hides it as well, and then the scale never adapts (AMP215).

    ## Example
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda")

    for i in range(4):
        x = torch.randn(16, 8, device=device)
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)  # <- here
        if i % 2 == 1:
            scaler.update()
            print(f"step {i}, scale {scaler.get_scale()}")
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda")

    for i in range(4):
        x = torch.randn(16, 8, device=device)
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if i % 2 == 1:
            print(f"step {i}, scale {scaler.get_scale()}")
    ```

    ## Known limits
    Silent where the scaler goes into a call that amplint cannot follow, since the callee may update, and where a
    callback or the caller does it. One `update()` for several optimizers is right and not reported. Jumps that skip
    the `update()` are AMP209, a swapped order is AMP208.

    ## Fix safety
    Unsafe: `scaler.update()` is inserted after the last `step` of the iteration. The place is certain in a plain loop
    only; with several optimizers it may have to move.

    ## How it is confirmed
    The replay runs two iterations with an enabled scaler and torch raises.

    ## References
    - [Typical mixed precision
      training](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#typical-mixed-precision-training)
    - `torch/amp/grad_scaler.py`: `GradScaler.step`, `GradScaler.update`
    """

    code = "AMP205"
    name = "missing-update"
    severity = Severity.ERROR
    needles = ((b".step(", b".scale("), SCALES)
    near = (SCALER_HERE, ((b".step(",), (b"backward(",)))
    fix = "unsafe"
    confirmed_by = "raise"
    yields_to = ("AMP208", "AMP209", "AMP213", "AMP216", "AMP301")

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        for trace, position, event in unit.events("step", "unscale_"):
            if event.stage != "stepped":
                continue
            found = previous(trace, position, event, "step")
            if found is None:
                continue
            start, step = found
            if event.kind == "unscale_" and not between(trace, start, position, "backward"):
                # the same gradients are unscaled again after their step
                continue
            if any(
                same_round(step, other) and other.scaler is step.scaler
                for other in between(trace, start, position, "step")
            ):
                # of several optimizers the last step is what the update has to follow
                continue
            what = "the next step" if event.kind == "step" else "the next unscale_"
            yield Fault(
                step.site,
                "the step is not followed by update() before the next one",
                (*unit.call_steps(step), (event.site, f"{what} of this optimizer raises")),
                unit.assumptions(event),
                unit.confidence(step.scaler, step.optimizer),
                _fix(unit, step),
            )


def _fix(unit: Unit, step: Event) -> FixPlan | None:
    """Update behind the step, where there is one optimizer and no update at all."""
    steps = {e.site.identity for _, _, e in unit.events("step") if e.scaler is step.scaler}
    updates = [e for _, _, e in unit.events("update") if e.scaler is step.scaler]
    scaler = receiver_text(step.site)
    if len(steps) != 1 or updates or not is_plain_path(scaler):
        return None
    change = Change("insert-after", step.site, f"{scaler}.update()")
    return FixPlan("unsafe", f"insert {scaler}.update() behind the step", (change,))
