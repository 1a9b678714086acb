"""The project around a file: modules found through imports, parsed only when something needs them."""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from collections.abc import Container
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amplint.holding import Binding, bindings, calls_in, gone_through, held_names
from amplint.library import EXTERNAL_ROOTS, OF_CONTAINERS
from amplint.lowering import lower
from amplint.outline import VOCABULARY, Outline
from amplint.program import (
    Assign,
    Attr,
    Branch,
    Call,
    Expr,
    Import,
    Loop,
    Name,
    Program,
    Region,
    Scope,
    Stmt,
    call_name,
    parts_of,
    path_of,
    walk,
)
from amplint.pruning import (
    may_be_event,
    prune,
    relevant_scopes,
    words_of,
)
from amplint.source import SourceError, SourceModule
from amplint.wrappers import wrappers_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_ROOT_MARKS = (".git", "pyproject.toml", "setup.py", "setup.cfg", ".hg")
#: what code that trains mentions, and code that only computes does not
TRAINING_WORDS = re.compile(r"scaler|autocast|^backward$|optimizer|clip_grad|zero_grad", re.IGNORECASE)
_SCHEDULER_CLASS = re.compile(r"lr_scheduler\.[A-Z]\w+$|(^|\.)[A-Z]\w*(LR|Scheduler|WarmRestarts|OnPlateau)$")
_SCHEDULERS = re.compile(r"(^|[._])(lr_?)?sched(uler)?s?$", re.IGNORECASE)
#: modules that hold others
_HOLDERS = ("ModuleDict", "ModuleList")
#: methods that give the module back that they are called on
_PLACES = frozenset({"to", "cuda", "cpu", "float", "eval", "train", "requires_grad_"})
#: other modules that the analysis of one looks into
MAX_MODULES = 40
MAX_BYTES = 600_000
#: modules on the way from an import to the definition, and base classes on the way to a method
MAX_REEXPORTS = 3
#: parsed modules that are kept from one analysis to the next, about a megabyte each: beyond the first number, the
#: second
MAX_KEPT, KEPT = 150, 110


