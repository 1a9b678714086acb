"""AMP216: gradients that one scaler scaled are handled by another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from amplint.finding import Severity
from amplint.layout import function_of
from amplint.needles import SCALER_HERE, UNSCALES
from amplint.protocol import between, previous
from amplint.rule import Fault, Rule
from amplint.values import AttrOf, Instance, Optimizer, Scaler, Sym, Value

if TYPE_CHECKING:
    from amplint.analysis import Unit
    from amplint.states import Event
    from amplint.traces import Trace


class ScalerMixup(Rule):
    """A loss is scaled by one scaler, and its gradients are unscaled or stepped by another.

    ## What it does
    Reports `unscale_(optimizer)` or `step(optimizer)` of a scaler when the gradients of that optimizer were scaled by
    a different `GradScaler` object, and an `update()` of a scaler that had nothing to do while the one that stepped
    waits for its own.

    ## Why is this bad
    The second scaler divides by its own scale. As long as both scales are equal nothing shows; each adapts on its own,
    and from the first overflow on the gradients are wrong by the quotient of the two, a power of two. A second scaler
    that has never scaled a loss raises `Attempted step but _scale is None`. Which of them records the infinities is a
    matter of chance.

    ## Example
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = nn.Linear(4, 8).to(device)
    critic = nn.Linear(8, 1).to(device)
    generator_optimizer = torch.optim.SGD(generator.parameters(), lr=0.01)
    critic_optimizer = torch.optim.SGD(critic.parameters(), lr=0.01)
    generator_scaler = torch.amp.GradScaler("cuda", init_scale=2.0**12)
    critic_scaler = torch.amp.GradScaler("cuda", init_scale=2.0**8)

    for _ in range(4):
        critic_optimizer.zero_grad()
        with torch.autocast("cuda"):
            critic_loss = critic(torch.randn(16, 8, device=device)).square().mean()
        critic_scaler.scale(critic_loss).backward()
        critic_scaler.step(critic_optimizer)
        critic_scaler.update()

        generator_optimizer.zero_grad()
        with torch.autocast("cuda"):
            generator_loss = -critic(generator(torch.randn(16, 4, device=device))).mean()
        generator_scaler.scale(generator_loss).backward()
        critic_scaler.step(generator_optimizer)  # <- here
        critic_scaler.update()
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = nn.Linear(4, 8).to(device)
    critic = nn.Linear(8, 1).to(device)
    generator_optimizer = torch.optim.SGD(generator.parameters(), lr=0.01)
    critic_optimizer = torch.optim.SGD(critic.parameters(), lr=0.01)
    generator_scaler = torch.amp.GradScaler("cuda", init_scale=2.0**12)
    critic_scaler = torch.amp.GradScaler("cuda", init_scale=2.0**8)

    for _ in range(4):
        critic_optimizer.zero_grad()
        with torch.autocast("cuda"):
            critic_loss = critic(torch.randn(16, 8, device=device)).square().mean()
        critic_scaler.scale(critic_loss).backward()
        critic_scaler.step(critic_optimizer)
        critic_scaler.update()

        generator_optimizer.zero_grad()
        with torch.autocast("cuda"):
            generator_loss = -critic(generator(torch.randn(16, 4, device=device))).mean()
        generator_scaler.scale(generator_loss).backward()
        generator_scaler.step(generator_optimizer)
        generator_scaler.update()
    ```

    ## Known limits
    One scaler per optimizer, used consistently, is right and silent. Scalers in containers are told apart only by a
    constant index or key, or by position in a `zip` of lists built in sight. A list made by multiplication holds one
    scaler under several names; its harm is AMP304.

    ## Fix safety
    No fix: the code does not say which of the two scalers was meant.

    ## How it is confirmed
    torch raises, or the gradients handed to the optimizer differ by the quotient of the scales from those of a run
    with disabled scalers.

    ## References
    - [Working with multiple models, losses, and
      optimizers](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#working-with-multiple-models-losses-and-optimizers)
    - `torch/amp/grad_scaler.py`: `GradScaler`
    """

    code = "AMP216"
    name = "scaler-mixup"
    severity = Severity.ERROR
    needles = ((b"Scaler", b"scaler"), (b".step(", b".scale(", UNSCALES))
    near = (SCALER_HERE,)
    confirmed_by = "grad"

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        for trace, position, event in unit.events("step", "unscale_"):
            yield from _updated_by_another(unit, trace, position, event)
            gradients = event.state
            if gradients.last is None or not isinstance(event.scaler, Scaler):
                continue
            if gradients.kind == "S":
                source = _only_source(trace, position, event)
                if gradients.maybe and source is not None and _may_be_frozen(unit, trace, source, event):
                    continue
                what = "scaled"
            elif gradients.kind == "U" and event.kind == "step" and gradients.unscaled is not None:
                source = gradients.unscaled
                what = "unscaled"
                if source.scaler is not gradients.scaler:
                    # that unscale_ was the wrong one
                    continue
            elif gradients.kind in ("N", "T") and event.kind == "step":
                source = _last_step(trace, position, event)
                what = "stepped"
            else:
                continue
            if (
                source is None
                or not isinstance(source.scaler, Scaler)
                or not _distinct(unit, source.scaler, event.scaler)
            ):
                continue
            yield Fault(
                event.site,
                f"gradients that one scaler has {what} are {_VERBS[event.kind]} by another",
                ((source.site, f"{what} by {unit.name(source.scaler)}"), *unit.call_steps(event)),
                unit.assumptions(event),
                unit.confidence(source.scaler, event.scaler, event.optimizer),
            )


def _updated_by_another(unit: Unit, trace: Trace, position: int, event: Event) -> Iterator[Fault]:
    """The update that was due after the last step is one of another scaler, which had nothing to decide from."""
    found = previous(trace, position, event, "step") if event.stage == "stepped" else None
    if found is None or not isinstance(event.scaler, Scaler):
        return
    start, step = found
    for update in between(trace, start, position, "update"):
        scaler = update.scaler
        if update.details["checked"] is not True and scaler is not None and _distinct(unit, scaler, event.scaler):
            yield Fault(
                update.site,
                "the optimizer was stepped by one scaler, and another is updated",
                (
                    (step.site, f"stepped by {unit.name(event.scaler)}"),
                    *unit.call_steps(update),
                    (event.site, "raises, because its scaler was not updated"),
                ),
                unit.assumptions(update),
                unit.confidence(scaler, event.scaler, event.optimizer),
            )


_VERBS = {"step": "stepped", "unscale_": "unscaled"}


def _last_step(trace: Trace, position: int, event: Event) -> Event | None:
    """The step that has used the gradients, which are still there."""
    for earlier in reversed(trace.events[:position]):
        if event.optimizer in earlier.before and earlier.kind in ("zero_grad", "backward"):
            return None
        if earlier.optimizer is event.optimizer and earlier.kind in ("step", "opt_step", "zero_grad"):
            return earlier if earlier.kind == "step" else None
    return None


def _may_be_frozen(unit: Unit, trace: Trace, backward: Event, event: Event) -> bool:
    """Whether some weights of the optimizer were switched off during a backward, as those of a critic are in the
    generator's turn."""
    owners = event.optimizer.owners if isinstance(event.optimizer, Optimizer) else None
    switched = [
        earlier.kind
        for earlier in trace.events
        if earlier.index < backward.index
        and earlier.kind in ("freeze", "unfreeze")
        and (not owners or unit.overlap(owners, frozenset((earlier.details["target"],))))
    ]
    return switched[-1:] == ["freeze"]


def _only_source(trace: Trace, position: int, event: Event) -> Event | None:
    """The last backward that can have reached the optimizer, if all of them since its gradients were cleared belong to
    other scalers."""
    source: Event | None = None
    for earlier in reversed(trace.events[:position]):
        if earlier.optimizer is event.optimizer and earlier.kind in ("zero_grad", "step", "opt_step"):
            break
        if earlier.kind == "zero_grad" and event.optimizer in earlier.before:
            break
        if earlier.kind == "backward" and (event.optimizer in earlier.before or None in earlier.before):
            if earlier.scaler is event.scaler or earlier.scaler is None:
                return None
            source = source or earlier
    return source


def _distinct(unit: Unit, first: Scaler, second: Scaler) -> bool:
    """Whether two scalers cannot be one object under two names."""
    if first is second:
        return False
    if first.constructed and second.constructed:
        return True
    if first.constructed is not second.constructed:
        known, other = (first, second) if first.constructed else (second, first)
        return _is_never_bound(_origin(other)) or _is_made_beside(unit, known, _origin(other))
    one, two = _origin(first), _origin(second)
    if isinstance(one, Sym) and isinstance(two, Sym):
        return one.parts[0] == two.parts[0] == "param" and one.parts[1:3] == two.parts[1:3]
    return isinstance(one, AttrOf) and isinstance(two, AttrOf) and one.base is two.base


def _is_made_beside(unit: Unit, scaler: Scaler, parameter: Value | None) -> bool:
    """Whether a scaler is made in the function that is given another one."""
    made = unit.site_of(scaler)
    if made is None or not isinstance(parameter, Sym) or parameter.parts[0] != "param":
        return False
    function = function_of(made)
    return isinstance(function, cst.FunctionDef) and function.name.value == parameter.parts[2].rpartition(".")[2]


def _is_never_bound(value: Value | None) -> bool:
    """Whether a scaler is an attribute that no method of its class gives a value to, so that it is no other name of
    one that was made there."""
    if not isinstance(value, AttrOf) or not isinstance(value.base, Instance):
        return False
    scope = value.base.cls.scope
    return not scope.bases and value.name not in scope.bound_attributes


def _origin(scaler: Scaler) -> Value | None:
    return scaler.parts[0][1] if not scaler.constructed else None
