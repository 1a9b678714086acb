"""`--show-settings`: what governs the files under some paths, after all configuration files and options."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from amplint.config import KEYS, Configuration, Settings
from amplint.files import display_path
from amplint.target import target_of


def described(paths: Sequence[Path], configuration: Configuration) -> str:
    """The settings in TOML, each once, under the paths that they govern. Raises ConfigError.

    What is printed can be used as an amplint.toml: `select` lists every rule that would be heard.
    """
    base = Path.cwd()
    governed: dict[tuple[Settings, str], list[str]] = {}
    for given in paths:
        path = Path(os.path.abspath(base / given))
        folder = path if os.path.isdir(path) else path.parent
        settings = configuration.for_folder(folder)
        governed.setdefault((settings, target_of(folder, settings.torch)), []).append(display_path(path, base))
    return "\n".join(_section(*key, names) for key, names in governed.items())


def _section(settings: Settings, target: str, names: Iterable[str]) -> str:
    source = "no configuration file" if settings.source is None else str(settings.source)
    lines = [f"# {', '.join(names)}: from {source}"]
    for key in KEYS:
        value = _value(key, settings, target)
        if value is not None:
            lines.append(f"{key} = {value}")
    if settings.min_severity is None:
        lines.append("# min-severity is not set: warnings and errors are shown, and rules that are selected by name")
    if settings.torch is None:
        lines.append("# torch is not set: it follows from what the project depends on, else it is the newest known")
    return "\n".join([*lines, ""])


def _value(key: str, settings: Settings, target: str) -> str | None:
    """A key's value in TOML; None for what is not set or is part of another key's value."""
    if key == "select":
        return _toml([rule.code for rule in settings.enabled_rules()])
    if key in ("extend-select", "ignore"):
        return None
    if key == "torch":
        return _toml(target)
    value = getattr(settings, key.replace("-", "_"))
    if key == "per-file-ignores":
        tables = ", ".join(f"{_toml(pattern)} = {_toml(list(codes))}" for pattern, codes in value)
        return f"{{ {tables} }}" if tables else "{}"
    if value is None:
        return None
    return _toml(list(value) if isinstance(value, tuple) else str(value))


def _toml(value: str | list[str]) -> str:
    """Strings and lists of strings look the same in JSON and in TOML, but for DEL and halves of surrogate pairs."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
