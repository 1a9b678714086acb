"""What calls give: of torch's functions and modules, of the project's own, of what was passed in."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from amplint import library, optable
from amplint.precision.dtypes import CASTS, IN_PLACE, VIEWS
from amplint.precision.guesses import like_network
from amplint.precision.objects import Objects
from amplint.precision.values import (
    MORE,
    NOTHING,
    Answer,
    BytesOf,
    Distant,
    Fact,
    Frame,
    Items,
    Library,
    Made,
    Number,
    Opened,
    Own,
    Table,
    Tensor,
    Text,
    Unknown,
    Value,
    dtype_name,
    elements,
    is_network,
    is_object,
    truth,
)
from amplint.program import Attr, Call, path_of
from amplint.regions import DEFAULT_IS_SET
from amplint.torch_facts import parameters_of

if TYPE_CHECKING:
    from amplint.project import ModuleEnv

_SELF_RETURNING = frozenset(["to", "cuda", "cpu", "xpu", "npu", "train", "eval", "requires_grad_", "share_memory"])
_FP16_BY_DEFAULT = frozenset({"cuda", "xpu", "mps", "mtia", "npu"})
#: methods that leave a dictionary as it is
READS_DICT = frozenset({"get", "values", "items", "keys", "copy"})


class Calls(Objects):
    """Calls of one walk."""

    def __init__(self, env: ModuleEnv, target: str) -> None:
        super().__init__(env)
        #: the version of torch that the module is written for
        self.target = target

    def call_value(self, stmt: Call, frame: Frame, quiet: bool = False) -> Value:
        """What a call gives. A `quiet` one goes into no function of the project."""
        func = stmt.func
        positional: list[Value] = []
        keywords: dict[str, Value] = {}
        for arg in stmt.args:
            value = self.value(arg.value, frame)
            if arg.keyword is not None:
                keywords[arg.keyword] = value
            elif arg.star:
                keywords[MORE] = NOTHING
            else:
                positional.append(value)
        if isinstance(func, Attr) and path_of(func) not in frame:
            base = self.value(func.base, frame)
            if (
                func.name in _SELF_RETURNING
                and is_object(base)
                and not any(map(dtype_name, (*positional, *keywords.values())))
            ):
                return base
            if isinstance(base, Number) and (func.name in CASTS or func.name in VIEWS):
                return base
            path = path_of(func.base)
            if func.name == "append" and isinstance(base, Library) and base.last == "ModuleList" and path in frame:
                frame[path] = replace(base, made=(Items((*elements(base), *positional)),))
                return NOTHING
            if isinstance(base, Table):
                return self._of_table(base, func.name, path, positional, frame)
            if isinstance(base, Tensor) and func.name == "element_size":
                return BytesOf(base)
            if isinstance(base, Tensor) or (isinstance(base, Unknown) and self._is_tensor_method(func.name)):
                return self._method(base, func.name, positional, keywords, stmt)
        return self._called(self.value(func, frame), positional, keywords, stmt, frame, quiet)

    @staticmethod
    def _of_table(base: Table, name: str, path: str, positional: list[Value], frame: Frame) -> Value:
        """A method of a dictionary; what is changed is not known any more."""
        if name not in READS_DICT and path in frame:
            frame[path] = NOTHING
        if name == "get" and positional:
            return base.get(positional[0])
        if name == "values":
            return Items(tuple(value for _, value in base.pairs))
        if name == "items":
            return Items(tuple(Items((Text(key), value)) for key, value in base.pairs))
        return NOTHING

    def _called(
        self,
        callee: Value,
        positional: list[Value],
        keywords: dict[str, Value],
        stmt: Call,
        frame: Frame | None = None,
        quiet: bool = False,
    ) -> Value:
        if isinstance(callee, Library) and callee.dotted == "super" and not positional:
            return self.parents()
        if isinstance(callee, Library):
            return self._library(callee, positional, keywords, stmt)
        if quiet:
            return NOTHING
        if isinstance(callee, Distant):
            if callee.made is None and not callee.attribute and self.elsewhere.is_class(callee):
                return replace(callee, made=_made(positional, keywords))
            read = self.read(callee, (*positional, *keywords.values()))
            if read is not None and callee.attribute:
                return self._called(Unknown(("function", *read.key), read), positional, keywords, stmt)
            if read is None:
                if callee.made is not None and self.elsewhere.is_network(callee):
                    network = Unknown(("own", callee.file.as_posix(), callee.name))
                    self.note("apply", "", network, tuple(positional), keywords, stmt.node)
                return NOTHING
            callee = read
        if isinstance(callee, Own):
            return self._own(callee, tuple(positional), keywords, stmt, frame)
        if isinstance(callee, Unknown) and callee.key:
            return self._unknown(callee, positional, keywords, stmt)
        return NOTHING

    @staticmethod
    def _is_tensor_method(name: str) -> bool:
        return name in optable.LOWER or name in CASTS or name in ("masked_fill", "masked_fill_", "clamp", "clamp_min")

    def read(self, value: Distant, given: tuple[Value, ...]) -> Own | None:
        """The definition of another module, where its operators meet tensors that are 16 bit, or may make them so."""
        region = self.inner
        reached = region is not None or any(isinstance(v, Tensor) and v.dtype in ("float16", "bfloat16") for v in given)
        held = [each for v in (*given, *(value.made.values if value.made is not None else ())) for each in _each(v)]
        if (
            (self.elsewhere.opens_regions(value) and (any(map(is_network, held)) or self.elsewhere.is_context(value)))
            or (reached and (self.elsewhere.computes(value) or any(map(is_network, held))))
            or (value.made is None and self.elsewhere.makes_networks(value))
        ):
            return self.elsewhere.read(value)
        return None

    def _own(
        self,
        callee: Own,
        positional: tuple[Value, ...],
        keywords: dict[str, Value],
        stmt: Call,
        frame: Frame | None = None,
    ) -> Value:
        if callee.scope.kind != "class":
            return self.run(callee, positional, keywords, stmt.node, frame)
        if callee.made is None:
            return replace(callee, made=_made(positional, keywords))
        method = self.member(callee, "forward")
        if isinstance(method, Own):
            self.note("apply", "", Unknown(("own", *callee.key)), positional, keywords, stmt.node)
        else:
            method = self.member(callee, "__call__")
        return self.run(method, positional, keywords, stmt.node) if isinstance(method, Own) else NOTHING

    def _unknown(self, callee: Unknown, positional: list[Value], keywords: dict[str, Value], stmt: Call) -> Value:
        """A call of something that was passed in or kept: it may be a network."""
        self.note("apply", "", callee, tuple(positional), keywords, stmt.node)
        region = self.inner
        if region is None or region.enabled is False or region.dtype is None:
            return NOTHING
        return self.tensor(region.dtype, False) if like_network(callee.key) else NOTHING

    def _library(self, callee: Library, positional: list[Value], keywords: dict[str, Value], stmt: Call) -> Value:
        if callee.made is not None:
            return self._module(callee, positional, keywords, stmt)
        role, last = library.role(callee.dotted), callee.last
        if role in ("autocast", "device_autocast"):
            return self._autocast(callee.dotted, role, positional, keywords)
        if (role == "same_module" or last == "Parameter") and positional:
            return positional[0]
        if role == "no_grad":
            return Opened("no_grad")
        if role == "enable_grad":
            return Opened("enable_grad")
        if role == "partial" and positional and isinstance(positional[0], Library):
            return NOTHING
        if callee.dotted in ("float", "int", "len", "abs", "round") or callee.dotted.startswith(("math.", "numpy.")):
            return self.scalar(callee.dotted, positional)
        if last == "is_autocast_enabled" and self.inner is not None and self.inner.enabled is not None:
            return Answer(self.inner.enabled)
        if last == "finfo":
            return Library(callee.dotted, tuple(positional))
        if role == "module" or (callee.dotted.startswith("torch.nn.") and last[:1].isupper()):
            return Library(callee.dotted, tuple(positional), id(stmt))
        if not callee.dotted.startswith("torch."):
            return NOTHING
        self.note("call", callee.dotted, NOTHING, tuple(positional), keywords, stmt.node)
        return self.function(last, positional, keywords)

    def _module(self, module: Library, positional: list[Value], keywords: dict[str, Value], stmt: Call) -> Value:
        """An object of `torch.nn` is called."""
        self.note("call", module.dotted, module, tuple(positional), keywords, stmt.node)
        return self._through(module, [*positional, *keywords.values()], stmt)

    def _through(self, module: Library, args: list[Value], stmt: Call) -> Value:
        name = module.last
        if name == "Sequential" and module.made:
            value: Value = NOTHING
            for layer in module.made:
                known = isinstance(layer, Library) and layer.made is not None
                value = self._through(layer, args, stmt) if known else self._called(layer, args, {}, stmt)
                args = [value]
            return value
        if name in optable.LOWER_MODULES:
            result = self.product(args)
            # the second result is the attention's weights, or the state
            return Items((result, NOTHING)) if name in optable.WITH_STATE else result
        if name in optable.RAISED_MODULES or name.endswith("Loss"):
            return self.raised(args)
        return self.kept(args[:1]) if name in optable.KEEPING_MODULES else NOTHING

    def _method(self, base: Value, name: str, positional: list[Value], keywords: dict[str, Value], stmt: Call) -> Value:
        if name in CASTS:
            return self.cast(base, name, positional, keywords)
        self.note("call", name, base, tuple(positional), keywords, stmt.node)
        if not isinstance(base, Tensor) and name not in optable.LOWER:
            return NOTHING
        if name in ("item", "size", "dim", "numel", "tolist", "numpy"):
            return Number() if name == "item" else NOTHING
        if name.startswith("new_"):
            other = "dtype" in keywords or MORE in keywords or not isinstance(base, Tensor)
            return NOTHING if other else self.tensor(base.dtype, base.sure)
        if name in VIEWS or name in IN_PLACE:
            return base
        return self.function(name, [base, *positional], keywords)

    def _autocast(self, dotted: str, role: str, positional: list[Value], keywords: dict[str, Value]) -> Opened:
        given = dict(zip(parameters_of(dotted, self.target), positional, strict=False))
        given.update(keywords)
        device: str | None = None
        if role != "autocast":
            device = library.autocast_device(dotted)
        elif isinstance(given.get("device_type"), Text):
            device = given["device_type"].value.partition(":")[0]
        dtype: str | None
        if MORE in given:
            return Opened("autocast", dtype_name(given.get("dtype")), None, None, device)
        if "dtype" in given:
            dtype = dtype_name(given["dtype"])
        else:
            chosen = device is None or DEFAULT_IS_SET.search(self.env.source.code)
            dtype = None if chosen else "float16" if device in _FP16_BY_DEFAULT else "bfloat16"
        return Opened(
            "autocast", dtype, truth(given.get("enabled"), True), truth(given.get("cache_enabled"), True), device
        )

    def note(
        self,
        kind: str,
        operation: str,
        receiver: Value,
        arguments: tuple[Value, ...],
        keywords: dict[str, Value],
        node: Any,
    ) -> None:
        """Add a fact (see `Fact`)."""
        if node is not None:
            self.found.append(
                Fact(
                    kind,
                    operation,
                    node,
                    self.env,
                    self.stack[-1],
                    receiver,
                    arguments,
                    keywords,
                    self.regions,
                    self.calls,
                )
            )


def _made(positional: list[Value] | tuple[Value, ...], keywords: dict[str, Value]) -> Made:
    return Made(tuple(positional), tuple(sorted(keywords.items())))


def _each(value: Value) -> tuple[Value, ...]:
    return value.values if isinstance(value, Items) else (value,)
