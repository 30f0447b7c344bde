"""Chart values on a fixed grid of time: finished buckets are kept, only the newest are read again.

At 8 GPUs a frame shows 18 charts; asking the timeline for all their buckets every second costs more than painting
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gpuwatch.timeline.charts import Chart, Series

LATE_NS = 3_000_000_000
"""How long after its time a sample may still arrive: the driver's ring and the hook's packets lag behind."""

LOCK_SECONDS = 0.05
"""A frame is skipped rather than waited for: keys must stay live while the monitor holds its lock."""


class Lock(Protocol):
    """What is needed of threading's locks."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Takes it, if it can be had in time."""

    def release(self) -> None:
        """Gives it back."""


class Timeline(Protocol):
    """What the dashboard needs of the monitor's timeline."""

    @property
    def lock(self) -> Lock:
        """Held by the monitor while it writes, by views while they read."""

    def chart(self, series: Series, start_ns: int, end_ns: int, buckets: int) -> Chart:
        """The series cut into equal buckets of time."""


Values = tuple["float | None", ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """Equal buckets of one series, oldest first; None where nothing was measured."""

    mean: Values = ()
    peak: Values = ()
    low: Values = ()

    @property
    def largest(self) -> float | None:
        """The largest reading, for the scale of a chart without a natural limit."""
        return max((value for value in self.peak if value is not None), default=None)


@dataclass(frozen=True, slots=True)
class Grid:
    """A stretch of time in equal buckets whose edges are multiples of their width, so that charts only shift."""

    bucket_ns: int
    first: int
    count: int
    until_ns: int = field(default=0, compare=False)
    """The moment that the grid was made for, which the last bucket holds: nothing is known of the rest of it."""

    @classmethod
    def ending_at(cls, end_ns: int, window_seconds: float, count: int) -> Grid:
        """The grid of `count` buckets whose last one holds `end_ns`."""
        bucket_ns = max(1, round(window_seconds * 1e9 / max(1, count)))
        return cls(bucket_ns, end_ns // bucket_ns - count + 1, max(1, count), end_ns)

    @property
    def start_ns(self) -> int:
        """The left edge."""
        return self.first * self.bucket_ns

    @property
    def end_ns(self) -> int:
        """The right edge."""
        return (self.first + self.count) * self.bucket_ns

    def index_of(self, time_ns: int) -> int:
        """The bucket that holds a moment; outside the grid, below 0 or from `count` on."""
        return time_ns // self.bucket_ns - self.first


class _Column:
    """The kept buckets of one series."""

    __slots__ = ("asked_ns", "bucket_ns", "first", "low", "mean", "peak", "trace")

    def __init__(self, grid: Grid, chart: Chart) -> None:
        self.asked_ns = 0
        self.trace = Trace()
        self.bucket_ns = grid.bucket_ns
        self.first = grid.first
        self.mean = list(chart.mean)
        self.low = list(chart.min)
        self.peak = list(chart.max)

    def append(self, first: int, chart: Chart, skip: int, count: int) -> None:
        """Replaces all from bucket `first` on by a chart less its first `skip` buckets; keeps the last `count`."""
        keep = first - self.first
        for kept, new in ((self.mean, chart.mean), (self.low, chart.min), (self.peak, chart.max)):
            kept[keep:] = new[skip:]
            del kept[: len(kept) - count]
        self.first = first + len(chart.mean) - skip - count


class History:
    """The charts' values, asked from a timeline as sparingly as can be."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._columns: dict[tuple[Series, int, int], _Column] = {}
        self._used: set[tuple[Series, int, int]] = set()

    def refresh(self, grid: Grid, wanted: Sequence[tuple[Series, int]], now_ns: int) -> dict[Series, Trace] | None:
        """The traces of all wanted series, or None while the timeline is locked.

        Args:
            grid: The chart's time.
            wanted: Series, and for how many nanoseconds a value holds until the next (a sensor that is read once a
                second says nothing of narrower buckets, and a gap would be a lie).
            now_ns: The snapshot's time: a bucket that is not half full yet is not worth asking for again.
        """
        lock = self._timeline.lock
        if not lock.acquire(timeout=LOCK_SECONDS):
            return None
        try:
            traces = {series: self._trace(series, grid, hold_ns, now_ns) for series, hold_ns in wanted}
        finally:
            lock.release()
        for unused in self._columns.keys() - self._used:
            del self._columns[unused]
        self._used.clear()
        return traces

    def _trace(self, series: Series, grid: Grid, hold_ns: int, now_ns: int) -> Trace:
        key = (series, grid.bucket_ns, grid.count)
        self._used.add(key)
        column = self._columns.get(key)
        if column is not None and column.first == grid.first and 0 <= now_ns - column.asked_ns < grid.bucket_ns // 2:
            return column.trace
        late = LATE_NS // grid.bucket_ns + 2
        last = grid.first + grid.count
        kept_to = column.first + len(column.mean) - late if column else 0
        if column is None or column.first > grid.first or kept_to <= grid.first or last < kept_to:
            column = _Column(grid, self._ask(series, grid.bucket_ns, grid.first, grid.count))
            self._columns[key] = column
        else:
            # Its first buckets may lack a reading that still holds from before them.
            lead = min(hold_ns // grid.bucket_ns + 1, kept_to - column.first)
            chart = self._ask(series, grid.bucket_ns, kept_to - lead, last - kept_to + lead)
            column.append(kept_to, chart, lead, grid.count)
        hold = hold_ns // grid.bucket_ns
        column.asked_ns = now_ns
        column.trace = Trace(held(column.mean, hold), held(column.peak, hold), held(column.low, hold))
        return column.trace

    def _ask(self, series: Series, bucket_ns: int, first: int, count: int) -> Chart:
        return self._timeline.chart(series, first * bucket_ns, (first + count) * bucket_ns, count)


def held(values: Sequence[float | None], buckets: int) -> Values:
    """The values with gaps of up to `buckets` between two readings closed by the earlier reading.

    The end stays open: what comes after the last reading is not known yet.
    """
    if buckets < 1 or None not in values:
        return tuple(values)
    out = list(values)
    last: int | None = None
    for index, value in enumerate(out):
        if value is None:
            continue
        if last is not None and 1 < index - last <= buckets + 1:
            out[last + 1 : index] = [out[last]] * (index - last - 1)
        last = index
    return tuple(out)
