"""The values of a minute by subject and metric, and what counters stood at."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from operator import sub
from typing import cast

_MOST = 1e300
_COUNTER_KEPT_NS = 3_600_000_000_000
"""After its last reading: what a counter grew by over a longer silence belongs to no minute."""
_MOST_METRICS = 20_000
"""In a minute: 300 trainers' worth. Memory stays bounded however many processes claim to train."""


class Metrics:
    """What the derivations of metrics fill. NaN and infinity are no values."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str], list[float]] = {}
        self.means: dict[tuple[str, str], tuple[int, float]] = {}
        self._sums: dict[tuple[str, str], list[float]] = {}
        self._counters: dict[tuple[str, str], tuple[int, float]] = {}

    def add(self, subject: str, metric: str, values: Sequence[float | None]) -> None:
        """Values of a gauge; None is left out."""
        try:
            known, total = cast("Sequence[float]", values), sum(cast("Sequence[float]", values))
        except TypeError:  # None is among them: a sum finds it in half the time that looking for it takes
            known = [value for value in values if value is not None]
            total = sum(known)
        if not known:
            return
        if not math.isfinite(total):
            known = [value for value in known if abs(value) < _MOST]
        self._of(subject, metric).extend(known)

    def add_quotients(self, subject: str, metric: str, pairs: Iterable[tuple[float, float]]) -> None:
        """Quotients, whose mean is that of the sums: a long step counts for more than a short one."""
        usable = [(above, below) for above, below in pairs if below > 0]
        if not usable:
            return
        self.add(subject, metric, [above / below for above, below in usable])
        sums = self._sums.setdefault((subject, metric), [0.0, 0.0, 0.0])
        for place, amount in enumerate((len(usable), sum(a for a, _ in usable), sum(b for _, b in usable))):
            sums[place] += amount
        self.means[subject, metric] = (int(sums[0]), sums[1] / sums[2])

    def add_total(self, subject: str, metric: str, amount: float) -> None:
        """A part of the minute's sum, which is its only value."""
        if math.isfinite(amount):
            values = self._of(subject, metric)
            values[:] = [amount + sum(values)]

    def add_shares(self, subject: str, metric: str, hits: Sequence[int], looks: Sequence[int]) -> None:
        """Shares of looks: they count as many as there were looks."""
        self.add_quotients(subject, metric, zip(hits, looks, strict=True))
        sums = self._sums.get((subject, metric))
        if sums is not None:
            self.means[subject, metric] = (int(sums[2]), sums[1] / sums[2])

    def add_growth(
        self, subject: str, metric: str, times_ns: Sequence[int], readings: Sequence[float | None], scale: float | None
    ) -> None:
        """What a counter grew by in the minute, once; a reading below the one before it is a reset and counts nothing.

        Args:
            subject: that the counter is of.
            metric: to put it under.
            times_ns: of the readings.
            readings: of the counter.
            scale: for the growth per nanosecond, which counts as many as the seconds it is of: the minute in which a
                recording ends may have few; None: the growth itself.
        """
        if not readings:
            return
        key = (subject, metric)
        before = self._counters.get(key)
        grown = 0.0
        if before is None or not before[1] == readings[0] == readings[-1]:
            values = known_of(readings)
            if not values:
                return
            if len(values) < len(times_ns):
                times_ns = [at_ns for at_ns, value in zip(times_ns, readings, strict=True) if value is not None]
            before = before or (times_ns[0], values[0])
            grown = _growth([before[1], *values])
            readings = values
        self._counters[key] = (times_ns[-1], cast("float", readings[-1]))
        span_ns = times_ns[-1] - before[0]
        if span_ns <= 0 or not math.isfinite(grown):
            return
        sums = self._sums.setdefault(key, [0.0, 0.0])
        sums[0] += grown
        sums[1] += span_ns
        value = sums[0] if scale is None else sums[0] / sums[1] * scale
        self._of(subject, metric)[:] = [value]
        if scale is not None:
            self.means[key] = (max(1, round(sums[1] / 1e9)), value)

    def sum_up(self, subject: str, metric: str) -> None:
        """Puts the growth of all counters named "METRIC ..." together as one; they are then no metrics of their own."""
        parts = [key for key in self._sums if key[0] == subject and key[1].startswith(f"{metric} ")]
        for part in parts:
            self.values.pop(part, None)
        if parts:
            self._of(subject, metric)[:] = [math.fsum(self._sums[part][0] for part in parts)]

    def last_reading(self, subject: str, metric: str) -> int:
        """The time up to which a series has been counted; -1 at first."""
        return self._counters.get((subject, metric), (-1, 0.0))[0]

    def counted_until(self, subject: str, metric: str, time_ns: int) -> None:
        """Notes it."""
        self._counters[subject, metric] = (time_ns, 0.0)

    def begin_minute(self) -> None:
        """Forgets all but what counters of the last hour stood at."""
        newest_ns = max((time_ns for time_ns, _ in self._counters.values()), default=0)
        self._counters = {
            key: reading for key, reading in self._counters.items() if newest_ns - reading[0] <= _COUNTER_KEPT_NS
        }
        self.values.clear()
        self.means.clear()
        self._sums.clear()
        if len(self._counters) > _MOST_METRICS:
            self._counters.clear()

    def _of(self, subject: str, metric: str) -> list[float]:
        found = self.values.get((subject, metric))
        if found is None:
            found = []
            if len(self.values) < _MOST_METRICS:
                self.values[subject, metric] = found
        return found


def _growth(values: list[float]) -> float:
    """The sum of all steps upwards; a counter seldom steps down, and sorting what is sorted takes a fifth as long."""
    if values == sorted(values):
        return values[-1] - values[0]
    grown: float = sum(step for step in map(sub, values[1:], values) if step > 0)
    return grown


def known_of(values: Sequence[float | None]) -> Sequence[float]:
    """The values that are known; mostly that is all of them, which is ten times sooner seen than copied."""
    return [value for value in values if value is not None] if None in values else cast("Sequence[float]", values)
