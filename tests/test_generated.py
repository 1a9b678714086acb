"""What is generated is in sync: the README's table of rules, the configuration's schema; and the schema is right."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from conftest import Amplint

from amplint import registry
from amplint.config import KEYS, ConfigError, settings_from
from amplint.schema import as_json, default_of, schema

ROOT = Path(__file__).parent.parent


def generated() -> dict[Path, str]:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    files: dict[Path, str] = module.generated()
    return files


@pytest.mark.parametrize("file", generated(), ids=lambda file: file.name)
def test_generated_text_is_up_to_date(file: Path) -> None:
    assert file.read_text(encoding="utf-8") == generated()[file], "run python docs/generate.py"


def test_the_readme_lists_every_rule() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for rule in registry.all_rules():
        assert f"| {rule.code} | [{rule.name}]({rule.url}) |" in readme


def test_the_command_prints_the_schema(amplint: Amplint) -> None:
    result = amplint("config-schema")
    assert (result.status, result.out) == (0, as_json())


def test_rules_are_listed_in_markdown(amplint: Amplint) -> None:
    lines = amplint("rules", "--format", "markdown").out.splitlines()
    assert len(lines) == len(registry.all_rules()) + 2
    assert len({line.count("|") - line.count("\\|") for line in lines}) == 1


def test_the_schema_is_one() -> None:
    jsonschema.Draft7Validator.check_schema(schema())
    assert list(schema()["properties"]) == list(KEYS)


@pytest.mark.parametrize(
    ("table", "right"),
    [
        ({"select": ["AMP2", "clip-before-unscale", "ALL", "amp101"], "ignore": ["AMP201"]}, True),
        ({"select": ["AMP777x"]}, False),
        ({"select": "AMP2"}, False),
        ({"per-file-ignores": {"tests/*": ["AMP1"]}}, True),
        ({"per-file-ignores": {"tests/*": "AMP1"}}, False),
        ({"per-file-ignores": ["AMP1"]}, False),
        ({"min-severity": "info", "min-confidence": "low"}, True),
        ({"min-severity": "fatal"}, False),
        ({"min-confidence": 1}, False),
        ({"torch": ">=2.3,<3", "baseline": "known.json", "device": "cuda:1"}, True),
        ({"torch": 2.4}, False),
        ({"baseline": ["known.json"]}, False),
        ({"device": "tpu"}, False),
        ({"scaler-factories": ["a.b"], "clip-functions": []}, True),
        ({"clip-functions": [1]}, False),
        ({"min_severity": "info"}, False),
    ],
)
def test_the_schema_agrees_with_what_is_read(table: dict[str, Any], right: bool, tmp_path: Path) -> None:
    assert jsonschema.Draft7Validator(schema()).is_valid(table) is right
    if right:
        settings_from(table, tmp_path, None)
    else:
        with pytest.raises(ConfigError):
            settings_from(table, tmp_path, None)


def test_defaults_are_values_that_could_be_written(tmp_path: Path) -> None:
    defaults = {name: default_of(name) for name in KEYS if default_of(name) is not None}
    assert {"exclude", "min-confidence", "device"} <= set(defaults)
    assert jsonschema.Draft7Validator(schema()).is_valid(defaults)
    assert settings_from(json.loads(json.dumps(defaults)), tmp_path, None) == settings_from({}, tmp_path, None)
