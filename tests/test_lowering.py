"""Every form of statement and expression: a small source in, its AMP program out."""

from __future__ import annotations

from textwrap import dedent

import libcst as cst
import pytest
from program_text import text_of

from amplint import program as p
from amplint.lowering import lower

STATEMENTS = {
    "a call that is thrown away": ("f(x)", "%1 =! f(x)"),
    "calls are taken out in evaluation order": (
        "scaler.scale(loss / 2).backward()",
        """\
        %1 = scaler.scale((/ loss 2))
        %2 =! %1.backward()
        """,
    ),
    "arguments of every kind": ("x = f(a, *b, k=c, **d)", "%1 = f(a, *b, k=c, **d)\nx = %1"),
    "arguments are computed before the call": ("f(g(), k=h())", "%1 = g()\n%2 = h()\n%3 =! f(%1, k=%2)"),
    "the callee is computed before its arguments": ("f()(g())", "%1 = f()\n%2 = g()\n%3 =! %1(%2)"),
    "several targets": ("a = b = f()", "%1 = f()\na = %1\nb = %1"),
    "targets of every kind": (
        "a.b = c[i] = d[1:2, None] = x",
        """\
        a.b = x
        c[i] = x
        d[((slice 1 2 None), None)] = x
        """,
    ),
    "unpacking": ("a, *b, (c, d) = x", "(a, *b, (c, d)) = x"),
    "an annotation alone binds nothing": ("x: int", "pass"),
    "an annotated assignment": ("x: int = 3", "x = 3"),
    "an augmented assignment reads its target": ("x += f(y)", "%1 = f(y)\nx += (+ x %1)"),
    "docstrings and pass say nothing": ('"""Text."""\npass', "pass"),
    "an expression that is no call": ("torch.autocast", "evaluate torch.autocast"),
    "assert": ("assert x, 'why'", "if x:\n    pass\nelse:\n    raise"),
    "del": ("del a.b, c", "del (a.b, c)"),
    "raise": ("raise E(x) from y", "%1 = E(x)\nraise %1"),
    "if, elif, else": (
        """\
        if a:
            x = 1
        elif f():
            x = 2
        else:
            x = 3
        """,
        """\
        if a:
            x = 1
        else:
            %1 = f()
            if %1:
                x = 2
            else:
                x = 3
        """,
    ),
    "for, else": (
        """\
        for i, (x, y) in enumerate(loader):
            continue
        else:
            done()
        """,
        """\
        %1 = enumerate(loader)
        for (i, (x, y)) in %1:
            continue
        else:
            %2 =! done()
        """,
    ),
    "the test of a while is computed each time round": (
        """\
        while f(x) > 1:
            break
        else:
            y = 1
        """,
        """\
        before each:
            %1 = f(x)
        while (> %1 1):
            break
        else:
            y = 1
        """,
    ),
    "try": (
        """\
        try:
            f()
        except (A, m.B) as e:
            raise
        except:
            x = 1
        else:
            x = 2
        finally:
            x = 3
        """,
        """\
        try:
            %1 =! f()
        except (A, m.B) as e:
            raise
        except:
            x = 1
        else:
            x = 2
        finally:
            x = 3
        """,
    ),
    "exception groups": (
        """\
        try:
            x = 1
        except* E:
            x = 2
        """,
        """\
        try:
            x = 1
        except E:
            x = 2
        """,
    ),
    "a with of several items nests": (
        """\
        with a(), b() as c, d:
            x = 1
        """,
        """\
        %1 = a()
        with %1:
            %2 = b()
            with %2 as c:
                with d:
                    x = 1
        """,
    ),
    "match on values": (
        """\
        match f():
            case 1 | 2:
                x = 1
            case None:
                x = 2
            case m.Kind.a if g():
                x = 3
            case _:
                x = 4
        """,
        """\
        %1 = f()
        if (or (== %1 1) (== %1 2)):
            x = 1
        else:
            if (is %1 None):
                x = 2
            else:
                %2 = g()
                if (and (== %1 m.Kind.a) %2):
                    x = 3
                else:
                    if True:
                        x = 4
        """,
    ),
    "match binds a name to all of its subject": (
        """\
        match x:
            case 1 as one:
                a = one
            case other if other > 2:
                a = other
        """,
        """\
        one = x
        if (== x 1):
            a = one
        else:
            other = x
            if (> other 2):
                a = other
        """,
    ),
    "match on shapes": (
        """\
        match x:
            case [a, b]:
                y = 1
        """,
        """\
        if (match x '[a, b]'):
            y = 1
        """,
    ),
    "imports": (
        """\
        import a.b.c, d.e as f
        from . import x
        from ..p.q import r as s, t
        from m import *
        """,
        """\
        import a as a
        import d.e as f
        import .:x as x
        import ..p.q:r as s
        import ..p.q:t as t
        import m:* as *
        """,
    ),
    "a function with parameters of every kind": (
        """\
        @dec(1)
        def f(a, /, b: Optional[GradScaler] = g(), *args, c, d: "m.X | None" = 1, **kw) -> None:
            return a
        """,
        """\
        %1 = g()
        %2 = dec(1)
        @%2
        def f(a, b: GradScaler = %1, *args, keyword c, keyword d: m.X = 1, **kw):
            return a
        """,
    ),
    "a class": (
        """\
        @dec
        class C(B, m.D[int], metaclass=M):
            x = 1
            def f(self):
                return
        """,
        """\
        @dec
        class C(B, m.D[int]):
            x = 1
            def f(self):
                return
        """,
    ),
    "async": (
        """\
        async def f():
            async with a() as b:
                await c()
            async for i in d:
                x = await e
        """,
        """\
        def f():
            %1 = a()
            with %1 as b:
                %2 =! c()
            for i in d:
                x = e
        """,
    ),
    "a generator": (
        """\
        def f():
            x = yield 1
            return (yield from g())
        """,
        """\
        generator f():
            %1 = yield 1
            x = %1
            %2 = g()
            %3 = yield %2
            return %3
        """,
    ),
    "global and nonlocal": (
        """\
        def f():
            global a, b
            def g():
                nonlocal c
        """,
        """\
        def f():
            outer a, b
            def g():
                outer c
        """,
    ),
    "one line": ("if a: b = 1; c = 2", "if a:\n    b = 1\n    c = 2"),
}

