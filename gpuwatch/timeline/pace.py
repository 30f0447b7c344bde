"""How fast steps were at their best and are now, in blocks of settled steps: whether a run has become slower."""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import pairwise
from operator import attrgetter
from statistics import fmean, median

from gpuwatch.samples import StepEnd
from gpuwatch.timeline.tiers import SECOND_NS
from gpuwatch.timeline.windows import Pace, PaceBlock

BLOCK_STEPS = 100
BLOCK_NS = 10 * SECOND_NS
"""A hundred steps of a millisecond say more of the scheduler than of the run."""
_MOST_STEPS = 16_384
_BLOCKS_COMPARED = 64
_FEWEST_CHANGES = 6
_MAD_TO_SIGMA = 1.4826
_HICCUPS = 0.02
_PARTS = ("wait", "copy", "forward", "backward", "optimizer")
_parts_of = attrgetter(*(f"{name}_seconds" for name in _PARTS))


class StepPace:
    """The newest blocks and the best pair of neighbours: the best single one of thousands would be luck."""

    __slots__ = ("_best", "_blocks", "_medians", "_newest", "_parts", "_periods", "_start_ns")

    def __init__(self) -> None:
        self._periods: array[float] = array("f")
        self._parts: dict[str, float | None] = {}
        self._start_ns: int | None = None
        self.reset()

    def reset(self) -> None:
        """Starts over: the steps to come are of another kind, such as another batch size."""
        self._newest: deque[PaceBlock] = deque(maxlen=2)
        self._best: PaceBlock | None = None
        self._medians: deque[float] = deque(maxlen=_BLOCKS_COMPARED)
        self._blocks = 0
        self._begin_block()

    def add(self, step: StepEnd, training: float) -> None:
        """One settled step of `training` seconds."""
        if self._start_ns is None:
            self._start_ns = step.end_ns
        self._periods.append(training)
        for name, seconds in zip(_PARTS, _parts_of(step), strict=True):
            total = self._parts[name]
            self._parts[name] = None if seconds is None or total is None else total + seconds
        is_long = step.end_ns - self._start_ns >= BLOCK_NS or len(self._periods) >= _MOST_STEPS
        if len(self._periods) >= BLOCK_STEPS and is_long:
            self._end_block(step.end_ns)

    def pace(self) -> Pace | None:
        """The best pair of blocks, by its slower one, and the newest pair, by its quicker one."""
        if self._best is None:
            return None
        now = min(self._newest, key=lambda block: block.step_seconds)
        return Pace(self._best, now, self._blocks, _noise(self._medians))

    def _begin_block(self) -> None:
        self._periods = array("f")
        self._parts = dict.fromkeys(_PARTS, 0.0)
        self._start_ns = None

    def _end_block(self, end_ns: int) -> None:
        assert self._start_ns is not None
        count = len(self._periods)
        parts: Mapping[str, float] = {name: total / count for name, total in self._parts.items() if total is not None}
        usual = fmean(sorted(self._periods)[: count - math.ceil(_HICCUPS * count)])
        self._newest.append(PaceBlock(self._start_ns, end_ns, count, median(self._periods), parts, usual))
        self._medians.append(self._newest[-1].step_seconds)
        self._blocks += 1
        self._begin_block()
        if len(self._newest) == 2:
            pair = max(self._newest, key=lambda block: block.step_seconds)
            if self._best is None or pair.step_seconds < self._best.step_seconds:
                self._best = pair


def _noise(medians: Iterable[float]) -> float | None:
    """The spread of single blocks by the changes between neighbours, which one lasting change does not move."""
    values = list(medians)
    changes = [abs(after - before) for before, after in pairwise(values)]
    if len(changes) < _FEWEST_CHANGES:
        return None
    return _MAD_TO_SIGMA * median(changes) / math.sqrt(2.0) / median(values)
