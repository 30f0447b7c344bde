"""Figures of a long stretch, put together from those of its minutes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from gpuwatch.recording.session_summary import Level, Swing
from gpuwatch.recording.types import Rollup

_HALVINGS = 28


def total(minutes: Sequence[Rollup]) -> float:
    """The sum of all values."""
    return math.fsum(minute.count * minute.mean for minute in minutes)


def count(minutes: Sequence[Rollup]) -> int:
    """How many values there were."""
    return sum(minute.count for minute in minutes)


def mean(minutes: Sequence[Rollup]) -> float | None:
    """Of all values; None without any."""
    values = count(minutes)
    return total(minutes) / values if values else None


def swing(minutes: Sequence[Rollup]) -> Swing | None:
    """Mean and standard deviation of all values: what each minute scattered, and how far its mean lies from theirs."""
    values, middle = count(minutes), mean(minutes)
    if middle is None:
        return None
    squares = math.fsum(
        (minute.count - 1) * minute.sigma**2 + minute.count * (minute.mean - middle) ** 2 for minute in minutes
    )
    return Swing(middle, math.sqrt(squares / (values - 1)) if values > 1 else 0.0)


def level(minutes: Sequence[Rollup]) -> Level | None:
    """Mean and greatest value."""
    middle = mean(minutes)
    return None if middle is None else Level(middle, max(minute.max for minute in minutes))


def quantile(minutes: Sequence[Rollup], share: float) -> float | None:
    """The value below which `share` of all values lie, with each minute's values spread evenly between its marks.

    The marks are its least value, median, 95th percentile and greatest value. Minutes that are alike give their own
    percentile back.
    """
    values = count(minutes)
    if not values:
        return None
    low, high = min(minute.min for minute in minutes), max(minute.max for minute in minutes)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        below = math.fsum(minute.count * _share_below(minute, middle) for minute in minutes)
        if below < share * values:
            low = middle
        else:
            high = middle
    return high


def _share_below(minute: Rollup, value: float) -> float:
    marks = ((minute.min, 0.0), (minute.p50, 0.5), (minute.p95, 0.95), (minute.max, 1.0))
    if value < minute.min:
        return 0.0
    for (low, share), (high, next_share) in pairwise(marks):
        if value < high:
            return share + (next_share - share) * (value - low) / (high - low)
    return 1.0
