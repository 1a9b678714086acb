"""Byte strings that the needles of several rules share (see `amplint.rule.Rule.needles`)."""

from __future__ import annotations

import re
from typing import Final

#: what a file that trains holds, even one that leaves the backward or the step to a helper in another file
TRAINS: Final = (b"backward(", b"autograd", b"scaler", b"optimizer", b"optimize(", b"optim.", b".step(", b"zero_grad")

#: how a tensor or a model is cast to 16 bits by hand: the dtype by its name, and not as one of the values of an option
CASTS_TO_HALF: Final = (
    b".half",
    b"HalfTensor",
    re.compile(rb"float16(?:(?<![\w\"']float16)|(?<=[^\w\"']bfloat16))"),
    re.compile(rb"dtype\s*=\s*[\"']b?float16"),
)

#: autocast where a region may be enabled: neither an import, nor a definition of that name, nor a call that is given
#: False; it begins with the word, which is what the search for it is fast with
ENABLES: Final = re.compile(
    rb"autocast(?:(?!\w*[ \t]*\(\s*(?:(?:[^()]*,\s*)?enabled\s*=\s*)?False\b)(?<!import autocast)(?<!def autocast)"
    rb"(?!(?<=, autocast)[ \t]*$)|[ \t]+as\b)",
    re.MULTILINE,
)

#: the scaler's method, whether it is called or handed on
UNSCALES: Final = re.compile(rb"unscale_(?!\w)(?<!\wunscale_)")

#: what a file holds that has to do with a scaler
SCALES: Final = (b".scale(", b"scaler", b"Scaler", UNSCALES)
