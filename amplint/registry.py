"""All rules, found in the package `amplint.rules` (the folder `rules/` of the repository)."""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABCMeta
from functools import cache

from amplint.rule import Rule


@cache
def all_rules() -> tuple[Rule, ...]:
    """One instance of every rule, by code.

    The package is looked up at run time: `amplint.rules` exists through a packaging mapping that
    type checkers cannot follow, so nothing imports it statically.
    """
    package = importlib.import_module("amplint.rules")
    found: dict[str, Rule] = {}
    for module_info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"amplint.rules.{module_info.name}")
        for member in vars(module).values():
            # on Python 3.10 an alias such as `dict[str, int]` passes for a class; `type` is not deceived
            if type(member) is ABCMeta and issubclass(member, Rule) and member.__module__ == module.__name__:
                found[member.code] = member()
    return tuple(found[code] for code in sorted(found))


@cache
def by_code_or_name() -> dict[str, Rule]:
    """Every spelling that names one rule: its code (any case) and its name."""
    return {key: rule for rule in all_rules() for key in (rule.code, rule.code.lower(), rule.name)}


def find(text: str) -> Rule | None:
    """The rule with that code or name, or None."""
    return by_code_or_name().get(text) or by_code_or_name().get(text.lower())
