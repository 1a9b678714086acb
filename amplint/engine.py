"""A run: from paths to findings. Files are screened, analysed, and what the rules say becomes findings.

The result depends on the files and settings alone, not on the order of the paths or the number of processes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from amplint import registry, suppress
from amplint.config import Configuration, Settings
from amplint.files import SourceFile, Unreadable, discover, display_path
from amplint.finding import Finding, Place, fingerprint
from amplint.found import UNREADABLE, Raw, unreadable_finding
from amplint.jobs import Progress, cache_in, cached_results, forget_projects
from amplint.plan import Plan, Surroundings, plan_file
from amplint.run import Run, Sources
from amplint.source import SourceError
from amplint.suppress import Suppressed, Suppressions
from amplint.target import target_of


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
    forget_projects()
    configuration = Configuration.fixed(settings) if isinstance(settings, Settings) else settings
    base = Path.cwd()
    contents = contents or {}
    top = configuration.for_folder(common_folder(paths, base))
    files, problems = discover(paths, configuration.for_folder, base, top.force_exclude)
    run = Run(top, target_of(common_folder(paths, base), top.torch), _sources(files, contents), tuple(files))
    caching = caching and not contents
    around = Surroundings(configuration, contents, base, caching)
    plans = [plan_file(file, configuration, contents, around, caching) for file in files]
    run.parsed = sum(plan.job is not None for plan in plans)
    run.screened_out = sum(plan.job is None and not plan.findings for plan in plans)

    callers = [plan_file(file, configuration, contents, around, caching) for file in around.callers_of(plans, paths)]
    around.let_drive(plans, callers)
    pending = [plan for plan in (*plans, *callers) if plan.job is not None]
    raws: list[Raw] = []
    cache = cache_in(top, cache_dir) if caching and pending else None
    for plan, result in cached_results(pending, cache, jobs, progress):
        for raw in result.found:
            raw.origin = plan.file.path
        raws.extend(result.found)
        run.errors.extend(result.errors)
    _settle(raws, plans, {plan.file.path: plan for plan in pending}, around, run)
    _report_folders(problems, top, run)
    _name_own(run, {plan.file.display: plan for plan in plans})
    run.findings.sort(key=lambda finding: finding.sort_key)
    run.errors.sort(key=lambda error: (error.path, error.rule or "", error.hash))
    run.seconds = time.perf_counter() - started
    return run


def common_folder(paths: Sequence[Path], base: Path) -> Path:
    absolute = [os.path.abspath(base / path) for path in paths]
    try:
        common = Path(os.path.commonpath(absolute)) if absolute else base
    except ValueError:  # different drives
        common = base
    return common if os.path.isdir(common) else common.parent


def _sources(files: Iterable[SourceFile], contents: Mapping[Path, bytes]) -> Sources:
    return Sources({file.display: file.path for file in files}, contents)


def _report_folders(problems: Iterable[Unreadable], settings: Settings, run: Run) -> None:
    if any(rule.code == UNREADABLE for rule in settings.enabled_rules()):
        for problem in problems:
            error = SourceError(f"cannot be read: {problem.reason}")
            run.findings.append(unreadable_finding(problem.display, error))


def _settle(
    raws: Iterable[Raw], plans: Sequence[Plan], origins: Mapping[Path, Plan], around: Surroundings, run: Run
) -> None:
    """Bring the findings of all files together: merged, named, suppressed, and held against the thresholds."""
    by_display = {plan.file.display: plan for plan in plans}
    by_path = {plan.file.path: plan.file.display for plan in plans}
    for raw in raws:
        _rename(raw.finding, around.base, by_path)
    raws = [
        raw
        for raw in raws
        if raw.origin is not None
        and (plan := by_display.get(raw.finding.place.path)) is not None
        and around.counts(raw, plan, origins[raw.origin])
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


def _merged(raws: Iterable[Raw]) -> list[Raw]:
    """One finding per rule and place, the most certain one; of equals the one with fix and the shorter story."""
    best: dict[tuple[str, Place], Raw] = {}
    for raw in raws:
        key = (raw.finding.rule, raw.finding.place)
        other = best.get(key)
        if other is None or _weight(raw.finding) < _weight(other.finding):
            best[key] = raw
    return sorted(best.values(), key=lambda raw: raw.finding.sort_key)


def _weight(finding: Finding) -> tuple[object, ...]:
    return (-finding.confidence, finding.fix is None, len(finding.steps), finding.message, str(finding.steps))


def _most_specific(raws: Sequence[Raw]) -> list[Raw]:
    """Leave out what a more specific rule says of the same place (another file's analysis may have found it)."""
    at: dict[Place, set[str]] = {}
    for raw in raws:
        at.setdefault(raw.finding.place, set()).add(raw.finding.rule)
    rules = registry.by_code_or_name()
    return [raw for raw in raws if at[raw.finding.place].isdisjoint(rules[raw.finding.rule].yields_to)]


def _name(raws: Iterable[Raw], by_display: Mapping[str, Plan]) -> None:
    """Give findings their fingerprints; equal statements of one rule in one file are counted in order."""
    counts: dict[tuple[str, str, str], int] = {}
    for raw in raws:
        finding = raw.finding
        plan = by_display[finding.place.path]
        key = (finding.rule, finding.place.path, " ".join(raw.text.split()))
        occurrence = counts[key] = counts.get(key, -1) + 1
        finding.fingerprint = fingerprint(finding.rule, _stable_path(plan), raw.text, occurrence)


def _stable_path(plan: Plan) -> str:
    """A file's path from the root of its configuration or repository: the same on every machine."""
    root = plan.settings.root if plan.settings.source is not None else None
    if root is None:
        parents = plan.file.path.parents
        root = next((folder for folder in parents if os.path.exists(folder / ".git")), plan.settings.root)
    return display_path(plan.file.path, root)


def _name_own(run: Run, by_display: Mapping[str, Plan]) -> None:
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
