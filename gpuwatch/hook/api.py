"""What `gpuwatch.watch`, `step`, `phase` and `loader` do inside the training process."""

from __future__ import annotations

import sys
from _thread import get_ident
from time import monotonic_ns
from types import TracebackType
from typing import Any, Iterable, Iterator, Optional, Tuple, Type

from . import imports, loaders, phases, waits
from .frames import calling_place
from .ring import append, pulse, record
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
    now_ns = monotonic_ns()
    known = samples if isinstance(samples, int) and 0 <= samples <= _MOST else -1
    append((USER_STEP, 0, 0, get_ident(), now_ns, now_ns, known, 0))
    if now_ns >= pulse.due_ns:
        pulse.flush(now_ns)


class Phase:
    """A stretch of the run with a name."""

    __slots__ = ("_index", "_start_ns")

    def __init__(self, name: str) -> None:
        watch_once()
        self._index = phases.index_of(name)
        self._start_ns = 0

    def __enter__(self) -> None:
        self._start_ns = monotonic_ns()

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        record(USER_PHASE, self._start_ns, self._index, RAISED if kind is not None else 0)


def loader(iterable: Iterable[Any]) -> Iterable[Any]:
    """The iterable with its waits recorded; a DataLoader comes back as it is, because its waits are."""
    watch_once()
    dataloader = sys.modules.get("torch.utils.data.dataloader")
    if dataloader is not None and isinstance(iterable, (dataloader.DataLoader, dataloader._BaseDataLoaderIter)):
        return iterable  # type: ignore[no-any-return]
    entry = loaders.new_entry(calling_place())
    entry.iterated = True
    entry.settings = {"dataset": type(iterable).__name__}
    if hasattr(iterable, "__next__"):
        return WatchedIterator(iterable, entry)
    return WatchedIterable(iterable, entry)


class _StandIn:
    """What is handed to the program in the place of an object of its own: length, truth and attributes are that one's.

    A copy, pickled or not, is one of that object alone: whoever gets it need not know of gpuwatch.
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

    def __reduce__(self) -> Tuple[Any, ...]:
        import copy

        return copy.copy, (self._gpuwatch_own,)


class WatchedIterable(_StandIn):
    """An iterable whose iterators record their waits."""

    __slots__ = ()

    def __iter__(self) -> Iterator[Any]:
        return WatchedIterator(self._gpuwatch_own, self._gpuwatch_record)


class WatchedIterator(_StandIn):
    """One pass over a watched iterable."""

    __slots__ = ()

    def __init__(self, iterable: Iterable[Any], entry: loaders.LoaderEntry) -> None:
        start_ns = monotonic_ns()
        iteration = waits.Iteration(entry)
        super().__init__(iter(iterable), iteration)
        record(ITER, start_ns, entry.number, a=iteration.number, b=0)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        iteration = self._gpuwatch_record
        flags = GRAD if _is_grad_enabled() else 0
        start_ns = monotonic_ns()
        try:
            batch = next(self._gpuwatch_own)
        except BaseException as error:
            flags |= STOPPED if isinstance(error, StopIteration) else RAISED
            append((NEXT, flags, iteration.loader, get_ident(), start_ns, monotonic_ns(), iteration.number, -1))
            raise
        end_ns = monotonic_ns()
        samples = iteration.measure(batch)
        append((NEXT, flags, iteration.loader, get_ident(), start_ns, end_ns, iteration.number, samples))
        if end_ns >= pulse.due_ns:
            pulse.flush(end_ns)
        return batch


_watched = False


def watch_once() -> None:
    """`watch()` for those who only call `step`, `phase` or `loader`."""
    global _watched
    if not _watched:
        _watched = True
        watch()


def _is_grad_enabled() -> bool:
    # Without torch there is no such mode; "on" keeps such a loop from being taken for an evaluation.
    torch = sys.modules.get("torch")
    return torch is None or bool(torch.is_grad_enabled())
