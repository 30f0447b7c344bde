"""Host-to-device copies of whole batches, where a framework moves them through a function of its own.

`Tensor.to` stays as it is. Wrapped, it adds no graph break (torch 2.13), but tensor subclasses such as torchvision's
compare the function they are called for with it, and models call it hundreds of times a step. So a loop that writes
`x.to(device)` itself shows its copy as part of the forward time, or in stack samples. Only the name in the module that
moves batches is replaced, never the function that recurses.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, Callable, Optional

from . import wire
from .hidden import around
from .ring import record, started

_MOVERS = ("send_to_device", "move_data_to_device")


def wrap_mover(module: ModuleType) -> None:
    """Wraps the batch mover that this module imported."""
    for mover in _MOVERS:
        original = getattr(module, mover, None)
        if original is not None:
            timed = _timed(original)
            timed.__module__ = module.__name__  # it is pickled by its name: where it was defined, that is the original
            setattr(module, mover, timed)


def _timed(original: Callable[..., Any]) -> Callable[..., Any]:
    def enter(device: Any) -> Optional[int]:
        return started() if _is_accelerator(device) else None

    def leave(start_ns: Optional[int], device: Any, result: Any, raised: bool) -> None:
        if start_ns is not None:
            record(wire.COPY, start_ns, flags=wire.RAISED if raised else 0, a=-1)

    return around(original, enter, leave, "device")


def _is_accelerator(device: Any) -> bool:
    if type(device) is str:
        return device.partition(":")[0] != "cpu"
    torch = sys.modules.get("torch")
    return type(device) is int or (torch is not None and type(device) is torch.device and device.type != "cpu")


PATCHES = {
    "accelerate.data_loader": (wrap_mover,),
    "lightning.fabric.wrappers": (wrap_mover,),
    "lightning.pytorch.core.hooks": (wrap_mover,),
    "lightning_fabric.wrappers": (wrap_mover,),
    "pytorch_lightning.core.hooks": (wrap_mover,),
}
