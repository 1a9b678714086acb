"""What is made when a program constructs something, and what is done when it calls something."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from amplint.verify.guesses import (
    AVERAGE,
    CHECKPOINTER,
    LOSS,
    MODEL,
    OPTIMIZER,
    OPTIMIZER_CLASS,
    PASS_THROUGH,
    SCALER,
    SCHEDULER,
    TRANSFORM,
    snake,
)
from amplint.verify.objects import (
    Bound,
    DeviceOf,
    Dotted,
    Function,
    Instance,
    ModuleValue,
    Property,
    Super,
    Unknown,
    UserClass,
    UserError,
    Wrapped,
)
from amplint.verify.operations import (
    Operations,
)
from amplint.verify.plain import CONTAINERS, PLAIN, Unsupported
from amplint.verify.props import Keeper
from amplint.verify.standins import (
    DuckOptimizer,
    Model,
    Optimizer,
    Region,
    Scaler,
    Scheduler,
    mixture,
)

#: what asks an object for its state to write it somewhere
PICKLING = {f"{module}.{name}" for module in ("pickle", "cloudpickle", "dill") for name in ("dump", "dumps")}

#: the name of a class, or of a function that makes something
MAKER = re.compile(
    r"^[A-Z]\w*[a-z]|^_?(build|make|create|get|init|load|define|setup|prepare|from)(_|$)|(builder|factory|maker)$"
)


class Callables(Operations):
    """Constructions and calls."""

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
            instance.native.own_step = cls.find("step") is not None
        elif any(isinstance(b, Unknown) and CHECKPOINTER.search(b.name) for b in cls.bases):
            instance.native = Keeper([self.actual(v) for v in [*args, *keywords.values()]])

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
            real: Any = torch.cuda.amp.GradScaler if ".cuda.amp" in name else torch.amp.GradScaler
            probe = self._constructed(lambda: real(*args, **keywords))
            self.ledger.note(
                "constructed",
                device=str(getattr(probe, "_device", "")),
                scale=settings.get("init_scale", 65536.0),
                args=[a for a in args if isinstance(a, PLAIN)],
            )
        label = f"scaler in line {self.line}"
        return self.scaler(label, {**settings, "constructed": True})

    def _constructed(self, make: Callable[[], Any]) -> Any:
        """What a class of torch.amp makes; a TypeError is about its arguments, whoever's frame it was raised in."""
        try:
            return self.guarded(make)
        except UserError as error:
            error.from_torch |= isinstance(error.error, TypeError)
            error.made_here &= not error.from_torch
            raise

    def make_region(self, name: str, args: list[object], keywords: dict[str, object]) -> Region:
        legacy = ".cuda.amp" in name or ".cpu.amp" in name
        names = (
            ["enabled", "dtype", "cache_enabled"] if legacy else ["device_type", "dtype", "enabled", "cache_enabled"]
        )
        settings = dict(zip(names, args, strict=False))
        settings.update(keywords)
        device: object = ("cpu" if ".cpu.amp" in name else "cuda") if legacy else settings.get("device_type", "cuda")
        dtype = settings.get("dtype")
        if not legacy and isinstance(device, DeviceOf):
            wanted = ValueError("Expected `device_type` of type `str`, got: `<class 'torch.device'>`")
            raise UserError(wanted, self.path, 0, True)
        if not legacy and isinstance(device, (*PLAIN, torch.device)) and not isinstance(dtype, Unknown):
            probe_settings = {k: v for k, v in settings.items() if not isinstance(v, Unknown)}
            if isinstance(dtype, bool | str):
                wanted_dtype = f"the dtype of an autocast region must be a torch.dtype, not {type(dtype).__name__}"
                raise UserError(TypeError(wanted_dtype), self.path, 0, True)
            real: Any = torch.amp.autocast
            self._constructed(lambda: real(**probe_settings))
        text = device if isinstance(device, str) else "cuda"
        misplaced = str(settings["enabled"]) if isinstance(settings.get("enabled"), torch.dtype) else ""
        self.ledger.note("autocast", device=text, misplaced=misplaced)
        enabled = settings.get("enabled", True)
        cache = settings.get("cache_enabled")
        self.unentered.append((self.path, self.line))
        written = "cpu" if text.startswith("cpu") else "cuda"
        return Region(
            self.ledger,
            written,
            dtype if isinstance(dtype, torch.dtype) else self.autocast_dtypes.get(written),
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
            loss = function.cls.library_loss()
            if loss is not None:
                if isinstance(forward, Function | Wrapped):
                    return self.machine.call(Bound(forward, function), args, keywords)
                return self.call_library(f"torch.nn.functional.{snake(loss)}", args, keywords)
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
        if function is None or isinstance(function, (PLAIN, CONTAINERS)):
            raise self.fail(TypeError(f"'{type(function).__name__}' object is not callable"))
        if isinstance(function, Scaler) and function.is_called:
            self.call_scaler(function, args, keywords)
            return None
        if isinstance(function, Optimizer | Scaler | Scheduler | Tensor):
            raise self.fail(TypeError(f"'{type(function).__name__}' object is not callable"))
        raise Unsupported(f"a call of {type(function).__name__}")

    def call_model(self, model: nn.Module, args: list[object], keywords: dict[str, object]) -> Any:
        inputs = self._tensors([*args, *(v for v in keywords.values())])
        self.see_halves(list(inputs))
        made = self.guarded(lambda: model(*inputs))
        if isinstance(made, Tensor) and len(self.outputs) < 500:
            self.outputs.append(float(made.detach().float().sum()))
        return made

    def call_unknown(self, unknown: Unknown, args: list[object], keywords: dict[str, object]) -> object:
        bound = unknown.bound or self.roles.get(unknown.label)
        if isinstance(bound, Model):
            return self.call_model(bound, args, keywords)
        values = [*args, *keywords.values()]
        self.observe(values)
        name = unknown.name
        given = self.parameters_in([v for v in values if isinstance(v, list | tuple | nn.Module)])
        if given and re.search(r"clip", name, re.I):
            self.assume(f"{unknown.label}() clips like clip_grad_norm_")
            return self.call_library("torch.nn.utils.clip_grad_norm_", [given, 1.0], {})
        if _all_weights(args[:1]) and (OPTIMIZER.search(name) or OPTIMIZER_CLASS.search(name) or name.endswith("()")):
            # a class that is found by its name in the settings is an optimizer where it is given weights
            return self.optimizer(f"optimizer in line {self.line}", args[0], keywords)
        if given and self.plan.flagged(self.path, self.line):
            self.outside.append(unknown.label)
        if unknown.label in PICKLING and args:
            self.save(args[:1], {})
            return Unknown(f"{unknown.label}()")
        if "to_save" in keywords:
            self.save([self.actual(keywords["to_save"])], {})
        elif name[:1].isupper() and CHECKPOINTER.search(name):
            return Keeper([self.actual(v) for v in values])
        averaged = next((v for v in map(self.actual, args) if isinstance(v, nn.Module)), None)
        if averaged is not None and name[:1].isupper() and AVERAGE.search(name):
            kept = self._copy(averaged)
            assert isinstance(kept, nn.Module)
            return kept.to(next((v for v in values if isinstance(v, torch.dtype)), None))
        if SCHEDULER.search(name):  # `actual` may settle what an unknown is, so nobody else is asked
            paced = next((v for v in map(self.actual, values) if isinstance(v, Optimizer)), None)
            if paced is not None:
                return Scheduler(f"{name} in line {self.line}", self.ledger, paced)
        for value in values:
            actual = self.actual(value) if not isinstance(value, Unknown) or value.bound is not None else value
            if isinstance(actual, Scaler | Optimizer | DuckOptimizer):
                self.outside.append(unknown.label)
                self.assume(f"{unknown.label}() leaves the scaler and the optimizer alone")
        given_function = args[0] if args else None
        if re.search(r"^(launch|spawn)", name) and isinstance(given_function, Function):
            rest = keywords.get("args", ())
            self.assume("one process trains")
            return self.machine.call(given_function, list(rest) if isinstance(rest, list | tuple) else [], {})
        if PASS_THROUGH.search(name) and args:
            return args[0] if len(args) == 1 or not all(isinstance(a, Unknown) for a in args) else tuple(args)
        tensors = self._tensors(values)
        loss_like = bool(LOSS.search(name))
        # nobody calls a network on nothing but constants
        makes = MAKER.search(name) or (values and all(isinstance(value, PLAIN) for value in values))
        if MODEL.search(name) and not loss_like and not tensors and makes:
            return self.model(f"{unknown.label} in line {self.line}#{next(self.serial)}")
        if MODEL.search(name) and not loss_like and name != "model_fn":
            return self.call_model(self.bind(unknown, "model"), args, keywords)
        if tensors:
            grads = any(t.requires_grad for t in tensors)
            if not grads and not loss_like and (self.plan.used_as_model(name) or _may_be_network(unknown.label)):
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


def _all_weights(args: list[object]) -> bool:
    """Whether the arguments are a list of weights, or of groups of them."""
    groups = [v for arg in args for v in (arg if isinstance(arg, list) else [])]
    return bool(groups) and all(isinstance(g, nn.Parameter) or (isinstance(g, dict) and "params" in g) for g in groups)


def _may_be_network(label: str) -> bool:
    """A callable that is a name or an attribute of `self`, and is not named after something else."""
    name = label.removeprefix("self.")
    return "." not in name and not TRANSFORM.search(name)
