"""AMP223: the clip raises where the scaler would skip."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from amplint.finding import Severity
from amplint.needles import SCALER_HERE, SCALES
from amplint.rule import Change, Fault, FixPlan, Rule, Site
from amplint.values import TRUE

if TYPE_CHECKING:
    from amplint.analysis import Unit
    from amplint.states import Event
    from amplint.traces import Trace


class ErrorIfNonfiniteWithScaler(Rule):
    """`error_if_nonfinite=True` raises on the overflow that an enabled scaler is meant to handle.

    ## What it does
    Reports `clip_grad_norm_` or `get_total_norm` with `error_if_nonfinite=True`, by keyword or as the fourth argument,
    on gradients of an optimizer that an enabled scaler steps.

    ## Why is this bad
    The scaler starts at a scale that is meant to overflow in the first steps; it skips those and halves the scale.
    With `error_if_nonfinite` the first overflow raises `The total norm of order 2.0 for gradients from parameters is
    non-finite, so it cannot be clipped.` and ends the training, before `update()` could lower the scale.

    ## Example
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda")

    for _ in range(4):
        x = torch.randn(16, 8, device=device)
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)  # <- here
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda")

    for _ in range(4):
        x = torch.randn(16, 8, device=device)
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Known limits
    Silent without a scaler, with a constantly disabled one, and where the exception is caught around the clip. An
    argument whose value is not constant is not reported.

    ## Fix safety
    Safe: the argument is removed. The check for infinities stays, in the scaler.

    ## How it is confirmed
    The replay injects an overflow and the clip raises.

    ## References
    - `torch/nn/utils/clip_grad.py`: `clip_grad_norm_`
    - `torch/amp/grad_scaler.py`: `GradScaler.step`
    """

    code = "AMP223"
    name = "error-if-nonfinite-with-scaler"
    severity = Severity.WARNING
    needles = ((b"clip_grad_norm_", b"error_if_nonfinite"), SCALES)
    near = (SCALER_HERE,)
    fix = "safe"
    confirmed_by = "raise"

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        for trace, position, event in unit.events("clip", "grad_read"):
            if event.details.get("error_if_nonfinite") is not TRUE or _is_caught(event.site):
                continue
            step = _step_after(trace, position)
            if step is None or unit.only_bfloat16(trace):
                continue
            steps = [*unit.call_steps(event), (step.site, "the scaler would skip this step")]
            if step.state.origin is not None:
                steps.insert(0, (step.state.origin.site, "this backward may overflow"))
            yield Fault(
                event.site,
                "an overflow that the scaler would handle ends the training here",
                tuple(steps),
                unit.assumptions(event),
                unit.confidence(step.scaler, step.optimizer),
                _fix(unit, event),
            )


def _step_after(trace: Trace, position: int) -> Event | None:
    """The scaler's step that gets the gradients that are clipped."""
    clip = trace.events[position]
    for optimizer, gradients in clip.before.items():
        if gradients.kind not in ("S", "U") or gradients.scaler is None or gradients.maybe:
            continue
        for event in trace.events[position + 1 :]:
            if event.kind != "step" or event.scaler is not gradients.scaler:
                continue
            if event.state.last is gradients.last and (optimizer is None or event.optimizer is optimizer):
                return event
    return None


def _is_caught(site: Site) -> bool:
    """Whether the call stands in a `try` that has handlers, in its own function."""
    node, parent = site.node, site.module.parent(site.node)
    while parent is not None and not isinstance(parent, cst.FunctionDef):
        if isinstance(parent, (cst.Try, cst.TryStar)) and parent.handlers and node is parent.body:
            return True
        node, parent = parent, site.module.parent(parent)
    return False


_KEYWORD = re.compile(r",\s*error_if_nonfinite\s*=\s*True\b")


def _fix(unit: Unit, clip: Event) -> FixPlan | None:
    """Take the argument away (its default is False), where no training without a scaler relies on it."""
    site = clip.site
    call, module = site.node, site.module
    met = (g.kind for _, _, e in unit.events(clip.kind) if e.site.node is call for g in e.before.values())
    if not isinstance(call, cst.Call) or any(kind in ("P", "N") for kind in met):
        return None
    text = module.segment(call)
    shorter = _KEYWORD.sub("", text, count=1)
    if shorter == text:
        positional = [arg for arg in call.args if arg.keyword is None]
        last = positional[-1].value if positional else None
        if len(positional) == len(call.args) and isinstance(last, cst.Name) and last.value == "True":
            shorter = re.sub(r",\s*True\s*,?(\s*\))$", r"\1", text)
    if shorter == text:
        return None
    return FixPlan("safe", "leave infinities to the scaler", (Change("replace", site, shorter),))
