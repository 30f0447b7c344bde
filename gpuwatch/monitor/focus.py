"""What the monitor looks at: every hooked run, or one process tree, and the processes that its sources are to watch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

from gpuwatch.monitor.attached import AttachedTree
from gpuwatch.timeline.timeline import Timeline


class Focus:
    """Everything, until it is attached to a tree; then that tree, its trainers without a hook too.

    Any thread may attach, the monitor's asks, and the stack source's asks for its targets: all under one lock.

    Args:
        timeline: knows the hooked trainers.
        proc_root: /proc, or a recorded one.
        clock: CLOCK_MONOTONIC in nanoseconds.
        training: picks those that train from the pids of a tree; None: by what they leave in /proc.
    """

    def __init__(
        self,
        timeline: Timeline,
        proc_root: Path = Path("/proc"),
        clock: Callable[[], int] = time.monotonic_ns,
        training: Callable[[Collection[int]], list[int]] | None = None,
    ) -> None:
        self._timeline = timeline
        self._proc_root = proc_root
        self._clock = clock
        self._training = training
        self._lock = threading.Lock()
        self._tree: AttachedTree | None = None

    @property
    def attached_pid(self) -> int | None:
        """The root of the tree; None where everything is looked at."""
        tree = self._tree
        return None if tree is None else tree.root

    def attach(self, pid: int | None) -> None:
        """Narrows it to the tree of one process; None widens it to everything again."""
        tree = None
        if pid is not None:
            trainers = self._timeline.trainer_identities
            tree = AttachedTree(pid, trainers, self._proc_root, self._clock, self._training)
        with self._lock:
            self._tree = tree

    def pids(self) -> frozenset[int] | None:
        """The processes that are shown; None for all."""
        with self._lock:
            return None if self._tree is None else self._tree.pids()

    def hooked(self) -> list[int]:
        """The trainers with a hook that live and are looked at."""
        live = self._timeline.live_trainers()
        with self._lock:
            tree = None if self._tree is None else self._tree.pids()
        return [pid for pid, start_ticks in live if tree is None or tree.holds(pid, start_ticks)]

    def unhooked(self) -> list[int]:
        """The trainers without one: they are watched only where somebody asked for their tree."""
        hooked = frozenset(self._timeline.live_trainer_pids())
        with self._lock:
            return [] if self._tree is None else [pid for pid in self._tree.trainers() if pid not in hooked]

    def host_targets(self) -> list[int]:
        """The processes whose /proc is read: the trainers of both kinds, and the root of the tree."""
        trainers = [*self.hooked(), *self.unhooked()]
        with self._lock:
            return list(dict.fromkeys(trainers)) if self._tree is None else self._tree.targets(trainers)
