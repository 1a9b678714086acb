"""Break right programs in every way that a rule knows, wherever that way applies.

    python -m tests.differential.injection

An injector takes a program apart into statements and writes it again with one fault; the lines on which the
finding may stand are marked while the text is written.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from amplint.finding import Severity

from .agreement import lint

PROGRAMS = Path(__file__).parent / "programs"
#: stands on a line of a text being written where the finding belongs
HERE = "\x00"
_SCALER = r"(?P<scaler>[\w.]*scaler\w*)"


@dataclass(frozen=True)
class Injected:
    """A broken program: the code that must be reported, and the lines on which it may be."""

    code: str
    program: str
    source: str
    lines: frozenset[int]


@dataclass(eq=False)
class Statement:
    """A statement of the program: its text without indentation, its lines (from 0, the end excluded), what is around
    it, and its neighbours."""

    node: ast.stmt
    text: str
    first: int
    end: int
    indent: str
    around: tuple[Statement, ...]
    block: list[Statement]

    def match(self, pattern: str) -> re.Match[str] | None:
        return re.fullmatch(pattern, self.text)

    @property
    def following(self) -> list[Statement]:
        return self.block[self.block.index(self) + 1 :]

    @property
    def function(self) -> Statement | None:
        """The innermost function around."""
        return next((s for s in reversed(self.around) if isinstance(s.node, ast.FunctionDef)), None)

    @property
    def loop(self) -> Statement | None:
        """The innermost loop around, in the same function."""
        for s in reversed(self.around):
            if isinstance(s.node, ast.FunctionDef):
                return None
            if isinstance(s.node, (ast.For, ast.While)):
                return s
        return None

    @property
    def is_compound(self) -> bool:
        return hasattr(self.node, "body")


class Source:
    """A program as statements, and as lines that injectors rewrite."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()
        self.statements: list[Statement] = []
        self._collect(ast.parse(text).body, ())

    def _collect(self, body: list[ast.stmt], around: tuple[Statement, ...]) -> None:
        block: list[Statement] = []
        for node in body:
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))]) - 1
            end = node.end_lineno or node.lineno
            text = "\n".join(self.lines[first:end]).strip()
            indent = self.lines[first][: len(self.lines[first]) - len(self.lines[first].lstrip())]
            statement = Statement(node, text, first, end, indent, around, block)
            block.append(statement)
            self.statements.append(statement)
            for name in ("body", "orelse", "finalbody"):
                self._collect(getattr(node, name, []), (*around, statement))

    def find(self, pattern: str) -> list[tuple[Statement, re.Match[str]]]:
        """The statements whose whole text matches."""
        return [(s, m) for s in self.statements if (m := s.match(pattern))]

    def edited(self, *edits: tuple[int, int, list[str]]) -> str:
        """The text with some ranges of lines replaced."""
        lines = list(self.lines)
        for first, end, new in sorted(edits, key=lambda edit: (edit[0], edit[1]), reverse=True):
            lines[first:end] = new
        return "\n".join(lines) + "\n"


Edit = tuple[int, int, list[str]]
Texts = Iterator[str]

BACKWARD = rf"{_SCALER}\.scale\((?P<loss>\w+)\)\.backward\(\)"
UNSCALE = rf"{_SCALER}\.unscale_\((?P<optimizer>[\w.]+)\)"
STEP = rf"{_SCALER}\.step\((?P<optimizer>[\w.]+)\)"
UPDATE = rf"{_SCALER}\.update\(\)"
CLIP = r"(\w+ = )?[\w.]*clip_grad_\w+\(.*\)"
MADE = rf"{_SCALER} = torch\.(cuda\.)?amp\.GradScaler\(.*\)|{_SCALER.replace('scaler>', 'made>')} = GradScaler\(\)"
MODEL = r"(?P<model>[\w.]+) = nn\.\w+\(.*\)\.cuda\(\)"
_WINDOW = re.compile(r"%|waiting|is_last|should_update|update_grad")


