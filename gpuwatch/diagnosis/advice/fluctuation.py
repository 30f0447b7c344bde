"""How much a GPU's utilization and the run's steps swing, in which rhythm, and which part of the loop that belongs to.

Utilization is what a sensor averages over 1/6 s to 1 s: half of the time lost in steps of 0.1 s shows a standard
deviation of 0.7 to 7 points only. The step stream is immune to that.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from gpuwatch.diagnosis.advice.stream import MAD_TO_SIGMA, robust_sigma
from gpuwatch.numbers import seconds
from gpuwatch.timeline.columns import SECOND_NS
from gpuwatch.timeline.times import Span, clipped, united
from gpuwatch.timeline.windows import RankWindow, Stats

MEAN_FOR_RATIO = 20.0
"""Below this mean a ratio to it says nothing."""
DIP_OF_HIGH, DIP_BELOW_USUAL, LEAVES_ABOVE = 0.5, 20.0, 10.0
SPIKE_DEVIATIONS = 8.0
EVENTS = 4
REGULAR = 0.25
SENSORS_PER_STEP = 2.0
OWNS = 0.70
"""Of the dips' time that a cause covers, and of its own occurrences that dip: it then owns the pattern."""


@dataclass(frozen=True, slots=True)
class Swings:
    """Utilization in points. `lost` is what it would gain by staying at its own 95th percentile."""

    sigma: float
    swing: float
    lost: float
    relative_sigma: float | None  # None where the mean is too low for it
    dips: tuple[Span, ...]
    dips_per_minute: float
    dip_share: float


@dataclass(frozen=True, slots=True)
class StepSwings:
    """The same of the steps: robust spread over the median, and those longer than it by 8 median deviations.

    `spike_share` is the time in which they were longer than the median, of all training time.
    """

    spread: float
    spikes: tuple[Span, ...]
    spike_share: float


@dataclass(frozen=True, slots=True)
class Beat:
    """Events at a steady interval, each spread being the robust one over the interval; steps where they are known."""

    events: int
    period_seconds: float
    spread: float
    period_steps: int | None = None
    steps_spread: float | None = None

    @property
    def in_steps(self) -> bool:
        """Whether it is steadier in steps than in seconds: what comes every k steps is exact in steps only."""
        return self.steps_spread is not None and self.steps_spread < self.spread


def swings_of(stats: Stats, series: Sequence[tuple[int, float]]) -> Swings:
    """The figures of a window's utilization."""
    found = dips_of(stats, series)
    watched = (series[-1][0] - series[0][0]) / SECOND_NS if len(series) > 1 else 0.0
    inside = sum(bisect_left(series, (end, -1.0)) - bisect_left(series, (start, -1.0)) for start, end in found)
    return Swings(
        sigma=stats.sigma,
        swing=stats.p95 - stats.p5,
        lost=stats.p95 - stats.mean,
        relative_sigma=stats.sigma / stats.mean if stats.mean >= MEAN_FOR_RATIO else None,
        dips=found,
        dips_per_minute=60.0 * len(found) / watched if watched > 0.0 else 0.0,
        dip_share=inside / len(series) if series else 0.0,
    )


def dips_of(stats: Stats, series: Sequence[tuple[int, float]]) -> tuple[Span, ...]:
    """Stretches below half of the 95th percentile and 20 points below the median; over once 10 points above that."""
    low = min(DIP_OF_HIGH * stats.p95, stats.p50 - DIP_BELOW_USUAL)
    found, began = [], None
    for time_ns, value in series:
        if began is None and value < low:
            began = time_ns
        elif began is not None and value > low + LEAVES_ABOVE:
            found.append((began, time_ns))
            began = None
    if began is not None:
        found.append((began, series[-1][0] + 1))
    return tuple(found)


