"""What /proc shows of the machine and of the run, once a second."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from dataclasses import dataclass
from operator import attrgetter

from gpuwatch.samples import (
    HostSample,
    ProcessSample,
    WorkerSample,
)
from gpuwatch.sources.simulator.scenarios import GIB
from tests.scenarios.job import MIB, Job
from tests.scenarios.loading import Fetch
from tests.scenarios.loop import Rank
from tests.scenarios.training import FIRST_PID, START_TICKS

PRESSURE_SECONDS = 10.0
SLICE_HZ = 250.0
"""Forced switches of a thread that shares its core: one in 4 ms."""


@dataclass(frozen=True, slots=True)
class Load:
    """What one rank wanted and got of the machine in a second."""

    main_wanted: float
    worker_wall: tuple[float, ...]  # share of the second that each worker spent computing
    worker_blocked: tuple[float, ...]
    reading: float


def overlap(start: float, end: float, first: float, last: float) -> float:
    """The part of one stretch that lies in another."""
    return max(0.0, min(end, last) - max(start, first))


class HostSensors:
    """The machine and the run's processes in /proc."""

    def __init__(self, job: Job, rng: random.Random) -> None:
        self._job = job
        self._rng = rng
        self._fetches: dict[int, list[Fetch]] = {}
        self._pressure_cpu = self._pressure_io = 0.0
        self._load_1m = 0.0
        self._periods = self._throttled = 0
        self._throttled_seconds = 0.0
        self._epochs: dict[int, int] = {}

    def change(self, job: Job) -> None:
        """Goes on as the machine of another job."""
        self._job = job

    def fetched(self, rank: int, fetches: list[Fetch]) -> None:
        """Batches that are made."""
        self._fetches.setdefault(rank, []).extend(fetches)

    def second(self, ranks: list[Rank], end: float, time_ns: int, generation: int) -> list[HostSample | ProcessSample]:
        """The samples of the second up to `end`."""
        job, host = self._job, self._job.host
        loads = [self._load(rank, end) for rank in ranks]
        threads = job.loading.threads
        wanted = [load.main_wanted + threads * sum(load.worker_wall) for load in loads]
        limit = min(host.quota or math.inf, host.cores)
        own = min(sum(wanted), limit)
        foreign = min(host.foreign_cores, max(host.cores - own, host.cores * _part(host.foreign_cores, sum(wanted))))
        got = min(1.0, own / max(sum(wanted), 1e-9))
        if own + foreign > host.cores:
            got *= (host.cores - foreign) / own
        crowd = (sum(wanted) + host.foreign_cores) / host.cores
        self._throttle(sum(wanted))
        blocked = sum(sum(load.worker_blocked) for load in loads) + sum(load.reading for load in loads)
        self._feel(sum(wanted) + host.foreign_cores, loads)
        self._load_1m += (sum(wanted) + host.foreign_cores + blocked - self._load_1m) / 20.0
        processes = [
            self._process(rank, load, got, crowd, time_ns, generation) for rank, load in zip(ranks, loads, strict=True)
        ]
        busy = min(100.0, 100.0 * (sum(wanted) * got + foreign) / host.cores + abs(self._rng.gauss(0, 0.6)))
        return [*processes, self._host(busy, blocked, time_ns, ranks)]

    def _load(self, rank: Rank, end: float) -> Load:
        start, workers = end - 1.0, self._job.loading.workers
        fetches = [*self._fetches.get(rank.index, []), *rank.cores.under_way(rank.queue)]
        wall, blocked = [0.0] * workers, [0.0] * workers
        for fetch in fetches:
            seconds = overlap(fetch.start, fetch.end, start, end)
            wall[fetch.worker] += seconds * fetch.computing_share
            blocked[fetch.worker] += seconds * (1.0 - fetch.computing_share)
        self._fetches[rank.index] = [fetch for fetch in fetches if end < fetch.end < math.inf]
        main = reading = 0.0
        for one in rank.log[bisect_right(rank.log, start, key=attrgetter("end")) :]:
            seconds = overlap(one.start, one.end, start, end)
            main += seconds * one.cores
            if one.phase in ("wait", "first-wait") and not workers:
                reading += seconds * (1.0 - one.cores)
        return Load(main, tuple(wall), tuple(blocked), reading)

    def _throttle(self, wanted: float) -> None:
        """Ten CFS periods a second; a period that asks for more than the quota holds ends throttled."""
        quota = self._job.host.quota
        if quota is None:
            return
        chance = min(1.0, max(0.0, (wanted / quota - 0.85) / 0.3))
        hit = sum(self._rng.random() < chance for _ in range(10))
        self._periods += 10
        self._throttled += hit
        self._throttled_seconds += hit * 0.1 * max(0.0, wanted - quota)

    def _feel(self, runnable: float, loads: list[Load]) -> None:
        """Pressure: the chance that some task stands in line; the kernel averages it over 10 s."""
        cores = self._job.host.cores
        in_line = 1.0 / (1.0 + math.exp(-(runnable - cores) / (0.04 * cores + 0.15)))
        waiting = 1.0
        for load in loads:
            for share in (*load.worker_blocked, load.reading):
                waiting *= 1.0 - min(1.0, share)
        rate = 1.0 - math.exp(-1.0 / PRESSURE_SECONDS)
        self._pressure_cpu += (100.0 * in_line - self._pressure_cpu) * rate
        self._pressure_io += (100.0 * (1.0 - waiting) - self._pressure_io) * rate

    def _process(
        self, rank: Rank, load: Load, got: float, crowd: float, time_ns: int, generation: int
    ) -> ProcessSample:
        job, host = self._job, self._job.host
        epochs, before = rank.queue.epochs, self._epochs.get(rank.index, 0)
        self._epochs[rank.index] = epochs
        changed = bool(before) and epochs > before and not job.loading.persistent and bool(job.loading.workers)
        workers = tuple(
            self._worker(rank, number, wall * got * job.loading.threads, blocked, epochs)
            for number, (wall, blocked) in enumerate(zip(load.worker_wall, load.worker_blocked, strict=True))
        )
        main = min(1.0, load.main_wanted * got + 0.02)
        used = host.shm_used_share * host.shm_bytes + len(workers) * job.loading.prefetch * job.loading.batch_bytes
        switches = sum(SLICE_HZ * min(1.0, max(0.0, crowd - 1.0)) * (one.cpu_cores or 0.0) for one in workers)
        # A core that two threads want lets each stand in line; on a machine with room the wake-ups alone cost a little.
        in_line = load.main_wanted * (1.0 - 1.0 / max(1.0, 1.0 + 0.6 * (crowd - 1.0))) + 0.002
        return ProcessSample(
            time_ns=time_ns,
            pid=FIRST_PID + rank.index + 100 * generation,
            start_ticks=START_TICKS,
            state="R" if main > 0.5 else "S",
            command="python train.py",
            main_thread_cores=round(main, 3),
            tree_cores=round(main + sum(one.cpu_cores or 0.0 for one in workers), 3),
            workers=workers,
            worker_pids_changed=changed,
            affinity_cores=host.cores,
            cpu_quota_cores=host.quota,
            cpu_capacity_cores=min(host.quota or math.inf, float(host.cores)),
            cgroup_periods=self._periods if host.quota else None,
            cgroup_throttled_periods=self._throttled if host.quota else None,
            cgroup_throttled_seconds=self._throttled_seconds if host.quota else None,
            involuntary_switches_per_second=round(switches + 4.0 * len(workers), 1),
            run_delay_share=round(in_line, 4),
            rss_bytes=6 * GIB,
            read_bytes_per_second=0.0,
            write_bytes_per_second=0.0,
            shm_total_bytes=host.shm_bytes,
            shm_used_bytes=round(used),
        )

    def _worker(self, rank: Rank, number: int, cores: float, blocked: float, epochs: int) -> WorkerSample:
        job = self._job
        threads = job.loading.threads
        pid = 9000 + 100 * rank.index + number + (50 * epochs if not job.loading.persistent else 0)
        return WorkerSample(
            pid=pid,
            cpu_cores=round(cores, 3),
            state="R" if cores > 0.5 else "D" if blocked > 0.5 else "S",
            blocked_share=round(min(1.0, blocked), 3),
            threads=threads + 1,
            rss_bytes=900 * MIB,
            affinity_cores=job.host.cores,
            # Threads that take turns on a core spend much of it in futex and the scheduler.
            system_cores=round(cores * (0.35 if threads > 1 else 0.08), 3),
            last_core=self._rng.randrange(job.host.cores),
            active_threads=threads if cores > 0.02 else 0,
            private_dirty_bytes=600 * MIB + self._rng.randrange(MIB),
        )

    def _host(self, busy: float, blocked: float, time_ns: int, ranks: list[Rank]) -> HostSample:
        host, loading = self._job.host, self._job.loading
        used = 12 * GIB + len(ranks) * (6 * GIB + loading.workers * 900 * MIB)
        shm = host.shm_used_share * host.shm_bytes + len(ranks) * loading.workers * loading.prefetch * (
            loading.batch_bytes
        )
        return HostSample(
            time_ns=time_ns,
            cpu_percent=round(busy, 1),
            cpu_percent_by_core=(round(busy, 1),) * host.cores,
            cpu_iowait_percent=round(min(100.0 - busy, 100.0 * blocked / host.cores), 1),
            load_1m=round(self._load_1m, 2),
            memory_total_bytes=host.memory_bytes,
            memory_available_bytes=max(GIB, host.memory_bytes - used),
            swap_in_bytes_per_second=0.0,
            major_faults_per_second=0.0,
            pressure_cpu_percent=round(self._pressure_cpu, 1),
            pressure_io_percent=round(self._pressure_io, 1),
            pressure_memory_percent=0.0,
            disk_read_bytes_per_second=80e6 * blocked,
            disk_write_bytes_per_second=120_000.0,
            disk_queue_length=round(0.1 + blocked, 2),
            shm_total_bytes=host.shm_bytes,
            shm_used_bytes=round(shm),
        )


def _part(foreign: float, own: float) -> float:
    return foreign / max(foreign + own, 1e-9)
