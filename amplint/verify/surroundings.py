"""The ground of a replay's world: its records, which library names exist, who plays which role, what is decided."""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from amplint.verify import device
from amplint.verify.guesses import (
    AMP_FLAG,
    BUILTINS,
    FACTOR,
    INTEGER,
    LIBRARIES,
    LIMIT,
    LOSS,
    NATIVE_SCALERS,
    OFF,
    ON,
    START,
    TOTAL,
)
from amplint.verify.machine import Machine
from amplint.verify.objects import (
    Arms,
    Bound,
    BudgetSpent,
    Dotted,
    EnoughSeen,
    Function,
    Instance,
    Native,
    Partial,
    Unknown,
    UserClass,
    UserError,
    Wrapped,
)
from amplint.verify.plain import CONTAINERS, PLAIN, Unsupported
from amplint.verify.plan import (
    Plan,
)
from amplint.verify.standins import (
    Composite,
    DuckOptimizer,
    Ledger,
    Model,
    Optimizer,
    Region,
    Run,
    Scaler,
    Scheduler,
    noise,
    raised_by_amp,
)

#: half of the smallest number of fp16: what is not larger becomes 0 there
HALF_OF_SMALLEST = 2.0**-25


class Surroundings:
    """Carries out what the interpreter meets, on stand-ins of torch."""

    def __init__(self, ledger: Ledger, plan: Plan) -> None:
        self.ledger = ledger
        self.run: Run = ledger.run
        self.plan = plan
        self.machine: Machine = None  # type: ignore[assignment]
        self.models: dict[str, Model] = {}
        #: checks that were stepped over once, and are from then on
        self.passed: set[tuple[str, int]] = set()
        #: weights that a backward has reached
        self.reached: set[int] = set()
        self._weights: list[nn.Parameter] = []
        self._weights_of = 0
        self.optimizers: dict[str, Optimizer] = {}
        self.scalers: list[Scaler] = []
        self.roles: dict[str, Any] = {}
        self.assumed: dict[str, None] = {}
        self.decided: dict[str, bool] = {}
        #: decisions that lead past the lines on the way to the flagged one, and had been taken before
        self.unfortunate: dict[str, bool] = {}
        #: numbers with which conditions on unknown ones would lead there
        self.numbers_wanted: dict[str, float] = {}
        self.guessed: dict[str, float] = {}
        self.executed: set[tuple[str, int]] = set()
        self.regions: list[Region] = []
        self.saved: list[tuple[object, object, str, int]] = []
        self.observed: list[tuple[str, int, float]] = []
        self.losses: list[float] = []
        self.outputs: list[float] = []
        self.states: list[tuple[str, int, set[str]]] = []
        self.serial = itertools.count()
        self.outside: list[str] = []
        self.halves: list[tuple[str, int, bool, bool]] = []
        self.refusals: list[tuple[str, int, str]] = []
        self.tiny: list[tuple[str, int, float]] = []
        self.infinite: list[tuple[str, int]] = []
        self.floats = 0
        self.statements = 0
        self.passes = 0
        #: the lines of the statement that runs, without those of the statements in it
        self.span = (0, 0)
        self.autocast_dtypes: dict[str, torch.dtype] = {}
        self.tests_losses = False
        self.divided = 0
        self.unentered: list[tuple[str, int]] = []
        self.leaks: list[tuple[str, int]] = []
        self.moves: list[tuple[float, float]] = []
        self.declared: list[UserError] = []
        self.functions: list[UserClass] = []
        self.reversed_functions: list[str] = []
        self.clashes: list[tuple[str, int, str]] = []
        self.replaced: list[tuple[str, int, str]] = []

    # ------------------------------------------------------------ bookkeeping

    @property
    def path(self) -> str:
        return self.ledger.path

    @path.setter
    def path(self, value: str) -> None:
        self.ledger.path = value

    @property
    def weights(self) -> int:
        """How many weights the networks have together."""
        return len(self.parameters_in([*self.models.values()]))

    @property
    def line(self) -> int:
        return self.ledger.line

    @line.setter
    def line(self, value: int) -> None:
        self.ledger.line = value

    def enter_line(self, path: str, node: ast.stmt) -> None:
        self.ledger.path, self.ledger.line = path, node.lineno
        self.statements += 1
        self.ledger.turns += isinstance(node, ast.For | ast.AsyncFor | ast.While)
        last = node.lineno
        for decorator in getattr(node, "decorator_list", ()):
            self.executed.update((path, line) for line in range(decorator.lineno, node.lineno))
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                last = max(node.lineno, body[0].lineno - 1)
        else:
            last = node.end_lineno or node.lineno
        self.span = (node.lineno, last)
        for line in range(node.lineno, last + 1):
            self.executed.add((path, line))

        if self.run.autocast and not self.regions and device.autocast_enabled():
            self.leaks.append((path, node.lineno))

    def at_yield(self, manager: bool) -> None:
        """A generator hands a value out: with a region open, its consumer runs under autocast."""
        if self.run.autocast and not manager and device.autocast_enabled():
            self.leaks.append((self.path, self.line))

    def see_halves(self, values: list[object]) -> None:
        """Note 16-bit tensors that reach an operation of the flagged lines, and what region is open there."""
        if not self.run.autocast or not self.plan.flagged(self.path, self.line) or len(self.halves) > 200:
            return
        tensors = self._tensors(values)
        if not tensors:
            return
        self.floats += 1
        if any(t.dtype in (torch.float16, torch.bfloat16) for t in tensors):
            self.tiny.extend(
                (self.path, self.line, v) for v in values if isinstance(v, float) and 0 < abs(v) <= HALF_OF_SMALLEST
            )
            outer = any(r.enabled for r in self.regions)
            inner = bool(self.regions) and self.regions[-1].enabled
            self.halves.append((self.path, self.line, outer, inner))

    def assume(self, text: str) -> None:
        self.assumed.setdefault(text)

    def fail(self, error: BaseException) -> UserError:
        """An exception of the program; of one that torch's AMP code did not raise a stand-in may be the cause."""
        from_torch = raised_by_amp(error)
        return UserError(error, self.path, 0, from_torch, made_here=not from_torch)

    def harmless(self, path: str, node: ast.stmt | ast.expr) -> bool:
        """Whether a statement can be left out: it is not flagged, and no scaler or gradient has to do with it."""
        span = (node.lineno, node.end_lineno or node.lineno)
        flagged = any(self.plan.flagged(path, line) for line in range(span[0], span[1] + 1))
        return not flagged and not self.plan.has_events(path, span)

    def passable(self, path: str, node: ast.stmt) -> bool:
        """Whether a check that fails may be stepped over: before the training begins it is one of the surroundings."""
        if not self.ledger.backwards and self.harmless(path, node):
            self.passed.add((path, node.lineno))
        return (path, node.lineno) in self.passed

    def guarded(self, call: Callable[[], Any]) -> Any:
        """Run real torch code; what it raises becomes an exception of the program."""
        try:
            return call()
        except (UserError, Unsupported, BudgetSpent, EnoughSeen):
            raise
        except (
            ArithmeticError,
            LookupError,
            RuntimeError,
            TypeError,
            ValueError,
            AttributeError,
            AssertionError,
        ) as error:
            raise self.fail(error) from error

    def inside(self, cls: UserClass, function: object, args: list[object]) -> object:
        """Call a direction of an autograd Function of the user's."""
        place = (self.path, self.line)
        self.functions.append(cls)
        try:
            return self.machine.call(function, args, {})
        finally:
            self.functions.pop()
            self.path, self.line = place

    def see_clash(self, error: Exception, values: object) -> None:
        """Note that torch refuses floats of different kinds, inside an autograd Function of the user's."""
        kinds = {t.dtype for t in self._tensors(values) if t.is_floating_point()}
        if self.functions and len(kinds) > 1 and re.search(r"dtype|Half|BFloat16|Float", str(error)):
            cls = self.functions[-1]
            text = f"{type(error).__name__}: {error}".split("\n")[0][:140]
            self.clashes.append((cls.path, cls.node.lineno, text))

    def bad_loss(self) -> bool:
        """A program asks whether a loss is finite: it is not, once, where the run says so."""
        self.tests_losses = True
        due = 0 < self.run.bad_loss_at <= self.ledger.backwards + 1 and not self.ledger.bad_loss_seen
        self.ledger.bad_loss_seen = self.ledger.bad_loss_seen or due
        return due

    def observe(self, value: object) -> None:
        """Keep the numbers that the flagged statements produce."""
        lines = [self.line, *range(self.span[0], self.span[1] + 1)]
        line = next((line for line in lines if self.plan.flagged(self.path, line)), None)
        if line is None or len(self.observed) > 500:
            return
        for item in value if isinstance(value, list | tuple) else [value]:
            if isinstance(item, Tensor) and item.numel() <= 64:
                self.observed.extend((self.path, line, v) for v in item.detach().double().reshape(-1).tolist())
            elif isinstance(item, float):
                self.observed.append((self.path, line, item))

    # what the layers above define, and this one needs

    def _tensors(self, values: object) -> list[Tensor]:
        raise NotImplementedError

    def _refused(self, error: Exception, values: list[Any]) -> None:
        raise NotImplementedError

    def construct(self, cls: UserClass, instance: Instance, args: list[object], keywords: dict[str, object]) -> None:
        raise NotImplementedError

    def _copy(self, value: object) -> object:
        raise NotImplementedError

    def call_library(self, name: str, args: list[object], keywords: dict[str, object]) -> Any:
        raise NotImplementedError

    def save(self, args: list[object], keywords: dict[str, object]) -> None:
        raise NotImplementedError

    def call_builtin(self, name: str, args: list[object], keywords: dict[str, object]) -> Any:
        raise NotImplementedError

    def call_scaler(self, scaler: Scaler, args: list[object], keywords: dict[str, object]) -> None:
        raise NotImplementedError

    def call_standard(self, name: str, args: list[object], keywords: dict[str, object]) -> Any:
        raise NotImplementedError

    # -------------------------------------------------------------- libraries

    def library(self, name: str) -> bool:
        if name.startswith("builtins."):
            return name.split(".", 1)[1] in BUILTINS
        return name.split(".", 1)[0] in LIBRARIES or name in NATIVE_SCALERS

    def dotted(self, name: str) -> object:
        fixed = {
            "builtins.True": True,
            "builtins.False": False,
            "builtins.None": None,
            "math.pi": math.pi,
            "math.e": math.e,
            "math.inf": math.inf,
            "math.nan": math.nan,
            "torch.inf": math.inf,
            "torch.pi": math.pi,
        }
        if name in fixed:
            return fixed[name]
        if name.startswith("torch.") and name.count(".") == 1:
            value = getattr(torch, name[6:], None)
            if isinstance(value, torch.dtype):
                return value
        return Dotted(name)

    # ------------------------------------------------------------------ roles

    def model(self, label: str) -> Model:
        if label not in self.models:
            self.models[label] = Model(label, self.ledger)
        return self.models[label]

    def bind(self, unknown: Unknown, role: str) -> Any:
        """Let an unknown be the stand-in that its use asks for; equal labels are one object."""
        if unknown.bound is not None:
            return unknown.bound
        known = self.roles.get(unknown.label)
        if known is None:
            if role == "model":
                known = self.model(unknown.label)
            elif role == "optimizer":
                known = self.optimizer(unknown.label, None, {})
            elif role == "scaler":
                known = self.scaler(unknown.label, {})
            else:
                known = Scheduler(unknown.label, self.ledger)
            self.roles[unknown.label] = known
        unknown.bound = known
        return known

    def optimizer(self, label: str, given: object, keywords: dict[str, object]) -> Optimizer:
        label = label if label not in self.optimizers else f"{label}#{next(self.serial)}"

        def resolve() -> list[nn.Parameter]:
            found = self.parameters_in(given) if given is not None else []
            return found or self.plan.parameters_of(self, label)

        lr = keywords.get("lr")
        made = Optimizer(
            label,
            self.ledger,
            resolve,
            fused=bool(keywords.get("fused")) and not isinstance(keywords.get("fused"), Unknown),
            lr=float(lr) if isinstance(lr, int | float) and 0 < lr <= 1 else 0.05,
        )
        if given is None:
            made.settled = lambda: self.plan.assignment is not None
        self.optimizers[label] = made
        return made

    def scaler(self, label: str, settings: dict[str, object]) -> Scaler:
        if self.run.single and self.scalers:
            return self.scalers[0]
        scale = settings.get("init_scale")
        chosen = float(scale) if isinstance(scale, int | float) and 1 < scale < 2**24 else self.run.scale
        if self.run.half_grads:
            chosen = self.run.scale
        if self.run.apart:
            chosen *= 4.0 ** (len(self.scalers) % 4)
        growth: dict[str, Any] = {}
        interval = settings.get("growth_interval")
        if self.run.growth:
            growth["growth_interval"] = 1
        elif isinstance(interval, int) and interval > 0:
            growth["growth_interval"] = interval
        up, down = settings.get("growth_factor"), settings.get("backoff_factor")
        if isinstance(up, float) and up > 1:
            growth["growth_factor"] = up
        if isinstance(down, float) and 0 < down < 1:
            growth["backoff_factor"] = down
        enabled = settings.get("enabled", True)
        wanted = self.truth(enabled, None) if enabled is not None else False
        made = Scaler(label, self.ledger, init_scale=chosen, enabled=self.run.scaled and wanted, **growth)
        made.wanted = wanted  # type: ignore[attr-defined]
        self.scalers.append(made)
        self.ledger.note(
            "scaler",
            label=label,
            number=len(self.scalers),
            wanted=wanted,
            switchable=settings.get("enabled", bool(settings.get("constructed"))) is not True,
        )
        return made

    def parameters_in(self, value: object) -> list[nn.Parameter]:
        """All parameters that a value holds or stands for, each once."""
        out: dict[int, nn.Parameter] = {}

        def add(item: object) -> None:
            if isinstance(item, nn.Parameter) or (isinstance(item, Tensor) and item.is_leaf and item.requires_grad):
                out.setdefault(id(item), item)  # type: ignore[arg-type]
            elif isinstance(item, nn.Module):
                for p in item.parameters():
                    out.setdefault(id(p), p)
            elif isinstance(item, Unknown):
                if item.bound is not None:
                    add(item.bound)
                else:
                    for p in self.plan.parameters_of(self, item.label):
                        out.setdefault(id(p), p)
            elif isinstance(item, Instance):
                native = self.native(item)
                if isinstance(native, nn.Module):
                    add(native)
            elif isinstance(item, Optimizer):
                for p in item.parameters():
                    out.setdefault(id(p), p)
            elif isinstance(item, dict):
                for key, v in item.items():
                    if key in ("params",) or not isinstance(v, PLAIN):
                        add(v)
            elif isinstance(item, list | tuple | deque):
                for v in item:
                    add(v)

        add(value)
        return list(out.values())

    def native(self, instance: Instance) -> Any:
        """The stand-in behind an object of a user's class that extends a library class."""
        if instance.native is not None:
            return instance.native
        base = instance.cls.library_base() or ""
        if base.startswith("torch.nn") or base.endswith("Module"):
            members = [self.actual(v) for v in instance.attrs.values()]
            instance.native = Composite(
                f"{instance.cls.name}", self.ledger, [m for m in members if isinstance(m, nn.Module)]
            )
            self.models[f"{instance.cls.name}#{next(self.serial)}"] = instance.native
        elif base.startswith("torch.optim"):
            self.construct(instance.cls, instance, [], {})
        elif instance.cls.find("step") is not None and not base:
            inner = next(
                (self.actual(v) for v in instance.attrs.values() if isinstance(self.actual(v), Optimizer)), None
            )
            if inner is not None:
                step = self.machine.attribute(instance, "step")
                instance.native = DuckOptimizer(
                    inner.label,
                    lambda *args: self.machine.call(step, list(args), {}),
                    lambda: inner.param_groups,
                )
        return instance.native

    def actual(self, value: object) -> Any:
        """The real object for torch's own code: stand-ins as they are, unknown data as tensors."""
        if isinstance(value, Unknown):
            if value.bound is not None:
                return value.bound
            if value.label in self.roles:
                return self.bind(value, "known")
            if value.data:
                return self.tensor(value)
            return value
        if isinstance(value, Instance):
            native = self.native(value)
            return native if native is not None else value
        if isinstance(value, Function | Bound | Partial | Wrapped | Native):
            return self.closure(value)
        if isinstance(value, list):
            return [self.actual(v) for v in value]
        if isinstance(value, tuple):
            return tuple(self.actual(v) for v in value)
        return value

    def closure(self, function: object) -> Callable[..., Any]:
        def call(*args: object, **keywords: object) -> Any:
            place = (self.path, self.line)
            try:
                return self.machine.call(function, list(args), dict(keywords))
            finally:
                self.path, self.line = place

        return call

    def tensor(self, unknown: Unknown) -> Tensor:
        if "tensor" not in unknown.attrs:
            tick = 0 if self.run.repeat else unknown.tick
            root = re.sub(r"\[\d+\]$", lambda m: m.group(0), unknown.label)
            unknown.attrs["tensor"] = noise(root, tick)
        found = unknown.attrs["tensor"]
        assert isinstance(found, Tensor)
        return found

    def note_move(self, before: Tensor, after: Tensor) -> None:
        """Write down how far a 16-bit average moved, and how large it was."""
        if before.numel():
            was, now = before.detach().double(), after.detach().double()
            self.moves.append((float((now - was).abs().max()), float(was.abs().max())))

    def number(self, unknown: Unknown) -> float | int:
        """The number that an unknown stands for, guessed by its name and written down."""
        given = self.plan.numbers.get(unknown.name)
        value: float | int
        if given is not None:
            value = given
        elif START.search(unknown.name):
            value = 0
        elif TOTAL.search(unknown.name):
            value = 4 * self.plan.length
        elif INTEGER.search(unknown.name):
            value = 2
        elif LIMIT.search(unknown.name):
            value = 1.0
        elif "epoch" in unknown.name:
            value = 2
        elif unknown.name in ("lr", "learning_rate"):
            value = 0.1
        elif FACTOR.search(unknown.name):
            value = 0.7
        else:
            value = 1
        self.guessed[unknown.name] = value
        self.assume(f"{unknown.label} is {value:g}")
        return value

    # -------------------------------------------------------------- decisions

    def truth(self, value: object, branches: Arms | None) -> bool:
        if isinstance(value, Unknown):
            return self.decide(value, branches)
        if isinstance(value, Tensor):
            return bool(value.detach().reshape(-1)[0]) if value.numel() else False
        if isinstance(value, PLAIN):
            return bool(value)
        if isinstance(value, CONTAINERS):
            return len(value) > 0
        return True

    def decide(self, unknown: Unknown, branches: Arms | None) -> bool:
        if unknown.bound is not None:
            return True
        if self.machine.depth > 6 and branches is not None and self.plan.jumps(self.path, branches[0]):
            # a recursion must come to its end
            return True
        label = unknown.label
        if label not in self.decided:
            self.decided[label] = self._decision(unknown, branches)
        elif branches is not None:
            wanted = self._leading(branches)
            if wanted is not None and wanted is not self.decided[label]:
                self.unfortunate[label] = wanted
        value = self.decided[label]
        self.assume(f"{label} is {'true' if value else 'false'}")
        return value

    def _leading(self, branches: Arms) -> bool | None:
        """Which outcome of a condition leads to the lines that the replay is there for."""
        for arm, value in zip(branches, (True, False), strict=True):
            if any(arm[0] <= line <= arm[1] for path, line in self.plan.wanted if path == self.path):
                return value
        return None

    def _decision(self, unknown: Unknown, branches: Arms | None) -> bool:
        given = self.plan.flag(unknown.label)
        if given is not None:
            return given
        if branches is not None:
            wanted = self._leading(branches)
            if wanted is not None:
                return wanted
            for arm, value in zip(branches, (False, True), strict=True):
                if self.plan.raises(self.path, arm):
                    return value
        if AMP_FLAG.search(unknown.name) and not OFF.search(unknown.name):
            return True
        if OFF.search(unknown.name) or unknown.name.startswith("not_"):
            return False
        if ON.search(unknown.name) or LOSS.search(unknown.name):
            return True
        if branches is not None:
            first, second = (self.plan.has_events(self.path, arm) for arm in branches)
            if first != second:
                jumps = self.plan.jumps(self.path, branches[0])
                return first and not jumps
        return False
