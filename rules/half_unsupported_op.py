"""AMP406: an operator without an fp16 kernel gets the 16-bit output of a region."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from amplint.finding import Severity
from amplint.needles import ENABLES, HALVES, REGION_OR_TRAINING
from amplint.optable import WITHOUT_HALF
from amplint.precision import Fact, Tensor, facts_of, is_unsupported
from amplint.rule import READ_IN_HELPER, Change, Fault, FixPlan, Rule, Site

if TYPE_CHECKING:
    from amplint.analysis import Unit


class HalfUnsupportedOp(Rule):
    """An operator that has no fp16 kernel gets the 16-bit output of an autocast region.

    ## What it does

    Reports Fourier transforms (`torch.fft`, `torch.stft`) and linear algebra (`torch.linalg`, `torch.cholesky`,
    `torch.svd` and the like) on a tensor that a layer or a product made in an fp16 region, or that was cast to half
    by hand, without `.float()` in between.

    ## Why is this bad

    These operators have no fp16 kernel, and autocast for cuda leaves them alone instead of casting their input to
    fp32. They raise at run time: `"linalg_svd_cpu" not implemented for 'Half'`, `Unsupported dtype Half`. The Fourier
    transform of cuda accepts fp16 for sizes that are powers of two only, so that a program runs until somebody
    changes the size of its input. On cpu autocast does cast the same operators, which is why tests without a GPU
    pass.

    ## Example

    ```python
    import torch
    from torch import nn

    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 6)).to("cuda").eval()


    def effective_rank(batch):
        with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
            codes = encoder(batch)
        strength = torch.linalg.svdvals(codes)  # <- here
        share = strength / strength.sum()
        return torch.exp(-(share * share.log()).sum()).item()


    for _ in range(2):
        print(effective_rank(torch.randn(20, 12, device="cuda")))
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn

    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 6)).to("cuda").eval()


    def effective_rank(batch):
        with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
            codes = encoder(batch)
        strength = torch.linalg.svdvals(codes.float())
        share = strength / strength.sum()
        return torch.exp(-(share * share.log()).sum()).item()


    for _ in range(2):
        print(effective_rank(torch.randn(20, 12, device="cuda")))
    ```

    ## Known limits

    - Reported only where the input is known to be 16 bit. Inputs that were fp32 all along stay fp32 in a region.
    - `torch.stft` with an fp32 window is right: the product of the signal and the window is fp32.
    - A helper function of another module that is handed such a tensor is reported at the call, since it is right for
      what others give it.
    - The set of operators with 16-bit kernels grows with the versions of torch; one that your version supports needs
      a suppression.

    ## Fix safety

    Unsafe. `.float()` is added to the input: the result is fp32 and takes more memory, and what follows in the region
    is cast again.

    ## How it is confirmed

    The operator is executed on an fp16 tensor of the same shape: "not implemented for 'Half'" and its relatives
    confirm the finding. What autocast on cuda makes of the call is decided with fake tensors where there is no GPU.

    ## References

    - `aten/src/ATen/autocast_mode.h`, the lists of operators for each device
    - https://docs.pytorch.org/docs/stable/amp.html#cuda-op-specific-behavior
    - https://docs.pytorch.org/docs/stable/fft.html
    """

    code = "AMP406"
    name = "half-unsupported-op"
    severity = Severity.WARNING
    needles = (
        HALVES,
        (
            b"fft",
            b"linalg",
            re.compile(rb"\b(?:" + "|".join(sorted(WITHOUT_HALF)).encode() + rb")\b"),
        ),
    )
    near = REGION_OR_TRAINING
    beyond = ((ENABLES,),)
    fix = "unsafe"
    confirmed_by = "raise"

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        for fact in facts_of(unit.env, unit.target):
            if fact.kind != "call" or not is_unsupported(fact):
                continue
            operands = [v for v in fact.operands if isinstance(v, Tensor)]
            first = operands[0] if operands else None
            if first is None or not first.sure or first.dtype not in ("float16", "bfloat16"):
                continue
            island = fact.region
            if island is not None and island.enabled is False and first.born == island.number:
                # what was computed before in the block is what has to change
                continue
            if fact.operation.endswith("stft") and any(v.dtype == "float32" for v in operands[1:]):
                # the product with the window is fp32
                continue
            name = fact.operation.removeprefix("torch.")
            asked = fact.asked(first)
            if asked is not None:
                # the helper is right for what others give it
                message = f"a helper is given a {first.dtype} tensor, for which {name} is not (fully) implemented"
                yield Fault(asked, message, ((fact.site, READ_IN_HELPER), *fact.steps[:1]))
                continue
            yield Fault(
                fact.site,
                f"{name} is given a {first.dtype} tensor, for which it is not (fully) implemented",
                fact.steps,
                fix=None if isinstance(fact.receiver, Tensor) else _cast(fact),
            )


def _cast(fact: Fact) -> FixPlan | None:
    """Cast the tensors that the operator is given, where they are names of their own."""
    call = fact.site.node
    if not isinstance(call, cst.Call) or not call.args or any(arg.star for arg in call.args):
        return None
    changes: list[Change] = []
    texts: list[str] = []
    for arg, value in zip(call.args, (*fact.arguments, *fact.keywords.values()), strict=False):
        if not isinstance(value, Tensor) or value.dtype not in ("float16", "bfloat16"):
            continue
        if arg.keyword is not None or not isinstance(arg.value, (cst.Name, cst.Attribute)):
            return None
        site = Site(fact.site.module, arg.value)
        texts.append(f"{site.module.segment(arg.value)}.float()")
        changes.append(Change("replace", site, texts[-1]))
    return FixPlan("unsafe", f"write {' and '.join(texts)}", tuple(changes)) if changes else None
