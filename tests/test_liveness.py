"""What one round of a loop hands to the next, and paths that nothing tells apart any more."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent, indent

import libcst as cst
import pytest
from tracing import HEAD, Laboratory

from amplint.execution.liveness import carried
from amplint.lowering import lower
from amplint.program import Loop


@pytest.mark.parametrize(
    ("loop", "names"),
    [
        pytest.param("for x in xs:\n    y = x\n    z = y", "", id="bound-before-it-is-read"),
        pytest.param("for x in xs:\n    z = y\n    y = x", "y", id="read-before-it-is-bound"),
        pytest.param("for x in xs:\n    n += 1", "n", id="augmented"),
        pytest.param("for x in xs:\n    if x:\n        y = 1\n    z = y", "y", id="bound-in-one-arm"),
        pytest.param(
            "for x in xs:\n    if x:\n        y = 1\n    else:\n        y = 2\n    z = y", "", id="bound-in-both"
        ),
        pytest.param("for x in xs:\n    for a in x:\n        y = a\n    z = y", "y", id="bound-in-an-inner-loop"),
        pytest.param("for x in xs:\n    for a in x:\n        z = a\n        a = 1", "", id="inner-target"),
        pytest.param("for x in xs:\n    o.a = x", "o", id="place-of-an-attribute"),
        pytest.param("for x in xs:\n    (a, *b), o[i] = x\n    z = a, b", "i o", id="targets-in-a-tuple"),
        pytest.param("for x in xs:\n    with open(x) as y:\n        z = y", "open", id="with"),
        pytest.param("for x in xs:\n    try:\n        y = 1\n    except E:\n        z = y", "E y", id="interrupted"),
        pytest.param("for x in xs:\n    y = 1\n    f = lambda: y", "y", id="closure"),
        pytest.param("while n < y:\n    y = n", "n y", id="test-of-a-while"),
        pytest.param("for x in xs:\n    pass\nelse:\n    z = x, y", "x y", id="else"),
    ],
)
def test_what_a_round_has_from_the_round_before(loop: str, names: str) -> None:
    scope = lower(cst.parse_module("def f():\n" + indent(loop, "    "))).scopes[1]
    (outer,) = [stmt for stmt in scope.body if isinstance(stmt, Loop)]
    assert carried(outer) == set(names.split())


@pytest.mark.parametrize(
    "between",
    [
        pytest.param(
            "if x.big:\n    scale = 2\n    size = scale * 2\n    x = x.resized(size)", id="variables-of-an-arm"
        ),
        pytest.param("if warm:\n    points = [0, n]\n    x = x.moved(points)", id="list-out-of-reach"),
        pytest.param("if 'momentum' in group:\n    group['momentum'] = n", id="item-of-something-unknown"),
    ],
)
def test_what_nothing_reads_any_more_keeps_no_paths_apart(tmp_path: Path, between: str) -> None:
    source = """\
    def train(loader, warm, n, group):
        for x in loader:
    {between}
            loss = model(x).sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    """
    lab = Laboratory(tmp_path)
    assert len(lab.told(dedent(source).replace("{between}", indent(between, "        ")))) == 1


def test_where_few_paths_are_followed_the_scaled_one_is_among_them(tmp_path: Path) -> None:
    """Every branch doubles the paths, and each makes an object that is read at the end."""
    branches = "\n".join(f"    a{i} = Thing{i}() if f{i} else Other{i}()" for i in range(40))
    source = f"""\
def train(loader, device, epochs, {", ".join(f"f{i}" for i in range(40))}):
    scaler = torch.amp.GradScaler("cuda", enabled=device.type != "cpu")
{branches}
    for epoch in range(epochs):
        for x in loader:
            scaler.scale(model(x).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        last = epoch + 1 == epochs
        torch.save({{"optimizer": None if last else optimizer.state_dict()}}, "last.pt")
    return {", ".join(f"a{i}" for i in range(40))}
"""
    traces = Laboratory(tmp_path).traces_of(HEAD + source)
    events = [event for trace in traces for event in trace.events]
    assert any(event.kind == "step" for event in events)
    assert any(event.kind == "save" and event.details["contents"] for event in events)
