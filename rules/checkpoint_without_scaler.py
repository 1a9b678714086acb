"""AMP501: a resume checkpoint leaves out the state of the loss scaler."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from amplint.finding import Severity
from amplint.layout import class_of, function_of, is_plain_path, receiver_text, text_before
from amplint.rule import Change, Fault, FixPlan, Rule, Site
from amplint.values import DictV, Optimizer, Scaler, Scheduler, StateOf, Value

if TYPE_CHECKING:
    from amplint.analysis import Unit
    from amplint.states import Event


class CheckpointWithoutScaler(Rule):
    """A checkpoint for resuming holds the optimizer's state and not the scaler's.

    ## What it does
    Reports a checkpoint that holds the state of an optimizer or a scheduler, written where an enabled `GradScaler`
    takes part in the training, without that scaler's `state_dict()`. The checkpoint may be a dict literal, a
    `dict(...)` call, a dict filled key by key, a dataclass, one file per object, or the work of a helper in another
    function or file.

    ## Why is this bad
    The scaler's state is the current scale and the number of good steps since it last changed. A run that resumes
    without it starts at 65536 again, overflows, and skips steps until the scale has come down, while the scheduler
    and the step counter go on. Measured: 8 of 40 steps skipped after the resume and weights that differ by 1.7e-2;
    with the state restored no step was skipped and the weights were bitwise equal to those of an uninterrupted run.

    ## Example
    ```python
    import io

    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda")

    for step in range(4):
        x = torch.randn(16, 8, device=device)
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}  # <- here
    torch.save(checkpoint, io.BytesIO())
    ```

    ## Use instead
    ```python
    import io

    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda")

    for step in range(4):
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
        "step": step,
    }
    torch.save(checkpoint, io.BytesIO())
    ```

    ## Known limits
    Checkpoints with weights only, checkpoints of a run whose scaler is constantly disabled or whose autocast is
    constantly bfloat16, and checkpoints that a framework writes are silent. So are checkpoints that receive the
    scaler's state later, under whatever key, and projects in which the scaler's state is saved anywhere else beside
    that optimizer's. Loading is the matter of AMP502 and AMP503.

    ## Fix safety
    Safe: a key `"scaler": scaler.state_dict()` is added where the checkpoint is a dict literal and the scaler is bound
    at that place. No fix for other forms. Readers of the file that demand an exact set of keys have to be adapted by
    hand.

    ## How it is confirmed
    A short run with a scale that must come down is saved and resumed with exactly the keys of the checkpoint. The
    resumed run repeats the skipped steps; the run with the scaler's state does not.

    ## References
    - [Saving and resuming](https://docs.pytorch.org/tutorials/recipes/recipes/amp_recipe.html#saving-resuming)
    - `torch/amp/grad_scaler.py`: `GradScaler.state_dict`, `GradScaler.load_state_dict`
    """

    code = "AMP501"
    name = "checkpoint-without-scaler"
    severity = Severity.WARNING
    needles = ((b"scaler", b"Scaler"), (b"save", b"state", b"heckpoint", b"ckpt", b"dump"))
    near = ((b"state_dict",), (b"save", b"dump"))
    fix = "safe"
    confirmed_by = "own"

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        driven = _driven(unit)
        if not driven or _scaler_is_saved(unit):
            return
        functions: set[int] = set()
        for _, _, event in unit.events("save"):
            step = _resumable(event, driven)
            if step is None:
                continue
            built = event.details["literal"]
            site = _literal(event) or event.site
            if built is None and id(function_of(site)) in functions:
                # one file for each object: the function is the checkpoint
                continue
            functions.add(id(function_of(site)))
            steps = [(step.site, "the scaler is in use here")]
            if built is not None and built is not site:
                steps.append((built, "the checkpoint is put together here"))
            if site is not event.site:
                steps.append((event.site, "saved here"))
            yield Fault(
                site,
                "the checkpoint holds the optimizer's state and not the scaler's",
                (*unit.call_steps(event), *steps),
                unit.assumptions(event),
                unit.confidence(step.scaler, step.optimizer),
                _fix(event, step),
            )


def _driven(unit: Unit) -> dict[Value, Event]:
    """Optimizers that a live scaler steps, with such a step."""
    found: dict[Value, Event] = {}
    for trace, _, event in unit.events("step"):
        if event.optimizer is not None and event.optimizer not in found and not unit.only_bfloat16(trace):
            found[event.optimizer] = event
    return found


def _scaler_is_saved(unit: Unit) -> bool:
    """Whether the state of any scaler is asked for, or a scaler handed to what saves, anywhere in reach."""
    for _, _, event in unit.events("state_dict"):
        if isinstance(event.details["of"], Scaler):
            return True
    for _, _, event in unit.events("save"):
        if any(isinstance(v, Scaler) for v in event.details["contents"]):
            return True
    return unit.mentions_scaler_state()


def _resumable(event: Event, driven: dict[Value, Event]) -> Event | None:
    """The scaler's step, if a run could resume from what is saved and the scaler's state is not in it."""
    if event.details["open"]:
        return None
    states = [v.of for v in event.details["contents"] if isinstance(v, StateOf)]
    states += [v for v in event.details["contents"] if isinstance(v, (Optimizer, Scheduler))]
    if any(isinstance(of, Scaler) for of in states):
        return None
    for of in states:
        optimizer = of.optimizer if isinstance(of, Scheduler) else of
        if optimizer in driven:
            return driven[optimizer]
    return None


def _literal(event: Event) -> Site | None:
    """Where the dict that is saved is written down, if the optimizer's state is named there."""
    literal: Site | None = event.details["literal"]
    if literal is None or not isinstance(event.details["payload"], DictV):
        return None
    return literal if "state_dict" in literal.module.segment(literal.node) else None


def _fix(event: Event, step: Event) -> FixPlan | None:
    """Add the scaler's state to a dict literal where the scaler is bound."""
    literal = _literal(event)
    scaler = receiver_text(step.site)
    if literal is None or not is_plain_path(scaler) or literal.module is not step.site.module or event.calls:
        return None
    reachable = function_of(literal) is function_of(step.site)
    if scaler.startswith("self.") and class_of(literal) is not None:
        reachable = reachable or class_of(literal) is class_of(step.site)
    elements = literal.node.elements if isinstance(literal.node, cst.Dict) else ()
    if not reachable or not elements or not isinstance(elements[-1], cst.DictElement):
        return None
    module = literal.module
    last, place = elements[-1], module.place(elements[-1].key)
    added = f'"scaler": {scaler}.state_dict()'
    multiline = module.place(literal.node).line != place.line
    separator = ",\n" + re.sub(r"\S", " ", text_before(Site(module, last.key))) if multiline else ", "
    change = Change("replace", Site(module, last), module.segment(last) + separator + added)
    return FixPlan("safe", "add the scaler's state", (change,))
