"""Which histories a report takes from the timeline, and how fine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuwatch.timeline.series import Chart, Series, SeriesName
from gpuwatch.timeline.timeline import Timeline
from gpuwatch.timeline.windows import Scene

HISTORY_BUCKETS = 60
MOST_POINTS = 1500
"""Of a curve: a screen has no more columns."""
_LEAST_SECONDS = 0.25  # the drivers' rings tell utilization and power some times a second
_RING_SECONDS = 540.0  # what is kept of them reaches ten minutes back: beyond it, a fine curve would have a hole

_HISTORY_OF_GPU: tuple[SeriesName, ...] = ("gpu.utilization_percent", "gpu.power_watts")
_HISTORY_OF_RUN: tuple[SeriesName, ...] = ("run.wait_share", "run.step_seconds")
OF_GPU: tuple[SeriesName, ...] = (
    "gpu.utilization_percent",
    "gpu.power_watts",
    "gpu.memory_used_bytes",
    "gpu.temperature_celsius",
    "gpu.sm_clock_mhz",
)
OF_RUN: tuple[SeriesName, ...] = ("run.wait_share", "run.step_seconds", "run.samples_per_second")
OF_HOST: tuple[SeriesName, ...] = ("host.cpu_percent", "host.pressure_io_percent")


def short_history(
    timeline: Timeline, scene: Scene, start_ns: int, end_ns: int, interval_seconds: float
) -> tuple[Chart, ...]:
    """Utilization and power of each GPU, waits and step time of each run: a line of text each."""
    # A bucket holds at least one poll: finer ones would show gaps that are none.
    polls = int((end_ns - start_ns) / 1e9 / interval_seconds)
    buckets = max(1, min(HISTORY_BUCKETS, polls))
    wanted = _series(scene, _HISTORY_OF_GPU, _HISTORY_OF_RUN, ())
    return _charts(timeline, wanted, start_ns, end_ns, buckets)


def fine_curves(
    timeline: Timeline,
    scene: Scene,
    start_ns: int,
    end_ns: int,
    interval_seconds: float,
    least_seconds: float = _LEAST_SECONDS,
) -> tuple[Chart, ...]:
    """All that a page draws, in buckets of `least_seconds` at least; without those of which nothing is known."""
    seconds = (end_ns - start_ns) / 1e9
    width = _LEAST_SECONDS if interval_seconds <= 1.0 and seconds <= _RING_SECONDS else max(1.0, interval_seconds)
    buckets = max(1, min(MOST_POINTS, int(seconds / max(width, least_seconds))))
    found = _charts(timeline, _series(scene, OF_GPU, OF_RUN, OF_HOST), start_ns, end_ns, buckets)
    return tuple(chart for chart in found if any(value is not None for value in chart.mean))


def _series(
    scene: Scene, of_gpu: Iterable[SeriesName], of_run: Iterable[SeriesName], of_host: Iterable[SeriesName]
) -> list[Series]:
    wanted = [Series(name, gpu.facts.uuid) for gpu in scene.gpus for name in of_gpu]
    wanted += [Series(name, run.id) for run in scene.runs for name in of_run]
    return wanted + [Series(name) for name in of_host]


def _charts(
    timeline: Timeline, wanted: Sequence[Series], start_ns: int, end_ns: int, buckets: int
) -> tuple[Chart, ...]:
    return tuple(timeline.chart(series, start_ns, end_ns, buckets) for series in wanted)
