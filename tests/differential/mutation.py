"""Break a program the way people do: move, drop, double, exchange or guard a statement of the protocol."""

from __future__ import annotations

import random
import re

from .tree import Block, Line, Node, Program, Suite, blocks, copied, places

_PROTOCOL = re.compile(r"\.backward\(|\.unscale_\(|clip_grad_|\.step\(|\.update\(|zero_grad\(|\.scale\(")
_GUARD = re.compile(r"^if ")


def mutated(program: Program, rng: random.Random, times: int) -> Program:
    """The program after some mutations; they are noted in it."""
    found = Program(copied(program.body), program.flags, program.drive, program.window)
    for _ in range(times):
        for _ in range(10):
            mutation = rng.choice(_MUTATIONS)
            note = mutation(found, rng)
            if note:
                found.note.append(note)
                break
    return found


def protocol(body: Block) -> list[tuple[Block, int]]:
    """The places of the statements that a mutation may take."""
    return [(block, i) for block, i in places(body) if _is_protocol(block[i])]


def _is_protocol(node: Node) -> bool:
    return isinstance(node, Line) and bool(_PROTOCOL.search(node.text))


def _text(node: Node) -> str:
    return node.text if isinstance(node, Line) else node.parts[0][0]


def _one(program: Program, rng: random.Random) -> tuple[Block, int] | None:
    found = protocol(program.body)
    return rng.choice(found) if found else None


def drop(program: Program, rng: random.Random) -> str:
    """Leave a statement out."""
    place = _one(program, rng)
    if place is None:
        return ""
    block, i = place
    return f"drop {_text(block.pop(i))}"


def double(program: Program, rng: random.Random) -> str:
    """Write a statement twice, the second time at once or somewhere else."""
    place = _one(program, rng)
    if place is None:
        return ""
    block, i = place
    line = Line(_text(block[i]))
    if ".backward" in line.text and "scale" in line.text:
        return ""
    target, at = rng.choice([(block, i + 1), _near(program, block, i, rng)])
    target.insert(at, line)
    return f"double {line.text}"


def move(program: Program, rng: random.Random) -> str:
    """Put a statement somewhere near."""
    place = _one(program, rng)
    if place is None:
        return ""
    block, i = place
    target, at = _near(program, block, i, rng)
    node = block.pop(i)
    if target is block and at > i:
        at -= 1
    target.insert(at, node)
    return f"move {_text(node)}"


def exchange(program: Program, rng: random.Random) -> str:
    """Exchange two neighbours."""
    found = [(block, i) for block, i in protocol(program.body) if i + 1 < len(block)]
    if not found:
        return ""
    block, i = rng.choice(found)
    block[i], block[i + 1] = block[i + 1], block[i]
    return f"exchange {_text(block[i + 1])} with {_text(block[i])}"


def guard(program: Program, rng: random.Random) -> str:
    """Put a statement under a condition that occurs in the program."""
    place = _one(program, rng)
    heads = [h for block in blocks(program.body) for n in block if isinstance(n, Suite) for h, _ in n.parts]
    conditions = [h for h in heads if _GUARD.match(h) and "isfinite" not in h]
    if place is None or not conditions:
        return ""
    block, i = place
    condition = rng.choice(conditions)
    block[i] = Suite([(condition, [block[i]])])
    return f"guard {condition}"


def release(program: Program, rng: random.Random) -> str:
    """Take a statement out of the compound statement around it, to before or behind that."""
    found = [
        (block, i, inner, j)
        for block in blocks(program.body)
        for i, node in enumerate(block)
        if isinstance(node, Suite) and not node.parts[0][0].startswith(("def ", "class ", "for "))
        for _, inner in node.parts
        for j in range(len(inner))
        if _is_protocol(inner[j])
    ]
    if not found:
        return ""
    block, i, inner, j = rng.choice(found)
    node = inner.pop(j)
    block.insert(i + rng.choice((0, 1)), node)
    return f"release {_text(node)}"


