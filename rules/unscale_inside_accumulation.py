"""AMP302: gradients are unscaled inside an accumulation window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import libcst as cst

from amplint.finding import Severity
from amplint.layout import block_of, same_block
from amplint.needles import SCALER_HERE, SCALES, UNSCALES
from amplint.protocol import counts_batches, following, inside_window, passed_updates, same_round
from amplint.rule import Change, Fault, FixPlan, Rule, Site

if TYPE_CHECKING:
    from amplint.analysis import Unit
    from amplint.states import Event
    from amplint.traces import Trace
    from amplint.values import Value


class UnscaleInsideAccumulation(Rule):
    """`scaler.unscale_` runs on every micro-batch of a window whose `scaler.step` runs once at its end.

    ## What it does
    Reports an `unscale_` (usually together with the clip that needs it) that can run between two scaled backwards of
    one accumulation window, because the condition that guards `scaler.step` does not guard it.

    ## Why is this bad
    Two things can happen. Without `update()` in the window torch raises `unscale_() has already been called on this
    optimizer since the last update().` at the second micro-batch. With it, or with an `unscale_` in one micro-batch
    only, nothing is raised and gradients of different scale are added: measured 2.0010 instead of 3.75 (only the last
    micro-batch survives) and 3584 instead of 3.75. The clip limits each partial sum instead of the whole.

    ## Example
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda")
    accumulate = 4

    for i in range(8):
        x = torch.randn(16, 8, device=device)
        with torch.autocast("cuda"):
            loss = model(x).square().mean() / accumulate
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)  # <- here
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        if (i + 1) % accumulate == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda")
    accumulate = 4

    for i in range(8):
        x = torch.randn(16, 8, device=device)
        with torch.autocast("cuda"):
            loss = model(x).square().mean() / accumulate
        scaler.scale(loss).backward()
        if (i + 1) % accumulate == 0:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    ```

    ## Known limits
    A window whose boundary is decided in code that amplint cannot follow is not reported. Guards are compared by their
    text and the names in them. A window of one micro-batch is silent when its length is a constant.

    ## Fix safety
    Unsafe: `unscale_` and the clip are moved to the top of the branch that holds `scaler.step`. What stands between
    them and reads the gradients would have to move too.

    ## How it is confirmed
    The replay runs several windows: torch raises, or the gradients handed to the optimizer differ from those of a run
    with a disabled scaler.

    ## References
    - [Gradient accumulation](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation)
    - `torch/amp/grad_scaler.py`: `GradScaler.unscale_`
    """

    code = "AMP302"
    name = "unscale-inside-accumulation"
    severity = Severity.ERROR
    needles = ((UNSCALES, b".scale("), SCALES)
    near = (SCALER_HERE,)
    fix = "unsafe"
    confirmed_by = "raise"

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        for trace, position, event in unit.events("backward"):
            if event.scaler is None:
                continue
            for optimizer, gradients in event.before.items():
                unscaled = gradients.unscaled
                if (
                    gradients.kind not in ("U", "L")
                    or gradients.maybe
                    or unscaled is None
                    or same_round(unscaled, event)
                ):
                    continue
                if not inside_window(unit, event, optimizer) or _bypassed(trace, unscaled, event, optimizer):
                    continue
                if _left_the_end(unit, trace, unscaled, event):
                    # unscale_ is where it belongs, and a jump leaves out what follows it
                    continue
                again = next(following(trace, position, optimizer, "unscale_", "step"), None)
                steps = [*unit.call_steps(unscaled), (event.site, "the next backward of the same window")]
                steps += [(clip.site, "clips the mixture") for clip in _clips(unit, optimizer)]
                if again is not None and again.site.identity != unscaled.site.identity:
                    steps.append((again.site, "the next operation on the mixture"))
                yield Fault(
                    unscaled.site,
                    "gradients are unscaled inside an accumulation window",
                    tuple(steps),
                    unit.assumptions(unscaled),
                    unit.confidence(event.scaler, optimizer),
                    _move(unit, unscaled),
                )


def _left_the_end(unit: Unit, trace: Trace, unscaled: Event, event: Event) -> bool:
    """Whether a jump followed an `unscale_` at the end of a window and left the rest of that end out."""
    return any(
        e.kind == "jump"
        and unscaled.index < e.index < event.index
        and same_round(unscaled, e)
        and passed_updates(unit, e, unscaled.scaler)
        and not any(counts_batches(atom) for atom in e.assume.keys() - unscaled.assume.keys())
        for e in trace.events
    )


def _clips(unit: Unit, optimizer: Value | None) -> list[Event]:
    """The clips that meet the mixture on some path."""
    met = {
        event.site.identity: event
        for _, _, event in unit.events("clip")
        if optimizer in event.before and event.before[optimizer].kind == "M"
    }
    return list(met.values())


def _bypassed(trace: Trace, start: Event, end: Event, optimizer: Value | None) -> bool:
    """Whether the optimizer was stepped past the scaler in the meantime."""
    return any(
        e.kind == "opt_step" and e.optimizer is optimizer and start.index < e.index < end.index for e in trace.events
    )


def _move(unit: Unit, unscaled: Event) -> FixPlan | None:
    """Take the `unscale_`, and a clip right behind it, into the branch of the one step, further down in the block."""
    steps = {
        e.site.identity: e.site
        for _, _, e in unit.events("step")
        if e.scaler is unscaled.scaler and e.optimizer is unscaled.optimizer
    }
    held = block_of(unscaled.site)
    if len(steps) != 1 or held is None:
        return None
    block, position = held
    (step,) = steps.values()
    branch = step.module.parent(step.module.statement(step.node))
    around = step.module.parent(branch) if branch is not None else None
    statements: Sequence[cst.CSTNode] = getattr(block, "body", ())
    if step.module is not unscaled.site.module or around not in statements or not isinstance(around, cst.If):
        return None
    beside = (e.site for _, _, e in unit.events("clip") if same_block(e.site, unscaled.site))
    clips = {site.module.statement(site.node) for site in beside}
    moved = [statements[position], *(s for s in statements[position + 1 : position + 2] if s in clips)]
    if statements.index(around) < position or not all(map(_is_expression, moved)):
        return None
    module = step.module
    text = "\n".join(module.segment(statement) for statement in moved)
    first: cst.CSTNode = branch.body[0] if isinstance(branch, cst.IndentedBlock) else step.node
    changes = [Change("insert-before", Site(module, first), text)]
    changes += [Change("delete", Site(module, statement)) for statement in moved]
    return FixPlan("unsafe", "unscale at the boundary of the window", tuple(changes))


def _is_expression(statement: cst.CSTNode) -> bool:
    """Whether a statement is a call alone, so that nothing else needs its result."""
    return (
        isinstance(statement, cst.SimpleStatementLine)
        and len(statement.body) == 1
        and isinstance(statement.body[0], cst.Expr)
    )
