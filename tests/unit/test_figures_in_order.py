"""A mean lies between its least and its greatest value, in every chart of every simulated machine."""

from __future__ import annotations

from functools import cache

import pytest

from gpuwatch.report.observation import OF_GPU, OF_HOST, OF_RUN
from gpuwatch.sources.simulator.scenarios import SCENARIOS
from gpuwatch.sources.simulator.source import SimulatorSource
from gpuwatch.timeline.charts import Series
from gpuwatch.timeline.timeline import Timeline

_SECOND_NS = 1_000_000_000
_START_NS = 86_400 * _SECOND_NS
_SECONDS = 150
_SINGLE = 1e-5  # the relative error of sums in single precision


@cache
def watched(scenario: str) -> Timeline:
    source = SimulatorSource(scenario, start_ns=_START_NS)
    timeline = Timeline(started_ns=_START_NS)
    for second in range(1, _SECONDS + 1):
        timeline.extend(source.collect(_START_NS + second * _SECOND_NS))
    return timeline


@pytest.mark.parametrize("scenario", sorted(SCENARIOS))
@pytest.mark.parametrize("buckets", [1, 7, 60, 400])
def test_the_mean_of_a_bucket_lies_within_its_range(scenario: str, buckets: int) -> None:
    timeline = watched(scenario)
    end_ns = _START_NS + _SECONDS * _SECOND_NS
    wanted = [Series(name, uuid) for uuid in timeline.gpus for name in OF_GPU]
    wanted += [Series(name, run.id) for run in timeline.runs(end_ns, _SECONDS * _SECOND_NS) for name in OF_RUN]
    wanted += [Series(name) for name in OF_HOST]
    known = 0
    for series in wanted:
        chart = timeline.chart(series, _START_NS, end_ns, buckets)
        for mean, least, most in zip(chart.mean, chart.min, chart.max, strict=True):
            assert (mean is None) or (least is not None and most is not None), series
            if mean is not None and least is not None and most is not None:
                known += 1
                assert least * (1 - _SINGLE) <= mean <= most * (1 + _SINGLE), (series, least, mean, most)
    assert known >= buckets
