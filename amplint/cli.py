"""The command line. Everything that takes time to import is imported by the command that needs it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click
from click.shell_completion import CompletionItem

import amplint
from amplint.garbage import collect_seldom
from amplint.terminal import INTERRUPTED, Failure, Progress, use_color

if TYPE_CHECKING:
    from amplint.config import Configuration

Command = TypeVar("Command", bound=Callable[..., Any])
#: shells report a program that a closed pipe ended with this status
BROKEN_PIPE = 141


class _Commands(click.Group):
    """Commands, where `amplint PATH...` stands for `amplint check PATH...`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help", "--version", "-V"):
            args = ["check", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Commands, else what `check` takes."""
        found = super().shell_complete(ctx, incomplete)
        if incomplete.startswith("-"):
            check = self.commands["check"]
            options = check.shell_complete(click.Context(check, ctx, "check"), incomplete)
            return list({item.value: item for item in (*options, *found)}.values())
        return found or [CompletionItem(incomplete, type="file")]


class _Check(click.Command):
    """A command with `--add-ignore[=REASON]`, whose value click would take from the path behind it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options = args.index("--") if "--" in args else len(args)
        for position in range(options):
            if args[position] == "--add-ignore":
                args[position] = "--add-ignore="
        return super().parse_args(ctx, args)


def main() -> NoReturn:
    """Run the command line and exit with its status."""
    collect_seldom()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a locale that cannot write a character is no reason to fail
            stream.reconfigure(errors="backslashreplace")
    try:
        status = cli.main(standalone_mode=False, prog_name="amplint")
        sys.stdout.flush()
    except click.exceptions.Exit as done:
        status = done.exit_code
    except click.ClickException as error:
        error.show()
        status = 2
    except (click.Abort, KeyboardInterrupt):
        status = INTERRUPTED
    except BrokenPipeError:
        # nobody reads any more; keep the interpreter from flushing into the closed pipe once again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = BROKEN_PIPE
    sys.exit(status if isinstance(status, int) else 0)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(amplint.__version__, "--version", "-V", message="amplint %(version)s")
def cli() -> None:
    """A linter for automatic mixed precision (autocast and GradScaler) in PyTorch code.

    `amplint PATH...` is short for `amplint check PATH...`.
    """


def _several(context: click.Context, parameter: click.Parameter, values: Sequence[str]) -> tuple[str, ...] | None:
    """Values of a repeatable option, each of which may hold several separated by commas."""
    parts = tuple(part.strip() for value in values for part in value.split(",") if part.strip())
    return parts or None


def _rules_like(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Codes and names for the shell to complete, the last of several behind its comma."""
    from amplint import registry

    before, comma, last = incomplete.rpartition(",")
    known = ((word, rule.summary) for rule in registry.all_rules() for word in (rule.code, rule.name))
    return [CompletionItem(before + comma + word, help=about) for word, about in known if word.startswith(last)]


def _formats_like(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Output formats for the shell to complete."""
    from amplint.report import FORMATS

    return [CompletionItem(name) for name in FORMATS if name.startswith(incomplete)]


#: a path that cannot be read is no wrong usage: it becomes a finding
_PATH = click.Path(path_type=Path, allow_dash=True, readable=False)
_FILE, _FOLDER = click.Path(path_type=Path, dir_okay=False), click.Path(path_type=Path, file_okay=False)
_SEVERITIES, _CONFIDENCES = click.Choice(["info", "warning", "error"]), click.Choice(["low", "medium", "high"])
_COLOR = click.Choice(["auto", "always", "never"])
_RULES: Mapping[str, Any] = {"multiple": True, "callback": _several, "metavar": "RULE", "shell_complete": _rules_like}
_PATTERNS: Mapping[str, Any] = {"multiple": True, "callback": _several, "metavar": "PATTERN"}
_FLAG: Mapping[str, Any] = {"is_flag": True}
#: names, settings and help of the options of `check`, which `verify` has as well
_OPTIONS: Sequence[tuple[tuple[str, ...], Mapping[str, Any], str]] = (
    (("--select",), _RULES, "Run only these rules (code, prefix of codes, or name)."),
    (("--extend-select",), _RULES, "Run these rules besides the selected ones."),
    (("--ignore",), _RULES, "Do not run these rules."),
    (("--min-severity",), {"type": _SEVERITIES}, "Show findings from this severity on.  [default: warning]"),
    (("--min-confidence",), {"type": _CONFIDENCES}, "Show findings from this confidence on.  [default: medium]"),
    (
        ("--output-format", "formats"),
        {"multiple": True, "metavar": "FORMAT[:FILE]", "shell_complete": _formats_like},
        "full, concise, json, sarif, github, gitlab, junit, rdjson or markdown; may be repeated.",
    ),
    (("--fix",), _FLAG, "Apply safe fixes."),
    (("--unsafe-fixes",), _FLAG, "With --fix or --diff: apply unsafe fixes as well."),
    (("--diff", "show_diff"), _FLAG, "Show what --fix would change, and change nothing."),
    (("--add-ignore",), {"metavar": "[=REASON]"}, "Add a suppression comment, with a reason, for every finding."),
    (("--baseline",), {"type": _FILE}, "Hide the findings that are in this file."),
    (("--write-baseline",), {"type": _FILE}, "Write all findings to this file as the new baseline."),
    (("--since",), {"metavar": "REV"}, "Show only findings that touch lines changed since a git revision."),
    (("--torch",), {"metavar": "VERSION"}, "The (lowest) torch version the code is written for."),
    (("--verify", "verifying"), _FLAG, "Execute the flagged statements to confirm findings."),
    (("--device",), {"metavar": "DEVICE"}, "Where to verify: auto, cpu, cuda or cuda:N.  [default: auto]"),
    (("--keep-replay",), {"type": _FOLDER, "metavar": "DIR"}, "Keep what was executed, as runnable files."),
    (("--no-sandbox",), _FLAG, "Verify in a plain process, where the system offers no sandbox."),
    (("--exclude",), _PATTERNS, "Leave these out instead of the default folders."),
    (("--extend-exclude",), _PATTERNS, "Leave these out besides the excluded ones."),
    (("--force-exclude",), _FLAG, "Leave excluded files out even where they are named."),
    (("--jobs", "-j"), {"type": click.IntRange(min=1)}, "Processes to use.  [default: as many as pay]"),
    (("--no-cache",), _FLAG, "Analyse all files anew, and keep no results."),
    (
        ("--cache-dir",),
        {"type": _FOLDER, "metavar": "DIR"},
        "Where results are kept.  [default: .amplint_cache beside the configuration]",
    ),
    (("--exit-zero",), _FLAG, "Exit with 0 in spite of findings."),
    (("--statistics",), _FLAG, "Show how often each rule was broken, not where."),
    (("--stdin-filename",), {"type": _FILE}, "The name of what is read from standard input (-)."),
    (("--show-settings",), _FLAG, "Show the settings that govern the paths, and check nothing."),
    (("--config",), {"type": _FILE}, "Use this configuration file for all files."),
    (("--isolated",), _FLAG, "Use no configuration file."),
    (("--color",), {"type": _COLOR, "default": "auto"}, "When to use colors.  [default: auto]"),
    (("--no-progress",), _FLAG, "Show no progress."),
    (("--quiet", "-q"), _FLAG, "Print findings only."),
    (("--verbose", "-v"), _FLAG, "Print more about the run and about each finding."),
)


def _check_options(command: Command) -> Command:
    for names, settings, text in reversed(_OPTIONS):
        command = click.option(*names, **settings, help=text)(command)
    return command


@cli.command(cls=_Check)
@click.argument("paths", nargs=-1, type=_PATH)
@_check_options
def check(paths: tuple[Path, ...], **options: Any) -> int:
    """Lint files, folders (the current one by default), notebooks, or standard input (-)."""
    return _checked(paths, options)


@cli.command(cls=_Check)
@click.argument("paths", nargs=-1, type=_PATH)
@click.option("--rules", "of_rules", is_flag=True, help="Confirm the rules themselves; the arguments are rules then.")
@_check_options
def verify(paths: tuple[Path, ...], of_rules: bool, **options: Any) -> int:
    """Lint, then execute the flagged statements on stand-ins and say which findings are confirmed."""
    if of_rules:
        return _verified_rules([str(path) for path in paths], options)
    return _checked(paths, {**options, "verifying": True})


@cli.command()
@click.argument("rule", shell_complete=_rules_like)
@click.option("--format", "form", type=click.Choice(["text", "markdown", "json"]), default="text", show_default=True)
@click.option("--color", type=_COLOR, default="auto", show_default=True)
def explain(rule: str, form: str, color: str) -> None:
    """Show the page of a rule, given by code or name."""
    from amplint import pages, registry
    from amplint.config import rule_spellings, suggestion

    found = registry.find(rule)
    if found is None:
        raise Failure(f"no such rule: {rule!r}{suggestion(rule, rule_spellings())}")
    if form == "json":
        click.echo(json.dumps({**pages.row(found), "page": pages.markdown(found)}, indent=2))
    elif form == "markdown":
        click.echo(pages.markdown(found), nl=False)
    else:
        click.echo(pages.text(found), nl=False, color=use_color(color, sys.stdout))


@cli.command()
@click.option("--format", "form", type=click.Choice(["text", "markdown", "json"]), default="text", show_default=True)
@click.option("--color", type=_COLOR, default="auto", show_default=True)
def rules(form: str, color: str) -> None:
    """List all rules: code, name, severity, fix, and how they are confirmed."""
    from amplint import pages, registry

    if form == "json":
        click.echo(json.dumps([pages.row(rule) for rule in registry.all_rules()], indent=2))
    elif form == "markdown":
        click.echo(pages.markdown_table(registry.all_rules()), nl=False)
    else:
        click.echo(pages.table(registry.all_rules()), nl=False, color=use_color(color, sys.stdout))


@cli.command()
@click.option("--stdio", is_flag=True, help="Accepted: the server always speaks on standard input and output.")
def server(stdio: bool) -> None:
    """Run the language server, for editors."""
    try:
        from amplint.server import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pygls", "lsprotocol"):
            raise
        raise Failure("the language server needs pygls: pip install 'amplint[server]'") from None
    serve()


@cli.command("config-schema")
def config_schema() -> None:
    """Print the JSON schema of the configuration."""
    from amplint.schema import as_json

    click.echo(as_json(), nl=False)


def _checked(paths: tuple[Path, ...], options: Mapping[str, Any]) -> int:
    from amplint.config import ConfigError
    from amplint.session import Arguments, Session

    arguments = Arguments(paths, **{key: options[key] for key in Arguments.__slots__ if key != "paths"})
    try:
        if options["show_settings"]:
            from amplint.effective import described

            click.echo(described(paths or (Path(),), _configuration(options)), nl=False)
            return 0
        return Session(arguments, _configuration(options)).run()
    except ConfigError as error:
        raise Failure(str(error)) from None


def _configuration(options: Mapping[str, Any]) -> Configuration:
    """What the command line says, over the configuration files."""
    from amplint import config

    for key in ("select", "extend_select", "ignore"):
        for selector in options[key] or ():
            config.rules_of(selector)
    selection = config.Selection(options["select"], options["extend_select"] or (), options["ignore"] or ())
    overrides: dict[str, Any] = {}
    readers: Mapping[str, Callable[[Any], object]] = {
        "exclude": lambda texts: config.patterns(list(texts)),
        "extend_exclude": lambda texts: config.patterns(list(texts)),
        "min_severity": config.severity,
        "min_confidence": config.confidence,
        "torch": config.torch_version,
        "device": config.device,
    }
    for key, reader in readers.items():
        if options[key] is not None:
            try:
                overrides[key] = reader(options[key])
            except config.ConfigError as error:
                raise config.ConfigError(f"--{key.replace('_', '-')}: {error}") from None
    if options["keep_replay"] is not None:
        overrides["keep_replay"] = options["keep_replay"]
    for key in ("force_exclude", "no_sandbox"):
        if options[key]:
            overrides[key] = True
    return config.Configuration(overrides, selection, options["config"], options["isolated"])


def _verified_rules(selectors: Sequence[str], options: Mapping[str, Any]) -> int:
    """Confirm rules by the programs on their own pages; 1 when a page does not hold what it says."""
    from amplint import pages
    from amplint.config import ConfigError, rules_of
    from amplint.verify import holds, verify_rules

    try:
        codes = sorted({rule.code for selector in selectors or ["ALL"] for rule in rules_of(selector)})
        settings = _configuration(options).for_folder(Path.cwd())
        if any(text not in ("full", "json") for text in options["formats"]):
            raise ConfigError("verify --rules writes full or json")
    except ConfigError as error:
        raise Failure(str(error)) from None
    progress = Progress(not options["no_progress"] and not options["quiet"], "rules verified")
    try:
        rows = verify_rules(codes, settings, progress)
    finally:
        progress.clear()
    if "json" in options["formats"]:
        torch, device = _seen(rows)
        columns = ("rule", "name", "verdict", "figure", "reason", "fix_verified", "seconds")
        listed = [{column: row.get(column) for column in columns} for row in rows]
        click.echo(json.dumps({"version": 1, "torch": torch, "device": device, "rules": listed}, indent=2))
    else:
        click.echo(pages.verdicts(rows), nl=False, color=use_color(options["color"], sys.stdout))
    return 0 if options["exit_zero"] else int(not all(map(holds, rows)))


def _seen(rows: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """The torch version and the device that the rules were confirmed on."""
    torch = next((str(row["torch"]) for row in rows if row.get("torch")), "")
    device = next((str(row["device"]) for row in rows if row.get("device")), "cpu")
    return torch, device
