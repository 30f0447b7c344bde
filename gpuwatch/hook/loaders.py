"""DataLoaders: every `next` on their iterators, the start of their workers, their settings and their line.

`_BaseDataLoaderIter.__next__` sees plain, iterable, persistent, zipped, stateful, accelerate's and Lightning's loaders,
manual `next`, and iterators that were made before the hook. The iterator keeps its type, so `len(it)` works.
"""

from __future__ import annotations

import functools
import weakref
from time import monotonic_ns, thread_time_ns
from types import ModuleType
from typing import Any, Callable, Dict, List, Optional

from . import batches, workers
from .cuda import device
from .frames import Place, calling_place
from .hidden import hidden
from .ring import append, local, pulse
from .settings import batch_size, batches_per_epoch, read_iterator_settings, read_settings
from .wire import GRAD, ITER, NEXT, RAISED, STOPPED, WAIT_CPU

_CPU_SAMPLE_MASK = 7  # one `next` in eight: two thread_time_ns cost 1.2 us
LEARNING_BATCHES = 3
_KEPT = 32


class LoaderEntry:
    """One DataLoader that was built, or found in use."""

    __slots__ = ("inline", "iterated", "learned", "measure", "number", "place", "reference", "settings")

    def __init__(self, number: int, place: Optional[Place]) -> None:
        self.number = number
        self.place = place
        self.inline = False
        self.iterated = False
        self.learned = 0
        self.measure: batches.Measure = batches.unknown
        self.reference: Callable[[], Any] = lambda: None
        self.settings: Dict[str, Any] = {}


class Iteration:
    """One pass of an iterator: persistent workers keep the iterator and begin another pass."""

    __slots__ = ("begun", "count", "loader", "number", "reference")

    def __init__(self, loader: LoaderEntry, number: int) -> None:
        self.loader = loader
        self.number = number
        self.count = 0
        self.begun = False
        self.reference: Any = None


_entries: List[LoaderEntry] = []
_by_id: Dict[int, LoaderEntry] = {}
_iterations: Dict[int, Iteration] = {}
_last_number = 0
_last_iteration = 0
_tensor: Any = None


def wrap_iterators(torch: ModuleType) -> None:
    """Wraps the base of all iterators of DataLoaders."""
    global _tensor
    _tensor = torch.Tensor
    base = torch.utils.data.dataloader._BaseDataLoaderIter
    base.__init__ = _registering(base.__init__)
    base.__next__ = _timed(base.__next__, torch.is_grad_enabled)


def wrap_loader(torch: ModuleType) -> None:
    """Wraps DataLoader."""
    _wrap_loader(torch.utils.data.DataLoader)


def wrap_stateful_loader(module: ModuleType) -> None:
    """Wraps torchdata's loader, which calls none of its parent's methods."""
    _wrap_loader(module.StatefulDataLoader)


def _wrap_loader(kind: Any) -> None:
    kind.__init__ = _noted(kind.__init__)
    kind.__iter__ = _started(kind.__iter__)


def facts() -> List[Dict[str, Any]]:
    """The `loaders` list of docs/protocol.md: those that were iterated, the newest where there are many."""
    found = []
    for entry in [entry for entry in _entries if entry.iterated][-_KEPT:]:
        loader = entry.reference()
        if loader is not None:
            _note_settings(entry, loader)
        place = entry.place
        lines = {"file": place.file, "line": place.line, "function": place.function} if place else {}
        found.append({"loader": entry.number, **lines, **entry.settings})
    return found


def _note_settings(entry: LoaderEntry, loader: Any) -> None:
    try:
        entry.settings.update(read_settings(loader))
    except Exception:  # noqa: BLE001 - a property of the user's own loader may raise anything
        return
    if "batches_per_epoch" not in entry.settings:
        entry.settings["batches_per_epoch"] = batches_per_epoch(loader)


def new_entry(place: Optional[Place]) -> LoaderEntry:
    """An entry with a number of its own, for a DataLoader or for `gpuwatch.loader`."""
    global _last_number
    _last_number = min(_last_number + 1, 0xFFFF)
    entry = LoaderEntry(_last_number, place)
    _entries.append(entry)
    pulse.facts_changed = True
    return entry


def next_iteration_number() -> int:
    """Numbers are given once per process, whatever the loader."""
    global _last_iteration
    _last_iteration += 1
    return _last_iteration


