"""AMP105: binary cross entropy on probabilities inside a cuda or xpu autocast region."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from amplint.finding import Confidence, Severity
from amplint.needles import ENABLES, REGION_OF_A_HELPER, TRAINS
from amplint.regions import device_of
from amplint.rule import Change, Fault, FixPlan, Rule, Site

if TYPE_CHECKING:
    from amplint.analysis import Unit


class BceInAutocast(Rule):
    """Binary cross entropy on probabilities is called in an enabled cuda or xpu autocast region.

    ## What it does

    Reports calls of `torch.nn.functional.binary_cross_entropy` and of `nn.BCELoss` objects that are executed while an
    enabled autocast region for cuda or xpu is active, also through a helper function or in a `forward` that is called
    in a region.

    ## Why is this bad

    Torch refuses the call:
    `RuntimeError: torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.` A
    probability near 0 or 1 is rounded to 0 or 1 in 16 bit, and the gradient of its logarithm does not fit into fp16.
    The exception is raised on the GPU only: cpu autocast runs the same call in fp32, so that tests on a machine
    without a GPU pass.

    ## Example

    ```python
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1), nn.Sigmoid()).to("cuda")
    criterion = nn.BCELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cuda")


    def train_step(x, clicked):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            probability = model(x).squeeze(1)
            loss = criterion(probability, clicked)  # <- here
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()


    for _ in range(3):
        train_step(torch.randn(8, 6, device="cuda"), torch.ones(8, device="cuda"))
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1)).to("cuda")
    criterion = nn.BCEWithLogitsLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cuda")


    def train_step(x, clicked):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            logit = model(x).squeeze(1)
            loss = criterion(logit, clicked)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()


    for _ in range(3):
        train_step(torch.randn(8, 6, device="cuda"), torch.ones(8, device="cuda"))
    ```

    ## Known limits

    - Regions for other devices, the cpu among them, accept the call and are not reported. Where the device type is
      known at run time only, the finding is of medium confidence.
    - A loss object that is chosen from a configuration is not followed.

    ## Fix safety

    Unsafe. Where a sigmoid is written as the first argument of `F.binary_cross_entropy`, the fix removes it and takes
    the with-logits form. No fix is offered for other forms: whoever uses the output of the model as a probability
    elsewhere must add the sigmoid there. The call can also be moved into a block `torch.autocast("cuda",
    enabled=False)` with `.float()` on its inputs.

    ## How it is confirmed

    The call is executed under cuda autocast and raises. Without a GPU the operator is run on fake tensors, which take
    the same dispatch path; where that is not possible either, the verdict is inconclusive: needs cuda.

    ## References

    - `aten/src/ATen/autocast_mode.cpp`, `binary_cross_entropy_banned`
    - https://docs.pytorch.org/docs/stable/amp.html#prefer-binary-cross-entropy-with-logits-over-binary-cross-entropy
    """

    code = "AMP105"
    name = "bce-in-autocast"
    severity = Severity.ERROR
    needles = ((ENABLES,), (*TRAINS, b"binary_cross_entropy", b"BCELoss", b"criterion", b"loss_fn"))
    near = (REGION_OF_A_HELPER, ((b"BCELoss",),))
    fix = "unsafe"
    confirmed_by = "raise"

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        for trace, _, event in unit.events("bce"):
            region = unit.autocast(event, trace)
            device = device_of(unit, region.context) if region is not None else None
            if region is None or device not in (None, "cuda", "xpu"):
                continue
            yield Fault(
                event.site,
                "binary cross entropy on probabilities raises in a cuda autocast region",
                ((region.site, "autocast is entered here"), *unit.call_steps(event)),
                unit.assumptions(event, region.context.details.enabled),
                Confidence.HIGH if device is not None else Confidence.MEDIUM,
                _fix(event.site),
            )


def _fix(site: Site) -> FixPlan | None:
    """Take the with-logits form where a sigmoid is the first argument of the functional form."""
    call, module = site.node, site.module
    if (
        not isinstance(call, cst.Call)
        or not call.args
        or not module.segment(call.func).endswith("binary_cross_entropy")
    ):
        return None
    first = call.args[0]
    sigmoid = first.value
    if first.keyword is not None or first.star or not isinstance(sigmoid, cst.Call):
        return None
    called = module.segment(sigmoid.func)
    if called.endswith("sigmoid") and len(sigmoid.args) == 1:
        score = module.segment(sigmoid.args[0].value)
    elif called.endswith(".sigmoid") and not sigmoid.args and isinstance(sigmoid.func, cst.Attribute):
        score = module.segment(sigmoid.func.value)
    else:
        return None
    if not isinstance(call.func, cst.Attribute):
        return None
    changes = (
        Change("replace", Site(module, call.func.attr), "binary_cross_entropy_with_logits"),
        Change("replace", Site(module, sigmoid), score),
    )
    return FixPlan("unsafe", "use binary_cross_entropy_with_logits on the scores", changes)
