"""Small training programs for the verifier's tests: a fault each, and a neighbour that is right.

The faulty line of a program carries `# <- here`; the right programs carry the mark where the fault would be.
"""

from __future__ import annotations

from textwrap import dedent


def line_of(program: str) -> int:
    """The line that carries the mark."""
    return next(i for i, line in enumerate(program.splitlines(), 1) if "# <- here" in line)


def _program(text: str) -> str:
    return dedent(text).lstrip("\n")


LOOP = """
    import torch
    from torch.nn.utils import clip_grad_norm_

    def learn(net, loader, optimizer, ceiling=1.0):
        scaler = torch.amp.GradScaler("cuda")
        for inputs, wanted in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                error = torch.nn.functional.mse_loss(net(inputs), wanted)
            {body}
"""


TWO = """
    import torch
    from torch.nn.utils import clip_grad_value_

    def learn(loader):
        first, second = torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)
        first_optimizer = torch.optim.SGD(first.parameters(), lr=0.1)
        second_optimizer = torch.optim.SGD(second.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda")
        for inputs, wanted in loader:
            first_optimizer.zero_grad()
            second_optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                error = torch.nn.functional.mse_loss(first(inputs), wanted)
                error = error + torch.nn.functional.mse_loss(second(inputs), wanted)
            scaler.scale(error).backward()
            scaler.unscale_(first_optimizer)
            scaler.unscale_(second_optimizer)
            clip_grad_value_([*first.parameters(), *second.parameters()], 0.5)
            scaler.step(first_optimizer)
            {between}
            {second}
            scaler.update()
"""


def loop(*body: str) -> str:
    """A plain training loop with these statements behind the forward pass."""
    return _program(LOOP).replace("{body}", "\n        ".join(body))


SCALED = "scaler.scale(error).backward()"
UNSCALE = "scaler.unscale_(optimizer)"
CLIP = "clip_grad_norm_(net.parameters(), ceiling)"
STEP = "scaler.step(optimizer)"
UPDATE = "scaler.update()"
HERE = "  # <- here"

