"""What calls do: the GradScaler protocol, autocast, optimizers, modules, gradients, and everything unknown.

Each method returns the possible (state, value, signal) of a call. Kinds of events recorded here and
their `details`:

    construct_scaler   arguments, keywords, callee, scaler
    construct_autocast arguments, keywords, callee, context, dropped
    construct_optimizer  owners
    construct_module   module
    scale              argument, dropped
    backward           value, certain (a plain loss is known not to be scaled), framework, functional
    autograd_grad      value, create_graph
    unscale_, step, update, zero_grad, opt_step, sched_step
    clip               owners, limit, function, error_if_nonfinite
    hook               owners, clips
    grad_read, grad_write   owners, operation, arguments
    forward            module
    cast               target, dtype, how
    bce                (binary cross entropy on probabilities, as a function or an `nn.BCELoss` that is called)
    freeze             target
    save               payload, function, literal, stages
    copy               of, stages (a scaler is copied as an object, which pickles it)
    state_dict, load_state  of, value; of a scaler: stages (torch's stage of each optimizer)
    none_used          name (a method of the protocol is called on None)
    mix                value (a sum of a scaled loss and one that is known not to be scaled)
    jump               kind ("return", "break", "continue", "except": an exception that is caught)
    yield, evaluated   statement
    call               callee, arguments, keywords (only for names that a rule watches)
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from amplint import guards, library
from amplint.machine import FRESH_BOOK
from amplint.program import Assign, Attr, Call, Evaluate, Handler, Jump, Region, Stmt, Yield
from amplint.rule import Site
from amplint.states import (
    NOTHING,
    UNKNOWN,
    Book,
    Entered,
    Gradients,
    after_backward,
    after_step,
    after_unscale,
    after_update,
)
from amplint.values import (
    CLEAN,
    FALSE,
    NONE,
    TRUE,
    AttrOf,
    AutocastArguments,
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
    Sequence,
    StateOf,
    Super,
    Sym,
    Taint,
    Value,
)

if TYPE_CHECKING:
    import libcst as cst

    from amplint.execution import Executor, Outcome, Signal
    from amplint.machine import Machine

CallOutcome = tuple["Machine", Value, "Signal | None"]

_SELF_RETURNING = frozenset(
    "to cuda cpu train eval requires_grad_ xpu npu mlu hpu float double half bfloat16 type contiguous "
    "share_memory to_empty".split()
)
_VALUE_KEEPING = frozenset(
    "clone contiguous view reshape flatten float double half bfloat16 to cuda type_as squeeze unsqueeze view_as".split()
)
_TENSOR_KEYWORDS = frozenset({"gradient", "retain_graph", "create_graph", "inputs"})
_BENIGN_EXT = re.compile(
    r"^(torch\.(?!amp|autograd|cuda\.amp)|numpy|math|random|os|json|logging|wandb|time|tqdm|copy|itertools|functools|print$)"
)
_DETACHING = frozenset(
    {"detach", "item", "cpu_item", "tolist", "numpy", "argmax", "detach_", "size", "dim", "numel", "shape"}
)


class Effects:
    """The meaning of calls for one executor."""

    def __init__(self, executor: Executor) -> None:
        self.x = executor
        #: names of calls that a rule wants to see as events
        self.watched: frozenset[str] = frozenset()

    # --- entry point -----------------------------------------------------------------------------

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
            return self.x.invoke(func, [*args, *pos], {**dict(keywords), **kw}, site, state, stmt)
        if isinstance(callee, Class):
            return self._construct(callee, pos, kw, site, state)
        if isinstance(callee, Instance):
            return self._call_instance(callee, pos, kw, site, state)
        if isinstance(callee, Scaler) and callee in self.x.classes:
            found = self.x.method(self.x.classes[callee], "__call__", state)
            if found is not None:
                owner, scope = found
                return self.x.invoke(Func(owner.env, scope, owner.parts[2], callee), pos, kw, site, state, stmt)
        if isinstance(callee, Context) and callee.kind == "autocast":
            # `autocast(...)(function)`: a decorated function, of which nothing is known
            return [(state, Result(callee, tuple(pos), state.loops), None)]
        return self._unknown(callee, pos, kw, site, state)

    # --- library calls ---------------------------------------------------------------------------

    def _external(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        dotted = callee.dotted
        settings = self.x.settings
        role = library.role(dotted)
        if dotted in settings.scaler_factories:
            role = "scaler"
        elif dotted in settings.clip_functions:
            role = "clip_norm"
        elif dotted in settings.optimizer_factories:
            role = "optimizer"
        if role is not None:
            handler = _EXTERNAL.get(role)
            if handler is not None:
                return handler(self, callee, pos, kw, site, state, stmt)  # type: ignore[no-any-return]
        if library.is_builtin(dotted):
            return self._builtin(dotted, callee, pos, kw, site, state, stmt)
        last = dotted.rpartition(".")[2]
        if last in self.watched:
            self._watched(last, callee, pos, kw, site, state)
        gradients = [v for v in pos if isinstance(v, Grad)]
        if gradients:
            return self._gradient_function(last, gradients, pos, kw, site, state)
        if last == "from_pretrained" or last == "from_config":
            return [(state, self._pretrained(callee, pos, kw, site, state), None)]
        return self._unknown(callee, pos, kw, site, state)

    def _scaler(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        enabled = self.scaler_enabled(callee.dotted, pos, kw)
        flavour = "sharded" if library.role(callee.dotted) == "sharded_scaler" else "torch"
        scaler = Scaler(state.allocate(id(site.node)), flavour, enabled)
        self.x.sites.setdefault(scaler, site)
        state.books[scaler] = FRESH_BOOK
        self.x.record(
            "construct_scaler",
            site,
            state,
            scaler=scaler,
            details={"arguments": tuple(pos), "keywords": dict(kw), "callee": callee.dotted},
        )
        return [(state, scaler, None)]

    @staticmethod
    def scaler_enabled(dotted: str, pos: list[Value], kw: dict[str, Value]) -> Value:
        """The `enabled` argument of a GradScaler, True where it is not given.

        Positions: torch.amp.GradScaler(device, init_scale, growth_factor, backoff_factor, growth_interval, enabled);
        torch.cuda.amp.GradScaler has no device (torch/amp/grad_scaler.py, torch/cuda/amp/grad_scaler.py).
        """
        if "enabled" in kw:
            return kw["enabled"]
        index = 5 if dotted in ("torch.amp.GradScaler", "torch.GradScaler", "torch.amp.grad_scaler.GradScaler") else 4
        if len(pos) > index:
            return pos[index]
        return AttrOf(kw["**"], "enabled") if "**" in kw else TRUE

    def _autocast(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        names: tuple[str, ...] = ("device_type", "dtype", "enabled", "cache_enabled")
        device: Value | None = None
        if library.role(callee.dotted) == "device_autocast":
            names = ("enabled", "dtype", "cache_enabled")
            device = Const.of(library.autocast_device(callee.dotted))
        elif self.x.settings.torch in ("1.10", "1.11"):
            names = ("device_type", "enabled", "dtype", "cache_enabled")
        if pos and isinstance(pos[0], (Func, Instance)):
            return [(state, Result(callee, tuple(pos), state.loops), None)]
        given = dict(zip(names, pos, strict=False))
        given.update(kw)
        enabled = given.get("enabled", AttrOf(kw["**"], "enabled") if "**" in kw else TRUE)
        dtype = given.get("dtype")
        if dtype is None and "**" in kw:
            dtype = AttrOf(kw["**"], "dtype")
        arguments = AutocastArguments(given.get("device_type", device), dtype, enabled, given.get("cache_enabled"))
        context = Context("autocast", state.allocate(id(site.node)), arguments)
        self.x.sites.setdefault(context, site)
        self.x.record(
            "construct_autocast",
            site,
            state,
            details={
                "arguments": tuple(pos),
                "keywords": dict(kw),
                "callee": callee.dotted,
                "context": context,
                "dropped": stmt is not None and stmt.dropped,
            },
        )
        return [(state, context, None)]

    def _plain_context(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        role = library.role(callee.dotted)
        kind = {"null_context": "null", "exit_stack": "stack"}.get(role or "", role or "other")
        if kind in ("no_grad", "enable_grad") and pos and isinstance(pos[0], Func):
            return [(state, pos[0], None)]
        return [(state, Context(kind, state.allocate(id(site.node)), None), None)]

    def _partial(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        if not pos:
            return [(state, Result(callee, (), state.loops), None)]
        return [(state, Partial(pos[0], tuple(pos[1:]), tuple(kw.items())), None)]

    def _autograd_backward(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        loss = pos[0] if pos else kw.get("tensors", Sym("tensors", id(site.node)))
        for value in self.contents(loss, state):
            loss = value if loss is None or not loss.taint.scales else loss
            if value.taint.scales:
                loss = value
        self.backward(loss, site, state, functional=True)
        return [(state, NONE, None)]

    def _autograd_grad(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        loss = pos[0] if pos else kw.get("outputs", Sym("outputs", id(site.node)))
        create_graph = kw.get("create_graph", pos[4] if len(pos) > 4 else FALSE)
        taint = CLEAN
        for value in self.contents(loss, state):
            taint = taint | value.taint
        taint = taint | loss.taint
        self.x.record(
            "autograd_grad", site, state, details={"value": loss, "create_graph": create_graph, "scales": taint.scales}
        )
        return [(state, Result(callee, (loss,), state.loops, taint=taint), None)]

    def _save(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        payload = pos[0] if pos else kw.get("obj", Sym("payload", id(site.node)))
        self.save(payload, callee.dotted, site, state)
        return [(state, NONE, None)]

    def save(self, payload: Value, function: str, site: Site, state: Machine) -> None:
        """Record that something is written to disk."""
        self.x.record(
            "save",
            site,
            state,
            details={
                "payload": payload,
                "contents": tuple(self.contents(payload, state)),
                "function": function,
                "open": self._is_open(payload, state),
                "literal": self.x.sites.get(payload) if isinstance(payload, (DictV, Instance)) else None,
                "stages": {scaler: book.stages for scaler, book in state.books.items()},
            },
        )

    def _optimizer(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        params = pos[0] if pos else kw.get("params", kw.get("model_params", kw.get("model_or_params", NONE)))
        owners = self.parameter_owners(params, state) or None
        if owners is None and isinstance(params, (Net, Instance)):
            owners = frozenset((params,))
        optimizer = Optimizer(self._new_optimizer(state), owners)
        self.x.sites.setdefault(optimizer, site)
        state.grads[optimizer] = NOTHING
        self.x.record(
            "construct_optimizer",
            site,
            state,
            optimizer=optimizer,
            details={"owners": owners, "keywords": dict(kw), "callee": callee.dotted},
        )
        return [(state, optimizer, None)]

    @staticmethod
    def _new_optimizer(state: Machine) -> tuple[object, int]:
        """The origin of an optimizer: the n-th one that a function makes, whichever arm makes it, so that a factory
        that chooses a class by name gives one optimizer and not a dozen."""
        return state.allocate(("optimizer", state.frame.get("#scope"), state.stack[-1] < 0))

    def _scheduler(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        optimizer = pos[0] if pos else kw.get("optimizer", NONE)
        return [(state, Scheduler(state.allocate(id(site.node)), callee.dotted, optimizer), None)]

    def _net(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        children = tuple(v for v in pos if isinstance(v, (Net, Instance, Sym, AttrOf)))
        net = Net(
            state.allocate(id(site.node)),
            callee.dotted,
            *((children,) if children and callee.dotted in library.CONTAINERS else ()),
        )
        self.x.sites.setdefault(net, site)
        self.x.record("construct_module", site, state, details={"module": net})
        dtype = self.dtype(kw.get("dtype"))
        if dtype in ("float16", "bfloat16"):
            self.cast(net, dtype, "dtype=", site, state)
        return [(state, net, None)]

    def _same_module(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        model = pos[0] if pos else kw.get("module", kw.get("model", Sym("module", id(site.node))))
        if library.role(callee.dotted) == "fsdp1":
            state.heap[(model, "#fsdp1")] = TRUE
            self.x.record("fsdp", site, state, details={"module": model, "keywords": dict(kw)})
        return [(state, model, None)]

    def _copy(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        value = pos[0] if pos else NONE
        if isinstance(value, Scaler):
            self.x.record("copy", site, state, scaler=value, details={"of": value, "stages": state.book(value).stages})
        if isinstance(value, (Net, Instance, Sym, AttrOf, Result, ItemOf)):
            return [(state, Net(state.allocate(id(site.node)), "copy"), None)]
        return [(state, value, None)]

    def _clip(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        params = pos[0] if pos else kw.get("parameters", kw.get("model_params", NONE))
        limit = kw.get("max_norm", kw.get("clip_value", kw.get("value", pos[1] if len(pos) > 1 else None)))
        last = callee.dotted.rpartition(".")[2]
        strict = kw.get("error_if_nonfinite", pos[3] if len(pos) > 3 else FALSE)
        owners = self.parameter_owners(params, state)
        self.clip(owners, limit, last, strict, site, state)
        return [(state, Grad(owners, "norm"), None)]

    def clip(
        self, owners: frozenset[Value], limit: Value | None, function: str, strict: Value, site: Site, state: Machine
    ) -> None:
        """Record a gradient clip."""
        self.x.record(
            "clip",
            site,
            state,
            before=self.concerned(owners, state),
            details={"owners": owners, "limit": limit, "function": function, "error_if_nonfinite": strict},
        )

    def _total_norm(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        owners: frozenset[Value] = frozenset()
        for value in [*pos, *kw.values()]:
            for part in [value, *self.contents(value, state)]:
                if isinstance(part, Grad):
                    owners |= part.owners
        strict = kw.get("error_if_nonfinite", pos[2] if len(pos) > 2 else FALSE)
        details = {"owners": owners, "operation": "total_norm", "arguments": tuple(pos), "error_if_nonfinite": strict}
        self.x.record("grad_read", site, state, before=self.concerned(owners, state), details=details)
        return [(state, Grad(owners, "derived"), None)]

    def _default_dtype(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        dtype = self.dtype(pos[0] if pos else kw.get("d"))
        self.x.record("default_dtype", site, state, details={"dtype": dtype})
        return [(state, NONE, None)]

    def _framework(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        last = callee.dotted.rpartition(".")[2]
        self.x.record(
            "framework", site, state, details={"callee": callee.dotted, "arguments": tuple(pos), "keywords": dict(kw)}
        )
        if last[:1].isupper():
            framework = Framework(state.allocate(id(site.node)), last)
            self.x.sites.setdefault(framework, site)
            for name, value in kw.items():
                state.heap[(framework, f"#{name}")] = value
            return [(state, framework, None)]
        return [(state, Result(callee, tuple(pos), state.loops, taint=Taint(foreign=True)), None)]

    def _apex(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        return [(state, Context("apex", state.allocate(id(site.node)), pos[0] if pos else NONE), None)]

    def _bce(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        self.x.record("bce", site, state)
        return self._unknown(callee, pos, kw, site, state)

    def _exit(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        return [(state, NONE, ("raise", None))]

    def _same_value(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        return [(state, pos[0] if pos else NONE, None)]

    def _typing_cast(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        return [(state, pos[1] if len(pos) > 1 else NONE, None)]

    # --- builtins --------------------------------------------------------------------------------

    def _builtin(
        self,
        name: str,
        callee: Ext,
        pos: list[Value],
        kw: dict[str, Value],
        site: Site,
        state: Machine,
        stmt: Call | None,
    ) -> list[CallOutcome]:
        first = pos[0] if pos else NONE
        result: Value
        if name in ("exit", "quit"):
            return [(state, NONE, ("raise", None))]
        if name == "super":
            return [(state, self._super(pos, state), None)]
        if name == "getattr" and len(pos) >= 2 and isinstance(pos[1], Const) and isinstance(pos[1].value, str):
            return [(state, self.x.attribute(first, pos[1].value, state), None)]
        if name == "setattr" and len(pos) == 3 and isinstance(pos[1], Const):
            state.heap[(first, pos[1].value)] = pos[2]
            return [(state, NONE, None)]
        if name == "dict":
            made = DictV(state.allocate(id(site.node)))
            self.x.sites.setdefault(made, site)
            pairs: tuple[Any, ...] = ()
            if isinstance(first, DictV):
                pairs = state.heap.get((first, "#items"), ())
            pairs = (*pairs, *(Sequence(Const.of(k), v) for k, v in kw.items() if k != "**"))
            state.heap[(made, "#items")] = pairs
            state.heap[(made, "#open")] = (
                "**" in kw or (bool(pos) and not isinstance(first, DictV)) or bool(state.heap.get((first, "#open")))
            )
            return [(state, made, None)]
        if name in ("list", "tuple", "iter", "set", "sorted", "frozenset"):
            if not pos:
                made_list = ListV(state.allocate(id(site.node)))
                state.heap[(made_list, "#items")] = ()
                return [(state, made_list, None)]
            if isinstance(first, (Params, Many, ListV, Sequence)) and name != "iter":
                return [(state, first, None)]
        if name == "filter" and len(pos) == 2 and isinstance(pos[1], (Params, Many)):
            return [(state, pos[1], None)]
        if name == "bool" and pos:
            return [(state, first, None)]
        if name == "float" and isinstance(first, Const) and isinstance(first.value, str):
            try:
                return [(state, Const.of(float(first.value)), None)]
            except ValueError:
                pass
        if name in ("float", "int") and isinstance(first, Const) and isinstance(first.value, (int, float)):
            return [(state, Const.of(float(first.value) if name == "float" else int(first.value)), None)]
        if name == "isinstance" and len(pos) == 2:
            known = self._isinstance(first, pos[1])
            if known is not None:
                return [(state, known, None)]
        if name == "sum" and pos:
            taint = first.taint
            for value in self.contents(first, state):
                taint = taint | value.taint
            gradients = [v for v in [first, *self.contents(first, state)] if isinstance(v, Grad)]
            if gradients:
                return [(state, Grad(gradients[0].owners, "derived"), None)]
            return [(state, Result(callee, tuple(pos), taint=taint), None)]
        if name == "map" and len(pos) == 2 and isinstance(first, Func):
            outcomes = self.x.invoke(first, [self.x._element(pos[1], 0, None, state.loops)], {}, site, state, stmt)  # type: ignore[arg-type]
            return [(s, Many(v), signal) for s, v, signal in outcomes]
        if name == "next":
            result = Result(callee, tuple(pos), state.loops)
        elif name == "print":
            result = NONE
        else:
            taint = CLEAN
            if name in ("float", "int", "abs", "max", "min"):
                for value in pos:
                    taint = taint | (Taint(inverse=True) if value.taint.inverse else CLEAN)
            gradients = [v for v in pos if isinstance(v, Grad)]
            if gradients and name in ("float", "max", "min", "abs"):
                return [(state, gradients[0], None)]
            result = Result(callee, (*pos, *(v for _, v in sorted(kw.items()))), taint=taint)
        return [(state, result, None)]

    def _super(self, pos: list[Value], state: Machine) -> Value:
        marker = state.frame.get("#scope")
        if marker is None:
            return Sym("super")
        scope = marker.parts[1]
        env = state.links[state.stack[-1]][0]
        instance = state.frame.get(scope.params[0].name) if scope.params else None
        if isinstance(instance, Instance) and scope.parent is not None and scope.parent.kind == "class":
            for cls in self.x.lineage(instance.cls, state)[0]:
                if cls.scope is scope.parent:
                    return Super(instance, cls)
            return Super(instance, Class(env, scope.parent, -env.number))
        return Sym("super", scope)

    @staticmethod
    def _isinstance(value: Value, cls: Value) -> Value | None:
        if isinstance(value, Scaler) and isinstance(cls, Ext):
            role = library.role(cls.dotted)
            if role == "scaler":
                return TRUE
            return FALSE if value.constructed and role != "sharded_scaler" else None
        if isinstance(value, Instance) and isinstance(cls, Class) and value.cls is cls:
            return TRUE
        if value is NONE:
            return FALSE
        return None

    # --- objects of the project ------------------------------------------------------------------

    def _construct(
        self, cls: Class, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine
    ) -> list[CallOutcome]:
        bases = self.x.lineage(cls, state)[1]
        roles = {library.role(b) for b in bases}
        if "scaler" in roles or "sharded_scaler" in roles:
            enabled = self.scaler_enabled(next((b for b in bases if library.role(b)), ""), pos, kw)
            scaler = Scaler(state.allocate(id(site.node)), "subclass", enabled)
            self.x.sites.setdefault(scaler, site)
            self.x.classes[scaler] = cls
            state.books[scaler] = FRESH_BOOK
            self.x.record(
                "construct_scaler",
                site,
                state,
                scaler=scaler,
                details={"arguments": (), "keywords": {}, "callee": cls.scope.name},
            )
            return [(state, scaler, None)]
        if "optimizer" in roles or any(b.rpartition(".")[2] == "Optimizer" and b.startswith("torch.") for b in bases):
            owners = self.parameter_owners(pos[0] if pos else kw.get("params", NONE), state) or None
            optimizer = Optimizer(self._new_optimizer(state), owners)
            self.x.sites.setdefault(optimizer, site)
            self.x.classes[optimizer] = cls
            state.grads[optimizer] = NOTHING
            self.x.record(
                "construct_optimizer",
                site,
                state,
                optimizer=optimizer,
                details={"owners": owners, "keywords": dict(kw), "callee": cls.scope.name},
            )
            return [(state, optimizer, None)]
        return self.x.instantiate(cls, pos, kw, site, state, state.allocate(id(site.node)))

    def _call_instance(
        self, callee: Instance, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine
    ) -> list[CallOutcome]:
        found = self.x.method(callee.cls, "__call__", state)
        is_module = self.x.is_module_class(callee.cls, state)
        if found is None and is_module:
            self.forward(callee, site, state)
            found = self.x.method(callee.cls, "forward", state)
            if found is not None and not found[0].env.deals_with_training(found[1]):
                found = None
        if found is not None:
            owner, scope = found
            func = Func(owner.env, scope, owner.parts[2], callee)
            outcomes = self.x.invoke(func, pos, kw, site, state, None)
            if is_module:
                return [(s, self._owned(v, callee, pos, s), signal) for s, v, signal in outcomes]
            return outcomes
        return self._unknown(callee, pos, kw, site, state)

    def _owned(self, value: Value, owner: Value, pos: list[Value], state: Machine) -> Value:
        if isinstance(value, (Const, Scaler, Optimizer)):
            return Result(owner, tuple(pos), state.loops, taint=Taint(frozenset((owner,))))
        if self._no_grad(state):
            return Result(owner, tuple(pos), state.loops)
        if isinstance(value, Sequence):
            return Sequence(*(self._owned(v, owner, pos, state) for v in value.items))
        taint = value.taint | Taint(frozenset((owner,)))
        return Result(owner, (value,), state.loops, taint=taint)

    def forward(self, module: Value, site: Site, state: Machine) -> None:
        """Record a forward pass of a module."""
        self.x.record("forward", site, state, details={"module": module, "no_grad": self._no_grad(state)})

    # --- methods ---------------------------------------------------------------------------------

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
            base = self.x.as_scaler(base, state)
        if isinstance(base, Scaler):
            return self._scaler_method(base, name, pos, kw, site, state, stmt)
        if isinstance(base, Optimizer):
            return self._optimizer_method(base, name, pos, kw, site, state)
        if isinstance(base, Scheduler):
            return self._scheduler_method(base, name, pos, kw, site, state)
        if isinstance(base, Grad):
            return self._gradient_method(base, name, pos, kw, site, state)
        if isinstance(base, Context):
            return self._context_method(base, name, pos, kw, site, state, stmt)
        if isinstance(base, Framework):
            return self._framework_method(base, name, pos, kw, site, state)
        if isinstance(base, DictV):
            return [(state, self._dict_method(base, name, pos, kw, site, state), None)]
        if isinstance(base, ListV):
            return [(state, self._list_method(base, name, pos, state), None)]
        if isinstance(base, Param) and name.startswith("register") and name.endswith("hook"):
            self._hook(base.owners, pos, site, state)
            return [(state, Result(callee, tuple(pos), state.loops), None)]
        if isinstance(base, Param):
            return self._parameter_method(base, name, pos, kw, site, state)
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
                return self._unknown(callee, pos, kw, site, state)
            if (not pos and set(kw) <= _TENSOR_KEYWORDS) or (
                len(pos) == 1 and isinstance(base, (Result, OpV)) and base.taint is not CLEAN
            ):
                self.backward(base, site, state)
                return [(state, NONE, None)]
            if pos:
                return self._foreign_backward(base, pos, site, state, callee, kw)
        if name == "manual_backward" and pos:
            return self._foreign_backward(base, pos, site, state, callee, kw)
        if name == "parameters":
            return [(state, Params(frozenset((base,))), None)]
        if name in ("named_parameters", "modules", "children", "named_modules", "named_children"):
            return [(state, Result(AttrOf(base, name), ()), None)]
        if name == "zero_grad":
            if self._is_optimizer_like(base, site, state):
                return self._optimizer_method(self.x.as_optimizer(base), name, pos, kw, site, state)  # type: ignore[arg-type]
            self.zero_module(base, site, state)
            return [(state, NONE, None)]
        if name == "step" and not isinstance(base, (Instance, Super)):
            last = guards.describe(base).rpartition(".")[2].lower()
            if "sched" in last or "lr" in last.split("_"):
                self.x.record("sched_step", site, state, details={"scheduler": base, "arguments": tuple(pos)})
                return [(state, NONE, None)]
            if self._is_optimizer_like(base, site, state) and not any(
                isinstance(v, Scaler) for v in (*pos, *kw.values())
            ):
                return self._optimizer_method(self.x.as_optimizer(base), name, pos, kw, site, state)  # type: ignore[arg-type]
        if name == "state_dict":
            self.x.record("state_dict", site, state, details={"of": base})
            return [(state, StateOf(base), None)]
        if name == "load_state_dict":
            self.x.record("load_state", site, state, details={"of": base, "value": pos[0] if pos else NONE})
            return [(state, NONE, None)]
        if name in ("half", "bfloat16", "float", "double", "to", "type"):
            dtype = self._cast_dtype(name, pos, kw)
            if dtype is not None:
                self.cast(base, dtype, name, site, state)
        if name == "requires_grad_" and (not pos or pos[0] is FALSE):
            flag = pos[0] if pos else kw.get("requires_grad", TRUE)
            if flag is FALSE:
                self.x.record("freeze", site, state, details={"target": base})
        if name in _SELF_RETURNING:
            return [(state, base, None)]
        if name == "apply" and len(pos) == 1 and isinstance(pos[0], Func) and pos[0].scope in pos[0].env.relevant:
            outcomes = self.x.invoke(pos[0], [AttrOf(base, "*")], {}, site, state, None)
            return [(s, base, signal) for s, _, signal in outcomes]
        if (
            name in ("clip_grad_norm_", "clip_grad_norm")
            and not base.taint.foreign
            and isinstance(base, (Net, Sym, AttrOf, Instance))
        ):
            limit = pos[0] if pos else kw.get("max_norm")
            if pos and isinstance(pos[0], (Params, Many)):
                # `engine.clip_grad_norm_(parameters, limit)`: the object clips by a protocol of its own
                return self._unknown(callee, pos, kw, site, state)
            self.clip(frozenset((base,)), limit, f"{guards.describe(base)}.{name}", FALSE, site, state)
            return [(state, Grad(frozenset((base,)), "norm"), None)]
        if name == "enter_context" and pos:
            return self._enter_here(pos[0], site, state)
        if name == "is_enabled" and isinstance(base, (Sym, AttrOf)):
            return [(state, AttrOf(base, "enabled"), None)]
        if name in _DETACHING:
            return [(state, Result(callee, tuple(pos), state.loops, taint=_detached(base.taint)), None)]
        if name == "get_scale" and not isinstance(base, Instance):
            return [(state, Result(callee, (), state.loops, taint=Taint(inverse=True)), None)]
        gradients = [v for v in pos if isinstance(v, Grad)]
        if gradients and name in ("append", "extend", "add", "update"):
            return [(state, NONE, None)]
        return self._unknown(callee, pos, kw, site, state)

    # --- the scaler ------------------------------------------------------------------------------

    def _scaler_method(
        self,
        scaler: Scaler,
        name: str,
        pos: list[Value],
        kw: dict[str, Value],
        site: Site,
        state: Machine,
        stmt: Call | None,
    ) -> list[CallOutcome]:
        if name == "is_enabled":
            value = scaler.enabled if scaler.constructed else AttrOf(scaler, "enabled")
            return [(state, value, None)]
        if name == "get_scale":
            epoch = Const.of(state.book(scaler).epoch)
            value = Result(AttrOf(scaler, name), (epoch,), state.loops, taint=Taint(inverse=True))
            self.x.record("get_scale", site, state, scaler=scaler, details={"value": value})
            return [(state, value, None)]
        if name == "state_dict":
            details = {"of": scaler, "stages": state.book(scaler).stages}
            self.x.record("state_dict", site, state, scaler=scaler, details=details, before=self.everything(state))
            return [(state, StateOf(scaler), None)]
        if name == "load_state_dict":
            self.x.record(
                "load_state", site, state, scaler=scaler, details={"of": scaler, "value": pos[0] if pos else NONE}
            )
            return [(state, NONE, None)]
        handler = _SCALER.get(name)
        if handler is None:
            if name.startswith("_"):
                self.x.record("private", site, state, scaler=scaler, details={"name": name})
                self.lose_scaler(scaler, state)
            return [(state, Result(AttrOf(scaler, name), tuple(pos), state.loops), None)]
        out: list[CallOutcome] = []
        for after, enabled in self._enabled(scaler, state):
            out.extend(handler(self, scaler, enabled, pos, kw, site, after, stmt))
        return out

    def _enabled(self, scaler: Scaler, state: Machine) -> list[tuple[Machine, bool]]:
        """The states in which the scaler is enabled and those in which it is a no-op."""
        if not scaler.constructed:
            atom = ("none", scaler)
            if guards.known(atom, state.assume) is None:
                # a method of it is called: it cannot be None here
                state.assume[atom] = False
            flag = ("true", AttrOf(scaler, "enabled"))
            if state.assume.get(flag) is False:
                return [(state, False)]
            return [(state, True)]
        return self.x.split(state, scaler.enabled)

    def _scale(
        self,
        scaler: Scaler,
        enabled: bool,
        pos: list[Value],
        kw: dict[str, Value],
        site: Site,
        state: Machine,
        stmt: Call | None,
    ) -> list[CallOutcome]:
        value = pos[0] if pos else kw.get("outputs", NONE)
        if not enabled:
            return [(state, value, None)]
        self.x.record(
            "scale",
            site,
            state,
            scaler=scaler,
            details={"argument": value, "dropped": stmt is not None and stmt.dropped},
        )
        book = state.book(scaler)
        state.books[scaler] = Book(book.epoch, book.stages, book.checked, True)
        return [(state, self.scaled(value, scaler, state), None)]

    def scaled(self, value: Value, scaler: Scaler, state: Machine) -> Value:
        """A value multiplied by the scaler's scale."""
        items = self.x.items_of(value, state)
        if items is not None and not isinstance(value, DictV):
            return Sequence(*(self.scaled(v, scaler, state) for v in items))
        taint = value.taint
        taint = Taint(taint.owners, (*taint.scales, scaler), taint.unscaled, taint.inverse, taint.foreign)
        return Result(AttrOf(scaler, "scale"), (value,), state.loops, taint=taint)

    def _unscale(
        self,
        scaler: Scaler,
        enabled: bool,
        pos: list[Value],
        kw: dict[str, Value],
        site: Site,
        state: Machine,
        stmt: Call | None,
    ) -> list[CallOutcome]:
        target = pos[0] if pos else kw.get("optimizer", NONE)
        if not enabled:
            return [(state, NONE, None)]
        optimizer = self.operand(target)
        before = self._of(optimizer, state)
        stage = state.book(scaler).stage(optimizer)
        event = self.x.record(
            "unscale_",
            site,
            state,
            before=before,
            scaler=scaler,
            optimizer=optimizer,
            stage=stage,
            details={"operand": target},
        )
        assert event is not None
        self._identify(optimizer, before[optimizer], state)
        state.grads[optimizer] = after_unscale(before[optimizer], event)
        book = state.book(scaler).with_stage(optimizer, "unscaled")
        state.books[scaler] = Book(book.epoch, book.stages, True, book.live)
        return [(state, NONE, None)]

    def _step(
        self,
        scaler: Scaler,
        enabled: bool,
        pos: list[Value],
        kw: dict[str, Value],
        site: Site,
        state: Machine,
        stmt: Call | None,
    ) -> list[CallOutcome]:
        target = pos[0] if pos else kw.get("optimizer", NONE)
        optimizer = self.operand(target)
        if not enabled:
            return self._optimizer_method(optimizer, "step", pos[1:], kw, site, state)  # type: ignore[arg-type]
        before = self._of(optimizer, state)
        stage = state.book(scaler).stage(optimizer)
        self.x.record(
            "step",
            site,
            state,
            before=before,
            scaler=scaler,
            optimizer=optimizer,
            stage=stage,
            details={
                "operand": target,
                "arguments": tuple(pos[1:]),
                "keywords": dict(kw),
                "checked": state.book(scaler).checked,
                "live": state.book(scaler).live,
            },
        )
        self._identify(optimizer, before[optimizer], state)
        state.grads[optimizer] = after_step(before[optimizer])
        book = state.book(scaler).with_stage(optimizer, "stepped")
        state.books[scaler] = Book(book.epoch, book.stages, True, book.live)
        return [(state, Result(AttrOf(scaler, "step"), (optimizer,), state.loops), None)]

    def _update(
        self,
        scaler: Scaler,
        enabled: bool,
        pos: list[Value],
        kw: dict[str, Value],
        site: Site,
        state: Machine,
        stmt: Call | None,
    ) -> list[CallOutcome]:
        if not enabled:
            return [(state, NONE, None)]
        book = state.book(scaler)
        new_scale = pos[0] if pos else kw.get("new_scale")
        event = self.x.record(
            "update",
            site,
            state,
            before=self.everything(state),
            scaler=scaler,
            details={"checked": book.checked, "live": book.live, "new_scale": new_scale, "stages": book.stages},
        )
        assert event is not None
        for optimizer, gradients in list(state.grads.items()):
            state.grads[optimizer] = after_update(gradients, scaler, event)
        state.default = after_update(state.default, scaler, event)
        state.books[scaler] = Book(book.epoch + 1, (), False, book.live)
        return [(state, NONE, None)]

    def operand(self, value: Value) -> Value:
        """What `step` and `unscale_` are given, as an optimizer where it can be one."""
        if isinstance(value, (Optimizer, Scheduler, Const, Net, Func, StateOf)):
            return value
        return self.x.as_optimizer(value)

    # --- optimizers and schedulers ---------------------------------------------------------------

    def _identify(self, optimizer: Value, gradients: Gradients, state: Machine) -> None:
        """Gradients that nothing tied to an optimizer are those of the one that takes them, where there is only one."""
        element = (
            isinstance(optimizer, Optimizer)
            and optimizer.parts[0][0] == "inferred"
            and isinstance(optimizer.parts[0][1], (ItemOf, Result))
        )
        if state.default.origin is not None and state.default.origin is gradients.origin and not element:
            if len(state.grads.keys() | {optimizer}) == 1 and not self.several(state):
                state.default = UNKNOWN

    def _optimizer_method(
        self, optimizer: Optimizer, name: str, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine
    ) -> list[CallOutcome]:
        if name == "zero_grad":
            self.x.record(
                "zero_grad",
                site,
                state,
                before=self._of(optimizer, state),
                optimizer=optimizer,
                details={"arguments": tuple(pos), "keywords": dict(kw)},
            )
            self._identify(optimizer, state.gradients(optimizer), state)
            state.grads[optimizer] = NOTHING
            return [(state, NONE, None)]
        if name == "step":
            before = self._of(optimizer, state)
            self.x.record(
                "opt_step",
                site,
                state,
                before=before,
                optimizer=optimizer,
                details={"arguments": tuple(pos), "keywords": dict(kw)},
            )
            if before[optimizer].kind == "P":
                state.grads[optimizer] = NOTHING
            for closure in (*pos, *kw.values()):
                if isinstance(closure, Func):
                    return [(s, v, signal) for s, v, signal in self.x.invoke(closure, [], {}, site, state, None)]
            return [(state, NONE, None)]
        if name == "state_dict":
            self.x.record("state_dict", site, state, optimizer=optimizer, details={"of": optimizer})
            return [(state, StateOf(optimizer), None)]
        if name == "load_state_dict":
            self.x.record(
                "load_state",
                site,
                state,
                optimizer=optimizer,
                details={"of": optimizer, "value": pos[0] if pos else NONE},
            )
            return [(state, NONE, None)]
        if name == "add_param_group":
            return [(state, NONE, None)]
        if name == "backward" and pos:
            return self._foreign_backward(optimizer, pos, site, state, AttrOf(optimizer, name), kw)
        return self._unknown(AttrOf(optimizer, name), pos, kw, site, state)

    def _scheduler_method(
        self, scheduler: Scheduler, name: str, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine
    ) -> list[CallOutcome]:
        if name == "step":
            self.x.record("sched_step", site, state, details={"scheduler": scheduler, "arguments": tuple(pos)})
            return [(state, NONE, None)]
        if name == "state_dict":
            self.x.record("state_dict", site, state, details={"of": scheduler})
            return [(state, StateOf(scheduler), None)]
        if name == "load_state_dict":
            self.x.record("load_state", site, state, details={"of": scheduler, "value": pos[0] if pos else NONE})
        return [(state, Result(AttrOf(scheduler, name), tuple(pos), state.loops), None)]

    def zero_module(self, module: Value, site: Site, state: Machine) -> None:
        """`model.zero_grad()`: zero the gradients of the optimizers that own its parameters."""
        owners = frozenset((module,))
        before = self.concerned(owners, state)
        self.x.record("zero_grad", site, state, before=before, details={"module": module})
        several = self.several(state)
        for optimizer in [o for o in before if o is not None]:
            certain = self.related(owners, optimizer, state) or not several
            state.grads[optimizer] = NOTHING if certain else UNKNOWN
        state.default = UNKNOWN if several else NOTHING

    def _is_optimizer_like(self, base: Value, site: Site, state: Machine) -> bool:
        if isinstance(base, (Net, Instance, Super)) or base.taint.foreign:
            return False
        last = guards.describe(base).rpartition(".")[2].lower()
        return bool(re.search(r"(^|_)(optim\w*|opt)($|_|\d|\[)", last)) or base in {
            o.parts[0][1] for o in state.grads if isinstance(o, Optimizer) and o.parts[0][0] == "inferred"
        }

    # --- backward --------------------------------------------------------------------------------

    def backward(self, value: Value, site: Site, state: Machine, functional: bool = False) -> None:
        """Gradients of `value` reach the optimizers that own the parameters it depends on."""
        taint = value.taint
        if taint.foreign:
            self._foreign(site, state, value)
            return
        scaler = taint.scales[-1] if taint.scales else None
        certain = scaler is not None or self._known_plain(value)
        before = self.concerned(taint.owners, state)
        event = self.x.record(
            "backward",
            site,
            state,
            before=before,
            scaler=scaler,
            details={
                "value": value,
                "certain": certain,
                "functional": functional,
                "scales": taint.scales,
                "mixed": self._mixed(value),
            },
        )
        assert event is not None
        if scaler is None and not certain:
            for optimizer in before:
                self._set(optimizer, UNKNOWN, state)
            return
        epoch = state.book(scaler).epoch if scaler is not None else 0  # type: ignore[arg-type]
        several = self.several(state)
        for optimizer, gradients in before.items():
            maybe = several and (optimizer is None or not self.related(taint.owners, optimizer, state))
            self._set(optimizer, after_backward(gradients, event, scaler, epoch, maybe), state)  # type: ignore[arg-type]

    @staticmethod
    def _set(optimizer: Value | None, gradients: Gradients, state: Machine) -> None:
        if optimizer is None:
            state.default = gradients
        else:
            state.grads[optimizer] = gradients

    def _mixed(self, value: Value) -> bool:
        """Whether a scaled loss holds a sum with a term that is known not to be scaled."""
        if not value.taint.scales or not value.taint.unscaled:
            return False
        if isinstance(value, OpV) and value.op in ("+", "-") and len(value.args) == 2:
            for term, other in (value.args, value.args[::-1]):
                if other.taint.scales and not term.taint.scales and term.taint.owners and self._known_plain(term):
                    return True
        parts = value.args if isinstance(value, (OpV, Result)) else ()
        return any(self._mixed(part) for part in parts if isinstance(part, Value))

    def _known_plain(self, value: Value) -> bool:
        """Whether a loss without a visible scale was computed here, so that it cannot be scaled."""
        if isinstance(value, OpV):
            return any(self._known_plain(a) for a in value.args if isinstance(a, Value) and not isinstance(a, Const))
        if isinstance(value, AttrOf):
            return self._known_plain(value.base)
        if isinstance(value, ItemOf):
            return isinstance(value.parts[0], Value) and self._known_plain(value.parts[0])
        if isinstance(value, Result):
            callee = value.callee
            if isinstance(callee, Ext):
                return callee.dotted.startswith("torch.")
            if isinstance(callee, Func):
                return False
            if isinstance(callee, AttrOf):
                if isinstance(callee.base, (Result, OpV)):
                    return self._known_plain(callee.base)
                return not isinstance(callee.base, (Instance, Super, Framework))
            return isinstance(callee, (Net, Sym, Instance))
        return False

    def _foreign_backward(
        self, base: Value, pos: list[Value], site: Site, state: Machine, callee: Value, kw: dict[str, Value]
    ) -> list[CallOutcome]:
        """`accelerator.backward(loss)`: a framework scales, or does not, by a protocol of its own."""
        if isinstance(base, Framework) or pos[0].taint.owners or pos[0].taint.scales:
            if pos[0].taint.scales and not isinstance(base, Framework):
                self.backward(pos[0], site, state)
            else:
                self._foreign(site, state, pos[0], base)
            return [(state, NONE, None)]
        return self._unknown(callee, pos, kw, site, state)

    def _foreign(self, site: Site, state: Machine, value: Value, framework: Value | None = None) -> None:
        self.x.record(
            "backward",
            site,
            state,
            before=self.everything(state),
            details={"value": value, "framework": framework or value, "certain": False, "scales": (), "mixed": False},
        )
        for optimizer in list(state.grads):
            state.grads[optimizer] = UNKNOWN
        state.default = UNKNOWN

    # --- gradients -------------------------------------------------------------------------------

    def _gradient_method(
        self, grad: Grad, name: str, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine
    ) -> list[CallOutcome]:
        if name in (
            "data",
            "detach",
            "view",
            "flatten",
            "reshape",
            "clone",
            "float",
            "double",
            "to",
            "cpu",
            "cuda",
            "contiguous",
            "coalesce",
            "size",
            "dim",
            "numel",
        ):
            return [(state, grad, None)]
        if grad.parts[1] == "norm":
            return [(state, grad, None)]
        if name.endswith("_") and not name.endswith("__"):
            if name == "zero_" and grad.parts[1] == "grad":
                self.zero_owners(grad.owners, site, state)
                return [(state, grad, None)]
            if grad.parts[1] == "grad":
                self.gradient_event("grad_write", grad.owners, name, [*pos, *kw.values()], site, state)
            return [(state, grad, None)]
        if grad.parts[1] == "grad":
            self.gradient_event("grad_read", grad.owners, name, [*pos, *kw.values()], site, state)
        return [(state, Grad(grad.owners, "derived", taint=grad.taint), None)]

    def _gradient_function(
        self, name: str, gradients: list[Grad], pos: list[Value], kw: dict[str, Value], site: Site, state: Machine
    ) -> list[CallOutcome]:
        grad = gradients[0]
        if grad.parts[1] == "grad":
            kind = "grad_write" if name.endswith("_") else "grad_read"
            self.gradient_event(kind, grad.owners, name, [v for v in pos if v is not grad], site, state)
        if grad.parts[1] == "norm":
            return [(state, Result(Ext(name), (grad,), state.loops), None)]
        return [(state, Grad(grad.owners, "derived"), None)]

    def gradient_event(
        self, kind: str, owners: frozenset[Value], operation: str, arguments: list[Value], site: Site, state: Machine
    ) -> None:
        """Record that gradients are read or changed."""
        self.x.record(
            kind,
            site,
            state,
            before=self.concerned(owners, state),
            details={"owners": owners, "operation": operation, "arguments": tuple(arguments)},
        )

    def zero_owners(self, owners: frozenset[Value], site: Site, state: Machine) -> None:
        """Gradients of some parameters are zeroed by hand."""
        before = self.concerned(owners, state)
        self.x.record("zero_grad", site, state, before=before, details={"owners": owners})
        several = self.several(state)
        for optimizer in before:
            certain = not several or (optimizer is not None and bool(self.related(owners, optimizer, state)))
            self._set(optimizer, NOTHING if certain else UNKNOWN, state)

    def _hook(self, owners: frozenset[Value], pos: list[Value], site: Site, state: Machine) -> None:
        func = pos[0] if pos else NONE
        words: frozenset[str] = frozenset()
        if isinstance(func, Func):
            words = func.scope.words
        elif isinstance(func, Partial) and isinstance(func.parts[0], Ext):
            words = frozenset((func.parts[0].dotted.rpartition(".")[2],))
        clips = not words.isdisjoint({"clamp", "clamp_", "clip", "clip_", "nan_to_num", "clamp_min", "clamp_max"})
        self.x.record("hook", site, state, details={"owners": owners, "clips": clips})

    def _parameter_method(
        self, param: Param, name: str, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine
    ) -> list[CallOutcome]:
        if name in ("half", "bfloat16", "float", "to", "type"):
            dtype = self._cast_dtype(name, pos, kw)
            if dtype is not None:
                return [(state, Param(param.owners, ("cast", dtype)), None)]
        if name == "requires_grad_":
            if (pos and pos[0] is FALSE) or kw.get("requires_grad") is FALSE:
                self._freeze(param, site, state)
            return [(state, param, None)]
        if name.endswith("_") and not name.endswith("__"):
            self.x.record("weights_written", site, state, details={"owners": param.owners, "operation": name})
        return [(state, Result(AttrOf(param, name), tuple(pos), state.loops, taint=Taint(param.owners)), None)]

    def _freeze(self, param: Param, site: Site, state: Machine) -> None:
        for owner in param.owners:
            self.x.record("freeze", site, state, details={"target": owner})

    # --- casts -----------------------------------------------------------------------------------

    def dtype(self, value: Value | None) -> str | None:
        """ "float16", "bfloat16" or "float32" where the value is such a dtype for certain."""
        if isinstance(value, Ext):
            if value.dotted in library.FLOAT16:
                return "float16"
            if value.dotted in library.BFLOAT16:
                return "bfloat16"
            if value.dotted in library.FLOAT32:
                return "float32"
        if isinstance(value, Const) and isinstance(value.value, str):
            name = value.value.removeprefix("torch.")
            return {
                "float16": "float16",
                "half": "float16",
                "fp16": "float16",
                "bfloat16": "bfloat16",
                "float32": "float32",
            }.get(name) or (self.dtype(Ext(value.value)) if value.value.startswith("torch.") else None)
        return None

    def _cast_dtype(self, name: str, pos: list[Value], kw: dict[str, Value]) -> str | None:
        if name in ("half", "bfloat16", "float", "double"):
            return {"half": "float16", "bfloat16": "bfloat16"}.get(name, "float32") if not pos else None
        for value in (*pos, kw.get("dtype"), kw.get("dst_type")):
            dtype = self.dtype(value)
            if dtype is not None and not (isinstance(value, Const) and name == "to"):
                return dtype
        return None

    def cast(self, target: Value, dtype: str, how: str, site: Site, state: Machine) -> None:
        """Record that an object is cast as a whole."""
        self.x.record("cast", site, state, details={"target": target, "dtype": dtype, "how": how})

    def _pretrained(self, callee: Value, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine) -> Value:
        net = Net(state.allocate(id(site.node)), guards.describe(callee))
        self.x.sites.setdefault(net, site)
        dtype = self.dtype(kw.get("torch_dtype", kw.get("dtype")))
        if dtype in ("float16", "bfloat16"):
            self.cast(net, dtype, "torch_dtype=", site, state)
        return net

    # --- contexts --------------------------------------------------------------------------------

    def enter(self, stmt: Region, context: Value, state: Machine) -> list[Outcome]:
        """Enter the context of a `with` statement and run its body."""
        x = self.x
        env, _ = state.links[state.stack[-1]]
        site = Site(env.source, stmt.node)
        if isinstance(context, Context):
            if context.kind == "generator":
                return self._enter_generator(stmt, context, site, state)
            if context.kind == "apex":
                loss = Result(context, (), state.loops, taint=Taint(foreign=True))
                return x.within(stmt, None, state, loss)
            if context.kind in ("null", "stack", "other", "grad_mode"):
                return x.within(stmt, None, state, context)
            return x.within(stmt, self.entered(context, site, state), state, NONE)
        if isinstance(context, Ext):
            role = library.role(context.dotted)
            if role in ("autocast", "device_autocast"):
                x.record("evaluated", site, state, details={"value": context, "with": True})
            if role == "no_grad":
                return x.within(stmt, self.entered(Context("no_grad", id(stmt), None), site, state), state, NONE)
        if isinstance(context, Instance):
            return self._enter_instance(stmt, context, site, state)
        return x.within(stmt, None, state, context)

    def entered(self, context: Context, site: Site, state: Machine) -> Entered:
        """A new entry of a region."""
        state.entries += 1
        entered = Entered(context, site, state.entries)
        if context.kind == "autocast":
            self.x.record("enter", site, state, details={"context": context, "number": state.entries})
        return entered

    def _enter_generator(self, stmt: Region, context: Context, site: Site, state: Machine) -> list[Outcome]:
        callee, pos, kw = context.origin
        outer_stack, outer_calls = state.stack, state.calls

        needed = self.x.after

        def resume(at: Machine, value: Value) -> list[Outcome]:
            stack, calls = at.stack, at.calls
            at.stack, at.calls = outer_stack, outer_calls
            inner, self.x.after = self.x.after, needed
            out = self.x.within(stmt, None, at, value)
            self.x.after = inner
            for after, _ in out:
                after.stack, after.calls = stack, calls
            return out

        state.yields = (*state.yields, resume)
        out: list[Outcome] = []
        if callee.scope in callee.env.relevant:
            results = self.x.run(callee, list(pos), dict(kw), site, state)
        else:
            state.yields = state.yields[:-1]
            return self.x.within(stmt, None, state, Sym("context", id(stmt)))
        for after, _, signal in results:
            after.yields = after.yields[:-1] if after.yields and after.yields[-1] is resume else after.yields
            pending, after.pending = after.pending, None
            out.append((after, signal or pending))
        return out

    def _enter_instance(self, stmt: Region, context: Instance, site: Site, state: Machine) -> list[Outcome]:
        x = self.x
        enter = x.method(context.cls, "__enter__", state)
        leave = x.method(context.cls, "__exit__", state)
        starts: list[tuple[Machine, Value]] = [(state, context)]
        saved = state.regions
        if enter is not None and enter[1] in enter[0].env.relevant:
            func = Func(enter[0].env, enter[1], enter[0].parts[2], context)
            starts = []
            for after, value, signal in x.run(func, [], {}, site, state):
                if signal is None:
                    starts.append((after, value))
        out: list[Outcome] = []
        for start, value in starts:
            for after, signal in x.within(stmt, None, start, value):
                if leave is not None and leave[1] in leave[0].env.relevant:
                    func = Func(leave[0].env, leave[1], leave[0].parts[2], context)
                    for last, _, raised in x.run(func, [NONE, NONE, NONE], {}, site, after):
                        last.regions = saved
                        out.append((last, raised or signal))
                else:
                    after.regions = saved
                    out.append((after, signal))
        return out

    def _enter_here(self, context: Value, site: Site, state: Machine) -> list[CallOutcome]:
        """`stack.enter_context(context)`, or `context.__enter__()`: the region stays open."""
        out: list[CallOutcome] = []
        for settled, choice in self.x.settle(state, context):
            if isinstance(choice, Context) and choice.kind in ("autocast", "no_grad", "enable_grad"):
                settled.regions = (*settled.regions, self.entered(choice, site, settled))
            out.append((settled, NONE, None))
        return out

    def _context_method(
        self,
        context: Context,
        name: str,
        pos: list[Value],
        kw: dict[str, Value],
        site: Site,
        state: Machine,
        stmt: Call | None,
    ) -> list[CallOutcome]:
        if name == "__enter__":
            return self._enter_here(context, site, state)
        if name == "enter_context" and pos:
            return self._enter_here(pos[0], site, state)
        if name in ("__exit__", "close"):
            kept = list(state.regions)
            for position in range(len(kept) - 1, -1, -1):
                if kept[position].context is context:
                    del kept[position]
                    break
            state.regions = tuple(kept)
            return [(state, NONE, None)]
        return [(state, Result(AttrOf(context, name), tuple(pos), state.loops), None)]

    def decorator_kind(self, decorator: Value) -> str:
        """What a decorator is: "contextmanager", "property", "staticmethod", "classmethod", or ""."""
        if isinstance(decorator, Ext):
            role = library.role(decorator.dotted)
            if role == "contextmanager":
                return "contextmanager"
            last = decorator.dotted.rpartition(".")[2]
            if last in ("property", "cached_property"):
                return "property"
            if last in ("staticmethod", "classmethod"):
                return last
        return ""

    def decorating_region(self, decorator: Value, callee: Func, state: Machine) -> Entered | None:
        """The region that a decorator opens around a function's body."""
        site = Site(callee.env.source, callee.scope.node)
        if isinstance(decorator, Context) and decorator.kind in ("autocast", "no_grad", "enable_grad"):
            return self.entered(decorator, site, state)
        if isinstance(decorator, Ext) and library.role(decorator.dotted) == "no_grad":
            return self.entered(Context("no_grad", id(callee.scope), None), site, state)
        return None

    # --- frameworks ------------------------------------------------------------------------------

    def _framework_method(
        self, framework: Framework, name: str, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine
    ) -> list[CallOutcome]:
        callee = AttrOf(framework, name)
        if name == "backward":
            self._foreign(site, state, pos[0] if pos else NONE, framework)
            return [(state, NONE, None)]
        if name == "autocast":
            enabled = AttrOf(framework, "mixed precision")
            return [
                (
                    state,
                    Context(
                        "autocast",
                        state.allocate(id(site.node)),
                        AutocastArguments(None, Sym("dtype", framework), enabled, None),
                    ),
                    None,
                )
            ]
        self.x.record(
            "framework_call", site, state, details={"framework": framework, "name": name, "arguments": tuple(pos)}
        )
        if "save" in name and pos and self.contents(pos[0], state):
            self.save(pos[0], name, site, state)
        result = Result(callee, tuple(pos), state.loops, taint=Taint(foreign=True))
        if name in ("unwrap_model", "prepare_model") and pos:
            return [(state, pos[0], None)]
        return [(state, result, None)]

    # --- containers ------------------------------------------------------------------------------

    def _dict_method(
        self, base: DictV, name: str, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine
    ) -> Value:
        pairs: tuple[Any, ...] = state.heap.get((base, "#items"), ())
        is_open = bool(state.heap.get((base, "#open")))
        if name in ("get", "pop", "setdefault") and pos:
            for pair in reversed(pairs):
                if pair.items[0] is pos[0]:
                    return pair.items[1]  # type: ignore[no-any-return]
            if name == "setdefault" and len(pos) > 1:
                state.heap[(base, "#items")] = (*pairs, Sequence(pos[0], pos[1]))
                return pos[1]
            if not is_open:
                return pos[1] if len(pos) > 1 else NONE
        if name == "update":
            added = [Sequence(Const.of(k), v) for k, v in kw.items() if k != "**"]
            for value in pos:
                if isinstance(value, DictV):
                    added.extend(state.heap.get((value, "#items"), ()))
                    is_open |= bool(state.heap.get((value, "#open")))
                else:
                    is_open = True
            state.heap[(base, "#items")] = (*pairs, *added)
            state.heap[(base, "#open")] = is_open or "**" in kw
            return NONE
        if not is_open:
            if name == "items":
                return Sequence(*pairs)
            if name == "values":
                return Sequence(*(p.items[1] for p in pairs))
            if name == "keys":
                return Sequence(*(p.items[0] for p in pairs))
        if name == "copy":
            made = DictV(state.allocate((id(site.node), "copy")))
            state.heap[(made, "#items")] = pairs
            state.heap[(made, "#open")] = is_open
            return made
        return Result(AttrOf(base, name), tuple(pos), state.loops)

    def _list_method(self, base: ListV, name: str, pos: list[Value], state: Machine) -> Value:
        items: tuple[Any, ...] = state.heap.get((base, "#items"), ())
        if name == "append" and pos:
            state.heap[(base, "#items")] = (*items, pos[0])[:16]
            return NONE
        if name == "extend" and pos:
            more = self.x.items_of(pos[0], state)
            if more is not None:
                state.heap[(base, "#items")] = (*items, *more)[:16]
            else:
                state.heap[(base, "#items")] = (*items, pos[0])[:16]
                state.heap[(base, "#open")] = True
            return NONE
        if name == "pop" and items:
            return items[-1]  # type: ignore[no-any-return]
        return Result(AttrOf(base, name), tuple(pos), state.loops)

    # --- everything else -------------------------------------------------------------------------

    def _unknown(
        self, callee: Value, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine
    ) -> list[CallOutcome]:
        """A call of which nothing is known: its result depends on its arguments, and a call that gets hold
        of a scaler or an optimizer may have used it."""
        if isinstance(callee, Class):
            return self._construct(callee, pos, kw, site, state)
        name = _call_name(callee)
        if isinstance(callee, Result) and callee.taint.foreign:
            return [(state, Result(callee, tuple(pos), state.loops, taint=Taint(foreign=True)), None)]
        arguments = [*pos, *(v for _, v in sorted(kw.items()))]
        if re.search(r"save|dump|checkpoint|ckpt|snapshot", name, re.IGNORECASE) and not isinstance(callee, Ext):
            for value in arguments:
                if isinstance(value, (DictV, StateOf, Instance)) and self.contents(value, state):
                    self.save(value, name, site, state)
        self._hand_over(callee, name, arguments, state)
        if isinstance(callee, Net) and callee.constructor.rpartition(".")[2] == "BCELoss":
            self.x.record("bce", site, state)
        if isinstance(callee, (Sym, AttrOf, Net, Instance)) and self._may_be_module(callee, state):
            self.forward(callee, site, state)
        taint = self._result_taint(callee, arguments, state)
        identity = tuple(pos) + tuple(Sequence(Const.of(k), v) for k, v in sorted(kw.items()))
        return [(state, Result(callee, identity, state.loops, taint=taint), None)]

    def _may_be_module(self, callee: Value, state: Machine) -> bool:
        if isinstance(callee, (Net, Instance)):
            return True
        if (
            isinstance(callee, AttrOf)
            and isinstance(callee.base, (Result, OpV, Sym))
            and not isinstance(callee.base, Instance)
        ):
            return False
        return (
            any(isinstance(o, Optimizer) and o.owners and callee in o.owners for o in state.grads)
            or self.x.role(guards.describe(callee), state) == "model"
        )

    def _result_taint(self, callee: Value, arguments: list[Value], state: Machine) -> Taint:
        if self._no_grad(state):
            return CLEAN
        taint = CLEAN
        for value in arguments:
            taint = taint | value.taint
            if isinstance(value, (Sequence, ListV, DictV, Many)):
                for part in self.contents(value, state):
                    taint = taint | part.taint
        owners: frozenset[Value] = frozenset()
        if isinstance(callee, AttrOf):
            base = callee.base
            taint = taint | base.taint
            if isinstance(base, (Net, Instance, Sym, AttrOf, ItemOf)) and base.taint is CLEAN:
                owners = frozenset((callee if isinstance(base, Instance) else base,))
            if isinstance(base, Framework):
                taint = taint | Taint(foreign=True)
        elif isinstance(callee, (Net, Instance, Sym, ItemOf, Func)):
            owners = frozenset((callee,))
        elif isinstance(callee, Result):
            taint = taint | callee.taint
            owners = frozenset((callee,))
        return taint | Taint(owners) if owners else taint

    def _no_grad(self, state: Machine) -> bool:
        for region in reversed(state.regions):
            if region.context.kind == "no_grad":
                return True
            if region.context.kind == "enable_grad":
                return False
        return False

    def _hand_over(self, callee: Value, name: str, arguments: list[Value], state: Machine) -> None:
        """Forget what is known of scalers and optimizers that an unknown call gets hold of."""
        receiver = callee.base if isinstance(callee, AttrOf) else callee.self if isinstance(callee, Func) else None
        if isinstance(callee, Ext) and _BENIGN_EXT.search(callee.dotted):
            return
        harmless = bool(library.HARMLESS_NAMES.search(name)) and not re.search(
            r"unscale|backward|optimi[sz]e|update_param|step", name
        )
        if not harmless:
            for value in arguments:
                self._lose(value, state, 0)
        if isinstance(receiver, (Instance, Super)):
            holder = receiver.parts[0] if isinstance(receiver, Super) else receiver
            if library.HOOK_NAMES.search(name) and not isinstance(callee, Func):
                self._lose(holder, state, 0)
        elif receiver is not None and re.search(r"unscale|amp|scaler", name):
            for optimizer in list(state.grads):
                state.grads[optimizer] = UNKNOWN
            state.default = UNKNOWN

    def _lose(self, value: Value, state: Machine, depth: int) -> None:
        if depth > 3:
            return
        if isinstance(value, Scaler):
            self.lose_scaler(value, state)
        elif isinstance(value, Optimizer):
            state.grads[value] = UNKNOWN
            for scaler, book in list(state.books.items()):
                state.books[scaler] = book.with_stage(value, "?")
        elif isinstance(value, Instance):
            for (holder, _), held in list(state.heap.items()):
                if (
                    holder is value
                    and isinstance(held, (Scaler, Optimizer, Instance, ListV, DictV))
                    and held is not value
                ):
                    self._lose(held, state, depth + 1)
        elif isinstance(value, (Sequence, ListV, DictV, Many)):
            for part in self.contents(value, state):
                self._lose(part, state, depth + 1)
        elif isinstance(value, (Sym, AttrOf, ItemOf)):
            inferred = Scaler(("inferred", value), "inferred", TRUE)
            if inferred in state.books:
                self.lose_scaler(inferred, state)
            optimizer = Optimizer(("inferred", value), None)
            if optimizer in state.grads:
                state.grads[optimizer] = UNKNOWN

    def lose_scaler(self, scaler: Scaler, state: Machine) -> None:
        """Forget what is known of a scaler and of the gradients that may carry its scale."""
        book = state.book(scaler)
        state.books[scaler] = Book(book.epoch + 1, tuple((o, "?") for o, _ in book.stages), None, None)
        for optimizer, gradients in list(state.grads.items()):
            if gradients.scaler in (scaler, None):
                state.grads[optimizer] = UNKNOWN
        if state.default.scaler in (scaler, None):
            state.default = UNKNOWN

    def _watched(
        self, name: str, callee: Value, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine
    ) -> None:
        self.x.record(
            "call", site, state, details={"name": name, "callee": callee, "arguments": tuple(pos), "keywords": dict(kw)}
        )

    # --- which optimizers ------------------------------------------------------------------------

    def everything(self, state: Machine) -> dict[Value | None, Gradients]:
        """The gradient states of all optimizers."""
        known: dict[Value | None, Gradients] = {None: state.default}
        for optimizer, gradients in state.grads.items():
            known[optimizer] = gradients
        return known

    def _of(self, optimizer: Value, state: Machine) -> dict[Value | None, Gradients]:
        return {optimizer: state.gradients(optimizer)}

    def concerned(self, owners: frozenset[Value], state: Machine) -> dict[Value | None, Gradients]:
        """The gradient states of the optimizers that may own parameters of `owners`."""
        relations = {o: self.related(owners, o, state) for o in state.grads}
        if not any(relations.values()):
            # what is visible does not link the parameters to any optimizer, so nothing rules one out
            known = [o for o, r in relations.items() if r is None or len(relations) == 1 or not self._solid(owners)]
            chosen = known or list(relations)
        else:
            chosen = [o for o, r in relations.items() if r is not False]
        found: dict[Value | None, Gradients] = {o: state.grads[o] for o in chosen}
        if not any(relations.values()):
            found[None] = state.default
        return found

    def _solid(self, owners: frozenset[Value]) -> bool:
        return bool(owners) and not any(_opaque(o) for o in owners)

    def related(self, owners: frozenset[Value], optimizer: Value, state: Machine) -> bool | None:
        """Whether an optimizer owns parameters of `owners`; None where nothing tells."""
        if optimizer in owners:
            return True
        theirs = optimizer.owners if isinstance(optimizer, Optimizer) else None
        if theirs is None or not owners:
            return None
        for mine in owners:
            for other in theirs:
                if within(mine, other) or within(other, mine):
                    return True
        if any(_opaque(o) for o in owners) or any(_opaque(o) for o in theirs):
            return None
        return False

    def several(self, state: Machine) -> bool:
        """Whether more than one optimizer may be in play."""
        if len(state.grads) > 1:
            return True
        marker = state.frame.get("#scope")
        env = state.links[state.stack[-1]][0]
        scope = marker.parts[1] if marker is not None else env.program.body
        return sum(1 for role in env.roles[scope].values() if role == "optimizer") > 1

    # --- parameters and contents -----------------------------------------------------------------

    def parameter_owners(self, value: Value, state: Machine, depth: int = 0) -> frozenset[Value]:
        """The modules (or optimizers) whose parameters a value holds."""
        if depth > 6:
            return frozenset()
        if isinstance(value, (Params, Param, Grad)):
            return value.owners
        if isinstance(value, Optimizer):
            return value.owners or frozenset((value,))
        if isinstance(value, (Sequence, Many, ListV, DictV)):
            found: frozenset[Value] = frozenset()
            for part in self._direct(value, state):
                found |= self.parameter_owners(part, state, depth + 1)
            return found
        if isinstance(value, OpV):
            found = frozenset()
            for part in value.args:
                if isinstance(part, Value):
                    found |= self.parameter_owners(part, state, depth + 1)
            return found
        if isinstance(value, Result):
            if isinstance(value.callee, AttrOf) and value.callee.name in ("named_parameters", "modules", "children"):
                return frozenset((value.callee.base,))
            found = frozenset()
            for part in value.args:
                if isinstance(part, Value):
                    found |= self.parameter_owners(part, state, depth + 1)
            if not found and not isinstance(value.callee, Ext):
                nets = [
                    a
                    for a in value.args
                    if isinstance(a, (Net, Instance)) or (isinstance(a, Sym) and guards.describe(a) in ("model", "net"))
                ]
                found = frozenset(nets)
            return found
        if isinstance(value, ItemOf):
            return (
                self.parameter_owners(value.parts[0], state, depth + 1)
                if isinstance(value.parts[0], Value)
                else frozenset()
            )
        if isinstance(value, AttrOf) and value.name == "param_groups":
            return self.parameter_owners(self.x.as_optimizer(value.base), state, depth + 1)
        return frozenset()

    def element_owners(self, value: Value) -> frozenset[Value]:
        """The owners of an element of an unknown sequence that can only hold parameters."""
        if isinstance(value, ItemOf):
            base = value.parts[0]
            index = value.parts[1]
            if isinstance(base, ItemOf) and isinstance(base.parts[0], AttrOf) and base.parts[0].name == "param_groups":
                if isinstance(index, Const) and index.value == "params":
                    optimizer = self.x.as_optimizer(base.parts[0].base)
                    assert isinstance(optimizer, Optimizer)
                    return optimizer.owners or frozenset((optimizer,))
        if isinstance(value, Result) and isinstance(value.callee, Ext):
            for arg in value.args:
                if isinstance(arg, Params):
                    return arg.owners
        return frozenset()

    def _direct(self, value: Value, state: Machine) -> list[Value]:
        if isinstance(value, Sequence):
            return [v for v in value.items if isinstance(v, Value)]
        if isinstance(value, Many):
            return [value.element]
        if isinstance(value, ListV):
            return list(state.heap.get((value, "#items"), ()))
        if isinstance(value, DictV):
            return [pair.items[1] for pair in state.heap.get((value, "#items"), ())]
        if isinstance(value, Instance):
            return [held for (holder, _), held in state.heap.items() if holder is value and isinstance(held, Value)]
        if isinstance(value, OpV) and value.op in ("ite", "or", "and"):
            return [a for a in value.args[1 if value.op == "ite" else 0 :] if isinstance(a, Value)]
        if isinstance(value, Result):
            return [a for a in value.args if isinstance(a, Value)]
        return []

    def contents(self, value: Value, state: Machine) -> list[Value]:
        """Everything that a container holds, nested containers flattened."""
        found: list[Value] = []
        seen: set[Value] = set()

        def visit(v: Value, depth: int) -> None:
            if v in seen or depth > 5:
                return
            seen.add(v)
            inner = self._direct(v, state)
            if not isinstance(v, (Sequence, Many, ListV, DictV)):
                found.append(v)
            for part in inner:
                visit(part, depth + 1)

        for part in self._direct(value, state):
            visit(part, 0)
        if isinstance(value, StateOf):
            found.append(value)
        return found

    def _is_open(self, value: Value, state: Machine) -> bool:
        """Whether a container may hold more than what is known."""
        if isinstance(value, DictV):
            return bool(state.heap.get((value, "#open")))
        return isinstance(value, (Sym, Result, ItemOf, AttrOf)) and not self._direct(value, state)

    # --- statements ------------------------------------------------------------------------------

    def attribute_bound(self, base: Value, target: Attr, value: Value, state: Machine, stmt: Stmt) -> None:
        """`base.name = value`, seen before it takes effect."""
        env, _ = state.links[state.stack[-1]]
        node: cst.CSTNode = getattr(stmt, "node", None) or target.node  # type: ignore[assignment]
        site = Site(env.source, node)
        if target.name == "grad" or (target.name == "data" and isinstance(base, Grad)):
            owners = base.owners if isinstance(base, (Param, Grad)) else frozenset((base,))
            if isinstance(base, Grad) and base.parts[1] != "grad":
                return
            if value is NONE:
                self.zero_owners(owners, site, state)
            else:
                self.gradient_event("grad_write", owners, "assign", [value], site, state)
        elif target.name == "data" and isinstance(base, Param) and isinstance(value, Param):
            origin = value.parts[1]
            if isinstance(origin, tuple) and origin[0] == "cast":
                for owner in base.owners:
                    self.cast(owner, origin[1], "parameter data", site, state)
        elif target.name == "requires_grad" and value is FALSE:
            for owner in base.owners if isinstance(base, Param) else frozenset((base,)):
                self.x.record("freeze", site, state, details={"target": owner})

    def item_bound(self, base: Value, index: Value, value: Value, state: Machine, stmt: Stmt) -> None:
        """`base[index] = value`"""
        if isinstance(base, Grad) and base.parts[1] == "grad":
            env, _ = state.links[state.stack[-1]]
            self.gradient_event("grad_write", base.owners, "item", [index, value], Site(env.source, stmt.node), state)  # type: ignore[union-attr]

    def assignment(self, stmt: Assign, value: Value, state: Machine) -> None:
        """Seen before a value is bound: a sum of scaled and unscaled losses is wrong where it is formed."""
        if isinstance(value, OpV) and value.taint.unscaled and self._mixed(value):
            env, _ = state.links[state.stack[-1]]
            self.x.record("mix", Site(env.source, stmt.node), state, details={"value": value})

    def evaluated(self, stmt: Evaluate, value: Value, state: Machine) -> None:
        """An expression statement that is no call."""
        if isinstance(value, Ext) and library.role(value.dotted) in ("autocast", "device_autocast"):
            env, _ = state.links[state.stack[-1]]
            self.x.record("evaluated", Site(env.source, stmt.node), state, details={"value": value, "with": False})

    def jumped(self, stmt: Jump, state: Machine) -> None:
        """`return`, `break`, `continue`: of interest while a step is under way."""
        self._left(stmt.kind, stmt.node, state)

    def caught(self, handler: Handler, state: Machine) -> None:
        """An exception is swallowed: of interest while a step is under way."""
        self._left("except", handler.node, state)

    def _left(self, kind: str, node: cst.CSTNode, state: Machine) -> None:
        if any(g.kind in ("U", "T") for g in state.grads.values()):
            env, _ = state.links[state.stack[-1]]
            self.x.record("jump", Site(env.source, node), state, before=self.everything(state), details={"kind": kind})

    def suspended(self, stmt: Yield, state: Machine) -> None:
        """A generator gives control away."""
        if any(r.context.kind == "autocast" for r in state.regions):
            env, _ = state.links[state.stack[-1]]
            self.x.record("yield", Site(env.source, stmt.node), state)


