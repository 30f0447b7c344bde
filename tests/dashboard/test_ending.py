"""The moment in which the dashboard ends, and what may still happen in it."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from gpuwatch.dashboard.app import DashboardApp
from gpuwatch.dashboard.driver import CalmDriver
from gpuwatch.dashboard.screens.base import ViewScreen
from tests.dashboard import situations
from tests.dashboard.fake_monitor import FakeMonitor


def test_a_frame_that_was_planned_before_the_last_screen_closed_is_not_drawn() -> None:
    made = situations.monitor(situations.starved())
    app = DashboardApp(FakeMonitor(made.current, made.timeline))
    assert app.screen_stack == []
    app.redraw()


async def test_a_screen_that_has_lost_its_widgets_is_not_drawn() -> None:
    made = situations.monitor(situations.starved())
    app = DashboardApp(FakeMonitor(made.current, made.timeline))
    async with app.run_test():
        assert isinstance(app.screen, ViewScreen)
        await app.screen.query("#top").remove()
        app.screen.show()


async def test_a_signal_after_its_end_changes_nothing() -> None:
    made = situations.monitor(situations.starved())
    app = DashboardApp(FakeMonitor(made.current, made.timeline))
    async with app.run_test():
        pass
    loop, app._event_loop = app._event_loop, asyncio.new_event_loop()
    assert loop is not None and app._event_loop is not None
    app._event_loop.close()
    app.leave(143)


def test_input_thread_that_ends_by_itself_is_not_woken_through_a_closed_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = CalmDriver.__new__(CalmDriver)
    driver.exit_event = threading.Event()
    driver.exit_event.set()
    has_begun, terminal_is_gone = threading.Event(), threading.Event()

    def read_input() -> None:
        with driver._waking():
            has_begun.set()
            terminal_is_gone.wait()

    thread = threading.Thread(target=read_input)
    thread.start()
    has_begun.wait()
    write = os.write
    woken = []

    def write_late(descriptor: int, data: bytes) -> int:
        terminal_is_gone.set()
        thread.join(0.2)  # as far as it comes
        woken.append(data)
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", write_late)
    driver.disable_input()
    thread.join()
    driver.disable_input()
    assert woken == [b"!"]


def test_a_stop_and_its_end_wait_for_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Called from the handler, they would wait for ever for the lock of the queue that a frame is just put into."""
    made: list[str] = []
    monkeypatch.setattr(CalmDriver, "_stop", lambda driver: made.append("stop"))
    monkeypatch.setattr(CalmDriver, "_resume", lambda driver: made.append("resume"))

    async def run() -> None:
        driver = CalmDriver.__new__(CalmDriver)
        driver._loop = asyncio.get_running_loop()
        driver._sigtstp_application()
        driver._sigcont_application()
        assert not made
        await asyncio.sleep(0)
        assert made == ["stop", "resume"]

    asyncio.run(run())
