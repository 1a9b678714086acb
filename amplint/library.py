"""What amplint knows of libraries: dotted names and the roles they play, as data.

Sources: torch/amp/autocast_mode.py, torch/amp/grad_scaler.py, torch/cuda/amp/, torch/cpu/amp/,
torch/nn/utils/clip_grad.py, torch/optim/, torch/distributed/fsdp/sharded_grad_scaler.py (torch 1.6 to 2.13);
accelerate/accelerator.py, lightning/fabric/fabric.py, deepspeed/runtime/engine.py, apex/amp/, timm/utils/cuda.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

#: first components whose names are never looked up in the project, even where a folder is called so
EXTERNAL_ROOTS = frozenset(
    {"torch", "torch_npu", "torch_xla", "torch_musa", "torch_mlu", "paddle", "tensorflow", "apex"}
)

_TORCH_ROOTS = ("torch", "torch_npu", "torch_musa", "torch_mlu", "torch_sdaa", "intel_extension_for_pytorch")

_EXACT: dict[str, str] = {
    "contextlib.nullcontext": "null_context",
    "contextlib.suppress": "null_context",
    "contextlib.ExitStack": "exit_stack",
    "contextlib.AsyncExitStack": "exit_stack",
    "contextlib.contextmanager": "contextmanager",
    "contextlib.asynccontextmanager": "contextmanager",
    "functools.partial": "partial",
    "functools.wraps": "wraps",
    "collections.namedtuple": "tuple_class",
    "typing.NamedTuple": "tuple_class",
    "types.SimpleNamespace": "namespace",
    "argparse.Namespace": "namespace",
    "copy.deepcopy": "copy",
    "copy.copy": "copy",
    "torch.no_grad": "no_grad",
    "torch.inference_mode": "no_grad",
    "torch.autograd.no_grad": "no_grad",
    "torch.autograd.inference_mode": "no_grad",
    "torch.is_autocast_enabled": "autocast_enabled",
    "torch.enable_grad": "enable_grad",
    "torch.autograd.enable_grad": "enable_grad",
    "torch.autograd.backward": "autograd_backward",
    "torch.autograd.grad": "autograd_grad",
    "torch.nn.functional.binary_cross_entropy": "bce",
    "torch.save": "save",
    "torch.distributed.checkpoint.save": "save",
    "torch.distributed.checkpoint.async_save": "save",
    "torch.distributed.checkpoint.save_state_dict": "save",
    "torch.distributed.checkpoint.state_dict_saver.save": "save",
    "pickle.dump": "save",
    "pickle.dumps": "save",
    "ignite.handlers.Checkpoint": "save",
    "ignite.handlers.ModelCheckpoint": "save",
    "ignite.handlers.checkpoint.Checkpoint": "save",
    "fvcore.common.checkpoint.Checkpointer": "checkpointer",
    "detectron2.checkpoint.Checkpointer": "checkpointer",
    "detectron2.checkpoint.DetectionCheckpointer": "checkpointer",
    "torch.load": "load",
    "torch.set_default_dtype": "default_dtype",
    "torch.set_default_tensor_type": "default_dtype",
    "torch.isfinite": "finite_check",
    "torch.isnan": "finite_check",
    "torch.isinf": "finite_check",
    "torch.compile": "same_module",
    "torch.jit.script": "same_module",
    "torch.nn.utils.weight_norm": "same_module",
    "torch.nn.utils.spectral_norm": "same_module",
    "torch.nn.utils.parametrizations.weight_norm": "same_module",
    "torch.nn.utils.parametrizations.spectral_norm": "same_module",
    "torch.nn.utils.parametrizations.orthogonal": "same_module",
    "torch.nn.DataParallel": "same_module",
    "torch.nn.parallel.DataParallel": "same_module",
    "torch.nn.parallel.DistributedDataParallel": "same_module",
    "torch.nn.parallel.distributed.DistributedDataParallel": "same_module",
    "torch.nn.SyncBatchNorm.convert_sync_batchnorm": "same_module",
    "torch.distributed.fsdp.FullyShardedDataParallel": "fsdp1",
    "torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel": "fsdp1",
    "fairscale.nn.FullyShardedDataParallel": "fsdp1",
    "fairscale.nn.data_parallel.FullyShardedDataParallel": "fsdp1",
    "torch.distributed.fsdp.fully_shard": "same_module",
    "torch.distributed._composable.fsdp.fully_shard": "same_module",
    "torch.nn.utils.clip_grad_norm_": "clip_norm",
    "torch.nn.utils.clip_grad_norm": "clip_norm",
    "torch.nn.utils.clip_grad_value_": "clip_value",
    "torch.nn.utils.clip_grads_with_norm_": "clip_norm",
    "torch.nn.utils.get_total_norm": "total_norm",
    "torch.nn.utils.clip_grad.clip_grad_norm_": "clip_norm",
    "torch.nn.utils.clip_grad.clip_grad_norm": "clip_norm",
    "torch.nn.utils.clip_grad.clip_grad_value_": "clip_value",
    "torch.nn.utils.clip_grad.clip_grads_with_norm_": "clip_norm",
    "torch.nn.utils.clip_grad.get_total_norm": "total_norm",
    "timm.utils.dispatch_clip_grad": "clip_norm",
    "timm.utils.clip_grad.dispatch_clip_grad": "clip_norm",
    "timm.utils.adaptive_clip_grad": "clip_norm",
    "timm.utils.agc.adaptive_clip_grad": "clip_norm",
    "apex.amp.scale_loss": "apex_scale_loss",
    "apex.amp.initialize": "framework",
    "apex.amp.master_params": "framework",
    "timm.utils.NativeScaler": "native_scaler",
    "timm.utils.cuda.NativeScaler": "native_scaler",
    "accelerate.Accelerator": "framework",
    "accelerate.accelerator.Accelerator": "framework",
    "lightning.Fabric": "framework",
    "lightning.fabric.Fabric": "framework",
    "lightning_fabric.Fabric": "framework",
    "pytorch_lightning.Trainer": "framework",
    "lightning.Trainer": "framework",
    "lightning.pytorch.Trainer": "framework",
    "deepspeed.initialize": "framework",
    "colossalai.initialize": "framework",
    "threading.Thread": "runs_target",
    "multiprocessing.Process": "runs_target",
    "torch.multiprocessing.Process": "runs_target",
    "accelerate.notebook_launcher": "runs_first",
    "torch.multiprocessing.spawn": "runs_ranked",
    "torch.multiprocessing.start_processes": "runs_ranked",
    "torch_xla.distributed.xla_multiprocessing.spawn": "runs_ranked",
    "torch_xla.launch": "runs_ranked",
    "dataclasses.asdict": "same_value",
    "vars": "same_value",
    "typing.cast": "cast",
    "sys.exit": "exit",
    "os._exit": "exit",
}

_BUILTINS = frozenset(
    "abs all any bool bytes callable dict dir divmod enumerate filter float format frozenset getattr hasattr hash id "
    "int isinstance issubclass iter len list map max min next object open ord pow print range repr reversed "
    "round set "
    "setattr slice sorted str sum super tuple type vars zip exit quit property staticmethod classmethod".split()
)

#: builtins that look at what they are given, and neither call it nor give it back
ONLY_LOOK = frozenset(
    "bool callable dir float format hasattr hash id int isinstance issubclass len print range repr str type".split()
)

_SCHEDULER = re.compile(
    r"(lr_scheduler\.[A-Z]\w+$)|(get_\w*schedule\w*$)|(Scheduler$)|(\.optim\.lr_scheduler\.)|(\.swa_utils\.SWALR$)"
)
_OPTIMIZER_CLASS = re.compile(
    r"^(Adam\w*|SGD\w*|RMSprop\w*|Adagrad|Adadelta|Adamax|ASGD|LBFGS|Rprop|SparseAdam|NAdam|RAdam|Lion\w*|LAMB|Lamb|Lars|LARS|"
    r"FusedAdam|FusedLAMB|FusedSGD|Adafactor|AdaBelief|Ranger\w*|Sophia\w*|Muon|Shampoo|PagedAdamW\w*|Prodigy|DAdapt\w+|MADGRAD)$"
)

#: optimizers that hold fp32 copies of 16-bit weights, or that the scaler leaves the unscaling to: apex/optimizers,
#: apex/contrib/optimizers, deepspeed/ops, and those of projects that are written like them
_MASTERS_CLASS = re.compile(r"Fused|FP16|Fp16|MixedPrecision|Master")
_MASTERS_WORD = re.compile(r"_step_supports_amp_scaling$|master|fp32|float32_", re.IGNORECASE)

#: dtypes of 16 bit, by canonical name
FLOAT16 = frozenset({"torch.float16", "torch.half", "torch.HalfTensor", "torch.cuda.HalfTensor"})
BFLOAT16 = frozenset({"torch.bfloat16", "torch.BFloat16Tensor", "torch.cuda.BFloat16Tensor"})
FLOAT32 = frozenset(
    {"torch.float32", "torch.float", "torch.float64", "torch.double", "torch.FloatTensor", "torch.cuda.FloatTensor"}
)

#: methods of GradScaler; every other attribute of a scaler is data or private
SCALER_METHODS = frozenset(
    "scale unscale_ step update get_scale state_dict load_state_dict is_enabled get_growth_factor set_growth_factor "
    "get_backoff_factor set_backoff_factor get_growth_interval set_growth_interval".split()
)

#: methods that put something into a list, set or dict
FILLS = frozenset({"append", "extend", "insert", "add", "update", "setdefault", "appendleft"})

#: methods that lists and dicts have, and hooks have not
OF_CONTAINERS = frozenset("append extend insert setdefault items keys values get copy pop sort count index".split())

#: methods and attributes of a gradient that give it back, with its size as it was
KEEPS_SIZE = frozenset(
    "data detach clone float double to cpu cuda view flatten reshape contiguous coalesce to_dense to_local full_tensor "
    "redistribute wait".split()
)

#: methods and functions that put a tensor's elements elsewhere, or leave some out, and change none
REARRANGES = frozenset(
    "t tril triu flip transpose permute squeeze unsqueeze narrow index_select roll expand unbind parameters_to_vector "
    "_flatten_dense_tensors _unflatten_dense_tensors".split()
)

#: methods and attributes that tell how a tensor is kept, and nothing of its elements
METADATA = frozenset(
    "size dim numel stride storage_offset element_size nelement ndimension get_device is_contiguous data_ptr shape "
    "dtype device ndim layout is_cuda is_sparse requires_grad itemsize nbytes names".split()
)

#: methods of another tensor that ask a tensor for its form alone
LIKE_ANOTHER = frozenset("to type_as expand_as view_as reshape_as".split())

#: attributes of GradScaler in which it keeps what it knows; who sets them runs a protocol of his own
SCALER_STATE = frozenset({"_scale", "_growth_tracker", "_per_optimizer_states", "_found_inf_per_device"})


def is_builtin(name: str) -> bool:
    """Whether `name` is a builtin that amplint understands or may ignore."""
    return name in _BUILTINS


@cache
def role(dotted: str) -> str | None:
    """The role that a library name plays, or None where amplint knows nothing of it.

    >>> role("torch.cuda.amp.grad_scaler.GradScaler"), role("torch.optim.AdamW"), role("sklearn.preprocessing.scale")
    ('scaler', 'optimizer', None)
    """
    exact = _EXACT.get(dotted)
    if exact is not None:
        return exact
    root, _, _ = dotted.partition(".")
    last = dotted.rpartition(".")[2]
    if last == "GradScaler" and root in _TORCH_ROOTS:
        return "scaler"
    if last == "ShardedGradScaler" and root in ("torch", "fairscale"):
        return "sharded_scaler"
    if root in _TORCH_ROOTS:
        if last == "autocast":
            return "autocast" if dotted in GENERIC_AUTOCAST else "device_autocast"
        if last in ("custom_fwd", "custom_bwd") and ".amp" in dotted:
            return last
    if _SCHEDULER.search(dotted):
        return "scheduler"
    if ".optim" in dotted or root in (
        "torch_optimizer",
        "bitsandbytes",
        "timm",
        "transformers",
        "lion_pytorch",
        "pytorch_optimizer",
    ):
        if dotted.startswith("torch.optim.") and last[:1].isupper() and last != "Optimizer":
            return "optimizer" if ".swa_utils." not in dotted else None
        if _OPTIMIZER_CLASS.match(last):
            return "optimizer"
        if last in ("create_optimizer", "create_optimizer_v2"):
            return "optimizer"
    if root == "torch" and dotted.startswith("torch.nn.") and last[:1].isupper() and ".utils." not in dotted:
        return "module"
    return None


#: `autocast` whose first positional argument is the device type
GENERIC_AUTOCAST = frozenset(
    {"torch.autocast", "torch.amp.autocast", "torch.amp.autocast_mode.autocast", "torch.autocast_mode.autocast"}
)


@cache
def keeps_masters(name: str, words: Iterable[str] = ()) -> bool:
    """Whether an optimizer class may have fp32 copies of 16-bit weights, or takes scaled 16-bit gradients as they are.

    name   the dotted name of a class outside the project, or the name of one of the project
    words  the names in the body of a class of the project
    """
    if not name.startswith("torch.") and _MASTERS_CLASS.search(name.rpartition(".")[2]):
        return True
    return any(_MASTERS_WORD.search(word) for word in words)


def autocast_device(dotted: str) -> str:
    """The device type of a device-specific autocast: `torch.cuda.amp.autocast` -> "cuda"."""
    for part in ("cpu", "xpu", "npu", "mlu", "musa", "hpu", "mps"):
        if f".{part}." in f".{dotted}.":
            return part
    return "cuda"


#: names of objects that drive AMP by themselves, where nothing shows how they were made
_FRAMEWORK_NAMES = re.compile(
    r"(^|_)(accelerator|accelerate|fabric|deepspeed|ds_engine|colossal\w*|booster)($|_)", re.IGNORECASE
)


@cache
def names_framework(name: str) -> bool:
    """Whether an object of this name drives AMP by itself."""
    return bool(_FRAMEWORK_NAMES.search(name))


#: what a machine, or the versions of what is installed, answer the same whenever they are asked
LASTING = frozenset(
    {
        "torch.cuda.is_available",
        "torch.cuda.is_bf16_supported",
        "torch.cuda.device_count",
        "torch.xpu.is_available",
        "torch.backends.mps.is_available",
        "torch.backends.mps.is_built",
        "torch.accelerator.is_available",
        "torch.distributed.is_available",
        "torch.distributed.get_rank",
        "torch.distributed.get_world_size",
        "distutils.version.LooseVersion",
        "distutils.version.StrictVersion",
        "packaging.version.Version",
        "packaging.version.parse",
        "pkg_resources.parse_version",
        "mmcv.digit_version",
        "mmcv.utils.digit_version",
        "mmengine.utils.digit_version",
    }
)


#: a call named like this reads its arguments and leaves gradients and scales alone
HARMLESS_NAMES = re.compile(
    r"save|load|log|print|lr|learning_rate|sched|eval|valid|test|ema|summar|warmup|info|get_|param|watch|len|isinstance|"
    r"hasattr|getattr|type|repr|count|resume|restore|checkpoint|ckpt|dump|write|record|display|plot|seed|tqdm|track|"
    r"metric|meter|average|loss|criterion|train$|set_description|append|add_|register|dict|list|zip|broadcast|barrier|"
    r"reduce|gather|synchron|freeze|anneal|decay",
    re.IGNORECASE,
)

#: a hook-like method of the user's own object may do anything to what the object holds
HOOK_NAMES = re.compile(
    r"hook|callback|event|fire|notify|(^|_)on_|before|after|unscale|amp|optim|step|update|grad|precision|plugin",
    re.IGNORECASE,
)

#: a method that may take a step with what its object has been given
RUNS = re.compile(
    r"(?:^|_)(?:steps?|run|train|update|fit|optimi[sz]e|iterate|iteration|epoch|process|closure|exec(?:ute)?|apply|advance"
    r"|perform|call|do|backward|minimi[sz]e)(?:_|$)"
)

#: modules that consist of the modules they are given
CONTAINERS = frozenset({"torch.nn.Sequential", "torch.nn.ModuleList"})
