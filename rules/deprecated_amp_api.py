"""AMP601: names of torch.cuda.amp and torch.cpu.amp, which torch 2.4 deprecated."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from amplint.deprecations import Replacement, repair, replacement_of, uses
from amplint.finding import Severity
from amplint.names import names_of
from amplint.program import Call, Name, walk
from amplint.rule import Fault, Rule, Site
from amplint.torch_facts import DEPRECATED_NAMES

if TYPE_CHECKING:
    from amplint.analysis import Unit


class DeprecatedAmpApi(Rule):
    """A name of `torch.cuda.amp` or `torch.cpu.amp` is used, which torch 2.4 deprecated.

    ## What it does

    Reports uses of the names below when the project targets torch 2.4 or newer. The finding points at the use, not at
    the import.

    | old | today |
    |---|---|
    | `torch.cuda.amp.autocast(...)` | `torch.amp.autocast("cuda", ...)` |
    | `torch.cuda.amp.GradScaler(...)` | `torch.amp.GradScaler("cuda", ...)` |
    | `torch.cuda.amp.custom_fwd`, `custom_bwd` | `torch.amp.custom_fwd(device_type="cuda")` and so on |
    | `torch.cpu.amp.autocast(...)`, `torch.cpu.amp.GradScaler(...)` | `torch.amp`, with `"cpu"` first |
    | `torch.is_autocast_cpu_enabled()` | `torch.is_autocast_enabled("cpu")` |
    | `torch.get_autocast_gpu_dtype()` | `torch.get_autocast_dtype("cuda")` |
    | `torch.set_autocast_cpu_dtype(x)` | `torch.set_autocast_dtype("cpu", x)` |

    ## Why is this bad

    The old names emit a `FutureWarning` (the functions about the state a `DeprecationWarning`) at each use and may be
    removed. The move by hand is where faults come from: the new classes order their arguments differently, and a call
    whose module was merely renamed runs with a wrong scale or with a flag in the place of the dtype (see
    `amp-bad-argument`).

    ## Example

    ```python
    import torch
    from torch import nn
    from torch.cuda.amp import GradScaler

    model = nn.Linear(8, 1).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = GradScaler(2.0**12)  # <- here


    def train_step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()


    for _ in range(3):
        train_step(torch.randn(6, 8, device="cuda"), torch.randn(6, 1, device="cuda"))
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from torch.amp import GradScaler

    model = nn.Linear(8, 1).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = GradScaler("cuda", init_scale=2.0**12)


    def train_step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()


    for _ in range(3):
        train_step(torch.randn(6, 8, device="cuda"), torch.randn(6, 1, device="cuda"))
    ```

    ## Known limits

    - An import that stands in the `except ImportError` of an import of the new name is a fallback for an old torch
      and is left alone, with the uses of the name.
    - Calls of a name that another module of the project imports and hands on are reported without a repair: the
      import there has to change first.
    - Names that are looked up by `getattr` or handed to a registry are not seen.

    ## Fix safety

    Safe. The name is replaced, the device type is added, each positional argument is given the keyword that it had in
    the old class, and the import is repaired. The behaviour stays the same. A name that is imported for others to
    import from the file is not touched.

    ## How it is confirmed

    Static only: the program computes the same with the new name.

    ## References

    - https://docs.pytorch.org/docs/stable/amp.html
    - `torch/cuda/amp/autocast_mode.py`, `torch/cuda/amp/grad_scaler.py`, `torch/cpu/amp/`
    """

    code = "AMP601"
    name = "deprecated-amp-api"
    severity = Severity.INFO
    needles = (
        (
            b"cuda.amp",
            b"cpu.amp",
            b"cuda import amp",
            b"cpu import amp",
            b"autocast",
            b"GradScaler",
            b"custom_fwd",
            b"custom_bwd",
        ),
    )
    fix = "safe"
    torch = DEPRECATED_NAMES.bounds

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        if _SPELLED.search(unit.source.code):
            for use in uses(unit.source):
                yield Fault(
                    Site(unit.source, use.node), _message(use.dotted, use.replacement), fix=repair(unit.source, use)
                )
        yield from _handed_on(unit)


#: a file without any of these names nothing of the old API itself
_SPELLED = re.compile(r"(?s)^(?=.*\b(cuda|cpu)\b).*\bamp\b|autocast_(cpu|gpu|xla|ipu|hpu|xpu)")
_MEMBERS = frozenset({"autocast", "GradScaler", "custom_fwd", "custom_bwd"})


def _handed_on(unit: Unit) -> Iterator[Fault]:
    """Calls of old names that another module of the project imports and hands on; its import has to change first."""
    old: dict[str, tuple[str, Replacement]] = {}
    for stmt in unit.env.imports:
        if stmt.member not in _MEMBERS or stmt.dotted.partition(".")[0] == "torch":
            continue
        holder = unit.project.resolve(unit.env, stmt.dotted, stmt.level)
        names = names_of(holder).of(Name(stmt.member), holder.program.body) if holder is not None else frozenset()
        replacements = {name: replacement_of(name) for name in names}
        for name, replacement in replacements.items():
            if replacement is not None and len(names) == 1:
                old[stmt.name] = (name, replacement)
    if not old:
        return
    for scope in unit.env.program.scopes:
        for call in (*walk(scope.prelude), *scope.statements):
            if isinstance(call, Call) and isinstance(call.func, Name) and call.func.id in old:
                node = call.node
                yield Fault(
                    Site(unit.source, node.func if isinstance(node, cst.Call) else node), _message(*old[call.func.id])
                )


def _message(dotted: str, replacement: Replacement) -> str:
    return f"{dotted} is deprecated since torch 2.4; {_advice(replacement)}"


def _advice(new: Replacement) -> str:
    if new.name in ("custom_fwd", "custom_bwd"):
        return f'use torch.amp.{new.name}(device_type="{new.device}")'
    return f'use torch.{new.prefix}{new.name} with "{new.device}" as the first argument'
