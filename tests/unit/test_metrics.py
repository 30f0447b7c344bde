"""The registry of metrics is complete: what samples hold has a row, and what is named elsewhere exists in it."""

from __future__ import annotations

import dataclasses
import re
import typing
from pathlib import Path

import pytest

import gpuwatch
from gpuwatch import metrics
from gpuwatch.samples import GpuFacts, GpuHealth, GpuSample, GpuStatus, HostSample
from gpuwatch.timeline.charts import RUN_LINES, Series
from gpuwatch.timeline.timeline import Timeline

_OF_NO_METRIC = {"time_ns", "index", "power_window_seconds", "ages_seconds", "mig_slot", "mig_gpu_instance"}
_CODE = Path(gpuwatch.__file__).parent
_CHARTED = [metric for metric in metrics.METRICS if metric.chart]


@pytest.mark.parametrize("cls", [GpuFacts, GpuSample, GpuStatus, GpuHealth])
def test_every_number_of_a_gpu_has_a_row(cls: type) -> None:
    hints = typing.get_type_hints(cls)
    numbers = {name for name, hint in hints.items() if {int, float} & {hint, *typing.get_args(hint)}}
    assert len(numbers - _OF_NO_METRIC) >= 5
    assert numbers - _OF_NO_METRIC <= metrics.GPU.keys()


def test_every_row_is_of_a_field() -> None:
    of_gpu = {field.name for cls in (GpuFacts, GpuSample, GpuStatus, GpuHealth) for field in dataclasses.fields(cls)}
    assert metrics.GPU.keys() <= of_gpu
    assert metrics.HOST.keys() <= {field.name for field in dataclasses.fields(HostSample)}
    assert set(metrics.GPU_RINGS.values()) <= of_gpu


def test_every_row_is_there_once() -> None:
    assert len(metrics.BY_SERIES) == len(metrics.METRICS)


def test_every_series_that_the_code_names_has_a_chart() -> None:
    named = {
        name
        for path in _CODE.rglob("*.py")
        if path.name != "metrics.py"
        for name in re.findall(r'"((?:gpu|run|host)\.[a-z_]+)"', path.read_text("utf-8"))
    }
    assert len(named) > 5
    assert named <= {metric.series for metric in _CHARTED}


@pytest.mark.parametrize("metric", _CHARTED, ids=lambda metric: metric.series)
def test_what_has_a_chart_is_kept_and_has_words(metric: metrics.Metric) -> None:
    assert metric.label and metric.title
    chart = Timeline(started_ns=0, interval_seconds=1.0).chart(Series(metric.series, "none"), 0, 10**9, 4)
    assert list(chart.mean) == [None] * 4
    assert metric.subject != "run" or metric.series in RUN_LINES


@pytest.mark.parametrize("name", sorted(metrics.GPU))
def test_limits_enclose_something_and_no_sentinel(name: str) -> None:
    metric = metrics.GPU[name]
    assert metric.low < metric.high < 9223372036854775794
