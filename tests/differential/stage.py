"""Execute a program on torch, on the CPU, and record what happens to its gradients.

The source runs as it is written. While it does, the names that it can get from torch are replaced by recording
ones: `GradScaler` and `autocast` are the real classes on device "cpu", optimizers note the gradients
that they are handed and leave the weights alone, so that a skipped step does not change what comes after it.

The reference is the same program with all scalers disabled, made to take the same branches. Whatever AMP does, the
gradients of both are equal, or differ by the scale; nothing here knows a rule of the protocol.
"""

from __future__ import annotations

import ast
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.amp.autocast_mode import autocast as RealAutocast
from torch.amp.grad_scaler import GradScaler as RealScaler
from torch.amp.grad_scaler import OptState

from .tree import Program

FILE = "<program>"
#: conditions on what was measured; a variant may turn one of them around
MEASURED = ("isfinite", "isnan", "norm", "get_scale")
MAX_DECISIONS = 400
#: brings gradients within every bound that a program clips to, unless they carry a scale
SMALL = 2.0**-8

Vector = list[float]


class Runaway(Exception):
    """The program does not come to an end."""


@dataclass(frozen=True)
class Variant:
    """The circumstances of a run.

    overflow   (number, index of an optimizer): in so many-th backward that reaches it one of its gradients becomes
               infinite, if it is scaled
    growth     the scale doubles at every update
    surprise   number of the condition on measured values that turns out the other way, with those that repeat it
    moving     optimizers change the weights, and forwards are checked for stale copies of them
    batches    so many more batches than usual
    small      the gradients are so small that no clip changes them, unless they are scaled
    """

    name: str
    overflow: tuple[int, int] | None = None
    growth: bool = False
    surprise: int | None = None
    moving: bool = False
    batches: int = 0
    small: bool = False


@dataclass(slots=True)
class Happening:
    """One operation, where it stands (innermost line first), and the gradients of every optimizer before it."""

    kind: str
    lines: tuple[int, ...]
    before: list[Vector | None]
    scaler: int | None = None
    optimizer: int | None = None
    scale: float = 1.0
    enabled: bool = False
    autocast: bool = False
    #: optimizers whose parameters a clip was given
    covers: frozenset[int] = frozenset()
    #: what the optimizer's own step found; empty where it found nothing
    handed: Vector | None = None
    after: list[Vector | None] | None = None
    #: what torch said when it refused the operation
    failed: str = ""
    #: the lines where the autocast regions around were made and entered
    regions: tuple[int, ...] = ()


@dataclass
class Log:
    """What happened in one run; `error` is an exception that is no matter of AMP."""

    happened: list[Happening] = field(default_factory=list)
    decisions: list[tuple[int, bool]] = field(default_factory=list)
    error: str = ""
    raised: bool = False
    #: a condition on measured values was met
    measured: bool = False


class _Run:
    """The run in progress: the objects that it has made, and what it is told to do."""

    def __init__(self, variant: Variant, reference: list[tuple[int, bool]] | None, tolerant: bool) -> None:
        self.variant = variant
        self.decided = reference
        self.is_reference = reference is not None
        self.tolerant = tolerant
        self.log = Log()
        self.optimizers: list[torch.optim.Optimizer] = []
        self.scalers: list[Watched] = []
        #: the autocast regions that are open: the lines where they were made and entered, and whether they are on
        self.regions: list[tuple[tuple[int, ...], bool]] = []
        self.stepping: Happening | None = None
        self.moved = False
        self.backwards: dict[int, int] = {}
        self.surprises = 0
        #: the condition that turned out the other way, and after which backward
        self.surprised: tuple[str, int] | None = None

    def gradients(self) -> list[Vector | None]:
        return [_gradients(o) for o in self.optimizers]

    def record(self, kind: str, **details: Any) -> Happening:
        happening = Happening(kind, _lines(), self.gradients(), autocast=self.autocast, **details)
        self.log.happened.append(happening)
        return happening

    @property
    def autocast(self) -> bool:
        return bool(self.regions) and self.regions[-1][1]

    def index(self, optimizer: object) -> int | None:
        return next((i for i, known in enumerate(self.optimizers) if known is optimizer), None)

    def decide(self, line: int, measured: str, outcome: object) -> bool:
        """The outcome of a condition of the program."""
        log = self.log.decisions
        if len(log) > MAX_DECISIONS:
            raise Runaway
        taken = bool(outcome)
        self.log.measured = self.log.measured or bool(measured)
        if self.decided is not None and len(log) < len(self.decided):
            taken = self.decided[len(log)][1]
        elif measured and self.variant.surprise is not None:
            self.surprises += 1
            now = (measured, sum(h.kind == "backward" for h in self.log.happened))
            if self.surprises == self.variant.surprise:
                self.surprised = now
            if self.surprised == now:
                taken = not taken
        log.append((line, taken))
        return taken


