"""Executes one replay once: builds the world, starts the driver, and hands back what was written down."""

from __future__ import annotations

import ast
import gc
import re
from dataclasses import dataclass, field
from typing import Any

import torch

from amplint.verify import device
from amplint.verify.guesses import AMP_FLAG, COUNT, INTEGER, LIMIT, MODEL, OFF, OPTIMIZER, SCALER, START
from amplint.verify.machine import Machine
from amplint.verify.objects import (
    BudgetSpent,
    EnoughSeen,
    Function,
    GeneratorCall,
    Instance,
    Scope,
    Unknown,
    UserClass,
    UserError,
    Wrapped,
)
from amplint.verify.plain import Unsupported
from amplint.verify.plan import Plan
from amplint.verify.replay import GRADIENT_EVENT, Driver, Replay
from amplint.verify.standins import Ledger, Run, Scaler
from amplint.verify.world import TorchWorld

#: statements of a run, and those of them that may pass before its first backward
BUDGET, BEFORE = 60_000, 15_000
TORCH_SCALER = re.compile(
    r"(torch|amp|grad_scaler)\.GradScaler|from\s+torch[\w.]*\s+import[^\n]*GradScaler|ShardedGradScaler"
)


@dataclass
class Outcome:
    """What one execution did: its records, and how it ended (`error` is None for a clean end)."""

    run: Run
    ledger: Ledger
    world: TorchWorld
    error: UserError | None = None
    broke: str | None = None
    reached: bool = False
    left_on: bool = False

    @property
    def steps_taken(self) -> int:
        return sum(1 for s in self.ledger.steps if s.gradients is not None)

    @property
    def steps_skipped(self) -> int:
        return sum(1 for s in self.ledger.steps if s.gradients is None)

    def events(self, kind: str) -> list[Any]:
        return [e for e in self.ledger.events if e.kind == kind]


@dataclass
class Setting:
    """A way to drive a replay: which driver, which flags turned, how long the loops are, and what numbers are.

    `short` cuts intervals that are longer than the loops.
    """

    driver: Driver
    flags: dict[str, bool] = field(default_factory=dict)
    length: int = 6
    numbers: dict[str, float] = field(default_factory=dict)
    short: bool = False


