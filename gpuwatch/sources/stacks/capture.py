"""Whole stacks of one process and its DataLoader workers over a stretch of time, for a flame graph."""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from gpuwatch.reader.attach import Interpreter
from gpuwatch.reader.refusals import CannotReadError, Reason
from gpuwatch.reader.stacks import Stack

FramePlace = tuple[str, str, int]
"""Function, file and line; line 0 where it is not known."""

_MOST_KEPT_BYTES = 256 << 20  # of different stacks; those of an hour of a training take about 5 MB
_FRAME_BYTES = 120  # without its names
_CHILDREN_EVERY_SECONDS = 0.2  # workers of an epoch may live for no longer


@dataclass(slots=True)
class Lane:
    """The samples of one thread, in order: each is the number of one of its `stacks`, outermost frame first."""

    name: str
    pid: int
    stacks: list[tuple[FramePlace, ...]] = field(default_factory=list)
    samples: array[int] = field(default_factory=lambda: array("I"))
    _numbers: dict[tuple[FramePlace, ...], int] = field(default_factory=dict)

    def add(self, stack: Stack) -> bool:
        """Takes up one sample; whether its stack is a new one."""
        places = tuple(
            (frame.code.qualified_name or frame.code.name, frame.code.file, frame.line or 0)
            for frame in reversed(stack.frames)
        )
        number = self._numbers.setdefault(places, len(self.stacks))
        is_new = number == len(self.stacks)
        if is_new:
            self.stacks.append(places)
        self.samples.append(number)
        return is_new


@dataclass(frozen=True, slots=True)
class Profile:
    """What was seen. `rejected` samples found a stack in change; `ended`: the process did not last."""

    pid: int
    seconds: float
    interval_seconds: float
    lanes: tuple[Lane, ...]
    rejected: int
    ended: bool
    unreadable: tuple[str, ...] = ()  # what could not be read, or no longer, and why


class Capture:
    """Samples the main thread, or all threads, of a process and its workers.

    Args:
        pid: the process.
        rate_hz: samples per second at each of them.
        all_threads: whether threads other than the main one are sampled.
        attach: opens one process; the first failure for `pid` itself is the caller's.
        workers: the pids of its workers now.
        clock: seconds, monotonic.
        sleep: waits this many seconds.
    """

    def __init__(
        self,
        pid: int,
        *,
        rate_hz: float,
        all_threads: bool,
        attach: Callable[[int], Interpreter],
        workers: Callable[[int], Iterable[int]],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._pid = pid
        self._interval = 1.0 / rate_hz
        self._all_threads = all_threads
        self._attach = attach
        self._workers = workers
        self._clock = clock
        self._sleep = sleep
        self._random = random.Random(0)  # jitter keeps the samples from locking to the training's period
        self._open: dict[int, Interpreter] = {pid: attach(pid)}
        self._lanes: dict[tuple[int, int], Lane] = {}
        self._unreadable: dict[int, str] = {}
        self._rejected = 0
        self._kept_bytes = 0

    def run(self, seconds: float, stop: Callable[[], bool] = lambda: False) -> Profile:
        """Samples for so long, until `stop` says so, or until the process ends."""
        began = now = self._clock()
        children_at = began
        while now - began < seconds and self._pid in self._open and not stop():
            if now >= children_at:
                children_at = now + _CHILDREN_EVERY_SECONDS
                self._find_workers()
            for pid in list(self._open):
                self._sample(pid)
            self._sleep(self._random.uniform(0.5, 1.5) * self._interval)
            now = self._clock()
        ended = self._pid not in self._open and self._pid not in self._unreadable
        for interpreter in self._open.values():
            interpreter.close()
        self._open.clear()
        return Profile(
            pid=self._pid,
            seconds=now - began,
            interval_seconds=self._interval,
            lanes=tuple(lane for _, lane in sorted(self._lanes.items(), key=lambda item: item[0] != (self._pid, 0))),
            rejected=self._rejected,
            ended=ended,
            unreadable=tuple(self._unreadable.values()),
        )

    def _find_workers(self) -> None:
        for pid in self._workers(self._pid):
            if pid in self._open or pid in self._unreadable:
                continue
            try:
                self._open[pid] = self._attach(pid)
            except CannotReadError as error:
                if error.reason not in (Reason.GONE, Reason.ZOMBIE, Reason.NOT_READY):
                    self._unreadable[pid] = error.with_cure

    def _sample(self, pid: int) -> None:
        try:
            if self._all_threads:
                found = self._open[pid].stacks()
            else:
                stack = self._open[pid].main_stack()
                found = [stack] if stack is not None else []
                self._rejected += stack is None
        except CannotReadError as error:
            self._open.pop(pid).close()
            if error.is_lasting:
                self._unreadable[pid] = error.with_cure
            return
        for stack in found:
            if self._kept_bytes > _MOST_KEPT_BYTES:
                self._rejected += 1
                self._unreadable.setdefault(pid, f"process {pid} shows too many different stacks: not all were kept")
                continue
            key = (pid, 0 if stack.is_main else stack.thread)
            if key not in self._lanes:
                self._lanes[key] = Lane(self._name(pid, stack), pid)
            if self._lanes[key].add(stack):
                codes = (frame.code for frame in stack.frames)
                self._kept_bytes += sum(_FRAME_BYTES + 4 * (len(code.name) + len(code.file)) for code in codes)

    def _name(self, pid: int, stack: Stack) -> str:
        process = f"process {pid}" if pid == self._pid else f"worker {pid}"
        return process if stack.is_main else f"{process} thread {stack.thread}"
