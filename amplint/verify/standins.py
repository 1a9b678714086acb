"""What torch objects become in a replay: models, optimizers, scalers, regions, schedules and their records.

Everything here is real torch on small tensors (4 x 4), so the scaler, autograd and the clips behave as
they do in the user's program. What is replaced is what those statements do not depend on: the data, the
layers, the loss. Weights stay where they are unless a run says otherwise: then the program with AMP and
the one without see the same forward passes, whatever the scaler skips.
"""

from __future__ import annotations

import hashlib
import logging
import re
import traceback
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from amplint.verify import device

SIZE = 4
#: the key of a checkpoint under which a scaler's state stands
SCALER_KEY = re.compile("scaler|amp", re.IGNORECASE)


@dataclass(frozen=True)
class Run:
    """How one execution of a replay is set up; the reference is the one with `scaled` off.

    scale         initial scale where the program names none
    gain          factor on all gradients, to lie above or below clipping limits
    overflow_at   number of the backward whose gradients get an infinity, 0 for none
    nan           the infinity is NaN instead
    growth        every successful step doubles the scale (growth_interval 1)
    half_grads    gradients are rounded to fp16, so large scales overflow
    autocast      regions are entered for real, on the CPU
    apart         every scaler starts at another scale
    learn         optimizers move the weights
    repeat        every batch is the same
    island        the models keep one layer in fp32
    single        all constructions of a scaler give the first one
    dtype         autocast dtype to use in place of the program's
    fail          an exception rises behind the second unscale_, inside the program's own `try`
    bad_loss_at   the loss of that micro-batch tests as not finite
    empty_state   a loaded scaler state is the {} of a disabled scaler
    no_state      a loaded scaler state is the None of a run without a scaler
    no_cache      regions keep no 16-bit copies of the weights
    backward_outside   regions are left around every backward
    short         every third batch falls into one part fewer than the program asks for
    decorated     autograd Functions of the user's have custom_fwd and custom_bwd
    """

    name: str
    scaled: bool = True
    scale: float = 1024.0
    gain: float = 64.0
    overflow_at: int = 0
    nan: bool = False
    growth: bool = False
    half_grads: bool = False
    autocast: bool = False
    apart: bool = False
    learn: bool = False
    repeat: bool = False
    island: bool = False
    single: bool = False
    dtype: torch.dtype | None = None
    fail: bool = False
    backward_outside: bool = False
    bad_loss_at: int = 0
    empty_state: bool = False
    no_state: bool = False
    no_cache: bool = False
    decorated: bool = False
    short: bool = False


@dataclass
class Event:
    """Something that happened to a scaler, an optimizer or a gradient, with the user's place."""

    kind: str
    path: str
    line: int
    data: dict[str, Any] = field(default_factory=dict)


@dataclass
class StepRecord:
    """One call for an optimizer step: the gradients it saw, or None where the scaler skipped it.

    `turns` counts the turns of the program's loops until then: equal in runs that took the same way.
    """

    optimizer: str
    backwards: int
    ordinal: int
    gradients: Tensor | None
    path: str
    line: int
    direct: bool
    turns: int = 0

    @property
    def key(self) -> tuple[str, int, int]:
        return (self.optimizer, self.backwards, self.ordinal)


class Ledger:
    """What a run wrote down."""

    def __init__(self, run: Run, limit: int) -> None:
        self.run = run
        self.limit = limit
        self.events: list[Event] = []
        self.steps: list[StepRecord] = []
        self.backwards = 0
        self.path = ""
        self.line = 0
        self.injected: list[int] = []
        self.scaler_steps = 0
        self.in_scaler = False
        self.pending_zero: list[Optimizer] = []
        self.auto_zero = False
        self.auto_update = False
        self.pending_update: list[Scaler] = []
        self.updates = 0
        self.turns = 0
        self.scaled_since = False
        self.scaled_backwards = 0
        self.bad_loss_seen = False
        self.stepped_dtypes: set[torch.dtype] = set()

    def note(self, kind: str, **data: Any) -> None:
        self.events.append(Event(kind, self.path, self.line, data))

    def record_step(self, optimizer: Optimizer, gradients: Tensor | None) -> None:
        ordinal = sum(1 for s in self.steps if s.optimizer == optimizer.label and s.backwards == self.backwards)
        self.steps.append(
            StepRecord(
                optimizer.label,
                self.backwards,
                ordinal,
                gradients,
                self.path,
                self.line,
                direct=not self.in_scaler,
                turns=self.turns,
            )
        )
        if self.auto_zero:
            self.pending_zero.append(optimizer)