def step_swings(rank: RankWindow) -> StepSwings | None:
    """The figures of the window's settled steps; None without any."""
    columns = rank.columns
    rows = [
        (end_ns, period)
        for end_ns, period, settled in zip(columns.end_ns, columns.period_seconds, columns.settled, strict=True)
        if settled
    ]
    periods = [period for _, period in rows]
    usual = median(periods) if periods else 0.0
    if usual <= 0.0:
        return None
    limit = usual + SPIKE_DEVIATIONS * robust_sigma(periods) / MAD_TO_SIGMA
    spikes = [(end_ns, period) for end_ns, period in rows if period > limit]
    return StepSwings(
        spread=robust_sigma(periods) / usual,
        spikes=tuple((end_ns - round(period * SECOND_NS), end_ns) for end_ns, period in spikes),
        spike_share=sum(period - usual for _, period in spikes) / sum(periods),
    )


def blind_words(rank: RankWindow, sensor_window_seconds: float | None) -> str | None:
    """That the sensor averages swings of this run's steps away, where it does."""
    step = rank.step_seconds.p50 if rank.step_seconds is not None else None
    if step is None or sensor_window_seconds is None or step >= SENSORS_PER_STEP * sensor_window_seconds:
        return None
    return (
        f"a step of {seconds(step)} is shorter than twice the sensor's window of {seconds(sensor_window_seconds)}: "
        "fluctuation from step to step cannot be seen here"
    )


def beat_of(
    starts_ns: Sequence[int], rank: RankWindow | None, *, events: int = EVENTS, regular: float = REGULAR
) -> Beat | None:
    """The rhythm of events, in seconds and in the steps of a run; None of too few, or where neither is steady.

    Checkpoints come every k steps, and every n seconds only as far as steps take equally long.
    """
    if len(starts_ns) < events:
        return None
    period, spread = _interval([(later - earlier) / SECOND_NS for earlier, later in pairwise(starts_ns)])
    steps, steps_spread = _interval([later - earlier for earlier, later in pairwise(_steps_at(starts_ns, rank))])
    known = steps >= 1.0
    beat = Beat(len(starts_ns), period, spread, round(steps) if known else None, steps_spread if known else None)
    return beat if min(spread, steps_spread if known else 1.0) < regular else None


def owner_of(dips: Sequence[Span], causes: Mapping[str, Sequence[Span]]) -> tuple[str, float] | None:
    """The cause that covers 70% of the dips' time and dips in 70% of its occurrences, with the share it covers."""
    total = sum(end - start for start, end in dips)
    found: list[tuple[float, str]] = []
    for name, spans in causes.items():
        inside = [part for start, end in dips for part in clipped(united(spans), start, end)]
        covered = sum(end - start for start, end in inside) / total if total else 0.0
        dipping = sum(any(start < last and first < end for first, last in dips) for start, end in spans)
        if spans and covered >= OWNS and dipping >= OWNS * len(spans):
            found.append((covered, name))
    return None if not found else (max(found)[1], max(found)[0])


def causes_in_loop(rank: RankWindow, sensor_window_seconds: float | None) -> dict[str, list[Span]]:
    """What happens in the loop, as stretches of time; each is seen until one window of the sensor later."""
    late = round((sensor_window_seconds or 0.0) * SECOND_NS)
    causes: dict[str, list[Span]] = {}
    for kind, start, end in rank.phase_spans:
        causes.setdefault(kind, []).append((start, end + late))
    columns = rank.columns
    for end_ns, period, position in zip(columns.end_ns, columns.period_seconds, columns.epoch_position, strict=True):
        if position == 0:
            causes.setdefault("epoch start", []).append((end_ns - round(period * SECOND_NS), end_ns + late))
    steps = step_swings(rank)
    if steps is not None and steps.spikes:
        causes["long steps"] = [(start, end + late) for start, end in steps.spikes]
    return causes


def _steps_at(times_ns: Sequence[int], rank: RankWindow | None) -> list[int]:
    """The numbers of the steps that the moments lie in; none where one lies before the steps that are kept."""
    if rank is None or not len(rank.columns.end_ns) or times_ns[0] < rank.columns.end_ns[0]:
        return []
    columns, last = rank.columns, len(rank.columns.end_ns) - 1
    return [int(columns.number[min(last, bisect_left(columns.end_ns, time_ns))]) for time_ns in times_ns]


def _interval(intervals: Sequence[float]) -> tuple[float, float]:
    """The usual interval and its robust spread as a share of it."""
    usual = median(intervals) if intervals else 0.0
    return (usual, robust_sigma(intervals) / usual) if usual > 0.0 else (0.0, 1.0)
