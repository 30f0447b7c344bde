"""The change between two sets of runs, as a factor with its interval.

Each run counts once, by its mean, for steps of one run depend on each other. Of comparisons of a program with itself
whose runs scatter by 1 %, Mann-Whitney over raw steps calls a difference in 82 %, Welch's test over run means in 5 %
(300 simulated experiments).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from gpuwatch.statistics.student_t import quantile, two_sided_p_value

CONFIDENCE = 0.95
POWER = 0.8
"""How often a change of the size that is called detectable would have been seen; 0.8 is the custom."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A factor after/before with the interval that holds the true one at `confidence`.

    `p_value` is that of Welch's test of no change: below 1 - `confidence` exactly where the interval leaves out 1.
    """

    ratio: float
    low: float
    high: float
    p_value: float
    confidence: float
    runs_before: int
    runs_after: int

    @property
    def spans_no_change(self) -> bool:
        """Whether a factor of 1 is among those that are left possible."""
        return self.low <= 1 <= self.high


def log_ratio_interval(
    before: Sequence[float], after: Sequence[float], confidence: float = CONFIDENCE
) -> Interval | None:
    """The factor between the geometric means of both sides, by Welch's test on the logarithms of the runs' means.

    None where no interval can be had: fewer than two runs on a side, or a value that has no logarithm.
    """
    if not _have_interval(before, after):
        return None
    first, second = _logarithms(before), _logarithms(after)
    change = statistics.fmean(second) - statistics.fmean(first)
    error, freedom = _welch(first, second)
    if error == 0:
        half_width, p_value = 0.0, float(change == 0)
    else:
        half_width = quantile((1 + confidence) / 2, freedom) * error
        p_value = two_sided_p_value(change / error, freedom)
    return Interval(
        ratio=math.exp(change),
        low=math.exp(change - half_width),
        high=math.exp(change + half_width),
        p_value=p_value,
        confidence=confidence,
        runs_before=len(before),
        runs_after=len(after),
    )


def detectable_effect(
    before: Sequence[float], after: Sequence[float], confidence: float = CONFIDENCE, power: float = POWER
) -> float | None:
    """The least change, 0.03 for 3 %, that runs as many and as scattered as these show in `power` of all trials.

    None where `log_ratio_interval` has no interval.
    """
    if not _have_interval(before, after):
        return None
    error, freedom = _welch(_logarithms(before), _logarithms(after))
    if error == 0:
        return 0.0
    return math.expm1((quantile((1 + confidence) / 2, freedom) + quantile(power, freedom)) * error)


def geometric_mean(values: Sequence[float]) -> float | None:
    """The mean whose ratios are the means of ratios, None where a value has no logarithm."""
    return statistics.geometric_mean(values) if values and all(map(_has_logarithm, values)) else None


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values as they count where several questions are asked at once, in the order given.

    Holm's step-down: any wrong "it differs" among all of them stays as rare as one alone would be.
    """
    adjusted = [0.0] * len(p_values)
    least = 0.0
    for rank, position in enumerate(sorted(range(len(p_values)), key=lambda each: p_values[each])):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[position]))
        adjusted[position] = least
    return adjusted


def _have_interval(before: Sequence[float], after: Sequence[float]) -> bool:
    return min(len(before), len(after)) >= 2 and all(map(_has_logarithm, (*before, *after)))


def _has_logarithm(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _logarithms(values: Sequence[float]) -> list[float]:
    return [math.log(value) for value in values]


def _welch(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """The standard error of the difference of means, and its degrees of freedom (Welch-Satterthwaite)."""
    parts = [(statistics.variance(values) / len(values), len(values) - 1) for values in (first, second)]
    squared = sum(part for part, _ in parts)
    if squared == 0:
        return 0.0, math.inf
    return math.sqrt(squared), squared**2 / sum(part**2 / freedom for part, freedom in parts)