EXPRESSIONS = {
    "constants": (
        "[None, True, False, ..., 0x10, 1_0, 1.5e3, 2j]",
        "[None, True, False, Ellipsis, 16, 10, 1500.0, 2j]",
    ),
    "negative numbers are constants": ("[-1, -1.5, -x]", "[-1, -1.5, (neg x)]"),
    "strings": ("['a', r'\\d', b'x', 'a' \"b\"]", r"['a', '\\d', b'x', 'ab']"),
    "f-strings": ("f'{a}:{b.c!r:>3}'", "(fstring a ':' b.c)"),
    "an f-string beside a string": ("'a' f'{b}'", "(fstring 'a' (fstring b))"),
    "attributes and items": ("a.b[0].c[i, 'k']", "a.b[0].c[(i, 'k')]"),
    "slices": ("a[:], a[1:], a[:2:3]", "(a[(slice None None None)], a[(slice 1 None None)], a[(slice None 2 3)])"),
    "displays": ("[(a, *b), {c, d}, ()]", "[(a, *b), {c, d}, ()]"),
    "dicts": ("{'k': a, **b, c: {}}", "{'k': a, **b, c: {}}"),
    "arithmetic": ("a + b - c * d / e // f % g ** h @ i", "(- (+ a b) (@ (% (// (/ (* c d) e) f) (** g h)) i))"),
    "bits": ("a << b >> c & d | e ^ ~f", "(| (& (>> (<< a b) c) d) (^ e (~ f)))"),
    "comparisons": (
        "[a == b, a != b, a < b, a <= b, a > b, a >= b]",
        "[(== a b), (!= a b), (< a b), (<= a b), (> a b), (>= a b)]",
    ),
    "identity and membership": (
        "[a is None, a is not b, a in b, a not in b]",
        "[(is a None), (is not a b), (in a b), (not in a b)]",
    ),
    "a chain of comparisons": ("a < b <= c", "(and (< a b) (<= b c))"),
    "boolean operators": ("a and b or not c", "(or (and a b) (not c))"),
    "a conditional expression": ("a if c else b", "(ite c a b)"),
    "a unary plus": ("+a", "(pos a)"),
}


@pytest.mark.parametrize(("source", "expected"), STATEMENTS.values(), ids=STATEMENTS.keys())
def test_statement(source: str, expected: str) -> None:
    assert text_of(source) == dedent(expected).strip()


@pytest.mark.parametrize(("source", "expected"), EXPRESSIONS.values(), ids=EXPRESSIONS.keys())
def test_expression(source: str, expected: str) -> None:
    assert text_of(f"x = {source}") == f"x = {expected}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        pytest.param("a and f()", "if a:\n    %1 = f()\nx = (and a %1)", id="and"),
        pytest.param("a or f()", "if a:\n    pass\nelse:\n    %1 = f()\nx = (or a %1)", id="or"),
        pytest.param(
            "f() if a else b",
            "if a:\n    %1 = f()\n    %2 = %1\nelse:\n    %2 = b\nx = %2",
            id="conditional expression",
        ),
    ],
)
def test_a_call_that_may_be_left_out_stands_in_a_branch(source: str, expected: str) -> None:
    assert text_of(f"x = {source}") == expected


def test_a_walrus_binds_before_it_is_tested() -> None:
    assert text_of("if (n := f()) > 1: x = n") == "%1 = f()\nn = %1\nif (> n 1):\n    x = n"


