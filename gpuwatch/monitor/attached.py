"""The process tree that a monitor is narrowed to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from gpuwatch.sources.host.process import TreeWalker

_WALK_NS = 1_000_000_000
_THOROUGH_EVERY = 5  # walks; one that asks every thread of a process with 200 of them takes milliseconds


class AttachedTree:
    """The pids below and with one root, looked up at most once a second.

    Args:
        root: its pid.
        trainer_pids: of all trainers known. Those once seen in the tree stay in it when they have ended: a run must
            not vanish from the screen in the moment at which one wants to read how it ended.
        proc_root: /proc, or a recorded one.
        clock: CLOCK_MONOTONIC in nanoseconds.
    """

    def __init__(
        self,
        root: int,
        trainer_pids: Callable[[], Iterable[int]],
        proc_root: Path = Path("/proc"),
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._root = root
        self._trainer_pids = trainer_pids
        self._walker = TreeWalker(proc_root)
        self._clock = clock
        self._walks = 0
        self._walked_ns: int | None = None
        self._now: frozenset[int] = frozenset((root,))
        self._trainers: frozenset[int] = frozenset()

    def pids(self) -> frozenset[int]:
        """The tree, with the trainers that were in it."""
        now_ns = self._clock()
        if self._walked_ns is None or now_ns - self._walked_ns >= _WALK_NS:
            self._walked_ns = now_ns
            thorough = self._walks % _THOROUGH_EVERY == 0
            self._walks += 1
            self._now = frozenset((self._root, *self._walker.descendants(self._root, thorough=thorough)))
        self._trainers = frozenset(pid for pid in self._trainer_pids() if pid in self._now or pid in self._trainers)
        return self._now | self._trainers

    def targets(self, live_trainers: Iterable[int]) -> list[int]:
        """The processes to look at: the trainers in the tree, and its root."""
        tree = self.pids()
        return [self._root, *(pid for pid in live_trainers if pid in tree and pid != self._root)]
