"""Charts on a page: one series each, with its range and figures, above one axis of time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.style import Style

from gpuwatch.dashboard import braille
from gpuwatch.dashboard import formatting as say
from gpuwatch.dashboard.history import Grid, Trace
from gpuwatch.dashboard.text import Line, LineWriter
from gpuwatch.dashboard.themes import Look
from gpuwatch.metrics import BY_SERIES

LABEL = 34
"""Cells left of a chart, for its name and its figures."""


_STYLES = {
    "gpu.utilization_percent": "utilization",
    "gpu.power_watts": "power",
    "gpu.temperature_celsius": "warning",
    "run.wait_share": "wait",
    "run.step_seconds": "step",
    "run.samples_per_second": "compute",
    "host.cpu_percent": "other",
    "host.pressure_io_percent": "other",
}
"""The names of styles of Look; "info" for the others."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One chart of a page; `high` overrides the metric's own top."""

    subject: str
    series: str
    trace: Trace
    grid: Grid
    wall_time_at: Callable[[int], float]
    high: float | None = None


def chart_cells(width: int) -> int:
    """How many cells a page's charts have."""
    return max(8, width - LABEL - 10)


def evidence_lines(charts: Sequence[Evidence], width: int, look: Look, height: int = 4) -> list[Line]:
    """All charts, one above the other, and the axis below them."""
    lines: list[Line] = []
    for chart in charts:
        lines += chart_lines(chart, width, height, look)
    if charts:
        first = charts[0]
        lines.append(axis_line(first.grid, first.wall_time_at, width, look))
    return lines


def chart_lines(chart: Evidence, width: int, height: int, look: Look) -> list[Line]:
    """One chart: its name and figures, the drawing, its range at the right edge."""
    metric = BY_SERIES[chart.series]
    style: Style = getattr(look, _STYLES.get(chart.series, "info"))
    # A single outlier must not flatten a chart: its top is set by the buckets' means.
    high = chart.high or metric.top or round_up(max(filter(None, chart.trace.mean), default=0.0), metric.unit)
    cells = chart_cells(width)
    peaks = chart.trace.peak if height > 1 and metric.unit in ("%", "W") else None
    rows = braille.area(chart.trace.mean, low=0, high=high, height=height, peaks=peaks, unicode=look.glyphs.unicode)
    figures = figures_of(chart.trace, metric.unit)
    lines = []
    for y, row in enumerate(rows):
        writer = LineWriter(width, look).to(1)
        if y == 0:
            if chart.subject:
                writer.put(f"{chart.subject} ", look.strong, LABEL - 2)
            writer.put(metric.label, style, LABEL - 1 - writer.cells)
            if height == 1:
                writer.put(f" {figures}", look.dim, LABEL - 1 - writer.cells)
        elif y == 1:
            # A figure that is cut is another figure, or has no unit.
            writer.put(figures if len(figures) <= LABEL - 2 else figures.removeprefix("mean "), look.dim, LABEL - 2)
        writer.to(LABEL).chart(row, style).to(LABEL + cells + 1)
        if y == 0:
            writer.put(amount(high, metric.unit), look.faint)
        elif y == height - 1:
            writer.put(amount(0.0, metric.unit), look.faint)
        lines.append(writer.line())
    return lines


def axis_line(grid: Grid, wall_time_at: Callable[[int], float], width: int, look: Look) -> Line:
    """Times of day under a chart, at most one every 20 cells; the last is the moment up to which it is drawn.

    In a window of a day a bucket is six minutes wide, and its right edge as far ahead of that moment.
    """
    cells = chart_cells(width)
    span_seconds = grid.count * grid.bucket_ns / 1e9
    writer = LineWriter(width, look)
    marks = max(1, cells // 20)
    for mark in range(marks):
        column = LABEL + mark * cells // marks
        at_ns = grid.start_ns + grid.count * grid.bucket_ns * mark // marks
        text = say.clock(wall_time_at(at_ns), seconds_too=span_seconds < 3600)
        writer.to(column).put(look.glyphs.edge + text, look.faint)
    end = say.clock(wall_time_at(min(grid.end_ns, grid.until_ns)), seconds_too=span_seconds < 3600)
    column = LABEL + cells - len(end)
    if column > writer.cells:
        writer.to(column).put(end, look.faint)
    return writer.line()


def figures_of(trace: Trace, unit: str) -> str:
    """Mean, least and most of what is seen in the window; single precision may not put the mean outside of them."""
    means = [value for value in trace.mean if value is not None]
    if not means:
        return "nothing measured here"
    low = min((value for value in trace.low if value is not None), default=min(means))
    high = trace.largest if trace.largest is not None else max(means)
    mean = min(max(sum(means) / len(means), low), high)
    least, most = amount(low, unit), amount(high, unit)
    suffix = most[most.rfind(" ") :] if " " in most else ""
    least = least.removesuffix(suffix) if suffix else least
    return f"mean {amount(mean, unit)}, {least} to {most}"


def amount(value: float, unit: str) -> str:
    """A value of a series with its unit."""
    if unit == "share":
        return say.share(value)
    if unit == "%":
        return say.percent(value)
    if unit == "s":
        return say.seconds(value) if value else "0 s"
    if unit == "bytes":
        return say.byte_size(value)
    if unit == "1/s":
        return f"{say.count(value)}/s"
    return f"{value:.0f} {unit}"


def round_up(value: float, unit: str) -> float:
    """A round number above a value, for the top of a chart without a natural limit."""
    if value <= 0:
        return 1.0
    base = 1.0
    if unit == "bytes":
        base = 2.0**30
    target = value * 1.1 / base
    power = 10.0 ** (len(str(int(target))) - 1) if target >= 1 else 1.0
    while power > target:
        power /= 10
    return next(step * power for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * power >= target) * base
