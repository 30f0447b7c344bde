"""The time of a replay: jumps up to a moment, then passes as fast as one likes, and can be held."""

from __future__ import annotations

import math
import select
import threading
import time
from collections.abc import Callable, Collection

from gpuwatch.monitor.waker import Waker

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

    @property
    def is_held(self) -> bool:
        """Whether time stands still."""
        return self._is_held

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
