"""A replay as a file of its own: runs with torch alone and prints the verdict again."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import Any

from amplint.verify.replay import Replay

#: modules of this package that a kept replay carries along, in the order of their imports
RUNTIME = (
    "device",
    "cuda_facts",
    "plain",
    "objects",
    "expressions",
    "machine",
    "standins",
    "replay",
    "guesses",
    "plan",
    "props",
    "functions",
    "surroundings",
    "operations",
    "callables",
    "members",
    "torchlib",
    "pylib",
    "world",
    "stage",
    "oracle",
    "comparisons",
)


def file_name(rule: str, path: str, line: int) -> str:
    """`replay_AMP201_train_118.py` for line 118 of train.py."""
    stem = re.sub(r"\W+", "_", Path(path).stem) or "text"
    return f"replay_{rule}_{stem}_{line}.py"


def kept_replay(replay: Replay, judgement: dict[str, Any], device: str = "cpu") -> str:
    """The text of the file: the user's statements with their line numbers, then the runtime."""
    path, first, _last = replay.flagged[0]
    seen = [
        judgement.get("status", ""),
        judgement.get("variant", ""),
        judgement.get("figure") or judgement.get("reason") or "",
    ]
    head = [
        f'"""{replay.rule} in {path}, line {first}: {" - ".join(part for part in seen if part)}',
        "",
        "Run it with a Python that has torch. SOURCES holds the program as far as the replay executes it: an",
        "interpreter walks it with stand-ins for model, data and loss, once with the gradient scaler and once",
        "without, and compares the gradients that the optimizer is handed.",
    ]
    for assumption in judgement.get("assumptions", []):
        head.append(f"  assumed: {assumption}")
    head.append('"""')
    parts = ["\n".join(head).replace("\\", "/"), "", "import sys", "import types", "", "SOURCES = {}"]
    for name, text in replay.files.items():
        parts.append(f"SOURCES[{name!r}] = {_literal(text)}")
    data = replay.to_dict()
    data["files"] = {}
    parts.append(f"REPLAY = {data!r}")
    parts.append(f"DEVICE = {device!r}")
    parts.append("RUNTIME = {}")
    for module in RUNTIME:
        text = resources.files("amplint.verify").joinpath(f"{module}.py").read_text(encoding="utf-8")
        parts.append(f"RUNTIME[{module!r}] = {_literal(text)}")
    parts.append(_TAIL)
    return "\n".join(parts)


def _literal(text: str) -> str:
    """A triple-quoted raw literal where the text allows it, so that a person can read it; else repr."""
    if "'''" in text or text.endswith(("\\", "'")) or "\r" in text:
        return repr(text)
    return f"r'''{text}'''"


_TAIL = """

def main():
    for package in ("amplint", "amplint.verify"):
        sys.modules[package] = types.ModuleType(package)
        sys.modules[package].__path__ = []
    for name, text in RUNTIME.items():
        module = types.ModuleType("amplint.verify." + name)
        sys.modules[module.__name__] = module
        exec(compile(text, "<amplint " + name + ">", "exec"), module.__dict__)
        setattr(sys.modules["amplint.verify"], name, module)
    oracle, replay, standins, device = (
        sys.modules["amplint.verify." + n] for n in ("oracle", "replay", "standins", "device")
    )
    standins.silence()
    try:
        device.choose(DEVICE)
    except device.NoDevice as error:
        print(error)
        return 1
    found = oracle.judge(replay.Replay.from_dict({**REPLAY, "files": SOURCES}))
    path, first, _ = REPLAY["flagged"][0]
    print(f"{REPLAY['rule']} {path}:{first}: {found.status} [{found.variant}] {found.figure or found.reason or ''}")
    for assumption in found.assumptions:
        print("  assumed:", assumption)
    if found.fix_verified is not None:
        print("  fix", "verified" if found.fix_verified else "fails")
    for event in found.events:
        print("  line", event)
    return 0


if __name__ == "__main__":
    sys.exit(main())
"""
