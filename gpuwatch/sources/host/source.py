"""The host source: the machine once per interval, and each watched run: a training process, its tree and its workers.

Expensive reads of workers (their threads' CPU, their private memory) are done round-robin.
"""

from __future__ import annotations

import os
import random
import time
from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from gpuwatch.foreign import cpu_time_ns, in_time, read_arguments, read_of
from gpuwatch.procfs import (
    ProcessKey,
    ProcessStat,
    TreeWalker,
    boot_ticks,
    keyed_int,
    listed,
    parse_stat,
    rate,
    read_once,
    read_stat,
    to_int,
)
from gpuwatch.samples import MachineFacts, ProcessSample, Sample, WorkerSample
from gpuwatch.sources.host.identify import read_environment, read_libraries
from gpuwatch.sources.host.machine import (
    Cgroups,
    CpuLimit,
    MachineReader,
    MemoryLimit,
    NumaNodes,
    PortableReader,
    read_machine_facts,
    read_shared_memory,
    read_throttling,
)

WORKERS_IN_TURN = 8
"""Workers of one loader are alike: of more than these the rest is never asked."""
WORKERS_MEASURED = 2
"""The memory of only two is read: the kernel walks all pages for it, 14 ms for 1 GB."""
ACTIVE_SHARE = 0.1
"""Of the busiest thread's time: the thread that sends a worker's batches runs as well, and fights for nothing."""
_MOST_THREADS = 512
_MEMORY_NS = 30_000_000_000
_MOST_RESIDENT_BYTES = 4 << 30


class Turns:
    """Takes one worker's turn every few seconds, so that a poll never pays for all of them.

    A turn of a worker with 64 threads costs 0.9 ms in each of two polls, every 5 s. Memory is read every 30 s,
    which costs 14 ms for each GB, and not at all above 4 GB.
    """

    def __init__(self, proc_root: Path | str) -> None:
        self._proc_root = proc_root
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._place = self._memory_place = 0
        self._memory_due_ns = 0
        self._watched: tuple[ProcessKey, dict[int, int]] | None = None
        self._active: dict[ProcessKey, int] = {}
        self._private: dict[ProcessKey, int] = {}

    def take(self, stats: Mapping[int, ProcessStat], now_ns: int, thorough: bool) -> None:
        """Ends the turn that the previous poll began; a `thorough` poll begins the next worker's."""
        keys = sorted((pid, stat.start_ticks) for pid, stat in stats.items())
        present = set(keys)
        self._active = {key: count for key, count in self._active.items() if key in present}
        self._private = {key: size for key, size in self._private.items() if key in present}
        watched, self._watched = self._watched, None
        if watched is not None and watched[0] in present:
            self._note_active(watched[0], watched[1])
        if not thorough or not keys:
            return
        key = keys[self._place % min(len(keys), WORKERS_IN_TURN)]
        self._place += 1
        self._watched = key, self._threads(key[0])
        if now_ns >= self._memory_due_ns:
            self._memory_due_ns = now_ns + _MEMORY_NS
            self._measure(keys[self._memory_place % min(len(keys), WORKERS_MEASURED)], stats)
            self._memory_place += 1

    def _measure(self, key: ProcessKey, stats: Mapping[int, ProcessStat]) -> None:
        private = None
        if stats[key[0]].rss_pages * self._page_bytes <= _MOST_RESIDENT_BYTES:
            private = private_dirty_bytes(self._proc_root, key[0])
        if private is None:
            self._private.pop(key, None)
        else:
            self._private[key] = private

    def active_threads(self, key: ProcessKey) -> int | None:
        """Threads of a worker that were at work in its last turn's second; None before it had one."""
        return self._active.get(key)

    def private_dirty_bytes(self, key: ProcessKey) -> int | None:
        """Its own memory at its last turn."""
        return self._private.get(key)

    def _note_active(self, key: ProcessKey, before: Mapping[int, int]) -> None:
        spent = [ticks - before.get(thread, 0) for thread, ticks in self._threads(key[0]).items()]
        if not before or not spent:
            self._active.pop(key, None)  # its threads could not be listed, which is not that none ran
            return
        least = max(1.0, ACTIVE_SHARE * max(spent))
        self._active[key] = sum(ticks >= least for ticks in spent)

    def _threads(self, pid: int) -> dict[int, int]:
        """CPU ticks by thread."""
        folder = f"{self._proc_root}/{pid}/task"
        ticks = {}
        for name in listed(folder)[:_MOST_THREADS]:
            stat = parse_stat(read_once(f"{folder}/{name}/stat", 1024))
            if stat is not None and name.isdecimal():
                ticks[int(name)] = stat.own_ticks
        return ticks


