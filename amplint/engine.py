"""A run: from paths to findings. Files are screened, analysed, and what the rules say becomes findings.

The result depends on the files and settings alone, not on the order of the paths or the number of processes.
"""

from __future__ import annotations

import ast
import hashlib
import os
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from amplint import registry, suppress
from amplint.config import Configuration, Settings
from amplint.files import SourceFile, Unreadable, discover, display_path, project_files
from amplint.finding import Confidence, Finding, Place, Step, fingerprint
from amplint.screen import Screen
from amplint.source import SourceError, SourceModule, deep_recursion
from amplint.suppress import Suppressed, Suppressions
from amplint.target import target_of
from amplint.torch_facts import in_range

if TYPE_CHECKING:
    import libcst as cst

    from amplint.cache import Answer, Cache, ObservedProject, Question
    from amplint.neighbours import Neighbours
    from amplint.project import Project
    from amplint.rule import Fault, Rule

UNREADABLE = "AMP902"
#: rules that the engine itself speaks for; they have no part in the analysis
OWN_RULES = frozenset({suppress.UNUSED, UNREADABLE})
#: below these, starting processes costs more than it saves
MIN_PARALLEL_FILES, MIN_PARALLEL_BYTES = 4, 200_000
#: in a project whose folders hold more names than this, nobody looks for a file's callers
MAX_NAMES = 30_000
#: a tree of more levels than this is beyond what recursive analyses are asked to manage
DEEP_TREE = 400

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class InternalError:
    """A fault of amplint's own: the file it was working on, the rule (if one was), and a hash that is the
    same wherever the same lines of amplint fail."""

    path: str
    rule: str | None
    hash: str
    message: str
    traceback: str


class Sources:
    """The text of files as findings count it, read when a report first shows it."""

    def __init__(self, files: Mapping[str, Path], contents: Mapping[Path, bytes]) -> None:
        self._files = files
        self._contents = contents
        self._modules: dict[str, SourceModule | None] = {}

    def module(self, display: str) -> SourceModule | None:
        """A file of the run by its display path; None where it cannot be decoded any more."""
        if display not in self._modules:
            self._modules[display] = self._read(display)
        return self._modules[display]

    def _read(self, display: str) -> SourceModule | None:
        try:
            return SourceModule.from_bytes(self.data(display), display)
        except (OSError, SourceError):
            return None

    def data(self, display: str) -> bytes:
        """A file's bytes. Raises OSError."""
        path = self.path(display)
        data = self._contents.get(path)
        return path.read_bytes() if data is None else data

    def line(self, display: str, line: int, cell: int | None) -> str | None:
        """A line as the user wrote it, without its end; None where there is none."""
        module = self.module(display)
        if module is None:
            return None
        if module.notebook is not None and cell is not None:
            return module.notebook.line(line, cell)
        return module.line_text(line) if 1 <= line <= len(module.line_starts) else None

    def file_range(self, place: Place) -> tuple[int, int | None, int, int | None]:
        """(line, column, end line, end column) in the file itself, as other programs count.

        In a notebook that is a line of its JSON, where columns would mean nothing: they are None.
        """
        if place.cell is None:
            return place.line, place.column, place.end_line, place.end_column
        module = self.module(place.path)
        if module is None or module.notebook is None:
            return 1, None, 1, None
        notebook = module.notebook
        return notebook.file_line(place.line, place.cell), None, notebook.file_line(place.end_line, place.cell), None

    def path(self, display: str) -> Path:
        """The absolute path of a file."""
        return self._files.get(display) or Path.cwd() / display

    def __contains__(self, display: str) -> bool:
        """Whether a file is one of those that the run checked."""
        return display in self._files


