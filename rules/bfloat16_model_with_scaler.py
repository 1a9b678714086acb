"""AMP402: a model whose weights are bf16 is trained through a gradient scaler."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint import guards
from amplint.finding import Severity
from amplint.layout import receiver_text
from amplint.needles import TRAINS, UNSCALES
from amplint.protocol import keeps_masters
from amplint.rule import Change, Fault, FixPlan, Rule
from amplint.values import Optimizer

if TYPE_CHECKING:
    from amplint.analysis import Unit
    from amplint.states import Event
    from amplint.traces import Trace

_FLOAT16_OPTION = re.compile(r"(?<!b)(fp|float)16", re.IGNORECASE)


class Bfloat16ModelWithScaler(Rule):
    """A model whose weights are bf16 is trained through a `GradScaler`.

    ## What it does

    Reports the cast of a whole model to bf16 (`.bfloat16()`, `.to(torch.bfloat16)`, `torch_dtype=torch.bfloat16`, a
    loop over its parameters) when an enabled `GradScaler` steps the optimizer of the same model.

    ## Why is this bad

    Two things are wrong at once.

    - The scaler has no use: bf16 has the range of fp32, so its gradients do not underflow. The scale only grows, up
      to 2^127 in the end, and each step waits for the check of the gradients. On CUDA some versions of torch have no
      kernel that unscales bf16 gradients and raise `NotImplementedError`.
    - The weights have no fp32 copy. A step smaller than half the distance between two neighbouring bf16 numbers is
      lost: with `lr * gradient = 1e-4`, a weight of 1 was still exactly 1.0 after 1000 steps, where fp32 weights
      reached 0.9.

    ## Example

    ```python
    import torch
    from torch import nn

    torch.manual_seed(0)


    def train(batches):
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).to("cuda")
        model = model.to(torch.bfloat16)  # <- here
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
        scaler = torch.amp.GradScaler("cuda")
        before = model[0].weight.detach().clone()
        for x, y in batches:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x.bfloat16()).float(), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return (model[0].weight != before).float().mean().item()


    x, y = torch.randn(16, 8, device="cuda"), torch.randn(16, 1, device="cuda")
    print(train([(x, y)] * 4))
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn

    torch.manual_seed(0)


    def train(batches):
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).to("cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
        before = model[0].weight.detach().clone()
        for x, y in batches:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = nn.functional.mse_loss(model(x).float(), y)
            loss.backward()
            optimizer.step()
        return (model[0].weight != before).float().mean().item()


    x, y = torch.randn(16, 8, device="cuda"), torch.randn(16, 1, device="cuda")
    print(train([(x, y)] * 4))
    ```

    ## Known limits

    - A scaler that is disabled, or enabled by the dtype or an option for float16, is right and is not reported.
    - Frozen models, copies for export and optimizers that keep fp32 master weights are treated as in
      `half-model-with-amp`.

    ## Fix safety

    Unsafe. The fix removes the cast, which brings back fp32 weights and their memory. To train in pure bf16 on
    purpose, remove the scaler instead.

    ## How it is confirmed

    The replay trains the cast model through the scaler with updates of a realistic size and compares the weights with
    an fp32 run: updates that are lost confirm the finding.

    ## References

    - `torch/amp/grad_scaler.py`, `GradScaler._unscale_grads_`
    - https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling
    """

    code = "AMP402"
    name = "bfloat16-model-with-scaler"
    severity = Severity.WARNING
    needles = ((b"GradScaler", b".scale(", UNSCALES), TRAINS)
    fix = "unsafe"
    confirmed_by = "own"

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        for trace, position, cast in unit.events("cast"):
            step = _scaled_step(unit, trace, position, cast) if cast.details["dtype"] == "bfloat16" else None
            if step is not None:
                made = unit.site_of(step.scaler)
                yield Fault(
                    cast.site,
                    "the whole model is cast to bfloat16, and a scaler steps its optimizer",
                    (
                        *unit.call_steps(cast),
                        (step.site, "its weights are stepped through the scaler here"),
                        *(((made, "the scaler is made here"),) if made is not None else ()),
                    ),
                    unit.assumptions(step),
                    unit.confidence(step.scaler, step.optimizer),
                    _fix(cast),
                )


def _scaled_step(unit: Unit, trace: Trace, position: int, cast: Event) -> Event | None:
    """The step through a scaler of an optimizer over the cast model, while the cast stands and nothing froze it."""
    target = cast.details["target"]
    owners = frozenset((target,))
    if any(e.kind == "freeze" and unit.overlap(owners, frozenset((e.details["target"],))) for e in trace.events):
        return None
    for event in trace.events[position + 1 :]:
        if event.kind == "cast" and event.details["target"] is target and event.details["dtype"] != "bfloat16":
            return None
        if event.kind != "step" or event.state.origin is None or keeps_masters(trace, event.optimizer):
            continue
        if _is_for_float16(event):
            continue
        optimizer = event.optimizer
        theirs = optimizer.owners if isinstance(optimizer, Optimizer) else None
        if theirs is None and not event.state.maybe:
            theirs = event.state.origin.details["value"].taint.owners
        if theirs is not None and unit.overlap(owners, theirs):
            return event
    return None


def _is_for_float16(step: Event) -> bool:
    """Whether an option that is named after float16 is on, beside which nobody sets the one for bfloat16."""
    return any(
        outcome and atom[0] == "true" and _FLOAT16_OPTION.search(guards.describe(atom[1]))
        for atom, outcome in step.assume.items()
    )


def _fix(cast: Event) -> FixPlan | None:
    """Take the cast away where it is a call of its own."""
    receiver = receiver_text(cast.site)
    if cast.details["how"] != "bfloat16" or not receiver:
        return None
    return FixPlan("unsafe", "remove the cast", (Change("replace", cast.site, receiver),))
