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

from . import loaders
from .cuda import device
from .hidden import around, hidden, leave_traceback, replace_per_step
from .loaders import LoaderEntry, batch_size, full_batches, read_iterator_settings
from .quiet import own, quietly
from .ring import append, look, native_id, natives, pulse, started, trains
from .wire import GRAD, ITER, NEXT, RAISED, STOPPED, WAIT_CPU

_CPU_SAMPLE_PERIOD = 8  # two thread_time_ns cost 1.2 us
_LEARNING_BATCHES = 3
_NEVER = -1


class Iteration:
    """One pass of an iterator: persistent workers keep the iterator and begin another pass.

    `turn` counts down to a `next` that is metered: its CPU time, its CUDA events, the exact size of its batch. Where
    torch itself makes the batches, all but the last are full, so only the last is examined: that costs 2 us.
    """

    __slots__ = ("begun", "entry", "full", "left", "length", "loader", "measure", "number", "reference", "turn")

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
        _last_number += 1
        self.number = _last_number
        self.length = length
        self.resume(0)

    def resume(self, taken: Optional[int]) -> None:
        """Counts on after that many batches, None where it is not known how many there were."""
        self.full: Optional[int] = None
        self.left = self.length - taken - 1 if self.length is not None and taken is not None else None
        self.turn = 0 if self.entry.inline or device.gaps is not None or self.left is not None else _NEVER

    def schedule(self, period: int) -> None:
        """Sets when the `next` after this one is metered: after `period` others, and in any case the last of a pass."""
        if self.left is None:
            self.turn = period
            return
        others = max(self.left - 1, 0)
        self.turn = others if period < 0 else min(period, others)
        self.left -= self.turn + 1

    def _learn(self, batch: Any) -> int:
        """Examines one of the first batches: what it weighs, and where its sample count can be read."""
        entry = self.entry
        entry.learned += 1
        measure = quietly(self._examine, batch) or loaders.unknown_size
        if measure is not loaders.unknown_size or entry.learned >= _LEARNING_BATCHES:
            entry.measure = self.measure = measure
        if "batch_bytes" not in entry.settings:
            entry.settings.update(batch_bytes=None, batch_shape=None)
            pulse.facts_changed = True
        return measure(batch)

    def _examine(self, batch: Any) -> loaders.Measure:
        entry, loader = self.entry, self.entry.reference()
        full = batch_size(loader) if loader is not None else entry.settings.get("batch_size")
        with loaders.undispatched():
            measure = loaders.learn_measure(batch, full, _tensor)
            size, shape = loaders.describe_batch(batch, _tensor)
            entry.note_shapes(loaders.item_shapes(batch, _tensor))
        if "batch_bytes" not in entry.settings:
            entry.settings.update(batch_bytes=size, batch_shape=shape)
            pulse.facts_changed = True
        return measure

    def _look(self, batch: Any) -> int:
        """Notes the shapes of one batch, then leaves the measure to what was learned."""
        self.measure = self.entry.measure or loaders.unknown_size
        quietly(self._note_shapes, batch)
        return self.measure(batch)

    def _note_shapes(self, batch: Any) -> None:
        with loaders.undispatched():
            self.entry.note_shapes(loaders.item_shapes(batch, _tensor))

    def refresh(self) -> None:
        """Has the shapes of the next batch that is measured noted."""
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
    loaders.prepare(torch)
    base = torch.utils.data.dataloader._BaseDataLoaderIter
    base.__init__ = _registering(base.__init__)
    replace_per_step(base, "__next__", _timed(base.__next__, torch.is_grad_enabled))
    torch.utils.data.DataLoader.__iter__ = _started(torch.utils.data.DataLoader.__iter__)


def wrap_stateful_loader(module: ModuleType) -> None:
    """Wraps what makes the iterators of torchdata's loader."""
    module.StatefulDataLoader.__iter__ = _started(module.StatefulDataLoader.__iter__)


def wake() -> None:
    """The passes under way go on from where they are, having been left alone."""
    for iteration in list(_iterations.values()):
        iterator = iteration.reference()
        if iterator is not None:
            iteration.resume(_taken_from(iterator))


def refresh() -> None:
    """Has one more batch of each loader examined, so that it is known whether their shapes vary: 10 us each time."""
    for iteration in list(_iterations.values()):
        iteration.refresh()


def meter_all() -> None:
    """From now on every `next` gets a pair of CUDA events, if there are any."""
    global _metering
    if device.gaps is not None and not _metering:
        for iteration in list(_iterations.values()):
            iteration.left, iteration.full, iteration.turn = None, None, 0
    _metering = device.gaps is not None


def _registering(original: Callable[..., None]) -> Callable[..., None]:
    def enter(loader: Any) -> Any:
        return loader

    def leave(loader: Any, iterator: Any, result: Any, raised: bool) -> None:
        if not raised:
            quietly(_register, iterator, loader)

    return around(original, enter, leave, "loader", "self")


def _register(iterator: Any, loader: Any) -> None:
    entry = loaders.entry_of(loader)
    _keep(iterator, entry, full_batches(loader, iterator))
    loaders.start_workers_of(entry.number)  # the subclass starts its workers next


def _keep(iterator: Any, entry: LoaderEntry, length: Optional[int] = None) -> Iteration:
    iteration = Iteration(entry, length)
    identity = id(iterator)
    iteration.reference = weakref.ref(iterator, functools.partial(_iterations.pop, identity))
    _iterations[identity] = iteration
    if not entry.iterated:
        entry.iterated = pulse.facts_changed = True
        quietly(entry.refresh)  # a loader that is built again for every epoch may be gone when the facts are asked for
    return iteration


