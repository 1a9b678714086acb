"""Where stand-ins live: on the CPU, or on a CUDA device where there is one and it is wanted."""

from __future__ import annotations

import torch

_chosen = torch.device("cpu")


class NoDevice(Exception):
    """The device that was asked for is not there; the text says so."""


def choose(wanted: str) -> str:
    """Settle where tensors are made from now on: "auto", "cpu", "cuda" or "cuda:N". Returns what it came to.

    Raises NoDevice where a CUDA device is asked for and torch has none.
    """
    global _chosen
    found = torch.cuda.device_count() if wanted != "cpu" and torch.cuda.is_available() else 0
    if wanted.startswith("cuda"):
        number = int(wanted.partition(":")[2] or 0)
        if number >= found:
            raise NoDevice(f"needs cuda: torch {torch.__version__} sees {found or 'no'} CUDA device{'s' * (found > 1)}")
    _chosen = torch.device("cpu") if not found else torch.device(wanted if ":" in wanted else "cuda:0")
    if found:
        torch.cuda.set_device(_chosen)
        torch.set_default_device(_chosen)
    return str(_chosen)


def kind() -> str:
    """The type of the device, as autocast and the scaler name it."""
    return _chosen.type


def placed(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor on the device."""
    return tensor if tensor.device.type == _chosen.type else tensor.to(_chosen)


def autocast_enabled() -> bool:
    """Whether autocast is on for the device."""
    return torch.is_autocast_enabled(kind())


def leave_autocast() -> bool:
    """Switch autocast off for the device, whatever was left open. Returns whether it was on."""
    on = autocast_enabled()
    torch.set_autocast_enabled(kind(), False)
    torch.clear_autocast_cache()
    return on
