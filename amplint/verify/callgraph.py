"""The functions and classes of the files at hand, and who calls whom: as far as syntax trees tell."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: a method of one of these names says nothing about the class it belongs to
COMMON = {
    "step",
    "update",
    "train",
    "eval",
    "backward",
    "zero_grad",
    "save",
    "load",
    "state_dict",
    "load_state_dict",
    "forward",
    "get",
    "add",
    "append",
    "clip",
    "run",
    "to",
    "cuda",
    "scale",
    "close",
    "log",
    "reset",
    "items",
}
#: methods of a module that return the module
HANDS_ON = {"to", "cuda", "cpu", "half", "bfloat16", "float", "double", "train", "eval", "requires_grad_"}


@dataclass
class Unit:
    """A function, a method or a module body, with the names it calls."""

    path: str
    qualname: str
    node: Any
    cls: str | None
    plain: set[str] = field(default_factory=set)
    methods: list[tuple[str, str]] = field(default_factory=list)
    types: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str]:
        return (self.path, self.qualname)

    @property
    def name(self) -> str:
        return self.qualname.rsplit(".", 1)[-1]

    def holds(self, line: int) -> bool:
        first = min([self.node.lineno, *(d.lineno for d in getattr(self.node, "decorator_list", []))])
        return bool(first <= line <= (self.node.end_lineno or self.node.lineno))


def words(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).strip("_").lower()


def _constructor(call: ast.Call) -> ast.Call:
    """The first call of a chain such as `Net(8).to(device).train()`, whose result the others hand on."""
    while isinstance(call.func, ast.Attribute) and call.func.attr in HANDS_ON and isinstance(call.func.value, ast.Call):
        call = call.func.value
    return call


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return "?"


def _receiver(node: ast.AST) -> str:
    """What a method is called on; `Class()` for an object that is made there."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return f"{node.func.id}()"
    return dotted(node)