class ModuleEnv:
    """A lowered module of the project with the facts that are cheap to read off its names.

    `shared` keeps what rules and analyses read off the module alone, so that it lives as long as the module does.
    """

    def __init__(self, source: SourceModule, file: Path | None, project: Project, number: int) -> None:
        self.source = source
        self.file = file
        self.project = project
        self.number = number
        self.shared: dict[Any, Any] = {}
        self._pruned: dict[tuple[Scope, frozenset[str]], list[Stmt]] = {}
        self._assigned: dict[Scope, frozenset[str]] = {}
        #: names of the project's own wrappers, whose calls matter whatever stands in them
        self.wrapper_names = frozenset(dotted.rpartition(".")[2] for dotted in project.wrappers)

    @cached_property
    def program(self) -> Program:
        return lower(self.source.tree)

    @cached_property
    def is_short(self) -> bool:
        """Whether the module is short enough to be looked into where another one imports it."""
        return len(self.source.text.encode(errors="replace")) <= MAX_BYTES

    @property
    def is_lowered(self) -> bool:
        """Whether the module's program is there already."""
        return "program" in self.__dict__

    @cached_property
    def relevant(self) -> frozenset[Scope]:
        """Scopes that are worth executing (see `amplint.pruning`)."""
        return relevant_scopes(self)

    @cached_property
    def relevant_names(self) -> frozenset[str]:
        """Names of the functions and classes that are worth executing."""
        return frozenset(s.name for s in self.relevant if s.kind != "module")

    @cached_property
    def bindings(self) -> tuple[Binding, ...]:
        """What variables, attributes and parameters are bound to, as far as it can be a function."""
        return tuple(bindings(self))

    @cached_property
    def held_names(self) -> frozenset[str]:
        """The last names of the variables, attributes and parameters that may hold a function worth executing."""
        return held_names(self, self.relevant_names - {"__init__"} | self.relevant_imports, self.relevant)

    @cached_property
    def counters(self) -> frozenset[str]:
        """Attributes that some method of the module counts up or down."""
        return frozenset(
            stmt.target.name
            for scope in self.program.scopes
            for stmt in scope.statements
            if isinstance(stmt, Assign) and stmt.augmented and isinstance(stmt.target, Attr)
        )

    @cached_property
    def global_words(self) -> frozenset[str]:
        """Names that functions and classes worth executing mention."""
        return frozenset(w for s in self.relevant if s.kind != "module" for w in s.words)

    @cached_property
    def closed_over(self) -> frozenset[Scope]:
        """Functions with functions, classes or lambdas inside, which may read their variables later."""
        return frozenset(s.parent for s in self.program.scopes if s.parent is not None and s.parent.kind == "function")

    @cached_property
    def captured(self) -> frozenset[str]:
        """Names that a function nested in another one may read from it."""
        return frozenset(
            name
            for s in self.program.scopes
            if s.parent is not None and s.parent.kind == "function"
            for name in s.words
        )

    def deals_with_training(self, scope: Scope) -> bool:
        """Whether a method of a network does more than compute: opens regions, scales, steps."""
        if scope.decorators or not scope.words.isdisjoint(self.refused_losses):
            return True
        return any(TRAINING_WORDS.search(word) for word in scope.words)

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        """The imports of the module body, those in `try` and `if` included."""
        return tuple(s for s in self.program.body.statements if isinstance(s, Import))

    @property
    def assigned(self) -> frozenset[str]:
        """Names that the module body assigns."""
        return self.assigned_in(self.program.body)

    def assigned_in(self, scope: Scope) -> frozenset[str]:
        """Names that a scope's own statements assign one by one."""
        known = self._assigned.get(scope)
        if known is None:
            names = (s.target.id for s in scope.statements if isinstance(s, Assign) and isinstance(s.target, Name))
            known = self._assigned[scope] = frozenset(names) - scope.outer_names
        return known

    @cached_property
    def relevant_imports(self) -> frozenset[str]:
        """Names of functions and classes that other modules of the project offer here and that have AMP vocabulary."""
        found: set[str] = set()
        for scope in self.program.scopes:
            for stmt in scope.statements:
                if isinstance(stmt, Import):
                    found |= self.project.offers(self, stmt)
        return frozenset(found)

    @cached_property
    def imported_methods(self) -> frozenset[str]:
        """Names of methods of the classes that other modules of the project offer here, as far as something of the
        protocol happens in them."""
        found: set[str] = set()
        for scope in self.program.scopes:
            for stmt in scope.statements:
                if isinstance(stmt, Import):
                    found |= self.project.offered_methods(self, stmt)
        return frozenset(found)

    @cached_property
    def callable_imports(self) -> frozenset[str]:
        """The classes that other modules offer here of which an object does something of the protocol when called."""
        found: set[str] = set()
        for scope in self.program.scopes:
            for stmt in scope.statements:
                if isinstance(stmt, Import) and stmt.name in self.relevant_imports:
                    if self.project.offers_callable(self, stmt):
                        found.add(stmt.name)
        return frozenset(found)

    @cached_property
    def rebound(self) -> frozenset[str]:
        """Variables of the module that are bound more than once."""
        bound = Counter(
            stmt.target.id
            for scope in self.program.scopes
            for stmt in scope.statements
            if isinstance(stmt, Assign)
            and isinstance(stmt.target, Name)
            and (scope.kind == "module" or stmt.target.id in scope.outer_names)
        )
        return frozenset(name for name, times in bound.items() if times > 1)

    @cached_property
    def own_objects(self) -> frozenset[str]:
        """The last names of the variables and attributes that hold an object of a class of the project."""
        classes = {scope.name for scope in self.program.scopes if scope.kind == "class"} | self.relevant_imports
        found: set[str] = set()
        for scope in self.program.scopes:
            made = {s.result for s in scope.statements if isinstance(s, Call) and call_name(s.func) in classes}
            for stmt in scope.statements if made else ():
                if isinstance(stmt, Assign) and isinstance(stmt.value, Name) and stmt.value.id in made:
                    found.add(call_name(stmt.target))
        return frozenset(found - {""})

    @cached_property
    def event_aliases(self) -> frozenset[str]:
        """Other names under which the module imports what is an event by its own name."""
        return frozenset(
            stmt.name
            for scope in self.program.scopes
            for stmt in scope.statements
            if isinstance(stmt, Import)
            and stmt.member not in (None, stmt.name)
            and (may_be_event(stmt.member or "") or (stmt.dotted, stmt.member) == ("torch.autograd", "grad"))
        )

    @cached_property
    def kept_contexts(self) -> frozenset[str]:
        """The last names of the variables and attributes that an autocast object is kept in."""
        return self._kept("autocast")

    @cached_property
    def kept_losses(self) -> frozenset[str]:
        """The same for an `nn.BCELoss`, or an object of a class derived from it, which autocast refuses on cuda."""
        derived = (s.name for s in self.program.scopes if any(path_of(b).endswith("BCELoss") for b in s.bases))
        return self._kept("BCELoss").union(*map(self._kept, derived))

    @cached_property
    def refused_losses(self) -> frozenset[str]:
        """The names by which the module can come to a loss that autocast refuses: the losses themselves, and the
        methods, classes and attributes that lead to one."""
        found = {"binary_cross_entropy", "BCELoss", *self.kept_losses}
        while True:
            more: set[str] = set()
            for scope in self.program.scopes:
                if scope.kind != "function" or scope.name == "__init__" or scope.words.isdisjoint(found):
                    continue
                if scope.name in ("forward", "__call__") and scope.parent is not None and scope.parent.kind == "class":
                    more.update((scope.parent.name, *self._kept(scope.parent.name)))
                else:
                    more.add(scope.name)
            if more <= found:
                return frozenset(found)
            found |= more

    def _kept(self, constructor: str) -> frozenset[str]:
        found: set[str] = set()
        for scope in self.program.scopes:
            if constructor not in scope.words:
                continue
            made: set[str] = set()
            for stmt in scope.statements:
                if isinstance(stmt, Call) and (
                    path_of(stmt.func).endswith(constructor)
                    or (path_of(stmt.func).endswith(_HOLDERS) and any(made & _names_in(a.value) for a in stmt.args))
                    or (isinstance(stmt.func, Attr) and stmt.func.name in _PLACES and path_of(stmt.func.base) in made)
                ):
                    made.add(stmt.result)
            for stmt in scope.statements:
                if isinstance(stmt, Assign) and any(isinstance(e, Name) and e.id in made for e in parts_of(stmt.value)):
                    found.add(path_of(stmt.target).rpartition(".")[2])
        return frozenset(found - {""})

    @cached_property
    def attribute_words(self) -> frozenset[str]:
        """Attributes of objects that a guard, a region or an AMP call reads somewhere in the module."""
        found: set[str] = {*self.called_in_turn}
        for scope in self.relevant:
            # a guard may be a variable that was bound before
            tests = [stmt.test for stmt in scope.statements if isinstance(stmt, Branch)]
            tested = {part.id for test in tests for part in parts_of(test) if isinstance(part, Name)}
            for stmt in scope.statements:
                if isinstance(stmt, Assign) and isinstance(stmt.target, Name) and stmt.target.id in tested:
                    found.update(words_of(stmt.value))
                elif isinstance(stmt, Branch):
                    found.update(words_of(stmt.test))
                elif isinstance(stmt, Region):
                    found.update(words_of(stmt.context))
                elif isinstance(stmt, Call):
                    found.update(words_of(stmt.func))
                    for arg in stmt.args:
                        found.update(words_of(arg.value))
                elif isinstance(stmt, Loop):
                    found.update((*words_of(stmt.test), *words_of(stmt.iterable)))
        return frozenset(found)

    @cached_property
    def called_in_turn(self) -> frozenset[str]:
        """Attributes that hold objects or functions, such as callbacks, which a loop goes through and calls."""
        found: set[str] = set()
        for scope in self.program.scopes:
            made = calls_in(scope)
            for loop in scope.statements:
                holder = gone_through(loop, made) if isinstance(loop, Loop) else None
                if isinstance(loop, Loop) and isinstance(holder, Attr):
                    elements = {part.id for part in parts_of(loop.target) if isinstance(part, Name)}
                    if any(isinstance(s, Call) and not elements.isdisjoint(_objects_of(s)) for s in walk(loop.body)):
                        found.add(holder.name)
        return frozenset(found)

    def pruned(self, scope: Scope, given: frozenset[str] = frozenset()) -> list[Stmt]:
        """The part of a scope's body that is executed where the parameters in `given` hold gradients."""
        known = self._pruned.get((scope, given))
        if known is None:
            known = self._pruned[scope, given] = prune(self, scope, given)
        return known

    @cached_property
    def roles(self) -> dict[Scope, dict[str, str]]:
        """What an access path must be, judged by how each scope uses it: scaler, optimizer, scheduler, model.

        Paths of `self` are pooled over the methods of a class; a nested function sees its
        encloser's roles, every function those of the module body.
        """
        own = {scope: _roles(scope) for scope in self.program.scopes}
        for scope in self.program.scopes:
            if scope.kind == "class":
                pooled = own[scope]
                for method in scope.children.values():
                    for path, role in own[method].items():
                        if path.startswith("self."):
                            pooled.setdefault(path, role)
        merged: dict[Scope, dict[str, str]] = {}
        for scope in self.program.scopes:
            outer: dict[str, str] = {}
            if scope.parent is not None:
                outer = {
                    path: role
                    for path, role in merged[scope.parent].items()
                    if path.partition(".")[0] not in {p.name for p in scope.params} or path.startswith("self.")
                }
            merged[scope] = {**outer, **own[scope]}
        return merged