#: rule, faulty program, status it must get
FAULTY: dict[str, tuple[str, str, str]] = {
    "clip while scaled": ("AMP201", loop(SCALED, CLIP + HERE, STEP, UPDATE), "confirmed"),
    "clip, then unscale": ("AMP201", loop(SCALED, CLIP + HERE, UNSCALE, STEP, UPDATE), "confirmed"),
    "norm read while scaled": (
        "AMP202",
        loop(SCALED, "size = sum(p.grad.norm() for p in net.parameters())" + HERE, "print(size)", STEP, UPDATE),
        "confirmed",
    ),
    "infinities hidden": (
        "AMP202",
        loop(SCALED, "for p in net.parameters():", "    p.grad.nan_to_num_(0.0, 1.0, -1.0)" + HERE, STEP, UPDATE),
        "conditional",
    ),
    "a copy of the network is frozen": (
        "AMP201",
        _program("""
            import copy
            import torch

            def learn(net, loader, optimizer):
                scaler = torch.amp.GradScaler("cuda")
                teacher = copy.deepcopy(net).eval()
                for weight in teacher.parameters():
                    weight.requires_grad_(False)
                for inputs, wanted in loader:
                    optimizer.zero_grad()
                    with torch.autocast("cuda"):
                        error = (net(inputs) - wanted).square().mean()
                    scaler.scale(error).backward()
                    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # <- here
                    scaler.step(optimizer)
                    scaler.update()
        """),
        "confirmed",
    ),
    "the head of a frozen network is replaced": (
        "AMP201",
        _program("""
            import torch
            import torchvision

            def learn(loader):
                scaler = torch.amp.GradScaler("cuda")
                model = torchvision.models.resnet50(weights="DEFAULT")
                for weight in model.parameters():
                    weight.requires_grad = False
                model.fc = torch.nn.Linear(2048, 10)
                optimizer = torch.optim.SGD(model.fc.parameters(), lr=0.1)
                for inputs, wanted in loader:
                    optimizer.zero_grad()
                    with torch.autocast("cuda"):
                        error = (model(inputs) - wanted).square().mean()
                    scaler.scale(error).backward()
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # <- here
                    scaler.step(optimizer)
                    scaler.update()
        """),
        "confirmed",
    ),
    "a factor that must not be one": (
        "AMP201",
        _program("""
            import torch

            def learn(net, loader, optimizer, options):
                scaler = torch.amp.GradScaler("cuda")
                for inputs, wanted in loader:
                    optimizer.zero_grad()
                    with torch.autocast("cuda"):
                        error = (net(inputs) - wanted).square().mean() * (1 - options.alpha)
                    scaler.scale(error).backward()
                    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # <- here
                    scaler.step(optimizer)
                    scaler.update()
        """),
        "confirmed",
    ),
    "an optimizer behind a property that can be set": (
        "AMP201",
        _program("""
            import functools
            import operator

            import torch

            class Base:
                pass

            class Middle(Base):
                pass

            class Learner(Middle):
                def __init__(self, net):
                    self.net = net
                    self.scaler = torch.amp.GradScaler("cuda")
                    self.optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

                @property
                def optimizer(self):
                    return self._optimizer

                @optimizer.setter
                def optimizer(self, made):
                    self._optimizer = made

                def learn(self, loader):
                    for inputs, wanted in loader:
                        self.optimizer.zero_grad()
                        with torch.autocast("cuda"):
                            errors = [(self.net(inputs) - wanted).square().mean(), self.net(wanted).mean()]
                            error = functools.reduce(operator.add, errors)
                        self.scaler.scale(error).backward()
                        if isinstance(self, Base):
                            torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)  # <- here
                        self.scaler.step(self.optimizer)
                        self.scaler.update()
        """),
        "confirmed",
    ),
    "the last of many micro-batches": (
        "AMP201",
        _program("""
            import torch

            def learn(net, loader, optimizer):
                window = 64
                scaler = torch.amp.GradScaler("cuda")
                for i, (inputs, wanted) in enumerate(loader):
                    with torch.autocast("cuda"):
                        error = (net(inputs) - wanted).square().mean() / window
                    scaler.scale(error).backward()
                    if i % window == window - 1:
                        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # <- here
                        scaler.step(optimizer)
                        scaler.update()
                        optimizer.zero_grad()
        """),
        "confirmed",
    ),
    "an update instead of a batch": (
        "AMP206",
        loop("if torch.isnan(error):", "    scaler.update()" + HERE, "    continue", SCALED, STEP, UPDATE),
        "conditional",
    ),
    "plain backward": ("AMP203", loop("error.backward()" + HERE, STEP, UPDATE), "confirmed"),
    "plain step": ("AMP204", loop(SCALED, "optimizer.step()" + HERE), "confirmed"),
    "plain step on true gradients": ("AMP204", loop(SCALED, UNSCALE, "optimizer.step()" + HERE, UPDATE), "conditional"),
    "no update": ("AMP205", loop(SCALED, STEP + HERE), "confirmed"),
    "unscaled twice": ("AMP207", loop(SCALED, UNSCALE, UNSCALE + HERE, STEP, UPDATE), "confirmed"),
    "update before step": ("AMP208", loop(SCALED, UNSCALE, UPDATE + HERE, STEP, UPDATE), "confirmed"),
    "skip that leaks": (
        "AMP209",
        loop(SCALED, UNSCALE, f"norm = {CLIP}", "if not torch.isfinite(norm):", "    continue" + HERE, STEP, UPDATE),
        "conditional",
    ),
    "backward on true gradients": (
        "AMP210",
        loop(SCALED, UNSCALE, "scaler.scale(error * 0.3).backward()" + HERE, STEP, UPDATE),
        "confirmed",
    ),
    "cleared before the step": (
        "AMP211",
        loop(SCALED, UNSCALE, "optimizer.zero_grad()" + HERE, STEP, UPDATE),
        "confirmed",
    ),
    "second of two cleared before its step": (
        "AMP211",
        _program(TWO)
        .replace("{between}", "second_optimizer.zero_grad()  # <- here")
        .replace("{second}", "scaler.step(second_optimizer)"),
        "confirmed",
    ),
    "second of two stepped past the scaler": (
        "AMP204",
        _program(TWO).replace("{between}", "pass").replace("{second}", "second_optimizer.step()  # <- here"),
        "conditional",
    ),
    "scaled twice": ("AMP217", loop("scaler.scale(scaler.scale(error)).backward()" + HERE, STEP, UPDATE), "confirmed"),
    "not finite is an error": (
        "AMP223",
        loop(SCALED, UNSCALE, "clip_grad_norm_(net.parameters(), 1.0, error_if_nonfinite=True)" + HERE, STEP, UPDATE),
        "conditional",
    ),
    "region around the loop": (
        "AMP102",
        _program("""
            import torch

            def learn(net, loader, optimizer, scaler):
                with torch.autocast("cuda", dtype=torch.float16):  # <- here
                    for inputs, wanted in loader:
                        error = torch.nn.functional.mse_loss(net(inputs), wanted)
                        optimizer.zero_grad()
                        scaler.scale(error).backward()
                        scaler.step(optimizer)
                        scaler.update()
        """),
        "confirmed",
    ),
    "backward in the region": (
        "AMP101",
        _program("""
            import torch as th

            class Learner:
                def __init__(self, net, optimizer):
                    self.net, self.optimizer = net, optimizer
                    self.scaler = th.cuda.amp.GradScaler()

                def learn(self, inputs, wanted):
                    self.optimizer.zero_grad()
                    with th.cuda.amp.autocast():
                        error = (self.net(inputs) - wanted).square().mean()
                        self.scaler.scale(error).backward()  # <- here
                    self.scaler.step(self.optimizer)
                    self.scaler.update()
        """),
        "confirmed",
    ),
    "update in the window": (
        "AMP301",
        _program("""
            import argparse

            import torch
            from torch.cuda import amp

            def arguments():
                parser = argparse.ArgumentParser()
                parser.add_argument("--accumulate", type=int, default=3)
                parser.add_argument("--mixed", action="store_true")
                return parser.parse_args()

            def learn(net, loader, optimizer, args):
                scaler = amp.GradScaler(enabled=args.mixed)
                for i, (inputs, wanted) in enumerate(loader):
                    with amp.autocast(enabled=args.mixed):
                        error = torch.nn.functional.mse_loss(net(inputs), wanted) / args.accumulate
                    scaler.scale(error).backward()
                    if (i + 1) % args.accumulate == 0:
                        scaler.step(optimizer)
                        optimizer.zero_grad()
                    scaler.update()  # <- here

            if __name__ == "__main__":
                args = arguments()
                net = torch.nn.Linear(8, 8)
                learn(net, load_data(args), torch.optim.Adam(net.parameters()), args)
        """),
        "confirmed",
    ),
    "shared scaler updated between": (
        "AMP304",
        _program("""
            import torch

            def learn(front, back, opt_front, opt_back, loader, scaler):
                for inputs, _ in loader:
                    opt_front.zero_grad()
                    opt_back.zero_grad()
                    error = (back(front(inputs)) - inputs).square().mean()
                    scaler.scale(error).backward()
                    scaler.step(opt_front)
                    scaler.update()  # <- here
                    scaler.step(opt_back)
                    scaler.update()
        """),
        "conditional",
    ),
    "scaler for every batch": (
        "AMP215",
        _program("""
            import torch

            def learn(net, loader, optimizer):
                for inputs, wanted in loader:
                    scaler = torch.amp.GradScaler("cuda")  # <- here
                    error = (net(inputs) - wanted).square().mean()
                    optimizer.zero_grad()
                    scaler.scale(error).backward()
                    scaler.step(optimizer)
                    scaler.update()
        """),
        "confirmed",
    ),
    "half weights": (
        "AMP401",
        _program("""
            import torch

            def learn(net, loader):
                net = net.half()  # <- here
                optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
                scaler = torch.amp.GradScaler("cuda")
                for inputs, wanted in loader:
                    optimizer.zero_grad()
                    scaler.scale((net(inputs) - wanted).float().square().mean()).backward()
                    scaler.step(optimizer)
                    scaler.update()
        """),
        "confirmed",
    ),
    "half weights, fused": (
        "AMP401",
        _program("""
            import torch

            def learn(net, loader):
                net = net.half()  # <- here
                optimizer = torch.optim.Adam(net.parameters(), lr=0.1, fused=True)
                scaler = torch.amp.GradScaler("cuda")
                for inputs, wanted in loader:
                    optimizer.zero_grad()
                    scaler.scale((net(inputs) - wanted).float().square().mean()).backward()
                    scaler.step(optimizer)
                    scaler.update()
        """),
        "confirmed",
    ),
    "checkpoint without the scaler": (
        "AMP501",
        _program("""
            import torch

            def learn(net, loader, optimizer, where):
                scaler = torch.amp.GradScaler("cuda")
                for inputs, wanted in loader:
                    optimizer.zero_grad()
                    scaler.scale((net(inputs) - wanted).square().mean()).backward()
                    scaler.step(optimizer)
                    scaler.update()
                torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, where)  # <- here
        """),
        "confirmed",
    ),
    "schedule counts the skipped step": (
        "AMP219",
        loop(SCALED, STEP, UPDATE, "scheduler.step()" + HERE).replace("ceiling=1.0", "scheduler"),
        "conditional",
    ),
}