@dataclass(slots=True)
class Run:
    """What a run saw and found. `seconds` is wall time; `findings` are those to be shown, in order."""

    settings: Settings
    target: str
    sources: Sources
    files: tuple[SourceFile, ...] = ()
    screened_out: int = 0
    parsed: int = 0
    findings: list[Finding] = field(default_factory=list)
    suppressed: list[Suppressed] = field(default_factory=list)
    errors: list[InternalError] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Job:
    """One file to analyse, with the rules that may have something to say there."""

    file: SourceFile
    codes: tuple[str, ...]
    target: str
    settings: Settings
    contents: Mapping[Path, bytes]
    #: whether to keep track of what the result depends on
    observed: bool


@dataclass(slots=True)
class _Raw:
    """A finding before it is known what else was found; `text` is the statement's source, `origin` the file from
    which execution came there."""

    finding: Finding
    text: str
    origin: Path | None = None


@dataclass(slots=True)
class _Result:
    """What the rules say about one file. `data` is a hash of its bytes, `asked` what else the result depends on;
    None where it cannot be told, or must not be kept."""

    found: list[_Raw] = field(default_factory=list)
    errors: list[InternalError] = field(default_factory=list)
    data: str = ""
    asked: dict[Question, Answer] | None = None


@dataclass(slots=True)
class _Plan:
    """A file of the run, what governs it, and whether it must be analysed."""

    file: SourceFile
    settings: Settings
    target: str
    governing: _Governing
    job: _Job | None = None
    size: int = 0
    data: str = ""
    has_directives: bool = False
    findings: list[Finding] = field(default_factory=list)

    @property
    def codes(self) -> frozenset[str]:
        return self.governing.codes

    @property
    def root(self) -> Path:
        """The root of the project that the file belongs to."""
        return _project(self.file.path, self.settings, observed=False).root


@dataclass(frozen=True, slots=True)
class _Governing:
    """The codes that run on a file, the screen for those among them that analyse it, the screen for those that may
    find the rest of their needles in the files it imports, and the screen that says whether the file must be Python
    even so."""

    codes: frozenset[str]
    screen: Screen
    near: Screen
    parsing: Screen


@cache
def _governing(settings: Settings, target: str, ignored: frozenset[str]) -> _Governing:
    rules = [r for r in settings.enabled_rules() if r.code not in ignored and in_range(target, r.torch)]
    analysing = [rule for rule in rules if rule.code not in OWN_RULES]
    # where no rule is left that needs a tree, unreadable files are still those that some rule would look at
    parsing = [] if analysing else [rule for rule in registry.all_rules() if rule.code not in OWN_RULES]
    near = Screen(analysing, near=True)
    return _Governing(frozenset(rule.code for rule in rules), Screen(analysing), near, Screen(parsing))


def check(
    paths: Sequence[Path],
    settings: Configuration | Settings,
    *,
    contents: Mapping[Path, bytes] | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
    caching: bool = False,
    cache_dir: Path | None = None,
) -> Run:
    """Check the files under `paths`.

    `contents` stands in for what is on disk, by absolute path (an editor's buffer, standard input, a fix that is
    not written yet). `jobs` None uses as many processes as there are processors, where that pays.
    `caching` uses the results of earlier runs, and keeps those of this one, in `cache_dir` or else beside the
    configuration; a run with `contents` never does. Raises ConfigError for a configuration that cannot be used.
    """
    started = time.perf_counter()
    _projects.clear()
    configuration = Configuration.fixed(settings) if isinstance(settings, Settings) else settings
    base = Path.cwd()
    contents = contents or {}
    top = configuration.for_folder(_common_folder(paths, base))
    files, problems = discover(paths, configuration.for_folder, base, top.force_exclude)
    run = Run(top, target_of(_common_folder(paths, base), top.torch), _sources(files, contents), tuple(files))
    caching = caching and not contents
    around = _Surroundings(configuration, contents, base)
    plans = [_plan(file, configuration, contents, around, caching) for file in files]
    run.parsed = sum(plan.job is not None for plan in plans)
    run.screened_out = sum(plan.job is None and not plan.findings for plan in plans)

    callers = [_plan(file, configuration, contents, around, caching) for file in around.callers_of(plans, paths)]
    pending = [plan for plan in (*plans, *callers) if plan.job is not None]
    raws: list[_Raw] = []
    cache = _cache(top, cache_dir) if caching and pending else None
    for plan, result in _cached(pending, cache, jobs, progress):
        for raw in result.found:
            raw.origin = plan.file.path
        raws.extend(result.found)
        run.errors.extend(result.errors)
    _settle(raws, plans, around, run)
    _report_folders(problems, top, run)
    _name_own(run, {plan.file.display: plan for plan in plans})
    run.findings.sort(key=lambda finding: finding.sort_key)
    run.errors.sort(key=lambda error: (error.path, error.rule or "", error.hash))
    run.seconds = time.perf_counter() - started
    return run