def _names_in(expr: Expr) -> set[str]:
    return {part.id for part in parts_of(expr) if isinstance(part, Name)}


def _objects_of(call: Call) -> Iterator[str]:
    """What is called, the object whose method is called, or the one in which it is looked up by `getattr`."""
    if isinstance(call.func, Attr):
        if call.func.name in OF_CONTAINERS:
            return
        yield path_of(call.func.base)
    elif isinstance(call.func, Name):
        yield call.func.id
        if call.func.id == "getattr" and call.args:
            yield path_of(call.args[0].value)


_LOSS = re.compile(r"loss|cost|objective|(^|_)err(or)?($|_|\d)|total", re.IGNORECASE)
#: what scalers of data, meters and running averages have
_OF_DATA_SCALERS = frozenset({"transform", "fit", "fit_transform", "inverse_transform", "partial_fit", "avg", "reset"})


def _scaling_losses(scope: Scope) -> frozenset[str]:
    """The access paths whose `scale` is given a loss, by its name or since the result is backpropagated."""
    if "scale" not in scope.words:
        return frozenset()
    backpropagated = {
        path_of(s.func.base)
        for s in scope.statements
        if isinstance(s, Call) and isinstance(s.func, Attr) and s.func.name == "backward"
    }
    results = {
        stmt.value.id
        for stmt in scope.statements
        if isinstance(stmt, Assign) and isinstance(stmt.value, Name) and path_of(stmt.target) in backpropagated
    }
    return frozenset(
        path_of(stmt.func.base)
        for stmt in scope.statements
        if isinstance(stmt, Call)
        and isinstance(stmt.func, Attr)
        and stmt.func.name == "scale"
        and (
            stmt.result in backpropagated
            or stmt.result in results
            or any(
                isinstance(part, (Name, Attr)) and _LOSS.search(call_name(part))
                for a in stmt.args
                for part in parts_of(a.value)
            )
        )
    )


