"""Make a program that shows a disagreement as small as it can be while it still does."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .tree import Program, Suite, copied, places


def shrunk(program: Program, still: Callable[[Program], bool], budget: int = 150) -> Program:
    """The smallest program found by leaving out nodes, and compound statements around their blocks."""
    current = program
    progress = True
    while progress and budget > 0:
        progress = False
        for candidate in _smaller(current):
            budget -= 1
            if still(candidate):
                current, progress = candidate, True
                break
            if budget <= 0:
                break
    return current


def _smaller(program: Program) -> Iterator[Program]:
    count = sum(1 for _ in places(program.body))
    for number in range(count):
        for keep in (False, True):
            body = copied(program.body)
            block, index = list(places(body))[number]
            node = block[index]
            if not keep:
                del block[index]
            elif isinstance(node, Suite) and not node.parts[0][0].startswith(("def ", "class ", "for ")):
                block[index : index + 1] = node.parts[0][1]
            else:
                continue
            yield Program(body, program.flags, program.drive, program.window, program.note)
