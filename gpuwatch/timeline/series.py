"""What a chart asks the timeline for: one series, cut into equal buckets of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart.

    `name` is that of a charted metric (gpuwatch.metrics), `key` the GPU's UUID or the run's id; empty for the host.
    """

    name: str
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
