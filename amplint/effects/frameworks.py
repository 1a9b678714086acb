"""accelerate, Fabric, DeepSpeed: objects with a protocol of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amplint.program import Call
from amplint.rule import Site
from amplint.values import (
    NONE,
    AttrOf,
    AutocastArguments,
    Context,
    Ext,
    Framework,
    Result,
    Sym,
    Taint,
    Value,
)

if TYPE_CHECKING:
    from amplint.effects.dispatch import Effects
    from amplint.machine import CallOutcome, Machine


class Frameworks:
    """accelerate, Fabric, DeepSpeed, for one executor."""

    def __init__(self, effects: Effects) -> None:
        self.effects = effects
        self.x = effects.x

    def framework(
        self, callee: Ext, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine, stmt: Call | None
    ) -> list[CallOutcome]:
        """A framework's object is made, or one of its functions called."""
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

    def framework_method(
        self, framework: Framework, name: str, pos: list[Value], kw: dict[str, Value], site: Site, state: Machine
    ) -> list[CallOutcome]:
        """A method of a framework's object."""
        callee = AttrOf(framework, name)
        if name == "backward":
            if pos:
                return self.effects.losses.foreign_backward(framework, pos, site, state, callee, kw)
            self.effects.losses.foreign(site, state, NONE, framework)
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
        if "save" in name and pos and self.effects.containers.contents(pos[0], state):
            self.effects.saving.save(pos[0], name, site, state)
        result = Result(callee, tuple(pos), state.loops, taint=Taint(foreign=True))
        if name in ("unwrap_model", "prepare_model") and pos:
            return [(state, pos[0], None)]
        return [(state, result, None)]
