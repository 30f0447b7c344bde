from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.dashboard import formatting as say
from gpuwatch.dashboard.lines import plain
from gpuwatch.dashboard.panels.charts import (
    Evidence,
    Grid,
    Trace,
    area,
    axis_line,
    chart_cells,
    chart_lines,
    figures_of,
)
from gpuwatch.dashboard.themes import look
from gpuwatch.dashboard.view import WINDOWS_SECONDS


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


SECOND_NS = 1_000_000_000
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
    match = re.fullmatch(r"mean (?:<)?([\d.]+) (\S+), (?:<)?([\d.]+)(?: (\S+))? to (?:<)?([\d.]+) (\S+)", text)
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
