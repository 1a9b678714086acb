"""The long run: `python -m tests.differential --seed 1 --count 20000 --jobs 2`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from .campaign import Count, campaign


@click.command()
@click.option("--seed", default=1, show_default=True, help="Names the sequence of programs.")
@click.option("--first", default=0, show_default=True, help="Number of the first program.")
@click.option("--count", default=1000, show_default=True, help="How many programs.")
@click.option("--budget", default=0.0, help="Stop after so many seconds; 0 for no limit.")
@click.option("--jobs", default=1, show_default=True, help="Processes.")
@click.option("--shrink", is_flag=True, help="Make the programs of disagreements small.")
@click.option("--out", type=click.Path(path_type=Path), help="A file for the disagreements.")
def main(seed: int, first: int, count: int, budget: float, jobs: int, shrink: bool, out: Path | None) -> None:
    """Execute and lint random AMP programs, and count where both agree."""
    started = time.monotonic()
    total = Count()
    for total in campaign(seed, range(first, first + count), jobs, shrink):
        seconds = time.monotonic() - started
        print(f"\r{total.numbers['programs']} programs, {seconds:.0f} s", end="", file=sys.stderr, flush=True)
        if out is not None:
            out.write_text("\n\n".join([f"seed {seed}\n{total}", *total.disagreements]) + "\n")
        if budget and seconds > budget:
            break
    print(file=sys.stderr)
    if out is None:
        print("\n\n".join(total.disagreements))
    print(f"seed {seed}, programs {first} to {first + count - 1}\n{total}")
    sys.exit(0 if total.recall >= 0.97 and total.precision >= 0.99 else 1)


if __name__ == "__main__":
    main()
