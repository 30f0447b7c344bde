"""When a run's steps have settled down, so that they may be judged."""

from __future__ import annotations

from collections import deque
from statistics import fmean, median

_STEPS = 5
_LIKE = 0.2


class WarmUp:
    """Open until the median of five steps is within 20 % of the five before.

    Medians of five never agree on a run that waits for every second batch (two workers too slow): slow and fast steps
    take turns in having the majority. Means over ten do, so they are asked as well from the twentieth step on.
    """

    __slots__ = ("_periods", "over_ns")

    def __init__(self) -> None:
        self.over_ns: int | None = None
        self._periods: deque[float] = deque(maxlen=4 * _STEPS)

    def step(self, end_ns: int, seconds: float) -> None:
        """Looks at one more step."""
        if self.over_ns is not None:
            return
        self._periods.append(seconds)
        periods = list(self._periods)
        count = len(periods)
        fives_agree = count >= 2 * _STEPS and _alike(median(periods[-_STEPS:]), median(periods[-2 * _STEPS : -_STEPS]))
        tens_agree = count == 4 * _STEPS and _alike(fmean(periods[-2 * _STEPS :]), fmean(periods[: 2 * _STEPS]))
        if fives_agree or tens_agree:
            self.over_ns = end_ns


def _alike(value: float, before: float) -> bool:
    return abs(value - before) <= _LIKE * before
