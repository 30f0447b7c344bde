from __future__ import annotations

from pathlib import Path

import pytest

from gpuwatch.dashboard.app import DashboardApp
from gpuwatch.dashboard.screens.processes import ProcessesScreen
from gpuwatch.dashboard.state import FILE_NAME, State, load, save
from tests.dashboard import situations


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path)}


def test_what_was_chosen_is_there_in_the_next_session(environ: dict[str, str], tmp_path: Path) -> None:
    assert load(environ) == State()
    chosen = State("gpuwatch-day", 300, "worst", "memory", process_order_inverted=True)
    save(chosen, environ)
    assert load(environ) == chosen
    assert [path.name for path in (tmp_path / "gpuwatch").iterdir()] == [FILE_NAME]


@pytest.mark.parametrize("text", ["theme = ", "theme = 3\nwindow_seconds = true\nother = 1", "\x00", "[theme]\na = 1"])
def test_a_file_that_means_nothing_is_none(environ: dict[str, str], tmp_path: Path, text: str) -> None:
    (tmp_path / "gpuwatch").mkdir()
    (tmp_path / "gpuwatch" / FILE_NAME).write_text(text)
    assert load(environ) == State()


def test_where_nothing_can_be_written_nothing_happens(tmp_path: Path) -> None:
    (tmp_path / "gpuwatch").write_text("a file where the folder would be")
    save(State("gpuwatch-day"), {"XDG_CONFIG_HOME": str(tmp_path)})
    save(State("gpuwatch-day"), {})
    assert load({}) == State()


async def test_the_dashboard_begins_as_it_was_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    left = State("gpuwatch-day", 300, "worst", "memory")
    app = DashboardApp(situations.monitor(situations.shared()), state=left)
    async with app.run_test(size=(120, 36)) as pilot:
        assert app.theme == "gpuwatch-day" and app.view.window_seconds == 300
        await pilot.press("plus", "p")
        await pilot.pause()
        assert isinstance(app.screen, ProcessesScreen)
        await pilot.press("i")
        await app.workers.wait_for_complete()
    assert load() == State("gpuwatch-day", 120, "worst", "memory", process_order_inverted=True)