def _common_folder(paths: Sequence[Path], base: Path) -> Path:
    absolute = [os.path.abspath(base / path) for path in paths]
    try:
        common = Path(os.path.commonpath(absolute)) if absolute else base
    except ValueError:  # different drives
        common = base
    return common if os.path.isdir(common) else common.parent


def _sources(files: Iterable[SourceFile], contents: Mapping[Path, bytes]) -> Sources:
    return Sources({file.display: file.path for file in files}, contents)


# -- deciding what to analyse ----------------------------------------------------------------------------


class _Surroundings:
    """The projects around the files of a run, and who calls whom there."""

    def __init__(self, configuration: Configuration, contents: Mapping[Path, bytes], base: Path) -> None:
        self._configuration = configuration
        self._contents = contents
        self.base = base
        self._neighbours: dict[Path, Neighbours] = {}

    def of(self, file: Path, settings: Settings) -> Neighbours:
        """The neighbours in the project of a file."""
        from amplint.neighbours import Neighbours

        project = _project(file, settings, observed=False)
        known = self._neighbours.get(project.root)
        if known is None:
            files = partial(self._files, project)
            known = self._neighbours[project.root] = Neighbours(project, files, self._contents)
        return known

    def _files(self, project: Project) -> list[Path]:
        """What a run over the whole project would look at, files that are not saved yet included."""
        files = project_files(project.root, self._configuration.for_folder, MAX_NAMES)
        return sorted({*files, *(path for path in self._contents if project.root in path.parents)})

    def callers_of(self, plans: Sequence[_Plan], paths: Sequence[Path]) -> list[SourceFile]:
        """The files outside of the run that call into one of its files: what is wrong there may show only from them."""
        given = [Path(os.path.abspath(self.base / path)) for path in paths]
        known = {plan.file.path for plan in plans}
        found: dict[Path, SourceFile] = {}
        for plan in plans:
            if any(plan.root.is_relative_to(path) for path in given):
                continue
            for caller in self.of(plan.file.path, plan.settings).callers(plan.file.path):
                if caller not in known:
                    found[caller] = SourceFile(caller, display_path(caller, self.base))
        return [found[path] for path in sorted(found)]

    def is_called_from(self, plan: _Plan, origin: Path | None) -> bool:
        """Whether what is found in a file counts when execution came from `origin`."""
        if origin is None or origin == plan.file.path:
            return True
        return origin in self.of(plan.file.path, plan.settings).callers(plan.file.path)


