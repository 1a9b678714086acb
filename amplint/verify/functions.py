"""The user's own `torch.autograd.Function` classes: real ones whose directions are interpreted."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from amplint.verify import device
from amplint.verify.objects import AmpDecorated, UserClass
from amplint.verify.plain import Unsupported
from amplint.verify.standins import fitted

if TYPE_CHECKING:
    from amplint.verify.surroundings import Surroundings

#: methods of a context that do nothing to what is computed
QUIET = {"mark_dirty", "mark_non_differentiable", "set_materialize_grads"}


class Context:
    """What a Function passes from its forward to its backward."""

    def __init__(self, real: Any) -> None:
        self.real = real
        self.values: dict[str, object] = {}

    def get(self, name: str) -> object:
        """An attribute; raises AttributeError where neither the program nor torch has set it."""
        if name in ("saved_tensors", "needs_input_grad"):
            return getattr(self.real, name)
        if name not in self.values:
            raise AttributeError(f"the context has no attribute '{name}'")
        return self.values[name]

    def save(self, values: list[object]) -> None:
        self.real.save_for_backward(*(v if isinstance(v, Tensor) else None for v in values))


def is_function(cls: UserClass) -> bool:
    """Whether a class extends torch's Function."""
    return (cls.library_base() or "").rsplit(".", 1)[-1] == "Function"


def applied(world: Surroundings, cls: UserClass, args: list[object]) -> Any:
    """What `cls.apply(*args)` gives: forward now, backward when torch asks for it.

    With `run.decorated` a class without `custom_fwd` and `custom_bwd` gets both. Raises Unsupported for a class
    whose directions are not both its own.
    """
    forward, backward = _direction(cls, "forward"), _direction(cls, "backward")
    if forward is None or backward is None:
        raise Unsupported("an autograd Function without a forward and a backward of its own")
    shapes: list[Any] = []

    def ahead(real: Any, *inputs: Any) -> Any:
        real.replay = Context(real)
        shapes[:] = [i.shape if isinstance(i, Tensor) else None for i in inputs]
        made = world.inside(cls, _plain(forward), [real.replay, *inputs])
        return _tensors(world, made)

    def back(real: Any, *gradients: Any) -> Any:
        real.replay.real = real
        world.reversed_functions.append(cls.name)
        made = world.inside(cls, _plain(backward), [real.replay, *gradients])
        given = list(made) if isinstance(made, list | tuple) else [made]
        given = (given + [None] * len(shapes))[: len(shapes)]
        return tuple(_shaped(world, g, s) for g, s in zip(given, shapes, strict=True))

    pieces = {"forward": _dressed(world, forward, ahead, True), "backward": _dressed(world, backward, back, False)}
    real = type(cls.name, (torch.autograd.Function,), {k: staticmethod(v) for k, v in pieces.items()})
    inputs = [world.actual(a) for a in args]
    return world.guarded(lambda: real.apply(*inputs))  # type: ignore[attr-defined]


def _direction(cls: UserClass, name: str) -> object | None:
    found = cls.find(name)
    return found[1] if isinstance(found, tuple) and len(found) == 2 else found


def _plain(function: object) -> object:
    while isinstance(function, AmpDecorated):
        function = function.function
    return function


def _dressed(world: Surroundings, function: object, call: Callable[..., Any], forward: bool) -> Callable[..., Any]:
    """The call in the decorators that the program has on it, made for the device of the replay."""
    kind, settings = ("custom_fwd" if forward else "custom_bwd"), None
    if isinstance(function, AmpDecorated):
        kind, settings = function.name, function.settings
    elif not world.run.decorated:
        return call
    wanted = {"device_type": device.kind()}
    if settings and isinstance(settings.get("cast_inputs"), torch.dtype):
        wanted["cast_inputs"] = settings["cast_inputs"]  # type: ignore[assignment]
    decorate: Any = getattr(torch.amp, kind, None)
    if decorate is None:
        raise Unsupported("custom_fwd and custom_bwd of a torch before 2.4")
    return decorate(call, **wanted) if forward else decorate(call, device_type=device.kind())  # type: ignore[no-any-return]


def _tensors(world: Surroundings, made: object) -> Any:
    if isinstance(made, tuple | list):
        return tuple(_tensors(world, m) for m in made)
    actual = world.actual(made)
    if not isinstance(actual, Tensor):
        raise Unsupported("an autograd Function whose forward gives no tensor")
    return actual


def _shaped(world: Surroundings, gradient: object, shape: Any) -> Tensor | None:
    """A gradient in the shape of its input: stand-ins all have one shape, whatever the program sums over."""
    if shape is None or gradient is None:
        return None
    actual = world.actual(gradient)
    if not isinstance(actual, Tensor):
        raise Unsupported("an autograd Function whose backward gives no tensor")
    if actual.shape == shape:
        return actual
    whole = fitted(actual).to(actual.dtype)
    return whole if whole.shape == shape else whole.reshape(-1)[:1].expand(shape)
