"""torch.compile at work, from where Dynamo runs the callbacks around it.

Callbacks of our own would be lost at the first `torch._dynamo.reset()`, which clears them.
"""

from __future__ import annotations

import sys
from time import monotonic_ns
from types import ModuleType
from typing import Any, Callable, Dict, Optional

from . import wire
from .hidden import around
from .ring import begun, pulse, record

_LONGEST_REASON = 400
_REPORTED_AT_ONCE = 16  # compilations after which facts are sent again without waiting for their turn

count = 0
_started_ns = 0


def wrap_callbacks(module: ModuleType) -> None:
    """Wraps the two methods that run the callbacks: once as the first compilation begins, once as the last ends."""
    kind = module.CompilationCallbackHandler
    kind.run_start_callbacks = _before(kind.run_start_callbacks, _begin)
    kind.run_end_callbacks = _before(kind.run_end_callbacks, _end)


def _before(original: Callable[..., Any], note: Callable[[], None]) -> Callable[..., Any]:
    return around(original, lambda handler: note(), lambda token, handler, result, raised: None, "self")


def _begin() -> None:
    global _started_ns
    _started_ns = monotonic_ns()
    begun(wire.COMPILE, _started_ns)


def _end() -> None:
    global count
    count += 1
    record(wire.COMPILE, _started_ns)
    if count <= _REPORTED_AT_ONCE:
        pulse.facts_changed = True  # after the record, which may send: Dynamo notes its reason only after this


def last_recompilation() -> Optional[Dict[str, Any]]:
    """Why and where Dynamo last recompiled what it had compiled before, from its own log of compilations."""
    metrics = getattr(sys.modules.get("torch._dynamo.utils"), "_compilation_metrics", None)
    for one in reversed(list(metrics or ())):
        reason = getattr(one, "recompile_reason", None)
        if reason:
            return {
                "recompile_reason": str(reason)[:_LONGEST_REASON],
                "recompile_file": getattr(one, "co_filename", None),
                "recompile_line": getattr(one, "co_firstlineno", None),
            }
    return None


PATCHES = {"torch._dynamo.callback": (wrap_callbacks,)}
