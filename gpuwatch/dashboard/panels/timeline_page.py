"""GPUs, steps, waits and phases on one axis of time."""

from __future__ import annotations

from collections.abc import Sequence

from gpuwatch.dashboard import braille
from gpuwatch.dashboard import formatting as say
from gpuwatch.dashboard.history import Grid, Trace, Values
from gpuwatch.dashboard.panels.bands import phase_runs
from gpuwatch.dashboard.panels.evidence import LABEL, Evidence, axis_line, chart_cells, chart_lines
from gpuwatch.dashboard.panels.gpu_row import power_limit
from gpuwatch.dashboard.text import Line, LineWriter, rule
from gpuwatch.dashboard.themes import Look
from gpuwatch.dashboard.view import View
from gpuwatch.dashboard.wording import run_name
from gpuwatch.metrics import charted
from gpuwatch.timeline.series import Series


def timeline_grid(view: View, width: int, look: Look, pan_seconds: float) -> Grid:
    """The axis: the view's window, moved back by `pan_seconds`."""
    now_ns = view.snapshot.time_ns if view.snapshot else 0
    cells = chart_cells(width) * braille.values_per_cell(look.glyphs.unicode)
    return Grid.ending_at(now_ns - round(pan_seconds * 1e9), view.window_seconds, cells)


def timeline_series(view: View, detail: bool) -> list[Series]:
    """What is drawn, from top to bottom; `detail` adds temperature, clock and memory of each GPU."""
    snapshot = view.snapshot
    if snapshot is None:
        return []
    of_gpu = charted("gpu", only_headline=not detail)
    series = [Series(metric.series, run.id) for run in view.runs for metric in charted("run")]
    series += [Series(metric.series, gpu.facts.uuid) for gpu in snapshot.gpus for metric in of_gpu]
    return [*series, *(Series(metric.series) for metric in charted("host", only_headline=True))]


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
    for series in wanted:
        trace = traces.get(series, Trace())
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
        return f"GPU {gpu.facts.index}"
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
