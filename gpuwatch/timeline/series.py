"""What a chart asks the timeline for: one series, cut into equal buckets of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

SeriesName = Literal[
    "gpu.utilization_percent",
    "gpu.power_watts",
    "gpu.memory_used_bytes",
    "gpu.temperature_celsius",
    "gpu.sm_clock_mhz",
    "run.wait_share",
    "run.step_seconds",
    "run.samples_per_second",
    "host.cpu_percent",
    "host.pressure_io_percent",
]


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart. `key` is the GPU's UUID or the run's id; empty for the host."""

    name: SeriesName
    key: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """Equal buckets from `start_ns` to `end_ns`; None where nothing was measured (a gap, not a zero)."""

    series: Series
    start_ns: int
    end_ns: int
    mean: Sequence[float | None]
    min: Sequence[float | None]
    max: Sequence[float | None]
