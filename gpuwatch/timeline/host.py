"""The machine's CPU side, and a training process with its workers: from /proc, and from the batches workers report."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from itertools import compress
from statistics import fmean, linear_regression, median
from typing import Any

from gpuwatch import metrics
from gpuwatch.samples import HostSample, ProcessSample, WorkerFetch, WorkerSample
from gpuwatch.timeline.columns import SECOND_NS, Odometer, Table, ValueTiers, number
from gpuwatch.timeline.phases import STOPPED_STATES
from gpuwatch.timeline.times import Span, covered_ns, united
from gpuwatch.timeline.windows import (
    HostWindow,
    MemoryGrowth,
    ProcessTotals,
    WorkerPace,
    WorkerTotals,
    known,
    mean,
    mean_and_sigma,
)

_RAW_NS = 600 * SECOND_NS
_MOST_ROWS = 2_048
_MOST_FETCHES = 8_192
_HOST_MEANS = tuple(metric.name for metric in metrics.HOST.values() if metric.windowed)
_LATELY_NS = 30 * SECOND_NS

_MEANS = ("main_thread_cores", "tree_cores", "run_delay_share", "involuntary_switches_per_second")
_WORKER_MEANS = ("cpu_cores", "blocked_share", "system_cores", "run_delay_share")
_COUNTERS = ("cgroup_periods", "cgroup_throttled_periods", "cgroup_throttled_seconds")

_GROWTH_NS = 600 * SECOND_NS
_LEAST_GROWTH_NS = 540 * SECOND_NS
_FEWEST_POINTS = 8
_MOST_POINTS = 64
_MEASURED = 2
"""Workers whose memory is read: before both are known, their mean would jump."""

_MOST_JUDGED = 1_024  # batches, the newest
_MOST_WORKERS = 1_024


class HostHistory:
    """One row per sample of the machine."""

    def __init__(self) -> None:
        columns = dict.fromkeys((*_HOST_MEANS, "memory_available_share"), "f")
        self.rows = Table(columns, max_age_ns=_RAW_NS, max_rows=_MOST_ROWS)
        self.tiers = {metric.name: ValueTiers() for metric in metrics.charted("host")}
        self.latest: HostSample | None = None

    def add(self, sample: HostSample) -> None:
        """One second of the machine."""
        if self.latest is not None and sample.time_ns <= self.latest.time_ns:
            return
        self.latest = sample
        available, total = sample.memory_available_bytes, sample.memory_total_bytes
        share = available / total if available is not None and total else None
        self.rows.add(sample.time_ns, [*(number(getattr(sample, name)) for name in _HOST_MEANS), number(share)])
        for name, tiers in self.tiers.items():
            value = getattr(sample, name)
            if value is not None:
                tiers.add(sample.time_ns, value)

    def window(self, start_ns: int, now_ns: int) -> HostWindow | None:
        """The machine over (start, now]; None before its first sample."""
        if self.latest is None:
            return None
        low, high = self.rows.since(start_ns), self.rows.until(now_ns)
        first_ns = self.rows.times[low] if low < high else now_ns
        return HostWindow(
            window_seconds=(now_ns - (start_ns if low else first_ns)) / SECOND_NS,
            latest=self.latest,
            cpu_percent=mean(self.rows["cpu_percent"][low:high]),
            pressure_cpu_percent=mean(self.rows["pressure_cpu_percent"][low:high]),
            pressure_io_percent=mean(self.rows["pressure_io_percent"][low:high]),
            pressure_memory_percent=mean(self.rows["pressure_memory_percent"][low:high]),
            disk_queue_length=mean(self.rows["disk_queue_length"][low:high]),
            memory_available_share=mean(self.rows["memory_available_share"][low:high]),
            major_faults_per_second=mean(self.rows["major_faults_per_second"][low:high]),
            swap_in_bytes_per_second=mean(self.rows["swap_in_bytes_per_second"][low:high]),
        )


class ProcessHistory:
    """One process, named by pid and start time."""

    def __init__(self) -> None:
        means = (*_MEANS, *(f"worker_{name}" for name in _WORKER_MEANS))
        columns = dict.fromkeys(means, "f") | dict.fromkeys(_COUNTERS, "d") | {"workers": "q", "pids_changed": "b"}
        self.rows = Table(columns, max_age_ns=_RAW_NS, max_rows=_MOST_ROWS)
        self.latest: ProcessSample | None = None
        self._workers: tuple[WorkerSample, ...] = ()
        self._odometers = [Odometer() for _ in _COUNTERS]
        self._growth = GrowthLog()
        self._core_seen_ns: dict[int, int] = {}
        self._by_node: deque[tuple[int, tuple[float, ...]]] = deque(maxlen=_RAW_NS // SECOND_NS)

    def add(self, sample: ProcessSample, without: Set[int] = frozenset()) -> None:
        """One second of the process.

        Args:
            sample: as /proc shows it.
            without: workers of evaluations and of loaders that training does not wait for. Those that persist are idle
                while it trains: a training worker at work all the time and an idle one are not two workers at
                half of a core.
        """
        if self.latest is not None and sample.time_ns <= self.latest.time_ns:
            return
        self.latest = sample
        workers = tuple(worker for worker in sample.workers if worker.pid not in without)
        self._workers = workers
        # A stopped process uses nothing, which says nothing of how it trains.
        is_stopped = sample.state in STOPPED_STATES
        counters = [meter.read(getattr(sample, name)) for meter, name in zip(self._odometers, _COUNTERS, strict=True)]
        self.rows.add(
            sample.time_ns,
            [
                *(number(None if is_stopped else getattr(sample, name)) for name in _MEANS),
                *(number(None if is_stopped else mean(_values(workers, name))) for name in _WORKER_MEANS),
                *counters,
                len(workers),
                sample.worker_pids_changed,
            ],
        )
        self._growth.add(sample)
        self._core_seen_ns.update(dict.fromkeys(_values(workers, "last_core"), sample.time_ns))
        if sample.node_cores:
            self._by_node.append((sample.time_ns, sample.node_cores))

    def totals(self, start_ns: int, now_ns: int) -> ProcessTotals | None:
        """The process over (start, now]; None before its first sample."""
        if self.latest is None:
            return None
        periods = self._gain("cgroup_periods", start_ns, now_ns)
        throttled = self._gain("cgroup_throttled_periods", start_ns, now_ns)
        return ProcessTotals(
            latest=self.latest,
            main_thread_cores=self._mean("main_thread_cores", start_ns, now_ns),
            tree_cores=self._mean("tree_cores", start_ns, now_ns),
            tree_cores_lately=self._mean("tree_cores", max(start_ns, now_ns - _LATELY_NS), now_ns),
            throttled_period_share=throttled / periods if periods and throttled is not None else None,
            throttled_seconds=self._gain("cgroup_throttled_seconds", start_ns, now_ns),
            involuntary_switches_per_second=self._mean("involuntary_switches_per_second", start_ns, now_ns),
            run_delay_share=self._mean("run_delay_share", start_ns, now_ns),
            node_shares=self._node_shares(start_ns, now_ns),
        )

    def workers(self, start_ns: int, now_ns: int) -> WorkerTotals | None:
        """The workers that feed the training over (start, now], less their batches; None where none was seen."""
        if self.latest is None:
            return None
        counts = [count for count in self._slice("workers", start_ns, now_ns) if count > 0]
        if not counts:
            return None
        workers = self._workers
        threads, affinities = _values(workers, "threads"), _values(workers, "affinity_cores")
        active, rss = mean(_values(workers, "active_threads")), mean(_values(workers, "rss_bytes"))
        cores, system = (self._mean(name, start_ns, now_ns) for name in ("worker_cpu_cores", "worker_system_cores"))
        count = int(Counter(counts).most_common(1)[0][0])
        return WorkerTotals(
            count=count,
            cpu_cores=cores,
            blocked_share=self._mean("worker_blocked_share", start_ns, now_ns),
            threads=sum(threads) if threads else None,
            rss_bytes=None if rss is None else round(rss),
            pids_changed=any(self.rows["pids_changed"]),
            max_affinity_cores=max(affinities, default=None),
            cores_seen=sum(start_ns < seen_ns <= now_ns for seen_ns in self._core_seen_ns.values()) or None,
            active_threads=None if active is None else round(active * count),
            system_share=None if system is None or not cores else min(1.0, system / cores),
            growth=self._growth.growth(now_ns, count),
            run_delay_share=self._mean("worker_run_delay_share", start_ns, now_ns),
        )

    def _node_shares(self, start_ns: int, now_ns: int) -> tuple[float, ...]:
        rows = [cores for time_ns, cores in self._by_node if start_ns < time_ns <= now_ns]
        totals = [sum(column) for column in zip(*rows, strict=False)]
        return tuple(total / sum(totals) for total in totals) if sum(totals) > 0 else ()

    def _slice(self, name: str, start_ns: int, now_ns: int) -> list[float]:
        return known(self.rows[name][self.rows.since(start_ns) : self.rows.until(now_ns)])

    def _mean(self, name: str, start_ns: int, now_ns: int) -> float | None:
        return mean(self._slice(name, start_ns, now_ns))

    def _gain(self, name: str, start_ns: int, now_ns: int) -> float | None:
        readings = self._slice(name, start_ns, now_ns)
        return readings[-1] - readings[0] if len(readings) > 1 else None


def _values(workers: Iterable[WorkerSample], name: str) -> list[Any]:
    return [value for worker in workers if (value := getattr(worker, name)) is not None]


class GrowthLog:
    """One point whenever a worker's memory was read again; it begins again with other workers.

    The measured ones are the oldest: those of an evaluation, which come and go, do not end the line.
    """

    def __init__(self) -> None:
        self._measured: frozenset[int] = frozenset()
        self._points: deque[tuple[int, float, float | None]] = deque(maxlen=_MOST_POINTS)

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
        """The line, for this many workers; None before nearly ten minutes of points, or where nothing changes."""
        points = [point for point in self._points if now_ns - _GROWTH_NS < point[0] <= now_ns]
        if len(points) < _FEWEST_POINTS or points[-1][0] - points[0][0] < _LEAST_GROWTH_NS:
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


class WorkerFetches:
    """One row per batch, at the time it was done."""

    def __init__(self) -> None:
        columns = {"start": "q", "pid": "q", "seconds": "f", "cpu_seconds": "f", "loader": "q"}
        self.rows = Table(columns, max_age_ns=_RAW_NS, max_rows=_MOST_FETCHES)
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

    def added_to(
        self,
        workers: WorkerTotals | None,
        start_ns: int,
        now_ns: int,
        phases: Sequence[Span] = (),
        without: Set[int] = frozenset(),
    ) -> WorkerTotals | None:
        """What the workers say of their batches over (start, now], added to what /proc shows; that without a batch.

        Args:
            workers: as /proc shows them, where it does.
            start_ns: from here on.
            now_ns: up to here.
            phases: when it did not train: workers that fill their queue idle then, whatever their pace.
            without: loaders that are left out: of evaluation, whose batches cost what they will.
        """
        rows = slice(self.rows.since(start_ns), self.rows.until(now_ns))
        pids, starts, seconds, cpu_seconds = self._newest(rows, without)
        if not pids:
            return workers
        cycles = _cycles(pids, starts, seconds, phases)
        cycles_ns = sum(each.cycles_ns for each in cycles)
        return replace(
            workers or WorkerTotals(count=len(set(pids))),
            busy_share=min(1.0, sum(each.busy_ns for each in cycles) / cycles_ns) if cycles_ns > 0 else None,
            by_worker=tuple(each.pace() for each in cycles if each.cycles_ns > 0),
            batch_seconds=mean(seconds),
            batch_cpu_seconds=mean(cpu_seconds),
            batch_seconds_sigma=mean_and_sigma(list(seconds))[1],
            newest_batch_seconds=seconds,
            earlier_batch_seconds=self._earlier(rows, without)[: max(0, _MOST_JUDGED - len(seconds))][::-1],
        )

    def _earlier(self, rows: slice, without: Set[int]) -> array[float]:
        """Seconds of the batches before these rows that the same loaders made, the newest first."""
        loaders = set(self.rows["loader"][rows]) - without
        before = slice(max(0, rows.start - _MOST_JUDGED), rows.start)
        kept = [loader in loaders for loader in self.rows["loader"][before]]
        return array("f", compress(self.rows["seconds"][before], kept))[::-1]

    def _newest(self, rows: slice, without: Set[int]) -> list[array[Any]]:
        """Worker, start, seconds and CPU seconds of the newest batches of these rows."""
        columns = [self.rows[name][rows] for name in ("pid", "start", "seconds", "cpu_seconds")]
        if without:
            kept = [loader not in without for loader in self.rows["loader"][rows]]
            columns = [array(column.typecode, compress(column, kept)) for column in columns]
        return [column[-_MOST_JUDGED:] for column in columns]


@dataclass(frozen=True, slots=True)
class _Cycles:
    """One worker's whole cycles, each from one batch's start to the next one's, and what of them it was busy."""

    pid: int
    batches: int
    usual_ns: float
    busy_ns: int
    cycles_ns: int

    def pace(self) -> WorkerPace:
        busy = min(1.0, self.busy_ns / self.cycles_ns)
        return WorkerPace(self.pid, self.batches, self.usual_ns / SECOND_NS, busy)