def _roles(scope: Scope) -> dict[str, str]:
    methods: dict[str, set[str]] = {}
    schedulers: set[str] = set()
    stepped_in_turn: set[str] = set()
    made = {s.result for s in scope.statements if isinstance(s, Call) and _SCHEDULER_CLASS.search(path_of(s.func))}
    stepped: set[str] = set()
    called: set[str] = set()
    of_losses = _scaling_losses(scope)
    for stmt in scope.statements:
        if isinstance(stmt, Assign) and isinstance(stmt.value, Name) and stmt.value.id in made:
            schedulers.add(path_of(stmt.target))
        elif isinstance(stmt, Loop) and isinstance(stmt.target, Name) and _SCHEDULERS.search(path_of(stmt.iterable)):
            stepped_in_turn.add(stmt.target.id)
        if not isinstance(stmt, Call):
            continue
        if isinstance(stmt.func, Attr):
            path = path_of(stmt.func.base)
            if path:
                name = stmt.func.name
                if name in ("step", "unscale_") and stmt.args:
                    argument = path_of(stmt.args[0].value)
                    if argument:
                        stepped.add(argument)
                    name = f"{name}(optimizer)"
                elif name == "update" and stmt.args:
                    name = "update(value)"
                methods.setdefault(path, set()).add(name)
        elif isinstance(stmt.func, Name):
            called.add(stmt.func.id)
        if isinstance(stmt.func, Attr):
            called.add(path_of(stmt.func))
    roles = dict.fromkeys(schedulers - {""}, "scheduler")
    for path, used in methods.items():
        if path.startswith("%") or path in roles:
            continue
        last = path.rpartition(".")[2].lower()
        named = "scaler" in last
        if path in stepped_in_turn and used == {"step"}:
            roles[path] = "scheduler"
        elif "unscale_(optimizer)" in used:
            roles[path] = "scaler"
        elif "scale" in used and used & {"step(optimizer)", "update", "get_scale"}:
            roles[path] = "scaler"
        elif named and used & {"step(optimizer)", "get_scale"}:
            roles[path] = "scaler"
        elif named and used & {"scale", "update"} and used.isdisjoint(_OF_DATA_SCALERS):
            # what scales targets or rewards is no scaler of losses
            if "update" in used or path in of_losses:
                roles[path] = "scaler"
        elif {"zero_grad", "step"} <= used:
            roles[path] = "optimizer"
        elif "sched" in last and "step" in used:
            roles[path] = "scheduler"
        elif used & {"zero_grad", "step", "state_dict", "load_state_dict"} and re.search(
            r"(^|_)(optim\w*|opt)($|_|\d)", last
        ):
            roles[path] = "optimizer"
        elif used & {"parameters", "named_parameters"}:
            roles[path] = "model"
        elif path in called and used & {
            "train",
            "eval",
            "state_dict",
            "half",
            "to",
            "cuda",
            "module",
            "zero_grad",
            "no_sync",
        }:
            roles[path] = "model"
    scalers = {path for path, role in roles.items() if role == "scaler"}
    for stmt in scope.statements:
        if (
            isinstance(stmt, Call)
            and isinstance(stmt.func, Attr)
            and stmt.func.name in ("step", "unscale_")
            and stmt.args
        ):
            if path_of(stmt.func.base) in scalers:
                argument = path_of(stmt.args[0].value)
                if argument and not argument.startswith("%"):
                    roles.setdefault(argument, "optimizer")
    return roles


