"""AMP202: gradients are read or changed while they still carry the loss scale."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from amplint.finding import Severity
from amplint.layout import (
    argument_text,
    function_of,
    is_plain_path,
    once_before,
    receiver_text,
    same_block,
    same_function,
    stands_before,
)
from amplint.needles import SCALER_HERE, SCALES
from amplint.protocol import consumed_scaled, remembers_unscale
from amplint.quotients import falls_out, is_divided
from amplint.rule import READ_IN_HELPER, Change, Fault, FixPlan, Rule, Site
from amplint.values import NONE, Const, Grad, Value, computed_from_gradients

if TYPE_CHECKING:
    from amplint.analysis import Unit
    from amplint.states import Event
    from amplint.traces import Trace


class ScaledGradientRead(Rule):
    """Gradients are read, or changed in a way that depends on their size, while they carry the loss scale.

    ## What it does
    Reports a use of `.grad` between `scaler.scale(loss).backward()` and `scaler.unscale_(optimizer)` or
    `scaler.step(optimizer)` whose result depends on the size of the gradient: norms and histograms for a log, a
    comparison with a threshold, added noise, weight decay by hand, `nan_to_num_`, overwriting NaN.

    ## Why is this bad
    The values are S times too large, and S changes during the run: a logged norm jumps by a factor 2 whenever the
    scale does. A term added to the gradient is divided by S in the step and vanishes: with decay added by hand, 3.1
    became 3.000001.

    Replacing infinities is worse. `nan_to_num_` or `grad[grad.isnan()] = 0` before `unscale_` hides the overflow from
    the scaler: it takes a step that it should skip (measured: a weight of -5e33) and never lowers the scale.

    ## Example
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda")

    for _ in range(4):
        x = torch.randn(16, 8, device=device)
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        for weight in model.parameters():
            weight.grad.add_(weight.detach(), alpha=0.1)  # <- here
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Use instead
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda")

    for _ in range(4):
        x = torch.randn(16, 8, device=device)
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        for weight in model.parameters():
            weight.grad.add_(weight.detach(), alpha=0.1)
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Known limits
    Silent are uses that are right on scaled gradients too: tests for `None`, `isnan`, `isinf` and `isfinite`, an
    all-reduce, a division by the world size or the number of micro-batches, a division by `scaler.get_scale()`, a
    gradient divided by its own norm, and reads after `scaler.step`. Of a helper in another module that only looks at
    gradients, the call is reported. A read in a function that amplint cannot resolve is not reported. Clipping is
    AMP201.

    ## Fix safety
    Unsafe: `scaler.unscale_(optimizer)` before the use gives it true gradients, but what was tuned on scaled gradients
    (a threshold, a noise level) changes its meaning.

    ## How it is confirmed
    The replay compares what was read, or the gradients handed to the optimizer, with a run whose scaler is disabled:
    they differ by the factor S. For values that only hide an overflow an infinity is injected.

    ## References
    - [Working with unscaled
      gradients](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#working-with-unscaled-gradients)
    - `torch/amp/grad_scaler.py`: `GradScaler.unscale_`
    """

    code = "AMP202"
    name = "scaled-gradient-read"
    severity = Severity.WARNING
    needles = ((b".grad", b".scale("), SCALES)
    near = (SCALER_HERE,)
    fix = "unsafe"
    confirmed_by = "state"
    yields_to = ("AMP201",)

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        measuring = _measuring(unit)
        reads = (event for _, _, event in unit.events("grad_read"))
        readings = {id(site.node) for event in reads for site in (event.site, *event.calls)}
        for trace, position, event in unit.events("grad_read", "grad_write", "clip"):
            harm = _harm(event)
            if harm is None or _undone(trace, event) or event.site.identity in measuring:
                continue
            met = consumed_scaled(trace, position, event)
            if met is None:
                continue
            gradients, consumer = met
            assert gradients.last is not None
            if event.kind == "grad_read" and (
                falls_out(event.site, readings) or any(is_divided(call, readings) for call in event.calls)
            ):
                continue
            if remembers_unscale(unit, event.site):
                continue
            if event.kind == "grad_read" and (_clipped_next(trace, position, consumer) or _put_back(trace, position)):
                # what is read serves the clip that follows, and that is what has to change; an average is none
                continue
            asked = _asked(unit, event)
            if asked is not None and asked.module is not gradients.last.site.module is event.site.module:
                # the module that reads them has scaled them as well, and is told so itself
                continue
            steps = [*unit.call_steps(event)] if asked is None else [(event.site, READ_IN_HELPER)]
            yield Fault(
                asked or event.site,
                f"gradients are {harm} while they still carry the loss scale",
                ((gradients.last.site, "scaled backward"), *steps, (consumer.site, "unscaled only here")),
                unit.assumptions(event),
                unit.confidence(gradients.scaler, consumer.optimizer),
                _fix(gradients.last, event, consumer),
            )


def _measuring(unit: Unit) -> frozenset[tuple[str, int]]:
    """The readings from which the coefficient of a clip by hand is computed, where one is needed."""
    found: set[tuple[str, int]] = set()
    for trace, position, change in unit.events("grad_write"):
        arguments = [v for v in change.details["arguments"] if isinstance(v, Value)]
        if change.details["operation"] in ("mul_", "div_") and any(computed_from_gradients(v) for v in arguments):
            made = max((g.last.index for g in change.before.values() if g.last is not None), default=0)
            reads = (e for e in trace.events[:position] if e.kind == "grad_read" and e.index > made)
            found.update(read.site.identity for read in reads)
    return frozenset(found)


def _asked(unit: Unit, event: Event) -> Site | None:
    """The call of a helper that only looks at the gradients it is given, or at those of its own module, which is what
    is wrong: the helper is as good for unscaled ones. None where the gradients are read in place."""
    if event.kind == "grad_write":
        return None
    reader, calls = event.site, [*event.calls]
    while calls and not _fetches(reader):
        reader = calls.pop()
    if reader.module is unit.source:
        return None if reader is event.site else reader
    return unit.asked_here(event)


def _fetches_here(site: Site) -> bool:
    """Whether the statement around a site gets hold of the gradients, or goes through parameters."""
    text = site.module.rough_text(site.module.statement(site.node))
    return ".grad" in text or "parameters" in text or "grad_norm" in text


def _fetches(site: Site) -> bool:
    """Whether the function around a site gets hold of gradients by itself."""
    function = function_of(site)
    return function is None or ".grad" in site.module.rough_text(function)


#: right under any scale: tests for infinities, copies, communication, and what does not look at the values
_INDIFFERENT = frozenset(
    {
        "isnan",
        "isinf",
        "isfinite",
        "equal",
        "allclose",
        "isclose",
        "assert_close",
        "argmax",
        "argmin",
        "argsort",
        "cosine_similarity",
        "normalize",
        "any",
        "all",
        "nonzero",
        "numel",
        "size",
        "dim",
        "clone",
        "detach",
        "cat",
        "stack",
        "chunk",
        "split",
        "flatten",
        "sign",
        "sign_",
        "signbit",
        "zeros_like",
        "ones_like",
        "empty_like",
        "full_like",
        "randn_like",
        "rand_like",
        "all_reduce",
        "all_reduce_",
        "reduce",
        "broadcast",
        "all_gather",
        "reduce_scatter",
        "record_stream",
        "data_ptr",
        "element_size",
        "is_contiguous",
        "type",
        "new",
        "bool",
        "count_nonzero",
        "is_nonzero",
        "is_complex",
        "is_floating_point",
        "is_tensor",
        "isinstance",
        "id",
        "len",
    }
)
#: changes that depend on the size of what is there
_ADDING = frozenset({"add_", "sub_", "addcmul_", "addcdiv_", "lerp_", "nan_to_num_", "masked_fill_"})
_SAYS_SCALE = re.compile(r"get_scale|inv_scale|_scale\b|/\s*\(?\s*(?:self\.)?scale\b|\bunscale")
#: what is taken from a gradient and put back into it keeps the scale
_LINEAR = re.compile(
    r"\.grad(?:\.data)?\.(?:sub_|add_)\(\s*-?\s*[\w.\[\]]*\.grad\b"
    r"|(?P<same>\b\w[\w.]*?)(?:\.data)?(?:\.(?:sub_|add_)\(|\s*[-+]=)\s*-?\s*(?P=same)\."
)
_SAYS_OTHERWISE = re.compile(r"isnan|isinf|isfinite|" + _SAYS_SCALE.pattern)
#: names of helpers that look for an overflow
_TESTS = re.compile(r"(?:\b|_)(?:inf|nan|infs|nans)(?:\b|_)|finite|overflow|" + _SAYS_OTHERWISE.pattern, re.IGNORECASE)


def _harm(event: Event) -> str | None:
    """What is done to the gradients that is wrong under a scale; None where it is right."""
    if event.kind == "clip":
        limit = event.details["limit"]
        measured = limit is None or limit is NONE or (isinstance(limit, Const) and limit.value == float("inf"))
        return "measured" if measured and event.details["function"] == "clip_grad_norm_" else None
    operation, arguments = event.details["operation"], event.details["arguments"]
    values = [value for value in arguments if isinstance(value, Value)]
    if any(value.taint.inverse for value in values):
        return None
    if event.kind == "grad_read":
        return None if operation in _INDIFFERENT else "read"
    if operation == "item":
        # `grad[grad.isnan()] = 0` hides an overflow; an index that is no gradient selects rows
        return (
            "overwritten"
            if len(values) == 2 and isinstance(values[0], Grad) and not isinstance(values[1], Grad)
            else None
        )
    if operation == "assign":
        shifted = bool(values) and isinstance(values[0], Grad) and values[0].parts[1] == "shifted"
        return "changed by a term of another size" if shifted else None
    if operation == "masked_fill_" and values and not computed_from_gradients(values[0]):
        # a mask of weights or rows
        return None
    if operation not in _ADDING or (operation in ("add_", "sub_") and values and isinstance(values[0], Grad)):
        return None
    return (
        "changed by a term of another size"
        if operation not in ("nan_to_num_", "masked_fill_")
        else "overwritten where they overflowed"
    )


def _undone(trace: Trace, event: Event) -> bool:
    """Whether the value is divided by the scale, or only tested for infinities, in the same statement or close by."""
    says = _SAYS_OTHERWISE if event.kind == "grad_read" else _SAYS_SCALE
    if _LINEAR.search(_own_text(event.site)):
        return True
    if says.search(_own_text(event.site)) or any(_TESTS.search(_own_text(call)) for call in event.calls[-2:]):
        return True
    return any(
        # a scale that is asked for around a loop over parameters is for all of them
        e.kind == "get_scale" and e.loops == event.loops[: len(e.loops)] and e.loops and e.calls == event.calls
        for e in trace.events
    )


def _own_text(site: Site) -> str:
    """The text of the statement around a site, without the block of a compound statement."""
    statement = site.module.statement(site.node)
    text = site.module.rough_text(statement)
    return text if isinstance(statement, cst.SimpleStatementLine) else text.partition("\n")[0]


def _put_back(trace: Trace, position: int) -> bool:
    """Whether a clamped copy takes the gradient's place, which is a clip, or an average, which has the same scale."""
    if trace.events[position].details["operation"] not in ("clamp", "clip", "mean", "sum"):
        return False
    following = trace.events[position + 1 : position + 2]
    return any(e.kind == "grad_write" and e.details["operation"] == "assign" for e in following)


def _clipped_next(trace: Trace, position: int, consumer: Event) -> bool:
    for later in trace.events[position + 1 :]:
        if later.index >= consumer.index:
            return False
        if later.kind == "clip" or (
            later.kind == "grad_write" and later.details["operation"] in ("mul_", "div_", "clamp_")
        ):
            return True
    return False


def _fix(backward: Event, event: Event, consumer: Event) -> FixPlan | None:
    """Unscale before the use, where the step follows in the same block."""
    scaler, optimizer = receiver_text(consumer.site), argument_text(consumer.site)
    if event.calls != consumer.calls or event.loops[: len(consumer.loops)] != consumer.loops:
        return None
    place = once_before(event.site, consumer.site)
    if place is None or not is_plain_path(scaler) or not is_plain_path(optimizer):
        return None
    if event.kind == "grad_read" and not _fetches_here(event.site):
        # what is used may be a copy from before
        return None
    if same_function(backward.site, place) and not stands_before(backward.site, place):
        return None
    changes = [Change("insert-before", place, f"{scaler}.unscale_({optimizer})")]
    if consumer.kind == "unscale_":
        if not same_block(place, consumer.site):
            return None
        changes.append(Change("delete", consumer.site))
    return FixPlan("unsafe", f"unscale {optimizer} before the use", tuple(changes))
