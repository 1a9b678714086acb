"""The child process: torch is imported here, once; replays come in as JSON lines, judgements go out.

    python -I worker.py ROOT LEVEL DEVICE

ROOT is the folder that holds the package, LEVEL what `sandbox` has to put up before the first replay, DEVICE
where replays run ("auto", "cpu", "cuda", "cuda:N").
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
    result: Judgement | None = None

    def keep(verdict: Judgement) -> None:
        nonlocal result
        result = verdict

    timer = getattr(signal, "setitimer", None)
    try:
        if timer is not None:
            # processor time: on a machine that is busy with other things a replay is not at fault
            signal.signal(signal.SIGPROF, _ring)
            timer(signal.ITIMER_PROF, limit)
        try:
            result = judge(Replay.from_dict(request["replay"]), cases, keep)
        finally:
            if timer is not None:
                timer(signal.ITIMER_PROF, 0)
    except Alarm:
        cases.clear()
        if result is None:
            text = f"timeout: the replay took more than {limit:g} s"
            result = Judgement("inconclusive", reason=text, seconds=limit)
    except RecursionError:
        result = Judgement("inconclusive", reason="the replay recursed too deeply")
    except MemoryError:
        cases.clear()
        result = Judgement("inconclusive", reason="the replay ran out of memory")
    return result.to_dict()


def main(argv: list[str]) -> int:
    root, level, wanted = argv[1:4]
    sys.path.insert(0, root)
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    os.dup2(nowhere.fileno(), 1)
    sys.stdout = sys.stderr = nowhere

    def say(line: dict[str, Any]) -> None:
        replies.write(json.dumps(line) + "\n")
        replies.flush()

    from amplint.verify import sandbox

    try:
        import torch

        from amplint.verify import comparisons, device, oracle, standins
    except ImportError as error:
        say({"hello": False, "reason": f"torch cannot be imported: {error}"})
        return 0
    standins.silence()
    torch.set_num_threads(1)
    # what is there and does not answer may do so outside of these walls
    driver = os.path.exists("/dev/nvidiactl")
    try:
        where = device.choose(wanted)
        sandbox.warm_up(device.kind())
    except device.NoDevice as error:
        say({"hello": False, "lost_device": driver, "reason": str(error)})
        return 0
    except RuntimeError as error:
        text = f"the device does not work: {error}".split("\n")[0]
        say({"hello": False, "lost_device": driver, "reason": text[:200]})
        return 0
    kept = sandbox.confine(level, device.kind())
    version = torch.__version__.split("+")[0]
    lost = driver and wanted == "auto" and where == "cpu" and bool(torch.version.cuda)
    hello = {"hello": True, "torch": version, "device": where, "lost_device": lost, "kept": kept}
    say({**hello, "rules": len(comparisons.OWN)})
    cases: list[oracle.Case] = []
    group: object = None
    for line in sys.stdin:
        request = json.loads(line)
        if request.get("group") != group:
            group = request.get("group")
            cases.clear()
        say(answer(request, cases))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
