"""Bringing GPU idle times, which are read two or more steps late, to the steps whose waits caused them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from gpuwatch.samples import GpuGap

_MAX_STEPS = 1024
_MAX_WAITS = 16_384
_MAX_EARLY = 256


class GapLedger:
    """Adds up the idle time of a step's waits and gives it once all of them were measured.

    The sum of only some of a step's waits would understate the idle time, so it is never given.
    """

    def __init__(self, trainer: str) -> None:
        self._trainer = trainer
        self._steps: OrderedDict[int, list[int]] = OrderedDict()  # number -> [waits to come, nanoseconds, *starts]
        self._step_of: dict[int, int] = {}  # start of a wait -> number
        self._early: OrderedDict[int, int] = OrderedDict()  # start of a wait -> nanoseconds

    def step(self, number: int, starts: Iterable[int]) -> GpuGap | None:
        """Registers a finished step by the starts of its waits."""
        waits = list(starts)
        idle = 0
        missing = []
        for start in waits:
            early = self._early.pop(start, None) if self._early else None
            if early is None:
                missing.append(start)
            else:
                idle += early
        if not missing:
            return GpuGap(self._trainer, number, idle / 1e9) if waits else None
        self._steps[number] = [len(missing), idle, *missing]
        for start in missing:
            self._step_of[start] = number
        while len(self._steps) > _MAX_STEPS or (len(self._steps) > 1 and len(self._step_of) > _MAX_WAITS):
            _, (_, _, *stale) = self._steps.popitem(last=False)
            for start in stale:
                self._step_of.pop(start, None)
        return None

    def gap(self, start: int, idle_ns: int) -> GpuGap | None:
        """Takes one measured idle time; the step's sum, if this was its last."""
        number = self._step_of.pop(start, None)
        if number is None:
            self._early[start] = idle_ns
            if len(self._early) > _MAX_EARLY:
                self._early.popitem(last=False)
            return None
        entry = self._steps[number]
        entry[0] -= 1
        entry[1] += idle_ns
        if entry[0]:
            return None
        del self._steps[number]
        return GpuGap(self._trainer, number, entry[1] / 1e9)
