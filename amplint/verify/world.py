"""The surroundings of a replay: which library names exist, and what operations on stand-ins do.

A name that is not in these tables is `Unknown`; an attribute of a real object that is not in these
tables is not reachable. Decisions that an `Unknown` forces are taken here, and written down.
"""

from __future__ import annotations

import ast
import builtins
import itertools
import math
import re
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from amplint.verify.machine import (
    BINARY,
    COMPARE,
    CONTAINERS,
    MAX_ITEMS,
    PLAIN,
    UNARY,
    Bound,
    BudgetSpent,
    Dotted,
    EnoughSeen,
    Function,
    GeneratorCall,
    Instance,
    Machine,
    ModuleValue,
    Native,
    Partial,
    Property,
    Super,
    Unknown,
    Unsupported,
    UserClass,
    UserError,
    Wrapped,
    bounded_binary,
    container_method,
)
from amplint.verify.standins import (
    SIZE,
    Composite,
    DuckOptimizer,
    Ledger,
    Model,
    Optimizer,
    Region,
    Run,
    Scaler,
    Scheduler,
    State,
    fitted,
    mixture,
    noise,
    raised_by_amp,
)

OPTIMIZER = re.compile(r"(?<![a-z])(opt|optim)|optimi[sz]er|solver|(^|_)opt", re.I)
SCALER = re.compile(r"scaler|(^|_)amp_?scale", re.I)
SCHEDULER = re.compile(r"sched|warmup|(^|_)lr_(?!$)|lr_schedule", re.I)
LOSS = re.compile(r"loss|criterion|objective|cost", re.I)
MODEL = re.compile(
    r"model|net|encoder|decoder|backbone|head|gen(erator)?$|disc(riminator)?$|critic|actor|policy|student|teacher"
    r"|unet|vae|transformer|classifier|module|trunk|mapping|tower|^[GDFE]$|(^|_)enc$|(^|_)dec$|agent|value$|query$|item$",
    re.I,
)
AMP_FLAG = re.compile(r"amp|fp16|float16|half|mixed|scaler|precision|16", re.I)
ON = re.compile(r"clip|norm|train|enable|is_main|cuda|gpu|rank_?zero", re.I)
OFF = re.compile(
    r"deepspeed|apex|accelerat|debug|dry|distributed|ddp|horovod|resume|eval|test|compile|nan|inf|bf16|bfloat", re.I
)
INTEGER = re.compile(
    r"accum|every|window|interval|freq|steps?$|^n_|num_|micro|chunks?|iter|batch_size|size$|period|^k$", re.I
)
LIMIT = re.compile(r"clip|norm|thresh|limit|max_grad", re.I)
PASS_THROUGH = re.compile(
    r"tqdm|track|progress|log_every|prefetch|cycle|prepare|to_device|move|collate|wrap|ddp|parallel", re.I
)
SEQUENCE_OF_HOOKS = re.compile(r"hook|callback|plugin|listener", re.I)

FROZEN = re.compile(r"teacher|(^|_)ema|target_net|frozen|reference|#copy", re.I)

BUILTINS = set(
    """
    abs all any bool dict enumerate filter float getattr hasattr id int isinstance issubclass iter len list map
    max min next object pow print property range repr reversed round set setattr sorted staticmethod classmethod
    str sum super tuple type vars zip Exception BaseException RuntimeError ValueError TypeError KeyError
    IndexError AttributeError AssertionError StopIteration NotImplementedError FloatingPointError OverflowError
    ArithmeticError ZeroDivisionError KeyboardInterrupt OSError ImportError ModuleNotFoundError LookupError
    callable divmod format frozenset hash slice Ellipsis NotImplemented True False None
    """.split()
)
ERRORS: dict[str, type[BaseException]] = {
    name: getattr(builtins, name)
    for name in """
    Exception BaseException RuntimeError ValueError TypeError KeyError IndexError AttributeError AssertionError
    StopIteration NotImplementedError FloatingPointError OverflowError ArithmeticError ZeroDivisionError
    KeyboardInterrupt OSError ImportError ModuleNotFoundError LookupError
    """.split()
}
LIBRARIES = tuple(
    """
    torch builtins math itertools functools contextlib collections argparse dataclasses copy types os operator
    random
    """.split()
)
TENSOR_DENIED = re.compile(
    r"^_|numpy|storage|share|data_ptr|apply_|map_|to_file|save|register|retain|tolist_|backward|pin"
)
FUNCTIONAL_DENIED = re.compile(
    r"(^|\.)(_|save|load|hub|jit|ops|classes|from_file|compile|multiprocessing|package|utils\.data|distributed|onnx|library"
    r"|serialization|fx|export|_dynamo|set_|manual_seed|profiler|cpp|testing|import|exec|run|eval)"
)
REDUCING = re.compile(r"loss|entropy|_div$|^mean$|^sum$|^norm$|nll|mse|l1|bce|focal|dice|cosine_embedding")
MODEL_METHODS = set(
    """
    parameters named_parameters modules named_modules children train requires_grad_ buffers half bfloat16
    state_dict load_state_dict no_sync clip_grad_norm_ apply named_children zero_grad module forward
    """.split()
)
SCALER_METHODS = set(
    """
    scale unscale_ step update get_scale is_enabled state_dict load_state_dict get_growth_factor
    get_backoff_factor get_growth_interval set_growth_factor set_backoff_factor set_growth_interval
    """.split()
)


