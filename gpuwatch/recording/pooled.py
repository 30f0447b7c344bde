"""Figures of a long stretch, put together from those of its minutes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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
    """The value below which `share` of all values lie; None without any. See `quantiles`."""
    return quantiles(minutes, (share,))[0]


def quantiles(minutes: Sequence[Rollup], shares: Sequence[float]) -> tuple[float | None, ...]:
    """The values below which these shares of all values lie, with each minute's values spread evenly between its marks.

    The marks are its least value, median, 95th percentile and greatest value. Minutes that are alike give their own
    percentile back.
    """
    values = count(minutes)
    if not values:
        return (None,) * len(shares)
    edges = sorted(edge for minute in minutes for edge in _edges(minute))
    return tuple(_reached(edges, share * values) for share in shares)


def _reached(edges: Sequence[tuple[float, float, float]], goal: float) -> float:
    """Where so many values lie below."""
    below, density, at = 0.0, 0.0, -math.inf
    for value, change, mass in edges:
        reached = below + density * (value - at) if density > 0 else below
        if reached >= goal and density > 0:
            return min(value, at + max(0.0, goal - below) / density)
        below, at = reached + mass, value
        if below >= goal and mass:
            return value
        density += change
    return at


def _edges(minute: Rollup) -> Iterator[tuple[float, float, float]]:
    """Where a minute's values begin and end to be, how densely, and how many lie on one point."""
    marks = ((minute.min, 0.0), (minute.p50, 0.5), (minute.p95, 0.95), (minute.max, 1.0))
    for (low, share), (high, next_share) in pairwise(marks):
        mass = minute.count * (next_share - share)
        if high > low:
            density = mass / (high - low)
            yield low, density, 0.0
            yield high, -density, 0.0
        else:
            yield low, 0.0, mass
