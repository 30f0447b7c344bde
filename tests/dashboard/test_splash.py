from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from gpuwatch.dashboard import splash
from tests.dashboard.piloting import driven


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    monkeypatch.setattr(splash, "_shown", False)
    monkeypatch.setenv("COLUMNS", "120")
    return []


def rows(data: bytes) -> list[str]:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", data.decode()).split("\r\n")


@pytest.mark.parametrize("label", ["LIVE", "SIMULATED starved"])
async def test_it_says_what_the_first_real_frame_says_at_the_same_places(written: list[bytes], label: str) -> None:
    splash.show_splash(label, {"COLORTERM": "truecolor"}, written.append)
    painted = rows(written[0])
    async with driven(origin_label=label) as driver:
        assert driver.rows[0] == painted[0].rstrip()
        assert driver.rows[2].index(splash.STARTING) == painted[2].index(splash.STARTING)
        assert driver.rows[2].index("STARTING") == painted[2].index("STARTING")


def test_it_is_painted_once_and_the_screen_is_given_back(written: list[bytes]) -> None:
    splash.show_splash("LIVE", {}, written.append)
    splash.show_splash("LIVE", {}, written.append)
    assert len(written) == 1
    splash.hide_splash(written.append)
    splash.hide_splash(written.append)
    assert len(written) == 2
    assert written[1].endswith(b"\x1b[?1049l\x1b[?25h")


def test_once_textual_has_taken_over_it_leaves_the_screen_to_it(written: list[bytes]) -> None:
    splash.show_splash("LIVE", {}, written.append)
    splash.splash_taken_over()
    splash.hide_splash(written.append)
    assert len(written) == 1


@pytest.mark.parametrize("environ", [{"COLORTERM": "truecolor", "NO_COLOR": "1"}, {"TERM": "linux"}, {}])
def test_it_has_no_colours_where_none_are_wanted_or_known(written: list[bytes], environ: dict[str, str]) -> None:
    splash.show_splash("LIVE", environ, written.append)
    assert b"38;2;" not in written[0]


def test_lines_are_painted_on_it_as_far_as_the_terminal_has_room(
    written: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    monkeypatch.setenv("LINES", "6")
    splash.show_splash("LIVE", {}, written.append)
    splash.show_on_splash(4, ["first line that is long", "second", "third"], written.append)
    assert written[1] == b"\x1b[5;1Hfirst line\x1b[K\x1b[6;1Hsecond\x1b[K"


@pytest.mark.parametrize("end", [splash.splash_taken_over, lambda: splash.hide_splash(lambda data: None)])
def test_nothing_is_painted_where_it_is_not_on_the_screen(written: list[bytes], end: Callable[[], None]) -> None:
    splash.show_on_splash(4, ["early"], written.append)
    splash.show_splash("LIVE", {}, lambda data: None)
    end()
    splash.show_on_splash(4, ["late"], written.append)
    assert written == []
