"""torch.compile at work, from the callbacks that Dynamo offers for it."""

from __future__ import annotations

from time import monotonic_ns
from types import ModuleType

from . import wire
from .ring import pulse, record

count = 0
_started_ns = 0


def register(module: ModuleType) -> None:
    """Registers with Dynamo; older versions call back without arguments."""
    module.callback_handler.register_start_callback(_begin)
    module.callback_handler.register_end_callback(_end)


def _begin(*_arguments: object) -> None:
    global _started_ns
    _started_ns = monotonic_ns()


def _end(*_arguments: object) -> None:
    global count
    count += 1
    if count == 1:
        pulse.facts_changed = True
    record(wire.COMPILE, _started_ns)


PATCHES = {"torch._dynamo.callback": (register,)}