def indent(program: Program, rng: random.Random) -> str:
    """Pull the statement behind a `with`, or the next ones too, into it."""
    found = [
        (block, i)
        for block in blocks(program.body)
        for i, node in enumerate(block)
        if isinstance(node, Suite) and node.parts[0][0].startswith("with ") and i + 1 < len(block)
    ]
    if not found:
        return ""
    block, i = rng.choice(found)
    node = block[i]
    assert isinstance(node, Suite)
    count = rng.choice((1, 1, 2, len(block)))
    taken = block[i + 1 : i + 1 + count]
    del block[i + 1 : i + 1 + count]
    node.parts[-1][1].extend(taken)
    return f"indent {len(taken)}"


def surround(program: Program, rng: random.Random) -> str:
    """Enter autocast around the whole loop."""
    found = [
        (block, i)
        for block in blocks(program.body)
        for i, node in enumerate(block)
        if isinstance(node, Suite) and node.parts[0][0].startswith("for ")
    ]
    if not found:
        return ""
    block, i = rng.choice(found)
    block[i] = Suite([('with torch.autocast("cuda"):', [block[i]])])
    return "surround"


def bypass(program: Program, rng: random.Random) -> str:
    """Call the optimizer instead of the scaler, or backward without the scale."""
    found = []
    for block, i in protocol(program.body):
        text = _text(block[i])
        step = re.fullmatch(r"([\w.]*scaler\w*)\.step\(([\w.]+)\)", text)
        scaled = re.fullmatch(r"([\w.]*scaler\w*)\.scale\((\w+)\)\.backward\(\)", text)
        if step:
            found.append((block, i, f"{step[2]}.step()"))
        if scaled:
            found.append((block, i, f"{scaled[2]}.backward()"))
    if not found:
        return ""
    block, i, text = rng.choice(found)
    note = f"bypass {_text(block[i])}"
    block[i] = Line(text)
    return note


def rename(program: Program, rng: random.Random) -> str:
    """Name another optimizer or another scaler."""
    names = sorted(set(re.findall(r"(?:self\.)?\w*(?:opt|scaler)\w*(?= = torch)", program.source)))
    found = []
    for block, i in protocol(program.body):
        text = _text(block[i])
        for mine in names:
            for other in names:
                same = ("scaler" in mine) == ("scaler" in other)
                if mine != other and same and re.search(rf"(?<![\w.]){re.escape(mine)}\b", text):
                    found.append((block, i, re.sub(rf"(?<![\w.]){re.escape(mine)}\b", other, text)))
    if not found:
        return ""
    block, i, text = rng.choice(found)
    note = f"rename {_text(block[i])} to {text}"
    block[i] = Line(text)
    return note


def jump(program: Program, rng: random.Random) -> str:
    """Leave the iteration early when a measured value is bad."""
    found = [
        (block, i)
        for block in blocks(program.body)
        for i, node in enumerate(block)
        if isinstance(node, Line) and ("backward" in node.text or "unscale_" in node.text or "clip_grad" in node.text)
    ]
    loss = re.search(r"\b(loss\w*) = ", program.source)
    if not found or loss is None or "continue" in program.source:
        return ""
    block, i = rng.choice(found)
    how = rng.choice(("continue", "break", "return")) if "def " in program.source else "continue"
    block.insert(i + 1, Suite([(f"if torch.isnan({loss[1]}):", [Line(how)])]))
    return f"jump {how}"


def _near(program: Program, block: Block, i: int, rng: random.Random) -> tuple[Block, int]:
    """A place in the same block, in a block beside, or in the block around."""
    choices: list[tuple[Block, int]] = []
    for distance in (-3, -2, -1, 2, 3, 4):
        if 0 <= i + distance <= len(block):
            choices.append((block, i + distance))
    for k in (i - 2, i - 1, i + 1, i + 2):
        if 0 <= k < len(block) and isinstance(block[k], Suite):
            node = block[k]
            assert isinstance(node, Suite)
            for _, inner in node.parts:
                choices += [(inner, 0), (inner, len(inner))]
    for outer in blocks(program.body):
        for k, node in enumerate(outer):
            if isinstance(node, Suite) and any(inner is block for _, inner in node.parts):
                if not node.parts[0][0].startswith(("def ", "class ")):
                    choices += [(outer, k), (outer, k + 1)]
    return rng.choice(choices) if choices else (block, i)


_MUTATIONS = (
    *(drop, drop, double, move, move, move, exchange, guard),
    *(release, release, indent, surround, bypass, rename, jump),
)
