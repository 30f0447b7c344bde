"""All Python processes of this machine, read seldom because most never change what they are, and those of one tree.

A new process is read once, and again after 2, 10 and 60 s, because a script first imports and a shell first execs; then
every minute. What is no Python costs one readlink, 5 us, at each reading.
"""

from __future__ import annotations

import heapq
import os
import time
from collections.abc import Callable, Iterable, Set
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from gpuwatch.foreign import cpu_time_ns
from gpuwatch.procfs import ProcessKey, TreeWalker, boot_ticks, read_stat, shown
from gpuwatch.sources.discovery.judge import CpuUse, Signs, Verdict, judge
from gpuwatch.sources.discovery.process import (
    Process,
    has_training_threads,
    owner,
    read_process,
    runs_python,
    torch_version,
)
from gpuwatch.sources.host.identify import is_python

_SECOND_NS: Final = 1_000_000_000
_PAUSES_NS: Final = (2 * _SECOND_NS, 10 * _SECOND_NS, 60 * _SECOND_NS)
_REST_PER_COST: Final = 1000
"""A process that is expensive to examine, as one with 65 530 names of files is, takes no more than 0.1 % of a core."""
_CAUSE_SHOWN: Final = 120
_LEAST_CPU_NS: Final = _SECOND_NS
_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")


_Answer = TypeVar("_Answer")


class _Turn(NamedTuple):
    """When a process is read next, after how many reads."""

    due_ns: int
    reads: int


class _Cpu(NamedTuple):
    """A process's CPU time at one moment, and what it used up to then."""

    time_ns: int
    ticks: int
    use: CpuUse | None


class Census:
    """The Python processes under one /proc, as of the last reads.

    Args:
        proc_root: /proc, or a recorded one.
        user: whose processes are read; root reads all.
        cpu_clock: this thread's CPU time in nanoseconds.
    """

    def __init__(
        self,
        proc_root: Path | str = "/proc",
        user: int | None = None,
        cpu_clock: Callable[[], int] = cpu_time_ns,
    ) -> None:
        self._cpu_clock = cpu_clock
        self._proc_root = str(proc_root)
        self._user = os.geteuid() if user is None else user
        self.processes: dict[int, Process] = {}
        self._turns: dict[int, _Turn] = {}
        self._queue: list[tuple[int, int]] = []  # (due, pid); one that its pid's turn does not know is void
        self._cpu: dict[ProcessKey, _Cpu] = {}
        self._threads: dict[ProcessKey, tuple[int, bool]] = {}
        self._versions: dict[ProcessKey, tuple[int, int] | None] = {}
        self._are_python: dict[ProcessKey, bool] = {}
        self._uptime_ticks: int | None = None
        self._silent: set[int] = set()  # that failed because they did not answer, which may pass
        self.failures: dict[int, str] = {}
        """Why processes could not be examined, by pid: one of them must not hide the others."""

    def update(self, pids: Set[int], now_ns: int) -> None:
        """Takes the pids there are now: forgets those that are gone, and reads again what has torch loaded."""
        for pid in self._turns.keys() - pids:
            del self._turns[pid]
            self.failures.pop(pid, None)
            self._silent.discard(pid)
            self.processes.pop(pid, None)
        for pid in pids - self._turns.keys():
            self._turns[pid] = _Turn(now_ns, 0)
            heapq.heappush(self._queue, (now_ns, pid))
        for pid, process in list(self.processes.items()):
            if process.has_torch:
                self._keep(pid, self._examine(pid, process))

    def insist(self, pids: Iterable[int]) -> None:
        """Looks at processes that other sources know of, whatever their owner and the name of their program."""
        for pid in pids:
            before = self.processes.get(pid)
            process = self._examine(pid, before)
            if process is None or before is not None or self._is_python(process):
                self._keep(pid, process)

    def inspect(self, now_ns: int, is_spent: Callable[[], bool] = lambda: False) -> bool:
        """Looks at those whose turn has come by `now_ns`; False where the time was spent before all were."""
        while self._queue and self._queue[0][0] <= now_ns:
            if is_spent():
                return False
            due_ns, pid = heapq.heappop(self._queue)
            turn = self._turns.get(pid)
            if turn is None or turn.due_ns != due_ns:
                continue
            began_ns = self._cpu_clock()
            self._look(pid)
            spent_ns = self._cpu_clock() - began_ns
            pause_ns = max(_PAUSES_NS[min(turn.reads, len(_PAUSES_NS) - 1)], _REST_PER_COST * spent_ns)
            self._turns[pid] = _Turn(now_ns + pause_ns, turn.reads + 1)
            heapq.heappush(self._queue, (now_ns + pause_ns, pid))
        return True

    def settle(self, now_ns: int) -> None:
        """Counts what each uses of the processors, and forgets what is known of those that are gone."""
        keys = {process.key for process in self.processes.values()}
        known: tuple[dict[ProcessKey, Any], ...] = (self._cpu, self._threads, self._versions, self._are_python)
        for remembered in known:
            for key in remembered.keys() - keys:
                del remembered[key]
        self._uptime_ticks = boot_ticks(self._proc_root, _TICKS_PER_SECOND)
        for process in self.processes.values():
            if process.has_torch:
                self._count_cpu(process, now_ns)

    def age_seconds(self, process: Process) -> float:
        """How long it has been running, as of the last `settle`."""
        return max(0, (self._uptime_ticks or 0) - process.stat.start_ticks) / _TICKS_PER_SECOND

    def cpu_use(self, process: Process) -> CpuUse | None:
        """The cores it uses, as of the last `settle`; None for one that has just started."""
        cpu = self._cpu.get(process.key)
        return cpu.use if cpu else None

    def has_training_threads(self, process: Process) -> bool:
        """Whether torch's own threads train in it; asked again only once it has computed for another second."""
        ticks, found = self._threads.get(process.key, (-_TICKS_PER_SECOND, False))
        if not found and process.stat.own_ticks - ticks >= _TICKS_PER_SECOND:
            found = self.asked(process.pid, lambda: has_training_threads(self._proc_root, process.pid), False)
            self._threads[process.key] = process.stat.own_ticks, found
        return found

    def torch_version(self, process: Process) -> tuple[int, int] | None:
        """The version of its torch, where that can be read."""
        if process.key not in self._versions and process.library is not None:
            library = process.library
            self._versions[process.key] = self.asked(
                process.pid, lambda: torch_version(self._proc_root, process.pid, library), None
            )
        return self._versions.get(process.key)

    def _look(self, pid: int) -> None:
        before = self.processes.get(pid)
        uid = owner(self._proc_root, pid)
        if before is not None and self._are_python.get(before.key):
            return  # known by others, and read whenever they say so
        is_ours = uid is not None and self._user in (0, uid)
        if uid is None or not is_ours or not runs_python(self._proc_root, pid):
            self._keep(pid, None)
        else:
            self._keep(pid, self._examine(pid, before))

    def asked(self, pid: int, question: Callable[[], _Answer], otherwise: _Answer) -> _Answer:
        """The answer to a question about one process, and `otherwise` where it cannot be had, which is noted."""
        try:
            return question()
        except Exception as error:  # noqa: BLE001 - whatever one process's files bring about ends here
            cause = f"{type(error).__name__}: {error}"[:_CAUSE_SHOWN]
            self.failures[pid] = f"examining process {pid} failed ({shown(os.fsencode(cause))})"
            return otherwise

    def _examine(self, pid: int, before: Process | None) -> Process | None:
        if pid in self._silent:
            self._silent.remove(pid)
            self.failures.pop(pid, None)

        def question() -> Process | None:
            try:
                return read_process(self._proc_root, pid, before)
            except TimeoutError:
                self._silent.add(pid)
                raise

        return self.asked(pid, question, None)

    def _keep(self, pid: int, process: Process | None) -> None:
        if process is None:
            self.processes.pop(pid, None)
        else:
            self.processes[pid] = process

    def _is_python(self, process: Process) -> bool:
        """The answer for a program whose name does not say so costs a read of 32 MB of it."""
        if process.key not in self._are_python:
            pid = process.pid
            self._are_python[process.key] = self.asked(pid, lambda: is_python(pid, Path(self._proc_root)), False)
        return self._are_python[process.key]

    def _count_cpu(self, process: Process, now_ns: int) -> None:
        before, ticks = self._cpu.get(process.key), process.stat.own_ticks
        if before is None:
            age_seconds = self.age_seconds(process)
            use = CpuUse(ticks / _TICKS_PER_SECOND / age_seconds, False) if age_seconds >= 1.0 else None
        elif now_ns - before.time_ns < _LEAST_CPU_NS:
            return
        else:
            seconds = (now_ns - before.time_ns) / _SECOND_NS
            use = CpuUse((ticks - before.ticks) / _TICKS_PER_SECOND / seconds, True)
        self._cpu[process.key] = _Cpu(now_ns, ticks, use)


