"""Uses of the names that torch 2.4 deprecated, and how to write them today.

A name is followed through its import: every use of one import is rewritten together with it, or none is, because a
call that is left behind would mean something else under the new import (`GradScaler(1024.0)`).

Source: torch/cuda/amp/autocast_mode.py, torch/cuda/amp/grad_scaler.py, torch/cpu/amp/, torch/__init__.py (2.4).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import libcst as cst
from libcst.metadata import BuiltinAssignment, ImportAssignment, MetadataWrapper, Scope, ScopeProvider

from amplint.layout import text_before
from amplint.rule import Change, FixPlan, Site
from amplint.source import deep_recursion
from amplint.torch_facts import DEPRECATED_NAMES, parameters_of

if TYPE_CHECKING:
    from libcst.metadata.scope_provider import BaseAssignment

    from amplint.source import SourceModule

_OLD_CLASS = re.compile(
    r"torch\.(cuda|cpu)\.amp\.(?:autocast_mode\.|grad_scaler\.)?(autocast|GradScaler|custom_fwd|custom_bwd)$"
)
_OLD_STATE = re.compile(r"torch\.(is|get|set)_autocast_(cpu|gpu|xla|ipu|hpu|xpu)_(enabled|dtype)$")
_NEW = re.compile(r"torch\.(amp\.)?(?:autocast_mode\.|grad_scaler\.)?(autocast|GradScaler|custom_fwd|custom_bwd)$")
#: the parameters of the old classes, in order; all of them are keywords of the new ones
_PARAMETERS = {
    name: parameters_of(f"torch.cuda.amp.{name}", DEPRECATED_NAMES.low or "") for name in ("autocast", "GradScaler")
}
_DECORATORS = ("custom_fwd", "custom_bwd")


@dataclass(frozen=True, slots=True)
class Replacement:
    """The name of today, under `torch.` and `prefix`, and the device type that it is told."""

    prefix: str
    name: str
    device: str


@dataclass(eq=False, slots=True)
class Binding:
    """One import through which old names are used; `old` are the uses, `others` what else it is used for."""

    statement: cst.Import | cst.ImportFrom
    alias: cst.ImportAlias
    #: what the import binds, by its full name
    dotted: str
    #: it stands in a `try`, or the name is bound elsewhere as well
    shared: bool
    old: list[Use] = field(default_factory=list)
    others: int = 0
    #: the bindings of the same statement, this one included
    siblings: list[Binding] = field(default_factory=list)
    #: the name `torch` stands for something else where this import is used
    torch_is_taken: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class Use:
    """An old name where it is used: the whole chain `torch.cuda.amp.autocast`, or the imported name."""

    node: cst.BaseExpression
    dotted: str
    replacement: Replacement
    binding: Binding


def replacement_of(dotted: str) -> Replacement | None:
    """What replaces a name, None where the name is not deprecated.

    >>> replacement_of("torch.cuda.amp.GradScaler")
    Replacement(prefix='amp.', name='GradScaler', device='cuda')
    >>> replacement_of("torch.set_autocast_gpu_dtype").name
    'set_autocast_dtype'
    """
    found = _OLD_CLASS.match(dotted)
    if found:
        return Replacement("amp.", found[2], found[1])
    state = _OLD_STATE.match(dotted)
    if state:
        return Replacement("", f"{state[1]}_autocast_{state[3]}", "cuda" if state[2] == "gpu" else state[2])
    return None


def uses(module: SourceModule) -> list[Use]:
    """The uses of old names in a module, in source order; a name with a new one beside it is a fallback."""
    with deep_recursion():
        scopes = set(MetadataWrapper(module.tree, unsafe_skip_copy=True).resolve(ScopeProvider).values())
    found: dict[cst.CSTNode, Use] = {}
    siblings: dict[cst.CSTNode, list[Binding]] = {}
    taken = any(
        not _stands_for_torch(other) for scope in scopes if scope is not None for other in _local(scope, "torch")
    )
    for scope in scopes:
        if scope is None:
            continue
        for assignment in scope.assignments:
            if isinstance(assignment, ImportAssignment) and _may_be_old(assignment):
                binding = _binding(module, scope, assignment)
                if binding is None:
                    continue
                binding.torch_is_taken = taken
                binding.siblings = siblings.setdefault(binding.statement, [])
                binding.siblings.append(binding)
                for use in binding.old:
                    found.setdefault(use.node, use)
    places = {use.node: module.place(use.node) for use in found.values()}
    return sorted(found.values(), key=lambda use: (places[use.node].cell or 0, places[use.node]))


def _may_be_old(assignment: ImportAssignment) -> bool:
    return any(name.startswith("torch") for name in _imported(assignment))


def _imported(assignment: ImportAssignment) -> Iterator[str]:
    for name in assignment.get_qualified_names_for(assignment.name):
        yield name.name


def _local(scope: Scope, name: str) -> Iterator[BaseAssignment]:
    """What binds a name in a scope itself."""
    for assignment in scope.assignments:
        if assignment.name.partition(".")[0] == name:
            yield assignment


def _stands_for_torch(assignment: BaseAssignment) -> bool:
    return _bound_by(assignment) == "torch"


def _bound_by(assignment: BaseAssignment) -> str | None:
    """The full name of what an import binds, None for other bindings."""
    if isinstance(assignment, ImportAssignment) and isinstance(assignment.node, (cst.Import, cst.ImportFrom)):
        alias = _alias(assignment)
        return _bound_name(assignment.node, alias) if alias is not None else None
    return None


def _binding(module: SourceModule, scope: Scope, assignment: ImportAssignment) -> Binding | None:
    """An import and its uses, as far as they matter; None where it is one of two ways to get a name."""
    statement = assignment.node
    alias = _alias(assignment)
    if alias is None or not isinstance(statement, (cst.Import, cst.ImportFrom)):
        return None
    root = _bound_name(statement, alias)
    rivals = _rivals(scope, assignment, root)
    binding = Binding(statement, alias, root, bool(rivals) or _conditional(module, statement))
    if any(_is_new(rival) for rival in rivals) or (rivals and _is_fallback(module, statement)):
        return None
    for access in assignment.references:
        node, dotted = _chain(module, access.node, root)
        if node is alias.name or (alias.asname is not None and node is alias.asname.name):
            continue
        new = replacement_of(dotted)
        if new is None:
            binding.others += 1
        elif not _is_gated(module, node) and not any(use.node is node for use in binding.old):
            binding.old.append(Use(node, dotted, new, binding))
    return binding


def _is_gated(module: SourceModule, node: cst.CSTNode) -> bool:
    """Whether a use is the branch for an old torch: it depends on a version, or on what torch has."""
    at, parent = node, module.parent(node)
    while parent is not None:
        if isinstance(parent, cst.ExceptHandler):
            return True
        if isinstance(parent, (cst.If, cst.IfExp)) and at is not parent.test and _asks_what_torch_has(module, parent):
            return True
        if isinstance(parent, cst.BooleanOperation) and at is parent.right and "getattr" in module.segment(parent.left):
            return True
        if isinstance(parent, cst.IndentedBlock) and _is_left_to_old(module, parent, at):
            return True
        at, parent = parent, module.parent(parent)
    return False


def _is_left_to_old(module: SourceModule, block: cst.IndentedBlock, statement: cst.CSTNode) -> bool:
    """Whether a new torch has left a block before a statement: `if TORCH >= (2, 4): return ...`."""
    for earlier in block.body[: [*block.body].index(statement)] if statement in block.body else ():  # type: ignore[arg-type]
        if isinstance(earlier, cst.If) and earlier.orelse is None and _asks_what_torch_has(module, earlier):
            last = earlier.body.body[-1]
            if isinstance(last, cst.SimpleStatementLine) and isinstance(last.body[-1], (cst.Return, cst.Raise)):
                return True
    return False


def _is_fallback(module: SourceModule, statement: cst.CSTNode) -> bool:
    """Whether an import stands where the new module was tried before, or was asked for."""
    at, parent = statement, module.parent(statement)
    while parent is not None and not isinstance(parent, (cst.FunctionDef, cst.ClassDef)):
        if isinstance(parent, (cst.Try, cst.TryStar)) and at is not parent.body:
            return re.search(r"torch\.amp\b|torch import amp\b", module.rough_text(parent.body)) is not None
        if isinstance(parent, cst.If) and at is not parent.test and _asks_what_torch_has(module, parent):
            return True
        at, parent = parent, module.parent(parent)
    return False


def _alias(assignment: ImportAssignment) -> cst.ImportAlias | None:
    statement = assignment.node
    if isinstance(statement, (cst.Import, cst.ImportFrom)) and not isinstance(statement.names, cst.ImportStar):
        for alias in statement.names:
            bound = alias.evaluated_alias or alias.evaluated_name.partition(".")[0]
            if bound == assignment.name.partition(".")[0] or alias.evaluated_name == assignment.name:
                return alias
    return None


def _bound_name(statement: cst.Import | cst.ImportFrom, alias: cst.ImportAlias) -> str:
    """The full name of what an import binds: `torch` for `import torch.cuda.amp`."""
    name = alias.evaluated_name
    if isinstance(statement, cst.ImportFrom):
        package = "" if statement.module is None or statement.relative else _dotted(statement.module)
        return f"{package}.{name}"
    return name if alias.asname is not None else name.partition(".")[0]


def _asks_what_torch_has(module: SourceModule, branch: cst.If | cst.IfExp) -> bool:
    return bool(
        re.search(r"version|hasattr|^torch\w*\s*[<>]|[<>]=?\s*\(\d", module.segment(branch.test), re.IGNORECASE)
    )


def _rivals(scope: Scope, assignment: ImportAssignment, root: str) -> list[BaseAssignment]:
    """Other bindings of the name in its scope; `import torch` and `import torch.nn` bind one thing."""
    found = []
    for other in scope[assignment.name.partition(".")[0]] | scope[assignment.name]:
        if other is assignment or isinstance(other, BuiltinAssignment):
            continue
        if _bound_by(other) != root:
            found.append(other)
    return found


def _is_new(assignment: BaseAssignment) -> bool:
    name = _bound_by(assignment)
    return name is not None and (bool(_NEW.match(name)) or name == "torch.amp")


def _conditional(module: SourceModule, node: cst.CSTNode) -> bool:
    """Whether an import stands in a `try` or a branch, so that what it binds depends on something."""
    at = module.parent(node)
    while at is not None and not isinstance(at, (cst.FunctionDef, cst.ClassDef)):
        if isinstance(at, (cst.Try, cst.If)):
            return True
        at = module.parent(at)
    return False


def _chain(module: SourceModule, node: cst.CSTNode, root: str) -> tuple[cst.BaseExpression, str]:
    """The longest attribute chain that begins at the name of an access, with its full name."""
    at: cst.CSTNode = node
    while isinstance(at, cst.Attribute):
        at = at.value
    dotted = root
    while True:
        parent = module.parent(at)
        if not (isinstance(parent, cst.Attribute) and parent.value is at) or replacement_of(dotted) is not None:
            return at, dotted  # type: ignore[return-value]
        at = parent
        dotted += f".{parent.attr.value}"


def _dotted(node: cst.BaseExpression) -> str:
    if isinstance(node, cst.Attribute):
        return f"{_dotted(node.value)}.{node.attr.value}"
    return node.value if isinstance(node, cst.Name) else ""


# --- repairs -------------------------------------------------------------------------------------


class _Unsafe(Exception):
    """A use or an import that cannot be rewritten with the same meaning."""


def repair(module: SourceModule, use: Use) -> FixPlan | None:
    """The rewrite of a use, together with its import and the import's other uses where that is needed."""
    try:
        if use.binding.dotted in ("torch", "torch.cuda", "torch.cpu"):
            changes = list(_spelled_out(module, use))
        else:
            changes = list(_with_import(module, use.binding))
    except _Unsafe:
        return None
    return FixPlan("safe", f"use torch.{use.replacement.prefix}{use.replacement.name}", tuple(changes))


