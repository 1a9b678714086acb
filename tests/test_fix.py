"""Fixes: plans become edits that keep the user's layout; they are applied whole, in rounds, and never break a file."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import libcst as cst
import libcst.matchers as m
import pytest
from conftest import CLIPPED, Amplint, notebook

from amplint import analysis
from amplint.edits import fix_of
from amplint.finding import Confidence, Edit, Finding, Fix, Place, Severity, Verdict
from amplint.fix import apply_edits, diff, is_applicable, write
from amplint.rule import Change, Fault, FixPlan, Site
from amplint.source import SourceError, SourceModule


def changed(text: str, *changes: tuple[str, str, str], path: str = "a.py") -> str | None:
    """`text` after changes given as (kind, name, text): the site is the first use of a name."""
    module = SourceModule.from_bytes(text.encode(), path)
    plan = FixPlan(
        "safe",
        "repair",
        tuple(Change(kind, Site(module, _site(module, name)), new) for kind, name, new in changes),  # type: ignore[arg-type]
    )
    fix = fix_of(plan)
    return None if fix is None else apply_edits(module, fix.edits).decode()


def _site(module: SourceModule, name: str) -> cst.CSTNode:
    call = m.findall(module.tree, m.Call(func=m.Name(name)))
    return call[0] if call else m.findall(module.tree, m.Name(name))[0]


NOOP: list[object] = [
    pytest.param("import torch\nx()\n", ("import", "x", "torch"), id="imported"),
    pytest.param("import torch.nn\nx()\n", ("import", "x", "torch"), id="imported-with-a-submodule"),
    pytest.param(
        "from torch.amp import GradScaler\nx()\n", ("import", "x", "torch.amp:GradScaler"), id="name-imported"
    ),
    pytest.param(
        "from torch.amp import GradScaler as GradScaler\nx()\n",
        ("import", "x", "torch.amp:GradScaler"),
        id="alias-of-itself",
    ),
]

REWRITES = [
    pytest.param(
        "def f():\n    # why\n    x(1,\n      2)  # c\n",
        ("insert-before", "x", "a()"),
        "def f():\n    # why\n    a()\n    x(1,\n      2)  # c\n",
        id="before",
    ),
    pytest.param(
        "if a:\n\tx()\n", ("insert-before", "x", "b()\nc()"), "if a:\n\tb()\n\tc()\n\tx()\n", id="before-several"
    ),
    pytest.param("y(); x(); z()\n", ("insert-before", "x", "a()"), "y(); a(); x(); z()\n", id="before-on-a-line"),
    pytest.param("if a: x()\n", ("insert-before", "x", "b()"), "if a: b(); x()\n", id="before-in-one-line-body"),
    pytest.param("if x():\n    y\n", ("insert-before", "x", "b()"), "b()\nif x():\n    y\n", id="before-a-header"),
    pytest.param(
        "@x()\ndef f(): pass\n", ("insert-before", "x", "b()"), "b()\n@x()\ndef f(): pass\n", id="before-a-decorator"
    ),
    pytest.param(
        "def f():\n    x(1,\n      2)  # c\n",
        ("insert-after", "x", "a()"),
        "def f():\n    x(1,\n      2)  # c\n    a()\n",
        id="after",
    ),
    pytest.param(
        "for i in x():\n    y()\nz()\n",
        ("insert-after", "x", "a()"),
        "for i in x():\n    y()\na()\nz()\n",
        id="after-a-loop",
    ),
    pytest.param("y\nx()", ("insert-after", "x", "a()"), "y\nx()\na()", id="after-at-the-end"),
    pytest.param("x(); y()\n", ("insert-after", "x", "a()"), "x(); a(); y()\n", id="after-on-a-line"),
    pytest.param("y = (x(1)  # c\n     + 2)\n", ("replace", "x", "z"), "y = (z  # c\n     + 2)\n", id="replace"),
    pytest.param("a()\nx()  # c\nb()\n", ("delete", "x", ""), "a()\nb()\n", id="delete"),
    pytest.param("a()\nx(\n1)\n", ("delete", "x", ""), "a()\n", id="delete-the-last"),
    pytest.param("a()\nx()", ("delete", "x", ""), "a()", id="delete-without-a-line-end"),
    pytest.param(
        "if a:\n    x()  # c\nb()\n", ("delete", "x", ""), "if a:\n    pass  # c\nb()\n", id="delete-the-only-one"
    ),
    pytest.param("a(); x(); b()\n", ("delete", "x", ""), "a(); b()\n", id="delete-from-a-line"),
    pytest.param("a(); x()\n", ("delete", "x", ""), "a()\n", id="delete-the-last-of-a-line"),
    pytest.param("if a: x()\n", ("delete", "x", ""), "if a: pass\n", id="delete-from-one-line-body"),
    pytest.param(
        "with a:\n    b()\n    # why\n    x(1,\n      '''\n    s''')\nc()\n",
        ("dedent", "x", ""),
        "with a:\n    b()\n# why\nx(1,\n  '''\n    s''')\nc()\n",
        id="dedent",
    ),
    pytest.param(
        "def f():\n  with a:\n    x()\n  c()\n",
        ("dedent", "x", ""),
        "def f():\n  with a:\n    pass\n  x()\n  c()\n",
        id="dedent-the-only-one",
    ),
    pytest.param("import os\nx()\n", ("import", "x", "torch"), "import os\nimport torch\nx()\n", id="import"),
    pytest.param(
        "import torch as th\nx()\n",
        ("import", "x", "torch.amp:GradScaler"),
        "import torch as th\nfrom torch.amp import GradScaler\nx()\n",
        id="import-name",
    ),
    pytest.param(
        "from torch.amp import autocast  # c\nx()\n",
        ("import", "x", "torch.amp:GradScaler"),
        "from torch.amp import autocast, GradScaler  # c\nx()\n",
        id="import-beside",
    ),
    pytest.param(
        "from torch.amp import (\n    autocast,\n    custom_fwd,\n)\nx()\n",
        ("import", "x", "torch.amp:GradScaler"),
        "from torch.amp import (\n    autocast,\n    custom_fwd,\n    GradScaler,\n)\nx()\n",
        id="import-beside-in-brackets",
    ),
    pytest.param(
        "from torch.amp import (\n    autocast,\n    custom_fwd\n)\nx()\n",
        ("import", "x", "torch.amp:GradScaler"),
        "from torch.amp import (\n    autocast,\n    custom_fwd,\n    GradScaler\n)\nx()\n",
        id="import-beside-without-comma",
    ),
    pytest.param(
        "from torch.amp import GradScaler as S\nx()\n",
        ("import", "x", "torch.amp:GradScaler"),
        "from torch.amp import GradScaler as S, GradScaler\nx()\n",
        id="import-of-another-alias",
    ),
    pytest.param(
        '"""Doc."""\n\nx()\n', ("import", "x", "torch"), '"""Doc."""\n\nimport torch\nx()\n', id="import-first"
    ),
    pytest.param(
        "from __future__ import annotations\nx()\n",
        ("import", "x", "torch"),
        "from __future__ import annotations\nimport torch\nx()\n",
        id="import-after-future",
    ),
    pytest.param(
        "import os\nx()\nimport sys\n",
        ("import", "x", "torch"),
        "import os\nimport torch\nx()\nimport sys\n",
        id="import-above-the-use",
    ),
]

CANNOT = [
    pytest.param("y(); x()\n", ("insert-before", "x", "if a:\n    b()"), id="compound-on-a-line"),
    pytest.param("with a: x()\n", ("dedent", "x", ""), id="dedent-one-line-body"),
    pytest.param("x()\n", ("dedent", "x", ""), id="dedent-at-the-top"),
]


@pytest.mark.parametrize(("text", "change"), NOOP)
def test_nothing_to_do(text: str, change: tuple[str, str, str]) -> None:
    assert changed(text, change) is None


@pytest.mark.parametrize(("text", "change"), CANNOT)
def test_code_that_a_plan_does_not_fit_is_left_alone(text: str, change: tuple[str, str, str]) -> None:
    assert changed(text, change) is None


@pytest.mark.parametrize(("before", "change", "after"), REWRITES)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_changes_keep_the_layout(before: str, change: tuple[str, str, str], after: str, end: str) -> None:
    assert changed(before.replace("\n", end), change) == after.replace("\n", end)


def test_all_statements_of_a_block_can_be_deleted() -> None:
    assert (
        changed("if a:\n    x()\n    y()\nb()\n", ("delete", "x", ""), ("delete", "y", "")) == "if a:\n    pass\nb()\n"
    )


def test_the_tail_of_a_block_can_be_moved_out() -> None:
    text = "with a:\n    b()\n    x()\n    y()\nc()\n"
    assert changed(text, ("dedent", "x", ""), ("dedent", "y", "")) == "with a:\n    b()\nx()\ny()\nc()\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("import os\nfrom a import x\nx()\n", "import os\nimport torch\ntorch()\n"),
        ("from a import x\nx()\n", "import torch\ntorch()\n"),
        ("from a import w as x, y\nx()\n", "from a import y\nimport torch\ntorch()\n"),
        ("from a import (\n    y,\n    x,\n)\nx()\n", "from a import (\n    y,\n)\nimport torch\ntorch()\n"),
        ("from a import x\nx()\nz = x\n", "from a import x\nimport torch\ntorch()\nz = x\n"),
        ("from a import *\nx()\n", "from a import *\nimport torch\ntorch()\n"),
        ("from a import x; y()\nx()\n", "from a import x; y()\nimport torch\ntorch()\n"),
    ],
)
def test_an_import_that_a_fix_leaves_unused_goes(before: str, after: str) -> None:
    module = SourceModule.from_bytes(before.encode(), "a.py")
    (use,) = m.findall(module.tree, m.Call(func=m.Name("x")))
    assert isinstance(use, cst.Call)
    name = Site(module, use.func)
    plan = FixPlan(
        "safe",
        "repair",
        (Change("replace", name, "torch"), Change("import", name, "torch"), Change("unimport", name)),
    )
    fix = fix_of(plan)
    assert fix is not None
    assert apply_edits(module, fix.edits).decode() == after


def test_notebooks_are_edited_in_their_cells() -> None:
    text = notebook(("code", "import os\n"), ("code", ["%time\n", "x()\n"]))
    after = changed(text, ("import", "x", "torch"), ("insert-before", "x", "a()"), path="a.ipynb")
    assert after == text.replace('"import os\\n"', '"import os\\nimport torch\\n"').replace(
        '    "x()\\n"', '    "a()\\n",\n    "x()\\n"'
    )


def test_a_result_that_is_no_python_is_refused() -> None:
    module = SourceModule("a.py", "x = 1\n")
    with pytest.raises(SourceError):
        apply_edits(module, [Edit(Place("a.py", 1, 1, 1, 1), "(")])
    latin = SourceModule.from_bytes(b"# coding: latin-1\nx = 1\n", "a.py")
    with pytest.raises(SourceError):
        apply_edits(latin, [Edit(Place("a.py", 2, 1, 2, 1), "'→'; ")])


# -- applying --------------------------------------------------------------------------------------------

Planner = Callable[[SourceModule, cst.Call], FixPlan]


def reports(monkeypatch: pytest.MonkeyPatch, plan: Planner) -> None:
    """Let the analysis report every call of `bad`, with a plan."""

    def analyse(module: SourceModule, project: object, rules: list[object], target: str) -> object:
        rule = next(rule for rule in rules if rule.code == "AMP201")  # type: ignore[attr-defined]
        calls = m.findall(module.tree, m.Call(func=m.Name("bad")))
        return [(rule, Fault(Site(module, call), "bad", fix=plan(module, call))) for call in calls]

    monkeypatch.setattr(analysis, "analyse", analyse)


NEEDLES = "'scaler.scale(clip'\n"


def fixed(here: Path, amplint: Amplint, text: str, *options: str) -> str:
    (here / "a.py").write_text(NEEDLES + text)
    assert amplint("--fix", *options, "a.py").status in (0, 1)
    return (here / "a.py").read_text().removeprefix(NEEDLES)


def replace(new: str, safety: str = "safe") -> Planner:
    return lambda module, call: FixPlan(safety, "repair", (Change("replace", Site(module, call), new),))  # type: ignore[arg-type]


def test_unsafe_fixes_need_to_be_asked_for(here: Path, amplint: Amplint, monkeypatch: pytest.MonkeyPatch) -> None:
    reports(monkeypatch, replace("good()", "unsafe"))
    assert fixed(here, amplint, "bad()\n") == "bad()\n"
    assert fixed(here, amplint, "bad()\n", "--unsafe-fixes") == "good()\n"


def test_fixes_that_overlap_are_applied_in_rounds(
    here: Path, amplint: Amplint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def inner_first(module: SourceModule, call: cst.Call) -> FixPlan:
        argument = module.segment(call.args[0].value) if call.args else ""
        return FixPlan("safe", "repair", (Change("replace", Site(module, call), f"good({argument})"),))

    reports(monkeypatch, inner_first)
    assert fixed(here, amplint, "bad(bad(bad()))\nbad()\n") == "good(good(good()))\ngood()\n"


def test_the_same_edit_twice_is_one(here: Path, amplint: Amplint, monkeypatch: pytest.MonkeyPatch) -> None:
    def with_import(module: SourceModule, call: cst.Call) -> FixPlan:
        site = Site(module, call)
        return FixPlan("safe", "repair", (Change("replace", site, "good()"), Change("import", site, "torch")))

    reports(monkeypatch, with_import)
    assert fixed(here, amplint, "import os\nbad()\nbad()\n") == "import os\nimport torch\ngood()\ngood()\n"


def test_a_fix_that_breaks_the_file_does_not_stop_the_others(
    here: Path, amplint: Amplint, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports(monkeypatch, lambda module, call: replace("(" if call.args else "good()")(module, call))
    assert fixed(here, amplint, "bad(1)\nbad()\n") == "bad(1)\ngood()\n"


def test_a_fix_that_helps_nothing_is_taken_back(here: Path, amplint: Amplint, monkeypatch: pytest.MonkeyPatch) -> None:
    reports(monkeypatch, lambda m, c: FixPlan("safe", "repair", (Change("insert-before", Site(m, c), "a()"),)))
    assert fixed(here, amplint, "bad()\nbad()\n") == "bad()\nbad()\n"


RESUMED = """\
import torch


