"""AMP405: an average of weights is kept in fp16 and updated there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from amplint.finding import Severity
from amplint.names import names_of
from amplint.needles import CASTS_TO_HALF
from amplint.program import (
    Assign,
    Attr,
    Call,
    Expr,
    Item,
    Loop,
    Name,
    Scope,
    Seq,
    call_name,
    parts_of,
    path_of,
)
from amplint.rule import Fault, Rule, Site

if TYPE_CHECKING:
    from amplint.analysis import Unit


#: what makes an average besides a walk over the weights: a copy of a model, or a class of its own
_IN_PLACE_NEEDLES = (b".lerp_(", b".lerp(", b".add_(", b".mul_(", b".copy_(", b"] = ")
_COPIES = (b"deepcopy", b"Average", b"EMA", b"Ema")


class HalfEma(Rule):
    """An average of weights (EMA, SWA, a mean teacher) is kept in fp16 and updated in it.

    ## What it does

    Reports a copy of a model or of its parameters that is cast to fp16 and then moved towards the trained weights in
    place: by `mul_` and `add_`, by `lerp_`, or through `torch.optim.swa_utils.AveragedModel`. Also reported is a class
    named as an average (`EMAModel`, `ModelEma`) that is told `dtype=torch.float16` or is given a model loaded so, and
    whose `step` or `update` is called.

    ## Why is this bad

    One update changes an averaged weight by `(1 - decay) * (weight - average)`. With a decay of 0.999 that is a
    thousandth of a difference which is small itself, while two neighbouring fp16 numbers near 1 are 2^-10 apart. The
    update is rounded away and the average stays where it was. In a run of six updates the largest change of an
    averaged weight was 0. Nothing is raised, and evaluation with the average reports the quality of the initial
    weights.

    ## Example

    ```python
    import copy

    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).to("cuda")
    average = copy.deepcopy(model).half().requires_grad_(False)  # <- here
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cuda")
    start = average[0].weight.clone()
    decay = 0.9998

    for _ in range(6):
        x, y = torch.randn(16, 8, device="cuda"), torch.randn(16, 1, device="cuda")
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            for kept, weight in zip(average.parameters(), model.parameters()):
                kept.mul_(decay).add_(weight.to(kept.dtype), alpha=1 - decay)

    print((average[0].weight != start).float().mean().item())
    ```

    ## Use instead

    ```python
    import copy

    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).to("cuda")
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cuda")
    start = average[0].weight.clone()
    decay = 0.9998

    for _ in range(6):
        x, y = torch.randn(16, 8, device="cuda"), torch.randn(16, 1, device="cuda")
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            for kept, weight in zip(average.parameters(), model.parameters()):
                kept.mul_(decay).add_(weight.to(kept.dtype), alpha=1 - decay)

    print((average[0].weight != start).float().mean().item())
    ```

    ## Known limits

    - A half copy that is never updated (a frozen teacher, an export) is right and is not reported.
    - An average that is kept in bf16 loses even more of each update; this rule speaks of fp16 only.

    ## Fix safety

    No fix. The average has to be created in fp32 and to stay there; where it is used for evaluation, inputs that were
    cast to half have to change with it.

    ## How it is confirmed

    The replay updates the average with realistic differences and compares it with an fp32 average: entries that did
    not move although the fp32 ones did confirm the finding.

    ## References

    - https://docs.pytorch.org/docs/stable/optim.html#weight-averaging-swa-and-ema
    - `torch/optim/swa_utils.py`, class `AveragedModel`
    """

    code = "AMP405"
    name = "half-ema"
    severity = Severity.WARNING
    needles = (
        CASTS_TO_HALF,
        (*_COPIES, b"parameters(", b"state_dict"),
        (*_COPIES, b"ema", *_IN_PLACE_NEEDLES),
        (*_IN_PLACE_NEEDLES, b"update_parameters(", b".step(", b".update("),
    )
    confirmed_by = "own"

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        averages = [average for scope in unit.env.program.scopes for average in _kept_in_half(unit, scope)]
        if not averages:
            return
        for scope in unit.env.program.scopes:
            for path, update in _updated(scope):
                for average in averages:
                    if path == average.path and (path.startswith("self.") or average.scope is scope):
                        steps = [(Site(unit.source, node), "loaded in float16 here") for node in average.loaded]
                        yield Fault(
                            Site(unit.source, average.node),
                            "an average of weights is kept in float16, where the small change of an update is lost",
                            (*steps, (Site(unit.source, update.node), "updated in place here")),
                        )


@dataclass(slots=True)
class _Average:
    """An average that is kept in half: its path, where it is made, and where its weights are loaded in half."""

    path: str
    node: cst.CSTNode
    scope: Scope
    loaded: tuple[cst.CSTNode, ...] = ()


_HALF = frozenset({"torch.float16", "torch.half", "torch.HalfTensor", "torch.cuda.HalfTensor"})
_MAKERS = frozenset({"deepcopy", "AveragedModel", "ModelEma", "ModelEmaV2", "EMA"})
#: classes that keep an average of a model they are given
_AVERAGES = re.compile(r"EMA(?![a-z])|Ema(?![a-z])|ExponentialMovingAverage|AveragedModel")
_IN_PLACE = frozenset({"mul_", "add_", "lerp_", "sub_", "addcmul_"})


class _Scan:
    """The calls and loops of a scope by their temporaries."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.calls = {s.result: s for s in scope.statements if isinstance(s, Call)}
        self.loops = {s.collect: s for s in scope.statements if isinstance(s, Loop) and s.collect}

    def chain(self, expr: Expr | None) -> Iterator[Call]:
        """The calls of `copy.deepcopy(model).half().eval()`, last one first."""
        while True:
            while isinstance(expr, (Attr, Item)):
                expr = expr.base
            call = self.calls.get(expr.id) if isinstance(expr, Name) else None
            if call is None:
                return
            yield call
            expr = call.func.base if isinstance(call.func, Attr) else None

    def root(self, expr: Expr | None) -> Expr | None:
        """What a chain of method calls, attributes and items begins with."""
        while True:
            if isinstance(expr, Name) and expr.id in self.calls:
                func = self.calls[expr.id].func
                expr = func.base if isinstance(func, Attr) else None
            elif isinstance(expr, Item):
                expr = expr.base
            else:
                return expr