def _spelled_out(module: SourceModule, use: Use) -> Iterator[Change]:
    """`th.cuda.amp.autocast(...)` says by itself where it comes from."""
    root: cst.BaseExpression = use.node
    while isinstance(root, cst.Attribute):
        root = root.value
    if not isinstance(root, cst.Name) or root is use.node:
        raise _Unsafe
    name = root.value
    if use.binding.dotted != "torch":
        if use.binding.torch_is_taken:
            raise _Unsafe
        name = "torch"
        yield Change("import", Site(module, use.node), "torch")
    yield from _rewritten(module, use, f"{name}.{use.replacement.prefix}{use.replacement.name}")


def _with_import(module: SourceModule, binding: Binding) -> Iterator[Change]:
    """All names that one import statement brings in from the old place, with all of their uses."""
    statement = binding.statement
    movable = [b for b in binding.siblings if _is_movable(module, b)]
    if binding not in movable:
        raise _Unsafe
    if isinstance(statement, cst.Import):
        yield Change("replace", Site(module, binding.alias.name), "torch.amp")
        movable = [binding]
    elif len(movable) == len(statement.names) and statement.module is not None:  # type: ignore[arg-type]
        new = "torch" if movable[0].dotted in ("torch.cuda.amp", "torch.cpu.amp") else "torch.amp"
        yield Change("replace", Site(module, statement.module), new)
    else:
        yield Change("replace", Site(module, statement), _import_text(module, statement, movable))
    for moved in movable:
        for use in moved.old:
            yield from _rewritten(module, use, _local_name(module, use))


