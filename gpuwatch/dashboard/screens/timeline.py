"""GPUs, steps, waits and phases on one axis of time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import BindingType

from gpuwatch.dashboard import formatting as say
from gpuwatch.dashboard.actions import bindings
from gpuwatch.dashboard.lines import Line, LineWriter, rule
from gpuwatch.dashboard.panels.charts import (
    LABEL,
    Evidence,
    Grid,
    Trace,
    Values,
    axis_line,
    chart_cells,
    chart_lines,
    phase_runs,
    values_per_cell,
)
from gpuwatch.dashboard.panels.gpu_rows import power_limit
from gpuwatch.dashboard.screens.base import PageScreen
from gpuwatch.dashboard.themes import Look
from gpuwatch.dashboard.view import View
from gpuwatch.dashboard.words import run_name
from gpuwatch.metrics import charted
from gpuwatch.monitor.snapshot import GpuNow
from gpuwatch.timeline.charts import Series


def timeline_grid(view: View, width: int, look: Look, pan_seconds: float) -> Grid:
    """The axis: the view's window, moved back by `pan_seconds`."""
    now_ns = view.snapshot.time_ns if view.snapshot else 0
    cells = chart_cells(width) * values_per_cell(look.glyphs.unicode)
    return Grid.ending_at(now_ns - round(pan_seconds * 1e9), view.window_seconds, cells)


def timeline_series(view: View, detail: bool) -> list[Series]:
    """What is drawn, from top to bottom; `detail` adds temperature, clock and memory of each GPU."""
    snapshot = view.snapshot
    if snapshot is None:
        return []
    of_gpu = charted("gpu", only_headline=not detail)
    if len(snapshot.gpus) >= MAP_FROM and not detail:
        of_gpu = tuple(metric for metric in of_gpu if metric.series == "gpu.utilization_percent")
    series = [Series(metric.series, run.id) for run in view.runs for metric in charted("run")]
    series += [Series(metric.series, gpu.facts.uuid) for gpu in snapshot.gpus for metric in of_gpu]
    return [*series, *(Series(metric.series) for metric in charted("host", only_headline=True))]


MAP_FROM = 16
"""From this number of GPUs on, each is one line of a map instead of two charts."""


def map_line(gpu: GpuNow, trace: Trace, width: int, look: Look) -> Line:
    """A GPU's utilization over time, a digit for the tens of percent and its colour in each cell."""
    writer = LineWriter(width, look).to(1).put(f"GPU {gpu.facts.label}", look.text, 10).to(11)
    known = [value for value in trace.mean if value is not None]
    writer.right(say.percent(sum(known) / len(known)) if known else say.UNKNOWN, 5, look.text)
    process = gpu.processes[0] if gpu.processes else None
    writer.gap(2).put(say.escape(process.user or "") if process is not None else "", look.dim, LABEL - 20).to(LABEL)
    per_cell = values_per_cell(look.glyphs.unicode)
    for start in range(0, len(trace.mean), per_cell):
        cell = [value for value in trace.mean[start : start + per_cell] if value is not None]
        percent = sum(cell) / len(cell) if cell else None
        digit = " " if percent is None else str(min(9, int(percent // 10)))
        style = look.dim if percent is None or percent < 10 else look.warning if percent < 50 else look.good
        writer.chart(digit, style)
    return writer.line()


def timeline_page(
    view: View,
    width: int,
    height: int,
    look: Look,
    grid: Grid,
    traces: dict[Series, Trace],
    wanted: Sequence[Series],
    pan_seconds: float,
) -> list[Line]:
    """The page; charts are as high as the screen allows, two lines at least."""
    snapshot = view.snapshot
    if snapshot is None:
        return []
    bands = len(view.runs)
    rows = max(2, min(5, (height - 3 - bands) // max(1, len(wanted))))
    where = "now" if pan_seconds <= 0 else f"{say.seconds(pan_seconds)} ago"
    lines = [rule("Timeline", width, look, right=f"{say.span(view.window_seconds)} up to {where}")]
    lines.append(axis_line(grid, snapshot.wall_time_at, width, look))
    drawn_bands: set[str] = set()
    of_gpus = [series for series in wanted if view.gpu(series.key) is not None]
    is_map = len(of_gpus) == len(snapshot.gpus) >= MAP_FROM
    for series in wanted:
        trace = traces.get(series, Trace())
        gpu = view.gpu(series.key)
        if gpu is not None and is_map:
            lines.append(map_line(gpu, trace, width, look))
            continue
        chart = Evidence(_subject(series, view), series.name, trace, grid, snapshot.wall_time_at, _top(series, view))
        lines += chart_lines(chart, width, rows, look)
        if series.name.startswith("run.") and series.key not in drawn_bands:
            drawn_bands.add(series.key)
            steps = traces.get(Series("run.step_seconds", series.key), Trace()).mean
            lines.append(_band(series.key, view, grid, width, look, steps))
    lines.append(axis_line(grid, snapshot.wall_time_at, width, look))
    return lines


def _subject(series: Series, view: View) -> str:
    gpu = view.gpu(series.key)
    if gpu is not None:
        return f"GPU {gpu.facts.label}"
    run = view.run(series.key)
    return run_name(run) if run is not None else ""


def _top(series: Series, view: View) -> float | None:
    """The range that a series has by nature on this GPU."""
    gpu = view.gpu(series.key)
    if gpu is None:
        return None
    tops = {
        "gpu.power_watts": power_limit(gpu),
        "gpu.memory_used_bytes": gpu.facts.memory_total_bytes,
        "gpu.sm_clock_mhz": gpu.facts.sm_clock_max_mhz,
    }
    return tops.get(series.name)


def _band(run_id: str, view: View, grid: Grid, width: int, look: Look, steps: Values) -> Line:
    run = view.run(run_id)
    writer = LineWriter(width, look).to(1).put("phases", look.dim).to(LABEL)
    if run is not None and view.snapshot is not None:
        for text, style in phase_runs(run.phases, grid, chart_cells(width), view.snapshot.time_ns, look, steps):
            writer.chart(text, style)
    return writer.line()


PAN_STEP = 0.25
"""How much of the window one press of an arrow moves."""


class TimelineScreen(PageScreen):
    """Everything on one axis, as far back as the timeline reaches."""

    PLACE = "timeline"
    BINDINGS: ClassVar[list[BindingType]] = bindings("timeline")

    def __init__(self) -> None:
        super().__init__()
        self.pan_seconds = 0.0
        self.detail = False
        self._traces: dict[Series, Trace] = {}

    def page(self, view: View, width: int, height: int, look: Look) -> list[Line]:
        grid = timeline_grid(view, width, look, self.pan_seconds)
        wanted = timeline_series(view, self.detail)
        asked = [(series, view.hold_ns(view.run(series.key))) for series in wanted]
        now_ns = view.snapshot.time_ns if view.snapshot is not None else 0
        self._traces = self.dashboard.history.refresh(grid, asked, now_ns) or self._traces
        return timeline_page(view, width, height, look, grid, self._traces, wanted, self.pan_seconds)

    def action_pan(self, steps: int) -> None:
        """Moves the window; never past now."""
        view = self.dashboard.view
        self.pan_seconds = max(0.0, self.pan_seconds + steps * PAN_STEP * view.window_seconds)
        self.show()

    def action_live(self) -> None:
        self.pan_seconds = 0.0
        self.show()

    def action_detail(self) -> None:
        self.detail = not self.detail
        self.show()
