"""What is left of a scope for execution: everything that can matter, and as little else as can be told."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest
from program_text import block
from tracing import Laboratory

from amplint.project import ModuleEnv


@pytest.fixture
def lab(tmp_path: Path) -> Laboratory:
    return Laboratory(tmp_path)


def entered(lab: Laboratory, source: str) -> ModuleEnv:
    return lab.unit(source).env


def left(lab: Laboratory, body: str) -> str:
    """What is left of the body of a function `train`."""
    source = "import torch\ndef train(model, optimizer, scaler, loader, x):\n" + "".join(
        f"    {line}\n" for line in dedent(body).splitlines()
    )
    env = entered(lab, source)
    return "\n".join(block(env.pruned(env.program.scopes[1])))


def relevant(lab: Laboratory, source: str) -> set[str]:
    return {scope.qualname for scope in entered(lab, dedent(source)).relevant}


# --- statements ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "scaler.step(optimizer)",
        "scaler.update()",
        "scaler.unscale_(optimizer)",
        "optimizer.zero_grad()",
        "loss.backward()",
        "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        "model.half()",
        "x.to(torch.float16)",
        "torch.save(model.state_dict(), 'x')",
        "param.grad.mul_(2)",
        "print(param.grad)",
        "param.grad = None",
        "log(scaler)",
        "context.__enter__()",
        "torch.autocast",
    ],
)
def test_what_can_be_an_event_is_kept(lab: Laboratory, line: str) -> None:
    assert left(lab, line) != "pass"


@pytest.mark.parametrize(
    "line",
    [
        "print('epoch')",
        "meter.update(3)",
        "total = x * 2",
        "history.append(x)",
        "y = compute(x)",
        "bar.step()",
        "x.to('cuda')",
        "if x > 1: print(x)",
        "for y in loader: print(y)",
        "names = [y.name for y in loader]",
        "with open('log') as f: f.write('x')",
    ],
)
def test_what_cannot_matter_is_dropped(lab: Laboratory, line: str) -> None:
    assert left(lab, f"scaler.update()\n{line}") == left(lab, "scaler.update()")


def test_what_gets_hold_of_an_optimizer_is_kept(lab: Laboratory) -> None:
    assert left(lab, "engine.advance(optimizer)\noptimizer.step()").startswith("%1 =! engine.advance(optimizer)")


def test_what_an_event_reads_is_kept(lab: Laboratory) -> None:
    body = """\
    unused = f(x)
    y = g(x)
    loss = model(y)
    loss.backward()
    """
    assert left(lab, body) == "%2 = g(x)\ny = %2\n%3 = model(y)\nloss = %3\n%4 =! loss.backward()"


def test_guards_around_events_are_kept_with_what_they_read(lab: Laboratory) -> None:
    body = """\
    flag = f(x)
    if flag:
        print(x)
        scaler.update()
    else:
        print(x)
    """
    assert left(lab, body) == "%1 = f(x)\nflag = %1\nif flag:\n    %3 =! scaler.update()"


def test_a_jump_keeps_its_guard(lab: Laboratory) -> None:
    assert left(lab, "for y in loader:\n    if y:\n        continue\n    scaler.update()") == dedent("""\
        for y in loader:
            if y:
                continue
            %1 =! scaler.update()""")


def test_a_list_that_is_read_is_filled(lab: Laboratory) -> None:
    body = """\
    kept, other = [], []
    kept.append(x)
    other.append(x)
    for y in kept:
        scaler.step(y)
    """
    assert "kept.append(x)" in left(lab, body)
    assert "other.append(x)" not in left(lab, body)


def test_a_variable_that_holds_a_function_is_called(lab: Laboratory) -> None:
    body = """\
    advance = lambda: scaler.step(optimizer)
    other = lambda: print(x)
    advance()
    other()
    """
    text = left(lab, body)
    assert "= advance()" in text or "=! advance()" in text
    assert "other()" not in text


def test_a_try_knows_where_something_that_was_dropped_may_raise(lab: Laboratory) -> None:
    source = "def train(scaler, x):\n    try:\n        scaler.update()\n        check(x)\n    except E:\n        pass\n"
    env = entered(lab, source)
    (stmt,) = env.pruned(env.program.scopes[1])
    assert [type(s).__name__ for s in stmt.body] == ["Call"]  # type: ignore[union-attr]
    assert stmt.raising == {1}  # type: ignore[union-attr]


def test_the_program_itself_stays_whole(lab: Laboratory) -> None:
    env = entered(lab, "def train(scaler):\n    if scaler:\n        print(1)\n        scaler.update()\n")
    train = env.program.scopes[1]
    before = block(train.body)
    env.pruned(train)
    assert block(train.body) == before


# --- scopes --------------------------------------------------------------------------------------


def test_a_scope_with_an_event_is_relevant_and_so_is_who_calls_it(lab: Laboratory) -> None:
    source = """\
    def back(loss): loss.backward()
    def train(x): back(x)
    def main(): train(1)
    def area(a, b): return a * b
    """
    assert relevant(lab, source) - {""} == {"back", "train", "main"}


def test_a_class_is_relevant_through_its_methods(lab: Laboratory) -> None:
    source = """\
    class A:
        def f(self): self.g()
        def g(self): self.loss.backward()
        def h(self): return 1
    class B:
        def f(self): return 1
    """
    found = relevant(lab, source)
    assert {"A", "A.f", "A.g"} <= found
    assert "A.h" not in found
    assert "B" not in found


@pytest.mark.parametrize(
    "use",
    [
        "run(back)",
        "f = partial(back, 1); f()",
        "f = back; f()",
        "fs = {'b': back}; fs['b'](1)",
    ],
)
def test_a_function_that_is_handed_on_makes_its_user_relevant(lab: Laboratory, use: str) -> None:
    source = f"def back(loss): loss.backward()\ndef run(action): action()\ndef main(): {use}\n"
    assert "main" in relevant(lab, source)
    assert ("run" in relevant(lab, source)) is use.startswith("run")


@pytest.mark.parametrize("use", ["isinstance(x, back)", "print(back)", "n = len(back)", "hasattr(back, 'x')"])
def test_a_function_that_is_only_looked_at_makes_nothing_relevant(lab: Laboratory, use: str) -> None:
    found = relevant(lab, f"def back(loss): loss.backward()\ndef main(x): {use}\n")
    assert "back" in found
    assert "main" not in found


def test_loading_weights_alone_makes_nothing_relevant(lab: Laboratory) -> None:
    source = """\
    def load(model, path):
        model.load_state_dict(torch.load(path))
    def resume(scaler, path):
        scaler.load_state_dict(torch.load(path))
    """
    found = relevant(lab, source)
    assert "resume" in found
    assert "load" not in found


@pytest.mark.parametrize("joint", [" + ", " and ", " / "])
def test_a_long_expression_is_looked_at_once(lab: Laboratory, joint: str) -> None:
    terms = joint.join(f"c.a{i}" for i in range(300))
    body = f"    ok = {terms}\n    scaler.update()\n    return ok\n"
    unit = lab.unit(f"import torch\nscaler = torch.amp.GradScaler()\ndef f(c):\n{body}")
    assert {binding.name for binding in unit.env.bindings} >= {"ok", "f()"}