class Project:
    """The folder tree around the files being checked; resolves imports inside it.

    A module is read at most once, when a name that an import binds is looked up. What lies outside of the root counts
    as unknown.
    """

    def __init__(self, root: Path, settings: object = None, searched: Path | None = None) -> None:
        self.root = root
        #: where callers are looked for; what lies around a package without a mark may be anybody's
        self.searched = searched or root
        self.settings = settings
        #: the project's own wrappers: dotted name -> role
        self.wrappers = wrappers_of(settings)
        self._modules: dict[Path, ModuleEnv | None] = {}
        #: what was parsed for earlier analyses
        self._read: dict[Path, tuple[SourceModule, Program]] = {}
        self._numbers = itertools.count(1)
        self._outlines: dict[Path, Outline] = {}
        self._homes: dict[tuple[Path, str], tuple[Path, str] | None] = {}
        self._definitions: dict[tuple[Path, str], tuple[Path, str] | None] = {}
        self._computing: dict[tuple[Path, str], bool] = {}
        self._found: dict[tuple[str, str, int], tuple[Path, ...]] = {}
        self._listings: dict[str, frozenset[str]] = {}
        #: the folders in which the first word of an absolute import is found, by folder and word
        self._holders: dict[tuple[str, str], tuple[str, ...]] = {}

    @classmethod
    def for_file(cls, path: Path, settings: object = None) -> Project:
        """The project of a file: the nearest folder with a version control or packaging mark, else the working folder
        where the file lies inside of it, else the folder around the outermost package."""
        folder = Path(os.path.realpath(path)).parent
        for candidate in (folder, *folder.parents):
            if any(os.path.exists(candidate / mark) for mark in _ROOT_MARKS):
                return cls(candidate, settings)
        top = folder
        while os.path.exists(top / "__init__.py") and top.parent != top:
            top = top.parent
        here = Path.cwd()
        if here in top.parents and here.parent != here:
            top = here
        return cls(top, settings, here if top in here.parents else None)

    def enter(self, source: SourceModule, file: Path | None = None) -> ModuleEnv:
        """The environment of a module that is being checked itself."""
        key = Path(os.path.realpath(file or source.path))
        known = self._modules.get(key)
        if known is not None and known.source is source:
            return known
        env = ModuleEnv(source, key, self, next(self._numbers))
        self._modules[key] = env
        return env

    def parsed(self, source: SourceModule, file: Path) -> SourceModule:
        """A module that is to be checked, parsed; the one that was read when another file imported it, if that is the
        same. Raises SourceError."""
        key = Path(os.path.realpath(file))
        known = self._modules.get(key)
        read = (known.source, known.program) if known is not None and known.is_lowered else self._read.get(key)
        if read is None or (read[0].path, read[0].text) != (source.path, source.text):
            source.tree  # noqa: B018 - parse before anything else is done
            return source
        # what an import found out about the module's variables does not hold for the file that is run
        env = self._modules[key] = ModuleEnv(read[0], key, self, next(self._numbers))
        env.program = read[1]
        return read[0]

    def trim(self) -> None:
        """Forget the modules once there are many, since trees are large; what was read last is not parsed again. To be
        called between analyses only: one analysis knows a module by its identity."""
        live = [(file, env) for file, env in self._modules.items() if env is not None]
        if len(live) > MAX_KEPT:
            self._read = {file: (env.source, env.program) for file, env in live[-KEPT:] if env.is_lowered}
            self._modules.clear()

    def resolve(
        self, importer: ModuleEnv, dotted: str, level: int, among: Container[ModuleEnv] | None = None
    ) -> ModuleEnv | None:
        """The project's module that an import names, or None; nothing is read where it has to be `among` others."""
        if importer.file is not None:
            for file in self.candidates(importer.file, dotted, level):
                if among is None:
                    return self.load(importer, file)
                known = self._modules.get(Path(os.path.realpath(file)))
                return known if known is not None and known in among else None
        return None

    def offers(self, importer: ModuleEnv, stmt: Import) -> frozenset[str]:
        """The names with AMP vocabulary that an import makes callable, directly or as members of a module. Nothing is
        parsed: definitions are found by their text."""
        if importer.file is None or stmt.member == "*":
            return frozenset()
        if stmt.member is None:
            files = list(self.candidates(importer.file, stmt.dotted, stmt.level))
            return self.telling_names(files[0]) if files else frozenset()
        for file in self.candidates(importer.file, stmt.dotted, stmt.level):
            if self._home(file, stmt.member) is not None:
                return frozenset((stmt.name,))
        for file in self.candidates(importer.file, f"{stmt.dotted}.{stmt.member}".strip("."), stmt.level):
            return self.telling_names(file)
        return frozenset()

    def telling_names(self, file: Path) -> frozenset[str]:
        """The definitions of a file that have AMP vocabulary, or call by name one that has."""
        return self.outline(file).telling

    def outline(self, file: Path) -> Outline:
        """What a file of the project defines."""
        known = self._outlines.get(file)
        if known is None:
            known = self._outlines[file] = Outline(self._text(file))
        return known

    def offered_methods(self, importer: ModuleEnv, stmt: Import) -> frozenset[str]:
        """The methods in which something of the protocol happens, of a class that an import brings in."""
        found: set[str] = set()
        if importer.file is not None and stmt.member not in (None, "*"):
            for file in self.candidates(importer.file, stmt.dotted, stmt.level):
                found |= self._methods(file, stmt.member or "", 0)
        return frozenset(found)

    def offers_callable(self, importer: ModuleEnv, stmt: Import) -> bool:
        """Whether an import brings in a class whose objects do something of the protocol when they are called."""
        if importer.file is not None and stmt.member not in (None, "*"):
            for file in self.candidates(importer.file, stmt.dotted, stmt.level):
                home = self._home(file, stmt.member or "")
                if home is not None:
                    return self.outline(home[0]).is_callable(home[1])
        return False

    def _methods(self, file: Path, name: str, depth: int) -> frozenset[str]:
        """The same of a class by its name in a file, with what it inherits."""
        home = self._home(file, name) if depth <= MAX_REEXPORTS else None
        if home is None:
            return frozenset()
        outline = self.outline(home[0])
        inherited = (self._methods(home[0], base, depth + 1) for base in sorted(outline.bases(home[1])))
        return outline.methods(home[1]).union(*inherited)

    def _home(self, file: Path, name: str) -> tuple[Path, str] | None:
        """Where a name of a file is defined, or what the file re-exports under it, if that has AMP vocabulary."""
        if (file, name) not in self._homes:
            self._homes[file, name] = self._find_home(file, name, 0, set())
        return self._homes[file, name]

    def _find_home(self, file: Path, name: str, depth: int, visited: set[tuple[Path, str]]) -> tuple[Path, str] | None:
        visited.add((file, name))
        if name in self.telling_names(file):
            return file, name
        outline = self.outline(file)
        if depth > MAX_REEXPORTS or name in outline.definitions:
            return None
        if name in outline.assignments:
            return (file, name) if VOCABULARY.search(outline.assignments[name]) else None
        for dotted, level, names in outline.from_imports:
            original = name if "*" in names else names.get(name)
            if original is not None:
                for target in self.candidates(file, dotted, level):
                    seen = (target, original) in visited
                    home = None if seen else self._find_home(target, original, depth + 1, visited)
                    if home is not None:
                        return home
        return None

    def definition(self, file: Path, name: str) -> tuple[Path, str] | None:
        """Where a function, a class or a variable that a file offers is defined, as its name tells; nothing is
        parsed."""
        if (file, name) not in self._definitions:
            self._definitions[file, name] = self._find_definition(file, name)
        return self._definitions[file, name]

    def _find_definition(self, file: Path, name: str) -> tuple[Path, str] | None:
        level_by_level, seen = [(file, name)], {(file, name)}
        for _ in range(MAX_REEXPORTS + 1):
            following: list[tuple[Path, str]] = []
            for home, wanted in level_by_level:
                outline = self.outline(home)
                if wanted in outline.definitions or wanted in outline.assignments:
                    return home, wanted
                for dotted, level, names in outline.from_imports:
                    original = wanted if "*" in names else names.get(wanted)
                    targets = self.candidates(home, dotted, level) if original is not None else ()
                    following += [(target, original or "") for target in targets]
            level_by_level = [entry for entry in dict.fromkeys(following) if entry not in seen]
            seen.update(level_by_level)
        return None

    def computes(self, file: Path, name: str) -> bool:
        """Whether a definition, or one that it mentions, is one in which a rule about dtypes may find something."""
        if (file, name) not in self._computing:
            self._computing[file, name] = self._find_computing(file, name)
        return self._computing[file, name]

    def _find_computing(self, file: Path, name: str) -> bool:
        seen: set[tuple[Path, str]] = set()
        reached = {(file, name)}
        for _ in range(MAX_REEXPORTS + 1):
            new: set[tuple[Path, str]] = set()
            for home in {home for home, _ in reached - seen}:
                outline = self.outline(home)
                words = outline.said_by({n for h, n in reached - seen if h == home})
                if not words.isdisjoint(outline.computing):
                    return True
                new |= self._mentioned(home, words)
            seen |= reached
            reached = new
        return False

    def _mentioned(self, file: Path, words: frozenset[str]) -> set[tuple[Path, str]]:
        """The definitions of other modules that a file with these words mentions."""
        found: set[tuple[Path, str]] = set()
        outline = self.outline(file)
        modules: list[tuple[str, int]] = [(dotted, 0) for here, dotted in outline.plain_imports if here in words]
        for dotted, level, names in outline.from_imports:
            if "*" in names:
                modules.append((dotted, level))
            for here in words & names.keys():
                for target in self.candidates(file, dotted, level):
                    home = self.definition(target, names[here])
                    found |= {home} if home is not None else set()
                modules.append((f"{dotted}.{names[here]}".strip("."), level))
        for dotted, level in modules:
            for module in self.candidates(file, dotted, level):
                found |= {(module, word) for word in words & self.outline(module).definitions.keys()}
        return found

    def mentions_network(self, file: Path, name: str) -> bool:
        """Whether a definition mentions a class with a `forward`, of its file or another one."""
        words = self.outline(file).words_of_definitions.get(name, frozenset())
        near = {(file, word) for word in words & self.outline(file).definitions.keys()}
        return any(self.outline(home).has_forward(other) for home, other in near | self._mentioned(file, words))

    def _text(self, file: Path) -> bytes:
        try:
            data = file.read_bytes()
        except OSError:
            return b""
        return data if len(data) <= MAX_BYTES else b""

    def mentions(self, importer: ModuleEnv, stmt: Import, name: str) -> bool:
        """Whether the file that a star import names holds a word; nothing is parsed."""
        for file in self.candidates(importer.file, stmt.dotted, stmt.level) if importer.file is not None else ():
            return file.name == "__init__.py" or name in self.outline(file).words
        return False

    def candidates(self, importer: Path, dotted: str, level: int) -> Iterable[Path]:
        """The files that an import in `importer` can name; `level` counts the leading dots."""
        question = (os.path.dirname(importer), dotted, level)
        known = self._found.get(question)
        if known is None:
            known = self._found[question] = tuple(self._search(*question))
        return known

    def _search(self, folder: str, dotted: str, level: int) -> Iterator[Path]:
        parts = [p for p in dotted.split(".") if p]
        if not level and (not parts or parts[0] in EXTERNAL_ROOTS):
            return
        for base in self._bases(folder, level, parts[0] if parts else "__init__"):
            target = os.path.join(base, *parts)
            if level and not _lies_in(target, str(self.root)):
                return
            for file in self._named(target) if parts else (os.path.join(base, "__init__.py"),):
                if os.path.isfile(file):
                    yield Path(file)
                    return

    def _named(self, target: str) -> Iterator[str]:
        """The module and the package that a dotted name can be, as far as the folder around them has such names."""
        around, name = os.path.split(target)
        beside = self._listing(around)
        if f"{name}.py" in beside:
            yield f"{target}.py"
        if name in beside:
            yield os.path.join(target, "__init__.py")

    def _bases(self, folder: str, level: int, first: str) -> tuple[str, ...]:
        """The folders of the project in which the first word of an import is found."""
        if level:
            for _ in range(level - 1):
                folder = os.path.dirname(folder)
            return (folder,) if self._holds(folder, first) else ()
        known = self._holders.get((folder, first))
        if known is None:
            root = str(self.root)
            if folder != root and _lies_in(folder, root):
                outer = self._bases(os.path.dirname(folder), 0, first)
            else:
                source = os.path.join(root, "src")
                outer = (source,) if self._holds(source, first) else ()
            inside = _lies_in(folder, root) and self._holds(folder, first)
            known = self._holders[folder, first] = (folder, *outer) if inside else outer
        return known

    def _holds(self, folder: str, name: str) -> bool:
        """Whether a folder has a module or a package of this name."""
        return not {name, f"{name}.py"}.isdisjoint(self._listing(folder))

    def _listing(self, folder: str) -> frozenset[str]:
        """The names in a folder, as they were when first asked for."""
        known = self._listings.get(folder)
        if known is None:
            try:
                names = os.listdir(folder or os.curdir)
            except OSError:
                names = []
            known = self._listings[folder] = frozenset(names)
        return known

    def load(self, importer: ModuleEnv, file: Path) -> ModuleEnv | None:
        """A module of the project by its file, None where it cannot be read or is too long."""
        key = Path(os.path.realpath(file))
        if key in self._modules:
            known = self._modules[key] = self._modules.pop(key)  # the last that was asked for
            # a file that was checked itself is no better known to others than one that was not
            return known if known is not None and known.is_short else None
        self._modules[key] = None
        if key in self._read:
            source, program = self._read[key]
            env = self._modules[key] = ModuleEnv(source, key, self, next(self._numbers))
            env.program = program
            return env if env.is_short else None
        try:
            data = key.read_bytes()
        except OSError:
            return None
        if len(data) > MAX_BYTES:
            return None
        display = self._display(importer, file)
        try:
            source = SourceModule.from_bytes(data, display)
            source.tree  # noqa: B018 - parse now, so that a broken module is unknown from the start
        except SourceError:
            return None
        env = self._modules[key] = ModuleEnv(source, key, self, next(self._numbers))
        return env

    def _display(self, importer: ModuleEnv, file: Path) -> str:
        """The path of `file` in the style in which the importer's was given."""
        shown = Path(importer.source.path)
        if importer.file is not None and not shown.is_absolute():
            anchor = importer.file
            for _ in shown.parts:
                anchor = anchor.parent
            try:
                return Path(os.path.realpath(file)).relative_to(anchor).as_posix()
            except ValueError:
                pass
        try:
            return Path(os.path.realpath(file)).relative_to(Path.cwd()).as_posix()
        except ValueError:
            return file.as_posix()


def _lies_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)
