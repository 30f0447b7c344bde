"""Which of the Python processes train, and what gives each away. Pure: it knows no file and no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from gpuwatch.sources.discovery.process import Process, Role

_IDLE_CORES = 0.02
"""A process at rest uses none; a training of 16 batches a second that waits 98 % of its time still uses 0.04."""

_NAMES_ITS_WORKERS = (2, 5)  # the first torch that does
_MOST_ANCESTORS = 8


class Certainty(IntEnum):
    """How sure it is that a process trains; the order of the list."""

    HOOKED = 0
    SIGNS = 1  # a GPU, workers, other ranks
    BUSY = 2  # torch is loaded, and it computes
    LOADED = 3


class CpuUse(NamedTuple):
    """The cores a process uses: over its whole life where it was read only once, else recently."""

    cores: float
    is_recent: bool

    @property
    def is_idle(self) -> bool:
        """Whether that is too little for a training."""
        return self.cores < _IDLE_CORES

    def __str__(self) -> str:
        cores = f"{self.cores:.{1 if self.cores >= 0.1 else 2}f} cores"
        return f"uses {cores}" if self.is_recent else f"used {cores} over its life"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A process that trains, or seems to."""

    process: Process
    why: str
    certainty: Certainty
    workers: int = 0
    gpu_uuids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Signs:
    """What is known of processes beyond /proc's names; the callables are asked only where the rest leaves doubt."""

    hooked: Collection[int] = ()
    gpus: Mapping[int, tuple[str, ...]] | None = None
    cpu_use: Callable[[Process], CpuUse | None] = lambda process: None
    has_training_threads: Callable[[Process], bool] = lambda process: False
    torch_version: Callable[[Process], tuple[int, int] | None] = lambda process: None
    carries_hook: Callable[[Process], bool] = lambda process: False


def judge(processes: Mapping[int, Process], signs: Signs) -> list[Verdict]:
    """Those of the processes that train, surest first, then oldest first."""
    verdicts = _Judge(processes, signs).verdicts()
    return sorted(verdicts, key=lambda each: (each.certainty, each.process.stat.start_ticks, each.process.pid))


class _Judge:
    """One judgement over all processes: whether one trains depends on its parent and its children."""

    def __init__(self, processes: Mapping[int, Process], signs: Signs) -> None:
        self._processes = processes
        self._signs = signs
        self._gpus = signs.gpus or {}
        self._workers: Counter[int] = Counter()
        self._by_threads: set[int] = set()
        self._children: list[tuple[Process, Process]] = []
        self._alone: list[Process] = []
        for process in processes.values():
            self._sort_in(process)

    def verdicts(self) -> list[Verdict]:
        """Children that multiprocessing made are workers, ranks or helpers; who only started ranks is a launcher."""
        undecided = []
        ranks: list[Process] = []
        launchers: set[int] = set()
        for child, master in self._children:
            if self._has_signs(child) or self._trains_by_threads(child):
                ranks.append(child)
                launchers.add(master.pid)
            elif self._leaves_workers_unnamed(master):
                self._workers[master.pid] += 1
            else:
                undecided.append((child, master))
        for child, master in undecided:
            if not self._has_signs(master) and self._is_idle(master) and not self._is_idle(child):
                ranks.append(child)
                launchers.add(master.pid)
        alone = [each for each in self._alone if each.pid not in launchers or self._has_signs(each)]
        return [verdict for each in [*alone, *ranks] if (verdict := self._verdict(each))]

    def _sort_in(self, process: Process) -> None:
        parent = self._processes.get(process.stat.parent)
        if process.role is Role.WORKER:
            master = self._past_forkservers(parent)
            if master is not None:
                self._workers[master.pid] += 1
        elif process.role is Role.FORKSERVER:
            # The server and its children share one command line: a child is who has such a parent.
            if parent is not None and parent.role is Role.FORKSERVER:
                self._add_child(process, self._past_forkservers(parent))
        elif process.role is Role.SPAWNED:
            self._add_child(process, parent)
        elif process.role is not Role.HELPER:
            is_forked = parent is not None and parent.has_torch and parent.arguments == process.arguments
            self._add_child(process, parent if is_forked else None)

    def _add_child(self, process: Process, master: Process | None) -> None:
        if master is not None and master.has_torch and process.has_torch and master.role is not Role.LAUNCHER:
            self._children.append((process, master))
        else:
            self._alone.append(process)

    def _past_forkservers(self, process: Process | None) -> Process | None:
        for _ in range(_MOST_ANCESTORS):
            if process is None or process.role is not Role.FORKSERVER:
                return process
            process = self._processes.get(process.stat.parent)
        return None

    def _has_signs(self, process: Process) -> bool:
        pid = process.pid
        return pid in self._signs.hooked or pid in self._gpus or self._workers[pid] > 0

    def _trains_by_threads(self, process: Process) -> bool:
        """A forked child has only threads that were started in it."""
        if self._signs.has_training_threads(process):
            self._by_threads.add(process.pid)
            return True
        return False

    def _leaves_workers_unnamed(self, process: Process) -> bool:
        """Of a torch whose version cannot be read, too: a worker less in the list beats a worker as a trainer."""
        version = self._signs.torch_version(process)
        return version is None or version < _NAMES_ITS_WORKERS

    def _is_idle(self, process: Process) -> bool:
        use = self._signs.cpu_use(process)
        return use is not None and use.is_idle

    def _verdict(self, process: Process) -> Verdict | None:
        pid, workers = process.pid, self._workers[process.pid]
        gpus = self._gpus.get(pid, ())
        hooked = pid in self._signs.hooked
        if process.role is Role.LAUNCHER and not (gpus or workers):
            return None
        parts = ["runs with gpuwatch's hook"] if hooked else []
        if gpus:
            using = f" with {process.library.name}" if process.library else ""
            parts.append(f"computes on {_many(len(gpus), 'GPU')}{using}")
        if workers:
            parts.append(f"has {_many(workers, 'DataLoader worker')}")
        if pid in self._by_threads and not parts:
            parts.append("is one of the processes of a torch job")
        if parts:
            certainty = Certainty.HOOKED if hooked else Certainty.SIGNS
            return Verdict(process, ", ".join(parts), certainty, workers, gpus)
        return self._of_loaded(process)

    def _of_loaded(self, process: Process) -> Verdict | None:
        if not process.has_torch or self._signs.carries_hook(process):
            return None  # a hook says so itself once there is a DataLoader or an optimizer
        loaded = "has torch loaded"
        if process.role is Role.NOTEBOOK:
            loaded = f"is a notebook kernel that {loaded}"
        use = self._signs.cpu_use(process)
        if use is None or use.is_idle:
            return Verdict(process, loaded, Certainty.LOADED)
        return Verdict(process, f"{loaded} and {use}", Certainty.BUSY)


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
