"""How far execution reaches: objects made elsewhere, functions handed over, methods inherited, many paths at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from tracing import Laboratory

from amplint.states import Event


@pytest.fixture
def lab(tmp_path: Path) -> Laboratory:
    return Laboratory(tmp_path)


def events(lab: Laboratory, source: str, kind: str) -> list[Event]:
    return [event for trace in lab.traces_of(source) for event in trace.events if event.kind == kind]


NESTED = """
import torch, threading
{imports}

def main(model, loader):
    optimizer = torch.optim.SGD(model.parameters())
    scaler = torch.amp.GradScaler("cuda")

    def work(engine, x):
        scaler.scale(model(x)).backward()
        scaler.step(optimizer)
        scaler.update()

    {use}
"""


@pytest.mark.parametrize(
    ("imports", "use"),
    [
        ("from ignite.engine import Engine", "Engine(work).run(loader)"),
        ("from pool import submit", "submit(work, loader)"),
        ("", "threading.Thread(target=work, args=(None, loader)).start()"),
        ("import torch.multiprocessing as mp", "mp.spawn(work, args=(loader,), nprocs=2)"),
    ],
)
def test_a_nested_function_that_is_handed_over_is_looked_at(lab: Laboratory, imports: str, use: str) -> None:
    steps = events(lab, NESTED.format(imports=imports, use=use), "step")
    assert steps
    assert all(event.state.kind == "S" for event in steps)


def test_what_a_function_that_is_handed_over_does_is_not_taken_for_done(lab: Laboratory) -> None:
    source = NESTED.format(
        imports="from pool import submit", use="submit(work, loader)\n    scaler.unscale_(optimizer)"
    )
    (unscale,) = {event.state.kind for event in events(lab, source, "unscale_")}
    assert unscale == "N"


def test_an_inherited_method_runs_on_objects_of_the_class_that_inherits_it(lab: Laboratory) -> None:
    lab.write(
        base="""
        import torch

        class Base:
            def finish(self):
                self.scaler.step(self.optimizer)
                self.scaler.update()
        """
    )
    source = """
    import torch
    from base import Base

    class Own(Base):
        def __init__(self, net):
            self.optimizer = torch.optim.Adam(net.parameters())
            self.scaler = torch.amp.GradScaler("cuda")
    """
    (step,) = {(event.scaler, event.optimizer) for event in events(lab, source, "step")}
    assert step[0] is not None
    assert step[0].constructed


def test_an_object_is_known_by_its_construction_in_a_method_too_long_to_run(lab: Laboratory) -> None:
    choices = "\n".join(
        f"            self.m{i} = config.m{i} if config.x{i} else other(config.y{i})" for i in range(600)
    )
    source = f"""
    import torch

    class Stepper:
        def __init__(self, net):
            self.optimizer = torch.optim.SGD(net.parameters())

        def step(self, scaler):
            scaler.step(self.optimizer)

    class Engine:
        def __init__(self):
            self.stepper = None

        def build(self, config):
{choices}
            self.stepper = Stepper(config.net)

        def train(self, scaler, loss):
            scaler.scale(loss).backward()
            self.stepper.step(scaler)
            if self.m0 or self.m1:
                scaler.update()
    """
    assert any(event.calls for event in events(lab, source, "step"))


def test_the_defaults_of_a_given_object_say_nothing(lab: Laboratory) -> None:
    source = """
    import torch
    from dataclasses import dataclass

    @dataclass
    class Config:
        mixed: bool = False

    class Trainer:
        def __init__(self, config: Config, net):
            self.optimizer = torch.optim.SGD(net.parameters())
            self.scaler = torch.amp.GradScaler("cuda") if config.mixed else None

        def step(self, loss):
            if self.scaler is not None:
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
    """
    assert events(lab, source, "step")
    made = source + "\n\n    Trainer(Config(), net).step(loss)\n"
    assert "step" not in {event.kind for trace in lab.traces_of(made) if not trace.entry.name for event in trace.events}


def test_choices_that_concern_nothing_here_do_not_crowd_out_what_does(lab: Laboratory) -> None:
    choices = "\n".join(f"            self.loss{i} = build({i}) if opt.use{i} else None" for i in range(12))
    uses = "\n".join(f"            if self.loss{i}:\n                total += self.loss{i}(out)" for i in range(12))
    source = f"""
    import torch

    class Model:
        def __init__(self, opt, net):
{choices}
            self.net = net
            self.critic = build(opt.critic) if opt.critic is not None else None
            self.optimizer = torch.optim.SGD(net.parameters())
            self.scaler = torch.amp.GradScaler("cuda")

        def train(self, x):
            out = self.net(x)
            total = 0
{uses}
            self.scaler.scale(total).backward()
            if self.critic is not None:
                with torch.autocast("cuda"):
                    self.scaler.scale(self.critic(x)).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
    """
    regions = {tuple(r.context.kind for r in event.regions) for event in events(lab, source, "backward")}
    assert ("autocast",) in regions
    assert events(lab, source, "update")


def test_a_list_that_init_leaves_empty_has_been_filled(lab: Laboratory) -> None:
    source = """
    import torch

    class Model:
        def __init__(self, net):
            self.optimizers = []

        def save(self, path):
            state = {"optimizers": []}
            for optimizer in self.optimizers:
                state["optimizers"].append(optimizer.state_dict())
            torch.save(state, path)
    """
    saves = events(lab, source, "save")
    assert any(value.__class__.__name__ == "StateOf" for event in saves for value in event.details["contents"])


CALLBACKS = """
import torch