def replaced(s: Statement, *new: str) -> Edit:
    """Other lines in place of a statement, at its indentation."""
    return s.first, s.end, [s.indent + line for line in new]


def before(s: Statement, *new: str) -> Edit:
    """Lines before a statement."""
    return s.first, s.first, [s.indent + line for line in new]


def behind(s: Statement, *new: str) -> Edit:
    """Lines behind a statement."""
    return s.end, s.end, [s.indent + line for line in new]


def without(s: Statement) -> Edit:
    """The statement left out."""
    return replaced(s, "pass") if len(s.block) == 1 else (s.first, s.end, [])


def at(s: Statement, indent: str, mark: bool = False) -> list[str]:
    """A one-line statement at another indentation."""
    return [indent + line.strip() + (HERE if mark else "") for line in s.text.split("\n")]


def guard_of(s: Statement) -> Statement | None:
    """The `if` around a statement that ends a window."""
    around = s.around[-1] if s.around else None
    is_window = around is not None and ".backward" not in around.text and _WINDOW.search(around.text.split("\n")[0])
    if is_window and around is not None and isinstance(around.node, ast.If):
        return around
    return None


def _in_autocast(s: Statement) -> Statement | None:
    return next(
        (w for w in reversed(s.around) if isinstance(w.node, ast.With) and re.search("auto|ctx|amp|context", w.text)),
        None,
    )


# --- regions -------------------------------------------------------------------------------------


def backward_in_autocast(source: Source) -> Texts:
    """AMP101: what follows the region, up to the backward, is moved into it."""
    for region in source.statements:
        if not isinstance(region.node, ast.With) or not re.search("auto|ctx|amp|context", region.text.split("\n")[0]):
            continue
        for index, s in enumerate(region.following[:4]):
            if s.match(BACKWARD):
                moved = [line for t in region.following[:index] for line in at(t, region.indent + "    ")]
                moved += at(s, region.indent + "    ", mark=True)
                simple = all(t.end - t.first == 1 for t in region.following[:index])
                if simple:
                    yield source.edited((region.end, s.end, moved))
                break


def region_around_loop(source: Source) -> Texts:
    """AMP102: one region around the loop."""
    for s in source.statements:
        text = s.text
        if isinstance(s.node, ast.For) and ".step(" in text and re.search(r"with .*(auto|ctx|amp|context)", text):
            if "scaler" in text and not any(isinstance(a.node, ast.For) for a in s.around):
                body = ["    " + line if line else line for line in source.lines[s.first : s.end]]
                yield source.edited((s.first, s.end, [f'{s.indent}with torch.autocast("cuda"):{HERE}', *body]))


# --- protocol ------------------------------------------------------------------------------------


def clip_before_unscale(source: Source) -> Texts:
    """AMP201: no unscale_ at all."""
    unscales, clips = source.find(UNSCALE), source.find(CLIP)
    if unscales and clips:
        marks = [replaced(s, s.text + HERE) for s, _ in clips]
        yield source.edited(*marks, *(without(s) for s, _ in unscales))


def scaled_read(source: Source) -> Texts:
    """AMP202: the gradients are measured right after the backward."""
    for s, _ in source.find(BACKWARD):
        clips = [t for t in s.following if t.match(CLIP)]
        owner = re.search(r"\((?P<model>[\w.]+)\.parameters\(\)", clips[0].text) if clips else None
        if owner is not None:
            read = f"print(sum(p.grad.norm() for p in {owner['model']}.parameters())){HERE}"
            yield source.edited(behind(s, read))


def unscaled_backward(source: Source) -> Texts:
    """AMP203: the loss is not scaled."""
    for s, m in source.find(BACKWARD):
        yield source.edited(replaced(s, f"{m['loss']}.backward(){HERE}"))


def step_past_scaler(source: Source) -> Texts:
    """AMP204: the optimizer is called."""
    for s, m in source.find(STEP):
        yield source.edited(replaced(s, f"{m['optimizer']}.step(){HERE}"))


