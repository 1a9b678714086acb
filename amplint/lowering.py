"""From a LibCST module to its AMP program: one recursive walk, no metadata, no matchers.

Calls are taken out of their expressions in evaluation order, short circuits and conditional
expressions that hold calls become branches, comprehensions become loops. `assert test` is a branch
that raises. What a name means is left to the execution (`amplint.traces`).
"""

from __future__ import annotations

import re
from ast import literal_eval
from typing import TYPE_CHECKING

import libcst as cst

from amplint.library import LASTING
from amplint.program import (
    Arg,
    Assign,
    Attr,
    Branch,
    Call,
    Closure,
    Const,
    Define,
    Delete,
    DictDisplay,
    Evaluate,
    Expr,
    Global,
    Handler,
    Import,
    Item,
    Jump,
    Loop,
    Name,
    Op,
    Param,
    Program,
    Region,
    Scope,
    Seq,
    Star,
    Stmt,
    Try,
    Yield,
    path_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_OPERATORS: dict[type[cst.CSTNode], str] = {
    cst.Add: "+",
    cst.Subtract: "-",
    cst.Multiply: "*",
    cst.Divide: "/",
    cst.FloorDivide: "//",
    cst.Modulo: "%",
    cst.Power: "**",
    cst.MatrixMultiply: "@",
    cst.LeftShift: "<<",
    cst.RightShift: ">>",
    cst.BitAnd: "&",
    cst.BitOr: "|",
    cst.BitXor: "^",
    cst.AddAssign: "+",
    cst.SubtractAssign: "-",
    cst.MultiplyAssign: "*",
    cst.DivideAssign: "/",
    cst.FloorDivideAssign: "//",
    cst.ModuloAssign: "%",
    cst.PowerAssign: "**",
    cst.MatrixMultiplyAssign: "@",
    cst.LeftShiftAssign: "<<",
    cst.RightShiftAssign: ">>",
    cst.BitAndAssign: "&",
    cst.BitOrAssign: "|",
    cst.BitXorAssign: "^",
    cst.Equal: "==",
    cst.NotEqual: "!=",
    cst.LessThan: "<",
    cst.LessThanEqual: "<=",
    cst.GreaterThan: ">",
    cst.GreaterThanEqual: ">=",
    cst.Is: "is",
    cst.IsNot: "is not",
    cst.In: "in",
    cst.NotIn: "not in",
    cst.And: "and",
    cst.Or: "or",
    cst.Not: "not",
    cst.Minus: "neg",
    cst.Plus: "pos",
    cst.BitInvert: "~",
}


def _asks_the_machine(stmt: Stmt) -> bool:
    """Whether a statement is a call like `torch.cuda.is_available()`, which has the same answer at any time."""
    if not isinstance(stmt, Call) or stmt.args:
        return False
    return re.sub(r"^dist\.", "torch.distributed.", path_of(stmt.func)) in LASTING


def lower(module: cst.Module) -> Program:
    """The AMP program of a parsed module.

    >>> program = lower(cst.parse_module("scaler.scale(loss / 2).backward()"))
    >>> [(s.result, s.func.name) for s in program.body.body]
    [('%1', 'scale'), ('%2', 'backward')]
    """
    return _Lowering().module(module)


class _Lowering:
    """Walks a module once. `out` is the block that statements are being appended to."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []
        self.out: list[Stmt] = []
        self.scope: Scope
        self.temporaries = 0
        self.words: list[set[str]] = []

    # --- scopes ----------------------------------------------------------------------------------

    def module(self, node: cst.Module) -> Program:
        body = self._open("module", "", node, None)
        self.scope = body
        self.words.append(set())
        body.body = self._block(node.body)
        self._close(body)
        return Program(body, tuple(self.scopes))

    def _open(self, kind: str, name: str, node: cst.CSTNode, parent: Scope | None) -> Scope:
        qualname = f"{parent.qualname}.{name}" if parent is not None and parent.qualname else name
        scope = Scope(kind, name, qualname, node, len(self.scopes), parent)  # type: ignore[arg-type]
        self.scopes.append(scope)
        return scope

    def _close(self, scope: Scope) -> None:
        words = self.words.pop()
        scope.words = frozenset(words)
        if self.words:
            self.words[-1] |= words
        declared = [s.names for s in scope.statements if isinstance(s, Global)]
        scope.outer_names = frozenset(name for names in declared for name in names)

    def _nested(self, kind: str, name: str, node: cst.CSTNode, fill: Callable[[Scope], None]) -> Scope:
        outer_scope, outer_out = self.scope, self.out
        scope = self._open(kind, name, node, outer_scope)
        self.scope = scope
        self.words.append(set())
        fill(scope)
        self._close(scope)
        self.scope, self.out = outer_scope, outer_out
        return scope

    def _function(self, node: cst.FunctionDef) -> Scope:
        params: tuple[Param, ...] = ()
        decorators: tuple[Expr, ...] = ()

        def header() -> None:
            nonlocal params, decorators
            params = self._params(node.params)
            decorators = tuple(self.expr(d.decorator) for d in node.decorators)

        prelude = self._capture(header)

        def fill(scope: Scope) -> None:
            scope.params = params
            scope.decorators = decorators
            scope.prelude = prelude
            scope.body = self._block(node.body.body)
            scope.is_generator = any(isinstance(s, Yield) for s in scope.statements)

        scope = self._nested("function", node.name.value, node, fill)
        parent = scope.parent
        if parent is not None:
            name = _name_in_class(scope) if parent.kind == "class" else scope.name
            parent.children[name] = scope
            if parent.kind == "class" and scope.params:
                self._note_bound_attributes(parent, scope, name)
        return scope

    def _note_bound_attributes(self, owner: Scope, method: Scope, name: str) -> None:
        first = method.params[0].name
        for stmt in method.statements:
            targets: list[Expr] = []
            if isinstance(stmt, Assign):
                targets = [stmt.target]
            elif isinstance(stmt, (Region, Loop)) and stmt.target is not None:
                targets = [stmt.target]
            while targets:
                target = targets.pop()
                if isinstance(target, Seq):
                    targets.extend(target.items)
                elif isinstance(target, Attr) and isinstance(target.base, Name) and target.base.id == first:
                    methods = owner.bound_attributes.setdefault(target.name, [])
                    if name not in methods:
                        methods.append(name)

    def _class(self, node: cst.ClassDef) -> Scope:
        bases: tuple[Expr, ...] = ()
        decorators: tuple[Expr, ...] = ()

        def header() -> None:
            nonlocal bases, decorators
            bases = tuple(self.expr(b.value) for b in node.bases)
            decorators = tuple(self.expr(d.decorator) for d in node.decorators)

        prelude = self._capture(header)

        def fill(scope: Scope) -> None:
            scope.bases, scope.decorators, scope.prelude = bases, decorators, prelude
            scope.body = self._block(node.body.body)

        scope = self._nested("class", node.name.value, node, fill)
        if scope.parent is not None:
            scope.parent.children[scope.name] = scope
        return scope

    def _lambda(self, node: cst.Lambda) -> Expr:
        params = self._params(node.params)

        def fill(scope: Scope) -> None:
            scope.params = params
            scope.body = self._capture(lambda: self.out.append(Jump("return", self.expr(node.body), node.body)))

        return Closure(self._nested("function", f"<lambda {len(self.scopes)}>", node, fill))

    def _params(self, params: cst.Parameters) -> tuple[Param, ...]:
        found: list[Param] = []

        def add(p: cst.Param, kind: str) -> None:
            default = self.expr(p.default) if p.default is not None else None
            annotation = ""
            if p.annotation is not None:
                annotation = _dotted(p.annotation.annotation)
            found.append(Param(p.name.value, default, annotation, kind))  # type: ignore[arg-type]

        for p in (*params.posonly_params, *params.params):
            add(p, "plain")
        if isinstance(params.star_arg, cst.Param):
            add(params.star_arg, "*")
        for p in params.kwonly_params:
            add(p, "keyword")
        if params.star_kwarg is not None:
            add(params.star_kwarg, "**")
        return tuple(found)

    # --- blocks ----------------------------------------------------------------------------------

    def _capture(self, fill: Callable[[], object]) -> list[Stmt]:
        """The statements that `fill` emits."""
        outer, self.out = self.out, []
        fill()
        block, self.out = self.out, outer
        return block

    def _block(self, body: Sequence[cst.BaseStatement | cst.BaseSmallStatement]) -> list[Stmt]:
        def fill() -> None:
            for stmt in body:
                self.stmt(stmt)

        return self._capture(fill)

    def _suite(self, suite: cst.BaseSuite) -> list[Stmt]:
        return self._block(suite.body)

    # --- statements ------------------------------------------------------------------------------

    def stmt(self, node: cst.CSTNode) -> None:
        handler = _STATEMENTS.get(type(node))
        if handler is not None:
            handler(self, node)

    def _simple_line(self, node: cst.SimpleStatementLine) -> None:
        for small in node.body:
            self.stmt(small)

    def _expr_stmt(self, node: cst.Expr) -> None:
        value = self.expr(node.value)
        last = self.out[-1] if self.out else None
        if isinstance(last, Call) and isinstance(value, Name) and value.id == last.result:
            last.dropped = True
        elif not isinstance(value, Const):
            self.out.append(Evaluate(value, node))

    def _assign(self, node: cst.Assign) -> None:
        value = self.expr(node.value)
        for target in node.targets:
            self._bind(target.target, value, node)

    def _bind(self, target: cst.BaseExpression, value: Expr, node: cst.CSTNode) -> None:
        self.out.append(Assign(self.expr(target), value, node))

    def _ann_assign(self, node: cst.AnnAssign) -> None:
        if self.scope.kind == "class" and isinstance(node.target, cst.Name) and _is_positional_field(node):
            self.scope.fields.append(node.target.value)
        if node.value is not None:
            self._bind(node.target, self.expr(node.value), node)

    def _aug_assign(self, node: cst.AugAssign) -> None:
        value = self.expr(node.value)
        target = self.expr(node.target)
        combined = Op(_OPERATORS.get(type(node.operator), "?"), (target, value))
        self.out.append(Assign(target, combined, node, augmented=True))

    def _return(self, node: cst.Return) -> None:
        value = self.expr(node.value) if node.value is not None else None
        self.out.append(Jump("return", value, node))

    def _raise(self, node: cst.Raise) -> None:
        value = self.expr(node.exc) if node.exc is not None else None
        self.out.append(Jump("raise", value, node))

    def _assert(self, node: cst.Assert) -> None:
        test = self.expr(node.test)
        self.out.append(Branch(test, [], [Jump("raise", None, node)], node))

    def _del(self, node: cst.Del) -> None:
        self.out.append(Delete(self.expr(node.target), node))

    def _global(self, node: cst.Global | cst.Nonlocal) -> None:
        self.out.append(Global(tuple(item.name.value for item in node.names)))

    def _if(self, node: cst.If) -> None:
        test = self.expr(node.test)
        then = self._suite(node.body)
        orelse: list[Stmt] = []
        if isinstance(node.orelse, cst.If):
            orelse = self._block([node.orelse])
        elif node.orelse is not None:
            orelse = self._suite(node.orelse.body)
        self.out.append(Branch(test, then, orelse, node))

    def _for(self, node: cst.For) -> None:
        iterable = self.expr(node.iter)
        target = self.expr(node.target)
        body = self._suite(node.body)
        orelse = self._suite(node.orelse.body) if node.orelse is not None else []
        self.out.append(Loop("for", target, iterable, [], None, body, orelse, node))

    def _while(self, node: cst.While) -> None:
        test: Expr = Const(True)

        def head() -> None:
            nonlocal test
            test = self.expr(node.test)

        prelude = self._capture(head)
        body = self._suite(node.body)
        orelse = self._suite(node.orelse.body) if node.orelse is not None else []
        self.out.append(Loop("while", None, None, prelude, test, body, orelse, node))

    def _try(self, node: cst.Try | cst.TryStar) -> None:
        body = self._suite(node.body)
        handlers = []
        for h in node.handlers:
            kind = self.expr(h.type) if h.type is not None else None
            name = h.name.name.value if h.name is not None and isinstance(h.name.name, cst.Name) else None
            handlers.append(Handler(kind, name, self._suite(h.body), h))
        orelse = self._suite(node.orelse.body) if node.orelse is not None else []
        final = self._suite(node.finalbody.body) if node.finalbody is not None else []
        self.out.append(Try(body, handlers, orelse, final, node))

    def _with(self, node: cst.With) -> None:
        self._with_items(list(node.items), node)

    def _with_items(self, items: list[cst.WithItem], node: cst.With) -> None:
        item, rest = items[0], items[1:]
        context = self.expr(item.item)
        target = self.expr(item.asname.name) if item.asname is not None else None
        body = self._capture(lambda: self._with_items(rest, node)) if rest else self._suite(node.body)
        self.out.append(Region(context, target, body, item.item))

    def _match(self, node: cst.Match) -> None:
        self._cases(self.expr(node.subject), list(node.cases))

    def _cases(self, subject: Expr, cases: list[cst.MatchCase]) -> None:
        case, rest = cases[0], cases[1:]
        test = self._pattern(subject, case.pattern)
        if case.guard is not None:
            guard = self.expr(case.guard)
            test = guard if isinstance(test, Const) else Op("and", (test, guard))
        then = self._suite(case.body)
        orelse = self._capture(lambda: self._cases(subject, rest)) if rest else []
        self.out.append(Branch(test, then, orelse, case))

    def _pattern(self, subject: Expr, pattern: cst.MatchPattern) -> Expr:
        """What a pattern asks of its subject; a name that stands for all of the subject is bound."""
        if isinstance(pattern, cst.MatchValue):
            return Op("==", (subject, self.expr(pattern.value)))
        if isinstance(pattern, cst.MatchSingleton):
            return Op("is", (subject, self.expr(pattern.value)))
        if isinstance(pattern, cst.MatchOr):
            return Op("or", tuple(self._pattern(subject, element.pattern) for element in pattern.patterns))
        if isinstance(pattern, cst.MatchAs):
            test = self._pattern(subject, pattern.pattern) if pattern.pattern is not None else Const(True)
            if pattern.name is not None:
                self.out.append(Assign(self.expr(pattern.name), subject, pattern))
            return test
        # two equal patterns on one subject have one outcome
        return Op("match", (subject, Const(cst.Module([]).code_for_node(pattern))))

    def _function_def(self, node: cst.FunctionDef) -> None:
        scope = self._function(node)
        self.out.append(Define(scope, node))

    def _class_def(self, node: cst.ClassDef) -> None:
        scope = self._class(node)
        self.out.append(Define(scope, node))

    def _import(self, node: cst.Import) -> None:
        for alias in node.names:
            dotted = _dotted(alias.name)
            if alias.asname is not None and isinstance(alias.asname.name, cst.Name):
                self.out.append(Import(alias.asname.name.value, dotted, None, 0, node))
            else:
                # `import a.b` binds `a`; the sub-module becomes reachable through it
                self.out.append(Import(dotted.partition(".")[0], dotted.partition(".")[0], None, 0, node))
            self.words[-1].update(dotted.split("."))

    def _import_from(self, node: cst.ImportFrom) -> None:
        dotted = _dotted(node.module) if node.module is not None else ""
        level = len(node.relative)
        if isinstance(node.names, cst.ImportStar):
            self.out.append(Import("*", dotted, "*", level, node))
            return
        for alias in node.names:
            member = _dotted(alias.name)
            name = member
            if alias.asname is not None and isinstance(alias.asname.name, cst.Name):
                name = alias.asname.name.value
            self.out.append(Import(name, dotted, member, level, node))
            self.words[-1].add(member)

    # --- expressions -----------------------------------------------------------------------------

    def expr(self, node: cst.BaseExpression) -> Expr:
        handler = _EXPRESSIONS.get(type(node))
        if handler is None:
            return Op(f"opaque:{type(node).__name__}", ())
        return handler(self, node)

    def _temporary(self) -> str:
        self.temporaries += 1
        return f"%{self.temporaries}"

    def _name(self, node: cst.Name) -> Expr:
        constant = _NAMED_CONSTANTS.get(node.value, _MISSING)
        if constant is not _MISSING:
            return Const(constant)
        self.words[-1].add(node.value)
        return Name(node.value)

    def _attribute(self, node: cst.Attribute) -> Expr:
        self.words[-1].add(node.attr.value)
        return Attr(self.expr(node.value), node.attr.value, node)

    def _number(self, node: cst.Integer | cst.Float | cst.Imaginary) -> Expr:
        try:
            return Const(literal_eval(node.value))
        except (ValueError, SyntaxError):
            return Op("opaque:number", ())

    def _string(self, node: cst.SimpleString) -> Expr:
        try:
            return Const(literal_eval(node.value))
        except (ValueError, SyntaxError):
            return Op("opaque:string", ())

    def _concatenated(self, node: cst.ConcatenatedString) -> Expr:
        if node.evaluated_value is not None:
            return Const(node.evaluated_value)
        return Op("fstring", (self.expr(node.left), self.expr(node.right)))

    def _fstring(self, node: cst.FormattedString) -> Expr:
        parts = [
            self.expr(p.expression) if isinstance(p, cst.FormattedStringExpression) else Const(p.value)
            for p in node.parts
            if isinstance(p, (cst.FormattedStringExpression, cst.FormattedStringText))
        ]
        return Op("fstring", tuple(parts))

    def _unary(self, node: cst.UnaryOperation) -> Expr:
        op = _OPERATORS.get(type(node.operator), "?")
        value = self.expr(node.expression)
        if op == "neg" and isinstance(value, Const) and isinstance(value.value, (int, float)):
            return Const(-value.value)
        return Op(op, (value,))

    def _binary(self, node: cst.BinaryOperation) -> Expr:
        left = self.expr(node.left)
        return Op(_OPERATORS.get(type(node.operator), "?"), (left, self.expr(node.right)))

    def _comparison(self, node: cst.Comparison) -> Expr:
        parts: list[Expr] = []
        left = self.expr(node.left)
        for target in node.comparisons:
            right = self.expr(target.comparator)
            parts.append(Op(_OPERATORS.get(type(target.operator), "?"), (left, right)))
            left = right
        return parts[0] if len(parts) == 1 else Op("and", tuple(parts))

    def _boolean(self, node: cst.BooleanOperation) -> Expr:
        op = _OPERATORS[type(node.operator)]
        left = self.expr(node.left)
        right: Expr = Const(None)

        def other() -> None:
            nonlocal right
            right = self.expr(node.right)

        block = self._capture(other)
        if all(map(_asks_the_machine, block)):
            # what has no effect can as well be asked on every path, which then all know the whole condition
            self.out.extend(block)
            return Op(op, (left, right))
        # the operator stays in the expression: a path on which its right side is not computed knows the left one
        self.out.append(Branch(left, block, [], node) if op == "and" else Branch(left, [], block, node))
        return Op(op, (left, right))

    def _conditional(self, node: cst.IfExp) -> Expr:
        test = self.expr(node.test)
        then: Expr = Const(None)
        orelse: Expr = Const(None)

        def first() -> None:
            nonlocal then
            then = self.expr(node.body)

        def second() -> None:
            nonlocal orelse
            orelse = self.expr(node.orelse)

        then_block, else_block = self._capture(first), self._capture(second)
        if not then_block and not else_block:
            return Op("ite", (test, then, orelse))
        result = Name(self._temporary())
        then_block.append(Assign(result, then, node))
        else_block.append(Assign(result, orelse, node))
        self.out.append(Branch(test, then_block, else_block, node))
        return result

    def _named(self, node: cst.NamedExpr) -> Expr:
        value = self.expr(node.value)
        target = self.expr(node.target)
        self.out.append(Assign(target, value, node))
        return target

    def _call(self, node: cst.Call) -> Expr:
        func = self.expr(node.func)
        args: list[Arg] = []
        for a in node.args:
            keyword = a.keyword.value if a.keyword is not None else None
            if keyword is not None:
                self.words[-1].add(keyword)
            args.append(Arg(self.expr(a.value), keyword, a.star))
        result = self._temporary()
        self.out.append(Call(result, func, tuple(args), node))
        return Name(result)

    def _subscript(self, node: cst.Subscript) -> Expr:
        base = self.expr(node.value)
        parts: list[Expr] = []
        for element in node.slice:
            if isinstance(element.slice, cst.Index):
                parts.append(self.expr(element.slice.value))
            elif isinstance(element.slice, cst.Slice):
                bounds = (element.slice.lower, element.slice.upper, element.slice.step)
                parts.append(Op("slice", tuple(self.expr(b) if b is not None else Const(None) for b in bounds)))
        index = parts[0] if len(parts) == 1 else Seq("tuple", tuple(parts))
        return Item(base, index)

    def _display(self, node: cst.Tuple | cst.List | cst.Set) -> Expr:
        kind = {cst.Tuple: "tuple", cst.List: "list", cst.Set: "set"}[type(node)]
        items = tuple(
            Star(self.expr(e.value)) if isinstance(e, cst.StarredElement) else self.expr(e.value) for e in node.elements
        )
        return Seq(kind, items, node)  # type: ignore[arg-type]

    def _dict(self, node: cst.Dict) -> Expr:
        items: list[tuple[Expr | None, Expr]] = []
        for element in node.elements:
            if isinstance(element, cst.DictElement):
                items.append((self.expr(element.key), self.expr(element.value)))
            elif isinstance(element, cst.StarredDictElement):
                items.append((None, self.expr(element.value)))
        return DictDisplay(tuple(items), node)

    def _comprehension(self, node: cst.ListComp | cst.SetComp | cst.GeneratorExp | cst.DictComp) -> Expr:
        collect = self._temporary()
        outermost: list[Stmt] = []

        def build(comp: cst.CompFor) -> None:
            iterable = self.expr(comp.iter)
            target = self.expr(comp.target)
            loop = Loop("comprehension", target, iterable, [], None, [], [], node, collect)

            def inner() -> None:
                for condition in comp.ifs:
                    test = self.expr(condition.test)
                    self.out.append(Branch(test, [], [Jump("continue", None, condition)], condition))
                if comp.inner_for_in is not None:
                    build(comp.inner_for_in)
                    return
                if isinstance(node, cst.DictComp):
                    loop.shape, loop.key = "dict", self.expr(node.key)
                    loop.element = self.expr(node.value)
                else:
                    loop.shape = "list"
                    loop.element = self.expr(node.elt)

            loop.body = self._capture(inner)
            self.out.append(loop)

        outermost = self._capture(lambda: build(node.for_in))
        self.out.extend(outermost)
        return Name(collect)

    def _await(self, node: cst.Await) -> Expr:
        return self.expr(node.expression)

    def _yield(self, node: cst.Yield) -> Expr:
        value: Expr | None = None
        if isinstance(node.value, cst.From):
            value = self.expr(node.value.item)
        elif node.value is not None:
            value = self.expr(node.value)
        result = self._temporary()
        self.out.append(Yield(value, node, result))
        return Name(result)


_MISSING = object()
_NAMED_CONSTANTS: dict[str, object] = {"None": None, "True": True, "False": False}


def _is_positional_field(node: cst.AnnAssign) -> bool:
    """Whether what a class body annotates is an argument by position, where the class is a dataclass."""
    annotation = node.annotation.annotation
    outer = annotation.value if isinstance(annotation, cst.Subscript) else annotation
    if _dotted(outer).rpartition(".")[2] in ("ClassVar", "KW_ONLY"):
        return False
    options = node.value.args if isinstance(node.value, cst.Call) else ()
    named = {arg.keyword.value: _dotted(arg.value) for arg in options if arg.keyword is not None}
    return named.get("init") != "False" and named.get("kw_only") != "True"


def _name_in_class(function: Scope) -> str:
    """The name that a class knows a function by; `scaler.setter` for what an assignment to a property calls."""
    for decorator in function.decorators:
        if isinstance(decorator, Attr) and decorator.name in ("setter", "deleter", "getter"):
            return function.name if decorator.name == "getter" else f"{function.name}.{decorator.name}"
    return function.name


def _dotted(node: cst.CSTNode) -> str:
    """`a.b.c` of a name or attribute chain; of a subscript or string annotation what it names; else ""."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        base = _dotted(node.value)
        return f"{base}.{node.attr.value}" if base else node.attr.value
    if isinstance(node, cst.Subscript):
        # Optional[X], Union[X, None]: the first parameter says what it is
        outer = _dotted(node.value)
        if outer.rpartition(".")[2] in ("Optional", "Union", "Annotated", "Final") and node.slice:
            first = node.slice[0].slice
            return _dotted(first.value) if isinstance(first, cst.Index) else ""
        return outer
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.BitOr):
        left, right = _dotted(node.left), _dotted(node.right)
        return right if left == "None" else left
    if isinstance(node, cst.SimpleString):
        try:
            return _dotted(cst.parse_expression(str(literal_eval(node.value))))
        except (ValueError, SyntaxError, cst.ParserSyntaxError):
            return ""
    return ""


