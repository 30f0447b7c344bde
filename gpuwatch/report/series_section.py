"""The report's `series`, `clock` and `spans`: the curves of a page with charts, and what lay over their time.

They are no part of the report that everybody reads: 1 500 points of least, mean and greatest for each of 50 curves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpuwatch.report.observation import Json, Observation
from gpuwatch.report.stretches import Stretch
from gpuwatch.report.tables import short_gpu_name
from gpuwatch.text.escape import encodable
from gpuwatch.timeline.series import Chart

_UNITS = {
    "gpu.utilization_percent": "%",
    "gpu.power_watts": "W",
    "gpu.memory_used_bytes": "bytes",
    "gpu.temperature_celsius": "°C",
    "gpu.sm_clock_mhz": "MHz",
    "run.wait_share": "share",
    "run.step_seconds": "s",
    "run.samples_per_second": "1/s",
    "host.cpu_percent": "%",
    "host.pressure_io_percent": "%",
}
_FORMAT = "%.4g "
_NAN = math.nan


def series_section(seen: Observation) -> list[Json]:
    """One object per curve; its points are the middles of equal buckets from `start_seconds` on."""
    return [_curve(seen, chart) for chart in seen.curves]


def clock_section(seen: Observation) -> list[Json]:
    """What the clock on the wall showed at the beginning, and behind each of its jumps."""
    snapshot = seen.snapshot
    start_ns, end_ns = snapshot.started_ns, snapshot.time_ns
    jumps = [anchor for anchor in snapshot.wall_anchors if start_ns < anchor[0] <= end_ns]
    return [
        {"start_seconds": _seconds(seen, time_ns), "wall_time": round(wall_time, 3)}
        for time_ns, wall_time in ((start_ns, snapshot.wall_time_at(start_ns)), *jumps)
    ]


def span_section(seen: Observation) -> list[Json]:
    """Phases of runs and the times of findings."""
    return [_span(seen, each) for each in seen.stretches]


def _curve(seen: Observation, chart: Chart) -> Json:
    mean, least, greatest = map(_short, (chart.mean, chart.min, chart.max))
    return {
        "series": chart.series.name,
        "key": chart.series.key,
        "subject": _subject(seen, chart.series.key),
        "unit": _UNITS[chart.series.name],
        "start_seconds": _seconds(seen, chart.start_ns),
        "bucket_seconds": round((chart.end_ns - chart.start_ns) / 1e9 / max(1, len(chart.mean)), 6),
        "mean": mean,
        "min": None if least == mean else least,
        "max": None if greatest == mean else greatest,  # all of it is the mean: buckets of one value
    }


def _subject(seen: Observation, key: str) -> str:
    for gpu in seen.scene.gpus:
        if gpu.facts.uuid == key:
            return f"GPU {gpu.facts.index} {short_gpu_name(encodable(gpu.facts.name))}"
    for run in seen.scene.runs:
        if run.id == key:
            return encodable(f"{run.title} ({run.critical.facts.pid})")
    return "host"


def _short(values: Sequence[float | None]) -> list[float | None]:
    """To four digits, all of them at once: a page has 300 000 values, and mostly all of a curve's are known."""
    if None in values:
        values = [_NAN if value is None else value for value in values]
    text = _FORMAT * len(values) % tuple(values)
    rounded = map(float, text.split())
    return [None if value != value else value for value in rounded] if "nan" in text else list(rounded)


def _seconds(seen: Observation, time_ns: int) -> float:
    return round((time_ns - seen.zero_ns) / 1e9, 3)


def _span(seen: Observation, each: Stretch) -> Json:
    return {
        "kind": each.kind,
        "name": each.name,
        "run": each.run,
        "gpu": each.gpu,
        "severity": each.severity.value if each.severity else None,
        "series": list(each.series),
        "start_seconds": _seconds(seen, each.start_ns),
        "end_seconds": _seconds(seen, each.end_ns),
    }