def _adopt(iterator: Any) -> Iteration:
    # An iterator from before the hook: it does not know its loader, but shares the sampler with it.
    pulse.begin()
    entry = loaders.entry_with_sampler(own(iterator, "_index_sampler"))
    if entry is None:
        entry = loaders.new_entry(None)
        entry.settings = read_iterator_settings(iterator)
        entry.inline = entry.settings["num_workers"] == 0
    return _keep(iterator, entry)


def _taken_from(iterator: Any) -> Optional[int]:
    """The batches that an iterator has given in this pass, by torch's own count."""
    taken = own(iterator, "_num_yielded")
    return taken if type(taken) is int else None


def _note_length(iterator: Any) -> None:
    """At the end of a pass: its length, of a dataset that cannot be asked without running the program's code."""
    iteration = _iterations.get(id(iterator))
    settings = iteration.entry.settings if iteration is not None else {}
    if settings.get("iterable") is False and settings.get("batches_per_epoch", 0) is None:
        taken = _taken_from(iterator)
        if taken:
            settings["batches_per_epoch"] = taken
            pulse.facts_changed = True


def _started(original: Callable[..., Any]) -> Callable[..., Any]:
    def enter(loader: Any) -> int:
        return started()

    def leave(start_ns: int, loader: Any, iterator: Any, raised: bool) -> None:
        quietly(loaders.start_workers_of, 0)
        if not raised:
            quietly(_begin_pass, start_ns, loader, iterator)

    return around(original, enter, leave, "self")


def _begin_pass(start_ns: int, loader: Any, iterator: Any) -> None:
    iteration = _iterations.get(id(iterator))
    if iteration is None:
        return
    if iteration.begun:
        iteration.begin(full_batches(loader, iterator))
    iteration.begun = True
    if pulse.awake:
        count = own(loader, "num_workers")
        count = count if type(count) is int else 0
        append((ITER, 0, iteration.loader, native_id(), start_ns, monotonic_ns(), iteration.number, count))


def _enter_metered(iteration: Iteration) -> Any:
    inline, gaps = iteration.entry.inline, device.gaps
    iteration.schedule(0 if gaps is not None else _CPU_SAMPLE_PERIOD - 1 if inline else _NEVER)
    measured = gaps is not None and trains()
    cpu_ns = thread_time_ns() if inline else 0
    start_ns = monotonic_ns()
    pair = gaps.enter(start_ns, iteration.loader) if gaps is not None and measured else None
    return pair, cpu_ns, start_ns


def _leave_metered(iteration: Iteration, batch: Any, start_ns: int, cpu_ns: int, pair: Any) -> Any:
    gaps = device.gaps
    if gaps is not None and pair is not None:
        gaps.leave(pair)
    end_ns = monotonic_ns()
    if iteration.entry.inline:
        used_ns = thread_time_ns() - cpu_ns
        append((WAIT_CPU, 0, iteration.loader, native_id(), start_ns, end_ns, start_ns, used_ns))
    samples = iteration.measure(batch)
    if iteration.turn > 0 and iteration.left is not None and samples > 0:
        iteration.full = samples  # more follow, so this one was full, and so are those before the next metered one
    return end_ns, samples


def _end_pass(iterator: Any, iteration: Iteration, error: BaseException, flags: int, start_ns: int, pair: Any) -> None:
    end_ns = monotonic_ns()
    stopped = issubclass(type(error), StopIteration)
    flags |= STOPPED if stopped else RAISED
    append((NEXT, flags, iteration.loader, native_id(), start_ns, end_ns, iteration.number, -1))
    gaps = device.gaps
    if gaps is not None and pair is not None:
        gaps.release(pair)
    if stopped:
        quietly(_note_length, iterator)


def _timed(original: Callable[[Any], Any], is_grad_enabled: Callable[[], bool]) -> Callable[[Any], Any]:
    iteration_of = _iterations.get

    def __next__(self: Any) -> Any:  # noqa: N807 - it takes that method's place
        start_ns = monotonic_ns()
        if not pulse.awake:
            if start_ns >= pulse.due_ns:
                look(start_ns)
                start_ns = monotonic_ns()
            if not pulse.awake:
                try:
                    return original(self)
                except BaseException as error:
                    leave_traceback(error)
                    if type(error) is StopIteration:
                        quietly(_note_length, self)
                    raise
        iteration = iteration_of(id(self))
        if iteration is None:
            iteration = quietly(_adopt, self) or Iteration(loaders.new_entry(None))
            start_ns = monotonic_ns()
        turn = iteration.turn
        pair, cpu_ns = None, 0
        if turn > 0:
            iteration.turn = turn - 1
        elif not turn:
            pair, cpu_ns, start_ns = _enter_metered(iteration)
        try:
            batch = original(self)
        except BaseException as error:
            leave_traceback(error)
            _end_pass(self, iteration, error, GRAD if is_grad_enabled() else 0, start_ns, pair)
            raise
        if turn:
            end_ns = monotonic_ns()
            samples = iteration.full or iteration.measure(batch)
        else:
            end_ns, samples = _leave_metered(iteration, batch, start_ns, cpu_ns, pair)
        flags = GRAD if is_grad_enabled() else 0
        identity, thread = pulse.flusher
        if identity != get_ident():
            thread = natives[get_ident()]
        append((NEXT, flags, iteration.loader, thread, start_ns, end_ns, iteration.number, samples))
        if end_ns >= pulse.due_ns:
            pulse.flush(end_ns)
        return batch

    hidden(_enter_metered)
    hidden(_leave_metered)
    hidden(_end_pass)
    return hidden(__next__, original)


PATCHES = {
    "torch": (wrap_iterators,),
    "torchdata.stateful_dataloader.stateful_dataloader": (wrap_stateful_loader,),
}
