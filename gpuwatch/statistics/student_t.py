"""Student's t distribution, for degrees of freedom that need not be whole, as Welch's test has them.

Not from a library: SciPy is 223 MB with NumPy, four fifths of an installation, and mpmath 5 of the 60 MB that it may
have. Agrees with SciPy to 1e-10 up to 10 000 degrees of freedom.
"""

from __future__ import annotations

import math

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


def quantile(probability: float, freedom: float) -> float:
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