def no_update(source: Source) -> Texts:
    """AMP205: no update."""
    updates = source.find(UPDATE)
    for scaler in dict.fromkeys(m["scaler"] for _, m in updates):
        steps = [replaced(s, s.text + HERE) for s, m in source.find(STEP) if m["scaler"] == scaler]
        yield source.edited(*steps, *(without(s) for s, m in updates if m["scaler"] == scaler))


def second_update(source: Source) -> Texts:
    """AMP206: an update right after another."""
    for s, _ in source.find(UPDATE):
        yield source.edited(behind(s, s.text + HERE))


def second_unscale(source: Source) -> Texts:
    """AMP207: unscale_ twice."""
    for s, _ in source.find(UNSCALE):
        yield source.edited(behind(s, s.text + HERE))


def update_before_step(source: Source) -> Texts:
    """AMP208: the update before the step."""
    for s, m in source.find(UPDATE):
        steps = [t for t in s.block[: s.block.index(s)] if (n := t.match(STEP)) and n["scaler"] == m["scaler"]]
        if steps and not any(".backward" in t.text for t in s.block[s.block.index(steps[0]) : s.block.index(s)]):
            yield source.edited(without(s), before(steps[0], s.text + HERE))


def jump_over_update(source: Source) -> Texts:
    """AMP209: a bad loss leaves the step after unscale_."""
    for s, m in source.find(UNSCALE):
        loss = _loss_of(source, s)
        later = [t for t in s.following if (n := t.match(UPDATE)) and n["scaler"] == m["scaler"]]
        one_step = s.function is not None and not any(isinstance(n, ast.For) for n in ast.walk(s.function.node))
        if loss and later and (s.loop is not None or one_step):
            how = "continue" if s.loop is not None else "return"
            yield source.edited(behind(s, f"if not torch.isfinite({loss}):", f"    {how}{HERE}"))


def backward_after_unscale(source: Source) -> Texts:
    """AMP210: another loss after unscale_."""
    for s, m in source.find(UNSCALE):
        loss = _loss_of(source, s)
        if loss:
            yield source.edited(behind(s, f"{m['scaler']}.scale(0.1 * {loss}).backward(){HERE}"))


def zero_before_step(source: Source) -> Texts:
    """AMP211: the gradients are cleared before the step."""
    for s, m in source.find(STEP):
        yield source.edited(before(s, f"{m['optimizer']}.zero_grad(){HERE}"))


def partial_unscale(source: Source) -> Texts:
    """AMP212: one of the optimizers of a joint clip is not unscaled."""
    for s, _ in source.find(UNSCALE):
        others = [t for t in s.block if t is not s and t.match(UNSCALE)]
        joint = [t for t in s.following if t.match(CLIP) and "*" in t.text]
        if others and joint:
            yield source.edited(without(s), replaced(joint[0], joint[0].text + HERE))


def wrong_operand(source: Source) -> Texts:
    """AMP213: the step's result is given to the scaler."""
    for s, m in source.find(STEP):
        yield source.edited(replaced(s, f"{m['scaler']}.step({m['optimizer']}.step()){HERE}"))


def closure(source: Source) -> Texts:
    """AMP214: a closure through the scaler."""
    for s, m in source.find(STEP):
        loss = _loss_of(source, s)
        if loss:
            yield source.edited(replaced(s, f"{m['scaler']}.step({m['optimizer']}, closure=lambda: {loss}){HERE}"))


def recreated(source: Source) -> Texts:
    """AMP215: a new scaler for every batch."""
    for s, m in source.find(STEP):
        loop = s.loop
        if loop is not None and _made(source, m["scaler"]):
            first = next(t for t in source.statements if t.around and t.around[-1] is loop)
            yield source.edited(before(first, f'{m["scaler"]} = torch.amp.GradScaler("cuda"){HERE}'))


def other_scaler(source: Source) -> Texts:
    """AMP216: another scaler steps."""
    for s, m in source.find(STEP):
        made = _made(source, m["scaler"])
        if made is not None and (made.function is s.function or m["scaler"].startswith("self.") or not made.around):
            prefix, _, last = m["scaler"].rpartition(".")
            other = f"{prefix}.second_{last}" if prefix else f"second_{last}"
            call = made.text.partition(" = ")[2]
            yield source.edited(behind(made, f"{other} = {call}"), replaced(s, f"{other}.step({m['optimizer']}){HERE}"))


