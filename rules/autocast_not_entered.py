"""AMP103: autocast is named or called, but no region is entered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.rule import Fault, Rule

if TYPE_CHECKING:
    from amplint.analysis import Unit

#: a call at the start of a line (or of a notebook's string): what a bare statement looks like, and most regions do not
_BARE_CALLS = tuple(
    start + module + b"autocast("
    for start in (b"\n", b"\t", b"  ", b'"')
    for module in (b"", b"torch.", b"th.", b"amp.", b"torch.amp.", b"cuda.amp.", b"torch.cuda.amp.", b"torch.cpu.amp.")
)
#: the class itself where an object belongs, followed by what ends a decorator or an item of a `with`
_CLASS_NAMED = (
    b"autocast:",
    b"autocast,",
    b"autocast as ",
    b"autocast\n",
    b"autocast\r",
    b"autocast\\n",
    b"autocast  #",
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
    needles = ((b"autocast",), (*_BARE_CALLS, *_CLASS_NAMED))
    confirmed_by = "raise"

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        yield from ()
