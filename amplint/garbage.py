"""How often Python looks for garbage in a process that analyses."""

from __future__ import annotations

import gc

#: new objects between two collections of the youngest, and how many of those between two of the older ones
THRESHOLDS = (100_000, 20, 20)


def collect_seldom() -> None:
    """To be called where a process begins. Trees live long and are large: at Python's own thresholds a third of an
    analysis is spent on looking for garbage."""
    gc.set_threshold(*THRESHOLDS)