def _plan(
    file: SourceFile,
    configuration: Configuration,
    contents: Mapping[Path, bytes],
    around: _Surroundings,
    observed: bool,
) -> _Plan:
    """Read and screen one file; findings about the file itself are entered at once."""
    folder = file.path.parent
    settings = configuration.for_folder(folder)
    target = target_of(folder, settings.torch)
    ignored = settings.ignored_in(_relative(file.path, settings.root))
    plan = _Plan(file, settings, target, _governing(settings, target, ignored))
    try:
        data = contents[file.path] if file.path in contents else file.path.read_bytes()
    except OSError as error:
        _unreadable(plan, SourceError(f"cannot be read: {error.strerror or error}"))
        return plan
    is_notebook = file.display.endswith(".ipynb")
    hits = plan.governing.screen.rules_for(data, is_notebook)
    half = [rule for rule in plan.governing.near.rules_for(data, is_notebook) if rule not in hits]
    if half:
        neighbours = around.of(file.path, settings)
        reach = b"\n".join((data, *(neighbours.text(other) for other in neighbours.imported(file.path))))
        hits = (*hits, *Screen(half).rules_for(reach, is_notebook))
    plan.has_directives = suppress.UNUSED in plan.codes and suppress.NEEDLE in data
    if hits:
        plan.job = _Job(file, tuple(rule.code for rule in hits), target, settings, contents, observed)
        plan.size = len(data)
        plan.data = hashlib.sha256(data).hexdigest() if observed else ""
        return plan
    must_parse = file.named or plan.has_directives or plan.governing.parsing.rules_for(data, is_notebook)
    if UNREADABLE in plan.codes and must_parse:
        broken = _syntax_error(data, file.display)
        if broken is not None:
            _unreadable(plan, broken)
    return plan


def _relative(path: Path, root: Path) -> str:
    try:
        return path.relative_to(root).as_posix()
    except ValueError:
        return path.as_posix()


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


def _unreadable(plan: _Plan, error: SourceError) -> None:
    if UNREADABLE in plan.codes:
        plan.findings.append(_unreadable_finding(plan.file.display, error))


def _unreadable_finding(display: str, error: SourceError) -> Finding:
    rule = registry.by_code_or_name()[UNREADABLE]
    place = Place(display, error.line, error.column, error.line, error.column + 1, error.cell)
    return _finding(rule, place, error.message, Confidence.HIGH, statement=(error.line, error.line))


def _report_folders(problems: Iterable[Unreadable], settings: Settings, run: Run) -> None:
    if any(rule.code == UNREADABLE for rule in settings.enabled_rules()):
        for problem in problems:
            error = SourceError(f"cannot be read: {problem.reason}")
            run.findings.append(_unreadable_finding(problem.display, error))


# -- analysing -------------------------------------------------------------------------------------------


def _cache(settings: Settings, folder: Path | None) -> Cache:
    from amplint.cache import FOLDER, Cache

    return Cache(settings.root / FOLDER if folder is None else folder)


def _cached(
    plans: Sequence[_Plan], cache: Cache | None, jobs: int | None, progress: Progress | None
) -> Iterator[tuple[_Plan, _Result]]:
    """The results of all jobs: those that the cache knows, then the others, which it gets to know."""
    if cache is None:
        yield from zip(plans, _results(plans, jobs, progress), strict=True)
        return
    missing: list[tuple[_Plan, str]] = []
    for plan in plans:
        key = _cache_key(plan)
        known = cache.get(key, plan.data, _observed(plan))
        if known is None:
            missing.append((plan, key))
        else:
            yield plan, _Result([_Raw(finding, text) for finding, text in known])
    results = _results([plan for plan, _ in missing], jobs, progress)
    for (plan, key), result in zip(missing, results, strict=True):
        if result.asked is not None and not result.errors:
            found = [(raw.finding, raw.text) for raw in result.found]
            cache.put(key, result.data, result.asked, found, _observed(plan))
        yield plan, result


def _cache_key(plan: _Plan) -> str:
    from amplint.cache import key_of

    codes = plan.job.codes if plan.job is not None else ()
    return key_of(plan.file.path, plan.file.display, codes, plan.target, plan.settings, _observed(plan).root)


def _observed(plan: _Plan) -> ObservedProject:
    from amplint.cache import ObservedProject

    project = _project(plan.file.path, plan.settings, observed=True)
    assert isinstance(project, ObservedProject)
    return project


