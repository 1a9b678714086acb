"""The child process: torch is imported here, once; replays come in as JSON lines, judgements go out.

    python -I worker.py ROOT LEVEL

ROOT is the folder that holds the package, LEVEL what `sandbox` has to put up before the first replay.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from types import FrameType
from typing import Any

SECONDS_PER_FINDING = 5.0


class Alarm(BaseException):
    """The time of one finding is over. Not an Exception: nothing on the way may swallow it."""


def _ring(number: int, frame: FrameType | None) -> None:
    raise Alarm


def answer(request: dict[str, Any], cases: list[Any]) -> dict[str, Any]:
    """Judge one replay; whatever goes wrong becomes an inconclusive judgement."""
    from amplint.verify.oracle import Judgement, judge
    from amplint.verify.replay import Replay

    limit = float(request.get("seconds", SECONDS_PER_FINDING))
    timer = getattr(signal, "setitimer", None)
    try:
        if timer is not None:
            signal.signal(signal.SIGALRM, _ring)
            timer(signal.ITIMER_REAL, limit)
        try:
            fixed = Replay.from_dict(request["fixed"]) if request.get("fixed") else None
            result = judge(Replay.from_dict(request["replay"]), cases, fixed)
        finally:
            if timer is not None:
                timer(signal.ITIMER_REAL, 0)
    except Alarm:
        cases.clear()
        result = Judgement("inconclusive", reason=f"timeout: the replay took more than {limit:g} s", seconds=limit)
    except RecursionError:
        result = Judgement("inconclusive", reason="the replay recursed too deeply")
    except MemoryError:
        cases.clear()
        result = Judgement("inconclusive", reason="the replay ran out of memory")
    return result.to_dict()


def main(argv: list[str]) -> int:
    root, level = argv[1], argv[2]
    sys.path.insert(0, root)
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    from amplint.verify import sandbox

    try:
        import torch

        from amplint.verify import comparisons, oracle, standins
    except ImportError as error:
        replies.write(json.dumps({"hello": False, "reason": f"torch cannot be imported: {error}"}) + "\n")
        replies.flush()
        return 0
    standins.silence()
    torch.set_num_threads(1)
    sandbox.warm_up()
    kept = sandbox.confine(level)
    hello = {"hello": True, "torch": torch.__version__.split("+")[0], "kept": kept, "rules": len(comparisons.OWN)}
    replies.write(json.dumps(hello) + "\n")
    replies.flush()
    cases: list[oracle.Case] = []
    group: object = None
    for line in sys.stdin:
        request = json.loads(line)
        if request.get("group") != group:
            group = request.get("group")
            cases.clear()
        replies.write(json.dumps(answer(request, cases)) + "\n")
        replies.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
