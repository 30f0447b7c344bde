"""Figures of a list of numbers. NaN means unknown, as in the timeline's arrays, and is left out."""

from __future__ import annotations

import math
import statistics
from array import array
from collections.abc import Iterable

from gpuwatch.timeline.windows import Share, Stats

_Z_95 = 1.959964  # standard normal quantile at 97.5 %


def known(values: Iterable[float]) -> list[float]:
    """The values that are not NaN."""
    return [value for value in values if value == value]


def stats(values: Iterable[float]) -> Stats | None:
    """Mean, sample standard deviation and percentiles; None without a known value."""
    ordered = sorted(known(values))
    if not ordered:
        return None
    mean, sigma = mean_and_sigma(ordered)
    if len(ordered) == 1:
        return Stats(1, mean, 0.0, mean, mean, mean, mean, mean)
    cuts = statistics.quantiles(ordered, n=20, method="inclusive")
    return Stats(len(ordered), mean, sigma, cuts[0], cuts[9], cuts[18], ordered[0], ordered[-1])


def mean_and_sigma(values: list[float]) -> tuple[float, float]:
    """Mean and sample standard deviation of one or more known values.

    `statistics.stdev` computes in exact fractions: 250 us for the 420 ring values of a minute, against 12 us.
    """
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, 0.0
    return mean, math.dist(values, [mean] * len(values)) / math.sqrt(len(values) - 1)


def median(values: Iterable[float]) -> float | None:
    """The median of the known values."""
    ordered = known(values)
    return statistics.median(ordered) if ordered else None


def mean(values: Iterable[float]) -> float | None:
    """The mean of the known values."""
    numbers = known(values)
    return statistics.fmean(numbers) if numbers else None


def wilson(hits: int, count: int) -> Share:
    """A share of `count` > 0 samples with its 95 % score interval, which holds for 0 hits and for few samples."""
    share = hits / count
    square = _Z_95 * _Z_95
    center = share + square / (2 * count)
    half = _Z_95 * math.sqrt(share * (1.0 - share) / count + square / (4 * count * count))
    scale = 1.0 + square / count
    # Rounding must not leave the share itself outside, which lies on a bound at 0 and 1.
    return Share(share, min(share, max(0.0, (center - half) / scale)), max(share, min(1.0, (center + half) / scale)))


class LogHistogram:
    """Quantiles of a stream of any length in 9 KB, each within 1 % of the true value.

    Bins grow by 2 %, from 10 us to a day, so that a 1 ms step and a ten-minute one are resolved equally well.
    """

    __slots__ = ("_bins", "count")

    _LOWEST = 1e-5
    _STEP = math.log(1.02)
    _BINS = 1 + math.ceil(math.log(86_400 / 1e-5) / math.log(1.02))

    def __init__(self) -> None:
        self._bins = array("Q", bytes(8 * self._BINS))
        self.count = 0

    def add(self, value: float) -> None:
        """Counts a value; those outside the range count as its ends."""
        index = int(math.log(max(value, self._LOWEST) / self._LOWEST) / self._STEP)
        self._bins[min(index, self._BINS - 1)] += 1
        self.count += 1

    def quantile(self, share: float) -> float | None:
        """The value below which `share` of the stream lies; None before the first value."""
        wanted = share * self.count
        seen = 0
        for index, count in enumerate(self._bins):
            seen += count
            if count and seen >= wanted:
                return float(self._LOWEST * math.exp((index + 0.5) * self._STEP))
        return None
