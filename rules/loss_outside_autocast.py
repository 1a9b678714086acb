"""AMP111: the loss is computed after the region from its 16-bit outputs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from amplint.finding import Confidence, Severity
from amplint.needles import ENABLES, REGION_OF_A_HELPER, TRAINS
from amplint.precision import Fact, Tensor, Unknown, facts_of
from amplint.rule import Fault, Rule

if TYPE_CHECKING:
    from amplint.analysis import Unit

_LOSS_NAMES = re.compile(r"(loss|criter)(?!\w*scaler)", re.IGNORECASE)
_LOSS_FUNCTIONS = re.compile(r"_loss$|cross_entropy|kl_div|_nll$")


class LossOutsideAutocast(Rule):
    """The loss is computed after the autocast region from its 16-bit outputs, without a cast to fp32.

    ## What it does

    Reports a loss that is computed after an autocast region (or after a call of a decorated forward) from tensors
    which the region made in 16 bit, when it is backpropagated and none of its operands is cast to fp32.

    ## Why is this bad

    Inside a region on cuda, losses, sums, powers and softmax run in fp32: that is what their place on autocast's list
    is for. Outside of it they run in the dtype of their input. Cross entropy of fp16 logits was off by 1.3e-4 instead
    of 9e-8, and a sum of squares that should have been 1.3e8 was infinite. With a scaler an infinite loss makes every
    step be skipped.

    The harm is often small, and some projects cast the output of the model in a place that is not seen. The rule is
    therefore shown on request only.

    ## Example

    ```python
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    scaler = torch.amp.GradScaler("cuda", init_scale=1.0)


    def train_step(field):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            residual = model(field)
        loss = residual.square().sum()  # <- here
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()


    print([train_step(100 * torch.randn(64, 16, device="cuda")) for _ in range(3)])
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    scaler = torch.amp.GradScaler("cuda", init_scale=1.0)


    def train_step(field):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            residual = model(field)
        loss = residual.float().square().sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()


    print([train_step(100 * torch.randn(64, 16, device="cuda")) for _ in range(3)])
    ```

    ## Known limits

    - A target in fp32 promotes many losses to fp32 by itself; the rule may report such a loss, since it does not know
      the dtype of what comes from a data loader.
    - A loss function that casts its arguments is recognised when it is in the project, and trusted when it is not
      seen.

    ## Fix safety

    No fix. Moving the loss into the region and casting the output are both right; which of them fits depends on what
    else the output is used for.

    ## How it is confirmed

    The gradients of the program as written are compared with those of the fp32 run, on outputs large enough for a sum
    of squares to leave the range of fp16. Where the loss stays in range, the difference is reported as it is.

    ## References

    - https://docs.pytorch.org/docs/stable/amp.html#cuda-ops-that-can-autocast-to-float32
    - https://docs.pytorch.org/docs/stable/notes/amp_examples.html#typical-mixed-precision-training
    """

    code = "AMP111"
    name = "loss-outside-autocast"
    severity = Severity.INFO
    needles = ((ENABLES,), TRAINS)
    near = (REGION_OF_A_HELPER,)
    confirmed_by = "grad"

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        for fact in facts_of(unit.env, unit.target):
            inside = fact.region is not None or any(r.kind == "no_grad" for r in fact.regions)
            if inside or not _is_loss(fact):
                continue
            half = [v for v in fact.operands if isinstance(v, Tensor) and v.dtype in ("float16", "bfloat16")]
            if half:
                yield Fault(
                    fact.site,
                    f"the loss is computed after the region from its {half[0].dtype} outputs",
                    fact.steps,
                    confidence=Confidence.HIGH if half[0].sure else Confidence.MEDIUM,
                )


def _is_loss(fact: Fact) -> bool:
    name = fact.operation.rpartition(".")[2]
    if fact.kind == "apply" and isinstance(fact.receiver, Unknown):
        return bool(_LOSS_NAMES.search(fact.receiver.key[-1]))
    if fact.kind != "call":
        return False
    if fact.operation.startswith("torch.nn."):
        return name.endswith("Loss") or bool(_LOSS_FUNCTIONS.search(name))
    # a loss by hand: a reduction whose result is called so
    statement = fact.env.source.statement(fact.node)
    small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    target = small.targets[0].target if isinstance(small, cst.Assign) else None
    return name in ("sum", "mean") and isinstance(target, cst.Name) and "loss" in target.value
