"""The training processes of one tree, and whether one process looks like one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from gpuwatch.sources.discovery.census import Census
from gpuwatch.sources.discovery.judge import Signs, Verdict, judge
from gpuwatch.sources.host.process import TreeWalker, read_stat

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