def all_pids(proc_root: Path | str) -> set[int]:
    """The pids of all processes there are but this one."""
    try:
        names = os.listdir(proc_root)  # noqa: PTH208 - 3000 Path objects cost 10 times the listing
    except OSError:
        return set()
    me = {os.getpid()} if str(proc_root) == "/proc" else set()
    return {int(name) for name in names if name.isdecimal() and name.isascii()} - me


_PROC = Path("/proc")


class TreeTrainers:
    """Finds the training processes among given ones, again and again; what was seen before is cheap.

    Args:
        proc_root: /proc, or a recorded one.
        clock: CLOCK_MONOTONIC in nanoseconds.
    """

    def __init__(self, proc_root: Path = _PROC, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._census = Census(proc_root, user=0)
        self._clock = clock

    def among(self, pids: Iterable[int]) -> list[int]:
        """The pids of those that train, surest first. Workers, helpers and launchers are none of them."""
        return [verdict.process.pid for verdict in self.judged(pids)]

    def judged(self, pids: Iterable[int]) -> list[Verdict]:
        """Those that train, with what gives them away."""
        census, now_ns = self._census, self._clock()
        census.update(frozenset(pids), now_ns)
        census.inspect(now_ns)
        census.settle(now_ns)
        signs = Signs(
            cpu_use=census.cpu_use, has_training_threads=census.has_training_threads, torch_version=census.torch_version
        )
        return judge(census.processes, signs)


def trainers_below(root: int, proc_root: Path = _PROC) -> list[int]:
    """The pids of the training processes at and below `root`, surest first."""
    return TreeTrainers(proc_root).among((root, *TreeWalker(proc_root).descendants(root)))


def looks_like_training(pid: int, proc_root: Path = _PROC) -> str | None:
    """What gives a process away as one that trains, in words; None where nothing does."""
    stat = read_stat(proc_root, pid)
    if stat is None:
        return None
    around = (stat.parent, pid, *TreeWalker(proc_root).descendants(pid))
    return next((each.why for each in TreeTrainers(proc_root).judged(around) if each.process.pid == pid), None)
