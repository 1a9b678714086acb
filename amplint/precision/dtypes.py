"""The dtypes of results: what operators, functions and casts make of the tensors they are given.

Source: the lists of operators in `amplint.optable`, and "Automatic Mixed Precision package", "Op-Specific Behavior".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amplint import optable
from amplint.precision.guesses import like_device, like_number
from amplint.precision.values import (
    MORE,
    NOTHING,
    DtypeOf,
    Fact,
    Items,
    Library,
    Number,
    Opened,
    Tensor,
    Text,
    Unknown,
    Value,
    deciding,
    dtype_name,
)

if TYPE_CHECKING:
    from amplint.rule import Site

#: casts by method: the dtype, or None where the arguments tell
CASTS: dict[str, str | None] = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "bfloat16": "bfloat16",
    "to": None,
    "type": None,
    "type_as": None,
}
#: methods that leave the dtype of the tensor they are called on
IN_PLACE = frozenset(
    [
        "masked_fill_",
        "clamp_",
        "clamp_min_",
        "add_",
        "sub_",
        "mul_",
        "div_",
        "copy_",
        "fill_",
        "zero_",
        "relu_",
        "detach",
        "clone",
        "contiguous",
    ]
)
#: operations that show a tensor as it is, or copy it; none of them computes
VIEWS = frozenset(
    [
        "view",
        "reshape",
        "flatten",
        "transpose",
        "permute",
        "t",
        "squeeze",
        "unsqueeze",
        "expand",
        "expand_as",
        "repeat",
        "narrow",
        "select",
        "split",
        "chunk",
        "unbind",
        "contiguous",
        "clone",
        "detach",
        "swapaxes",
        "swapdims",
        "movedim",
        "unflatten",
        "view_as",
        "diagonal",
        "cpu",
        "cuda",
        "requires_grad_",
        "retain_grad",
        "gather",
        "index_select",
        "roll",
        "flip",
        "tile",
        "repeat_interleave",
        "broadcast_to",
    ]
)
_INTEGERS = frozenset("int8 int16 int32 int64 uint8 short int long bool LongTensor IntTensor BoolTensor".split())
#: functions of torch whose result says nothing about the dtypes that matter here
_OPAQUE = frozenset(
    ["tensor", "as_tensor", "stft", "istft", "view_as_real", "view_as_complex", "load", "save", "compile"]
)


def is_unsupported(fact: Fact) -> bool:
    """Whether an operator has no 16-bit kernel, or one for some sizes only."""
    package, _, name = fact.operation.rpartition(".")
    if package == "torch.fft":
        return name not in optable.FFT_OF_ANY_DTYPE
    if package == "torch.linalg":
        return name not in optable.LINALG_OF_ANY_DTYPE
    if package == "" and not isinstance(fact.receiver, Tensor):
        return False
    return package in ("", "torch") and name in optable.WITHOUT_HALF


class Dtypes:
    """The dtypes of what is computed under the regions that are open."""

    def __init__(self) -> None:
        self.regions: tuple[Opened, ...] = ()
        self.calls: tuple[Site, ...] = ()
        self.made = 0

    @property
    def inner(self) -> Opened | None:
        """The autocast region that decides."""
        return deciding(self.regions)

    def tensor(self, dtype: str, sure: bool = True, decided: int | None = None) -> Tensor:
        """A tensor that is computed here; `decided` tells where its dtype was, if not here."""
        region = self.inner
        self.made += 1
        depth = len(self.calls) if decided is None else decided
        return Tensor(dtype, sure, region.number if region is not None else 0, self.made, depth)

    def product(self, args: list[Value]) -> Value:
        """The result of an operator that autocast runs in 16 bit."""
        region = self.inner
        if region is not None and region.enabled is not False:
            if region.dtype is None:
                return NOTHING
            if any(isinstance(a, Tensor) and a.dtype == "float64" for a in args):
                return NOTHING
            return self.tensor(region.dtype)
        return self.kept(args)

    def raised(self, args: list[Value]) -> Value:
        """The result of an operator that autocast runs in fp32."""
        region = self.inner
        if region is not None and region.enabled is not False:
            if region.enabled is None and region.dtype is None:
                return NOTHING
            return self.tensor("float32") if region.device != "cpu" else self.kept(args)
        return self.kept(args)

    def kept(self, args: list[Value]) -> Value:
        """The result of an operator that follows its inputs."""
        return self.promoted("+", [a for a in args if isinstance(a, Tensor)])

    def promoted(self, op: str, args: list[Value]) -> Value:
        """The result of an operator that takes the widest dtype of its inputs."""
        tensors = [a for a in args if isinstance(a, Tensor)]
        if not tensors:
            return Number() if args and all(isinstance(a, Number) for a in args) else NOTHING
        dtypes = {t.dtype for t in tensors} - {"other"}
        if not dtypes:
            return tensors[0] if len(tensors) == len(args) else NOTHING
        dtype = (
            next(iter(dtypes))
            if len(dtypes) == 1
            else "float32"
            if dtypes <= {"float16", "bfloat16", "float32"}
            else None
        )
        if dtype is None:
            return NOTHING
        sure = all(t.sure for t in tensors)
        strangers = [a for a in args if not isinstance(a, (Tensor, Number))]
        if strangers and dtype != "float32":
            if op not in ("*", "/") or not all(map(like_number, strangers)):
                return NOTHING
            sure = False
        return self.tensor(dtype, sure, max(t.decided for t in tensors))

    def function(self, name: str, positional: list[Value], keywords: dict[str, Value]) -> Value:
        """The result of a function of torch, or of the method of its name."""
        args = [*positional, *keywords.values()]
        plain = name.rstrip("_") or name
        if name in ("tensor", "as_tensor", "scalar_tensor") and positional and isinstance(positional[0], Number):
            # without dimensions it decides no dtype, as a number does not
            return positional[0]
        if "dtype" in keywords:
            dtype = dtype_name(keywords["dtype"])
            return self.tensor(dtype, True) if dtype is not None else NOTHING
        if MORE in keywords and plain not in optable.LOWER:
            # a dtype may be among them
            return NOTHING
        if name in optable.FACTORIES:
            return (
                self.tensor("float32", True)
                if name not in ("arange", "tensor", "as_tensor", "full", "from_numpy")
                else NOTHING
            )
        if name in optable.NO_FLOAT:
            return Tensor("other")
        if plain in optable.LOWER:
            return self.product(args)
        if plain in optable.RAISED:
            return self.raised(args)
        if name in ("cat", "concat", "stack", "hstack", "vstack", "meshgrid"):
            parts = [v for a in args for v in (a.values if isinstance(a, Items) else (a,)) if not isinstance(a, Number)]
            return self.promoted("+", parts)
        if name == "where" and len(positional) == 3:
            return self.promoted("+", positional[1:])
        if plain in optable.WIDEST:
            return self.promoted("*" if plain in ("mul", "multiply", "div", "divide") else "+", positional)
        if name in ("einsum",):
            return self.product(args)
        first = next((a for a in positional if isinstance(a, (Tensor, Unknown))), NOTHING)
        if name in VIEWS:
            return first
        if not isinstance(first, Tensor) or name in _OPAQUE:
            return NOTHING
        result = self.tensor(first.dtype, first.sure, first.decided)
        dimension = name in optable.WITH_INDICES_OF_A_DIMENSION and (len(positional) > 1 or "dim" in keywords)
        if dimension and len(positional) > 1 and not isinstance(positional[1], (Number, Unknown)):
            return self.promoted("+", positional)
        return Items((result, Tensor("other"))) if dimension or name in optable.WITH_INDICES else result

    @staticmethod
    def scalar(name: str, positional: list[Value]) -> Value:
        """The result of a function of numbers."""
        first = positional[0] if positional else NOTHING
        if name == "float" and isinstance(first, Text):
            try:
                return Number(float(first.value))
            except ValueError:
                return Number()
        if name in ("float", "abs") and isinstance(first, Number) and first.value is not None:
            return Number(abs(first.value) if name == "abs" else first.value)
        return first if name == "abs" and isinstance(first, Tensor) else Number()

    def cast(self, base: Value, name: str, positional: list[Value], keywords: dict[str, Value]) -> Value:
        """The result of a cast by method."""
        fixed = CASTS[name]
        if fixed is not None:
            return self.tensor(fixed, True)
        if name == "type_as":
            other = positional[0] if positional else NOTHING
            return self.tensor(other.dtype, other.sure) if isinstance(other, Tensor) else NOTHING
        if MORE in keywords:
            return NOTHING
        if any(
            isinstance(v, Library) and v.dotted.removeprefix("torch.") in _INTEGERS
            for v in (*positional, *keywords.values())
        ):
            return Tensor("other")
        asked = [v for v in (*positional, keywords.get("dtype")) if isinstance(v, (DtypeOf, Tensor)) or dtype_name(v)]
        if not asked:
            loose = [
                v for v in (*positional, keywords.get("dtype")) if isinstance(v, Unknown) and not like_device(v.key)
            ]
            return NOTHING if loose or not isinstance(base, Tensor) else base
        wanted = asked[0]
        source = wanted.tensor if isinstance(wanted, DtypeOf) else wanted
        if isinstance(source, Tensor):
            return self.tensor(source.dtype, source.sure)
        dtype = dtype_name(wanted)
        return self.tensor(dtype, True) if dtype is not None else NOTHING
