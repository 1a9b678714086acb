"""Which file an import names, and which files are read at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from tracing import HEAD, Laboratory, story

from amplint.analysis import prepare
from amplint.project import MAX_KEPT, Project
from amplint.source import SourceModule

FINISH = """\
def finish(s, o):
    s.step(o)
    s.update()
"""
FINISHED = "finish(scaler, optimizer)"
USE = """\
def train(x):
    scaler.scale(model(x).sum()).backward()
    {call}
"""


@pytest.fixture
def lab(tmp_path: Path) -> Laboratory:
    return Laboratory(tmp_path)


def reached(
    lab: Laboratory, imports: str, call: str = "finish(scaler, optimizer)", name: str = "train.py"
) -> list[str]:
    """Where the protocol goes on after a backward, the first time."""
    source = f"{imports}\n{HEAD}{USE.format(call=call)}"
    stories = [story(trace) for trace in lab.traces_of(source, name) if trace.entry.name == "train"]
    events = [event.split()[:2] for event in stories[0] if not event.startswith("backward")]
    return list(dict.fromkeys(f"{kind} {place.partition(':')[0]}" for kind, place in events))


def read(project: Project) -> set[str]:
    """The modules that were parsed, as paths below the root."""
    return {path.relative_to(project.root).as_posix() for path, env in project._modules.items() if env is not None}


# --- resolution ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("imports", "call"),
    [
        ("from helpers import finish", "finish(scaler, optimizer)"),
        ("from helpers import finish as end", "end(scaler, optimizer)"),
        ("import helpers", "helpers.finish(scaler, optimizer)"),
        ("import helpers as h", "h.finish(scaler, optimizer)"),
        ("from helpers import *", "finish(scaler, optimizer)"),
        ("try:\n    from helpers import finish\nexcept ImportError:\n    finish = None", "finish(scaler, optimizer)"),
        ("if True:\n    from helpers import finish", "finish(scaler, optimizer)"),
        ("", "from helpers import finish; finish(scaler, optimizer)"),
    ],
)
def test_a_module_beside_the_file(lab: Laboratory, imports: str, call: str) -> None:
    lab.write(helpers=FINISH)
    assert reached(lab, imports, call) == ["step helpers", "update helpers"]


@pytest.mark.parametrize(
    ("imports", "call"),
    [
        ("from pkg.sub.helpers import finish", "finish(scaler, optimizer)"),
        ("from pkg.sub import helpers", "helpers.finish(scaler, optimizer)"),
        ("import pkg.sub.helpers", "pkg.sub.helpers.finish(scaler, optimizer)"),
        ("import pkg.sub.helpers as h", "h.finish(scaler, optimizer)"),
        ("from .sub.helpers import finish", "finish(scaler, optimizer)"),
        ("from .sub import helpers", "helpers.finish(scaler, optimizer)"),
        ("from ..pkg.sub.helpers import finish", "finish(scaler, optimizer)"),
    ],
)
def test_a_module_of_a_package(lab: Laboratory, imports: str, call: str) -> None:
    lab.write(pkg__init="", pkg__sub__init="", pkg__sub__helpers=FINISH)
    assert reached(lab, imports, call, "pkg/train.py") == ["step helpers", "update helpers"]


def test_a_source_folder(lab: Laboratory) -> None:
    lab.write(src__pkg__init="", src__pkg__helpers=FINISH)
    assert reached(lab, "from pkg.helpers import finish", name="scripts/train.py") == ["step helpers", "update helpers"]


@pytest.mark.parametrize(
    ("init", "imports"),
    [
        ("from .helpers import finish", "from pkg import finish"),
        ("from pkg.helpers import finish", "from pkg import finish"),
        ("from .helpers import finish as end", "from pkg import end as finish"),
        ("from .helpers import *", "from pkg import finish"),
        ("from .helpers import finish", "from pkg import *"),
    ],
)
def test_what_a_package_offers_again(lab: Laboratory, init: str, imports: str) -> None:
    lab.write(pkg__init=init, pkg__helpers=FINISH)
    assert reached(lab, imports) == ["step helpers", "update helpers"]


def test_the_nearer_of_two_modules_of_one_name_is_meant(lab: Laboratory) -> None:
    lab.write(helpers="def finish(s, o):\n    s.unscale_(o)\n", pkg__init="", pkg__helpers=FINISH)
    assert reached(lab, "from helpers import finish") == ["unscale_ helpers"]
    assert reached(lab, "from .helpers import finish", name="pkg/train.py") == ["step helpers", "update helpers"]


def test_what_a_file_defines_hides_what_it_imports(lab: Laboratory) -> None:
    lab.write(helpers=FINISH)
    source = "from helpers import finish\ndef finish(s, o):\n    s.unscale_(o)\n"
    assert [event.partition(" ")[0] for event in reached(lab, source)] == ["unscale_"]


def test_modules_that_import_each_other(lab: Laboratory) -> None:
    lab.write(
        one="from two import end\ndef finish(s, o):\n    s.unscale_(o)\n    end(s, o)\n",
        two="from one import finish\ndef end(s, o):\n    s.step(o)\n",
    )
    assert reached(lab, "from one import finish") == ["unscale_ one", "step two"]


def test_a_module_that_imports_itself_by_a_star(lab: Laboratory) -> None:
    lab.write(pkg__init="from . import *\nfrom .helpers import *", pkg__helpers=FINISH)
    assert reached(lab, "from pkg import finish") == ["step helpers", "update helpers"]


def test_a_folder_called_like_a_library_is_not_that_library(lab: Laboratory) -> None:
    lab.write(torch__init="def autocast(): ...\nclass amp: ...\n")
    unit = lab.unit(HEAD + USE.format(call="scaler.step(optimizer)"))
    assert read(unit.project) == {"train.py"}
    assert any(event.kind == "step" for trace in unit.traces for event in trace.events)


def test_a_scaler_that_another_module_made(lab: Laboratory) -> None:
    lab.write(state='import torch\nscaler = torch.amp.GradScaler("cuda", enabled=False)\n')
    source = "from state import scaler\ndef train(optimizer):\n    scaler.step(optimizer)\n"
    (trace,) = lab.traces_of(source)
    assert [event.kind for event in trace.events] == ["opt_step"]


# --- what is read --------------------------------------------------------------------------------


def test_a_file_is_read_where_something_of_it_is_looked_up(lab: Laboratory) -> None:
    lab.write(plain="def area(a, b):\n    return a * b\n", helpers=FINISH)
    imports = "from plain import area\nfrom helpers import finish\n"

    def looked_up(call: str) -> set[str]:
        unit = lab.unit(imports + HEAD + "print(area(1, 2))\n" + USE.format(call=call))
        assert unit.traces
        return read(unit.project)

    assert "plain.py" in looked_up("finish(area(scaler, 1), 2)")
    assert "plain.py" not in looked_up("finish(scaler, 2)")


def test_a_setting_of_a_file_without_any_word_of_the_protocol(lab: Laboratory) -> None:
    lab.write(conf="USE_AMP = False\nACCUMULATE = 1\nEPOCHS = 2 ** 3\n")
    source = """\
    from conf import ACCUMULATE, USE_AMP
    import conf
    for i, x in enumerate(loader):
        loss = model(x).sum()
        if USE_AMP:
            scaler.scale(loss).backward()
        else:
            loss.backward()
        if (i + 1) % ACCUMULATE == 0 and conf.EPOCHS == 8:
            optimizer.step()
    """
    assert lab.told(source) == [["backward 8 N", "opt_step 10 P", "backward 8 N", "opt_step 10 P"]]


def test_nothing_outside_of_the_root_is_read(lab: Laboratory) -> None:
    lab.write(helpers=FINISH)
    path = lab.folder / "inner" / "train.py"
    path.parent.mkdir()
    path.write_text("from ..helpers import finish\nfrom helpers import finish\n")
    project = Project(path.parent.resolve())
    env = project.enter(SourceModule.from_path(path))
    assert [project.resolve(env, "helpers", level) for level in (0, 1, 2)] == [None, None, None]


@pytest.mark.parametrize("broken", ["def scaler(:\n", "scaler = '\\\n", "\0scaler"])
def test_a_module_that_cannot_be_parsed_is_unknown(lab: Laboratory, broken: str) -> None:
    lab.write(helpers=broken)
    assert reached(lab, "from helpers import finish") == []


def test_a_module_is_read_once(lab: Laboratory) -> None:
    lab.write(helpers=FINISH)
    unit = lab.unit("from helpers import finish\nimport helpers\n")
    first = unit.project.resolve(unit.env, "helpers", 0)
    assert first is not None
    assert unit.project.resolve(unit.env, "helpers", 1) is first


# --- roots ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mark", [".git", "pyproject.toml", "setup.py", "setup.cfg", ".hg"])
def test_a_mark_makes_a_root(tmp_path: Path, mark: str) -> None:
    file = tmp_path / "project" / "pkg" / "train.py"
    file.parent.mkdir(parents=True)
    file.touch()
    (tmp_path / "project" / mark).touch()
    assert Project.for_file(file).root == (tmp_path / "project").resolve()


def test_without_a_mark_the_outermost_package_is_the_root(tmp_path: Path) -> None:
    file = tmp_path / "pkg" / "sub" / "train.py"
    file.parent.mkdir(parents=True)
    for folder in (file.parent, file.parent.parent):
        (folder / "__init__.py").touch()
    assert Project.for_file(file).root == tmp_path.resolve()


# --- roles ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "roles"),
    [
        ("s.unscale_(o)", {"s": "scaler", "o": "optimizer"}),
        ("s.scale(loss); s.update()", {"s": "scaler"}),
        ("s.scale(loss); s.step(o)", {"s": "scaler", "o": "optimizer"}),
        ("scaler.step(o)", {"scaler": "scaler", "o": "optimizer"}),
        ("grad_scaler.update()", {"grad_scaler": "scaler"}),
        ("scaler.fit(x); scaler.update()", {}),
        ("bar.update()", {}),
        ("o.zero_grad(); o.step()", {"o": "optimizer"}),
        ("optimizer.step()", {"optimizer": "optimizer"}),
        ("opt_g.zero_grad()", {"opt_g": "optimizer"}),
        ("lr_sched.step()", {"lr_sched": "scheduler"}),
        ("env.step()", {}),
        ("net.parameters()", {"net": "model"}),
        ("net.train(); net(x)", {"net": "model"}),
        ("self.net.parameters()", {"self.net": "model"}),
    ],
)
def test_roles(lab: Laboratory, body: str, roles: dict[str, str]) -> None:
    unit = lab.unit(f"def train(self, x):\n    {body}\n")
    assert unit.env.roles[unit.env.program.scopes[1]] == roles


def test_roles_of_attributes_are_those_of_the_class(lab: Laboratory) -> None:
    unit = lab.unit("class A:\n    def f(self): self.s.unscale_(self.o)\n    def g(self): pass\n")
    g = unit.env.program.scopes[3]
    assert unit.env.roles[g] == {"self.s": "scaler", "self.o": "optimizer"}


def test_a_parameter_hides_the_role_of_the_name_around_it(lab: Laboratory) -> None:
    unit = lab.unit("s.unscale_(o)\ndef f(o): pass\n")
    assert unit.env.roles[unit.env.program.scopes[1]] == {"s": "scaler"}


def test_modules_are_not_kept_for_ever(tmp_path: Path) -> None:
    for number in range(2 * MAX_KEPT):
        (tmp_path / f"m{number}.py").write_text("import torch\nscaler = torch.amp.GradScaler()\n")
    project = Project(tmp_path)
    numbers = set()
    for file in sorted(tmp_path.glob("*.py")):
        numbers.add(project.enter(SourceModule.from_path(file), file).number)
        project.trim()
        assert len(project._modules) <= MAX_KEPT
    assert len(numbers) == 2 * MAX_KEPT


def test_a_file_that_was_read_as_an_import_is_not_parsed_again(lab: Laboratory) -> None:
    lab.write(helpers=FINISH)
    project = Project(lab.folder.resolve())
    user = project.enter(
        SourceModule("train.py", "from helpers import finish\n", "utf-8", "\n"), lab.folder / "train.py"
    )
    imported = project.resolve(user, "helpers", 0)
    assert imported is not None
    assert imported.program.scopes

    again = SourceModule(imported.source.path, FINISH, "utf-8", "\n")
    checked = project.parsed(again, lab.folder / "helpers.py")
    assert checked is imported.source
    entered = project.enter(checked, lab.folder / "helpers.py")
    assert entered is not imported, "what an import found out does not hold for a file that runs"
    assert entered.program is imported.program

    changed = SourceModule(imported.source.path, f"{FINISH}    return s\n", "utf-8", "\n")
    assert project.parsed(changed, lab.folder / "helpers.py") is changed


def test_a_file_that_was_checked_is_no_better_known_than_one_that_was_not(
    lab: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amplint.project.MAX_BYTES", len(FINISH) + 5)
    lab.write(plain=f"{FINISH}# too long\n", helpers=FINISH)
    for first in (False, True):
        project = Project(lab.folder.resolve())
        if first:
            for name in ("plain", "helpers"):
                project.enter(SourceModule.from_path(lab.folder / f"{name}.py"))
        user = project.enter(SourceModule("train.py", "", "utf-8", "\n"), lab.folder / "train.py")
        assert project.resolve(user, "plain", 0) is None
        assert project.resolve(user, "helpers", 0) is not None


def test_one_analysis_has_as_much_room_as_another(lab: Laboratory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amplint.execution.modules.MAX_MODULES", 3)
    others = {f"m{i}": FINISH.replace("finish", f"finish{i}") for i in range(4)}
    imports = "".join(f"from m{i} import finish{i}\n" for i in range(4)) + "from helpers import finish\n"
    calls = "".join(f"    finish{i}(s, o)\n" for i in range(4))
    lab.write(helpers=FINISH, hub__init=f"{imports}def run(s, o):\n{calls}    finish(s, o)\n", **others)
    source = f"from hub import run\n{HEAD}{USE.format(call='run(scaler, optimizer)')}"
    (lab.folder / "train.py").write_text(source)

    def steps(project: Project) -> list[str]:
        unit = prepare(SourceModule.from_path(lab.folder / "train.py"), project, "2.9")
        return [Path(event.site.module.path).stem for _, _, event in unit.events("step")]

    project = Project(lab.folder.resolve())
    prepare(SourceModule.from_path(lab.folder / "hub" / "__init__.py"), project, "2.9").traces  # noqa: B018 - looks into modules
    assert steps(project) == steps(Project(lab.folder.resolve())) != []
