"""AMP108: one region runs a module without gradients first and with gradients later."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplint.finding import Confidence, Severity
from amplint.needles import CACHE_IS_CLEARED, ENABLES, REGION_OF_A_HELPER, TRAINS
from amplint.optable import LOWER_MODULES
from amplint.precision import Fact, Library, Opened, Unknown, facts_of, like_network
from amplint.rule import Fault, Rule, Site
from amplint.torch_facts import NO_GRAD_CAST_IS_CACHED

if TYPE_CHECKING:
    from amplint.analysis import Unit


class NoGradWeightCache(Rule):
    """A module runs under `no_grad` first and with gradients later in one autocast region of an older torch.

    ## What it does

    Reports a forward under `torch.no_grad()` (a block or a decorated function) or `torch.inference_mode()` when the
    same module runs again with gradients in the same autocast region, and the project targets torch 2.9 or older.

    ## Why is this bad

    Autocast casts each weight once per region and keeps the 16-bit copy. Torch up to 2.9 also keeps a copy that was
    made under `no_grad`. That copy has no graph: the later forward with gradients uses it, its output does not depend
    on the weights as far as autograd knows, and `weight.grad` stays `None`. Training goes on with the gradients of
    the remaining parameters, such as those of norm layers, or fails because the loss requires no gradient.

    The cast is tied to the state of the gradient mode since the fix; in torch 2.13 all orders of the two passes give
    the right gradients.

    ## Example

    ```python
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cuda")


    def train_step(weak, strong):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            with torch.no_grad():
                labels = model(weak).argmax(1)  # <- here
            loss = nn.functional.cross_entropy(model(strong), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return model[0].weight.grad


    for _ in range(3):
        train_step(torch.randn(4, 8, device="cuda"), torch.randn(4, 8, device="cuda"))
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cuda")


    def train_step(weak, strong):
        optimizer.zero_grad()
        with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
            labels = model(weak).argmax(1)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(strong), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return model[0].weight.grad


    for _ in range(3):
        train_step(torch.randn(4, 8, device="cuda"), torch.randn(4, 8, device="cuda"))
    ```

    ## Known limits

    - Reported only where both passes are seen to use the same module. A copy of it, or a wrapper that shares its
      weights, is taken for another module.
    - A file that clears the cache or switches it off by a call of its own is silent.
    - The exact release that carries the fix was not checked; the range of this rule ends with 2.9.

    ## Fix safety

    No fix. The region can be split or get `cache_enabled=False`; the first changes what is computed between the
    passes, the second costs one cast per use of a weight.

    ## How it is confirmed

    On a torch of that range the replay runs both passes in one region and looks for weights whose gradient is `None`
    after the backward. On a newer torch the fault is gone and the verdict is inconclusive: needs an older torch.

    ## References

    - `aten/src/ATen/autocast_mode.cpp`, `cached_cast`
    - https://github.com/pytorch/pytorch/issues/112583, https://github.com/pytorch/pytorch/issues/65766
    - https://github.com/pytorch/pytorch/pull/165068
    """

    code = "AMP108"
    name = "no-grad-weight-cache"
    severity = Severity.WARNING
    needles = ((ENABLES,), (b"no_grad", b"inference_mode", b"set_grad_enabled"), TRAINS)
    near = (REGION_OF_A_HELPER,)
    confirmed_by = "own"
    torch = NO_GRAD_CAST_IS_CACHED.bounds

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        waiting: dict[tuple[int, tuple[str, ...]], Fact] = {}
        for fact in facts_of(unit.env, unit.target):
            region = _cached_in(fact)
            key = _network(fact)
            if region is None or key is None:
                continue
            if _without_grad(fact):
                waiting.setdefault((region.number, key), fact)
                continue
            first = waiting.pop((region.number, key), None)
            if first is None or any(
                CACHE_IS_CLEARED.search(env.source.code) for env in (unit.env, first.env, fact.env)
            ):
                continue
            without, with_gradients = _apart(first, fact, region)
            yield Fault(
                without,
                "a pass under no_grad caches casts of the weights without a graph; the pass with gradients reuses them",
                ((with_gradients, "the same weights with gradients, in the same region"),),
                confidence=Confidence.HIGH if key[0] in ("own", "library") else Confidence.MEDIUM,
            )


def _network(fact: Fact) -> tuple[str, ...] | None:
    """What names the network that is called."""
    if fact.kind == "call" and isinstance(fact.receiver, Library):
        name = fact.receiver.last
        held = name in LOWER_MODULES or name.startswith(("Sequential", "Transformer"))
        return ("library", str(fact.receiver.where)) if held else None
    key = fact.receiver.key if fact.kind == "apply" and isinstance(fact.receiver, Unknown) else ()
    return key if key and key[0] in ("own", "param", "attr") and like_network(key) else None


def _cached_in(fact: Fact) -> Opened | None:
    """The outermost region, where the innermost one casts and no region says anything of the cache."""
    regions = [r for r in fact.regions if r.kind == "autocast"]
    if not regions or regions[-1].enabled is False or any(r.cache is not True for r in regions):
        return None
    return regions[0]


def _without_grad(fact: Fact) -> bool:
    modes = [r.kind for r in fact.regions if r.kind != "autocast"]
    return bool(modes) and modes[-1] == "no_grad"


def _apart(first: Fact, second: Fact, region: Opened) -> tuple[Site, Site]:
    """The two calls as the function that holds the region writes them; where it is one call, as that does."""
    depth = region.depth
    while min(len(first.calls), len(second.calls)) > depth and first.calls[depth].node is second.calls[depth].node:
        depth += 1
    sites = [fact.calls[depth] if len(fact.calls) > depth else fact.site for fact in (first, second)]
    return sites[0], sites[1]