class CallGraph:
    """The functions and classes of the files at hand, and who calls whom."""

    def __init__(self, trees: dict[str, ast.Module]) -> None:
        self.trees = trees
        self.units: dict[tuple[str, str], Unit] = {}
        self.classes: dict[str, tuple[str, ast.ClassDef]] = {}
        self.attribute_types: dict[tuple[str, str], str] = {}
        #: names that stand for the `apply` of an autograd Function, by their last part
        self.applied: dict[str, str] = {}
        for path, tree in trees.items():
            body = ast.Module(body=[], type_ignores=[])
            body.lineno, body.end_lineno = 1, 10**9  # type: ignore[attr-defined]
            body.body = [
                n for n in tree.body if not isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            ]
            self._add(path, "<module>", body, None)
            for node in self.top_level(tree.body):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    self._add(path, node.name, node, None)
                elif isinstance(node, ast.ClassDef):
                    self.classes[node.name] = (path, node)
                    for member in node.body:
                        if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
                            self._add(path, f"{node.name}.{member.name}", member, node.name)
        for unit in self.units.values():
            self._learn_types(unit)

    @staticmethod
    def top_level(body: list[ast.stmt]) -> Iterable[ast.stmt]:
        for node in body:
            if isinstance(node, ast.If | ast.Try):
                yield from CallGraph.top_level([*node.body, *node.orelse, *getattr(node, "finalbody", [])])
            else:
                yield node

    def _add(self, path: str, qualname: str, node: Any, cls: str | None) -> None:
        unit = Unit(path, qualname, node, cls)
        for child in ast.walk(node):
            if isinstance(child, ast.Call):
                # a function that is handed on is taken for one that is called
                unit.plain.update(a.id for a in child.args if isinstance(a, ast.Name))
                unit.plain.update(k.value.id for k in child.keywords if isinstance(k.value, ast.Name))
                if isinstance(child.func, ast.Name):
                    unit.plain.add(child.func.id)
                elif isinstance(child.func, ast.Attribute):
                    unit.methods.append((_receiver(child.func.value), child.func.attr))
            elif isinstance(child, ast.List | ast.Tuple | ast.Set | ast.Dict):
                # so is one in a list or a table
                held = child.values if isinstance(child, ast.Dict) else child.elts
                unit.plain.update(h.id for h in held if isinstance(h, ast.Name))
                unit.methods.extend((dotted(h.value), h.attr) for h in held if isinstance(h, ast.Attribute))
            elif isinstance(child, ast.Attribute) and child.attr == "apply":
                unit.methods.append((dotted(child.value), "apply"))
        self.units[unit.key] = unit

    def _learn_types(self, unit: Unit) -> None:
        for child in ast.walk(unit.node):
            if isinstance(child, ast.Assign) and isinstance(child.value, ast.Attribute) and child.value.attr == "apply":
                cls = dotted(child.value.value).rsplit(".", 1)[-1]
                if cls in self.classes:
                    self.applied.update((dotted(target).rsplit(".", 1)[-1], cls) for target in child.targets)
            if isinstance(child, ast.Assign) and isinstance(child.value, ast.Call):
                made = dotted(_constructor(child.value).func).rsplit(".", 1)[-1]
                if made in self.classes:
                    for target in child.targets:
                        name = dotted(target)
                        unit.types[name] = made
                        if name.startswith("self.") and unit.cls:
                            self.attribute_types[(unit.cls, name)] = made
        arguments = getattr(unit.node, "args", None)
        if arguments is None:
            return
        for arg in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
            typed = self.parameter_type(arg)
            if typed:
                unit.types[arg.arg] = typed

    def parameter_type(self, arg: ast.arg) -> str | None:
        """The project class that an argument must be of: by annotation, or by the name of the class."""
        if arg.annotation is not None:
            name = ast.unparse(arg.annotation).strip("'\"").rsplit(".", 1)[-1]
            if name in self.classes:
                return name
        for cls in self.classes:
            if words(cls) == arg.arg.lower() and len(arg.arg) > 4:
                return cls
        return None

    def callees(self, unit: Unit) -> set[tuple[str, str]]:
        out: set[tuple[str, str]] = set()
        for name in unit.plain:
            typed = unit.types.get(name)
            if typed:
                out |= self._method(typed, "__call__") | self._method(typed, "forward")
            for key in self.units:
                if key[1] == name:
                    out.add(key)
            if name in self.classes:
                out |= self._method(name, "__init__")
            out |= self._directions(self.applied.get(name))
        for receiver, name in unit.methods:
            out |= self._directions(receiver.rsplit(".", 1)[-1] if name == "apply" else self.applied.get(name))
            if receiver in ("self", "super", "?", "cls") and unit.cls:
                out |= self._method(unit.cls, name)
            typed = unit.types.get(receiver) or (self.attribute_types.get((unit.cls, receiver)) if unit.cls else None)
            if receiver.removesuffix("()") in self.classes:
                typed = receiver.removesuffix("()")
            if typed:
                out |= self._method(typed, name)
            elif name not in COMMON:
                for cls in self.classes:
                    out |= self._method(cls, name, bases=False)
            if f"{receiver}.{name}" in unit.types:
                out |= self._method(unit.types[f"{receiver}.{name}"], "__call__")
            typed_attr = self.attribute_types.get((unit.cls, f"{receiver}.{name}")) if unit.cls else None
            if typed_attr:
                out |= self._method(typed_attr, "__call__")
            for key in self.units:
                if key[1] == name and Path(key[0]).stem == receiver.rsplit(".", 1)[-1]:
                    out.add(key)
        out.discard(unit.key)
        return out

    def _directions(self, cls: str | None) -> set[tuple[str, str]]:
        """What applying an autograd Function runs."""
        return self._method(cls, "forward") | self._method(cls, "backward") if cls in self.classes else set()

    def _method(self, cls: str, name: str, bases: bool = True, below: tuple[str, ...] = ()) -> set[tuple[str, str]]:
        if cls not in self.classes:
            return set()
        path, node = self.classes[cls]
        if (path, f"{cls}.{name}") in self.units:
            return {(path, f"{cls}.{name}")}
        out: set[tuple[str, str]] = set()
        for base in node.bases if bases else ():
            above = dotted(base).rsplit(".", 1)[-1]
            # a class may extend one of the same name in another module
            if above not in (cls, *below):
                out |= self._method(above, name, below=(*below, cls))
        return out

    def subclasses(self, cls: str) -> list[str]:
        """The classes that extend one directly, in the order of the files."""
        return [
            name
            for name, (_, node) in self.classes.items()
            if name != cls and any(dotted(base).rsplit(".", 1)[-1] == cls for base in node.bases)
        ]

    def callers(self) -> dict[tuple[str, str], set[tuple[str, str]]]:
        out: dict[tuple[str, str], set[tuple[str, str]]] = {key: set() for key in self.units}
        for unit in self.units.values():
            for key in self.callees(unit):
                out[key].add(unit.key)
        return out
