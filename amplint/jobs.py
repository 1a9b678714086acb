"""The analysis of files, one job each: in this process, in others, or from the results of earlier runs."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from amplint import registry
from amplint.config import Settings
from amplint.files import SourceFile, display_path
from amplint.found import Raw, raw_of, unreadable_finding
from amplint.garbage import collect_seldom
from amplint.run import InternalError
from amplint.source import SourceError, SourceModule, deep_recursion

if TYPE_CHECKING:
    from amplint.cache import Answer, Cache, ObservedProject, Question
    from amplint.plan import Plan
    from amplint.project import Project


#: below these, starting processes costs more than it saves
MIN_PARALLEL_FILES, MIN_PARALLEL_BYTES = 4, 200_000
#: a tree of more levels than this is beyond what recursive analyses are asked to manage
DEEP_TREE = 400

Progress = Callable[[int, int], None]
#: what this process has read of projects; emptied when a run starts, since files change between runs
_projects: dict[tuple[Path, Settings, bool], Project] = {}


@dataclass(frozen=True, slots=True)
class Job:
    """One file to analyse, with the rules that may have something to say there."""

    file: SourceFile
    codes: tuple[str, ...]
    target: str
    settings: Settings
    contents: Mapping[Path, bytes]
    #: whether to keep track of what the result depends on
    observed: bool


@dataclass(slots=True)
class Result:
    """What the rules say about one file. `data` is a hash of its bytes, `asked` what else the result depends on;
    None where it cannot be told, or must not be kept."""

    found: list[Raw] = field(default_factory=list)
    errors: list[InternalError] = field(default_factory=list)
    data: str = ""
    asked: dict[Question, Answer] | None = None


def cache_in(settings: Settings, folder: Path | None) -> Cache:
    from amplint.cache import FOLDER, Cache

    return Cache(settings.root / FOLDER if folder is None else folder)


def cached_results(
    plans: Sequence[Plan], cache: Cache | None, jobs: int | None, progress: Progress | None
) -> Iterator[tuple[Plan, Result]]:
    """The results of all jobs: those that the cache knows, then the others, which it gets to know."""
    if cache is None:
        yield from zip(plans, _results(plans, jobs, progress), strict=True)
        return
    missing: list[tuple[Plan, str]] = []
    for plan in plans:
        key = _cache_key(plan)
        known = cache.get(key, plan.data, _observed(plan))
        if known is None:
            missing.append((plan, key))
        else:
            yield plan, Result([Raw(finding, text) for finding, text in known])
    results = _results([plan for plan, _ in missing], jobs, progress)
    for (plan, key), result in zip(missing, results, strict=True):
        if result.asked is not None and not result.errors:
            found = [(raw.finding, raw.text) for raw in result.found]
            cache.put(key, result.data, result.asked, found, _observed(plan))
        yield plan, result


def _cache_key(plan: Plan) -> str:
    from amplint.cache import key_of

    codes = plan.job.codes if plan.job is not None else ()
    return key_of(plan.file.path, plan.file.display, codes, plan.target, plan.settings, _observed(plan).root)


def _observed(plan: Plan) -> ObservedProject:
    from amplint.cache import ObservedProject

    project = project_of(plan.file.path, plan.settings, observed=True)
    assert isinstance(project, ObservedProject)
    return project


def _results(plans: Sequence[Plan], jobs: int | None, progress: Progress | None) -> Iterator[Result]:
    """The results of all jobs, in the order of the plans."""
    work = [plan.job for plan in plans if plan.job is not None]
    processes = min(_processors() if jobs is None else max(jobs, 1), len(work))
    size = sum(plan.size for plan in plans)
    pays = len(work) >= MIN_PARALLEL_FILES and size >= MIN_PARALLEL_BYTES
    done: Iterable[Result] = _in_processes(work, processes) if processes > 1 and pays else map(analyse_job, work)
    for count, result in enumerate(done, 1):
        if progress is not None:
            progress(count, len(work))
        yield result


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _in_processes(work: Sequence[Job], processes: int) -> Iterator[Result]:
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    # forking is fast and safe while there is one thread; elsewhere the platform's default is
    alone = sys.platform == "linux" and threading.active_count() == 1
    context = multiprocessing.get_context("fork" if alone else None)

    def pool(workers: int) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(workers, context, _begin)

    done = 0
    with pool(processes) as executor:
        futures = [executor.submit(analyse_job, job) for job in work]
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
                result = executor.submit(analyse_job, job).result()
            except BrokenProcessPool as error:
                result = Result(errors=[_internal_error(job.file.display, error)])
        yield result


def _begin() -> None:
    """Make a new process of the pool end at once on Ctrl-C, and with the one that started it."""
    import signal

    collect_seldom()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    from multiprocessing import connection, parent_process

    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def forget_projects() -> None:
    """Begin anew: files may have changed since they were read."""
    _projects.clear()


def project_of(file: Path, settings: Settings, observed: bool) -> Project:
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


def analyse_job(job: Job) -> Result:
    """Everything the rules say about one file. Never raises: what goes wrong is part of the result."""
    result = Result()
    data = job.contents.get(job.file.path)
    try:
        if data is None:
            data = job.file.path.read_bytes()
        if job.observed:
            result.data = hashlib.sha256(data).hexdigest()
        source = SourceModule.from_bytes(data, job.file.display)
        module = project_of(job.file.path, job.settings, job.observed).parsed(source, job.file.path)
    except OSError as error:
        module = None
        failure = SourceError(f"cannot be read: {error.strerror or error}")
    except SourceError as error:
        module = None
        failure = error
    if module is None:
        result.found.append(Raw(unreadable_finding(job.file.display, failure), ""))
        return result
    with deep_recursion():
        _run_rules(job, module, result)
    return result


def _run_rules(job: Job, module: SourceModule, result: Result) -> None:
    from amplint.analysis import analyse
    from amplint.cache import ObservedProject

    rules = tuple(rule for rule in registry.all_rules() if rule.code in job.codes)
    while rules:
        try:
            project = project_of(job.file.path, job.settings, job.observed)
            if isinstance(project, ObservedProject):
                project.saw(job.file.path, result.data)
            for path, data in job.contents.items():
                if path != job.file.path:
                    project.enter(SourceModule.from_bytes(data, _display(path)), path)
            faults = analyse(module, project, rules, job.target)
        except RecursionError as error:
            if module.depth > DEEP_TREE:
                failure = SourceError("nested too deeply to be analysed")
                result.found.append(Raw(unreadable_finding(job.file.display, failure), ""))
            else:
                result.errors.append(_internal_error(job.file.display, error))
            return
        except SourceError as error:
            result.found.append(Raw(unreadable_finding(job.file.display, error), ""))
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
                result.found.append(raw_of(rule, fault, job.target))
            except Exception as error:
                result.errors.append(replace(_internal_error(job.file.display, error), rule=rule.code))
        if isinstance(project, ObservedProject):
            result.asked = project.asked_from(job.file.path)
        project.trim()
        return


def _display(path: Path) -> str:
    return display_path(path, Path.cwd())


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
