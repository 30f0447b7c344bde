"""Discovery as a source: who trains on this machine and how well it can be seen, about every 3 s, some ms at a time."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from gpuwatch.foreign import read_program
from gpuwatch.procfs import PROC, ProcessKey, all_pids
from gpuwatch.reader.refusals import CannotReadError, Reason
from gpuwatch.samples import Candidate, Candidates, Visibility
from gpuwatch.sources.census import Census, Process, Signs, Verdict, judge
from gpuwatch.sources.host.identify import HOOK_SILENT, carries_hook, login_name, user_name

CanRead = Callable[[int], CannotReadError | None]
"""Tries to read a process: None where that works, else why it does not."""

HOW_TO_SEE_EXACTLY: Final = "start it with `gpuwatch run` next time, which measures every step and wait"
_RETRY_NS: Final = 30_000_000_000
_LAST_RETRY_NS: Final = 3_600_000_000_000
_TRY_SECONDS: Final = 0.25
"""CPU time of one try, in which the monitor's thread does nothing else; 2 to 30 ms are usual."""
_SOON_NS: Final = 2_000_000_000
_GONE = (Reason.GONE, Reason.ZOMBIE)


class Prospect(NamedTuple):
    """How well a process can be seen, why not better, and how to see more."""

    visibility: Visibility
    refusal: str | None = None
    how_to_see_more: str | None = None


class _Try(NamedTuple):
    time_ns: int
    error: CannotReadError | None
    pause_ns: int = _RETRY_NS


class Access:
    """Tries each candidate once, a few milliseconds each, and those that were refused again now and then.

    Args:
        can_read: the try.
        user: gpuwatch's own; root may read everybody's.
    """

    def __init__(self, can_read: CanRead, user: int) -> None:
        self._can_read = can_read
        self._user = user
        self._tries: dict[ProcessKey, _Try] = {}

    def needs_try(self, process: Process, now_ns: int) -> bool:
        """Whether nothing is known of it, or a refusal has grown old."""
        if self._is_foreign(process):
            return False
        known = self._tries.get(process.key)
        if known is None:
            return True
        if known.error is None:
            return False
        return now_ns - known.time_ns >= known.pause_ns

    def attempt(self, process: Process, now_ns: int) -> None:
        """Tries to read it, at growing intervals where what it holds is the reason for the refusal."""
        before, error = self._tries.get(process.key), self._can_read(process.pid)
        pause_ns = _RETRY_NS
        if error is not None and error.reason is Reason.NOT_READY:
            pause_ns = _SOON_NS
        elif error is not None and error.is_lasting and before is not None:
            pause_ns = min(4 * before.pause_ns, _LAST_RETRY_NS)
        self._tries[process.key] = _Try(now_ns, error, pause_ns)

    def forget_all_but(self, keys: Collection[ProcessKey]) -> None:
        """Keeps only what is known of these."""
        self._tries = {key: known for key, known in self._tries.items() if key in keys}

    def prospect(self, process: Process, hooked: bool) -> Prospect | None:
        """How well it can be seen; None for one that has ended meanwhile."""
        if hooked:
            return Prospect("exact")
        if self._is_foreign(process):
            owner = user_name(process.uid)
            who = f"{owner} or as root" if process.uid else "root"
            return Prospect("hardware", f"belongs to {owner}", f"run gpuwatch as {who} (sudo)")
        known = self._tries.get(process.key)
        if known is None or known.error is None:
            return Prospect("sampled", how_to_see_more=HOW_TO_SEE_EXACTLY)
        if known.error.reason in _GONE:
            return None
        return Prospect("process", known.error.sentence, known.error.cure or HOW_TO_SEE_EXACTLY)

    def _is_foreign(self, process: Process) -> bool:
        return self._user not in (0, process.uid)


def try_to_read(pid: int, proc_root: Path = Path("/proc")) -> CannotReadError | None:
    """Attaches to a process and lets go of it: permission, build and version at once, without touching it.

    The reader takes 30 ms to import, which a machine without candidates is spared.
    """
    from gpuwatch.reader.attach import attach

    try:
        attach(pid, proc_root=proc_root, cpu_seconds=_TRY_SECONDS).close()
    except CannotReadError as error:
        return error
    return None


_PERIOD_NS: Final = 3_000_000_000
_BUDGET_NS: Final = 4_000_000
"""Spent at most in one call, less one read or try: the monitor's thread has other sources to ask."""
_REST_NS: Final = 20_000_000


class DiscoverySource:
    """Finds the processes that train.

    A machine with 3000 processes is first seen whole after 20 ms of work, spread over calls.

    Args:
        proc_root: /proc, or a recorded one.
        clock: CLOCK_MONOTONIC in nanoseconds; measures what a call has spent.
        hooked: gives the pids of the trainers that have a hook.
        gpu_processes: gives the GPUs' uuids by the pids of their compute processes, without those of unknown pid.
        can_read: tries whether a process's stacks can be read; None tries it with the reader.
        user: whose processes are read; root reads all.
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
        if user is None:
            user = os.geteuid() if hasattr(os, "geteuid") else 0
        self._proc_root = proc_root
        self._clock = clock
        self._hooked = hooked
        self._gpu_processes = gpu_processes
        self._census = Census(proc_root, user)
        self._access = Access(can_read or partial(try_to_read, proc_root=proc_root), user)
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
        """A whole pass at once, for one-shot callers."""
        while True:
            for found in self.collect(max(self._clock(), self._due_ns or 0)):
                return found
            if self._due_ns is None:
                return Candidates(self._clock(), ())

    def close(self) -> None:
        """Nothing is held open; no pass begins any more."""
        self._due_ns = None

    def _begin(self, now_ns: int) -> None:
        me = {os.getpid()} if self._proc_root == PROC else set()
        self._census.update(all_pids(self._proc_root) - me, now_ns)
        hooked = frozenset(self._hooked())
        gpus = self._gpu_processes()
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
            visibility="hardware",
            why="may train or not",
            workers=0,
            gpu_uuids=(),
            refusal=cause,
            how_to_see_more=None,
        )

    def _candidate(self, verdict: Verdict) -> Candidate | None:
        process = verdict.process
        prospect = self._access.prospect(process, process.pid in self._signs.hooked)
        if prospect is None:
            return None
        how_to_see_more = prospect.how_to_see_more
        if how_to_see_more and self._carries_hook(process):
            how_to_see_more = HOOK_SILENT
        return Candidate(
            pid=process.pid,
            start_ticks=process.stat.start_ticks,
            command=read_program(self._proc_root, process.pid) or (process.stat.command_name,),
            user=login_name(process.uid) or str(process.uid),
            age_seconds=self._census.age_seconds(process),
            visibility=prospect.visibility,
            why=verdict.why,
            workers=verdict.workers,
            gpu_uuids=verdict.gpu_uuids,
            refusal=prospect.refusal,
            how_to_see_more=how_to_see_more,
        )