def private_dirty_bytes(proc_root: Path | str, pid: int) -> int | None:
    """Memory that only this process has and that no file holds: what an object that is touched after a fork costs.

    Resident memory does not show it, because a page counts there before the copy and after. Clean pages are left out:
    those are the page cache of mapped files.
    """
    raw = read_of(proc_root, pid, "smaps_rollup", 4096)
    kibibytes = keyed_int(raw, b"Private_Dirty:") if raw else None
    return None if kibibytes is None else kibibytes * 1024


WORKER_NAME = "pt_data_worker"  # set by torch/utils/data/_utils/worker.py

_READS_KEPT = 10
_FEWEST_READS = 5


class _Worker:
    """What is remembered of one worker between polls."""

    __slots__ = (
        "affinity_cores",
        "blocked",
        "delay_ns",
        "delay_share",
        "own_ticks",
        "read_ns",
        "switch_rate",
        "switches",
        "switches_ns",
        "system_ticks",
    )

    def __init__(self) -> None:
        self.blocked: deque[bool] = deque(maxlen=_READS_KEPT)
        self.own_ticks: int | None = None
        self.system_ticks: int | None = None
        self.read_ns = 0
        self.affinity_cores: int | None = None
        self.switches: int | None = None
        self.switches_ns = 0
        self.switch_rate: float | None = None
        self.delay_ns: int | None = None
        self.delay_share: float | None = None


class Workers:
    """Follows the workers of one run from poll to poll."""

    def __init__(
        self, proc_root: Path | str, ticks_per_second: int, affinity_cores: Callable[[int], int | None]
    ) -> None:
        self._proc_root = proc_root
        self._ticks_per_second = ticks_per_second
        self._affinity_cores = affinity_cores
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._known: dict[ProcessKey, _Worker] = {}
        self._ever_seen: set[ProcessKey] = set()
        self._turns = Turns(proc_root)
        self.changed = False
        self.involuntary_switches_per_second: float | None = None

    def __len__(self) -> int:
        return len(self._known)

    def pids(self) -> set[int]:
        """The workers of the last poll."""
        return {pid for pid, _ in self._known}

    def read_states(self) -> None:
        """Reads each worker's state between polls: D shows only while it lasts."""
        for (pid, _), worker in self._known.items():
            stat = read_stat(self._proc_root, pid)
            if stat is not None:
                worker.blocked.append(stat.state == "D")

    def poll(self, stats: Mapping[int, ProcessStat], now_ns: int, thorough: bool) -> tuple[WorkerSample, ...]:
        """The workers among `stats` now; sets `changed` and `involuntary_switches_per_second` for this poll.

        `changed`: a worker is new although others were seen before, so workers are started again and again.
        """
        keys = {(pid, stat.start_ticks) for pid, stat in stats.items()}
        self.changed = bool(self._ever_seen) and not self._ever_seen.issuperset(keys)
        # Of those that ended only the latest generation is kept: a month of epochs must not grow this set.
        if keys:
            self._ever_seen = keys if self.changed else self._ever_seen | keys
        known, self._known = self._known, {}
        self._turns.take(stats, now_ns, thorough)
        samples = []
        for pid, stat in sorted(stats.items()):
            key = pid, stat.start_ticks
            worker = self._known[key] = known.get(key) or _Worker()
            if thorough or key not in known:
                self._read_slow(pid, worker, now_ns)
            samples.append(self._sample(pid, stat, worker, now_ns))
        rates = [worker.switch_rate for worker in self._known.values() if worker.switch_rate is not None]
        self.involuntary_switches_per_second = sum(rates) if rates else None
        return tuple(samples)

    def _read_slow(self, pid: int, worker: _Worker, now_ns: int) -> None:
        """What is renewed every few seconds only: status is the most expensive of a process's files, 11 us."""
        status = read_once(f"{self._proc_root}/{pid}/status") or b""
        switches = keyed_int(status, b"nonvoluntary_ctxt_switches:")
        worker.switch_rate = rate(switches, worker.switches, (now_ns - worker.switches_ns) / 1e9)
        _, delay_ns = run_times_ns(self._proc_root, pid)
        worker.delay_share = rate(delay_ns, worker.delay_ns, now_ns - worker.switches_ns)
        worker.delay_ns, worker.switches, worker.switches_ns = delay_ns, switches, now_ns
        worker.affinity_cores = self._affinity_cores(pid)

    def _sample(self, pid: int, stat: ProcessStat, worker: _Worker, now_ns: int) -> WorkerSample:
        worker.blocked.append(stat.state == "D")
        seconds, key = (now_ns - worker.read_ns) / 1e9, (pid, stat.start_ticks)
        ticks_rate = rate(stat.own_ticks, worker.own_ticks, seconds)
        system_rate = rate(stat.system_ticks, worker.system_ticks, seconds)
        worker.own_ticks, worker.system_ticks, worker.read_ns = stat.own_ticks, stat.system_ticks, now_ns
        reads = len(worker.blocked)
        return WorkerSample(
            pid=pid,
            cpu_cores=None if ticks_rate is None else ticks_rate / self._ticks_per_second,
            state=stat.state,
            blocked_share=sum(worker.blocked) / reads if reads >= _FEWEST_READS else None,
            threads=stat.threads,
            rss_bytes=stat.rss_pages * self._page_bytes,
            affinity_cores=worker.affinity_cores,
            system_cores=None if system_rate is None else system_rate / self._ticks_per_second,
            last_core=stat.last_core,
            active_threads=self._turns.active_threads(key),
            private_dirty_bytes=self._turns.private_dirty_bytes(key),
            run_delay_share=worker.delay_share,
        )


