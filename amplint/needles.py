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
    re.compile(rb"dtype[\s\"'(]{0,40}[=:][\s(]{0,40}[\"']b?float16"),
    re.compile(rb"getattr\([^,()]{0,80},\s{0,40}[\"']b?(?:float16|half)"),
)

# Patterns begin with letters, for which a search is fast, and repeat nothing without a bound, so that no file takes
# more than linear time.


def spaced(pattern: bytes) -> re.Pattern[bytes]:
    """A pattern in which `~` stands for white space, if any, line continuations included."""
    return re.compile(pattern.replace(b"~", rb"[\s\\]{0,40}"), re.MULTILINE)


#: the name of the class, where it is not the first that is imported, nor defined
MENTIONED: Final = rb"(?<!import autocast)(?<!def autocast)"
#: the class, or what a module calls like it, under another name
RENAMED: Final = rb"\w{0,40}[\s\\]{1,40}as\b"
_DISABLED = rb"\w{0,40}~\(~(?:(?:[^()]{0,200},~)?enabled~=~)?False~[,)]"


def directly_behind(*heads: str) -> bytes:
    """A pattern for what stands before the name of autocast in its usual spellings, where it is none of these words."""
    modules = ("", "torch.", "torch.amp.", "torch.cuda.amp.", "torch.cpu.amp.", "amp.", "cuda.amp.")
    spellings = (f"{head}{module}autocast" for head in heads for module in modules)
    return b"".join(rb"(?<!%b)" % re.escape(spelling).encode() for spelling in spellings)


#: autocast where a region may be enabled: not a call that is given False
ENABLES: Final = spaced(rb"autocast(?:(?!%b)%b|%b)" % (_DISABLED, MENTIONED, RENAMED))

#: what makes tensors 16 bit
HALVES: Final = (*CASTS_TO_HALF, ENABLES)
#: half of what a rule about dtypes asks for: the region, or what hands a network to a helper that opens one
REGION_OR_TRAINING: Final = (
    ((ENABLES,),),
    ((b"optimizer", b"optim.", b"scaler", b"Scaler", b".fit(", b".train(", b".run("),),
)

#: the scaler's method, whether it is called or handed on
UNSCALES: Final = re.compile(rb"unscale_(?!\w)(?<!\wunscale_)")

#: a call that drops the 16-bit copies of weights that autocast keeps, or switches them off; in text, not in bytes
CACHE_IS_CLEARED: Final = re.compile(r"\b(clear_autocast_cache|set_autocast_cache_enabled)\(")

#: what a file holds that has to do with a scaler
SCALES: Final = (b".scale(", b"scaler", b"Scaler", UNSCALES)

#: half of what a rule about scalers asks for, where a helper in another file holds the rest
SCALER_HERE: Final = (SCALES,)
_OF_LIBRARIES = rb"(?:torch\.)?(?:nn\.)?Module\b|object\b|(?:\w{1,40}\.)?(?:Dataset|Function|Enum|Exception)\b"
#: a class that is derived from one of the project, by all that its head shows
DERIVED: Final = re.compile(rb"^class +\w{1,80}\((?!%b)\w" % _OF_LIBRARIES, re.MULTILINE)
#: the same for a rule about regions, where a helper or a base class opens them, or whoever calls an object
REGION_OF_A_HELPER: Final = ((b".backward(",), (b"with ", re.compile(rb"@\w"), DERIVED, b"def __call__("))
