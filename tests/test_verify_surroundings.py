"""What stands in for what is out of sight: a fault is seen through it, and a right program is not doubted."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import dedent, indent

import pytest
from verify_programs import HERE, line_of

from amplint.verify import verify_text
from amplint.verify.host import Worker

pytest.importorskip("torch")

STEP = """
    with torch.autocast("cuda", dtype=torch.float16):
        error = criterion(net(inputs), wanted)
    scaler.scale(error).backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0){here}
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
RIGHT = STEP.replace("    torch.nn.utils", "    scaler.unscale_(optimizer)\n    torch.nn.utils")


def program(text: str, step: str = STEP) -> str:
    """A program with a training step in the place of STEP, as deep as that stands."""
    out = ["import torch"]
    for line in dedent(text).strip("\n").splitlines():
        if line.strip() == "STEP":
            depth = len(line) - len(line.lstrip())
            line = indent(dedent(step).strip("\n").replace("{here}", HERE), " " * depth)
        out.append(line)
    return "\n".join(out) + "\n"


#: ways to a training step, each with something in it that the file does not tell
WAYS = {
    "epochs go on from where a run stopped": """
        def train(net, loader, optimizer, criterion, state, settings):
            scaler = torch.amp.GradScaler("cuda")
            for epoch in range(state.finished_epoch, settings.epochs):
                for inputs, wanted in loader:
                    STEP
    """,
    "the number of epochs is nothing unless it is given": """
        class Fit:
            def __init__(self, net, optimizer):
                self.net, self.optimizer = net, optimizer
                self.scaler = torch.amp.GradScaler("cuda")

            def run(self, loader, criterion, epochs=0):
                net, optimizer, scaler = self.net, self.optimizer, self.scaler
                for epoch in range(epochs):
                    for inputs, wanted in loader:
                        STEP
    """,
    "loaders lie in a dict that is filled elsewhere": """
        class Fit:
            def __init__(self, net, optimizer):
                self.net, self.optimizer, self.loaders = net, optimizer, {}
                self.scaler = torch.amp.GradScaler("cuda")

            def run(self, criterion):
                net, optimizer, scaler = self.net, self.optimizer, self.scaler
                for inputs, wanted in self.loaders["train"]:
                    STEP
    """,
    "networks of a class from elsewhere": """
        from nets import Backbone

        def train(loader, criterion):
            net = Backbone(depth=3)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            for inputs, wanted in loader:
                STEP
    """,
    "the optimizer is set by a method": """
        class Fit:
            def __init__(self, net):
                self.net = net
                self.optimizer = None
                self.scaler = torch.amp.GradScaler("cuda")

            def with_optimizer(self, optimizer):
                self.optimizer = optimizer

            def run(self, loader, criterion):
                net, scaler = self.net, self.scaler
                for inputs, wanted in loader:
                    optimizer = self.optimizer
                    STEP
    """,
    "the class of the optimizer is found by its name": """
        from registry import lookup

        def train(net, loader, criterion, settings):
            optimizer = lookup(settings.solver)(net.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            for inputs, wanted in loader:
                STEP
    """,
    "a scaler where the device is a GPU": """
        def train(net, loader, optimizer, criterion, settings):
            device = torch.device(settings.device)
            scaler = torch.amp.GradScaler("cuda") if device.type == "cuda" else None
            for inputs, wanted in loader:
                if scaler is not None:
                    STEP
    """,
    "a check of the surroundings": """
        from installed import has_dataset_library

        def train(net, loader, optimizer, criterion, mode="unknown"):
            if mode not in ("small", "large"):
                raise ValueError("the mode is small or large")
            scaler = torch.amp.GradScaler("cuda")
            for inputs, wanted in loader:
                STEP
    """,
    "the loss is the business of classes that extend this one": """
        class Fit:
            def __init__(self, net, optimizer):
                self.net, self.optimizer = net, optimizer
                self.scaler = torch.amp.GradScaler("cuda")

            def compute_loss(self, found, wanted):
                raise NotImplementedError

            def run(self, loader):
                net, optimizer, scaler, criterion = self.net, self.optimizer, self.scaler, self.compute_loss
                for inputs, wanted in loader:
                    STEP
    """,
    "a class of which there are no objects": """
        class Fit:
            def __init__(self):
                raise RuntimeError("this class is a namespace")

            @classmethod
            def run(cls, net, loader, optimizer, criterion, scaler):
                for inputs, wanted in loader:
                    STEP
    """,
    "an optional thing that is missing": """
        def train(net, loader, optimizer, criterion, debugger):
            scaler = torch.amp.GradScaler("cuda")
            for inputs, wanted in loader:
                if debugger:
                    continue
                if debugger is None:
                    STEP
    """,
    "a recursion over the parts of a network": """
        def freeze(part):
            for name, child in part.named_children():
                if len(list(child.children())) > 0:
                    freeze(child)

        def train(net, loader, optimizer, criterion):
            freeze(net)
            scaler = torch.amp.GradScaler("cuda")
            for inputs, wanted in loader:
                STEP
    """,
    "an optimizer with a rule of its own": """
        class Signs(torch.optim.SGD):
            def step(self, closure=None):
                for group in self.param_groups:
                    for weight in group["params"]:
                        if weight.grad is not None:
                            weight.data.add_(weight.grad.sign(), alpha=-group["lr"] * group["share"])

        def train(loader, criterion):
            net = torch.nn.Linear(4, 4)
            optimizer = Signs(net.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            for inputs, wanted in loader:
                STEP
    """,
    "batches are taken until there are none": """
        def batches(loader):
            source = iter(loader)
            while True:
                try:
                    yield next(source)
                except StopIteration:
                    break

        def train(net, loader, optimizer, criterion):
            scaler = torch.amp.GradScaler("cuda")
            for epoch in range(2):
                for inputs, wanted in batches(loader):
                    STEP
    """,
    "every process trains": """
        import torch.multiprocessing as processes

        def train(rank, count, settings):
            net = torch.nn.Linear(4, 4)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            criterion = torch.nn.MSELoss()
            for inputs, wanted in settings.loader:
                if rank == 0:
                    STEP

        def main(settings):
            processes.spawn(train, nprocs=2, args=(2, settings))
    """,
    "a window that is asked for": """
        def train(net, loader, optimizer, criterion, settings):
            scaler = torch.amp.GradScaler("cuda")
            for inputs, wanted in loader:
                if settings.accumulation_steps > 1:
                    print("in parts")
                else:
                    STEP
    """,
    "a second optimizer for a network without a loss": """
        def train(net, observer_net, loader, optimizers, criterion):
            scaler = torch.amp.GradScaler("cuda")
            for inputs, wanted in loader:
                observer_net(inputs)
                for optimizer in optimizers[:1]:
                    STEP
    """,
    "a decision that was taken before": """
        def train(net, loader, optimizer, criterion, sharp):
            scaler = torch.amp.GradScaler("cuda")
            for inputs, wanted in loader:
                if sharp:
                    print("twice")
                if sharp:
                    STEP
    """,
}


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker(seconds=30.0) as made:
        yield made


