"""TOML, from the standard library where it has it."""

from __future__ import annotations

import sys
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TOMLDecodeError = tomllib.TOMLDecodeError


def loads(text: str) -> dict[str, Any]:
    """The table in `text`. Raises TOMLDecodeError."""
    table: dict[str, Any] = tomllib.loads(text)
    return table
