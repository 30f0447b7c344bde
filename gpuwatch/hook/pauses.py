"""What interrupts a training: checkpoints, compilations, garbage collections, and the program's own phases.

Checkpoints are torch.save to a real file, safetensors, Lightning's atomic save, and distributed checkpoints. Pickling a
tensor, for a queue between processes for instance, calls torch.save too, with a buffer in memory.

torch.compile is seen where Dynamo runs the callbacks around it: callbacks of our own would be lost at the first
`torch._dynamo.reset()`, which clears them.

Collections are timed without running a line of Python inside the collector. A Python function in `gc.callbacks`
swallows signals: a Ctrl-C that arrives during the collection raises inside the callback, and CPython prints and drops
it (reproduced on 3.11). So the callback is put together from C functions. It takes the two time stamps of a collection
and nothing else; the generation comes from `gc.get_stats()`.
"""

from __future__ import annotations

import _io
import gc
import posix
import sys
from _thread import get_ident
from collections import deque
from functools import partial
from time import monotonic_ns
from types import ModuleType
from typing import Any, Callable, Deque, Dict, Iterator, List, Optional, Set, Tuple, Union

from . import wire
from .hidden import around
from .imports import from_a_signal_handler
from .quiet import Place, belongs_to, calling_place, own, quietly, type_name
from .ring import begun, emit, pulse, record, started

SaveTarget = Union[str, bytes, int]

# Module -> its functions that save, and the name of the parameter that says where.
_SAVERS = {
    "torch": (("save", "f"),),
    "safetensors.torch": (("save_file", "filename"),),
    "lightning.fabric.utilities.cloud_io": (("_atomic_save", "filepath"),),
    "lightning_fabric.utilities.cloud_io": (("_atomic_save", "filepath"),),
    "torch.distributed.checkpoint.state_dict_saver": (("save", ""), ("async_save", "")),
}

MAX_SAVE_PLACES = 64

_namespace_of: Callable[[ModuleType], Dict[str, Any]] = vars(ModuleType)["__dict__"].__get__
"""Past the module's own class: any attribute of a lazy module, `__dict__` too, may load it."""

save_places: List[Tuple[str, int]] = []
"""The user's lines that save, in the order in which records point at them, counted from 1."""

_saving: Set[int] = set()
"""The threads that are in a save: a saver may call another."""


def wrap_savers(module: ModuleType) -> None:
    """Wraps the module's savers, and the copies of them that other modules have imported already."""
    for attribute, parameter in _SAVERS[module.__name__]:
        original = getattr(module, attribute, None)
        if original is None:
            continue
        wrapper = _timed_saver(original, parameter)
        for holder in list(sys.modules.values()):
            if issubclass(type(holder), ModuleType):
                namespace = _namespace_of(holder)
                for alias in (attribute, "safe_" + attribute):
                    if namespace.get(alias) is original:
                        namespace[alias] = wrapper


def _timed_saver(original: Callable[..., Any], parameter: str) -> Callable[..., Any]:
    """`parameter` says where it saves; empty where that is no file."""

    def enter(target: Any) -> Optional[Tuple[int, int, Optional[SaveTarget]]]:
        start_ns = started()
        if not pulse.awake:
            return None
        thread = get_ident()
        file = quietly(_file_of, target) if parameter else None
        if thread in _saving or (parameter and file is None):
            return None
        index = quietly(_save_index, quietly(calling_place)) or 0
        begun(wire.SAVE, start_ns, index)
        _saving.add(thread)
        return start_ns, index, file

    def leave(token: Optional[Tuple[int, int, Any]], target: Any, result: Any, raised: bool) -> None:
        if token is not None:
            _saving.discard(get_ident())
            start_ns, index, file = token
            size = quietly(_file_bytes, file)
            flags = wire.RAISED if raised else 0
            record(wire.SAVE, start_ns, index, flags, a=-1 if size is None else size)

    return around(original, enter, leave, parameter)


def _save_index(place: Optional[Place]) -> int:
    if place is None:
        return 0
    line = (place.file, place.line)
    if line not in save_places:
        if len(save_places) >= MAX_SAVE_PLACES:
            return 0
        save_places.append(line)
        pulse.facts_changed = True
    return save_places.index(line) + 1


def _file_of(target: Any) -> Optional[SaveTarget]:
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


def _file_bytes(target: Optional[SaveTarget]) -> Optional[int]:
    if target is None:
        return None
    try:
        return posix.fstat(target).st_size if type(target) is int else posix.stat(target).st_size
    except OSError as error:
        if from_a_signal_handler(error):
            raise
        return None


_LONGEST_REASON = 400
_REPORTED_AT_ONCE = 16  # compilations after which facts are sent again without waiting for their turn

compilations = 0
_compile_started_ns = 0


