"""A program as a tree of lines: the form in which programs are written, mutated and shrunk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

Node: TypeAlias = "Line | Suite"
Block: TypeAlias = "list[Node]"


@dataclass(eq=False)
class Line:
    """A statement on one line."""

    text: str


@dataclass(eq=False)
class Suite:
    """A compound statement: its heads ("for x in y:", or "if a:" and "else:") with the block below each."""

    parts: list[tuple[str, Block]]


@dataclass
class Program:
    """A source and how to drive it.

    flags   names of the booleans that the driver sets; every combination of them is executed
    drive   statements that the driver executes after the module, with `loader` and the flags as names
    """

    body: Block
    flags: tuple[str, ...] = ()
    drive: str = ""
    #: length of an accumulation window, 0 where there is none
    window: int = 0
    note: list[str] = field(default_factory=list)

    @property
    def windowed(self) -> bool:
        return self.window > 0

    @property
    def batches(self) -> int:
        """How many batches show all that the program does: two windows and more, or some rounds."""
        return max(6, 2 * self.window) if self.window else 3

    @property
    def source(self) -> str:
        return "".join(f"{line}\n" for line in render(self.body))


def suite(head: str, *body: Node | list[Node]) -> Suite:
    """A compound statement with one head."""
    return Suite([(head, flat(*body))])


def fork(test: str, then: Block, otherwise: Block) -> Suite:
    """An `if` with an `else`."""
    return Suite([(f"if {test}:", then), ("else:", otherwise)])


def flat(*nodes: Node | list[Node] | str) -> Block:
    """A block of nodes, blocks and plain texts."""
    out: Block = []
    for node in nodes:
        if isinstance(node, str):
            out.append(Line(node))
        elif isinstance(node, list):
            out.extend(node)
        else:
            out.append(node)
    return out


def render(body: Block, depth: int = 0) -> Iterator[str]:
    """The lines of a block; an empty one is `pass`."""
    indent = "    " * depth
    if not body and depth:
        yield f"{indent}pass"
    for node in body:
        if isinstance(node, Line):
            yield f"{indent}{node.text}".rstrip()
        else:
            for head, block in node.parts:
                yield f"{indent}{head}"
                yield from render(block, depth + 1)


def copied(body: Block) -> Block:
    """A deep copy of a block."""
    return [
        Line(node.text) if isinstance(node, Line) else Suite([(head, copied(block)) for head, block in node.parts])
        for node in body
    ]


def blocks(body: Block) -> Iterator[Block]:
    """A block and all blocks in it."""
    yield body
    for node in body:
        if isinstance(node, Suite):
            for _, block in node.parts:
                yield from blocks(block)


def places(body: Block) -> Iterator[tuple[Block, int]]:
    """Every node of a tree as (its block, its index there)."""
    for block in blocks(body):
        for index in range(len(block)):
            yield block, index