class Stage:
    """One replay, parsed once and executed as often as the oracle asks."""

    def __init__(self, replay: Replay) -> None:
        self.replay = replay
        self.trees = {path: ast.parse(text) for path, text in replay.files.items()}
        self.assignment: dict[tuple[str, int], Any] = {}
        self.events = {
            path: {i for i, text in enumerate(body.splitlines(), 1) if GRADIENT_EVENT.search(text)}
            for path, body in replay.files.items()
        }
        self.jumps: dict[str, set[int]] = {}
        self.raises: dict[str, set[int]] = {}
        self.tries: dict[str, list[tuple[int, int, str]]] = {}
        self.model_names: set[str] = set()
        for path, tree in self.trees.items():
            jumps = self.jumps[path] = set()
            raises = self.raises[path] = set()
            tries = self.tries[path] = []
            for node in ast.walk(tree):
                if isinstance(node, ast.Return | ast.Continue | ast.Break | ast.Raise):
                    jumps.add(node.end_lineno or node.lineno)
                    if isinstance(node, ast.Raise):
                        raises.add(node.end_lineno or node.lineno)
                elif isinstance(node, ast.Try) and node.handlers:
                    kind = node.handlers[0].type
                    kind = kind.elts[0] if isinstance(kind, ast.Tuple) and kind.elts else kind
                    last = node.body[-1].end_lineno or node.body[-1].lineno
                    tries.append((node.body[0].lineno, last, ast.unparse(kind) if kind is not None else ""))
                elif isinstance(node, ast.Attribute) and node.attr in (
                    "parameters",
                    "named_parameters",
                    "train",
                    "state_dict",
                ):
                    owner = node.value
                    name = (
                        owner.id
                        if isinstance(owner, ast.Name)
                        else owner.attr
                        if isinstance(owner, ast.Attribute)
                        else ""
                    )
                    if not re.search(r"opt|sched|scaler", name):
                        self.model_names.add(name)
        own_functions = [
            node.name
            for tree in self.trees.values()
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef) and any(ast.unparse(b).endswith("Function") for b in node.bases)
        ]
        self.classes = {
            node.name
            for path, tree in self.trees.items()
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
            and (
                any(p == path and node.lineno <= line <= (node.end_lineno or 0) for p, line in replay.wanted)
                or "autocast" in ast.unparse(node)
                or any(re.search(rf"\b{name}\b", ast.unparse(node)) for name in own_functions)
            )
        }
        whole = "\n".join(replay.files.values())
        #: NaN and infinity differ for a program that asks for one of them
        self.asks_for_nan = "nan" in whole
        #: a scaler class from outside of torch and of the files at hand, where no other is made
        self.foreign_scaler = None if TORCH_SCALER.search(whole) else self._foreign_scaler()
        #: no update() in sight: the caller's business, unless its absence is the fault
        self.auto_update = ".update(" not in whole and replay.rule != "AMP205"
        self.auto_zero = not any(re.search(r"zero_grad|\.grad\s*=\s*None", text) for text in replay.files.values())

    def unit_at(self, path: str, line: int) -> str:
        """The name of the outermost function, or of the class, that a line is in; "" for the module's body."""
        tree = self.trees.get(path)
        for node in tree.body if tree is not None else ():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                if first <= line <= (node.end_lineno or line):
                    return node.name
        return ""

    def _foreign_scaler(self) -> str | None:
        for tree in self.trees.values():
            for node in ast.walk(tree):
                known = isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch"
                if isinstance(node, ast.ImportFrom) and not known and node.module not in self.replay.modules:
                    for alias in node.names:
                        if re.search(r"GradScaler|LossScaler", alias.name):
                            return alias.name
        return None

    def execute(self, run: Run, setting: Setting, assignment: Any = None, limit: int = 24) -> Outcome:
        """Run the driver once under `run`. Never raises: how it ended is in the outcome."""
        ledger = Ledger(run, limit)
        ledger.auto_zero = self.auto_zero
        ledger.auto_update = self.auto_update and setting.driver.kind != "module"
        plan = Plan(
            flagged=self.replay.watched,
            wanted=self.replay.wanted,
            flags={**self.replay.flags, **setting.flags},
            numbers=setting.numbers,
            events=self.events,
            jumps=self.jumps,
            raises=self.raises,
            tries=self.tries,
            classes=self.classes,
            model_names=self.model_names,
            length=setting.length,
            short=setting.short,
        )
        plan.assignment = assignment
        world = TorchWorld(ledger, plan)
        machine = Machine(world, self.trees, self.replay.modules, BEFORE, BUDGET - BEFORE)
        world.machine = machine
        outcome = Outcome(run, ledger, world)
        torch.manual_seed(0)
        try:
            with torch.enable_grad():
                _Drive(world, machine, setting, self.replay.rule).start()
        except EnoughSeen:
            pass
        except BudgetSpent:
            outcome.broke = "the replay ran into its budget of statements"
        except Unsupported as error:
            outcome.broke = str(error)
        except UserError as error:
            outcome.error = error
        except RecursionError:
            outcome.broke = "the replay recursed too deeply"
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            RuntimeError,
            TypeError,
            ValueError,
            AssertionError,
        ) as error:
            outcome.broke = f"the replay broke: {type(error).__name__}: {error}"[:200]
        outcome.left_on = device.leave_autocast()
        outcome.reached = any(
            (path, line) in world.executed
            for path, first, last in self.replay.flagged
            for line in range(first, last + 1)
        )
        return outcome

    def release(self) -> None:
        gc.collect()