class TorchWorld:
    """Carries out what the interpreter meets, on stand-ins of torch."""

    def __init__(self, ledger: Ledger, plan: Plan) -> None:
        self.ledger = ledger
        self.run: Run = ledger.run
        self.plan = plan
        self.machine: Machine = None  # type: ignore[assignment]
        self.models: dict[str, Model] = {}
        self.optimizers: dict[str, Optimizer] = {}
        self.scalers: list[Scaler] = []
        self.roles: dict[str, Any] = {}
        self.assumed: dict[str, None] = {}
        self.decided: dict[str, bool] = {}
        self.executed: set[tuple[str, int]] = set()
        self.regions: list[Region] = []
        self.saved: list[tuple[object, object, str, int]] = []
        self.observed: list[tuple[str, int, float]] = []
        self.losses: list[float] = []
        self.states: list[tuple[str, int, set[str]]] = []
        self.forwards: list[tuple[str, Tensor]] = []
        self.serial = itertools.count()
        self.outside: list[str] = []
        self.halves: list[tuple[str, int, bool, bool]] = []
        self.refusals: list[tuple[str, int, str]] = []
        self.tiny: list[tuple[str, int]] = []
        self.infinite: list[tuple[str, int]] = []
        self.floats = 0
        self.passes = 0
        self.unentered: list[tuple[str, int]] = []
        self.leaks: list[tuple[str, int]] = []
        self.moves: list[tuple[float, float]] = []
        self.declared: list[UserError] = []

    # ------------------------------------------------------------ bookkeeping

    @property
    def path(self) -> str:
        return self.ledger.path

    @path.setter
    def path(self, value: str) -> None:
        self.ledger.path = value

    @property
    def line(self) -> int:
        return self.ledger.line

    @line.setter
    def line(self, value: int) -> None:
        self.ledger.line = value

    def enter_line(self, path: str, node: ast.stmt) -> None:
        self.ledger.path, self.ledger.line = path, node.lineno
        last = node.lineno
        for decorator in getattr(node, "decorator_list", ()):
            self.executed.update((path, line) for line in range(decorator.lineno, node.lineno))
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                last = max(node.lineno, body[0].lineno - 1)
        else:
            last = node.end_lineno or node.lineno
        for line in range(node.lineno, last + 1):
            self.executed.add((path, line))

        if self.run.autocast and not self.regions and torch.is_autocast_enabled("cpu"):
            self.leaks.append((path, node.lineno))

    def at_yield(self, manager: bool) -> None:
        """A generator hands a value out: with a region open, its consumer runs under autocast."""
        if self.run.autocast and not manager and torch.is_autocast_enabled("cpu"):
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
            if any(isinstance(v, float) and 0 < abs(v) < 6e-8 for v in values):
                self.tiny.append((self.path, self.line))
            outer = any(r.enabled for r in self.regions)
            inner = bool(self.regions) and self.regions[-1].enabled
            self.halves.append((self.path, self.line, outer, inner))

    def assume(self, text: str) -> None:
        self.assumed.setdefault(text)

    def fail(self, error: BaseException) -> UserError:
        return UserError(error, self.path, 0, raised_by_amp(error))

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

    def observe(self, value: object) -> None:
        """Keep the numbers that the flagged lines produce."""
        if not self.plan.flagged(self.path, self.line) or len(self.observed) > 500:
            return
        for item in value if isinstance(value, list | tuple) else [value]:
            if isinstance(item, Tensor) and item.numel() <= 64:
                self.observed.extend((self.path, self.line, v) for v in item.detach().double().reshape(-1).tolist())
            elif isinstance(item, float):
                self.observed.append((self.path, self.line, item))

    # -------------------------------------------------------------- libraries

    def library(self, name: str) -> bool:
        if name.startswith("builtins."):
            return name.split(".", 1)[1] in BUILTINS
        return name.split(".", 1)[0] in LIBRARIES

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
        for name, valid in (("growth_factor", lambda v: v > 1), ("backoff_factor", lambda v: 0 < v < 1)):
            value = settings.get(name)
            if isinstance(value, float) and valid(value):
                growth[name] = value
        enabled = settings.get("enabled", True)
        wanted = self.truth(enabled, None) if enabled is not None else False
        made = Scaler(label, self.ledger, init_scale=chosen, enabled=self.run.scaled and wanted, **growth)
        made.wanted = wanted  # type: ignore[attr-defined]
        self.scalers.append(made)
        self.ledger.note("scaler", label=label, number=len(self.scalers), wanted=wanted)
        return made

    def parameters_in(self, value: object) -> list[nn.Parameter]:
        """All parameters that a value holds or stands for, each once."""
        out: dict[int, nn.Parameter] = {}

        def add(item: object) -> None:
            if isinstance(item, nn.Parameter):
                out.setdefault(id(item), item)
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

    def number(self, unknown: Unknown) -> float | int:
        """The number that an unknown stands for, guessed by its name and written down."""
        given = self.plan.numbers.get(unknown.name)
        value: float | int
        if given is not None:
            value = given
        elif INTEGER.search(unknown.name):
            value = 2
        elif LIMIT.search(unknown.name):
            value = 1.0
        elif "epoch" in unknown.name:
            value = 2
        elif unknown.name in ("lr", "learning_rate"):
            value = 0.1
        else:
            value = 1
        self.assume(f"{unknown.label} is {value}")
        return value

    # -------------------------------------------------------------- decisions

    def truth(self, value: object, branches: tuple[tuple[int, int], tuple[int, int]] | None) -> bool:
        if isinstance(value, Unknown):
            return self.decide(value, branches)
        if isinstance(value, Tensor):
            return bool(value.detach().reshape(-1)[0]) if value.numel() else False
        if isinstance(value, PLAIN):
            return bool(value)
        if isinstance(value, CONTAINERS):
            return len(value) > 0
        return True

    def decide(self, unknown: Unknown, branches: tuple[tuple[int, int], tuple[int, int]] | None) -> bool:
        if unknown.bound is not None:
            return True
        if self.machine.depth > 6 and branches is not None and self.plan.jumps(self.path, branches[0]):
            # a recursion must come to its end
            return True
        label = unknown.label
        if label not in self.decided:
            self.decided[label] = self._decision(unknown, branches)
        value = self.decided[label]
        self.assume(f"{label} is {'true' if value else 'false'}")
        return value

    def _decision(self, unknown: Unknown, branches: tuple[tuple[int, int], tuple[int, int]] | None) -> bool:
        given = self.plan.flag(unknown.label)
        if given is not None:
            return given
        if branches is not None:
            for arm, value in zip(branches, (True, False), strict=True):
                if any(arm[0] <= line <= arm[1] for path, line in self.plan.wanted if path == self.path):
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

    # -------------------------------------------------------------- operators

    def _operand(self, value: object, other: object) -> object:
        if isinstance(value, Unknown):
            if value.bound is not None:
                return value.bound
            if isinstance(other, Tensor):
                return (
                    self.tensor(value)
                    if value.data or not (INTEGER.search(value.name) or LIMIT.search(value.name))
                    else self.number(value)
                )
            if LOSS.search(value.name):
                return self.loss(value)
            if value.data:
                return self.tensor(value)
            if isinstance(other, int | float) and not isinstance(other, bool):
                return self.number(value)
        return value

    def binary(self, op: ast.operator, left: object, right: object) -> object:
        a, b = self._operand(left, right), self._operand(right, left)
        a, b = self._operand(a, b), self._operand(b, a)
        if isinstance(a, Unknown) and isinstance(b, Unknown):
            return Unknown(f"{a.label} {_symbol(op)} {b.label}")
        if isinstance(a, Unknown) or isinstance(b, Unknown):
            known = b if isinstance(a, Unknown) else a
            if isinstance(known, str | list | tuple | dict):
                return known
            unknown = a if isinstance(a, Unknown) else b
            assert isinstance(unknown, Unknown)
            return Unknown(unknown.label, unknown.tick)
        if isinstance(a, Tensor) or isinstance(b, Tensor):
            return self.tensor_operation(type(op).__name__, BINARY[type(op)], [a, b])
        if isinstance(a, State) or isinstance(b, State):
            return a
        if isinstance(a, (*PLAIN, *CONTAINERS)) and isinstance(b, (*PLAIN, *CONTAINERS)):
            return self.guarded(lambda: bounded_binary(op, a, b))
        return Unknown("result")

    def unary(self, op: ast.unaryop, value: object) -> object:
        if isinstance(value, Unknown):
            value = self._operand(value, None)
            if isinstance(value, Unknown):
                return Unknown(f"-{value.label}", value.tick, value.data)
        if isinstance(value, PLAIN) or isinstance(value, Tensor):
            return self.guarded(lambda: UNARY[type(op)](value))
        return Unknown("result")

    def compare(self, op: ast.cmpop, left: object, right: object) -> object:
        if isinstance(op, ast.Is | ast.IsNot):
            same = self._same(left, right)
            return same if isinstance(op, ast.Is) else not same
        if isinstance(left, Unknown) or isinstance(right, Unknown):
            a, b = self._comparable(left, right), self._comparable(right, left)
            if isinstance(a, Unknown) or isinstance(b, Unknown):
                return self._undecided(op, a, b)
            left, right = a, b
        if isinstance(left, Tensor) or isinstance(right, Tensor):
            self.observe([left, right])
            return self.tensor_operation("compare", COMPARE[type(op)], [left, right])
        if isinstance(left, Dotted) and isinstance(right, Dotted):
            return (left.name == right.name) == isinstance(op, ast.Eq)
        try:
            return COMPARE[type(op)](left, right)
        except TypeError as error:
            if isinstance(left, (*PLAIN, *CONTAINERS)) and isinstance(right, (*PLAIN, *CONTAINERS)):
                raise self.fail(error) from error
            return False

    def _same(self, left: object, right: object) -> bool:
        if right is None and isinstance(left, Unknown):
            given = self.plan.flag(f"{left.label} is None")
            if given is not None:
                return given
            self.assume(f"{left.label} is not None")
            return False
        if isinstance(left, Unknown) and isinstance(right, bool):
            return self.truth(left, None) == right
        if isinstance(left, Dotted) and isinstance(right, Dotted):
            return left.name == right.name
        return left is right or (isinstance(left, torch.dtype) and left == right)

    def _comparable(self, value: object, other: object) -> object:
        if isinstance(value, Unknown):
            if isinstance(other, Tensor):
                return self._operand(value, other)
            if isinstance(other, int | float) and not isinstance(other, bool):
                return self.tensor(value).mean() if value.data else self.number(value)
            if value.data and not isinstance(other, Unknown):
                return value
        return value

    def _undecided(self, op: ast.cmpop, left: object, right: object) -> object:
        unknown = left if isinstance(left, Unknown) else right
        other = right if isinstance(left, Unknown) else left
        assert isinstance(unknown, Unknown)
        shown = (
            other.label
            if isinstance(other, Unknown)
            else repr(other)
            if isinstance(other, PLAIN)
            else type(other).__name__
        )
        if isinstance(other, torch.dtype):
            shown = str(other)
        equal = isinstance(op, ast.Eq | ast.In)
        text = f"{unknown.label} {'==' if isinstance(op, ast.Eq | ast.NotEq) else 'in' if isinstance(op, ast.In | ast.NotIn) else '>'} {shown}"
        result = Unknown(text)
        if equal or isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE):
            return result
        return not self.truth(result, None)

    def tensor_operation(self, name: str, operation: Callable[..., Any], args: list[object]) -> Any:
        """Real torch where it works and stays finite, else a mixture of the tensors."""
        actual = [self.actual(a) for a in args]
        actual = [self.tensor(a) if isinstance(a, Unknown) else a for a in actual]
        self.see_halves(actual)
        try:
            result = operation(*actual)
        except (UserError, Unsupported, BudgetSpent, EnoughSeen):
            raise
        except Exception as error:
            if raised_by_amp(error):
                raise self.fail(error) from error
            return self.mixed(name, actual, {})
        return self._checked(name, result, actual, {})

    def _checked(self, name: str, result: Any, args: list[object], keywords: dict[str, object]) -> Any:
        """A finite input must not become NaN because of the stand-in data; infinities of gradients stay."""
        if isinstance(result, Tensor) and result.is_floating_point() and not bool(torch.isfinite(result).all()):
            if result.dtype == torch.float16 and bool(torch.isinf(result).any()):
                self.infinite.append((self.path, self.line))
            inputs = [t for t in self._tensors([*args, *keywords.values()])]
            plain = any(isinstance(a, float) and not math.isfinite(a) for a in args)
            if (
                inputs
                and not plain
                and all(bool(torch.isfinite(t).all()) for t in inputs)
                and all(t.dtype == torch.float32 for t in inputs)
            ):
                return self.mixed(name, args, keywords)
        return result

    def _tensors(self, values: object) -> list[Tensor]:
        out: list[Tensor] = []
        stack = [values]
        while stack:
            value = stack.pop()
            if isinstance(value, Tensor):
                out.append(value)
            elif isinstance(value, list | tuple):
                stack.extend(reversed(value))
            elif isinstance(value, dict):
                stack.extend(value.values())
            elif isinstance(value, Unknown) and value.data and value.bound is None:
                out.append(self.tensor(value))
        return out

    def mixed(self, name: str, args: list[object], keywords: dict[str, object]) -> Any:
        tensors = [t for t in self._tensors([*args, *keywords.values()])]
        if not tensors:
            return Unknown(name, self.ledger.backwards, data=True)
        short = name.rsplit(".", 1)[-1]
        result = mixture(short, tensors, scalar=bool(REDUCING.search(short)))
        if (
            self.regions
            and self.regions[-1].enabled
            and result.dim()
            and tensors[0].dtype in (torch.float16, torch.bfloat16)
        ):
            return result.to(tensors[0].dtype)
        return result

    # ---------------------------------------------------------------- losses

    def loss(self, value: object) -> Any:
        """A scalar with a graph to the weights, whatever the program had there."""
        if isinstance(value, Tensor):
            result = value if value.numel() == 1 else value.float().mean()
            if result.requires_grad:
                return result
            return result + self._made_loss("loss", self.ledger.backwards)
        if isinstance(value, Unknown):
            if value.bound is not None:
                return value.bound
            if "loss" not in value.attrs:
                tick = 0 if self.run.repeat else (value.tick or self.ledger.backwards)
                value.attrs["loss"] = self._made_loss(value.label, tick)
            return value.attrs["loss"]
        if isinstance(value, int | float) and not isinstance(value, bool):
            return self._made_loss("loss", self.ledger.backwards) * float(value or 1.0)
        return value

    def _made_loss(self, label: str, tick: int) -> Tensor:
        parameters = self.plan.loss_parameters(self, label)
        total = torch.zeros(())
        for i, parameter in enumerate(parameters):
            direction = noise(label, tick, i, shape=tuple(parameter.shape))
            total = total + (parameter.float() * direction).sum() * 0.1
        if not parameters:
            raise Unsupported("a loss that no network stands behind")
        return total

    def backward(self, losses: list[object], keywords: dict[str, object]) -> None:
        ledger = self.ledger
        if ledger.backwards >= ledger.limit:
            raise EnoughSeen
        for optimizer in ledger.pending_zero:
            for parameter in optimizer.parameters():
                parameter.grad = None
        if ledger.pending_zero:
            self.assume("the caller clears the gradients after a step")
        ledger.pending_zero.clear()
        for scaler in ledger.pending_update:
            self.assume("the caller calls update() after a step")
            scaler.update()
        ledger.pending_update.clear()
        tensors = [self.loss(loss) for loss in losses]
        if not all(isinstance(t, Tensor) for t in tensors):
            raise Unsupported("a backward of something that is no tensor")
        before = {id(p): p.grad for p in self._all_parameters()}
        on = torch.is_autocast_enabled("cpu")
        ledger.note("backward", autocast=on)
        ledger.backwards += 1
        self.losses.append(float(tensors[0].detach().float().sum()))
        create = bool(keywords.get("create_graph", False))
        versions = {id(p): p.grad._version for p in self._all_parameters() if p.grad is not None}

        def go() -> None:
            torch.autograd.backward(tensors, retain_graph=True, create_graph=create)

        if self.run.backward_outside:
            with torch.autocast("cpu", enabled=False):
                self.guarded(go)
        else:
            self.guarded(go)
        if ledger.scaled_since:
            ledger.scaled_backwards += 1
            ledger.scaled_since = False
            if self.run.overflow_at == ledger.scaled_backwards and self.run.scaled:
                self._overflow(before, versions)

    def _all_parameters(self) -> list[nn.Parameter]:
        return self.parameters_in([*self.models.values()])

    def _overflow(self, before: dict[int, Tensor | None], versions: dict[int, int]) -> None:
        """Put an infinity into the gradients of one network that this backward reached."""
        reached = [
            p
            for p in self._all_parameters()
            if p.grad is not None and (before.get(id(p)) is not p.grad or versions.get(id(p)) != p.grad._version)
        ]
        owner = None
        for optimizer in self.optimizers.values():
            owned = {id(p) for p in optimizer.parameters()}
            if any(id(p) in owned for p in reached):
                owner = owned
                break
        chosen = [p for p in reached if owner is None or id(p) in owner]
        with torch.no_grad():
            for parameter in chosen[:1]:
                assert parameter.grad is not None
                parameter.grad.view(-1)[0] = math.inf
        self.ledger.injected.append(self.ledger.backwards)

    # ------------------------------------------------------------- iteration

    def iterate(self, value: object) -> Iterator[object]:
        if isinstance(value, Unknown):
            value = self._sequence(value)
        if isinstance(value, range):
            return iter(itertools.islice(value, self.plan.length if len(value) > self.plan.length else len(value)))
        if isinstance(value, dict):
            return iter(list(value))
        if isinstance(value, str):
            return iter(value[:64])
        if isinstance(value, CONTAINERS):
            return iter(list(value))
        if isinstance(value, Tensor):
            return iter(list(value[:16]) if value.dim() else [value])
        if isinstance(value, Loader):
            return value.fresh()
        if isinstance(value, Iterator):
            return value
        if isinstance(value, GeneratorCall):
            items: list[object] = []
            self.machine.run_generator(value, items.append)
            return iter(items)
        if isinstance(value, Instance) and value.cls.find("__iter__") is not None:
            return self.iterate(self.machine.call(self.machine.attribute(value, "__iter__"), [], {}))
        if isinstance(value, nn.Module):
            return iter([value])
        if value is None or isinstance(value, int | float):
            raise self.fail(TypeError(f"'{type(value).__name__}' object is not iterable"))
        return Loader(self, "data").fresh()

    def _sequence(self, unknown: Unknown) -> object:
        if unknown.bound is not None:
            return unknown.bound
        name = unknown.name
        if SEQUENCE_OF_HOOKS.search(name):
            return []
        if "sequence" not in unknown.attrs:
            made: object
            if name.endswith("s") and OPTIMIZER.search(name) or SCALER.search(name) and name.endswith("s"):
                made = [Unknown(f"{unknown.label}[{i}]") for i in range(2)]
            elif re.search(r"models|nets$|networks|modules$", name, re.I):
                made = [Unknown(f"{unknown.label}[{i}]") for i in range(2)]
            elif re.search(r"param", name, re.I):
                return self.parameters_in(unknown)
            elif unknown.data and not re.search(r"loader|batches|dataset", name, re.I):
                made = [Unknown(f"{unknown.label}[{i}]", unknown.tick, data=True) for i in range(2)]
            else:
                made = Loader(self, unknown.label)
            unknown.attrs["sequence"] = made
        return unknown.attrs["sequence"]

    def unpack(self, value: object, count: int) -> list[object]:
        if isinstance(value, Unknown):
            if value.bound is not None and isinstance(value.bound, Model):
                return [value.bound.part(str(i)) for i in range(count)]
            return [value.child(i, f"{value.label}[{i}]") for i in range(count)]
        if isinstance(value, Tensor):
            return [
                value * (1.0 + 0.3 * noise("unpack", i, shape=tuple(value.shape)).to(value.dtype)) for i in range(count)
            ]
        if isinstance(value, dict):
            value = list(value)
        if isinstance(value, torch.Size):
            return ([*value] + [1] * count)[:count]
        if isinstance(value, list | tuple | deque | range):
            if len(value) == count:
                return list(value)
            raise self.fail(ValueError(f"{len(value)} values to unpack for {count} names"))
        if isinstance(value, Iterator):
            return list(itertools.islice(value, count))
        return [Unknown(f"part[{i}]") for i in range(count)]

    def item(self, value: object, key: object) -> object:
        if self.run.empty_state and isinstance(key, str) and re.search(r"scaler|amp", key, re.I):
            if isinstance(value, Unknown | dict) and not isinstance(value, State):
                return {}
        if isinstance(key, Unknown):
            key = self.number(key) if isinstance(value, list | tuple) else key
        if isinstance(value, Unknown):
            if value.bound is not None:
                value = value.bound
            elif isinstance(key, PLAIN):
                if value.data and isinstance(key, int) and value.label.endswith("]"):
                    return value.child(key, f"{value.label}[{key}]")
                sequence = value.attrs.get("sequence") if isinstance(key, int) else None
                if isinstance(sequence, list) and isinstance(key, int) and -len(sequence) <= key < len(sequence):
                    return sequence[key]
                return value.child(key, f"{value.label}.{key}" if isinstance(key, str) else f"{value.label}[{key}]")
            elif value.data:
                value = self.tensor(value)
            else:
                return value.child("[]", f"{value.label}[]")
        if isinstance(value, Tensor):
            if isinstance(key, str):
                return value
            wanted = self.actual(key)
            try:
                return value[wanted]
            except Exception:
                return value
        if isinstance(value, Model):
            return value.part(str(key)) if isinstance(key, PLAIN) else value
        if isinstance(value, dict):
            if isinstance(key, PLAIN):
                if key in value:
                    return value[key]
                if isinstance(value, State):
                    return Unknown(str(key))
                raise self.fail(KeyError(key))
            return value.get(id(key), next(iter(value.values()), Unknown("item")))
        if isinstance(value, list | tuple | str | range | deque):
            if isinstance(key, int | slice):
                return self.guarded(lambda: value[key])  # type: ignore[index]
            return value[0] if len(value) else Unknown("item")
        if isinstance(value, Optimizer) or isinstance(value, Scheduler):
            return Unknown("item")
        if isinstance(value, Instance) and value.cls.find("__getitem__") is not None:
            return self.machine.call(self.machine.attribute(value, "__getitem__"), [key], {})
        if isinstance(value, Dotted | UserClass):
            return value
        return Unknown("item")

    def set_item(self, value: object, key: object, new: object) -> None:
        if isinstance(value, Unknown):
            if value.bound is None and isinstance(key, PLAIN):
                value.attrs[key] = new
            return
        if isinstance(value, dict):
            if len(value) > MAX_ITEMS:
                raise BudgetSpent
            value[key if isinstance(key, PLAIN) else id(key)] = new
        elif isinstance(value, list) and isinstance(key, int | slice):
            self.guarded(lambda: value.__setitem__(key, new))  # type: ignore[index]
        elif isinstance(value, Tensor):
            self.observe(new)

            def write() -> None:
                with torch.no_grad():
                    value[self.actual(key)] = self.actual(new)

            self.see_halves([value, new])
            try:
                write()
            except Exception as error:
                self._refused(error, [value])
                return
            if value.dtype == torch.float16 and bool(torch.isinf(value).any()):
                self.infinite.append((self.path, self.line))

    # --------------------------------------------------------------- contexts

    def enter(self, value: object) -> object:
        value = self.actual(value)
        if isinstance(value, Region):
            if value.place in self.unentered:
                self.unentered.remove(value.place)
            self.guarded(value.__enter__)
            self.regions.append(value)
            return value
        if isinstance(value, torch.no_grad | torch.enable_grad | torch.inference_mode | torch.set_grad_enabled):
            value.__enter__()
            return value
        if isinstance(value, Dotted) and value.name.endswith("autocast"):
            raise UserError(
                TypeError("'type' object does not support the context manager protocol"), self.path, 0, True
            )
        if isinstance(value, type):
            raise self.fail(TypeError("a class is not a context manager"))
        if isinstance(value, Stack):
            return value
        if value is None or isinstance(value, PLAIN):
            raise self.fail(TypeError(f"'{type(value).__name__}' object is not a context manager"))
        return value

    def leave(self, value: object) -> None:
        value = self.actual(value)
        if isinstance(value, Region):
            if value in self.regions:
                self.regions.remove(value)
            self.guarded(value.__exit__)
        elif isinstance(value, torch.no_grad | torch.enable_grad | torch.inference_mode | torch.set_grad_enabled):
            value.__exit__(None, None, None)
        elif isinstance(value, Stack):
            for entered in reversed(value.entered):
                self.leave(entered)
            value.entered.clear()

    def matches(self, error: UserError, kinds: list[object]) -> bool:
        for kind in kinds:
            if isinstance(kind, Dotted):
                wanted = kind.name.rsplit(".", 1)[-1]
                cls = ERRORS.get(wanted)
                if cls is not None and (
                    isinstance(error.error, cls) or (isinstance(error.error, Instance) and issubclass(Exception, cls))
                ):
                    return True
            elif isinstance(kind, UserClass) and isinstance(error.error, Instance) and error.error.cls is kind:
                return True
        return False

    # ---------------------------------------------------------- construction

    def construct(self, cls: UserClass, instance: Instance, args: list[object], keywords: dict[str, object]) -> None:
        base = cls.library_base() or ""
        if base.startswith("torch.optim"):
            given = args[0] if args else keywords.get("params")
            made = self.optimizer(cls.name, given, keywords)
            step = instance.cls.find("step")
            if isinstance(step, Function):
                bound = Bound(step, instance)
                made.user_step = lambda *rest: self.machine.call(bound, list(rest), {})
            instance.native = made
        elif base.endswith("GradScaler"):
            instance.native = self.scaler(cls.name, self._scaler_settings(base, args, keywords))

    def _scaler_settings(self, name: str, args: list[object], keywords: dict[str, object]) -> dict[str, object]:
        names = ["device", "init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled"]
        if ".cuda.amp" in name or ".cpu.amp" in name:
            names = names[1:]
        settings = dict(zip(names, args, strict=False))
        settings.update(keywords)
        return settings

    def make_scaler(self, name: str, args: list[object], keywords: dict[str, object]) -> Scaler:
        settings = self._scaler_settings(name, args, keywords)
        if not any(isinstance(v, Unknown) for v in settings.values()):
            real = torch.cuda.amp.GradScaler if ".cuda.amp" in name else torch.amp.GradScaler
            probe = self.guarded(lambda: real(*args, **keywords))
            self.ledger.note(
                "constructed",
                device=str(getattr(probe, "_device", "")),
                scale=settings.get("init_scale", 65536.0),
                args=[a for a in args if isinstance(a, PLAIN)],
            )
        label = f"scaler in line {self.line}"
        return self.scaler(label, settings)

    def make_region(self, name: str, args: list[object], keywords: dict[str, object]) -> Region:
        legacy = ".cuda.amp" in name or ".cpu.amp" in name
        names = (
            ["enabled", "dtype", "cache_enabled"] if legacy else ["device_type", "dtype", "enabled", "cache_enabled"]
        )
        settings = dict(zip(names, args, strict=False))
        settings.update(keywords)
        device: object = ("cpu" if ".cpu.amp" in name else "cuda") if legacy else settings.get("device_type", "cuda")
        dtype = settings.get("dtype")
        if not legacy and isinstance(device, (*PLAIN, torch.device)) and not isinstance(dtype, Unknown):
            probe_settings = {k: v for k, v in settings.items() if not isinstance(v, Unknown)}
            if isinstance(dtype, bool):
                raise UserError(
                    TypeError("the dtype of an autocast region must be a torch.dtype, not bool"), self.path, 0, True
                )
            self.guarded(lambda: torch.amp.autocast(**probe_settings))
        text = device if isinstance(device, str) else "cuda"
        enabled = settings.get("enabled", True)
        cache = settings.get("cache_enabled")
        self.unentered.append((self.path, self.line))
        return Region(
            self.ledger,
            "cpu" if text.startswith("cpu") else "cuda",
            dtype if isinstance(dtype, torch.dtype) else None,
            self.truth(enabled, None),
            cache if isinstance(cache, bool) else None,
        )

    # --------------------------------------------------------------- calling

    def call(self, function: object, args: list[object], keywords: dict[str, object]) -> object:
        if isinstance(function, Dotted):
            return self.call_library(function.name, args, keywords)
        if isinstance(function, Region):
            return Wrapped(args[0], function) if args else function
        if isinstance(function, torch.no_grad | torch.enable_grad | torch.inference_mode | torch.set_grad_enabled):
            return Wrapped(args[0], function) if args else function
        if isinstance(function, Unknown):
            return self.call_unknown(function, args, keywords)
        if isinstance(function, Instance):
            native = self.native(function)
            forward = function.cls.find("forward")
            if isinstance(native, nn.Module):
                if isinstance(forward, Function | Wrapped) and self.plan.interesting(function.cls):
                    return self.machine.call(Bound(forward, function), args, keywords)
                return self.call_model(native, args, keywords)
            if forward is not None:
                return self.machine.call(Bound(forward, function), args, keywords)
            return self.mixed(function.cls.name, args, keywords)
        if isinstance(function, Model):
            return self.call_model(function, args, keywords)
        if isinstance(function, nn.Module):
            return self.tensor_operation("module", function, args)
        if isinstance(function, torch.dtype):
            return Unknown("dtype()")
        if isinstance(function, Property | Super | ModuleValue):
            return Unknown("result")
        if function is None or isinstance(function, PLAIN) or isinstance(function, CONTAINERS):
            raise self.fail(TypeError(f"'{type(function).__name__}' object is not callable"))
        if isinstance(function, Optimizer | Scaler | Scheduler | Tensor):
            raise self.fail(TypeError(f"'{type(function).__name__}' object is not callable"))
        raise Unsupported(f"a call of {type(function).__name__}")

    def call_model(self, model: Model, args: list[object], keywords: dict[str, object]) -> Any:
        inputs = self._tensors([*args, *(v for v in keywords.values())])
        self.see_halves(list(inputs))
        result = self.guarded(lambda: model(*inputs))
        self.forwards.append((model.label, result.detach().float()))
        return result

    def call_unknown(self, unknown: Unknown, args: list[object], keywords: dict[str, object]) -> object:
        bound = unknown.bound or self.roles.get(unknown.label)
        if isinstance(bound, Model):
            return self.call_model(bound, args, keywords)
        values = [*args, *keywords.values()]
        self.observe(values)
        name = unknown.name
        for value in values:
            actual = self.actual(value) if not isinstance(value, Unknown) or value.bound is not None else value
            if isinstance(actual, Scaler | Optimizer | DuckOptimizer):
                self.outside.append(unknown.label)
                self.assume(f"{unknown.label}() leaves the scaler and the optimizer alone")
        if PASS_THROUGH.search(name) and args:
            return args[0] if len(args) == 1 or not all(isinstance(a, Unknown) for a in args) else tuple(args)
        tensors = self._tensors(values)
        loss_like = bool(LOSS.search(name))
        if MODEL.search(name) and not loss_like and name != "model_fn":
            return self.call_model(self.bind(unknown, "model"), args, keywords)
        if tensors:
            grads = any(t.requires_grad for t in tensors)
            if not grads and not loss_like and self.plan.used_as_model(name):
                return self.call_model(self.bind(unknown, "model"), args, keywords)
            if loss_like and len(tensors) >= 2 and tensors[0].shape == tensors[1].shape:
                return self._checked(name, nn.functional.mse_loss(tensors[0].float(), tensors[1].float()), [], {})
            return mixture(name, tensors, scalar=loss_like)
        if loss_like:
            return Unknown(f"{unknown.label}()", self.ledger.backwards, data=True)
        if re.search(r"build|make|create|get|init", name) and (
            MODEL.search(name) or OPTIMIZER.search(name) or SCALER.search(name)
        ):
            return Unknown(re.sub(r"^_?(build|make|create|get|init)_?", "", name) or name)
        return Unknown(f"{unknown.label}()", self.ledger.backwards)

    def method(self, value: object, name: str, args: list[object], keywords: dict[str, object]) -> object:
        if name.startswith("__") and name not in ("__init__", "__call__", "__enter__", "__exit__", "__len__"):
            return Unknown(name)
        if isinstance(value, Unknown):
            return self.unknown_method(value, name, args, keywords)
        if isinstance(value, Instance):
            return self._instance_method(value, name, args, keywords)
        if isinstance(value, Tensor):
            return self.tensor_method(value, name, args, keywords)
        if isinstance(value, Scaler):
            return self.scaler_method(value, name, args, keywords)
        if isinstance(value, Optimizer | DuckOptimizer):
            return self.optimizer_method(value, name, args, keywords)
        if isinstance(value, nn.Module):
            return self.model_method(value, name, args, keywords)
        if isinstance(value, Scheduler):
            if name in ("step", "state_dict", "load_state_dict"):
                if name == "load_state_dict":
                    return value.load_state_dict(args[0] if args else None)
                return getattr(value, name)()
            return [0.1] if name.startswith("get") else Unknown(name)
        if isinstance(value, Parser):
            return value.call(name, args, keywords)
        if isinstance(value, Stack):
            if name == "enter_context" and args:
                entered = self.enter(args[0])
                value.entered.append(args[0])
                return entered
            return None
        if isinstance(value, Loader):
            return len(value) if name == "__len__" else Unknown(name)
        if value is None:
            raise self.fail(AttributeError(f"'NoneType' object has no attribute '{name}'"))
        if isinstance(value, Function | Bound | Native | Wrapped | Partial):
            if name == "__call__":
                return self.machine.call(value, args, keywords)
            raise self.fail(AttributeError(f"'function' object has no attribute '{name}'"))
        found = container_method(value, name)
        if found is not None:
            self.observe(args)
            if len(args) == 1 and isinstance(args[0], list | tuple) and len(args[0]) > MAX_ITEMS:
                raise BudgetSpent
            return self.guarded(lambda: found(*args, **keywords))
        if isinstance(value, torch.device | torch.dtype) or isinstance(value, PLAIN):
            return Unknown(name)
        if isinstance(value, Region):
            return self.enter(value) if name == "__enter__" else self.leave(value)
        return Unknown(name)

    def _instance_method(self, value: Instance, name: str, args: list[object], keywords: dict[str, object]) -> object:
        native = self.native(value)
        if native is not None:
            if isinstance(native, nn.Module) and name in MODEL_METHODS | {"to", "cuda", "eval", "cpu", "float", "type"}:
                result = self.model_method(native, name, args, keywords)
                return value if result is native else result
            return self.method(native, name, args, keywords)
        found = self.attribute(value, name)
        if isinstance(found, Unknown):
            return self.call_unknown(found, args, keywords)
        return self.machine.call(found, args, keywords)

    def unknown_method(self, value: Unknown, name: str, args: list[object], keywords: dict[str, object]) -> object:
        if value.bound is None and value.label in self.roles:
            value.bound = self.roles[value.label]
        if value.bound is not None:
            return self.method(value.bound, name, args, keywords)
        if name == "from_pretrained":
            if not MODEL.search(value.name):
                return Unknown(re.sub(r"^Auto", "", value.name).lower())
            made = self.model(value.name)
            return self.model_method(made, "to", [v for v in keywords.values() if isinstance(v, torch.dtype)], {})
        own = value.attrs.get(name)
        if own is not None and not isinstance(own, Unknown):
            return self.machine.call(own, args, keywords)
        label = value.name
        if name in ("unscale_", "get_scale") or (name in SCALER_METHODS and SCALER.search(label)):
            return self.method(self.bind(value, "scaler"), name, args, keywords)
        if name == "zero_grad":
            role = "model" if MODEL.search(label) and not OPTIMIZER.search(label) else "optimizer"
            return self.method(self.bind(value, role), name, args, keywords)
        if name in ("step", "state_dict", "load_state_dict") and SCHEDULER.search(label):
            return self.method(self.bind(value, "scheduler"), name, args, keywords)
        if name in ("step", "state_dict", "load_state_dict") and OPTIMIZER.search(label):
            return self.method(self.bind(value, "optimizer"), name, args, keywords)
        if name == "backward" and (value.data or LOSS.search(label)) and not args:
            self.backward([value], keywords)
            return None
        if name in ("parameters", "named_parameters", "modules", "named_modules"):
            return self.method(self.bind(value, "model"), name, args, keywords)
        if (name in MODEL_METHODS and not value.data or name in ("eval", "train")) and MODEL.search(label):
            return self.method(self.bind(value, "model"), name, args, keywords)
        if name in (
            "to",
            "cuda",
            "cpu",
            "half",
            "bfloat16",
            "float",
            "type",
            "eval",
            "contiguous",
            "clone",
            "detach",
            "copy",
        ):
            return self._moved(value, name, args, keywords)
        if value.data and hasattr(Tensor, name):
            return self.tensor_method(self.tensor(value), name, args, keywords)
        if name in ("items", "values", "keys") and value.data:
            child = value.child("values", f"{value.label}.values")
            return [(("key"), child)] if name == "items" else [child] if name == "values" else ["key"]
        if name in ("size", "dim", "numel") or name == "__len__":
            return SIZE if args or name != "size" else (SIZE, SIZE)
        if name == "get" and args:
            if self.run.empty_state and isinstance(args[0], str) and re.search(r"scaler|amp", args[0], re.I):
                return {}
            return value.child(
                args[0] if isinstance(args[0], PLAIN) else "get",
                f"{value.label}.{args[0]}" if isinstance(args[0], str) else f"{value.label}.get",
            )
        if name == "item":
            return self.number(value)
        if name == "update" and any(isinstance(a, Unknown | Instance) for a in args):
            return None
        child = value.child(name, f"{value.label}.{name}")
        return (
            self.call_unknown(child, args, keywords)
            if isinstance(child, Unknown)
            else self.machine.call(child, args, keywords)
        )

    def _moved(self, value: Unknown, name: str, args: list[object], keywords: dict[str, object]) -> object:
        dtypes = [a for a in [*args, *keywords.values()] if isinstance(a, torch.dtype)]
        half = bool(dtypes) or name in ("half", "bfloat16") or (name == "type" and bool(args))
        if half and (MODEL.search(value.name) or self.plan.used_as_model(value.name)) and not value.data:
            return self.method(self.bind(value, "model"), name, args, keywords)
        if half and value.data:
            return self.tensor_method(self.tensor(value), name, args, keywords)
        return value

    # -------------------------------------------------- methods of stand-ins

    def scaler_method(self, scaler: Scaler, name: str, args: list[object], keywords: dict[str, object]) -> Any:
        if name not in SCALER_METHODS:
            return Unknown(name)
        if name == "scale":
            given = args[0] if args else keywords.get("outputs")
            if isinstance(given, list | tuple):
                return [scaler.scale(self.loss(v)) for v in given]
            return self.guarded(lambda: scaler.scale(self.loss(given)))
        if name in ("step", "unscale_"):
            values = [self._optimizer_like(a) if i == 0 else self.actual(a) for i, a in enumerate(args)]
            named = {k: self._optimizer_like(v) if k == "optimizer" else self.actual(v) for k, v in keywords.items()}
            result = self.guarded(lambda: getattr(scaler, name)(*values, **named))
            if self.run.fail and name == "unscale_" and self.plan.in_try(self.path, self.line):
                self.run_failures(scaler)
            return result
        if name == "update":
            values = [self.actual(a) for a in args]
            values = [self.number(v) if isinstance(v, Unknown) else v for v in values]
            named = {k: self.number(v) if isinstance(v, Unknown) else v for k, v in keywords.items()}
            return self.guarded(lambda: scaler.update(*values, **named))
        if name == "load_state_dict":
            state = args[0] if args else None
            if isinstance(state, State) and state.what == "scaler":
                return self.guarded(lambda: scaler.load_state_dict(state))
            if isinstance(state, dict) and not state:
                return self.guarded(lambda: scaler.load_state_dict(state))
            self.ledger.note("load", what="scaler", owner=scaler.label)
            return None
        return self.guarded(lambda: getattr(scaler, name)(*args))

    def run_failures(self, scaler: Scaler) -> None:
        count = sum(1 for e in self.ledger.events if e.kind == "unscale_" and e.line == self.line)
        if count == 2:
            raise UserError(RuntimeError("a fault of something called here"), self.path, self.line)

    def _optimizer_like(self, value: object) -> Any:
        if isinstance(value, Unknown) and value.bound is None:
            if SCHEDULER.search(value.name):
                return self.bind(value, "scheduler")
            if MODEL.search(value.name) and not OPTIMIZER.search(value.name):
                return self.bind(value, "model")
            return self.bind(value, "optimizer")
        return self.actual(value)

    def optimizer_method(self, optimizer: Any, name: str, args: list[object], keywords: dict[str, object]) -> Any:
        if name == "zero_grad":
            to_none = args[0] if args else keywords.get("set_to_none", True)
            optimizer.zero_grad(to_none if isinstance(to_none, bool) else True)
            return None
        if name == "step":
            values = [self.actual(a) for a in args] + [self.actual(v) for k, v in keywords.items() if k == "closure"]
            return self.guarded(lambda: optimizer.step(*[v for v in values if callable(v)]))
        if name in ("state_dict",):
            return optimizer.state_dict()
        if name == "load_state_dict":
            return optimizer.load_state_dict(args[0] if args else None)
        if name == "add_param_group":
            return optimizer.add_param_group(args[0] if args else None)
        if name in ("train", "eval"):
            return None
        return Unknown(name)

    def model_method(self, model: Any, name: str, args: list[object], keywords: dict[str, object]) -> Any:
        if name == "parameters":
            recurse = keywords.get("recurse", args[0] if args else True)
            return (
                list(model.parameters(recurse=bool(recurse) if isinstance(recurse, bool) else True))
                if recurse is not False
                else (list(model.parameters()) if isinstance(model, nn.Linear) else [])
            )
        if name == "named_parameters":
            return [(n, p) for n, p in model.named_parameters()]
        if name in ("modules", "children"):
            return [m for m in model.modules() if not isinstance(m, nn.ModuleList)]
        if name in ("named_modules", "named_children"):
            return [(n, m) for n, m in model.named_modules() if not isinstance(m, nn.ModuleList)]
        if name == "state_dict":
            return State("model", {n: p.detach().clone() for n, p in model.named_parameters()}, model)
        if name == "load_state_dict":
            self.ledger.note("load", what="model", owner=getattr(model, "label", "?"))
            return None
        if name == "zero_grad":
            for parameter in model.parameters():
                parameter.grad = None
            self.ledger.note("zero_grad", optimizer=getattr(model, "label", "?"))
            return None
        if name in ("to", "half", "bfloat16", "float", "double", "type", "cuda", "cpu"):
            dtype = next((a for a in [*args, *keywords.values()] if isinstance(a, torch.dtype)), None)
            if name in ("half", "bfloat16", "float", "double"):
                dtype = {"half": torch.float16, "bfloat16": torch.bfloat16}.get(name, torch.float32)
            if name == "type" and args and isinstance(args[0], Dotted):
                dtype = (
                    torch.float16 if "Half" in args[0].name else torch.bfloat16 if "BFloat" in args[0].name else dtype
                )
            if dtype is not None:
                self.ledger.note("cast", dtype=str(dtype), model=getattr(model, "label", "?"))
                model.to(dtype)
            return model
        if name == "apply" and args:
            function = self.closure(args[0])
            for module in list(model.modules()):
                function(module)
            return model
        if name == "no_sync":
            return Dotted("contextlib.nullcontext")
        if name == "clip_grad_norm_":
            return self.call_library("torch.nn.utils.clip_grad_norm_", [list(model.parameters()), *args], keywords)
        if name in ("train", "eval", "requires_grad_", "compile", "share_memory"):
            return model
        if name in ("forward", "module", "__call__"):
            return self.call_model(model, args, keywords)
        if name == "__len__":
            return 3
        if isinstance(model, Model):
            if self._tensors(args) or self._tensors(list(keywords.values())):
                return self.call_model(model.part(name), args, keywords)
            return Unknown(name)
        return self.tensor_operation(name, model, args)

    def tensor_method(self, tensor: Tensor, name: str, args: list[object], keywords: dict[str, object]) -> Any:
        if name == "backward":
            self.backward([tensor], keywords)
            return None
        if name in ("cuda", "cpu", "contiguous", "pin_memory", "numpy"):
            return tensor
        if name == "item":
            return float(tensor.detach().reshape(-1)[0]) if tensor.numel() else 0.0
        if name == "tolist":
            return tensor.detach().tolist() if tensor.numel() <= 64 else []
        if name == "register_hook" and args:
            function = self.closure(args[0])
            place = (self.path, self.line)

            def hook(gradient: Tensor) -> Any:
                outer = (self.path, self.line)
                self.path, self.line = place
                try:
                    result = function(gradient)
                finally:
                    self.path, self.line = outer
                return result if isinstance(result, Tensor) else None

            if tensor.requires_grad:
                tensor.register_hook(hook)
            return None
        if name == "to":
            dtypes = [a for a in [*args, *keywords.values()] if isinstance(a, torch.dtype)]
            return tensor.to(dtypes[0]) if dtypes else tensor
        if name in ("values", "items", "keys"):
            return [("key", tensor)] if name == "items" else [tensor] if name == "values" else ["key"]
        if name == "size":
            return tuple(tensor.shape) if not args else tensor.shape[0] if tensor.dim() else 1
        if TENSOR_DENIED.search(name) or not hasattr(Tensor, name):
            return self.mixed(name, [tensor, *args], keywords)
        values = [self._argument(a) for a in args]
        named = {k: self._argument(v) for k, v in keywords.items()}
        named.pop("device", None)
        self.see_halves([tensor, *values, *named.values()])
        half_before = (
            tensor.detach().double().clone()
            if self.run.learn and name.endswith("_") and tensor.dtype in (torch.float16, torch.bfloat16)
            else None
        )
        if name.endswith("_") and tensor.numel() > 0:
            self.observe(values)

        def operate() -> Any:
            found = getattr(tensor, name)
            if not callable(found):
                return found
            if name.endswith("_") and not torch.is_grad_enabled() or name.endswith("_") and not tensor.requires_grad:
                with torch.no_grad():
                    return found(*values, **named)
            return found(*values, **named)

        try:
            result = operate()
        except (UserError, Unsupported, BudgetSpent, EnoughSeen):
            raise
        except Exception as error:
            if raised_by_amp(error):
                raise self.fail(error) from error
            self._refused(error, [tensor, *values])
            return self.mixed(name, [tensor, *args], keywords)
        if half_before is not None:
            self.moves.append(
                (float((tensor.detach().double() - half_before).abs().max()), float(half_before.abs().max()))
            )
        return self._checked(name, result, [tensor, *values], named)

    def _argument(self, value: object) -> Any:
        actual = self.actual(value)
        if isinstance(actual, Unknown):
            return (
                self.number(actual) if INTEGER.search(actual.name) or LIMIT.search(actual.name) else self.tensor(actual)
            )
        return actual

    # ------------------------------------------------------------- attributes

    def attribute(self, value: object, name: str) -> object:
        if name.startswith("__") and name not in ("__init__", "__call__", "__enter__", "__exit__"):
            return Unknown(name)
        if isinstance(value, Dotted):
            return self.dotted(f"{value.name}.{name}")
        if isinstance(value, Unknown):
            if value.bound is None and value.label in self.roles:
                value.bound = self.roles[value.label]
            if value.bound is not None:
                return self.attribute(value.bound, name)
            if name in ("shape",):
                return torch.Size((SIZE, SIZE))
            if name in ("grad", "data") and not value.data:
                return value.child(name, f"{value.label}.{name}")
            if value.data and name in ("dtype", "requires_grad", "is_cuda", "T", "mT", "ndim"):
                return getattr(self.tensor(value), name)
            if name == "device":
                return Dotted("torch.device.cuda")
            return value.child(name, f"{value.label}.{name}")
        if isinstance(value, Tensor):
            if name in ("device",):
                return Dotted("torch.device.cuda")
            if name in (
                "grad",
                "data",
                "shape",
                "dtype",
                "requires_grad",
                "ndim",
                "T",
                "mT",
                "is_leaf",
                "is_cuda",
                "grad_fn",
                "real",
                "H",
            ):
                return getattr(value, name)
            return (
                Bound(Native(name, lambda t, *a, **k: self.tensor_method(t, name, list(a), k)), value)
                if hasattr(Tensor, name) and not name.startswith("_")
                else value
            )
        if isinstance(value, Optimizer | DuckOptimizer):
            if name == "param_groups":
                return value.param_groups
            if name == "state":
                return Unknown("state")
            return self._bound(value, name)
        if isinstance(value, Scaler):
            return self._bound(value, name) if name in SCALER_METHODS else self._scaler_attribute(value, name)
        if isinstance(value, Scheduler):
            return self._bound(value, name) if name in ("step", "state_dict", "load_state_dict") else Unknown(name)
        if isinstance(value, Model):
            if name in ("module", "_orig_mod"):
                return value
            if name in ("weight", "bias"):
                layer = next((m for m in value.modules() if isinstance(m, nn.Linear)), None)
                return getattr(layer, name) if layer is not None else Unknown(name)
            if name == "training":
                return True
            if name in MODEL_METHODS or name in ("eval", "to", "cuda", "cpu", "type"):
                return self._bound(value, name)
            if name == "device":
                return Dotted("torch.device.cuda")
            if name in ("config", "cfg", "name") or INTEGER.search(name):
                return Unknown(f"{value.label}.{name}")
            return value.part(name)
        if isinstance(value, nn.Module):
            if name in ("weight", "bias"):
                return getattr(value, name)
            return self._bound(value, name)
        if isinstance(value, Instance):
            native = self.native(value) if value.native is not None or value.cls.library_base() else None
            if native is not None:
                if isinstance(native, nn.Module):
                    if name in MODEL_METHODS or name in ("eval", "to", "cuda"):
                        return self._bound(native, name)
                    made = Unknown(f"{value.cls.name}.{name}")
                    value.attrs[name] = made
                    return made
                return self.attribute(native, name)
            made = Unknown(f"self.{name}")
            value.attrs[name] = made
            return made
        if isinstance(value, Super):
            return self._super_attribute(value, name)
        if isinstance(value, UserClass):
            if name == "apply" and "Function" in (value.library_base() or ""):
                return Native("apply", lambda *a, **k: self.apply_function(value, list(a)))
            return Native(name, lambda *a, **k: self.mixed(name, list(a), k))
        if isinstance(value, Parser):
            return Unknown(name)
        if isinstance(value, torch.device):
            return {"type": value.type, "index": value.index}.get(name, Unknown(name))
        if value is None:
            raise self.fail(AttributeError(f"'NoneType' object has no attribute '{name}'"))
        if isinstance(value, torch.finfo):
            return getattr(value, name) if name in ("min", "max", "eps", "tiny", "smallest_normal") else Unknown(name)
        if isinstance(value, Namespace):
            return value.get(name)
        if isinstance(value, (*PLAIN, *CONTAINERS)):
            if container_method(value, name) is None:
                return Unknown(name)
            return Bound(Native(name, lambda v, *a, **k: self.method(v, name, list(a), k)), value)
        return Unknown(name)

    def _scaler_attribute(self, scaler: Scaler, name: str) -> object:
        if name in ("_enabled", "_init_scale", "_growth_tracker"):
            return getattr(scaler, name)
        if name == "_scale":
            return scaler._scale if scaler._scale is not None else None
        return Unknown(name)

    def _bound(self, value: object, name: str) -> object:
        return Bound(Native(name, lambda v, *a, **k: self.method(v, name, list(a), k)), value)

    def _super_attribute(self, value: Super, name: str) -> object:
        receiver = value.receiver
        base = value.cls.library_base() or ""
        if name == "__init__" and isinstance(receiver, Instance):

            def initialise(*args: object, **keywords: object) -> None:
                self.construct(value.cls, receiver, list(args), dict(keywords))

            return Native("__init__", initialise)
        if isinstance(receiver, Instance):
            native = self.native(receiver)
            if isinstance(native, Optimizer) and name == "step":
                return Native("step", lambda *a, **k: native.record(*[c for c in map(self.actual, a) if callable(c)]))
            if isinstance(native, Scaler) and name in SCALER_METHODS:
                return self._bound(native, name)
            if native is not None and not base.startswith("torch.optim"):
                return self._bound(native, name)
            if isinstance(native, Optimizer):
                return self._bound(native, name)
        return Native(name, lambda *a, **k: None)

    def apply_function(self, cls: UserClass, args: list[object]) -> Any:
        """A user's autograd.Function: its own forward and backward, interpreted."""
        forward, backward = cls.find("forward"), cls.find("backward")
        world = self

        class Applied(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *values: Any) -> Any:
                holder = Context(ctx)
                return world.machine.call(_static(forward), [holder, *values], {})

            @staticmethod
            def backward(ctx: Any, *gradients: Any) -> Any:
                holder = Context(ctx)
                return world.machine.call(_static(backward), [holder, *gradients], {})

        values = self._tensors(args)
        return self.mixed(cls.name, list(values), {}) if Applied is None else self.mixed(cls.name, list(values), {})

    def set_attribute(self, value: object, name: str, new: object) -> None:
        if isinstance(value, Instance):
            return
        if isinstance(value, Unknown):
            if value.bound is not None:
                self.set_attribute(value.bound, name, new)
            else:
                value.attrs[name] = new
            return
        if isinstance(value, Namespace):
            value.set(name, new)
            return
        if isinstance(value, Tensor):
            if name in ("data", "grad", "requires_grad"):
                actual = self.actual(new)
                if isinstance(actual, Unknown):
                    actual = self.tensor(actual)
                self.observe(actual)
                if name == "data" and isinstance(actual, Tensor) and actual.dtype != value.dtype:
                    self.ledger.note("cast", dtype=str(actual.dtype), model="parameter")
                if name == "requires_grad":
                    if not value.is_leaf:
                        return
                    actual = bool(actual) if not isinstance(actual, Tensor) else True
                self.guarded(lambda: setattr(value, name, actual))
            return
        return

    # ------------------------------------------------------ library functions

    def call_library(self, name: str, args: list[object], keywords: dict[str, object]) -> Any:
        head = name.split(".", 1)[0]
        if head == "torch":
            return self.call_torch(name, args, keywords)
        if head == "builtins":
            return self.call_builtin(name.split(".", 1)[1], args, keywords)
        return self.call_standard(name, args, keywords)

    def call_torch(self, name: str, args: list[object], keywords: dict[str, object]) -> Any:
        last = name.rsplit(".", 1)[-1]
        if last in ("GradScaler", "ShardedGradScaler"):
            return self.make_scaler(name, args, keywords)
        if last == "autocast":
            if args and isinstance(args[0], Function | Wrapped):
                raise UserError(
                    ValueError("Expected `device_type` of type `str`, got: `<class 'function'>`"), self.path, 0, True
                )
            return self.make_region(name, args, keywords)
        if name.startswith("torch.optim.lr_scheduler") or name.startswith("torch.optim.swa_utils"):
            if last in ("AveragedModel",):
                return args[0] if args else Unknown(last)
            return Scheduler(f"{last} in line {self.line}", self.ledger)
        if name.startswith("torch.optim."):
            given = args[0] if args else keywords.get("params")
            return self.optimizer(
                f"optimizer in line {self.line}", given if given is not None else Unknown("params"), keywords
            )
        if last in ("no_grad", "enable_grad", "inference_mode", "set_grad_enabled"):
            mode = args[0] if args else keywords.get("mode", True)
            flag = self.truth(mode, None)
            if last == "set_grad_enabled":
                return torch.set_grad_enabled(flag)
            if last == "inference_mode":
                return torch.no_grad() if flag else torch.enable_grad()
            return getattr(torch, last)()
        if last in ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm", "clip_grads_with_norm_", "get_total_norm"):
            return self.clip(last, args, keywords)
        if name in ("torch.autograd.backward",):
            given = args[0] if args else keywords.get("tensors")
            self.backward(list(given) if isinstance(given, list | tuple) else [given], keywords)
            return None
        if name == "torch.autograd.grad":
            return self.gradient(args, keywords)
        if name == "torch.save":
            return self.save(args, keywords)
        if name in ("torch.load",):
            return self.load(args)
        if name in ("torch.device",):
            return (
                self.guarded(lambda: torch.device(*[a for a in args if isinstance(a, str | int)]))
                if args and all(isinstance(a, str | int) for a in args)
                else Dotted("torch.device.cuda")
            )
        if name.startswith("torch.device."):
            return Unknown("device")
        if name == "torch.set_default_dtype":
            if args and isinstance(args[0], torch.dtype):
                self.plan.default_dtype = args[0]
            return None
        if name == "torch.finfo" and args and isinstance(args[0], torch.dtype):
            return torch.finfo(args[0])
        if name == "torch.compile" or last in ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel"):
            return args[0] if args else Native("wrap", lambda f, *a, **k: f)
        if last in ("custom_fwd", "custom_bwd"):
            return args[0] if args else Native(last, lambda f: f)
        if name.startswith(
            (
                "torch.cuda.",
                "torch.backends.",
                "torch.distributed",
                "torch.utils",
                "torch.profiler",
                "torch.autograd.profiler",
                "torch.mps",
                "torch.xpu",
            )
        ):
            if last in ("is_available", "is_initialized"):
                return name.startswith("torch.cuda") or name.startswith("torch.backends")
            if last == "is_bf16_supported":
                return False
            if last in ("get_rank", "current_device"):
                return 0
            if last in ("get_world_size", "device_count"):
                return 1
            if last in ("checkpoint",) and args:
                return self.machine.call(args[0], args[1:], {})
            if last == "DataLoader":
                return Loader(self, f"loader in line {self.line}")
            return Unknown(last)
        if name in ("torch.is_autocast_enabled",):
            return bool(self.regions and self.regions[-1].enabled)
        if name.startswith("torch.nn.functional."):
            return self.functional(name, args, keywords)
        if name.startswith("torch.nn.init."):
            return args[0] if args else None
        if name in ("torch.nn.Parameter", "torch.nn.parameter.Parameter"):
            return (
                nn.Parameter(fitted(self._tensors(args)[0]).detach().clone())
                if self._tensors(args)
                else nn.Parameter(noise("parameter", 0))
            )
        if name in ("torch.nn.Module", "torch.nn.Identity"):
            return self.layer(name, args)
        if name.startswith("torch.nn.") and last[:1].isupper():
            if last.endswith("Loss"):
                return Native(last, lambda *a, **k: self.loss_object(last, keywords, list(a), k))
            return self.layer(name, args)
        if name.startswith("torch.") and last[:1].isupper():
            return Unknown(last)
        return self.functional(name, args, keywords)

    def layer(self, name: str, args: list[object]) -> Any:
        """A layer or container of layers; containers keep the stand-ins they are given."""
        members = [m for m in map(self.actual, _flat(args)) if isinstance(m, nn.Module)]
        label = f"{name.rsplit('.', 1)[-1]} in line {self.line}#{next(self.serial)}"
        if not members and re.search(r"ReLU|GELU|Sigmoid|Tanh|SiLU|Softmax|Dropout|Identity|Flatten|Norm|Pool", name):
            pass
        made: Model = Composite(label, self.ledger, members) if members else Model(label, self.ledger)
        if self.plan.default_dtype is not None:
            self.ledger.note("cast", dtype=str(self.plan.default_dtype), model=label)
            made.to(self.plan.default_dtype)
        self.models[label] = made
        return made

    def loss_object(
        self, last: str, settings: dict[str, object], args: list[object], keywords: dict[str, object]
    ) -> Any:
        return self.functional(f"torch.nn.functional.{_snake(last)}", args, {})

    def functional(self, name: str, args: list[object], keywords: dict[str, object]) -> Any:
        path = name.removeprefix("torch.")
        last = path.rsplit(".", 1)[-1]
        if FUNCTIONAL_DENIED.search(path):
            return Unknown(last) if not last.startswith("manual_seed") else None
        target: Any = torch
        for part in path.split("."):
            target = getattr(target, part, None)
            if target is None:
                break
        if any(isinstance(a, str) and "cuda" in a for a in keywords.values()) or "device" in keywords:
            keywords = {k: v for k, v in keywords.items() if k not in ("device", "pin_memory", "non_blocking")}
        if not callable(target) or isinstance(target, type):
            return self.mixed(name, args, keywords)
        if last.endswith("_") and args:
            self.observe(args[1:])
        values = [self._argument(a) if isinstance(a, Unknown) else self.actual(a) for a in args]
        named = {k: self._argument(v) if isinstance(v, Unknown) else self.actual(v) for k, v in keywords.items()}
        self.see_halves([*values, *(v for k, v in named.items() if k != "dtype")])
        if last in ("isfinite", "isnan", "isinf") and self.run.bad_loss_at and not self.ledger.bad_loss_seen:
            given = values[0] if values else None
            if isinstance(given, Tensor) and given.requires_grad and self.ledger.backwards + 1 >= self.run.bad_loss_at:
                self.ledger.bad_loss_seen = True
                return torch.tensor(last != "isfinite")
        if (
            last == "binary_cross_entropy"
            and self.regions
            and self.regions[-1].enabled
            and self.regions[-1].device == "cuda"
        ):
            self.ledger.note("bce")
        for value in [*values, *named.values()]:
            if (
                isinstance(value, int)
                and abs(value) > 10_000
                or isinstance(value, tuple | list)
                and _product(value) > 10_000
            ):
                return self.mixed(name, args, keywords)
        if last == "where" and len(values) == 3 and isinstance(values[0], Tensor) and values[0].dtype != torch.bool:
            values[0] = values[0] > 0
        if (
            len(values) >= 2
            and REDUCING.search(last)
            and isinstance(values[0], Tensor)
            and isinstance(values[1], Tensor)
        ):
            if values[0].shape != values[1].shape:
                values[:2] = [fitted(values[0]), fitted(values[1])]
        try:
            if last.endswith("_"):
                with torch.no_grad():
                    result = target(*values, **named)
            else:
                result = target(*values, **named)
        except (UserError, Unsupported, BudgetSpent, EnoughSeen):
            raise
        except Exception as error:
            if raised_by_amp(error):
                raise self.fail(error) from error
            self._refused(error, values)
            return self.mixed(name, args, keywords)
        return self._checked(name, result, values, named)

    def _refused(self, error: Exception, values: list[object]) -> None:
        """Keep what torch says to a 16-bit tensor on a flagged line."""
        half = any(t.dtype in (torch.float16, torch.bfloat16) for t in self._tensors(values))
        if half and self.plan.flagged(self.path, self.line) and re.search(r"Half|BFloat16|overflow", str(error)):
            text = f"{type(error).__name__}: {error}".split("\n")[0][:140]
            self.refusals.append((self.path, self.line, text))

    def clip(self, last: str, args: list[object], keywords: dict[str, object]) -> Any:
        given = args[0] if args else keywords.get("parameters", keywords.get("tensors"))
        if last == "get_total_norm":
            tensors = [self.actual(g) for g in (given if isinstance(given, list | tuple) else [given])]
            return self.guarded(lambda: torch.nn.utils.get_total_norm([t for t in tensors if isinstance(t, Tensor)]))
        if isinstance(given, Tensor):
            parameters: list[Any] = [given]
        elif isinstance(given, list | tuple) and all(isinstance(g, Tensor) for g in given):
            parameters = list(given)
        else:
            parameters = list(self.parameters_in(given))
        values: list[Any] = []
        for value in args[1:]:
            actual = self.actual(value)
            values.append(
                self.number(actual)
                if isinstance(actual, Unknown)
                else float(actual)
                if isinstance(actual, Tensor) and actual.numel() == 1 and last != "clip_grads_with_norm_"
                else actual
            )
        named: dict[str, Any] = {}
        for key, value in keywords.items():
            if key not in ("parameters", "tensors"):
                actual = self.actual(value)
                named[key] = self.number(actual) if isinstance(actual, Unknown) else actual
        if named.get("max_norm", 0.0) is None or (values and values[0] is None):
            raise self.fail(TypeError("max_norm is None"))
        before = self._norm(parameters)
        name = "clip_grad_norm_" if last == "clip_grad_norm" else last
        result = self.guarded(lambda: getattr(torch.nn.utils, name)(parameters, *values, **named))
        self.ledger.note("clip", before=before, after=self._norm(parameters))
        return result

    def _norm(self, parameters: list[Any]) -> float:
        grads = [p.grad.detach().double().reshape(-1) for p in parameters if getattr(p, "grad", None) is not None]
        return float(torch.cat(grads).norm()) if grads else 0.0

    def gradient(self, args: list[object], keywords: dict[str, object]) -> Any:
        outputs = args[0] if args else keywords.get("outputs")
        inputs = args[1] if len(args) > 1 else keywords.get("inputs")
        outs = [self.actual(o) for o in (outputs if isinstance(outputs, list | tuple) else [outputs])]
        ins = [self.actual(i) for i in (inputs if isinstance(inputs, list | tuple) else [inputs])]
        outs = [o if not isinstance(o, Unknown) else self.loss(o) for o in outs]
        ins = [self.tensor(i) if isinstance(i, Unknown) else i for i in ins]
        total = sum((o.float().sum() for o in outs if isinstance(o, Tensor)), torch.zeros(()))
        create = self.truth(keywords.get("create_graph", False), None)
        if not create:
            self.ledger.note("grad", autocast=torch.is_autocast_enabled("cpu"))
        targets = [i for i in ins if isinstance(i, Tensor)]
        if not total.requires_grad or not targets or not all(t.requires_grad for t in targets):
            raise Unsupported("a gradient with respect to something without a graph")
        found = self.guarded(
            lambda: torch.autograd.grad(total, targets, create_graph=create, retain_graph=True, allow_unused=True)
        )
        return tuple(g if g is not None else torch.zeros_like(t) for g, t in zip(found, targets, strict=True))

    def save(self, args: list[object], keywords: dict[str, object]) -> None:
        content = args[0] if args else keywords.get("obj")
        where = args[1] if len(args) > 1 else keywords.get("f")
        for scaler in scalers_in(content):
            self.guarded(scaler.__getstate__)
        live = [(s.get_scale(), getattr(s, "_init_scale", 0.0)) for s in self.scalers if getattr(s, "wanted", True)]
        self.saved.append((content, where if isinstance(where, str) else None, self.path, self.line))
        self.ledger.note(
            "save",
            kinds=sorted(kinds_in(content)),
            live=live,
            skipped=sum(1 for s in self.ledger.steps if s.gradients is None),
        )

    def load(self, args: list[object]) -> object:
        return self.saved[-1][0] if self.saved else Unknown("checkpoint")

    def saw_dict(self, path: str, node: ast.AST, content: object) -> None:
        kinds = kinds_in(content)
        if kinds:
            self.states.append((path, getattr(node, "lineno", 0), kinds))
            live = [(s.get_scale(), getattr(s, "_init_scale", 0.0)) for s in self.scalers if getattr(s, "wanted", True)]
            first = getattr(node, "lineno", 0)
            self.ledger.note(
                "dict", kinds=sorted(kinds), live=live, first=first, last=getattr(node, "end_lineno", first)
            )

    # -------------------------------------------------------------- builtins

    def call_builtin(self, name: str, args: list[object], keywords: dict[str, object]) -> Any:
        if name in ERRORS:
            text = args[0] if args and isinstance(args[0], str) else name
            return ERRORS[name](text)
        handler = getattr(self, f"builtin_{name}", None)
        if handler is not None:
            return handler(*args, **keywords)
        return Unknown(name)

    def builtin_print(self, *args: object, **keywords: object) -> None:
        self.observe(list(args))

    def builtin_len(self, value: object) -> object:
        if isinstance(value, Unknown):
            if value.data:
                return SIZE
            sequence = self._sequence(value)
            return len(sequence) if isinstance(sequence, list) else self.plan.length
        if isinstance(value, CONTAINERS) or isinstance(value, str):
            return len(value)
        if isinstance(value, Tensor):
            return value.shape[0] if value.dim() else 1
        if isinstance(value, Instance) and value.cls.find("__len__") is not None:
            return self.machine.call(self.machine.attribute(value, "__len__"), [], {})
        return self.plan.length

    def builtin_range(self, *args: object) -> range:
        numbers = []
        for value in args:
            if isinstance(value, Unknown):
                value = self.number(value)
            elif isinstance(value, Tensor):
                value = int(value)
            if not isinstance(value, int | float):
                raise self.fail(TypeError(f"'{type(value).__name__}' object cannot be interpreted as an integer"))
            numbers.append(int(value))
        return self.guarded(lambda: range(*numbers))  # type: ignore[no-any-return]

    def builtin_enumerate(self, value: object, start: object = 0) -> Iterator[object]:
        first = start if isinstance(start, int) else 0
        return ((first + i, item) for i, item in enumerate(self.iterate(value)))

    def builtin_zip(self, *values: object, **keywords: object) -> Iterator[object]:
        return iter(zip(*(self.iterate(v) for v in values), strict=False))

    def builtin_iter(self, value: object, *rest: object) -> object:
        if isinstance(value, Unknown):
            value = self._sequence(value)
        if isinstance(value, Loader):
            return value.endless()
        return self.iterate(value)

    def builtin_next(self, value: object, *default: object) -> object:
        if isinstance(value, Unknown):
            value = Loader(self, value.label).endless() if "endless" not in value.attrs else value.attrs["endless"]
        if isinstance(value, Iterator):
            try:
                return next(value)
            except StopIteration as error:
                if default:
                    return default[0]
                raise self.fail(error) from error
        if isinstance(value, list | tuple) and value:
            return value[0]
        return default[0] if default else Unknown("next")

    def builtin_list(self, value: object = ()) -> list[object]:
        if isinstance(value, Unknown) and re.search(r"param", value.name):
            return list(self.parameters_in(value))
        return list(itertools.islice(self.iterate(value), MAX_ITEMS))

    def builtin_tuple(self, value: object = ()) -> tuple[object, ...]:
        return tuple(self.builtin_list(value))

    def builtin_set(self, value: object = ()) -> list[object]:
        return self.builtin_list(value)

    def builtin_sorted(self, value: object = (), **keywords: object) -> list[object]:
        return self.builtin_list(value)

    def builtin_reversed(self, value: object = ()) -> list[object]:
        return self.builtin_list(value)[::-1]

    def builtin_dict(self, *args: object, **keywords: object) -> dict[object, object]:
        out: dict[object, object] = {}
        for value in args:
            if isinstance(value, dict):
                out.update(value)
            elif isinstance(value, list | tuple | Iterator):
                for pair in value:
                    if isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], PLAIN):
                        out[pair[0]] = pair[1]
        out.update(keywords)
        node = ast.Constant(value=None, lineno=self.line, end_lineno=self.line, col_offset=0)
        self.saw_dict(self.path, node, out)
        return out

    def builtin_map(self, function: object, *values: object) -> list[object]:
        return [self.machine.call(function, list(items), {}) for items in self.builtin_zip(*values)]  # type: ignore[call-overload]

    def builtin_filter(self, function: object, values: object) -> list[object]:
        keep: Callable[[object], bool] = (
            (lambda item: self.truth(item, None))
            if function is None
            else (lambda item: self.truth(self.machine.call(function, [item], {}), None))
        )
        if isinstance(values, Unknown):
            values = self.parameters_in(values)
        return [item for item in self.iterate(values) if keep(item)]

    def builtin_sum(self, values: object, start: object = 0) -> object:
        total: object = start
        for item in self.iterate(values):
            total = (
                item
                if isinstance(total, int) and total == 0 and isinstance(item, Unknown)
                else self.binary(ast.Add(), total, item)
            )
        return total

    def _extreme(self, pick: Callable[..., Any], values: tuple[object, ...], keywords: dict[str, object]) -> object:
        items = list(self.iterate(values[0])) if len(values) == 1 else list(values)
        numbers = [
            self.number(i) if isinstance(i, Unknown) else float(i) if isinstance(i, Tensor) and i.numel() == 1 else i
            for i in items
        ]
        plain = [n for n in numbers if isinstance(n, int | float)]
        if not plain:
            return keywords.get("default", items[0] if items else Unknown("max"))
        return pick(plain)

    def builtin_max(self, *values: object, **keywords: object) -> object:
        return self._extreme(max, values, keywords)

    def builtin_min(self, *values: object, **keywords: object) -> object:
        return self._extreme(min, values, keywords)

    def builtin_any(self, values: object) -> bool:
        return any(self.truth(v, None) for v in self.iterate(values))

    def builtin_all(self, values: object) -> bool:
        return all(self.truth(v, None) for v in self.iterate(values))

    def builtin_abs(self, value: object) -> object:
        if isinstance(value, Tensor):
            return value.abs()
        return abs(value) if isinstance(value, int | float) else value

    def builtin_float(self, value: object = 0.0) -> object:
        self.observe(value)
        if isinstance(value, Tensor):
            return float(value.detach().reshape(-1)[0])
        if isinstance(value, Unknown):
            return float(self.number(value))
        return self.guarded(lambda: float(value)) if isinstance(value, int | float | str) else 0.0  # type: ignore[arg-type]

    def builtin_int(self, value: object = 0, *rest: object) -> object:
        if isinstance(value, Tensor):
            return int(value.detach().reshape(-1)[0])
        if isinstance(value, Unknown):
            return int(self.number(value))
        if isinstance(value, str) and len(value) > 20:
            return 0
        return self.guarded(lambda: int(value)) if isinstance(value, int | float | str) else 0  # type: ignore[call-overload]

    def builtin_bool(self, value: object = False) -> bool:
        return self.truth(value, None)

    def builtin_str(self, value: object = "") -> str:
        return str(value) if isinstance(value, int | float | str) else "text"

    builtin_repr = builtin_str
    builtin_format = lambda self, value="", *rest: self.builtin_str(value)  # noqa: E731

    def builtin_round(self, value: object, *rest: object) -> object:
        if isinstance(value, int | float):
            digits = rest[0] if rest and isinstance(rest[0], int) else None
            return self.guarded(lambda: round(value, digits))
        return value

    def builtin_pow(self, base: object, exponent: object) -> object:
        return self.binary(ast.Pow(), base, exponent)

    def builtin_divmod(self, a: object, b: object) -> object:
        return (self.binary(ast.FloorDiv(), a, b), self.binary(ast.Mod(), a, b))

    def builtin_isinstance(self, value: object, kinds: object) -> bool:
        wanted = kinds if isinstance(kinds, tuple) else (kinds,)
        actual = value.bound if isinstance(value, Unknown) and value.bound is not None else value
        table: dict[str, Any] = {
            "tuple": tuple,
            "list": list,
            "dict": dict,
            "int": int,
            "float": float,
            "str": str,
            "bool": bool,
        }
        for kind in wanted:
            if isinstance(kind, UserClass) and isinstance(actual, Instance):
                if actual.cls is kind or kind in actual.cls.bases:
                    return True
            elif isinstance(kind, Dotted):
                short = kind.name.rsplit(".", 1)[-1]
                if kind.name.startswith("builtins.") and short in table and isinstance(actual, table[short]):
                    return True
                if short == "Tensor" and (isinstance(actual, Tensor) or (isinstance(actual, Unknown) and actual.data)):
                    return True
                if short == "Optimizer" and isinstance(actual, Optimizer):
                    return True
                if short == "GradScaler" and isinstance(actual, Scaler):
                    return True
                if short == "Module" and isinstance(actual, nn.Module):
                    return True
        return False

    def builtin_issubclass(self, *args: object) -> bool:
        return False

    def builtin_callable(self, value: object) -> bool:
        return isinstance(value, Function | Bound | Native | Wrapped | Partial | Unknown | UserClass)

    def builtin_hasattr(self, value: object, name: object) -> bool:
        if not isinstance(name, str) or name.startswith("__"):
            return False
        if isinstance(value, Instance):
            return name in value.attrs or value.cls.find(name) is not None
        if isinstance(value, Unknown) and value.bound is None:
            return self.truth(Unknown(f"hasattr({value.label}, {name!r})"), None)
        return not isinstance(self.attribute(value, name), Unknown)

    def builtin_getattr(self, value: object, name: object, *default: object) -> object:
        if not isinstance(name, str):
            return Unknown("attribute")
        if default and isinstance(value, Instance) and not (name in value.attrs or value.cls.find(name) is not None):
            return default[0]
        return self.machine.attribute(value, name)

    def builtin_setattr(self, value: object, name: object, new: object) -> None:
        if isinstance(name, str) and not name.startswith("__"):
            self.machine.set_attribute(value, name, new)

    def builtin_vars(self, value: object = None) -> object:
        return dict(value.attrs) if isinstance(value, Instance) else {}

    def builtin_id(self, value: object) -> int:
        return id(value)

    def builtin_type(self, value: object, *rest: object) -> object:
        return value.cls if isinstance(value, Instance) else Unknown("type")

    def builtin_object(self) -> object:
        return Unknown("object")

    def builtin_slice(self, *args: object) -> slice:
        return slice(*(a if isinstance(a, int) else None for a in args))

    # ------------------------------------------------------ standard library

    def call_standard(self, name: str, args: list[object], keywords: dict[str, object]) -> Any:
        last = name.rsplit(".", 1)[-1]
        if name in ("contextlib.nullcontext", "contextlib.suppress"):
            return Dotted("contextlib.nullcontext")
        if name == "contextlib.ExitStack":
            return Stack()
        if name == "functools.partial" and args:
            return Partial(args[0], args[1:], keywords)
        if name.startswith("functools."):
            return args[0] if args and last not in ("wraps", "lru_cache") else Native(last, lambda f: f)
        if name.startswith("itertools."):
            return self._itertools(last, args, keywords)
        if name.startswith("collections."):
            if last == "deque":
                return deque(self.builtin_list(*args[:1]), maxlen=1000)
            if last in ("OrderedDict", "Counter", "ChainMap"):
                return self.builtin_dict(*args, **keywords)
            if last == "defaultdict":
                return Unknown("defaultdict")
            return Unknown(last)
        if name.startswith("math."):
            return self._math(last, args)
        if name in ("argparse.ArgumentParser",):
            return Parser(self)
        if name in ("argparse.Namespace", "types.SimpleNamespace"):
            return Namespace(self, dict(keywords))
        if name == "dataclasses.field":
            default = keywords.get("default")
            factory = keywords.get("default_factory")
            return self.machine.call(factory, [], {}) if factory is not None else default
        if name in ("dataclasses.asdict",) and args and isinstance(args[0], Instance):
            out = dict(args[0].attrs)
            return out
        if name in ("copy.deepcopy", "copy.copy") and args:
            return self._copy(args[0])
        if name.startswith("os.path."):
            return "path"
        if name.startswith("random."):
            self.plan.random += 1
            return {"random": 0.3, "randint": 1, "uniform": 0.5}.get(last, Unknown(last))
        return Unknown(last, self.ledger.backwards)

    def _copy(self, value: object) -> object:
        actual = self.actual(value) if not isinstance(value, Instance) else value
        if isinstance(actual, Model):
            made = Model(f"{actual.label}#copy", self.ledger)
            with torch.no_grad():
                for a, b in zip(made.parameters(), actual.parameters(), strict=False):
                    if a.shape == b.shape:
                        a.copy_(b)
            return made
        if isinstance(actual, Scaler) and self.run.scaled:
            return self.guarded(lambda: actual.__getstate__() and actual)
        if isinstance(value, State):
            return value
        if isinstance(value, list):
            return list(value)
        if isinstance(value, dict):
            return dict(value)
        if isinstance(actual, Tensor):
            return actual.detach().clone()
        return value

    def _math(self, last: str, args: list[object]) -> object:
        function = getattr(math, last, None)
        values = [
            float(a) if isinstance(a, Tensor) and a.numel() == 1 else self.number(a) if isinstance(a, Unknown) else a
            for a in args
        ]
        if (
            not callable(function)
            or not all(isinstance(v, int | float) for v in values)
            or last in ("factorial", "comb", "perm")
        ):
            return Unknown(last)
        return self.guarded(lambda: function(*values))

    def _itertools(self, last: str, args: list[object], keywords: dict[str, object]) -> object:
        if last == "chain":
            out: list[object] = []
            for value in args:
                if isinstance(value, Unknown) and re.search(r"param", value.name):
                    out.extend(self.parameters_in(value))
                else:
                    out.extend(itertools.islice(self.iterate(value), MAX_ITEMS))
            return out
        if last == "count":
            start = args[0] if args and isinstance(args[0], int) else 0
            return itertools.count(start)
        if last == "cycle" and args:
            value = self._sequence(args[0]) if isinstance(args[0], Unknown) else args[0]
            return value.endless() if isinstance(value, Loader) else itertools.cycle(self.iterate(value))
        if last == "islice" and args:
            numbers = [
                a if isinstance(a, int) else self.number(a) if isinstance(a, Unknown) else None for a in args[1:]
            ]
            return itertools.islice(self.iterate(args[0]), *[int(n) if n is not None else None for n in numbers])
        if last in ("product", "zip_longest"):
            return list(itertools.islice(itertools.product(*(list(self.iterate(a)) for a in args)), 100))
        if last == "repeat" and args:
            count = args[1] if len(args) > 1 and isinstance(args[1], int) else self.plan.length
            return [args[0]] * min(count, 100)
        return list(self.iterate(args[0])) if args else []


