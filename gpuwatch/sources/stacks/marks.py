"""What single frames of torch and of the usual frameworks give away: one look-up per file and function.

The names are those of torch 1.13 to 2.13, transformers 4 and 5, lightning 2 and accelerate 1.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final

from gpuwatch.sources.stacks.places import Owner, Place


class Mark(Enum):
    """What a frame is part of."""

    NEXT = auto()
    START = auto()  # iter() of a DataLoader
    FEED = auto()  # a framework's own work around next()
    SAVE = auto()
    COMPILE = auto()
    BACKWARD = auto()
    OPTIMIZER = auto()
    CLOSURE = auto()  # what an optimizer calls back, with forward and backward in it
    MODULE = auto()  # nn.Module.__call__: what it calls is forward
    FORWARD = auto()
    OPERATION = auto()  # a function of torch's that is written in Python: forward, unless the line says otherwise
    SYNC = auto()
    COPY = auto()
    LOG = auto()
    EVALUATION = auto()
    NO_GRAD = auto()  # calls a function that was decorated with torch.no_grad or inference_mode
    IMPORT = auto()
    HANDOVER = auto()  # waits for what another thread or process makes: a queue's get(), a future's result()
    NEUTRAL = auto()  # below a line without changing what the line is


_LOADER: Final = re.compile(r"torch/utils/data/dataloader\.py|torchdata/stateful_dataloader/stateful_dataloader\.py")
_OTHER_LOADERS: Final = re.compile(r"nvidia/dali/plugin/.*|torchdata/nodes/.*|ffcv/loader/.*")
_FEEDS: Final = re.compile(
    r"accelerate/data_loader\.py|lightning/pytorch/loops/fetchers\.py|lightning/pytorch/utilities/combined_loader\.py"
    r"|pytorch_lightning/loops/fetchers\.py|pytorch_lightning/utilities/combined_loader\.py"
)
_STARTERS: Final = frozenset({"__iter__", "__init__", "_get_iterator", "_reset", "get_iterator"})
_COMPILERS: Final = re.compile(
    r"torch/_dynamo/(?:convert_frame|symbolic_convert|output_graph|bytecode_transformation|guards)\.py"
    r"|torch/_inductor/(?:graph|scheduler|lowering|ir|async_compile|select_algorithm|pattern_matcher|cpp_builder)\.py"
    r"|torch/_inductor/(?:codegen|fx_passes|kernel)/.*|triton/(?:compiler|backends)/.*|torch/_export/.*"
)
_COMPILE_FUNCTIONS: Final = re.compile(r"_?(?:compile|fx_codegen|bw_compiler|fw_compiler|codegen).*")
_BACKWARD_FILES: Final = frozenset({"torch/autograd/__init__.py", "torch/autograd/graph.py"})
_BACKWARD_FUNCTIONS: Final = frozenset({"backward", "grad", "_engine_run_backward", "_make_grads"})
_STEPS: Final = frozenset(
    {"step", "_step", "update", "unscale_", "_unscale_grads_", "_maybe_opt_step", "zero_grad", "clip_grad_norm_"}
    | {"clip_grad_value_"}
)
_MODULE_CALLS: Final = frozenset({"_call_impl", "_wrapped_call_impl", "_slow_forward"})
_OPERATIONS: Final = re.compile(r"torch/(?:functional|_ops|_jit_internal|_linalg_utils)\.py|torch/_refs/.*")
_RUNTIME: Final = re.compile(
    r"torch/utils/checkpoint\.py|torch/amp/autocast_mode\.py"
    r"|torch/autograd/function\.py|torch/_functorch/.*|torch/_inductor/.*|torch/_dynamo/eval_frame\.py|torch/fx/.*"
    r"|torch/cuda/graphs\.py|torch/jit/_script\.py|torchvision/(?:ops|models)/.*"
)
_NEUTRAL: Final = re.compile(
    r"torch/_tensor\.py|torch/overrides\.py|torch/utils/_contextlib\.py|torch/nn/modules/module\.py"
    r"|torch/nn/parameter\.py|torch/utils/_device\.py|torch/_compile\.py|torch/autograd/grad_mode\.py"
)
_LOGGERS: Final = frozenset(
    {"wandb", "tensorboard", "tensorboardX", "matplotlib", "tqdm", "mlflow", "comet_ml", "neptune", "aim", "clearml"}
    | {"swanlab", "rich", "loguru", "absl"}
)
_LOG_FILES: Final = re.compile(
    r"torch/utils/tensorboard/.*|(?:pytorch_lightning|lightning/pytorch|lightning_fabric|lightning/fabric)/loggers/.*"
    r"|(?:pytorch_lightning|lightning/pytorch)/callbacks/progress/.*|transformers/integrations/integration_utils\.py"
)
_COPIERS: Final = frozenset(
    {"send_to_device", "move_data_to_device", "batch_to", "_prepare_input", "_prepare_inputs", "batch_to_device"}
    | {"transfer_batch_to_device", "_batch_to_device"}
)
_EVALUATIONS: Final = re.compile(
    r"(?:pytorch_lightning|lightning/pytorch)/loops/(?:evaluation|prediction)_loop\.py"
    r"|ultralytics/engine/validator\.py"
)
_HF_EVALUATIONS: Final = frozenset({"evaluate", "evaluation_loop", "prediction_loop", "predict"})
_HANDOVERS: Final = frozenset(
    {("queue.py", "get"), ("multiprocessing/queues.py", "get"), ("concurrent/futures/_base.py", "result")}
)
_CLOSURE: Final = re.compile(r"(?:.*_)?closure")


def mark_of(place: Place, function: str) -> Mark | None:
    """What a frame of this file and function is part of; None where it says nothing."""
    if _CLOSURE.fullmatch(function) or place.module.endswith("loops/optimization/closure.py"):
        return Mark.CLOSURE
    if function == "<module>" and place.owner is Owner.LIBRARY:
        return Mark.IMPORT
    if place.owner is Owner.STANDARD:
        if (place.module, function) in _HANDOVERS:
            return Mark.HANDOVER
        return Mark.LOG if place.package == "logging" else None
    if place.owner is Owner.GPUWATCH:
        return Mark.NEXT if place.module == "gpuwatch/hook/api.py" and function == "__next__" else None  # its loader()
    if place.owner is not Owner.LIBRARY:
        return Mark.FORWARD if place.module == "torch/_inductor/generated" else None
    for find in (_loading, _saving_or_compiling, _stepping):
        if (mark := find(place, function)) is not None:
            return mark
    return _around(place, function)


def _loading(place: Place, function: str) -> Mark | None:
    module = place.module
    if _LOADER.fullmatch(module):
        return Mark.NEXT if function == "__next__" else Mark.START if function in _STARTERS else None
    if _OTHER_LOADERS.fullmatch(module):
        return Mark.NEXT if function == "__next__" else None
    if _FEEDS.fullmatch(module) and function in ("__iter__", "__next__"):
        return Mark.FEED
    return Mark.COPY if function in _COPIERS else None


def _saving_or_compiling(place: Place, function: str) -> Mark | None:
    module = place.module
    if module == "torch/serialization.py":
        return Mark.SAVE if "save" in function else None
    if module.startswith(("safetensors/", "torch/distributed/checkpoint/")):
        return Mark.SAVE if re.search("save|serialize|write", function) else None
    if function == "save_pretrained":
        return Mark.SAVE
    if module.startswith("triton/runtime/") and function in ("_bench", "do_bench", "compile", "_do_compile"):
        return Mark.COMPILE
    if _COMPILERS.fullmatch(module):
        return Mark.COMPILE
    if module.startswith("torch/_inductor/") and _COMPILE_FUNCTIONS.fullmatch(function):
        return Mark.COMPILE
    return None


def _stepping(place: Place, function: str) -> Mark | None:
    module = place.module
    if module == "torch/_tensor.py":
        return Mark.BACKWARD if function == "backward" else Mark.NEUTRAL
    if module in _BACKWARD_FILES:
        return Mark.BACKWARD if function in _BACKWARD_FUNCTIONS else None
    if module.startswith("torch/optim/") and "state_dict" in function:
        return Mark.NEUTRAL  # on the way to a checkpoint
    if module.startswith("torch/optim/") or module == "torch/nn/utils/clip_grad.py":
        return Mark.OPTIMIZER
    if module.endswith("/grad_scaler.py") and module.startswith("torch/"):
        return Mark.OPTIMIZER if function in _STEPS else None
    if module == "torch/nn/modules/module.py":
        if function in _MODULE_CALLS:
            return Mark.MODULE
        return Mark.OPTIMIZER if function == "zero_grad" else Mark.NEUTRAL
    return None


def _around(place: Place, function: str) -> Mark | None:
    module = place.module
    if place.package in _LOGGERS or _LOG_FILES.fullmatch(module):
        return Mark.LOG
    if module.startswith("torch/cuda/") and function == "synchronize":
        return Mark.SYNC
    if _EVALUATIONS.fullmatch(module) or (module.startswith("transformers/trainer") and function in _HF_EVALUATIONS):
        return Mark.EVALUATION
    if module == "torch/utils/_contextlib.py" or (module == "torch/autograd/grad_mode.py" and "decorate" in function):
        return Mark.NO_GRAD
    if _NEUTRAL.fullmatch(module):
        return Mark.NEUTRAL
    # Weights are set before training, and the functions of torch.nn.utils do no forward.
    if module.startswith("torch/nn/") and not module.startswith(("torch/nn/init.py", "torch/nn/utils/")):
        return Mark.FORWARD
    if _OPERATIONS.fullmatch(module):
        return Mark.OPERATION
    return Mark.FORWARD if _RUNTIME.fullmatch(module) else None


def hands_on(place: Place, function: str) -> bool:
    """Whether a library's frame only passes batches on: generators and iterators between a loop and its loader."""
    if place.owner is not Owner.LIBRARY:
        return place.owner is Owner.GPUWATCH
    return (
        function.startswith("__") or _FEEDS.fullmatch(place.module) is not None or _loading(place, function) is not None
    )
