"""AMP303: the optimizer is stepped on every micro-batch of a window."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from amplint.finding import Severity
from amplint.guards import describe
from amplint.layout import function_of
from amplint.needles import SCALER_HERE, SCALES
from amplint.program import Op, Scope, expressions_of, parts_of, path_of
from amplint.protocol import counts_batches, is_flag, same_round
from amplint.rule import Fault, Rule
from amplint.values import Const, OpV, Value, parts_of_value

if TYPE_CHECKING:
    from amplint.analysis import Unit
    from amplint.states import Event
    from amplint.traces import Trace

#: what a divisor of the loss is called where it is the length of an accumulation window
_LENGTH = re.compile(
    r"accum(ulate|ulation|s?$|_)|grad(ient)?_acc|(^|_)acc_?(steps|iters?)$|micro_?batches$|update_freq", re.IGNORECASE
)


class StepInsideAccumulation(Rule):
    """`scaler.step` runs on every micro-batch although `zero_grad` or the loss belongs to an accumulation window.

    ## What it does
    Reports a `scaler.step` and `update()` on every micro-batch when `zero_grad`, which runs once for several of them,
    or a loss that is divided by the length of a window shows that several micro-batches were to be accumulated.

    ## Why is this bad
    After the step the gradients stay where they are, unscaled, and the next backward adds scaled ones to them;
    `scaler.step` then divides the sum by S, and the old part vanishes. Four micro-batches gave steps of 0.25, 0.50,
    1.00 and 2.00 where fp32 gives 0.25, 0.75, 1.75 and 3.75. The scaler hides the fault: nothing is raised, the loss
    falls, and only the accumulation does not take place. Where `zero_grad` runs for every micro-batch as well and only
    the loss is divided, each of them is a small batch of its own whose gradient is 1/n of what it should be.

    ## Example
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda")
    accumulate = 4

    for i in range(8):
        x = torch.randn(16, 8, device=device)
        with torch.autocast("cuda"):
            loss = model(x).square().mean() / accumulate
        scaler.scale(loss).backward()
        scaler.step(optimizer)  # <- here
        scaler.update()
        if (i + 1) % accumulate == 0:
            optimizer.zero_grad()
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda")
    accumulate = 4

    for i in range(8):
        x = torch.randn(16, 8, device=device)
        with torch.autocast("cuda"):
            loss = model(x).square().mean() / accumulate
        scaler.scale(loss).backward()
        if (i + 1) % accumulate == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    ```

    ## Known limits
    Loops without a window, in which `zero_grad` runs for each batch, are silent. A window that the caller keeps (it
    clears the gradients) is not seen from inside a function. A divisor of the loss is known as the length of a window
    by its name (`accumulate`, `grad_accum_steps`, `update_freq`, ...), and only where nothing counts up to it.

    ## Fix safety
    No fix: either the step belongs into the window's branch or `zero_grad` out of it, and the batch size differs
    between the two.

    ## How it is confirmed
    The gradients handed to the optimizer differ from those of a run with a disabled scaler.

    ## References
    - [Gradient accumulation](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation)
    """

    code = "AMP303"
    name = "step-inside-accumulation"
    severity = Severity.WARNING
    needles = ((b".step(", b".scale("), SCALES)
    near = (SCALER_HERE,)
    confirmed_by = "grad"

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        for trace, _, step in unit.events("step"):
            gradients = step.state
            if gradients.maybe or gradients.origin is None:
                continue
            if not gradients.leftover:
                yield from _divided_for_nothing(unit, trace, step, gradients.origin)
                continue
            clearing = _window_clears(unit, trace, step)
            if clearing is None or _waits_for_boundary(unit, step.optimizer):
                continue
            yield Fault(
                step.site,
                "the optimizer is stepped on every micro-batch of a window that zero_grad keeps",
                (
                    *unit.call_steps(step),
                    (gradients.origin.site, "adds scaled gradients to those of the last step"),
                    (clearing.site, "the gradients are cleared once per window"),
                ),
                unit.assumptions(step),
                unit.confidence(step.scaler, step.optimizer),
            )


def _window_clears(unit: Unit, trace: Trace, step: Event) -> Event | None:
    """A `zero_grad` of the optimizer that a boundary guards, or that stands outside of the loop over micro-batches."""
    for _, _, event in unit.events("zero_grad"):
        if step.optimizer not in event.before and event.optimizer is not step.optimizer:
            continue
        if same_round(event, step) and len(event.loops) == len(step.loops):
            guards = {atom for atom, outcome in event.assume.items() if counts_batches(atom) and outcome}
            if any(step.assume.get(atom) is not True for atom in guards) or _left_out(unit, event, guards):
                return event
        outer = [loop for loop in event.loops if loop[0] != id(trace.entry)]
        if outer and len(event.loops) < len(step.loops) and event.loops == step.loops[: len(event.loops)]:
            return event
    return None


def _left_out(unit: Unit, clearing: Event, guards: set[Any]) -> bool:
    """Whether some step runs although the boundary before it was not met."""
    return any(
        other.optimizer is clearing.optimizer and any(other.assume.get(atom) is False for atom in guards)
        for _, _, other in unit.events("step")
    )


def _waits_for_boundary(unit: Unit, optimizer: Value | None) -> bool:
    """Whether a backward adds to the gradients of the one before, since a boundary that was not met left the step out:
    then the window is the step's as well, whatever clears the gradients."""
    for _, _, backward in unit.events("backward"):
        gradients = backward.before.get(optimizer)
        if gradients is None or gradients.kind != "S" or gradients.maybe:
            continue
        if any(counts_batches(atom) and not outcome for atom, outcome in backward.assume.items()):
            return True
    return False


# --- a loss that is divided for a window that does not exist ---------------------------------------


def _divided_for_nothing(unit: Unit, trace: Trace, step: Event, backward: Event) -> Iterator[Fault]:
    """The step of a single micro-batch whose loss is divided by the length of a window that nothing counts."""
    if step.state.kind not in ("S", "U") or step.state.window > 1 or backward.kind != "backward":
        return
    if len(backward.loops) > len(step.loops):
        # a loop of its own over the micro-batches of a window
        return
    decided = {atom for atom in step.assume if atom not in backward.assume}
    if any(counts_batches(atom) or not is_flag(atom) for atom in decided) or not step.loops:
        return
    divisors = list(_divisors(backward.details["value"]))
    names = _lengths(unit, backward) if divisors else ()
    for value, name in ((v, name) for v in divisors if (name := _name_of(v, names))):
        if _is_counted(unit, name) or _steps_once(unit, step) or _may_be_one(step, value):
            continue
        yield Fault(
            step.site,
            f"the loss is divided by {name} as in a window, and every micro-batch is a step of its own",
            (*unit.call_steps(step), (backward.site, f"a loss that is divided by {name}")),
            unit.assumptions(step),
            unit.confidence(step.scaler, step.optimizer),
        )
        return


def _lengths(unit: Unit, backward: Event) -> frozenset[str]:
    """What the functions around a backward divide by that is called like the length of a window."""
    nodes = {id(function_of(site)) for site in (backward.site, *backward.calls)}
    found: set[str] = set()
    for scope in _scopes(unit):
        if id(scope.node) in nodes or (scope.kind == "module" and id(None) in nodes):
            found.update(path for path in _operands(scope, "/") if _LENGTH.search(path.rpartition(".")[2]))
    return frozenset(found)


def _scopes(unit: Unit) -> Iterator[Scope]:
    for env in (unit.env, *unit.executor.entered):
        yield from env.program.scopes


def _operands(scope: Scope, operator: str) -> Iterator[str]:
    """The names to the right of an operator in a scope."""
    for stmt in scope.statements:
        for expr in expressions_of(stmt):
            for part in parts_of(expr):
                if isinstance(part, Op) and part.op == operator and len(part.args) == 2:
                    path = path_of(part.args[1])
                    if path:
                        yield path


def _divisors(value: Value, depth: int = 0) -> Iterator[Value]:
    """What a loss was divided by on its way to the backward."""
    if depth > 6:
        return
    if isinstance(value, OpV) and value.op == "/" and len(value.args) == 2:
        yield value.args[1]
        yield from _divisors(value.args[0], depth + 1)
        return
    for part in parts_of_value(value):
        if part.taint.owners or part.taint.scales:
            yield from _divisors(part, depth + 1)


def _name_of(value: Value, names: Iterable[str]) -> str:
    """What a divisor is called, if it is the length of a window and not 1; a number goes by the name in the text."""
    if isinstance(value, Const):
        is_length = isinstance(value.value, int) and value.value > 1
        return next(iter(sorted(names)), "") if is_length else ""
    last = describe(value).rpartition(".")[2]
    return next((name for name in sorted(names) if name.rpartition(".")[2] == last), "")


def _is_counted(unit: Unit, name: str) -> bool:
    """Whether something in the program counts up to the length of the window, here or elsewhere."""
    last = name.rpartition(".")[2]
    return any(path.rpartition(".")[2] == last for scope in _scopes(unit) for path in _operands(scope, "%"))


def _may_be_one(step: Event, length: Value) -> bool:
    """Whether the path to a step was chosen by the length of the window, other than by asking whether there is one."""
    return any(
        length in atom and not (atom[0] == "lt" and atom[1] is Const.of(1) and outcome)
        for atom, outcome in step.assume.items()
    )


def _steps_once(unit: Unit, step: Event) -> bool:
    """Whether the same step ends a window of several backwards on another path."""
    return any(other.state.window > 1 for _, _, other in unit.events("step") if other.site.node is step.site.node)
