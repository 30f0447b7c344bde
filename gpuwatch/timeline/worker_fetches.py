"""The DataLoader workers of one trainer, as they report their own batches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from gpuwatch.samples import WorkerFetch
from gpuwatch.timeline.columns import Table, number
from gpuwatch.timeline.spans import Span, covered_ns
from gpuwatch.timeline.stats import mean, mean_and_sigma
from gpuwatch.timeline.tiers import SECOND_NS

_RAW_NS = 600 * SECOND_NS
_MOST_ROWS = 8_192
_MOST_JUDGED = 1_024


@dataclass(frozen=True, slots=True)
class FetchTotals:
    """What the workers did in a window."""

    workers: int
    busy_share: float | None
    batch_seconds: float | None
    batch_cpu_seconds: float | None
    batch_seconds_sigma: float | None = None
    newest_batch_seconds: Sequence[float] = ()  # of each batch, in the order they were done


class WorkerFetches:
    """One row per batch, at the time it was done."""

    def __init__(self) -> None:
        columns = {"start": "q", "pid": "i", "seconds": "f", "cpu_seconds": "f"}
        self.rows = Table(columns, max_age_ns=_RAW_NS, max_rows=_MOST_ROWS)

    def add(self, fetch: WorkerFetch) -> None:
        """Takes up one batch."""
        seconds = (fetch.end_ns - fetch.start_ns) / SECOND_NS
        if seconds >= 0:
            self.rows.add(fetch.end_ns, (fetch.start_ns, fetch.worker_pid, seconds, number(fetch.cpu_seconds)))

    def pids(self, start_ns: int) -> set[int]:
        """The workers that made a batch since then."""
        return set(self.rows["pid"][self.rows.since(start_ns) :])

    def totals(self, start_ns: int, now_ns: int, stops: Sequence[Span] = ()) -> FetchTotals | None:
        """The figures over (start, now] but for the times that the trainer was stopped; None without a batch."""
        low, high = self.rows.since(start_ns), self.rows.until(now_ns)
        low = max(low, high - _MOST_JUDGED)
        if low >= high:
            return None
        seconds = self.rows["seconds"][low:high]
        return FetchTotals(
            workers=len(set(self.rows["pid"][low:high])),
            busy_share=self._busy_share(low, high, stops),
            batch_seconds=mean(seconds),
            batch_cpu_seconds=mean(self.rows["cpu_seconds"][low:high]),
            batch_seconds_sigma=mean_and_sigma(list(seconds))[1],
            newest_batch_seconds=seconds,
        )

    def _busy_share(self, low: int, high: int, stops: Sequence[Span]) -> float | None:
        """Time in batches over time from one batch's start to the next one's, per worker.

        Whole cycles only: counting to the end of the window instead would take a batch that is being made, and not
        yet reported, for idleness.
        """
        batches: defaultdict[int, list[tuple[int, float]]] = defaultdict(list)
        columns = (self.rows["pid"][low:high], self.rows["start"][low:high], self.rows["seconds"][low:high])
        for pid, start_ns, seconds in zip(*columns, strict=True):
            batches[pid].append((start_ns, seconds))
        busy = cycles = 0.0
        for made in batches.values():
            made.sort()
            busy += sum(seconds for _, seconds in made[:-1])
            first_ns, last_ns = made[0][0], made[-1][0]
            cycles += (last_ns - first_ns - covered_ns(stops, first_ns, last_ns)) / SECOND_NS
        return min(1.0, busy / cycles) if cycles > 0 else None
