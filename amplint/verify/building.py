"""From a finding and the project's text to a replay: which files, which driver, which flags.

A replay keeps the user's text with its line numbers; what is not needed for the flagged statements is
blanked, line by line.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from amplint.verify.callgraph import CallGraph, Unit, dotted
from amplint.verify.replay import GRADIENT_EVENT, Driver, Replay
from amplint.verify.texts import statement_end

#: rules with nothing to execute, and why
STATIC: dict[str, str] = {
    "AMP224": "needs several processes",
    "AMP225": "the framework does the scaling",
    "AMP226": "private members have no promised behaviour",
    "AMP305": "the run without AMP sums the losses as well",
    "AMP601": "a deprecation",
    "AMP901": "a suppression",
    "AMP902": "an unreadable file",
}
#: rules of which one shape has nothing to execute: how its message begins, which tells it from the others, and why
STATIC_SHAPES: dict[str, tuple[str, str]] = {
    "AMP303": ("the loss is divided by", "the run without AMP divides the losses as well"),
}
LARGEST_FILE = 400_000
MOST_FILES = 12


class NoReplay(Exception):
    """The finding cannot be replayed; the text says why."""


def sources_around(path: str, text: str, others: Iterable[str] = ()) -> dict[str, str]:
    """The text of a file and of the project files that it imports, or that import it.

    `others` are files known to take part (the places of a finding's steps). Files beside the flagged one
    are looked at for an import of it.
    """
    out = {path: text}
    folder = Path(path).parent
    for other in others:
        if other not in out:
            _read_into(out, Path(other))
    try:
        neighbours = sorted(folder.glob("*.py"))[:200] if path != "<text>" else []
    except OSError:
        neighbours = []
    stem = Path(path).stem
    for neighbour in neighbours:
        if str(neighbour) in out or neighbour.name == Path(path).name:
            continue
        try:
            if neighbour.stat().st_size > LARGEST_FILE:
                continue
            content = neighbour.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if re.search(
            rf"^\s*(from\s+\.?(\w+\.)*{re.escape(stem)}\s+import|import\s+{re.escape(stem)}\b)", content, re.M
        ):
            out.setdefault(str(neighbour), content)
    for current, content in list(out.items()):
        for name in re.findall(r"^\s*(?:from|import)\s+\.*([\w.]+)", content, re.M):
            parts = [part for part in name.split(".") if part]
            if not parts:
                continue
            relative = Path(*parts)
            here = Path(current).parent
            for root in (here, *list(here.parents)[:4]):
                candidate = root / relative.with_suffix(".py")
                if str(candidate) not in out and current != "<text>" and candidate.is_file():
                    _read_into(out, candidate)
                    break
        if len(out) > MOST_FILES:
            break
    return out


def _read_into(out: dict[str, str], path: Path) -> None:
    try:
        if path.is_file() and path.stat().st_size <= LARGEST_FILE and path.suffix == ".py":
            out[str(path)] = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return


def parse_assumptions(assumptions: Iterable[str]) -> dict[str, bool]:
    """Flag values from sentences such as "use_amp is true" or "scaler is not None is true"."""
    flags: dict[str, bool] = {}
    for sentence in assumptions:
        match = re.fullmatch(r"\s*`?(.+?)`?\s+is\s+(true|false)\s*", sentence, re.I)
        if match is None:
            continue
        _set_flag(flags, match[1].strip(), match[2].lower() == "true")
    return flags


def _set_flag(flags: dict[str, bool], text: str, value: bool) -> None:
    text = text.strip()
    while text.startswith("(") and text.endswith(")"):
        text = text[1:-1].strip()
    if text.startswith("not "):
        _set_flag(flags, text[4:], not value)
        return
    for joint, needed in ((" and ", True), (" or ", False)):
        if joint in text and value is needed:
            for part in text.split(joint):
                _set_flag(flags, part, value)
            return
    if text.endswith(" is not None"):
        flags[text.removesuffix("is not None") + "is None"] = not value
        flags[text.removesuffix(" is not None").rsplit(".", 1)[-1] + " is None"] = not value
        return
    if text.endswith(" is None"):
        flags[text] = value
        flags[text.rsplit(".", 1)[-1]] = value
        return
    flags[text] = value
    if re.fullmatch(r"[\w.]+", text):
        flags[text.rsplit(".", 1)[-1]] = value


def build(
    rule: str,
    path: str,
    first: int,
    last: int,
    sources: dict[str, str],
    steps: Iterable[tuple[str, int]] = (),
    assumptions: Iterable[str] = (),
    helped: Iterable[tuple[str, int]] = (),
) -> Replay:
    """The replay of one finding; `helped` are the places in helpers that do the harm which a flagged call asks for.

    Raises NoReplay where the file does not parse or nothing in it can be driven.
    """
    trees: dict[str, ast.Module] = {}
    for name, text in sources.items():
        try:
            trees[name] = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            if name == path:
                raise NoReplay("the file does not parse") from error
    project = CallGraph(trees)
    wanted = [(p, line) for p, line in steps if p in trees]
    wanted.insert(0, (path, first))
    drivers = _drivers(project, path, first, wanted[1:])
    if not drivers:
        raise NoReplay("nothing in the file leads to the flagged line")
    needed = _needed(project, drivers, path, first)
    files = {name: _blanked(sources[name], trees[name], needed.get(name, set())) for name in trees if name in needed}
    modules = {}
    for name in files:
        parts = Path(name).with_suffix("").parts
        for i in range(len(parts)):
            modules[".".join(parts[i:])] = name
    flagged = [(path, first, last)]
    flagged += [(p, line, statement_end(sources[p], line)) for p, line in helped if p in files]
    return Replay(
        rule=rule,
        files=files,
        modules=modules,
        flagged=flagged,
        wanted=wanted,
        flags=parse_assumptions(assumptions),
        drivers=drivers,
        guards=_guards(trees[path], first),
        texts=[text for p, begin, end in flagged for text in sources[p].splitlines()[begin - 1 : end]],
        watched=list(flagged),
    )


def _drivers(project: CallGraph, path: str, first: int, steps: list[tuple[str, int]]) -> list[Driver]:
    targets = [u for u in project.units.values() if u.path == path and u.qualname != "<module>" and u.holds(first)]
    if not targets:
        holder = next(
            (c for c, (p, n) in project.classes.items() if p == path and n.lineno <= first <= (n.end_lineno or 0)), None
        )
        if holder is not None:
            targets = [u for u in project.units.values() if u.cls == holder]
    callers = project.callers()
    events = _with_events(project)
    if not targets:
        return _module_drivers(project, path, events, callers)
    chains: list[tuple[int, Unit]] = []
    distance: dict[tuple[str, str], int] = {u.key: 0 for u in targets}
    queue = list(targets)
    while queue:
        unit = queue.pop(0)
        chains.append((distance[unit.key], unit))
        for key in sorted(callers[unit.key]):
            if key not in distance and distance[unit.key] < 8:
                distance[key] = distance[unit.key] + 1
                queue.append(project.units[key])
    drivers: list[Driver] = []
    chains = [c for c in chains if not _is_direction(project, c[1])] or chains
    # a network or a loss is called as an object, which no name tells; the finding's steps stand where that happens
    for p, line in steps:
        for unit in project.units.values():
            if unit.path == p and unit.qualname != "<module>" and unit.holds(line) and unit.key not in distance:
                distance[unit.key] = max(distance.values()) + 1
                chains.append((distance[unit.key], unit))
    for _, unit in sorted(chains, key=lambda c: (-c[0], c[1].key)):
        drivers.extend(_driver_of(project, unit, events, callers))
    unique: list[Driver] = []
    for driver in drivers:
        if driver not in unique:
            unique.append(driver)
    return unique[:6]


def _is_direction(project: CallGraph, unit: Unit) -> bool:
    """Whether a unit is a method of an autograd Function: torch calls it, nobody else does."""
    if unit.cls is None:
        return False
    _, node = project.classes[unit.cls]
    return any(dotted(base).rsplit(".", 1)[-1] == "Function" for base in node.bases)


def _module_drivers(
    project: CallGraph, path: str, events: set[tuple[str, str]], callers: dict[tuple[str, str], set[tuple[str, str]]]
) -> list[Driver]:
    """For a fault in a module body: the body if it trains, and the functions that train."""
    out = [Driver("module", path)] if (path, "<module>") in events else []
    roots = [u for u in project.units.values() if u.path == path and u.key in events and u.qualname != "<module>"]
    for unit in sorted(roots, key=lambda u: (len(callers[u.key]), u.node.lineno)):
        out.extend(_driver_of(project, unit, events, callers))
    return (out or [Driver("module", path)])[:6]


def _with_events(project: CallGraph) -> set[tuple[str, str]]:
    """Units that work on scalers or gradients, themselves or through what they call."""
    out = {u.key for u in project.units.values() if GRADIENT_EVENT.search(ast.unparse(u.node))}
    grown = True
    while grown:
        grown = False
        for unit in project.units.values():
            if unit.key not in out and project.callees(unit) & out:
                out.add(unit.key)
                grown = True
    return out


def _driver_of(
    project: CallGraph,
    unit: Unit,
    events: set[tuple[str, str]],
    callers: dict[tuple[str, str], set[tuple[str, str]]],
) -> list[Driver]:
    if unit.qualname == "<module>":
        return [Driver("module", unit.path)]
    if unit.cls is None:
        return [Driver("function", unit.path, unit.name, once=_makes_and_loops(project, unit), loops=_loops(unit.node))]
    driver = _class_driver(project, unit, events, callers)
    below = [replace(driver, path=project.classes[name][0], name=name) for name in project.subclasses(unit.cls)]
    text = ast.unparse(project.classes[unit.cls][1])
    abstract = "NotImplementedError" in text or "abstractmethod" in text
    return [*below, driver] if abstract else [driver, *below]


def _loops(node: ast.AST) -> bool:
    return any(isinstance(n, ast.For | ast.While) for n in ast.walk(node))


def _makes_and_loops(project: CallGraph, unit: Unit) -> bool:
    """Whether a unit makes a scaler and loops itself or in what it calls: one call of it is a whole training."""
    if "GradScaler(" not in ast.unparse(unit.node):
        return False
    seen: set[tuple[str, str]] = set()
    queue = [unit]
    while queue:
        current = queue.pop()
        if current.key in seen:
            continue
        seen.add(current.key)
        if _loops(current.node):
            return True
        queue.extend(project.units[key] for key in project.callees(current))
    return False


def _class_driver(
    project: CallGraph,
    unit: Unit,
    events: set[tuple[str, str]],
    callers: dict[tuple[str, str], set[tuple[str, str]]],
) -> Driver:
    """The methods of a class that nobody in it calls, in the order of the file; saving comes last."""
    assert unit.cls is not None
    members = [u for u in project.units.values() if u.cls == unit.cls]
    own = {u.key for u in members}
    # what outsiders can call
    entries = [m for m in members if m.name != "__init__" and not _is_bound_otherwise(m) and not callers[m.key] & own]
    roots = [
        m
        for m in entries
        if m.key == unit.key or m.key in events or re.search(r"\.state_dict\(|torch\.save", ast.unparse(m.node))
    ]
    if not roots and unit.name == "__init__":
        # what is made there shows in the methods that use it
        roots = [m for m in entries if not m.name.startswith("__")]
    if not roots:
        roots = [unit]
    saving = [
        r
        for r in roots
        if not GRADIENT_EVENT.search(ast.unparse(r.node)) or r.name.startswith(("save", "load", "resume", "restore"))
    ]
    saving = [r for r in saving if r.key not in events or r.name.startswith(("save", "load", "resume", "restore"))]
    training = [r for r in roots if r not in saving]
    if not training and unit.name == "__init__":
        training, saving = saving, []
    if len(training) > 1 and not any(
        ".backward(" in ast.unparse(r.node) and re.search(r"\.step\(", ast.unparse(r.node)) for r in training
    ):
        training.sort(key=lambda r: _order(ast.unparse(r.node)))
    return Driver(
        "class",
        unit.path,
        unit.cls,
        methods=[r.name for r in training] or [unit.name],
        once=any(_makes_and_loops(project, r) for r in training),
        loops=any(_loops(r.node) for r in training),
        tail=[r.name for r in saving if training],
    )


def _is_bound_otherwise(unit: Unit) -> bool:
    """Whether a method is no plain one: a property, or bound to its class or to nothing."""
    kinds = ("property", "staticmethod", "classmethod")
    return any(isinstance(d, ast.Name) and d.id in kinds for d in unit.node.decorator_list)


def _order(text: str) -> int:
    """Where in an iteration a method belongs that its callers elsewhere call: backward, then step, then update."""
    for rank, pattern in enumerate((r"\.backward\(", r"\.unscale_\(|clip_grad", r"\.step\(", r"\.update\(")):
        if re.search(pattern, text):
            return rank
    return 4


def _needed(project: CallGraph, drivers: list[Driver], path: str, line: int) -> dict[str, set[tuple[int, int]]]:
    """Line ranges of the definitions that the drivers reach by name, by file."""
    definitions: dict[str, list[tuple[str, Any]]] = {}
    mentions: dict[int, set[str]] = {}
    for where, tree in project.trees.items():
        for node in project.top_level(tree.body):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                definitions.setdefault(node.name, []).append((where, node))
    queue: list[tuple[str, Any]] = []
    bodies = [project.units[(where, "<module>")].node for where in project.trees]
    for driver in drivers:
        queue.extend(d for d in definitions.get(driver.name, []) if d[0] == driver.path)
    holders = [
        d for ds in definitions.values() for d in ds if d[0] == path and d[1].lineno <= line <= (d[1].end_lineno or 0)
    ]
    queue.extend(holders)
    for body in bodies:
        queue.extend(d for name in _names(body) for d in definitions.get(name, []))
    out: dict[str, set[tuple[int, int]]] = {path: set()}
    for driver in drivers:
        out.setdefault(driver.path, set())
    while queue:
        where, node = queue.pop()
        if id(node) in mentions:
            continue
        mentions[id(node)] = _names(node)
        out.setdefault(where, set()).add((_first_line(node), node.end_lineno or node.lineno))
        queue.extend(d for name in mentions[id(node)] for d in definitions.get(name, []))
    return out


def _names(node: ast.AST) -> set[str]:
    """Identifiers that a definition mentions, attributes included (a module may lie before them)."""
    out: set[str] = set()
    for child in ast.walk(node):
        if isinstance(child, ast.Name):
            out.add(child.id)
        elif isinstance(child, ast.Attribute):
            out.add(child.attr)
    return out


def _first_line(node: Any) -> int:
    return min([int(node.lineno), *(int(d.lineno) for d in getattr(node, "decorator_list", []))])


def _blanked(text: str, tree: ast.Module, needed: set[tuple[int, int]]) -> str:
    """The text without the functions and classes that the replay does not reach; lines stay where they are."""
    lines = text.splitlines()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first, last = _first_line(node), node.end_lineno or node.lineno
            if (first, last) not in needed:
                for i in range(first - 1, last):
                    lines[i] = ""
    return "\n".join(lines) + "\n"


def _guards(tree: ast.Module, line: int) -> list[str]:
    """Names in the conditions around a line: what to try the other way when the line is not reached."""
    out: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and node.lineno <= line <= (node.end_lineno or node.lineno):
            inner = [
                ast.unparse(n)
                for n in ast.walk(node.test)
                if isinstance(n, ast.Name | ast.Attribute) and not ast.unparse(n).startswith("self.scaler")
            ]
            for name in inner:
                short = name.rsplit(".", 1)[-1]
                if short not in out and short not in ("self", "torch", "len", "args", "cfg", "config"):
                    out.append(short)
    return out[:4]
