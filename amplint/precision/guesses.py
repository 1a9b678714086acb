"""What the names of unknown values say: which of them is a network, a number, a device, a decorator that casts."""

from __future__ import annotations

import re

from amplint.precision.values import Unknown, Value

_NOT_NETWORKS = re.compile(
    r"loss|criter|(^|_)(metric|fn|func|device|norm|aug|prep|token|transform(?!er)|sampl|sched|get|log|print|collate|"
    r"callback|scal|optim|step|dist|noise|mask|time)|parameters$|modules$|children$|buffers$|state_dict$"
)
_NETWORKS = re.compile(
    r"net|model|encod|decod|backbone|head|proj|layer|block|linear|^fc|conv|(^|_)att(n|ention)|mlp|ffn|embed|former|"
    r"generator|critic|discriminator|classif|teacher|student|actor|policy|module|vae|(^|_)clip_|forward"
)
#: parts of the key of a parameter or attribute itself: its kind, its owner and its name
OF_ITSELF = 3
#: names of decorators, and words in those that the project defines, that may have to do with dtypes
CASTING_NAME = re.compile(r"fp16|fp32|bf16|float|half|amp|cast|precision|dtype", re.IGNORECASE)
CASTING_WORDS = frozenset("float half to type bfloat16 autocast dtype float32 float16 custom_fwd".split())
_NUMBERS = re.compile(
    r"scal(e|ing)|sqrt|temp(erature)?$|(^|_)tau$|dim$|(^|_)d_?k$|size|(^|_)(num|n|len|length)(_|$)|factor|coeff?|"
    r"alpha|lambda"
)


def like_network(key: tuple[str, ...]) -> bool:
    """Whether something unknown that is called is a network, as far as its name tells. What is called on a parameter or
    an attribute may as well be a method of a tensor, and has to be called like a network."""
    last = key[-1].lower()
    if last.startswith("_") or _NOT_NETWORKS.search(last):
        return False
    return key[0] not in ("param", "attr") or len(key) <= OF_ITSELF or _NETWORKS.search(last) is not None


def like_number(value: Value) -> bool:
    """Whether something unknown is a Python number, as far as its name tells."""
    return isinstance(value, Unknown) and bool(value.key) and _NUMBERS.search(value.key[-1].lower()) is not None


def like_device(key: tuple[str, ...]) -> bool:
    """Whether something unknown is a device, as far as its name tells."""
    return bool(key) and any(word in key[-1].lower() for word in ("device", "rank", "gpu", "cuda"))
