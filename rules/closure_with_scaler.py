"""AMP214: a closure is passed through an enabled scaler."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.needles import SCALER_HERE, SCALES
from amplint.protocol import right_elsewhere, scaled_in_other_arm
from amplint.rule import Fault, Rule, Site
from amplint.values import Class, Func, Partial, Scaler

if TYPE_CHECKING:
    from amplint.analysis import Unit
    from amplint.states import Event
    from amplint.traces import Trace


class ClosureWithScaler(Rule):
    """`scaler.step` is given a closure, which an enabled scaler cannot support.

    ## What it does
    Reports `scaler.step(optimizer, closure)` and `scaler.step(optimizer, closure=closure)`, for LBFGS, SAM and every
    other optimizer that evaluates the loss again inside its step.

    ## Why is this bad
    The keyword form raises `Closure use is not currently supported if GradScaler is enabled.`, even for
    `closure=None`: torch only looks whether the keyword is there. The positional form raises nothing. The scaler
    unscales the gradients, the optimizer calls the closure, whose backward scales them again, and the step uses those:
    3072 instead of 3 with S = 1024. No check for infinities sees them.

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

        def closure():
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = model(x).square().mean()
            scaler.scale(loss).backward()
            return loss

        closure()
        scaler.step(optimizer, closure)  # <- here
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

        def closure():
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = model(x).square().mean()
            scaler.scale(loss).backward()
            return loss

        closure()
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Known limits
    A positional `None` is harmless and silent, and so is a parameter whose only known value is None. A closure that
    goes directly to `optimizer.step` in the branch without a scaler is right. Arguments after the optimizer that
    amplint cannot identify as a closure are not reported. A scaler that may be of a class of the project's own is left
    alone.

    ## Fix safety
    No fix. An optimizer that needs its closure has to run without a scaler: in bfloat16, or in fp32.

    ## How it is confirmed
    torch raises on the keyword form. On the positional form the gradients inside `optimizer.step` are S times those of
    a run with a disabled scaler.

    ## References
    - `torch/amp/grad_scaler.py`: `GradScaler.step`
    - [Optimizers that take a closure](https://docs.pytorch.org/docs/stable/optim.html#optimizer-step-closure)
    """

    code = "AMP214"
    name = "closure-with-scaler"
    severity = Severity.ERROR
    needles = ((b".step(",), SCALES)
    near = (SCALER_HERE,)
    confirmed_by = "grad"

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        for trace, position, event in unit.events("step", "opt_step"):
            if event.kind == "opt_step":
                scaled = _scaled_inside(trace, position, event)
                if (
                    scaled is not None
                    and not right_elsewhere(unit, event, "step")
                    and not scaled_in_other_arm(event.site)
                ):
                    yield Fault(
                        event.site,
                        "the closure scales its loss, and the optimizer steps on the scaled gradients",
                        (
                            *unit.call_steps(event),
                            (scaled.site, "scaled backward inside the closure"),
                            *_next_update(trace, position, scaled.scaler),
                        ),
                        unit.assumptions(event),
                        unit.confidence(scaled.scaler, event.optimizer),
                    )
                continue
            keyword = "closure" in event.details["keywords"]
            if not keyword and not any(isinstance(value, _CALLABLES) for value in event.details["arguments"]):
                continue
            if event.scaler is not None and _may_be_the_projects(unit, event.scaler):
                # which can do what torch's cannot
                continue
            yield Fault(
                event.site,
                "a closure is passed through an enabled scaler, which raises"
                if keyword
                else "the optimizer runs the closure after the gradients were unscaled, and steps on scaled ones",
                (*unit.call_steps(event),),
                unit.assumptions(event),
                unit.confidence(event.scaler, event.optimizer),
            )


_CALLABLES = (Func, Partial)
_OWN_SCALER = re.compile(r"\b(?!Sharded)[A-Z]\w*GradScaler\b")


def _may_be_the_projects(unit: Unit, scaler: Scaler) -> bool:
    """Whether a scaler may be of a class of the project: one is named where it is made, where its variable is bound
    otherwise, or anywhere where nothing shows how it is made."""
    cls = unit.executor.classes_of.get(scaler)
    if isinstance(cls, Class) and "step" in cls.scope.children:
        return True
    made = unit.site_of(scaler)
    if made is None:
        return bool(_OWN_SCALER.search(unit.source.code))
    text = made.module.segment(made.module.statement(made.node))
    target = text.partition("=")[0].strip()
    lines = (line.strip() for line in made.module.text.splitlines())
    return any(_OWN_SCALER.search(line) for line in (text, *(line for line in lines if line.startswith(f"{target} ="))))


def _next_update(trace: Trace, position: int, scaler: Scaler | None) -> Iterator[tuple[Site, str]]:
    for later in trace.events[position + 1 :]:
        if later.kind == "update" and later.scaler is scaler:
            yield later.site, "the update() after it has nothing to decide from"
            return


def _scaled_inside(trace: Trace, position: int, event: Event) -> Event | None:
    """A scaled backward that `optimizer.step(closure)` itself has called."""
    for later in trace.events[position + 1 :]:
        if event.site not in later.calls:
            return None
        if later.kind == "backward" and later.scaler is not None:
            return later
    return None
