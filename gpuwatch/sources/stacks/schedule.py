"""When to sample: jittered times that lock to no period of the training, and rates that keep within the CPU allowed."""

from __future__ import annotations

import heapq
import random
import time
from collections import deque
from collections.abc import Callable
from typing import Final

_WINDOW_NS: Final = 3_000_000_000
_RAISE_AFTER_NS: Final = 1_000_000_000
_LOWER_AFTER_NS: Final = 2_500_000_000
_MAIN_FLOOR: Final = 0.5
_WORKER_FLOOR: Final = 0.1
_ATTACHING_SHARE: Final = 0.25
_SAVED_NS: Final = 100_000_000
_USED_AT_MOST: Final = 0.9


class Jitter:
    """One sample in each interval, at a random place in it.

    That is as free of bias as wholly random times and has less variance. A missed interval is left out: there are no
    bursts to catch up, which would count one moment several times.
    """

    def __init__(self, rate_hz: float, now_ns: int, chance: random.Random) -> None:
        self.rate_hz = rate_hz
        self._chance = chance
        self._interval_start = now_ns
        self.due_ns = now_ns + int(chance.random() * self._interval)

    @property
    def _interval(self) -> float:
        return 1e9 / self.rate_hz

    def advance(self, now_ns: int) -> None:
        """Sets the next time, after a sample that was taken at `now_ns`."""
        interval = self._interval
        self._interval_start = max(self._interval_start + int(interval), now_ns - int(interval))
        self.due_ns = self._interval_start + int(self._chance.random() * interval)
        if self.due_ns <= now_ns:
            self._interval_start = now_ns
            self.due_ns = now_ns + int(self._chance.random() * interval)


Act = Callable[[int], "int | None"]
"""(now) -> when it wants to be called again, or None."""


class Agenda:
    """What is to be done when, by one thread."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._heap: list[tuple[int, int, Act]] = []
        self._order = 0

    def add(self, due_ns: int, act: Act) -> None:
        """Calls `act` once `due_ns` has come, and again whenever it asks for it."""
        self._order += 1
        heapq.heappush(self._heap, (due_ns, self._order, act))

    def now_ns(self) -> int:
        """The time now, which may be long after an act was called."""
        return self._clock()

    @property
    def due_ns(self) -> int | None:
        """When the next thing is due."""
        return self._heap[0][0] if self._heap else None

    def run_due(self) -> None:
        """Does all that is due, each at most once."""
        started = self._clock()
        again: list[tuple[int, Act]] = []
        while self._heap and self._heap[0][0] <= started:
            _, _, act = heapq.heappop(self._heap)
            due_ns = act(self._clock())
            if due_ns is not None:
                again.append((due_ns, act))
        for due_ns, act in again:
            self.add(due_ns, act)


class CpuMeter:
    """The sampling thread's own CPU clock, cut into laps that are charged to whom they served."""

    def __init__(self, cpu_clock: Callable[[], int] = time.thread_time_ns) -> None:
        self._cpu_clock = cpu_clock
        self._last: int | None = None

    @property
    def used_ns(self) -> int:
        """CPU time of its thread up to the last lap; from any thread."""
        return self._last or 0

    def lap(self) -> int:
        """CPU time since the last lap, the way to this sample included."""
        now = self._cpu_clock()
        spent = now - self._last if self._last is not None else 0
        self._last = now
        return max(0, spent)


class Ration:
    """CPU time for something that comes in bursts: a share of a core, of which some can be saved up.

    It may be overdrawn once, for what a thing costs is known only after it.
    """

    def __init__(self, share: float, most_saved_ns: int = _SAVED_NS) -> None:
        self._share = share
        self._most_saved_ns = most_saved_ns
        self._saved_ns = float(most_saved_ns)
        self.spent_ns = 0
        self._earned_ns: int | None = None

    def allows(self, now_ns: int) -> bool:
        """Whether there is any left."""
        if self._earned_ns is not None:
            self._saved_ns = min(self._most_saved_ns, self._saved_ns + self._share * (now_ns - self._earned_ns))
        self._earned_ns = now_ns
        return self._saved_ns > 0.0

    def spend(self, cpu_ns: int) -> None:
        """Takes what was used."""
        self._saved_ns -= cpu_ns
        self.spent_ns += cpu_ns


class CpuBudget:
    """Lowers the rates of all samples while they cost more of a core than allowed, and raises them again.

    `main_factor` and `worker_factor` are what the asked rates are multiplied with: down to 50 Hz and 10 Hz for rates
    of 100 and 20, both fall alike; then workers alone, down to 2 Hz; below, both fall further. `attaching` is what
    may be used for attaching to workers. `limit_share` may change with what there is to sample.
    """

    def __init__(self, limit_share: float) -> None:
        self.limit_share = limit_share
        self.attaching = Ration(_ATTACHING_SHARE * limit_share)
        self._marks: deque[tuple[int, int, int]] = deque()  # when, the CPU used by then, and that for attaching
        self._factor = 1.0

    @property
    def main_factor(self) -> float:
        """What the rates of training threads are multiplied with."""
        return max(_MAIN_FLOOR, self._factor) * min(1.0, self._factor / _WORKER_FLOOR)

    @property
    def worker_factor(self) -> float:
        """What the rates of workers are multiplied with."""
        return self._factor

    @property
    def share(self) -> float | None:
        """CPU time over wall time of the last seconds; None until there is any."""
        if len(self._marks) < 2:
            return None
        (start_ns, start_cpu, _), (end_ns, end_cpu, _) = self._marks[0], self._marks[-1]
        return (end_cpu - start_cpu) / (end_ns - start_ns) if end_ns > start_ns else None

    def note(self, now_ns: int, cpu_ns: int) -> None:
        """Takes the thread's own CPU clock, a few times a second."""
        self._marks.append((now_ns, cpu_ns, self.attaching.spent_ns))
        while now_ns - self._marks[0][0] > _WINDOW_NS:
            self._marks.popleft()
        share, seen_ns = self.share, now_ns - self._marks[0][0]
        if share is None or seen_ns < _RAISE_AFTER_NS:
            return
        # Attaching has a ration of its own: what exceeds it for a moment is not taken from the samples.
        attaching = (self.attaching.spent_ns - self._marks[0][2]) / seen_ns
        share, limit = share - attaching, self.limit_share - min(attaching, _ATTACHING_SHARE * self.limit_share)
        wanted = _USED_AT_MOST * limit / share if share > 0.0 else 2.0
        if share > limit:
            # Attaching and parsing cost tens of milliseconds once: that alone must not lower the rates.
            if seen_ns >= _LOWER_AFTER_NS or share > 3 * limit:
                self._set(self._factor * max(0.25, wanted))
        elif self._factor < 1.0 and wanted > 1.1:
            self._set(self._factor * min(1.5, wanted))

    def _set(self, factor: float) -> None:
        self._factor = min(1.0, max(0.01, factor))
        # What was spent at other rates says nothing of these.
        last = self._marks[-1]
        self._marks.clear()
        self._marks.append(last)