def seeded(label: str, *numbers: int) -> torch.Generator:
    """A generator that depends on the name and the numbers alone."""
    digest = hashlib.sha256(repr((label, numbers)).encode()).digest()
    generator = torch.Generator("cpu")
    generator.manual_seed(int.from_bytes(digest[:7], "big"))
    return generator


def noise(label: str, *numbers: int, shape: tuple[int, ...] = (SIZE, SIZE)) -> Tensor:
    made = torch.randn(shape, generator=seeded(label, *numbers), dtype=torch.float32, device="cpu")
    return device.placed(made)


def fitted(tensor: Tensor) -> Tensor:
    """The tensor as 4 x 4 floats, by repetition or truncation; keeps the graph."""
    flat = tensor.reshape(-1)
    if not (flat.is_floating_point()):
        flat = flat.float()
    wanted = SIZE * SIZE
    if flat.numel() == 0:
        return torch.zeros(SIZE, SIZE)
    if flat.numel() < wanted:
        flat = flat.repeat(-(-wanted // flat.numel()))
    return flat[:wanted].reshape(SIZE, SIZE)


def mixture(label: str, tensors: Iterable[Tensor], scalar: bool = False) -> Tensor:
    """A differentiable stand-in for an unknown function of some tensors."""
    total = torch.zeros(SIZE, SIZE)
    for i, tensor in enumerate(tensors):
        total = total + fitted(tensor).float() * (1.0 + 0.2 * noise(label, i))
    return (total * noise(label, 99)).mean() if scalar else total


def applied(layer: Any, x: Tensor) -> Tensor:
    """A linear layer on an input of any dtype; its weight's dtype decides outside of autocast."""
    if device.autocast_enabled():
        return layer(x)  # type: ignore[no-any-return]
    dtype = layer.weight.dtype
    return nn.functional.linear(x.to(dtype), layer.weight, layer.bias.to(dtype))


class Model(nn.Module):
    """A network in place of the user's: three small layers, any arguments, a 4 x 4 result.

    `depth` is the number of its layers where it is given none; without any it hands its input on.
    `part(name)` is what an attribute of it stands for: a network that shares one of its layers.
    """

    def __init__(self, label: str, ledger: Ledger, layers: list[nn.Linear] | None = None, depth: int = 3) -> None:
        super().__init__()
        self.label = label
        self.ledger = ledger
        self.parts: dict[str, Model] = {}
        #: what the program keeps on it besides networks, such as its optimizer
        self.kept: dict[str, object] = {}
        if layers is None:
            layers = []
            for i in range(depth):
                layer = nn.Linear(SIZE, SIZE)
                with torch.no_grad():
                    layer.weight.copy_(noise(label, i, 0) * 0.5)
                    layer.bias.copy_(noise(label, i, 1, shape=(SIZE,)) * 0.1)
                layers.append(layer)
            for layer in layers:
                for parameter in layer.parameters():
                    self.watch(parameter)
        self.layers = nn.ModuleList(layers)

    def watch(self, parameter: nn.Parameter) -> None:
        run = self.ledger.run

        def hook(gradient: Tensor) -> Tensor:
            out = gradient * run.gain
            return out.half().to(out.dtype) if run.half_grads else out

        if run.gain != 1.0 or run.half_grads:
            parameter.register_hook(hook)  # type: ignore[no-untyped-call]

    def part(self, name: str) -> Model:
        if name not in self.parts:
            layers = list(self.layers)
            shared = [layers[len(self.parts) % len(layers)]] if layers else []
            self.parts[name] = Model(f"{self.label}.{name}", self.ledger, shared)  # type: ignore[arg-type]
        return self.parts[name]

    def replace(self, name: str, new: nn.Module) -> None:
        """Let an attribute that is set to another network be the last layer: `model.fc = nn.Linear(n, classes)`."""
        layers = [layer for layer in new.modules() if isinstance(layer, nn.Linear)]
        if layers and len(self.layers):
            self.layers[-1] = layers[-1]
        if isinstance(new, Model):
            self.parts[name] = new

    def forward(self, *inputs: Tensor) -> Tensor:
        if inputs and not self.layers:
            return fitted(inputs[0])
        x = torch.zeros(SIZE, SIZE)
        for i, value in enumerate(inputs):
            x = x + fitted(value) * (1.0 + 0.1 * i)
        if not inputs:
            x = noise(self.label, self.ledger.backwards)
        for i, layer in enumerate(self.layers):
            if i == 1 and self.ledger.run.island:
                with torch.autocast(device.kind(), enabled=False):
                    x = torch.tanh(applied(layer, x.float()))
            elif i + 1 < len(self.layers):
                x = torch.tanh(applied(layer, x))
            else:
                x = applied(layer, x)
        return x


class Composite(Model):
    """A user's own network class: the stand-ins that its constructor made, one after the other."""

    def __init__(self, label: str, ledger: Ledger, members: list[nn.Module]) -> None:
        super().__init__(label, ledger, [] if members else None)
        self.members = nn.ModuleList(members)

    def part(self, name: str) -> Model:
        members = [m for m in self.members if isinstance(m, Model)]
        if not members:
            return super().part(name)
        return self.parts.setdefault(name, members[len(self.parts) % len(members)])

    def forward(self, *inputs: Tensor) -> Tensor:
        if not len(self.members):
            return super().forward(*inputs)
        x = sum((fitted(v) * (1.0 + 0.1 * i) for i, v in enumerate(inputs)), torch.zeros(SIZE, SIZE))
        for i, member in enumerate(self.members):
            if i == 1 and self.ledger.run.island:
                with torch.autocast(device.kind(), enabled=False):
                    made = torch.tanh(member(x.float()))
            else:
                made = torch.tanh(member(x))
            x = made + 0.3 * x.to(made.dtype)
        return x


class Optimizer(torch.optim.Optimizer):
    """Hands nothing on: it writes down the gradients that it is given.

    With `run.learn` it also takes a plain SGD step. `resolve` names the parameters as late as possible,
    because which networks belong to an optimizer parameter of a function shows only in use.
    """

    def __init__(self, label: str, ledger: Ledger, resolve: Callable[[], list[nn.Parameter]], fused: bool, lr: float):
        self.label = label
        self.ledger = ledger
        self.resolve = resolve
        self.lr = lr
        self.fused = fused
        self.user_step: Callable[..., object] | None = None
        self.settled: Callable[[], bool] = lambda: True
        self._groups: list[dict[str, Any]] | None = None
        self.state: Any = {}
        self.defaults = {"lr": lr}
        if fused:
            self._step_supports_amp_scaling = True

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        if self._groups is None:
            parameters = self.resolve()
            groups = [
                {"params": parameters, "lr": self.lr, "weight_decay": 0.0, "momentum": 0.9, "initial_lr": self.lr}
            ]
            if not parameters or not self.settled():
                return groups
            self._groups = groups
        return self._groups

    def parameters(self) -> list[nn.Parameter]:
        return [p for group in self.param_groups for p in group["params"]]

    def __hash__(self) -> int:
        return id(self)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.ledger.note("zero_grad", optimizer=self.label)
        for parameter in self.parameters():
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad = torch.zeros_like(parameter.grad)

    def step(self, closure: Callable[[], object] | None = None, *rest: object) -> object:  # type: ignore[override]
        if self.user_step is None:
            return self.record(closure)
        before, given = len(self.ledger.steps), self._given(1.0)
        result = self.user_step(*([closure] if closure is not None else []))
        if len(self.ledger.steps) == before:
            # a rule of its own, that hands on to no other optimizer
            self.ledger.record_step(self, given)
        return result

    def _given(self, factor: float) -> Tensor:
        """The gradients that the optimizer finds, in one row."""
        gradients = [
            (p.grad.detach() if p.grad is not None else torch.zeros_like(p)).double().reshape(-1) * factor
            for p in self.parameters()
        ]
        return torch.cat(gradients).clone() if gradients else torch.zeros(0)

    def record(self, closure: Callable[[], object] | None = None) -> object:
        result = closure() if callable(closure) else None
        factor = 1.0
        if self.fused and getattr(self, "found_inf", None) is not None:
            if float(self.found_inf) > 0:  # type: ignore[attr-defined]
                self.ledger.record_step(self, None)
                return result
            scale = getattr(self, "grad_scale", None)
            factor = 1.0 / float(scale) if scale is not None else 1.0
        self.ledger.record_step(self, self._given(factor))
        self.ledger.stepped_dtypes.update(p.dtype for p in self.parameters())
        if self.ledger.run.learn:
            with torch.no_grad():
                for parameter in self.parameters():
                    if parameter.grad is not None:
                        parameter.add_(parameter.grad.to(parameter.dtype), alpha=-self.lr * factor)
        return result

    def add_param_group(self, group: Any) -> None:
        if isinstance(group, dict) and self.param_groups:
            params = group.get("params")
            self.param_groups[0]["params"].extend(params if isinstance(params, list) else [params])

    def state_dict(self) -> Any:
        return State("optimizer", {"state": {}, "param_groups": [{"lr": self.lr}]})

    def load_state_dict(self, state: Any) -> None:
        self.ledger.note("load", what="optimizer", owner=self.label)


class Scheduler:
    """Counts its steps; `paced` is the optimizer that it was made for, where that is known."""

    def __init__(self, label: str, ledger: Ledger, paced: Optimizer | None = None) -> None:
        self.label = label
        self.ledger = ledger
        self.paced = None if paced is None else paced.label
        self.count = 0

    def step(self, *args: object, **keywords: object) -> None:
        self.count += 1
        self.ledger.note("scheduler", count=self.count, label=self.label, paced=self.paced)

    def state_dict(self) -> Any:
        return State("scheduler", {"last_epoch": self.count})

    def load_state_dict(self, state: Any) -> None:
        self.ledger.note("load", what="scheduler", owner=self.label)


class State(dict[str, Any]):
    """A state dict that remembers what it is the state of."""

    def __init__(self, what: str, content: dict[str, Any], owner: object = None) -> None:
        super().__init__(content)
        self.what = what
        self.owner = owner


class Item(float):
    """The number in a tensor, which has no gradient any more."""


class Scaler(torch.amp.GradScaler):
    """The real scaler, on the replay's device, with a record of what is asked of it."""

    def __init__(self, label: str, ledger: Ledger, **settings: Any) -> None:
        super().__init__(device.kind(), **settings)
        self.label = label
        self.ledger = ledger
        self.place = (ledger.path, ledger.line)
        #: whether a class of the user's has another `step`
        self.own_step = False
        #: whether it is timm's, which is called with the loss and the optimizer
        self.is_called = False

    def scale(self, outputs: Any) -> Any:
        self.ledger.note("scale", scaler=self.label, scale=self.get_scale())
        self.ledger.scaled_since = self.is_enabled()
        return super().scale(outputs)

    def unscale_(self, optimizer: Any) -> None:
        self.ledger.note("unscale_", scaler=self.label, optimizer=getattr(optimizer, "label", "?"))
        super().unscale_(optimizer)

    def step(self, optimizer: Any, *args: Any, **keywords: Any) -> Any:
        ledger = self.ledger
        before = len(ledger.steps)
        outer, ledger.in_scaler = ledger.in_scaler, True
        self_label = getattr(optimizer, "label", "?")
        try:
            result = super().step(optimizer, *args, **keywords)
        finally:
            ledger.in_scaler = outer
        if len(ledger.steps) == before and isinstance(optimizer, Optimizer):
            ledger.record_step(optimizer, None)
        skipped = len(ledger.steps) > before and ledger.steps[-1].gradients is None
        if ledger.auto_update and not self.is_called and self not in ledger.pending_update:
            ledger.pending_update.append(self)
        weights = [id(p) for g in getattr(optimizer, "param_groups", []) for p in g["params"]]
        ledger.note(
            "scaler.step",
            scaler=self.label,
            optimizer=self_label,
            skipped=skipped,
            scale=self.get_scale(),
            owner=id(self),
            weights=weights,
        )
        return result

    def update(self, new_scale: Any = None) -> None:
        before = self.get_scale()
        super().update(new_scale)
        self.ledger.updates += 1
        self.ledger.note("update", scaler=self.label, before=before, scale=self.get_scale())

    def state_dict(self) -> Any:
        self.ledger.note("scaler.state_dict", scaler=self.label, scale=self.get_scale())
        return State("scaler", super().state_dict(), self)

    def load_state_dict(self, state_dict: Any) -> None:
        self.ledger.note("load", what="scaler", owner=self.label, known=True)
        # None is for torch to refuse
        given: Any = state_dict if state_dict is None else dict(state_dict)
        super().load_state_dict(given)


class DuckOptimizer:
    """An optimizer wrapper of the user's: its own `step`, the parameters of what it wraps."""

    def __init__(self, label: str, step: Callable[..., object], groups: Callable[[], Any]) -> None:
        self.label = label
        self.step = step
        self._groups = groups

    @property
    def param_groups(self) -> Any:
        return self._groups()


class Region:
    """An autocast context. `enabled`, `dtype` and the cache are as the program says; `written` is its device there.

    The object keeps one real context, which is entered again whenever the program enters it again, so
    a region that is entered inside itself misbehaves just as the real one does.
    """

    def __init__(
        self, ledger: Ledger, written: str, dtype: torch.dtype | None, enabled: bool, cache: bool | None
    ) -> None:
        self.ledger = ledger
        self.written = written
        self.enabled = enabled
        self.dtype = dtype or (torch.bfloat16 if written == "cpu" else torch.float16)
        self.cache = cache
        self.place = (ledger.path, ledger.line)
        dtype = ledger.run.dtype or self.dtype
        if dtype not in (torch.float16, torch.bfloat16):
            dtype = torch.float16
        keywords: dict[str, Any] = {"cache_enabled": cache} if cache is not None else {}
        if ledger.run.no_cache:
            keywords["cache_enabled"] = False
        self.real = torch.autocast(device.kind(), dtype=dtype, enabled=enabled and ledger.run.autocast, **keywords)

    def __enter__(self) -> Region:
        self.ledger.note("region", enabled=self.enabled, dtype=str(self.dtype), place=self.place)
        self.real.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        self.real.__exit__(None, None, None)


TORCH_EVIDENCE = ("torch/amp/", "torch/nn/utils/clip_grad", "torch/cuda/amp/", "torch/cpu/amp/")


def raised_by_amp(error: BaseException) -> bool:
    """Whether torch's AMP code or a clip is among the frames that raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return any(part in frame.filename.replace("\\", "/") for frame in frames for part in TORCH_EVIDENCE)


def silence() -> None:
    """No warnings from torch in a replay, and no log of what a fake tensor cannot do: they go to nobody."""
    warnings.filterwarnings("ignore")
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL + 1)
