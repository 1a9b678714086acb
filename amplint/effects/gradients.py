"""Gradients: clipped, read, written, zeroed, hooked; parameters changed in place."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from amplint import library
from amplint.effects.owners import within
from amplint.layout import enclosing
from amplint.program import Assign, Attr, Call, Name, Op, Stmt
from amplint.rule import Site
from amplint.states import (
    NOTHING,
    UNKNOWN,
    Gradients,
)
from amplint.values import (
    FALSE,
    NONE,
    TRUE,
    AttrOf,
    Ext,
    Func,
    Grad,
    Optimizer,
    Param,
    Partial,
    Result,
    Spread,
    Sym,
    Taint,
    Value,
    computed_from_gradients,
    is_raw,
)

if TYPE_CHECKING:
    from amplint.effects.dispatch import Effects
    from amplint.machine import CallOutcome, Machine


#: known of an executor that has met a hook on a parameter which takes a step: then each backward does
HOOKS = "hooks that step"
#: assignments that change a gradient in place, as the methods of these names do; and those that change a weight
_FACTORS = {"*": "mul_", "/": "div_"}
_IN_PLACE = {**_FACTORS, "+": "add_", "-": "sub_"}
#: a function that limits values, by its name
#: what makes a tensor that is no module's
_MAKES_TENSOR = re.compile(r"^torch\.(zeros|ones|full|empty|randn?|tensor)(_like)?$")
_CLIPS = re.compile(r"clamp(?:_|$)|clip(?:_|$)|nan_to_num$")


def _is_made_here(owner: Value) -> bool:
    """Whether gradients are those of a tensor that the program makes, and not of a module's parameters."""
    callee = owner.callee if isinstance(owner, Result) else None
    if isinstance(callee, AttrOf):
        return callee.name in ("clone", "detach")
    return isinstance(callee, Ext) and _MAKES_TENSOR.match(callee.dotted) is not None


def is_part(owners: frozenset[Value], optimizer: Value | None, gradients: Gradients) -> bool:
    """Whether an optimizer is known to hold more than these modules and parameters, or the last backward to have
    reached more: what is dropped of `model.last_layer` is not all of what `model` has."""
    held = optimizer.owners if isinstance(optimizer, Optimizer) else None
    if held:
        return not all(any(within(one, owner) for owner in owners) for one in held)
    loss = gradients.last.details["value"] if gradients.last is not None and gradients.last.kind == "backward" else NONE
    trained = loss.taint.owners
    return bool(owners) and all(any(mine is not one and within(mine, one) for one in trained) for mine in owners)


def is_selected(site: Site) -> bool:
    """Whether a statement in a loop over parameters is for some of them: a condition that does not ask for the gradient
    itself stands around it, or before it with a `continue`."""
    node = site.node
    parent = site.module.parent(node)
    while parent is not None and not isinstance(parent, (cst.For, cst.FunctionDef)):
        if isinstance(parent, cst.If) and "grad" not in site.module.rough_text(parent.test).replace(
            "requires_grad", ""
        ):
            return isinstance(enclosing(Site(site.module, parent), cst.For, cst.FunctionDef), cst.For)
        node, parent = parent, site.module.parent(parent)
    if not isinstance(parent, cst.For) or not isinstance(parent.body, cst.IndentedBlock):
        return False
    for stmt in parent.body.body:
        if stmt is node:
            return False
        if isinstance(stmt, cst.If) and "continue" in site.module.rough_text(stmt.body):
            if "grad" not in site.module.rough_text(stmt.test).replace("requires_grad", ""):
                return True
    return False


