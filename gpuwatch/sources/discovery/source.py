"""Discovery as a source: who trains on this machine, about every 3 s, a few milliseconds at a time."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from gpuwatch.samples import Candidate, Candidates
from gpuwatch.sources.discovery.access import Access, CanRead, try_to_read
from gpuwatch.sources.discovery.census import Census, all_pids
from gpuwatch.sources.discovery.gpu_pids import GpuPids
from gpuwatch.sources.discovery.judge import Signs, Verdict, judge
from gpuwatch.sources.discovery.process import Process
from gpuwatch.sources.host.identify import login_name
from gpuwatch.sources.host.process import read_program
from gpuwatch.sources.host.started_with import HOOK_SILENT, carries_hook

_PERIOD_NS: Final = 3_000_000_000
_BUDGET_NS: Final = 4_000_000
"""Spent at most in one call, less one look or try: the monitor's thread has other sources to ask."""
_REST_NS: Final = 20_000_000


class DiscoverySource:
    """Finds the processes that train.

    A machine with 3000 processes is first seen whole after 20 ms of work, spread over calls.

    Args:
        proc_root: /proc, or a recorded one.
        clock: CLOCK_MONOTONIC in nanoseconds; measures what a call has spent.
        hooked: gives the pids of the trainers that have a hook.
        gpu_processes: gives the GPUs' uuids by the pids of their compute processes, as NVML reports them: the host's.
        can_read: tries whether a process's stacks can be read; None tries it with the reader.
        user: whose processes are looked at; root looks at all.
    """

    name = "discovery"

    def __init__(
        self,
        *,
        proc_root: Path = Path("/proc"),
        clock: Callable[[], int] = time.monotonic_ns,
        hooked: Callable[[], Iterable[int]] = tuple,
        gpu_processes: Callable[[], Mapping[int, tuple[str, ...]]] = dict,
        can_read: CanRead | None = None,
        user: int | None = None,
    ) -> None:
        user = _effective_user() if user is None else user
        self._proc_root = proc_root
        self._clock = clock
        self._hooked = hooked
        self._gpu_processes = gpu_processes
        self._census = Census(proc_root, user)
        self._access = Access(can_read or partial(try_to_read, proc_root=proc_root), user)
        self._gpu_pids = GpuPids(proc_root)
        self._signs = Signs()
        self._due_ns: int | None = 0 if sys.platform == "linux" else None
        self._pass_ns: int | None = None
        """When the pass that is on began; None between two."""

    def fileno(self) -> int | None:
        """Nothing to wait for: processes come unannounced."""
        return None

    def due_ns(self) -> int | None:
        """The next pass, or the next piece of this one."""
        return self._due_ns

    def collect(self, now_ns: int) -> list[Candidates]:
        """All candidates, once a pass is through; nothing before."""
        if self._due_ns is None or now_ns < self._due_ns:
            return []
        spent_at_ns = self._clock() + _BUDGET_NS
        if self._pass_ns is None:
            self._begin(now_ns)
            self._pass_ns = now_ns
        verdicts = self._go_on(self._pass_ns, lambda: self._clock() >= spent_at_ns)
        if verdicts is None:
            self._due_ns = now_ns + _REST_NS
            return []
        self._due_ns = self._pass_ns + _PERIOD_NS
        self._pass_ns = None
        asked = self._census.asked
        found = [asked(each.process.pid, partial(self._candidate, each), None) for each in verdicts]
        candidates = [each for each in found if each is not None]
        listed = {each.pid for each in candidates}
        failures = ((pid, cause) for pid, cause in self._census.failures.items() if pid not in listed)
        return [Candidates(now_ns, (*candidates, *(self._unknown(pid, cause) for pid, cause in failures)))]

    def look_now(self) -> Candidates:
        """A whole pass at once, for who asks only once."""
        while True:
            for found in self.collect(max(self._clock(), self._due_ns or 0)):
                return found
            if self._due_ns is None:
                return Candidates(self._clock(), ())

    def close(self) -> None:
        """Nothing is held open; no pass begins any more."""
        self._due_ns = None

    def _begin(self, now_ns: int) -> None:
        self._census.update(all_pids(self._proc_root), now_ns)
        hooked = frozenset(self._hooked())
        gpus = self._gpu_pids.ours(self._gpu_processes())
        self._census.insist(hooked | gpus.keys())
        self._signs = Signs(
            hooked=hooked,
            gpus=gpus,
            cpu_use=self._census.cpu_use,
            has_training_threads=self._census.has_training_threads,
            torch_version=self._census.torch_version,
            carries_hook=self._carries_hook,
        )

    def _go_on(self, pass_ns: int, is_spent: Callable[[], bool]) -> list[Verdict] | None:
        """The verdicts of this pass, or None where they need another call."""
        if not self._census.inspect(pass_ns, is_spent):
            return None
        self._census.settle(pass_ns)
        verdicts = judge(self._census.processes, self._signs)
        self._access.forget_all_but({verdict.process.key for verdict in verdicts})
        for verdict in verdicts:
            process = verdict.process
            if process.pid in self._signs.hooked or not self._access.needs_try(process, pass_ns):
                continue
            if is_spent():
                return None
            self._access.attempt(process, pass_ns)
        return verdicts

    def _carries_hook(self, process: Process) -> bool:
        return self._census.asked(process.pid, lambda: carries_hook(self._proc_root, process.pid), False)

    def _unknown(self, pid: int, cause: str) -> Candidate:
        """A process of which it cannot be said whether it trains."""
        return Candidate(
            pid=pid,
            start_ticks=0,
            command=(f"process {pid}",),
            user="",
            age_seconds=0.0,
            rung="hardware",
            why="may train or not",
            workers=0,
            gpu_uuids=(),
            refusal=cause,
            climb=None,
        )

    def _candidate(self, verdict: Verdict) -> Candidate | None:
        process = verdict.process
        standing = self._access.standing(process, process.pid in self._signs.hooked)
        if standing is None:
            return None
        climb = HOOK_SILENT if standing.climb and self._carries_hook(process) else standing.climb
        return Candidate(
            pid=process.pid,
            start_ticks=process.stat.start_ticks,
            command=read_program(self._proc_root, process.pid) or (process.stat.command_name,),
            user=login_name(process.uid) or str(process.uid),
            age_seconds=self._census.age_seconds(process),
            rung=standing.rung,
            why=verdict.why,
            workers=verdict.workers,
            gpu_uuids=verdict.gpu_uuids,
            refusal=standing.refusal,
            climb=climb,
        )


def _effective_user() -> int:
    return os.geteuid() if hasattr(os, "geteuid") else 0
