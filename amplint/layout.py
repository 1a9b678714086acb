"""Where a syntax node stands: its function, its block, its neighbours. For fixes and the few rules that need it."""

from __future__ import annotations

import re

import libcst as cst

from amplint.rule import Change, Site

_RAISES = re.compile(r"(?:assert_?)?raises", re.IGNORECASE)


def enclosing(site: Site, *kinds: type[cst.CSTNode]) -> cst.CSTNode | None:
    """The nearest node of these kinds around a site."""
    node = site.module.parent(site.node)
    while node is not None and not isinstance(node, kinds):
        node = site.module.parent(node)
    return node


def function_of(site: Site) -> cst.CSTNode | None:
    """The function definition that holds a site, None at module level."""
    return enclosing(site, cst.FunctionDef)


def class_of(site: Site) -> cst.CSTNode | None:
    """The class definition that holds a site."""
    return enclosing(site, cst.ClassDef)


def is_expected_to_raise(site: Site) -> bool:
    """Whether a site stands under `pytest.raises`, `assertRaises` and the like, or in a `try` that catches the
    AssertionError of a scaler (torch/amp/grad_scaler.py): what is wrong there is meant."""
    node: cst.CSTNode | None = enclosing(site, cst.With, cst.Try, cst.FunctionDef)
    while isinstance(node, (cst.With, cst.Try)):
        if isinstance(node, cst.Try):
            caught = (site.module.segment(handler.type) for handler in node.handlers if handler.type is not None)
            if any("AssertionError" in types for types in caught):
                return True
            node = enclosing(Site(site.module, node), cst.With, cst.Try, cst.FunctionDef)
            continue
        managers = [item.item.func for item in node.items if isinstance(item.item, cst.Call)]
        names = [f.attr.value if isinstance(f, cst.Attribute) else getattr(f, "value", "") for f in managers]
        if any(isinstance(name, str) and _RAISES.match(name) for name in names):
            return True
        node = enclosing(Site(site.module, node), cst.With, cst.Try, cst.FunctionDef)
    return False


def same_function(first: Site, second: Site) -> bool:
    """Whether two sites stand in the same function of the same module."""
    return first.module is second.module and function_of(first) is function_of(second)


def block_of(site: Site) -> tuple[cst.IndentedBlock | cst.Module, int] | None:
    """The block that holds a site's statement, and the statement's position in it."""
    return site.module.block(site.node)


def same_block(first: Site, second: Site) -> bool:
    """Whether the statements of two sites are neighbours in one block."""
    if first.module is not second.module:
        return False
    one, two = block_of(first), block_of(second)
    return one is not None and two is not None and one[0] is two[0]


def once_before(site: Site, later: Site) -> Site | None:
    """Where a statement runs once before `site`, on the way to `later`, in whose block `site` or what it is part of
    stands; None where they stand otherwise.

    It is `site` itself, under whatever condition it has, or the outermost loop around it.
    """
    held = block_of(later)
    if held is None or site.module is not later.module:
        return None
    block, position = held
    module, found = site.module, site.node
    current: cst.CSTNode = module.statement(site.node)
    while module.parent(current) is not block:
        above = module.parent(current)
        if above is None or isinstance(above, (cst.FunctionDef, cst.ClassDef, cst.Module)):
            return None
        if isinstance(above, (cst.For, cst.While)):
            found = above
        current = above
    order: list[cst.CSTNode] = [*block.body]
    return Site(module, found) if order.index(current) < position else None


def stands_before(site: Site, other: Site) -> bool:
    """Whether a site's text ends before another's begins, in one module."""
    if site.module is not other.module:
        return False
    one, two = site.module.place(site.node), other.module.place(other.node)
    return (one.end_line, one.end_column) <= (two.line, two.column)


def is_tail_of_with(site: Site, item: Site) -> bool:
    """Whether a site's statement is the last one in the body of the `with` that enters `item`."""
    if site.module is not item.module:
        return False
    held = block_of(site)
    region = enclosing(item, cst.With)
    if held is None or region is None or not isinstance(region, cst.With):
        return False
    block, position = held
    return region.body is block and len(block.body) > 1 and position == len(block.body) - 1


def receiver_text(site: Site) -> str:
    """`scaler` of a site that is the call `scaler.step(optimizer)`; "" where it is no method call."""
    node = site.node
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        receiver = node.func.value
        bare = receiver.with_changes(lpar=(), rpar=()) if receiver.lpar else receiver
        return site.module.tree.code_for_node(bare)
    return ""


def argument_text(site: Site, position: int = 0) -> str:
    """The source of a call's n-th positional argument; "" where there is none."""
    node = site.node
    if isinstance(node, cst.Call) and len(node.args) > position:
        argument = node.args[position]
        if argument.keyword is None and not argument.star:
            return site.module.segment(argument.value)
    return ""


def text_before(site: Site) -> str:
    """What stands on its line before a site."""
    place = site.module.place(site.node)
    return site.module.line_text(site.module.program_line(place.line, place.cell))[: place.column - 1]


def is_plain_path(text: str) -> bool:
    """Whether a text is a name or an attribute chain, so that it means the same on a neighbouring line."""
    return bool(text) and all(part.isidentifier() for part in text.split("."))


def under_condition(site: Site, condition: str) -> Change | None:
    """The change that puts a site's call, a statement by itself, under an `if`; None where it is no such statement."""
    module, node = site.module, site.node
    statement = module.parent(node)
    line = module.parent(statement) if isinstance(statement, cst.Expr) else None
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        return None
    indent = text_before(site)
    text = module.segment(node)
    if indent.strip() or "\n" in text:
        return None
    step = "\t" if "\t" in indent else "    "
    return Change("replace", site, f"if {condition}:\n{indent}{step}{text}")