def scaled_twice(source: Source) -> Texts:
    """AMP217: a loss is scaled twice, or the scaled one is thrown away."""
    for s, m in source.find(BACKWARD):
        scaler, loss = m["scaler"], m["loss"]
        yield source.edited(replaced(s, f"{scaler}.scale({scaler}.scale({loss})).backward(){HERE}"))
        yield source.edited(replaced(s, f"{scaler}.scale({loss}){HERE}", f"{loss}.backward()"))


def scaled_penalty(source: Source) -> Texts:
    """AMP218: the gradients of the penalty keep the scale."""
    for s, m in source.find(rf"(?P<name>\w+) = 1\.0 / {_SCALER}\.get_scale\(\)"):
        grads = [
            replaced(t, t.text + HERE) for t in source.statements if "autograd.grad(" in t.text and not t.is_compound
        ]
        yield source.edited(replaced(s, f"{m['name']} = 1.0"), *grads)


def equal_scale(source: Source) -> Texts:
    """AMP220: a skip is told by equality."""
    for s in source.statements:
        if isinstance(s.node, ast.If) and "<= scaler.get_scale()" in s.text:
            line = source.lines[s.first]
            yield source.edited((s.first, s.first + 1, [line.replace("<=", "==") + HERE]))


def error_if_nonfinite(source: Source) -> Texts:
    """AMP223: the clip raises at an overflow."""
    for s, _ in source.find(CLIP):
        scaled = s.function is None or "unscale_" in s.function.text
        without_amp = s.around and any("else" in line for line in source.lines[s.first - 3 : s.first])
        if "clip_grad_norm_" in s.text and s.end - s.first == 1 and scaled and not without_amp:
            yield source.edited(replaced(s, f"{s.text[:-1]}, error_if_nonfinite=True){HERE}"))


# --- windows -------------------------------------------------------------------------------------


def update_in_window(source: Source) -> Texts:
    """AMP301: the update leaves the branch that ends the window."""
    for s, _ in source.find(UPDATE):
        guard = guard_of(s)
        if guard is not None and guard.loop is not None:
            yield source.edited(without(s), (guard.end, guard.end, at(s, guard.indent, mark=True)))


def unscale_in_window(source: Source) -> Texts:
    """AMP302: unscale_ leaves the branch that ends the window."""
    for s, _ in source.find(UNSCALE):
        guard = guard_of(s)
        if guard is not None and guard.loop is not None:
            yield source.edited(without(s), (guard.first, guard.first, at(s, guard.indent, mark=True)))


def step_in_window(source: Source) -> Texts:
    """AMP303: only zero_grad stays in the branch that ends the window."""
    for s, _ in source.find(STEP):
        guard = guard_of(s)
        inner = [t for t in source.statements if guard is not None and t.around and t.around[-1] is guard]
        if guard is None or guard.loop is None or not inner or "zero_grad" not in inner[-1].text:
            continue
        taken = [t for t in inner if "zero_grad" not in t.text and not t.text.startswith("self.waiting")]
        if all(t.end - t.first == 1 for t in taken):
            moved = [line for t in taken for line in at(t, guard.indent, mark=t is s)]
            yield source.edited(*((t.first, t.end, []) for t in taken), (guard.first, guard.first, moved))


def update_between_steps(source: Source) -> Texts:
    """AMP304: an update between the steps of two optimizers."""
    for s, m in source.find(STEP):
        following = s.following[:1]
        if any(t.match(UNSCALE) for t in s.block):
            # the second one would be unscaled twice: AMP301
            continue
        if following and (n := following[0].match(STEP)) and n["scaler"] == m["scaler"]:
            yield source.edited(behind(s, f"{m['scaler']}.update(){HERE}"))


# --- tensors and checkpoints ---------------------------------------------------------------------


