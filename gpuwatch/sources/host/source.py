"""The host source: the machine once per interval, and each watched run with its workers."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from pathlib import Path

from gpuwatch.foreign import cpu_time_ns
from gpuwatch.procfs import read_stat
from gpuwatch.samples import HostSample, MachineFacts, Sample
from gpuwatch.sources.host.machine import (
    Cgroups,
    CpuReader,
    DiskNetworkReader,
    MemoryReader,
    NumaNodes,
    PortableReader,
    read_machine_facts,
    read_pressure,
    read_shared_memory,
)
from gpuwatch.sources.host.run import HostAccess, Run

_SHORTEST_INTERVAL_SECONDS = 0.5  # /proc counts CPU in 10 ms ticks: below this a worker's share is mostly rounding
_FACTS_INTERVAL_NS = 30_000_000_000
_READS_PER_INTERVAL = 5  # the poll is one of them; 2400 reads of 8 workers in a rule's 60 s
_READS_PER_SECOND = 100  # of all workers together: 8 us each, 25 us with cold caches
_REST_PER_COST = 100  # reading processes never takes over 1 % of a core, be there 3000 of them


def affinity_core_count(pid: int) -> int | None:
    """How many cores the kernel lets a process run on, cpusets included."""
    try:
        return len(os.sched_getaffinity(pid))
    except (OSError, AttributeError):  # ended; not offered by this system
        return None


class HostSource:
    """CPU, memory, pressure, disks and network of the machine, and the processes of the watched runs.

    Args:
        interval_seconds: time between polls, at least 0.5 s.
        proc_root: /proc, or a recorded one.
        cgroup_root: /sys/fs/cgroup, or a recorded one.
        sys_root: /sys, or a recorded one: its NUMA nodes and the GPUs' place in them.
        clock: CLOCK_MONOTONIC in nanoseconds.
        targets: the pids of the training processes to watch now.
        known_workers: pids that a run's own hook named as its DataLoader workers; torch names them itself only
            since pytorch#128448 (2024).
        affinity_cores: how many cores a pid may run on.
        cpu_clock: this thread's CPU time in nanoseconds, to hold the source's own cost down.
    """

    name = "host"

    def __init__(
        self,
        interval_seconds: float = 1.0,
        proc_root: Path = Path("/proc"),
        cgroup_root: Path = Path("/sys/fs/cgroup"),
        clock: Callable[[], int] = time.monotonic_ns,
        targets: Callable[[], Iterable[int]] = tuple,
        *,
        known_workers: Callable[[int], Collection[int]] = lambda pid: (),
        affinity_cores: Callable[[int], int | None] = affinity_core_count,
        cpu_clock: Callable[[], int] = cpu_time_ns,
        sys_root: Path = Path("/sys"),
    ) -> None:
        self._interval_ns = int(max(interval_seconds, _SHORTEST_INTERVAL_SECONDS) * 1e9)
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._targets = targets
        self._known_workers = known_workers
        self._proc_root = proc_root
        self._random = random.Random(0)  # jitter keeps the reads from locking to the training's period
        self._closed = False
        self._runs: dict[int, Run] = {}
        self._facts: MachineFacts | None = None
        self._machine_due_ns = self._runs_due_ns = self._read_due_ns = self._facts_due_ns = clock()
        self._portable: PortableReader | None = None
        if not os.access(f"{proc_root}/stat", os.R_OK):
            self._portable = PortableReader()
            return
        self._access = HostAccess(
            proc_root,
            Cgroups(proc_root, cgroup_root),
            os.sysconf("SC_CLK_TCK"),
            affinity_cores,
            NumaNodes(sys_root),
        )
        self._cpu = CpuReader(proc_root)
        self._memory = MemoryReader(proc_root)
        self._disk_network = DiskNetworkReader(proc_root)

    def fileno(self) -> int | None:
        """None: /proc announces nothing."""
        return None

    def due_ns(self) -> int | None:
        """The next poll, or the next read of the workers' states while there are workers."""
        if self._closed:
            return None
        due = min(self._machine_due_ns, self._runs_due_ns)
        return min(due, self._read_due_ns) if self._worker_count() else due

    def collect(self, now_ns: int) -> Iterable[Sample]:
        """What is due by `now_ns`; a process or file that cannot be read is missing or None."""
        if self._closed:
            return []
        samples: list[Sample] = []
        if now_ns >= self._machine_due_ns:
            self._machine_due_ns = self._next(self._machine_due_ns, now_ns)
            samples += self._read_machine()
        if now_ns >= self._runs_due_ns:
            began_cpu_ns = self._cpu_clock()
            samples += self._read_runs()
            rest_ns = _REST_PER_COST * (self._cpu_clock() - began_cpu_ns)
            self._runs_due_ns = max(self._next(self._runs_due_ns, now_ns), now_ns + rest_ns)
            self._read_due_ns = now_ns + self._read_pause_ns()
        elif now_ns >= self._read_due_ns and self._worker_count():
            self._read_due_ns = now_ns + self._read_pause_ns()
            for run in self._runs.values():
                run.workers.read_states()
        return samples

    def close(self) -> None:
        """Forgets what was watched; no file or process is held between polls."""
        self._closed = True
        self._runs.clear()

    def _next(self, due_ns: int, now_ns: int) -> int:
        """One interval on, in step with the beat unless a whole one was missed."""
        return due_ns + self._interval_ns if now_ns - due_ns < self._interval_ns else now_ns + self._interval_ns

    def _worker_count(self) -> int:
        return sum(len(run.workers) for run in self._runs.values())

    def _read_pause_ns(self) -> int:
        pause_ns = max(self._interval_ns / _READS_PER_INTERVAL, self._worker_count() * 1e9 / _READS_PER_SECOND)
        return int(pause_ns * self._random.uniform(0.8, 1.2))

    def _read_machine(self) -> list[Sample]:
        now_ns = self._clock()
        if self._portable:
            first, self._facts = self._facts is None, self._portable.facts(now_ns)
            return [self._facts, self._portable.read(now_ns)] if first else [self._portable.read(now_ns)]
        return [*self._new_facts(now_ns), self._host_sample(now_ns)]

    def _new_facts(self, now_ns: int) -> list[Sample]:
        """The facts at first, and again when cores, memory or the quota were changed while we ran."""
        if now_ns < self._facts_due_ns:
            return []
        self._facts_due_ns = now_ns + _FACTS_INTERVAL_NS
        facts = read_machine_facts(self._proc_root, self._access.cgroups, now_ns, self._access.nodes)
        if self._facts is not None and replace(self._facts, time_ns=now_ns) == facts:
            return []
        self._facts = facts
        return [facts]

    def _host_sample(self, now_ns: int) -> HostSample:
        cpu = self._cpu.read()
        memory = self._memory.read(now_ns)
        pressure = read_pressure(self._proc_root)
        rates = self._disk_network.read(now_ns)
        shm = read_shared_memory(self._proc_root, "self")
        return HostSample(
            time_ns=now_ns,
            cpu_percent=cpu.percent,
            cpu_percent_by_core=cpu.percent_by_core,
            cpu_iowait_percent=cpu.iowait_percent,
            load_1m=cpu.load_1m,
            memory_total_bytes=memory.total_bytes,
            memory_available_bytes=memory.available_bytes,
            swap_in_bytes_per_second=memory.swap_in_bytes_per_second,
            major_faults_per_second=memory.major_faults_per_second,
            pressure_cpu_percent=pressure.cpu_percent,
            pressure_io_percent=pressure.io_percent,
            pressure_memory_percent=pressure.memory_percent,
            disk_read_bytes_per_second=rates.disk_read_bytes_per_second,
            disk_write_bytes_per_second=rates.disk_write_bytes_per_second,
            disk_queue_length=rates.disk_queue_length,
            network_receive_bytes_per_second=rates.network_receive_bytes_per_second,
            network_send_bytes_per_second=rates.network_send_bytes_per_second,
            shm_total_bytes=shm.total_bytes,
            shm_used_bytes=shm.used_bytes,
        )

    def _read_runs(self) -> list[Sample]:
        if self._portable:
            return []
        targets = dict.fromkeys(self._targets())
        runs: dict[int, Run] = {}
        samples: list[Sample] = []
        for pid in targets:
            stat = read_stat(self._proc_root, pid)
            if stat is None:
                continue
            run = self._runs.get(pid)
            if run is None or run.start_ticks != stat.start_ticks:
                run = Run(pid, stat.start_ticks, self._access)
            runs[pid] = run
            samples.append(run.poll(stat, self._clock(), targets, self._known_workers(pid)))
        self._runs = runs
        return samples
