"""Traces of small programs, written as short lines, for tests of the analysis."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

from amplint.analysis import Unit, prepare
from amplint.project import Project
from amplint.source import SourceModule
from amplint.states import Event
from amplint.traces import Trace

#: a model, its optimizer and a scaler, for programs that do not care where they come from
HEAD = """\
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
model = nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
"""
#: what is told of a trace unless a test asks for something else
PROTOCOL = ("backward", "unscale_", "clip", "step", "update", "zero_grad", "opt_step")


class Laboratory:
    """A folder in which programs are analysed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, **files: str) -> None:
        """Write modules: a double underscore in a name is a folder's slash, `package__init` an `__init__.py`."""
        for name, text in files.items():
            parts = name.split("__")
            path = self.folder.joinpath(*parts[:-1], "__init__.py" if parts[-1] == "init" else f"{parts[-1]}.py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dedent(text))

    def unit(self, source: str, name: str = "train.py") -> Unit:
        """The analysed program; the folder is its project."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(source))
        return prepare(SourceModule.from_path(path), Project(self.folder.resolve()), "2.9")

    def traces_of(self, source: str, name: str = "train.py") -> list[Trace]:
        """All traces of a program that hold an event."""
        return [trace for trace in self.unit(source, name).traces if trace.events]

    def told(self, source: str, *kinds: str, head: str = HEAD) -> list[list[str]]:
        """The different stories of a program that stands below a head; its lines are counted without that.

        A path that has become like another one is left where they met; only those that reach the end are told.
        """
        traces = [trace for trace in self.traces_of(head + dedent(source)) if not trace.truncated]
        stories = [story(trace, *kinds, above=head.count("\n")) for trace in traces]
        return [list(s) for s in dict.fromkeys(map(tuple, stories)) if s]

    def only(self, source: str, *kinds: str, head: str = HEAD) -> list[str]:
        """The story of a program that has but one."""
        (one,) = self.told(source, *kinds, head=head)
        return one


def story(trace: Trace, *kinds: str, above: int = 0) -> list[str]:
    """A trace as "kind line state" lines; the lines of other modules carry the module's name."""
    return [line(event, above) for event in trace.events if event.kind in (kinds or PROTOCOL)]


def line(event: Event, above: int = 0) -> str:
    """An event as "kind line state"."""
    source = event.site.module
    name = Path(source.path).stem
    number = source.place(event.site.node).line
    place = f"{name}:{number}" if name != "train" else str(number - above)
    return f"{event.kind} {place} {states(event)}".rstrip()


def states(event: Event) -> str:
    """The gradient states that an event met: "S" with "!" for an update in between and "~" for perhaps.

    Of an event that concerns one optimizer it is the state of that one, else those of all that were seen, in
    the order in which they were; "?" alone where none was.
    """
    known = sorted((o for o in event.before if o is not None), key=lambda optimizer: optimizer.uid)
    met = [event.before[optimizer] for optimizer in known] or [*event.before.values()]
    if event.optimizer is not None:
        met = [event.state]
    return "".join(g.kind + "!" * (g.stale is not None) + "~" * g.maybe for g in met)


def regions(event: Event) -> list[str]:
    """The kinds of the regions that an event is in, outermost first."""
    return [region.context.kind for region in event.regions]
