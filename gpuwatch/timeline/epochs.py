"""What the starts of epochs cost a trainer, over the whole session."""

from __future__ import annotations

from collections import deque
from statistics import median

from gpuwatch.timeline.windows import EpochTotals

_USUAL_KEPT = 512
_FIRSTS_KEPT = 256


class EpochStarts:
    """Adds up the waits between two epochs and for the first batches of each, against the usual wait.

    Ending workers that do not persist took 28 ms of epochs of 360 ms, a third of what the start of the next took.

    The session's first epoch does not count: its workers have to be started whatever the settings.
    """

    __slots__ = ("_count", "_edge_seconds", "_firsts", "_head_batches", "_head_seconds", "_is_first", "_seen", "_usual")

    def __init__(self) -> None:
        self._seen = False
        self._is_first = False
        self._count = 0
        self._edge_seconds = 0.0  # since the last batch
        self._head_batches = 0
        self._head_seconds = 0.0
        self._firsts: deque[float] = deque(maxlen=_FIRSTS_KEPT)
        self._usual: deque[float] = deque(maxlen=_USUAL_KEPT)

    def edge(self, seconds: float) -> None:
        """Takes the end of an epoch or the making of an iterator: no batch comes of it."""
        if self._seen:
            self._edge_seconds += seconds
            self._head_seconds += seconds

    def batch(self, position: int, wait_seconds: float, head: int) -> None:
        """Takes one training batch's wait; `head` is how many batches belong to the start of an epoch."""
        if position == 0:
            self._is_first = not self._seen
            if not self._is_first:
                self._count += 1
                self._firsts.append(self._edge_seconds + wait_seconds)
        self._seen = True
        self._edge_seconds = 0.0
        if position >= head:
            self._usual.append(wait_seconds)
        elif not self._is_first:
            self._head_batches += 1
            self._head_seconds += wait_seconds

    def totals(self, wall_seconds: float, batches_per_epoch: int | None) -> EpochTotals | None:
        """The cost so far; None before the second epoch, or where every batch is a first one."""
        if not self._count or not self._usual or wall_seconds <= 0:
            return None
        usual = median(self._usual)
        excess = max(0.0, self._head_seconds - self._head_batches * usual)
        return EpochTotals(
            count=self._count,
            excess_seconds=excess,
            share=min(1.0, excess / wall_seconds),
            first_wait_seconds=median(self._firsts),
            usual_wait_seconds=usual,
            batches_per_epoch=batches_per_epoch,
        )
