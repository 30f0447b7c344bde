from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.dashboard.panels.charts import area


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
