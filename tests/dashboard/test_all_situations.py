from __future__ import annotations

import pytest
from rich.cells import cell_len

from gpuwatch.dashboard.themes import ASCII
from gpuwatch.dashboard.widgets import LinesWidget, Pager
from tests.dashboard import situations
from tests.dashboard.piloting import Driven, driven

SITUATIONS = {
    "starved": situations.starved(),
    "healthy": situations.healthy(),
    "no run": situations.no_run(),
    "no run on eight": situations.no_run(8),
    "no gpu": situations.no_gpu(),
    "cpu run": situations.cpu_run(),
    "lost": situations.lost(),
    "stale": situations.stale(),
    "eight ranks": situations.many_gpus(8, 8),
    "64 gpus": situations.many_gpus(64, 64),
    "20 findings": situations.many_findings(20),
    "hostile": situations.hostile_names(),
    "long names": situations.long_names(),
    "not hooked": situations.not_hooked(),
    "two runs": situations.two_runs(),
    "unwatched": situations.unwatched(),
    "attached": situations.attached(),
    "attached with workers": situations.attached(2),
    "stuck": situations.stuck(),
    "40 candidates": situations.many_candidates(),
}
SCREENS = {
    "main": (),
    "finding": ("enter",),
    "gpu": ("tab", "enter"),
    "timeline": ("t", "d"),
    "processes": ("p",),
    "attach": ("a",),
    "help": ("question_mark",),
    "trial": ("T",),
}


def assert_sound(driver: Driven, size: tuple[int, int]) -> None:
    """Every line is exactly as wide as it claims to be, or rows would break on a real terminal."""
    for widget in driver.app.screen.query(LinesWidget):
        if widget in driver.app.screen._compositor.visible_widgets:
            assert {line_cells(line) for line in widget.lines} <= {size[0]}
    for page in driver.app.screen.query(Pager):
        assert {line_cells(line) for line in page.lines} <= {size[0] - 1}
    assert len(driver.rows) == size[1]
    assert "\x1b" not in driver.text


def line_cells(line: tuple[object, ...]) -> int:
    return cell_len("".join(segment.text for segment in line))  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", SITUATIONS)
async def test_every_situation_is_shown_at_every_size(name: str) -> None:
    size = (80, 24)
    async with driven(SITUATIONS[name], size) as driver:
        for size in ((80, 24), (60, 15), (96, 30), (120, 36), (200, 60), (300, 90)):
            await driver.pilot.resize_terminal(*size)
            await driver.pilot.pause()
            assert_sound(driver, size)
            assert driver.rows[0].startswith(" gpuwatch  LIVE")


@pytest.mark.parametrize("screen", SCREENS)
async def test_every_screen_shows_hostile_and_long_names_without_breaking(screen: str) -> None:
    for snapshot in (situations.hostile_names(), situations.long_names()):
        async with driven(snapshot, (80, 24)) as driver:
            await driver.press(*SCREENS[screen])
            await driver.settle()
            assert_sound(driver, (80, 24))


@pytest.mark.parametrize("screen", SCREENS)
async def test_nothing_but_ascii_is_written_for_a_terminal_that_has_nothing_else(screen: str) -> None:
    snapshot = situations.many_gpus(8, 8) if screen == "main" else situations.hostile_names()
    for shown in (snapshot, situations.attached(2), situations.stuck()):
        async with driven(shown, glyphs=ASCII) as driver:
            await driver.press(*SCREENS[screen])
            await driver.settle()
            lines = [line for widget in driver.app.screen.query(LinesWidget) for line in widget.lines]
            lines += [line for page in driver.app.screen.query(Pager) for line in page.lines]
            assert lines
            assert all(segment.text.isascii() for line in lines for segment in line)


async def test_a_storm_of_sizes_ends_in_a_sound_screen() -> None:
    async with driven(situations.many_gpus(8, 8)) as driver:
        for size in ((20, 5), (500, 200), (1, 1), (79, 23), (60, 14), (121, 37), (80, 24)):
            await driver.pilot.resize_terminal(*size)
        await driver.pilot.pause()
        assert_sound(driver, (80, 24))


async def test_a_terminal_that_is_too_small_gets_one_line_and_recovers() -> None:
    async with driven(situations.starved(), (50, 10)) as driver:
        assert driver.rows[0] == "gpuwatch needs 60x15, this is 50x10"
        assert not "".join(driver.rows[1:]).strip()
        await driver.pilot.resize_terminal(80, 24)
        await driver.pilot.pause()
        assert "What to change" in driver.text


async def test_gpus_that_come_and_go_leave_no_rows_behind() -> None:
    async with driven(situations.no_run(8)) as driver:
        for count in (7, 0, 2, 8):
            await driver.push(situations.no_run(count) if count else situations.no_gpu())
            rows = [row for row in driver.rows if row[1:3].strip().isdigit() and "GPUs " not in row]
            assert len(rows) == count


@pytest.mark.parametrize("theme", ["gpuwatch-day", "gpuwatch-colour-blind", "gpuwatch-terminal"])
async def test_a_theme_changes_colours_and_no_words(theme: str) -> None:
    async with driven(situations.starved()) as driver:
        words, picture = driver.text, driver.app.export_screenshot()
        driver.app.theme = theme
        await driver.pilot.pause()
        assert driver.text == words
        assert driver.app.export_screenshot() != picture


async def test_without_colour_every_status_is_still_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with driven(situations.lost()) as driver:
        assert "CRITICAL" in driver.text
        assert "LOST since 13:58" in driver.text
        strips = driver.app.screen._compositor.render_strips()
        colors = {segment.style.color for strip in strips for segment in strip if segment.style and segment.style.color}
        triplets = {color.triplet for color in colors if color.triplet}
        assert triplets
        assert all(red == green == blue for red, green, blue in triplets)
