"""AMP101: the backward pass runs while an autocast region is active."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Confidence, Severity
from amplint.layout import is_tail_of_with
from amplint.needles import ENABLES, REGION_OF_A_HELPER, TRAINS
from amplint.rule import Change, Fault, FixPlan, Rule, Site
from amplint.values import FALSE, AttrOf, Framework

if TYPE_CHECKING:
    from amplint.analysis import Unit


class BackwardInAutocast(Rule):
    """The backward pass runs inside an enabled autocast region.

    ## What it does

    Reports `loss.backward()`, `torch.autograd.backward(...)` and `torch.autograd.grad(...)` without
    `create_graph=True` that are executed while an enabled autocast region is active. The region may be the `with`
    block around the call, a decorator of the function, a context kept in a variable or returned by a helper, or the
    region of a caller.

    ## Why is this bad

    Autograd runs each backward operation in the dtype that its forward operation left behind; a region that is still
    open casts a second time. What autocast already ran in 16 bit is not changed by that: for an MLP with GELU and
    layer norm, convolutions with batch norm and a transformer layer, the gradients inside and outside were bitwise
    equal. What the author kept in fp32 on purpose is changed, because its backward matrix products are cast down:

    | forward | relative difference of the gradient, bf16 / fp16 |
    |---|---|
    | fp32 island (`autocast(enabled=False)`) around a linear layer | 3.2e-3 / 4.4e-4 |
    | fp32 island around a linear algebra operator | 4.4e-3 / 2.9e-2 |
    | forward made in fp32 before the region | 2.4e-3 / 3.2e-4 |
    | custom `autograd.Function` whose backward casts to fp32 | 2.2e-3 / 2.6e-4 |

    A tensor hook that multiplies matrices raises inside the region ("hook has changed the type of value"), and a
    custom `autograd.Function` without `custom_bwd` may run only there, so that moving the call later breaks the
    program. PyTorch documents the backward pass under autocast as not recommended.

    ## Example

    ```python
    import torch
    from torch import nn

    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Linear(16, 32), nn.GELU()).to("cuda")
    head = nn.Linear(32, 4).to("cuda")
    optimizer = torch.optim.SGD([*trunk.parameters(), *head.parameters()], lr=0.05)
    scaler = torch.amp.GradScaler("cuda")


    def train_step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            hidden = trunk(x)
            with torch.autocast("cuda", enabled=False):
                logits = head(hidden.float())
            loss = nn.functional.cross_entropy(logits, y)
            scaler.scale(loss).backward()  # <- here
        scaler.step(optimizer)
        scaler.update()
        return loss.item()


    for _ in range(4):
        inputs = torch.randn(8, 16, device="cuda")
        labels = torch.randint(4, (8,), device="cuda")
        train_step(inputs, labels)
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn

    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Linear(16, 32), nn.GELU()).to("cuda")
    head = nn.Linear(32, 4).to("cuda")
    optimizer = torch.optim.SGD([*trunk.parameters(), *head.parameters()], lr=0.05)
    scaler = torch.amp.GradScaler("cuda")


    def train_step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            hidden = trunk(x)
            with torch.autocast("cuda", enabled=False):
                logits = head(hidden.float())
            loss = nn.functional.cross_entropy(logits, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()


    for _ in range(4):
        inputs = torch.randn(8, 16, device="cuda")
        labels = torch.randint(4, (8,), device="cuda")
        train_step(inputs, labels)
    ```

    ## Known limits

    - A region entered by a framework (Lightning, accelerate, ignite) around a method that your file only defines is
      not seen.
    - `torch.autograd.grad(..., create_graph=True)` belongs to the forward of a penalty and is left alone, even where
      the penalty is not backpropagated.
    - A region compiled by `torch.compile` traces its backward under autocast wherever `backward()` is called, unless
      `torch._functorch.config.backward_pass_autocast` is `"off"`. This rule does not look at compiled regions.

    ## Fix safety

    Safe. The statement is moved out of the `with` block when it is the last one of the block, so that nothing else
    changes its order. Where statements follow it, no fix is offered. After the fix the numbers of an fp32 island or
    of a custom function may differ by the amounts above: that is the point of it.

    ## How it is confirmed

    The verifier records `torch.is_autocast_enabled` at the moment of the backward: a call that runs with autocast on
    confirms the finding. It also compares the gradients with those of the same step with the backward outside, for
    the model as written and for one with an fp32 island. "No difference measured here" is an honest answer for a
    plain model.

    ## References

    - `torch/amp/autocast_mode.py`, docstring of `autocast`: "Backward passes under autocast are not recommended."
    - https://docs.pytorch.org/docs/stable/amp.html#autocasting
    - https://docs.pytorch.org/docs/stable/notes/amp_examples.html#typical-mixed-precision-training
    """

    code = "AMP101"
    name = "backward-in-autocast"
    severity = Severity.WARNING
    needles = ((ENABLES,), TRAINS)
    near = (((ENABLES,),), REGION_OF_A_HELPER)
    fix = "safe"
    confirmed_by = "state"

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        for trace, _, event in unit.events("backward", "autograd_grad"):
            if event.kind == "autograd_grad" and event.details["create_graph"] is not FALSE:
                continue
            region = unit.autocast(event, trace)
            if region is None:
                continue
            enabled = region.context.details.enabled
            framework = isinstance(enabled, AttrOf) and isinstance(enabled.base, Framework)
            yield Fault(
                event.site,
                "backward runs while autocast is enabled",
                ((region.site, "autocast is entered here"), *unit.call_steps(event)),
                unit.assumptions(event, enabled),
                Confidence.MEDIUM if framework else Confidence.HIGH,
                _dedent(event.site, region.site),
            )


def _dedent(backward: Site, region: Site) -> FixPlan | None:
    if not is_tail_of_with(backward, region):
        return None
    return FixPlan("safe", "move the backward out of the autocast block", (Change("dedent", backward),))
