"""Times of day of moments, across a clock that was set."""

from __future__ import annotations

import pytest

from gpuwatch.timeline.times import WallTimes, wall_time_at

SECOND = 1_000_000_000
HOUR = 3600.0


def test_before_the_first_reading_the_clock_is_taken_to_have_run_on() -> None:
    clock = WallTimes()
    clock.see(100 * SECOND, 1000.0)
    assert (wall_time_at(clock.anchors, 90 * SECOND), wall_time_at(clock.anchors, 130 * SECOND)) == (990.0, 1030.0)


def test_moments_between_two_readings_of_the_clock_come_after_its_jump() -> None:
    clock = WallTimes()
    clock.see(100 * SECOND, 1000.0)
    clock.see(101 * SECOND, 1001.0)
    clock.see(102 * SECOND, 1002.0 + HOUR)
    moments = (101 * SECOND, 101 * SECOND + SECOND // 2, 103 * SECOND)
    assert [wall_time_at(clock.anchors, moment) for moment in moments] == [1001.0, 1001.5 + HOUR, 1003.0 + HOUR]


def test_a_clock_that_is_set_again_and_again_takes_bounded_memory() -> None:
    clock = WallTimes()
    for second in range(3000):
        clock.see(second * SECOND, 10.0 * second)
    assert len(clock.anchors) == 1000
    assert wall_time_at(clock.anchors, 2999 * SECOND) == pytest.approx(29_990.0)