def _results(plans: Sequence[_Plan], jobs: int | None, progress: Progress | None) -> Iterator[_Result]:
    """The results of all jobs, in the order of the plans."""
    work = [plan.job for plan in plans if plan.job is not None]
    processes = min(_processors() if jobs is None else max(jobs, 1), len(work))
    size = sum(plan.size for plan in plans)
    pays = len(work) >= MIN_PARALLEL_FILES and size >= MIN_PARALLEL_BYTES
    done: Iterable[_Result] = _in_processes(work, processes) if processes > 1 and pays else map(_analyse, work)
    for count, result in enumerate(done, 1):
        if progress is not None:
            progress(count, len(work))
        yield result


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _in_processes(work: Sequence[_Job], processes: int) -> Iterator[_Result]:
    import multiprocessing
    import signal
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    # forking is fast and safe while there is one thread; elsewhere the platform's default is
    alone = sys.platform == "linux" and threading.active_count() == 1
    context = multiprocessing.get_context("fork" if alone else None)

    def pool(workers: int) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(workers, context, signal.signal, (signal.SIGINT, signal.SIG_DFL))

    done = 0
    with pool(processes) as executor:
        futures = [executor.submit(_analyse, job) for job in work]
        try:
            for future in futures:
                yield future.result()
                done += 1
        except BrokenProcessPool:
            pass
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            raise
    # some file ended a worker, and the pool with it: each file that is left gets a worker of its own
    for job in work[done:]:
        with pool(1) as executor:
            try:
                result = executor.submit(_analyse, job).result()
            except BrokenProcessPool as error:
                result = _Result(errors=[_internal_error(job.file.display, error)])
        yield result


#: what this process has read of projects; emptied when a run starts, since files change between runs
_projects: dict[tuple[Path, Settings, bool], Project] = {}


def _project(file: Path, settings: Settings, observed: bool) -> Project:
    """The project of a file; files of one project share what was read of it."""
    from amplint.cache import ObservedProject
    from amplint.project import Project

    by_folder = (file.parent, settings, observed)
    found = _projects.get(by_folder)
    if found is None:
        found = (ObservedProject if observed else Project).for_file(file, settings)
        found = _projects.setdefault((found.root, settings, observed), found)
        _projects[by_folder] = found
    return found


def _analyse(job: _Job) -> _Result:
    """Everything the rules say about one file. Never raises: what goes wrong is part of the result."""
    result = _Result()
    data = job.contents.get(job.file.path)
    try:
        if data is None:
            data = job.file.path.read_bytes()
        if job.observed:
            result.data = hashlib.sha256(data).hexdigest()
        module = SourceModule.from_bytes(data, job.file.display)
        module.tree  # noqa: B018 - parse before anything else is done
    except OSError as error:
        module = None
        failure = SourceError(f"cannot be read: {error.strerror or error}")
    except SourceError as error:
        module = None
        failure = error
    if module is None:
        result.found.append(_Raw(_unreadable_finding(job.file.display, failure), ""))
        return result
    with deep_recursion():
        _run_rules(job, module, result)
    return result


def _run_rules(job: _Job, module: SourceModule, result: _Result) -> None:
    from amplint.analysis import analyse
    from amplint.cache import ObservedProject

    rules = tuple(rule for rule in registry.all_rules() if rule.code in job.codes)
    while rules:
        try:
            project = _project(job.file.path, job.settings, job.observed)
            if isinstance(project, ObservedProject):
                project.saw(job.file.path, result.data)
            for path, data in job.contents.items():
                if path != job.file.path:
                    project.enter(SourceModule.from_bytes(data, _display(path)), path)
            faults = analyse(module, project, rules, job.target)
        except RecursionError as error:
            if module.depth > DEEP_TREE:
                failure = SourceError("nested too deeply to be analysed")
                result.found.append(_Raw(_unreadable_finding(job.file.display, failure), ""))
            else:
                result.errors.append(_internal_error(job.file.display, error))
            return
        except SourceError as error:
            result.found.append(_Raw(_unreadable_finding(job.file.display, error), ""))
            return
        except Exception as error:
            failed = _internal_error(job.file.display, error)
            result.errors.append(failed)
            remaining = tuple(rule for rule in rules if rule.code != failed.rule)
            if len(remaining) == len(rules):
                return
            rules = remaining  # the other rules have a say still
            continue
        for rule, fault in faults:
            try:
                result.found.append(_raw(rule, fault, job.target))
            except Exception as error:
                result.errors.append(replace(_internal_error(job.file.display, error), rule=rule.code))
        if isinstance(project, ObservedProject):
            result.asked = project.asked_from(job.file.path)
        return


