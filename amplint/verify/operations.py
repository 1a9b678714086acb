"""What operators, losses, loops and contexts do with stand-ins."""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from amplint.verify import cuda_facts, device
from amplint.verify.guesses import (
    COUNT,
    ERRORS,
    INTEGER,
    LIMIT,
    LOSS,
    OPTIMIZER,
    REDUCING,
    SCALER,
    SEQUENCE_OF_HOOKS,
    START,
    TOTAL,
    symbol,
)
from amplint.verify.objects import (
    Arms,
    BudgetSpent,
    Dotted,
    EnoughSeen,
    GeneratorCall,
    Instance,
    Unknown,
    UserClass,
    UserError,
)
from amplint.verify.plain import (
    BINARY,
    COMPARE,
    CONTAINERS,
    MAX_ITEMS,
    PLAIN,
    UNARY,
    Unsupported,
    bounded_binary,
)
from amplint.verify.props import (
    Loader,
    Stack,
)
from amplint.verify.standins import (
    SCALER_KEY,
    SIZE,
    Model,
    Optimizer,
    Region,
    Scheduler,
    State,
    mixture,
    noise,
    raised_by_amp,
)
from amplint.verify.surroundings import (
    Surroundings,
)

#: names of which two make a number together
NUMBER = re.compile(f"{START.pattern}|{TOTAL.pattern}|{COUNT.pattern}", re.I)
#: the backwards after which a run ends that has come to so many statements by then
ENOUGH, LONG = 12, 6000
#: a number of steps that no replay comes to
MANY = 1000


class Remainder(int):
    """What is left where an interval was cut to two steps, so that it is compared with the second at most."""


