"""Readings of torch's CUDA allocator in one trainer."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise

from gpuwatch.samples import RunMemory
from gpuwatch.timeline.columns import Table, number
from gpuwatch.timeline.stats import known
from gpuwatch.timeline.tiers import SECOND_NS
from gpuwatch.timeline.windows import MemoryTotals, PeakGrowth

_KEPT_NS = 900 * SECOND_NS
_MOST_ROWS = 2_048
_EARLY_STEPS = 100
_FEWEST_READINGS = 20


class MemoryLog:
    """The newest reading, whose peaks are of the whole run, and 15 min of the counter of retries and of the peak."""

    __slots__ = ("_latest", "_rows")

    def __init__(self) -> None:
        self._latest: RunMemory | None = None
        columns = dict.fromkeys(("alloc_retries", "peak", "steps"), "d")
        self._rows = Table(columns, max_age_ns=_KEPT_NS, max_rows=_MOST_ROWS)

    def add(self, memory: RunMemory, steps: int = 0) -> None:
        """Takes one reading, made after so many steps."""
        self._latest = memory
        row = (number(memory.alloc_retries), number(memory.allocated_peak_bytes), steps)
        self._rows.add(memory.time_ns, row)

    def totals(self, start_ns: int, end_ns: int) -> MemoryTotals | None:
        """The allocator over (start, end]; None before its first reading."""
        latest = self._latest
        if latest is None:
            return None
        low = max(0, self._rows.since(start_ns) - 1)
        retries = known(self._rows["alloc_retries"][low : self._rows.until(end_ns)])
        return MemoryTotals(
            allocated_peak_bytes=latest.allocated_peak_bytes,
            reserved_peak_bytes=latest.reserved_peak_bytes,
            total_bytes=latest.total_bytes,
            alloc_retries=round(max(0.0, retries[-1] - retries[0])) if len(retries) > 1 else None,
            out_of_memory=latest.out_of_memory,
            growth=self._growth(end_ns),
        )

    def _growth(self, end_ns: int) -> PeakGrowth | None:
        """The peak's rise by quarters of the time; None where one of them holds no reading."""
        low, high = bisect_left(self._rows["steps"], _EARLY_STEPS), self._rows.until(end_ns)
        times, peaks, steps = self._rows.times[low:high], self._rows["peak"][low:high], self._rows["steps"][low:high]
        if len(times) < _FEWEST_READINGS or any(peak != peak for peak in peaks):
            return None
        bounds = [times[0] + (times[-1] - times[0]) * part // 4 for part in range(5)]
        at = [peaks[bisect_right(times, bound) - 1] for bound in bounds]
        first, second, third, fourth = (round(after - before) for before, after in pairwise(at))
        return PeakGrowth(
            seconds=(times[-1] - times[0]) / SECOND_NS,
            steps=round(steps[-1] - steps[0]),
            start_bytes=round(at[0]),
            quarters_bytes=(first, second, third, fourth),
        )

    def trim(self, now_ns: int) -> None:
        """Drops what is too old."""
        self._rows.trim(now_ns)
