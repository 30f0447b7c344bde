from __future__ import annotations

import math
import re
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.dashboard import formatting as say
from gpuwatch.dashboard.lines import plain
from gpuwatch.dashboard.panels.charts import (
    Evidence,
    Grid,
    History,
    Trace,
    area,
    axis_line,
    chart_cells,
    chart_lines,
    figures_of,
    held,
)
from gpuwatch.dashboard.themes import look
from gpuwatch.dashboard.view import WINDOWS_SECONDS
from gpuwatch.timeline.charts import Series
from tests.dashboard.fake_monitor import SECOND_NS, FakeTimeline, Wave


def test_a_ramp_fills_from_the_bottom_left_to_the_top_right() -> None:
    ramp = tuple(float(value) for value in range(0, 101, 10))
    assert area(ramp, low=0, high=100, height=2, headroom=False) == (
        "   ⣠⣴⡇",
        "⣀⣤⣾⣿⣿⡇",
    )


def test_full_charts_in_lines_below_each_other_stay_apart() -> None:
    full = (100.0,) * 6
    assert area(full, low=0, high=100) == ("⣶⣶⣶",)
    assert area(full, low=0, high=100, headroom=False) == ("⣿⣿⣿",)


def test_a_measured_zero_is_a_dot_and_a_gap_is_nothing() -> None:
    assert area((0.0, 0.0, None, None, math.nan, 0.0), low=0, high=100) == ("⣀ ⢀",)


def test_a_steady_high_load_does_not_look_like_a_starved_one() -> None:
    steady = area((94.0, 95.0, 93.0, 94.0), low=0, high=100, height=2)
    starved = area((94.0, 4.0, 93.0, 5.0), low=0, high=100, height=2)
    assert steady == ("⣶⣶", "⣿⣿")
    assert starved == ("⡆⡆", "⣇⣇")


def test_values_outside_the_range_stay_inside_the_chart() -> None:
    assert area((-50.0, 500.0), low=0, high=100, height=2, headroom=False) == ("⢸", "⣸")


def test_peaks_float_above_the_area_and_never_over_a_gap() -> None:
    rows = area((25.0, None), low=0, high=100, height=2, peaks=(100.0, 100.0), headroom=False)
    assert rows == ("⠁", "⡄")


def test_an_odd_number_of_values_leaves_the_last_half_cell_empty() -> None:
    assert area((100.0,) * 3, low=0, high=100, headroom=False) == ("⣿⡇",)


def test_ascii_charts_have_one_value_per_cell() -> None:
    rows = area((0.0, 20.0, 60.0, 100.0, None), low=0, high=100, height=2, unicode=False)
    assert rows == ("  _# ", "_.## ")
    assert all(row.isascii() for row in rows)


def test_an_empty_range_draws_the_lowest_dots() -> None:
    assert area((5.0, 5.0), low=0, high=0) == ("⣀",)


values = st.lists(st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=False, width=32)), max_size=40)


@given(values, st.integers(1, 6), st.booleans())
def test_every_row_has_the_same_width_whatever_the_values(values: list[float | None], height: int, dots: bool) -> None:
    rows = area(tuple(values), low=0, high=100, height=height, unicode=dots)
    assert len(rows) == height
    assert {len(row) for row in rows} == {math.ceil(len(values) / 2) if dots else len(values)}


GIB = 2.0**30
LOOK = look()
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "%": 1.0, "W": 1.0}
_BUCKETS = st.lists(
    st.tuples(st.floats(1e-6, 5000), st.floats(0, 1), st.floats(0, 1), st.booleans()), min_size=1, max_size=20
)


def trace(buckets: list[tuple[float, float, float, bool]]) -> Trace:
    """A mean, how far least and most lie from it, and whether the mean is off by a rounding of single precision."""
    found = [
        (mean * (1 - below), mean * (1 + 1e-7 * rounded), mean * (1 + above)) for mean, below, above, rounded in buckets
    ]
    low, mean, high = (tuple(each[place] for each in found) for place in range(3))
    return Trace(mean, high, low)


@given(_BUCKETS, st.sampled_from(("s", "%", "W")))
def test_the_mean_as_printed_lies_between_least_and_most_as_printed(
    buckets: list[tuple[float, float, float, bool]], unit: str
) -> None:
    text = figures_of(trace(buckets), unit)
    match = re.fullmatch(
        r"mean (?:<)?([\d.]+) ?(\S+), (?:<)?([\d.]+)(?: ?([a-zA-Z%]+))? to (?:<)?([\d.]+) ?(\S+)", text
    )
    assert match is not None, text
    mean, mean_unit, least, least_unit, most, most_unit = match.groups()
    values = [
        float(least) * _UNITS[least_unit or most_unit],
        float(mean) * _UNITS[mean_unit],
        float(most) * _UNITS[most_unit],
    ]
    assert values == sorted(values), text


