"""Figures of the step stream that several rules read: settled steps, blocks, autocorrelation, robust spread."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import compress
from statistics import fmean, median
from typing import TypeVar

from gpuwatch.statistics import student_t_quantile
from gpuwatch.timeline.windows import RankWindow, Share

NEWEST = 1024
"""Steps looked at, at most: enough for any share to a point, and cheap at 1 ms steps."""
EARLY_STEPS = 8
"""From here on a share is judged by its interval."""
MAD_TO_SIGMA = 1.4826
LATE_SHARE, LEAST_BATCHES = 0.05, 50
"""Of a loader's batches those that may hold a slow item, and how many others tell the workers' usual pace."""
CONFIDENCE = 0.95
MOST_ALIKE = 0.6
"""Correlation of neighbouring stretches, at most: the interval is then twice as wide."""

_T = TypeVar("_T")


def batches_per_step(rank: RankWindow) -> int:
    """How many batches a step takes: more than one where gradients are accumulated."""
    size = rank.train_loader.batch_size if rank.train_loader else None
    known = [samples for (samples,) in settled(rank, rank.columns.samples)]
    return max(1, round(median(known) / size)) if size and known else 1


def settled(rank: RankWindow, *columns: Sequence[float]) -> list[tuple[float, ...]]:
    """The newest settled steps as rows of these columns; rows with an unknown value are left out."""
    keep = rank.columns.settled[-NEWEST:]
    newest = (compress(column[-NEWEST:], keep) for column in columns)
    return [row for row in zip(*newest, strict=True) if not any(map(math.isnan, row))]


def few_settled(rank: RankWindow) -> bool:
    """Whether a hooked run has made steps and fewer than eight are settled: it just began, or its queue never fills."""
    return bool(len(rank.columns.settled)) and sum(rank.columns.settled) < EARLY_STEPS


def begun(rank: RankWindow, lost: Sequence[float]) -> list[tuple[float, float]]:
    """(time, lost) of the newest steps behind the first batch of each worker, settled or not.

    All workers begin that one at once, when the epoch begins: a job that waited 5 s for them was called starved
    18 s after its start (GPU idle 29% of the time) and never waited again. Steps of the warm-up compute longer than
    others, so the share that they lose is never too high.

    Args:
        rank: whose steps.
        lost: the column of what each loses, its wait or its gap; steps in which that is not known are left out.
    """
    first = max(1, rank.train_loader.num_workers or 0) if rank.train_loader is not None else 1
    columns = rank.columns
    rows = zip(columns.period_seconds, lost, columns.epoch_position, strict=True)
    return [(period, seconds) for period, seconds, place in rows if seconds == seconds and not 0 <= place < first][
        -NEWEST:
    ]


def stretches(rows: Sequence[_T], count: int, rhythm: int = 1) -> list[Sequence[_T]]:
    """At most `count` equal stretches of rows, each of whole rhythms where rows repeat in one."""
    size = rhythm * max(1, math.ceil(len(rows) / count / rhythm))
    return [
        rows[start : start + size] for start in range(0, len(rows), size) if start == 0 or len(rows) - start >= size
    ]


def ratio_interval(parts: Sequence[tuple[float, float]]) -> Share | None:
    """What all stretches together hold of something, 0..1, with its 95% interval; None of fewer than two.

    Args:
        parts: of each stretch its length, and how much of it counts.
    """
    reach = ratio_reach(parts)
    if reach is None:
        return None
    value = sum(part for _, part in parts) / sum(length for length, _ in parts)
    return Share(value, max(0.0, value - reach), min(1.0, value + reach))


def ratio_reach(parts: Sequence[tuple[float, float]], *, drifting: bool = False) -> float | None:
    """How far the interval reaches to both sides.

    Jackknife of the ratio, Student's t: stretches that are longer than what repeats in them are independent.

    Args:
        parts: as above.
        drifting: whether neighbours may be alike: what they repeat of each other then widens the interval.
    """
    count, time, held = len(parts), sum(length for length, _ in parts), sum(part for _, part in parts)
    if count < 2 or any(time - length <= 0.0 for length, _ in parts):
        return None
    without = [(held - part) / (time - length) for length, part in parts]
    mean = fmean(without)
    error = math.sqrt((count - 1) / count * sum((each - mean) ** 2 for each in without))
    alike = min(MOST_ALIKE, max(0.0, autocorrelation(without, 1) or 0.0)) if drifting else 0.0
    return _student_t(count - 1) * error * math.sqrt((1.0 + alike) / (1.0 - alike))


@lru_cache(maxsize=1024)
def _student_t(freedom: int) -> float:
    return student_t_quantile((1.0 + CONFIDENCE) / 2.0, freedom)


def autocorrelation(values: Sequence[float], lag: int) -> float | None:
    """How alike the values are to those `lag` places before, -1..1; None for a constant or too short a series."""
    if lag < 1 or len(values) < 4 * lag:
        return None
    mean = fmean(values)
    centred = [value - mean for value in values]
    variance = sum(value * value for value in centred)
    if variance <= 0.0:
        return None
    return sum(a * b for a, b in zip(centred, centred[lag:], strict=False)) / variance


def comb(waits: Sequence[float], workers: int) -> float | None:
    """The autocorrelation of the waits at lag `workers`: near 1 where every worker is too slow, near 0 otherwise."""
    return autocorrelation(waits, workers) if workers >= 2 and len(waits) >= 4 * workers + 50 else None


def batch_deviation(rank: RankWindow) -> float | None:
    """How much the making of batches differs, as their deviation over their mean; None where workers do not tell."""
    made = rank.workers
    if made is None or not made.batch_seconds or made.batch_seconds_sigma is None:
        return None
    return made.batch_seconds_sigma / made.batch_seconds


def are_too_slow(rank: RankWindow, round_seconds: float, late_share: float = LATE_SHARE) -> bool:
    """Whether the workers could not keep up if they never idled, without their longest batches either.

    In order they idle while one batch takes long: four that took 0.8 s for one, give or take 40%, were busy 82% of
    the time where a step took 0.16 s. And single slow items are not what holds up workers whose usual batches take too
    long: of 32 that needed 1.8 s and had 1.1 s some took 15 s, and it waited for all of them alike.

    Args:
        rank: whose workers report what each batch took; False where they do not.
        round_seconds: what the training computes while each worker makes the batches of a step.
        late_share: the part of the batches that is left out.
    """
    made = sorted(rank.workers.newest_batch_seconds) if rank.workers is not None else []
    usual = made[: int((1.0 - late_share) * len(made))]
    return len(usual) >= LEAST_BATCHES and fmean(usual) * max(1.0, rank.batches_per_step or 1.0) >= round_seconds


def robust_sigma(values: Sequence[float]) -> float:
    """The spread by the median deviation, which a few outliers do not move."""
    middle = median(values)
    return MAD_TO_SIGMA * median(abs(value - middle) for value in values)


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """The first and third quartile, as values that occur."""
    ordered = sorted(values)
    return ordered[len(ordered) // 4], ordered[(3 * len(ordered) - 1) // 4]
