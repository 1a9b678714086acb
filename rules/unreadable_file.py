"""AMP902: a file that cannot be read, decoded or parsed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Severity
from amplint.rule import Fault, Rule

if TYPE_CHECKING:
    from amplint.analysis import Unit


class UnreadableFile(Rule):
    """A file cannot be read, decoded or parsed, so nothing can be said about it.

    ## What it does
    Reports a file that was named on the command line, or that holds the words some rule looks for, and that is not
    Python: its bytes are not in the encoding it declares, its syntax is broken or nested too deeply, a notebook's JSON
    is damaged. A file or folder that the system does not let amplint read is reported as well. The run goes on with
    the other files.

    ## Why is this bad
    Silence about a file means that it was looked at. Of this one nobody knows whether its gradients are right.

    ## Example
    ```python
    for batch in loader
        loss = step(batch)
    ```

    ## Use instead
    ```python
    import torch

    weight = torch.ones(2, requires_grad=True)
    loader = [torch.ones(2), torch.zeros(2)]

    for batch in loader:
        loss = (weight * batch).sum()
        loss.backward()
    ```

    ## Known limits
    A file in a folder that holds none of the words that the rules look for is not parsed, and thus not reported.
    Templates and Python 2 code that are meant to stay as they are belong under `extend-exclude` in the configuration.
    Lines of IPython's own in notebooks (`%timeit`, `!pip`) are no fault.

    ## Fix safety
    No fix is offered.

    ## How it is confirmed
    Not by running anything: there is no program to run.

    ## References
    - https://docs.python.org/3/reference/lexical_analysis.html#encoding-declarations
    """

    code = "AMP902"
    name = "unreadable-file"
    severity = Severity.ERROR
    needles = ()

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield nothing: a file that reaches a rule has been read."""
        yield from ()
