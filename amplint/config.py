"""Settings: what `[tool.amplint]` in pyproject.toml, or amplint.toml, and the command line say together.

Every file has the settings of the nearest configuration above it; the command line overrides all of them.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amplint import registry, toml
from amplint.finding import Confidence, Severity

if TYPE_CHECKING:
    from amplint.rule import Rule

#: folders that hold no code of the project's own
DEFAULT_EXCLUDE = (
    ".bzr",
    ".direnv",
    ".eggs",
    ".git",
    ".hg",
    ".ipynb_checkpoints",
    ".mypy_cache",
    ".nox",
    ".pytest_cache",
    ".ruff_cache",
    ".svn",
    ".tox",
    ".venv",
    ".vscode",
    "__pycache__",
    "__pypackages__",
    "_build",
    "build",
    "dist",
    "node_modules",
    "site-packages",
    "venv",
)


class ConfigError(Exception):
    """A configuration that cannot be used; the message says where and why."""


@dataclass(frozen=True, slots=True)
class Selection:
    """One layer of rule choice. `select` None leaves the choice of the layer below as it is."""

    select: tuple[str, ...] | None = None
    extend_select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that governs how files are checked. Attributes are named as the TOML keys are.

    `root` is the folder that relative paths and patterns of the configuration refer to; `source` the file
    the configuration was read from. A `min_severity` of None means warning, but a rule that was selected by
    its own code or name is shown whatever its severity. `no_sandbox` is no TOML key: a repository has no say in
    how its own code is confined.
    """

    root: Path = field(default_factory=Path.cwd)
    source: Path | None = None
    layers: tuple[Selection, ...] = ()
    per_file_ignores: tuple[tuple[str, tuple[str, ...]], ...] = ()
    exclude: tuple[str, ...] = DEFAULT_EXCLUDE
    extend_exclude: tuple[str, ...] = ()
    torch: str | None = None
    min_severity: Severity | None = None
    min_confidence: Confidence = Confidence.MEDIUM
    baseline: Path | None = None
    scaler_factories: tuple[str, ...] = ()
    optimizer_factories: tuple[str, ...] = ()
    clip_functions: tuple[str, ...] = ()
    backward_functions: tuple[str, ...] = ()
    device: str = "auto"
    force_exclude: bool = False
    keep_replay: Path | None = None
    no_sandbox: bool = False

    @property
    def excluded(self) -> tuple[str, ...]:
        return self.exclude + self.extend_exclude

    def enabled_rules(self) -> tuple[Rule, ...]:
        """The selected rules whose findings would be shown, by code."""
        return _enabled(self.layers, self.min_severity)

    def ignored_in(self, relative_path: str) -> frozenset[str]:
        """Codes that `per-file-ignores` turns off for a path relative to `root`."""
        return frozenset(
            code
            for pattern, codes in self.per_file_ignores
            if _pattern(pattern).match_file(relative_path)
            for code in codes
        )


@cache
def _enabled(layers: tuple[Selection, ...], min_severity: Severity | None) -> tuple[Rule, ...]:
    chosen: dict[str, bool] = {rule.code: True for rule in registry.all_rules()}
    named: set[str] = set()
    for layer in layers:
        rank: dict[str, tuple[int, bool]] = {}
        if layer.select is not None:
            chosen = dict.fromkeys(chosen, False)
            named = set()
        for selectors, verdict in ((layer.select or (), True), (layer.extend_select, True), (layer.ignore, False)):
            for selector in selectors:
                rules = rules_of(selector)
                weight = 1000 - len(rules)  # the fewer rules a selector names, the more it counts
                for rule in rules:
                    if (weight, not verdict) >= rank.get(rule.code, (-1, False)):
                        rank[rule.code] = (weight, not verdict)
                        chosen[rule.code] = verdict
                    if verdict and registry.find(selector) is not None:
                        named.add(rule.code)
    return tuple(
        rule
        for rule in registry.all_rules()
        if chosen[rule.code]
        and (
            rule.severity >= (Severity.WARNING if min_severity is None else min_severity)
            or (min_severity is None and rule.code in named)
        )
    )


@cache
def _pattern(pattern: str) -> Any:
    import pathspec

    return pathspec.GitIgnoreSpec.from_lines([pattern])


def rules_of(selector: str) -> tuple[Rule, ...]:
    """The rules that a code, a prefix of codes, a name, or ALL stands for. Raises ConfigError."""
    text = selector.strip()
    if text.upper() == "ALL":
        return registry.all_rules()
    exact = registry.find(text)
    if exact is not None:
        return (exact,)
    prefix = text.upper()
    matching = tuple(rule for rule in registry.all_rules() if rule.code.startswith(prefix)) if text else ()
    if not matching:
        raise ConfigError(f"unknown rule {text!r}{suggestion(text, rule_spellings())}")
    return matching


def rule_spellings() -> list[str]:
    """Every code and name, for suggestions."""
    return [spelling for rule in registry.all_rules() for spelling in (rule.code, rule.name)]


