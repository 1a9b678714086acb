"""Calls that need not be executed again: they were seen to change nothing, or only look and have taken long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amplint import guards
from amplint.values import Const, DictV, Func, Instance, ListV, Partial, Value, interesting

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amplint.machine import Machine
    from amplint.program import Scope

#: statements that one entry spends on calls of a function that does nothing of the protocol
MAX_IDLE = 1_200
#: events of a function that only looks: it is executed once per entry
_QUIET_EVENTS = frozenset(
    {"forward", "enter", "construct_autocast", "state_dict", "get_scale", "load_state", "call", "bce"}
)


class Idleness:
    """What one entry knows of functions that do nothing of the protocol."""

    def __init__(self) -> None:
        #: functions that were seen to change nothing: with which constants, and what was decided before
        self._inert: dict[Scope, dict[frozenset[Any], list[dict[Any, bool]]]] = {}
        #: the statements that calls of functions that do not train have taken
        self._taken: dict[Scope, int] = {}

    def decided_for(
        self, callee: Func, positional: list[Value], keywords: dict[str, Value], state: Machine
    ) -> Iterable[Any] | None:
        """The conditions on which it depends that this call changes nothing; None where it may change something."""
        scope = callee.scope
        if scope not in self._inert and scope not in self._taken:
            return None
        handed_on = any(isinstance(v, (Func, Partial, ListV)) for v in (*positional, *keywords.values()))
        if not handed_on and self._taken.get(scope, 0) > MAX_IDLE:
            return ()
        seen = self._inert.get(scope)
        if not seen:
            return None
        for decided in seen.get(constants(callee, positional, keywords, state.heap, state), ()):
            if all(guards.known(atom, state.assume) is outcome for atom, outcome in decided.items()):
                return decided
        return None

    def looked(self, scope: Scope, statements: int) -> None:
        """Note that a call of a function that does not train has taken so many statements."""
        self._taken[scope] = self._taken.get(scope, 0) + statements

    def changed_nothing(self, scope: Scope, handed: frozenset[Any], decided: dict[Any, bool]) -> None:
        """Note that a call with these constants changes nothing where these conditions are decided like that."""
        self._inert.setdefault(scope, {}).setdefault(handed, []).append(decided)


def constants(
    callee: Func, positional: list[Value], keywords: dict[str, Value], heap: dict[Any, Any], state: Machine
) -> frozenset[Any]:
    """What decides which of a function's statements run: the objects, functions and constants that it is handed
    (`run_epoch(model, loader, train=False)`, `call(event)`), and the constants in its object, in the dicts that it is
    handed, and in the function around it."""
    own = () if callee.self is None else (callee.self,)
    handed = [*enumerate((*own, *positional)), *keywords.items()]
    found: set[Any] = {pair for pair in handed if interesting(pair[1]) or isinstance(pair[1], Const)}
    holders = {value for _, value in handed if isinstance(value, (Instance, DictV, ListV))}
    found.update(
        (holder, name, held)
        for (holder, name), held in heap.items()
        if holder in holders and (isinstance(held, Const) or name == "#items")
    )
    if callee.frame > 0:
        found.update(pair for pair in state.frames.get(callee.frame, {}).items() if isinstance(pair[1], Const))
    settings = state.frames.get(-callee.env.number, {})
    found.update((name, settings[name]) for name in callee.scope.words & callee.env.rebound if name in settings)
    return frozenset(found)


def is_quiet(after: Machine, start: Any, grads: dict[Any, Any]) -> bool:
    """Whether a function came back with the gradients it found, having only looked at them."""
    link = after.trace
    while link is not start and link is not None:
        link, event = link
        if event.kind not in _QUIET_EVENTS:
            return False
    return bool(after.grads == grads)
