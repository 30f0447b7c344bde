"""Checkpoints: torch.save to a real file, safetensors, Lightning's atomic save, distributed checkpoints.

Pickling a tensor, for a queue between processes for instance, calls torch.save too, with a buffer in memory.
"""

from __future__ import annotations

import _io
import posix
import sys
from _thread import get_ident
from types import ModuleType
from typing import Any, Callable, Dict, List, Optional, Set, Tuple, Union

from . import wire
from .frames import Place, calling_place
from .hidden import around
from .imports import from_a_signal_handler
from .quiet import belongs_to, own, quietly
from .ring import begun, pulse, record, started

Target = Union[str, bytes, int]

# Module -> its functions that save, and the name of the parameter that says where.
_SAVERS = {
    "torch": (("save", "f"),),
    "safetensors.torch": (("save_file", "filename"),),
    "lightning.fabric.utilities.cloud_io": (("_atomic_save", "filepath"),),
    "lightning_fabric.utilities.cloud_io": (("_atomic_save", "filepath"),),
    "torch.distributed.checkpoint.state_dict_saver": (("save", ""), ("async_save", "")),
}

PLACES = 64

_namespace_of: Callable[[ModuleType], Dict[str, Any]] = vars(ModuleType)["__dict__"].__get__
"""Past the module's own class: any attribute of a lazy module, `__dict__` too, may load it."""

places: List[Tuple[str, int]] = []
"""The user's lines that save, in the order in which records point at them, counted from 1."""

_saving: Set[int] = set()
"""The threads that are in a save: a saver may call another."""


def wrap_savers(module: ModuleType) -> None:
    """Wraps the module's savers, and the copies of them that other modules have imported already."""
    for attribute, parameter in _SAVERS[module.__name__]:
        original = getattr(module, attribute, None)
        if original is None:
            continue
        wrapper = _timed(original, parameter)
        for holder in list(sys.modules.values()):
            if issubclass(type(holder), ModuleType):
                namespace = _namespace_of(holder)
                for alias in (attribute, "safe_" + attribute):
                    if namespace.get(alias) is original:
                        namespace[alias] = wrapper


def _timed(original: Callable[..., Any], parameter: str) -> Callable[..., Any]:
    """`parameter` says where it saves; empty where that is no file."""

    def enter(target: Any) -> Optional[Tuple[int, int, Optional[Target]]]:
        start_ns = started()
        if not pulse.awake:
            return None
        thread = get_ident()
        file = quietly(_file_of, target) if parameter else None
        if thread in _saving or (parameter and file is None):
            return None
        index = quietly(_index, quietly(calling_place)) or 0
        begun(wire.SAVE, start_ns, index)
        _saving.add(thread)
        return start_ns, index, file

    def leave(token: Optional[Tuple[int, int, Any]], target: Any, result: Any, raised: bool) -> None:
        if token is not None:
            _saving.discard(get_ident())
            start_ns, index, file = token
            size = quietly(_size, file)
            flags = wire.RAISED if raised else 0
            record(wire.SAVE, start_ns, index, flags, a=-1 if size is None else size)

    return around(original, enter, leave, parameter)


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


def _file_of(target: Any) -> Optional[Target]:
    """The path or descriptor behind a target, None where there is no file or only code of the program's knows it.

    `fileno()` of a spooled temporary file moves it to the disk, `__fspath__` of a class of the program's may do
    anything: only Python's own types are asked.
    """
    kind = type(target)
    if kind is str or kind is bytes:
        return target  # type: ignore[no-any-return]
    if belongs_to(kind, "pathlib"):
        return str(target)
    if kind is getattr(sys.modules.get("tempfile"), "_TemporaryFileWrapper", None):
        target = own(target, "file")
        kind = type(target)
    if kind in (_io.BufferedWriter, _io.BufferedRandom):
        target = target.raw
        kind = type(target)
    return target.fileno() if kind is _io.FileIO else None


def _size(target: Optional[Target]) -> Optional[int]:
    if target is None:
        return None
    try:
        return posix.fstat(target).st_size if type(target) is int else posix.stat(target).st_size
    except OSError as error:
        if from_a_signal_handler(error):
            raise
        return None


PATCHES = dict.fromkeys(_SAVERS, (wrap_savers,))