def _call_name(callee: Value) -> str:
    if isinstance(callee, AttrOf):
        return callee.name
    if isinstance(callee, Ext):
        return callee.dotted.rpartition(".")[2]
    if isinstance(callee, Func):
        return callee.scope.name
    if isinstance(callee, Sym):
        return str(callee.parts[-1]).rpartition(".")[2]
    return ""


def _detached(taint: Taint) -> Taint:
    return Taint(inverse=True) if taint.inverse else CLEAN


def _opaque(value: Value) -> bool:
    """Whether a callable may stand for any module: a function, a method of an own object, an unknown result."""
    if isinstance(value, AttrOf):
        root: Value = value
        while isinstance(root, AttrOf):
            root = root.base
        return isinstance(root, Result) or value.name == "*"
    return isinstance(value, (Func, Result, ItemOf)) or (
        isinstance(value, Sym) and value.parts[0] in ("join", "returned", "global")
    )


def within(inner: Value, outer: Value) -> bool:
    """Whether `inner` is `outer` or a part of it."""
    current: Value | None = inner
    while current is not None:
        if current is outer:
            return True
        if isinstance(current, AttrOf):
            current = current.base
        elif isinstance(current, Func):
            current = current.self
        else:
            break
    return isinstance(outer, Net) and any(within(inner, child) for child in outer.children)