def _kept_in_half(unit: Unit, scope: Scope) -> Iterator[_Average]:
    """Copies of a model, and collections of its parameters, that are cast to half where they are made."""
    scan = _Scan(scope)
    made: set[str] = set()
    in_half: dict[str, cst.CSTNode] = {}
    for stmt in scope.statements:
        if isinstance(stmt, Assign):
            path = path_of(stmt.target)
            calls = list(scan.chain(stmt.value))
            if any(call_name(c.func) in _MAKERS for c in calls):
                made.add(path)
            half = next((c for c in calls if _casts_to_half(unit, c, scope)), None)
            if half is not None and path in made and any(call_name(c.func) in _MAKERS for c in calls):
                yield _Average(path, half.node, scope)
            if any(_asks_for_half(unit, c, scope) for c in calls):
                in_half[path] = stmt.node
            average = next((c for c in calls if _AVERAGES.search(call_name(c.func))), None)
            if average is not None:
                given = {path_of(scan.root(arg.value)) for arg in average.args if arg.keyword is None}
                loaded = tuple(node for name, node in in_half.items() if name in given)
                if loaded or _asks_for_half(unit, average, scope):
                    yield _Average(path, average.node, scope, loaded)
            loop = scan.loops.get(stmt.value.id) if isinstance(stmt.value, Name) else None
            if loop is None or not path or not _walks_over_parameters(scan, loop.iterable):
                continue
            if any(_casts_to_half(unit, c, scope) for c in scan.chain(loop.element)):
                yield _Average(path, stmt.node, scope)
        elif isinstance(stmt, Call) and stmt.dropped and isinstance(stmt.func, Attr):
            path = path_of(stmt.func.base)
            if path in made and _casts_to_half(unit, stmt, scope):
                yield _Average(path, stmt.node, scope)


