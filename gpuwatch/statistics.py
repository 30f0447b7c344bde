"""What may be said of a difference between runs: the change between two sets of them, as a factor with its interval.

Each run counts once, by its mean, for steps of one run depend on each other. Of comparisons of a program with itself
whose runs scatter by 1%, Mann-Whitney over raw steps calls a difference in 82%, Welch's test over run means in 5%
(300 simulated experiments).

Student's t distribution is for degrees of freedom that need not be whole, as Welch's test has them. Not from a library:
SciPy is 223 MB with NumPy, four fifths of an installation, and mpmath 5 of the 60 MB that it may have. Agrees with
SciPy to 1e-10 up to 10,000 degrees of freedom.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_SMALLEST = 1e-300  # stands for a zero that would be divided by
_MOST_TERMS = 10_000  # about sqrt(freedom) are needed


def two_sided_p_value(t: float, freedom: float) -> float:
    """How probable a value at least as far from 0 as `t` is."""
    inside = t * t / (freedom + t * t)
    outside = freedom / (freedom + t * t)  # not 1 - inside, which loses the digits of small probabilities
    # The fraction converges fast only below the mean of the beta distribution.
    if outside < (freedom / 2 + 1) / (freedom / 2 + 2.5):
        return _incomplete_beta(outside, inside, freedom / 2, 0.5)
    return 1 - _incomplete_beta(inside, outside, 0.5, freedom / 2)


def student_t_quantile(probability: float, freedom: float) -> float:
    """The value that is not exceeded with `probability`, which is at least 0.5 and below 1; by bisection."""
    beyond = 2 * (1 - probability)
    low, high = 0.0, 1.0
    while two_sided_p_value(high, freedom) > beyond:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:
        if two_sided_p_value(middle, freedom) > beyond:
            low = middle
        else:
            high = middle
    return high


def _incomplete_beta(x: float, complement: float, a: float, b: float) -> float:
    """The regularized incomplete beta function by Lentz's method (DLMF 8.17.22); `complement` is 1 - x."""
    if x == 0:
        return 0.0
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    c, d, fraction = 1.0, 0.0, 1.0
    for term in range(_MOST_TERMS):
        half = term // 2
        if term == 0:
            coefficient = 1.0
        elif term % 2:
            coefficient = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            coefficient = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        d = 1 / (1 + coefficient * d or _SMALLEST)
        c = 1 + coefficient / c or _SMALLEST
        fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return math.exp(a * math.log(x) + b * math.log(complement) - log_beta) / a * (fraction - 1)


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
        half_width = student_t_quantile((1 + confidence) / 2, freedom) * error
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
    """The least change, 0.03 for 3%, that runs as many and as scattered as these show in `power` of all trials.

    None where `log_ratio_interval` has no interval.
    """
    if not _have_interval(before, after):
        return None
    error, freedom = _welch(_logarithms(before), _logarithms(after))
    if error == 0:
        return 0.0
    return math.expm1((student_t_quantile((1 + confidence) / 2, freedom) + student_t_quantile(power, freedom)) * error)


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
