"""The model, its precision and its optimizer, read from the optimizer's parameters: no module is hooked.

The state of autocast is off again at step boundaries, so its entrance is watched, until it has been seen once with
gradients on.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, Dict, List, Optional, Set

from . import loaders, pauses, steps
from .hidden import around
from .quiet import Place, belongs_to, own, quietly, type_name
from .ring import pulse

_PARAMETER_LIMIT = 20_000
_COUNTED_AGAIN = 2_000
"""Parameters that are counted each time the facts are asked for, as layers may be unfrozen: 2 ms in 30 s."""
_TENSOR_CORE_SIDE = 8
_MATMUL_PRECISION = {"none": "highest", "ieee": "highest", "tf32": "high", "bf16": "medium"}

_shape: Dict[str, Any] = {}
_shape_of: Set[int] = set()
_devices: List[Any] = []
autocast_dtype: Optional[str] = None


def wrap_autocast(torch: ModuleType) -> None:
    """Wraps `autocast.__enter__`."""
    kind = torch.amp.autocast_mode.autocast
    original = kind.__enter__

    def enter(autocast: Any) -> None:
        if own(autocast, "_enabled") is True and torch.is_grad_enabled():
            quietly(_note_autocast, autocast, torch.dtype)
            if kind.__enter__ is wrapper:
                kind.__enter__ = original

    def leave(token: None, autocast: Any, result: Any, raised: bool) -> None:
        return None

    kind.__enter__ = wrapper = around(original, enter, leave, "self")


def _note_autocast(autocast: Any, kind: type) -> None:
    global autocast_dtype
    dtype = own(autocast, "fast_dtype")  # in another version of torch it may have another name
    if type(dtype) is not kind:
        raise AttributeError("autocast has no fast_dtype")
    autocast_dtype = str(dtype).replace("torch.", "")
    pulse.facts_changed = True


def look(torch: Any) -> None:
    """Adds up the parameters of the optimizers that have stepped, once per set of optimizers: 1 us a parameter."""
    stepped = [entry for entry in steps.optimizers() if entry.stepped_ns]
    numbers = {entry.number for entry in stepped}
    if numbers == _shape_of:
        return
    _shape_of.clear()
    _shape_of.update(numbers)
    parameters = _parameters_of(stepped, _PARAMETER_LIMIT)
    _shape.update(dict.fromkeys(_shape))  # a monitor keeps the value of a key that it is not sent again
    with loaders.undispatched():
        if len(parameters) <= _PARAMETER_LIMIT:
            _shape.update(_add_up(torch, list(parameters.values())))
        devices = {str(parameter.device): parameter.device for parameter in parameters.values()}
    _devices[:] = devices.values()


def device() -> Optional[str]:
    """The kind of device that is trained on, None while nothing was trained."""
    return str(_devices[0].type) if _devices else None


def cuda_indices() -> List[int]:
    """The CUDA devices that hold trained parameters."""
    return sorted(found.index for found in _devices if found.type == "cuda" and found.index is not None)


def facts(torch: Any) -> Dict[str, Any]:
    """The `model` object of docs/protocol.md."""
    content = dict(_shape)
    entries = [entry for entry in steps.optimizers() if entry.stepped_ns]
    optimizer = entries[-1].reference() if entries else None
    backward: Optional[Place] = steps.backward_place
    content.update(
        trained_parameters=quietly(_count_trained, entries),
        autocast=True if autocast_dtype else (False if steps.backward_seen else None),
        autocast_dtype=autocast_dtype,
        float32_matmul_precision=matmul_precision(torch),
        cudnn_allow_tf32=_cudnn_tf32(torch),
        cudnn_benchmark=bool(torch.backends.cudnn.benchmark),
        deterministic=_is_deterministic(torch),
        compiled=_is_compiled() if steps.backward_seen else None,
        optimizer=type_name(optimizer) if optimizer is not None else None,
        optimizer_fused=_is_fused(optimizer),
        optimizer_foreach=_default(optimizer, "foreach"),
        optimizer_file=entries[-1].place.file if entries and entries[-1].place else None,
        optimizer_line=entries[-1].place.line if entries and entries[-1].place else None,
        backward_file=backward.file if backward else None,
        backward_line=backward.line if backward else None,
        **(quietly(pauses.last_recompilation) or {}),
    )
    return content


def _count_trained(entries: List[steps.OptimizerEntry]) -> Optional[int]:
    """The numbers in all parameters that gradients are taken of."""
    parameters = _parameters_of(entries, _COUNTED_AGAIN)
    if not parameters or len(parameters) > _COUNTED_AGAIN:
        return None
    with loaders.undispatched():
        return sum(int(parameter.numel()) for parameter in parameters.values() if parameter.requires_grad)


def _parameters_of(entries: List[steps.OptimizerEntry], most: int) -> Dict[int, Any]:
    """What the optimizers train; of more than can be added up in 20 ms, or than `most`, only one more than that.

    None at all where some are of a class of the program's, whose methods are its code.
    """
    found: Dict[int, Any] = {}
    for entry in entries:
        groups = own(entry.reference(), "param_groups")
        for group in groups if type(groups) is list else ():
            parameters = group.get("params") if type(group) is dict else None
            for parameter in parameters if type(parameters) is list else ():
                if not belongs_to(type(parameter), "torch"):
                    return {}  # a part of the model would be taken for all of it
                found[id(parameter)] = parameter
                if len(found) > most:
                    return found
    return found


def _add_up(torch: Any, parameters: List[Any]) -> Dict[str, Any]:
    total = size = floating = single = matrices = kernels = 0
    layout = _Layout(torch)
    flattened = False
    for parameter in parameters:
        count = parameter.numel()
        total += count
        size += count * parameter.element_size()
        if parameter.is_floating_point():
            floating += count
            single += count if parameter.dtype is torch.float32 else 0
        dimensions = parameter.dim()
        matrices += count if dimensions == 2 else 0
        kernels += count if dimensions in (3, 4, 5) else 0
        layout.add(parameter, dimensions, count)
        flattened = flattened or type_name(parameter) == "FlatParameter"  # FSDP: every layer is one vector
    shares_known = total > 0 and not flattened
    return {
        "parameters": total or None,
        "parameter_bytes": size or None,
        "float32_share": round(single / floating, 4) if floating else None,
        "matmul_share": round(matrices / total, 4) if shares_known else None,
        "conv_share": round(kernels / total, 4) if shares_known else None,
        **(layout.facts(total) if shares_known else {}),
    }


class _Layout:
    """How kernels lie in memory, and which matrices have a side that tensor cores cannot divide by 8."""

    def __init__(self, torch: Any) -> None:
        self._format = torch.channels_last
        self._kernels = self._last = self._misaligned = self._largest = 0
        self._shape: Optional[str] = None

    def add(self, parameter: Any, dimensions: int, count: int) -> None:
        """Looks at one parameter."""
        shape = parameter.shape
        if dimensions == 4 and shape[1] > 1 and shape[2] * shape[3] > 1:  # else both layouts are the same
            self._kernels += count
            self._last += count if parameter.is_contiguous(memory_format=self._format) else 0
        elif dimensions == 2 and (shape[0] % _TENSOR_CORE_SIDE or shape[1] % _TENSOR_CORE_SIDE):
            self._misaligned += count
            if count > self._largest:
                self._largest, self._shape = count, f"{shape[0]}x{shape[1]}"

    def facts(self, total: int) -> Dict[str, Any]:
        """What was seen, in shares of all parameters."""
        return {
            "channels_last": 2 * self._last > self._kernels if self._kernels else None,
            "misaligned_share": round(self._misaligned / total, 4),
            "misaligned_shape": self._shape,
        }


def matmul_precision(torch: Any) -> Optional[str]:
    """The float32 matmul precision: "highest", "high" or "medium"."""
    # The legacy getters raise once the new API was used, so the new one is asked first.
    new = getattr(getattr(torch.backends.cuda, "matmul", None), "fp32_precision", None)
    if isinstance(new, str):
        return _MATMUL_PRECISION.get(new)
    legacy = getattr(torch, "get_float32_matmul_precision", None)
    return str(legacy()) if legacy is not None else None


def _cudnn_tf32(torch: Any) -> Optional[bool]:
    new = getattr(getattr(torch.backends.cudnn, "conv", None), "fp32_precision", None)
    if isinstance(new, str):
        return new == "tf32"
    return bool(torch.backends.cudnn.allow_tf32)


def _is_fused(optimizer: Any) -> Optional[bool]:
    defaults = own(optimizer, "defaults")
    if type(defaults) is not dict or "fused" not in defaults:
        return None
    return defaults["fused"] is True


def _default(optimizer: Any, name: str) -> Optional[bool]:
    defaults = own(optimizer, "defaults")
    value = defaults.get(name) if type(defaults) is dict else None
    return value if type(value) is bool else None


def _is_deterministic(torch: Any) -> bool:
    asked = getattr(torch, "are_deterministic_algorithms_enabled", bool)  # since torch 1.8
    return bool(torch.backends.cudnn.deterministic or asked())


def _is_compiled() -> bool:
    if pauses.compilations:
        return True
    dynamo = sys.modules.get("torch._dynamo.utils")
    frames = getattr(dynamo, "counters", {}).get("frames") if dynamo is not None else None
    return bool(frames and frames.get("ok", 0))


PATCHES = {"torch": (wrap_autocast,)}
