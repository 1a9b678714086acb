"""AMP224: FSDP shards its gradients and the scaler looks at one shard only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import libcst as cst

from amplint.finding import Severity
from amplint.needles import SCALER_HERE
from amplint.rule import Change, Fault, FixPlan, Rule, Site
from amplint.values import FALSE, Const, Optimizer, Result, Value

if TYPE_CHECKING:
    from amplint.analysis import Unit
    from amplint.states import Event
    from amplint.traces import Trace


class PlainScalerWithFsdp(Rule):
    """A plain `GradScaler` trains a `FullyShardedDataParallel` model, so each rank decides alone whether to skip.

    ## What it does
    Reports a `torch.amp.GradScaler` that is used with a model wrapped in `FullyShardedDataParallel` (FSDP1) in
    float16, instead of `ShardedGradScaler`.

    ## Why is this bad
    Every rank holds one shard of the gradients and looks for infinities in that shard only. When one rank sees an
    overflow, it skips and halves its scale; the others step. Measured with two ranks: scales of 512 and 1024, weights
    of different steps in one model, and no way back, since the next losses are scaled by different factors.
    `ShardedGradScaler` reduces the result of the check over all ranks.

    ## Example
    ```python
    import torch
    from torch import distributed, nn
    from torch.distributed.fsdp import FullyShardedDataParallel


    def train(device="cuda", backend="nccl"):
        distributed.init_process_group(backend, store=distributed.HashStore(), rank=0, world_size=1)
        model = FullyShardedDataParallel(nn.Linear(8, 1).to(device))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler(device)  # <- here
        for _ in range(4):
            x = torch.randn(16, 8, device=device)
            optimizer.zero_grad()
            with torch.autocast(device, dtype=torch.float16):
                loss = model(x).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        distributed.destroy_process_group()


    if torch.cuda.is_available():
        train()
    ```

    ## Use instead
    ```python
    import torch
    from torch import distributed, nn
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler


    def train(device="cuda", backend="nccl"):
        distributed.init_process_group(backend, store=distributed.HashStore(), rank=0, world_size=1)
        model = FullyShardedDataParallel(nn.Linear(8, 1).to(device))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        scaler = ShardedGradScaler(device)
        for _ in range(4):
            x = torch.randn(16, 8, device=device)
            optimizer.zero_grad()
            with torch.autocast(device, dtype=torch.float16):
                loss = model(x).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        distributed.destroy_process_group()


    if torch.cuda.is_available():
        train()
    ```

    ## Known limits
    `fully_shard` (FSDP2) keeps DTensors, for which the plain scaler is right since torch 2.5; it is silent, and so is
    bfloat16. A model that is wrapped in another file is recognised only when the wrapping can be traced to the
    optimizer that is stepped.

    ## Fix safety
    Unsafe: the constructor becomes `ShardedGradScaler` and the import is added. It takes a process group and returns
    the scaled loss in the loss's own dtype.

    ## How it is confirmed
    Not at all: it takes two ranks.

    ## References
    - `torch/distributed/fsdp/sharded_grad_scaler.py`
    - [FullyShardedDataParallel](https://docs.pytorch.org/docs/stable/fsdp.html)
    """

    code = "AMP224"
    name = "plain-scaler-with-fsdp"
    severity = Severity.WARNING
    needles = ((b"FullyShardedDataParallel", b"FSDP", b"fsdp"), (b"GradScaler",))
    near = (SCALER_HERE,)
    fix = "unsafe"

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        for trace, position, event in unit.events("step"):
            scaler = event.scaler
            built = unit.site_of(scaler)
            if scaler is None or built is None or scaler.flavour != "torch" or scaler.enabled is FALSE:
                continue
            wrapping = _wrapping(unit, trace, position)
            if wrapping is None or not _is_float16(unit, trace, wrapping):
                continue
            yield Fault(
                built,
                "each rank of an FSDP model decides by its own shard whether to skip; ShardedGradScaler asks all ranks",
                ((wrapping.site, "the model is sharded here"), (event.site, "this step is skipped on some ranks only")),
                unit.assumptions(event),
                unit.confidence(scaler),
                _fix(built),
            )


def _wrapping(unit: Unit, trace: Trace, position: int) -> Event | None:
    """The FSDP1 wrapping of a model whose parameters the step at `position` updates."""
    step = trace.events[position]
    owners: frozenset[Value] = frozenset()
    if isinstance(step.optimizer, Optimizer) and step.optimizer.owners:
        owners = step.optimizer.owners
    elif step.state.origin is not None and not step.state.maybe:
        owners = step.state.origin.details["value"].taint.owners
    for event in trace.events[:position]:
        if event.kind == "fsdp" and unit.overlap(frozenset((event.details["module"],)), owners):
            return event
    return None


def _is_float16(unit: Unit, trace: Trace, wrapping: Event) -> bool:
    """Whether the model computes in float16 for certain: by FSDP's own policy, else by every region."""
    policy = wrapping.details["keywords"].get("mixed_precision")
    if policy is not None:
        return any(unit.executor.effects.modules.dtype(value) == "float16" for value in _parts(policy))
    dtypes: set[str | None] = set()
    for event in trace.events:
        if event.kind == "construct_autocast":
            arguments = event.details["context"].details
            if arguments.enabled is FALSE:
                continue
            device = arguments.device
            by_default = arguments.dtype is None and isinstance(device, Const) and device.value == "cuda"
            dtypes.add("float16" if by_default else unit.executor.effects.modules.dtype(arguments.dtype))
    return dtypes == {"float16"}


def _parts(value: Any) -> Iterator[Value]:
    """The arguments of the call that made a policy, nested ones too."""
    if isinstance(value, Value):
        yield value
        for part in value.args if isinstance(value, Result) else value.parts:
            yield from _parts(part)


def _fix(site: Site) -> FixPlan | None:
    """Construct the scaler that is made for shards, where only keywords and the device are given."""
    call, module = site.node, site.module
    if not isinstance(call, cst.Call) or any(arg.star for arg in call.args):
        return None
    positional = [arg.value for arg in call.args if arg.keyword is None]
    if len(positional) > 1 or not all(isinstance(value, cst.SimpleString) for value in positional):
        return None
    changes = (
        Change("replace", Site(module, call.func), "ShardedGradScaler"),
        Change("import", site, "torch.distributed.fsdp.sharded_grad_scaler:ShardedGradScaler"),
        Change("unimport", Site(module, call.func)),
    )
    return FixPlan("unsafe", "use ShardedGradScaler", changes)
