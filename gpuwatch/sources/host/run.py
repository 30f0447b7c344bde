"""One training process and its tree, read once per poll."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Container
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gpuwatch.samples import ProcessSample
from gpuwatch.sources.host.cgroup import Cgroups, CpuLimit, MemoryLimit, read_throttling
from gpuwatch.sources.host.memory import read_shared_memory
from gpuwatch.sources.host.numa import NumaNodes
from gpuwatch.sources.host.process import (
    ProcessKey,
    ProcessStat,
    TreeCpu,
    TreeWalker,
    boot_ticks,
    read_arguments,
    read_stat,
    tree_cpu_ticks,
)
from gpuwatch.sources.host.procfs import in_time, keyed_int, rate, read_once
from gpuwatch.sources.host.started_with import read_environment, read_libraries
from gpuwatch.sources.host.workers import WORKER_NAME, Workers

_SLOW_LANE_NS = 5_000_000_000  # limits, command line, all threads' children: what seldom changes
_STARTED_WITH_NS = 60_000_000_000


@dataclass(frozen=True, slots=True)
class HostAccess:
    """How the host is reached: the seams of every reader of a process."""

    proc_root: Path
    cgroups: Cgroups
    ticks_per_second: int
    affinity_cores: Callable[[int], int | None]
    nodes: NumaNodes


class _Counters(NamedTuple):
    """Growing counters of a tree at one poll."""

    read_ns: int
    boot_ticks: int | None
    cpu: dict[ProcessKey, TreeCpu]
    main_run_ns: int | None
    main_delay_ns: int | None
    storage: dict[ProcessKey, tuple[int | None, int | None]]  # (read, written) bytes


class _SlowFacts(NamedTuple):
    """What is read every 5 s only."""

    read_ns: int
    command: str | None
    cpu_limit: CpuLimit
    memory_limit: MemoryLimit


class Run:
    """Reads one training process, named by pid and start time, poll after poll."""

    def __init__(self, pid: int, start_ticks: int, access: HostAccess) -> None:
        self.pid = pid
        self.start_ticks = start_ticks
        self.workers = Workers(access.proc_root, access.ticks_per_second, access.affinity_cores)
        self._access = access
        self._walker = TreeWalker(access.proc_root)
        self._previous: _Counters | None = None
        self._slow: _SlowFacts | None = None
        self._environment: tuple[tuple[str, str], ...] | None = None
        self._libraries: tuple[str, ...] | None = None
        self._started_with_due_ns = 0

    def poll(
        self, stat: ProcessStat, now_ns: int, other_runs: Container[int], known_workers: Collection[int]
    ) -> ProcessSample:
        """The process and all below it that belongs to no other run (Lightning's rank 0 starts the other ranks)."""
        slow, thorough = self._slow, False
        if slow is None or now_ns - slow.read_ns >= _SLOW_LANE_NS:
            slow, thorough = self._read_slow(now_ns), True
            self._slow = slow
        tree = self._read_tree(stat, other_runs, thorough)
        workers = {
            pid: below for pid, below in tree.items() if pid != self.pid and _is_worker(pid, tree, known_workers)
        }
        worker_samples = self.workers.poll(workers, now_ns, thorough)
        counters = self._count(tree, [self.pid, *workers], now_ns)
        previous, self._previous = self._previous, counters
        throttling = read_throttling(slow.cpu_limit)
        shm = read_shared_memory(self._access.proc_root, self.pid)
        affinity = self._access.affinity_cores(self.pid)
        main_thread_cores, run_delay_share = _main_thread_shares(counters, previous)
        return ProcessSample(
            time_ns=now_ns,
            pid=self.pid,
            start_ticks=self.start_ticks,
            state=stat.state,
            command=slow.command,
            main_thread_cores=main_thread_cores,
            tree_cores=self._tree_cores(counters, previous),
            workers=worker_samples,
            worker_pids_changed=self.workers.changed,
            affinity_cores=affinity,
            cpu_quota_cores=slow.cpu_limit.quota_cores,
            cpu_capacity_cores=_capacity(affinity, slow.cpu_limit),
            cgroup_periods=throttling.periods,
            cgroup_throttled_periods=throttling.throttled_periods,
            cgroup_throttled_seconds=throttling.throttled_seconds,
            involuntary_switches_per_second=self.workers.involuntary_switches_per_second,
            run_delay_share=run_delay_share,
            rss_bytes=stat.rss_pages * os.sysconf("SC_PAGE_SIZE"),
            read_bytes_per_second=_storage_rate(counters, previous, 0),
            write_bytes_per_second=_storage_rate(counters, previous, 1),
            shm_total_bytes=shm.total_bytes,
            shm_used_bytes=shm.used_bytes,
            cgroup_memory_limit_bytes=slow.memory_limit.limit_bytes,
            cgroup_memory_used_bytes=slow.memory_limit.used_bytes,
            age_seconds=self._age(counters.boot_ticks),
            environment=self._environment,
            libraries=self._libraries,
            node_cores=self._access.nodes.by_node(
                [(stat.last_core, main_thread_cores), *((each.last_core, each.cpu_cores) for each in worker_samples)]
            ),
        )

    def _age(self, boot_ticks_now: int | None) -> float | None:
        if boot_ticks_now is None:
            return None
        return max(0.0, (boot_ticks_now - self.start_ticks) / self._access.ticks_per_second)

    def _read_tree(self, stat: ProcessStat, other_runs: Container[int], thorough: bool) -> dict[int, ProcessStat]:
        tree = {self.pid: stat}
        for pid in self._walker.descendants(self.pid, other_runs, self.workers.pids(), thorough):
            below = read_stat(self._access.proc_root, pid)
            if below is not None:
                tree[pid] = below
        return tree

    def _read_slow(self, now_ns: int) -> _SlowFacts:
        if now_ns >= self._started_with_due_ns:  # again: a launcher may yet exec the training
            self._started_with_due_ns = now_ns + _STARTED_WITH_NS
            self._environment = read_environment(self._access.proc_root, self.pid)
            self._libraries = read_libraries(self._access.proc_root, self.pid)
        return _SlowFacts(
            now_ns,
            " ".join(read_arguments(self._access.proc_root, self.pid)) or None,
            self._access.cgroups.cpu_limit(self.pid),
            self._access.cgroups.memory_limit(self.pid),
        )

    def _count(self, tree: dict[int, ProcessStat], storage_pids: list[int], now_ns: int) -> _Counters:
        proc_root = self._access.proc_root
        main_run_ns, main_delay_ns = self._main_thread()
        storage: dict[ProcessKey, tuple[int | None, int | None]] = {}
        # All of a run by one thread: 16 workers one by one would cost 0.8 ms more.
        files = in_time(self.pid, lambda: [read_once(f"{proc_root}/{pid}/io", 512) for pid in storage_pids])
        for pid, found in zip(storage_pids, files or [None] * len(storage_pids), strict=True):
            io = found or b""
            storage[pid, tree[pid].start_ticks] = keyed_int(io, b"read_bytes:"), keyed_int(io, b"write_bytes:")
        return _Counters(
            now_ns,
            boot_ticks(proc_root, self._access.ticks_per_second),
            {(pid, s.start_ticks): TreeCpu(s.own_ticks, s.reaped_ticks) for pid, s in tree.items()},
            main_run_ns,
            main_delay_ns,
            storage,
        )

    def _main_thread(self) -> tuple[int | None, int | None]:
        """(time on a core, time runnable without one) of the main thread, in nanoseconds."""
        raw = read_once(f"{self._access.proc_root}/{self.pid}/schedstat", 128)
        try:
            run_ns, delay_ns, slices = (int(word) for word in (raw or b"").split())
        except ValueError:
            run_ns = delay_ns = slices = 0
        if slices:  # all zeros where the kernel was built or booted without this account
            return run_ns, delay_ns
        stat = read_stat(f"{self._access.proc_root}/{self.pid}/task", self.pid)
        if stat is None:
            return None, None
        return stat.own_ticks * 1_000_000_000 // self._access.ticks_per_second, None

    def _tree_cores(self, counters: _Counters, previous: _Counters | None) -> float | None:
        if previous is None or counters.read_ns <= previous.read_ns:
            return None
        ticks = tree_cpu_ticks(counters.cpu, previous.cpu, previous.boot_ticks)
        seconds = (counters.read_ns - previous.read_ns) / 1e9
        return ticks / self._access.ticks_per_second / seconds


def _is_worker(pid: int, tree: dict[int, ProcessStat], known_workers: Collection[int]) -> bool:
    """By torch's name for it, which what a worker forks in its turn inherits, or by the hook's word."""
    if pid in known_workers:
        return True
    parent = tree.get(tree[pid].parent)
    return tree[pid].command_name == WORKER_NAME and (parent is None or parent.command_name != WORKER_NAME)


def _main_thread_shares(counters: _Counters, previous: _Counters | None) -> tuple[float | None, float | None]:
    if previous is None:
        return None, None
    nanoseconds = counters.read_ns - previous.read_ns
    return (
        rate(counters.main_run_ns, previous.main_run_ns, nanoseconds),
        rate(counters.main_delay_ns, previous.main_delay_ns, nanoseconds),
    )


def _storage_rate(counters: _Counters, previous: _Counters | None, direction: int) -> float | None:
    """None while workers come or go: an ended one's bytes move into its parent's file, unlike CPU times unmarked."""
    if previous is None or counters.storage.keys() != previous.storage.keys():
        return None
    seconds = (counters.read_ns - previous.read_ns) / 1e9
    rates = [rate(now[direction], previous.storage[key][direction], seconds) for key, now in counters.storage.items()]
    known = [value for value in rates if value is not None]
    return sum(known) if len(known) == len(rates) else None


def _capacity(affinity_cores: int | None, limit: CpuLimit) -> float | None:
    """min(affinity, quota); unknown as soon as one of the two is."""
    if affinity_cores is None or not limit.known:
        return None
    return float(affinity_cores) if limit.quota_cores is None else min(affinity_cores, limit.quota_cores)
