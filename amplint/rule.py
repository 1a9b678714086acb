"""What a rule is: a page (its docstring), a few data, and a predicate over what was analysed.

A rule knows traces and syntax nodes. It knows nothing of files on disk, output, suppression or
configuration. To write one, copy the neighbour that is nearest and change the predicate.
"""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from amplint.finding import Confidence, Safety, Severity

if TYPE_CHECKING:
    import libcst as cst

    from amplint.analysis import Unit
    from amplint.source import SourceModule

#: bytes that a file holds, or a pattern for them where bytes would be found in too many other words
Needle = bytes | re.Pattern[bytes]
#: a conjunction of alternatives: every group must have one member in the file's bytes
Needles = tuple[tuple[Needle, ...], ...]
Confirmation = Literal["raise", "grad", "state", "own", "–"]

#: what a step says of the place in a helper that does the harm, where the fault is at the call that asks for it
READ_IN_HELPER = "read here"
#: how a step of a fault says that it is a call on the way there
CALLED = "called here"
HOOKED_IN_HELPER = "the hook is registered here"

DOCS_URL = "https://amplint.readthedocs.io/rules/"


@dataclass(frozen=True, slots=True)
class Site:
    """A syntax node in a module: a place whose line numbers nobody has needed yet."""

    module: SourceModule
    node: cst.CSTNode

    @property
    def identity(self) -> tuple[str, int]:
        return (self.module.path, id(self.node))


@dataclass(frozen=True, slots=True)
class Change:
    """One edit, in terms of syntax nodes; `amplint.fix` turns it into text.

    kind:
      insert-before / insert-after   put `text` as a statement (or several lines) of its own beside the
                                     statement that holds `site`, at its indentation
      replace                        put `text` in place of the node
      delete                         remove the statement that holds `site` (a `pass` stays if it was alone)
      dedent                         move the statement that holds `site`, the last of its block, out of the block
      import                         make sure that the module imports `text` ("torch.amp:GradScaler", "torch")
      unimport                       drop the import of the name that `site` is, if nothing else uses it
    """

    kind: Literal["insert-before", "insert-after", "replace", "delete", "dedent", "import", "unimport"]
    site: Site
    text: str = ""


@dataclass(frozen=True, slots=True)
class FixPlan:
    """A repair: all changes are applied, or none."""

    safety: Safety
    title: str
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """What a rule yields: the wrong operation, and the chain of operations that makes it wrong."""

    site: Site
    message: str
    steps: tuple[tuple[Site, str], ...] = ()
    assumptions: tuple[str, ...] = ()
    confidence: Confidence = Confidence.HIGH
    fix: FixPlan | None = None


class Rule(ABC):
    """Base of all rules. The docstring of a subclass is the rule's page (see tests/test_conventions.py).

    Class data:
      code, name      the contract with users ("AMP201", "clip-before-unscale")
      severity        an info rule is shown only on request
      needles         what a file must hold for this rule to have anything to say there
      near            halves of them: a file that holds one is looked at where the files that it imports hold the rest
      beyond          what it and they must hold instead, where the rest is an operator that may stand imports away
      fix             the safety of the repair it offers, None where there is none
      confirmed_by    how the verifier shows the fault: torch raises, gradients differ from the run
                      without AMP, an observed state is wrong, a comparison of its own, or not at all
      since           amplint version that introduced the rule
      torch           half-open range of torch versions in which the fault exists, e.g. ("2.4", None)
      yields_to       codes of more specific rules that speak instead where both fit the same fault
      uncovers        codes of rules whose faults show only once this one is repaired; its fix is applied all the same
    """

    code: ClassVar[str]
    name: ClassVar[str]
    severity: ClassVar[Severity]
    needles: ClassVar[Needles]
    near: ClassVar[tuple[Needles, ...]] = ()
    beyond: ClassVar[Needles | None] = None
    fix: ClassVar[Safety | None] = None
    confirmed_by: ClassVar[Confirmation] = "–"
    since: ClassVar[str] = "0.1.0"
    torch: ClassVar[tuple[str | None, str | None]] = (None, None)
    yields_to: ClassVar[tuple[str, ...]] = ()
    uncovers: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""

    @property
    def page(self) -> str:
        """The rule's page in Markdown."""
        return inspect.cleandoc(type(self).__doc__ or "")

    @property
    def summary(self) -> str:
        """One sentence: the first line of "What it does"."""
        return self.page.partition("\n")[0]

    @property
    def url(self) -> str:
        return f"{DOCS_URL}{self.name}/"