_run: _Run


def _lines() -> tuple[int, ...]:
    """The lines of the program that are being executed, innermost first."""
    lines = []
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename == FILE:
            lines.append(frame.f_lineno)
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(lines)


def _gradients(optimizer: torch.optim.Optimizer) -> Vector | None:
    """All gradients of an optimizer as one list; None where there are none at all."""
    found: Vector = []
    some = False
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is None:
                found.extend([0.0] * p.numel())
            else:
                some = True
                found.extend(p.grad.flatten().tolist())
    return found if some else None


# --- what the program gets from torch --------------------------------------------------------------


class Watched(RealScaler):
    """A GradScaler for the CPU that records every use."""

    def __init__(self, device: str = "cuda", *args: Any, **kwargs: Any) -> None:
        enabled = bool(kwargs.pop("enabled", True)) and not _run.is_reference
        number = len(_run.scalers)
        kwargs.setdefault("init_scale", 1024.0 * 16**number)
        if _run.variant.growth:
            kwargs["growth_interval"] = 1
        kwargs["enabled"] = enabled
        super().__init__("cpu", *args, **kwargs)
        self.number = number
        _run.scalers.append(self)
        if _run.tolerant and enabled:
            self._lazy_init_scale_growth_tracker(torch.device("cpu"))

    def _now(self) -> dict[str, Any]:
        scale = self.get_scale() if self.is_enabled() else 1.0
        return {"scaler": self.number, "scale": scale, "enabled": self.is_enabled()}

    def _guarded(self, happening: Happening, operation: Callable[[], Any]) -> Any:
        try:
            return operation()
        except (RuntimeError, AssertionError, ValueError) as error:
            happening.failed = str(error)
            _run.log.raised = True
            if not _run.tolerant:
                raise
            return self._pretend(happening)

    def _pretend(self, happening: Happening) -> None:
        """Go on after an operation that found no gradients as if it had been done."""
        if happening.optimizer is not None and "already" not in happening.failed:
            optimizer = _run.optimizers[happening.optimizer]
            state = self._per_optimizer_states[id(optimizer)]
            state["stage"] = OptState.STEPPED if happening.kind == "step" else OptState.UNSCALED
            if happening.kind == "step":
                optimizer.step()

    def scale(self, outputs: Any) -> Any:
        _run.record("scale", **self._now())
        return super().scale(outputs)

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        if _run.stepping is not None:
            super().unscale_(optimizer)
            return
        happening = _run.record("unscale_", optimizer=_run.index(optimizer), **self._now())
        self._guarded(happening, lambda: super(Watched, self).unscale_(optimizer))

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        happening = _run.record("step", optimizer=_run.index(optimizer), **self._now())
        _run.stepping = happening
        try:
            return self._guarded(happening, lambda: super(Watched, self).step(optimizer, *args, **kwargs))
        finally:
            _run.stepping = None

    def update(self, new_scale: Any = None) -> None:
        happening = _run.record("update", **self._now())
        self._guarded(happening, lambda: super(Watched, self).update(new_scale))
        if _run.tolerant and self.is_enabled():
            self._per_optimizer_states.clear()