def run_times_ns(proc_root: Path | str, pid: int) -> tuple[int | None, int | None]:
    """(time on a core, time runnable without one) of the main thread; None where the kernel keeps no such account."""
    words = (read_once(f"{proc_root}/{pid}/schedstat", 128) or b"").split()
    has_account = len(words) == 3 and to_int(words[2])  # all zeros where it was built or booted without it
    return (to_int(words[0]), to_int(words[1])) if has_account else (None, None)


_SLOW_LANE_NS = 5_000_000_000  # limits, command line, all threads' children: what rarely changes
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
        run_ns, delay_ns = run_times_ns(self._access.proc_root, self.pid)
        if run_ns is not None:
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


class TreeCpu(NamedTuple):
    """CPU ticks of one process of a tree at one time."""

    own_ticks: int
    reaped_ticks: int


def tree_cpu_ticks(
    current: Mapping[ProcessKey, TreeCpu], previous: Mapping[ProcessKey, TreeCpu], previous_boot_ticks: int | None
) -> int:
    """CPU ticks that a tree spent between two polls, with what processes spent that ended in between.

    A process that ends hands its time to its parent's `reaped_ticks`, so what the survivors reaped, less what
    was counted of the vanished before, is the rest. A process that only appears late (its forking thread was
    not asked) brings ticks from before the previous poll: those started earlier are counted from now on.
    """
    spent = reaped = 0
    for key, cpu in current.items():
        before = previous.get(key)
        if before is not None:
            spent += max(0, cpu.own_ticks - before.own_ticks)
            reaped += max(0, cpu.reaped_ticks - before.reaped_ticks)
        elif previous_boot_ticks is not None and key[1] >= previous_boot_ticks:
            spent += cpu.own_ticks
            reaped += cpu.reaped_ticks
    vanished = sum(sum(cpu) for key, cpu in previous.items() if key not in current)
    return spent + max(0, reaped - vanished)


_SHORTEST_INTERVAL_SECONDS = 0.5  # /proc counts CPU in 10 ms ticks: below this a worker's share is mostly rounding
_FACTS_INTERVAL_NS = 30_000_000_000
_READS_PER_INTERVAL = 5  # the poll is one of them; 2400 reads of 8 workers in a rule's 60 s
_READS_PER_SECOND = 100  # of all workers together: 8 us each, 25 us with cold caches
_REST_PER_COST = 100  # reading processes never takes over 1% of a core, be there 3000 of them


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
        self._machine = MachineReader(proc_root)

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
        return [*self._new_facts(now_ns), self._machine.read(now_ns)]

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
