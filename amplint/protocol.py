"""The order of scaler operations on a trace: questions that several rules ask."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from amplint import guards, library
from amplint.effects.owners import within
from amplint.layout import class_of, enclosing, is_plain_path, receiver_text, same_function
from amplint.values import (
    AttrOf,
    Const,
    Ext,
    Instance,
    ItemOf,
    Net,
    Optimizer,
    Result,
    Scaler,
    Sym,
    Value,
    is_counter,
    sources_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from amplint.analysis import Unit
    from amplint.rule import Site
    from amplint.states import Event, Gradients
    from amplint.traces import Trace


def following(trace: Trace, position: int, optimizer: Value | None, *kinds: str) -> Iterator[Event]:
    """Later events of these kinds that concern an optimizer, in order."""
    for event in trace.events[position + 1 :]:
        if event.kind in kinds and (
            event.optimizer is optimizer or (event.optimizer is None and optimizer in event.before)
        ):
            yield event


def previous(trace: Trace, position: int, event: Event, *kinds: str) -> tuple[int, Event] | None:
    """The last earlier operation of these kinds of the event's scaler on the event's optimizer."""
    for index in range(position - 1, -1, -1):
        earlier = trace.events[index]
        if earlier.kind in kinds and earlier.scaler is event.scaler and earlier.optimizer is event.optimizer:
            return index, earlier
    return None


def between(trace: Trace, start: int, end: int, kind: str) -> list[Event]:
    """The events of a kind strictly between two positions."""
    return [event for event in trace.events[start + 1 : end] if event.kind == kind]


def same_round(first: Event, second: Event) -> bool:
    """Whether two events happen in the same iteration of every loop that is around both."""
    return all(a == b for a, b in zip(first.loops, second.loops, strict=False) if a[0] == b[0])


def counts_batches(atom: Any) -> bool:
    """Whether a guard is the boundary of a window, and no fixed flag and no test of a loss or a norm."""
    if atom[0] == "mod":
        return True
    if atom[0] == "true":
        # an argument that the unknown caller of a step may choose anew for every call
        return isinstance(atom[1], Sym) and atom[1].parts[0] == "param" and len(atom[1].parts) == 5
    return atom[0] in ("eq", "lt") and any(is_counter(part) for part in atom[1:] if isinstance(part, Value))


def is_certain(gradients: Gradients, optimizer: Value | None) -> bool:
    """Whether the last backward reached an optimizer for sure, or nothing else can have since its gradients were
    cleared: a step that is wrong with these gradients has none at all otherwise."""
    if not gradients.maybe:
        return True
    before = gradients.last.before.get(optimizer) if gradients.last is not None else None
    return before is not None and before.kind == "N" and not before.maybe


def inside_window(unit: Unit, event: Event, optimizer: Value | None) -> bool:
    """Whether the path to an event passed a batch that is no boundary, where a step of the optimizer was left out.

    A loop of its own over the batches of a window, with every step outside of it, is one too.
    """
    steps = [step for _, _, step in unit.events("step") if optimizer is None or step.optimizer is optimizer]
    if steps and all(_outside_of_inner_loop(step, event) for step in steps):
        return True
    for step in steps:
        for atom, outcome in step.assume.items():
            if counts_batches(atom) and event.assume.get(atom, outcome) is not outcome:
                return True
    return False


def _outside_of_inner_loop(step: Event, event: Event) -> bool:
    outer, inner = [number for number, _ in step.loops], [number for number, _ in event.loops]
    return 0 < len(outer) < len(inner) and inner[: len(outer)] == outer


def other_stepped(trace: Trace, backward: Event, update: Event, optimizer: Value | None) -> bool:
    """Whether between a backward and an update of its scaler another optimizer was stepped through it."""
    return any(
        e.kind == "step"
        and e.scaler is update.scaler
        and e.optimizer is not optimizer
        and backward.index < e.index < update.index
        for e in trace.events
    )


def is_flag(atom: Any) -> bool:
    """Whether a guard asks for nothing but what a person sets: arguments, options, the scaler."""
    return all(_set_by_hand(part) for part in atom[1:] if isinstance(part, Value))


def excluded_by_flag(first: dict[Any, bool], second: dict[Any, bool], counts: Callable[[Any], bool] = is_flag) -> bool:
    """Whether two paths exclude each other by a flag: something that a person sets, no counter, no measured value.

    counts   which guards are such flags
    """
    return any(
        second.get(atom, outcome) is not outcome and not counts_batches(atom) and counts(atom)
        for atom, outcome in first.items()
    )


def _set_by_hand(value: Value) -> bool:
    if isinstance(value, (Const, Scaler)):
        return True
    if isinstance(value, Sym):
        return value.parts[0] in ("param", "global")
    if isinstance(value, AttrOf):
        return isinstance(value.base, Instance) or _set_by_hand(value.base)
    if isinstance(value, ItemOf):
        # `options["amp"]`, and no element that a loop has come to
        return isinstance(value.parts[0], Value) and value.parts[1] != "each" and _set_by_hand(value.parts[0])
    if isinstance(value, Result):
        # `scaler.is_enabled()`, `torch.cuda.is_available()`
        return not value.args
    return False


#: what holds the options of a program
_OPTIONS = re.compile(
    r"(^|[._])(args|opts?|options|cfg|config|conf|hparams|hps|flags|settings|parse_args\(\))$", re.IGNORECASE
)


def options_disagree(assume: dict[Any, bool]) -> bool:
    """Whether a path takes one option for on and for off, since it has it from two objects: `args.fp16` and
    `self.hparams.fp16`."""
    found: dict[str, bool] = {}
    for atom, outcome in assume.items():
        flag = atom[1] if atom[0] == "true" else None
        if isinstance(flag, AttrOf) and _OPTIONS.search(guards.describe(flag.base)):
            if found.setdefault(flag.name, outcome) is not outcome:
                return True
    return False


def right_elsewhere(unit: Unit, event: Event, *kinds: str) -> bool:
    """Whether a branch that a flag excludes does the same to the optimizers of an event through a scaler.

    The code then knows of both cases; if the flags of two such places disagree, that is no matter of this event.
    """
    for _, _, other in unit.events(*kinds):
        shared = other.optimizer is event.optimizer or any(optimizer in other.before for optimizer in event.before)
        if shared and other.scaler is not None and excluded_by_flag(event.assume, other.assume):
            return True
    return False


_SCALER_STEPS = re.compile(r"[sS]caler\w*\.step\(")


def scaled_in_other_arm(step: Site) -> bool:
    """Whether the other arm of the `if` around a plain step steps through a scaler: the same question, asked once more,
    decides in the closure."""
    module, arm = step.module, enclosing(step, cst.If, cst.Else, cst.FunctionDef)
    choice = module.parent(arm) if isinstance(arm, cst.Else) else arm
    if not isinstance(choice, cst.If) or choice.orelse is None:
        return False
    other = choice.body if arm is choice.orelse else choice.orelse
    return _SCALER_STEPS.search(module.segment(other)) is not None


def passed_updates(unit: Unit, jump: Event, scaler: Scaler | None) -> bool:
    """Whether the code that a jump leaves out holds an `update()` of a scaler, or a call that leads to one."""
    kind = jump.details["kind"]
    left = {"return": (cst.FunctionDef,), "except": (cst.Try,)}.get(kind, (cst.For, cst.While))
    scope = enclosing(jump.site, *left)
    for _, _, update in unit.events("update"):
        if update.scaler is not scaler:
            continue
        for site in (update.site, *update.calls):
            left_out = same_function(site, jump.site) and (scope is None or _inside(site, scope))
            if left_out and (kind == "except" or _comes_after(site, jump.site)):
                return True
    return False


def consumed_scaled(trace: Trace, position: int, event: Event) -> tuple[Gradients, Event] | None:
    """The scaled gradients that an event surely meets, with the `unscale_` or `step` that takes them afterwards.

    Further backwards of the same window may come in between.
    """
    for optimizer, gradients in event.before.items():
        if gradients.kind != "S" or gradients.last is None or _owned_by_none(event, optimizer):
            continue
        if gradients.maybe and any(
            e.kind == "unscale_" and e.index > gradients.last.index for e in trace.events[:position]
        ):
            continue
        for later in trace.events[position + 1 :]:
            if later.kind in ("unscale_", "step") and later.scaler is gradients.scaler:
                same = optimizer is later.optimizer or (optimizer is None and gradients.origin is later.state.origin)
                if same and later.state.kind == "S" and later.state.origin is gradients.origin:
                    return gradients, later
    return None


def _owned_by_none(event: Event, optimizer: Value | None) -> bool:
    """Whether the parameters of an event are those of modules that the optimizer surely has nothing of."""
    mine: frozenset[Value] = event.details.get("owners", frozenset())
    theirs = optimizer.owners if isinstance(optimizer, Optimizer) else None
    if not mine or not theirs or not all(_is_built_in(module) for module in (*mine, *theirs)):
        return False
    if "add_param_group" in event.site.module.text:
        return False
    return not any(within(a, b) or within(b, a) for a in mine for b in theirs)


def _is_built_in(module: Value) -> bool:
    """Whether a module is one of torch's own, of which it is known what it holds."""
    return isinstance(module, Net) and module.constructor.startswith("torch.nn.")


