"""Where the loss scale falls out of what is computed from a gradient: a direction, an angle, a step of fixed length,
the order of its elements, a comparison with zero."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

import libcst as cst

from amplint.layout import function_of
from amplint.source import children

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amplint.rule import Site
    from amplint.source import SourceModule

#: what a norm passes on its way into a divisor
_PASSES = frozenset(
    "to float double item clamp clamp_ clamp_min sqrt pow sum mean norm stack cat square abs view reshape flatten cpu "
    "cuda max expand unsqueeze detach clone data topk sort".split()
)
#: which element is the largest depends on no scale
_ORDERS = frozenset("argmax argmin argsort indices".split())
#: tests that a divisor is usable
_TESTS = frozenset({"isnan", "isinf", "isfinite", "is_nonzero"})


def falls_out(site: Site, readings: AbstractSet[int]) -> bool:
    """Whether a reading of a gradient serves as a divisor alone, is divided by another one, is compared with zero, or
    says which element is the largest; `readings` are the ids of all nodes that read one. A divisor may be a variable of
    its function: `norm = g.norm()`, `g / (norm + 1e-12)`."""
    top = _quotient(site.module, site.node, readings)
    return (top is not None and _is_test(site.module, top)) or is_divided(site, readings)


def is_divided(site: Site, readings: AbstractSet[int]) -> bool:
    """Whether what a reading gives, or a call in which one happens, is a divisor or is divided by another reading:
    `norm(head) / norm(body)`, with variables in between or not."""
    top = _quotient(site.module, site.node, readings)
    if top is None:
        return True
    holder = site.module.parent(top)
    if not isinstance(holder, cst.Assign) or len(holder.targets) != 1:
        return False
    target, function = holder.targets[0].target, function_of(site)
    if not isinstance(target, cst.Name) or function is None:
        return False
    uses = [use for use in _uses(function, target.value) if use is not target]
    held = readings | {id(use) for name in _holding(function, readings) for use in _uses(function, name)}
    divided = [_quotient(site.module, use, held) is None for use in uses]
    return any(divided) and all(
        divides or _is_test(site.module, use) for use, divides in zip(uses, divided, strict=True)
    )


def _holding(function: cst.CSTNode, readings: AbstractSet[int]) -> Iterator[str]:
    """The variables of a function that are bound to what was computed from a reading."""
    for node in _inside(function):
        if isinstance(node, cst.Assign) and any(id(inner) in readings for inner in _inside(node.value)):
            yield from (t.target.value for t in node.targets if isinstance(t.target, cst.Name))


def _quotient(module: SourceModule, node: cst.CSTNode, readings: AbstractSet[int]) -> cst.CSTNode | None:
    """None where a node divides something, is divided by a reading, or is asked for the order of its elements; else the
    largest expression around it that has its size."""
    while True:
        parent = module.parent(node)
        if isinstance(parent, cst.BinaryOperation):
            if isinstance(parent.operator, cst.Divide):
                if node is parent.right or any(id(n) in readings for n in _inside(parent.right)):
                    return None
            elif not isinstance(parent.operator, (cst.Multiply, cst.Add, cst.Power)):
                return node
        elif isinstance(parent, cst.Attribute):
            if parent.attr.value in _ORDERS:
                return None
            if parent.attr.value not in _PASSES:
                return node
        elif isinstance(parent, cst.Call):
            if _name(parent.func) not in _PASSES:
                return node
        elif not isinstance(parent, (cst.Arg, cst.Element, cst.List, cst.Tuple, cst.ListComp, cst.GeneratorExp)):
            return node
        assert parent is not None
        node = parent


def _is_test(module: SourceModule, use: cst.CSTNode) -> bool:
    """Whether a use only asks whether the value can be divided by: `norm != 0`, `torch.isnan(norm)`, `if norm:`."""
    parent = module.parent(use)
    if isinstance(parent, cst.Arg):
        call = module.parent(parent)
        return isinstance(call, cst.Call) and _name(call.func) in _TESTS
    if isinstance(parent, cst.Comparison):
        other = parent.comparisons[0].comparator
        return isinstance(other, (cst.Integer, cst.Float)) and float(other.evaluated_value) == 0
    return isinstance(parent, (cst.If, cst.BooleanOperation)) and parent is not None


def _name(func: cst.BaseExpression) -> str:
    """The last name of what is called."""
    if isinstance(func, cst.Attribute):
        return func.attr.value
    return func.value if isinstance(func, cst.Name) else ""


def _uses(node: cst.CSTNode, name: str) -> Iterator[cst.Name]:
    """Every place in a function where a variable is written, but for attributes and keywords of that name."""
    if isinstance(node, cst.Name):
        if node.value == name:
            yield node
    elif isinstance(node, cst.Attribute):
        yield from _uses(node.value, name)
    elif isinstance(node, cst.Arg):
        yield from _uses(node.value, name)
    else:
        for child in children(node):
            yield from _uses(child, name)


def _inside(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    yield node
    for child in children(node):
        yield from _inside(child)
