"""What a replay knows before it runs: flagged places, given flags and numbers, who owns which weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from amplint.verify.guesses import (
    FROZEN,
    affinity,
    constructed,
)
from amplint.verify.objects import (
    EXCEPTION,
    Unknown,
    UserClass,
)

if TYPE_CHECKING:
    from amplint.verify.surroundings import Surroundings


class Plan:
    """What a replay knows before it runs: flagged places, given flags and numbers, who owns which weights."""

    def __init__(
        self,
        flagged: list[tuple[str, int, int]],
        wanted: list[tuple[str, int]],
        flags: dict[str, bool],
        numbers: dict[str, float],
        events: dict[str, set[int]],
        jumps: dict[str, set[int]],
        raises: dict[str, set[int]],
        tries: dict[str, list[tuple[int, int, str]]],
        classes: set[str],
        model_names: set[str],
        length: int,
        short: bool = False,
    ) -> None:
        self._flagged = flagged
        self.wanted = wanted
        self.flags = flags
        self.numbers = numbers
        self._events = events
        self._jumps = jumps
        self._raises = raises
        self._tries = tries
        self._classes = classes
        self._model_names = model_names
        self.length = length
        #: whether intervals that are longer than the loops are cut to 2
        self.short = short
        self.assignment: dict[str, list[tuple[str, int, int]]] | None = None
        self.default_dtype: torch.dtype | None = None
        self.random = 0

    def flagged(self, path: str, line: int) -> bool:
        return any(p == path and first <= line <= last for p, first, last in self._flagged)

    def flag(self, label: str) -> bool | None:
        for key in (label, label.rsplit(".", 1)[-1]):
            if key in self.flags:
                return self.flags[key]
        return None

    def has_events(self, path: str, arm: tuple[int, int]) -> bool:
        return arm != (0, 0) and any(arm[0] <= line <= arm[1] for line in self._events.get(path, ()))

    def raises(self, path: str, arm: tuple[int, int]) -> bool:
        """Whether an arm ends in an exception."""
        return arm == EXCEPTION or arm[1] in self._raises.get(path, ())

    def jumps(self, path: str, arm: tuple[int, int]) -> bool:
        return arm[1] in self._jumps.get(path, ())

    def caught(self, path: str, line: int) -> str | None:
        """What the first handler of the `try` around a line catches ("" for everything), None without one."""
        return next((kind for first, last, kind in self._tries.get(path, ()) if first <= line <= last), None)

    def interesting(self, cls: UserClass) -> bool:
        return cls.name in self._classes

    def used_as_model(self, name: str) -> bool:
        return name in self._model_names

    # -------------------------------------------------- who owns which weights

    def parameters_of(self, world: Surroundings, label: str) -> list[nn.Parameter]:
        """The weights that an optimizer (or a `params` argument) of that name works on.

        After a first run the shares are settled (`assignment`): then all networks and optimizers are known.
        """
        shares = self.assignment if self.assignment is not None else self.assign(world)
        if label not in shares:
            claimed = self._claimed(world)
            models = {name: m for name, m in world.models.items() if not FROZEN.search(name)}
            if len(models) > 1:
                best = max(models, key=lambda name: affinity(label, name))
                if affinity(label, best) > 0:
                    return list(models[best].parameters())
            return [p for p in unique_parameters_of(models.values()) if id(p) not in claimed] or unique_parameters_of(
                models.values()
            )
        out: list[nn.Parameter] = []
        for name, offset, stride in shares[label]:
            model = world.models.get(name)
            if model is None and not constructed(name) and "#" not in name:
                model = world.model(name)
                unknown = Unknown(name)
                world.roles.setdefault(name, model)
                unknown.bound = model
            if model is not None:
                layers = list(model.parameters())
                pairs = [layers[i : i + 2] for i in range(0, len(layers), 2)]
                out.extend(p for pair in pairs[offset::stride] for p in pair)
        return unique_parameters(out)

    def _claimed(self, world: Surroundings) -> set[int]:
        claimed: set[int] = set()
        for name, optimizer in world.optimizers.items():
            if constructed(name) and optimizer._groups is not None:
                claimed |= {id(p) for group in optimizer._groups for p in group["params"]}
        return claimed

    def assign(self, world: Surroundings) -> dict[str, list[tuple[str, int, int]]]:
        """Which networks (all layers, or every n-th from an offset) each unnamed optimizer gets."""
        unnamed = [name for name in world.optimizers if not constructed(name)]
        claimed = self._claimed(world)
        models = [
            name
            for name, model in world.models.items()
            if not FROZEN.search(name) and any(id(p) not in claimed for p in model.parameters())
        ] or [name for name in world.models if not FROZEN.search(name)]
        if not unnamed or not models:
            return {}
        # no optimizer is there for a network that no loss depends on
        models = [m for m in models if any(id(p) in world.reached for p in world.models[m].parameters())] or models
        if len(unnamed) == 1:
            return {unnamed[0]: [(m, 0, 1) for m in models]}
        if len(models) == 1:
            return {o: [(models[0], i, len(unnamed))] for i, o in enumerate(unnamed)}
        return {o: [(m, 0, 1) for m in ms] for o, ms in self._matching(unnamed, models).items()}

    def _matching(self, optimizers: list[str], models: list[str]) -> dict[str, list[str]]:
        """Give every network to the optimizer whose name is nearest; nobody stays without."""
        out: dict[str, list[str]] = {name: [] for name in optimizers}
        pairs = sorted(
            ((affinity(o, m), -i, -j, o, m) for i, o in enumerate(optimizers) for j, m in enumerate(models)),
            reverse=True,
        )
        taken: set[str] = set()
        for score, _, _, o, m in pairs:
            if score > 0 and m not in taken and not out[o]:
                out[o].append(m)
                taken.add(m)
        for o in optimizers:
            if not out[o]:
                free = [m for m in models if m not in taken]
                if free:
                    out[o].append(free[0])
                    taken.add(free[0])
        for m in models:
            if m not in taken:
                best = max(optimizers, key=lambda o: affinity(o, m))
                out[best].append(m)
        return out

    def loss_parameters(self, world: Surroundings, label: str) -> list[nn.Parameter]:
        """The weights that a loss of unknown origin depends on: those that are optimized."""
        found = world.parameters_in([*world.optimizers.values()])
        if len(world.optimizers) > 1:
            best = max(world.optimizers, key=lambda name: affinity(name, label))
            if affinity(best, label) > 0:
                return world.optimizers[best].parameters()
        if not found:
            found = world.parameters_in([*world.models.values()])
        if not found:
            found = list(world.model("model").parameters())
        return [p for p in found if p.requires_grad]


def unique_parameters_of(models: Any) -> list[nn.Parameter]:
    out: dict[int, nn.Parameter] = {}
    for model in models:
        for parameter in model.parameters():
            out.setdefault(id(parameter), parameter)
    return list(out.values())


def unique_parameters(parameters: list[nn.Parameter]) -> list[nn.Parameter]:
    return list({id(p): p for p in parameters}.values())
