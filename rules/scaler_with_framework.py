"""AMP225: a framework scales the loss and the script does it again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint import library
from amplint.finding import Confidence, Severity
from amplint.names import names_of
from amplint.needles import spaced
from amplint.program import Assign, Attr, Call, Name
from amplint.program import Const as Literal
from amplint.rule import Fault, Rule, Site
from amplint.values import FALSE, AttrOf, Const, Framework, ItemOf, Result

if TYPE_CHECKING:
    from amplint.analysis import Unit
    from amplint.names import Names
    from amplint.program import Scope
    from amplint.states import Event
    from amplint.traces import Trace


#: where a framework is made, or a class for it
_MADE = spaced(
    rb"(?:Accelerator|Trainer|Fabric|TrainingArguments)(?:~\(|[\s\\]{1,40}as\b)"
    rb"|(?:=~|partial\(~)[\w.]{0,60}(?:Accelerator|Trainer|Fabric)\b"
)
_FRAMEWORKS = (_MADE, b"LightningModule")
#: that it works in float16, or that this is left open
_SCALING = (b"fp16", re.compile(rb"16\b(?<!\w16)"), b"accelerate")
#: a scaler, or torch's own functions that clip
_BESIDE = (b"Scaler", b"nn.utils", b"nn import")


class ScalerWithFramework(Rule):
    """A `GradScaler`, or a clip of `torch.nn.utils`, stands beside a framework that scales gradients by itself.

    ## What it does
    Reports an own `GradScaler` in code that trains with accelerate's `Accelerator`, Lightning's `Trainer` or `Fabric`,
    or the Hugging Face `Trainer` in float16, and `nn.utils.clip_grad_norm_` or `clip_grad_value_` between their
    backward and their step. Where the launcher decides about accelerate's precision, it reports an own scaler whose
    scaled loss goes through `accelerator.backward`; of a Lightning module without a trainer in sight, an own scaler
    where Lightning runs backward and step.

    ## Why is this bad
    These frameworks hold a scaler of their own. A second one multiplies the loss again, which the framework never
    divides out, and asks for steps that the framework's optimizer has skipped or postponed.
    `torch.nn.utils.clip_grad_norm_` after `accelerator.backward` clips gradients that carry the framework's scale: the
    norm that arrives is `max_norm / S` (AMP201). Their own `clip_grad_norm_` and `clip_gradients` unscale first.

    ## Example
    ```python
    import torch
    from accelerate import Accelerator
    from torch import nn

    accelerator = Accelerator(mixed_precision="fp16")
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer = accelerator.prepare(model, optimizer)

    for _ in range(4):
        x = torch.randn(16, 8, device=accelerator.device)
        optimizer.zero_grad()
        with accelerator.autocast():
            loss = model(x).square().mean()
        accelerator.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # <- here
        optimizer.step()
    ```

    ## Use instead
    ```python
    import torch
    from accelerate import Accelerator
    from torch import nn

    accelerator = Accelerator(mixed_precision="fp16")
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer = accelerator.prepare(model, optimizer)

    for _ in range(4):
        x = torch.randn(16, 8, device=accelerator.device)
        optimizer.zero_grad()
        with accelerator.autocast():
            loss = model(x).square().mean()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    ```

    ## Known limits
    Silent when the framework's scaling is off: `mixed_precision="no"` or `"bf16"`, Lightning's manual optimization
    with a plain precision, DeepSpeed. A precision that comes from a configuration file is unknown and silent, and so
    is a clip where the launcher decides.

    ## Fix safety
    No fix: the scaler and every use of it have to go, or the framework's method has to replace the clip, with
    arguments that differ.

    ## How it is confirmed
    Not at all: the frameworks are not part of the replay.

    ## References
    - [accelerate:
      `clip_grad_norm_`](https://huggingface.co/docs/accelerate/package_reference/accelerator#accelerate.Accelerator.clip_grad_norm_)
    - [Lightning: N-bit precision](https://lightning.ai/docs/pytorch/stable/common/precision_basic.html)
    """

    code = "AMP225"
    name = "scaler-with-framework"
    severity = Severity.ERROR
    needles = (
        _BESIDE,
        (b"Scaler", b"clip_grad"),
        _FRAMEWORKS,
        (_MADE, b"Scaler"),
        (*_SCALING, b"LightningModule"),
    )
    near = (((_MADE,), (b"clip_grad",)), ((b"Trainer(",), _BESIDE))

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        if not _SCALING_OFF.search(unit.source.code):
            for trace in unit.traces:
                yield from _beside_calls(unit, trace)
        yield from _inside_modules(unit)


#: accelerate's own scaler is switched off by a handler
_SCALING_OFF = re.compile(r"GradScalerKwargs\([^)]*enabled\s*=\s*False")
_FLOAT16 = frozenset({"fp16", "16", "16-mixed", 16})
_TORCH_CLIPS = frozenset({"clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_"})


def _beside_calls(unit: Unit, trace: Trace) -> Iterator[Fault]:
    """Scalers and clips around the `backward` of an object that scales by itself."""
    setups = [event for event in trace.events if event.kind == "framework"]
    scaling = {event.site.identity for event in setups if _is_float16(event.details["keywords"])}
    undecided = {event.site.identity for event in setups if _is_undecided(event)}
    if not scaling and not undecided:
        return
    last: Event | None = None
    reported: set[tuple[str, int]] = set()
    for event in trace.events:
        if event.kind == "backward":
            last = event if _framework_site(unit, event, scaling) is not None else None
            if event.scaler is not None and _framework_site(unit, event, undecided) is not None:
                yield from _scaled_by_both(unit, trace, event)
        elif event.kind == "step":
            yield from _steps_a_prepared_one(unit, trace, event, scaling)
        elif event.kind == "framework_call" and event.details["name"] == "unscale_gradients":
            last = None
        elif event.kind == "clip" and last is not None and event.details["function"] in _TORCH_CLIPS:
            yield Fault(
                event.site,
                "gradients that the framework has scaled are clipped by torch's own function",
                (
                    (_site(unit, last), "the framework works in float16"),
                    (last.site, "and scales the loss here"),
                    *unit.call_steps(event),
                ),
                unit.assumptions(event),
            )
        if last is event and last is not None:
            for built in _own_scalers(trace, last):
                if built.site.identity not in reported:
                    reported.add(built.site.identity)
                    setup = _site(unit, last)
                    yield Fault(
                        built.site,
                        "a second scaler multiplies a loss that the framework scales by itself",
                        ((setup, "the framework works in float16"), (last.site, "and scales the loss here")),
                        unit.assumptions(event),
                    )


def _is_undecided(setup: Event) -> bool:
    """Whether the launcher decides about the precision: nothing is said of it where the framework is made."""
    given = setup.details["keywords"]
    return setup.details["callee"].endswith("Accelerator") and not given.keys() & {"mixed_precision", "**"}


def _scaled_by_both(unit: Unit, trace: Trace, backward: Event) -> Iterator[Fault]:
    """A loss that an own scaler has scaled goes through the framework's `backward`."""
    for built in _own_scalers(trace, backward):
        if built.scaler is backward.scaler:
            yield Fault(
                built.site,
                "the loss of this scaler goes through a framework that scales by itself when it is launched in float16",
                (
                    (_site(unit, backward), "the framework is made here"),
                    (backward.site, "and gets the scaled loss here"),
                ),
                unit.assumptions(backward),
                Confidence.MEDIUM,
            )


def _steps_a_prepared_one(unit: Unit, trace: Trace, step: Event, scaling: set[tuple[str, int]]) -> Iterator[Fault]:
    """An optimizer that a framework has prepared, which asks the framework's own scaler, is stepped through another."""
    framework = step.details["operand"]
    while not isinstance(framework, Framework):
        if isinstance(framework, Result) and isinstance(framework.callee, AttrOf):
            framework = framework.callee.base
        elif isinstance(framework, ItemOf):
            framework = framework.parts[0]
        else:
            return
    setup = unit.site_of(framework)
    if setup is None or setup.identity not in scaling:
        return
    for built in trace.events:
        if built.kind == "construct_scaler" and built.scaler is step.scaler:
            steps = ((setup, "the framework works in float16"), (step.site, "and has an optimizer of its own here"))
            message = "a second scaler steps an optimizer that the framework steps through its own"
            yield Fault(built.site, message, steps, unit.assumptions(step))


def _is_float16(keywords: dict[str, object]) -> bool:
    given = keywords.get("mixed_precision", keywords.get("precision"))
    return isinstance(given, Const) and given.value in _FLOAT16


def _framework_site(unit: Unit, backward: Event, scaling: set[tuple[str, int]]) -> Site | None:
    """Where the framework that runs a backward was set up, if that is one of the scaling ones."""
    framework = backward.details.get("framework")
    site = unit.site_of(framework) if isinstance(framework, Framework) else None
    return site if site is not None and site.identity in scaling else None


def _site(unit: Unit, backward: Event) -> Site:
    return unit.site_of(backward.details["framework"]) or backward.site


def _own_scalers(trace: Trace, backward: Event) -> list[Event]:
    """Constructions of scalers that the same training uses, enabled ones."""
    used = {event.scaler for event in trace.events if event.kind in ("scale", "step")}
    return [
        event
        for event in trace.events[: backward.index]
        if event.kind == "construct_scaler"
        and event.scaler in used
        and event.scaler is not None
        and event.scaler.enabled is not FALSE
    ]


# --- classes that a trainer runs -----------------------------------------------------------------

_TRAINERS = frozenset(
    {
        "lightning.Trainer",
        "lightning.pytorch.Trainer",
        "pytorch_lightning.Trainer",
        "transformers.TrainingArguments",
        "transformers.Seq2SeqTrainingArguments",
    }
)
_OVERRIDES = frozenset({"backward", "optimizer_step", "configure_gradient_clipping", "manual_backward"})
_RUN_BY_TRAINER = frozenset(
    {
        "lightning.LightningModule",
        "lightning.pytorch.LightningModule",
        "pytorch_lightning.LightningModule",
        "transformers.Trainer",
        "transformers.Seq2SeqTrainer",
    }
)


def _inside_modules(unit: Unit) -> Iterator[Fault]:
    """A scaler that a class makes for itself, while the trainer of the same file runs it in float16."""
    names, scopes = names_of(unit.env), unit.env.program.scopes
    calls = ((call, scope) for scope in scopes for call in _calls(scope))
    trainers = [(call, names.of(call.func, scope)) for call, scope in calls]
    trainers = [(call, found) for call, found in trainers if found and found <= _TRAINERS]
    trainer = next((call for call, _ in trainers if _is_in_float16(call)), None)
    if trainers and trainer is None:
        return
    for cls in scopes:
        if cls.kind != "class" or not any(_RUN_BY_TRAINER & names.of(base, cls.parent or cls) for base in cls.bases):
            continue
        if "scale" not in cls.words or _is_manual(cls):
            continue
        if trainer is None and not _left_to_lightning(cls, names):
            # who runs it, and in which precision, is not seen here
            continue
        for method in cls.children.values():
            for call in _calls(method):
                roles = {library.role(name) for name in names.of(call.func, method)}
                if roles == {"scaler"} and not _disabled(call):
                    yield Fault(
                        Site(unit.source, call.node),
                        "the trainer scales the loss by itself, and this scaler does it again",
                        ((Site(unit.source, trainer.node), "the trainer works in float16"),) if trainer else (),
                        confidence=Confidence.HIGH if trainer else Confidence.MEDIUM,
                    )


def _calls(scope: Scope) -> Iterator[Call]:
    return (stmt for stmt in scope.statements if isinstance(stmt, Call))


def _left_to_lightning(cls: Scope, names: Names) -> bool:
    """Whether Lightning runs backward and step for a module, in whatever precision: it overrides neither."""
    bases = frozenset(name for base in cls.bases for name in names.of(base, cls.parent or cls))
    lightning = any(name.endswith("LightningModule") for name in bases & _RUN_BY_TRAINER)
    return lightning and "training_step" in cls.children and cls.children.keys().isdisjoint(_OVERRIDES)


def _is_in_float16(call: Call) -> bool:
    given = {arg.keyword: arg.value.value for arg in call.args if arg.keyword and isinstance(arg.value, Literal)}
    return given.get("precision") in _FLOAT16 or given.get("fp16") is True


def _disabled(call: Call) -> bool:
    return any(a.keyword == "enabled" and isinstance(a.value, Literal) and a.value.value is False for a in call.args)


def _is_manual(cls: Scope) -> bool:
    """Whether a Lightning module optimizes by itself."""
    for scope in (cls, *cls.children.values()):
        for stmt in scope.statements:
            if isinstance(stmt, Assign) and isinstance(stmt.target, (Attr, Name)):
                target = stmt.target.name if isinstance(stmt.target, Attr) else stmt.target.id
                if target == "automatic_optimization":
                    return not (isinstance(stmt.value, Literal) and stmt.value.value is True)
    return False