class Plan:
    """What a replay knows before it runs: flagged places, given flags and numbers, who owns which weights."""

    def __init__(
        self,
        flagged: list[tuple[str, int, int]],
        wanted: list[tuple[str, int]],
        flags: dict[str, bool],
        numbers: dict[str, float],
        events: dict[str, set[int]],
        jumps: dict[str, set[int]],
        tries: dict[str, list[tuple[int, int]]],
        classes: set[str],
        model_names: set[str],
        length: int,
    ) -> None:
        self._flagged = flagged
        self.wanted = wanted
        self.flags = flags
        self.numbers = numbers
        self._events = events
        self._jumps = jumps
        self._tries = tries
        self._classes = classes
        self._model_names = model_names
        self.length = length
        self.assignment: dict[str, list[tuple[str, int, int]]] | None = None
        self.default_dtype: torch.dtype | None = None
        self.random = 0

    def flagged(self, path: str, line: int) -> bool:
        return any(p == path and first <= line <= last for p, first, last in self._flagged)

    def flag(self, label: str) -> bool | None:
        for key in (label, label.rsplit(".", 1)[-1]):
            if key in self.flags:
                return self.flags[key]
        return None

    def has_events(self, path: str, arm: tuple[int, int]) -> bool:
        return arm != (0, 0) and any(arm[0] <= line <= arm[1] for line in self._events.get(path, ()))

    def jumps(self, path: str, arm: tuple[int, int]) -> bool:
        return arm[1] in self._jumps.get(path, ())

    def in_try(self, path: str, line: int) -> bool:
        return any(first <= line <= last for first, last in self._tries.get(path, ()))

    def interesting(self, cls: UserClass) -> bool:
        return cls.name in self._classes

    def used_as_model(self, name: str) -> bool:
        return name in self._model_names

    # -------------------------------------------------- who owns which weights

    def parameters_of(self, world: TorchWorld, label: str) -> list[nn.Parameter]:
        """The weights that an optimizer (or a `params` argument) of that name works on.

        After a first run the shares are settled (`assignment`): then all networks and optimizers are known.
        """
        shares = self.assignment if self.assignment is not None else self.assign(world)
        if label not in shares:
            claimed = self._claimed(world)
            models = {name: m for name, m in world.models.items() if not FROZEN.search(name)}
            if len(models) > 1:
                best = max(models, key=lambda name: _affinity(label, name))
                if _affinity(label, best) > 0:
                    return list(models[best].parameters())
            return [p for p in _unique(models.values()) if id(p) not in claimed] or _unique(models.values())
        out: list[nn.Parameter] = []
        for name, offset, stride in shares[label]:
            model = world.models.get(name)
            if model is None and not _constructed(name) and "#" not in name:
                model = world.model(name)
                unknown = Unknown(name)
                world.roles.setdefault(name, model)
                unknown.bound = model
            if model is not None:
                layers = list(model.parameters())
                pairs = [layers[i : i + 2] for i in range(0, len(layers), 2)]
                out.extend(p for pair in pairs[offset::stride] for p in pair)
        return _unique_parameters(out)

    def _claimed(self, world: TorchWorld) -> set[int]:
        claimed: set[int] = set()
        for name, optimizer in world.optimizers.items():
            if _constructed(name) and optimizer._groups is not None:
                claimed |= {id(p) for group in optimizer._groups for p in group["params"]}
        return claimed

    def assign(self, world: TorchWorld) -> dict[str, list[tuple[str, int, int]]]:
        """Which networks (all layers, or every n-th from an offset) each unnamed optimizer gets."""
        unnamed = [name for name in world.optimizers if not _constructed(name)]
        claimed = self._claimed(world)
        models = [
            name
            for name, model in world.models.items()
            if not FROZEN.search(name) and any(id(p) not in claimed for p in model.parameters())
        ] or [name for name in world.models if not FROZEN.search(name)]
        if not unnamed or not models:
            return {}
        if len(unnamed) == 1:
            return {unnamed[0]: [(m, 0, 1) for m in models]}
        if len(models) == 1:
            return {o: [(models[0], i, len(unnamed))] for i, o in enumerate(unnamed)}
        return {o: [(m, 0, 1) for m in ms] for o, ms in self._matching(unnamed, models).items()}

    def _matching(self, optimizers: list[str], models: list[str]) -> dict[str, list[str]]:
        """Give every network to the optimizer whose name is nearest; nobody stays without."""
        out: dict[str, list[str]] = {name: [] for name in optimizers}
        pairs = sorted(
            ((_affinity(o, m), -i, -j, o, m) for i, o in enumerate(optimizers) for j, m in enumerate(models)),
            reverse=True,
        )
        taken: set[str] = set()
        for score, _, _, o, m in pairs:
            if score > 0 and m not in taken and not out[o]:
                out[o].append(m)
                taken.add(m)
        for o in optimizers:
            if not out[o]:
                free = [m for m in models if m not in taken]
                if free:
                    out[o].append(free[0])
                    taken.add(free[0])
        for m in models:
            if m not in taken:
                best = max(optimizers, key=lambda o: _affinity(o, m))
                out[best].append(m)
        return out

    def loss_parameters(self, world: TorchWorld, label: str) -> list[nn.Parameter]:
        """The weights that a loss of unknown origin depends on: those that are optimized."""
        found = world.parameters_in([*world.optimizers.values()])
        if len(world.optimizers) > 1:
            best = max(world.optimizers, key=lambda name: _affinity(name, label))
            if _affinity(best, label) > 0:
                return world.optimizers[best].parameters()
        if not found:
            found = world.parameters_in([*world.models.values()])
        if not found:
            found = list(world.model("model").parameters())
        return [p for p in found if p.requires_grad]


