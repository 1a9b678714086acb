"""Write right AMP programs at random, the way a person would: shape, objects, guards, windows, order, names."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from .tree import Block, Line, Program, Suite, flat, fork, suite

#: models and their optimizers
NAMES = {
    1: ((("model",), ("optimizer",)), (("net",), ("opt",)), (("model",), ("optim",))),
    2: ((("generator", "critic"), ("opt_g", "opt_d")), (("encoder", "decoder"), ("enc_optimizer", "dec_optimizer"))),
    3: ((("encoder", "decoder", "head"), ("opt_enc", "opt_dec", "opt_head")),),
}
WINDOWS = ("modulo", "last", "flag", "inverted", "inner", "counter", "flush", "number")
GUARDS = ("plain", "plain", "enabled", "branch", "siblings", "optional")
SHAPES = ("script", "function", "function", "main", "parameter", "class", "method", "helper", "wrapper")


@dataclass
class Plan:
    """The choices that make up a program."""

    models: tuple[str, ...]
    optimizers: tuple[str, ...]
    shape: str
    guard: str
    window: str
    joint: bool
    scalers: tuple[str, ...]
    clip: str
    context: str
    skip: str
    ending: str
    zero: str
    form: str
    accumulate: int
    epochs: bool
    extra_flag: bool
    retained: str = ""

    @property
    def flags(self) -> tuple[str, ...]:
        amp = () if self.guard == "plain" else ("use_amp",)
        return (*amp, "clip") if self.extra_flag else amp


def plan_of(rng: random.Random, level: int) -> Plan:
    """Draw the choices; a higher level draws from more of them."""
    count = rng.choice((1, 1, 1, 2) if level < 2 else (1, 1, 1, 2, 2, 3))
    models, optimizers = rng.choice(NAMES[count])
    joint = count == 1 or rng.random() < 0.5
    window = rng.choice(("none", "none", *(WINDOWS[:2] if level < 2 else WINDOWS))) if joint else "none"
    shape = rng.choice(SHAPES[:3] if level < 2 else SHAPES)
    if shape in ("wrapper", "parameter", "helper") and count > 1:
        shape = "function"
    guard = rng.choice(GUARDS[:3] if level < 2 else GUARDS)
    if shape in ("parameter", "wrapper") and guard in ("branch", "siblings"):
        guard = "optional"
    if shape == "wrapper" and guard == "optional":
        guard = "enabled"
    scaler = rng.choice(("scaler", "scaler", "grad_scaler"))
    several = not joint and level >= 2 and rng.random() < 0.3
    clip = rng.choice(("", "norm", "norm", "value"))
    extra = bool(clip) and level >= 2 and rng.random() < 0.3
    skips = ("",) * 3 + (("loss",) if window in ("none", "modulo") else ())
    if clip == "norm" and window == "none" and joint and guard in ("plain", "enabled") and shape != "wrapper":
        skips += () if extra else ("norm",)
    return Plan(
        models,
        optimizers,
        shape,
        guard,
        window,
        joint,
        tuple(f"{scaler}_{name[:3]}" for name in models) if several else (scaler,),
        clip,
        rng.choice(("inline",) if level < 2 else ("inline", "inline", "amp", "stored", "nullcontext", "decorated")),
        rng.choice(skips) if level >= 3 else "",
        rng.choice(("", "", "", "finally")) if level >= 3 else "",
        rng.choice(("start", "end", "none_end")),
        rng.choice(("inline", "inline", "variable", "rebound")),
        rng.choice((2, 2, 3)) if window not in ("flush", "last") else rng.choice((2, 4)),
        level >= 2 and rng.random() < 0.3,
        extra,
    )


class Writer:
    """Writes the program of a plan."""

    def __init__(self, plan: Plan, rng: random.Random) -> None:
        self.plan = plan
        self.rng = rng
        self.owner = "self." if plan.shape in ("class", "method") else ""
        self.models = [self.owner + m for m in plan.models]
        self.optimizers = [self.owner + o for o in plan.optimizers]
        self.scalers = [self.owner + s for s in plan.scalers]
        self.criterion = rng.choice((f"{self.owner}criterion", "nn.functional.mse_loss"))
        self.amp_flag = "args.use_amp" if plan.shape == "script" else f"{self.owner}use_amp"
        self.clip_flag = "args.clip" if plan.shape == "script" else f"{self.owner}clip"
        self.length = f"{self.owner}accumulate" if self.owner and rng.random() < 0.5 else "accumulate"

    # --- pieces ----------------------------------------------------------------------------------

    def scaler(self, index: int) -> str:
        return self.scalers[index if len(self.scalers) > 1 else 0]

    @property
    def test(self) -> str:
        """The condition under which there is AMP, for guards that are written out."""
        return f"{self.scalers[0]} is not None" if self.plan.guard == "optional" else self.amp_flag

    @property
    def guarded(self) -> bool:
        return self.plan.guard in ("branch", "siblings", "optional")

    def amp(self, then: Block, otherwise: Block) -> Block:
        """What is done with AMP, and what without."""
        if not self.guarded:
            return then
        if not otherwise:
            return [suite(f"if {self.test}:", then)] if then else []
        return [fork(self.test, then, otherwise)]

    def setup(self) -> Block:
        """The objects of the program."""
        out: Block = []
        for model, optimizer in zip(self.models, self.optimizers, strict=True):
            kind = self.rng.choice(("SGD", "AdamW"))
            out += flat(f"{model} = nn.Linear(3, 1)", f"{optimizer} = torch.optim.{kind}({model}.parameters(), lr=0.1)")
        if self.criterion == f"{self.owner}criterion":
            out += flat(f"{self.criterion} = nn.MSELoss()")
        return out + self.scaler_setup() + self.context_setup()

    def scaler_setup(self) -> Block:
        name = self.rng.choice(("torch.amp.GradScaler", "torch.amp.GradScaler", "torch.cuda.amp.GradScaler"))
        device = '"cuda"' if "torch.amp" in name else ""
        out = []
        for scaler in self.scalers:
            if self.plan.guard == "enabled":
                arguments = f"{device}, enabled={self.amp_flag}" if device else f"enabled={self.amp_flag}"
                out.append(Line(f"{scaler} = {name}({arguments})"))
            elif self.plan.guard == "optional":
                out.append(Line(f"{scaler} = {name}({device}) if {self.amp_flag} else None"))
            else:
                out.append(Line(f"{scaler} = {name}({device})"))
        return list(out)

    @property
    def autocast(self) -> str:
        name = "torch.autocast" if self.plan.context != "amp" else "torch.amp.autocast"
        if self.plan.guard == "plain":
            return f'{name}("cuda")'
        condition = self.test if self.plan.guard == "optional" else self.amp_flag
        return f'{name}("cuda", enabled={condition})'

    def context_setup(self) -> Block:
        if self.plan.context == "stored":
            return flat(f"{self.owner}amp_ctx = {self.autocast}")
        if self.plan.context == "nullcontext" and self.plan.guard != "plain":
            return flat(f'{self.owner}amp_ctx = torch.autocast("cuda") if {self.amp_flag} else nullcontext()')
        return []

    def forward(self, which: Sequence[int]) -> Block:
        """The loss of some models, under autocast."""
        terms = [f"{self.criterion}({self.models[i]}(x), y)" for i in which]
        if len(terms) > 1 and self.rng.random() < 0.3:
            parts = [f"loss_{self.plan.models[i][0]}" for i in which]
            body = flat(*(f"{part} = {term}" for part, term in zip(parts, terms, strict=True)))
            body += flat(f"loss = {' + '.join(parts)}")
        elif len(terms) == 1 and self.rng.random() < 0.5:
            body = flat(f"out = {self.models[which[0]]}(x)", f"{self.loss(which[0])} = {self.criterion}(out, y)")
        else:
            name = "loss" if len(terms) > 1 else self.loss(which[0])
            body = flat(f"{name} = {' + '.join(terms)}")
        stored = self.plan.context == "stored" or (self.plan.context == "nullcontext" and self.plan.guard != "plain")
        return [suite(f"with {self.owner}amp_ctx:" if stored else f"with {self.autocast}:", body)]

    def loss(self, index: int) -> str:
        return "loss" if self.plan.joint else f"loss_{self.plan.models[index][0]}"

    def backward(self, loss: str, scaler: str) -> Block:
        """The scaled backward, in one of the ways to write it."""
        if self.plan.form == "variable":
            scaled = flat(f"scaled = {scaler}.scale({loss})", "scaled.backward()")
        elif self.plan.form == "rebound" and not self.guarded:
            scaled = flat(f"{loss} = {scaler}.scale({loss})", f"{loss}.backward()")
        else:
            scaled = flat(f"{scaler}.scale({loss}).backward()")
        return self.amp(scaled, flat(f"{loss}.backward()"))

    def clips(self, which: Sequence[int]) -> Block:
        """The clip of some models, each by itself or all at once."""
        if not self.plan.clip:
            return []
        call = "nn.utils.clip_grad_norm_({}, 1.0)"
        if self.plan.clip == "value":
            call = "nn.utils.clip_grad_value_({}, 0.5)"
        if len(which) > 1 and self.rng.random() < 0.5:
            parts = ", ".join(f"*{self.models[i]}.parameters()" for i in which)
            lines = flat(call.format(f"[{parts}]"))
        else:
            lines = flat(*(call.format(f"{self.models[i]}.parameters()") for i in which))
        if self.plan.skip == "norm" and isinstance(lines[-1], Line):
            lines[-1] = Line(f"norm = {lines[-1].text}")
        return [suite(f"if {self.clip_flag}:", lines)] if self.plan.extra_flag else lines

    def zeros(self, which: Sequence[int]) -> Block:
        argument = "set_to_none=True" if self.rng.random() < 0.3 else ""
        if len(which) == 1 and self.rng.random() < 0.2:
            return flat(f"{self.models[which[0]]}.zero_grad({argument})")
        return flat(*(f"{self.optimizers[i]}.zero_grad({argument})" for i in which))

    def finish(self, which: Sequence[int], update: bool = True) -> Block:
        """From the gradients to the update of the scale: unscale, clip, step, update."""
        unscale = flat(*(f"{self.scaler(i)}.unscale_({self.optimizers[i]})" for i in which)) if self.plan.clip else []
        steps = flat(*(f"{self.scaler(i)}.step({self.optimizers[i]})" for i in which))
        updates = flat(*(f"{s}.update()" for s in dict.fromkeys(self.scaler(i) for i in which))) if update else []
        plain = flat(*(f"{self.optimizers[i]}.step()" for i in which))
        if self.plan.ending == "finally" and update:
            tail: Block = [Suite([("try:", steps), ("finally:", updates)])]
        else:
            tail = steps + updates
        if self.plan.guard == "branch":
            return self.amp(unscale + self.clips(which) + tail, self.clips(which) + plain)
        out = (self.amp(unscale, []) if unscale else []) + self.clips(which)
        if self.plan.skip == "norm":
            out.append(suite("if not torch.isfinite(norm):", updates, self.zeros(which), Line("continue")))
        return out + self.amp(tail, plain)

    # --- loops -----------------------------------------------------------------------------------

    def iteration(self) -> Block:
        """What is done with one batch."""
        every = range(len(self.models))
        early: Block = []
        if self.plan.skip == "loss":
            early = [suite(f"if not torch.isfinite({self.loss(0)}):", Line("continue"))]
        if self.plan.joint:
            body = self.forward(every)
            backward = self.backward("loss", self.scaler(0))
            zero = self.zeros(every)
            if self.plan.zero == "start":
                return [*zero, *body, *early, *backward, *self.finish(every)]
            return [*body, *early, *backward, *self.finish(every), *zero]
        out: Block = []
        own = len(self.scalers) > 1
        for i in every:
            last = i == len(self.models) - 1
            out += self.zeros([i]) + self.forward([i]) + (early if i == 0 else [])
            out += self.backward(self.loss(i), self.scaler(i)) + self.finish([i], update=own or last)
        return out

    def windowed(self) -> Block:
        """The loop over micro-batches."""
        plan, n = self.plan, self.length
        every = range(len(self.models))
        divided = self.rng.choice((f"loss = loss / {n}", f"loss /= {n}", ""))
        forward = self.forward(every) + flat(*([divided] if divided else []))
        if plan.skip == "loss":
            forward.append(suite("if not torch.isfinite(loss):", Line("continue")))
        micro = forward + self.backward("loss", self.scaler(0))
        zero = self.zeros(every)
        tail = self.finish(every) + zero
        head = "for i, (x, y) in enumerate(loader):"
        last = self.rng.choice(("i + 1 == len(loader)", "i == len(loader) - 1"))
        boundary = self.rng.choice((f"(i + 1) % {n} == 0", f"i % {n} == {n} - 1"))
        if plan.window == "modulo":
            return [suite(head, micro, suite(f"if {boundary}:", tail))]
        if plan.window == "last":
            return [suite(head, micro, suite(f"if {boundary} or {last}:", tail))]
        if plan.window == "flag":
            name = self.rng.choice(("boundary", "do_step", "is_last_micro"))
            decided = Line(f"{name} = {boundary}")
            return [suite(head, *([decided, *micro] if self.rng.random() < 0.5 else [*micro, decided]),
                          suite(f"if {name}:", tail))]  # fmt: skip
        if plan.window == "inverted":
            return [suite(head, micro, suite(f"if (i + 1) % {n} != 0:", Line("continue")), tail)]
        if plan.window == "inner":
            inner = suite(f"for x, y in loader[:{n}]:", micro)
            return [suite("for step in range(3):", zero, inner, self.finish(every))]
        if plan.window == "counter":
            counted = flat("count += 1")
            closing = suite(f"if count == {n}:", tail, Line("count = 0"))
            return [Line("count = 0"), suite("for x, y in loader:", micro, counted, closing)]
        if plan.window == "number":
            # the index begins at one
            head = "for i, (x, y) in enumerate(loader, 1):"
            return [suite(head, micro, suite(f"if i % {n} == 0:", tail))]
        flush = self.rng.choice((f"len(loader) % {n} != 0", f"(i + 1) % {n} != 0"))
        again = self.finish(every) + self.zeros(every)
        return [suite(head, micro, suite(f"if {boundary}:", tail)), suite(f"if {flush}:", again)]

    def loop(self) -> Block:
        """The training loop."""
        if self.plan.window == "none":
            head = self.rng.choice(("for x, y in loader:", "for i, (x, y) in enumerate(loader):"))
            body: Block = [suite(head, self.iteration())]
        else:
            body = self.windowed()
        if self.plan.epochs:
            body = [suite("for epoch in range(2):", body)]
        if self.plan.window not in ("none", "inner") and self.plan.zero == "start":
            body = self.zeros(range(len(self.models))) + body
        return body

    # --- shapes ----------------------------------------------------------------------------------

    def program(self) -> Program:
        """The whole program, in the plan's shape."""
        plan = self.plan
        head = flat("import torch", "from torch import nn")
        if plan.context == "nullcontext" and plan.guard != "plain":
            head = flat("from contextlib import nullcontext", "", *head)
        head.append(Line(""))
        body, drive = getattr(self, f"_{plan.shape}")()
        return Program(head + body, plan.flags, drive, plan.accumulate if plan.window != "none" else 0)

    def _constant(self) -> Block:
        return flat(f"accumulate = {self.plan.accumulate}") if self.plan.window != "none" else []

    def _signature(self, *names: str) -> str:
        defaults = {"use_amp": "use_amp=True", "clip": "clip=True"}
        return ", ".join([*names, *(defaults[flag] for flag in self.plan.flags)])

    def _passed(self, *names: str) -> str:
        return ", ".join([*names, *(f"{flag}={flag}" for flag in self.plan.flags)])

    def _script(self) -> tuple[Block, str]:
        out = flat("from data import loader", "")
        if self.plan.flags:
            out = flat("import argparse", *out, "parser = argparse.ArgumentParser()")
            for flag in self.plan.flags:
                out += flat(f'parser.add_argument("--{flag}", action="store_true")')
            out += flat("args = parser.parse_args()")
        return out + self._constant() + self.setup() + [Line("")] + self.loop(), ""

    def _function(self) -> tuple[Block, str]:
        """Objects in the function, or in the module around it."""
        signature = self._signature("loader")
        if self.plan.guard == "plain" and self.rng.random() < 0.5:
            made = self._constant() + self.setup() + flat("", "")
            return [*made, suite(f"def train({signature}):", self.loop())], f"train({self._passed('loader')})"
        body = [*self._constant(), *self.setup(), *self.loop()]
        return [suite(f"def train({signature}):", body)], f"train({self._passed('loader')})"

    def _main(self) -> tuple[Block, str]:
        """One function makes the objects, another trains."""
        names = [*self.models, *self.optimizers, *self.scalers]
        stored = self.context_setup()
        made = [node for node in self.setup() if not _same(node, stored)]
        own = [node for node in made if isinstance(node, Line) and node.text.startswith("criterion")]
        made = [node for node in made if node not in own]
        train = suite(f"def train({self._signature('loader', *names)}):",
                      own + self._constant() + stored + self.loop())  # fmt: skip
        call = Line(f"train({self._passed('loader', *names)})")
        main = suite(f"def main({self._signature('loader')}):", made, call)
        return [train, Line(""), Line(""), main], f"main({self._passed('loader')})"

    def _parameter(self) -> tuple[Block, str]:
        """The loop gets everything from a caller that cannot be seen."""
        names = ["loader", self.models[0], self.optimizers[0]]
        optional = self.plan.guard == "optional"
        last = f"{self.scalers[0]}=None" if optional else self.scalers[0]
        flags = [f"{flag}=True" for flag in self.plan.flags if not (optional and flag == "use_amp")]
        own = flat(f"{self.criterion} = nn.MSELoss()") if self.criterion == "criterion" else []
        if self.plan.context == "nullcontext" and self.plan.guard != "plain":
            self.plan.context = "inline"
        context = self.context_setup()
        train = suite(f"def train({', '.join([*names, last, *flags])}):",
                      own + self._constant() + context + self.loop())  # fmt: skip
        passed = [f"{flag}={flag}" for flag in self.plan.flags if not (optional and flag == "use_amp")]
        enabled = "use_amp" if "use_amp" in self.plan.flags else "True"
        scaler = f"torch.amp.GradScaler(enabled={enabled})"
        if optional:
            scaler = "torch.amp.GradScaler() if use_amp else None"
        drive = (
            f"model = nn.Linear(3, 1)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
            f"train({', '.join(['loader', 'model', 'optimizer', scaler, *passed])})"
        )
        return [train], drive

    def _class(self) -> tuple[Block, str]:
        """A trainer that holds everything and has the loop in a method."""
        kept = flat(*(f"self.{flag} = {flag}" for flag in self.plan.flags))
        length = flat(f"self.accumulate = {self.plan.accumulate}") if self.length.startswith("self.") else []
        if self.plan.window != "none" and not length:
            self.length = str(self.plan.accumulate)
        init = suite(f"def __init__({self._signature('self')}):", kept + length + self.setup())
        fit = suite("def fit(self, loader):", self.loop())
        return [suite("class Trainer:", init, Line(""), fit)], f"Trainer({self._passed()}).fit(loader)"

    def _method(self) -> tuple[Block, str]:
        """A trainer whose loop calls a method for every batch."""
        kept = flat(*(f"self.{flag} = {flag}" for flag in self.plan.flags))
        windowed = self.plan.window != "none"
        if self.plan.skip:
            self.plan.skip = ""
        init_body = kept + self.setup()
        every = range(len(self.models))
        if windowed:
            init_body += flat(f"self.accumulate = {self.plan.accumulate}")
            micro = self.forward(every) + self.backward("loss", self.scaler(0))
            closing = suite("if (i + 1) % self.accumulate == 0:", self.finish(every), self.zeros(every))
            step = suite("def training_step(self, i, x, y):", micro, closing)
            loop = suite("for i, (x, y) in enumerate(loader):", Line("self.training_step(i, x, y)"))
        else:
            step = suite("def training_step(self, x, y):", self.iteration())
            loop = suite("for x, y in loader:", Line("self.training_step(x, y)"))
        fit = suite(
            "def fit(self, loader):", *([suite("for epoch in range(2):", loop)] if self.plan.epochs else [loop])
        )
        init = suite(f"def __init__({self._signature('self')}):", init_body)
        body = suite("class Trainer:", init, Line(""), step, Line(""), fit)
        return [body], f"Trainer({self._passed()}).fit(loader)"

    def _helper(self) -> tuple[Block, str]:
        """Helpers for the backward and for what comes after it."""
        if self.plan.guard != "plain":
            self.plan.guard = "plain"
        self.plan.extra_flag = False
        self.plan.skip = ""
        scaler, optimizer, model = self.scalers[0], self.optimizers[0], self.models[0]
        back = suite(f"def backward(loss, {scaler}):", self.backward("loss", scaler))
        names = f"{model}, {optimizer}, {scaler}"
        finish = suite(f"def finish({names}):", self.finish([0]), self.zeros([0]))
        body = self.forward([0])
        calls = flat(f"backward(loss, {scaler})")
        done = Line(f"finish({names})")
        if self.plan.window != "none":
            n = self.length
            loop = suite("for i, (x, y) in enumerate(loader):", body, calls, suite(f"if (i + 1) % {n} == 0:", done))
        else:
            loop = suite("for x, y in loader:", body, calls, done)
        train = suite("def train(loader):", self._constant() + self.setup(), loop)
        return [back, Line(""), Line(""), finish, Line(""), Line(""), train], "train(loader)"

    def _wrapper(self) -> tuple[Block, str]:
        """A class with `__call__` that does everything from the backward on."""
        self.plan.skip = self.plan.ending = ""
        self.plan.extra_flag = False
        self.owner, scaler = "", "self._scaler"
        flag = "enabled=True" if self.plan.guard == "enabled" else ""
        made = 'torch.amp.GradScaler("cuda", enabled=enabled)' if flag else 'torch.amp.GradScaler("cuda")'
        init = suite(f"def __init__({', '.join(filter(None, ('self', flag)))}):", Line(f"{scaler} = {made}"))
        limit = "max_norm" if self.plan.clip else ""
        parameters = ", ".join(filter(None, ("self", "loss", "optimizer", "parameters", limit and f"{limit}=None")))
        windowed = self.plan.window != "none"
        signature = f"{parameters}, update_grad=True" if windowed else parameters
        tail: Block = []
        if self.plan.clip:
            clip = flat(f"{scaler}.unscale_(optimizer)", "nn.utils.clip_grad_norm_(parameters, max_norm)")
            tail.append(suite("if max_norm is not None:", clip))
        tail += flat(f"{scaler}.step(optimizer)", f"{scaler}.update()")
        call = suite(f"def __call__({signature}):", Line(f"{scaler}.scale(loss).backward()"),
                     *([suite("if update_grad:", tail)] if windowed else tail))  # fmt: skip
        wrapper = suite("class LossScaler:", init, Line(""), call)
        passed = f"loss, {self.optimizers[0]}, {self.models[0]}.parameters()" + (", max_norm=1.0" if limit else "")
        n = self.length
        loop: Block
        if windowed:
            use = flat(f"loss_scaler({passed}, update_grad=(i + 1) % {n} == 0)")
            zero = suite(f"if (i + 1) % {n} == 0:", self.zeros([0]))
            loop = [suite("for i, (x, y) in enumerate(loader):", self.forward([0]), use, zero)]
        else:
            use = flat(f"loss_scaler({passed})")
            loop = [suite("for x, y in loader:", self.zeros([0]), self.forward([0]), use)]
        kept = [node for node in self.setup() if not (isinstance(node, Line) and "GradScaler" in node.text)]
        made_scaler = Line(f"loss_scaler = LossScaler({'enabled=use_amp' if flag else ''})")
        train = suite(f"def train({self._signature('loader')}):", self._constant() + kept, made_scaler, loop)
        return [wrapper, Line(""), Line(""), train], f"train({self._passed('loader')})"


def _same(node: object, others: Block) -> bool:
    return isinstance(node, Line) and any(isinstance(o, Line) and o.text == node.text for o in others)


def right_program(rng: random.Random, level: int) -> Program:
    """A program that is meant to be right."""
    return Writer(plan_of(rng, level), rng).program()