def half_model(source: Source) -> Texts:
    """AMP401: the model is cast by hand."""
    for s, m in source.find(MODEL):
        if _trained(source, m["model"]):
            yield source.edited(replaced(s, f"{s.text}.half(){HERE}"))


def bfloat16_model(source: Source) -> Texts:
    """AMP402: the model is cast to bfloat16."""
    for s, m in source.find(MODEL):
        if _trained(source, m["model"]):
            yield source.edited(replaced(s, f"{s.text}.bfloat16(){HERE}"))


def _after_forward(source: Source, text: str) -> Texts:
    for s, m in source.find(r"(?P<out>\w+) = (?P<model>self\.model|self\.net|model|net|query)\(\w+\)"):
        if _in_autocast(s) is not None and _made_module(source, m["model"]):
            yield source.edited(behind(s, text.format(m["out"]) + HERE))


def overflow_constant(source: Source) -> Texts:
    """AMP403: a constant that no half can hold."""
    yield from _after_forward(source, "{0} = {0}.masked_fill({0} > 100, -1e9)")


def half_epsilon(source: Source) -> Texts:
    """AMP404: an epsilon that is zero in half."""
    yield from _after_forward(source, "{0} = {0} / ({0}.abs() + 1e-8)")


def half_fft(source: Source) -> Texts:
    """AMP406: a transform that half does not have."""
    yield from _after_forward(source, "{0} = torch.fft.rfft({0}).abs()")


def half_teacher(source: Source) -> Texts:
    """AMP405: the average of the weights is kept in half."""
    for s, m in source.find(r"(?P<name>\w+) = copy\.deepcopy\((\w+)\)"):
        uses = [t for t in source.statements if "add_(" in t.text and not t.is_compound]
        marks = [replaced(t, t.text + HERE) for t in uses]
        yield source.edited(replaced(s, f"{m['name']} = copy.deepcopy({m[2]}).half(){HERE}"), *marks)


def state_not_saved(source: Source) -> Texts:
    """AMP501: the checkpoint lacks the scaler."""
    for number, line in enumerate(source.lines):
        if "scaler.state_dict()" in line and "def " not in line and "return" not in line:
            holder = next(s for s in source.statements if s.first <= number < s.end and not s.is_compound)
            saves = [s for s in source.statements if "torch.save(" in s.text and not s.is_compound and s is not holder]
            marks = [(i, i + 1, [source.lines[i] + HERE]) for i in range(holder.first, holder.end) if i != number]
            marks += [(s.first, s.first + 1, [source.lines[s.first] + HERE]) for s in saves]
            yield source.edited((number, number + 1, []), *marks)


def state_not_loaded(source: Source) -> Texts:
    """AMP502: the scaler is not restored."""
    for s, _ in source.find(rf"{_SCALER}\.load_state_dict\(.*\)"):
        loads = [t for t in source.statements if "load_state_dict" in t.text and not t.is_compound and t is not s]
        yield source.edited(without(s), *(replaced(t, t.text + HERE) for t in loads))


def saved_mid_step(source: Source) -> Texts:
    """AMP504: the state is saved between step and update."""
    for s, m in source.find(STEP):
        if s.following and s.following[0].match(UPDATE):
            state = f'{{"optimizer": {m["optimizer"]}.state_dict(), "scaler": {m["scaler"]}.state_dict()}}'
            yield source.edited(behind(s, f'torch.save({state}, "last.pt"){HERE}'))


# --- what the program tells ----------------------------------------------------------------------


def _loss_of(source: Source, s: Statement) -> str:
    """The loss that was backpropagated before a statement in the same function."""
    losses = [m["loss"] for t, m in source.find(BACKWARD) if t.function is s.function and t.first < s.first]
    return losses[-1] if losses else ""


def _made(source: Source, scaler: str) -> Statement | None:
    return next((s for s, m in source.find(MADE) if scaler in (m["scaler"], m["made"])), None)


def _trained(source: Source, model: str) -> bool:
    return f"{model}.parameters(), lr" in "\n".join(source.lines)


