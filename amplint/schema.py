"""The JSON schema of the configuration, for editors that complete and check TOML."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from typing import Any

from amplint import registry
from amplint.config import KEYS, Settings

URL = "https://amplint.readthedocs.io/amplint.schema.json"


def schema() -> dict[str, Any]:
    """The schema of `[tool.amplint]`, which is the whole of an amplint.toml (draft 7, which all editors know)."""
    spellings = [spelling for rule in registry.all_rules() for spelling in (rule.code, rule.name)]
    rule = {
        "description": "The code or the name of a rule, a prefix of codes, or ALL.",
        "anyOf": [{"enum": ["ALL", *spellings]}, {"type": "string", "pattern": "^[Aa][Mm][Pp][0-9]{0,3}$"}],
    }
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": URL,
        "title": "amplint",
        "description": "The configuration of amplint, a linter for automatic mixed precision in PyTorch.",
        "type": "object",
        "additionalProperties": False,
        "properties": {name: _property(name) for name in KEYS},
        "definitions": {"rule": rule},
    }


def as_json() -> str:
    """The schema as text, with a line end."""
    return json.dumps(schema(), indent=2) + "\n"


def _property(name: str) -> dict[str, Any]:
    default = default_of(name)
    known = {} if default is None else {"default": default}
    return {"description": KEYS[name].meaning, **KEYS[name].schema, **known}


def default_of(name: str) -> Any:
    """What holds where a key is not given, as plain data; None where that depends on something else."""
    field = next((f for f in fields(Settings) if f.name == name.replace("-", "_")), None)
    if field is None or field.default is MISSING or field.default is None:
        return None
    if name == "per-file-ignores":
        return dict(field.default)
    return list(field.default) if isinstance(field.default, tuple) else str(field.default)
