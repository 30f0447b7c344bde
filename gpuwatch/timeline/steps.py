"""The steps of one trainer: in full and summed per second and minute, which are settled, and how fast they were."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from operator import attrgetter
from statistics import fmean, median
from typing import Any

from gpuwatch.samples import LoaderFacts, StackTally, StepEnd
from gpuwatch.timeline.columns import MINUTE_NS, MINUTES_KEPT, SECOND_NS, SECONDS_KEPT, SumBuckets, Table, number
from gpuwatch.timeline.figures import StepSums
from gpuwatch.timeline.stacks import NOT_TRAINING
from gpuwatch.timeline.windows import Pace, PaceBlock

UNKNOWN = -1
"""An epoch position or a loader."""
STEP_COLUMNS = {
    "number": "q",
    "period": "f",
    "wait": "f",
    "gap": "f",
    "samples": "f",
    "batches": "f",
    "epoch_position": "q",
    "loader": "q",
    "copy": "f",
    "forward": "f",
    "backward": "f",
    "optimizer": "f",
    "wait_cpu": "f",
    "settled": "b",
}
_PARTS = ("wait", "copy", "forward", "backward", "optimizer")
_PART_FIELDS = tuple(f"{name}_seconds" for name in _PARTS)
_parts_of = attrgetter(*_PART_FIELDS)

_RECENT = 128
_DEFAULT_PREFETCH = 2
_PARTIAL_BATCH = 0.9

_LIKE = 0.2

_BLOCK_STEPS = 100
_BLOCK_NS = 10 * SECOND_NS
"""A hundred steps of a millisecond say more of the scheduler than of the run."""
_MOST_STEPS = 16_384
_BLOCKS_COMPARED = 64
_FEWEST_CHANGES = 6
_MAD_TO_SIGMA = 1.4826
_HICCUPS = 0.02

_SUMS_OF_STEPS = (
    "steps",
    "train",
    "wait",
    "wait_train",
    "wait_steps",
    "samples",
    "samples_train",
    "batches",
    "settled_wait",
    "settled_wait_train",
)
STEP_SUMS = (*_SUMS_OF_STEPS, "settled_gap", "settled_gap_train")
"""Of `StepSums`, those that the tiers hold."""
_RANGES = ("period", "share")


def step_row(step: StepEnd, training: float, gap: float | None, settled: bool) -> tuple[float, ...]:
    """One step's values in the order of the columns; `training` is its seconds without its phases."""
    return (
        step.number,
        training,
        number(step.wait_seconds),
        number(gap),
        number(step.samples),
        step.batches,
        UNKNOWN if step.epoch_position is None else step.epoch_position,
        UNKNOWN if step.loader is None else step.loader,
        *parts_within(step, training),
        number(step.wait_cpu_seconds),
        settled,
    )


def row_of(steps: Table, step_number: int) -> int | None:
    """Where a step stands among the rows, None where it is not kept."""
    row = bisect_left(steps["number"], step_number)
    return row if row < len(steps) and steps["number"][row] == step_number else None


def settle(steps: Table, is_settled: Callable[[int, int, int, float], bool]) -> None:
    """Judges all rows again: by their end, their position in the epoch, their loader and their samples."""
    rows = zip(steps.times, steps["epoch_position"], steps["loader"], steps["samples"], strict=True)
    settled = steps["settled"]
    for row, (end_ns, position, loader, samples) in enumerate(rows):
        settled[row] = is_settled(end_ns, position, loader, samples)


def without_stop(step: StepEnd, usual_seconds: float | None) -> StepEnd:
    """A step that holds a stop, with all beyond a usual step as a pause and off the part that it lay in.

    42 s of a stop made the backward 94% of the minute after it. Samples of the process are a second apart, so the
    usual step shows the length better than they do; the longest part of the step is the one that held it, unless it is
    too short for that. What is left of the parts was training: a step of 2 s that waited for 1 s took no 0.6 s.
    """
    training = (step.end_ns - step.start_ns) / SECOND_NS - step.phase_seconds
    stopped = training - (usual_seconds or 0.0)
    if stopped <= 0.0:
        return step
    parts: dict[str, float] = {name: getattr(step, name) or 0.0 for name in _PART_FIELDS}
    longest = max(parts, key=parts.__getitem__)
    changes: dict[str, Any] = {}
    if parts[longest] > 0.5 * stopped:
        parts[longest] = changes[longest] = max(0.0, parts[longest] - stopped)
    stopped = min(stopped, max(0.0, training - sum(parts.values())))
    return replace(step, phase_seconds=step.phase_seconds + stopped, **changes)