def _is_movable(module: SourceModule, binding: Binding) -> bool:
    if binding.shared or not binding.old or binding.others:
        return False
    if binding.dotted not in ("torch.cuda.amp", "torch.cpu.amp") and not _OLD_CLASS.match(binding.dotted):
        return False
    try:
        for use in binding.old:
            list(_rewritten(module, use, ""))
    except _Unsafe:
        return False
    return True


def _import_text(module: SourceModule, statement: cst.ImportFrom, moved: list[Binding]) -> str:
    """The import statement with the moved names taken from the new place, the rest from the old one."""
    if isinstance(statement.names, cst.ImportStar) or statement.module is None or "#" in module.segment(statement):
        raise _Unsafe
    aliases = {binding.alias for binding in moved}
    kept = [_alias_text(a) for a in statement.names if a not in aliases]
    new = "torch" if moved[0].dotted in ("torch.cuda.amp", "torch.cpu.amp") else "torch.amp"
    lines = [f"from {new} import {', '.join(_alias_text(a) for a in statement.names if a in aliases)}"]
    if kept:
        lines.append(f"from {_dotted(statement.module)} import {', '.join(kept)}")
        indent = text_before(Site(module, statement))
        if indent.strip():
            raise _Unsafe
        return f"\n{indent}".join(lines)
    return lines[0]


