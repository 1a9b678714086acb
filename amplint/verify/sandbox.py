"""Walls around the worker: private namespaces where the system allows them, limits and an audit hook everywhere.

A replay cannot reach a file or a socket to begin with, because the interpreter knows no such operation.
The walls are for faults in the interpreter, in torch, or in this package.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from typing import Any

MEMORY = 6 * 2**30
#: events of sys.addaudithook that no replay may cause
FORBIDDEN = (
    "socket.",
    "subprocess.",
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.spawn",
    "os.system",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.mkdir",
    "os.link",
    "os.symlink",
    "os.truncate",
    "os.chmod",
    "os.chown",
    "os.kill",
    "os.putenv",
    "shutil.",
    "pty.",
    "ctypes.dlopen",
    "pickle.",
    "webbrowser.",
    "urllib.",
    "ftplib.",
    "http.",
    "smtplib.",
    "marshal.",
)


class Refused(Exception):
    """There is no way to confine a worker on this system; the text says what is missing."""


@cache
def namespaces() -> str | None:
    """None if `unshare` can make private user, network, mount and process namespaces here, else why not."""
    if not sys.platform.startswith("linux"):
        return f"no namespaces on {sys.platform}"
    tool = shutil.which("unshare")
    if tool is None:
        return "unshare is not installed"
    try:
        done = subprocess.run(
            [tool, "-r", "-n", "-m", "-p", "-f", "true"], capture_output=True, timeout=10, check=False, text=True
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"unshare failed: {error}"
    return None if done.returncode == 0 else f"unshare failed: {done.stderr.strip()[:120]}"


def limits() -> str | None:
    """None if the system can limit a process's memory and files, else why not."""
    try:
        import resource
    except ImportError:
        return f"no resource limits on {sys.platform}"
    return None if hasattr(resource, "RLIMIT_FSIZE") else "no resource limits"


def prefix(no_sandbox: bool) -> tuple[list[str], str]:
    """What to put before the worker's command, and the level that the worker must then put up itself.

    Raises Refused where there are neither namespaces nor limits, unless the user asked for no sandbox.
    """
    if no_sandbox:
        return [], "none"
    missing = namespaces()
    if missing is None:
        return [str(shutil.which("unshare")), "-r", "-n", "-m", "-p", "-f", "--kill-child"], "namespaces"
    without = limits()
    if without is None:
        return [], "limits"
    raise Refused(f"no sandbox here ({missing}; {without}); --no-sandbox runs the replay without one")


def environment(folder: str) -> dict[str, str]:
    """The worker's whole environment: nothing of the user's, but where temporary files go."""
    keep = {
        k: os.environ[k] for k in ("LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "SYSTEMROOT", "PATH") if k in os.environ
    }
    return {
        **keep,
        "HOME": folder,
        "TMPDIR": folder,
        "TEMP": folder,
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "CUDA_CACHE_DISABLE": "1",
    }


def warm_up(device: str) -> None:
    """Let torch do once what it puts off: it probes for a temporary folder and imports on the first step.

    Raises RuntimeError where the device does not work.
    """
    import torch

    layer = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device)
    with torch.autocast(device, dtype=torch.float16):
        loss = layer(torch.ones(2, 2)).float().mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    from amplint.verify.cuda_facts import bce_message, result_dtype

    bce_message()
    result_dtype("exp", torch.exp, [torch.ones(2, dtype=torch.float16)], {}, torch.float16)


def confine(level: str, device: str = "cpu") -> list[str]:
    """Put up the walls of a level, from inside the worker; the names of those that stand.

    A CUDA driver reserves far more addresses than there is memory: the limit on them is for the CPU alone.
    """
    kept: list[str] = []
    if level == "none":
        return kept
    if level == "namespaces":
        kept.append("namespaces")
        if _read_only():
            kept.append("read-only files")
    if _lower_limits({} if device != "cpu" else {"RLIMIT_AS": MEMORY}):
        kept.append("limits")
    sys.addaudithook(_audit)
    kept.append("audit hook")
    return kept


def _read_only() -> bool:
    """Mount everything that is mounted read-only, as far as the kernel lets us."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    bind, remount, read_only = 4096, 32, 1
    with open("/proc/self/mounts", encoding="utf-8") as table:
        places = [line.split()[1] for line in table]
    done = False
    for place in places:
        target = place.encode().decode("unicode_escape").encode()
        if libc.mount(b"none", target, None, bind | remount | read_only, None) == 0 and place == "/":
            done = True
    return done


def _lower_limits(more: dict[str, int]) -> bool:
    try:
        import resource
    except ImportError:
        return False
    wanted = {**more, "RLIMIT_FSIZE": 0, "RLIMIT_CORE": 0}
    for name, value in wanted.items():
        which = getattr(resource, name, None)
        if which is None:
            continue
        try:
            hard = resource.getrlimit(which)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(which, (value, value))
        except (ValueError, OSError):
            continue
    return True


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if event == "open":
        mode, flags = (args[1], args[2]) if len(args) >= 3 else (None, 0)
        writes = (isinstance(mode, str) and any(c in mode for c in "wax+")) or (
            isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        )
        if writes and args[0] != os.devnull:
            raise PermissionError("a replay must not write files")
    elif event.startswith(FORBIDDEN):
        raise PermissionError(f"a replay must not cause {event}")
