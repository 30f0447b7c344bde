"""The columns that all panels share: numbers of now on the left, charts over one time axis on the right."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

TWO_CHARTS_FROM = 96
"""Below this width the two charts of a row stand one above the other instead of side by side."""

WIDE_FROM = 150


@dataclass(frozen=True, slots=True)
class Columns:
    """Widths in cells; a `chart_2` of None means that the charts are stacked in one column."""

    width: int
    gap: int
    name: int
    meter: int
    utilization: int
    power: int
    memory: int
    temperature: int
    clock: int
    slowed: int
    chart_1: int  # first cell of the left chart
    chart_2: int | None
    chart_width: int

    @property
    def left_width(self) -> int:
        """What the numbers have, up to the charts."""
        return self.chart_1 - self.gap

    @property
    def stacked(self) -> bool:
        """Whether there is one column of charts."""
        return self.chart_2 is None


@cache
def columns(width: int) -> Columns:
    """The widths that suit a terminal."""
    if width >= WIDE_FROM:
        gap, fields = 2, (22, 10, 9, 11, 13, 6, 8, 14)
    elif width >= 110:
        gap, fields = 1, (15, 0, 9, 9, 11, 6, 8, 9)
    elif width >= TWO_CHARTS_FROM:
        gap, fields = 1, (10, 0, 9, 9, 11, 6, 8, 7)
    elif width >= 76:
        gap, fields = 1, (7, 0, 9, 9, 9, 5, 8, 6)
    else:
        gap, fields = 1, (6, 0, 9, 9, 9, 5, 0, 0)
    used = 1 + sum(field + gap for field in fields if field)
    right = width - 1  # the last cell belongs to a scroll bar
    chart_1 = used
    if width >= TWO_CHARTS_FROM:
        chart_width = max(0, (right - chart_1 - gap) // 2)
        chart_2: int | None = right - chart_width
        chart_1 = right - 2 * chart_width - gap
    else:
        chart_width, chart_2 = max(0, right - chart_1), None
    return Columns(width, gap, *fields, chart_1, chart_2, chart_width)