class GradientEffects:
    """What happens to gradients, for one executor."""

    def __init__(self, effects: Effects) -> None:
        self.effects = effects
        self.x = effects.x

    def clip_call(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        """`clip_grad_norm_(parameters, limit)` and its like."""
        params = pos[0] if pos else kw.get("parameters", kw.get("model_params", NONE))
        limit = kw.get("max_norm", kw.get("clip_value", kw.get("value", pos[1] if len(pos) > 1 else None)))
        if limit is None and ("**" in kw or any(isinstance(value, Spread) for value in pos)):
            limit = Sym("limit", id(site.node))
        last = callee.dotted.rpartition(".")[2]
        strict = kw.get("error_if_nonfinite", pos[3] if len(pos) > 3 else FALSE)
        owners = self.effects.owners.parameter_owners(params, state)
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
            before=self.effects.owners.concerned(owners, state),
            details={"owners": owners, "limit": limit, "function": function, "error_if_nonfinite": strict},
        )

    def total_norm(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        """A norm of gradients that changes none of them."""
        owners: frozenset[Value] = frozenset()
        for value in [*pos, *kw.values()]:
            for part in [value, *self.effects.containers.contents(value, state)]:
                if isinstance(part, Grad):
                    owners |= part.owners
        strict = kw.get("error_if_nonfinite", pos[2] if len(pos) > 2 else FALSE)
        details = {"owners": owners, "operation": "total_norm", "arguments": tuple(pos), "error_if_nonfinite": strict}
        self.x.record("grad_read", site, state, before=self.effects.owners.concerned(owners, state), details=details)
        return [(state, Grad(owners, "derived"), None)]

    def gradient_method(
        self, grad: Grad, name: str, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine
    ) -> list[CallOutcome]:
        """A method of a gradient: it reads, writes or zeroes it."""
        if name in library.METADATA:
            return [(state, Result(Ext(name), (), state.loops), None)]
        if name in library.KEEPS_SIZE or name in library.REARRANGES:
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
        if is_raw(grad):
            self.gradient_event("grad_read", grad.owners, name, [*pos, *kw.values()], site, state)
        return [(state, Grad(grad.owners, "derived", taint=grad.taint), None)]

    def gradient_function(
        self, name: str, gradients: list[Grad], pos: list[Value], kw: dict[str, Value], site: Site, state: Machine
    ) -> list[CallOutcome]:
        """A function that is given gradients."""
        grad = gradients[0]
        name = name.removeprefix("_foreach_")
        if name in library.REARRANGES or (name == "where" and pos and not computed_from_gradients(pos[0])):
            return [(state, grad, None)]
        if is_raw(grad):
            kind = "grad_write" if name.endswith("_") else "grad_read"
            # a list of gradients that is changed in place is not what it is changed by
            others = pos[1:] if pos and grad in self.effects.containers.contents(pos[0], state) else pos
            self.gradient_event(kind, grad.owners, name, [v for v in others if v is not grad], site, state)
        if name.endswith("_like"):
            # noise of the same shape: no number of the gradient is in it
            return [(state, Result(Ext(name), (), state.loops), None)]
        if grad.parts[1] == "norm":
            return [(state, Result(Ext(name), (grad,), state.loops), None)]
        if name in ("stack", "cat", "hstack", "vstack"):
            return [(state, grad, None)]
        return [(state, Grad(grad.owners, "derived"), None)]

    def gradient_event(
        self, kind: str, owners: frozenset[Value], operation: str, arguments: list[Value], site: Site, state: Machine
    ) -> None:
        """Record that gradients are read or changed."""
        self.x.record(
            kind,
            site,
            state,
            before=self.effects.owners.concerned(owners, state),
            details={"owners": owners, "operation": operation, "arguments": tuple(arguments)},
        )

    def zero_owners(self, owners: frozenset[Value], site: Site, state: Machine) -> None:
        """Gradients of some parameters are zeroed by hand."""
        before = self.effects.owners.concerned(owners, state)
        if (
            owners
            and all(map(_is_made_here, owners))
            and not any(o is not None and self.effects.owners.related(owners, o, state) for o in before)
        ):
            # an input that an attack or an inner loop changes, and no optimizer
            return
        if is_selected(site) or all(is_part(owners, *held) for held in before.items()):
            # some of them: what is left is worth a step
            for optimizer in before:
                self.effects.losses.assign(optimizer, UNKNOWN, state)
            return
        self.x.record("zero_grad", site, state, before=before, details={"owners": owners})
        several = self.effects.owners.several(state)
        for optimizer in before:
            certain = not several or (
                optimizer is not None and bool(self.effects.owners.related(owners, optimizer, state))
            )
            self.effects.losses.assign(optimizer, NOTHING if certain else UNKNOWN, state)

    def hook(self, owners: frozenset[Value], pos: list[Value], site: Site, state: Machine) -> None:
        """A hook that is registered on a parameter."""
        func = pos[0] if pos else NONE
        words: frozenset[str] = frozenset()
        if isinstance(func, Func):
            words = func.scope.words
        elif isinstance(func, Partial) and isinstance(func.parts[0], Ext):
            words = frozenset((func.parts[0].dotted.rpartition(".")[2],))
        knows_scale = not words.isdisjoint({"unscale_", "get_scale"})
        clips = not knows_scale and any(_CLIPS.match(word) for word in words)
        self.x.record("hook", site, state, details={"owners": owners, "clips": clips, "steps": "step" in words})
        if "step" in words:
            # whatever path: whether there is a hook is decided by a loop over parameters, or by what of them is trained
            self.x.known[HOOKS] = True

    def parameter_method(
        self, param: Param, name: str, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine
    ) -> list[CallOutcome]:
        """A method of a parameter."""
        if name in ("half", "bfloat16", "float", "to", "type"):
            dtype = self.effects.modules.cast_dtype(name, pos, kw)
            if dtype is not None:
                return [(state, Param(param.owners, ("cast", dtype)), None)]
        if name == "requires_grad_":
            if (pos and pos[0] is FALSE) or kw.get("requires_grad") is FALSE:
                self._freeze(param, site, state)
            return [(state, param, None)]
        if name.endswith("_") and not name.endswith("__"):
            self.x.record("weights_written", site, state, details={"owners": param.owners, "operation": name})
        return [(state, Result(AttrOf(param, name), tuple(pos), state.loops, taint=Taint(param.owners)), None)]

    def changed_in_place(self, stmt: Assign, state: Machine) -> None:
        """`p -= rate * p.grad` and `p.data -= ...` change a weight, as the methods of these names do."""
        target = stmt.target
        data = isinstance(target, Attr) and target.name == "data"
        written = target.base if data and isinstance(target, Attr) else target
        value = self.x.expressions.value(written, state) if isinstance(written, Name) else None
        operator = stmt.value.op if isinstance(stmt.value, Op) else ""
        if isinstance(value, Param):
            env, _ = state.links[state.stack[-1]]
            details = {"owners": value.owners, "operation": _IN_PLACE.get(operator, operator)}
            self.x.record("weights_written", Site(env.source, stmt.node), state, details=details)

    def _freeze(self, param: Param, site: Site, state: Machine) -> None:
        for owner in param.owners:
            self.x.record("freeze", site, state, details={"target": owner})

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
                return
            # `p.grad *= factor` is `p.grad.mul_(factor)`
            factor = stmt.value if isinstance(stmt, Assign) and stmt.augmented else None
            operation = _FACTORS.get(factor.op) if isinstance(factor, Op) else None
            if operation is not None and isinstance(factor, Op):
                self.gradient_event(
                    "grad_write", owners, operation, [self.x.expressions.value(factor.args[1], state)], site, state
                )
            else:
                self.gradient_event("grad_write", owners, "assign", [value], site, state)
        elif target.name == "data" and isinstance(base, Param) and isinstance(value, Param):
            origin = value.parts[1]
            if isinstance(origin, tuple) and origin[0] == "cast":
                for owner in base.owners:
                    self.effects.modules.cast(owner, origin[1], "parameter data", site, state)
        elif target.name == "requires_grad" and value in (FALSE, TRUE):
            kind = "freeze" if value is FALSE else "unfreeze"
            for owner in base.owners if isinstance(base, Param) else frozenset((base,)):
                self.x.record(kind, site, state, details={"target": owner})

    def item_bound(self, base: Value, index: Value, value: Value, state: Machine, stmt: Stmt) -> None:
        """`base[index] = value`"""
        if isinstance(base, Grad) and base.parts[1] == "grad":
            env, _ = state.links[state.stack[-1]]
            self.gradient_event("grad_write", base.owners, "item", [index, value], Site(env.source, stmt.node), state)  # type: ignore[union-attr]