@pytest.mark.parametrize("window_seconds", WINDOWS_SECONDS)
@pytest.mark.parametrize("width", [60, 80, 120, 200])
@given(st.integers(0, 3 * 86_400))
def test_an_axis_ends_at_the_moment_up_to_which_it_is_drawn(width: int, window_seconds: float, second: int) -> None:
    now_ns = (500_000 + second) * SECOND_NS
    grid = Grid.ending_at(now_ns, window_seconds, 2 * chart_cells(width))
    (line,) = plain([axis_line(grid, lambda time_ns: time_ns / 1e9, width, LOOK)])
    last = line.split()[-1]
    exactly = say.clock(now_ns / 1e9)
    if last.startswith(LOOK.glyphs.edge):  # there is no room for more than the marks
        assert width == 60
    else:
        assert last in (exactly, exactly[:5])


def test_no_figure_of_a_chart_is_cut() -> None:
    grid = Grid.ending_at(1_000 * SECOND_NS, 60, 2 * chart_cells(80))
    about = Evidence(
        "GPU 0", "gpu.memory_used_bytes", Trace((29.44 * GIB,), (62.44 * GIB,), (1011.0 * 2**20,)), grid, float
    )
    text = "\n".join(plain(chart_lines(about, 80, 3, LOOK)))
    assert "29.4 GiB, 1011 MiB to 62.4 GiB" in text


UTILIZATION = Series("gpu.utilization_percent", "GPU-0")


def timeline(wave: Wave | None = None) -> FakeTimeline:
    return FakeTimeline({"gpu.utilization_percent": wave or (lambda seconds: 50 + 50 * math.sin(seconds / 7))})


def test_the_edges_of_buckets_do_not_move_with_time() -> None:
    first = Grid.ending_at(1_000 * SECOND_NS, 120, 60)
    later = Grid.ending_at(1_001 * SECOND_NS, 120, 60)
    assert first == later
    assert first.start_ns % first.bucket_ns == 0
    assert first.index_of(1_000 * SECOND_NS) == 59


@given(st.lists(st.integers(0, 20), min_size=1, max_size=12), st.integers(8, 90))
def test_what_is_kept_and_what_is_new_together_is_what_asking_for_all_gives(steps: list[int], buckets: int) -> None:
    source = timeline()
    history = History(source)
    now = 10_000
    for step in steps:
        now += step
        grid = Grid.ending_at(now * SECOND_NS, 120, buckets)
        traces = history.refresh(grid, [(UTILIZATION, 0)], now * SECOND_NS)
        assert traces is not None
        whole = timeline().chart(UTILIZATION, grid.start_ns, grid.end_ns, grid.count)
        assert traces[UTILIZATION].mean == pytest.approx(whole.mean)


def test_only_the_newest_buckets_are_asked_for_again() -> None:
    source = timeline()
    history = History(source)
    for second in range(10):
        now_ns = (1_000 + second) * SECOND_NS
        history.refresh(Grid.ending_at(now_ns, 120, 90), [(UTILIZATION, 0)], now_ns)
    assert source.asked[0] == (UTILIZATION, 90)
    assert all(buckets < 12 for _, buckets in source.asked[1:])


def test_late_samples_still_find_their_bucket() -> None:
    known_until = [1_000.0]
    source = timeline(lambda seconds: 80.0 if seconds < known_until[0] else None)
    history = History(source)
    now_ns = 1_000 * SECOND_NS
    history.refresh(Grid.ending_at(now_ns, 60, 60), [(UTILIZATION, 0)], now_ns)
    known_until[0] = 1_003.0
    later_ns = 1_003 * SECOND_NS
    grid = Grid.ending_at(later_ns, 60, 60)
    traces = history.refresh(grid, [(UTILIZATION, 0)], later_ns)
    assert traces is not None
    assert traces[UTILIZATION].mean[-4:-1] == (80.0, 80.0, 80.0)


def test_a_locked_timeline_is_not_waited_for() -> None:
    source = timeline()
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        with source.lock:
            taken.set()
            done.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    taken.wait()
    try:
        grid = Grid.ending_at(SECOND_NS * 100, 60, 30)
        assert History(source).refresh(grid, [(UTILIZATION, 0)], SECOND_NS * 100) is None
    finally:
        done.set()
        holder.join()


def test_a_reading_holds_until_the_next_one_but_not_over_a_real_gap_or_into_the_future() -> None:
    values = (1.0, None, None, 2.0, None, None, None, 3.0, None)
    assert held(values, 2) == (1.0, 1.0, 1.0, 2.0, None, None, None, 3.0, None)
    assert held(values, 0) == values


def test_series_that_are_no_longer_shown_are_forgotten() -> None:
    source = timeline()
    history = History(source)
    grid = Grid.ending_at(SECOND_NS * 100, 60, 30)
    other = Series("gpu.utilization_percent", "GPU-1")
    history.refresh(grid, [(UTILIZATION, 0), (other, 0)], SECOND_NS * 100)
    history.refresh(grid, [(UTILIZATION, 0)], SECOND_NS * 101)
    source.asked.clear()
    history.refresh(grid, [(UTILIZATION, 0), (other, 0)], SECOND_NS * 102)
    assert (other, 30) in source.asked
