"""AMP306: the last, shorter window of an epoch is lost."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import libcst as cst

from amplint.finding import Severity
from amplint.guards import describe, linear
from amplint.layout import block_of, enclosing, function_of
from amplint.needles import SCALER_HERE, SCALES
from amplint.program import Assign, Attr
from amplint.protocol import counts_batches
from amplint.rule import Fault, Rule, Site
from amplint.source import children
from amplint.values import AttrOf, Const, Ext, OpV, Result, Sym, Value

if TYPE_CHECKING:
    from amplint.analysis import Unit
    from amplint.project import ModuleEnv
    from amplint.states import Event, Gradients


class IncompleteWindowDropped(Rule):
    """The last window of an epoch is thrown away when the number of batches is not a multiple of its length.

    ## What it does
    Reports a window boundary such as `(i + 1) % accumulate == 0` when nothing steps the remaining micro-batches: no
    flush after the loop and no test for the last batch in the condition.

    ## Why is this bad
    The gradients of the last micro-batches are computed and then cleared at the start of the next epoch, or carried
    into it. In two epochs of 6 batches with a window of 4, 4 of 12 batches had no effect. Where they are carried over,
    the scale may change under them through an `update()` by hand or a loaded state.

    ## Example
    ```python
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda")
    accumulate = 4
    batches = torch.randn(6, 16, 8, device=device)

    for _ in range(2):
        optimizer.zero_grad()
        for i, x in enumerate(batches):
            with torch.autocast("cuda"):
                loss = model(x).square().mean() / accumulate
            scaler.scale(loss).backward()
            if (i + 1) % accumulate == 0:  # <- here
                scaler.step(optimizer)
                scaler.update()
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
    batches = torch.randn(6, 16, 8, device=device)

    for _ in range(2):
        optimizer.zero_grad()
        for i, x in enumerate(batches):
            with torch.autocast("cuda"):
                loss = model(x).square().mean() / accumulate
            scaler.scale(loss).backward()
            if (i + 1) % accumulate == 0 or i + 1 == len(batches):
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
    ```

    ## Known limits
    Loops that are known to be endless, lengths that are constants and multiples of the window, and lengths that the
    code makes one (`range(steps * window)`, `assert len(loader) % window == 0`) are silent, and so is a condition with
    an `or`, whatever else it lets through. A data loader with a matching `drop_last` is not recognised. A count kept in
    an attribute that no method sets back goes on from epoch to epoch, and so does the window. A step after the loop
    silences the rule whatever its condition.

    ## Fix safety
    No fix: the last window is divided by the wrong number either way, and the scheduler counts on a number of steps.

    ## How it is confirmed
    The replay runs an epoch whose length is no multiple of the window and counts the micro-batches that reached a
    step.

    ## References
    - [Gradient accumulation](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation)
    """

    code = "AMP306"
    name = "incomplete-window-dropped"
    severity = Severity.INFO
    needles = ((b".step(", b".scale("), SCALES)
    near = (SCALER_HERE,)
    confirmed_by = "own"

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        for _, _, step in unit.events("step"):
            gradients = step.state
            backward = gradients.last
            if gradients.kind not in ("S", "U", "M") or backward is None or len(step.loops) < len(backward.loops):
                continue
            decided = [atom for atom in step.assume if atom not in _before(gradients)]
            if any(isinstance(atom[1], OpV) and atom[1].op in ("or", "and") for atom in decided):
                # the boundary is not the only way to the step
                continue
            atoms = [atom for atom in decided if atom[0] != "true" and counts_batches(atom)]
            guard = _guard(step, backward)
            if not atoms or guard is None or _reaches_the_end(unit, step, backward, atoms) or _fits(step, atoms):
                continue
            if _is_endless(guard) or not any(_starts_anew(unit, atom, backward) for atom in atoms):
                continue
            if not all(_is_boundary(atom, backward) for atom in atoms) or _cuts_to_windows(guard, atoms):
                continue
            yield Fault(
                guard,
                "the last window of an epoch is not stepped when it is shorter than the others",
                (*unit.call_steps(step), (step.site, "the only step of the window")),
                unit.assumptions(step),
                unit.confidence(step.scaler, step.optimizer),
            )


def _before(gradients: Gradients) -> Mapping[Any, bool]:
    """What was decided before the window's last backward."""
    return gradients.last.assume if gradients.last is not None else {}