class CpuAutocast(RealAutocast):
    """Autocast of any device, on the CPU. Only where weights move does it change what is computed: elsewhere its
    rounding would only be in the way."""

    def __init__(self, device_type: str = "cuda", dtype: Any = None, enabled: bool = True, **kwargs: Any) -> None:
        super().__init__("cpu", dtype=torch.bfloat16, enabled=enabled, **kwargs)
        self.made = _lines()
        self.on = bool(enabled)

    def __enter__(self) -> Any:
        _run.regions.append(((*self.made, *_lines()), self.on))
        return super().__enter__() if _run.variant.moving else self  # type: ignore[no-untyped-call]

    def __exit__(self, *args: Any) -> Any:
        _run.regions.pop()
        return super().__exit__(*args) if _run.variant.moving else None


def _recording(base: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    class Recording(base):  # type: ignore[misc, valid-type]
        def __init__(self, params: Any, lr: float = 0.1, **kwargs: Any) -> None:
            super().__init__(params, lr=lr)
            _run.optimizers.append(self)

        def step(self, closure: Any = None) -> Any:
            happening = _run.stepping or _run.record("opt_step", optimizer=_run.index(self))
            happening.handed = _gradients(self) or []
            happening.autocast = _run.autocast
            happening.regions = _run.regions[0][0] if _run.regions else ()
            if _run.variant.moving:
                _run.moved = True
                with torch.no_grad():
                    for group in self.param_groups:
                        for p in group["params"]:
                            p.add_(0.25)

        step.hooked = True  # type: ignore[attr-defined]

        def zero_grad(self, set_to_none: bool = True) -> None:
            happening = _run.record("zero_grad", optimizer=_run.index(self))
            for group in self.param_groups:
                for p in group["params"]:
                    if set_to_none:
                        p.grad = None
                    elif p.grad is not None:
                        p.grad.detach_().zero_()
            happening.after = _run.gradients()

    Recording.__name__ = base.__name__
    return Recording


def _backward(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    happening = _run.record("backward")
    _REAL_BACKWARD(tensor * SMALL if _run.variant.small else tensor, *args, **kwargs)  # type: ignore[no-untyped-call]
    if _run.variant.overflow is not None and not _run.is_reference:
        _overflow(happening, *_run.variant.overflow)
    happening.after = _run.gradients()


def _overflow(happening: Happening, number: int, index: int) -> None:
    """Make one gradient infinite that this backward has touched and that is large enough to be scaled."""
    if index >= len(_run.optimizers):
        return
    before = happening.before[index]
    after = _gradients(_run.optimizers[index])
    if after is None or after == before:
        return
    _run.backwards[index] = _run.backwards.get(index, 0) + 1
    if _run.backwards[index] != number or max(map(abs, after)) < 256:
        return
    p = next(p for group in _run.optimizers[index].param_groups for p in group["params"] if p.grad is not None)
    # against the sign, so that a clip by value cannot hide it
    p.grad.view(-1)[0] = -float("inf") * p.grad.view(-1)[0].sign().item()


def _clip(real: Callable[..., Any]) -> Callable[..., Any]:
    def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        chosen = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        mine = {id(p) for p in chosen}
        covers = frozenset(
            i
            for i, optimizer in enumerate(_run.optimizers)
            if any(id(p) in mine for group in optimizer.param_groups for p in group["params"])
        )
        _run.record("clip", covers=covers)
        return real(chosen, *args, **kwargs)

    return clip


def _zero_grad(module: nn.Module, set_to_none: bool = True) -> None:
    happening = _run.record("zero_grad")
    _REAL_ZERO_GRAD(module, set_to_none)
    happening.after = _run.gradients()


def _forward(module: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    out = nn.functional.linear(x, module.weight, module.bias)
    if _run.moved and torch.is_grad_enabled() and _run.autocast:
        # a copy of a weight is never in autocast's cache
        fresh = nn.functional.linear(x, module.weight.detach().clone(), module.bias.detach().clone())
        if not torch.equal(out, fresh):
            _run.record("stale", regions=_run.regions[0][0])
    return out


_REAL_BACKWARD = torch.Tensor.backward
_REAL_ZERO_GRAD = nn.Module.zero_grad
_SGD, _ADAMW = _recording(torch.optim.SGD), _recording(torch.optim.AdamW)
_REPLACED: list[tuple[Any, str, Any]] = [
    (torch.amp, "GradScaler", Watched),
    (torch.cuda.amp, "GradScaler", Watched),
    (torch, "GradScaler", Watched),
    (torch.amp, "autocast", CpuAutocast),
    (torch, "autocast", CpuAutocast),
    (torch.optim, "SGD", _SGD),
    (torch.optim, "AdamW", _ADAMW),
    (torch.Tensor, "backward", _backward),
    (nn.Module, "zero_grad", _zero_grad),
    (nn.Linear, "forward", _forward),
    (nn.utils, "clip_grad_norm_", _clip(nn.utils.clip_grad_norm_)),
    (nn.utils, "clip_grad_value_", _clip(nn.utils.clip_grad_value_)),
]


@contextmanager
def staged() -> Iterator[None]:
    """Replace what programs get from torch, and put it back."""
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in _REPLACED]
    for owner, name, mine in _REPLACED:
        setattr(owner, name, mine)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for owner, name, theirs in before:
            setattr(owner, name, theirs)


# --- the program -----------------------------------------------------------------------------------


class _Instrument(ast.NodeTransformer):
    """Let the stage see the conditions, the jumps, and the statements that touch `.grad` by hand."""

    def _test(self, node: ast.If | ast.While) -> ast.AST:
        self.generic_visit(node)
        text = ast.unparse(node.test)
        measured = text if any(word in text for word in MEASURED) else ""
        call = ast.Call(
            ast.Name("__decide__", ast.Load()), [ast.Constant(node.lineno), ast.Constant(measured), node.test], []
        )
        node.test = ast.copy_location(call, node.test)
        return node

    visit_If = _test
    visit_While = _test

    def _noted(self, node: ast.stmt, what: str) -> list[ast.stmt]:
        note = ast.Expr(ast.Call(ast.Name("__note__", ast.Load()), [ast.Constant(what)], []))
        return [ast.copy_location(note, node), node]

    def _jump(self, node: ast.stmt) -> list[ast.stmt]:
        return self._noted(node, "jump")

    visit_Continue = _jump
    visit_Break = _jump
    visit_Return = _jump

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        self.generic_visit(node)
        node.body = [*self._noted(node.body[0], "jump")[:1], *node.body]
        return node

    def _simple(self, node: ast.stmt) -> Any:
        touched = any(isinstance(n, ast.Attribute) and n.attr == "grad" for n in ast.walk(node))
        return self._noted(node, "touch") if touched else node

    visit_Assign = _simple
    visit_Expr = _simple
    visit_AugAssign = _simple


class Stage:
    """A program, ready to be executed under any circumstances."""

    def __init__(self, program: Program) -> None:
        self.program = program
        tree = ast.fix_missing_locations(_Instrument().visit(ast.parse(program.source)))
        self.code = compile(tree, FILE, "exec")
        self.drive = compile(program.drive, "<driver>", "exec")

    def run(
        self,
        flags: dict[str, bool],
        variant: Variant,
        reference: list[tuple[int, bool]] | None = None,
        tolerant: bool = False,
    ) -> Log:
        """Execute the program. With `reference`, the branches that were taken, its scalers are disabled."""
        global _run
        _run = run = _Run(variant, reference, tolerant)
        torch.default_generator.manual_seed(0)
        data = types.ModuleType("data")
        data.loader = _BATCHES[: self.program.batches + variant.batches]  # type: ignore[attr-defined]
        sys.modules["data"] = data
        arguments, sys.argv = sys.argv, ["train.py", *(f"--{name}" for name, value in flags.items() if value)]
        namespace: dict[str, Any] = {
            "__name__": "program",
            "__decide__": run.decide,
            "__note__": lambda what: run.record(what),
            "print": lambda *args, **kwargs: None,
        }
        try:
            exec(self.code, namespace)
            namespace.update(flags, loader=data.loader)
            exec(self.drive, namespace)
        except Exception as error:
            if not run.log.raised:
                run.log.error = f"{type(error).__name__}: {error}"
        finally:
            del sys.modules["data"]
            sys.argv = arguments
            torch.set_autocast_enabled("cpu", False)
            torch.clear_autocast_cache()
        return run.log


def _batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The training data: gradients of different batches differ in direction."""
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(2, 3, generator=generator), 8 * torch.randn(2, 1, generator=generator).sign()) for _ in range(8)
    ]


_BATCHES = _batches()