def _noted(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def __init__(self: Any, *arguments: Any, **named: Any) -> None:  # noqa: N807 - it takes that method's place
        original(self, *arguments, **named)
        pulse.begin()
        _register(self, calling_place())

    return hidden(__init__)


def _register(loader: Any, place: Optional[Place]) -> LoaderEntry:
    entry = new_entry(place)
    identity = id(loader)
    if place is None or not place.direct:
        entry.place = _line_of_the_original(loader) or place
    # Written in C: a Python callback of a weak reference would swallow a Ctrl-C that arrives in it.
    entry.reference = weakref.ref(loader, functools.partial(_by_id.pop, identity))
    _by_id[identity] = entry
    entry.inline = getattr(loader, "num_workers", None) == 0
    _drop_forgotten()
    return entry


def _line_of_the_original(loader: Any) -> Optional[Place]:
    # accelerate builds a loader of its own around the user's dataset; the line to change is where the user built his.
    for entry in reversed(_entries):
        other = entry.reference()
        if other is None or entry.iterated or entry.place is None or not entry.place.direct:
            continue
        if other.dataset is loader.dataset:
            return entry.place
    return None


def _drop_forgotten() -> None:
    if len(_entries) > 4 * _KEPT:
        _entries[:] = [entry for entry in _entries if entry.reference() is not None][-4 * _KEPT :]


def _registering(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def __init__(self: Any, loader: Any, *arguments: Any, **named: Any) -> None:  # noqa: N807 - as above
        original(self, loader, *arguments, **named)
        entry = _by_id.get(id(loader)) or _register(loader, None)
        if not entry.iterated:
            _note_settings(entry, loader)  # `for batch in DataLoader(...)` keeps the iterator, not the loader
        _keep(self, entry)
        workers.starting = entry.number  # the subclass starts its workers next

    return hidden(__init__)


def _keep(iterator: Any, entry: LoaderEntry) -> Iteration:
    iteration = Iteration(entry, next_iteration_number())
    identity = id(iterator)
    iteration.reference = weakref.ref(iterator, functools.partial(_iterations.pop, identity))
    _iterations[identity] = iteration
    if not entry.iterated:
        entry.iterated = pulse.facts_changed = True
    return iteration


def _adopt(iterator: Any) -> Iteration:
    # An iterator from before the hook: it does not know its loader, but shares the sampler with it.
    pulse.begin()
    for entry in _by_id.values():
        loader = entry.reference()
        if loader is not None and getattr(loader, "_index_sampler", loader) is iterator._index_sampler:
            return _keep(iterator, entry)
    entry = new_entry(None)
    entry.settings = read_iterator_settings(iterator)
    entry.inline = entry.settings["num_workers"] == 0
    return _keep(iterator, entry)


def _started(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __iter__(self: Any) -> Any:  # noqa: N807 - it takes that method's place
        start_ns = monotonic_ns()
        iterator = original(self)
        end_ns = monotonic_ns()
        iteration = _iterations.get(id(iterator))
        if iteration is not None:
            if iteration.begun:
                iteration.number = next_iteration_number()
            iteration.begun = True
            entry = iteration.loader
            append((ITER, 0, entry.number, local.state.native, start_ns, end_ns, iteration.number, self.num_workers))
        return iterator

    return hidden(__iter__)


def _timed(original: Callable[[Any], Any], is_grad_enabled: Callable[[], bool]) -> Callable[[Any], Any]:
    @functools.wraps(original)
    def __next__(self: Any) -> Any:  # noqa: N807 - it takes that method's place
        iteration = _iterations.get(id(self)) or _adopt(self)
        entry = iteration.loader
        state = local.state
        flags = GRAD if is_grad_enabled() else 0
        cpu_ns = thread_time_ns() if entry.inline and not iteration.count & _CPU_SAMPLE_MASK else None
        iteration.count += 1
        gaps = device.gaps
        start_ns = monotonic_ns()
        pair = gaps.enter(start_ns, entry.number) if gaps is not None and state.trains else None
        try:
            batch = original(self)
        except BaseException as error:
            flags |= STOPPED if isinstance(error, StopIteration) else RAISED
            append((NEXT, flags, entry.number, state.native, start_ns, monotonic_ns(), iteration.number, -1))
            if pair is not None and gaps is not None:
                gaps.release(pair)
            raise
        if pair is not None and gaps is not None:
            gaps.leave(pair)
        end_ns = monotonic_ns()
        if cpu_ns is not None:
            cpu_ns = thread_time_ns() - cpu_ns
            append((WAIT_CPU, 0, entry.number, state.native, start_ns, end_ns, start_ns, cpu_ns))
        if entry.learned < LEARNING_BATCHES:
            learn(entry, batch)
        append((NEXT, flags, entry.number, state.native, start_ns, end_ns, iteration.number, entry.measure(batch)))
        if end_ns >= pulse.due_ns:
            pulse.flush(end_ns)
        return batch

    return hidden(__next__)


def learn(entry: LoaderEntry, batch: Any) -> None:
    """Looks at one of the first batches of a loader: what it weighs, and where its sample count can be read."""
    entry.learned += 1
    if entry.measure is not batches.unknown:
        return
    loader = entry.reference()
    try:
        full = batch_size(loader) if loader is not None else entry.settings.get("batch_size")
        entry.measure = batches.learn(batch, full, _tensor)
        size, shape = batches.describe(batch, _tensor)
    except Exception:  # noqa: BLE001 - it touches the user's objects inside the user's loop
        return
    entry.settings.update(batch_bytes=size, batch_shape=shape)
    pulse.facts_changed = True


PATCHES = {
    "torch": (wrap_iterators, wrap_loader),
    "torchdata.stateful_dataloader.stateful_dataloader": (wrap_stateful_loader,),
}