def _reaches_the_end(unit: Unit, step: Event, backward: Event, atoms: list[Any]) -> bool:
    """Whether a step comes after the loop, or in it although the boundary was not met."""
    for _, _, other in unit.events("step"):
        if other.scaler is not step.scaler:
            continue
        if len(other.loops) < len(backward.loops):
            return True
        if any(other.assume.get(atom, step.assume[atom]) is not step.assume[atom] for atom in atoms):
            return True
        met = {atom[0] for atom in other.assume if counts_batches(atom) and atom not in _before(other.state)}
        if met and met.isdisjoint({atom[0] for atom in atoms}):
            # another condition leads to it as well: `or i == len(loader) - 1`
            return True
    return False


def _starts_anew(unit: Unit, atom: Any, backward: Event) -> bool:
    """Whether what is counted may begin again with every epoch: an attribute does where a method sets it, a variable
    where it is set inside of the loop over epochs."""
    around = {loop for loop, _ in backward.loops[:-1]}
    if any(isinstance(t, Sym) and t.parts[0] == "counter" and t.parts[1] in around for t in _terms(atom)):
        return False
    counted = [_attribute(value) for value in _terms(atom)]
    return not all(counted) or not _reset_attributes(unit).isdisjoint(counted)


def _is_boundary(atom: Any, backward: Event) -> bool:
    """Whether a condition counts the batches of its own loop, and neither goes on from epoch to epoch (`i + n * epoch`)
    nor asks for the last batch (`i == len(loader) - 1`)."""
    around = {loop for loop, _ in backward.loops[:-1]}
    terms = list(_terms(atom))
    counting = any(_attribute(t) or (isinstance(t, Sym) and t.parts[0] in ("index", "counter")) for t in terms)
    return counting and not any(
        isinstance(term, OpV)
        or (isinstance(term, Result) and isinstance(term.callee, Ext) and term.callee.dotted == "len")
        or (isinstance(term, Sym) and term.parts[0] == "index" and term.parts[1] in around)
        for term in terms
    )


def _cuts_to_windows(guard: Site, atoms: list[Any]) -> bool:
    """Whether the guard says something else beside the boundary, the loop is left at one, its data have no end, or
    their number is made a multiple of the window: `range(steps * window)`, `assert len(loader) % window == 0`."""
    module, node, function = guard.module, guard.node, function_of(guard)
    loop = enclosing(guard, cst.For, cst.While)
    assert isinstance(node, cst.If)
    if _leaves(node):
        if _holds(node.test, cst.BooleanOperation):
            return True
    elif _holds(node.test, cst.Or) or any(_holds(statement, cst.Break, cst.Return) for statement in node.body.body):
        return True
    header = module.rough_text(loop.iter) if isinstance(loop, cst.For) else ""
    if _ENDLESS.search(header):
        return True
    text = module.rough_text(function) if function is not None else module.code
    for atom in atoms:
        window = re.escape(describe(atom[2])) if atom[0] == "mod" else ""
        if window and (
            re.search(rf"\*\s*{window}\b|\b{window}\s*\*", header)
            or re.search(rf"len\([^()]*\)\s*%\s*{window}\b|//\s*{window}\s*\)*\s*\*\s*{window}\b", text)
        ):
            return True
    return False


#: iterables that begin again where their data end
_ENDLESS = re.compile(r"cycle\(|infinite|endless|forever|repeat", re.IGNORECASE)


def _holds(node: cst.CSTNode, *kinds: type[cst.CSTNode]) -> bool:
    return isinstance(node, kinds) or any(_holds(child, *kinds) for child in children(node))


