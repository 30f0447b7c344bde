"""Every `next` on a DataLoader's iterator, and the start of its workers.

`_BaseDataLoaderIter.__next__` sees plain, iterable, persistent, zipped, stateful, accelerate's and Lightning's loaders,
manual `next`, and iterators that were made before the hook. The iterator keeps its type, so `len(it)` works.
"""

from __future__ import annotations

import functools
import weakref
from _thread import get_ident
from time import monotonic_ns, thread_time_ns
from types import ModuleType
from typing import Any, Callable, Dict, Optional

from . import batches, loaders, workers
from .cuda import device
from .frames import raised_by_a_signal
from .hidden import hidden
from .loaders import LoaderEntry
from .quiet import quietly
from .ring import append, pulse
from .settings import batch_size, full_batches, read_iterator_settings
from .settling import training_threads
from .wire import GRAD, ITER, NEXT, RAISED, STOPPED, WAIT_CPU

_CPU_SAMPLE_PERIOD = 8  # two thread_time_ns cost 1.2 us
_LEARNING_BATCHES = 3
_NEVER = -1


class Iteration:
    """One pass of an iterator: persistent workers keep the iterator and begin another pass.

    `turn` counts down to a `next` that is metered: its CPU time, its CUDA events, the exact size of its batch. Where
    torch itself makes the batches, all but the last are full, so only the last is looked at: looking costs 2 us.
    """

    __slots__ = ("begun", "entry", "full", "left", "loader", "measure", "number", "reference", "turn")

    def __init__(self, entry: LoaderEntry, length: Optional[int] = None) -> None:
        self.entry = entry
        self.loader = entry.number
        self.measure = entry.measure or self._learn
        self.begun = False
        self.reference: Any = None
        self.begin(length)

    def begin(self, length: Optional[int]) -> None:
        """Begins a pass; `length` is its number of batches where all but the last are known to be full."""
        global _last_number
        self.full: Optional[int] = None
        _last_number += 1
        self.number = _last_number
        self.left = length - 1 if length is not None else None
        self.turn = 0 if self.entry.inline or device.gaps is not None or length is not None else _NEVER

    def schedule(self, period: int) -> None:
        """Sets when the `next` after this one is metered: after `period` others, and in any case the last of a pass."""
        if self.left is None:
            self.turn = period
            return
        others = max(self.left - 1, 0)
        self.turn = others if period < 0 else min(period, others)
        self.left -= self.turn + 1

    def _learn(self, batch: Any) -> int:
        """Looks at one of the first batches: what it weighs, and where its sample count can be read."""
        entry = self.entry
        entry.learned += 1
        loader = entry.reference()
        try:
            full = batch_size(loader) if loader is not None else entry.settings.get("batch_size")
            measure = batches.learn(batch, full, _tensor)
            size, shape = batches.describe(batch, _tensor)
            entry.note_shapes(batches.item_shapes(batch, _tensor))
        except Exception as error:  # it touches the user's objects inside the user's loop
            if raised_by_a_signal(error):
                raise
            measure, size, shape = batches.unknown, None, None
        if measure is not batches.unknown or entry.learned >= _LEARNING_BATCHES:
            entry.measure = self.measure = measure
        if "batch_bytes" not in entry.settings:
            entry.settings.update(batch_bytes=size, batch_shape=shape)
            pulse.facts_changed = True
        return measure(batch)

    def _look(self, batch: Any) -> int:
        """Looks at the shapes of one batch, then leaves the measure to what was learned."""
        self.measure = self.entry.measure or batches.unknown
        quietly(self._note_shapes, batch)  # it touches the user's objects inside the user's loop
        return self.measure(batch)

    def _note_shapes(self, batch: Any) -> None:
        self.entry.note_shapes(batches.item_shapes(batch, _tensor))

    def look_again(self) -> None:
        """Has the shapes of the next batch that is measured looked at."""
        if self.entry.measure is not None:
            self.measure = self._look


_iterations: Dict[int, Iteration] = {}
_last_number = 0
_metering = False
_tensor: Any = None


def wrap_iterators(torch: ModuleType) -> None:
    """Wraps the base of all iterators of DataLoaders, and what makes them."""
    global _tensor
    _tensor = torch.Tensor
    base = torch.utils.data.dataloader._BaseDataLoaderIter
    base.__init__ = _registering(base.__init__)
    base.__next__ = _timed(base.__next__, torch.is_grad_enabled)
    torch.utils.data.DataLoader.__iter__ = _started(torch.utils.data.DataLoader.__iter__)


def wrap_stateful_loader(module: ModuleType) -> None:
    """Wraps what makes the iterators of torchdata's loader."""
    module.StatefulDataLoader.__iter__ = _started(module.StatefulDataLoader.__iter__)


def look_again() -> None:
    """Has one more batch of each loader looked at, so that it is known whether their shapes vary: 10 us each time."""
    for iteration in list(_iterations.values()):
        iteration.look_again()


