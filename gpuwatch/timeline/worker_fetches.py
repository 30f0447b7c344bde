"""The DataLoader workers of one trainer, as they report their own batches."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from itertools import compress
from typing import Any

from gpuwatch.samples import WorkerFetch
from gpuwatch.timeline.columns import Table, number
from gpuwatch.timeline.spans import Span, covered_ns, united
from gpuwatch.timeline.stats import mean, mean_and_sigma
from gpuwatch.timeline.tiers import SECOND_NS

_RAW_NS = 600 * SECOND_NS
_MOST_ROWS = 8_192
_MOST_JUDGED = 1_024
_MOST_WORKERS = 1_024


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
        columns = {"start": "q", "pid": "q", "seconds": "f", "cpu_seconds": "f", "loader": "q"}
        self.rows = Table(columns, max_age_ns=_RAW_NS, max_rows=_MOST_ROWS)
        self._loader_of: dict[int, int] = {}  # worker's pid: the loader that it made a batch for last

    def add(self, fetch: WorkerFetch) -> None:
        """Takes up one batch."""
        seconds = (fetch.end_ns - fetch.start_ns) / SECOND_NS
        if seconds >= 0:
            row = (fetch.start_ns, fetch.worker_pid, seconds, number(fetch.cpu_seconds), fetch.loader or 0)
            self.rows.add(fetch.end_ns, row)
            if fetch.worker_pid not in self._loader_of and len(self._loader_of) >= _MOST_WORKERS:
                del self._loader_of[next(iter(self._loader_of))]
            self._loader_of[fetch.worker_pid] = fetch.loader or 0

    def pids(self, start_ns: int) -> set[int]:
        """The workers that made a batch since then."""
        return set(self.rows["pid"][self.rows.since(start_ns) :])

    def workers_of(self, loaders: Set[int]) -> set[int]:
        """The workers that made their last batch for one of these loaders."""
        return {pid for pid, loader in self._loader_of.items() if loader in loaders} if loaders else set()

    def totals(
        self, start_ns: int, now_ns: int, phases: Sequence[Span] = (), without: Set[int] = frozenset()
    ) -> FetchTotals | None:
        """The figures over (start, now]; None without a batch.

        Args:
            start_ns: from here on.
            now_ns: up to here.
            phases: when it did not train: workers that fill their queue idle then, whatever their pace.
            without: loaders that are left out: of evaluation, whose batches cost what they will.
        """
        rows = slice(self.rows.since(start_ns), self.rows.until(now_ns))
        pids, starts, seconds, cpu_seconds = self._newest(rows, without)
        if not pids:
            return None
        return FetchTotals(
            workers=len(set(pids)),
            busy_share=_busy_share(pids, starts, seconds, phases),
            batch_seconds=mean(seconds),
            batch_cpu_seconds=mean(cpu_seconds),
            batch_seconds_sigma=mean_and_sigma(list(seconds))[1],
            newest_batch_seconds=seconds,
        )

    def _newest(self, rows: slice, without: Set[int]) -> list[array[Any]]:
        """Worker, start, seconds and CPU seconds of the newest batches of these rows."""
        columns = [self.rows[name][rows] for name in ("pid", "start", "seconds", "cpu_seconds")]
        if without:
            kept = [loader not in without for loader in self.rows["loader"][rows]]
            columns = [array(column.typecode, compress(column, kept)) for column in columns]
        return [column[-_MOST_JUDGED:] for column in columns]


def _busy_share(
    pids: Sequence[int], starts: Sequence[int], took: Sequence[float], phases: Sequence[Span]
) -> float | None:
    """Time in batches over time from one batch's start to the next one's, per worker, both outside of phases.

    Whole cycles only: counting to the end of the window instead would take a batch that is being made, and not
    yet reported, for idleness.
    """
    batches: defaultdict[int, list[Span]] = defaultdict(list)
    for pid, start_ns, seconds in zip(pids, starts, took, strict=True):
        batches[pid].append((start_ns, start_ns + round(seconds * SECOND_NS)))
    apart, busy_ns, cycles_ns = united(phases), 0, 0
    for made in batches.values():
        made.sort()
        first_ns, last_ns = made[0][0], made[-1][0]
        busy_ns += sum(end_ns - start_ns for start_ns, end_ns in made[:-1]) - _common_ns(made[:-1], apart)
        cycles_ns += last_ns - first_ns - covered_ns(apart, first_ns, last_ns)
    return min(1.0, busy_ns / cycles_ns) if cycles_ns > 0 else None


def _common_ns(batches: Sequence[Span], phases: Iterable[Span]) -> int:
    """What batches of one worker, one after the other, have in common with phases."""
    common = 0
    for start_ns, end_ns in phases:
        place = max(0, bisect_right(batches, (start_ns, start_ns)) - 1)
        while place < len(batches) and batches[place][0] < end_ns:
            common += max(0, min(end_ns, batches[place][1]) - max(start_ns, batches[place][0]))
            place += 1
    return common
