"""Charts: their values on a fixed grid of time, and their drawing as rows of text, with phases and axis.

Finished buckets are kept and only the newest are read again: at 8 GPUs a frame shows 18 charts, and asking the timeline
for all their buckets every second costs more than painting them. The range is always given: a chart that scales itself
shows a steady 94% like a starved GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

from rich.style import Style

from gpuwatch.dashboard import formatting as say
from gpuwatch.dashboard.lines import Line, LineWriter
from gpuwatch.dashboard.themes import Look
from gpuwatch.metrics import BY_SERIES
from gpuwatch.samples import PhaseSpan
from gpuwatch.timeline.charts import Chart, Series

LATE_NS = 3_000_000_000
"""How long after its time a sample may still arrive: the driver's ring and the hook's packets lag behind."""

LOCK_SECONDS = 0.05
"""A frame is skipped rather than waited for: keys must stay live while the monitor holds its lock."""


class Lock(Protocol):
    """What is needed of threading's locks."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Takes it, if it can be had in time."""

    def release(self) -> None:
        """Gives it back."""


class Timeline(Protocol):
    """What the dashboard needs of the monitor's timeline."""

    @property
    def lock(self) -> Lock:
        """Held by the monitor while it writes, by views while they read."""

    def chart(self, series: Series, start_ns: int, end_ns: int, buckets: int) -> Chart:
        """The series cut into equal buckets of time."""