def _alias_text(alias: cst.ImportAlias) -> str:
    return f"{alias.evaluated_name} as {alias.evaluated_alias}" if alias.evaluated_alias else alias.evaluated_name


def _local_name(module: SourceModule, use: Use) -> str:
    """How a use is written once its import has moved."""
    if isinstance(use.node, cst.Attribute):
        root: cst.BaseExpression = use.node
        while isinstance(root, cst.Attribute):
            root = root.value
        return f"{module.segment(root)}.{use.replacement.name}"
    return module.segment(use.node)


def _rewritten(module: SourceModule, use: Use, name: str) -> Iterator[Change]:
    """The changes that turn a use into one of today, under a given name."""
    parent = module.parent(use.node)
    if isinstance(parent, cst.Call) and parent.func is use.node:
        arguments = list(_arguments(module, use, parent))
        if use.replacement.name in _PARAMETERS and len(arguments) == len(parent.args) + 1 and parent.args:
            # each on its own, so that their lines stay
            device, first, *others = arguments
            yield Change("replace", Site(module, use.node), name)
            for arg, text in zip(parent.args, (f"{device}, {first}", *others), strict=True):
                yield Change("replace", Site(module, arg), text)
        else:
            yield Change("replace", Site(module, parent), f"{name}({', '.join(arguments)})")
    elif isinstance(parent, cst.Decorator) and use.replacement.name in _DECORATORS:
        yield Change("replace", Site(module, use.node), f'{name}(device_type="{use.replacement.device}")')
    elif use.replacement.name not in _DECORATORS and use.replacement.prefix and _is_only_named(module, use.node):
        if isinstance(use.node, cst.Attribute):
            yield Change("replace", Site(module, use.node), name)
    else:
        raise _Unsafe


def _arguments(module: SourceModule, use: Use, call: cst.Call) -> Iterator[str]:
    """The arguments of a call of today: the device type, and every positional argument by its keyword."""
    new = use.replacement
    if any(a.star == "*" for a in call.args) or "#" in module.segment(call):
        raise _Unsafe
    texts = [module.segment(a.value) for a in call.args]
    if new.name in _DECORATORS:
        if sum(a.keyword is None and not a.star for a in call.args) > 1:
            raise _Unsafe
        device = f'device_type="{new.device}"'
        positional = [t for a, t in zip(call.args, texts, strict=True) if a.keyword is None and not a.star]
        yield from positional
        yield device
    elif new.name in _PARAMETERS:
        yield f'"{new.device}"'
        for name, arg, text in zip(_PARAMETERS[new.name], call.args, texts, strict=False):
            if arg.keyword is None and not arg.star:
                if isinstance(arg.value, (cst.SimpleString, cst.FormattedString)):
                    # meant for the new class: what was intended is not what the old one makes of it
                    raise _Unsafe
                yield f"{name}={text}"
        if sum(a.keyword is None and not a.star for a in call.args) > len(_PARAMETERS[new.name]):
            raise _Unsafe
    else:
        yield f'"{new.device}"'
        yield from texts
        return
    for arg, text in zip(call.args, texts, strict=True):
        if arg.star:
            yield f"**{text}"
        elif arg.keyword is not None:
            if arg.keyword.value in ("device", "device_type"):
                raise _Unsafe
            yield f"{arg.keyword.value}={text}"


def _is_only_named(module: SourceModule, node: cst.CSTNode) -> bool:
    """Whether a class is named in an annotation or asked about by `isinstance`: nothing is called."""
    at, parent = node, module.parent(node)
    while parent is not None and not isinstance(parent, (cst.BaseStatement, cst.BaseSmallStatement)):
        if isinstance(parent, cst.Annotation):
            return True
        if isinstance(parent, cst.Call):
            return (
                isinstance(parent.func, cst.Name)
                and parent.func.value in ("isinstance", "issubclass")
                and at is not parent.func
            )
        at, parent = parent, module.parent(parent)
    return False
