"""Time and memory of the verifier: the first verdict, the median of later ones, the worker's peak.

The first is that of the command line, from the start of the process on, with one finding to verify.

python tests/bench/bench_verify.py [repeats]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from verify_programs import FAULTY, RIGHT, line_of

from amplint.verify import verify_text
from amplint.verify.host import Worker

FIXTURE = Path(__file__).resolve().parents[2] / "fixtures" / "clip-before-unscale" / "bad_adaptive_factor.py"


def peak_memory(pid: int) -> float:
    """Peak resident memory in MiB of a process and its children; 0 where /proc is not to be had."""
    total = 0.0
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        except OSError:
            continue
        if pid in (int(fields["Pid"]), int(fields["PPid"])) and "VmHWM" in fields:
            total = max(total, int(fields["VmHWM"].split()[0]) / 1024)
    return total


def first_verdict() -> float:
    """Seconds from the start of `amplint verify` on one file with one finding to its report."""
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "amplint", "verify", "--isolated", "--no-cache", "--select", "AMP201", str(FIXTURE)],
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - begin
    assert "1 confirmed" in done.stdout, done.stdout
    return seconds


def main(repeats: int) -> None:
    programs = [(rule, text) for rule, text, _ in FAULTY.values()] + list(RIGHT.values())
    print(f"first verdict       {first_verdict():7.2f} s")
    with Worker() as worker:
        worker.start()
        seconds = []
        for _ in range(repeats):
            for rule, text in programs:
                begin = time.perf_counter()
                verify_text(text, rule, line_of(text), worker=worker)
                seconds.append(time.perf_counter() - begin)
        print(f"median per finding  {1000 * statistics.median(seconds):7.0f} ms  ({len(seconds)} findings)")
        print(f"slowest             {1000 * max(seconds):7.0f} ms")
        if worker.pid is not None:
            print(f"peak of the worker  {peak_memory(worker.pid):7.0f} MiB")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