def _cycles(
    pids: Sequence[int], starts: Sequence[int], took: Sequence[float], phases: Sequence[Span]
) -> tuple[_Cycles, ...]:
    """Time in batches and time from one batch's start to the next one's, per worker, both outside of phases.

    Whole cycles only: counting to the end of the window instead would take a batch that is being made, and not
    yet reported, for idleness.
    """
    batches: defaultdict[int, list[Span]] = defaultdict(list)
    for pid, start_ns, seconds in zip(pids, starts, took, strict=True):
        batches[pid].append((start_ns, start_ns + round(seconds * SECOND_NS)))
    apart, found = united(phases), []
    for pid, made in batches.items():
        made.sort()
        first_ns, last_ns = made[0][0], made[-1][0]
        took_ns = [end_ns - start_ns for start_ns, end_ns in made]
        busy_ns = sum(took_ns[:-1]) - _common_ns(made[:-1], apart)
        cycles_ns = last_ns - first_ns - covered_ns(apart, first_ns, last_ns)
        found.append(_Cycles(pid, len(made), median(took_ns), busy_ns, cycles_ns))
    return tuple(found)


def _common_ns(batches: Sequence[Span], phases: Iterable[Span]) -> int:
    """What batches of one worker, one after the other, have in common with phases."""
    common = 0
    for start_ns, end_ns in phases:
        place = max(0, bisect_right(batches, (start_ns, start_ns)) - 1)
        while place < len(batches) and batches[place][0] < end_ns:
            common += max(0, min(end_ns, batches[place][1]) - max(start_ns, batches[place][0]))
            place += 1
    return common
