"""AMP104: an argument of autocast or GradScaler stands in the wrong place or has the wrong type."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from amplint.finding import Severity
from amplint.names import names_of
from amplint.needles import MENTIONED, RENAMED, spaced
from amplint.program import Assign, Attr, Branch, Call, Name, Op, Param, call_name, parts_of, path_of
from amplint.program import Const as Literal
from amplint.rule import Change, Fault, FixPlan, Rule, Site
from amplint.target import OLDEST
from amplint.torch_facts import INDEX_IS_REFUSED, holds, parameters_of
from amplint.values import AttrOf, Const, Ext, Framework, Instance, Net, OpV, Params, Result, Sym, Value
from amplint.values import Param as Parameter

if TYPE_CHECKING:
    from amplint.analysis import Unit
    from amplint.states import Event

_COMPARISONS = frozenset({"not", "==", "!=", "<", "<=", ">", ">=", "is", "is not", "in", "not in"})
#: a name of which a test by itself shows that it is a flag, and not an option that may be None
_FLAG_NAMES = re.compile(r"amp|fp16|bf16|half|mixed|enable|autocast|^(use|is|no|with|do)_", re.IGNORECASE)
_TENSORS = frozenset({"torch.Tensor", "Tensor", "torch.nn.Parameter", "nn.Parameter"})
_NOT_A_FLAG = re.compile(r"dtype|type$|device|precision|ctx|context", re.IGNORECASE)
#: calls that may have a wrong argument in whatever class it is, and classes under another name
_ARGUED = (
    spaced(rb"autocast(?<!def autocast)\w{0,40}~\((?!~(?:(?:enabled~=~)?(?:True|False)~,?~)?\))"),
    spaced(rb"GradScaler\w{0,40}~\((?!~(?:enabled~=~(?:True|False)~,?~)?\))"),
    spaced(rb"caler\.update~\(~[^\s)]"),
    spaced(rb"autocast(?:%b|\b(?<!\wautocast)(?!~\()%b)" % (RENAMED, MENTIONED)),
    spaced(rb"GradScaler(?:%b|\b(?!~\()(?<!import GradScaler))" % RENAMED),
)
#: a flag where `torch.cuda.amp.autocast` takes it, and others take the device
_FLAG_FIRST = spaced(rb"autocast\w{0,40}~\(~(?:True|False)")
#: these others, or some that are brought in from elsewhere
_DEVICE_FIRST = (
    re.compile(
        rb"from[ \t]{1,40}(?!torch\.cuda\.amp\b)[\w.]{1,200}[ \t]{1,40}import[ \t]{0,40}"
        rb"(?:\([^)]{0,400}|[^\n(]{0,400})(?:\b(?:autocast|amp)\b|\*)"
    ),
    re.compile(rb"autocast(?<=\.autocast)(?<!cuda\.amp\.autocast)"),
)


class AmpBadArgument(Rule):
    """An argument of `autocast`, `GradScaler` or `update` stands in the wrong place or has the wrong type.

    ## What it does

    Reports arguments that torch refuses, or that mean something else than their author thought:

    | call | what happens |
    |---|---|
    | `torch.autocast(torch.device("cuda"))`, `torch.autocast(x.device)` | `ValueError`: it must be a string |
    | `torch.autocast("cuda:0")`, `torch.autocast(f"cuda:{gpu}")` | `RuntimeError` before torch 2.4, accepted since |
    | `torch.amp.autocast(use_amp)` | `ValueError`: a flag in the place of the device type |
    | `torch.autocast("cuda", use_amp)` | a flag as the dtype: cuda raises on entry, cpu warns and stays off |
    | `torch.autocast("cuda", dtype="float16")` | the dtype is a string: raises on entry |
    | `torch.cuda.amp.autocast(torch.bfloat16)` | silent: the dtype is taken for the flag, the region is fp16 |
    | `torch.amp.GradScaler(1024.0)` | silent: the number is taken for the device, the scale stays at 65536 |
    | `torch.amp.GradScaler(False)` | silent: the scaler is enabled |
    | `torch.amp.GradScaler("cuda", False)` | silent: the initial scale is 0 |
    | `torch.cuda.amp.GradScaler("cuda")` | the initial scale is a string, which fails in the first `scale()` |
    | `torch.cuda.amp.GradScaler(device="cuda")` | `TypeError`: that class has no device, nor has its `autocast` |
    | `scaler.update(2)` | `AttributeError`: an int is taken for a tensor; a float is right |

    ## Why is this bad

    The silent rows are the dangerous ones. `torch.cuda.amp` and `torch.amp` order their arguments differently: the
    first place of `torch.cuda.amp.GradScaler` is the initial scale, that of `torch.amp.GradScaler` the device. The
    first place of `torch.cuda.amp.autocast` is `enabled`, while `torch.autocast` takes device type and dtype first. A
    rename of the module therefore changes the meaning of a call that still runs. With an initial scale of 0 every
    gradient is 0 or not a number.

    ## Example

    ```python
    import torch
    from torch import nn


    class Regressor:
        def __init__(self, where="cuda"):
            self.device = torch.device(where)
            self.net = nn.Linear(8, 1).to(self.device)
            self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05)
            self.scaler = torch.amp.GradScaler("cuda")

        def step(self, x, y):
            self.optimizer.zero_grad()
            with torch.autocast(self.device, dtype=torch.float16):  # <- here
                loss = nn.functional.mse_loss(self.net(x), y)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            return loss.item()


    regressor = Regressor()
    for _ in range(3):
        regressor.step(torch.randn(6, 8, device="cuda"), torch.randn(6, 1, device="cuda"))
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn


    class Regressor:
        def __init__(self, where="cuda"):
            self.device = torch.device(where)
            self.net = nn.Linear(8, 1).to(self.device)
            self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05)
            self.scaler = torch.amp.GradScaler("cuda")

        def step(self, x, y):
            self.optimizer.zero_grad()
            with torch.autocast(self.device.type, dtype=torch.float16):
                loss = nn.functional.mse_loss(self.net(x), y)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            return loss.item()


    regressor = Regressor()
    for _ in range(3):
        regressor.step(torch.randn(6, 8, device="cuda"), torch.randn(6, 1, device="cuda"))
    ```

    ## Known limits

    - The positions are those of the torch that the project targets. For torch 1.10 and 1.11 the second place of
      `torch.autocast` still was `enabled`.
    - A variable is judged by what it is bound to, by its annotation or by its use as a condition; a plain parameter
      without either is not judged.

    ## Fix safety

    Safe where the meaning is certain: `.type` is added to a `torch.device`, a number or a flag becomes the keyword
    that its author meant (`init_scale=`, `enabled=`, `dtype=`), an int of `update()` becomes a float. For the other
    rows no fix is offered.

    ## How it is confirmed

    The call is executed. An exception of torch confirms the finding; for the silent rows the verifier reads the scale
    and whether the scaler is enabled, and compares them with what the argument says.

    ## References

    - `torch/amp/autocast_mode.py`, `autocast.__init__`; `torch/cuda/amp/autocast_mode.py`, `autocast.__init__`
    - `torch/amp/grad_scaler.py`, `GradScaler.__init__` and `GradScaler.update`
    - https://docs.pytorch.org/docs/stable/amp.html
    """

    code = "AMP104"
    name = "amp-bad-argument"
    severity = Severity.ERROR
    needles = ((*_ARGUED, _FLAG_FIRST), (*_ARGUED, *_DEVICE_FIRST))
    fix = "safe"
    confirmed_by = "raise"

    def check(self, unit: Unit) -> Iterator[Fault]:
        """Yield the faults of one analysed module."""
        for _, _, event in unit.events("construct_autocast", "construct_scaler", "update"):
            for message, fix in _JUDGES[event.kind](unit, event):
                yield Fault(event.site, message, tuple(unit.call_steps(event)), fix=fix)


Verdicts = Iterator[tuple[str, FixPlan | None]]


def _autocast(unit: Unit, event: Event) -> Verdicts:
    places = parameters_of(event.details["callee"], unit.target)
    unknown = _unknown_place(unit, event)
    if unknown:
        yield f"{_short(event)} takes no {unknown}", None
    given = dict(zip(places, event.details["arguments"], strict=False))
    given.update(event.details["keywords"])
    if unit.executor.effects.modules.dtype(given.get("enabled")) is not None:
        # every version that takes a dtype takes it by keyword
        fix = _as_keyword(event.site, places.index("enabled"), "dtype") if unit.target != OLDEST else None
        yield "a dtype stands in the place of the flag that enables the region", fix
    for device in _choices(unit, given.get("device_type")):
        if _is_device(unit, device):
            node = _argument(event.site, 0, "device_type")
            yield "device_type is given a torch.device; it must be the type, a string", _replacement(node, "{}.type")
        elif (isinstance(device, Const) and isinstance(device.value, (bool, int, float))) or _is_flag(unit, device):
            yield "a flag or a number stands in the place of device_type, which must be a string", None
        elif _has_index(device) and holds(INDEX_IS_REFUSED, unit.target):
            yield "device_type holds an index, which torch refuses before 2.4", None
    if any(isinstance(d, Const) and isinstance(d.value, str) for d in _choices(unit, given.get("dtype"))):
        yield "a string stands in the place of the dtype, which must be a torch.dtype", None
    if any(_is_flag(unit, dtype) for dtype in _choices(unit, given.get("dtype"))):
        position = places.index("dtype") if "dtype" in places else 1
        fix = _as_keyword(event.site, position, "enabled") if "enabled" not in given else None
        yield "a flag stands in the place of the dtype", fix


def _scaler(unit: Unit, event: Event) -> Verdicts:
    arguments = event.details["arguments"]
    first = arguments[0] if arguments else None
    unknown = _unknown_place(unit, event)
    if unknown:
        yield f"{_short(event)} takes no {unknown}", None
    if parameters_of(event.details["callee"], unit.target)[0] != "device":
        if event.scaler is not None and event.scaler.flavour == "sharded":
            return
        if isinstance(first, Const) and isinstance(first.value, str):
            yield "the first place of torch.cuda.amp.GradScaler is the initial scale, and a string stands there", None
        elif _is_flag(unit, first):
            yield "a flag stands in the place of the initial scale", _as_keyword(event.site, 0, "enabled")
        return
    if _is_flag(unit, first):
        yield "a flag stands in the place of the device; the scaler is enabled", _as_keyword(event.site, 0, "enabled")
    elif isinstance(first, Const) and isinstance(first.value, (int, float)):
        fix = _as_keyword(event.site, 0, "init_scale")
        yield "a number stands in the place of the device; the initial scale stays at 65536", fix
    elif len(arguments) > 1 and _is_flag(unit, arguments[1]):
        yield "a flag stands in the place of the initial scale", _as_keyword(event.site, 1, "enabled")


#: how the device is called in one class or the other
_PLACES = frozenset({"device", "device_type"})


def _unknown_place(unit: Unit, event: Event) -> str:
    """The keyword of a device that a class does not have; "" where there is none."""
    callee = event.details["callee"]
    if not callee.startswith("torch."):
        return ""
    return next(iter(sorted(_PLACES & event.details["keywords"].keys() - set(parameters_of(callee, unit.target)))), "")


def _short(event: Event) -> str:
    owner, _, name = event.details["callee"].rpartition(".")
    return f"{owner.removesuffix('.autocast_mode').removesuffix('.grad_scaler')}.{name}"


def _update(unit: Unit, event: Event) -> Verdicts:
    new_scale = event.details["new_scale"]
    if isinstance(new_scale, Const) and type(new_scale.value) is int:
        node = _argument(event.site, 0, "new_scale")
        literal = node is not None and isinstance(node.node, cst.Integer)
        yield "update() takes an int for a tensor; it must be a float", _replacement(node, "{}.0") if literal else None


_JUDGES = {"construct_autocast": _autocast, "construct_scaler": _scaler, "update": _update}


# --- what a value is -----------------------------------------------------------------------------


def _choices(unit: Unit, value: Value | None) -> Iterator[Value]:
    """What a value can be: the arms of a choice, what the class binds an attribute to."""
    if isinstance(value, OpV) and value.op == "ite":
        yield from _choices(unit, value.args[1])
        yield from _choices(unit, value.args[2])
    elif isinstance(value, AttrOf) and isinstance(value.base, Instance):
        yield from _bound(unit, value.base, value.name)
    elif value is not None:
        yield value


def _bound(unit: Unit, instance: Instance, attribute: str) -> Iterator[Value]:
    cls = instance.cls
    names = names_of(cls.env)
    for method in cls.scope.bound_attributes.get(attribute, ()):
        scope = cls.scope.children.get(method)
        if scope is None:
            continue
        calls = {stmt.result: stmt for stmt in scope.statements if isinstance(stmt, Call)}
        for stmt in scope.statements:
            if not (isinstance(stmt, Assign) and isinstance(stmt.target, Attr) and stmt.target.name == attribute):
                continue
            expr = stmt.value
            if isinstance(expr, Name) and expr.id in calls:
                for dotted in names.of(calls[expr.id].func, scope):
                    yield Result(Ext(dotted), (), ())
            elif isinstance(expr, Name):
                yield Sym("param", cls.env.source.path, scope.qualname, expr.id)
            elif isinstance(expr, Literal):
                yield Const.of(expr.value)
            elif isinstance(expr, Op) and expr.op in ("fstring", "+") and isinstance(expr.args[0], Literal):
                yield OpV(expr.op, Const.of(expr.args[0].value))


def _is_device(unit: Unit, value: Value) -> bool:
    if isinstance(value, Result):
        return isinstance(value.callee, Ext) and value.callee.dotted == "torch.device"
    if isinstance(value, AttrOf) and value.name == "device":
        return _has_device(unit, value.base)
    declared = _parameter(unit, value)
    return declared is not None and declared.annotation == "torch.device"


def _has_device(unit: Unit, value: Value) -> bool:
    """Whether a value is a tensor, a parameter or a model, whose `.device` is a torch.device."""
    if isinstance(value, (Framework, Parameter, Net)):
        return True
    if isinstance(value, Result):
        callee = value.callee
        makes_tensors = isinstance(callee, Ext) and re.match(r"torch\.[a-z_]+$", callee.dotted)
        return bool(makes_tensors) or isinstance(callee, Net) or any(isinstance(a, Params) for a in value.args)
    if isinstance(value, AttrOf) and value.name in ("weight", "bias"):
        return True
    declared = _parameter(unit, value)
    return declared is not None and declared.annotation in _TENSORS


def _has_index(value: Value) -> bool:
    while isinstance(value, OpV) and value.op in ("fstring", "+", "%") and isinstance(value.args[0], Value):
        value = value.args[0]
    return isinstance(value, Const) and isinstance(value.value, str) and bool(re.match(r"\w+:", value.value))


def _is_flag(unit: Unit, value: Value | None) -> bool:
    if isinstance(value, Const):
        return isinstance(value.value, bool)
    if isinstance(value, AttrOf) and isinstance(value.base, Instance):
        bound = list(_bound(unit, value.base, value.name))
        if bound:
            return all(_is_flag(unit, one) for one in bound)
    if isinstance(value, OpV):
        if value.op in _COMPARISONS:
            return True
        arms = value.args[1:] if value.op == "ite" else value.args
        return value.op in ("and", "or", "ite") and all(_is_flag(unit, arm) for arm in arms)
    if isinstance(value, Result) and isinstance(value.callee, Ext):
        return _ANSWERS.search(value.callee.dotted) is not None
    if value is None or not isinstance(value, (Sym, AttrOf)):
        return False
    if isinstance(value, AttrOf) and value.name in _switches(unit):
        return True
    declared = _parameter(unit, value)
    if declared is not None and (declared.annotation or declared.default is not None):
        return declared.annotation == "bool" or _is_boolean(declared)
    name = unit.name(value)
    last = name.rpartition(".")[2]
    return bool(_FLAG_NAMES.search(last)) and not _NOT_A_FLAG.search(last) and last in _tested(unit)


#: functions that answer yes or no
_ANSWERS = re.compile(r"(?:^|\.)(?:is_\w+|bool|isinstance|issubclass|hasattr|callable|all|any)$")


def _switches(unit: Unit) -> frozenset[str]:
    """The options of the module's argument parsers that are True or False: `action="store_true"`."""
    known: frozenset[str] | None = unit.env.shared.get("switches")
    if known is None:
        found: set[str] = set()
        for call in (s for scope in unit.env.program.scopes for s in scope.statements if isinstance(s, Call)):
            if call_name(call.func) != "add_argument":
                continue
            actions = [a.value for a in call.args if a.keyword == "action"]
            names = [a.value for a in call.args if a.keyword in (None, "dest")]
            if any(isinstance(a, Literal) and a.value in ("store_true", "store_false") for a in actions):
                spelled = [str(n.value) for n in names if isinstance(n, Literal)]
                found.update(name.lstrip("-").replace("-", "_") for name in spelled)
        known = unit.env.shared["switches"] = frozenset(found)
    return known


