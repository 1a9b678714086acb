"""Where a call goes: to the part of the effects that knows its callee."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from amplint import guards, library
from amplint.effects.builtins import Builtins
from amplint.effects.containers import Containers
from amplint.effects.contexts import Contexts
from amplint.effects.frameworks import Frameworks
from amplint.effects.gradients import GradientEffects
from amplint.effects.losses import Losses, hands_on_gradients
from amplint.effects.modules import Modules
from amplint.effects.native import NativeScalers
from amplint.effects.optimizers import Optimizers
from amplint.effects.owners import Owners
from amplint.effects.records import Records
from amplint.effects.saving import Saving
from amplint.effects.scaling import Scaling
from amplint.effects.unknown import Unknown
from amplint.effects.wrapped import Wrapped
from amplint.layout import receiver_text
from amplint.program import Call
from amplint.rule import Site
from amplint.values import (
    CLEAN,
    FALSE,
    NONE,
    TRUE,
    AttrOf,
    Class,
    Const,
    Context,
    DictV,
    Ext,
    Framework,
    Func,
    Grad,
    Instance,
    ItemOf,
    ListV,
    Many,
    Net,
    Optimizer,
    OpV,
    Param,
    Params,
    Partial,
    Result,
    Scaler,
    Scheduler,
    StateOf,
    Super,
    Sym,
    Taint,
    Value,
)

if TYPE_CHECKING:
    from amplint.execution import Executor
    from amplint.machine import CallOutcome, Machine


_SELF_RETURNING = frozenset(
    "to cuda cpu train eval requires_grad_ xpu npu mlu hpu float double half bfloat16 type contiguous "
    "share_memory to_empty".split()
)
#: attributes that are parameters, which a cast copies and leaves as they are
_PARAMETERS = re.compile(r"(?:^|_)(?:weights?|bias|param(?:eter)?s?)$")
_TENSOR_KEYWORDS = frozenset({"gradient", "retain_graph", "create_graph", "inputs"})
#: methods of loggers, which show a gradient to a person
_SHOWS = re.compile(r"histogram|scalar|^log(_|$)")
_DETACHING = frozenset(
    {"detach", "item", "cpu_item", "tolist", "numpy", "argmax", "detach_", "size", "dim", "numel", "shape"}
)


class Effects:
    """The meaning of calls for one executor, handed to the part that knows the callee."""

    def __init__(self, executor: Executor) -> None:
        self.x = executor
        #: names of calls that a rule wants to see as events
        self.watched: frozenset[str] = frozenset()
        self.scaling = Scaling(self)
        self.native = NativeScalers(self)
        self.optimizers = Optimizers(self)
        self.losses = Losses(self)
        self.gradients = GradientEffects(self)
        self.contexts = Contexts(self)
        self.modules = Modules(self)
        self.containers = Containers(self)
        self.builtins = Builtins(self)
        self.frameworks = Frameworks(self)
        self.records = Records(self)
        self.saving = Saving(self)
        self.owners = Owners(self)
        self.unknown = Unknown(self)
        self.wrapped = Wrapped(self)
        #: by the role of a library name (`amplint.library.role`)
        self._external_handlers: dict[str, Any] = {
            "scaler": self.scaling.scaler,
            "sharded_scaler": self.scaling.scaler,
            "native_scaler": self.native.construct,
            "autocast": self.contexts.autocast,
            "device_autocast": self.contexts.autocast,
            "autocast_enabled": self.contexts.is_enabled,
            "null_context": self.contexts.plain_context,
            "no_grad": self.contexts.plain_context,
            "enable_grad": self.contexts.plain_context,
            "exit_stack": self.contexts.plain_context,
            "partial": self.builtins.partial,
            "runs_target": self.builtins.launch,
            "runs_first": self.builtins.launch,
            "runs_ranked": self.builtins.launch,
            "autograd_backward": self.losses.autograd_backward,
            "autograd_grad": self.losses.autograd_grad,
            "save": self.saving.save_call,
            "checkpointer": self.saving.checkpointer_call,
            "optimizer": self.optimizers.optimizer,
            "scheduler": self.optimizers.scheduler,
            "module": self.modules.net,
            "same_module": self.modules.same_module,
            "fsdp1": self.modules.same_module,
            "copy": self.saving.copy,
            "clip_norm": self.gradients.clip_call,
            "clip_value": self.gradients.clip_call,
            "total_norm": self.gradients.total_norm,
            "default_dtype": self.modules.default_dtype,
            "framework": self.frameworks.framework,
            "apex_scale_loss": self.contexts.apex,
            "exit": self.builtins.exit,
            "bce": self.losses.bce,
            "same_value": self.builtins.same_value,
            "cast": self.builtins.typing_cast,
            "namespace": self.records.namespace,
        }

    def call(
        self, callee: Value, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        """Call a value that is not an executable function of the project."""
        if isinstance(callee, Ext):
            return self._external(callee, pos, kw, site, state, stmt)
        if isinstance(callee, AttrOf):
            return self._method(callee, callee.base, callee.name, pos, kw, site, state, stmt)
        if isinstance(callee, Partial):
            func, args, keywords = callee.parts
            return self.x.calls.invoke(func, [*args, *pos], {**dict(keywords), **kw}, site, state, stmt)
        if isinstance(callee, Class):
            return self.modules.construct(callee, pos, kw, site, state)
        if isinstance(callee, Instance):
            return self.modules.call_instance(callee, pos, kw, site, state)
        if isinstance(callee, Scaler) and callee.flavour == "native":
            return self.native.call(callee, pos, kw, site, state)
        if isinstance(callee, Scaler) and callee in self.x.classes_of:
            found = self.x.classes.method(self.x.classes_of[callee], "__call__", state)
            if found is not None:
                owner, scope = found
                return self.x.calls.invoke(Func(owner.env, scope, owner.parts[2], callee), pos, kw, site, state, stmt)
        if isinstance(callee, Result):
            made = self.records.named_tuple(callee, pos, kw, state)
            if made is not None:
                return [(state, made, None)]
        if isinstance(callee, Context) and callee.kind == "autocast":
            # `autocast(...)(function)`: a decorated function, of which nothing is known
            return [(state, Result(callee, tuple(pos), state.loops), None)]
        return self.unknown.unknown(callee, pos, kw, site, state)

    def _external(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        dotted = callee.dotted
        wrapper = self.x.project.wrappers.get(dotted)
        if wrapper is not None:
            return self.wrapped.call(wrapper, dotted, pos, kw, site, state, stmt)
        role = library.role(dotted)
        if role is not None:
            handler = self._external_handlers.get(role)
            if handler is not None:
                return handler(callee, pos, kw, site, state, stmt)  # type: ignore[no-any-return]
        if dotted == "collections.OrderedDict":
            return self.builtins.builtin("dict", callee, pos, kw, site, state, stmt)
        if library.is_builtin(dotted):
            return self.builtins.builtin(dotted, callee, pos, kw, site, state, stmt)
        last = dotted.rpartition(".")[2]
        if last in self.watched:
            self._watched(last, callee, pos, kw, site, state)
        gradients = [v for v in pos if isinstance(v, Grad)]
        if not gradients and dotted.startswith("torch."):
            gradients = [v for value in pos[:1] for v in self.containers.contents(value, state) if isinstance(v, Grad)]
        if gradients:
            return self.gradients.gradient_function(last, gradients, pos, kw, site, state)
        if last == "from_pretrained" or last == "from_config":
            return [(state, self.modules.pretrained(callee, pos, kw, site, state), None)]
        return self.unknown.unknown(callee, pos, kw, site, state)

    def _method(
        self,
        callee: Value,
        base: Value,
        name: str,
        pos: list[Value],
        kw: dict[str, Value],
        site: Site,
        state: Machine,
        stmt: Call | None,
    ) -> list[CallOutcome]:
        if name == "unscale_" and pos and isinstance(base, (Sym, AttrOf, ItemOf, Result)) and not base.taint.foreign:
            base = self.x.binding.as_scaler(base, state)
        if isinstance(base, Scaler) and name in library.SCALER_METHODS and state.assume.get(("none", base)):
            # it was asked before, and raises here
            self.x.record("none_used", site, state, details={"name": name, "scaler": base})
            return [(state, NONE, ("raise", None))]
        if isinstance(base, Scaler):
            return self.scaling.scaler_method(base, name, pos, kw, site, state, stmt)
        if isinstance(base, Optimizer):
            return self.optimizers.optimizer_method(base, name, pos, kw, site, state)
        if isinstance(base, Scheduler):
            return self.optimizers.scheduler_method(base, name, pos, kw, site, state)
        if isinstance(base, Grad):
            return self.gradients.gradient_method(base, name, pos, kw, site, state)
        if isinstance(base, Context):
            return self.contexts.context_method(base, name, pos, kw, site, state, stmt)
        if isinstance(base, Framework):
            return self.frameworks.framework_method(base, name, pos, kw, site, state)
        if isinstance(base, DictV):
            return [(state, self.containers.dict_method(base, name, pos, kw, site, state), None)]
        if isinstance(base, ListV):
            return [(state, self.containers.list_method(base, name, pos, state), None)]
        hooks_param = isinstance(base, Param) and name.startswith("register") and name.endswith("hook")
        if hooks_param or name == "register_post_accumulate_grad_hook":
            self.gradients.hook(base.owners if isinstance(base, Param) else frozenset(), pos, site, state)
            return [(state, Result(callee, tuple(pos), state.loops), None)]
        if isinstance(base, Param):
            return self.gradients.parameter_method(base, name, pos, kw, site, state)
        if isinstance(base, StateOf):
            return [(state, base if name in ("copy",) else Result(callee, tuple(pos), state.loops), None)]
        if isinstance(base, Const):
            if base is NONE and name in library.SCALER_METHODS:
                self.x.record("none_used", site, state, details={"name": name})
            return [(state, Result(callee, tuple(pos)), None)]
        return self._object_method(callee, base, name, pos, kw, site, state, stmt)

    def _object_method(
        self,
        callee: Value,
        base: Value,
        name: str,
        pos: list[Value],
        kw: dict[str, Value],
        site: Site,
        state: Machine,
        stmt: Call | None,
    ) -> list[CallOutcome]:
        """A method of a module, a tensor, or something unknown."""
        if name in self.watched:
            self._watched(name, callee, pos, kw, site, state)
        if name == "backward":
            if isinstance(base, (Instance, Super)):
                return self.unknown.unknown(callee, pos, kw, site, state)
            if (not pos and set(kw) <= _TENSOR_KEYWORDS) or (
                len(pos) == 1 and isinstance(base, (Result, OpV)) and base.taint is not CLEAN
            ):
                handed_on = pos[0] if pos else kw.get("gradient")
                self.losses.backward(base, site, state, carries=hands_on_gradients(handed_on), inputs=kw.get("inputs"))
                return [(state, NONE, None)]
            if pos:
                return self.losses.foreign_backward(base, pos, site, state, callee, kw)
        if name == "manual_backward" and pos:
            return self.losses.foreign_backward(base, pos, site, state, callee, kw)
        if name == "parameters":
            return [(state, Params(frozenset((base,))), None)]
        if name in ("named_parameters", "modules", "children", "named_modules", "named_children"):
            return [(state, Result(AttrOf(base, name), ()), None)]
        if name == "zero_grad":
            if self.optimizers.is_optimizer_like(base, site, state):
                return self.optimizers.optimizer_method(self.x.binding.as_optimizer(base), name, pos, kw, site, state)  # type: ignore[arg-type]
            self.optimizers.zero_module(base, site, state)
            return [(state, NONE, None)]
        if name == "step" and not isinstance(base, (Instance, Super)):
            names = (guards.describe(base), receiver_text(site))
            lasts = [name.rpartition(".")[2].lower() for name in names]
            if any("sched" in last or "lr" in last.split("_") for last in lasts):
                self.x.record("sched_step", site, state, details={"scheduler": base, "arguments": tuple(pos)})
                return [(state, NONE, None)]
            if self.optimizers.is_optimizer_like(base, site, state) and not any(
                isinstance(v, Scaler) for v in (*pos, *kw.values())
            ):
                return self.optimizers.optimizer_method(self.x.binding.as_optimizer(base), name, pos, kw, site, state)  # type: ignore[arg-type]
        if name == "state_dict":
            self.x.record("state_dict", site, state, details={"of": base})
            return [(state, StateOf(base), None)]
        if name == "load_state_dict":
            self.x.record("load_state", site, state, details={"of": base, "value": pos[0] if pos else NONE})
            return [(state, NONE, None)]
        if name in ("half", "bfloat16", "float", "double", "to", "type"):
            dtype = self.modules.cast_dtype(name, pos, kw)
            is_copied = isinstance(base, AttrOf) and _PARAMETERS.search(base.name)
            if dtype is not None and not is_copied:
                self.modules.cast(base, dtype, name, site, state)
        if name == "requires_grad_" and (not pos or pos[0] is FALSE):
            flag = pos[0] if pos else kw.get("requires_grad", TRUE)
            if flag is FALSE:
                self.x.record("freeze", site, state, details={"target": base})
        if name in _SELF_RETURNING:
            return [(state, base, None)]
        if name == "apply" and len(pos) == 1 and isinstance(pos[0], Func) and pos[0].scope in pos[0].env.relevant:
            outcomes = self.x.calls.invoke(pos[0], [AttrOf(base, "*")], {}, site, state, None)
            return [(s, base, signal) for s, _, signal in outcomes]
        if (
            name in ("clip_grad_norm_", "clip_grad_norm")
            and not base.taint.foreign
            and isinstance(base, (Net, Sym, AttrOf, Instance))
        ):
            limit = pos[0] if pos else kw.get("max_norm")
            if pos and isinstance(pos[0], (Params, Many)):
                # `engine.clip_grad_norm_(parameters, limit)`: the object clips by a protocol of its own
                return self.unknown.unknown(callee, pos, kw, site, state)
            self.gradients.clip(frozenset((base,)), limit, f"{guards.describe(base)}.{name}", FALSE, site, state)
            return [(state, Grad(frozenset((base,)), "norm"), None)]
        if name == "__exit__" and not isinstance(base, Instance):
            return [(self.contexts.left_by_hand(state), NONE, None)]
        if name == "enter_context" and pos:
            return self.contexts.enter_here(pos[0], site, state)
        if name == "get" and not kw and _asks_by_name(pos):
            # an option of the run, the same whenever it is asked for, as `options[name]` is
            stored = state.heap.get((base, ("item", pos[0])))
            taint = self.unknown.result_taint(callee, pos, state)
            return [(state, stored or Result(callee, tuple(pos), taint=taint), None)]
        if name == "is_enabled" and isinstance(base, (Sym, AttrOf)):
            return [(state, AttrOf(base, "enabled"), None)]
        if name in _DETACHING:
            return [(state, Result(callee, tuple(pos), state.loops, taint=_detached(base.taint)), None)]
        if name == "get_scale" and not isinstance(base, Instance):
            return [(state, Result(callee, (), state.loops, taint=Taint(inverse=True)), None)]
        gradients = [v for v in pos if isinstance(v, Grad)]
        if gradients and name in library.LIKE_ANOTHER:
            return [(state, Result(callee, (), state.loops, taint=base.taint), None)]
        if gradients and name in ("append", "extend", "add", "update"):
            return [(state, NONE, None)]
        if gradients and gradients[0].parts[1] == "grad" and _SHOWS.search(name):
            self.gradients.gradient_event("grad_read", gradients[0].owners, name, pos, site, state)
        return self.unknown.unknown(callee, pos, kw, site, state)

    def _watched(
        self, name: str, callee: Value, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine
    ) -> None:
        self.x.record(
            "call", site, state, details={"name": name, "callee": callee, "arguments": tuple(pos), "keywords": dict(kw)}
        )


def _asks_by_name(given: list[Value]) -> bool:
    """Whether the arguments of `get` are the name of an option, with or without a constant to fall back to."""
    return (
        bool(given)
        and all(isinstance(value, Const) for value in given)
        and isinstance(given[0], Const)
        and isinstance(given[0].value, str)
    )


def _detached(taint: Taint) -> Taint:
    return Taint(inverse=True) if taint.inverse else CLEAN
