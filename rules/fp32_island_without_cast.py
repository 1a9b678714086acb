"""AMP106: a disabled autocast block computes on the 16-bit tensors of the region around it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from amplint.finding import Confidence, Severity
from amplint.needles import ENABLES, REGION_OR_TRAINING
from amplint.optable import NO_FLOAT
from amplint.precision import MORE, VIEWS, Fact, Number, Own, Tensor, facts_of, is_unsupported
from amplint.rule import Change, Fault, FixPlan, Rule, Site

if TYPE_CHECKING:
    from amplint.analysis import Unit


#: methods of dicts, lists and records of tensors, which a tensor does not have
_OF_CONTAINERS = frozenset("items keys values get pop copy update setdefault append extend to_tuple _asdict".split())
#: what moves, bounds or compares numbers and computes none: a cast behind it loses nothing
_EXACT = frozenset(
    "cat concat stack hstack vstack where masked_fill masked_select max min amax amin argmax argmin topk sort argsort "
    "gather index_select take flip roll repeat tile isfinite isnan isinf is_tensor new_zeros new_ones new_full "
    "zeros_like ones_like full_like empty_like copy_ clamp clamp_ clip nan_to_num nan_to_num_ relu relu_ abs neg sign "
    "maximum minimum save result_type".split()
)
#: the functions and modules of torch that compute; others communicate, write, or call what they are given
_COMPUTING = re.compile(r"torch\.(?:(?:nn\.(?:functional\.|modules\.\w+\.)?|linalg\.|fft\.|special\.)?\w+)$")
#: functions whose result is fp32 as soon as one operand is
_PROMOTING = frozenset("add sub subtract mul multiply div divide true_divide pow rsub lerp addcmul addcdiv".split())


class Fp32IslandWithoutCast(Rule):
    """A disabled autocast block computes on the 16-bit tensors of the region around it, without a cast.

    ## What it does

    Reports an operation inside `torch.autocast(..., enabled=False)` that takes a tensor which an enabled outer region
    made in 16 bit, and does not cast it with `.float()` first. The block may be a `with` statement or a decorated
    function that is called from a region.

    ## Why is this bad

    `enabled=False` only stops further casts. It does not turn a tensor back to fp32, so that the block which was
    meant as an fp32 island computes in 16 bit all the same. Operations without weights do so silently: `exp` of an
    fp16 tensor that holds 12 is infinite instead of 162754.79. A layer with fp32 weights raises a dtype mismatch
    ("expected m1 and m2 to have the same dtype"), and so does a product of which one operand was cast and the other
    one was not.

    ## Example

    ```python
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cuda")


    def train_step(x):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            energy = model(x)
            with torch.autocast("cuda", enabled=False):
                weight = torch.exp(12 + energy)  # <- here
                loss = torch.log(weight.mean())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()


    print([train_step(torch.randn(8, 8, device="cuda")) for _ in range(3)])
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cuda")


    def train_step(x):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            energy = model(x)
            with torch.autocast("cuda", enabled=False):
                weight = torch.exp(12 + energy.float())
                loss = torch.log(weight.mean())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()


    print([train_step(torch.randn(8, 8, device="cuda")) for _ in range(3)])
    ```

    ## Known limits

    - A tensor whose dtype is not known, for example an argument of a `forward` that nobody is seen to call in a
      region, is taken for fp32.
    - A callee that casts its arguments is recognised; a callee that is not seen is trusted.
    - A loss that is only scaled and backpropagated in the block is left alone.

    ## Fix safety

    Unsafe. `.float()` is added to the tensor: the block then takes more memory and its results change, which is what
    it was written for, but a caller may have got used to 16-bit results.

    ## How it is confirmed

    The verifier executes the block and looks at the dtypes: an operation of the block that gets a 16-bit tensor
    confirms the finding, as does the dtype mismatch that torch raises. Cuda and cpu keep different lists of operators
    that run in fp32; what the outer region hands on is decided with fake tensors for cuda.

    ## References

    - `torch/amp/autocast_mode.py`, docstring of `autocast`, on `enabled=False` subregions
    - https://docs.pytorch.org/docs/stable/amp.html#cuda-op-specific-behavior
    """

    code = "AMP106"
    name = "fp32-island-without-cast"
    severity = Severity.WARNING
    needles = ((ENABLES,), (b"False",))
    near = REGION_OR_TRAINING
    beyond = ((ENABLES,),)
    fix = "unsafe"
    confirmed_by = "state"

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        seen: set[tuple[int, int]] = set()
        for fact in facts_of(unit.env, unit.target):
            island = fact.region
            if island is None or island.enabled is not False or not _computes(fact):
                continue
            outer = {r.number for r in fact.regions if r.kind == "autocast" and r.enabled is not False}
            for tensor in fact.operands:
                if not isinstance(tensor, Tensor) or tensor.dtype not in ("float16", "bfloat16"):
                    continue
                if tensor.born == island.number or not outer or (island.number, tensor.origin) in seen:
                    continue
                seen.add((island.number, tensor.origin))
                yield Fault(
                    fact.site,
                    f"a {tensor.dtype} tensor of the region around is used in a disabled block without .float()",
                    (*(((island.site, "autocast is disabled here"),) if island.site is not None else ()), *fact.steps),
                    confidence=Confidence.HIGH if tensor.sure else Confidence.MEDIUM,
                    fix=_cast(fact.site, fact, tensor),
                )


def _computes(fact: Fact) -> bool:
    """Whether an operation runs in the dtype of its operands, so that a 16-bit one decides."""
    if fact.kind == "binary":
        if fact.operation == "@":
            return True
        if fact.operation == "+" and not any(isinstance(v, Tensor) and v.sure for v in fact.arguments):
            # two lists of tensors are joined like this
            return False
        # an fp32 operand makes the result fp32, and an unknown one may
        return all(isinstance(v, (Number, Tensor)) for v in fact.arguments) and not any(
            isinstance(v, Tensor) and v.dtype in ("float32", "float64") for v in fact.arguments
        )
    name = fact.operation.rpartition(".")[2]
    operands = [fact.receiver, *fact.arguments] if isinstance(fact.receiver, Tensor) else fact.arguments
    if name in _PROMOTING and any(
        not isinstance(v, (Number, Tensor)) or (isinstance(v, Tensor) and v.dtype in ("float32", "float64"))
        for v in operands
    ):
        return False
    return (
        fact.kind == "call"
        and (_COMPUTING.match(fact.operation) is not None or "." not in fact.operation)
        and not any(isinstance(v, Own) for v in fact.arguments)
        and name not in NO_FLOAT
        and name not in VIEWS
        and name not in _EXACT
        and name not in _OF_CONTAINERS
        and fact.keywords.keys().isdisjoint(("dtype", MORE))
        and not is_unsupported(fact)
    )


def _cast(site: Site, fact: Fact, tensor: Tensor) -> FixPlan | None:
    """Cast the argument of a call where it is a name of its own."""
    node = site.node
    if not isinstance(node, cst.Call) or tensor not in fact.arguments:
        return None
    arguments = [a for a in node.args if a.keyword is None and not a.star]
    position = fact.arguments.index(tensor)
    if position >= len(arguments) or not isinstance(arguments[position].value, (cst.Name, cst.Attribute)):
        return None
    value = Site(site.module, arguments[position].value)
    text = f"{site.module.segment(value.node)}.float()"
    return FixPlan("unsafe", f"write {text}", (Change("replace", value, text),))
