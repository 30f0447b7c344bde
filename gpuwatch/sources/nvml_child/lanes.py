"""The poll plan: which value is read how often, and what moves it to a slower lane."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from gpuwatch.sources.nvml_child import reasons
from gpuwatch.sources.nvml_child.calls import CallError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SLOW_CALL_SECONDS = 0.005
"""A call above this holds the driver's lock long enough to be felt (MangoHud PR 2104); it is asked less often."""

OWN_SHARE = 0.01
"""Of wall time, at most, inside NVML."""

LONGEST_PAUSE_SECONDS = 5.0


class Lanes:
    """The periods in seconds. With `--interval 2` nothing is read more often than every 2 s."""

    def __init__(self, interval: float, slow: float, rare: float) -> None:
        self.interval = interval
        self.every_poll = interval
        self.alternate = max(2 * interval, min(2.0, slow))
        self.slow = max(slow, interval)
        self.lazy = max(2 * slow, interval)
        self.rare = max(rare, interval)


class Reading:
    """One value of one device: when to ask, the last answer, or why there is none.

    `offset` shifts the second asking by a share of the period, so that what is asked every other poll is
    spread over both.
    """

    __slots__ = (
        "_ask",
        "_fast_streak",
        "_lanes",
        "_next",
        "_offset",
        "_slow_streak",
        "code",
        "period",
        "slow",
        "value",
        "when",
    )

    def __init__(self, ask: Callable[[], Any], period: float, lanes: Lanes, offset: float = 0.0) -> None:
        self._ask = ask
        self._lanes = lanes
        self._offset = offset
        self._next = 0.0
        self._slow_streak = -1  # the first call of a function warms the driver up
        self._fast_streak = 0
        self.period = period
        self.slow = False
        self.value: Any = None
        self.code = reasons.NOT_YET
        self.when = 0.0

    def poll(self, now: float) -> bool:
        """Asks if it is time to; returns whether it did."""
        if now < self._next - self._lanes.interval / 4:
            return False
        first, began = self._next == 0.0, time.perf_counter()
        try:
            self.value, self.code = self._ask(), 0
        except CallError as error:
            self.value, self.code = None, error.code
        self._judge_cost(time.perf_counter() - began)
        self.when = now
        period = self.effective_period()
        self._next = max(self._next, now - period) + period if not first else now + period * (1 - self._offset)
        return True

    def hurry(self) -> None:
        """Makes it due now, because another source of the same figure has dried up, unless it is expensive."""
        if not self.slow and self.code not in reasons.RELUCTANT:
            self._next = min(self._next, time.monotonic())

    def effective_period(self) -> float:
        """The lane's period, or a longer one for what is expensive or refused."""
        if self.code in reasons.RELUCTANT:
            return max(self.period, self._lanes.rare)
        return max(self.period, self._lanes.slow) if self.slow else self.period

    def _judge_cost(self, seconds: float) -> None:
        if seconds > SLOW_CALL_SECONDS:
            self._slow_streak, self._fast_streak = self._slow_streak + 1, 0
            self.slow = self.slow or self._slow_streak >= 2
        else:
            self._slow_streak, self._fast_streak = 0, self._fast_streak + 1
            self.slow = self.slow and self._fast_streak < 3


class Pace:
    """When the next poll begins: the interval, jittered, and longer where NVML is slow.

    Without the +-10 % a training period near a multiple of the interval would always be caught at the same
    point. A slow round or three, until expensive calls have changed lanes, are no reason to slow down: the least of
    the last four counts.
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._rounds = [0.0, 0.0, 0.0, 0.0]

    def spent(self, seconds: float) -> None:
        """Tells what one round of polls spent inside NVML."""
        self._rounds = [*self._rounds[1:], seconds]

    def interval(self) -> float:
        """The interval before jitter."""
        return max(self._interval, min(min(self._rounds) / OWN_SHARE, LONGEST_PAUSE_SECONDS))

    def pause(self) -> float:
        """The time from the start of this poll to the start of the next."""
        return self.interval() * (0.9 + 0.2 * os.urandom(1)[0] / 255)