_EXTERNAL: dict[str, Any] = {
    "scaler": Effects._scaler,
    "sharded_scaler": Effects._scaler,
    "autocast": Effects._autocast,
    "device_autocast": Effects._autocast,
    "null_context": Effects._plain_context,
    "no_grad": Effects._plain_context,
    "enable_grad": Effects._plain_context,
    "exit_stack": Effects._plain_context,
    "partial": Effects._partial,
    "autograd_backward": Effects._autograd_backward,
    "autograd_grad": Effects._autograd_grad,
    "save": Effects._save,
    "optimizer": Effects._optimizer,
    "scheduler": Effects._scheduler,
    "module": Effects._net,
    "same_module": Effects._same_module,
    "fsdp1": Effects._same_module,
    "copy": Effects._copy,
    "clip_norm": Effects._clip,
    "clip_value": Effects._clip,
    "total_norm": Effects._total_norm,
    "default_dtype": Effects._default_dtype,
    "framework": Effects._framework,
    "apex_scale_loss": Effects._apex,
    "exit": Effects._exit,
    "bce": Effects._bce,
    "same_value": Effects._same_value,
    "cast": Effects._typing_cast,
}

_SCALER: dict[str, Any] = {
    "scale": Effects._scale,
    "unscale_": Effects._unscale,
    "step": Effects._step,
    "update": Effects._update,
}
