"""What reach costs: all rules with everything they follow, against five core rules that stay within each file.

python tests/bench/bench_reach.py FOLDER...

Prints the processor seconds of both, with one process each, and their ratio. The five are AMP101, AMP201, AMP301,
AMP401 and AMP501; staying within a file means that no import is resolved and no caller is looked for.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

CORE = ("AMP101", "AMP201", "AMP301", "AMP401", "AMP501")


def checked(folder: Path, mode: str) -> tuple[float, int, int]:
    """Processor seconds, files and findings of one check in this process."""
    from amplint.config import Selection, Settings
    from amplint.engine import check
    from amplint.garbage import collect_seldom
    from amplint.neighbours import Neighbours
    from amplint.project import Project

    settings = Settings()
    if mode == "core":
        settings = Settings(layers=(Selection(select=CORE),))
        Project.candidates = lambda *_: iter(())  # type: ignore[method-assign]
        Neighbours.callers = lambda *_: ()  # type: ignore[method-assign]
        Neighbours.reached = lambda *_: iter(())  # type: ignore[method-assign]
    collect_seldom()
    began = time.process_time()
    run = check([folder], settings, jobs=1)
    return time.process_time() - began, len(run.files), len(run.findings)


def main(folders: list[str]) -> None:
    for folder in folders:
        seconds: dict[str, float] = {}
        for mode in ("core", "all"):
            done = subprocess.run(
                [sys.executable, __file__, "--one", mode, folder], capture_output=True, text=True, check=True
            )
            taken, files, findings = done.stdout.split()
            seconds[mode] = float(taken)
            print(
                f"{Path(folder).name:28} {mode:5} {seconds[mode]:8.1f} s  {files} files  {findings} findings",
                flush=True,
            )
        print(f"{Path(folder).name:28} ratio {seconds['all'] / seconds['core']:8.2f}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(*checked(Path(sys.argv[3]), sys.argv[2]))
    else:
        main(sys.argv[1:])