@pytest.mark.parametrize("name", WAYS)
def test_a_fault_is_seen(worker: Worker, name: str) -> None:
    text = program(WAYS[name])
    verdict = verify_text(text, "AMP201", line_of(text), worker=worker)
    assert verdict.status == "confirmed", (text, verdict)


@pytest.mark.parametrize("name", list(WAYS)[::3])
def test_a_right_program_is_not_doubted(worker: Worker, name: str) -> None:
    text = program(WAYS[name], RIGHT)
    verdict = verify_text(text, "AMP201", line_of(text), worker=worker)
    assert verdict.status == "refuted", (text, verdict)


def test_a_library_runs_the_backward(worker: Worker) -> None:
    step = STEP.replace("scaler.scale(error).backward()", "engine.backward(scaler.scale(error))")
    text = program(
        """
        def train(net, loader, optimizer, criterion, engine):
            scaler = torch.amp.GradScaler("cuda")
            for inputs, wanted in loader:
                STEP
        """,
        step,
    )
    verdict = verify_text(text, "AMP201", line_of(text), worker=worker)
    assert verdict.status == "confirmed", verdict
    assert any("engine.backward()" in assumption for assumption in verdict.assumptions)


def test_squares_of_scaled_gradients_are_read(worker: Worker) -> None:
    step = STEP.replace(
        "torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0){here}",
        "total += sum(p.grad.norm() ** 2 for p in net.parameters()){here}",
    )
    text = program(
        """
        def train(net, loader, optimizer, criterion):
            scaler = torch.amp.GradScaler("cuda")
            for inputs, wanted in loader:
                total = 0.0
                STEP
        """,
        step,
    )
    verdict = verify_text(text, "AMP202", line_of(text), worker=worker)
    assert verdict.status == "confirmed", verdict
    assert verdict.figure.startswith("reads ")


SAVING = """
    class Fit:
        def __init__(self, net, optimizer):
            self.net, self.optimizer, self.count = net, optimizer, 0
            self.scaler = torch.amp.GradScaler("cuda")

        def run(self, loader, criterion):
            net, optimizer, scaler = self.net, self.optimizer, self.scaler
            for inputs, wanted in loader:
                STEP
                self.count += 1
                if self.count % 5000 == 0:
                    self.keep()

        def keep(self):
            content = {"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict(), SCALER}
            torch.save(content, "last.pt")  # <- here
"""


