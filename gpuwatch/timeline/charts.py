"""One series of the history, cut into a chart's equal buckets of time."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from statistics import fmean

from gpuwatch.timeline.columns import MINUTE_NS, SECOND_NS, Buckets, ValueBuckets, ValueTiers
from gpuwatch.timeline.figures import quotient
from gpuwatch.timeline.gpu import GpuHistory, Ring
from gpuwatch.timeline.host import HostHistory
from gpuwatch.timeline.runs import grouped
from gpuwatch.timeline.trainer import TrainerHistory
from gpuwatch.timeline.windows import known

_RING_HOLD_NS = SECOND_NS // 2
_HOLD_INTERVALS = 1.6  # two polls are 1.2 intervals apart at most (their jitter); a missed one is a gap

Line = list["float | None"]


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart.

    `name` is that of a charted metric (gpuwatch.metrics), `key` the GPU's UUID or the run's id; empty for the host.
    """

    name: str
    key: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """Equal buckets from `start_ns` to `end_ns`; None where nothing was measured (a gap, not a zero)."""

    series: Series
    start_ns: int
    end_ns: int
    mean: Sequence[float | None]
    min: Sequence[float | None]
    max: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Grid:
    """Equal buckets from `start_ns` to `end_ns`."""

    start_ns: int
    end_ns: int
    buckets: int

    @property
    def width_ns(self) -> float:
        """Of one bucket."""
        return (self.end_ns - self.start_ns) / self.buckets


@dataclass(frozen=True, slots=True)
class Lines:
    """Mean, least and greatest per bucket; None where nothing was measured."""

    mean: Line
    min: Line
    max: Line


def lines_of(
    series: Series,
    grid: Grid,
    gpus: Mapping[str, GpuHistory],
    trainers: Iterable[TrainerHistory],
    host: HostHistory,
    interval_seconds: float,
) -> Lines:
    """One series on a grid; nothing where its GPU or run is not known."""
    subject, metric = series.name.split(".", 1)
    if subject == "host":
        return value_lines(host.tiers[metric], grid, _HOLD_INTERVALS * max(1.0, interval_seconds))
    if subject == "gpu":
        gpu = gpus.get(series.key)
        return gpu_lines(gpu, metric, grid, _HOLD_INTERVALS * interval_seconds) if gpu else empty(grid)
    run = next((run for run in grouped(trainers) if run.id == series.key), None)
    return RUN_LINES[series.name](run.trainers, grid) if run else empty(grid)


def empty(grid: Grid) -> Lines:
    """Nothing measured anywhere."""
    nothing: Line = [None] * grid.buckets
    return Lines(nothing, nothing, nothing)


def value_lines(tiers: ValueTiers, grid: Grid, hold_seconds: float) -> Lines:
    """One metric. A value holds for `hold_seconds`: polls are jittered, so some seconds have none and are no gap."""
    tier: ValueBuckets = tiers.minutes if _wants_minutes(grid, tiers.seconds) else tiers.seconds
    ranges = _ranges(tier.width_ns, tier.first, tier.length, grid)
    hold = int(hold_seconds * SECOND_NS / grid.width_ns)
    return Lines(
        _held(_folded(tier.arrays["mean"], ranges, fmean), hold),
        _held(_folded(tier.arrays["min"], ranges, min), hold),
        _held(_folded(tier.arrays["max"], ranges, max), hold),
    )


def ring_lines(ring: Ring, grid: Grid) -> Lines | None:
    """The driver's own samples, for buckets shorter than a second; None where the ring holds too few for that."""
    seconds = (grid.end_ns - grid.start_ns) / SECOND_NS
    if grid.width_ns >= SECOND_NS or ring.rows.until(grid.end_ns) - ring.rows.since(grid.start_ns) < 2 * seconds:
        return None
    edges = [ring.rows.until(round(grid.start_ns + place * grid.width_ns)) for place in range(grid.buckets + 1)]
    found = [ring.rows["value"][low:high] for low, high in pairwise(edges)]
    hold = int(_RING_HOLD_NS / grid.width_ns)
    return Lines(
        _held([sum(values) / len(values) if values else None for values in found], hold),
        _held([min(values, default=None) for values in found], hold),
        _held([max(values, default=None) for values in found], hold),
    )


def gpu_lines(gpu: GpuHistory, metric: str, grid: Grid, hold_seconds: float) -> Lines:
    """One metric of a GPU, from its ring where that is finer."""
    ring = gpu.rings.get(metric)
    lines = ring_lines(ring, grid) if ring is not None else None
    return lines or value_lines(gpu.tiers[metric], grid, hold_seconds)


