"""Puts monitors together, over this machine or over a simulated one, and says what they watch.

That is every hooked run, or one process tree, and the processes that the sources are to read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.engine import Engine
from gpuwatch.diagnosis.thresholds import Settings
from gpuwatch.monitor.clock import CatchUpClock, Clock, SystemClock, VirtualClock
from gpuwatch.monitor.monitor import Monitor, OwnCost
from gpuwatch.monitor.snapshot import Origin
from gpuwatch.procfs import TreeWalker, is_running, read_stat
from gpuwatch.sources.census import TreeTrainers
from gpuwatch.sources.host.identify import is_python
from gpuwatch.timeline.runs import Identity, ProcessSet
from gpuwatch.timeline.timeline import Timeline

if TYPE_CHECKING:
    from gpuwatch.samples import Sample
    from gpuwatch.sources.nvml.source import NvmlSource


_WALK_NS = 1_000_000_000
_KEPT_NS = 5_000_000_000
_THOROUGH_EVERY = 5  # walks; one that asks every thread of a process with 200 of them takes milliseconds


class AttachedTree:
    """The pids below and with one root, looked up at most once a second.

    Args:
        root: its pid. The process that has it now is meant: another one that is given it later is none of ours.
        trainers: all that are known. Those once seen in the tree stay in it when they have ended: a run must
            not vanish from the screen in the moment at which one wants to read how it ended.
        proc_root: /proc, or a recorded one.
        clock: CLOCK_MONOTONIC in nanoseconds.
        training: picks those that train from the pids of the tree; None: by what they leave in /proc.
    """

    def __init__(
        self,
        root: int,
        trainers: Callable[[], Iterable[Identity]],
        proc_root: Path = Path("/proc"),
        clock: Callable[[], int] = time.monotonic_ns,
        training: Callable[[Collection[int]], list[int]] | None = None,
    ) -> None:
        self.root = root
        self._all_trainers = trainers
        self._proc_root = proc_root
        self._walker = TreeWalker(proc_root)
        self._clock = clock
        self._training = training or TreeTrainers(proc_root, clock).among
        stat = read_stat(proc_root, root)
        self._start_ticks = None if stat is None else stat.start_ticks
        self._is_gone = stat is None
        self._is_python = False
        self._walks = 0
        self._walked_ns: int | None = None
        self._judged_ns: int | None = None
        self._now: frozenset[int] = frozenset((root,))
        self._starts: dict[int, int | None] = {}  # of those that are in the tree now
        self._trainers: frozenset[Identity] = frozenset()
        self._known: frozenset[Identity] = frozenset()
        self._found: dict[int, int] = {}  # when each was last in the tree
        self._has_trained = False

    def pids(self) -> ProcessSet:
        """The tree, with the trainers that were in it; not those that were given the pid of one that ended.

        A trainer that is new has it walked at once: it is to be distinguished from others' from its first sample on.
        """
        known = frozenset(self._all_trainers())
        self._walk(now=not known <= self._known)
        self._known = known
        now = {(pid, start) for pid, start in self._starts.items() if start is not None}
        self._trainers = frozenset(each for each in known if each in now or each in self._trainers)
        return ProcessSet.of(now | self._trainers, unknown=self._now)

    def targets(self, live_trainers: Iterable[int]) -> list[int]:
        """The processes to read: the root while it lives, and the trainers in the tree."""
        tree = self.pids()
        root = () if self._is_gone else (self.root,)
        return [*root, *(pid for pid in live_trainers if pid in tree and pid != self.root)]

    def trainers(self) -> list[int]:
        """The processes of the tree that train, hooked or not.

        A root that runs Python counts as one until there is any: a training that still imports torch shows nothing of
        what it will be, and the user should not have to wait for that. One that is gone is still named for 5 s: the
        sources are to see its end, and they distinguish it from another process that is given its pid.
        """
        self._walk()
        if self._judged_ns != self._walked_ns:
            self._judged_ns = self._walked_ns
            self._judge(self._walked_ns or 0)
        return list(self._found)

    def _judge(self, now_ns: int) -> None:
        found = [] if self._is_gone else self._training(self._now)
        if found and not self._has_trained:
            self._has_trained = True
            self._found.clear()
        elif not self._has_trained and not self._is_gone and self._root_is_python():
            found = [self.root]
        self._found.update(dict.fromkeys(found, now_ns))
        self._found = {pid: seen_ns for pid, seen_ns in self._found.items() if now_ns - seen_ns <= _KEPT_NS}

    def _walk(self, *, now: bool = False) -> None:
        now_ns = self._clock()
        if self._walked_ns is not None and now_ns - self._walked_ns < _WALK_NS and not now:
            return
        self._walked_ns = now_ns
        self._is_gone = not self._root_lives()
        thorough = now or self._walks % _THOROUGH_EVERY == 0
        self._walks += 1
        below = () if self._is_gone else self._walker.descendants(self.root, thorough=thorough)
        self._now = frozenset((self.root, *below))
        self._starts = {pid: self._start_of(pid) for pid in self._now}

    def _start_of(self, pid: int) -> int | None:
        """Read when a pid is new to the tree, and again where the process that had it was a trainer."""
        if pid == self.root:
            return self._start_ticks
        before = self._starts.get(pid)
        if before is not None and (pid, before) not in self._known:
            return before
        stat = read_stat(self._proc_root, pid)
        return before if stat is None else stat.start_ticks

    def _root_lives(self) -> bool:
        return self._start_ticks is not None and is_running(self.root, self._start_ticks, self._proc_root)

    def _root_is_python(self) -> bool:
        """Asked once it says yes: a shell may still exec the training."""
        if not self._is_python:
            self._is_python = is_python(self.root, self._proc_root)
        return self._is_python


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
        """The root of the tree; None where everything is watched."""
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
        """The trainers with a hook that live and are watched."""
        live = self._timeline.live_trainers()
        with self._lock:
            tree = None if self._tree is None else self._tree.pids()
        return [pid for pid, start_ticks in live if tree is None or tree.holds(pid, start_ticks)]

    def unhooked(self) -> list[int]:
        """The trainers without one: they are watched only in an attached tree."""
        hooked = frozenset(self._timeline.live_trainer_pids())
        with self._lock:
            return [] if self._tree is None else [pid for pid in self._tree.trainers() if pid not in hooked]

    def host_targets(self) -> list[int]:
        """The processes whose /proc is read: the trainers of both kinds, and the root of the tree."""
        trainers = [*self.hooked(), *self.unhooked()]
        with self._lock:
            return list(dict.fromkeys(trainers)) if self._tree is None else self._tree.targets(trainers)


_VIRTUAL_START_NS = 86_400_000_000_000  # any, but always the same: a simulated report is reproducible


TakeNvml = Callable[[], "tuple[NvmlSource, list[Sample]]"]


def live_monitor(
    *,
    interval_seconds: float = 1.0,
    attach_pid: int | None = None,
    timeline: Timeline | None = None,
    settings: Settings | None = None,
    hook_folder: Path | None = None,
    nvml: TakeNvml | None = None,
) -> Monitor:
    """A monitor of all GPUs and hooked runs here, or of one process tree and its GPUs; `attach` changes that later.

    Args:
        interval_seconds: between two polls.
        attach_pid: the root of the tree. Those in it that train without a hook are watched from outside.
        timeline: to feed; one that also records, for instance.
        settings: which rules speak, and from which thresholds on.
        hook_folder: where hooked runs are met; None: wherever they are.
        nvml: gives the source of the GPUs where it has been started already, with what it has said so far.
    """
    clock = SystemClock()
    timeline = timeline or Timeline(started_ns=clock.now_ns(), interval_seconds=interval_seconds)
    # The child asks the driver while this process still imports the rest: the first number comes 0.2 s sooner.
    take_nvml = nvml or _started_nvml(interval_seconds)
    from gpuwatch.sources.discovery import DiscoverySource
    from gpuwatch.sources.hook_link.source import HookLinkSource
    from gpuwatch.sources.host.source import HostSource
    from gpuwatch.sources.stacks import StackSource, StackTarget

    focus = Focus(timeline)
    focus.attach(attach_pid)
    host = HostSource(interval_seconds, targets=focus.host_targets, known_workers=timeline.worker_pids)
    stacks = StackSource(
        lambda: [
            *(StackTarget(pid, hooked=True) for pid in focus.hooked()),
            *(StackTarget(pid, hooked=False) for pid in focus.unhooked()),
        ]
    )
    discovery = DiscoverySource(hooked=timeline.live_trainer_pids, gpu_processes=timeline.gpus_by_pid)
    gpus, said = take_nvml()
    for sample in said:
        timeline.add(sample)
    return Monitor(
        [gpus, host, HookLinkSource(hook_folder), stacks, discovery],
        origin=Origin("live", "LIVE"),
        clock=clock,
        engine=Engine(settings=settings),
        focus=focus,
        interval_seconds=interval_seconds,
        timeline=timeline,
        own_cost=OwnCost(),
    )


def _started_nvml(interval_seconds: float) -> TakeNvml:
    from gpuwatch.sources.nvml.source import NvmlSource

    source = NvmlSource(interval_seconds)
    said = list(source.collect(time.monotonic_ns()))
    return lambda: (source, said)


def simulated_monitor(
    scenario: str,
    *,
    seed: int = 0,
    virtual: bool = False,
    history_seconds: float = 0.0,
    interval_seconds: float = 1.0,
    settings: Settings | None = None,
) -> Monitor:
    """A monitor of a made-up machine; its origin says so at all times.

    Args:
        scenario: one of `gpuwatch.sources.simulator.SCENARIOS`.
        seed: the same seed gives the same run.
        virtual: whether time jumps from event to event, instead of passing.
        history_seconds: past that is lived through at once at the start, evaluations included; not if virtual.
        interval_seconds: between two polls.
        settings: which rules speak, and from which thresholds on.
    """
    from gpuwatch.sources.simulator.source import SimulatorSource

    clock: Clock
    clock = VirtualClock(_VIRTUAL_START_NS, time.time()) if virtual else CatchUpClock(round(history_seconds * 1e9))
    source = SimulatorSource(scenario, seed=seed, start_ns=clock.now_ns(), interval_seconds=interval_seconds)
    return Monitor(
        [source],
        origin=Origin("simulated", f"SIMULATED {scenario}"),
        clock=clock,
        engine=Engine(settings=settings),
        focus=source.focus,
        interval_seconds=interval_seconds,
        own_cost=None if virtual else OwnCost(),
    )