class _Drive:
    """Calls the driver with stand-ins for its arguments."""

    def __init__(self, world: TorchWorld, machine: Machine, setting: Setting, rule: str) -> None:
        self.resumes = rule in ("AMP502", "AMP503")
        #: a backward without a scale is right in a mode that has no scaler, and a class may say where there is none
        self.believes_assertions = rule == "AMP203"
        #: what casts at its end must not be driven again: the next round would train the cast weights
        casts = rule in ("AMP401", "AMP402", "AMP404", "AMP405")
        self.rounds = 1 if setting.driver.once or (casts and setting.driver.loops) else setting.length
        self.world = world
        self.machine = machine
        self.setting = setting
        self.kept: dict[str, Unknown] = {}

    def start(self) -> None:
        driver = self.setting.driver
        if driver.kind == "module":
            self.machine.module(driver.path, run_body=True)
            return
        scope = self.machine.module(driver.path)
        if driver.kind == "function":
            function = scope.names.get(driver.name)
            if not isinstance(function, Function | Wrapped):
                raise Unsupported(f"{driver.name} is not a plain function")
            made = self._call(function, 0)
            if isinstance(made, Function):
                self.world.assume(f"what {driver.name}() returns is called in a loop")
                self._repeat(lambda i: self._call(made, i), self.rounds)
            elif self.rounds > 1:
                self.world.assume(f"{driver.name}() is called in a loop")
                self._repeat(lambda i: self._call(function, i + 1), self.rounds - 1)
            return
        cls = scope.names.get(driver.name)
        if not isinstance(cls, UserClass):
            raise Unsupported(f"{driver.name} is not a class")
        instance = self._make(cls)
        self._fill(cls, instance, [*driver.methods, *driver.tail])
        for name in sorted(_asserted_absent(cls)) if self.believes_assertions else ():
            if isinstance(instance.attrs.get(name), Scaler):
                raise Unsupported(f"{driver.name} asserts that there is no self.{name}, in a mode of its own")
        self.world.assume(f"{', '.join(driver.methods)} of one {driver.name} run in a loop")

        def once(i: int) -> None:
            for name in driver.methods:
                self._call(self.machine.attribute(instance, name), i)

        try:
            self._repeat(once, self.rounds)
        except EnoughSeen:
            self.world.ledger.limit += 12
        for name in driver.tail:
            self._call(self.machine.attribute(instance, name), 0)

    def _repeat(self, call: Any, times: int) -> None:
        for i in range(times):
            self.machine.budget = max(self.machine.budget, BUDGET // 4)
            call(i)

    def _make(self, cls: UserClass) -> Instance:
        init = cls.find("__init__")
        if isinstance(init, Function):
            args, keywords = self.arguments(init, 0, skip=1, lasting=True)
            if not isinstance(init.node, ast.Lambda) and isinstance(init.node.body[-1], ast.Raise):
                # a class of which there are no objects: its methods belong to it alone
                return Instance(cls)
            return self.machine.instantiate(cls, args, keywords)
        if cls.fields is not None:
            return self.machine.instantiate(
                cls, [], {name: self._unknown(name, 0) for name in cls.fields if cls.find(name) is None}
            )
        return self.machine.instantiate(cls, [], {})

    def _fill(self, cls: UserClass, instance: Instance, driven: list[str]) -> None:
        """Take what a constructor leaves None for set, where that is the business of methods that are not driven.

        An optimizer that nothing in the class sets is set from outside; so are flags that the finding decides.
        """
        for name, value in instance.attrs.items():
            given = self.world.plan.flag(f"self.{name}")
            if isinstance(value, bool) and given is not None and given != value:
                self.world.assume(f"self.{name} is {'true' if given else 'false'}")
                instance.attrs[name] = given
        for name, value in instance.attrs.items():
            if isinstance(value, list) and not value and name.endswith("s") and OPTIMIZER.search(name):
                self.world.assume(f"self.{name} are two")
                value.extend(Unknown(f"self.{name}[{i}]") for i in range(2))
        empty = {name for name, value in instance.attrs.items() if value is None}
        if not empty:
            return
        driven_too = _reached_by(cls, driven)
        inside = set().union(*(_attributes_set(cls.find(name)) for name in driven_too))
        outside = set().union(*(_attributes_set(cls.find(name)) for name in _methods(cls) - driven_too - {"__init__"}))
        for name in empty - inside:
            if name in outside or (OPTIMIZER.search(name) and not SCALER.search(name)):
                self.world.assume(f"self.{name} is set before")
                instance.attrs[name] = Unknown(f"self.{name}")

    def _call(self, function: Any, i: int) -> object:
        plain, skip = function, 0
        while not isinstance(plain, Function):
            if hasattr(plain, "receiver"):
                skip = 1
            plain = getattr(plain, "function", None)
            if plain is None:
                raise Unsupported("a driver that is not a plain function")
        args, keywords = self.arguments(plain, i, skip)
        result = self.machine.call(function, args, keywords)
        if isinstance(result, GeneratorCall):
            self.machine.run_generator(result, lambda item: None)
        return result

    def arguments(
        self, function: Function, i: int, skip: int = 0, lasting: bool = False
    ) -> tuple[list[object], dict[str, object]]:
        """Stand-ins for the parameters: defaults where they are numbers or texts, AMP flags on.

        `lasting` is for a constructor: what it is given is no batch of data.
        """
        spec = function.node.args
        names = [*spec.posonlyargs, *spec.args]
        args: list[object] = []
        for at, arg in enumerate(names):
            if at < skip:
                continue
            offset = at - (len(names) - len(function.defaults))
            args.append(
                self._argument(arg, function.defaults[offset] if offset >= 0 else ..., i, function.scope, lasting)
            )
        keywords: dict[str, object] = {}
        for arg, default_node, default in zip(spec.kwonlyargs, spec.kw_defaults, function.kw_defaults, strict=True):
            keywords[arg.arg] = self._argument(
                arg, default if default_node is not None else ..., i, function.scope, lasting
            )
        if spec.vararg is not None and re.search(r"optim|model|net|scaler", spec.vararg.arg):
            args.extend(self._unknown(f"{spec.vararg.arg}[{k}]", 0) for k in range(2))
        if spec.kwarg is not None and re.search(r"optim|model|net", spec.kwarg.arg):
            keywords.update({f"{k}": self._unknown(f"{spec.kwarg.arg}[{k}]", 0) for k in ("first", "second")})
        return args, keywords

    def _argument(self, arg: ast.arg, default: object, i: int, scope: Scope, lasting: bool) -> object:
        name = arg.arg
        plan, world = self.world.plan, self.world
        given = plan.flag(name)
        absent = plan.flag(f"{name} is None")
        if absent is True and (default is ... or default is None):
            return None
        if default is ...:
            cls = self._class_of(arg, scope)
            if cls is not None:
                return self._instance_of(cls)
            return self._unknown(name, i, lasting)
        if isinstance(default, bool):
            value = given if given is not None else default or (bool(AMP_FLAG.search(name)) and not OFF.search(name))
            if value != default:
                world.assume(f"{name} is {'true' if value else 'false'}")
            return value
        if default is None:
            if self.resumes and re.search(r"resume|ckpt|checkpoint|restore", name):
                world.assume(f"{name} is not None")
                return self._unknown(name, i)
            if (
                absent is False
                or given
                or SCALER.search(name)
                or re.search(
                    r"max_norm|clip|grad_norm|optimizer|sched|param|^(args|cfg|config|opts?|options|settings)$", name
                )
            ):
                world.assume(f"{name} is not None")
                return self._unknown(name, i)
            return None
        if default == "cpu" and "device" in name:
            world.assume(f"{name} is cuda")
            return "cuda"
        if type(default) is int and default == 0 and COUNT.search(name) and not START.search(name):
            # whoever calls it wants more than nothing
            return self._unknown(name, i)
        return default

    def _class_of(self, arg: ast.arg, scope: Scope) -> UserClass | None:
        if arg.annotation is not None:
            text = ast.unparse(arg.annotation).strip("'\"").rsplit(".", 1)[-1]
            found = scope.globals_.names.get(text)
            if isinstance(found, UserClass):
                return found
        for value in scope.globals_.names.values():
            if isinstance(value, UserClass) and len(arg.arg) > 4 and _snake_case(value.name) == arg.arg.lower():
                return value
        return None

    def _instance_of(self, cls: UserClass) -> object:
        key = f"<{cls.name}>"
        if key not in self.kept:
            self.kept[key] = self._make(cls)  # type: ignore[assignment]
        return self.kept[key]

    def _unknown(self, name: str, i: int, lasting: bool = False) -> Unknown:
        """The same object in every call where its use made it a model, an optimizer, ...; else a new batch."""
        fresh = _fresh(name) and not lasting
        old = self.kept.get(name)
        if old is not None and (old.bound is not None or _has_bound(old) or not fresh):
            return old
        made = self.kept[name] = Unknown(name, i + 1, data=fresh)
        return made


def _methods(cls: UserClass) -> set[str]:
    """The names of the methods of a class and of those of the user's that it extends."""
    own = {name for name, value in cls.namespace.items() if _body_of(value) is not None}
    return own.union(*(_methods(base) for base in cls.bases if isinstance(base, UserClass)))


def _body_of(value: object) -> ast.AST | None:
    while value is not None and not isinstance(value, Function):
        value = value[1] if isinstance(value, tuple) and len(value) == 2 else getattr(value, "function", None)
    return value.node if isinstance(value, Function) else None


def _reached_by(cls: UserClass, names: list[str]) -> set[str]:
    """The methods that some methods of a class call on `self`, and they themselves."""
    out: set[str] = set()
    queue = list(names)
    while queue:
        name = queue.pop()
        body = _body_of(cls.find(name))
        if name in out or body is None:
            continue
        out.add(name)
        queue.extend(node.attr for node in ast.walk(body) if isinstance(node, ast.Attribute))
    return out


def _asserted_absent(cls: UserClass) -> set[str]:
    """The attributes of `self` that some method of a class asserts to be None or false."""
    out: set[str] = set()
    for body in (_body_of(cls.find(name)) for name in _methods(cls)):
        for node in ast.walk(body) if body is not None else ():
            match node:
                case ast.Assert(ast.UnaryOp(ast.Not(), ast.Attribute(ast.Name("self"), name))) | ast.Assert(
                    ast.Compare(ast.Attribute(ast.Name("self"), name), [ast.Is()], [ast.Constant(None)])
                ):
                    out.add(name)
    return out


def _attributes_set(method: object) -> set[str]:
    """The attributes of `self` that a method sets to something."""
    body = _body_of(method)
    out: set[str] = set()
    for node in ast.walk(body) if body is not None else ():
        if isinstance(node, ast.Assign) and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            for target in node.targets:
                for part in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
                    if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == "self":
                        out.add(part.attr)
    return out


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).strip("_").lower()


def _has_bound(unknown: Unknown) -> bool:
    return any(isinstance(v, Unknown) and (v.bound is not None or _has_bound(v)) for v in unknown.attrs.values())


_LASTING = re.compile(
    r"optim|scaler|sched|loader|args|cfg|conf|settings|options|hparams|device|criterion|writer|logger|param|opt(_|$|\d)|log$|history|path|folder"
    r"|epoch|hook|callback|dataset|batches$|data$",
    re.I,
)


def _fresh(name: str) -> bool:
    """Whether a parameter of that name is data, new in every call."""
    return (
        not _LASTING.search(name)
        and not (INTEGER.search(name) or LIMIT.search(name) or START.search(name) or COUNT.search(name))
        and (not MODEL.search(name) or name in ("item", "value", "query"))
        and not re.search(
            r"loss_fn|lr$|weight$|clip|norm|accum|every|steps?$|size|num|^n_|flag|mode|use_|amp|fp16", name
        )
    )