def test_a_lambda_is_a_function_of_one_return() -> None:
    assert text_of("x = lambda a, b=1, *c: f(a)") == "x = <lambda a, b = 1, *c: %1 = f(a); return %1>"


def test_a_list_comprehension_gathers_in_a_loop() -> None:
    expected = """\
    %1 = for x in xs -> list %3:
        if x:
            pass
        else:
            continue
        %2 = f(x)
        if %2:
            pass
        else:
            continue
        %3 = g(x)
    y = %1
    """
    assert text_of("y = [g(x) for x in xs if x if f(x)]") == dedent(expected).strip()


def test_nested_comprehensions_gather_into_one() -> None:
    expected = """\
    %1 = for (a, b) in d:
        %1 = for c in b -> dict a: %2:
            %2 = f(c)
    y = %1
    """
    assert text_of("y = {a: f(c) for a, b in d for c in b}") == dedent(expected).strip()


@pytest.mark.parametrize("source", ["{x for x in xs}", "(x for x in xs)", "[x for x in xs]"])
def test_sets_and_generators_are_gathered_as_lists(source: str) -> None:
    assert text_of(f"y = {source}").splitlines()[0] == "%1 = for x in xs -> list x:"


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        ("GradScaler", "GradScaler"),
        ("torch.amp.GradScaler", "torch.amp.GradScaler"),
        ("Optional[amp.GradScaler]", "amp.GradScaler"),
        ("typing.Union[GradScaler, None]", "GradScaler"),
        ("GradScaler | None", "GradScaler"),
        ("None | GradScaler", "GradScaler"),
        ("'GradScaler'", "GradScaler"),
        ("'Optional[GradScaler]'", "GradScaler"),
        ("list[GradScaler]", "list"),
        ("'no python!'", ""),
        ("Callable[[int], str]", "Callable"),
    ],
)
def test_an_annotation_names_the_class(annotation: str, expected: str) -> None:
    (scope,) = lower(cst.parse_module(f"def f(x: {annotation}): pass")).scopes[1:]
    assert scope.params[0].annotation == expected


NESTED = """
class Trainer(Base):
    def __init__(self, scaler):
        self.scaler = scaler
        self.a, (self.b, other.c) = scaler

    def step(this):
        with make() as this.region:
            for this.i in range(3):
                this.scaler = None

        def closure():
            return lost
"""


def test_scopes_are_numbered_and_named_in_source_order() -> None:
    scopes = lower(cst.parse_module(NESTED)).scopes
    assert [(s.number, s.kind, s.qualname) for s in scopes] == [
        (0, "module", ""),
        (1, "class", "Trainer"),
        (2, "function", "Trainer.__init__"),
        (3, "function", "Trainer.step"),
        (4, "function", "Trainer.step.closure"),
    ]
    assert [s.is_method for s in scopes] == [False, False, True, True, False]


def test_a_class_knows_which_methods_bind_an_attribute() -> None:
    trainer = lower(cst.parse_module(NESTED)).scopes[1]
    assert trainer.bound_attributes == {
        "scaler": ["__init__", "step"],
        "a": ["__init__"],
        "b": ["__init__"],
        "region": ["step"],
        "i": ["step"],
    }


def test_a_scope_knows_the_words_of_what_is_nested_in_it() -> None:
    scopes = {s.name: s for s in lower(cst.parse_module(NESTED)).scopes}
    assert "lost" in scopes["closure"].words
    assert "lost" in scopes["step"].words
    assert "lost" not in scopes["__init__"].words
    assert {"Base", "lost"} <= scopes[""].words


def test_outer_names_are_those_of_the_scope_itself() -> None:
    source = "def f():\n if a:\n  global b\n def g():\n  nonlocal c"
    scopes = {s.name: s for s in lower(cst.parse_module(source)).scopes}
    assert scopes["f"].outer_names == {"b"}
    assert scopes["g"].outer_names == {"c"}


def test_walk_visits_every_block() -> None:
    source = """
    if a: one()
    else: two()
    for x in y: three()
    else: four()
    while five(): six()
    else: seven()
    try: eight()
    except E: nine()
    else: ten()
    finally: eleven()
    with a: twelve()
    """
    body = lower(cst.parse_module(dedent(source))).body.body
    called = [p.path_of(s.func) for s in p.walk(body) if isinstance(s, p.Call)]
    assert called == ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]


@pytest.mark.parametrize(
    ("source", "raises"),
    [
        ("scaler.step(optimizer)", False),
        ("loss.item()", False),
        ("x = 1", False),
        ("f()", True),
        ("with a: data.read()", True),
    ],
)
def test_only_calls_outside_of_the_protocol_may_raise(source: str, raises: bool) -> None:
    (stmt, *_) = lower(cst.parse_module(source)).body.body
    assert p.may_raise(stmt) is raises


def test_what_is_not_understood_is_opaque() -> None:
    assert text_of("x = y[*a]") == "x = y[a]"
    assert text_of("type X = int") == "pass"