def meter_all() -> None:
    """From now on every `next` gets a pair of CUDA events, if there are any."""
    global _metering
    if device.gaps is not None and not _metering:
        for iteration in list(_iterations.values()):
            iteration.left, iteration.full, iteration.turn = None, None, 0
    _metering = device.gaps is not None


def _registering(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def __init__(self: Any, loader: Any, *arguments: Any, **named: Any) -> None:  # noqa: N807 - as above
        original(self, loader, *arguments, **named)
        quietly(_register, self, loader)

    return hidden(__init__)


def _register(iterator: Any, loader: Any) -> None:
    entry = loaders.entry_of(loader)
    _keep(iterator, entry, full_batches(loader, iterator))
    workers.starting = entry.number  # the subclass starts its workers next


def _keep(iterator: Any, entry: LoaderEntry, length: Optional[int] = None) -> Iteration:
    iteration = Iteration(entry, length)
    identity = id(iterator)
    iteration.reference = weakref.ref(iterator, functools.partial(_iterations.pop, identity))
    _iterations[identity] = iteration
    if not entry.iterated:
        entry.iterated = pulse.facts_changed = True
        quietly(entry.refresh)  # a loader made anew for every epoch may be gone when the facts are asked for
    return iteration


def _adopt(iterator: Any) -> Iteration:
    # An iterator from before the hook: it does not know its loader, but shares the sampler with it.
    pulse.begin()
    entry = loaders.entry_with_sampler(iterator._index_sampler)
    if entry is None:
        entry = loaders.new_entry(None)
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
                iteration.begin(quietly(full_batches, self, iterator))
            iteration.begun = True
            count = self.num_workers if isinstance(self.num_workers, int) else 0
            append((ITER, 0, iteration.loader, get_ident(), start_ns, end_ns, iteration.number, count))
        return iterator

    return hidden(__iter__)


def _timed(original: Callable[[Any], Any], is_grad_enabled: Callable[[], bool]) -> Callable[[Any], Any]:
    @functools.wraps(original)
    def __next__(self: Any) -> Any:  # noqa: N807 - it takes that method's place
        iteration = _iterations.get(id(self))
        if iteration is None:
            iteration = quietly(_adopt, self) or Iteration(loaders.new_entry(None))
        turn = iteration.turn
        if not turn:
            return metered_next(iteration, self)
        if turn > 0:
            iteration.turn = turn - 1
        start_ns = monotonic_ns()
        try:
            batch = original(self)
        except BaseException as error:
            note_end(iteration, error, start_ns)
            raise
        end_ns = monotonic_ns()
        flags = GRAD if is_grad_enabled() else 0
        samples = iteration.full or iteration.measure(batch)
        append((NEXT, flags, iteration.loader, get_ident(), start_ns, end_ns, iteration.number, samples))
        if end_ns >= pulse.due_ns:
            pulse.flush(end_ns)
        return batch

    def metered_next(iteration: Iteration, iterator: Any) -> Any:
        inline, gaps = iteration.entry.inline, device.gaps
        iteration.schedule(0 if gaps is not None else _CPU_SAMPLE_PERIOD - 1 if inline else _NEVER)
        trains = gaps is not None and get_ident() in training_threads
        cpu_ns = thread_time_ns() if inline else 0
        start_ns = monotonic_ns()
        pair = gaps.enter(start_ns, iteration.loader) if gaps is not None and trains else None
        try:
            batch = original(iterator)
        except BaseException as error:
            note_end(iteration, error, start_ns)
            if gaps is not None and pair is not None:
                gaps.release(pair)
            raise
        if gaps is not None and pair is not None:
            gaps.leave(pair)
        end_ns = monotonic_ns()
        if inline:
            used_ns = thread_time_ns() - cpu_ns
            append((WAIT_CPU, 0, iteration.loader, get_ident(), start_ns, end_ns, start_ns, used_ns))
        flags, samples = GRAD if is_grad_enabled() else 0, iteration.measure(batch)
        if iteration.turn > 0 and iteration.left is not None and samples > 0:
            iteration.full = samples  # more follow, so this one was full, and so are those before the next metered one
        append((NEXT, flags, iteration.loader, get_ident(), start_ns, end_ns, iteration.number, samples))
        if end_ns >= pulse.due_ns:
            pulse.flush(end_ns)
        return batch

    def note_end(iteration: Iteration, error: BaseException, start_ns: int) -> None:
        flags = (STOPPED if isinstance(error, StopIteration) else RAISED) | (GRAD if is_grad_enabled() else 0)
        append((NEXT, flags, iteration.loader, get_ident(), start_ns, monotonic_ns(), iteration.number, -1))

    hidden(metered_next)
    return hidden(__next__)


PATCHES = {
    "torch": (wrap_iterators,),
    "torchdata.stateful_dataloader.stateful_dataloader": (wrap_stateful_loader,),
}