def _is_boolean(param: Param) -> bool:
    return isinstance(getattr(param.default, "value", None), bool)


def _parameter(unit: Unit, value: Value) -> Param | None:
    """The declaration of a parameter that a value was passed in, in this module."""
    if not isinstance(value, Sym) or value.parts[0] != "param" or value.parts[1] != unit.source.path:
        return None
    for scope in unit.env.program.scopes:
        if scope.qualname == value.parts[2]:
            return next((param for param in scope.params if param.name == value.parts[-1]), None)
    return None


def _tested(unit: Unit) -> frozenset[str]:
    """The last names of what some condition of the module tests by itself."""
    known = unit.env.shared.get("tested")
    if known is None:
        found = set()
        for scope in unit.env.program.scopes:
            for stmt in scope.statements:
                if isinstance(stmt, Branch):
                    for part in parts_of(stmt.test):
                        if part is stmt.test or (isinstance(part, Op) and part.op == "not"):
                            found.add(path_of(part.args[0] if isinstance(part, Op) else part).rpartition(".")[2])
        known = unit.env.shared["tested"] = frozenset(found)
    return known


# --- repairs -------------------------------------------------------------------------------------


def _argument(site: Site, position: int, keyword: str) -> Site | None:
    """The value of a call's argument, given by position or by keyword."""
    if not isinstance(site.node, cst.Call) or any(a.star for a in site.node.args):
        return None
    for number, arg in enumerate(site.node.args):
        if (arg.keyword is None and number == position) or (arg.keyword is not None and arg.keyword.value == keyword):
            return Site(site.module, arg.value)
    return None


def _replacement(site: Site | None, template: str) -> FixPlan | None:
    if site is None or not isinstance(site.node, (cst.Name, cst.Attribute, cst.Call, cst.Integer)):
        return None
    text = template.format(site.module.segment(site.node))
    return FixPlan("safe", f"write {text}", (Change("replace", site, text),))


def _as_keyword(site: Site, position: int, keyword: str) -> FixPlan | None:
    """Write the last positional argument as the keyword that its author meant."""
    node = site.node
    if not isinstance(node, cst.Call) or any(a.star for a in node.args):
        return None
    positional = [arg for arg in node.args if arg.keyword is None]
    taken = {arg.keyword.value for arg in node.args if arg.keyword is not None}
    if len(positional) != position + 1 or keyword in taken:
        return None
    value = positional[position].value
    text = f"{keyword}={site.module.segment(value)}"
    return FixPlan("safe", f"write {text}", (Change("replace", Site(site.module, value), text),))
