"""AMP220: a change of the scale is taken for a skipped step."""

from __future__ import annotations

import re
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
    from amplint.traces import Trace


class ScaleComparedForEquality(Rule):
    """The scale is compared by `==` or `!=` to find a skipped step, or read after `update()` to undo the scaling.

    ## What it does
    Reports `==` and `!=` between two values of `scaler.get_scale()`, and a loss or gradients that were scaled before
    `update()` and are divided by a `get_scale()` read after it.

    ## Why is this bad
    The scale changes for two reasons: it halves after an overflow and doubles after 2000 good steps. An equality takes
    the growth for a skip, so a scheduler or counter misses one step in 2000 (with `growth_interval=2`, 3 of 6). A
    scaled value divided by the scale after `update()` is wrong by a factor 2 or 0.5 at every change, and gradients that
    `scaler.step` has unscaled already are divided for a second time.

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
    Comparisons by `<`, `<=`, `>` and `>=` are silent, and so are comparisons with a constant, assertions, and
    comparisons that only decide whether the new scale is logged. Scales that are read with the scaler's internals are
    not recognised.

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
    needles = ((re.compile(rb"get_scale(?!\w)"),),)
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
                    continue
                if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Divide):
                    yield from _division(unit, node, origins)
                yield from _gradients(unit, node, origins)


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
        node = self.value(node, user)
        if isinstance(node, cst.IfExp):
            # without a scaler there is nothing to ask, and something else is taken
            choices = (self.call(choice, method, user) for choice in (node.body, node.orelse))
            return next((call for call in choices if call is not None), None)
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == method:
            return node
        return None

    def value(self, node: cst.BaseExpression, user: cst.CSTNode) -> cst.BaseExpression:
        """An expression, or what a variable was last bound to where it is used."""
        path = _path(node)
        if not path:
            return node
        at = self.nodes.index(user)
        earlier = [value for position, value in self._bound.get(path, ()) if position <= at]
        return earlier[-1] if earlier else node


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
    first, second = node.left, node.comparisons[0].comparator
    left = origins.call(first, "get_scale", node)
    right = origins.call(second, "get_scale", node)
    if left is None and right is not None:
        left = _handed_in(unit, first, right)
    elif right is None and left is not None:
        right = _handed_in(unit, second, left)
    if left is None or right is None or left is right or _is_only_told(unit.source, node):
        return
    for older, newer in ((left, right), (right, left)):
        if _begin(unit, newer) < _begin(unit, older) < _end(unit, node):
            # read anew before it is compared
            continue
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


def _handed_in(unit: Unit, node: cst.BaseExpression, newer: cst.Call) -> cst.Call | None:
    """The `get_scale()` whose value a parameter has, in a function of the module that asks for the scale itself."""
    for _, _, event in unit.events("get_scale"):
        if event.site.node is not newer or not event.calls or not isinstance(node, cst.Name):
            continue
        helper, call = function_of(event.site), event.calls[-1]
        caller = function_of(call)
        if call.module is not unit.source or caller is None or not isinstance(call.node, cst.Call):
            continue
        argument = _argument(call.node, helper, node.value)
        older = _Origins(caller).call(argument, "get_scale", call.node) if argument is not None else None
        if older is not None:
            return older
    return None


def _argument(call: cst.Call, function: cst.CSTNode | None, name: str) -> cst.BaseExpression | None:
    """What a call gives a parameter of a function, or of a method."""
    if not isinstance(function, cst.FunctionDef) or any(arg.star for arg in call.args):
        return None
    names = [param.name.value for param in function.params.params]
    if names[:1] in (["self"], ["cls"]):
        names = names[1:]
    for arg, expected in zip(call.args, names, strict=False):
        if (arg.keyword.value if arg.keyword is not None else expected) == name:
            return arg.value
    return next((arg.value for arg in call.args if arg.keyword is not None and arg.keyword.value == name), None)


#: calls that show something to people
_TELLS = re.compile(r"print|log|info|debug|warn|scalar|write|record|echo|postfix|track", re.IGNORECASE)
#: words of who takes a changed scale for a skipped step
_MEANS_SKIPPED = re.compile(r"skip|overflow|\binf|\bnan|drop", re.IGNORECASE)


def _is_only_told(module: SourceModule, node: cst.CSTNode) -> bool:
    """Whether that the scale changed is all that a comparison says: it is asserted, logged, or decides what is."""
    parent = module.parent(node)
    while isinstance(parent, (cst.BooleanOperation, cst.DictElement, cst.Dict, cst.Arg)):
        parent = module.parent(parent)
    if isinstance(parent, cst.Assert):
        return True
    if isinstance(parent, cst.If):
        told = parent.orelse is None and all(map(_tells, parent.body.body))
    else:
        told = isinstance(parent, cst.Call) and _TELLS.search(_last_name(parent.func)) is not None
    return told and parent is not None and _MEANS_SKIPPED.search(module.rough_text(parent)) is None


def _tells(statement: cst.CSTNode) -> bool:
    """Whether a statement shows something, or keeps the new scale in mind."""
    if not isinstance(statement, cst.SimpleStatementLine):
        return False
    values = [part.value for part in statement.body if isinstance(part, (cst.Expr, cst.Assign))]
    calls = [value for value in values if isinstance(value, cst.Call)]
    names = [_last_name(call.func) for call in calls]
    return len(names) == len(statement.body) and all(n == "get_scale" or _TELLS.search(n) for n in names)


def _last_name(func: cst.BaseExpression) -> str:
    return func.attr.value if isinstance(func, cst.Attribute) else _path(func)


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


#: methods of a gradient that take a factor
_SCALING = frozenset({"mul", "mul_", "div", "div_", "multiply_", "divide_"})


def _gradients(unit: Unit, node: cst.CSTNode, origins: _Origins) -> Iterator[Fault]:
    """Gradients of an earlier update that are divided by the scale of now."""
    operands = _factors(node)
    if operands is None or not _mentions_gradient(operands[0]):
        return
    read = _inverse(operands[1], node, origins)
    found = _outdated(unit, read, node) if read is not None else None
    if found is None:
        return
    source, update, after, step = found
    steps = [
        (source.site, "unscaled by this step already" if source.kind == "step" else "they carry the scale of here"),
        (update.site, "the scale may change here"),
        (after.site, "and is read only here"),
    ]
    if step is not None:
        steps.append((step.site, "the optimizer takes them as they are"))
    yield Fault(
        Site(unit.source, node),
        "the gradients are divided by a scale that they do not carry",
        tuple(steps),
        (),
        unit.confidence(after.scaler),
    )


def _factors(node: cst.CSTNode) -> tuple[cst.BaseExpression, cst.BaseExpression] | None:
    """What is multiplied or divided, and by what."""
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, (cst.Multiply, cst.Divide)):
        if isinstance(node.operator, cst.Multiply) and not _mentions_gradient(node.left):
            return node.right, node.left
        return node.left, node.right
    if isinstance(node, cst.AugAssign) and isinstance(node.operator, (cst.MultiplyAssign, cst.DivideAssign)):
        return node.target, node.value
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value in _SCALING:
        return (node.func.value, node.args[0].value) if len(node.args) == 1 else None
    return None


def _mentions_gradient(node: cst.CSTNode) -> bool:
    if isinstance(node, cst.Attribute) and node.attr.value == "grad":
        # `torch.autograd.grad` is a function: what it returns has the scale that its loss has
        of = node.value.attr if isinstance(node.value, cst.Attribute) else node.value
        return not (isinstance(of, cst.Name) and of.value in ("autograd", "func"))
    return any(_mentions_gradient(child) for child in children(node))


def _inverse(node: cst.BaseExpression, user: cst.CSTNode, origins: _Origins) -> cst.Call | None:
    """The `get_scale()` that a factor is, or is one divided by."""
    node = origins.value(node, user)
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Divide):
        node = node.right
    return origins.call(node, "get_scale", user)


def _outdated(unit: Unit, read: cst.Call, use: cst.CSTNode) -> tuple[Event, Event, Event, Event | None] | None:
    """The step or backward, the update, the reading after it, and the plain step that takes what is divided by it."""
    for trace, position, after in unit.events("get_scale"):
        if after.site.node is not read or _replaced_before(unit, trace, position, use):
            continue
        update: Event | None = None
        for event in reversed(trace.events[:position]):
            if event.kind == "zero_grad":
                break
            if event.scaler is not after.scaler:
                continue
            if event.kind == "update":
                update = event
            elif event.kind in ("backward", "step"):
                if update is None:
                    break
                following = (e for e in trace.events[position:] if e.kind in ("opt_step", "zero_grad", "backward"))
                taker = next(following, None)
                return event, update, after, taker if taker is not None and taker.kind == "opt_step" else None
    return None


def _replaced_before(unit: Unit, trace: Trace, position: int, use: cst.CSTNode) -> bool:
    """Whether other gradients come between the reading of a scale and the place, further down, where it is used."""
    start, end = _begin(unit, trace.events[position].site.node), _begin(unit, use)
    function = function_of(Site(unit.source, use))
    for event in trace.events[position + 1 :]:
        for site in (*event.calls, event.site):
            if site.module is unit.source and function_of(site) is function:
                if not start <= _begin(unit, site.node) <= end:
                    return False
                if event.kind in ("backward", "zero_grad"):
                    return True
                break
    return False


def _end(unit: Unit, node: cst.CSTNode) -> tuple[int, int]:
    place = unit.source.place(node)
    return place.end_line, place.end_column


def _begin(unit: Unit, node: cst.CSTNode) -> tuple[int, int]:
    place = unit.source.place(node)
    return place.line, place.column


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