_STATEMENTS: dict[type[cst.CSTNode], Callable[..., None]] = {
    cst.SimpleStatementLine: _Lowering._simple_line,
    cst.Expr: _Lowering._expr_stmt,
    cst.Assign: _Lowering._assign,
    cst.AnnAssign: _Lowering._ann_assign,
    cst.AugAssign: _Lowering._aug_assign,
    cst.Return: _Lowering._return,
    cst.Raise: _Lowering._raise,
    cst.Assert: _Lowering._assert,
    cst.Del: _Lowering._del,
    cst.Global: _Lowering._global,
    cst.Nonlocal: _Lowering._global,
    cst.Break: lambda self, node: self.out.append(Jump("break", None, node)),
    cst.Continue: lambda self, node: self.out.append(Jump("continue", None, node)),
    cst.If: _Lowering._if,
    cst.For: _Lowering._for,
    cst.While: _Lowering._while,
    cst.Try: _Lowering._try,
    cst.TryStar: _Lowering._try,
    cst.With: _Lowering._with,
    cst.Match: _Lowering._match,
    cst.FunctionDef: _Lowering._function_def,
    cst.ClassDef: _Lowering._class_def,
    cst.Import: _Lowering._import,
    cst.ImportFrom: _Lowering._import_from,
}

_EXPRESSIONS: dict[type[cst.CSTNode], Callable[..., Expr]] = {
    cst.Name: _Lowering._name,
    cst.Attribute: _Lowering._attribute,
    cst.Integer: _Lowering._number,
    cst.Float: _Lowering._number,
    cst.Imaginary: _Lowering._number,
    cst.Ellipsis: lambda _self, _node: Const(...),
    cst.SimpleString: _Lowering._string,
    cst.ConcatenatedString: _Lowering._concatenated,
    cst.FormattedString: _Lowering._fstring,
    cst.UnaryOperation: _Lowering._unary,
    cst.BinaryOperation: _Lowering._binary,
    cst.Comparison: _Lowering._comparison,
    cst.BooleanOperation: _Lowering._boolean,
    cst.IfExp: _Lowering._conditional,
    cst.NamedExpr: _Lowering._named,
    cst.Call: _Lowering._call,
    cst.Subscript: _Lowering._subscript,
    cst.Tuple: _Lowering._display,
    cst.List: _Lowering._display,
    cst.Set: _Lowering._display,
    cst.Dict: _Lowering._dict,
    cst.ListComp: _Lowering._comprehension,
    cst.SetComp: _Lowering._comprehension,
    cst.GeneratorExp: _Lowering._comprehension,
    cst.DictComp: _Lowering._comprehension,
    cst.Lambda: _Lowering._lambda,
    cst.Await: _Lowering._await,
    cst.Yield: _Lowering._yield,
}