def _unique(models: Any) -> list[nn.Parameter]:
    out: dict[int, nn.Parameter] = {}
    for model in models:
        for parameter in model.parameters():
            out.setdefault(id(parameter), parameter)
    return list(out.values())


def _unique_parameters(parameters: list[nn.Parameter]) -> list[nn.Parameter]:
    return list({id(p): p for p in parameters}.values())


def _constructed(label: str) -> bool:
    return " in line " in label


def _affinity(a: str, b: str) -> int:
    """How much two names share: equal words count 4, equal beginnings 3, equal first letters 1."""
    first, second = _words(a), _words(b)
    index = (re.findall(r"\[(\d+)\]", a) or [""])[-1], (re.findall(r"\[(\d+)\]", b) or [""])[-1]
    score = 5 if index[0] and index[0] == index[1] else 0
    for x in first:
        for y in second:
            if x == y:
                score += 4
            elif len(x) >= 2 and len(y) >= 2 and (x.startswith(y) or y.startswith(x)):
                score += 3
            elif (len(x) == 1 or len(y) == 1) and x[0] == y[0]:
                score += 2
    return score


def _words(label: str) -> set[str]:
    spaced = re.sub(r"([a-z])([A-Z])", r"\1 \2", label.rsplit(".", 1)[-1])
    words = {w.lower() for w in re.findall(r"[A-Za-z]+", spaced)}
    return words - {
        "opt",
        "optim",
        "optimizer",
        "optimizers",
        "optimiser",
        "net",
        "model",
        "models",
        "loss",
        "self",
        "scaler",
        "the",
    }


