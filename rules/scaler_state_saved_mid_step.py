"""AMP504: the scaler's state is saved in the middle of a step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from amplint.finding import Severity
from amplint.layout import function_of
from amplint.rule import Fault, Rule, Site
from amplint.source import children
from amplint.values import Scaler, Value

if TYPE_CHECKING:
    from amplint.analysis import Unit
    from amplint.source import SourceModule
    from amplint.states import Event
    from amplint.traces import Trace


class ScalerStateSavedMidStep(Rule):
    """The scaler is saved or pickled after `unscale_` or `step` and before `update()`.

    ## What it does
    Reports `scaler.state_dict()`, pickling or deep-copying a scaler (also as part of what `torch.save` gets) between
    `unscale_` or `step` and the `update()` that belongs to it.

    ## Why is this bad
    The outcome of the step is not in the scale yet. After an overflow the checkpoint held 1024 where the run went on
    with 512, so the resumed run overflows again; the growth counter is one step behind as well. Pickling and
    `copy.deepcopy` raise at this point: `A GradScaler instance may only be pickled at the beginning of an iteration,
    or at the end after scaler.update().`

    ## Example
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda")

    for _ in range(4):
        x = torch.randn(16, 8, device=device)
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        checkpoint = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scaler": scaler.state_dict(),  # <- here
        }
        scaler.update()
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda")

    for _ in range(4):
        x = torch.randn(16, 8, device=device)
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        checkpoint = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scaler": scaler.state_dict(),
        }
    ```

    ## Known limits
    Saving in an accumulation window before `unscale_` is complete as far as the scaler is concerned and silent. A save
    in a callback that amplint cannot place in the step is not reported, nor a state of which only single entries are
    read, for a log.

    ## Fix safety
    No fix: `update()` may have to stay where it is because other optimizers follow.

    ## How it is confirmed
    The replay injects an overflow and compares the saved scale with the one after `update()`; for pickling torch
    raises.

    ## References
    - `torch/amp/grad_scaler.py`: `GradScaler.state_dict`, `GradScaler.__getstate__`
    """

    code = "AMP504"
    name = "scaler-state-saved-mid-step"
    severity = Severity.WARNING
    needles = ((b"state_dict", b".save(", b"dump", b"copy"), (b"scaler", b"Scaler"))
    confirmed_by = "own"
    yields_to = ("AMP205", "AMP208", "AMP209", "AMP216", "AMP301", "AMP302")

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        for trace, position, event in unit.events("state_dict", "save", "copy"):
            for scaler, optimizer, is_pickled in _mid_step(event):
                begun = _begun(trace, position, scaler, optimizer)
                if begun is None or not unit.can_hold(scaler.switch, event.assume, trace):
                    continue
                if event.kind == "state_dict" and _is_looked_at(event.site):
                    continue
                what = "pickled" if is_pickled else "saved"
                yield Fault(
                    event.site,
                    f"the scaler is {what} in the middle of a step, before update() has changed its scale",
                    ((begun.site, "the step begins here"), *unit.call_steps(event)),
                    unit.assumptions(event),
                    unit.confidence(scaler, optimizer),
                )
                break


def _is_looked_at(site: Site) -> bool:
    """Whether nothing is done with a state but to read single entries, for a log."""
    module, node = site.module, site.node
    if isinstance(module.parent(node), cst.Subscript):
        return True
    statement = module.parent(node)
    target = statement.targets[0].target if isinstance(statement, cst.Assign) and len(statement.targets) == 1 else None
    if not isinstance(target, cst.Name):
        return False
    around = function_of(site) or module.tree
    uses = [n for n in _names(around) if n.value == target.value and n is not target]
    return bool(uses) and all(
        isinstance(user := module.parent(n), cst.Subscript) and user.value is n and not _is_target(module, user)
        for n in uses
    )


def _names(node: cst.CSTNode) -> Iterator[cst.Name]:
    for child in children(node):
        if isinstance(child, cst.Name):
            yield child
        yield from _names(child)


def _is_target(module: SourceModule, node: cst.CSTNode) -> bool:
    return isinstance(module.parent(node), cst.AssignTarget)


def _mid_step(event: Event) -> Iterator[tuple[Scaler, Value, bool]]:
    """The scalers whose state an event keeps although an `update()` is due, each with the optimizer in question."""
    held: dict[Scaler, tuple[tuple[Value, str], ...]] = {}
    if event.kind == "save":
        known = event.details["stages"]
        held = {v: known.get(v, ()) for v in event.details["contents"] if isinstance(v, Scaler)}
        payload = event.details["payload"]
        if isinstance(payload, Scaler):
            held[payload] = known.get(payload, ())
    elif isinstance(event.details["of"], Scaler):
        held = {event.details["of"]: event.details["stages"]}
    for scaler, stages in held.items():
        for optimizer, stage in stages:
            if stage in ("unscaled", "stepped"):
                yield scaler, optimizer, event.kind != "state_dict"


def _begun(trace: Trace, position: int, scaler: Scaler, optimizer: Value) -> Event | None:
    """The `unscale_` or `step` of the same round after which the scaler is kept."""
    kept = trace.events[position]
    for event in reversed(trace.events[:position]):
        if event.kind in ("unscale_", "step") and event.scaler is scaler and event.optimizer is optimizer:
            # a round that ended without update() is another fault
            return event if kept.loops[: len(event.loops)] == event.loops else None
    return None
