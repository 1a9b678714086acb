"""AMP226: private members of the scaler are used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint import library
from amplint.finding import Confidence, Severity
from amplint.names import names_of
from amplint.program import Assign, Attr, Call, Name, expressions_of, parts_of, path_of
from amplint.rule import Fault, Rule, Site

if TYPE_CHECKING:
    from amplint.analysis import Unit
    from amplint.program import Scope


class PrivateScalerState(Rule):
    """Private members of a `GradScaler` are read, written or called.

    ## What it does
    Reports `_scale`, `_unscale_grads_`, `_per_optimizer_states` and `_check_inf_per_device` of a scaler, outside of a
    subclass of `GradScaler`.

    ## Why is this bad
    They are not part of the interface. A disabled scaler has none of them, or they are None until the first `scale()`;
    `_per_optimizer_states` is emptied by each `update()`. A scale that is written directly bypasses the growth
    counter. What people look for has public names: `get_scale()`, `update(new_scale)`, and the scale before and after
    `update()` to see a skip.

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
        scaler.step(optimizer)
        scaler.update()
        print("scale:", scaler._scale)  # <- here
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
        scaler.step(optimizer)
        scaler.update()
        print("scale:", scaler.get_scale())
    ```

    ## Known limits
    Objects whose class is unknown are reported only when their other uses are those of a scaler. Uses in subclasses of
    `GradScaler` are silent.

    ## Fix safety
    No fix: the public way depends on the purpose.

    ## How it is confirmed
    Not at all: nothing is wrong until torch changes.

    ## References
    - `torch/amp/grad_scaler.py`: `GradScaler`
    """

    code = "AMP226"
    name = "private-scaler-state"
    severity = Severity.INFO
    needles = (
        (b"_scale", b"_unscale_grads_", b"_per_optimizer_states", b"_check_inf_per_device"),
        (b"scaler", b"Scaler"),
    )

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        constructed = _constructed(unit)
        for scope in unit.env.program.scopes:
            roles = unit.env.roles[scope]
            for stmt in scope.statements:
                for part in (part for expr in expressions_of(stmt) for part in parts_of(expr)):
                    if not isinstance(part, Attr) or part.name not in _PRIVATE or part.node is None:
                        continue
                    path = path_of(part.base)
                    known = _is_constructed(path, scope, constructed)
                    if path and path not in ("self", "cls") and (known or roles.get(path) == "scaler"):
                        yield Fault(
                            Site(unit.source, part.node),
                            f"{part.name} is private to GradScaler and may change with any version of torch",
                            confidence=Confidence.HIGH if known else Confidence.MEDIUM,
                        )


_PRIVATE = frozenset({"_scale", "_unscale_grads_", "_per_optimizer_states", "_check_inf_per_device"})


def _constructed(unit: Unit) -> dict[Scope, set[str]]:
    """The access paths that each scope binds to a scaler; those of `self` belong to the whole class."""
    names = names_of(unit.env)
    found: dict[Scope, set[str]] = {}
    for scope in unit.env.program.scopes:
        made: set[str] = set()
        for stmt in scope.statements:
            if isinstance(stmt, Call) and {library.role(name) for name in names.of(stmt.func, scope)} == {"scaler"}:
                made.add(stmt.result)
            elif isinstance(stmt, Assign) and isinstance(stmt.value, Name) and stmt.value.id in made:
                path = path_of(stmt.target)
                holder = scope.parent if path.startswith("self.") and scope.parent is not None else scope
                found.setdefault(holder, set()).add(path)
    return found


def _is_constructed(path: str, scope: Scope, constructed: dict[Scope, set[str]]) -> bool:
    at: Scope | None = scope
    while at is not None:
        if path in constructed.get(at, ()):
            return True
        at = at.parent
    return False
