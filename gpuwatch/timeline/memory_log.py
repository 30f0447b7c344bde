"""Readings of torch's CUDA allocator in one trainer."""

from __future__ import annotations

from gpuwatch.samples import RunMemory
from gpuwatch.timeline.columns import Table, number
from gpuwatch.timeline.stats import known
from gpuwatch.timeline.tiers import SECOND_NS
from gpuwatch.timeline.windows import MemoryTotals

_KEPT_NS = 900 * SECOND_NS
_MOST_ROWS = 2_048


class MemoryLog:
    """The newest reading, whose peaks are of the whole run, and 15 min of the counter of retries."""

    __slots__ = ("_latest", "_rows")

    def __init__(self) -> None:
        self._latest: RunMemory | None = None
        self._rows = Table({"alloc_retries": "d"}, max_age_ns=_KEPT_NS, max_rows=_MOST_ROWS)

    def add(self, memory: RunMemory) -> None:
        """Takes one reading."""
        self._latest = memory
        self._rows.add(memory.time_ns, (number(memory.alloc_retries),))

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
        )

    def trim(self, now_ns: int) -> None:
        """Drops what is too old."""
        self._rows.trim(now_ns)