def _display(path: Path) -> str:
    return _relative(path, Path.cwd())


def _internal_error(display: str, error: BaseException) -> InternalError:
    frames = traceback.extract_tb(error.__traceback__)
    own = [f"{Path(f.filename).name}:{f.name}:{f.line}" for f in frames]
    digest = hashlib.sha256("\n".join([type(error).__name__, *own]).encode()).hexdigest()[:12]
    message = f"{type(error).__name__}: {error}".rstrip(": ")
    return InternalError(
        display, _rule_of(error.__traceback__), digest, message, "".join(traceback.format_exception(error))
    )


def _rule_of(trace: TracebackType | None) -> str | None:
    """The code of the rule whose module a traceback goes through."""
    modules = set()
    while trace is not None:
        modules.add(trace.tb_frame.f_globals.get("__name__"))
        trace = trace.tb_next
    return next((rule.code for rule in registry.all_rules() if type(rule).__module__ in modules), None)


# -- from faults to findings -----------------------------------------------------------------------------


def _raw(rule: Rule, fault: Fault, target: str) -> _Raw:
    from amplint.edits import fix_of

    module, node = fault.site.module, fault.site.node
    first, last = module.logical_line_range(node)
    place = module.place(node)
    steps: list[Step] = []
    for site, message in fault.steps:
        step = Step(site.module.place(site.node), message)
        if step not in steps:
            steps.append(step)
    finding = _finding(
        rule,
        place,
        fault.message,
        fault.confidence,
        steps=tuple(steps),
        assumptions=fault.assumptions,
        fix=fix_of(fault.fix) if fault.fix is not None else None,
        target=target,
        statement=(first, last),
    )
    return _Raw(finding, _lines(module, node, first, last))


def _lines(module: SourceModule, node: cst.CSTNode, first: int, last: int) -> str:
    cell = module.place(node).cell
    start, end = module.program_line(first, cell), module.program_line(last, cell)
    return "\n".join(module.line_text(line) for line in range(start, end + 1))


def _finding(
    rule: Rule,
    place: Place,
    message: str,
    confidence: Confidence,
    statement: tuple[int, int],
    **more: object,
) -> Finding:
    return Finding(
        rule=rule.code,
        name=rule.name,
        severity=rule.severity,
        confidence=confidence,
        place=place,
        message=message,
        url=rule.url,
        statement=statement,
        **more,  # type: ignore[arg-type]
    )


# -- merging, suppressing, thresholds --------------------------------------------------------------------


def _settle(raws: Iterable[_Raw], plans: Sequence[_Plan], around: _Surroundings, run: Run) -> None:
    """Bring the findings of all files together: merged, named, suppressed, and held against the thresholds."""
    by_display = {plan.file.display: plan for plan in plans}
    by_path = {plan.file.path: plan.file.display for plan in plans}
    for raw in raws:
        _rename(raw.finding, around.base, by_path)
    raws = [
        raw
        for raw in raws
        if (plan := by_display.get(raw.finding.place.path)) is not None and around.is_called_from(plan, raw.origin)
    ]
    kept = _most_specific(_merged(raws))
    _name(kept, by_display)
    for raw in kept:
        by_display[raw.finding.place.path].findings.append(raw.finding)

    suppressions = Suppressions(lambda display: _directives(run.sources, display))
    shown: list[Finding] = []
    for plan in plans:
        for finding in plan.findings:
            if finding.rule not in plan.codes:
                continue
            directive = suppressions.silencing(finding)
            if finding.confidence < plan.settings.min_confidence:
                continue
            if directive is None:
                shown.append(finding)
            else:
                run.suppressed.append(Suppressed.by(directive, finding))
    for plan in plans:
        if plan.has_directives and not any(finding.rule == UNREADABLE for finding in plan.findings):
            for finding in suppressions.unused(plan.file.display, plan.codes - {suppress.UNUSED}):
                directive = suppressions.silencing(finding, by_name=True)
                if directive is None:
                    shown.append(finding)
                else:
                    run.suppressed.append(Suppressed.by(directive, finding))
    for finding in shown:
        if finding.target == run.target:
            finding.target = None
    run.findings.extend(shown)
    run.suppressed.sort(key=lambda s: s.finding.sort_key)