class Loader:
    """A data loader: `plan.length` batches per epoch, each with a number of its own."""

    def __init__(self, world: TorchWorld, label: str) -> None:
        self.world = world
        self.label = label
        self.ticks = 0

    def __len__(self) -> int:
        return self.world.plan.length

    def _batch(self) -> Unknown:
        self.ticks += 1
        return Unknown(f"{self.label}.batch", self.ticks, data=True)

    def fresh(self) -> Iterator[object]:
        self.world.passes += 1
        for _ in range(self.world.plan.length):
            yield self._batch()

    def endless(self) -> Iterator[object]:
        while True:
            yield self._batch()


class Stack:
    """contextlib.ExitStack."""

    def __init__(self) -> None:
        self.entered: list[object] = []


class Namespace:
    """Attributes with known values; the rest is unknown."""

    def __init__(self, world: TorchWorld, values: dict[str, object]) -> None:
        self.world = world
        self.values = values

    def get(self, name: str) -> object:
        if name not in self.values:
            self.values[name] = Unknown(f"args.{name}")
        return self.values[name]

    def set(self, name: str, new: object) -> None:
        self.values[name] = new


class Parser:
    """argparse: the defaults of the arguments that the program adds; flags are on where AMP hangs on them."""

    def __init__(self, world: TorchWorld) -> None:
        self.world = world
        self.values: dict[str, object] = {}

    def call(self, name: str, args: list[object], keywords: dict[str, object]) -> object:
        if name == "add_argument":
            self._add(args, keywords)
            return None
        if name in ("parse_args", "parse_known_args"):
            made = Namespace(self.world, self.values)
            return made if name == "parse_args" else (made, [])
        if name.startswith("add_"):
            return self
        if name == "set_defaults":
            self.values.update(keywords)
        return Unknown(name)

    def _add(self, args: list[object], keywords: dict[str, object]) -> None:
        names = [a for a in args if isinstance(a, str)]
        if not names:
            return
        name = str(keywords.get("dest") or max(names, key=len).lstrip("-").replace("-", "_"))
        value: object
        if keywords.get("action") in ("store_true", "store_false"):
            given = self.world.plan.flag(name)
            default = keywords["action"] == "store_false"
            value = (
                given if given is not None else (True if AMP_FLAG.search(name) and not OFF.search(name) else default)
            )
            if value != default:
                self.world.assume(f"args.{name} is {'true' if value else 'false'}")
        elif "default" in keywords and keywords["default"] is not None:
            value = keywords["default"]
            given = self.world.plan.flag(name)
            if isinstance(value, bool) and given is not None:
                value = given
        else:
            value = Unknown(f"args.{name}")
        self.values[name] = value