def _inside(site: Site, node: cst.CSTNode) -> bool:
    current: cst.CSTNode | None = site.node
    while current is not None and current is not node:
        current = site.module.parent(current)
    return current is node


def _comes_after(site: Site, other: Site) -> bool:
    mine, theirs = site.module.place(site.node), other.module.place(other.node)
    return (mine.line, mine.column) > (theirs.line, theirs.column)


#: a class that has no scaler, in some mode of its own
_ABSENT = re.compile(r"\bassert\s+(?:not\s+self\.\w*scaler\w*|self\.\w*scaler\w*\s+is\s+None)\b", re.IGNORECASE)


def is_asserted_absent(unit: Unit, scaler: Scaler) -> bool:
    """Whether the class that makes a scaler asserts somewhere that it has none. In which mode is decided when an object
    is set up, and a path through its training does not know it."""
    site = unit.site_of(scaler)
    owner = class_of(site) if site is not None else None
    return site is not None and owner is not None and _ABSENT.search(site.module.rough_text(owner)) is not None


def remembers_unscale(unit: Unit, site: Site) -> bool:
    """Whether the class around a site remembers in an attribute that it has unscaled: `if not self._unscaled:
    scaler.unscale_(optimizer); self._unscaled = True`. A path on which that is set beforehand begins in the middle of a
    step, and nothing tells it apart."""
    own = class_of(site)
    return own is not None and any(class_of(site) is own and _set_beside(site) for site in unit.unscale_sites)