def wrap_callbacks(module: ModuleType) -> None:
    """Wraps the two methods that run the callbacks: once as the first compilation begins, once as the last ends."""
    kind = module.CompilationCallbackHandler
    kind.run_start_callbacks = _before(kind.run_start_callbacks, _begin_compile)
    kind.run_end_callbacks = _before(kind.run_end_callbacks, _end_compile)


def _before(original: Callable[..., Any], note: Callable[[], None]) -> Callable[..., Any]:
    return around(original, lambda handler: note(), lambda token, handler, result, raised: None, "self")


def _begin_compile() -> None:
    global _compile_started_ns
    _compile_started_ns = monotonic_ns()
    begun(wire.COMPILE, _compile_started_ns)


def _end_compile() -> None:
    global compilations
    compilations += 1
    record(wire.COMPILE, _compile_started_ns)
    if compilations <= _REPORTED_AT_ONCE:
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


SHORTEST_GC_NS = 100_000

# Each call of `_gc_callback(phase, info)` asks `max` for the keys of its two arguments; each key is
# `next(_stamper)`, which appends the time. So a collection leaves four stamps: two as it starts, two as it ends.
_stamps: Deque[int] = deque(maxlen=4 * 1024)
_stamper: Iterator[Tuple[None]] = zip(map(_stamps.append, iter(monotonic_ns, -1)))
_gc_callback = partial(max, key=partial(next, _stamper))
_gc_counted: List[Tuple[int, int]] = []


def start_gc_timing() -> None:
    """Begins to time collections. Idempotent."""
    if _gc_callback not in gc.callbacks:
        gc.callbacks.append(_gc_callback)
    _gc_counted[:] = _gc_statistics()


def stop_gc_timing() -> None:
    """Leaves the collector alone: while nothing is recorded, and in the child of a fork."""
    if _gc_callback in gc.callbacks:
        gc.callbacks.remove(_gc_callback)
    _stamps.clear()


def _forget_gc_pauses() -> None:
    """What happened before is not known."""
    _stamps.clear()
    _gc_counted[:] = _gc_statistics()


def drain_gc_pauses() -> bool:
    """Records the collections since the last call that took 0.1 ms or more; whether there were any."""
    if len(_stamps) < 4:
        return False
    if len(_stamps) == _stamps.maxlen:  # too long since the last look: what is left has lost its beginning
        _forget_gc_pauses()
        return False
    stamps = [_stamps.popleft() for _ in range(len(_stamps) // 4 * 4)]
    spans = [(stamps[at], stamps[at + 3]) for at in range(0, len(stamps), 4)]
    now = _gc_statistics()
    runs = [count - before for (count, _), (before, _) in zip(now, _gc_counted)]  # noqa: B905 - Python 3.8
    found = [total - before for (_, total), (_, before) in zip(now, _gc_counted)]  # noqa: B905
    _gc_counted[:] = now
    # The spans do not say which generation they were; an older one holds the younger ones' work and takes longer.
    generations = [generation for generation, count in enumerate(runs) for _ in range(count)]
    recorded = False
    known = len(generations) == len(spans)
    ranked = sorted(spans, key=lambda span: span[1] - span[0])
    for rank, (start_ns, end_ns) in enumerate(ranked):
        if end_ns - start_ns < SHORTEST_GC_NS:
            continue
        generation = generations[rank] if known else -1
        collected = found[generation] if known and runs[generation] == 1 else -1
        emit((wire.GC, 0, 0, 0, start_ns, end_ns, generation, collected))
        recorded = True
    return recorded


def _gc_statistics() -> List[Tuple[int, int]]:
    return [(entry["collections"], entry["collected"]) for entry in gc.get_stats()]


MAX_PHASES = 64
OTHER_PHASES = "other"
PAUSING_PHASES = ("eval", "checkpoint")
"""The names that monitors take for a pause of the training: their beginning is reported, too."""
_LONGEST_PHASE = 80

phase_names: List[str] = []


def phase_index(name: Any) -> int:
    """The index of a name; names beyond the limit share one, because each is resent with the facts."""
    if type(name) is not str:
        # An object of the program's is known by its type: its `__str__` is the program's code.
        name = str(name) if type(name) in (int, float, bool) else type_name(name)
    name = name[:_LONGEST_PHASE]
    if name not in phase_names:
        if len(phase_names) >= MAX_PHASES - 1 and OTHER_PHASES not in phase_names:
            phase_names.append(OTHER_PHASES)
        if len(phase_names) >= MAX_PHASES:
            return phase_names.index(OTHER_PHASES)
        phase_names.append(name)
        pulse.facts_changed = True
    return phase_names.index(name)


PATCHES = {**dict.fromkeys(_SAVERS, (wrap_savers,)), "torch._dynamo.callback": (wrap_callbacks,)}