class Context:
    """The `ctx` of a custom autograd function."""

    def __init__(self, real: Any) -> None:
        self.real = real


def _static(function: object) -> object:
    return function[1] if isinstance(function, tuple) else function


def kinds_in(value: object, depth: int = 0) -> set[str]:
    """Of what the states are that a saved object holds: model, optimizer, scheduler, scaler."""
    if depth > 5:
        return set()
    if isinstance(value, State):
        return {value.what}
    if isinstance(value, Scaler):
        return {"scaler"}
    if isinstance(value, Optimizer):
        return {"optimizer"}
    if isinstance(value, dict):
        return set().union(*(kinds_in(v, depth + 1) for v in value.values())) if value else set()
    if isinstance(value, list | tuple):
        return set().union(*(kinds_in(v, depth + 1) for v in value)) if value else set()
    if isinstance(value, Instance):
        return set().union(*(kinds_in(v, depth + 1) for v in value.attrs.values())) if value.attrs else set()
    if isinstance(value, Unknown):
        return (
            kinds_in(value.bound, depth + 1)
            if value.bound is not None
            else kinds_in({k: v for k, v in value.attrs.items() if not isinstance(v, Unknown)}, depth + 1)
        )
    return set()


def scalers_in(value: object) -> list[Scaler]:
    """Scaler objects (not their states) that an object to be saved holds, and that pickle would ask for theirs."""
    if isinstance(value, Scaler):
        return [value]
    if isinstance(value, dict):
        return [s for v in value.values() for s in scalers_in(v)]
    if isinstance(value, list | tuple):
        return [s for v in value for s in scalers_in(v)]
    return []


def _flat(values: object) -> Iterator[object]:
    if isinstance(values, list | tuple):
        for value in values:
            yield from _flat(value)
    elif isinstance(values, dict):
        yield from _flat(list(values.values()))
    else:
        yield values


def _product(values: Any) -> int:
    total = 1
    for value in values:
        if isinstance(value, int):
            total *= max(abs(value), 1)
    return total


def _snake(name: str) -> str:
    known = {
        "MSELoss": "mse_loss", "L1Loss": "l1_loss", "CrossEntropyLoss": "cross_entropy", "BCELoss": "binary_cross_entropy",
        "BCEWithLogitsLoss": "binary_cross_entropy_with_logits", "NLLLoss": "nll_loss", "KLDivLoss": "kl_div",
        "SmoothL1Loss": "smooth_l1_loss", "HuberLoss": "huber_loss",
    }  # fmt: skip
    return known.get(name, name.lower())


def _symbol(op: ast.operator) -> str:
    return {"Add": "+", "Sub": "-", "Mult": "*", "Div": "/", "Mod": "%", "FloorDiv": "//", "Pow": "**"}.get(
        type(op).__name__, type(op).__name__
    )
