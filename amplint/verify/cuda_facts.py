"""What torch's CUDA autocast does, asked without a GPU: fake tensors go through the real dispatch keys."""

from __future__ import annotations

from functools import cache

import torch
from torch._subclasses.fake_tensor import FakeTensorMode


@cache
def bce_message() -> str | None:
    """The message with which binary_cross_entropy refuses to run under CUDA autocast, None if it does not."""
    before = torch.is_autocast_enabled("cuda")
    try:
        with FakeTensorMode():
            probability = torch.empty(4, device="cuda", dtype=torch.float16)
            target = torch.empty(4, device="cuda", dtype=torch.float16)
            torch.set_autocast_enabled("cuda", True)
            torch.nn.functional.binary_cross_entropy(probability, target)
    except RuntimeError as error:
        text = str(error).strip().splitlines()[0]
        return text if "unsafe to autocast" in text else None
    except (AssertionError, NotImplementedError, TypeError):
        return None
    finally:
        torch.set_autocast_enabled("cuda", before)
    return None
