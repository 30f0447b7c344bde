from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from gpuwatch.dashboard.lines import plain
from gpuwatch.dashboard.replay import ReplayApp, bar_cells, moment_at, replay_bar
from gpuwatch.dashboard.themes import ASCII, DEFAULT_THEME, UNICODE, Glyphs, look
from gpuwatch.diagnosis.finding import Severity
from gpuwatch.monitor.snapshot import Origin, ReplayMark, ReplayNow, Snapshot
from tests.dashboard import situations
from tests.dashboard.fake_monitor import FakeMonitor, later
from tests.dashboard.piloting import Driven, HandClock, unhurried

SECOND_NS = 1_000_000_000
SECONDS_IN = 600
ORIGIN = Origin("recording", "REPLAY night.gpuwatch")


class FakePlayer(FakeMonitor):
    """Notes what it is asked for."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(snapshot, situations.monitor(snapshot).timeline)
        self.asked: list[tuple[str, Any]] = []

    def toggle(self) -> None:
        self.asked.append(("toggle", None))

    def change_speed(self, steps: int) -> None:
        self.asked.append(("speed", steps))

    def seek(self, seconds: float) -> None:
        self.asked.append(("seek", seconds))

    def seek_to(self, time_ns: int) -> None:
        self.asked.append(("seek to", time_ns))

    def seek_to_start(self) -> None:
        self.asked.append(("start", None))

    def seek_to_end(self) -> None:
        self.asked.append(("end", None))


def replayed(snapshot: Snapshot, **changes: Any) -> Snapshot:
    start_ns = snapshot.time_ns - SECONDS_IN * SECOND_NS
    marks = (
        ReplayMark(start_ns, start_ns + 3600 * SECOND_NS, Severity.HINT),
        ReplayMark(start_ns + 300 * SECOND_NS, start_ns + 900 * SECOND_NS, Severity.WARNING),
        ReplayMark(start_ns + 2000 * SECOND_NS, start_ns + 2600 * SECOND_NS, Severity.CRITICAL),
    )
    now = ReplayNow(start_ns, start_ns + 3600 * SECOND_NS, marks=marks)
    return replace(snapshot, origin=ORIGIN, replay=replace(now, **changes))


@asynccontextmanager
async def playing(
    snapshot: Snapshot, size: tuple[int, int] = (120, 36), glyphs: Glyphs = UNICODE
) -> AsyncIterator[Driven]:
    monitor, clock = FakePlayer(snapshot), HandClock()
    app = unhurried(ReplayApp(monitor, clock=clock, glyphs=glyphs))
    async with app.run_test(size=size, notifications=True) as pilot:
        driver = Driven(app, pilot, monitor, clock)
        await pilot.pause()
        await driver.push(snapshot)
        yield driver


@pytest.mark.parametrize("size", [(80, 24), (120, 36)], ids=lambda size: f"{size[0]}x{size[1]}")
async def test_the_replayed_screen_reads_as_it_did(
    size: tuple[int, int], assert_snapshot: Callable[[str, str], None]
) -> None:
    async with playing(replayed(situations.starved()), size) as driver:
        assert_snapshot(f"replay-{size[0]}x{size[1]}.txt", driver.text)


async def test_the_help_of_a_replay_tells_its_keys(assert_snapshot: Callable[[str, str], None]) -> None:
    async with playing(replayed(situations.starved()), (120, 44)) as driver:
        await driver.press("question_mark")
        assert_snapshot("replay-help-120x44.txt", driver.text)


@pytest.mark.parametrize(
    ("key", "asked"),
    [
        ("space", ("toggle", None)),
        ("left_square_bracket", ("seek", -10)),
        ("right_square_bracket", ("seek", 10)),
        ("left_curly_bracket", ("seek", -300)),
        ("right_curly_bracket", ("seek", 300)),
        ("less_than_sign", ("speed", -1)),
        ("greater_than_sign", ("speed", 1)),
        ("home", ("start", None)),
        ("end", ("end", None)),
    ],
)
async def test_keys_drive_the_player(key: str, asked: tuple[str, Any]) -> None:
    async with playing(replayed(situations.starved())) as driver:
        await driver.press(key)
        assert driver.monitor.asked == [asked]  # type: ignore[attr-defined]


async def test_home_and_end_stay_with_the_pages_and_the_filter() -> None:
    async with playing(replayed(situations.starved())) as driver:
        await driver.press("question_mark", "end", "home", "escape", "slash", "a", "home", "end", "escape")
        assert driver.monitor.asked == []  # type: ignore[attr-defined]


async def test_a_click_on_the_line_goes_to_that_moment() -> None:
    snapshot = replayed(situations.starved())
    assert snapshot.replay is not None
    async with playing(snapshot) as driver:
        start, end = bar_cells(snapshot.replay, 120)
        await driver.pilot.click(offset=(start + (end - start) // 2, 34))
        await driver.pilot.pause()
        ((what, moment_ns),) = driver.monitor.asked  # type: ignore[attr-defined]
        assert what == "seek to"
        assert (moment_ns - snapshot.replay.start_ns) / SECOND_NS == pytest.approx(1800, abs=60)


@pytest.mark.parametrize(("key", "words"), [("a", "no process to attach to"), ("r", "it is recorded already")])
async def test_what_needs_a_living_machine_is_refused_in_words(key: str, words: str) -> None:
    async with playing(replayed(situations.unwatched())) as driver:
        await driver.press(key)
        assert words in driver.text
        assert driver.monitor.attached == driver.monitor.recorded == []


async def test_nothing_offers_to_attach() -> None:
    async with playing(replayed(situations.unwatched())) as driver:
        assert "attach" not in driver.text
        await driver.press("p")
        assert "attach" not in driver.rows[-1]


async def test_a_jump_is_drawn_at_once_with_the_charts_of_its_own_timeline() -> None:
    async with playing(replayed(situations.starved())) as driver:
        before = driver.app.history
        await driver.push(replayed(later(situations.healthy(), 1), jumps=1), after_seconds=0.0)
        assert driver.app.history is not before
        assert "nothing to change" in driver.text


async def test_a_held_or_slow_replay_is_not_taken_for_a_silent_monitor() -> None:
    for changes in ({"state": "paused"}, {"state": "ended"}, {"speed": 0.25}):
        async with playing(replayed(situations.starved(), **changes)) as driver:
            driver.clock.now += 9
            driver.app.check_silence()
            await driver.pilot.pause()
            assert "NO NEW DATA" not in driver.rows[0]
            assert ("PAUSED" in driver.rows[-2]) == (changes.get("state") == "paused")


def test_the_line_shows_state_position_length_and_the_worst_that_stood() -> None:
    snapshot = replayed(situations.starved(), speed=4.0)
    assert snapshot.replay is not None
    (text,) = plain([replay_bar(snapshot, snapshot.replay, 100, look(DEFAULT_THEME, UNICODE))])
    start, end = bar_cells(snapshot.replay, 100)
    assert text.startswith(" PLAY 4x")
    assert text[:start].endswith(" 10:00 ")
    assert text[end:].startswith(" 1:00:00 ")
    bar = text[start:end]
    assert bar.index("█") == (end - start) // 6
    assert "▲" in bar and "◆" in bar and "○" not in bar
    assert bar.index("▲") < bar.index("◆")


def test_the_line_does_without_unicode_and_says_the_end() -> None:
    snapshot = replayed(situations.starved(), state="ended", is_growing=True)
    assert snapshot.replay is not None
    (text,) = plain([replay_bar(snapshot, snapshot.replay, 80, look(DEFAULT_THEME, ASCII))])
    assert text.isascii()
    assert text.startswith(" END")
    assert "1:00:00 #" not in text.split("#")[1]
    assert " 1:00:00+" in text


def test_a_column_beside_the_bar_is_no_moment() -> None:
    replay = replayed(situations.starved()).replay
    assert replay is not None
    start, end = bar_cells(replay, 100)
    assert moment_at(replay, start - 1, 100) is None
    assert moment_at(replay, end, 100) is None
    assert moment_at(replay, start, 100) == pytest.approx(replay.start_ns, abs=60 * SECOND_NS)
