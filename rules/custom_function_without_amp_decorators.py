"""AMP107: a custom autograd Function is applied under autocast without custom_fwd and custom_bwd."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from amplint.finding import Confidence, Severity
from amplint.layout import text_before
from amplint.names import Names, names_of
from amplint.needles import ENABLES, REGION_OR_TRAINING
from amplint.optable import LOWER
from amplint.precision import Fact, Own, Unknown, facts_of
from amplint.program import Call, Expr, Name, Op, Scope, expressions_of, parts_of, walk
from amplint.rule import Change, Fault, FixPlan, Rule, Site
from amplint.torch_facts import GENERIC_CUSTOM_FUNCTION, holds

if TYPE_CHECKING:
    from pathlib import Path

    from amplint.analysis import Unit
    from amplint.project import ModuleEnv


class CustomFunctionWithoutAmpDecorators(Rule):
    """A custom autograd Function with matrix products is applied under autocast without `custom_fwd` and `custom_bwd`.

    ## What it does

    Reports a subclass of `torch.autograd.Function` that is applied in an enabled autocast region, whose `forward` or
    `backward` multiplies matrices, convolves or calls an extension, and that has neither of the decorators
    `torch.amp.custom_fwd` and `torch.amp.custom_bwd`, or only one of them.

    ## Why is this bad

    The forward runs under autocast, so its products are made in 16 bit from fp32 inputs that it saves. The backward
    runs after the region, gets a 16-bit gradient, and multiplies it with the fp32 tensors: "expected m1 and m2 to
    have the same dtype". The very same class works when `backward()` is called inside the region, and when training
    runs in fp32, which is why the fault stays hidden until somebody uses it with mixed precision. Where the backward
    casts by hand, nothing is raised, but the result depends on where the backward is called: inside a region the
    gradients differed by 2.2e-3 (bf16) and 2.6e-4 (fp16). `custom_bwd` without `custom_fwd` looks for a state on the
    context that nobody has left there, and raises.

    `custom_fwd` notes whether autocast was on, and `custom_bwd` runs the backward in the same state. With
    `cast_inputs=torch.float32` both directions run in fp32 instead.

    ## Example

    ```python
    import torch
    from torch import nn


    class LowRank(torch.autograd.Function):  # <- here
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return x @ w

        @staticmethod
        def backward(ctx, grad):
            x, w = ctx.saved_tensors
            return grad @ w.t(), x.t() @ grad


    encoder, w = nn.Linear(8, 6).to("cuda"), nn.Parameter(torch.randn(6, 3, device="cuda"))
    optimizer = torch.optim.SGD([*encoder.parameters(), w], lr=0.05)
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(3):
        x, y = torch.randn(4, 8, device="cuda"), torch.randint(3, (4,), device="cuda")
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(LowRank.apply(encoder(x), w), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from torch.amp import custom_bwd, custom_fwd


    class LowRank(torch.autograd.Function):
        @staticmethod
        @custom_fwd(device_type="cuda")
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return x @ w

        @staticmethod
        @custom_bwd(device_type="cuda")
        def backward(ctx, grad):
            x, w = ctx.saved_tensors
            return grad @ w.t(), x.t() @ grad


    encoder, w = nn.Linear(8, 6).to("cuda"), nn.Parameter(torch.randn(6, 3, device="cuda"))
    optimizer = torch.optim.SGD([*encoder.parameters(), w], lr=0.05)
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(3):
        x, y = torch.randn(4, 8, device="cuda"), torch.randint(3, (4,), device="cuda")
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(LowRank.apply(encoder(x), w), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Known limits

    - Elementwise Functions work in any dtype and are not reported. A Function that casts both of its directions or
      disables autocast in them is taken to handle the dtypes itself.
    - `setup_context` Functions are judged by their `forward` and `backward` alone.
    - A Function that is applied only where no region is seen to be open is not reported.

    ## Fix safety

    Unsafe. Both decorators are added with the device type of the region. The dtype in which the Function computes
    then follows the region, also where its author relied on fp32; an extension that has no 16-bit kernels needs
    `cast_inputs=torch.float32`, which the fix cannot know.

    ## How it is confirmed

    The Function is applied under autocast and its backward is called outside of the region: the dtype mismatch
    confirms the finding. Where nothing is raised, the gradients are compared with those of the decorated Function.

    ## References

    - `torch/amp/autocast_mode.py`, `custom_fwd` and `custom_bwd`
    - https://docs.pytorch.org/docs/stable/notes/amp_examples.html#functions-with-multiple-inputs-or-autocastable-ops
    """

    code = "AMP107"
    name = "custom-function-without-amp-decorators"
    severity = Severity.WARNING
    needles = ((b"Function",), (b"def backward",), (b"autocast", b"custom_fwd", b"custom_bwd"))
    near = REGION_OR_TRAINING
    beyond = ((ENABLES,),)
    fix = "unsafe"
    confirmed_by = "raise"

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        applied = [f for f in facts_of(unit.env, unit.target) if f.kind == "apply"]
        met = {f.receiver.key for f in applied if isinstance(f.receiver, Unknown)}
        homes = (f.receiver.own.env for f in applied if isinstance(f.receiver, Unknown) and f.receiver.own is not None)
        for env in dict.fromkeys((unit.env, *homes)):
            for scope in env.program.scopes:
                if env is unit.env or _key(env, scope) in met:
                    yield from self._judged(unit, env, scope, applied)

    @staticmethod
    def _judged(unit: Unit, env: ModuleEnv, scope: Scope, applied: list[Fact]) -> Iterator[Fault]:
        names = names_of(env)
        forward, backward = scope.children.get("forward"), scope.children.get("backward")
        if forward is None or backward is None or not _is_function(names, scope) or scope.decorators:
            # a decorator of the class may decorate its methods
            return
        wears = (_decorated(names, forward, "custom_fwd", env), _decorated(names, backward, "custom_bwd", env))
        if all(wears) or not (_multiplies(names, forward) or _multiplies(names, backward)):
            return
        if not any(wears) and (_settles_dtypes(forward) or _settles_dtypes(backward)):
            return
        uses = [f for f in applied if isinstance(f.receiver, Unknown) and f.receiver.key == _key(env, scope)]
        inside = [f for f in uses if f.region is not None and f.region.enabled is not False]
        in_layer = [f for f in uses if f.region is None and f.scope.is_method and f.scope.name == "forward"]
        use = next(iter(inside or (in_layer if env is unit.env and _has_regions(unit) else ())), None)
        if use is None and (env is not unit.env or not any(wears)):
            return
        missing = " and ".join(n for n, worn in zip(("custom_fwd", "custom_bwd"), wears, strict=True) if not worn)
        yield Fault(
            Site(env.source, scope.node),
            f"this autograd function computes in 16-bit regions without {missing}",
            ((use.site, "applied here"),) if use is not None else (),
            confidence=Confidence.HIGH if inside else Confidence.MEDIUM,
            fix=_decorate(unit, env, (forward, backward), wears),
        )


#: a function with one of these words looks after dtypes itself
_OWN_CARE = frozenset({"float", "half", "bfloat16", "double", "dtype", "type_as", "autocast", "is_autocast_enabled"})
_EXTENSION = re.compile(r"(^|[._])(cuda|ext|extension|kernels?|_?C|triton|ops)([._]|$)")


def _is_function(names: Names, scope: Scope) -> bool:
    outer = scope.parent
    if scope.kind != "class" or outer is None:
        return False
    bases = {name for base in scope.bases for name in names.of(base, outer)}
    return not bases.isdisjoint({"torch.autograd.Function", "torch.autograd.function.Function"})


def _decorated(names: Names, method: Scope, name: str, module: ModuleEnv) -> bool:
    calls = {s.result: s.func for s in walk(method.prelude) if isinstance(s, Call)}
    for decorator in method.decorators:
        func: Expr = calls.get(decorator.id, decorator) if isinstance(decorator, Name) else decorator
        dotted = names.of(func, method.parent) if method.parent is not None else frozenset()
        written = getattr(func, "id", getattr(func, "name", ""))
        if any(name in d.rpartition(".")[2] for d in dotted) or name in written:
            return True
        if isinstance(func, Name) and _puts_on(module, func.id, name):
            return True
    return False


def _puts_on(module: ModuleEnv, helper: str, name: str) -> bool:
    """Whether a helper of the project puts a decorator on, or is one with arguments, as `partial` makes them."""
    homes: list[tuple[Path, str]] = []
    stmt = names_of(module).import_of(helper, module.program.body)
    if stmt is not None and stmt.member not in (None, "*") and module.file is not None:
        files = module.project.candidates(module.file, stmt.dotted, stmt.level)
        homes = [home for file in files if (home := module.project.definition(file, stmt.member)) is not None]
    if stmt is not None and name in (stmt.member or ""):
        return True
    if any(s.name == helper and name in s.words for s in module.program.scopes if s.kind == "function"):
        return True
    if re.search(rf"^{re.escape(helper)}\b[^\n]*\b{name}\b", module.source.code, re.MULTILINE):
        return True
    for file, other in homes:
        outline = module.project.outline(file)
        if name in outline.words_of_definitions.get(other, ()) or name.encode() in outline.assignments.get(other, b""):
            return True
    return False


def _multiplies(names: Names, method: Scope) -> bool:
    """Whether a method holds an operator that autocast runs in 16 bit, or hands tensors to an extension."""
    for stmt in method.statements:
        if any(isinstance(part, Op) and part.op == "@" for expr in expressions_of(stmt) for part in parts_of(expr)):
            return True
        if isinstance(stmt, Call):
            func = stmt.func
            last = getattr(func, "name", getattr(func, "id", ""))
            if last in LOWER:
                return True
            dotted = names.of(func, method)
            if any(not d.startswith(("torch.", "math.", "numpy.")) and _EXTENSION.search(d) for d in dotted):
                return True
    return False


def _settles_dtypes(method: Scope) -> bool:
    return not method.words.isdisjoint(_OWN_CARE)


def _key(env: ModuleEnv, scope: Scope) -> tuple[str, ...]:
    return ("function", *Own(env, scope).key)


def _has_regions(unit: Unit) -> bool:
    return any(f.region is not None and f.region.enabled is not False for f in facts_of(unit.env, unit.target))


def _decorate(unit: Unit, env: ModuleEnv, methods: tuple[Scope, Scope], wears: tuple[bool, bool]) -> FixPlan | None:
    """Write the missing decorators below `@staticmethod`."""
    if names_of(env).of(Name("torch"), methods[0]) != {"torch"}:
        return None
    current = holds(GENERIC_CUSTOM_FUNCTION, unit.target)
    changes = []
    for method, name, worn in zip(methods, ("custom_fwd", "custom_bwd"), wears, strict=True):
        if worn:
            continue
        node = method.node
        decorators = node.decorators if isinstance(node, cst.FunctionDef) else ()
        statics = [d.decorator for d in decorators if isinstance(d.decorator, cst.Name)]
        if len(statics) != 1 or statics[0].value != "staticmethod":
            return None
        site = Site(env.source, statics[0])
        indent = text_before(site).removesuffix("@")
        written = f'torch.amp.{name}(device_type="cuda")' if current else f"torch.cuda.amp.{name}"
        changes.append(Change("replace", site, f"staticmethod\n{indent}@{written}"))
    return FixPlan("unsafe", "decorate forward and backward", tuple(changes))
