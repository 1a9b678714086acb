"""Right programs of which nothing is said, as public code writes them.

They are no fixtures because no rule is the one that they are about, or a replay cannot tell them from wrong ones.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from amplint.config import Settings
from amplint.engine import check
from amplint.finding import Severity

PROGRAMS = sorted((Path(__file__).parent / "right").glob("*.py"))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_nothing_is_said_of_what_is_right(program: Path) -> None:
    run = check([program], Settings(min_severity=Severity.INFO), jobs=1)
    assert not run.errors
    assert [(f.rule, f.place.line, f.message) for f in run.findings if f.rule != "AMP601"] == []