def _set_beside(site: Site) -> bool:
    """Whether the condition around a site asks for an attribute that its block sets."""
    around = enclosing(site, cst.If, cst.FunctionDef)
    if not isinstance(around, cst.If):
        return False
    body = site.module.rough_text(around.body)
    asked = re.findall(r"\bself\.\w+", site.module.rough_text(around.test))
    return any(re.search(re.escape(flag) + r"\s*(?:=(?!=)|\.(?:add|append)\()", body) for flag in asked)


def keeps_masters(trace: Trace, optimizer: Value | None) -> bool:
    """Whether an optimizer was seen constructed as one that may have fp32 copies of 16-bit weights."""
    made_by = optimizer.inferred_from if isinstance(optimizer, Optimizer) else None
    if isinstance(made_by, Result) and isinstance(made_by.callee, Ext):
        return library.keeps_masters(made_by.callee.dotted)
    if isinstance(made_by, Instance):
        return library.keeps_masters(made_by.cls.scope.name, made_by.cls.scope.words)
    return any(
        event.kind == "construct_optimizer" and event.optimizer is optimizer and event.details["masters"]
        for event in trace.events
    )


def scaler_text(unit: Unit, trace: Trace, scaler: Scaler | None, near: Site) -> str:
    """How a scaler is written in the function around a site; "" where it is not."""
    for event in trace.events:
        if (
            event.scaler is scaler
            and event.kind in ("scale", "unscale_", "step", "update")
            and same_function(event.site, near)
        ):
            text = receiver_text(event.site)
            if is_plain_path(text):
                return text
    return ""


def derived_from_grad(value: Value) -> bool:
    """Whether a value is computed from the result of `torch.autograd.grad`."""
    return any(
        isinstance(part, Result) and isinstance(part.callee, Ext) and part.callee.dotted.endswith("autograd.grad")
        for part in sources_of(value)
    )