def _made_module(source: Source, model: str) -> bool:
    return any(m["model"] == model for _, m in source.find(MODEL))


INJECTORS: tuple[tuple[str, Callable[[Source], Texts]], ...] = (
    ("AMP101", backward_in_autocast),
    ("AMP102", region_around_loop),
    ("AMP201", clip_before_unscale),
    ("AMP202", scaled_read),
    ("AMP203", unscaled_backward),
    ("AMP204", step_past_scaler),
    ("AMP205", no_update),
    ("AMP206", second_update),
    ("AMP207", second_unscale),
    ("AMP208", update_before_step),
    ("AMP209", jump_over_update),
    ("AMP210", backward_after_unscale),
    ("AMP211", zero_before_step),
    ("AMP212", partial_unscale),
    ("AMP213", wrong_operand),
    ("AMP214", closure),
    ("AMP215", recreated),
    ("AMP216", other_scaler),
    ("AMP217", scaled_twice),
    ("AMP218", scaled_penalty),
    ("AMP220", equal_scale),
    ("AMP223", error_if_nonfinite),
    ("AMP301", update_in_window),
    ("AMP302", unscale_in_window),
    ("AMP303", step_in_window),
    ("AMP304", update_between_steps),
    ("AMP401", half_model),
    ("AMP402", bfloat16_model),
    ("AMP403", overflow_constant),
    ("AMP404", half_epsilon),
    ("AMP405", half_teacher),
    ("AMP406", half_fft),
    ("AMP501", state_not_saved),
    ("AMP502", state_not_loaded),
    ("AMP504", saved_mid_step),
)


def injections(name: str, text: str) -> Iterator[Injected]:
    """Every fault in every place of a program."""
    source = Source(text)
    for code, injector in INJECTORS:
        for written in injector(source):
            lines = frozenset(i for i, line in enumerate(written.splitlines(), 1) if HERE in line)
            clean = written.replace(HERE, "")
            ast.parse(clean)
            yield Injected(code, name, clean, lines)


def programs() -> Iterator[tuple[str, str]]:
    """The right programs, by name."""
    for file in sorted(PROGRAMS.glob("*.py")):
        yield file.stem, file.read_text()


@dataclass
class Outcome:
    """What became of the injected faults."""

    injected: Counter[str]
    found: Counter[str]
    missed: list[tuple[Injected, list[str]]]
    #: findings of the programs as they were
    false: list[str]

    @property
    def rate(self) -> float:
        return sum(self.found.values()) / max(1, sum(self.injected.values()))

    def __str__(self) -> str:
        rows = [f"{code}  {self.injected[code]:4}  {self.found[code]:4}" for code in sorted(self.injected)]
        total = f"all     {sum(self.injected.values()):4}  {sum(self.found.values()):4}  {self.rate:.4f}"
        return "\n".join(
            ["code    injected  found", *rows, total, f"findings in programs as they were: {len(self.false)}"]
        )


def inject_all() -> Outcome:
    """Lint every program as it is and with every fault."""
    outcome = Outcome(Counter(), Counter(), [], [])
    for name, text in programs():
        outcome.false += [f"{name}: {finding}" for finding in lint(text) if finding.severity > Severity.INFO]
        for injected in injections(name, text):
            outcome.injected[injected.code] += 1
            findings = lint(injected.source)
            wanted = {(injected.code, line) for line in injected.lines}
            if any(finding.answers(wanted) for finding in findings):
                outcome.found[injected.code] += 1
            else:
                outcome.missed.append((injected, [str(f) for f in findings if f.severity > Severity.INFO]))
    return outcome


def main() -> None:
    """Print the table, and every fault that was missed."""
    outcome = inject_all()
    for injected, findings in outcome.missed:
        print(f"--- {injected.code} in {injected.program}, expected on {sorted(injected.lines)}, got {findings}")
        print(injected.source)
    print("\n".join(outcome.false))
    print(outcome)
    sys.exit(0 if outcome.rate >= 0.97 and not outcome.false else 1)


if __name__ == "__main__":
    main()
