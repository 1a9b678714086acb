"""One analysed module, as the rules see it, and the run of all rules over it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from heapq import merge
from itertools import count
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from amplint import guards
from amplint.effects.owners import within
from amplint.execution import Executor
from amplint.finding import Confidence
from amplint.layout import is_expected_to_raise
from amplint.regions import sure_dtype_of
from amplint.rule import CALLED, Fault, Rule, Site
from amplint.torch_facts import in_range
from amplint.traces import Trace, explore
from amplint.values import AttrOf, Const, Instance, ItemOf, Optimizer, Result, Scaler, Sym, Value

if TYPE_CHECKING:
    from amplint.project import ModuleEnv, Project
    from amplint.source import SourceModule
    from amplint.states import Entered, Event


#: "scaler.state_dict(" in any of the ways to write it, or a scaler registered under a string
_SCALER_STATE = re.compile(r"scaler\w*(\(\))?(\[[^\]]*\])?\.state_dict\(|['\"]\w*scaler\w*['\"]\s*:\s*\w*\.?\w*scaler")


class Unit:
    """What a rule may look at: the traces of a module, and questions about them that many rules ask."""

    def __init__(self, env: ModuleEnv, executor: Executor, target: str) -> None:
        self.env = env
        self.source: SourceModule = env.source
        self.project: Project = env.project
        self.executor = executor
        #: the torch version that the code is meant for, e.g. "2.6"
        self.target = target

    @cached_property
    def traces(self) -> tuple[Trace, ...]:
        """All traces of the module; it is executed when the first rule asks, and some rules never do."""
        return tuple(explore(self.env, self.executor))

    def events(self, *kinds: str) -> Iterator[tuple[Trace, int, Event]]:
        """Every event of these kinds with its trace and its position there, trace after trace."""
        lists = [self._by_kind.get(kind, ()) for kind in kinds]
        for _, trace, position, event in lists[0] if len(lists) == 1 else merge(*lists, key=itemgetter(0)):
            yield trace, position, event

    @cached_property
    def unscale_sites(self) -> tuple[Site, ...]:
        """Where gradients are unscaled; a place counts once, however many paths pass it."""
        return tuple({event.site.identity: event.site for _, _, event in self.events("unscale_")}.values())

    @cached_property
    def _by_kind(self) -> dict[str, list[tuple[int, Trace, int, Event]]]:
        """The events of all traces by kind, numbered in their order: dozens of rules ask for a few kinds each."""
        found: dict[str, list[tuple[int, Trace, int, Event]]] = {}
        number = count()
        for trace in self.traces:
            for position, event in enumerate(trace.events):
                found.setdefault(event.kind, []).append((next(number), trace, position, event))
        return found

    def site_of(self, value: Value | None) -> Site | None:
        """Where an object was constructed, if that was seen."""
        return self.executor.sites.get(value) if value is not None else None

    # --- regions ---------------------------------------------------------------------------------

    def autocast(self, event: Event, trace: Trace) -> Entered | None:
        """The innermost autocast region around an event, if it can be enabled on this trace."""
        for region in reversed(event.regions):
            if region.context.kind == "autocast":
                return region if self.can_hold(region.context.details.enabled, event.assume, trace) else None
        return None

    def can_hold(self, condition: Value, assume: dict[Any, bool], trace: Trace) -> bool:
        """Whether a condition is true, or free, under what the path has decided."""
        return guards.outcome(condition, {**trace.assume, **assume}) is not False

    def certain(self, condition: Value, assume: dict[Any, bool]) -> bool:
        """Whether a condition is known to be true."""
        return guards.outcome(condition, assume) is True

    def only_bfloat16(self, trace: Trace) -> bool:
        """Whether every autocast region of a trace is bfloat16 for certain, and there is one."""
        contexts = (event.details["context"] for event in trace.events if event.kind == "construct_autocast")
        dtypes = {sure_dtype_of(self, context) for context in contexts}
        return dtypes == {"bfloat16"}

    # --- objects ---------------------------------------------------------------------------------

    @staticmethod
    def overlap(first: frozenset[Value], second: frozenset[Value]) -> bool:
        """Whether two sets of modules share one, or one holds a part of the other's."""
        return any(within(a, b) or within(b, a) for a in first for b in second)

    def mentions_scaler_state(self) -> bool:
        """Whether a module that takes part in the analysis asks a scaler for its state in its text."""
        return self.mentions(_SCALER_STATE, "state_dict")

    def mentions(self, pattern: re.Pattern[str], handed_on: str) -> bool:
        """Whether a pattern is in the text of a module that takes part in the analysis, but for what the method of that
        name of a wrapper of a scaler would hand on, if anybody called it."""
        return any(_mentions(env, pattern, handed_on) for env in (self.env, *self.executor.entered))

    # --- words -----------------------------------------------------------------------------------

    def assumptions(self, event: Event, *conditions: Value) -> tuple[str, ...]:
        """The flags that must be set for an event to be reached, in words; `conditions` are required as well."""
        # the same flag in a later call of an entry is another value; its last outcome is the one that counts
        found: dict[str, str] = {}
        for atom, outcome in event.assume.items():
            if all(_flag_like(part) for part in atom[1:] if isinstance(part, Value)) and atom[0] != "mod":
                found[guards.sentence(atom, True)] = guards.sentence(atom, outcome)
        for condition in conditions:
            lit = guards.literal(condition)
            if not isinstance(lit, bool) and lit[0] not in event.assume:
                found[guards.sentence(lit[0], True)] = guards.sentence(*lit)
        return tuple(dict.fromkeys(found.values()))

    def confidence(self, *values: Value | None) -> Confidence:
        """High where every object is seen constructed, else medium."""
        for value in values:
            if isinstance(value, Scaler) and not value.constructed:
                return Confidence.MEDIUM
            if isinstance(value, (Sym, AttrOf, ItemOf, Result)):
                return Confidence.MEDIUM
        return Confidence.HIGH

    def call_steps(self, event: Event) -> list[tuple[Site, str]]:
        """The calls that lead to an event in another function."""
        return [(site, CALLED) for site in event.calls]

    def asked_here(self, event: Event) -> Site | None:
        """The call by which this module asks a helper of another module for an event, None where the event is in this
        module. Where the helper can know nothing of scales, the call is what is wrong."""
        if event.site.module is self.source:
            return None
        return next((site for site in reversed(event.calls) if site.module is self.source), None)

    def name(self, value: Value | None) -> str:
        """A value as the user would write it, e.g. "optimizer"."""
        return guards.describe(value) if value is not None else ""


