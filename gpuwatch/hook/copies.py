"""Host-to-device copies of whole batches, where a framework moves them through a function of its own.

`Tensor.to` stays as it is. Wrapped, it adds no graph break (torch 2.13), but tensor subclasses such as torchvision's
compare the function they are called for with it, and models call it hundreds of times a step. So a loop that writes
`x.to(device)` itself shows its copy as part of the forward time, or in stack samples. Only the name in the module that
moves batches is replaced, never the function that recurses.
"""

from __future__ import annotations

import functools
from time import monotonic_ns
from types import ModuleType
from typing import Any, Callable

from . import wire
from .hidden import hidden
from .ring import record

_MOVERS = ("send_to_device", "move_data_to_device")


def wrap_mover(module: ModuleType) -> None:
    """Wraps the batch mover that this module imported."""
    for mover in _MOVERS:
        original = getattr(module, mover, None)
        if original is not None:
            setattr(module, mover, _timed(original))


def _timed(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def move(*arguments: Any, **named: Any) -> Any:
        device = arguments[1] if len(arguments) > 1 else named.get("device")
        if device is None or getattr(device, "type", str(device).partition(":")[0]) == "cpu":
            return original(*arguments, **named)
        flags, start_ns = wire.RAISED, monotonic_ns()
        try:
            moved = original(*arguments, **named)
            flags = 0
            return moved
        finally:
            record(wire.COPY, start_ns, flags=flags, a=-1)

    return hidden(move)


PATCHES = {
    "accelerate.data_loader": (wrap_mover,),
    "lightning.fabric.wrappers": (wrap_mover,),
    "lightning.pytorch.core.hooks": (wrap_mover,),
    "lightning_fabric.wrappers": (wrap_mover,),
    "pytorch_lightning.core.hooks": (wrap_mover,),
}
