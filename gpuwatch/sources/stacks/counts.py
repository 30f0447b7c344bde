"""Batches that one loop took since it was first seen, from the counter of each iterator it used."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, Protocol

from gpuwatch.reader.loaders import LoaderState

_MARGIN: Final = 1.5
_RATE_WINDOW_NS: Final = 20_000_000_000
_LENGTHS_KEPT: Final = 8
_ITERATORS_KEPT: Final = 4


class Counted(Protocol):
    """An iterator that counts: a loader's, as the reader gives it."""

    @property
    def iterator(self) -> int:
        """What identifies it."""

    @property
    def batches_yielded(self) -> int:
        """Its count so far."""

    @property
    def batches_per_epoch(self) -> int | None:
        """At which count it ends, where that is known."""


def first_round(state: LoaderState) -> int:
    """How many of an epoch's batches are the first of their worker, and so may wait for its start; none without any."""
    workers, length = state.num_workers or 0, state.batches_per_epoch
    return workers if length is None else min(workers, max(1, length // 2))


@dataclass(frozen=True, slots=True)
class _Left:
    """An iterator that was left for another: its count as seen, and with what was added for its last batches."""

    seen: int
    credited: int
    as_epoch: bool


class BatchCounter:
    """Adds up `_num_yielded` over iterators; it begins with the first look, not with the epoch.

    The last batches of an iterator pass between two looks. They are added where the length of an epoch is known and
    they fit into that time.
    """

    def __init__(self) -> None:
        self.batches = 0
        self.epochs = 0
        self.exact = True
        self._iterator: int | None = None
        self._left: dict[int, _Left] = {}
        self._yielded = 0
        self._seen_ns = 0
        self._first = (0, 0)  # when, and how many the first iterator had yielded by then
        self._rates: deque[tuple[int, int]] = deque()
        self._lengths: deque[int] = deque(maxlen=_LENGTHS_KEPT)
        self._waiting = False

    def see(self, state: Counted, now_ns: int) -> None:
        """Takes note of an iterator's counter."""
        self.exact = True
        yielded = state.batches_yielded
        if self._iterator is None:
            self._first = now_ns, yielded
        elif state.iterator == self._iterator and yielded >= self._yielded:
            self.batches += yielded - self._yielded
        elif (left := self._returned_to(state)) is not None:
            # Both iterators live and are read in turn.
            self._leave(self._iterator, self._yielded, as_epoch=False)
            self.batches += max(0, yielded - left.credited)
            self.epochs -= left.as_epoch
        else:
            before, seen = self._iterator, self._yielded
            self._finish(state.batches_per_epoch, now_ns)
            self._leave(before, seen, as_epoch=True)
            self.epochs += 1
            self.batches += yielded
        self._left.pop(state.iterator, None)
        self._iterator, self._yielded, self._seen_ns = state.iterator, yielded, now_ns
        self._rates.append((now_ns, self.batches))
        while now_ns - self._rates[0][0] > _RATE_WINDOW_NS:
            self._rates.popleft()

    def _returned_to(self, state: Counted) -> _Left | None:
        """What is known of an iterator that was read before; a new one at its address begins below its count."""
        left = self._left.get(state.iterator)
        if left is None or state.iterator == self._iterator or state.batches_yielded < left.seen:
            return None
        return None if left.seen == state.batches_per_epoch else left

    def _leave(self, iterator: int, seen: int, *, as_epoch: bool) -> None:
        self._left[iterator] = _Left(seen, self._yielded, as_epoch)
        if len(self._left) > _ITERATORS_KEPT:
            del self._left[next(iter(self._left))]

    def see_wait(self, waits: bool) -> None:
        """Counts entries into next() where no counter can be read: short ones are missed."""
        self.exact = False
        if waits and not self._waiting:
            self.batches += 1
        self._waiting = waits

    def go_on_from(self, earlier: BatchCounter, batches_per_epoch: int | None) -> None:
        """Continues the count of the same loop over a loader that was rebuilt since."""
        when, yielded = self._first
        if earlier._iterator is not None and self._iterator is not None:
            earlier._finish(batches_per_epoch, when)
            self.batches += yielded
            self.epochs += 1
        self.batches += earlier.batches
        self.epochs += earlier.epochs
        self._rates.clear()
        self._lengths.extend(earlier._lengths)

    def _finish(self, batches_per_epoch: int | None, now_ns: int) -> None:
        """Adds what the old iterator still gave after it was last looked at."""
        length = batches_per_epoch or max(self._lengths, default=0)
        missing = length - self._yielded
        if 0 < missing <= self._possible(now_ns - self._seen_ns):
            self.batches += missing
            self._yielded = length
        self._lengths.append(self._yielded)

    def _possible(self, nanoseconds: int) -> float:
        """How many batches a stretch of this loop may have held, by its rate of late."""
        if len(self._rates) < 2 or self._rates[-1][0] == self._rates[0][0]:
            return 1.0
        (start_ns, start), (end_ns, end) = self._rates[0], self._rates[-1]
        return _MARGIN * nanoseconds * (end - start) / (end_ns - start_ns) + 1.0
