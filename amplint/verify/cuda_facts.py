"""What torch's CUDA autocast does, asked without a GPU: fake tensors go through the real dispatch keys."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

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


_results: dict[object, torch.dtype | None] = {}


def result_dtype(
    name: str, operation: Callable[..., Any], values: list[Any], keywords: dict[str, Any], dtype: torch.dtype
) -> torch.dtype | None:
    """The dtype that an operation gives under CUDA autocast to `dtype`; None where fake tensors do not tell.

    The lists of what autocast runs in fp32 differ: exp, softmax or a norm stay in 16 bit on the CPU.
    """
    shown = tuple((v.dtype, v.shape) if isinstance(v, torch.Tensor) else type(v) for v in [*values, *keywords.values()])
    key = (name, shown, tuple(keywords), dtype)
    if key not in _results:
        _results[key] = _asked(operation, values, keywords, dtype)
    return _results[key]


def _asked(
    operation: Callable[..., Any], values: list[Any], keywords: dict[str, Any], dtype: torch.dtype
) -> torch.dtype | None:
    before, kind = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    inner = torch.is_autocast_enabled("cpu")
    try:
        with FakeTensorMode(), torch.no_grad():

            def fake(value: Any) -> Any:
                if isinstance(value, torch.Tensor):
                    return torch.empty(value.shape, dtype=value.dtype, device="cuda")
                return value

            given = [fake(v) for v in values]
            named = {k: fake(v) for k, v in keywords.items()}
            torch.set_autocast_enabled("cpu", False)
            torch.set_autocast_dtype("cuda", dtype)
            torch.set_autocast_enabled("cuda", True)
            result = operation(*given, **named)
    except Exception:
        # whatever a fake tensor cannot do: there is nothing to be learnt then
        return None
    finally:
        torch.set_autocast_enabled("cuda", before)
        torch.set_autocast_dtype("cuda", kind)
        torch.set_autocast_enabled("cpu", inner)
    return result.dtype if isinstance(result, torch.Tensor) and result.is_floating_point() else None
