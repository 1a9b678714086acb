"""Regions: autocast and the other contexts, entered by `with`, by hand, or as a decorator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amplint import library
from amplint.program import Call, Evaluate, Region, Yield
from amplint.rule import Site
from amplint.states import (
    Entered,
)
from amplint.torch_facts import parameters_of
from amplint.values import (
    NONE,
    TRUE,
    AttrOf,
    AutocastArguments,
    Const,
    Context,
    Ext,
    Func,
    Instance,
    Result,
    Sym,
    Taint,
    Value,
)

if TYPE_CHECKING:
    from amplint.effects.dispatch import Effects
    from amplint.machine import CallOutcome, Machine, Outcome


class Contexts:
    """Regions, for one executor."""

    def __init__(self, effects: Effects) -> None:
        self.effects = effects
        self.x = effects.x

    def autocast(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        """`torch.autocast(...)` makes a region that can be entered."""
        names = parameters_of(callee.dotted, self.x.torch)
        device: Value | None = None
        if library.role(callee.dotted) == "device_autocast":
            device = Const.of(library.autocast_device(callee.dotted))
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

    def plain_context(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        """`nullcontext()`, `no_grad()`, `ExitStack()`: contexts without autocast."""
        role = library.role(callee.dotted)
        kind = {"null_context": "null", "exit_stack": "stack"}.get(role or "", role or "other")
        if kind in ("no_grad", "enable_grad") and pos and isinstance(pos[0], Func):
            return [(state, pos[0], None)]
        return [(state, Context(kind, state.allocate(id(site.node)), None), None)]

    def is_enabled(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        """`torch.is_autocast_enabled()` in a region that is seen; what is open around an entry is not known."""
        region = next((r for r in reversed(state.regions) if r.context.kind == "autocast"), None)
        asked = pos[0] if pos else kw.get("device_type")
        if region is None or (asked is not None and asked is not region.context.details.device):
            return [(state, Result(callee, tuple(pos), state.loops), None)]
        return [(state, region.context.details.enabled, None)]

    def apex(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        """`apex.amp.scale_loss(loss, optimizer)`: a scale outside of this protocol."""
        return [(state, Context("apex", state.allocate(id(site.node)), pos[0] if pos else NONE), None)]

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
            if context.kind == "stack":
                return [(self._left(context, after), signal) for after, signal in x.within(stmt, None, state, context)]
            if context.kind in ("null", "other", "grad_mode"):
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

    def entered(self, context: Context, site: Site, state: Machine, by_hand: bool = False) -> Entered:
        """A new entry of a region."""
        state.entries += 1
        entered = Entered(context, site, state.entries, by_hand)
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
            results = self.x.calls.run(callee, list(pos), dict(kw), site, state)
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
        enter = x.classes.method(context.cls, "__enter__", state)
        leave = x.classes.method(context.cls, "__exit__", state)
        starts: list[tuple[Machine, Value]] = [(state, context)]
        saved = state.regions
        if enter is not None and enter[1] in enter[0].env.relevant:
            func = Func(enter[0].env, enter[1], enter[0].parts[2], context)
            starts = []
            for after, value, signal in x.calls.run(func, [], {}, site, state):
                if signal is None:
                    starts.append((after, value))
        out: list[Outcome] = []
        for start, value in starts:
            for after, signal in x.within(stmt, None, start, value):
                if leave is not None and leave[1] in leave[0].env.relevant:
                    func = Func(leave[0].env, leave[1], leave[0].parts[2], context)
                    for last, _, raised in x.calls.run(func, [NONE, NONE, NONE], {}, site, after):
                        last.regions = saved
                        out.append((last, raised or signal))
                else:
                    after.regions = saved
                    out.append((after, signal))
        return out

    def enter_here(self, context: Value, site: Site, state: Machine) -> list[CallOutcome]:
        """`stack.enter_context(context)`, or `context.__enter__()`: the region stays open."""
        out: list[CallOutcome] = []
        for settled, choice in self.x.settle(state, context):
            if isinstance(choice, Context) and choice.kind in ("autocast", "no_grad", "enable_grad"):
                settled.regions = (*settled.regions, self.entered(choice, site, settled, by_hand=True))
            out.append((settled, NONE, None))
        return out

    def context_method(
        self,
        context: Context,
        name: str,
        pos: list[Value],
        kw: dict[str, Value],
        site: Site,
        state: Machine,
        stmt: Call | None,
    ) -> list[CallOutcome]:
        """A context entered or left by hand."""
        if name == "__enter__":
            return self.enter_here(context, site, state)
        if name == "enter_context" and pos:
            open_before = len(state.regions)
            out = self.enter_here(pos[0], site, state)
            for after, _, _ in out:
                held = after.heap.get((context, "#entered"), ())
                after.heap[(context, "#entered")] = (*held, *(r.number for r in after.regions[open_before:]))
            return out
        if name == "pop_all" and context.kind == "stack":
            moved = Context("stack", state.allocate(id(site.node)), None)
            state.heap[(moved, "#entered")] = state.heap.pop((context, "#entered"), ())
            return [(state, moved, None)]
        if name in ("__exit__", "close") and context.kind == "stack":
            return [(self._left(context, state), NONE, None)]
        if name in ("__exit__", "close"):
            kept = list(state.regions)
            for position in range(len(kept) - 1, -1, -1):
                if kept[position].context is context:
                    del kept[position]
                    break
            state.regions = tuple(kept)
            return [(state, NONE, None)]
        return [(state, Result(AttrOf(context, name), tuple(pos), state.loops), None)]

    @staticmethod
    def left_by_hand(state: Machine) -> Machine:
        """Close the last region that was entered by hand, as where its context is taken out of a list to be left."""
        by_hand = [region for region in state.regions if region.by_hand]
        state.regions = tuple(region for region in state.regions if not by_hand or region is not by_hand[-1])
        return state

    @staticmethod
    def _left(stack: Context, state: Machine) -> Machine:
        """Close what an `ExitStack` has entered."""
        entered = state.heap.pop((stack, "#entered"), ())
        state.regions = tuple(region for region in state.regions if region.number not in entered)
        return state

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

    def no_grad(self, state: Machine) -> bool:
        """Whether gradients are off at this point."""
        for region in reversed(state.regions):
            if region.context.kind == "no_grad":
                return True
            if region.context.kind == "enable_grad":
                return False
        return False

    def evaluated(self, stmt: Evaluate, value: Value, state: Machine) -> None:
        """An expression statement that is no call."""
        if isinstance(value, Ext) and library.role(value.dotted) in ("autocast", "device_autocast"):
            env, _ = state.links[state.stack[-1]]
            self.x.record("evaluated", Site(env.source, stmt.node), state, details={"value": value, "with": False})

    def suspended(self, stmt: Yield, state: Machine) -> None:
        """A generator gives control away."""
        if any(r.context.kind == "autocast" for r in state.regions):
            env, _ = state.links[state.stack[-1]]
            self.x.record("yield", Site(env.source, stmt.node), state)
