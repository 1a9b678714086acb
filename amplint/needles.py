"""Byte strings that the needles of several rules share (see `amplint.rule.Rule.needles`)."""

from __future__ import annotations

from typing import Final

#: what a file that trains holds, even one that leaves the backward or the step to a helper in another file
TRAINS: Final = (b"backward(", b"autograd", b"scaler", b"optimizer", b"optimize(", b"optim.", b".step(", b"zero_grad")

#: how a tensor or a model is cast to fp16 by hand
CASTS_TO_HALF: Final = (b".half", b"HalfTensor", b"float16")

#: what a file holds that drives a scaler, even one whose `update()` and `step` stand in a helper of another file
DRIVES_SCALER: Final = (b".scale(", b"scaler", b"Scaler", b"unscale_", b".backward(")

#: a word that shows that a file knows of mixed precision, if only by the name of what it imports
KNOWS_AMP: Final = (b"autocast", b"scaler", b"Scaler", b"AMP", b"Amp", b"amp_")
