"""The surroundings of a replay: which library names exist, and what operations on stand-ins do.

A name that is not in the tables of these classes is `Unknown`; an attribute of a real object that is not in
them is not reachable. Decisions that an `Unknown` forces are taken here, and written down. The layers, from
the ground up: `surroundings`, `operations`, `members`, `torchlib`, `pylib`.
"""

from __future__ import annotations

from amplint.verify.pylib import PythonLibrary


class TorchWorld(PythonLibrary):
    """Carries out what the interpreter meets, on stand-ins of torch."""
