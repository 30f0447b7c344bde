"""The history of one training process and its workers, as /proc shows them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Set
from dataclasses import replace

from gpuwatch.samples import ProcessSample, WorkerSample
from gpuwatch.timeline.columns import Table, number
from gpuwatch.timeline.growth import GrowthLog
from gpuwatch.timeline.odometer import Odometer
from gpuwatch.timeline.stats import known, mean
from gpuwatch.timeline.stops import STOPPED_STATES
from gpuwatch.timeline.tiers import SECOND_NS
from gpuwatch.timeline.windows import ProcessTotals, WorkerTotals
from gpuwatch.timeline.worker_fetches import FetchTotals

RAW_NS = 600 * SECOND_NS
_MOST_ROWS = 2_048
_LATELY_NS = 30 * SECOND_NS

_MEANS = (
    "main_thread_cores",
    "tree_cores",
    "run_delay_share",
    "involuntary_switches_per_second",
    "worker_cores",
    "worker_blocked_share",
    "worker_system_cores",
    "worker_run_delay_share",
)
_COUNTERS = ("cgroup_periods", "cgroup_throttled_periods", "cgroup_throttled_seconds")


class ProcessHistory:
    """One process, named by pid and start time."""

    def __init__(self) -> None:
        columns = dict.fromkeys(_MEANS, "f") | dict.fromkeys(_COUNTERS, "d") | {"workers": "q", "pids_changed": "b"}
        self.rows = Table(columns, max_age_ns=RAW_NS, max_rows=_MOST_ROWS)
        self.latest: ProcessSample | None = None
        self._workers: tuple[WorkerSample, ...] = ()
        self._odometers = [Odometer() for _ in _COUNTERS]
        self._growth = GrowthLog()
        self._core_seen_ns: dict[int, int] = {}
        self._by_node: deque[tuple[int, tuple[float, ...]]] = deque(maxlen=RAW_NS // SECOND_NS)

    def add(self, sample: ProcessSample, without: Set[int] = frozenset()) -> None:
        """One second of the process.

        Args:
            sample: as /proc shows it.
            without: workers of evaluations and of loaders that training does not wait for. Those that persist are idle
                while it trains: a training worker at work all the time and an idle one beside it are no two workers at
                half of a core.
        """
        if self.latest is not None and sample.time_ns <= self.latest.time_ns:
            return
        self.latest = sample
        workers = tuple(worker for worker in sample.workers if worker.pid not in without)
        self._workers = workers
        cores = [worker.cpu_cores for worker in workers if worker.cpu_cores is not None]
        system = [worker.system_cores for worker in workers if worker.system_cores is not None]
        delays = [worker.run_delay_share for worker in workers if worker.run_delay_share is not None]
        blocked = [worker.blocked_share for worker in workers if worker.blocked_share is not None]
        # A stopped process uses nothing, which says nothing of how it trains.
        is_stopped = sample.state in STOPPED_STATES
        counters = [meter.read(getattr(sample, name)) for meter, name in zip(self._odometers, _COUNTERS, strict=True)]
        self.rows.add(
            sample.time_ns,
            [
                *(number(None if is_stopped else getattr(sample, name)) for name in _MEANS[:4]),
                number(None if is_stopped else mean(cores)),
                number(None if is_stopped else mean(blocked)),
                number(None if is_stopped else mean(system)),
                number(None if is_stopped else mean(delays)),
                *counters,
                len(workers),
                sample.worker_pids_changed,
            ],
        )
        self._growth.add(sample)
        seen_on = [worker.last_core for worker in workers if worker.last_core is not None]
        self._core_seen_ns.update(dict.fromkeys(seen_on, sample.time_ns))
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
        threads = [worker.threads for worker in workers if worker.threads is not None]
        active = mean(worker.active_threads for worker in workers if worker.active_threads is not None)
        affinities = [worker.affinity_cores for worker in workers if worker.affinity_cores is not None]
        rss = mean(worker.rss_bytes for worker in workers if worker.rss_bytes is not None)
        cores, system = (self._mean(name, start_ns, now_ns) for name in ("worker_cores", "worker_system_cores"))
        count = int(Counter(counts).most_common(1)[0][0])
        return WorkerTotals(
            count=count,
            cpu_cores=cores,
            blocked_share=self._mean("worker_blocked_share", start_ns, now_ns),
            threads=sum(threads) if threads else None,
            rss_bytes=None if rss is None else round(rss),
            min_affinity_cores=min(affinities, default=None),
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


def with_batches(workers: WorkerTotals | None, fetched: FetchTotals | None) -> WorkerTotals | None:
    """The workers as /proc shows them, and what they say of their batches themselves."""
    if fetched is None:
        return workers
    return replace(
        workers or WorkerTotals(count=fetched.workers),
        busy_share=fetched.busy_share,
        batch_seconds=fetched.batch_seconds,
        batch_cpu_seconds=fetched.batch_cpu_seconds,
        batch_seconds_sigma=fetched.batch_seconds_sigma,
        newest_batch_seconds=fetched.newest_batch_seconds,
    )
