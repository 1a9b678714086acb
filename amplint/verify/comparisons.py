"""Rules whose fault is no wrong gradient: what is compared in their replays instead."""

from __future__ import annotations

from collections.abc import Callable

from amplint.verify.oracle import Case, Judgement

STATIC: dict[str, str] = {
    "AMP224": "needs several processes",
    "AMP225": "the framework does the scaling",
    "AMP226": "private members have no promised behaviour",
    "AMP305": "the run without AMP sums the losses as well",
    "AMP601": "a deprecation",
    "AMP901": "a suppression",
    "AMP902": "an unreadable file",
}
OWN: dict[str, Callable[[Case], Judgement | None]] = {}


def needs(rule: str) -> int:
    """Optimizer steps without which nothing is refuted."""
    return 2
