"""A project's own wrappers of AMP calls, which its configuration names: their roles, and what calling them does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amplint.project import ModuleEnv

#: the configuration's lists of dotted names, and the role that each gives
_LISTS = {
    "scaler_factories": "scaler",
    "optimizer_factories": "optimizer",
    "clip_functions": "clip",
    "backward_functions": "backward",
}


def wrappers_of(settings: object) -> dict[str, str]:
    """The role of every function that the settings name, by its dotted name."""
    return {dotted: role for field, role in _LISTS.items() for dotted in getattr(settings, field, ())}


def role_of(function: str, module: ModuleEnv, wrappers: Mapping[str, str]) -> str | None:
    """The role of a function or method of the project, e.g. "Trainer.clip"; None where no list names it.

    A module is known by its path from the project's root, with and without a leading `src`.
    """
    if module.file is None:
        return None
    for dotted in _dotted(module.file, module.project.root):
        role = wrappers.get(f"{dotted}.{function}" if dotted else function)
        if role is not None:
            return role
    return None


def _dotted(file: Path, root: Path) -> tuple[str, ...]:
    try:
        parts = list(file.relative_to(root).with_suffix("").parts)
    except ValueError:
        return ()
    if parts[-1] == "__init__":
        parts.pop()
    spellings = [parts, parts[1:]] if parts[:1] == ["src"] else [parts]
    return tuple(".".join(spelling) for spelling in spellings)
