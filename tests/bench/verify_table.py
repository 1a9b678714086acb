"""Fills docs/verified.md with what the verifier says of every rule on this machine's torch and device.

    python tests/bench/verify_table.py [--device auto|cpu|cuda|cuda:N]

The page has a section for each torch version and kind of device; the one of this machine is written anew, the others
stay as they are. Exits with 1 where a rule that could be confirmed here is not.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from amplint import registry
from amplint.verify import holds, verify_rules

PAGE = Path(__file__).resolve().parents[2] / "docs" / "verified.md"


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table, without what is different in every run."""
    lines = ["| rule | name | verdict | fix | figure, or why there is none |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        fix = {True: "verified", False: "fails", None: "–"}[row["fix_verified"]]
        variant = f" [{row['variant']}]" if row.get("variant") not in ("", None, "nominal") else ""
        said = " ".join(f"{row['figure'] or row['reason'] or ''}{variant}".replace("|", "\\|").split())
        lines.append(f"| {row['rule']} | {row['name']} | {row['verdict']} | {fix} | {said} |")
    return "\n".join(lines)


def with_section(page: str, title: str, body: str) -> str:
    """The page with a section of that title put in, or in the place of the old one."""
    section = f"## {title}\n\n{body}\n"
    parts = re.split(r"(?m)^(?=## )", page.rstrip("\n") + "\n")
    for i, part in enumerate(parts):
        if part.startswith(f"## {title}\n"):
            parts[i] = section + ("\n" if i < len(parts) - 1 else "")
            return "".join(parts)
    return page.rstrip("\n") + "\n\n" + section


def main(device: str) -> int:
    rows = verify_rules([rule.code for rule in registry.all_rules()], SimpleNamespace(device=device))
    seen = next((row for row in rows if row["torch"] and row["device"]), None)
    if seen is None:
        print(next(str(row["reason"]) for row in rows if row["verdict"] == "inconclusive"), file=sys.stderr)
        return 1
    title = f"torch {seen['torch']}, {seen['device'].partition(':')[0]}"
    PAGE.write_text(with_section(PAGE.read_text(encoding="utf-8"), title, table(rows)), encoding="utf-8")
    failed = [row for row in rows if not holds(row)]
    for row in failed:
        print(f"{row['rule']} {row['name']}: {row['verdict']}: {row['reason'] or row['figure']}", file=sys.stderr)
    print(f"{title}: {len(rows)} rules, {len(failed)} not as they should be")
    return int(bool(failed))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    sys.exit(main(parser.parse_args().device))
