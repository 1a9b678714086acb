"""Paths: which orders of operations a program can show, what tells two of them apart, and where it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from tracing import HEAD, Laboratory

from amplint import guards


@pytest.fixture
def lab(tmp_path: Path) -> Laboratory:
    return Laboratory(tmp_path)


def kinds(story: list[str]) -> list[str]:
    """A story without its lines: "backward N"."""
    return [f"{kind} {state}" for kind, _, state in (event.split() for event in story)]


# --- guards --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("use_amp", "use_amp"),
        ("use_amp", "use_amp is not False and use_amp"),
        ("args.amp", "args.amp == True or args.amp"),
        ("mode == 'fp16'", "not mode != 'fp16'"),
        ("n > 1", "1 < n"),
        ("config['amp']", "config['amp']"),
    ],
)
def test_correlated_guards_make_two_paths(lab: Laboratory, first: str, second: str) -> None:
    source = f"""\
    def train(loader, use_amp, args, mode, n, config):
        for x in loader:
            loss = model(x).sum()
            if {first}:
                scaler.scale(loss).backward()
            else:
                loss.backward()
            if {second}:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
            optimizer.zero_grad()
    """
    told = [kinds(story) for story in lab.told(source)]
    assert sorted(told) == [
        ["backward ?", "opt_step P", "zero_grad N", "backward N", "opt_step P", "zero_grad N"],
        ["backward ?", "step S", "update T", "zero_grad N", "backward N", "step S", "update T", "zero_grad N"],
    ]


def test_independent_guards_make_every_combination(lab: Laboratory) -> None:
    source = """\
    def train(x, a, b):
        for _ in range(1):
            if a: scaler.scale(model(x).sum()).backward()
            else: model(x).sum().backward()
            if b: scaler.step(optimizer)
            else: optimizer.step()
    """
    told = {tuple(kinds(story)[:2]) for story in lab.told(source)}
    assert told >= {
        ("backward ?", "step S"),
        ("backward ?", "opt_step S"),
        ("backward ?", "step P"),
        ("backward ?", "opt_step P"),
    }


@pytest.mark.parametrize("test", ["scaler is not None", "scaler", "scaler is not None and True", "not scaler is None"])
def test_a_scaler_that_is_none_by_default(lab: Laboratory, test: str) -> None:
    source = f"""\
    def train(model, optimizer, loader, scaler=None):
        for x in loader:
            loss = model(x).sum()
            if scaler is not None:
                scaler.scale(loss).backward()
            else:
                loss.backward()
            if {test}:
                scaler.step(optimizer)
            else:
                optimizer.step()
            optimizer.zero_grad()
    """
    told = [kinds(story)[:3] for story in lab.told(source, head="")]
    assert sorted(told) == [["backward ?", "opt_step P", "zero_grad N"], ["backward ?", "step S", "zero_grad T"]]


@pytest.mark.parametrize(
    ("made", "test"),
    [
        ('torch.amp.GradScaler("cuda", enabled=use_amp)', "use_amp"),
        ('torch.amp.GradScaler("cuda", enabled=use_amp)', "scaler.is_enabled()"),
        ("torch.cuda.amp.GradScaler(enabled=not not use_amp)", "use_amp"),
        ('torch.amp.GradScaler("cuda") if use_amp else None', "scaler is not None"),
        ('torch.amp.GradScaler("cuda") if use_amp else None', "use_amp"),
    ],
)
def test_the_flag_of_the_scaler_and_a_guard_are_one(lab: Laboratory, made: str, test: str) -> None:
    step = "scaler.step(optimizer)" if "enabled" in made else "(scaler.step if use_amp else skip)(optimizer)"
    source = f"""\
    import torch
    def train(model, optimizer, loader, use_amp):
        scaler = {made}
        for x in loader:
            loss = model(x).sum()
            if use_amp:
                scaler.scale(loss).backward()
            else:
                loss.backward()
            if {test}:
                scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            {step}
    """
    told = [kinds(story) for story in lab.told(source, head="")]
    assert all("unscale_ S" in story and "clip U" in story for story in told if "step U" in story)
    assert not any("clip S" in story or "step P" in story for story in told)
    assert any("clip P" in story for story in told)


def test_a_trace_knows_what_it_assumes(lab: Laboratory) -> None:
    source = """\
    def train(x, use_amp):
        scaler.scale(model(x).sum()).backward()
        if use_amp:
            scaler.unscale_(optimizer)
    """
    traces = lab.traces_of(HEAD + dedent(source))
    unscales = [event for trace in traces for event in trace.events if event.kind == "unscale_"]
    assert "use_amp is true" in [guards.sentence(*decided) for decided in unscales[0].assume.items()]


# --- loops ---------------------------------------------------------------------------------------


def test_a_loop_runs_twice(lab: Laboratory) -> None:
    source = """\
    for x in loader:
        scaler.scale(model(x).sum()).backward()
        scaler.step(optimizer)
    """
    assert lab.only(source) == ["backward 2 N", "step 3 S", "backward 2 T", "step 3 S"]


def test_the_boundary_of_a_window_comes_once_in_two_rounds_and_then_in_a_later_one(lab: Laboratory) -> None:
    source = """\
    def train(loader, n):
        for i, x in enumerate(loader):
            scaler.scale(model(x).sum() / n).backward()
            if (i + 1) % n == 0:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
    """
    boundary = ["step S", "update T", "zero_grad N"]
    assert sorted(kinds(story) for story in lab.told(source)) == [
        ["backward ?", "backward S"],
        ["backward ?", "backward S", *boundary],
        ["backward ?", *boundary, "backward N", "backward S"],
        ["backward ?", *boundary, "backward N", "backward S", *boundary],
    ]


def test_an_early_continue_takes_its_gradients_to_the_next_round(lab: Laboratory) -> None:
    source = """\
    for x in loader:
        loss = model(x).sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        if not torch.isfinite(loss):
            continue
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    """
    told = [kinds(story) for story in lab.told(source)]
    step = ["step U", "update T", "zero_grad N"]
    assert ["backward N", "unscale_ S", *step, "backward N", "unscale_ S", *step] in told
    assert ["backward N", "unscale_ S", "backward U", "unscale_ M"] in [story[:4] for story in told]


def test_break_skips_the_else_of_a_loop(lab: Laboratory) -> None:
    source = """\
    for i, x in enumerate(loader):
        scaler.scale(model(x).sum()).backward()
        if i == n:
            break
    else:
        scaler.unscale_(optimizer)
    optimizer.step()
    """
    told = [kinds(story) for story in lab.told(source)]
    assert any("unscale_ S" in story for story in told)
    assert ["backward N", "opt_step S"] in told


def test_a_while_loop_runs_twice(lab: Laboratory) -> None:
    source = """\
    step = 0
    while step < 100:
        scaler.scale(model(step).sum()).backward()
        step += 1
    scaler.step(optimizer)
    """
    assert lab.told(source)[0] == ["backward 3 N", "backward 3 S", "step 5 S"]


def test_loops_in_loops(lab: Laboratory) -> None:
    source = """\
    for epoch in range(10):
        for x in loader:
            scaler.scale(model(x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    """
    window = ["backward 3 N", "backward 3 S", "step 4 S", "update 5 T", "zero_grad 6 N"]
    assert lab.only(source) == [*window, *window]


# --- exceptions ----------------------------------------------------------------------------------


def test_what_a_call_raises_is_caught_where_it_is_caught(lab: Laboratory) -> None:
    source = """\
    def check(loss):
        if not torch.isfinite(loss):
            raise FloatingPointError
    for x in loader:
        try:
            loss = model(x).sum()
            scaler.scale(loss).backward()
            check(loss)
            scaler.step(optimizer)
        except FloatingPointError:
            scaler.unscale_(optimizer)
    """
    told = [kinds(story) for story in lab.told(source)]
    assert any(story[:2] == ["backward N", "step S"] for story in told)
    assert any("unscale_ S" in story for story in told)


def test_nothing_is_raised_by_the_protocol_itself(lab: Laboratory) -> None:
    source = """\
    try:
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
    except RuntimeError:
        scaler.update()
    """
    assert lab.only(source) == ["unscale_ 2 N", "step 3 U"]


def test_finally_runs_on_every_way_out(lab: Laboratory) -> None:
    source = """\
    def train(x, skip):
        try:
            scaler.scale(model(x).sum()).backward()
            if skip:
                return
            scaler.step(optimizer)
        finally:
            scaler.update()
    """
    told = [kinds(story) for story in lab.told(source)]
    step, skip = ["backward ?", "step S", "update T"], ["backward ?", "update S"]
    assert [story[:3] for story in told[:2]] == [step, step]
    assert [story[:2] for story in told[2:]] == [skip, skip]


def test_else_runs_where_nothing_was_raised(lab: Laboratory) -> None:
    source = """\
    try:
        loss = scaler.scale(model(x).sum())
    except RuntimeError:
        optimizer.zero_grad()
    else:
        loss.backward()
    finally:
        scaler.update()
    """
    told = lab.told(source)
    assert ["backward 6 N", "update 8 S"] in told
    assert ["zero_grad 4 N", "update 8 N"] in told


def test_a_raise_that_nothing_catches_ends_the_path(lab: Laboratory) -> None:
    source = "scaler.scale(model(x).sum()).backward()\nraise SystemExit\nscaler.step(optimizer)\n"
    assert lab.only(source) == ["backward 1 N"]


# --- entries -------------------------------------------------------------------------------------


def test_a_step_without_a_loop_is_driven_twice(lab: Laboratory) -> None:
    source = """\
    def train_step(x):
        scaler.scale(model(x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    """
    assert lab.only(source) == ["backward 2 ?", "step 3 S", "update 4 T", "backward 2 N", "step 3 S", "update 4 T"]


def test_a_caller_that_must_update_may_do_so(lab: Laboratory) -> None:
    source = """\
    def train_step(x):
        scaler.scale(model(x).sum()).backward()
        scaler.step(optimizer)
    """
    assert lab.only(source)[2:] == ["backward 2 ?", "step 3 S"]


def test_what_was_executed_on_the_way_is_no_entry_of_its_own(lab: Laboratory) -> None:
    source = "def advance():\n    scaler.step(optimizer)\ndef train(x):\n    advance()\n    scaler.update()\n"
    entries = [trace.entry.name for trace in lab.traces_of(HEAD + source)]
    assert entries == ["", "train"]


def test_a_scope_without_amp_is_no_entry(lab: Laboratory) -> None:
    assert lab.traces_of("def area(a, b):\n    return a * b\n") == []


# --- limits --------------------------------------------------------------------------------------


def test_a_function_of_many_independent_branches_ends(lab: Laboratory) -> None:
    branch = "    if f[{0}]:\n        scaler.scale(model(x).sum()).backward()\n    else:\n        x = g{0}(x)\n"
    body = "".join(branch.format(number) for number in range(300))
    traces = lab.traces_of(f"{HEAD}def train(x, f):\n{body}    scaler.step(optimizer)\n")
    assert any(event.kind == "backward" for trace in traces for event in trace.events)
    assert any(trace.truncated for trace in traces)


def test_the_same_function_called_over_and_over_ends(lab: Laboratory) -> None:
    link = "def f{0}(x):\n    f{1}(x)\n    f{1}(x)\n    scaler.scale(model(x).sum()).backward()\n"
    chain = "".join(link.format(number, number + 1) for number in range(30))
    traces = lab.traces_of(f"{HEAD}{chain}def f30(x):\n    scaler.step(optimizer)\n")
    assert any(event.kind == "backward" for trace in traces for event in trace.events)


PROGRAM = """\
def train(loader, a, b, c, n, opt_g, opt_d, scaler=None):
    G, D = nn.Linear(2, 2), nn.Linear(2, 2)
    for i, x in enumerate(loader):
        if a or b:
            scaler.scale(G(D(x)).sum()).backward()
        elif c == "half":
            (G(x).sum() + D(x).sum()).backward()
        try:
            check(x)
            if (i + 1) % n == 0:
                for o in (opt_g, opt_d):
                    scaler.unscale_(o)
                    scaler.step(o)
        except RuntimeError:
            continue
        scaler.update()
"""
SCRIPT = """\
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from tracing import Laboratory, story
from amplint.guards import sentence
for trace in Laboratory(Path({folder!r})).traces_of({source!r}):
    print(trace.entry.name, story(trace), [sentence(*decided) for decided in trace.assume.items()])
"""


def test_results_do_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    script = SCRIPT.format(tests=str(Path(__file__).parent), folder=str(tmp_path), source=HEAD + PROGRAM)

    def run(seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", script]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    first = run("1")
    assert "unscale_" in first
    assert run("2") == first


def test_a_method_inherited_from_another_module_is_executed_whatever_it_is_called(lab: Laboratory) -> None:
    lab.write(
        base_loop="""
        import torch

        class Loop:
            def __init__(self, net, optimizer):
                self.net, self.optimizer = net, optimizer
                self.scaler = torch.amp.GradScaler("cuda")

            def advance(self):
                self.scaler.step(self.optimizer)
                self.scaler.update()
        """
    )
    traces = lab.traces_of(
        """
        from base_loop import Loop

        class OwnLoop(Loop):
            def fit(self, batches):
                for x, y in batches:
                    self.optimizer.zero_grad()
                    self.scaler.scale(self.net(x, y)).backward()
                    self.advance()
        """
    )
    kinds = [event.kind for trace in traces for event in trace.events]
    assert "step" in kinds
    assert "update" in kinds


def test_a_class_whose_init_always_raises_has_no_methods_to_start(lab: Laboratory) -> None:
    unit = lab.unit(
        "import torch\nclass Base:\n"
        "    def __init__(self, net):\n"
        "        self.scaler = torch.amp.GradScaler()\n"
        "        raise NotImplementedError\n\n"
        "    def step(self, loss):\n"
        "        self.scaler.scale(loss).backward()\n"
        "        self.scaler.step(self.optimizer)\n"
    )
    assert [e.kind for _, _, e in unit.events("step")] == []


def test_a_method_starts_where_what_it_reads_first_was_set(lab: Laboratory) -> None:
    unit = lab.unit(
        "import torch\nfrom torch import nn\nclass Model:\n"
        "    def __init__(self, options):\n"
        "        self.net = nn.Linear(2, 2)\n"
        "        if options.train:\n"
        "            self.prepare(options)\n\n"
        "    def prepare(self, options):\n"
        "        self.limit = options.limit\n"
        "        self.optimizer = torch.optim.SGD(self.net.parameters(), 0.1)\n"
        "        self.scaler = torch.amp.GradScaler()\n\n"
        "    def step(self, x):\n"
        "        loss = self.net(x).clamp(self.limit).mean()\n"
        "        self.scaler.scale(loss).backward()\n"
        "        self.scaler.step(self.optimizer)\n"
        "        self.scaler.update()\n"
    )
    assert {e.scaler.constructed for _, _, e in unit.events("step")} == {True}
