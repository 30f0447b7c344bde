"""Drives the dashboard in tests: an app over a hand-made snapshot, and its screen as text."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from textual.pilot import Pilot

from gpuwatch.dashboard.app import DashboardApp
from gpuwatch.dashboard.themes import UNICODE, Glyphs
from gpuwatch.monitor.snapshot import Snapshot
from tests.dashboard import situations
from tests.dashboard.fake_monitor import FakeMonitor


class HandClock:
    """Monotonic seconds that only tests move."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Driven:
    """A running app, the monitor under it and the clock that it looks at."""

    app: DashboardApp
    pilot: Pilot[Any]
    monitor: FakeMonitor
    clock: HandClock

    async def press(self, *keys: str) -> None:
        for key in keys:
            await self.pilot.press(key)
            await self.pilot.pause()

    async def push(self, snapshot: Snapshot | None = None, after_seconds: float = 1.0) -> None:
        """Has the monitor send a snapshot from its own thread, some time after the last one."""
        self.clock.now += after_seconds
        self.monitor.push(snapshot)
        await self.settle()

    async def settle(self) -> None:
        await self.app.workers.wait_for_complete()
        await self.pilot.pause()

    @property
    def rows(self) -> list[str]:
        """The screen as rows of text."""
        strips = self.app.screen._compositor.render_strips()
        return ["".join(segment.text for segment in strip).rstrip() for strip in strips]

    @property
    def painted(self) -> str:
        """The screen as runs of text with their colours, which no release of rich or Textual writes otherwise."""
        lines = []
        for number, strip in enumerate(self.app.screen._compositor.render_strips()):
            for segment in strip.simplify():
                style = segment.style
                color = style.color.name if style and style.color else "-"
                background = style.bgcolor.name if style and style.bgcolor else "-"
                bold = " bold" if style and style.bold else ""
                lines.append(f"{number:3} {color} on {background}{bold} |{segment.text}|")
        return "\n".join(lines)

    @property
    def text(self) -> str:
        return "\n".join(self.rows)


App = TypeVar("App", bound=DashboardApp)


def unhurried(app: App) -> App:
    """The app with words that stay: a busy machine may hold a test for longer than they are shown."""
    app.NOTIFICATION_TIMEOUT = 3600.0  # type: ignore[misc]
    return app


@asynccontextmanager
async def driven(
    snapshot: Snapshot | None = None,
    size: tuple[int, int] = (120, 36),
    glyphs: Glyphs = UNICODE,
    monitor: FakeMonitor | None = None,
    **options: Any,
) -> AsyncIterator[Driven]:
    """An app that has drawn the snapshot, or its first frame without one."""
    monitor = monitor or (situations.monitor(snapshot) if snapshot is not None else FakeMonitor())
    clock = HandClock()
    app = unhurried(DashboardApp(monitor, clock=clock, glyphs=glyphs, **options))
    async with app.run_test(size=size, notifications=True) as pilot:
        driver = Driven(app, pilot, monitor, clock)
        await pilot.pause()
        if snapshot is not None:
            await driver.push(snapshot)
        yield driver
