"""Figures of a comparison in words. What is not known is "-", never 0."""

from __future__ import annotations

from gpuwatch.compare.comparison import Change, Metric
from gpuwatch.text.numbers import grouped

UNKNOWN = "-"


def number(value: float | None) -> str:
    """Three digits that mean something, thousands apart, no exponent: "12 345", "98.4", "0.0123"."""
    if value is None:
        return UNKNOWN
    size = abs(value)
    if size >= 100:
        return grouped(value)
    if size >= 1 or size == 0:
        return f"{value:.1f}" if size >= 10 or size == 0 else f"{value:.2f}"
    return f"{value:.3g}" if size >= 1e-4 else f"{value:.1e}"


def quantity(value: float | None, metric: Metric) -> str:
    """The number with its unit."""
    return number(value) if value is None or not metric.unit else f"{number(value)} {metric.unit}"


def percent(ratio: float) -> str:
    """A factor as a change: "+18.4 %"."""
    change = (ratio - 1) * 100
    return f"{'+' if change > 0 else ''}{grouped(change)} %" if abs(change) >= 99.95 else f"{_signed(change)} %"


def _signed(value: float) -> str:
    """With one decimal, and never as "-0.0"."""
    return f"{round(value, 1) + 0.0:+.1f}"


def difference(change: Change) -> str:
    """How much it changed, benchstat's `~` where the interval spans no change."""
    if change.difference is None:
        return UNKNOWN
    if change.interval is not None and change.interval.spans_no_change:
        return f"~ (p = {change.interval.p_value:.2g})"
    if change.metric.is_share:
        return f"{_signed(change.difference)} points"
    if change.ratio is None:
        return f"{'+' if change.difference > 0 else ''}{quantity(change.difference, change.metric)}"
    if change.interval is None:
        return percent(change.ratio)
    low, high = (percent(bound).removesuffix(" %") for bound in (change.interval.low, change.interval.high))
    return f"{percent(change.ratio)} [{low}, {high}]"


def factor(change: Change) -> str:
    """After over before."""
    if change.ratio is None or change.withheld:
        return UNKNOWN
    if change.interval is not None and change.interval.spans_no_change:
        return "~"
    return f"{change.ratio:.2f}x"


def duration(seconds: float | None) -> str:
    """How long a finding lasted: "58 s", "12 min", "3.5 h"."""
    if seconds is None:
        return ""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
