from __future__ import annotations

import logging

import pytest

from gpuwatch.monitor.monitor import Feed, Guard
from gpuwatch.samples import Sample
from tests.unit.fake_sources import ScriptedSource
from tests.unit.sample_builder import at, host


class FileSource(ScriptedSource):
    """A source that waits for a file."""

    def __init__(self, file: int) -> None:
        super().__init__(name="file")
        self.file = file

    def fileno(self) -> int | None:
        return self.file


def collected(feed: Feed, now_ns: int, *ready: int) -> list[Sample]:
    return [sample for _, samples in feed.collect(now_ns, ready) for sample in samples]


def test_only_sources_that_are_due_or_have_input_are_asked() -> None:
    early, late, file = ScriptedSource([(1, [host(1)])]), ScriptedSource([(9, [host(9)])]), FileSource(7)
    feed = Feed([early, late, file], Guard())
    assert feed.plan(at(0)) == ([7], at(1))
    assert collected(feed, at(1)) == [host(1)]
    assert (len(early.asked_ns), len(late.asked_ns), len(file.asked_ns)) == (1, 0, 0)
    feed.plan(at(2))
    collected(feed, at(2), 7)
    assert len(file.asked_ns) == 1


def test_busy_file_rests_for_a_tenth_of_a_second_once_it_may() -> None:
    source = FileSource(7)
    feed = Feed([source], Guard())
    feed.may_rest = True
    feed.plan(at(0))
    collected(feed, at(0), 7)
    assert feed.plan(at(0.01)) == ([], at(0.1))
    assert feed.plan(at(0.1)) == ([7], None)


def test_nothing_rests_long_before_the_first_screen() -> None:
    feed = Feed([FileSource(7)], Guard())
    feed.plan(at(0))
    collected(feed, at(0), 7)
    assert feed.plan(at(0.001)) == ([7], None)


def test_source_that_is_always_due_cannot_spin() -> None:
    source = ScriptedSource()
    source.due_ns = lambda: at(0)  # type: ignore[method-assign]
    feed = Feed([source], Guard())
    feed.plan(at(1))
    collected(feed, at(1))
    _, due = feed.plan(at(1))
    assert due == at(1.001)


def test_failing_source_is_named_once_in_the_log_and_asked_again_later(caplog: pytest.LogCaptureFixture) -> None:
    guard = Guard()
    broken = ScriptedSource([(20, [host(20)])], failing=[1, 6], name="broken")
    healthy = ScriptedSource([(second, [host(second)]) for second in range(1, 30)])
    feed = Feed([broken, healthy], guard)
    with caplog.at_level(logging.WARNING):
        for second in (1, 2, 3, 6.5):
            feed.plan(at(second))
            assert collected(feed, at(second)), "the healthy source goes on"
    assert len(broken.asked_ns) == 2
    assert len(caplog.records) == 1
    (notice,) = guard.notices
    assert "broken" in notice and "a bug" in notice
    feed.plan(at(20))
    assert host(20) in collected(feed, at(20))
    assert guard.notices == ()


def test_source_whose_plan_fails_is_left_out_for_a_while() -> None:
    guard = Guard()
    source = FileSource(7)
    source.fileno = lambda: 1 // 0  # type: ignore[method-assign, return-value]
    feed = Feed([source], guard)
    assert feed.plan(at(0)) == ([], at(5))
    assert len(guard.notices) == 1
    assert collected(feed, at(1), 7) == []


def test_all_are_closed_although_one_fails() -> None:
    broken, healthy = ScriptedSource(), ScriptedSource()
    broken.close = lambda: 1 // 0  # type: ignore[method-assign, assignment]
    Feed([broken, healthy], Guard()).close()
    assert healthy.closed == 1


def test_what_a_source_cannot_do_is_passed_on() -> None:
    source = ScriptedSource()
    source.problem = "the folder is not yours; remove it"  # type: ignore[attr-defined]
    assert Feed([source, ScriptedSource()], Guard()).problems == ("the folder is not yours; remove it",)