def _rename(finding: Finding, base: Path, by_path: Mapping[Path, str]) -> None:
    """Give files that the project named in its own way the name that the run has for them."""

    def renamed(place: Place) -> Place:
        display = by_path.get(Path(os.path.abspath(base / place.path)))
        return place if display is None or display == place.path else replace(place, path=display)

    finding.place = renamed(finding.place)
    finding.steps = tuple(replace(step, place=renamed(step.place)) for step in finding.steps)
    if finding.fix is not None:
        edits = tuple(replace(edit, place=renamed(edit.place)) for edit in finding.fix.edits)
        finding.fix = replace(finding.fix, edits=edits)


def _merged(raws: Iterable[_Raw]) -> list[_Raw]:
    """One finding per rule and place, the most certain one; of equals the one with fix and the shorter story."""
    best: dict[tuple[str, Place], _Raw] = {}
    for raw in raws:
        key = (raw.finding.rule, raw.finding.place)
        other = best.get(key)
        if other is None or _weight(raw.finding) < _weight(other.finding):
            best[key] = raw
    return sorted(best.values(), key=lambda raw: raw.finding.sort_key)


def _weight(finding: Finding) -> tuple[object, ...]:
    return (-finding.confidence, finding.fix is None, len(finding.steps), finding.message, str(finding.steps))


def _most_specific(raws: Sequence[_Raw]) -> list[_Raw]:
    """Leave out what a more specific rule says of the same place (another file's analysis may have found it)."""
    at: dict[Place, set[str]] = {}
    for raw in raws:
        at.setdefault(raw.finding.place, set()).add(raw.finding.rule)
    rules = registry.by_code_or_name()
    return [raw for raw in raws if at[raw.finding.place].isdisjoint(rules[raw.finding.rule].yields_to)]


def _name(raws: Iterable[_Raw], by_display: Mapping[str, _Plan]) -> None:
    """Give findings their fingerprints; equal statements of one rule in one file are counted in order."""
    counts: dict[tuple[str, str, str], int] = {}
    for raw in raws:
        finding = raw.finding
        plan = by_display[finding.place.path]
        key = (finding.rule, finding.place.path, " ".join(raw.text.split()))
        occurrence = counts[key] = counts.get(key, -1) + 1
        finding.fingerprint = fingerprint(finding.rule, _stable_path(plan), raw.text, occurrence)


def _stable_path(plan: _Plan) -> str:
    """A file's path from the root of its configuration or repository: the same on every machine."""
    root = plan.settings.root if plan.settings.source is not None else None
    if root is None:
        parents = plan.file.path.parents
        root = next((folder for folder in parents if os.path.exists(folder / ".git")), plan.settings.root)
    return _relative(plan.file.path, root)


def _name_own(run: Run, by_display: Mapping[str, _Plan]) -> None:
    """Fingerprints of the engine's own findings, which have no statement: their message stands for it."""
    counts: dict[tuple[str, str, str], int] = {}
    for finding in sorted((f for f in run.findings if not f.fingerprint), key=lambda f: f.sort_key):
        plan = by_display.get(finding.place.path)
        path = finding.place.path if plan is None else _stable_path(plan)
        key = (finding.rule, path, finding.message)
        occurrence = counts[key] = counts.get(key, -1) + 1
        finding.fingerprint = fingerprint(finding.rule, path, finding.message, occurrence)


def _directives(sources: Sources, display: str) -> Sequence[suppress.Directive]:
    module = sources.module(display)
    return suppress.directives(module) if module is not None else ()
