"""What time it is, and how to wait for something to happen."""

from __future__ import annotations

import math
import select
import time
from collections.abc import Collection
from typing import Protocol

_NS_PER_MS = 1_000_000


class Clock(Protocol):
    """Monotonic time for everything that is measured, wall time for display only."""

    def now_ns(self) -> int:
        """CLOCK_MONOTONIC."""

    def wall_time(self) -> float:
        """Seconds since the epoch."""

    def wait(self, files: Collection[int], until_ns: int | None) -> frozenset[int]:
        """Sleeps until one of the files has something to read, or `until_ns`; returns the files that have."""


class SystemClock:
    """The clock of this machine."""

    def now_ns(self) -> int:
        """CLOCK_MONOTONIC."""
        return time.monotonic_ns()

    def wall_time(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def wait(self, files: Collection[int], until_ns: int | None) -> frozenset[int]:
        """Sleeps in poll(2).

        It is set up for each wait, 2 us for five files: a source may close a file and open another under the
        same number, which a selector that remembers would take for the old one.
        """
        poller = select.poll()
        for file in files:
            poller.register(file, select.POLLIN)
        timeout_ms = None if until_ns is None else max(0, math.ceil((until_ns - self.now_ns()) / _NS_PER_MS))
        return frozenset(file for file, _ in poller.poll(timeout_ms))


class VirtualClock:
    """A clock that jumps to the next moment at which something is due, so that an hour passes in seconds.

    Nothing comes in by itself in such a time: files are never ready.

    Args:
        start_ns: the monotonic time to begin with.
        start_wall_time: the wall time that belongs to it.
    """

    def __init__(self, start_ns: int = 0, start_wall_time: float = 0.0) -> None:
        self._start_ns = start_ns
        self._now_ns = start_ns
        self._start_wall_time = start_wall_time

    def now_ns(self) -> int:
        """The moment jumped to last."""
        return self._now_ns

    def wall_time(self) -> float:
        """Goes on as the monotonic time does."""
        return self._start_wall_time + (self._now_ns - self._start_ns) / 1e9

    def wait(self, files: Collection[int], until_ns: int | None) -> frozenset[int]:
        """Jumps; without an end, nothing would ever happen again."""
        if until_ns is None:
            raise RuntimeError("nothing is due: waiting on a virtual clock would last for ever")
        self._now_ns = max(self._now_ns, until_ns)
        return frozenset()


class CatchUpClock(SystemClock):
    """A clock that begins in the past, jumps from event to event up to the present, and goes on as the machine's.

    Args:
        behind_ns: how far back it begins.
    """

    def __init__(self, behind_ns: int) -> None:
        self._past_ns: int | None = time.monotonic_ns() - behind_ns if behind_ns > 0 else None

    def now_ns(self) -> int:
        """The moment jumped to last, then CLOCK_MONOTONIC."""
        return time.monotonic_ns() if self._past_ns is None else self._past_ns

    def wall_time(self) -> float:
        """Seconds since the epoch, as far back as the monotonic time is."""
        return time.time() - (time.monotonic_ns() - self.now_ns()) / 1e9

    def wait(self, files: Collection[int], until_ns: int | None) -> frozenset[int]:
        """Jumps while the moment to wait for is past; then sleeps."""
        if self._past_ns is not None and until_ns is not None and until_ns < time.monotonic_ns():
            self._past_ns = max(self._past_ns, until_ns)
            return frozenset()
        self._past_ns = None
        return super().wait(files, until_ns)
