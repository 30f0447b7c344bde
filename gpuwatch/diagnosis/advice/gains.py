"""What a change brings, as factors on the samples per second. Factors multiply; percentages are never added."""

from __future__ import annotations

import math

from gpuwatch.diagnosis.finding import Gain
from gpuwatch.timeline.windows import PhaseTotals

HIGHEST_SHARE = 0.98
"""A share above it would promise more than 50 times the speed from one number's last digit."""


def without(share: float) -> float:
    """The speed-up from losing nothing of a share of the time any more."""
    return 1.0 / (1.0 - min(max(share, 0.0), HIGHEST_SHARE))


def from_share(low_share: float, high_share: float, cap: str | None = None) -> Gain:
    """The gain from winning back between the two shares of the time."""
    return Gain(round(without(low_share), 3), round(without(high_share), 3), cap)


def from_rarer_phase(share: float, times: float) -> float:
    """The speed-up from doing something `times` as rarely that takes a share of the time."""
    return without(share * (1.0 - 1.0 / max(1.0, times)))


def phase_shares(total: PhaseTotals) -> tuple[float, float]:
    """What a phase takes of the time, the lower and the higher of two figures: of the window, and of its own cycle.

    A window of a minute holds two or three pauses that come every 25 s, so its share is off by a quarter; the longest
    pause over the usual time from one to the next is not, but knows nothing of shorter ones.
    """
    if not total.every_seconds:
        return total.share, total.share
    cycle = min(total.longest_seconds / total.every_seconds, HIGHEST_SHARE)
    return min(total.share, cycle), max(total.share, cycle)


def middle(gain: Gain) -> float:
    """The factor in the middle of the range."""
    return math.sqrt(gain.low * gain.high)
