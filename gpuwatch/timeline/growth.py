"""How the own memory of a run's workers grows: a line through ten minutes of it."""

from __future__ import annotations

from collections import deque
from statistics import fmean, linear_regression

from gpuwatch.samples import ProcessSample
from gpuwatch.timeline.stats import mean
from gpuwatch.timeline.tiers import SECOND_NS
from gpuwatch.timeline.windows import MemoryGrowth

_WINDOW_NS = 600 * SECOND_NS
_LEAST_NS = 540 * SECOND_NS
_FEWEST = 8
_MOST = 64
_MEASURED = 2
"""Workers whose memory is read: before both are known, their mean would jump."""


class GrowthLog:
    """One point whenever a worker's memory was read again; it begins again with other workers.

    The measured ones are the oldest: those of an evaluation, which come and go, do not end the line.
    """

    def __init__(self) -> None:
        self._measured: frozenset[int] = frozenset()
        self._points: deque[tuple[int, float, float | None]] = deque(maxlen=_MOST)

    def add(self, sample: ProcessSample) -> None:
        """One second of the process."""
        known = {w.pid: w.private_dirty_bytes for w in sample.workers if w.private_dirty_bytes is not None}
        own = mean(known.values())
        if own is None or len(known) < min(_MEASURED, len(sample.workers)):
            return
        if self._measured != known.keys():
            self._measured = frozenset(known)
            self._points.clear()
        if not self._points or self._points[-1][1] != own:
            self._points.append((sample.time_ns, own, sample.rss_bytes))

    def growth(self, now_ns: int, workers: int) -> MemoryGrowth | None:
        """The line, for so many workers; None before nearly ten minutes of points, or where nothing changes."""
        points = [point for point in self._points if now_ns - _WINDOW_NS < point[0] <= now_ns]
        if len(points) < _FEWEST or points[-1][0] - points[0][0] < _LEAST_NS:
            return None
        times = [(point[0] - points[0][0]) / SECOND_NS for point in points]
        sizes = [point[1] for point in points]
        slope, start = linear_regression(times, sizes)
        middle = fmean(sizes)
        spread = sum((size - middle) ** 2 for size in sizes)
        missed = sum((size - start - slope * time) ** 2 for time, size in zip(times, sizes, strict=True))
        first, last = points[0][2], points[-1][2]
        return MemoryGrowth(
            bytes_per_second=slope * workers,
            fit=max(0.0, 1.0 - missed / spread),
            seconds=times[-1],
            worker_bytes=sizes[-1],
            trainer_bytes_per_second=None if first is None or last is None else (last - first) / times[-1],
        )
