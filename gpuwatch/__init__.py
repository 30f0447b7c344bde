"""gpuwatch: why the GPU idles, and the line to change.

What a training script may call. Importing this loads nothing but the standard library; the hook comes with the first
call, and none of these functions ever raises or prints on its own account. GPUWATCH_DISABLE=1 makes all of them do
nothing.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing itself is 0.8 MB, in every process of gpuwatch and in every training
if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager
    from types import ModuleType
    from typing import Any, TypeVar

    _T = TypeVar("_T")

__version__ = "0.1.0"
__all__ = ["__version__", "loader", "phase", "step", "watch"]


def watch() -> None:
    """Lets gpuwatch monitors see this process; without a monitor nothing is sent. `gpuwatch run` does the same."""
    hook = _hook()
    if hook is not None:
        hook.watch()


def step(samples: int | None = None) -> None:
    """Marks the end of a training step, for loops without a torch optimizer.

    Args:
        samples: How many samples the step consumed, if known.
    """
    hook = _hook()
    if hook is not None:
        hook.step(samples)


def phase(name: str) -> AbstractContextManager[None]:
    """A named stretch of the run: `with gpuwatch.phase("eval"): ...`.

    Args:
        name: "data" counts as waiting for data, "eval" and "checkpoint" as those phases; other names are shown as
            they are.
    """
    hook = _hook()
    if hook is None:
        from contextlib import nullcontext

        return nullcontext()
    manager: AbstractContextManager[None] = hook.Phase(name)
    return manager


def loader(iterable: Iterable[_T]) -> Iterable[_T]:
    """An iterable whose waits are recorded, for data that does not come from a torch DataLoader.

    Args:
        iterable: Anything a `for` loop takes. A DataLoader is returned unchanged: its waits are seen anyway.
    """
    hook = _hook()
    watched: Iterable[_T] = iterable if hook is None else hook.loader(iterable)
    return watched


def _hook() -> ModuleType | Any | None:
    # The launcher has installed the hook under its private name already; a second copy would count everything twice.
    package = "_gpuwatch_hook" if "_gpuwatch_hook" in sys.modules else "gpuwatch.hook"
    api = sys.modules.get(package + ".api")
    if api is not None:
        return api
    if os.environ.get("GPUWATCH_DISABLE"):
        return None
    import importlib

    try:
        return importlib.import_module(package + ".api")
    except (ImportError, AttributeError, OSError):  # a platform without Unix sockets or /proc trains unwatched
        return None