def main(args, net, critic, loader):
    over_net = torch.optim.SGD(net.parameters(), lr=0.1)
    over_critic = torch.optim.SGD(critic.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    apart = torch.amp.GradScaler("cuda")
    if args.resume:
        state = torch.load(args.resume)
        net.load_state_dict(state["net"])
        over_net.load_state_dict(state["over_net"])
    for x in loader:
        for model, optimizer, mine in ((net, over_net, scaler), (critic, over_critic, apart)):
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = model(x).mean()
            mine.scale(loss).backward()
            mine.step(optimizer)
            mine.update()
    torch.save({STATES}, args.path)
"""


@pytest.mark.parametrize(
    ("states", "added"),
    [
        (["over_net"], '"scaler": scaler.state_dict()'),
        (["over_net", "over_critic"], '"scaler": scaler.state_dict(), "scaler_apart": apart.state_dict()'),
    ],
)
def test_a_fix_that_uncovers_another_fault_is_applied(
    here: Path, amplint: Amplint, states: list[str], added: str
) -> None:
    entries = ", ".join(f'"{name}": {name}.state_dict()' for name in ["net", *states])
    (here / "a.py").write_text(RESUMED.replace("STATES", entries))
    result = amplint("--fix", "a.py")
    assert (here / "a.py").read_text() == RESUMED.replace("STATES", f"{entries}, {added}")
    assert "AMP502" in result.out
    assert "AMP501" not in result.out


def test_a_fix_may_change_several_checked_files_but_no_other(
    here: Path, amplint: Amplint, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = SourceModule.from_path(here / "b.py", "b.py") if (here / "b.py").exists() else SourceModule("b.py", "old\n")

    def both(module: SourceModule, call: cst.Call) -> FixPlan:
        there = Site(other, other.tree.body[0])
        return FixPlan(
            "safe", "repair", (Change("replace", Site(module, call), "good()"), Change("replace", there, "new"))
        )

    reports(monkeypatch, both)
    (here / "b.py").write_text("old\n")
    assert fixed(here, amplint, "bad()\n") == "bad()\n"
    assert amplint("--fix", ".").status == 0
    assert (here / "b.py").read_text() == "new\n"


def finding(fix: Fix | None, verdict: Verdict | None = None) -> Finding:
    place = Place("a.py", 1, 1, 1, 2)
    return Finding("AMP201", "n", Severity.ERROR, Confidence.HIGH, place, "m", fix=fix, verdict=verdict)


def test_what_the_verifier_saw_fail_is_not_applied() -> None:
    fix = Fix("safe", "repair", ())
    assert is_applicable(finding(fix), unsafe=False)
    assert is_applicable(finding(fix, Verdict("confirmed", fix_verified=True)), unsafe=False)
    assert not is_applicable(finding(fix, Verdict("confirmed", fix_verified=False)), unsafe=True)
    assert not is_applicable(finding(fix, Verdict("refuted")), unsafe=True)
    assert not is_applicable(finding(None), unsafe=True)


@pytest.mark.usefixtures("fake_analysis")
def test_encoding_line_ends_mode_and_links_are_kept(here: Path, amplint: Amplint) -> None:
    text = ("\ufeff# é\n" + CLIPPED).replace("\n", "\r\n")
    (here / "real.py").write_bytes(text.encode())
    (here / "real.py").chmod(0o751)
    (here / "link.py").symlink_to("real.py")
    assert amplint("--no-cache", "--fix", "link.py").status == 0
    after = (here / "real.py").read_bytes().decode()
    assert after == text.replace("        torch.nn", "        scaler.unscale_(optimizer)\r\n        torch.nn")
    assert stat.S_IMODE((here / "real.py").stat().st_mode) == 0o751
    assert (here / "link.py").is_symlink()
    assert sorted(os.listdir(here)) == ["link.py", "real.py"]


def test_a_write_that_fails_leaves_the_file_as_it_was(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "a.py").write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write(here / "a.py", b"new")
    assert (here / "a.py").read_text() == "old"
    assert os.listdir(here) == ["a.py"]


def test_diffs_of_notebooks_are_of_cells() -> None:
    before, after = (notebook(("markdown", "x"), ("code", [f"{word}\n", "same"])) for word in ("old", "new"))
    shown = diff("a.ipynb", before.encode(), after.encode())
    assert shown.startswith("--- a.ipynb:cell 2\n+++ a.ipynb:cell 2\n")
    assert "-old\n+new\n same\n\\ No newline at end of file\n" in shown