def suggestion(word: str, known: Sequence[str]) -> str:
    """`; did you mean 'x'?` for the nearest known word (of equals the one with more letters in place), or nothing."""
    lowered = word.lower()
    spellings = {spelling.lower(): spelling for spelling in known}
    near = difflib.get_close_matches(lowered, spellings, n=8, cutoff=0.6)
    if not near:
        return ""

    def nearness(candidate: str) -> tuple[float, int]:
        ratio = difflib.SequenceMatcher(None, candidate, lowered).ratio()
        return ratio, sum(a == b for a, b in zip(candidate, lowered, strict=False))

    return f"; did you mean {spellings[max(near, key=nearness)]!r}?"


# -- reading ---------------------------------------------------------------------------------------------


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise ConfigError("must be a string")
    return value


def _strings(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise ConfigError("must be a list of strings")
    return tuple(value)


def patterns(value: object) -> tuple[str, ...]:
    """Raises ConfigError for what is no list of patterns as in .gitignore."""
    texts = _strings(value)
    for text in texts:
        try:
            _pattern(text)
        except ValueError:
            raise ConfigError(f"{text!r} is no pattern") from None
    return texts


def _dotted_names(value: object) -> tuple[str, ...]:
    names = _strings(value)
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ConfigError(f"must be dotted names, which {name!r} is not")
    return names


def _selectors(value: object) -> tuple[str, ...]:
    selectors = _strings(value)
    for selector in selectors:
        rules_of(selector)
    return selectors


def _per_file(value: object) -> tuple[tuple[str, tuple[str, ...]], ...]:
    if not isinstance(value, dict):
        raise ConfigError("must be a table of patterns")
    patterns(list(value))
    return tuple(
        (pattern, tuple(rule.code for selector in _strings(selectors) for rule in rules_of(selector)))
        for pattern, selectors in value.items()
    )


def severity(value: object) -> Severity:
    """Raises ConfigError for what is no severity."""
    text = _string(value).lower()
    names = [str(s) for s in Severity]
    if text not in names:
        raise ConfigError(f"must be one of {', '.join(names)}{suggestion(text, names)}")
    return Severity[text.upper()]


def confidence(value: object) -> Confidence:
    """Raises ConfigError for what is no confidence."""
    text = _string(value).lower()
    names = [str(c) for c in Confidence]
    if text not in names:
        raise ConfigError(f"must be one of {', '.join(names)}{suggestion(text, names)}")
    return Confidence[text.upper()]


def torch_version(value: object) -> str:
    """The lowest version of "2.4" or of a range such as ">=2.3,<3". Raises ConfigError."""
    from amplint.target import lowest

    text = _string(value)
    version = lowest(text)
    if version is None:
        raise ConfigError(f"must be a torch version such as '2.4', not {text!r}")
    return version


def device(value: object) -> str:
    """Raises ConfigError for what is no device."""
    text = _string(value)
    kind, colon, index = text.partition(":")
    if text not in ("auto", "cpu", "cuda") and not (kind == "cuda" and colon and index.isdigit()):
        raise ConfigError(f"must be auto, cpu, cuda or cuda:N, not {text!r}")
    return text


@dataclass(frozen=True, slots=True)
class Key:
    """One TOML key: how its value is read, the JSON schema of the value, and what it is for (in Markdown)."""

    read: Callable[[object], object]
    schema: Mapping[str, Any]
    meaning: str


_LIST_OF_STRINGS: Mapping[str, Any] = {"type": "array", "items": {"type": "string"}}
_LIST_OF_RULES: Mapping[str, Any] = {"type": "array", "items": {"$ref": "#/definitions/rule"}}


def _one_of(names: Iterable[object]) -> Mapping[str, Any]:
    return {"enum": [str(name) for name in names]}


#: every key there is, in the order in which they are documented
KEYS: Mapping[str, Key] = {
    "select": Key(_selectors, _LIST_OF_RULES, "The rules that run: codes, prefixes of codes, names, or `ALL`."),
    "extend-select": Key(_selectors, _LIST_OF_RULES, "Rules that run besides the selected ones."),
    "ignore": Key(_selectors, _LIST_OF_RULES, "Rules that do not run."),
    "per-file-ignores": Key(
        _per_file,
        {"type": "object", "additionalProperties": _LIST_OF_RULES},
        "Rules that do not run on files that match a pattern; patterns are written as in `.gitignore`.",
    ),
    "min-severity": Key(
        severity,
        _one_of(Severity),
        "Findings are shown from this severity on. Without it that is `warning`, but a rule that is selected by its "
        "own code or name is always shown.",
    ),
    "min-confidence": Key(confidence, _one_of(Confidence), "Findings are shown from this confidence on."),
    "exclude": Key(patterns, _LIST_OF_STRINGS, "Files and folders to leave out, instead of the default ones."),
    "extend-exclude": Key(patterns, _LIST_OF_STRINGS, "Files and folders to leave out besides the excluded ones."),
    "torch": Key(
        torch_version,
        {"type": "string", "examples": ["2.4", ">=2.3,<3"]},
        "The lowest torch version that the code is written for; without it, the lowest that the project depends on.",
    ),
    "baseline": Key(
        lambda value: Path(_string(value)), {"type": "string"}, "A file of known findings, which are not shown."
    ),
    "scaler-factories": Key(
        _dotted_names, _LIST_OF_STRINGS, "Dotted names of the project's own functions that return a `GradScaler`."
    ),
    "optimizer-factories": Key(
        _dotted_names, _LIST_OF_STRINGS, "Dotted names of the project's own functions that return an optimizer."
    ),
    "clip-functions": Key(
        _dotted_names, _LIST_OF_STRINGS, "Dotted names of the project's own functions that clip gradients."
    ),
    "backward-functions": Key(
        _dotted_names,
        _LIST_OF_STRINGS,
        "Dotted names of the project's own functions that run the backward pass of a loss.",
    ),
    "device": Key(
        device,
        {"type": "string", "pattern": r"^(auto|cpu|cuda(:[0-9]+)?)$"},
        "Where findings are verified: `auto`, `cpu`, `cuda` or `cuda:N`.",
    ),
}
_SELECTION = {name.replace("_", "-"): name for name in (f.name for f in fields(Selection))}


def settings_from(table: Mapping[str, object], root: Path, source: Path | None) -> Settings:
    """Settings of one configuration table. Raises ConfigError, which names the file and the key."""
    values: dict[str, Any] = {}
    layer: dict[str, Any] = {}
    for key, value in table.items():
        where = f"{source}: " if source else ""
        known = KEYS.get(key)
        if known is None:
            raise ConfigError(f"{where}unknown key {key!r}{suggestion(key, list(KEYS))}")
        try:
            read = known.read(value)
        except ConfigError as error:
            raise ConfigError(f"{where}{key}: {error}") from None
        if key in _SELECTION:
            layer[_SELECTION[key]] = read
        else:
            values[key.replace("-", "_")] = root / read if isinstance(read, Path) else read
    layers = (Selection(**layer),) if layer else ()
    return Settings(root=root, source=source, layers=layers, **values)


def read_config(path: Path) -> Settings:
    """The settings in a file: pyproject.toml's `[tool.amplint]`, or the whole of any other TOML file."""
    table = _toml(path)
    if path.name == "pyproject.toml":
        table = _tool_table(table, path) or {}
    return settings_from(table, path.absolute().parent, path)


def _toml(path: Path) -> dict[str, Any]:
    try:
        return toml.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except (toml.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None


def _mentions_amplint(path: Path) -> bool:
    try:
        return b"amplint" in path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None


def _tool_table(table: Mapping[str, Any], path: Path) -> dict[str, Any] | None:
    tool = table.get("tool")
    own = tool.get("amplint") if isinstance(tool, dict) else None
    if own is not None and not isinstance(own, dict):
        raise ConfigError(f"{path}: tool.amplint must be a table")
    return own


class Configuration:
    """Finds the settings of each file: the nearest configuration above it, under what the command line says.

    `explicit` is a configuration that is used for all files; `isolated` leaves all of them out.
    """

    def __init__(
        self,
        overrides: Mapping[str, Any] | None = None,
        selection: Selection | None = None,
        explicit: Path | None = None,
        isolated: bool = False,
    ) -> None:
        self._overrides = dict(overrides or {})
        self._selection = selection if selection != Selection() else None
        self._isolated = isolated
        self._explicit = self._overridden(read_config(explicit)) if explicit and not isolated else None
        self._by_folder: dict[Path, Settings] = {}
        self._default = self._overridden(Settings())

    @classmethod
    def fixed(cls, settings: Settings) -> Configuration:
        """The same settings for every file."""
        configuration = cls(isolated=True)
        configuration._default = settings
        return configuration

    @property
    def is_narrowed(self) -> bool:
        """Whether the command line asks for other findings than the configuration does."""
        return self._selection is not None or not self._overrides.keys().isdisjoint(("min_severity", "min_confidence"))

    def for_folder(self, folder: Path) -> Settings:
        """The settings of files directly in an absolute folder. Raises ConfigError."""
        if self._explicit is not None:
            return self._explicit
        if self._isolated:
            return self._default
        found = self._by_folder.get(folder)
        if found is None:
            found = self._by_folder[folder] = self._read(folder)
        return found

    def _read(self, folder: Path) -> Settings:
        for name in ("amplint.toml", "pyproject.toml"):
            path = folder / name
            if not os.path.isfile(path):  # nor where nobody may look
                continue
            if name == "pyproject.toml" and not _mentions_amplint(path):
                continue  # whatever else is wrong with it is no concern of amplint's
            table = _toml(path)
            own = table if name == "amplint.toml" else _tool_table(table, path)
            if own is not None:
                return self._overridden(settings_from(own, folder, path))
        return self._default if folder.parent == folder else self.for_folder(folder.parent)

    def _overridden(self, settings: Settings) -> Settings:
        layers = settings.layers if self._selection is None else (*settings.layers, self._selection)
        overrides = dict(self._overrides)
        overrides["extend_exclude"] = settings.extend_exclude + tuple(overrides.get("extend_exclude", ()))
        return replace(settings, layers=layers, **overrides)
