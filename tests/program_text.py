"""A lowered program as a short readable text, for tests."""

from __future__ import annotations

import textwrap

import libcst as cst

from amplint import program as p
from amplint.lowering import lower


def text_of(source: str) -> str:
    """What a source is lowered to: one line a statement, nested blocks indented.

    Temporaries keep their numbers, `!` marks a call whose value is thrown away, `pass` an empty block.
    """
    return "\n".join(block(lower(cst.parse_module(textwrap.dedent(source))).body.body))


def block(body: list[p.Stmt]) -> list[str]:
    """The lines of a block."""
    return [line for stmt in body for line in lines(stmt)] or ["pass"]


def inside(body: list[p.Stmt]) -> list[str]:
    """The lines of a block, indented."""
    return [f"    {line}" for line in block(body)]


def lines(stmt: p.Stmt) -> list[str]:
    """The lines of a statement."""
    if isinstance(stmt, p.Call):
        mark = "!" if stmt.dropped else ""
        return [f"{stmt.result} ={mark} {expr(stmt.func)}({', '.join(map(argument, stmt.args))})"]
    if isinstance(stmt, p.Assign):
        return [f"{expr(stmt.target)} {'+' if stmt.augmented else ''}= {expr(stmt.value)}"]
    if isinstance(stmt, p.Evaluate):
        return [f"evaluate {expr(stmt.value)}"]
    if isinstance(stmt, p.Branch):
        other = ["else:", *inside(stmt.orelse)] if stmt.orelse else []
        return [f"if {expr(stmt.test)}:", *inside(stmt.then), *other]
    if isinstance(stmt, p.Loop):
        return loop(stmt)
    if isinstance(stmt, p.Try):
        out = ["try:", *inside(stmt.body)]
        for handler in stmt.handlers:
            name = f" as {handler.name}" if handler.name is not None else ""
            kind = f" {expr(handler.type)}" if handler.type is not None else ""
            out += [f"except{kind}{name}:", *inside(handler.body)]
        out += ["else:", *inside(stmt.orelse)] if stmt.orelse else []
        return out + (["finally:", *inside(stmt.final)] if stmt.final else [])
    if isinstance(stmt, p.Region):
        target = f" as {expr(stmt.target)}" if stmt.target is not None else ""
        return [f"with {expr(stmt.context)}{target}:", *inside(stmt.body)]
    if isinstance(stmt, p.Jump):
        return [f"{stmt.kind} {expr(stmt.value)}".rstrip()]
    if isinstance(stmt, p.Yield):
        return [f"{stmt.result} = yield {expr(stmt.value)}".rstrip()]
    if isinstance(stmt, p.Define):
        return definition(stmt.scope)
    if isinstance(stmt, p.Import):
        dots = "." * stmt.level
        member = f":{stmt.member}" if stmt.member is not None else ""
        return [f"import {dots}{stmt.dotted}{member} as {stmt.name}"]
    if isinstance(stmt, p.Global):
        return [f"outer {', '.join(stmt.names)}"]
    return [f"del {expr(stmt.target)}"]


def loop(stmt: p.Loop) -> list[str]:
    """The lines of a loop."""
    other = ["else:", *inside(stmt.orelse)] if stmt.orelse else []
    if stmt.kind == "while":
        prelude = ["before each:", *inside(stmt.prelude)] if stmt.prelude else []
        return [*prelude, f"while {expr(stmt.test)}:", *inside(stmt.body), *other]
    head = f"for {expr(stmt.target)} in {expr(stmt.iterable)}"
    if stmt.kind == "for":
        return [f"{head}:", *inside(stmt.body), *other]
    key = f"{expr(stmt.key)}: " if stmt.key is not None else ""
    gathered = f" -> {stmt.shape} {key}{expr(stmt.element)}" if stmt.element is not None else ""
    return [f"{stmt.collect} = {head}{gathered}:", *inside(stmt.body)]


def definition(scope: p.Scope) -> list[str]:
    """The lines of a function or class: decorators, head, body."""
    out = [*(block(scope.prelude) if scope.prelude else []), *(f"@{expr(d)}" for d in scope.decorators)]
    if scope.kind == "class":
        return [*out, f"class {scope.name}({', '.join(map(expr, scope.bases))}):", *inside(scope.body)]
    kind = "generator" if scope.is_generator else "def"
    return [*out, f"{kind} {scope.name}({', '.join(map(parameter, scope.params))}):", *inside(scope.body)]


def parameter(param: p.Param) -> str:
    """`kind name: annotation = default`, without what is plain or missing."""
    stars = param.kind if param.kind in ("*", "**") else ""
    keyword = "keyword " if param.kind == "keyword" else ""
    annotation = f": {param.annotation}" if param.annotation else ""
    default = f" = {expr(param.default)}" if param.default is not None else ""
    return f"{keyword}{stars}{param.name}{annotation}{default}"


def argument(arg: p.Arg) -> str:
    """An argument of a call."""
    keyword = f"{arg.keyword}=" if arg.keyword is not None else ""
    return f"{arg.star}{keyword}{expr(arg.value)}"


def expr(value: p.Expr | None) -> str:
    """An expression; operators are written as calls, so that their nesting is seen."""
    if value is None:
        return ""
    if isinstance(value, p.Name):
        return value.id
    if isinstance(value, p.Const):
        return repr(value.value)
    if isinstance(value, p.Attr):
        return f"{expr(value.base)}.{value.name}"
    if isinstance(value, p.Item):
        return f"{expr(value.base)}[{expr(value.index)}]"
    if isinstance(value, p.Op):
        return f"({' '.join([value.op, *map(expr, value.args)])})"
    if isinstance(value, p.Star):
        return f"*{expr(value.value)}"
    if isinstance(value, p.Seq):
        left, right = {"tuple": "()", "list": "[]", "set": "{}"}[value.kind]
        return f"{left}{', '.join(map(expr, value.items))}{right}"
    if isinstance(value, p.DictDisplay):
        entries = (f"{expr(k)}: {expr(v)}" if k is not None else f"**{expr(v)}" for k, v in value.items)
        return f"{{{', '.join(entries)}}}"
    params = ", ".join(map(parameter, value.scope.params))
    return f"<lambda {params}: {'; '.join(block(value.scope.body))}>"
