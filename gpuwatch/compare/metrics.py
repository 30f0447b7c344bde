"""What is compared: one entry per row of the table, by the name that `--fail-if` uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of a run. `better` is the sign of a welcome change, 0 where neither is.

    A metric that is `by_itself` can be compared between any two runs. The others mean something else for another
    model, batch size or GPU: half the batch makes half the step.
    """

    name: str
    label: str
    unit: str
    better: Literal[-1, 0, 1]
    by_itself: bool = False

    @property
    def is_share(self) -> bool:
        """Whether a difference is given in points: of percentages, a percentage misleads."""
        return self.unit == "%" or self.unit == "points"


METRICS = (
    Metric("samples_per_second", "samples/s", "", 1, by_itself=True),
    Metric("utilization_percent", "GPU utilization, mean", "%", 1),
    Metric("utilization_sigma", "GPU utilization, sigma", "points", -1),
    Metric("wait_ms_per_batch", "wait for data, per batch", "ms", -1),
    Metric("wait_share_percent", "wait for data, share of training", "%", -1),
    Metric("step_p50_ms", "step, median", "ms", -1),
    Metric("step_p95_ms", "step, 95th percentile", "ms", -1),
    Metric("power_watts", "power per GPU, mean", "W", 0),
    Metric("memory_peak_gib", "memory per GPU, peak", "GiB", 0),
    Metric("energy_joules_per_sample", "energy per sample", "J", -1),
)
"""In the order of the table."""

BY_NAME = {metric.name: metric for metric in METRICS}
HEADLINE = METRICS[0]
