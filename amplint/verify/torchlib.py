"""The functions of torch that a replay knows."""

from __future__ import annotations

import ast
import re
from typing import Any

import torch
from torch import Tensor, nn

from amplint.verify import device
from amplint.verify.guesses import (
    FUNCTIONAL_DENIED,
    NATIVE_SCALERS,
    REDUCING,
    flat,
    product,
    snake,
)
from amplint.verify.members import (
    Members,
)
from amplint.verify.objects import (
    AmpDecorated,
    BudgetSpent,
    Dotted,
    EnoughSeen,
    Function,
    Native,
    Unknown,
    UserError,
    Wrapped,
)
from amplint.verify.plain import Unsupported
from amplint.verify.props import (
    Loader,
    kinds_in,
    scalers_in,
)
from amplint.verify.standins import (
    Composite,
    Model,
    Optimizer,
    Scaler,
    Scheduler,
    fitted,
    noise,
    raised_by_amp,
)

WEIGHTLESS = re.compile(r"ReLU$|ELU$|Sigmoid|Tanh|SiLU|Softmax|Dropout|Identity|Flatten|Pool|Pad|Upsample|Shuffle")


class TorchLibrary(Members):
    """Functions and classes of torch."""

    # ------------------------------------------------------ library functions

    def call_library(self, name: str, args: list[object], keywords: dict[str, object]) -> Any:
        head = name.split(".", 1)[0]
        if head == "torch":
            return self.call_torch(name, args, keywords)
        if name in NATIVE_SCALERS:
            made = self.make_scaler("torch.amp.GradScaler", ["cuda"], {})
            made.is_called = True
            return made
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
        if name.startswith(("torch.optim.lr_scheduler", "torch.optim.swa_utils")):
            if last in ("AveragedModel",):
                return self._copy(args[0]) if args else Unknown(last)
            actual = map(self.actual, (*args, *keywords.values()))
            paced = next((value for value in actual if isinstance(value, Optimizer)), None)
            return Scheduler(f"{last} in line {self.line}", self.ledger, paced)
        if name.startswith("torch.optim."):
            given = args[0] if args else keywords.get("params")
            return self.optimizer(
                f"optimizer in line {self.line}", given if given is not None else Unknown("params"), keywords
            )
        if name in ("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes") and args:
            return self.launched(args, keywords)
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
        if name in ("torch.set_autocast_dtype", "torch.set_autocast_gpu_dtype", "torch.set_autocast_cpu_dtype"):
            kind = "cpu" if "cpu" in name or (args and args[0] == "cpu") else "cuda"
            for dtype in (a for a in args if isinstance(a, torch.dtype)):
                self.autocast_dtypes[kind] = dtype
            return None
        if name == "torch.finfo" and args and isinstance(args[0], torch.dtype):
            return torch.finfo(args[0])
        if name == "torch.compile" or last in ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel"):
            return args[0] if args else Native("wrap", lambda f, *a, **k: f)
        if last in ("custom_fwd", "custom_bwd"):
            return (
                AmpDecorated(args[0], last, keywords)
                if args
                else Native(last, lambda f: AmpDecorated(f, last, keywords))
            )
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
                return name.startswith(("torch.cuda", "torch.backends"))
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
        if name in ("torch.chunk", "torch.tensor_split") and self._tensors(args[:1]):
            return self.parts(self._tensors(args[:1])[0], args[1] if len(args) > 1 else keywords.get("chunks", 2))
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

    def launched(self, args: list[object], keywords: dict[str, object]) -> object:
        """The first of the processes that a program starts on a function of its own."""
        given = keywords.get("args", args[1] if len(args) > 1 else ())
        self.assume("one process trains")
        return self.machine.call(args[0], [0, *(given if isinstance(given, list | tuple) else ())], {})

    def layer(self, name: str, args: list[object]) -> Any:
        """A layer or container of layers; containers keep the stand-ins they are given."""
        if name.endswith(("Sequential", "ModuleList", "ModuleDict")):
            held = args[0] if args else None
            if isinstance(held, dict | list) and held and all(isinstance(v, Native) for v in flat([held])):
                # losses, which hold no weights
                return held
            for value in flat(args):
                if isinstance(value, Unknown) and value.bound is None:
                    self.bind(value, "model")
        members = [m for m in map(self.actual, flat(args)) if isinstance(m, nn.Module)]
        label = f"{name.rsplit('.', 1)[-1]} in line {self.line}#{next(self.serial)}"
        # in a network of the user's a layer is a layer; by itself it stands for a network
        depth = 3 if not self.machine.constructing else 0 if WEIGHTLESS.search(name) else 1
        made: Model = Composite(label, self.ledger, members) if members else Model(label, self.ledger, depth=depth)
        if self.plan.default_dtype is not None:
            self.ledger.note("cast", dtype=str(self.plan.default_dtype), model=label)
            made.to(self.plan.default_dtype)
        self.models[label] = made
        return made

    def loss_object(
        self, last: str, settings: dict[str, object], args: list[object], keywords: dict[str, object]
    ) -> Any:
        return self.functional(f"torch.nn.functional.{snake(last)}", args, {})

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
        if last in ("isfinite", "isnan", "isinf"):
            given = values[0] if values else None
            if isinstance(given, Tensor) and given.requires_grad and self.bad_loss():
                return torch.tensor(last != "isfinite")
        if (
            last == "binary_cross_entropy"
            and self.regions
            and self.regions[-1].enabled
            and self.regions[-1].written == "cuda"
        ):
            self.ledger.note("bce")
        for value in [*values, *named.values()]:
            if (isinstance(value, int) and abs(value) > 10_000) or (
                isinstance(value, tuple | list) and product(value) > 10_000
            ):
                return self.mixed(name, args, keywords)
        if last == "where" and len(values) == 3 and isinstance(values[0], Tensor) and values[0].dtype != torch.bool:
            values[0] = values[0] > 0
        if (
            len(values) >= 2
            and REDUCING.search(last)
            and isinstance(values[0], Tensor)
            and isinstance(values[1], Tensor)
        ) and values[0].shape != values[1].shape:
            values[:2] = [fitted(values[0]), fitted(values[1])]
        if re.fullmatch(r"conv(_transpose)?[123]d", last):
            values, named = _convolvable(values, int(last[-2])), {}
        values, named = self.as_on_cuda(path, target, values, named)
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
            if "unsafe to autocast" in str(error):
                self.ledger.note("refused", text=str(error).strip().splitlines()[0])
            self._refused(error, [*values, *named.values()])
            return self.mixed(name, args, keywords)
        return self._checked(name, result, values, named)

    def _refused(self, error: Exception, values: list[object]) -> None:
        """Keep what torch says to a 16-bit tensor on a flagged line."""
        self.see_clash(error, values)
        kinds = [*(t.dtype for t in self._tensors(values)), *(v for v in values if isinstance(v, torch.dtype))]
        half = torch.float16 in kinds or torch.bfloat16 in kinds
        if half and self.plan.flagged(self.path, self.line) and re.search(r"Half|BFloat16|overflow", str(error)):
            text = f"{type(error).__name__}: {error}".split("\n")[0][:140]
            self.refusals.append((self.path, self.line, text))

    def call_scaler(self, scaler: Scaler, args: list[object], keywords: dict[str, object]) -> None:
        """What timm's NativeScaler does when it is called (timm/utils/cuda.py)."""
        names = ("loss", "optimizer", "clip_grad", "clip_mode", "parameters", "create_graph", "need_update")
        given = {**dict(zip(names, args, strict=False)), **keywords}
        self.method(self.method(scaler, "scale", [given.get("loss")], {}), "backward", [], {})
        if not self.truth(given.get("need_update", True), None):
            return
        self.method(scaler, "unscale_", [given.get("optimizer")], {})
        if given.get("clip_grad") is not None:
            self.clip("clip_grad_norm_", [given.get("parameters"), given["clip_grad"]], {})
        self.method(scaler, "step", [given.get("optimizer")], {})
        self.method(scaler, "update", [], {})

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
            # a limit is a number, whatever its name lets one think
            actual = value if isinstance(value, Unknown) and value.bound is None else self.actual(value)
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
                actual = value if isinstance(value, Unknown) and value.bound is None else self.actual(value)
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
            self.ledger.note("grad", autocast=device.autocast_enabled())
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


def _convolvable(values: list[Any], dimensions: int) -> list[Any]:
    """Input and weight of a convolution in shapes that fit each other, made of the stand-ins' numbers."""
    given = [
        fitted(v) if v.dtype == torch.float32 else fitted(v).to(v.dtype) for v in values[:2] if isinstance(v, Tensor)
    ]
    if len(given) < 2:
        return values
    space = {1: (4,), 2: (2, 2), 3: (2, 2, 1)}[dimensions]
    return [given[0].reshape(1, 4, *space), given[1].reshape(4, 4, *(1,) * dimensions)]
