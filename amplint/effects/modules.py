"""Modules and objects of the project: construction, forward passes, casts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amplint import guards, library
from amplint.machine import FRESH_BOOK
from amplint.program import Attr, Branch, Call, Region, path_of
from amplint.rule import Site
from amplint.states import (
    NOTHING,
)
from amplint.values import (
    NONE,
    TRUE,
    AttrOf,
    Class,
    Const,
    DictV,
    Ext,
    Func,
    Instance,
    Net,
    Optimizer,
    OpV,
    Result,
    Scaler,
    Sequence,
    Sym,
    Taint,
    Value,
)

if TYPE_CHECKING:
    from amplint.effects.dispatch import Effects
    from amplint.machine import CallOutcome, Machine


class Modules:
    """Modules and objects of the project, for one executor."""

    def __init__(self, effects: Effects) -> None:
        self.effects = effects
        self.x = effects.x

    def net(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        """A module of a library is made."""
        children = tuple(v for v in pos if isinstance(v, (Net, Instance, Sym, AttrOf)))
        net = Net(
            state.allocate(id(site.node)),
            callee.dotted,
            *((children,) if children and callee.dotted in library.CONTAINERS else ()),
        )
        self.x.sites.setdefault(net, site)
        for pair in state.heap.get((pos[0], "#items"), ()) if pos and isinstance(pos[0], DictV) else ():
            # a `ModuleDict`
            state.heap[(net, ("item", pair.items[0]))] = pair.items[1]
        self.x.record("construct_module", site, state, details={"module": net})
        dtype = self.dtype(kw.get("dtype"))
        if dtype in ("float16", "bfloat16"):
            self.cast(net, dtype, "dtype=", site, state)
        return [(state, net, None)]

    def same_module(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        """A wrapper that hands the module through: DDP, `torch.compile`, FSDP."""
        model = pos[0] if pos else kw.get("module", kw.get("model", Sym("module", id(site.node))))
        if library.role(callee.dotted) == "fsdp1":
            state.heap[(model, "#fsdp1")] = TRUE
            self.x.record("fsdp", site, state, details={"module": model, "keywords": dict(kw)})
        return [(state, model, None)]

    def construct(
        self, cls: Class, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine
    ) -> list[CallOutcome]:
        """A class of the project is called."""
        classes, bases = self.x.classes.lineage(cls, state)
        roles = {library.role(b) for b in bases}
        if "scaler" in roles or "sharded_scaler" in roles:
            enabled = self.effects.scaling.scaler_enabled(next((b for b in bases if library.role(b)), ""), pos, kw)
            scaler = Scaler(state.allocate(id(site.node)), "subclass", enabled)
            self.x.sites.setdefault(scaler, site)
            self.x.classes_of[scaler] = cls
            state.books[scaler] = FRESH_BOOK
            self.x.record(
                "construct_scaler",
                site,
                state,
                scaler=scaler,
                details={"arguments": (), "keywords": {}, "callee": cls.scope.name},
            )
            return [(state, scaler, None)]
        is_optimizer = "optimizer" in roles or any(b.startswith("torch.") and b.endswith(".Optimizer") for b in bases)
        if is_optimizer and not self._steps_through_scaler(cls, state):
            owners = self.effects.owners.parameter_owners(pos[0] if pos else kw.get("params", NONE), state) or None
            masters = any(library.keeps_masters(c.scope.name, c.scope.words) for c in classes) or any(
                library.keeps_masters(base) for base in bases
            )
            optimizer = Optimizer(self.effects.optimizers.new_optimizer(state), owners)
            self.x.sites.setdefault(optimizer, site)
            self.x.classes_of[optimizer] = cls
            state.grads[optimizer] = NOTHING
            self.x.record(
                "construct_optimizer",
                site,
                state,
                optimizer=optimizer,
                details={"owners": owners, "keywords": dict(kw), "callee": cls.scope.name, "masters": masters},
            )
            return [(state, optimizer, None)]
        return self.x.calls.instantiate(cls, pos, kw, site, state, state.allocate(id(site.node)))

    def _steps_through_scaler(self, cls: Class, state: Machine) -> bool:
        """Whether the `step` of an optimizer class asks a scaler to step: its methods have to be followed.

        One that supports scaling is handed the scaler by the scaler's own `step` (torch/amp/grad_scaler.py).
        """
        if any("_step_supports_amp_scaling" in c.scope.words for c in self.x.classes.lineage(cls, state)[0]):
            return False
        found = self.x.classes.method(cls, "step", state)
        return found is not None and any("scaler" in word.lower() for word in found[1].words)

    def call_instance(
        self, callee: Instance, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine
    ) -> list[CallOutcome]:
        """An object of the project is called."""
        found = self.x.classes.method(callee.cls, "__call__", state)
        is_module = self.x.classes.is_module_class(callee.cls, state)
        if found is None and is_module:
            self.forward(callee, site, state)
            self._inherited_bce(callee.cls, site, state)
            found = self.x.classes.method(callee.cls, "forward", state)
            if found is not None and not found[0].env.deals_with_training(found[1]):
                found = None
        if found is not None:
            owner, scope = found
            func = Func(owner.env, scope, owner.parts[2], callee)
            outcomes = self.x.calls.invoke(func, pos, kw, site, state, None)
            if is_module:
                return [(s, self._owned(v, callee, pos, s), signal) for s, v, signal in outcomes]
            return outcomes
        return self.effects.unknown.unknown(callee, pos, kw, site, state)

    def _inherited_bce(self, cls: Class, site: Site, state: Machine) -> None:
        """Record what an object that is called does if its class is an `nn.BCELoss` of the project's own."""
        if not any(base.endswith(".BCELoss") for base in self.x.classes.lineage(cls, state)[1]):
            return
        found = self.x.classes.method(cls, "forward", state)
        if found is None:
            self.x.record("bce", site, state)
            return
        owner, scope = found
        if any(isinstance(s, (Branch, Region)) for s in scope.statements):
            return
        inherited = {s.result for s in scope.statements if isinstance(s, Call) and path_of(s.func) == "super"}
        for stmt in scope.statements:
            if isinstance(stmt, Call) and isinstance(stmt.func, Attr) and path_of(stmt.func.base) in inherited:
                if stmt.func.name in ("forward", "__call__"):
                    calls, state.calls = state.calls, (*state.calls, site)
                    self.x.record("bce", Site(owner.env.source, stmt.node), state)
                    state.calls = calls

    def _owned(self, value: Value, owner: Value, pos: list[Value], state: Machine) -> Value:
        if isinstance(value, (Const, Scaler, Optimizer)):
            return Result(owner, tuple(pos), state.loops, taint=Taint(frozenset((owner,))))
        if self.effects.contexts.no_grad(state):
            return Result(owner, tuple(pos), state.loops)
        if isinstance(value, Sequence):
            return Sequence(*(self._owned(v, owner, pos, state) for v in value.items))
        taint = value.taint | Taint(frozenset((owner,)))
        return Result(owner, (value,), state.loops, taint=taint)

    def forward(self, module: Value, site: Site, state: Machine) -> None:
        """Record a forward pass of a module."""
        self.x.record(
            "forward", site, state, details={"module": module, "no_grad": self.effects.contexts.no_grad(state)}
        )

    def may_be_module(self, callee: Value, state: Machine) -> bool:
        """Whether a callable can be a torch module."""
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
            or self.x.binding.role(guards.describe(callee), state) == "model"
        )

    def default_dtype(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        """`torch.set_default_dtype(dtype)`."""
        dtype = self.dtype(pos[0] if pos else kw.get("d"))
        self.x.record("default_dtype", site, state, details={"dtype": dtype})
        return [(state, NONE, None)]

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

    def cast_dtype(self, name: str, pos: list[Value], kw: dict[str, Value]) -> str | None:
        """The dtype that a casting method asks for, None where it asks for none."""
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

    def pretrained(self, callee: Value, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine) -> Value:
        """`Class.from_pretrained(name, dtype=...)`."""
        net = Net(state.allocate(id(site.node)), guards.describe(callee))
        self.x.sites.setdefault(net, site)
        dtype = self.dtype(kw.get("torch_dtype", kw.get("dtype")))
        if dtype in ("float16", "bfloat16"):
            self.cast(net, dtype, "torch_dtype=", site, state)
        return net