def wait_share_lines(trainers: Sequence[TrainerHistory], grid: Grid) -> Lines:
    """The wait of the rank that waits longest, bucket by bucket: that is the one that holds up the run."""
    return _worst([_ratio_lines(each, grid, "wait", "wait_train", "share") for each in trainers], grid)


def step_seconds_lines(trainers: Sequence[TrainerHistory], grid: Grid) -> Lines:
    """The training seconds per step of the slowest rank.

    Batches that are counted from outside are known to a second: one may fall outside the training that made it. How
    long each of them took is not known, so their mean is all there is: what the batches of a second took is no range
    of what they took of the training.
    """
    lines = _worst(
        [_ratio_lines(each, grid, "train", "steps", "period" if each.is_exact else None) for each in trainers], grid
    )
    return Lines(*([seconds or None for seconds in line] for line in (lines.mean, lines.min, lines.max)))


def samples_lines(trainers: Sequence[TrainerHistory], grid: Grid) -> Lines:
    """Samples per second of training of all ranks together."""
    by_rank = [_ratio_lines(trainer, grid, "samples", "samples_train", None).mean for trainer in trainers]
    together: Line = []
    for rates in zip(*by_rank, strict=True):
        measured = [rate for rate in rates if rate is not None]
        together.append(sum(measured) if measured else None)
    return Lines(together, together, together)


RUN_LINES: Mapping[str, Callable[[Sequence[TrainerHistory], Grid], Lines]] = {
    "run.wait_share": wait_share_lines,
    "run.step_seconds": step_seconds_lines,
    "run.samples_per_second": samples_lines,
}


def _ratio_lines(trainer: TrainerHistory, grid: Grid, amount: str, of: str, spread: str | None) -> Lines:
    tiers = trainer.tiers
    tier = tiers.minutes if _wants_minutes(grid, tiers.seconds) else tiers.seconds
    ranges = _ranges(tier.width_ns, tier.first, tier.length, grid)
    mean = _quotients(tier.arrays[amount], tier.arrays[of], ranges)
    if spread is None:
        return Lines(mean, mean, mean)
    return Lines(
        mean,
        _folded(tier.arrays[f"{spread}_min"], ranges, min),
        _folded(tier.arrays[f"{spread}_max"], ranges, max),
    )


def _folded(column: array[float], ranges: Sequence[tuple[int, int]], fold: Callable[[list[float]], float]) -> Line:
    """One value per range, most often of a single bucket; None where nothing is known."""
    return [
        (value if (value := column[low]) == value else None) if high - low == 1 else _fold(column[low:high], fold)
        for low, high in ranges
    ]


def _fold(column: array[float], fold: Callable[[list[float]], float]) -> float | None:
    values = known(column)
    return fold(values) if values else None


def _quotients(amounts: array[float], of: array[float], ranges: Sequence[tuple[int, int]]) -> Line:
    return [quotient(sum(amounts[low:high]), sum(of[low:high])) for low, high in ranges]


def _held(line: Line, most: int) -> Line:
    """Gaps of up to `most` buckets show the value before them."""
    if None not in line:
        return line
    held: Line = []
    last, age = None, 0
    for value in line:
        last, age = (value, 0) if value is not None else (last, age + 1)
        held.append(last if age <= most else None)
    return held


def _worst(lines: Sequence[Lines], grid: Grid) -> Lines:
    if len(lines) == 1:
        return lines[0]
    worst = Lines([], [], [])
    for place in range(grid.buckets):
        known_lines = [line for line in lines if line.mean[place] is not None]
        chosen = max(known_lines, key=lambda line: line.mean[place] or 0.0, default=None)
        worst.mean.append(chosen.mean[place] if chosen else None)
        worst.min.append(chosen.min[place] if chosen else None)
        worst.max.append(chosen.max[place] if chosen else None)
    return worst


def _wants_minutes(grid: Grid, seconds: Buckets) -> bool:
    return grid.width_ns >= MINUTE_NS or not seconds.reaches(grid.start_ns)


@lru_cache(maxsize=8)
def _ranges(width_ns: int, first: int, length: int, grid: Grid) -> Sequence[tuple[int, int]]:
    """The places in a tier that belong to each bucket of the chart; the curves of a chart mostly share them.

    Those whose middle it holds; where the chart is finer than the tier, the one that holds its middle.
    """
    half, width = width_ns / 2, grid.width_ns
    if width < width_ns:
        middles = [math.floor((grid.start_ns + (place + 0.5) * width) / width_ns) for place in range(grid.buckets)]
        places = [min(max(middle - first, -1), length) for middle in middles]
        return [(place, place + 1) if 0 <= place < length else (0, 0) for place in places]
    edges = [
        min(max(math.ceil((grid.start_ns + place * width - half) / width_ns) - first, 0), length)
        for place in range(grid.buckets + 1)
    ]
    return list(pairwise(edges))
