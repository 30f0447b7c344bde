"""What time it is, and how to wait for something to happen: on this machine, in a simulation, in a replay."""

from __future__ import annotations

import math
import os
import select
import threading
import time
from collections.abc import Callable, Collection
from typing import Protocol


class Waker:
    """A pipe to oneself. What is written to it while it is full says nothing new and is dropped."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._is_open = True

    def fileno(self) -> int:
        """The file to wait for."""
        return self._read

    def wake(self) -> None:
        """Ends the wait that is on, or the next one."""
        if not self._is_open:
            return
        try:
            os.write(self._write, b"!")
        except BlockingIOError:
            return

    def drain(self) -> None:
        """Takes note: the next wait sleeps again."""
        try:
            os.read(self._read, 4096)
        except BlockingIOError:
            return

    def close(self) -> None:
        """Gives the pipe back. Idempotent."""
        if self._is_open:
            self._is_open = False
            os.close(self._read)
            os.close(self._write)


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
            raise RuntimeError("nothing is due: waiting on a virtual clock would last forever")
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


_MOST_LAG_SECONDS = 0.5  # what a slow machine makes up for; beyond it the replay is slower instead


class ReplayClock:
    """Recorded time, which moves only from one moment that was waited for to the next.

    So the same recording gives the same evaluations at the same recorded moments, however late this machine wakes up,
    and whatever the speed.

    Args:
        start_ns: the recorded moment to begin with.
        paced_from_ns: up to here it jumps.
        wall_time: of a recorded moment.
        speed: recorded seconds per second.
        monotonic: seconds of this machine.
    """

    def __init__(
        self,
        start_ns: int,
        paced_from_ns: int,
        wall_time: Callable[[int], float],
        speed: float = 1.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now_ns = start_ns
        self._paced_from_ns = paced_from_ns
        self._wall_time = wall_time
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._waker = Waker()
        self._speed = speed
        self._is_held = False
        self._anchor = self._here()

    @property
    def speed(self) -> float:
        """Recorded seconds per second, whether it is held or not."""
        return self._speed

    def now_ns(self) -> int:
        """The recorded moment reached last."""
        return self._now_ns

    def wall_time(self) -> float:
        """What the clock on the wall showed then."""
        return self._wall_time(self._now_ns)

    def run(self, speed: float) -> None:
        """Changes the speed; from any thread."""
        with self._lock:
            self._speed = speed
            self._anchor = self._here()
        self._waker.wake()

    def hold(self, held: bool) -> None:
        """Stops time, or lets it go on; from any thread."""
        with self._lock:
            self._is_held = held
            self._anchor = self._here()
        self._waker.wake()

    def interrupt(self) -> None:
        """Ends the wait that is on; from any thread."""
        self._waker.wake()

    def close(self) -> None:
        """Gives the pipe back."""
        self._waker.close()

    def wait(self, files: Collection[int], until_ns: int | None) -> frozenset[int]:
        """Sleeps until `until_ns` has come by recorded time, or something is to be read or changes."""
        if until_ns is not None and until_ns <= self._paced_from_ns:
            self._now_ns = max(self._now_ns, until_ns)
            return frozenset()
        if until_ns is not None and not self._is_held and self._seconds_to(until_ns) <= 0:
            self._now_ns = max(self._now_ns, until_ns)
            return frozenset()
        poller = select.poll()
        for file in (*files, self._waker.fileno()):
            poller.register(file, select.POLLIN)
        endless = until_ns is None or self._is_held
        ready = {file for file, _ in poller.poll(None if endless else math.ceil(self._seconds_to(until_ns or 0) * 1e3))}
        if self._waker.fileno() in ready:
            self._waker.drain()
        elif until_ns is not None and not ready:
            self._now_ns = max(self._now_ns, until_ns)
        return frozenset(ready - {self._waker.fileno()})

    def _here(self) -> tuple[float, int]:
        """This machine's time, and the recorded time that belongs to it."""
        return self._monotonic(), max(self._now_ns, self._paced_from_ns)

    def _seconds_to(self, until_ns: int) -> float:
        """Seconds of this machine until a recorded moment; a debt that is too large is let off."""
        with self._lock:
            since, from_ns = self._anchor
            seconds = since + (until_ns - from_ns) / 1e9 / self._speed - self._monotonic()
            if seconds < -_MOST_LAG_SECONDS:
                self._anchor = (self._monotonic(), until_ns)
            return seconds
