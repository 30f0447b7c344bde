"""torch.compile at work, from where Dynamo runs the callbacks around it.

Callbacks of our own would be lost at the first `torch._dynamo.reset()`, which clears them.
"""

from __future__ import annotations

import functools
from time import monotonic_ns
from types import ModuleType
from typing import Any, Callable

from . import wire
from .hidden import hidden
from .ring import pulse, record

count = 0
_started_ns = 0


def wrap_callbacks(module: ModuleType) -> None:
    """Wraps the two methods that run the callbacks: once as the first compilation begins, once as the last ends."""
    kind = module.CompilationCallbackHandler
    kind.run_start_callbacks = _before(kind.run_start_callbacks, _begin)
    kind.run_end_callbacks = _before(kind.run_end_callbacks, _end)


def _before(original: Callable[..., Any], note: Callable[[], None]) -> Callable[..., Any]:
    @functools.wraps(original)
    def run(*arguments: Any, **named: Any) -> Any:
        note()
        return original(*arguments, **named)

    return hidden(run)


def _begin() -> None:
    global _started_ns
    _started_ns = monotonic_ns()


def _end() -> None:
    global count
    count += 1
    if count == 1:
        pulse.facts_changed = True
    record(wire.COMPILE, _started_ns)


PATCHES = {"torch._dynamo.callback": (wrap_callbacks,)}
