"""AMP220: a change of the scale is taken for a skipped step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from amplint.finding import Severity
from amplint.layout import function_of
from amplint.rule import Change, Fault, FixPlan, Rule, Site
from amplint.source import children

if TYPE_CHECKING:
    from amplint.analysis import Unit
    from amplint.source import SourceModule
    from amplint.states import Event


class ScaleComparedForEquality(Rule):
    """The scale is compared by `==` or `!=` to find a skipped step, or read after `update()` to undo the scaling.

    ## What it does
    Reports `==` and `!=` between two values of `scaler.get_scale()`, and a value that was scaled before `update()` and
    is divided by a `get_scale()` read after it.

    ## Why is this bad
    The scale changes for two reasons: it halves after an overflow and doubles after 2000 good steps. An equality takes
    the growth for a skip, so a scheduler or counter misses one step in 2000 (with `growth_interval=2`, 3 of 6). A
    scaled value divided by the scale after `update()` is wrong by a factor 2 or 0.5 at every change.

    ## Example
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
    scaler = torch.amp.GradScaler("cuda", growth_interval=2)

    for _ in range(6):
        x = torch.randn(16, 8, device=device)
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scale_before = scaler.get_scale()
        scaler.update()
        if scaler.get_scale() == scale_before:  # <- here
            scheduler.step()
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
    scaler = torch.amp.GradScaler("cuda", growth_interval=2)

    for _ in range(6):
        x = torch.randn(16, 8, device=device)
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scale_before = scaler.get_scale()
        scaler.update()
        if scaler.get_scale() >= scale_before:
            scheduler.step()
    ```

    ## Known limits
    Comparisons by `<`, `<=`, `>` and `>=` are silent, and so are comparisons with a constant. Scales that are read
    with the scaler's internals are not recognised.

    ## Fix safety
    Safe for comparisons: `==` becomes `>=` and `!=` becomes `<`, or the mirrored sign when the newer scale stands on
    the right. No fix for a scale that is read too late.

    ## How it is confirmed
    The replay lets the scale grow and compares what the condition says with what the optimizer did.

    ## References
    - `torch/amp/grad_scaler.py`: `GradScaler.update`, `GradScaler.get_scale`
    """

    code = "AMP220"
    name = "scale-compared-for-equality"
    severity = Severity.WARNING
    needles = ((b"get_scale",),)
    fix = "safe"
    confirmed_by = "own"

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        module = unit.source
        reads = [e for _, _, e in unit.events("get_scale") if e.site.module is module]
        for function in dict.fromkeys(function_of(e.site) or module.tree for e in reads):
            origins = _Origins(function)
            for node in origins.nodes:
                if isinstance(node, cst.Comparison):
                    yield from _comparison(unit, node, origins)
                elif isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Divide):
                    yield from _division(unit, node, origins)


class _Origins:
    """A function's nodes in source order, and the calls that its variables were bound to."""

    def __init__(self, function: cst.CSTNode) -> None:
        self.nodes: list[cst.CSTNode] = []
        self._bound: dict[str, list[tuple[int, cst.BaseExpression]]] = {}
        self._collect(function)

    def _collect(self, node: cst.CSTNode) -> None:
        for child in children(node):
            if isinstance(child, (cst.FunctionDef, cst.ClassDef, cst.Lambda)):
                continue
            self._collect(child)
            self.nodes.append(child)
            if isinstance(child, cst.Assign):
                for target in child.targets:
                    path = _path(target.target)
                    self._bound.setdefault(path, []).append((len(self.nodes), child.value))

    def call(self, node: cst.BaseExpression, method: str, user: cst.CSTNode) -> cst.Call | None:
        """The call of a method that an expression is, or is a variable bound to where it is used."""
        path = _path(node)
        if path:
            at = self.nodes.index(user)
            earlier = [value for position, value in self._bound.get(path, ()) if position <= at]
            if not earlier:
                return None
            node = earlier[-1]
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == method:
            return node
        return None


def _path(node: cst.CSTNode) -> str:
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        base = _path(node.value)
        return f"{base}.{node.attr.value}" if base else ""
    return ""


def _comparison(unit: Unit, node: cst.Comparison, origins: _Origins) -> Iterator[Fault]:
    """`==` or `!=` between two readings of one scaler's scale, with an `update()` between them."""
    if len(node.comparisons) != 1 or not isinstance(node.comparisons[0].operator, (cst.Equal, cst.NotEqual)):
        return
    left = origins.call(node.left, "get_scale", node)
    right = origins.call(node.comparisons[0].comparator, "get_scale", node)
    if left is None or right is None or left is right:
        return
    for older, newer in ((left, right), (right, left)):
        found = _update_between(unit, older, "get_scale", newer)
        if found is None:
            continue
        before, update, after = found
        is_equal = isinstance(node.comparisons[0].operator, cst.Equal)
        yield Fault(
            Site(unit.source, node),
            "a scale that grew is taken for a skipped step: the scale changes for two reasons",
            (
                (before.site, "the scale is read here"),
                (update.site, "it may fall or grow here"),
                (after.site, "and is read again here"),
            ),
            (),
            unit.confidence(after.scaler),
            _fix(unit.source, node, is_equal, newer is left),
        )
        return


def _division(unit: Unit, node: cst.BinaryOperation, origins: _Origins) -> Iterator[Fault]:
    """A scaled value divided by a scale that was read after `update()`."""
    read = origins.call(node.right, "get_scale", node)
    if read is None:
        return
    for name in _names(node.left):
        scaled = origins.call(name, "scale", node)
        found = _update_between(unit, scaled, "scale", read) if scaled is not None else None
        if found is None:
            continue
        scale, update, after = found
        yield Fault(
            Site(unit.source, node),
            "the value is divided by another scale than the one it was multiplied with",
            (
                (scale.site, "scaled here"),
                (update.site, "the scale may change here"),
                (after.site, "and is read only here"),
            ),
            (),
            unit.confidence(after.scaler),
        )
        return


def _names(node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """The variables in an expression, attributes of `self` included."""
    if isinstance(node, (cst.Name, cst.Attribute)) and _path(node):
        yield node
    for child in children(node):
        yield from _names(child)


def _update_between(unit: Unit, first: cst.Call, kind: str, second: cst.Call) -> tuple[Event, Event, Event] | None:
    """The events of two calls with an `update()` of their scaler between them, on some trace."""
    for trace, position, after in unit.events("get_scale"):
        if after.site.node is not second:
            continue
        update: Event | None = None
        for event in reversed(trace.events[:position]):
            if event.scaler is not after.scaler:
                continue
            if event.site.node is second:
                break
            if event.kind == "update":
                update = event
            elif event.kind == kind and event.site.node is first:
                if update is not None:
                    return event, update, after
                break
    return None


def _fix(module: SourceModule, node: cst.Comparison, is_equal: bool, newer_is_left: bool) -> FixPlan:
    """Ask whether the scale fell: `new >= old` for `==`, `new < old` for `!=`, turned round where the old one leads."""
    sign = (">=" if is_equal else "<") if newer_is_left else ("<=" if is_equal else ">")
    left, right = module.segment(node.left), module.segment(node.comparisons[0].comparator)
    changed = f"{left} {sign} {right}"
    if node.lpar:
        changed = f"({changed})"
    return FixPlan("safe", f"compare by {sign}", (Change("replace", Site(module, node), changed),))
