from __future__ import annotations

import math

import pytest

from gpuwatch.timeline.columns import MINUTE_NS, SECOND_NS, Odometer, SumBuckets, Table, ValueTiers


def table(max_age: int = 10_000, max_rows: int = 10_000) -> Table:
    return Table({"value": "f"}, max_age_ns=max_age, max_rows=max_rows)


def test_late_row_goes_where_it_belongs() -> None:
    rows = table()
    for time in (10, 20, 40):
        rows.add(time, (time,))
    assert rows.add(30, (30,)) == 2
    assert list(rows.times) == [10, 20, 30, 40]
    assert list(rows["value"]) == [10, 20, 30, 40]


def test_window_is_open_at_its_start_and_closed_at_its_end() -> None:
    rows = table()
    for time in (10, 20, 30):
        rows.add(time, (time,))
    assert list(rows["value"][rows.since(10) : rows.until(30)]) == [20, 30]


@pytest.mark.parametrize(("age", "rows", "kept"), [(1_000, 10**9, 1_000), (10**9, 500, 500)])
def test_table_is_bounded_by_age_and_by_count(age: int, rows: int, kept: int) -> None:
    bounded = table(age, rows)
    for time in range(20_000):
        bounded.add(time, (0.0,))
    assert kept <= len(bounded) <= kept * 1.25
    assert bounded.times[-1] == 19_999
    assert not bounded.reaches(0)
    assert bounded.reaches(19_999 - kept)


def test_values_count_in_both_tiers_as_they_come() -> None:
    tiers = ValueTiers()
    for second, value in ((0, 10.0), (0.5, 30.0), (61, 50.0)):
        tiers.add(round(second * SECOND_NS), value)
    assert tiers.seconds.arrays["mean"][0] == 20.0
    assert (tiers.seconds.arrays["min"][0], tiers.seconds.arrays["max"][0]) == (10.0, 30.0)
    assert list(tiers.minutes.arrays["mean"]) == [20.0, 50.0]


def test_seconds_without_a_value_are_unknown_and_not_zero() -> None:
    tiers = ValueTiers()
    tiers.add(0, 1.0)
    tiers.add(3 * SECOND_NS, 2.0)
    means = tiers.means(-SECOND_NS, 4 * SECOND_NS)
    assert [math.isnan(mean) for mean in means] == [False, True, True, False]


def test_late_value_lands_in_its_own_second() -> None:
    tiers = ValueTiers()
    tiers.add(100 * SECOND_NS, 1.0)
    tiers.add(200 * SECOND_NS, 1.0)
    tiers.add(150 * SECOND_NS, 9.0)
    tiers.add(90 * SECOND_NS, 7.0)  # before the first bucket there was
    assert tiers.seconds.first == 90
    assert tiers.seconds.arrays["mean"][0] == 7.0
    assert tiers.seconds.arrays["mean"][60] == 9.0


def test_tiers_keep_two_hours_of_seconds_and_a_day_of_minutes() -> None:
    tiers = ValueTiers()
    for minute in range(3 * 24 * 60):
        tiers.add(minute * MINUTE_NS, 1.0)
    assert 7_200 <= tiers.seconds.length <= 7_200 * 1.07
    assert 1_440 <= tiers.minutes.length <= 1_440 * 1.07
    tiers.add(0, 5.0)  # three days late: there is no bucket for it, and none is made
    assert 5.0 not in tiers.minutes.arrays["mean"]


def test_long_stretches_are_read_from_minutes_where_seconds_do_not_reach() -> None:
    tiers = ValueTiers()
    for minute in range(5 * 60):
        tiers.add(minute * MINUTE_NS, float(minute))
    figures = tiers.stats(0, 5 * 60 * MINUTE_NS)
    assert figures is not None
    assert (figures.count, figures.min, figures.max) == (300, 0.0, 299.0)


def test_long_amount_is_spread_over_the_buckets_it_covers() -> None:
    sums = SumBuckets(SECOND_NS, 100, "d", ("amount",), ("size",))
    sums.add(SECOND_NS // 2, 3 * SECOND_NS, (10.0,), (10.0,))
    assert list(sums.arrays["amount"]) == pytest.approx([2.0, 4.0, 4.0])
    assert list(sums.arrays["size_max"]) == [10.0, 10.0, 10.0]


def test_amount_that_ends_on_a_bucket_edge_does_not_touch_the_next() -> None:
    sums = SumBuckets(SECOND_NS, 100, "d", ("amount",), ())
    sums.add(0, SECOND_NS, (1.0,), ())
    assert list(sums.arrays["amount"]) == [1.0]


def test_jump_beyond_what_is_kept_starts_anew() -> None:
    tiers = ValueTiers()
    tiers.add(0, 1.0)
    tiers.add(10**6 * SECOND_NS, 2.0)
    assert tiers.seconds.length == 1
    assert not tiers.seconds.reaches(0)


def test_counter_that_was_reset_adds_nothing_and_is_counted() -> None:
    meter = Odometer()
    assert [meter.read(value) for value in (1_000.0, 1_500.0, 20.0, 50.0)] == [0.0, 500.0, 500.0, 530.0]
    assert meter.resets == 1


def test_counter_that_was_not_read_is_unknown_and_catches_up() -> None:
    meter = Odometer()
    meter.read(10.0)
    assert math.isnan(meter.read(None))
    assert meter.read(30.0) == 20.0
    assert meter.resets == 0
