"""Times of day in a report, across a clock that was set and a machine that slept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from gpuwatch.diagnosis.finding import Finding
from gpuwatch.report.build import build_report
from gpuwatch.report.junit import render_junit
from gpuwatch.report.model import as_json
from gpuwatch.report.observation import Observation
from gpuwatch.timeline.wall_times import Anchor, WallTimes, wall_time_at
from tests.unit import scene_builder as build
from tests.unit.report_builder import WALL_TIME, json_report, observation, report, starvation

SECOND = 1_000_000_000
HOUR = 3600.0


def jumped(by_seconds: float) -> tuple[Anchor, ...]:
    """A clock that is set after 100 of the 120 s of a session."""
    clock = WallTimes()
    for second in range(121):
        jump = by_seconds if second >= 100 else 0.0
        clock.told(build.START_NS + second * SECOND, WALL_TIME - HOUR + second + jump)
    return clock.anchors


def seen(anchors: Sequence[Anchor], findings: Sequence[Finding] = ()) -> Observation:
    """A session of which these times of day are known."""
    usual = observation(findings=findings)
    return replace(usual, snapshot=replace(usual.snapshot, wall_anchors=tuple(anchors)))


def test_each_moment_has_the_time_that_the_clock_showed_then() -> None:
    document = as_json(build_report(seen(jumped(HOUR), [starvation()])))
    assert document["gpuwatch"]["started_at"] == "2026-02-02T01:40:00Z"
    assert document["findings"][0]["since"] == "2026-02-02T01:41:30Z", "90 s in, before the jump"


@pytest.mark.parametrize(("by_seconds", "words"), [(HOUR, "jumped 60.0 min ahead"), (-30.0, "jumped 30 s back")])
def test_a_jump_is_reported(by_seconds: float, words: str) -> None:
    (problem,) = as_json(build_report(seen(jumped(by_seconds))))["data_quality"]["problems"]
    assert words in problem


def test_a_clock_that_only_drifts_is_no_jump() -> None:
    assert as_json(build_report(seen(jumped(0.4))))["data_quality"]["problems"] == []
    assert json_report()["data_quality"]["problems"] == []


def test_a_test_suite_bears_the_time_of_its_start() -> None:
    suite = ElementTree.fromstring(render_junit(report()).encode())[0]
    assert (suite.get("timestamp"), suite.get("time")) == ("2026-02-02T02:38:00", "120.000")


def test_before_it_was_first_told_the_clock_is_taken_to_have_gone_on() -> None:
    clock = WallTimes()
    clock.told(100 * SECOND, 1000.0)
    assert (wall_time_at(clock.anchors, 90 * SECOND), wall_time_at(clock.anchors, 130 * SECOND)) == (990.0, 1030.0)


def test_what_happened_between_two_looks_at_the_clock_came_after_its_jump() -> None:
    clock = WallTimes()
    clock.told(100 * SECOND, 1000.0)
    clock.told(101 * SECOND, 1001.0)
    clock.told(102 * SECOND, 1002.0 + HOUR)
    moments = (101 * SECOND, 101 * SECOND + SECOND // 2, 103 * SECOND)
    assert [wall_time_at(clock.anchors, moment) for moment in moments] == [1001.0, 1001.5 + HOUR, 1003.0 + HOUR]


def test_a_clock_that_never_rests_takes_up_bounded_room() -> None:
    clock = WallTimes()
    for second in range(3000):
        clock.told(second * SECOND, 10.0 * second)
    assert len(clock.anchors) == 1000
    assert wall_time_at(clock.anchors, 2999 * SECOND) == pytest.approx(29_990.0)


def test_curves_come_with_the_times_of_day_behind_each_jump() -> None:
    clock = as_json(build_report(seen(jumped(HOUR)), with_series=True))["clock"]
    assert [anchor["start_seconds"] for anchor in clock] == [0.0, 99.0]
    assert clock[1]["wall_time"] - clock[0]["wall_time"] == pytest.approx(HOUR + 99)


def test_without_a_jump_the_curves_have_the_time_of_day_of_their_beginning() -> None:
    (anchor,) = as_json(build_report(observation(), with_series=True))["clock"]
    assert anchor == {"start_seconds": 0.0, "wall_time": WALL_TIME - 120}