def wait_within(wait_seconds: float | None, training: float) -> float | None:
    """The wait of a step, no longer than its training: a peer or a file may claim one that is, a share above 100%."""
    return training if wait_seconds is not None and wait_seconds > training else wait_seconds


def parts_within(step: StepEnd, training: float) -> list[float]:
    """Copy, forward, backward and optimizer without the pauses inside them, which are no part of `training` either.

    A first backward that compiles for 5 s made the backward 47% of a minute of which 80% were waits. Which part a
    pause lay in is not known: all of them give in proportion. So do parts that a peer or a file claims to be longer
    together than the step.
    """
    spans = (step.copy_seconds, step.forward_seconds, step.backward_seconds, step.optimizer_seconds)
    total = sum(seconds for seconds in spans if seconds is not None)
    room = training - (wait_within(step.wait_seconds, training) or 0.0)
    scale = room / total if total > room else 1.0
    return [number(None if seconds is None else seconds * scale) for seconds in spans]


class Settling:
    """The borders of epoch starts, by loader, and the usual size of a batch."""

    __slots__ = ("_batch_counts", "_batch_sizes", "_epoch_heads", "_heads", "_usual_batch")

    def __init__(self) -> None:
        self._batch_sizes: deque[int] = deque(maxlen=_RECENT)
        self._batch_counts: Counter[int] = Counter()
        self._usual_batch = 0
        self._heads: dict[int, int] = {}
        self._epoch_heads: dict[int, int] = {}

    def learn_loaders(self, loaders: Iterable[LoaderFacts]) -> bool:
        """Takes the loaders' settings. Whether a border of an epoch's start has moved."""
        known = list(loaders)
        self._epoch_heads = {loader.loader: max(1, loader.num_workers or 1) for loader in known}
        before, self._heads = self._heads, {loader.loader: head_batches(loader) for loader in known}
        return before != self._heads

    def learn_batch_size(self, samples: int | None) -> bool:
        """Follows the size of most of the last 128 batches, of fewer the most frequent. Whether it has changed."""
        if samples is None:
            return False
        sizes, counts = self._batch_sizes, self._batch_counts
        if len(sizes) == _RECENT:
            counts[sizes[0]] -= 1
            if not counts[sizes[0]]:
                del counts[sizes[0]]
        sizes.append(samples)
        counts[samples] += 1
        most = max(counts[self._usual_batch], len(sizes) // 2 if len(sizes) == _RECENT else 0)
        is_new = samples != self._usual_batch and counts[samples] > most
        if is_new:
            self._usual_batch = samples
        return is_new

    def epoch_head(self, loader: int) -> int:
        """The batches that one round of the workers makes: they are the late ones of an epoch."""
        if loader == UNKNOWN and len(self._epoch_heads) == 1:
            return next(iter(self._epoch_heads.values()))
        return self._epoch_heads.get(loader, 1)

    def holds(self, position: int, loader: int, samples: float) -> bool:
        """Whether a step at this place of its epoch, with this many samples, speaks of the pace."""
        if 0 <= position < self._heads.get(loader, 1):
            return False
        return not samples < _PARTIAL_BATCH * self._usual_batch


def head_batches(loader: LoaderFacts) -> int:
    """The first batches of an epoch, which the workers prefetch: they wait for the start, not for the pace."""
    workers = loader.num_workers or 0
    prefetch = _DEFAULT_PREFETCH if loader.prefetch_factor is None else loader.prefetch_factor
    return max(1, workers * prefetch)


class WarmUp:
    """Open until the median of five steps is within 20% of the five before.

    Medians of five never agree on a run that waits for every second batch (two workers too slow): slow and fast steps
    take turns in having the majority. Means over ten do, so they are asked as well from the twentieth step on.
    """

    __slots__ = ("_periods", "over_ns")

    def __init__(self) -> None:
        self.over_ns: int | None = None
        self._periods: deque[float] = deque(maxlen=20)

    def step(self, end_ns: int, seconds: float) -> None:
        """Looks at one more step."""
        if self.over_ns is not None:
            return
        self._periods.append(seconds)
        periods = list(self._periods)
        fives_agree = len(periods) >= 10 and _alike(median(periods[-5:]), median(periods[-10:-5]))
        tens_agree = len(periods) == 20 and _alike(fmean(periods[10:]), fmean(periods[:10]))
        if fives_agree or tens_agree:
            self.over_ns = end_ns


def _alike(value: float, before: float) -> bool:
    return abs(value - before) <= _LIKE * before


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
        is_long = step.end_ns - self._start_ns >= _BLOCK_NS or len(self._periods) >= _MOST_STEPS
        if len(self._periods) >= _BLOCK_STEPS and is_long:
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


class StepTiers:
    """The sums of `StepSums` by second and minute, without the parts of steps.

    Of a step with a phase in it, the training is its end: evaluations and checkpoints follow the optimizer, they do not
    come before it.
    """

    __slots__ = ("minutes", "seconds")

    def __init__(self) -> None:
        names = STEP_SUMS
        self.seconds = SumBuckets(SECOND_NS, SECONDS_KEPT, "f", names, _RANGES)
        self.minutes = SumBuckets(MINUTE_NS, MINUTES_KEPT, "d", names, _RANGES)

    def add_step(
        self, end_ns: int, training: float, wait_seconds: float | None, samples: int | None, batches: int, settled: bool
    ) -> None:
        """One step that ended at `end_ns` after `training` seconds."""
        has_wait = wait_seconds is not None
        wait = wait_seconds or 0.0
        amounts = (
            1.0,
            training,
            wait,
            training if has_wait else 0.0,
            1.0 if has_wait else 0.0,
            float(samples or 0),
            0.0 if samples is None else training,
            float(batches),
            wait if settled else 0.0,
            training if settled and has_wait else 0.0,
            0.0,
            0.0,
        )
        share = number(wait / training if has_wait and training > 0 else None)
        self._add(end_ns, training, amounts, (training, share))

    def add_gap(self, end_ns: int, training: float, gap_seconds: float) -> None:
        """The GPU's idle time of a settled step."""
        amounts = (0.0,) * len(_SUMS_OF_STEPS) + (gap_seconds, training)
        self._add(end_ns, training, amounts, (number(None), number(None)))

    def add_tally(self, tally: StackTally, *, has_wait: bool, has_batch_size: bool) -> None:
        """A second that was sampled from outside: its training and the waits in it are by share of samples.

        Without `has_wait` nothing is known that the training may wait for.
        """
        if not tally.samples:
            return
        per_sample = (tally.end_ns - tally.start_ns) / SECOND_NS / tally.samples
        training = per_sample * (tally.samples - sum(tally.phases.get(phase, 0) for phase in NOT_TRAINING))
        wait = per_sample * tally.phases.get("wait", 0)
        sampled = training if has_batch_size else 0.0
        waited = training if has_wait else 0.0
        amounts = (0.0, training, wait, waited, 0.0, 0.0, sampled, 0.0, 0.0, 0.0, 0.0, 0.0)
        share = number(wait / waited if waited > 0 else None)
        self._spread(tally.start_ns, tally.end_ns, amounts, (number(None), share))

    def add_batches(self, start_ns: int, end_ns: int, batches: int, batch_size: int | None) -> None:
        """Batches that were counted from outside over a stretch."""
        samples = float(batches * (batch_size or 0))
        amounts = (float(batches), 0.0, 0.0, 0.0, 0.0, samples, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
        period = (end_ns - start_ns) / SECOND_NS / batches
        self._spread(start_ns, end_ns, amounts, (period, number(None)))

    def fill_minutes(self, times_ns: Sequence[int], columns: Mapping[str, Sequence[float]]) -> None:
        """Fills minutes whose steps are known only by their sums; their seconds are not known any more."""
        self.minutes.fill(times_ns, columns)
        self.seconds.trimmed = True

    def sums(self, start_ns: int, end_ns: int) -> StepSums:
        """All sums over a stretch."""
        tier = self.reaching(start_ns)
        span = tier.span(start_ns, end_ns)
        found = {name: float(sum(tier.arrays[name][span])) for name in STEP_SUMS}
        return StepSums(**found, steps_train=found["train"])

    def reaching(self, start_ns: int) -> SumBuckets:
        """The finer tier that reaches back to `start_ns`."""
        return self.seconds if self.seconds.reaches(start_ns) else self.minutes

    def _add(self, end_ns: int, training: float, amounts: tuple[float, ...], values: tuple[float, float]) -> None:
        self._spread(end_ns - round(training * SECOND_NS), end_ns, amounts, values)

    def _spread(self, start_ns: int, end_ns: int, amounts: tuple[float, ...], values: tuple[float, float]) -> None:
        self.seconds.add(start_ns, end_ns, amounts, values)
        self.minutes.add(start_ns, end_ns, amounts, values)
