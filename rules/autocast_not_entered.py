"""AMP103: autocast is named or called, but no region is entered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from amplint.finding import Severity
from amplint.layout import enclosing
from amplint.library import role
from amplint.names import Names, names_of
from amplint.needles import MENTIONED, RENAMED, directly_behind, spaced
from amplint.program import Call, Evaluate, Expr, Region, Scope
from amplint.rule import Fault, Rule, Site

if TYPE_CHECKING:
    from amplint.analysis import Unit


#: a call that is not obviously entered or kept, or the name without a call
_NOT_ENTERED = spaced(
    rb"autocast(?:%b|(?<!\wautocast)\b(?![ \t]{0,40}\()%b|(?=\w{0,40}[ \t]{0,40}\()(?<!def autocast)%b)"
    % (RENAMED, MENTIONED, directly_behind("with ", "@", "= ", "return "))
)


class AutocastNotEntered(Rule):
    """Autocast is called or named without being entered, so nothing runs in mixed precision.

    ## What it does

    Reports three forms that enter no region:

    - `torch.autocast("cuda")` as a statement of its own;
    - `with torch.autocast:`, the class in place of an object;
    - `@torch.autocast` without a call, as a decorator.

    The same holds for every other spelling of the class, for example `torch.amp.autocast` and
    `torch.cuda.amp.autocast`.

    ## Why is this bad

    The bare call is silent: it builds a context manager and throws it away. The model runs in fp32, with the memory
    and the speed of fp32, and a `GradScaler` beside it scales for nothing. Whoever reads the program believes that
    mixed precision is on. The two other forms raise: the `with` statement a `TypeError`, the decorator a `ValueError`
    ("Expected `device_type` of type `str`, got: `<class 'function'>`") as soon as the file is imported. Versions of
    torch that did not check the type took the function for a device and returned an object in its place.

    ## Example

    ```python
    import torch
    from torch import nn


    class Classifier(nn.Module):
        def __init__(self, features, classes):
            super().__init__()
            self.body = nn.Linear(features, 16)
            self.head = nn.Linear(16, classes)

        @torch.autocast  # <- here
        def forward(self, x):
            return self.head(torch.relu(self.body(x)))


    def predict(batches):
        model = Classifier(8, 3).to("cuda").eval()
        with torch.inference_mode():
            return [model(x) for x in batches]


    print([out.dtype for out in predict(torch.randn(2, 4, 8, device="cuda"))])
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn


    class Classifier(nn.Module):
        def __init__(self, features, classes):
            super().__init__()
            self.body = nn.Linear(features, 16)
            self.head = nn.Linear(16, classes)

        @torch.autocast("cuda", dtype=torch.float16)
        def forward(self, x):
            return self.head(torch.relu(self.body(x)))


    def predict(batches):
        model = Classifier(8, 3).to("cuda").eval()
        with torch.inference_mode():
            return [model(x) for x in batches]


    print([out.dtype for out in predict(torch.randn(2, 4, 8, device="cuda"))])
    ```

    ## Known limits

    - A context that is stored in a variable or an attribute and never entered afterwards is not reported: it may be
      entered by code that is not seen.
    - A helper function that returns a context and is called as a statement is not reported.

    ## Fix safety

    No fix. Which statements belong to the region is a decision: a `with` statement needs a body, and a backward or an
    optimizer step must not get into it.

    ## How it is confirmed

    The decorator and the `with` statement raise when they are executed. For the bare call the verifier records
    `torch.is_autocast_enabled` at the forward that follows: off confirms the finding.

    ## References

    - `torch/amp/autocast_mode.py`, `autocast.__init__` (check of `device_type`), `autocast.__call__`
    - https://docs.pytorch.org/docs/stable/amp.html#torch.autocast
    """

    code = "AMP103"
    name = "autocast-not-entered"
    severity = Severity.ERROR
    needles = ((_NOT_ENTERED,),)
    confirmed_by = "raise"

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        names = names_of(unit.env)
        for scope in unit.env.program.scopes:
            for stmt in scope.statements:
                site = Site(unit.source, stmt.node) if isinstance(stmt, (Call, Evaluate, Region)) else None
                if (
                    isinstance(stmt, Call)
                    and stmt.dropped
                    and _is_autocast(names, stmt.func, scope)
                    and site is not None
                ):
                    if not _probes(site):
                        yield Fault(site, _DROPPED)
                elif isinstance(stmt, Evaluate) and _is_autocast(names, stmt.value, scope) and site is not None:
                    yield Fault(site, "the autocast class is named and nothing is entered; call it in a with statement")
                elif isinstance(stmt, Region) and _is_autocast(names, stmt.context, scope) and site is not None:
                    yield Fault(
                        site, "the with statement is given the autocast class itself, where an object of it belongs"
                    )
            yield from _decorators(unit, names, scope)
        for _, _, event in unit.events("construct_autocast"):
            # a name that another module of the project brings in
            if event.details["dropped"] and not _probes(event.site):
                yield Fault(event.site, _DROPPED)


_DROPPED = "autocast is called and its context is dropped, so no region is entered"


def _is_autocast(names: Names, expr: Expr, scope: Scope) -> bool:
    found = names.of(expr, scope)
    return bool(found) and all(role(name) in ("autocast", "device_autocast") for name in found)


def _decorators(unit: Unit, names: Names, scope: Scope) -> Iterator[Fault]:
    if isinstance(scope.node, (cst.FunctionDef, cst.ClassDef)) and scope.parent is not None:
        for written, decorator in zip(scope.node.decorators, scope.decorators, strict=True):
            if _is_autocast(names, decorator, scope.parent):
                yield Fault(
                    Site(unit.source, written.decorator),
                    "the autocast class itself is the decorator; the function is taken for its first argument",
                )


def _probes(site: Site) -> bool:
    """Whether a call is there to see if it raises, in a `try`."""
    around = enclosing(site, cst.Try, cst.With, cst.FunctionDef)
    return isinstance(around, cst.Try) and bool(around.handlers) and enclosing(site, cst.IndentedBlock) is around.body
