"""What a program does where it is executed: objects, calls and contexts in, sequences of events out."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import pytest
from tracing import HEAD, Laboratory, regions

from amplint import library


@pytest.fixture
def lab(tmp_path: Path) -> Laboratory:
    return Laboratory(tmp_path)


def first_round(stories: list[str]) -> list[str]:
    """A step that is driven twice by its unknown caller: what happens the first time."""
    return stories[: len(stories) // 2]


# --- functions -----------------------------------------------------------------------------------


def test_helpers_are_executed_where_they_are_called(lab: Laboratory) -> None:
    source = """\
    def back(loss):
        scaler.scale(loss).backward()
    def advance(optimizer, clip=None):
        if clip is not None:
            clip_grad_norm_(model.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
    def train(x):
        back(model(x).sum())
        advance(optimizer, 1.0)
        advance(optimizer)
    """
    assert first_round(lab.only(source)) == [
        "backward 2 ?",
        "clip 5 S",
        "step 6 S",
        "update 7 T",
        "step 6 N",
        "update 7 T",
    ]


def test_an_event_knows_the_calls_that_lead_to_it(lab: Laboratory) -> None:
    source = """\
    def inner():
        scaler.step(optimizer)
    def outer():
        inner()
    outer()
    """
    (trace,) = lab.traces_of(HEAD + "\n".join(line[4:] for line in source.splitlines()))
    step = trace.events[-1]
    above = HEAD.count("\n")
    assert [site.module.place(site.node).line - above for site in step.calls] == [5, 4]


@pytest.mark.parametrize(
    "call",
    [
        pytest.param("finish(optimizer)", id="by name"),
        pytest.param("finish(o=optimizer)", id="by keyword"),
        pytest.param("finish(*[optimizer])", id="spread list"),
        pytest.param("finish(**{'o': optimizer})", id="spread dict"),
        pytest.param("f = partial(finish, optimizer); f()", id="partial"),
        pytest.param("f = partial(finish, o=optimizer); f()", id="partial with a keyword"),
        pytest.param("f = lambda: finish(optimizer); f()", id="lambda"),
        pytest.param("f = finish; f(optimizer)", id="alias"),
        pytest.param("all_ = [finish]; all_[0](optimizer)", id="in a list"),
        pytest.param("ends = {'last': finish}; ends['last'](optimizer)", id="in a dict"),
        pytest.param("apply(finish)", id="handed on"),
        pytest.param("apply(lambda o: finish(o))", id="lambda handed on"),
        pytest.param("holder = Holder(finish); holder.run()", id="in an attribute"),
        pytest.param("holder = Holder(action=finish); holder()", id="in an attribute, by keyword"),
        pytest.param("decorated(optimizer)", id="decorated"),
        pytest.param("torch.compile(finish)(optimizer)", id="compiled"),
    ],
)
def test_ways_to_call_a_function(lab: Laboratory, call: str) -> None:
    source = f"""\
    def train(x):
        scaler.scale(model(x).sum()).backward()
        {call}
    def finish(o):
        scaler.step(o)
        scaler.update()
    from functools import partial, wraps
    def apply(action):
        return action(optimizer)
    class Holder:
        def __init__(self, action):
            self.action = action
        def run(self):
            self.action(optimizer)
        def __call__(self):
            self.run()
    def logged(f):
        @wraps(f)
        def wrapper(*args, **kwargs):
            print(f)
            return f(*args, **kwargs)
        return wrapper
    @logged
    def decorated(o):
        finish(o)
    """
    assert ["backward 2 ?", "step 5 S", "update 6 T"] in [first_round(s) for s in lab.told(source)]


def test_a_closure_sees_the_variables_around_it(lab: Laboratory) -> None:
    source = """\
    def train(x):
        scale = scaler.scale
        def closure():
            loss = scale(model(x).sum())
            loss.backward()
            return loss
        closure()
        scaler.step(optimizer)
    """
    assert first_round(lab.only(source)) == ["backward 5 ?", "step 8 S"]


STEP = """\
if {told}:
    scaler.scale(model(x).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
"""


@pytest.mark.parametrize(
    ("parameters", "told", "before", "calls"),
    [
        ("train", "train", "", ("False", "True")),
        ("optimizer", "optimizer is not None", "", ("None", "optimizer")),
        ("*, phase='val'", "phase == 'train'", "", ("", "phase='train'")),
        ("config", "config['train']", "config = {'train': False}", ("config", "{'train': True}")),
    ],
)
def test_a_call_that_did_nothing_does_something_when_told_to(
    lab: Laboratory, parameters: str, told: str, before: str, calls: tuple[str, str]
) -> None:
    first, second = calls
    source = f"""\
def run({parameters}):
{indent(STEP.format(told=told), "    ")}
{before}
run({first})
run({second})
"""
    assert lab.told(source) == [["backward 3 N", "step 4 S", "update 5 T"]]


@pytest.mark.parametrize(
    ("flag", "off", "on"),
    [
        ("self.training", "self.training = False", "self.training = True"),
        ("self.phase == 'train'", "self.phase = 'val'", "self.phase = 'train'"),
    ],
)
def test_a_method_that_did_nothing_does_something_once_its_object_has_changed(
    lab: Laboratory, flag: str, off: str, on: str
) -> None:
    source = f"""\
class Trainer:
    def epoch(self, x):
{indent(STEP.format(told=flag), "        ")}
    def fit(self, x):
        {off}
        self.epoch(x)
        {on}
        self.epoch(x)
Trainer().fit(1)
"""
    assert lab.told(source)[0] == ["backward 4 N", "step 5 S", "update 6 T"]


def test_a_closure_that_did_nothing_does_something_once_its_variable_has_changed(lab: Laboratory) -> None:
    source = f"""\
def main(x):
    training = False
    def epoch():
{indent(STEP.format(told="training"), "        ")}
    epoch()
    training = True
    epoch()
main(1)
"""
    assert lab.told(source)[0] == ["backward 5 N", "step 6 S", "update 7 T"]


def test_an_event_is_called_by_its_name(lab: Laboratory) -> None:
    source = """\
class Steps:
    def begin(self, trainer): pass
    def batch(self, trainer, x):
        scaler.scale(model(x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
class Trainer:
    def __init__(self): self.callbacks = [Steps()]
    def call(self, event, *given):
        for callback in self.callbacks:
            getattr(callback, event)(self, *given)
    def fit(self, x):
        self.call("begin")
        self.call("batch", x)
Trainer().fit(1)
"""
    assert lab.told(source)[0] == ["backward 4 N", "step 5 S", "update 6 T"]


DECORATED = """\
def amp(enabled):
    def around(function):
        def wrapper(*args):
            with torch.autocast("cuda", enabled=enabled):
                return function(*args)
        return wrapper
    return around
{decorators}
def step(x):
    scaler.scale(model(x).sum()).backward()
step(1)
"""


@pytest.mark.parametrize(
    ("decorators", "enabled"),
    [("@amp(True)", [True]), ("@amp(False)", [False])],
)
def test_a_decorator_keeps_what_it_was_made_with(lab: Laboratory, decorators: str, enabled: list[bool]) -> None:
    unit = lab.unit(HEAD + DECORATED.format(decorators=decorators))
    (seen,) = {tuple(r.context.details.enabled.value for r in e.regions) for _, _, e in unit.events("backward")}
    assert [*seen] == enabled


@pytest.mark.parametrize(
    "source",
    [
        "def amp(f):\n    with torch.autocast('cuda'): return f\n@amp\ndef amp(f):\n    scaler.update()\n    return f\n"
        "@amp\ndef step(): scaler.update()\nstep()",
        "def first(f):\n    @second\n    def run(): f(scaler.update())\n    return run\n"
        "def second(f):\n    @first\n    def run(): f(scaler.update())\n    return run\n"
        "@first\ndef step(): scaler.update()\nstep()",
    ],
)
def test_decorators_of_decorators_end(lab: Laboratory, source: str) -> None:
    assert isinstance(lab.told(source), list)


def test_a_call_depends_on_what_the_calls_in_it_were_skipped_for(lab: Laboratory) -> None:
    source = """\
def inner(args):
    if not args.skip: scaler.unscale_(optimizer)
def outer(args): inner(args)
def main(args, x):
    if args.skip:
        inner(args)
        outer(args)
    else:
        scaler.scale(model(x).sum()).backward()
        outer(args)
        scaler.step(optimizer)
        scaler.update()
"""
    assert "unscale_ 2 S" in [event for told in lab.told(source) for event in told]


def test_what_is_chosen_is_what_its_use_shows(lab: Laboratory) -> None:
    source = """\
def step(scaler, x):
    if scaler is not None:
        scaler.scale(model(x).sum()).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
def train(scalers, loader, amp, i):
    step(scalers[i] if amp else None, loader)
"""
    stories = {tuple(kind.split()[0] for kind in told) for told in lab.told(source)}
    assert all(told[:4] == ("backward", "unscale_", "step", "update") for told in stories)
    scaled = {bool(e.details["scales"]) for _, _, e in lab.unit(HEAD + source).events("backward")}
    assert stories
    assert scaled == {True}


def test_a_function_returns_what_it_made(lab: Laboratory) -> None:
    source = """\
    def make(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        return optimizer, torch.amp.GradScaler("cuda")
    def train(x):
        opt, s = make(model)
        s.scale(model(x).sum()).backward()
        s.unscale_(opt)
        s.step(opt)
    """
    assert first_round(lab.only(source)) == ["backward 6 N", "unscale_ 7 S", "step 8 U"]


@pytest.mark.parametrize(
    "body",
    [
        "if n: train(x, n - 1)",
        "other(x, n)",
        "(lambda: train(x, n))()",
    ],
)
def test_recursion_ends(lab: Laboratory, body: str) -> None:
    source = f"""\
    def train(x, n):
        scaler.scale(model(x).sum()).backward()
        {body}
        scaler.step(optimizer)
        scaler.update()
    def other(x, n):
        train(x, n - 1)
        scaler.update()
    def main():
        train(1, 2)
    """
    assert any(event.startswith("step 4") for told in lab.told(source) for event in told)


# --- objects -------------------------------------------------------------------------------------

USES = """\
    def step(self, x):
        self.scaler.scale(model(x).sum()).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
"""
MADE = 'torch.amp.GradScaler("cuda")'
CLASSES = {
    "bound in __init__": f"""\
class Trainer:
    def __init__(self):
        self.optimizer = optimizer
        self.scaler = {MADE}
{USES}""",
    "bound in another method": f"""\
class Trainer:
    def __init__(self):
        self.setup(True)
    def setup(self, amp):
        self.optimizer, self.scaler = optimizer, ({MADE} if amp else None)
{USES}""",
    "bound in a method that only its user calls": f"""\
class Trainer:
    def setup(self):
        self.optimizer = optimizer
        self.scaler = {MADE}
{USES}""",
    "property": f"""\
class Trainer:
    def __init__(self):
        self._made = {MADE}
        self.optimizer = optimizer
    @property
    def scaler(self):
        return self._made
{USES}""",
    "class attribute": f"""\
class Trainer:
    scaler = {MADE}
    optimizer = optimizer
{USES}""",
    "base class": f"""\
class Base:
    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.scaler = {MADE}
class Trainer(Base):
    def __init__(self):
        super().__init__(optimizer)
        self.limit = 1.0
{USES}""",
    "base class of a base class": f"""\
class Root:
    def __init__(self):
        self.scaler = {MADE}
class Base(Root):
    optimizer = optimizer
class Trainer(Base):
    limit = 1.0
{USES}""",
    "setattr": f"""\
class Trainer:
    def __init__(self):
        setattr(self, "optimizer", optimizer)
        setattr(self, "scaler", {MADE})
{USES}""",
}


@pytest.mark.parametrize("source", CLASSES.values(), ids=CLASSES.keys())
def test_where_an_attribute_comes_from(lab: Laboratory, source: str) -> None:
    first = [event.split()[::2] for event in lab.told(source)[-1][:3]]
    assert first[0] in (["backward", "N"], ["backward", "?"])
    assert first[1:] == [["step", "S"], ["update", "T"]]


def test_a_subclass_overrides_a_method(lab: Laboratory) -> None:
    source = """\
    class Base:
        def advance(self):
            scaler.update()
        def train(self, x):
            scaler.scale(model(x).sum()).backward()
            self.advance()
    class Trainer(Base):
        def advance(self):
            scaler.step(optimizer)
            super().advance()
    def main():
        Trainer().train(1)
    """
    assert ["backward 5 ?", "step 9 S", "update 3 T"] in [first_round(told) for told in lab.told(source)]


def test_a_base_class_of_another_module(lab: Laboratory) -> None:
    lab.write(
        base="""\
        import torch
        class Base:
            def __init__(self, model):
                self.model = model
                self.optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
                self.scaler = torch.amp.GradScaler("cuda")
            def optimizer_step(self):
                self.scaler.step(self.optimizer)
                self.scaler.update()
        """
    )
    source = """\
    from base import Base
    class Trainer(Base):
        def train(self, x):
            self.scaler.scale(self.model(x).sum()).backward()
            self.optimizer_step()
    """
    assert first_round(lab.only(source, head="")) == ["backward 4 N", "step base:8 S", "update base:9 T"]


def test_an_object_that_is_called_like_a_function(lab: Laboratory) -> None:
    source = """\
    class LossScaler:
        def __init__(self):
            self._scaler = torch.amp.GradScaler("cuda")
        def __call__(self, loss, optimizer, clip=None, parameters=None):
            self._scaler.scale(loss).backward()
            if clip is not None:
                clip_grad_norm_(parameters, clip)
            self._scaler.step(optimizer)
            self._scaler.update()
    def train(x):
        loss_scaler = LossScaler()
        optimizer.zero_grad()
        loss_scaler(model(x).sum(), optimizer, clip=1.0, parameters=model.parameters())
    """
    stories = [first_round(told) for told in lab.told(source)]
    assert ["zero_grad 12 ?", "backward 5 N", "clip 7 S", "step 8 S", "update 9 T"] in stories


# --- containers ----------------------------------------------------------------------------------

TWO = """\
a, b = nn.Linear(2, 2), nn.Linear(2, 2)
def train(x):
"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(
            """\
    both = [torch.optim.SGD(a.parameters(), lr=1), torch.optim.SGD(b.parameters(), lr=1)]
    scaler.scale(b(a(x)).sum()).backward()
    for o in both: scaler.unscale_(o)
    for o in both: scaler.step(o)
    scaler.update()
""",
            ["backward 4 NN", "unscale_ 5 S", "unscale_ 5 S", "step 6 U", "step 6 U", "update 7 TT"],
            id="list",
        ),
        pytest.param(
            """\
    both = {"a": torch.optim.SGD(a.parameters(), lr=1), "b": torch.optim.SGD(b.parameters(), lr=1)}
    scaler.scale(b(a(x)).sum()).backward()
    scaler.unscale_(both["b"])
    for name, o in both.items(): scaler.step(o)
    scaler.update()
""",
            ["backward 4 NN", "unscale_ 5 S", "step 6 S", "step 6 U", "update 7 TT"],
            id="dict",
        ),
        pytest.param(
            """\
    both = [torch.optim.SGD(m.parameters(), lr=1) for m in (a, b)]
    for m, o in zip([a, b], both):
        scaler.scale(m(x).sum()).backward()
        clip_grad_norm_(m.parameters(), 1)
        scaler.step(o)
    scaler.update()
""",
            ["backward 5 N", "clip 6 S", "step 7 S", "backward 5 N", "clip 6 S", "step 7 S", "update 8 TT"],
            id="zip",
        ),
        pytest.param(
            """\
    both = []
    both.append(torch.optim.SGD(a.parameters(), lr=1))
    both += [torch.optim.SGD(b.parameters(), lr=1)]
    scaler.scale(a(x).sum()).backward()
    for i, o in enumerate(both): scaler.step(o)
""",
            ["backward 6 N", "step 7 S", "step 7 N"],
            id="append",
        ),
        pytest.param(
            """\
    one, two = (torch.optim.SGD(a.parameters(), lr=1), torch.optim.SGD(b.parameters(), lr=1))
    scaler.scale(a(x).sum()).backward()
    scaler.step(two)
    scaler.step(one)
""",
            ["backward 4 N", "step 5 N", "step 6 S"],
            id="unpacking",
        ),
    ],
)
def test_optimizers_in_containers(lab: Laboratory, body: str, expected: list[str]) -> None:
    assert lab.only(TWO + body)[: len(expected)] == expected


def test_the_backward_of_one_half_of_a_gan_reaches_the_other(lab: Laboratory) -> None:
    source = """\
    G, D = nn.Linear(2, 2), nn.Linear(2, 1)
    opt_g, opt_d = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
    for real in loader:
        fake = G(real)
        opt_d.zero_grad()
        scaler.scale(D(real).mean() - D(fake.detach()).mean()).backward()
        scaler.step(opt_d)
        opt_g.zero_grad()
        scaler.scale(-D(fake).mean()).backward()
        scaler.step(opt_g)
        scaler.update()
    """
    told = lab.only(source)
    assert told[:7] == [
        "zero_grad 5 N",
        # `detach` keeps the generator out
        "backward 6 N",
        "step 7 S",
        "zero_grad 8 N",
        "backward 9 NT",
        "step 10 S",
        "update 11 NTS",
    ]
    # what the generator's loss left with the discriminator has seen an update, and is cleared
    assert told[7:9] == ["zero_grad 5 S!", "backward 6 N"]


# --- contexts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("enter", "leave"),
    [
        pytest.param('with torch.autocast("cuda"):', "", id="with"),
        pytest.param('with nn.Foo(), torch.autocast("cuda") as c:', "", id="with several"),
        pytest.param("with region():", "", id="a function that makes it"),
        pytest.param("with generated():", "", id="contextmanager"),
        pytest.param("with Region():", "", id="class"),
        pytest.param('with ExitStack() as s:\n        s.enter_context(torch.autocast("cuda"))', "", id="ExitStack"),
        pytest.param(
            'c = torch.autocast("cuda")\n    c.__enter__()\n    if True:',
            "c.__exit__(None, None, None)",
            id="by hand",
        ),
    ],
)
def test_regions(lab: Laboratory, enter: str, leave: str) -> None:
    source = f"""\
from contextlib import ExitStack, contextmanager
def region():
    return torch.autocast("cuda")
@contextmanager
def generated():
    with region():
        yield
class Region:
    def __init__(self):
        self.inner = torch.autocast("cuda")
    def __enter__(self):
        self.inner.__enter__()
    def __exit__(self, *error):
        self.inner.__exit__(*error)
def train(x):
    {enter}
        loss = model(x).sum()
        scaler.scale(loss).backward()
    {leave}
    scaler.step(optimizer)
"""
    (trace,) = [t for t in lab.traces_of(HEAD + source) if t.entry.name == "train" and not t.truncated]
    inside = {event.kind: "autocast" in regions(event) for event in trace.events}
    assert (inside["backward"], inside["step"]) == (True, False)


def test_the_body_of_a_with_runs_where_the_generator_yields(lab: Laboratory) -> None:
    source = """\
    from contextlib import contextmanager
    @contextmanager
    def window(optimizer):
        optimizer.zero_grad()
        yield model
        scaler.step(optimizer)
        scaler.update()
    def train(x):
        with window(optimizer) as net:
            scaler.scale(net(x).sum()).backward()
    """
    assert first_round(lab.only(source)) == ["zero_grad 4 ?", "backward 10 N", "step 6 S", "update 7 T"]


def test_enter_and_exit_of_a_class_run_around_the_body(lab: Laboratory) -> None:
    source = """\
    class Window:
        def __init__(self, optimizer):
            self.optimizer = optimizer
        def __enter__(self):
            self.optimizer.zero_grad()
            return self
        def __exit__(self, *error):
            scaler.step(self.optimizer)
        def back(self, loss):
            scaler.scale(loss).backward()
    def train(x):
        with Window(optimizer) as window:
            window.back(model(x).sum())
    """
    assert ["zero_grad 5 ?", "backward 10 N", "step 8 S"] in [first_round(told) for told in lab.told(source)]


# --- what is unknown -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "state"),
    [
        ("engine.finish(scaler, optimizer)", "?"),
        ("engine.finish(scaler)", "?"),
        ("engine.finish(optimizer)", "?"),
        ("engine.finish(context={'scaler': scaler})", "?"),
        ("engine.log_metrics(scaler, optimizer)", "S"),
        ("engine.finish(loss)", "S"),
        ("engine.finish()", "S"),
        ("print(scaler)", "S"),
        ("isinstance(scaler, object)", "S"),
        ("torch.save(scaler.state_dict(), 'x')", "S"),
    ],
)
def test_what_an_unknown_call_may_do(lab: Laboratory, call: str, state: str) -> None:
    source = f"""\
    import engine
    def train(x):
        loss = model(x).sum()
        scaler.scale(loss).backward()
        {call}
        scaler.step(optimizer)
    """
    assert first_round(lab.only(source)) == ["backward 4 ?", f"step 6 {state}"]


@pytest.mark.parametrize(
    ("name", "runs"),
    [
        ("step_fn", True),
        ("train_step", True),
        ("run_batch", True),
        ("forward_backward", True),
        ("trunk", False),
        ("criterion", False),
        ("constraint", False),
        ("preprocess", False),
        ("pretrained", False),
    ],
)
def test_a_name_says_that_a_function_takes_steps_with_a_word_of_its_own(name: str, runs: bool) -> None:
    assert bool(library.RUNS.search(name)) is runs
