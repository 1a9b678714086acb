"""One invocation of `check`: from the options, over a run and what is done with it, to the exit status."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from amplint.report import plural
from amplint.terminal import INTERRUPTED, Failure, Progress, say, use_color

if TYPE_CHECKING:
    from amplint.config import Configuration
    from amplint.finding import Finding
    from amplint.fix import Fixed
    from amplint.run import InternalError, Run
    from amplint.verify.host import Worker

#: what a first argument that is no path may have been meant to be
COMMANDS = ("check", "verify", "explain", "rules", "config-schema", "server")


@dataclass(frozen=True, slots=True)
class Arguments:
    """The options of `check`, as click read them."""

    paths: tuple[Path, ...]
    formats: tuple[str, ...]
    fix: bool
    unsafe_fixes: bool
    show_diff: bool
    add_ignore: str | None
    baseline: Path | None
    write_baseline: Path | None
    since: str | None
    verifying: bool
    jobs: int | None
    no_cache: bool
    cache_dir: Path | None
    exit_zero: bool
    statistics: bool
    stdin_filename: Path | None
    color: str
    no_progress: bool
    quiet: bool
    verbose: bool


class Session:
    """One invocation of `check`."""

    def __init__(self, arguments: Arguments, configuration: Configuration) -> None:
        self._arguments = arguments
        self._configuration = configuration
        self._paths = list(arguments.paths) or [Path()]
        self._contents: dict[Path, bytes] = {}
        self._outputs = _outputs(arguments)

    def run(self) -> int:
        self._take_stdin()
        self._require_paths()
        self._take_pipes()
        if not self._arguments.verifying:
            return self._finish(self._check({}))
        from amplint.engine import common_folder
        from amplint.verify import worker_for

        with worker_for(self._configuration.for_folder(common_folder(self._paths, Path.cwd()))) as worker:
            worker.launch()  # torch takes longer to import than most projects to check
            run = self._check({})
            verified = self._verified(run, worker)
        if not verified:
            self._report(run)
            return INTERRUPTED
        return self._finish(run)

    def _finish(self, run: Run) -> int:
        """What is to be done with a run, and the exit status."""
        arguments = self._arguments
        if arguments.write_baseline is not None:
            return self._write_baseline(run, arguments.write_baseline)
        if arguments.add_ignore is not None:
            return self._add_ignores(run, arguments.add_ignore)
        changed = False
        if arguments.fix or arguments.show_diff:
            from amplint.fix import fix_all

            verdicts = {finding.fingerprint: finding.verdict for finding in run.findings}
            fixed, run = fix_all(run, self._check, arguments.unsafe_fixes)
            for finding in run.findings:
                finding.verdict = verdicts.get(finding.fingerprint)
            changed = bool(fixed.after)
            if arguments.show_diff:
                self._show_diff(fixed)
                _report_errors(run, arguments.verbose)
                return 2 if run.errors else int(changed and not arguments.exit_zero)
            self._write(fixed)
        self._report(run)
        _report_errors(run, arguments.verbose)
        if run.errors:
            return 2
        return 0 if arguments.exit_zero else int(any(_counts(finding) for finding in run.findings))

    def _verified(self, run: Run, worker: Worker) -> bool:
        """Whether the verifier came to its end: Ctrl-C stops it, and what was seen until then is still reported."""
        from amplint.verify import verify_run

        arguments = self._arguments
        progress = Progress(not arguments.no_progress and not arguments.quiet, "findings verified")
        try:
            return verify_run(run, run.settings, progress, worker)
        except OSError as error:
            raise Failure(f"{error.filename}: {error.strerror}") from None
        finally:
            progress.clear()

    def _take_stdin(self) -> None:
        if Path("-") not in self._paths:
            return
        if len(self._paths) > 1:
            raise Failure("standard input (-) cannot be checked together with other paths")
        name = self._arguments.stdin_filename or Path("-")
        path = Path(os.path.abspath(name))
        self._contents[path] = sys.stdin.buffer.read()
        self._paths = [name]

    def _require_paths(self) -> None:
        from amplint.config import suggestion

        missing = [p for p in self._paths if Path(os.path.abspath(p)) not in self._contents and not os.path.lexists(p)]
        if missing:
            names = ", ".join(repr(str(path)) for path in missing)
            first = str(missing[0])
            if first in COMMANDS:
                hint = "; a command stands before all options and paths"
            else:
                hint = suggestion(first, COMMANDS) if missing[0] == self._paths[0] else ""
            raise Failure(f"no such file or folder: {names}{hint}")

    def _take_pipes(self) -> None:
        """Read what can be read only once, such as the `<(command)` of a shell."""
        for path in self._paths:
            absolute = Path(os.path.abspath(path))
            if absolute not in self._contents and _is_pipe(absolute):
                try:
                    self._contents[absolute] = absolute.read_bytes()
                except OSError as error:
                    raise Failure(f"{path}: {error.strerror}") from None

    def _check(self, contents: Mapping[Path, bytes]) -> Run:
        """Check with what is on disk, under standard input, under other contents; baseline and --since applied."""
        from amplint import baseline, engine, since

        arguments = self._arguments
        progress = Progress(not arguments.no_progress and not arguments.quiet) if not contents else None
        run = engine.check(
            self._paths,
            self._configuration,
            contents={**self._contents, **contents},
            jobs=arguments.jobs,
            progress=progress,
            caching=not arguments.no_cache,
            cache_dir=arguments.cache_dir,
        )
        if progress is not None:
            progress.clear()
        known = arguments.baseline or run.settings.baseline
        if known is not None and arguments.write_baseline is None:
            stale = baseline.apply(run, baseline.read(known), known.absolute().parent)
            if stale and not contents and not arguments.quiet and not self._configuration.is_narrowed:
                gone = plural(len(stale), "stale finding")
                say(f"{known} holds {gone}; --write-baseline {known} drops them")
                for entry in stale if arguments.verbose else ():
                    say(f"  {entry.path}: {entry.rule} {entry.message}")
        if arguments.since is not None:
            since.keep_changed(run, arguments.since)
        return run

    def _write_baseline(self, run: Run, path: Path) -> int:
        from amplint import baseline

        try:
            count = baseline.write(path, run)
        except OSError as error:
            raise Failure(f"{path}: {error.strerror}") from None
        self._tell(f"wrote {plural(count, 'finding')} to {path}")
        _report_errors(run, self._arguments.verbose)
        return 2 if run.errors else 0

    def _add_ignores(self, run: Run, reason: str) -> int:
        from amplint.ignores import suppressible, with_ignores
        from amplint.source import SourceError

        try:
            changed = with_ignores(run, reason)
        except SourceError as error:
            raise Failure(f"the suppressions {error}") from None
        self._put_all({display: (run.sources.data(display), data) for display, data in changed.items()})
        count = len(suppressible(run))
        self._tell(f"added suppressions for {plural(count, 'finding')}")
        _report_errors(run, self._arguments.verbose)
        return 2 if run.errors else 0

    def _write(self, fixed: Fixed) -> None:
        self._put_all({display: (fixed.before[display], data) for display, data in fixed.after.items()})
        if fixed.applied:
            self._tell(f"fixed {plural(len(fixed.applied), 'finding')} in {plural(len(fixed.after), 'file')}")

    def _put_all(self, changed: Mapping[str, tuple[bytes, bytes]]) -> None:
        """Write the new bytes of files, given as (before, after) by display path; standard input is passed on."""
        from amplint.fix import write

        failures: list[str] = []
        for display, (before, after) in changed.items():
            path = Path(os.path.abspath(display))
            if path in self._contents:
                self._contents[path] = after
                continue
            try:
                if path.read_bytes() != before:
                    say(f"{display} has changed meanwhile, so it is left alone")
                    continue
                write(path, after)
            except OSError as error:
                failures.append(f"{display} cannot be written: {error.strerror}")
        if failures:
            raise Failure("\n       ".join(failures))
        for data in self._contents.values():
            sys.stdout.buffer.write(data)

    def _tell(self, text: str) -> None:
        """Say what was done."""
        if not self._arguments.quiet:
            say(text)

    def _show_diff(self, fixed: Fixed) -> None:
        from amplint.fix import diff

        for display, after in sorted(fixed.after.items()):
            click.echo(diff(display, fixed.before[display], after), nl=False)
        self._tell(f"would fix {plural(len(fixed.applied), 'finding')} in {plural(len(fixed.after), 'file')}")

    def _report(self, run: Run) -> None:
        from amplint import report

        arguments = self._arguments
        # the fixed source of standard input has the output for itself
        stdout = sys.stderr if arguments.fix and self._contents else sys.stdout
        plain = report.Options(False, arguments.quiet, arguments.verbose)
        shown = report.Options(use_color(arguments.color, stdout), arguments.quiet, arguments.verbose)
        for name, file in self._outputs:
            try:
                if file is None:
                    report.render(name, run, stdout, shown)
                    continue
                with open(file, "w", encoding="utf-8", errors="backslashreplace") as stream:
                    report.render(name, run, stream, plain)
            except BrokenPipeError:
                raise
            except OSError as error:
                raise Failure(f"{error.filename or file or name}: {error.strerror}") from None


def _outputs(arguments: Arguments) -> list[tuple[str, Path | None]]:
    """The formats asked for and where they go; None is standard output."""
    from amplint.config import suggestion
    from amplint.report import FORMATS

    if not arguments.formats:
        in_actions = os.environ.get("GITHUB_ACTIONS") == "true"
        names = ["statistics"] if arguments.statistics else ["full", "github"] if in_actions else ["full"]
        return [(name, None) for name in names]
    outputs: list[tuple[str, Path | None]] = []
    for text in arguments.formats:
        name, colon, file = text.partition(":")
        if name not in FORMATS:
            raise Failure(f"no such output format: {name!r}{suggestion(name, list(FORMATS))}")
        if colon and not file:
            raise Failure(f"--output-format {text} names no file")
        outputs.append((name, Path(file) if file else None))
    on_stdout = [name for name, file in outputs if file is None]
    if len(on_stdout) > 1 and any(FORMATS[name] for name in on_stdout):
        raise Failure(f"{' and '.join(on_stdout)} cannot share standard output; write one to a file (FORMAT:FILE)")
    if arguments.statistics:
        return [("statistics", None), *((name, file) for name, file in outputs if file is not None)]
    return outputs


def _is_pipe(path: Path) -> bool:
    """Whether a path is a named pipe. Raises Failure for a device, which may have no end."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False  # it becomes a finding
    if stat.S_ISBLK(mode) or (stat.S_ISCHR(mode) and os.path.realpath(path) != os.devnull):
        raise Failure(f"{path} is a device")
    return stat.S_ISFIFO(mode)


def _counts(finding: Finding) -> bool:
    """Whether a finding makes the run fail: one that the verifier refuted does not."""
    return finding.verdict is None or finding.verdict.status != "refuted"


def _report_errors(run: Run, verbose: bool) -> None:
    # what all rules ask of a file fails in all of them
    alike: dict[tuple[str, str], list[InternalError]] = {}
    for error in run.errors:
        alike.setdefault((error.path, error.message), []).append(error)
    for error, *others in alike.values():
        rule = f" in {error.rule}" if error.rule else ""
        more = f" (and in {len(others)} more rule{'s' * (len(others) > 1)})" if others else ""
        say(f"internal error{rule} on {error.path} [{error.hash}]: {error.message}{more}")
        if verbose:
            say(error.traceback)
    if run.errors:
        say("This is a fault of amplint, not of your code; please report it with the hash above.")
