"""AMP110: training under fp16 autocast without a gradient scaler."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.layout import function_of
from amplint.needles import ENABLES, REGION_OF_A_HELPER, TRAINS
from amplint.program import Assign, Attr, Call, Name, expressions_of, parts_of, path_of
from amplint.regions import dtype_of
from amplint.rule import Fault, Rule
from amplint.states import Entered
from amplint.values import OpV

if TYPE_CHECKING:
    from amplint.analysis import Unit
    from amplint.project import ModuleEnv
    from amplint.states import Event
    from amplint.traces import Trace

#: who has such a word at hand scales by itself, or leaves it to somebody
_SCALES = re.compile(
    r"scaler|loss_scal|scale_loss|accelerat|fabric|deepspeed|colossal|lightning|booster|manual_backward", re.I
)

#: a scaler that nothing else happens to scales nothing
_IDLE = frozenset({"construct_scaler", "state_dict", "load_state"})
_STATE = frozenset({"state_dict", "load_state_dict"})


class Fp16AutocastWithoutScaler(Rule):
    """Training under fp16 autocast has no gradient scaler, so small gradients become zero.

    ## What it does

    Reports an enabled fp16 autocast region whose loss is backpropagated and whose weights an optimizer steps, when no
    `GradScaler` and nothing else that scales the loss is in reach. One that is made and never used does not count. Fp16
    is the default dtype of autocast on cuda, so that `torch.autocast("cuda")` without a dtype counts.

    ## Why is this bad

    The smallest positive number of fp16 is 2^-24, about 6e-8. A gradient below half of it is rounded to zero on its
    way through a layer that ran in fp16, and whatever lies before that layer gets no gradient at all. Nothing is
    raised and the loss still falls, only slower or not as far. In a small network whose loss was multiplied by 1e-4,
    6.7 % of all gradients were exactly zero and the error of the gradient was 10 %; with a scaler it was 5e-4, with
    bf16 4e-3.

    ## Example

    ```python
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 8)).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


    def train_step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):  # <- here
            loss = 1e-4 * nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
        return (gradient == 0).float().mean().item()


    for _ in range(3):
        print(train_step(torch.randn(32, 16, device="cuda"), torch.randn(32, 8, device="cuda")))
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 8)).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cuda")


    def train_step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = 1e-4 * nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
        return (gradient == 0).float().mean().item()


    for _ in range(3):
        print(train_step(torch.randn(32, 16, device="cuda"), torch.randn(32, 8, device="cuda")))
    ```

    ## Known limits

    - Only training that is seen is reported: a backward and an optimizer step of weights that the region used. A
      region in a file whose training loop is elsewhere is not judged.
    - Frameworks that scale by themselves (accelerate, Lightning, DeepSpeed, apex) and objects that are handed the
      loss and the optimizer are trusted.
    - A dtype that is chosen at run time is not reported, nor a region without a dtype in a file that calls
      `torch.set_autocast_dtype`.
    - A loss that is multiplied by hand, with gradients that are changed before their step, is taken for static
      scaling.

    ## Fix safety

    No fix. A scaler belongs to the whole loop (scale, step, update, checkpoint), and `dtype=torch.bfloat16` is the
    simpler answer where the hardware has it.

    ## How it is confirmed

    The replay hands the optimizer the gradients of the region as written, with gradients rounded to fp16, and those
    of the fp32 run. Gradients that are exactly zero where the fp32 run has none confirm the finding.

    ## References

    - https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling
    - `torch/amp/grad_scaler.py`, docstring of `GradScaler`
    """

    code = "AMP110"
    name = "fp16-autocast-without-scaler"
    severity = Severity.WARNING
    needles = ((ENABLES,), TRAINS)
    near = (REGION_OF_A_HELPER,)
    confirmed_by = "grad"
    yields_to = ("AMP222",)

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        for trace, position, step in unit.events("opt_step"):
            backward = step.state.last
            if step.state.kind != "P" or step.state.maybe or backward is None or not backward.details["certain"]:
                continue
            region = _region_of_loss(unit, trace, position, backward)
            if region is None or _is_scaled(unit, trace, (region, backward, step)):
                continue
            if _scaled_by_hand(trace, backward, step):
                continue
            yield Fault(
                region.site,
                "training runs in fp16 and nothing scales the loss; small gradients become zero",
                ((backward.site, "backward without a scale"), (step.site, "the weights are stepped")),
                unit.assumptions(step, region.context.details.enabled),
                unit.confidence(step.optimizer),
            )


def _region_of_loss(unit: Unit, trace: Trace, position: int, backward: Event) -> Entered | None:
    """The fp16 region that the loss of a backward comes from."""
    owners = backward.details["value"].taint.owners
    earlier = [e for e in trace.events[:position] if e.index < backward.index]
    for event in reversed(earlier):
        if event.kind == "forward" and event.details["module"] in owners:
            region = unit.autocast(event, trace) or _opened_inside(unit, trace, event, backward)
            return region if region is not None and dtype_of(unit, region.context) == "float16" else None
        if event.kind == "backward":
            break
    for event in reversed(earlier):
        # the forward of an unknown callable leaves no event: the region entered for this backward speaks for it
        if event.kind == "backward" or not owners:
            return None
        if event.kind == "enter":
            context = event.details["context"]
            held = unit.can_hold(context.details.enabled, event.assume, trace)
            fp16 = held and dtype_of(unit, context) == "float16"
            return Entered(context, event.site, event.details["number"]) if fp16 else None
    return None


def _opened_inside(unit: Unit, trace: Trace, forward: Event, backward: Event) -> Entered | None:
    """The region that a network opens in its own `forward`, where that computes gradients throughout."""
    for event in trace.events:
        if event.kind != "enter" or not forward.index < event.index < backward.index or not event.calls:
            continue
        function = function_of(event.site) or event.site.node
        if event.calls[-1].identity != forward.site.identity or "no_grad" in event.site.module.rough_text(function):
            continue
        context = event.details["context"]
        if unit.can_hold(context.details.enabled, event.assume, trace):
            return Entered(context, event.site, event.details["number"])
    return None


def _scaled_by_hand(trace: Trace, backward: Event, step: Event) -> bool:
    """Whether the loss is multiplied by a factor that the gradients are divided by before their step. The factor may
    stand in the model, out of sight; whoever divides all gradients has multiplied before."""
    value = backward.details["value"]
    is_multiplied = isinstance(value, OpV) and value.op == "*"
    return any(
        e.kind == "grad_write"
        and backward.index < e.index < step.index
        and step.optimizer in e.before
        and (is_multiplied or e.details["operation"] in ("div_", "mul_"))
        for e in trace.events
    )


def _is_scaled(unit: Unit, trace: Trace, parts: tuple[Entered | Event, ...]) -> bool:
    """Whether a scaler that is used, or something that scales by itself, is in reach of the functions around."""
    if any(e.kind in ("framework", "framework_call") for e in trace.events):
        return True
    if any(e.scaler is not None and e.kind not in _IDLE for e in trace.events):
        return True
    nodes = {id(function_of(part.site)) for part in parts}
    envs = (unit.env, *unit.executor.entered)
    scopes = {s for env in envs for s in env.program.scopes if id(s.node) in nodes} | {trace.entry}
    scopes |= {s.parent for s in scopes if s.parent is not None and s.parent.kind == "class"}
    idle = {name for env in envs for name in _idle_names(env)}
    return any(_SCALES.search(word) for scope in scopes for word in scope.words - idle)


def _idle_names(env: ModuleEnv) -> frozenset[str]:
    """The names under which a module makes scalers, where nothing asks them for more than their state."""
    known = env.shared.get("idle_scalers")
    if known is None:
        made, used = _scaler_names(env)
        known = env.shared["idle_scalers"] = frozenset() if made & used else frozenset({*made, "GradScaler"})
    return frozenset(known)


def _scaler_names(env: ModuleEnv) -> tuple[set[str], set[str]]:
    """The names that are bound to a new GradScaler, and all names that something is done with."""
    made: set[str] = set()
    used: set[str] = set()
    for scope in env.program.scopes:
        results: set[str] = set()
        for stmt in scope.statements:
            if isinstance(stmt, Call) and path_of(stmt.func).rpartition(".")[2] == "GradScaler":
                results.add(stmt.result)
                continue
            if isinstance(stmt, Call) and isinstance(stmt.func, Attr) and stmt.func.name in _STATE:
                continue
            if isinstance(stmt, Assign) and isinstance(stmt.value, Name) and stmt.value.id in results:
                made.add(path_of(stmt.target).rpartition(".")[2])
                if isinstance(stmt.target, Name) or not (scope.parent and scope.parent.bases):
                    continue
                # what a base class does with its attributes is not known here
            for part in (part for expr in expressions_of(stmt) for part in parts_of(expr)):
                if isinstance(part, Name):
                    used.add("GradScaler" if part.id in results else part.id)
                elif isinstance(part, Attr):
                    used.add(part.name)
    return made, used
