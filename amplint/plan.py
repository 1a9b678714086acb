"""Deciding what to analyse: what governs a file, which rules may speak there, and who calls into it."""

from __future__ import annotations

import ast
import hashlib
import os
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from amplint import registry, suppress
from amplint.config import Configuration, Settings
from amplint.files import SourceFile, display_path, project_files
from amplint.finding import Finding
from amplint.found import UNREADABLE, Raw, unreadable_finding
from amplint.jobs import Job, project_of
from amplint.screen import Screen, code_of
from amplint.source import SourceError, SourceModule
from amplint.target import target_of
from amplint.torch_facts import in_range

if TYPE_CHECKING:
    from amplint.neighbours import Neighbours
    from amplint.project import Project
    from amplint.rule import Rule


#: rules that the engine itself speaks for; they have no part in the analysis
OWN_RULES = frozenset({suppress.UNUSED, UNREADABLE})
#: in a project whose folders hold more names than this, nobody looks for a file's callers
MAX_NAMES = 30_000


@dataclass(slots=True)
class Plan:
    """A file of the run, what governs it, and whether it must be analysed."""

    file: SourceFile
    settings: Settings
    target: str
    governing: Governing
    job: Job | None = None
    size: int = 0
    data: str = ""
    has_directives: bool = False
    #: codes that the file itself gives no reason for: of rules that run on a file whose methods it calls
    driven: frozenset[str] = frozenset()
    findings: list[Finding] = field(default_factory=list)

    @property
    def codes(self) -> frozenset[str]:
        return self.governing.codes

    @property
    def own(self) -> frozenset[str]:
        """The codes of the rules that may have something to say in the file."""
        return frozenset(self.job.codes) - self.driven if self.job is not None else frozenset()

    @property
    def searched(self) -> Path:
        """The folder of the file's project in which its callers are looked for."""
        return project_of(self.file.path, self.settings, observed=False).searched


@dataclass(frozen=True, slots=True)
class Governing:
    """The codes that run on a file, the screen for those among them that analyse it, the screen for those that may
    find the rest of their needles in the files it imports, and the screen that says whether the file must be Python
    even so."""

    codes: frozenset[str]
    screen: Screen
    near: Screen
    parsing: Screen


@cache
def _governing(settings: Settings, target: str, ignored: frozenset[str]) -> Governing:
    rules = [r for r in settings.enabled_rules() if r.code not in ignored and in_range(target, r.torch)]
    analysing = [rule for rule in rules if rule.code not in OWN_RULES]
    # where no rule is left that needs a tree, unreadable files are still those that some rule would look at
    parsing = [] if analysing else [rule for rule in registry.all_rules() if rule.code not in OWN_RULES]
    near = Screen(analysing, lambda rule: rule.near)
    return Governing(frozenset(rule.code for rule in rules), Screen(analysing), near, Screen(parsing))


class Surroundings:
    """The projects around the files of a run, and who calls whom there."""

    def __init__(
        self, configuration: Configuration, contents: Mapping[Path, bytes], base: Path, observed: bool = False
    ) -> None:
        self._configuration = configuration
        self._contents = contents
        self.base = base
        #: whether jobs keep track of what their results depend on
        self.observed = observed
        self._neighbours: dict[Path, Neighbours] = {}

    def of(self, file: Path, settings: Settings) -> Neighbours:
        """The neighbours in the project of a file."""
        from amplint.neighbours import Neighbours

        project = project_of(file, settings, observed=False)
        known = self._neighbours.get(project.root)
        if known is None:
            files = partial(self._files, project)
            known = self._neighbours[project.root] = Neighbours(project, files, self._contents)
        return known

    def _files(self, project: Project) -> list[Path]:
        """What a run over the whole project would look at, files that are not saved yet included."""
        files = project_files(project.searched, self._configuration.for_folder, MAX_NAMES)
        return sorted({*files, *(path for path in self._contents if project.searched in path.parents)})

    def callers_of(self, plans: Sequence[Plan], paths: Sequence[Path]) -> list[SourceFile]:
        """The files outside of the run that call into one of its files: what is wrong there may show only from them."""
        given = [Path(os.path.realpath(self.base / path)) for path in paths]
        known = {plan.file.path for plan in plans}
        found: dict[Path, SourceFile] = {}
        for plan in plans:
            if any(plan.searched.is_relative_to(path) for path in given):
                continue
            for caller in self.of(plan.file.path, plan.settings).callers(plan.file.path):
                if caller not in known:
                    found[caller] = SourceFile(caller, display_path(caller, self.base))
        return [found[path] for path in sorted(found)]

    def let_drive(self, plans: Sequence[Plan], callers: Sequence[Plan]) -> None:
        """Let files run the rules of those whose methods they call: only they know in which order that happens."""
        by_path = {plan.file.path: plan for plan in (*plans, *callers)}
        added: dict[Path, frozenset[str]] = {}
        for plan in plans:
            neighbours = self.of(plan.file.path, plan.settings) if plan.job is not None else None
            for path in neighbours.callers(plan.file.path) if neighbours is not None else ():
                if path in by_path and neighbours is not None and neighbours.drives(path, plan.file.path):
                    added[path] = added.get(path, frozenset()) | plan.own
        for path, codes in added.items():
            driver = by_path[path]
            driver.driven = (codes & driver.codes) - driver.own
            if driver.driven:
                self._give_job(driver, (*driver.own, *driver.driven))

    def _give_job(self, plan: Plan, codes: Collection[str]) -> None:
        ordered = tuple(rule.code for rule in registry.all_rules() if rule.code in codes)
        plan.job = Job(plan.file, ordered, plan.target, plan.settings, self._contents, self.observed)
        data = self.of(plan.file.path, plan.settings).text(plan.file.path)
        plan.size = len(data)
        plan.data = hashlib.sha256(data).hexdigest() if self.observed else ""

    def counts(self, raw: Raw, plan: Plan, origin: Plan) -> bool:
        """Whether what is found in a file counts: its own rules speak there, from itself or from a caller."""
        rule = raw.finding.rule
        if (plan is origin and not plan.own) or (rule in origin.driven and (plan is origin or rule not in plan.own)):
            return False
        if rule in origin.driven and not self.of(plan.file.path, plan.settings).drives(
            origin.file.path, plan.file.path
        ):
            return False
        return self._is_called_from(plan, origin.file.path)

    def _is_called_from(self, plan: Plan, origin: Path) -> bool:
        """Whether what is found in a file counts when execution came from `origin`."""
        return origin == plan.file.path or origin in self.of(plan.file.path, plan.settings).callers(plan.file.path)