Values = tuple["float | None", ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """Equal buckets of one series, oldest first; None where nothing was measured."""

    mean: Values = ()
    peak: Values = ()
    low: Values = ()

    @property
    def largest(self) -> float | None:
        """The largest reading, for the scale of a chart without a natural limit."""
        return max((value for value in self.peak if value is not None), default=None)


@dataclass(frozen=True, slots=True)
class Grid:
    """A stretch of time in equal buckets whose edges are multiples of their width, so that charts only shift."""

    bucket_ns: int
    first: int
    count: int
    until_ns: int = field(default=0, compare=False)
    """The moment that the grid was made for, which the last bucket holds: nothing is known of the rest of it."""

    @classmethod
    def ending_at(cls, end_ns: int, window_seconds: float, count: int) -> Grid:
        """The grid of `count` buckets whose last one holds `end_ns`."""
        bucket_ns = max(1, round(window_seconds * 1e9 / max(1, count)))
        return cls(bucket_ns, end_ns // bucket_ns - count + 1, max(1, count), end_ns)

    @property
    def start_ns(self) -> int:
        """The left edge."""
        return self.first * self.bucket_ns

    @property
    def end_ns(self) -> int:
        """The right edge."""
        return (self.first + self.count) * self.bucket_ns

    def index_of(self, time_ns: int) -> int:
        """The bucket that holds a moment; outside the grid, below 0 or from `count` on."""
        return time_ns // self.bucket_ns - self.first


class _Column:
    """The kept buckets of one series."""

    __slots__ = ("asked_ns", "bucket_ns", "first", "low", "mean", "peak", "trace")

    def __init__(self, grid: Grid, chart: Chart) -> None:
        self.asked_ns = 0
        self.trace = Trace()
        self.bucket_ns = grid.bucket_ns
        self.first = grid.first
        self.mean = list(chart.mean)
        self.low = list(chart.min)
        self.peak = list(chart.max)

    def append(self, first: int, chart: Chart, skip: int, count: int) -> None:
        """Replaces all from bucket `first` on by a chart less its first `skip` buckets; keeps the last `count`."""
        keep = first - self.first
        for kept, new in ((self.mean, chart.mean), (self.low, chart.min), (self.peak, chart.max)):
            kept[keep:] = new[skip:]
            del kept[: len(kept) - count]
        self.first = first + len(chart.mean) - skip - count


class History:
    """The charts' values, asked from a timeline as sparingly as can be."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._columns: dict[tuple[Series, int, int], _Column] = {}
        self._used: set[tuple[Series, int, int]] = set()

    def refresh(self, grid: Grid, wanted: Sequence[tuple[Series, int]], now_ns: int) -> dict[Series, Trace] | None:
        """The traces of all wanted series, or None while the timeline is locked.

        Args:
            grid: The chart's time.
            wanted: Series, and for how many nanoseconds a value holds until the next (a sensor that is read once a
                second says nothing of narrower buckets, and a gap would be a lie).
            now_ns: The snapshot's time: a bucket that is not half full yet is not worth asking for again.
        """
        lock = self._timeline.lock
        if not lock.acquire(timeout=LOCK_SECONDS):
            return None
        try:
            traces = {series: self._trace(series, grid, hold_ns, now_ns) for series, hold_ns in wanted}
        finally:
            lock.release()
        for unused in self._columns.keys() - self._used:
            del self._columns[unused]
        self._used.clear()
        return traces

    def _trace(self, series: Series, grid: Grid, hold_ns: int, now_ns: int) -> Trace:
        key = (series, grid.bucket_ns, grid.count)
        self._used.add(key)
        column = self._columns.get(key)
        if column is not None and column.first == grid.first and 0 <= now_ns - column.asked_ns < grid.bucket_ns // 2:
            return column.trace
        late = LATE_NS // grid.bucket_ns + 2
        last = grid.first + grid.count
        kept_to = column.first + len(column.mean) - late if column else 0
        if column is None or column.first > grid.first or kept_to <= grid.first or last < kept_to:
            column = _Column(grid, self._ask(series, grid.bucket_ns, grid.first, grid.count))
            self._columns[key] = column
        else:
            # Its first buckets may lack a reading that still holds from before them.
            lead = min(hold_ns // grid.bucket_ns + 1, kept_to - column.first)
            chart = self._ask(series, grid.bucket_ns, kept_to - lead, last - kept_to + lead)
            column.append(kept_to, chart, lead, grid.count)
        hold = hold_ns // grid.bucket_ns
        column.asked_ns = now_ns
        column.trace = Trace(held(column.mean, hold), held(column.peak, hold), held(column.low, hold))
        return column.trace

    def _ask(self, series: Series, bucket_ns: int, first: int, count: int) -> Chart:
        return self._timeline.chart(series, first * bucket_ns, (first + count) * bucket_ns, count)


def held(values: Sequence[float | None], buckets: int) -> Values:
    """The values with gaps of up to `buckets` between two readings closed by the earlier reading.

    The end stays open: what comes after the last reading is not known yet.
    """
    if buckets < 1 or None not in values:
        return tuple(values)
    out = list(values)
    last: int | None = None
    for index, value in enumerate(out):
        if value is None:
            continue
        if last is not None and 1 < index - last <= buckets + 1:
            out[last + 1 : index] = [out[last]] * (index - last - 1)
        last = index
    return tuple(out)


# A column of four dots from the bottom up, as bits 0..3, to the bits of its braille pattern (Unicode chapter 21).
_LEFT_DOTS = (0x40, 0x04, 0x02, 0x01)
_RIGHT_DOTS = (0x80, 0x20, 0x10, 0x08)


def _pattern(left: int, right: int) -> str:
    code = sum(dot for bit, dot in enumerate(_LEFT_DOTS) if left >> bit & 1)
    code += sum(dot for bit, dot in enumerate(_RIGHT_DOTS) if right >> bit & 1)
    return chr(0x2800 + code) if code else " "


_CELLS = tuple(_pattern(pair >> 4, pair & 15) for pair in range(256))
_ASCII_LEVELS = " _.-=#"


def values_per_cell(unicode: bool) -> int:
    """How many values one cell of a chart's row shows."""
    return 2 if unicode else 1


@lru_cache(maxsize=512)
def area(
    values: tuple[float | None, ...],
    *,
    low: float,
    high: float,
    height: int = 1,
    peaks: tuple[float | None, ...] | None = None,
    headroom: bool = True,
    unicode: bool = True,
) -> tuple[str, ...]:
    """A filled chart, `height` rows from the top down.

    A measured value shows at least its lowest dot; None and NaN show nothing: a gap is not a zero. `peaks` adds
    one dot per value above the area, which makes swings inside one value's bucket visible. Cached: most charts of a
    frame are those of the frame before.

    Args:
        values: Oldest first; one dot column each.
        low: The value at the bottom edge.
        high: The value at the top edge.
        height: Rows of text.
        peaks: The largest reading inside each value's bucket.
        headroom: Leaves the topmost dots free, so that full charts in lines below each other stay apart.
        unicode: False draws with ASCII characters, one value per cell.
    """
    if not unicode:
        return _ascii_area(values, low, high, height)
    top = 4 * height - (1 if headroom else 0)
    scale = top / (high - low) if high > low else 0.0
    # One comprehension per chart: 20 charts of 90 values a second cost 40 ms a minute this way, thrice with calls.
    levels = [
        0 if value is None or value != value else max(1, min(top, int((value - low) * scale + 0.5))) for value in values
    ]
    columns = [(1 << level) - 1 for level in levels]
    if peaks is not None:
        tops = [0 if peak is None or peak != peak else int((peak - low) * scale + 0.5) for peak in peaks]
        columns = [
            column | 1 << max(0, min(top, peak) - 1) if column else 0
            for column, peak in zip(columns, tops, strict=True)
        ]
    if len(columns) % 2:
        columns.append(0)
    rows = []
    for row in range(height - 1, -1, -1):
        shift = 4 * row
        rows.append(
            "".join(
                [
                    _CELLS[(left >> shift & 15) << 4 | right >> shift & 15]
                    for left, right in zip(columns[::2], columns[1::2], strict=True)
                ]
            )
        )
    return tuple(rows)


def _ascii_area(values: tuple[float | None, ...], low: float, high: float, height: int) -> tuple[str, ...]:
    steps = len(_ASCII_LEVELS) - 1
    scale = steps * height / (high - low) if high > low else 0.0
    rows = []
    for row in range(height - 1, -1, -1):
        cells = []
        for value in values:
            if value is None or value != value:
                cells.append(" ")
                continue
            level = max(1, int((value - low) * scale + 0.5)) - steps * row
            cells.append(_ASCII_LEVELS[max(0, min(steps, level))])
        rows.append("".join(cells))
    return tuple(rows)


_WORDS = {"checkpoint": "save", "warmup": "warm-up"}


def phase_runs(
    phases: Sequence[PhaseSpan],
    grid: Grid,
    cells: int,
    now_ns: int,
    look: Look,
    steps: Sequence[float | None],
) -> list[tuple[str, Style]]:
    """The band as stretches of text and style, `cells` wide in all; each stretch says its kind where it fits.

    Args:
        phases: What was not training.
        grid: The chart's time.
        cells: The chart's width.
        now_ns: Where a phase that lasts ends for now.
        look: How it is written.
        steps: A series of the run's steps on the grid: where it has no value, the run is not said to have trained.
    """
    per_cell = grid.count / max(1, cells)
    kinds = [
        "train" if any(value is not None for value in steps[int(cell * per_cell) : int((cell + 1) * per_cell)]) else ""
        for cell in range(cells)
    ]
    for phase in phases:
        first = int(grid.index_of(phase.start_ns) / per_cell)
        last = int(grid.index_of(phase.end_ns if phase.end_ns is not None else now_ns) / per_cell)
        for cell in range(max(0, first), min(cells - 1, last) + 1):
            kinds[cell] = phase.kind
    stretches: list[tuple[str, Style]] = []
    start = 0
    for cell in range(1, cells + 1):
        if cell == cells or kinds[cell] != kinds[start]:
            stretches.append(_stretch(kinds[start], cell - start, look))
            start = cell
    return stretches


def _stretch(kind: str, cells: int, look: Look) -> tuple[str, Style]:
    if kind in ("train", ""):
        return (look.glyphs.training if kind else " ") * cells, look.faint
    fill = band_fill(kind, look)
    word = _WORDS.get(kind, kind)
    text = word.center(cells, fill) if len(word) <= cells else fill * cells
    return text, look.phase


def band_fill(kind: str, look: Look) -> str:
    """The character that stands for a kind of phase."""
    glyphs = look.glyphs
    return {"eval": glyphs.evaluating, "checkpoint": glyphs.saving}.get(kind, glyphs.other_phase)


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
    rows = area(chart.trace.mean, low=0, high=high, height=height, peaks=peaks, unicode=look.glyphs.unicode)
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
    """The times of day under a page's chart."""
    writer = LineWriter(width, look)
    put_axis(writer, grid, wall_time_at, LABEL, chart_cells(width), look)
    return writer.line()


def put_axis(
    writer: LineWriter, grid: Grid, wall_time_at: Callable[[int], float], start: int, cells: int, look: Look
) -> None:
    """Times of day from column `start` on, at most one every 20 cells; the last is when the chart was drawn.

    In a window of a day a bucket is six minutes wide, and its right edge as far ahead of that moment.
    """
    span_seconds = grid.count * grid.bucket_ns / 1e9
    marks = max(1, cells // 20)
    for mark in range(marks):
        column = start + mark * cells // marks
        at_ns = grid.start_ns + grid.count * grid.bucket_ns * mark // marks
        text = say.clock(wall_time_at(at_ns), seconds_too=span_seconds < 3600)
        writer.to(column).put(look.glyphs.edge + text, look.faint)
    end = say.clock(wall_time_at(min(grid.end_ns, grid.until_ns)), seconds_too=span_seconds < 3600)
    column = start + cells - len(end)
    if column > writer.cells:
        writer.to(column).put(end, look.faint)


def figures_of(trace: Trace, unit: str) -> str:
    """Mean, least and most of what is seen in the window; single precision may not put the mean outside of them."""
    means = [value for value in trace.mean if value is not None]
    if not means:
        return "nothing measured here"
    low = min((value for value in trace.low if value is not None), default=min(means))
    high = trace.largest if trace.largest is not None else max(means)
    mean = min(max(sum(means) / len(means), low), high)
    least, most = amount(low, unit), amount(high, unit)
    suffix = "%" if most.endswith("%") else most[most.rfind(" ") :] if " " in most else ""
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
