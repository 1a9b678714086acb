"""AMP222: autocast and scaler obey different conditions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import libcst as cst

from amplint import guards
from amplint.finding import Confidence, Severity
from amplint.layout import enclosing, function_of, same_function
from amplint.program import Assign, Attr, Branch, Call, Expr, Loop, Name, Region, call_name, parts_of
from amplint.program import Const as Literal
from amplint.protocol import counts_batches, excluded_by_flag, is_flag
from amplint.rule import Fault, Rule, Site
from amplint.values import TRUE, AttrOf, Const, Ext, Instance, ItemOf, OpV, Result, Scaler, Sym, Value

if TYPE_CHECKING:
    from amplint.analysis import Unit
    from amplint.states import Event
    from amplint.traces import Trace


class AmpFlagMismatch(Rule):
    """Autocast and scaler depend on different flags, or a scaler is used on a path where it is None or unbound.

    ## What it does
    Reports a scaler whose `enabled=` (or the condition it is made under) is a different flag than that of the autocast
    region it belongs to, or a flag at all where the float16 region is always on; a plain `backward()` beside a scaled
    one, in the other arm of a flag, out of such a region; and a use of a scaler on a path on which it was never bound
    or is None.

    ## Why is this bad
    With autocast on and the scaler off, float16 gradients underflow: 6.7 % of a small network's gradients were exactly
    zero and the rest 10 % off, silently (AMP110). With the scaler on and autocast off, the scaling costs time for
    nothing. A scaler that is None or unbound raises an AttributeError or NameError, in the configuration that nobody
    tests.

    ## Example
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"

    def train(mixed_precision, loss_scaling):
        model = nn.Linear(8, 1).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cuda", enabled=loss_scaling)  # <- here
        for _ in range(4):
            x = torch.randn(16, 8, device=device)
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16, enabled=mixed_precision):
                loss = model(x).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return loss.item()


    train(mixed_precision=True, loss_scaling=False)
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"

    def train(mixed_precision):
        model = nn.Linear(8, 1).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cuda", enabled=mixed_precision)
        for _ in range(4):
            x = torch.randn(16, 8, device=device)
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16, enabled=mixed_precision):
                loss = model(x).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return loss.item()


    train(mixed_precision=True)
    ```

    ## Known limits
    Flags that imply each other are silent: one is computed from the other, or from the same dtype or device, or a test
    of the module is about both. Two attributes of a configuration object are taken to be independent unless the code
    relates them; the arguments of two functions are not, since whoever calls both may give them one flag.

    ## Fix safety
    No fix: which of the two flags should rule is for the author to say.

    ## How it is confirmed
    The replay runs the flag values that disagree and observes float16 autocast with a disabled scaler, or the
    exception at the use.

    ## References
    - [Typical mixed precision
      training](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#typical-mixed-precision-training)
    - `torch/amp/grad_scaler.py`: `GradScaler.is_enabled`
    """

    code = "AMP222"
    name = "amp-flag-mismatch"
    severity = Severity.WARNING
    needles = ((b"Scaler", b"scaler"),)
    confirmed_by = "state"
    yields_to = ("AMP503",)

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        yield from _two_flags(unit)
        yield from _one_flag(unit)
        yield from _missing(unit)


def _two_flags(unit: Unit) -> Iterator[Fault]:
    """A plain backward out of a float16 region that is on, while the scaler is off by a flag of its own."""
    for trace, position, event in unit.events("construct_scaler"):
        scaler = event.scaler
        if scaler is None or scaler.enabled is TRUE:
            continue
        for later, backward in enumerate(trace.events[position:], position):
            if backward.kind != "backward" or backward.scaler is not None or "framework" in backward.details:
                continue
            if unit.can_hold(scaler.enabled, backward.assume, trace):
                continue
            region = _float16_region(unit, trace, later)
            if region is None:
                continue
            condition = region.details["context"].details.enabled
            passed = _passed_apart(event.site, unit.site_of(region.details["context"]))
            if not passed and not _independent(unit, scaler.enabled, condition):
                continue
            yield Fault(
                event.site,
                "the scaler obeys another flag than autocast: float16 can run without a loss scale",
                (
                    (region.site, "autocast obeys its own flag here"),
                    (backward.site, "with the scaler off, this loss is not scaled"),
                ),
                unit.assumptions(backward, condition),
                unit.confidence(scaler),
            )
            break


def _one_flag(unit: Unit) -> Iterator[Fault]:
    """A plain backward out of a float16 region that is always on, in the arm of a flag beside the one that scales."""
    scaled = [event for _, _, event in unit.events("backward") if event.scaler is not None]
    places = {event.site.identity for event in scaled}
    for trace, position, event in unit.events("backward"):
        if event.site.identity in places or not event.details["certain"] or "framework" in event.details:
            continue
        beside = [
            other
            for other in scaled
            if same_function(other.site, event.site) and excluded_by_flag(event.assume, other.assume, _is_option)
        ]
        region = _float16_region(unit, trace, position) if beside else None
        if region is None or region.details["context"].details.enabled is not TRUE or not _is_plain(unit, region.site):
            continue
        if any(atom[0] == "none" and outcome and isinstance(atom[1], Scaler) for atom, outcome in event.assume.items()):
            # whoever hands None instead of a scaler may have chosen the contexts as well
            continue
        if any(e.scaler is not None for e in trace.events[:position] if e.kind in _PROTOCOL):
            # what is scaled on the same path is not a matter of flags
            continue
        if any(e.kind == "opt_step" and event in (e.state.last, e.state.origin) for e in trace.events[position:]):
            yield Fault(
                event.site,
                "float16 runs here without a loss scale: the scaler obeys a flag, and autocast obeys none",
                (
                    (region.site, "autocast is entered here, whatever the flag says"),
                    (beside[0].site, "with the flag, the loss is scaled"),
                ),
                unit.assumptions(event),
                unit.confidence(beside[0].scaler),
            )


def _is_plain(unit: Unit, region: Site) -> bool:
    """Whether a region is entered by a call of autocast itself in the `with`, and of no variable that a flag may have
    bound to something else."""
    module, call = region.module, region.node
    if not isinstance(call, cst.Call) or not isinstance(module.parent(call), cst.WithItem):
        return False
    name = module.segment(call.func).partition(".")[0]
    assigned = (stmt for scope in unit.env.program.scopes for stmt in scope.statements if isinstance(stmt, Assign))
    return module is unit.source and not any(_word(stmt.target) == name for stmt in assigned)


def _is_option(atom: Any) -> bool:
    return is_flag(atom) and not any(
        _MACHINE.search(guards.describe(part)) for part in atom[1:] if isinstance(part, Value)
    )


def _float16_region(unit: Unit, trace: Trace, position: int) -> Event | None:
    """The last region before a backward, in the same round, if it is float16 for certain and can be on."""
    backward = trace.events[position]
    for event in reversed(trace.events[:position]):
        if event.kind == "enter" and event.loops == backward.loops:
            arguments = event.details["context"].details
            dtype, device = unit.executor.effects.modules.dtype(arguments.dtype), arguments.device
            by_default = arguments.dtype is None and isinstance(device, Const) and device.value == "cuda"
            if (dtype != "float16" and not by_default) or guards.excludes(event.assume, backward.assume):
                return None
            return event if unit.can_hold(arguments.enabled, backward.assume, trace) else None
    return None


#: flags that say which machine this is: whoever has no GPU has no float16 autocast either
_MACHINE = re.compile(r"cuda|device|gpu|cpu|available|rank", re.IGNORECASE)


def _independent(unit: Unit, first: Value, second: Value) -> bool:
    """Whether two conditions are made of different flags, all of which a person sets in one place, and which no test
    of the module relates."""
    mine, theirs = set(_leaves(first)), set(_leaves(second))
    if second is TRUE:
        # float16 that is always on, with a scale that somebody can switch off
        return bool(mine) and all(_is_flag(leaf) and not _MACHINE.search(guards.describe(leaf)) for leaf in mine)
    if not mine or not theirs:
        return False
    both = mine | theirs
    if not all(_is_flag(leaf) and not _MACHINE.search(guards.describe(leaf)) for leaf in both):
        return False
    if len({_holder(leaf) for leaf in both}) > 1:
        # whoever calls both functions may give them one flag
        return False
    names, others = set(map(_last_name, mine)), set(map(_last_name, theirs))
    return not names & others and not _tested_together(unit, names, others)


def _holder(flag: Value) -> object:
    """Where a flag comes from: the parameters of a function, the variables of a module, an object."""
    while isinstance(flag, (AttrOf, ItemOf)):
        flag = flag.parts[0]
    return flag.parts[:3] if isinstance(flag, Sym) and flag.parts[0] == "param" else flag


def _last_name(flag: Value) -> str:
    """The name of a flag; `options["amp"]` and `options.amp` are one."""
    if isinstance(flag, ItemOf) and isinstance(flag.parts[1], Const):
        return str(flag.parts[1].value)
    return str(flag.parts[-1])


def _tested_together(unit: Unit, names: set[str], others: set[str]) -> bool:
    """Whether a condition of the module is about flags of both kinds: `if amp and not scale: raise`."""
    for scope in unit.env.program.scopes:
        for stmt in scope.statements:
            if isinstance(stmt, Branch):
                words = {_word(part) for part in parts_of(stmt.test)}
                if words & names and words & others:
                    return True
    return False


def _word(part: Expr) -> str:
    if isinstance(part, Attr):
        return part.name
    return part.id if isinstance(part, Name) else str(part.value) if isinstance(part, Literal) else ""


def _passed_apart(scaler: Site, region: Site | None) -> bool:
    """Whether both sides are given parameters of one function as they came in, and not the same ones."""
    if region is None or not same_function(scaler, region):
        return False
    function = function_of(scaler)
    if not isinstance(function, cst.FunctionDef):
        return False
    given = {param.name.value for param in (*function.params.params, *function.params.kwonly_params)}
    mine, theirs = _enabled_by(scaler), _enabled_by(region)
    return mine != theirs and {mine, theirs} <= given


def _enabled_by(site: Site) -> str:
    """The variable that `enabled=` is given, "" where it is anything else."""
    if isinstance(site.node, cst.Call):
        for arg in site.node.args:
            if arg.keyword is not None and arg.keyword.value == "enabled" and isinstance(arg.value, cst.Name):
                return arg.value.value
    return ""


def _leaves(value: Any) -> Iterator[Value]:
    """The unknown values that a condition is made of."""
    if isinstance(value, OpV):
        for arg in value.args:
            yield from _leaves(arg)
    elif isinstance(value, Result) and isinstance(value.callee, Ext) and value.callee.dotted == "bool":
        yield from _leaves(value.args[0])
    elif isinstance(value, Value) and not isinstance(value, (Const, Ext)):
        yield value


def _is_flag(value: Value) -> bool:
    if isinstance(value, Sym):
        return value.parts[0] in ("param", "global")
    if isinstance(value, AttrOf):
        return isinstance(value.base, Instance) or _is_flag(value.base)
    if isinstance(value, ItemOf):
        return isinstance(value.parts[0], Value) and _is_flag(value.parts[0]) and isinstance(value.parts[1], Const)
    # the options that a parser returned
    return isinstance(value, Result) and isinstance(value.callee, AttrOf) and value.callee.name == "parse_args"


_PROTOCOL = frozenset({"scale", "unscale_", "step", "update", "get_scale"})


def _missing(unit: Unit) -> Iterator[Fault]:
    """The first use of a scaler on a path where it is None, or not bound at all."""
    made: dict[tuple[str, int], Scaler] = {}
    for _, _, event in unit.events(*_PROTOCOL):
        if event.scaler is not None and not _is_unbound(event.scaler):
            made.setdefault(event.site.identity, event.scaler)
    for trace in unit.traces:
        for event in trace.events:
            is_none = event.kind == "none_used" and event.details["name"] in _PROTOCOL
            is_undefined = event.kind in _PROTOCOL and _is_undefined(unit, event.scaler)
            if not is_none and not is_undefined and not (event.kind in _PROTOCOL and _is_unbound(event.scaler)):
                continue
            scaler = made.get(event.site.identity)
            if event.details.get("scaler") is not None and not _asked_for_none_alone(event):
                # an argument is None, and the flag that was decided may say so as well
                continue
            built = unit.site_of(scaler)
            if built is not None and _is_one_of_several(built):
                continue
            if scaler is not None and _by_flags_alone(event) and not _dispatched(unit, event):
                steps = [(built, "the scaler is made here, under a condition")] if built is not None else []
                yield Fault(
                    event.site,
                    f"the scaler is used where it is {'None' if is_none else 'not bound'}",
                    (*steps, *unit.call_steps(event)),
                    unit.assumptions(event),
                    unit.confidence(scaler) if built is not None else Confidence.MEDIUM,
                )
                # this use raises; what follows on the path does not happen
                break


def _is_one_of_several(built: Site) -> bool:
    """Whether several arms of an `if` make a scaler each, and its `else`, if any, says nothing of one: `if level == 1`,
    `elif level == 2`. That there is no third level goes without saying."""
    module, node = built.module, enclosing(built, cst.If)
    while node is not None and isinstance(above := module.parent(node), cst.If) and above.orelse is node:
        node = above
    holder, arms = module.parent(built.node), 0
    bound = module.segment(holder.targets[0]) if isinstance(holder, cst.Assign) else "no target"
    while isinstance(node, cst.If):
        arms += bound.strip() in module.segment(node.body)
        node = node.orelse
    return arms > 1 and (node is None or bound.strip() not in module.segment(node))


def _asked_for_none_alone(event: Event) -> bool:
    """Whether nothing was decided on the way but that a scaler that came from outside is None."""
    scaler = event.details["scaler"]
    return all(atom == ("none", scaler) or counts_batches(atom) for atom in event.assume)


def _dispatched(unit: Unit, event: Event) -> bool:
    """Whether the method around a use is looked up, in a table or by a name that is put together, and never called by
    its own: the same flag that made the scaler may choose it."""
    function = function_of(event.site)
    if not isinstance(function, cst.FunctionDef) or event.site.module is not unit.source:
        return False
    name = function.name.value
    scopes = [scope for scope in unit.env.program.scopes if scope.name != name]
    calls = [stmt for scope in scopes for stmt in scope.statements if isinstance(stmt, Call)]
    if any(call_name(call.func) == name for call in calls):
        return False
    looked_up = any(
        call_name(c.func) == "getattr" and not isinstance(c.args[-1].value, Literal) for c in calls if c.args
    )
    return looked_up or any(name in scope.words for scope in scopes if scope.kind == "function")


def _is_unbound(scaler: Value | None) -> bool:
    origin = scaler.parts[0][1] if isinstance(scaler, Scaler) and not scaler.constructed else None
    return isinstance(origin, Sym) and origin.parts[0] == "unbound"


def _is_undefined(unit: Unit, scaler: Value | None) -> bool:
    """Whether the scaler is a name that nothing in the module binds."""
    origin = scaler.parts[0][1] if isinstance(scaler, Scaler) and not scaler.constructed else None
    if not isinstance(origin, Sym) or origin.parts[0] != "global" or origin.parts[1] != unit.source.path:
        return False
    name, program = origin.parts[2], unit.env.program
    if any(stmt.member == "*" for stmt in unit.env.imports) or any(name in s.outer_names for s in program.scopes):
        return False
    targets = (stmt.target for stmt in program.body.statements if isinstance(stmt, (Assign, Loop, Region)))
    return not any(isinstance(part, Name) and part.id == name for target in targets for part in parts_of(target))


def _by_flags_alone(event: Event) -> bool:
    """Whether nothing that amplint cannot judge was decided on the way."""
    for atom in event.assume:
        for leaf in (leaf for part in atom[1:] for leaf in _leaves(part)):
            if atom[0] in ("mod", "lt") or isinstance(leaf, Scaler):
                continue
            if _MACHINE.search(guards.describe(leaf)):
                return False
            if isinstance(leaf, Result) and not isinstance(leaf.callee, Ext) and not _is_flag(leaf):
                return False
            if isinstance(leaf, Sym) and leaf.parts[0] in ("raised", "index", "counter"):
                # where a loop is, nobody sets: `if epoch == 0` is met before anything else
                return False
    return True