def plan_file(
    file: SourceFile,
    configuration: Configuration,
    contents: Mapping[Path, bytes],
    around: Surroundings,
    observed: bool,
) -> Plan:
    """Read and screen one file; findings about the file itself are entered at once."""
    folder = file.path.parent
    settings = configuration.for_folder(folder)
    target = target_of(folder, settings.torch)
    ignored = settings.ignored_in(display_path(file.path, settings.root))
    plan = Plan(file, settings, target, _governing(settings, target, ignored))
    try:
        data = contents[file.path] if file.path in contents else file.path.read_bytes()
    except OSError as error:
        _unreadable(plan, SourceError(f"cannot be read: {error.strerror or error}"))
        return plan
    is_notebook = file.display.endswith(".ipynb")
    screen, near = plan.governing.screen, plan.governing.near
    hits = screen.rules_for(data, is_notebook)
    half = [rule for rule in near.rules_for(data, is_notebook) if rule not in hits]
    program = _program(data, file.display) if hits or half else None
    if program is not None:
        code = code_of(program)
        hits = screen.rules_for(code)
        half = [rule for rule in near.rules_for(code) if rule not in hits]
        if half:
            hits = (*hits, *_found_around(file.path, code, half, around.of(file.path, settings)))
    plan.has_directives = suppress.UNUSED in plan.codes and suppress.NEEDLE in data
    if hits:
        plan.job = Job(file, tuple(rule.code for rule in hits), target, settings, contents, observed)
        plan.size = len(data)
        plan.data = hashlib.sha256(data).hexdigest() if observed else ""
        return plan
    must_parse = file.named or plan.has_directives or plan.governing.parsing.rules_for(data, is_notebook)
    if UNREADABLE in plan.codes and must_parse:
        broken = _syntax_error(data, file.display)
        if broken is not None:
            _unreadable(plan, broken)
    return plan


def _found_around(file: Path, code: bytes, half: Sequence[Rule], neighbours: Neighbours) -> tuple[Rule, ...]:
    """The rules of which a file holds half of the needles, and what it imports the rest, or what its objects are handed
    to."""
    reach = b"\n".join((code, *neighbours.reached(file)))
    found = _screen_around(tuple(half)).rules_for(reach)
    # a rule about dtypes asks for operators that are imports away already
    left = tuple(rule for rule in half if rule not in found and rule.beyond is None)
    above = [*neighbours.assemblers(file)] if left else ()
    if above:
        parts = (part for caller in above for part in (neighbours.text(caller), *neighbours.reached(caller)))
        found = (*found, *_screen_around(left).rules_for(b"\n".join((reach, *parts))))
    return tuple(rule for rule in found if rule.beyond is None or neighbours.computes(file))


@cache
def _screen_around(rules: tuple[Rule, ...]) -> Screen:
    return Screen(rules, lambda rule: (rule.beyond or rule.needles,))


def _program(data: bytes, display: str) -> bytes | None:
    """What Python reads of a file: of a notebook the cells. None where a notebook is none; that is said later."""
    if not display.endswith(".ipynb"):
        return data
    try:
        return SourceModule.from_bytes(data, display).text.encode(errors="replace")
    except SourceError:
        return None


def _syntax_error(data: bytes, display: str) -> SourceError | None:
    """Why a file that no rule needs a tree of is not Python; CPython's parser is asked first, being fast."""
    try:
        module = SourceModule.from_bytes(data, display)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ast.parse(module.text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            module.tree  # noqa: B018 - it may be Python of another version than the one that runs
    except SourceError as error:
        return error
    return None


def _unreadable(plan: Plan, error: SourceError) -> None:
    if UNREADABLE in plan.codes:
        plan.findings.append(unreadable_finding(plan.file.display, error))