def _terms(atom: Any) -> Iterator[Value]:
    if atom[0] == "mod":
        yield from (value for value, _ in atom[1][0])
    else:
        yield from (value for part in atom[1:] if isinstance(part, Value) for value, _ in linear(part)[0])


def _attribute(value: Value) -> str:
    """The name of an attribute that counts across calls; "" for what counts within a loop."""
    if isinstance(value, AttrOf):
        return value.name
    if isinstance(value, Sym) and value.parts[0] == "counter" and isinstance(value.parts[1], Value):
        return str(value.parts[-1])
    return ""


def _reset_attributes(unit: Unit) -> frozenset[str]:
    """The attributes that some method sets to a number, other than the one that makes the object."""
    return frozenset().union(*(_attributes_set_in(env) for env in (unit.env, *unit.executor.entered)))


def _attributes_set_in(env: ModuleEnv) -> frozenset[str]:
    known: frozenset[str] | None = env.shared.get("attributes_set")
    if known is None:
        known = env.shared["attributes_set"] = frozenset(
            stmt.target.name
            for scope in env.program.scopes
            if scope.name != "__init__"
            for stmt in scope.statements
            if isinstance(stmt, Assign) and not stmt.augmented and isinstance(stmt.target, Attr)
        )
    return known


def _is_endless(guard: Site) -> bool:
    """Whether the loop around a boundary is `while True`, which has no last window."""
    loop = enclosing(guard, cst.For, cst.While)
    return isinstance(loop, cst.While) and isinstance(loop.test, cst.Name) and loop.test.value == "True"


def _fits(step: Event, atoms: list[Any]) -> bool:
    """Whether the loop's length is a constant multiple of the window."""
    loop = enclosing(step.site, cst.For)
    if not isinstance(loop, cst.For) or not isinstance(loop.iter, cst.Call) or not isinstance(loop.iter.func, cst.Name):
        return False
    if (
        loop.iter.func.value != "range"
        or len(loop.iter.args) != 1
        or not isinstance(loop.iter.args[0].value, cst.Integer)
    ):
        return False
    length = int(loop.iter.args[0].value.value)
    windows = [atom[2].value for atom in atoms if atom[0] == "mod" and isinstance(atom[2], Const)]
    return bool(windows) and all(window and length % window == 0 for window in windows)


def _guard(step: Event, backward: Event) -> Site | None:
    """The condition that makes the step wait: the `if` around it, or one before it that goes on to the next batch; what
    is around the loop over the batches lets no step wait."""
    for site in (step.site, *reversed(step.calls)):
        loop = enclosing(site, cst.For, cst.While)
        node = enclosing(site, cst.If, cst.For, cst.While, cst.FunctionDef)
        if isinstance(node, cst.If):
            return Site(site.module, _outermost(node, site, backward))
        held = block_of(site)
        if held is not None and loop is not None:
            block, position = held
            for earlier in reversed(block.body[:position]):
                if isinstance(earlier, cst.If) and _leaves(earlier):
                    return Site(site.module, earlier)
        if loop is not None and any(_is_inside(inner, site, loop) for inner in (backward.site, *backward.calls)):
            return None
    return None


def _outermost(node: cst.If, site: Site, backward: Event) -> cst.If:
    """The condition around others that does not hold the backward as well."""
    while True:
        around = enclosing(Site(site.module, node), cst.If, cst.For, cst.While, cst.FunctionDef)
        passed = (backward.site, *backward.calls)
        if not isinstance(around, cst.If) or any(_is_inside(inner, site, around) for inner in passed):
            return node
        node = around


def _is_inside(inner: Site, outer: Site, loop: cst.CSTNode) -> bool:
    """Whether a site is inside of a loop around another."""
    node: cst.CSTNode | None = inner.node
    while node is not None and node is not loop and inner.module is outer.module:
        node = inner.module.parent(node)
    return node is loop


def _leaves(node: cst.If) -> bool:
    body = node.body.body
    last = body[-1] if body else None
    return isinstance(last, cst.SimpleStatementLine) and isinstance(last.body[-1], (cst.Continue, cst.Return))