def _walks_over_parameters(scan: _Scan, iterable: Expr | None) -> bool:
    calls = list(scan.chain(iterable))
    names = {call_name(c.func) for c in calls} | {path_of(scan.root(iterable)).rpartition(".")[2]}
    return any("param" in name or name == "state_dict" for name in names)


def _casts_to_half(unit: Unit, call: Call, scope: Scope) -> bool:
    if call_name(call.func) == "half" and not call.args:
        return True
    if call_name(call.func) not in ("to", "type"):
        return False
    names = names_of(unit.env)
    return any(not _HALF.isdisjoint(names.of(arg.value, scope)) for arg in call.args)


def _asks_for_half(unit: Unit, call: Call, scope: Scope) -> bool:
    """Whether what a call makes is asked to be in half, at least for some value of an option."""
    names = names_of(unit.env)
    return any(
        not _HALF.isdisjoint(names.of(arg.value, scope)) for arg in call.args if arg.keyword in ("dtype", "torch_dtype")
    )


def _updated(scope: Scope) -> Iterator[tuple[str, Call | Assign]]:
    """What is changed in place step by step: the elements that a loop walks over, items, or a model as a whole."""
    scan = _Scan(scope)
    elements: dict[str, list[str]] = {}
    for stmt in scope.statements:
        if isinstance(stmt, Loop) and stmt.target is not None:
            sources = list(_sources(scan, stmt.iterable))
            targets = list(stmt.target.items) if isinstance(stmt.target, Seq) else [stmt.target]
            for position, target in enumerate(targets):
                if isinstance(target, Name):
                    paired = sources[position : position + 1] if len(sources) == len(targets) else sources
                    elements.setdefault(target.id, []).extend(paired)
    for stmt in scope.statements:
        if isinstance(stmt, Assign) and isinstance(stmt.target, Attr) and stmt.target.name == "data":
            # `e.data = decay * e.data + ...`
            path = path_of(stmt.target)
            if any(path_of(part) == path for part in parts_of(stmt.value)):
                for source in elements.get(path_of(stmt.target.base), ()):
                    yield source, stmt
        elif isinstance(stmt, Assign) and isinstance(stmt.target, Item):
            # `averages[name] = decay * averages[name] + ...`
            path = path_of(stmt.target.base)
            if any(isinstance(part, Item) and path_of(part.base) == path for part in parts_of(stmt.value)):
                yield path, stmt
    for call in scan.calls.values():
        if not isinstance(call.func, Attr):
            continue
        if call.func.name in ("update_parameters", "step", "update"):
            yield path_of(call.func.base), call
        elif call.func.name in _IN_PLACE or (call.func.name == "copy_" and _copies_itself(call)):
            root = scan.root(call.func.base)
            path = path_of(root).removesuffix(".data")
            for source in elements.get(path, [path]):
                yield source, call


def _copies_itself(call: Call) -> bool:
    """Whether what is copied into something is computed from it: `e.copy_(decay * e + (1 - decay) * p)`."""
    path = path_of(call.func.base) if isinstance(call.func, Attr) else ""
    return any(path_of(part) == path for arg in call.args for part in parts_of(arg.value) if path)


def _sources(scan: _Scan, iterable: Expr | None) -> Iterator[str]:
    """The paths whose parameters or items a loop walks over."""
    call = scan.calls.get(iterable.id) if isinstance(iterable, Name) else None
    if call is not None and call_name(call.func) in ("zip", "enumerate", "list", "iter", "reversed"):
        for arg in call.args:
            yield from _sources(scan, arg.value)
        return
    yield path_of(scan.root(iterable))
