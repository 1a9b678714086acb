"""The builtins and the few modules of the standard library that a replay knows."""

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

from amplint.verify.guesses import ERRORS, MODEL, SETTINGS
from amplint.verify.objects import (
    Bound,
    Dotted,
    Function,
    Instance,
    Native,
    Partial,
    Unknown,
    UserClass,
    Wrapped,
)
from amplint.verify.plain import CONTAINERS, MAX_ITEMS, PLAIN
from amplint.verify.props import (
    Feed,
    Loader,
    Namespace,
    Parser,
    Stack,
)
from amplint.verify.standins import (
    SIZE,
    Model,
    Optimizer,
    Scaler,
    State,
)
from amplint.verify.torchlib import (
    TorchLibrary,
)


class PythonLibrary(TorchLibrary):
    """Builtins and standard library."""

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
        if isinstance(value, (CONTAINERS, str)):
            return len(value)
        if isinstance(value, Tensor):
            return value.shape[0] if value.dim() else 1
        if isinstance(value, Instance) and value.cls.find("__len__") is not None:
            return self.machine.call(self.machine.attribute(value, "__len__"), [], {})
        return self.plan.length

    def builtin_range(self, *args: object) -> range:
        numbers = []
        guessed = len(args) == 2 and isinstance(args[1], Unknown)
        for value in args:
            if isinstance(value, Unknown):
                value = self.number(value)
            elif isinstance(value, Tensor):
                value = int(value)
            if not isinstance(value, int | float):
                raise self.fail(TypeError(f"'{type(value).__name__}' object cannot be interpreted as an integer"))
            numbers.append(int(value))
        if guessed and numbers[1] <= numbers[0]:
            # nobody writes a loop that never turns: the end lies behind the begin
            numbers[1] = numbers[0] + 2
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
            return Feed(value.endless())
        return self.iterate(value)

    def builtin_next(self, value: object, *default: object) -> object:
        if isinstance(value, Unknown):
            value = Loader(self, value.label).endless() if "endless" not in value.attrs else value.attrs["endless"]
        if isinstance(value, Feed) and value.taken >= self.plan.length:
            if "StopIteration" in (self.plan.caught(self.path, self.line) or ""):
                value.taken = 0
                raise self.fail(StopIteration())
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
        items = self.builtin_list(values[0]) if len(values) == 1 else list(values)
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
        return self.guarded(lambda: float(value)) if isinstance(value, int | float | str) else 0.0

    def builtin_int(self, value: object = 0, *rest: object) -> object:
        if isinstance(value, Tensor):
            return int(value.detach().reshape(-1)[0])
        if isinstance(value, Unknown):
            return int(self.number(value))
        if isinstance(value, str) and len(value) > 20:
            return 0
        return self.guarded(lambda: int(value)) if isinstance(value, int | float | str) else 0

    def builtin_bool(self, value: object = False) -> bool:
        return self.truth(value, None)

    def builtin_str(self, value: object = "") -> object:
        if isinstance(value, int | float | str | torch.device | torch.dtype):
            return str(value)
        if isinstance(value, Dotted) and value.name.startswith("torch.device."):
            return value.name.rsplit(".", 1)[1]
        return Unknown(f"str({value.label})") if isinstance(value, Unknown) else "text"

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
                if actual.cls.is_kind_of(kind):
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
                if isinstance(actual, nn.Module) and (
                    short == "Module"
                    or (kind.name.startswith("torch.nn.") and re.search(r"Linear|Conv|Embedding", short))
                ):
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
        if name == "functools.reduce" and len(args) > 1:
            return self._reduced(args[0], [*args[2:3], *self.builtin_list(args[1])])
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

    def _reduced(self, function: object, items: list[object]) -> object:
        """`functools.reduce`: two at a time; an operator that is not known adds."""
        if not items:
            return Unknown("reduce")
        total = items[0]
        for item in items[1:]:
            known = isinstance(function, Function | Bound | Wrapped | Native)
            total = self.machine.call(function, [total, item], {}) if known else self.binary(ast.Add(), total, item)
        return total

    def _copy(self, value: object) -> object:
        if isinstance(value, Unknown) and value.bound is None and value.label not in self.roles and not value.data:
            if MODEL.search(value.name) and not SETTINGS.search(value.name):
                value = self.bind(value, "model")
        if isinstance(value, Instance):
            return self._copied_object(value)
        actual = self.actual(value)
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

    def _copied_object(self, value: Instance) -> Instance:
        """A network of the user's class with weights of its own; other objects are shared."""
        if not isinstance(self.native(value), nn.Module):
            return value
        made = Instance(value.cls)
        made.attrs = {name: self._copy(held) for name, held in value.attrs.items()}
        return made

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
        if last in ("isfinite", "isnan", "isinf") and self.bad_loss():
            return last != "isfinite"
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
