"""Checkpoints: torch.save to a real file, safetensors, Lightning's atomic save, distributed checkpoints.

Pickling a tensor, for a queue between processes for instance, calls torch.save too, with a buffer in memory.
"""

from __future__ import annotations

import functools
import os
import sys
from _thread import get_ident
from time import monotonic_ns
from types import ModuleType
from typing import Any, Callable, List, Optional, Set, Tuple

from . import wire
from .frames import Place, calling_place
from .hidden import hidden
from .ring import pulse, record

# Module -> its functions that save, and the position and name of the parameter that says where.
_SAVERS = {
    "torch": (("save", 1, "f"),),
    "safetensors.torch": (("save_file", 1, "filename"),),
    "lightning.fabric.utilities.cloud_io": (("_atomic_save", 1, "filepath"),),
    "lightning_fabric.utilities.cloud_io": (("_atomic_save", 1, "filepath"),),
    "torch.distributed.checkpoint.state_dict_saver": (("save", -1, ""), ("async_save", -1, "")),
}


PLACES = 64

places: List[Tuple[str, int]] = []
"""The user's lines that save, in the order in which records point at them, counted from 1."""

_saving: Set[int] = set()
"""The threads that are in a save: a saver may call another."""


def wrap_savers(module: ModuleType) -> None:
    """Wraps the module's savers, and the copies of them that other modules have imported already."""
    for attribute, position, parameter in _SAVERS[module.__name__]:
        original = getattr(module, attribute, None)
        if original is None:
            continue
        wrapper = _timed(original, position, parameter)
        for holder in list(sys.modules.values()):
            namespace = getattr(holder, "__dict__", {})
            for alias in (attribute, "safe_" + attribute):
                if namespace.get(alias) is original:
                    setattr(holder, alias, wrapper)


def _timed(original: Callable[..., Any], position: int, parameter: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def save(*arguments: Any, **named: Any) -> Any:
        thread = get_ident()
        target = None
        if position >= 0:
            target = arguments[position] if len(arguments) > position else named.get(parameter)
        if thread in _saving or (position >= 0 and not _is_file(target)):
            return original(*arguments, **named)
        _saving.add(thread)
        place = calling_place()
        flags, start_ns = wire.RAISED, monotonic_ns()
        try:
            result = original(*arguments, **named)
            flags = 0
            return result
        finally:
            _saving.discard(thread)
            record(wire.SAVE, start_ns, _index(place), flags, a=_size(target))

    return hidden(save)


def _index(place: Optional[Place]) -> int:
    if place is None:
        return 0
    line = (place.file, place.line)
    if line not in places:
        if len(places) >= PLACES:
            return 0
        places.append(line)
        pulse.facts_changed = True
    return places.index(line) + 1


def _is_file(target: Any) -> bool:
    if isinstance(target, (str, os.PathLike)):
        return True
    try:
        return isinstance(target.fileno(), int)
    except Exception:  # noqa: BLE001 - a file-like object of the program's own may raise anything, as NotImplementedError
        return False


def _size(target: Any) -> int:
    if target is None:
        return -1
    try:
        return os.stat(target).st_size if isinstance(target, (str, os.PathLike)) else os.fstat(target.fileno()).st_size
    except Exception:  # noqa: BLE001 - as above
        return -1


PATCHES = dict.fromkeys(_SAVERS, (wrap_savers,))
