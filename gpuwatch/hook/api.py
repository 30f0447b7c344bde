"""What `gpuwatch.watch`, `step`, `phase` and `loader` do inside the training process."""

from __future__ import annotations

import sys
from operator import getitem
from time import monotonic_ns
from types import TracebackType
from typing import Any, Iterable, Iterator, Optional, Tuple, Type

from . import imports, loaders, pauses, waits
from .hidden import leave_traceback
from .quiet import calling_place, defines, inherits, own, type_name
from .ring import append, begun, native_id, pulse, record, started
from .session import session
from .wire import GRAD, ITER, NEXT, RAISED, STOPPED, USER_PHASE, USER_STEP

_MOST = (1 << 63) - 1  # a record's fields have 64 bits; one that cannot be encoded would end the hook


def watch() -> None:
    """Hooks this process: what is imported now and what will be. Idempotent."""
    imports.arm()
    session.begin()


def step(samples: Optional[int] = None) -> None:
    """Marks the end of a training step."""
    watch_once()
    now_ns = started()
    if pulse.awake:
        known: Any = samples if type(samples) in (int, bool) and 0 <= samples <= _MOST else -1  # type: ignore[operator]
        append((USER_STEP, 0, 0, native_id(), now_ns, now_ns, known, 0))
        if now_ns >= pulse.due_ns:
            pulse.flush(now_ns)


class Phase:
    """A stretch of the run with a name."""

    __slots__ = ("_index", "_start_ns")

    def __init__(self, name: str) -> None:
        watch_once()
        self._index = pauses.phase_index(name)
        self._start_ns = 0

    def __enter__(self) -> None:
        self._start_ns = started()
        if pauses.phase_names[self._index] in pauses.PAUSING_PHASES:
            begun(USER_PHASE, self._start_ns, self._index)

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        record(USER_PHASE, self._start_ns, self._index, RAISED if kind is not None else 0)


def loader(iterable: Iterable[Any]) -> Iterable[Any]:
    """The iterable with its waits recorded; a DataLoader comes back as it is, because its waits are."""
    watch_once()
    kind = type(iterable)
    dataloader = sys.modules.get("torch.utils.data.dataloader")
    torchs = [own(dataloader, name) for name in ("DataLoader", "_BaseDataLoaderIter")]
    if any(inherits(kind, each) for each in torchs if each is not None):
        return iterable
    entry = loaders.new_entry(calling_place())
    entry.iterated = True
    entry.settings = {"dataset": type_name(iterable)}
    if defines(kind, "__next__"):
        return WatchedIterator(iterable, entry)
    return WatchedIterable(iterable, entry)


class _StandIn:
    """What is handed to the program in the place of an object of its own: length, truth and attributes are that one's.

    A copy, pickled or not, is one of that object alone: its receiver need not have gpuwatch.
    """

    __slots__ = ("__weakref__", "_gpuwatch_own", "_gpuwatch_record")

    def __init__(self, own: Any, record: Any) -> None:
        object.__setattr__(self, "_gpuwatch_own", own)
        object.__setattr__(self, "_gpuwatch_record", record)

    def __len__(self) -> int:
        return len(self._gpuwatch_own)

    def __bool__(self) -> bool:
        return bool(self._gpuwatch_own)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._gpuwatch_own, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._gpuwatch_own, name, value)

    def __copy__(self) -> Any:
        import copy

        return copy.copy(self._gpuwatch_own)

    def __reduce__(self) -> Tuple[Any, ...]:
        return getitem, ((self._gpuwatch_own,), 0)  # what gives back its argument, in every Python


class WatchedIterable(_StandIn):
    """An iterable whose iterators record their waits."""

    __slots__ = ()

    def __iter__(self) -> Iterator[Any]:
        return WatchedIterator(self._gpuwatch_own, self._gpuwatch_record)


class WatchedIterator(_StandIn):
    """One pass over a watched iterable."""

    __slots__ = ()

    def __init__(self, iterable: Iterable[Any], entry: loaders.LoaderEntry) -> None:
        start_ns = started()
        iteration = waits.Iteration(entry)
        super().__init__(iter(iterable), iteration)
        record(ITER, start_ns, entry.number, a=iteration.number, b=0)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        start_ns = started()
        try:
            batch = next(self._gpuwatch_own)
        except BaseException as error:
            leave_traceback(error)
            if pulse.awake:
                flags = STOPPED if issubclass(type(error), StopIteration) else RAISED
                self._gpuwatch_note(flags, start_ns, monotonic_ns(), -1)
            raise
        if pulse.awake:
            end_ns = monotonic_ns()
            self._gpuwatch_note(0, start_ns, end_ns, self._gpuwatch_record.measure(batch))
            if end_ns >= pulse.due_ns:
                pulse.flush(end_ns)
        return batch

    def _gpuwatch_note(self, flags: int, start_ns: int, end_ns: int, samples: int) -> None:
        iteration = self._gpuwatch_record
        flags |= GRAD if _is_grad_enabled() else 0
        append((NEXT, flags, iteration.loader, native_id(), start_ns, end_ns, iteration.number, samples))


_watched = False


def watch_once() -> None:
    """`watch()` for those who only call `step`, `phase` or `loader`."""
    global _watched
    if not _watched:
        _watched = True
        watch()


def _is_grad_enabled() -> bool:
    # Without torch, and while another thread still imports it, there is no such mode; "on" keeps such a loop from being
    # taken for an evaluation.
    is_enabled = getattr(sys.modules.get("torch"), "is_grad_enabled", None)
    return is_enabled is None or bool(is_enabled())
