"""Byte strings that the needles of several rules share (see `amplint.rule.Rule.needles`)."""

from __future__ import annotations

from typing import Final

#: how a file opens an enabled autocast region, or shows that it knows of one: a device without more (fp16 by default on
#: cuda), a 16-bit dtype, a scaler. A file that only switches autocast off (`enabled=False`) holds none of them.
OPENS_REGION: Final = (
    b"autocast()",
    b'autocast("',
    b"autocast('",
    b"autocast(device)",
    b"autocast(device,",
    b"autocast(self.",
    b'device_type="cuda"',
    b"device_type='cuda'",
    b"dtype=torch.float16",
    b" = torch.float16",
    b", torch.float16",
    b"dtype=torch.half",
    b"dtype=torch.bfloat16",
    b", torch.bfloat16",
    b"enabled=True",
    b"scaler",
)

#: what a file that trains holds, even one that leaves the backward or the step to a helper in another file
TRAINS: Final = (b"backward(", b"autograd", b"scaler", b"optimizer", b"optimize(", b"optim.", b".step(", b"zero_grad")

#: how a tensor or a model is cast to fp16 by hand
CASTS_TO_HALF: Final = (
    b".half()",
    b"HalfTensor",
    b".to(torch.float16",
    b".to(torch.half",
    b"dtype=torch.float16",
    b"dtype=torch.half",
)

#: what a file holds that drives a scaler, even one whose `update()` and `step` stand in a helper of another file
DRIVES_SCALER: Final = (b".scale(", b"scaler", b"Scaler", b"unscale_", b"backward(")