def _mentions(env: ModuleEnv, pattern: re.Pattern[str], handed_on: str) -> bool:
    places = len(pattern.findall(env.source.code))
    for scope in env.program.scopes if places else ():
        if scope.name == handed_on and scope.parent is not None and "scaler" in scope.parent.name.lower():
            places -= len(pattern.findall(env.source.rough_text(scope.node)))
    return places > 0


def _flag_like(value: Value) -> bool:
    """Whether a value is something that a person sets: a parameter, an option, an attribute of the object."""
    if isinstance(value, Const):
        return True
    if isinstance(value, Sym):
        return value.parts[0] in ("param", "global")
    if isinstance(value, AttrOf):
        return isinstance(value.base, Instance) or _flag_like(value.base)
    if isinstance(value, Scaler):
        return not value.constructed
    if isinstance(value, ItemOf):
        return isinstance(value.parts[0], Value) and _flag_like(value.parts[0]) and isinstance(value.parts[1], Const)
    return isinstance(value, Optimizer)


def analyse(module: SourceModule, project: Project, rules: Sequence[Rule], target: str) -> list[tuple[Rule, Fault]]:
    """Execute a module symbolically and let the rules judge the traces."""
    unit = prepare(module, project, target, rules)
    found: list[tuple[Rule, Fault]] = []
    for rule in rules:
        if _applies(rule, target):
            found.extend((rule, fault) for fault in _distinct(filter(_is_meant_to_work, rule.check(unit))))
    return arbitrate(found)


def prepare(module: SourceModule, project: Project, target: str, rules: Iterable[Rule] = ()) -> Unit:
    """The unit of a module, ready for rules."""
    env = project.enter(module)
    executor = Executor(project, target)
    executor.effects.watched = frozenset(name for rule in rules for name in getattr(rule, "watches", ()))
    return Unit(env, executor, target)


def _applies(rule: Rule, target: str) -> bool:
    return in_range(target, rule.torch)


def _is_meant_to_work(fault: Fault) -> bool:
    """Whether nobody expects the place of a fault, a call that leads there, or what comes of it, to raise."""
    return not any(is_expected_to_raise(site) for site in (fault.site, *(site for site, _ in fault.steps)))


def _distinct(faults: Iterable[Fault]) -> Iterator[Fault]:
    """One fault a place: the one of the highest confidence, the first of several."""
    best: dict[tuple[str, int], Fault] = {}
    for fault in faults:
        known = best.get(fault.site.identity)
        if known is None or fault.confidence > known.confidence:
            best[fault.site.identity] = fault
    yield from best.values()


def arbitrate(found: list[tuple[Rule, Fault]]) -> list[tuple[Rule, Fault]]:
    """Where several rules fit one fault, keep the most specific (see `Rule.yields_to`)."""
    spoken: dict[str, list[Fault]] = {}
    for rule, fault in found:
        spoken.setdefault(rule.code, []).append(fault)
    kept = []
    for rule, fault in found:
        touched = {fault.site.identity, *(site.identity for site, _ in fault.steps)}
        rivals = [other for code in rule.yields_to for other in spoken.get(code, ())]
        if any(
            other.site.identity in touched or fault.site.identity in {site.identity for site, _ in other.steps}
            for other in rivals
        ):
            continue
        kept.append((rule, fault))
    return kept
