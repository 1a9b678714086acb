"""What names say: which unknown is a model, an optimizer or a flag, and how near two names are.

A file names its objects; where nothing else tells what one is, its name does, and the guess is listed
among the assumptions of the verdict.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from typing import Any

OPTIMIZER = re.compile(r"(?<![a-z])(opt|optim)|optimi[sz]er|solver|(^|_)opt", re.I)
#: classes of optimizers that do not say so
OPTIMIZER_CLASS = re.compile(
    r"Adam|SGD|Lion|Adagrad|LAMB|LARS|RMSprop|Adafactor|Prodigy|Sophia|Shampoo|Muon|Ranger", re.I
)
#: classes that keep an average of weights, and those that write states to files
AVERAGE = re.compile(r"EMA|(^|_)ema|Averaged?Model|MovingAverage")
CHECKPOINTER = re.compile(r"checkpoint(er|s|_manager|manager)?$|saver$", re.I)
SETTINGS = re.compile(r"^(\w+_)?(cfgs?|config|args|params|hparams|settings|options|name)$", re.I)
SCALER = re.compile(r"scaler|(^|_)amp_?scale", re.I)
SCHEDULER = re.compile(r"sched|warmup|(^|_)lr_(?!$)|lr_schedule", re.I)
LOSS = re.compile(r"loss|criteri(on|a)|(^|_)cri(_|$)|objective|cost", re.I)
MODEL = re.compile(
    r"model|net|encoder|decoder|backbone|head|gen(erator)?$|disc(riminator)?$|critic|actor|policy|student|teacher"
    r"|unet|vae|transformer|classifier|module|trunk|mapping|tower|^[GDFE]$|(^|_)enc$|(^|_)dec$|agent|value$|query$|item$",
    re.I,
)
AMP_FLAG = re.compile(r"amp|fp16|float16|half|mixed|scaler|precision|16", re.I)
ON = re.compile(r"clip|norm|train|enable|is_main|cuda|gpu|rank_?zero", re.I)
OFF = re.compile(
    r"deepspeed|apex|accelerat|debug|dry|distributed|ddp|horovod|resume|eval|test|compile|nan|inf|bf16|bfloat", re.I
)
INTEGER = re.compile(
    r"accum|every|window|interval|freq|steps?$|^n_|num_|micro|chunks?|iter|batch_size|size$|period|^k$", re.I
)
#: where counting begins, which of several processes this is, and that nothing failed: 0 in a training that starts
START = re.compile(
    r"(^|_)(start|begin|first|initial|resumed?|finished|trained|done|last|offset|rank|gpu)(_id)?(_|$)"
    r"|(return|exit|ret)_?code|errno"
    r"|(^|_)(init|warm_?up)_(it|iters?|iterations?|steps?|epochs?)$",
    re.I,
)
#: how many steps a whole training has
TOTAL = re.compile(r"(^|_)(max|total|train(ing)?)_(?!.*accum)(\w+_)?(it|iters?|iterations?|steps?|updates?)$", re.I)
#: what a term is multiplied by, or a power or a temperature: neither 0 nor 1, at which a term would vanish
FACTOR = re.compile(
    r"alpha|beta|gamma|lambda|(^|_)lam(bda)?(_|$)|weight$|coeff?|ratio|(^|_)factor|temp(erature)?$"
    r"|(^|_)tau$|smooth|(^|_)rho$|(^|_)mix$",
    re.I,
)
#: how often something is repeated
COUNT = re.compile(r"(epochs|steps|iters|iterations|batches|updates)$", re.I)
LIMIT = re.compile(r"clip|norm|thresh|limit|max_grad", re.I)
PASS_THROUGH = re.compile(
    r"tqdm|track|progress|log_every|prefetch|cycle|prepare|to_device|move|collate|wrap|ddp|parallel", re.I
)
SEQUENCE_OF_HOOKS = re.compile(r"hook|callback|plugin|listener", re.I)

#: functions of data that are no network
TRANSFORM = re.compile(
    r"aug|prep|norm|trans|coll|token|move|load|get|make|sample|noise|draw|mask|warp|crop|resize|^to_|_fn$|func|log|write"
    r"|metric|accuracy|score|compute|update|apply|check|save|print|plot|eval|inspect|hook",
    re.I,
)
FROZEN = re.compile(r"teacher|(^|_)ema|target_net|frozen|reference|#copy", re.I)

BUILTINS = {
    "abs",
    "all",
    "any",
    "bool",
    "dict",
    "enumerate",
    "filter",
    "float",
    "getattr",
    "hasattr",
    "id",
    "int",
    "isinstance",
    "issubclass",
    "iter",
    "len",
    "list",
    "map",
    "max",
    "min",
    "next",
    "object",
    "pow",
    "print",
    "property",
    "range",
    "repr",
    "reversed",
    "round",
    "set",
    "setattr",
    "sorted",
    "staticmethod",
    "classmethod",
    "str",
    "sum",
    "super",
    "tuple",
    "type",
    "vars",
    "zip",
    "Exception",
    "BaseException",
    "RuntimeError",
    "ValueError",
    "TypeError",
    "KeyError",
    "IndexError",
    "AttributeError",
    "AssertionError",
    "StopIteration",
    "NotImplementedError",
    "FloatingPointError",
    "OverflowError",
    "ArithmeticError",
    "ZeroDivisionError",
    "KeyboardInterrupt",
    "OSError",
    "ImportError",
    "ModuleNotFoundError",
    "LookupError",
    "callable",
    "divmod",
    "format",
    "frozenset",
    "hash",
    "slice",
    "Ellipsis",
    "NotImplemented",
    "True",
    "False",
    "None",
}
ERRORS: dict[str, type[BaseException]] = {
    name: getattr(builtins, name)
    for name in [
        "Exception",
        "BaseException",
        "RuntimeError",
        "ValueError",
        "TypeError",
        "KeyError",
        "IndexError",
        "AttributeError",
        "AssertionError",
        "StopIteration",
        "NotImplementedError",
        "FloatingPointError",
        "OverflowError",
        "ArithmeticError",
        "ZeroDivisionError",
        "KeyboardInterrupt",
        "OSError",
        "ImportError",
        "ModuleNotFoundError",
        "LookupError",
    ]
}
#: timm's scaler, the one part of that library that a replay knows
NATIVE_SCALERS = frozenset({"timm.utils.NativeScaler", "timm.utils.cuda.NativeScaler"})
LIBRARIES = (
    "torch",
    "builtins",
    "math",
    "itertools",
    "functools",
    "contextlib",
    "collections",
    "argparse",
    "dataclasses",
    "copy",
    "types",
    "os",
    "operator",
    "random",
)
TENSOR_DENIED = re.compile(
    r"^_|numpy|storage|share|data_ptr|apply_|map_|to_file|save|register|retain|tolist_|backward|pin"
)
FUNCTIONAL_DENIED = re.compile(
    r"(^|\.)(_|save|load|hub|jit|ops|classes|from_file|compile|multiprocessing|package|utils\.data|distributed|onnx|library"
    r"|serialization|fx|export|_dynamo|set_|manual_seed|profiler|cpp|testing|import|exec|run|eval)"
)
REDUCING = re.compile(r"loss|entropy|_div$|^mean$|^sum$|^norm$|nll|mse|l1|bce|focal|dice|cosine_embedding")
MODEL_METHODS = {
    "parameters",
    "named_parameters",
    "modules",
    "named_modules",
    "children",
    "train",
    "requires_grad_",
    "buffers",
    "half",
    "bfloat16",
    "state_dict",
    "load_state_dict",
    "no_sync",
    "clip_grad_norm_",
    "apply",
    "named_children",
    "zero_grad",
    "module",
    "forward",
}
OPTIMIZER_METHODS = {"step", "zero_grad", "state_dict", "load_state_dict", "add_param_group", "train", "eval"}
#: methods of a tensor that make another dtype of it
CASTS = {"to", "type", "type_as", "float", "double", "half", "bfloat16"}
SCALER_METHODS = {
    "scale",
    "unscale_",
    "step",
    "update",
    "get_scale",
    "is_enabled",
    "state_dict",
    "load_state_dict",
    "get_growth_factor",
    "get_backoff_factor",
    "get_growth_interval",
    "set_growth_factor",
    "set_backoff_factor",
    "set_growth_interval",
}


def constructed(label: str) -> bool:
    return " in line " in label


def affinity(a: str, b: str) -> int:
    """How much two names share: equal words count 4, equal beginnings 3, equal first letters 1."""
    first, second = words_in(a), words_in(b)
    index = (re.findall(r"\[(\d+)\]", a) or [""])[-1], (re.findall(r"\[(\d+)\]", b) or [""])[-1]
    score = 5 if index[0] and index[0] == index[1] else 0
    for x in first:
        for y in second:
            if x == y:
                score += 4
            elif len(x) >= 2 and len(y) >= 2 and (x.startswith(y) or y.startswith(x)):
                score += 3
            elif (len(x) == 1 or len(y) == 1) and x[0] == y[0]:
                score += 2
    return score


def words_in(label: str) -> set[str]:
    spaced = re.sub(r"([a-z])([A-Z])", r"\1 \2", label.rsplit(".", 1)[-1])
    words = {w.lower() for w in re.findall(r"[A-Za-z]+", spaced)}
    return words - {
        "opt",
        "optim",
        "optimizer",
        "optimizers",
        "optimiser",
        "net",
        "model",
        "models",
        "loss",
        "self",
        "scaler",
        "the",
    }


def flat(values: object) -> Iterator[object]:
    if isinstance(values, list | tuple):
        for value in values:
            yield from flat(value)
    elif isinstance(values, dict):
        yield from flat(list(values.values()))
    else:
        yield values


def product(values: Any) -> int:
    total = 1
    for value in values:
        if isinstance(value, int):
            total *= max(abs(value), 1)
    return total


def snake(name: str) -> str:
    known = {
        "MSELoss": "mse_loss",
        "L1Loss": "l1_loss",
        "CrossEntropyLoss": "cross_entropy",
        "BCELoss": "binary_cross_entropy",
        "BCEWithLogitsLoss": "binary_cross_entropy_with_logits",
        "NLLLoss": "nll_loss",
        "KLDivLoss": "kl_div",
        "SmoothL1Loss": "smooth_l1_loss",
        "HuberLoss": "huber_loss",
    }  # fmt: skip
    return known.get(name, name.lower())


def symbol(op: ast.operator) -> str:
    return {"Add": "+", "Sub": "-", "Mult": "*", "Div": "/", "Mod": "%", "FloorDiv": "//", "Pow": "**"}.get(
        type(op).__name__, type(op).__name__
    )