class Operations(Surroundings):
    """Operators, losses and backwards, iteration, contexts."""

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
            if value.data and not (INTEGER.search(value.name) or LIMIT.search(value.name)):
                return self.tensor(value)
            if isinstance(other, int | float) and not isinstance(other, bool):
                return self.number(value)
        return value

    def binary(self, op: ast.operator, left: object, right: object) -> object:
        a, b = self._operand(left, right), self._operand(right, left)
        a, b = self._operand(a, b), self._operand(b, a)
        if self.plan.short and isinstance(op, ast.Mod) and isinstance(a, int) and isinstance(b, int):
            # what happens every so many steps happens at every second one
            if b > self.plan.length:
                return Remainder(a % 2)
        if isinstance(a, Unknown) and isinstance(b, Unknown):
            if NUMBER.search(a.name) and NUMBER.search(b.name) and not (a.data or b.data):
                return self.binary(op, self.number(a), self.number(b))
            return Unknown(f"{a.label} {symbol(op)} {b.label}")
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
        if isinstance(op, ast.Div) and isinstance(a, str) and isinstance(b, str):
            # a path, which is a text here
            return f"{a}/{b}"[:MAX_ITEMS]
        if isinstance(a, list) and isinstance(b, list) and isinstance(op, ast.Sub | ast.BitAnd | ast.BitOr):
            return _as_sets(op, a, b)
        if isinstance(a, (*PLAIN, *CONTAINERS)) and isinstance(b, (*PLAIN, *CONTAINERS)):
            return self.guarded(lambda: bounded_binary(op, a, b))
        return Unknown("result")

    def unary(self, op: ast.unaryop, value: object) -> object:
        if isinstance(value, Unknown):
            value = self._operand(value, None)
            if isinstance(value, Unknown):
                return Unknown(f"-{value.label}", value.tick, value.data)
        if isinstance(value, (PLAIN, Tensor)):
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
        left, right = _device_text(left), _device_text(right)
        if isinstance(left, Remainder) and isinstance(right, int):
            # `i % 64 == 63` asks for the last one
            right = min(right, 1)
        if self.plan.short and isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE):
            left, right = (2 if type(v) is int and v > MANY else v for v in (left, right))
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
            if self.decided.get(left.label) is False:
                # what is optional is None where it is not true
                return True
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
                named = INTEGER.search(value.name) or LIMIT.search(value.name)
                return self.tensor(value).mean() if value.data and not named else self.number(value)
            if value.data and not isinstance(other, Unknown):
                return value
        return value

    def decided_by_number(self, op: ast.cmpop, left: object, right: object, arms: Arms, held: bool) -> None:
        """Note for which number a condition on an unknown one would lead to the lines that the replay is there for."""
        wanted = self._leading(arms)
        unknown, limit = (left, right) if isinstance(left, Unknown) else (right, left)
        if wanted is None or wanted is held or not isinstance(unknown, Unknown) or type(limit) not in (int, float):
            return
        above = isinstance(op, ast.Gt | ast.GtE) == (unknown is left)
        strict = isinstance(op, ast.Lt | ast.Gt)
        if isinstance(op, ast.Eq | ast.NotEq):
            step = int(isinstance(op, ast.Eq) is not wanted)
        elif above is wanted:
            step = int(strict) if above else -int(strict)
        else:
            step = -int(not strict) if above else int(not strict)
        self.numbers_wanted[unknown.name] = limit + step  # type: ignore[operator]

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
        sign = "==" if isinstance(op, ast.Eq | ast.NotEq) else "in" if isinstance(op, ast.In | ast.NotIn) else ">"
        text = f"{unknown.label} {sign} {shown}"
        result = Unknown(text)
        if equal or isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE):
            return result
        return not self.truth(result, None)

    def as_on_cuda(
        self, name: str, operation: Callable[..., Any], values: list[Any], keywords: dict[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of an operation, in fp32 where CUDA autocast would make them so and the CPU's does not."""
        region = self.regions[-1] if self.regions else None
        if not self.run.autocast or region is None or not region.enabled or region.written != "cuda":
            return values, keywords
        halves = (torch.float16, torch.bfloat16)
        if device.kind() != "cpu" or name.endswith("_") or not any(t.dtype in halves for t in self._tensors(values)):
            return values, keywords
        if cuda_facts.result_dtype(name, operation, values, keywords, region.dtype) is not torch.float32:
            return values, keywords
        self.assume(f"{name.rsplit('.', 1)[-1]} runs in fp32 as on cuda (FakeTensor)")

        def wide(value: Any) -> Any:
            return value.float() if isinstance(value, Tensor) and value.dtype in halves else value

        return [wide(v) for v in values], {k: wide(v) for k, v in keywords.items()}

    def tensor_operation(self, name: str, operation: Callable[..., Any], args: list[object]) -> Any:
        """Real torch where it works and stays finite, else a mixture of the tensors."""
        actual = [self.actual(a) for a in args]
        actual = [self.tensor(a) if isinstance(a, Unknown) else a for a in actual]
        self.see_halves(actual)
        actual, _ = self.as_on_cuda(name, operation, actual, {})
        try:
            result = operation(*actual)
        except (UserError, Unsupported, BudgetSpent, EnoughSeen):
            raise
        except Exception as error:
            if raised_by_amp(error):
                raise self.fail(error) from error
            self.see_clash(error, actual)
            return self.mixed(name, actual, {})
        return self._checked(name, result, actual, {})

    def _checked(self, name: str, result: Any, args: list[object], keywords: dict[str, object]) -> Any:
        """A finite input must not become NaN because of the stand-in data; infinities of gradients stay."""
        if isinstance(result, Tensor) and result.is_floating_point() and not bool(torch.isfinite(result).all()):
            if result.dtype == torch.float16 and bool(torch.isinf(result).any()):
                self.infinite.append((self.path, self.line))
            inputs = list(self._tensors([*args, *keywords.values()]))
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
        """A stand-in for an operation that does not work on the stand-ins of its arguments."""
        self.replaced.extend((f.path, f.node.lineno, name) for f in self.functions)
        tensors = list(self._tensors([*args, *keywords.values()]))
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
        if ledger.backwards >= ledger.limit or (ledger.backwards >= ENOUGH and self.statements > LONG):
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
        on = device.autocast_enabled()
        ledger.note("backward", autocast=on)
        ledger.backwards += 1
        if ledger.backwards == 1:
            self.machine.budget += self.machine.more
        self.losses.append(float(tensors[0].detach().float().sum()))
        create = bool(keywords.get("create_graph", False))
        versions = {id(p): p.grad._version for p in self._all_parameters() if p.grad is not None}

        def go() -> None:
            torch.autograd.backward(tensors, retain_graph=True, create_graph=create)

        if self.run.backward_outside:
            with torch.autocast(device.kind(), enabled=False):
                self.guarded(go)
        else:
            self.guarded(go)
        self.reached.update(id(p) for p in self._all_parameters() if p.grad is not None)
        if ledger.scaled_since:
            ledger.scaled_backwards += 1
            ledger.scaled_since = False
            if self.run.overflow_at == ledger.scaled_backwards and self.run.scaled:
                self._overflow(before, versions)

    def _all_parameters(self) -> list[nn.Parameter]:
        """The weights of all networks; which ones there are changes only with another network."""
        if self._weights_of != len(self.models):
            self._weights_of, self._weights = len(self.models), self.parameters_in([*self.models.values()])
        return self._weights

    def _overflow(self, before: dict[int, Tensor | None], versions: dict[int, int]) -> None:
        """Put an infinity into the gradients of one network that this backward reached."""
        reached = [
            p
            for p in self._all_parameters()
            if p.grad is not None and (before.get(id(p)) is not p.grad or versions.get(id(p)) != p.grad._version)
        ]
        owned = [{id(p) for p in optimizer.parameters()} for optimizer in self.optimizers.values()]
        owners = [mine for mine in owned if any(id(p) in mine for p in reached)]
        # another network in each of the set-ups
        owner = owners[(self.run.overflow_at.bit_length() - 1) % len(owners)] if owners else None
        chosen = [p for p in reached if owner is None or id(p) in owner]
        with torch.no_grad():
            for parameter in chosen[:1]:
                assert parameter.grad is not None
                # later ones go against the sign of the gradient: a clip by value would make it what it was
                sign = 1.0 if self.run.overflow_at == 1 else -float(parameter.grad.view(-1)[0])
                parameter.grad.view(-1)[0] = math.nan if self.run.nan else math.copysign(math.inf, sign)
        self.ledger.injected.append(self.ledger.backwards)

    # ------------------------------------------------------------- iteration

    def iterate(self, value: object) -> Iterator[object]:
        if isinstance(value, Unknown):
            value = self._sequence(value)
        if isinstance(value, range):
            # two of the same blocks in a network are as good as many
            most = 2 if self.machine.constructing else self.plan.length
            return iter(itertools.islice(value, min(most, len(value))))
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
            if (
                (name.endswith("s") and OPTIMIZER.search(name))
                or (SCALER.search(name) and name.endswith("s"))
                or re.search(r"models|nets$|networks|modules$", name, re.I)
            ):
                made = [Unknown(f"{unknown.label}[{i}]") for i in range(2)]
            elif re.search(r"param", name, re.I):
                return self.parameters_in(unknown)
            elif unknown.data and re.search(r"\[|\.batch", unknown.label):
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

    def parts(self, tensor: Tensor, count: object) -> list[object]:
        """As many parts of a batch as the program asks for: its real one is larger than the stand-in."""
        number = self.number(count) if isinstance(count, Unknown) else count
        if not isinstance(number, int) or number < 1:
            return [tensor]
        self.divided += 1
        if self.run.short and number > 1 and self.divided % 3 == 0:
            number -= 1
        if tensor.dim() and number <= tensor.shape[0]:
            return list(torch.tensor_split(tensor, number))
        return self.unpack(tensor, min(number, 64))

    def loads_nothing(self, key: object) -> bool:
        """Whether a checkpoint of this run has nothing of a scaler under a key."""
        asked = isinstance(key, str) and SCALER_KEY.search(key) is not None
        return asked and (self.run.empty_state or self.run.no_state)

    def item(self, value: object, key: object) -> object:
        loaded = isinstance(value, Unknown | dict) and not isinstance(value, State)
        if loaded and self.loads_nothing(key):
            return {} if self.run.empty_state else None
        if isinstance(key, Unknown):
            key = self.number(key) if isinstance(value, list | tuple) else key
        if isinstance(value, Unknown):
            if value.bound is not None:
                value = value.bound
            elif isinstance(key, PLAIN):
                if value.data and isinstance(key, int) and value.label.endswith("]"):
                    return value.child(key, f"{value.label}[{key}]")
                mapping = value.attrs.get("mapping")
                if isinstance(mapping, dict) and key in mapping:
                    return mapping[key]
                sequence = value.attrs.get("sequence") if isinstance(key, int) else None
                if isinstance(sequence, list) and isinstance(key, int) and -len(sequence) <= key < len(sequence):
                    return sequence[key]
                return value.child(key, f"{value.label}.{key}" if isinstance(key, str) else f"{value.label}[{key!r}]")
            elif value.data:
                value = self.tensor(value)
            else:
                return value.child("[]", f"{value.label}[]")
        if isinstance(value, Tensor):
            if isinstance(key, str):
                return value
            wanted = self._index(key, value)
            try:
                return value[wanted]
            except Exception:
                return value
        if isinstance(value, Model):
            return value.part(str(key)) if isinstance(key, PLAIN) else value
        if isinstance(value, State) and value.what == "scaler":
            self.ledger.note("scaler.read", key=str(key))
        if isinstance(value, dict):
            if isinstance(key, PLAIN):
                if key in value:
                    return value[key]
                if isinstance(value, State) or "params" in value:
                    # of a state, or of a group of weights, a stand-in holds the least
                    return Unknown(str(key))
                if not self.machine.trying:
                    # nobody asks for what is not there: something that is out of sight has put it in
                    self.assume(f"{key!r} is in a dict")
                    value[key] = Unknown(str(key))
                    return value[key]
                raise self.fail(KeyError(key))
            return value.get(id(key), next(iter(value.values()), Unknown("item")))
        if isinstance(value, torch.Size) and isinstance(key, int) and not -len(value) <= key < len(value):
            return SIZE
        if isinstance(value, list | tuple | str | range | deque):
            if isinstance(key, int | slice):
                return self.guarded(lambda: value[key])  # type: ignore[index]
            return value[0] if len(value) else Unknown("item")
        if isinstance(value, (Optimizer, Scheduler)):
            return Unknown("item")
        if isinstance(value, Instance) and value.cls.find("__getitem__") is not None:
            return self.machine.call(self.machine.attribute(value, "__getitem__"), [key], {})
        if isinstance(value, Dotted | UserClass):
            return value
        return Unknown("item")

    def _index(self, key: object, target: Tensor) -> Any:
        """A key for a tensor: made-up data selects by its sign where it fits, else the first row or column."""

        def usable(part: object, whole: bool) -> Any:
            actual = self.actual(part)
            if isinstance(actual, Unknown):
                actual = self.tensor(actual)
            if isinstance(actual, Tensor) and actual.is_floating_point():
                return actual > 0 if whole and actual.shape == target.shape else torch.tensor([0])
            return actual

        return tuple(usable(part, False) for part in key) if isinstance(key, tuple) else usable(key, True)

    def set_item(self, value: object, key: object, new: object) -> None:
        if isinstance(value, Unknown):
            if value.bound is None and isinstance(key, PLAIN):
                value.attrs[key] = new
            return
        if isinstance(value, dict):
            if len(value) > MAX_ITEMS:
                raise BudgetSpent
            name = key if isinstance(key, PLAIN) else id(key)
            old = value.get(name)
            if self.run.learn and isinstance(old, Tensor) and isinstance(new, Tensor) and old.shape == new.shape:
                if old.dtype in (torch.float16, torch.bfloat16):
                    self.note_move(old, new)
            value[name] = new
        elif isinstance(value, list) and isinstance(key, int | slice):
            self.guarded(lambda: value.__setitem__(key, new))  # type: ignore[index]
        elif isinstance(value, Tensor):
            self.observe(new)

            def write() -> None:
                with torch.no_grad():
                    value[self._index(key, value)] = self.actual(new)

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


def _device_text(value: object) -> object:
    """What a device is compared with: the text that names it."""
    if isinstance(value, Dotted) and value.name.startswith("torch.device."):
        return value.name.rsplit(".", 1)[1]
    return str(value) if isinstance(value, torch.device) else value


def _as_sets(op: ast.operator, left: list[object], right: list[object]) -> list[object]:
    """An operator of sets, which are lists here because stand-ins need not be hashable."""

    def member(item: object, items: list[object]) -> bool:
        return any(item is other or (isinstance(item, PLAIN) and item == other) for other in items)

    if isinstance(op, ast.Sub):
        return [item for item in left if not member(item, right)]
    if isinstance(op, ast.BitAnd):
        return [item for item in left if member(item, right)]
    return [*left, *(item for item in right if not member(item, left))]