#: rule, right program
RIGHT: dict[str, tuple[str, str]] = {
    "documented order": ("AMP201", loop(SCALED, UNSCALE, CLIP + HERE, STEP, UPDATE)),
    "threshold times scale": (
        "AMP201",
        loop(SCALED, "clip_grad_norm_(net.parameters(), ceiling * scaler.get_scale())" + HERE, STEP, UPDATE),
    ),
    "norm divided by the scale": (
        "AMP202",
        loop(SCALED, "print(next(iter(net.parameters())).grad.norm() / scaler.get_scale())" + HERE, STEP, UPDATE),
    ),
    "skip that updates": (
        "AMP209",
        loop(
            SCALED,
            UNSCALE,
            f"norm = {CLIP}",
            "if not torch.isfinite(norm):",
            "    scaler.update()",
            "    continue" + HERE,
            STEP,
            UPDATE,
        ),
    ),
    "region per iteration": ("AMP102", loop(SCALED, STEP + HERE, UPDATE)),
    "backward outside": ("AMP101", loop(SCALED + HERE, STEP, UPDATE)),
    "one flag, three ifs": (
        "AMP201",
        _program("""
            import torch

            class Learner:
                def __init__(self, net, optimizer, mixed=False):
                    self.net, self.optimizer, self.mixed = net, optimizer, mixed
                    self.scaler = torch.amp.GradScaler("cuda") if mixed else None

                def learn(self, inputs, wanted):
                    self.optimizer.zero_grad()
                    error = torch.nn.functional.mse_loss(self.net(inputs), wanted)
                    if self.mixed:
                        self.scaler.scale(error).backward()
                        self.scaler.unscale_(self.optimizer)
                    else:
                        error.backward()
                    torch.nn.utils.clip_grad_norm_(self.net.parameters(), 0.3)  # <- here
                    if self.mixed:
                        self.scaler.step(self.optimizer)
                        self.scaler.update()
                    else:
                        self.optimizer.step()
        """),
    ),
    "window with a boundary": (
        "AMP301",
        _program("""
            import torch

            def learn(net, loader, optimizer, scaler, window=4):
                for i, (inputs, wanted) in enumerate(loader):
                    error = torch.nn.functional.mse_loss(net(inputs), wanted) / window
                    scaler.scale(error).backward()
                    if (i + 1) % window == 0:
                        scaler.step(optimizer)
                        scaler.update()  # <- here
                        optimizer.zero_grad()
        """),
    ),
    "two optimizers, one update": (
        "AMP304",
        _program("""
            import torch

            def learn(generator, critic, opt_g, opt_c, loader, scaler):
                for real, z in loader:
                    opt_c.zero_grad()
                    made = generator(z)
                    scaler.scale(critic(made.detach()).mean() - critic(real).mean()).backward()
                    scaler.step(opt_c)
                    opt_g.zero_grad()
                    scaler.scale(-critic(made).mean()).backward()
                    scaler.step(opt_g)
                    scaler.update()  # <- here
        """),
    ),
    "checkpoint with the scaler": (
        "AMP501",
        FAULTY["checkpoint without the scaler"][1].replace(
            "optimizer.state_dict()}", 'optimizer.state_dict(), "amp": scaler.state_dict()}'
        ),
    ),
    "one scaler for all epochs": (
        "AMP215",
        _program("""
            import torch

            def epoch(net, loader, optimizer, scaler):
                for inputs, wanted in loader:
                    optimizer.zero_grad()
                    scaler.scale((net(inputs) - wanted).square().mean()).backward()
                    scaler.step(optimizer)
                    scaler.update()

            def learn(net, loader, optimizer, epochs=3):
                scaler = torch.amp.GradScaler("cuda")  # <- here
                for _ in range(epochs):
                    epoch(net, loader, optimizer, scaler)
        """),
    ),
    "schedule that waits": (
        "AMP219",
        loop(
            "before = scaler.get_scale()",
            SCALED,
            STEP,
            UPDATE,
            "if scaler.get_scale() >= before:",
            "    scheduler.step()" + HERE,
        ).replace("ceiling=1.0", "scheduler"),
    ),
}
