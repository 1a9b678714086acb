"""AMP221: a loss scaler is used where the region is bfloat16."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from amplint.finding import Severity
from amplint.needles import ENABLES, SCALER_HERE
from amplint.regions import sure_dtype_of
from amplint.rule import Change, Fault, FixPlan, Rule, Site
from amplint.values import FALSE, TRUE

if TYPE_CHECKING:
    from amplint.analysis import Unit
    from amplint.states import Event
    from amplint.traces import Trace
    from amplint.values import Scaler


class ScalerWithBfloat16(Rule):
    """An enabled scaler accompanies an autocast that can only be bfloat16, where it does nothing useful.

    ## What it does
    Reports a `GradScaler` that is enabled on every path while each autocast region of the training has
    `dtype=torch.bfloat16`, or is a region for the cpu that names no dtype.

    ## Why is this bad
    bfloat16 has the exponent range of float32, so gradients do not underflow and there is nothing to scale. The
    results are the same, bitwise, after 50 AdamW steps with and without a scaler, and no step was skipped. It costs a
    kernel over all gradients and a synchronisation with the device in each step, and the scale grows without need, to
    1.7e38.

    ## Example
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda")  # <- here

    for _ in range(4):
        x = torch.randn(16, 8, device=device)
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    for _ in range(4):
        x = torch.randn(16, 8, device=device)
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
    ```

    ## Known limits
    Silent when the dtype is chosen at run time, when `enabled=` depends on it, or when another region of the training
    is float16. bfloat16 parameters together with a scaler are AMP402.

    ## Fix safety
    Unsafe: `enabled=False` is added to the constructor, which keeps all calls valid. Steps that the scaler would have
    skipped because of a genuine infinity are then taken.

    ## How it is confirmed
    The replay compares the gradients with those of a bfloat16 run whose scaler is disabled: they are equal bit by bit.

    ## References
    - [Automatic mixed precision package](https://docs.pytorch.org/docs/stable/amp.html)
    - `torch/amp/grad_scaler.py`: `GradScaler`
    """

    code = "AMP221"
    name = "scaler-with-bfloat16"
    severity = Severity.INFO
    needles = ((ENABLES,), (b"Scaler", b"scaler"))
    near = (SCALER_HERE,)
    fix = "unsafe"
    confirmed_by = "own"
    yields_to = ("AMP402",)

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        for _, _, event in unit.events("construct_scaler"):
            scaler = event.scaler
            if scaler is None or scaler.enabled is not TRUE or scaler.flavour == "native":
                # timm's cannot be switched off
                continue
            using = [trace for trace in unit.traces if _steps(trace, scaler)]
            region = _bfloat16_region(unit, using[0]) if using else None
            if region is None or not all(_bfloat16_region(unit, trace) for trace in using[1:]):
                continue
            step = _steps(using[0], scaler)[0]
            yield Fault(
                event.site,
                "the scaler does nothing useful: every region of this training is bfloat16",
                ((region.site, "autocast is bfloat16 here"), (step.site, "the scaler steps here")),
                unit.assumptions(event),
                unit.confidence(scaler),
                _fix(event.site),
            )


def _steps(trace: Trace, scaler: Scaler) -> list[Event]:
    return [event for event in trace.events if event.kind == "step" and event.scaler is scaler]


def _bfloat16_region(unit: Unit, trace: Trace) -> Event | None:
    """A region of a trace, if all that can be enabled are bfloat16 for certain."""
    regions = [
        event
        for event in trace.events
        if event.kind == "construct_autocast" and event.details["context"].details.enabled is not FALSE
    ]
    dtypes = {sure_dtype_of(unit, event.details["context"]) for event in regions}
    return regions[0] if dtypes == {"bfloat16"} else None


def _fix(site: Site) -> FixPlan | None:
    """Switch the scaler off where it is made, so that all its calls stay valid."""
    call, module = site.node, site.module
    if not isinstance(call, cst.Call) or any(arg.star for arg in call.args):
        return None
    title = "disable the scaler"
    for arg in call.args:
        if arg.keyword is not None and arg.keyword.value == "enabled":
            return FixPlan("unsafe", title, (Change("replace", Site(module, arg.value), "False"),))
    if not call.args:
        text = f"{module.segment(call.func)}(enabled=False)"
        return FixPlan("unsafe", title, (Change("replace", site, text),))
    last = call.args[-1]
    if last.keyword is None and len(call.args) > 4:
        return None
    text = f"{module.segment(last.value)}, enabled=False"
    if last.keyword is not None:
        text = f"{last.keyword.value}={text}"
    return FixPlan("unsafe", title, (Change("replace", Site(module, last), text),))