@pytest.mark.parametrize(
    ("also", "status"), [("", "confirmed"), ('"scaler": self.scaler.state_dict()', "refuted")], ids=["without", "with"]
)
def test_what_is_saved_every_thousands_of_steps(worker: Worker, also: str, status: str) -> None:
    text = program(SAVING.replace("SCALER", also), RIGHT.replace("{here}", ""))
    verdict = verify_text(text, "AMP501", line_of(text), worker=worker)
    assert verdict.status == status, verdict


def test_what_is_saved_without_any_step_is_conditional(worker: Worker) -> None:
    text = program(
        """
        class Holder:
            def __init__(self, net):
                self.net = net
                self.optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
                self.scaler = torch.amp.GradScaler("cuda")

            def keep(self):
                content = {"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict()}
                torch.save(content, "last.pt")  # <- here
        """
    )
    verdict = verify_text(text, "AMP501", line_of(text), worker=worker)
    assert verdict.status == "conditional", verdict
    assert verdict.variant == "a scale that has changed"


def test_the_class_that_fills_an_abstract_one_is_driven(worker: Worker) -> None:
    text = program(
        """
        from abc import abstractmethod

        class Fit:
            def __init__(self, net, optimizer):
                self.net, self.optimizer, self.error = net, optimizer, None
                self.scaler = torch.amp.GradScaler("cuda")

            @abstractmethod
            def forward(self, inputs, wanted):
                pass

            def run(self, loader):
                for inputs, wanted in loader:
                    self.forward(inputs, wanted)
                    self.scaler.scale(self.error).backward()
                    torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)  # <- here
                    self.scaler.step(self.optimizer)
                    self.scaler.update()
                    self.optimizer.zero_grad()

        class Squares(Fit):
            def forward(self, inputs, wanted):
                with torch.autocast("cuda", dtype=torch.float16):
                    self.error = torch.nn.functional.mse_loss(self.net(inputs), wanted)
        """
    )
    verdict = verify_text(text, "AMP201", line_of(text), worker=worker)
    assert verdict.status == "confirmed", verdict


def test_without_a_region_nothing_is_said_of_one(worker: Worker) -> None:
    text = program(
        """
        def train(net, loader, optimizer, criterion):
            for inputs, wanted in loader:
                criterion(net(inputs), wanted).backward()  # <- here
                optimizer.step()
                optimizer.zero_grad()
        """
    )
    verdict = verify_text(text, "AMP101", line_of(text), worker=worker)
    assert verdict.status == "inconclusive", verdict
    assert "no autocast region" in str(verdict.reason)


def test_an_exception_elsewhere_is_no_evidence(worker: Worker) -> None:
    text = program(
        """
        def warm(net, loader, optimizer, criterion, scaler):
            for inputs, wanted in loader:
                scaler.scale(criterion(net(inputs), wanted)).backward()
                scaler.unscale_(optimizer)
                scaler.unscale_(optimizer)

        def train(net, loader, optimizer, criterion, scaler):
            for inputs, wanted in loader:
                STEP

        def main(net, loader, optimizer, criterion):
            scaler = torch.amp.GradScaler("cuda")
            warm(net, loader, optimizer, criterion, scaler)
            train(net, loader, optimizer, criterion, scaler)
        """,
        RIGHT,
    )
    verdict = verify_text(text, "AMP201", line_of(text), worker=worker)
    assert verdict.status not in ("confirmed", "conditional"), verdict


def test_a_state_that_nothing_makes_is_not_known_to_be_good(worker: Worker) -> None:
    text = f"""
import torch

class Stepper:
    def __init__(self, enabled=True):
        self.scaler = torch.amp.GradScaler("cuda", enabled=enabled)

    def __call__(self, loss, optimizer):
        self.scaler.scale(loss).backward()
        self.scaler.step(optimizer)
        self.scaler.update()

    def load_state_dict(self, state):
        self.scaler.load_state_dict(state){HERE}
"""
    verdict = verify_text(text, "AMP503", line_of(text), worker=worker)
    assert verdict.status == "inconclusive"
    assert "not made in the replay" in str(verdict.reason)


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("AMP104", 'scaler = torch.cuda.amp.GradScaler(device="cuda")'),
        ("AMP104", "region = torch.autocast(torch.ones(2).device)"),
    ],
)
def test_constructors_refuse_what_they_do_not_take(worker: Worker, code: str, line: str) -> None:
    text = f"import torch\n\ndef train(net, loader):\n    {line}{HERE}\n    for x in loader:\n        net(x)\n"
    verdict = verify_text(text, code, line_of(text), worker=worker)
    assert verdict.status == "confirmed", verdict
