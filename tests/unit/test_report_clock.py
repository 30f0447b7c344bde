"""Times of day in a report, across a clock that was set and a machine that slept."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from gpuwatch.report.junit import render_junit
from gpuwatch.report.wall_times import WallTimes
from tests.unit import scene_builder as build
from tests.unit.report_builder import WALL_TIME, report, starvation

SECOND = 1_000_000_000
HOUR = 3600.0


def jumped(by_seconds: float) -> WallTimes:
    """A clock that is set after 100 of the 120 s of a session."""
    clock = WallTimes()
    for second in range(121):
        jump = by_seconds if second >= 100 else 0.0
        clock.told(build.START_NS + second * SECOND, WALL_TIME - HOUR + second + jump)
    return clock


def test_each_moment_has_the_time_that_the_clock_showed_then() -> None:
    document = report(findings=[starvation()], wall_time=jumped(HOUR).at)
    assert document["gpuwatch"]["started_at"] == "2026-02-02T01:40:00Z"
    assert document["findings"][0]["since"] == "2026-02-02T01:41:30Z", "90 s in, before the jump"


@pytest.mark.parametrize(("by_seconds", "words"), [(HOUR, "jumped 60.0 min ahead"), (-30.0, "jumped 30 s back")])
def test_a_jump_is_told(by_seconds: float, words: str) -> None:
    (problem,) = report(wall_time=jumped(by_seconds).at)["data_quality"]["problems"]
    assert words in problem


def test_a_clock_that_only_drifts_is_no_jump() -> None:
    assert report(wall_time=jumped(0.4).at)["data_quality"]["problems"] == []
    assert report()["data_quality"]["problems"] == []


def test_a_test_suite_bears_the_time_of_its_start() -> None:
    suite = ElementTree.fromstring(render_junit(report()).encode())[0]
    assert (suite.get("timestamp"), suite.get("time")) == ("2026-02-02T02:38:00", "120.000")


def test_before_it_was_first_told_the_clock_is_taken_to_have_gone_on() -> None:
    clock = WallTimes()
    clock.told(100 * SECOND, 1000.0)
    assert (clock.at(90 * SECOND), clock.at(130 * SECOND)) == (990.0, 1030.0)
