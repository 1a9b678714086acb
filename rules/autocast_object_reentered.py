"""AMP109: one autocast object is entered inside itself, or a generator yields from a region."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from amplint.finding import Severity
from amplint.layout import function_of, same_function
from amplint.library import role
from amplint.names import names_of
from amplint.needles import ENABLES, MENTIONED, REGION_OF_A_HELPER, RENAMED, directly_behind, spaced
from amplint.program import Call, Name, Scope, path_of, walk
from amplint.rule import Fault, Rule, Site

if TYPE_CHECKING:
    from amplint.analysis import Unit


#: an object that may outlive a `with` statement: of a decorator, or one that has a name
_KEPT = spaced(rb"autocast(?:%b|[^\n]{0,200}\)[ \t]{0,40}as\b|%b%b)" % (RENAMED, MENTIONED, directly_behind("with ")))


class AutocastObjectReentered(Rule):
    """One autocast object is entered while it is already active, or a generator yields from inside a region.

    ## What it does

    Reports

    - an autocast object kept in a variable or an attribute that is entered again before it was left, directly or
      through a call;
    - a function that `@torch.autocast(...)` decorates and that calls itself, since the decorator holds one object;
    - a `yield` inside a region of a generator.

    ## Why is this bad

    An autocast object remembers the state to restore on itself. Entering it a second time overwrites what it
    remembers with "enabled", and leaving it restores that: autocast is still on after the outermost region has ended.
    Everything that follows in the thread then runs in 16 bit, the optimizer and the evaluation included. Both forms
    were observed to do so.

    A generator that yields inside its region leaves autocast on for its consumer, between one item and the next. If
    it is finished or closed inside another region, it restores the wrong state there.

    ## Example

    ```python
    import torch
    from torch import nn


    class TreeEncoder(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.leaf = nn.Linear(width, width)
            self.merge = nn.Linear(2 * width, width)

        @torch.autocast("cuda", dtype=torch.bfloat16)
        def encode(self, tree):  # <- here
            if isinstance(tree, torch.Tensor):
                return self.leaf(tree)
            left, right = self.encode(tree[0]), self.encode(tree[1])
            return torch.tanh(self.merge(torch.cat([left, right])))


    encoder = TreeEncoder(4).to("cuda")
    a, b, c = torch.randn(3, 4, device="cuda")
    with torch.no_grad():
        encoder.encode(((a, b), c))
        print(encoder.leaf(a).dtype)
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn


    class TreeEncoder(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.leaf = nn.Linear(width, width)
            self.merge = nn.Linear(2 * width, width)

        def encode(self, tree):
            if isinstance(tree, torch.Tensor):
                return self.leaf(tree)
            left, right = self.encode(tree[0]), self.encode(tree[1])
            return torch.tanh(self.merge(torch.cat([left, right])))


    encoder = TreeEncoder(4).to("cuda")
    a, b, c = torch.randn(3, 4, device="cuda")
    with torch.no_grad():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            encoder.encode(((a, b), c))
        print(encoder.leaf(a).dtype)
    ```

    ## Known limits

    - The same object used again after it was left is fine and is not reported, nor are regions of different objects.
    - The `yield` of a function under `contextlib.contextmanager` is the usual way to write a context manager and is
      not reported.
    - A generator that yields inside `autocast(enabled=False)` turns nothing on, and is not reported.
    - One object that several threads enter has the same problem and is not looked for.

    ## Fix safety

    No fix. Whether the inner or the outer entry is the one to go, and where a generator should close its region, is a
    decision about what runs in 16 bit.

    ## How it is confirmed

    The verifier executes the region and reads `torch.is_autocast_enabled` after the outermost exit, or in the
    consumer of the generator: on where it was off before confirms the finding.

    ## References

    - `torch/amp/autocast_mode.py`, `autocast.__enter__`, `autocast.__exit__` and `autocast_decorator`
    - https://docs.pytorch.org/docs/stable/amp.html#torch.autocast
    """

    code = "AMP109"
    name = "autocast-object-reentered"
    severity = Severity.WARNING
    needles = ((ENABLES,), (b"yield", _KEPT))
    near = (REGION_OF_A_HELPER,)
    confirmed_by = "state"

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        for _, _, event in unit.events("enter"):
            around = next((r for r in event.regions if r.context is event.details["context"]), None)
            if around is not None:
                steps = ((around.site, "entered here and still open"), *unit.call_steps(event))
                yield Fault(event.site, "an autocast object is entered again before it was left", steps)
        for trace, _, event in unit.events("yield"):
            region = unit.autocast(event, trace)
            if region is not None and same_function(region.site, event.site) and not _makes_a_context(event.site):
                steps = ((region.site, "the region is entered here"),)
                yield Fault(
                    event.site, "a generator yields inside its autocast region, which stays on for the caller", steps
                )
        yield from _recursive(unit)


def _makes_a_context(site: Site) -> bool:
    """Whether the function of a `yield` is made into a context manager (or a fixture, which is used like one)."""
    function = function_of(site)
    decorators = function.decorators if isinstance(function, cst.FunctionDef) else ()
    return any(word in site.module.rough_text(d) for d in decorators for word in ("contextmanager", "fixture"))


def _recursive(unit: Unit) -> Iterator[Fault]:
    names = names_of(unit.env)
    for scope in unit.env.program.scopes:
        made = {s.result: s for s in walk(scope.prelude) if isinstance(s, Call)}
        for decorator in scope.decorators:
            call = made.get(decorator.id) if isinstance(decorator, Name) else None
            outer = scope.parent
            if call is None or outer is None:
                continue
            found = names.of(call.func, outer)
            if not found or any(role(name) not in ("autocast", "device_autocast") for name in found):
                continue
            again = next((s for s in scope.statements if isinstance(s, Call) and _calls(s, scope)), None)
            if again is not None:
                yield Fault(
                    Site(unit.source, scope.node),
                    "a function under an autocast decorator calls itself; the decorator's one object is entered again",
                    (
                        (Site(unit.source, call.node), "the one object"),
                        (Site(unit.source, again.node), "the inner call"),
                    ),
                )


def _calls(stmt: Call, scope: Scope) -> bool:
    func = stmt.func
    if scope.is_method:
        return bool(scope.params) and path_of(func) == f"{scope.params[0].name}.{scope.name}"
    return isinstance(func, Name) and func.id == scope.name
