from __future__ import annotations

import pytest

from gpuwatch.timeline.charts import Chart, Series
from gpuwatch.timeline.timeline import Timeline
from tests.unit.sample_builder import (
    GPU,
    at,
    gpu_facts,
    host,
    phase,
    poll,
    ring,
    run_facts,
    steps,
    timeline,
)


def chart(history: Timeline, name: str, start: float, end: float, buckets: int, key: str = GPU) -> Chart:
    return history.chart(Series(name, key), at(start), at(end), buckets)


def test_seconds_are_shown_one_by_one() -> None:
    history = timeline(gpu_facts(), [poll(n + 0.5, power_watts=100.0 * n) for n in range(5)])
    assert chart(history, "gpu.power_watts", 0, 5, 5).mean == [0.0, 100.0, 200.0, 300.0, 400.0]


def test_wide_buckets_keep_the_extremes() -> None:
    history = timeline(gpu_facts(), [poll(n + 0.5, power_watts=100.0 * n) for n in range(10)])
    wide = chart(history, "gpu.power_watts", 0, 10, 2)
    assert (wide.mean, wide.min, wide.max) == ([200.0, 700.0], [0.0, 500.0], [400.0, 900.0])


def test_extremes_of_the_ring_survive_in_a_second() -> None:
    history = timeline(gpu_facts(), poll(0.9, utilization_percent=50.0, utilization_ring=ring([5.0, 95.0], 0.8, 0.3)))
    shown = chart(history, "gpu.utilization_percent", 0, 1, 1)
    assert (shown.mean, shown.min, shown.max) == ([50.0], [5.0], [95.0])


def test_missing_time_is_a_gap_and_jitter_is_not() -> None:
    jittered = [0.95, 2.05, 3.0, 7.5]
    history = timeline(gpu_facts(), [poll(second, power_watts=100.0) for second in jittered])
    shown = chart(history, "gpu.power_watts", 0, 10, 10).mean
    assert shown == [100.0, 100.0, 100.0, 100.0, 100.0, None, None, 100.0, 100.0, None]


def test_slow_polls_hold_until_the_next() -> None:
    history = timeline(gpu_facts(), [poll(second, power_watts=100.0) for second in (0, 5, 10)], interval_seconds=5.0)
    assert None not in chart(history, "gpu.power_watts", 0, 12, 12).mean


def test_nothing_is_shown_before_the_first_and_after_the_last_sample() -> None:
    history = timeline(gpu_facts(), poll(5.5, power_watts=100.0))
    shown = chart(history, "gpu.power_watts", 0, 10, 10).mean
    assert shown[:5] == [None] * 5
    assert shown[7:] == [None] * 3


def test_parts_of_a_second_come_from_the_ring() -> None:
    drained = [
        poll(n + 1, utilization_percent=50.0, utilization_ring=ring([10.0, 90.0, 10.0, 90.0], n + 1, 0.25))
        for n in range(4)
    ]
    shown = chart(timeline(gpu_facts(), drained), "gpu.utilization_percent", 0, 4, 16)
    assert shown.mean == [10.0, 90.0] * 8


def test_parts_of_a_second_without_a_ring_repeat_the_second() -> None:
    history = timeline(gpu_facts(), [poll(n + 0.5, temperature_celsius=50.0 + n) for n in range(3)])
    assert chart(history, "gpu.temperature_celsius", 0, 3, 6).mean == [50.0, 50.0, 51.0, 51.0, 52.0, 52.0]


def test_a_day_is_shown_from_minutes() -> None:
    history = timeline(gpu_facts(), [poll(minute * 60 + 30, power_watts=float(minute)) for minute in range(1_440)])
    shown = chart(history, "gpu.power_watts", 0, 86_400, 24)
    assert shown.mean == pytest.approx([60 * hour + 29.5 for hour in range(24)])
    assert shown.max[0] == 59.0


def test_hours_finer_than_a_minute_have_no_holes() -> None:
    history = timeline(
        gpu_facts(), [poll(second, power_watts=100.0) for second in range(0, 4 * 3_600, 2)], interval_seconds=2.0
    )
    shown = chart(history, "gpu.power_watts", 0, 3 * 3_600, 200)  # 54 s each, and seconds only reach back 2 h
    assert set(shown.mean) == {100.0}


def test_long_steps_fill_the_seconds_they_take() -> None:
    history = timeline(run_facts(), steps(10, period=3.0, wait=1.5))
    shown = chart(history, "run.wait_share", 0, 30, 30, key="4711.1")
    assert shown.mean == pytest.approx([0.5] * 30)
    rate = chart(history, "run.samples_per_second", 0, 30, 30, key="4711.1")
    assert rate.mean == pytest.approx([32 / 3] * 30)


def test_evaluation_is_a_gap_in_the_steps() -> None:
    (after,) = steps(1, start=10.0, period=6.0, wait=0.5, first=101, phase_seconds=5.0)
    history = timeline(run_facts(), steps(100), phase("eval", 10.0, 15.0), after)
    shown = chart(history, "run.step_seconds", 0, 16, 16, key="4711.1").mean
    assert shown[:10] == pytest.approx([0.1] * 10)
    assert shown[10:15] == [None] * 5
    assert shown[15] == pytest.approx(1.0)


def test_single_slow_step_shows_in_the_extremes() -> None:
    history = timeline(run_facts(), steps(50, period=[0.1] * 9 + [0.5]))
    shown = chart(history, "run.step_seconds", 0, 7, 1, key="4711.1")
    assert shown.max == [pytest.approx(0.5)]
    assert shown.mean == [pytest.approx(0.14)]


def test_run_shows_the_wait_of_the_rank_that_waits_longest() -> None:
    facts = [run_facts(4711 + rank, group="job", rank=rank) for rank in (0, 1)]
    history = timeline(
        facts,
        steps(50, wait=0.01),
        steps(25, wait=0.06, trainer="4712.1"),
        steps(25, start=2.5, first=26, trainer="4712.1"),
    )
    shown = chart(history, "run.wait_share", 0, 5, 5, key="job").mean
    assert shown[0] == pytest.approx(0.6)
    assert shown[4] == pytest.approx(0.1)
    assert chart(history, "run.samples_per_second", 0, 5, 1, key="job").mean == [pytest.approx(640.0)]


def test_unseen_wait_leaves_the_line_empty() -> None:
    history = timeline(run_facts(), steps(50, wait=None))
    assert chart(history, "run.wait_share", 0, 5, 5, key="4711.1").mean == [None] * 5
    assert None not in chart(history, "run.step_seconds", 0, 5, 5, key="4711.1").mean


def test_host_lines_need_no_key() -> None:
    history = timeline([host(n + 0.5, cpu_percent=10.0 * n) for n in range(5)])
    assert chart(history, "host.cpu_percent", 0, 5, 5, key="").mean == [0.0, 10.0, 20.0, 30.0, 40.0]
    assert chart(history, "host.pressure_io_percent", 0, 5, 5, key="").mean == [None] * 5


def test_unknown_gpu_or_run_is_an_empty_line() -> None:
    history = timeline()
    assert chart(history, "gpu.power_watts", 0, 5, 3, key="GPU-9").mean == [None] * 3
    assert chart(history, "run.wait_share", 0, 5, 3, key="9.9").mean == [None] * 3
