"""The byte screen: which rules can have something to say about a file, judged by its bytes alone.

Parsing is a thousand times dearer than searching, and nearly all files of a project hold no AMP code.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from amplint.rule import Needle, Needles, Rule

#: strings and comments in the order in which they begin, so that a quote inside of one begins no other; a string that
#: nothing ends is one up to the end of the line or of the file, so that no quote is looked at twice
_QUOTED = re.compile(
    rb"(?P<prefix>[rRbBuUfF]{0,2})(?:(?P<triple>\"\"\"|\'\'\')(?:\\.|[^\\])*?(?:(?P=triple)|\Z)"
    rb"|\"(?:\\.|[^\"\\\n])*\"?|\'(?:\\.|[^\'\\\n])*\'?)|#[^\n]*",
    re.DOTALL,
)
#: what an f-string executes
_FIELDS = re.compile(rb"\{.*\}", re.DOTALL)
#: what scales images or features
_LOOKALIKE = re.compile(
    rb"(?<![A-Za-z])(?:up|down|re|auto)scaler|(?:Up|Down|Re|Auto)scaler|(?:Standard|MinMax|MaxAbs|Robust)Scaler"
)

#: searching for a pattern takes so many times as long as searching for bytes, unless it begins with some
COST_OF_A_PATTERN = 30
_LITERAL = re.compile(rb"\w{4}")
#: a string with so many spaces is a sentence, and no name of anything
WORDS_OF_A_MESSAGE = 2


def code_of(data: bytes) -> bytes:
    """A module without comments, docstrings and messages, which speak of much that the module does not do, and without
    names that only look like a scaler's; other strings stay.

    >>> code_of(b"x = 'a#b'  # half\\n")
    b"x = 'a#b'  \\n"
    >>> code_of(b"log('no scaler is used'); save({'scaler': 1})")
    b"log(''); save({'scaler': 1})"
    >>> code_of(b"StandardScaler(), Upscaler(), GradScaler()")
    b'(), (), GradScaler()'
    """

    def kept(match: re.Match[bytes]) -> bytes:
        text = match[0]
        if text.startswith(b"#"):
            return b""
        quote = match["triple"] or text[len(match["prefix"]) :][:1]
        ended = text.endswith(quote) and len(text) >= len(match["prefix"]) + 2 * len(quote)
        if not ended or (not match["triple"] and text.count(b" ") < WORDS_OF_A_MESSAGE):
            return text
        field = _FIELDS.search(text) if b"f" in match["prefix"].lower() else None
        return text[-1:] + (field[0] if field else b"") + text[-1:]

    code = _QUOTED.sub(kept, data)
    return _LOOKALIKE.sub(b"", code) if b"scaler" in code or b"Scaler" in code else code


class Screen:
    """Answers for a fixed set of rules.

    A rule passes when every group of its needles has a member in the file. Each distinct needle is searched
    for at most once per file, and the groups that many rules share are asked first: where they are missing,
    one search answers for all of these rules. Patterns come last. `asked` may be other needles of the rules than those
    that one file must hold, several alternatives of them.
    """

    def __init__(
        self, rules: Sequence[Rule], asked: Callable[[Rule], Iterable[Needles]] = lambda rule: (rule.needles,)
    ) -> None:
        judged = [(rule, needles) for rule in rules for needles in asked(rule)]
        shared = Counter(needle for _, needles in judged for group in needles for needle in group)

        def cost(needle: Needle) -> float:
            slow = not isinstance(needle, bytes) and not _LITERAL.match(needle.pattern)
            return (COST_OF_A_PATTERN if slow else 1) / shared[needle]

        def ordered(groups: Needles) -> Needles:
            by_cost = [tuple(sorted(group, key=cost)) for group in groups]
            return tuple(sorted(by_cost, key=lambda group: sum(map(cost, group))))

        self._rules: list[tuple[Rule, Needles]] = [(rule, ordered(groups)) for rule, groups in judged]

    def rules_for(self, data: bytes, is_notebook: bool = False) -> tuple[Rule, ...]:
        """The rules whose needles are all in `data`, in the order they were given in; a notebook that has not been read
        yet, JSON that is, passes every pattern."""
        if is_notebook:  # JSON writes a quote inside of source with a backslash
            data = data.replace(b'\\"', b'"')
        answers: dict[Needle, bool] = {}

        def has(needle: Needle) -> bool:
            answer = answers.get(needle)
            if answer is None:
                found = needle in data if isinstance(needle, bytes) else is_notebook or needle.search(data) is not None
                answer = answers[needle] = found
            return answer

        passed = (rule for rule, needles in self._rules if all(any(map(has, group)) for group in needles))
        return tuple(dict.fromkeys(passed))