class Callback:
    def after_epoch(self, trainer):
        pass

class Checkpoint(Callback):
    def after_epoch(self, trainer):
        torch.save({{"optimizer": trainer.optimizer.state_dict()}}, "last.pt")

class Trainer:
    def __init__(self, model, callbacks=None):
        self.optimizer = torch.optim.SGD(model.parameters())
        {made}

    def fit(self, loader):
        for x in loader:
            self.optimizer.step()
        {run}

    def tell(self, event):
        for callback in self.callbacks:
            method = getattr(callback, event, None)
            if method:
                method(self)

    def add(self, callback):
        self.callbacks.append(callback)

def main(model, loader):
    Trainer(model, [Checkpoint()]).fit(loader)
"""
IN_TURN = "for callback in self.callbacks: callback.after_epoch(self)"


@pytest.mark.parametrize(
    ("made", "run"),
    [
        ("self.callbacks = callbacks or []; self.callbacks.append(Checkpoint())", IN_TURN),
        ("self.callbacks = [Checkpoint()]", IN_TURN),
        ("self.callbacks = callbacks", IN_TURN),
        ("self.callbacks = []; self.add(Checkpoint())", IN_TURN),
        ("self.callbacks = [Checkpoint()]", "self.tell('after_epoch')"),
    ],
)
def test_callbacks_are_called_in_turn(lab: Laboratory, made: str, run: str) -> None:
    saves = events(lab, CALLBACKS.format(made=made, run=run), "save")
    assert any(event.site.module.segment(event.site.node).startswith("torch.save") for event in saves)


@pytest.mark.parametrize("made", ["[p for p in given]", "list(given)", "[*given, *given]"])
def test_a_list_of_unknown_length_is_an_argument_like_any_other(lab: Laboratory, made: str) -> None:
    source = f"""
    import torch

    def helper(scaler, params):
        torch.nn.utils.clip_grad_norm_(params, 1.0)

    def train(model, loader):
        optimizer = torch.optim.SGD(model.parameters())
        scaler = torch.amp.GradScaler("cuda")
        given = model.parameters()
        for x in loader:
            scaler.scale(model(x)).backward()
            helper(scaler, {made})
            scaler.step(optimizer)
            scaler.update()
    """
    clips = events(lab, source, "clip")
    assert clips
    assert all(event.details["owners"] for event in clips)


def test_arguments_of_any_number_are_unknown_where_nobody_gives_them(lab: Laboratory) -> None:
    source = """
    import torch

    def train(loss, *optimizers, **options):
        scaler = torch.amp.GradScaler("cuda")
        scaler.scale(loss).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
        if options.get("more"):
            scaler.update()
    """
    assert events(lab, source, "step")
    assert events(lab, source, "update")


def test_an_option_is_the_same_whenever_it_is_asked_for(lab: Laboratory) -> None:
    source = """
    import torch

    class Model:
        def __init__(self, opt, net, critic):
            self.opt = opt
            self.optimizer = torch.optim.SGD(net.parameters())
            self.other = torch.optim.SGD(critic.parameters())
            self.scaler = torch.amp.GradScaler("cuda")

        def train(self, loss):
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            if self.opt.get("critic", None) is not None:
                self.scaler.step(self.other)
            self.scaler.update()
    """
    traces = [trace for trace in lab.traces_of(source) if trace.entry.name == "train" and not trace.truncated]
    stepped = {sum(event.kind == "step" for event in trace.events) for trace in traces}
    assert stepped == {2, 4}


ENGINE = """
    import torch
    def fit(model, x, scaler=None):
        scaler = scaler or torch.amp.GradScaler("cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler.scale(model(x)).backward()
        scaler.step(optimizer)
        scaler.update()
    def save(model):
        torch.save(model.state_dict(), "x.pt")
"""


@pytest.mark.parametrize(
    ("body", "tells"),
    [
        ("fit(model, x)", False),
        ("if x:\n        fit(model, x)", False),
        ("for x in range(9):\n        fit(model, x)", True),
        ("while True:\n        fit(model, x)", True),
        ("fit(model, x, make_scaler())", True),
        ("fit(model, x)\n    save(model)", True),
    ],
)
def test_a_caller_starts_where_it_tells_more_than_the_helper_does(lab: Laboratory, body: str, tells: bool) -> None:
    lab.write(engine=ENGINE)
    traces = lab.traces_of(f"from engine import fit, save\ndef main(model, x):\n    {body}\n")
    assert bool([trace for trace in traces if trace.entry.name == "main"]) is tells


def test_the_order_of_helpers_is_what_their_caller_tells(lab: Laboratory) -> None:
    lab.write(
        helpers="""
        import torch
        def back(s, loss):
            s.scale(loss).backward()
        def clip(model):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        def finish(s, opt):
            s.step(opt)
            s.update()
        """
    )
    source = """
    import torch
    import helpers
    class Trainer:
        def __init__(self, model, opt):
            self.model, self.opt = model, opt
            self.gs = torch.amp.GradScaler("cuda")
        def train_one(self, x):
            helpers.back(self.gs, self.model(x).sum())
            helpers.clip(self.model)
            helpers.finish(self.gs, self.opt)
    """
    assert [event for event in events(lab, source, "clip") if event.state.kind == "S" or event.before]


ONE_OF_SEVERAL = """
import torch

def epoch(model, batches, optimizers, scaler, limit):
    for batch in batches:
        for turn in ["generator", "discriminator"]:
            with torch.autocast("cuda", enabled=scaler is not None):
                made = model(turn == "generator", **batch)
                loss, index = made["loss"], made.get("index")
                if index is not None and not isinstance(index, int):
                    if index.dim() == 1:
                        index = index[0].item()
                    else:
                        index = index.item()
            if scaler is None:
                loss.backward()
            else:
                scaler.scale(loss).backward()
                for number, optimizer in enumerate(optimizers):
                    if index is not None and number != index:
                        continue
                    scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
            for number, optimizer in enumerate(optimizers):
                if index is not None and number != index:
                    continue
                if scaler is None:
                    optimizer.step()
                else:
                    scaler.step(optimizer)
            if scaler is not None:
                scaler.update()
            for optimizer in optimizers:
                optimizer.zero_grad()
"""


def test_joined_paths_keep_what_they_decided_alike(lab: Laboratory) -> None:
    """Whichever of its values an index has, the loops over it choose the same optimizers."""
    found = {event.stage for event in events(lab, ONE_OF_SEVERAL, "step")}
    assert found
    assert "ready" not in found


NUMBERS = """
import torch

class Stats:
    def __init__(self):
        self.seen = {}

    def add(self, name, value):
        self.seen[name].append(value)

    def report(self):
        for name, values in self.seen.items():
            values.append(0.0)
"""


def test_a_list_that_is_only_filled_holds_nothing_that_is_called(lab: Laboratory) -> None:
    env = lab.unit(NUMBERS).env
    assert env.called_in_turn == frozenset()


@pytest.mark.parametrize("change", ["weight -= 0.1 * weight.grad", "weight.data.sub_(weight.grad, alpha=0.1)"])
def test_weights_are_changed_by_operators_as_by_methods(lab: Laboratory, change: str) -> None:
    source = f"""
import torch

def descend(model, loader):
    for x in loader:
        model(x).sum().backward()
        with torch.no_grad():
            for weight in model.parameters():
                {change}
"""
    assert events(lab, source, "weights_written")
