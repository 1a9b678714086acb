"""The byte screen: which rules can have something to say about a file, judged by its bytes alone.

Parsing is a thousand times dearer than searching, and nearly all files of a project hold no AMP code.
"""

from __future__ import annotations

from collections.abc import Sequence

from amplint.rule import Rule


class Screen:
    """Answers for a fixed set of rules.

    A rule passes when every group of its needles has a member in the file. Each distinct needle is searched
    for at most once per file, however many rules share it.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rules)

    def rules_for(self, data: bytes, is_notebook: bool = False) -> tuple[Rule, ...]:
        """The rules whose needles are all in `data`."""
        if is_notebook:  # JSON writes a quote inside of source with a backslash
            data = data.replace(b'\\"', b'"')
        seen: dict[bytes, bool] = {}

        def has(needle: bytes) -> bool:
            found = seen.get(needle)
            if found is None:
                found = seen[needle] = needle in data
            return found

        return tuple(rule for rule in self.rules if all(any(map(has, group)) for group in rule.needles))
