"""What the site shows that is written elsewhere: a page for each rule, tables of options and keys, parts of the README.

MkDocs calls these functions while it builds; generated pages exist in the built site only.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from textwrap import indent
from typing import Any

from click import Context, Option
from mkdocs.structure.files import File, Files

from amplint import pages, registry
from amplint.cli import check
from amplint.config import KEYS
from amplint.rule import Rule
from amplint.schema import default_of

README = Path(__file__).parent.parent / "README.md"
#: the first digit of a code, and what its rules are about
GROUPS = {
    "1": "The autocast region",
    "2": "The GradScaler protocol",
    "3": "The accumulation window",
    "4": "16-bit tensors",
    "5": "Checkpoints",
    "6": "Deprecated names",
    "9": "amplint itself",
}
_PROGRAMS = re.compile(r"^## Example\n(?P<bad>.*?)^## Use instead\n(?P<good>.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


def on_config(config: Any) -> Any:
    """Put the rules into the navigation, by group."""
    section: list[Any] = ["rules/index.md"]
    for digit, title in GROUPS.items():
        section.append({title: [{_title(rule): f"rules/{rule.name}.md"} for rule in _group(digit)]})
    config.nav.insert(1, {"Rules": section})
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the rules."""
    files.append(File.generated(config, "rules/index.md", content=_index()))
    for rule in registry.all_rules():
        files.append(File.generated(config, f"rules/{rule.name}.md", content=rule_page(rule)))
    return files


def on_page_markdown(markdown: str, **context: Any) -> str:
    """Fill in what a page asks for with a comment such as `<!-- insert: options -->`."""
    return re.sub(r"^<!-- insert: (.+) -->$", lambda found: _inserted(found[1]), markdown, flags=re.MULTILINE)


def rule_page(rule: Rule) -> str:
    """A rule's page: its data as a table, its two programs as tabs."""
    head = "".join(f"| {key} | {value} |\n" for key, value in [("Code", f"`{rule.code}`"), *pages.facts(rule)])
    body = _PROGRAMS.sub(_tabs, rule.page)
    summary, _, rest = body.partition("\n")
    # lists need an empty line before them here
    rest = re.sub(r"^(?![-#>\s]|\d+\.)(.+)\n(?=- )", r"\1\n\n", rest, flags=re.MULTILINE)
    return f"# {rule.name} ({rule.code})\n\n{summary}\n\n| | |\n| --- | --- |\n{head}\n{rest}\n"


def _tabs(programs: re.Match[str]) -> str:
    bad, good = (indent(programs[name].strip("\n"), "    ") for name in ("bad", "good"))
    return f'## Example\n\n=== "Wrong"\n\n{bad}\n\n=== "Use instead"\n\n{good}\n\n'


def _title(rule: Rule) -> str:
    return f"{rule.code} {rule.name}"


def _group(digit: str) -> list[Rule]:
    return [rule for rule in registry.all_rules() if rule.code.startswith(f"AMP{digit}")]


def _index() -> str:
    parts = [
        "# Rules\n\n*Confirmed by* says what `amplint verify` looks at: whether torch `raise`s, the `grad`ients that"
    ]
    parts.append(
        "reach the optimizer, an observed `state`, or a comparison of the rule's `own`. Rules of severity info"
    )
    parts.append("are shown on request (`--min-severity info`).\n")
    for digit, title in GROUPS.items():
        parts.append(f"## {title}\n\n{pages.markdown_table(_group(digit), lambda rule: f'{rule.name}.md')}")
    return "\n".join(parts)


def _inserted(wanted: str) -> str:
    if wanted == "options":
        return _options()
    if wanted == "keys":
        return _keys()
    section = re.search(rf"^## {re.escape(wanted)}\n(.*?)(?=^## )", README.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    if section is None:
        raise ValueError(f"the README has no section {wanted!r}")
    return section[1].strip().replace("<details>", '<details markdown="1">')


def _options() -> str:
    lines = ["| option | does |", "| --- | --- |"]
    context = Context(check)
    for option in check.params:
        if isinstance(option, Option):
            value = "" if option.is_flag else f" {option.make_metavar(context)}"
            spelled = ", ".join(f"`{name}{value}`" for name in sorted(option.opts, key=len, reverse=True))
            lines.append(f"| {spelled.replace('|', '&#124;')} | {option.help} |")
    return "\n".join(lines)


def _keys() -> str:
    lines = []
    for name, key in KEYS.items():
        lines.append(f"### `{name}`\n\n{key.meaning}\n")
        default = default_of(name)
        if default is not None:
            lines.append(f"Default: `{json.dumps(default)}`\n")
    return "\n".join(lines)
