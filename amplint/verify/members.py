"""Methods and attributes of stand-ins and of unknown objects."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import _refresh_per_optimizer_state

from amplint.verify import functions
from amplint.verify.callables import Callables
from amplint.verify.guesses import (
    CASTS,
    ERRORS,
    INTEGER,
    LIMIT,
    LOSS,
    MODEL,
    MODEL_METHODS,
    OPTIMIZER,
    OPTIMIZER_METHODS,
    SCALER,
    SCALER_METHODS,
    SCHEDULER,
    SETTINGS,
    TENSOR_DENIED,
    snake,
)
from amplint.verify.objects import (
    Bound,
    BudgetSpent,
    DeviceOf,
    Dotted,
    EnoughSeen,
    Function,
    Instance,
    Native,
    Partial,
    Super,
    Unknown,
    UserClass,
    UserError,
    Wrapped,
)
from amplint.verify.plain import CONTAINERS, MAX_ITEMS, PLAIN, Unsupported, container_method
from amplint.verify.props import (
    Keeper,
    Loader,
    Namespace,
    Parser,
    Stack,
)
from amplint.verify.standins import (
    SIZE,
    DuckOptimizer,
    Item,
    Model,
    Optimizer,
    Region,
    Scaler,
    Scheduler,
    State,
    raised_by_amp,
)

#: the device of a program, whatever the replay's is
CUDA = "torch.device.cuda"


class Members(Callables):
    """Methods and attributes."""

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
        if isinstance(value, functions.Context):
            return self.context_method(value, name, args)
        if isinstance(value, Scheduler):
            if name in ("step", "state_dict", "load_state_dict"):
                return getattr(value, name)(*args[:1] if name == "load_state_dict" else ())
            return [0.1] if name.startswith("get") else Unknown(name)
        if isinstance(value, Parser):
            return value.call(name, args, keywords)
        if isinstance(value, Keeper):
            value.held.extend(map(self.actual, args))
            if name.startswith("save"):
                self.save([value.held], {})
            return Unknown(name)
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
            if name == "update" and args and isinstance(args[0], Unknown):
                return None
            if len(args) == 1 and isinstance(args[0], list | tuple) and len(args[0]) > MAX_ITEMS:
                raise BudgetSpent
            return self.guarded(lambda: found(*args, **keywords))
        if isinstance(value, (torch.device | torch.dtype, PLAIN)):
            return Unknown(name)
        if isinstance(value, Region):
            if name == "__enter__":
                return self.enter(value)
            self.leave(value)
            return None
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
        if name in ("backward", "manual_backward") and args and self._tensors(args[:1]):
            self.assume(f"{label}.{name}() runs the backward of what it is given")
            self.backward(args[:1], keywords)
            return None
        if name in ("parameters", "named_parameters", "modules", "named_modules"):
            return self.method(self.bind(value, "model"), name, args, keywords)
        if ((name in MODEL_METHODS and not value.data) or name in ("eval", "train")) and MODEL.search(label):
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
        if name in ("items", "values", "keys") and not value.data:
            mapping = value.attrs.setdefault(
                "mapping", {k: Unknown(f"{value.label}[{k}]") for k in ("first", "second")}
            )
            if isinstance(mapping, dict):
                return list(getattr(mapping, name)())
        if name in ("items", "values", "keys") and value.data:
            child = value.child("values", f"{value.label}.values")
            return [(("key"), child)] if name == "items" else [child] if name == "values" else ["key"]
        if name in ("size", "dim", "numel") or name == "__len__":
            return SIZE if args or name != "size" else (SIZE, SIZE)
        if name == "get" and args:
            if self.loads_nothing(args[0]):
                return {} if self.run.empty_state else None
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
        if name in ("scale", "step", "unscale_") and not args and not keywords:
            parameter = "outputs" if name == "scale" else "optimizer"
            missing = f"GradScaler.{name}() missing 1 required positional argument: '{parameter}'"
            raise UserError(TypeError(missing), self.path, 0, True)
        if name == "scale":
            given = args[0] if args else keywords.get("outputs")
            if isinstance(given, Item):
                return self.guarded(lambda: scaler.scale(given))
            if isinstance(given, list | tuple):
                return [scaler.scale(self.loss(v)) for v in given]
            return self.guarded(lambda: scaler.scale(self.loss(given)))
        if name in ("step", "unscale_"):
            values = [self._optimizer_like(a) if i == 0 else self.actual(a) for i, a in enumerate(args)]
            named = {k: self._optimizer_like(v) if k == "optimizer" else self.actual(v) for k, v in keywords.items()}
            try:
                result = self.guarded(lambda: getattr(scaler, name)(*values, **named))
            except UserError as error:
                if "No inf checks were recorded for this optimizer" in error.text and not self._fed(values[:1]):
                    raise Unsupported("an optimizer with weights that no loss depends on") from error
                raise
            if self.run.fail and name == "unscale_":
                self.run_failures()
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
            if state is None or (isinstance(state, dict) and not state):
                return self.guarded(lambda: scaler.load_state_dict(state))
            self.ledger.note("load", what="scaler", owner=scaler.label, known=False)
            return None
        return self.guarded(lambda: getattr(scaler, name)(*args))

    def _fed(self, optimizers: list[object]) -> bool:
        """Whether a backward has ever reached the weights of an optimizer."""
        return any(id(p) in self.reached for p in self.parameters_in(optimizers))

    def run_failures(self) -> None:
        """Let the second unscale_ in a `try` be followed by the exception that its handler waits for."""
        caught = self.plan.caught(self.path, self.line)
        count = sum(1 for e in self.ledger.events if e.kind == "unscale_" and e.line == self.line)
        if caught is not None and count == 2:
            kind = ERRORS.get(caught, RuntimeError)
            raise UserError(kind("a fault of something called here"), self.path, self.line)

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
            if self.run.learn:
                with torch.no_grad():
                    for i, parameter in enumerate(model.parameters()):
                        parameter.mul_(0.5).add_(0.1 * (i + 1))
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
        if name in ("update_parameters", "update", "step") and args:
            other = self.actual(args[0])
            pairs = zip(model.parameters(), other.parameters(), strict=False) if isinstance(other, nn.Module) else ()
            for kept, new in pairs:
                with torch.no_grad():
                    self.tensor_method(kept, "lerp_", [new.detach().to(kept.dtype), 0.001], {})
            return None
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
            return Item(tensor.detach().reshape(-1)[0]) if tensor.numel() else 0.0
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
                tensor.register_hook(hook)  # type: ignore[no-untyped-call]
            return None
        if name == "to":
            dtypes = [a for a in [*args, *keywords.values()] if isinstance(a, torch.dtype)]
            return tensor.to(dtypes[0]) if dtypes else tensor
        if name in ("values", "items", "keys"):
            return [("key", tensor)] if name == "items" else [tensor] if name == "values" else ["key"]
        if name in ("chunk", "tensor_split"):
            return self.parts(tensor, args[0] if args else keywords.get("chunks", 2))
        if name == "size":
            return tuple(tensor.shape) if not args else tensor.shape[0] if tensor.dim() else 1
        if TENSOR_DENIED.search(name) or not hasattr(Tensor, name):
            return self.mixed(name, [tensor, *args], keywords)
        values = [self._argument(a) for a in args]
        named = {k: self._argument(v) for k, v in keywords.items()}
        named.pop("device", None)
        if name.startswith("masked_fill") and values and isinstance(values[0], Tensor):
            mask = values[0] if values[0].dtype == torch.bool else values[0] > 0
            values[0] = (
                mask
                if mask.shape == tensor.shape
                else torch.zeros_like(tensor, dtype=torch.bool).fill_(bool(mask.any()))
            )
        if name not in CASTS:
            self.see_halves([tensor, *values, *named.values()])
        half_before = (
            tensor.detach().clone()
            if self.run.learn and name.endswith("_") and tensor.dtype in (torch.float16, torch.bfloat16)
            else None
        )
        if name.endswith("_") and tensor.numel() > 0:
            self.observe(values)

        if callable(getattr(Tensor, name)) and not name.endswith("_"):
            (tensor, *values), named = self.as_on_cuda(name, getattr(Tensor, name), [tensor, *values], named)

        def operate() -> Any:
            found = getattr(tensor, name)
            if not callable(found):
                return found
            if (name.endswith("_") and not torch.is_grad_enabled()) or (
                name.endswith("_") and not tensor.requires_grad
            ):
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
            self.note_move(half_before, tensor)
        return self._checked(name, result, [tensor, *values], named)

    def _argument(self, value: object) -> Any:
        actual = self.actual(value)
        if isinstance(actual, Unknown):
            return (
                self.number(actual) if INTEGER.search(actual.name) or LIMIT.search(actual.name) else self.tensor(actual)
            )
        return actual

    def context_method(self, context: functions.Context, name: str, args: list[object]) -> object:
        """What a direction of an autograd Function asks of its context."""
        if name == "save_for_backward":
            values = [self.actual(a) for a in args]
            self.guarded(lambda: context.save(values))
            return None
        if name in functions.QUIET:
            return None
        return self.machine.call(self.attribute(context, name), args, {})

    def apply_function(self, cls: UserClass, args: list[object], keywords: dict[str, object]) -> Any:
        """Apply an autograd Function of the user's; a stand-in for one that cannot be executed."""
        try:
            return functions.applied(self, cls, args)
        except Unsupported:
            return self.mixed(cls.name, args, keywords)

    # ------------------------------------------------------------- attributes

    def attribute(self, value: object, name: str) -> object:
        if name.startswith("__") and name not in ("__init__", "__call__", "__enter__", "__exit__"):
            return Unknown(name)
        if isinstance(value, Dotted):
            if value.name == CUDA and name in ("type", "index"):
                return "cuda" if name == "type" else 0
            return self.dotted(f"{value.name}.{name}")
        if isinstance(value, functions.Context):
            return self.guarded(lambda: value.get(name))
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
                return DeviceOf(CUDA) if value.data else Dotted(CUDA)
            return value.child(name, f"{value.label}.{name}")
        if isinstance(value, Tensor):
            if name in ("device",):
                return DeviceOf(CUDA)
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
            if name in OPTIMIZER_METHODS:
                return self._bound(value, name)
            return Unknown("state" if name == "state" else f"{value.label}.{name}")
        if isinstance(value, Scaler):
            return self._bound(value, name) if name in SCALER_METHODS else self._scaler_attribute(value, name)
        if isinstance(value, Scheduler):
            return self._bound(value, name) if name in ("step", "state_dict", "load_state_dict") else Unknown(name)
        if isinstance(value, Model):
            if name in value.kept:
                return value.kept[name]
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
                return Dotted(CUDA)
            if SETTINGS.search(name) or INTEGER.search(name):
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
                    if name in ("module", "_orig_mod"):
                        return value
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
            if name == "apply" and functions.is_function(value):
                return Native("apply", lambda *a, **k: self.apply_function(value, list(a), k))
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
        loss = value.cls.library_loss()
        if loss is not None and name in ("forward", "__call__"):
            return Native(name, lambda *a, **k: self.call_library(f"torch.nn.functional.{snake(loss)}", list(a), k))
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

    def set_attribute(self, value: object, name: str, new: object) -> None:
        if isinstance(value, Instance):
            return
        if isinstance(value, Unknown):
            is_network = MODEL.search(value.name) or self.plan.used_as_model(value.name)
            if value.bound is None and is_network and isinstance(self.actual(new), nn.Module):
                self.bind(value, "model")
            if value.bound is not None:
                self.set_attribute(value.bound, name, new)
            else:
                value.attrs[name] = new
            return
        if isinstance(value, Namespace):
            value.set(name, new)
            return
        if isinstance(value, Model):
            made = self.actual(new)
            if isinstance(made, nn.Module):
                value.replace(name, made)
            elif isinstance(made, Optimizer | DuckOptimizer | Scaler | Scheduler | Instance):
                value.kept[name] = made
            return
        if isinstance(value, Scaler) and name == "_per_optimizer_states":
            # whatever it is set to: what the scaler knew of its optimizers is gone
            value._per_optimizer_states = defaultdict(_refresh_per_optimizer_state)
            return
        if isinstance(value, functions.Context):
            value.values[name] = new
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
