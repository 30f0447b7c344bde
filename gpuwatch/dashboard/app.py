"""The dashboard: takes the monitor's snapshots, keeps how the user looks at them, and has screens draw that."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import ClassVar, Protocol

from textual import events
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.theme import Theme
from textual.widgets import Input

from gpuwatch.dashboard.glyphs import Glyphs, glyphs_for_terminal
from gpuwatch.dashboard.history import History, Timeline
from gpuwatch.dashboard.launch import run_dashboard
from gpuwatch.dashboard.messages import SnapshotArrived
from gpuwatch.dashboard.screens.base import ViewScreen
from gpuwatch.dashboard.screens.main import MainScreen
from gpuwatch.dashboard.themes import DEFAULT_THEME, Look, look, textual_themes
from gpuwatch.dashboard.view import WINDOWS_SECONDS, FindingKey, View, key_of
from gpuwatch.dashboard.wording import change_words, place_of
from gpuwatch.diagnosis.finding import Finding
from gpuwatch.monitor.snapshot import Snapshot

__all__ = ["DashboardApp", "run_dashboard"]

MIN_FRAME_SECONDS = 0.5
"""At most two frames a second, whatever the poll interval: cost follows painted area, eyes do not."""

SNOOZE_NS = 3600 * 10**9
INTERRUPTED = 130


class MonitorLike(Protocol):
    """What the dashboard needs of a monitor."""

    @property
    def timeline(self) -> Timeline:
        """The history behind the charts."""

    def snapshot(self) -> Snapshot:
        """The newest state of everything."""

    def subscribe(self, callback: Callable[[Snapshot], object]) -> object:
        """Calls back from its own thread with every new snapshot."""


class DashboardApp(App[int]):
    """The Textual app over a monitor.

    Args:
        monitor: Gives snapshots and chart values; it is started and stopped by whoever made it.
        narrowed_to: What the view is narrowed to, for the top bar, such as "train.py (4711)".
        origin_label: What the top bar says until the first snapshot does.
        clock: Monotonic seconds, to notice a monitor that has gone silent.
        glyphs: The signs to use; by default those that the terminal can show.
    """

    CSS_PATH = "dashboard.tcss"
    TITLE = "gpuwatch"
    ALLOW_SELECT = False
    ENABLE_COMMAND_PALETTE = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit", show=False),
        Binding("ctrl+c", "interrupt", "Quit", show=False, priority=True),
        Binding("h,question_mark,f1", "help", "Help", show=False),
        Binding("t", "timeline", "Timeline", show=False),
        Binding("p", "processes", "Processes", show=False),
        Binding("space", "pause", "Hold the picture", show=False),
        Binding("plus,equals_sign", "zoom(-1)", "Zoom in", show=False),
        Binding("minus", "zoom(1)", "Zoom out", show=False),
        Binding("slash", "filter", "Filter", show=False),
    ]

    def __init__(
        self,
        monitor: MonitorLike,
        *,
        narrowed_to: str | None = None,
        origin_label: str = "LIVE",
        clock: Callable[[], float] = time.monotonic,
        glyphs: Glyphs | None = None,
    ) -> None:
        super().__init__()
        self.monitor = monitor
        self.history = History(monitor.timeline)
        self.view = View(narrowed_to=narrowed_to)
        self.origin_label = origin_label
        self._clock = clock
        self._glyphs = glyphs or glyphs_for_terminal(os.environ)
        self._newest: Snapshot | None = None
        self._newest_at = clock()
        self._drawn_at = float("-inf")
        self._announced = False
        self._draw_planned = False
        self._paused_at: float | None = None
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._leaving: int | None = None
        self._snoozed: dict[FindingKey, int] = {}
        for theme in textual_themes():
            self.register_theme(theme)
        self.theme = DEFAULT_THEME

    @property
    def look(self) -> Look:
        """The styles of the current theme."""
        return look(self.theme, self._glyphs)

    def get_default_screen(self) -> MainScreen:
        """The main screen, so that the first frame is the real one."""
        return MainScreen()

    def on_mount(self) -> None:
        """Subscribes once the first frame stands."""
        self._event_loop = asyncio.get_running_loop()
        if self._leaving is not None:
            self.exit(self._leaving, return_code=self._leaving)
        self.theme_changed_signal.subscribe(self, lambda _theme: self.redraw())
        self.monitor.subscribe(self._on_snapshot)
        self.set_interval(1.0, self._check_silence)
        # What start-up allocated stays; without it the collector walks all of Textual's classes again and again.
        gc.collect()
        gc.freeze()

    def _on_snapshot(self, snapshot: Snapshot) -> None:
        """On the monitor's thread: leaves the snapshot and one message, however many come before it is read."""
        self._newest = snapshot
        if not self._announced and self.is_running:
            self._announced = True
            try:
                self.post_message(SnapshotArrived())
            except RuntimeError:  # the event loop closed in this moment: the app is ending
                self._announced = False

    def on_snapshot_arrived(self) -> None:
        """Draws it now, or when the last frame is old enough."""
        self._announced = False
        self._newest_at = self._clock()
        wait = self._drawn_at + MIN_FRAME_SECONDS - self._clock()
        if wait <= 0.05:
            self.redraw()
        elif not self._draw_planned:
            self._draw_planned = True
            self.set_timer(wait, self.redraw)

    def redraw(self) -> None:
        """Forms the view anew and draws it."""
        self._draw_planned = False
        self._drawn_at = self._clock()
        self.view = self._next_view()
        if isinstance(self.screen, ViewScreen):
            self.screen.show()

    def _next_view(self) -> View:
        held = self._paused_at is not None
        snapshot = self.view.snapshot if held and self.view.snapshot is not None else self._newest
        now_ns = self._newest.time_ns if self._newest is not None else 0
        self._snoozed = {key: until for key, until in self._snoozed.items() if until > now_ns}
        return replace(
            self.view,
            snapshot=snapshot,
            paused_seconds=None if self._paused_at is None else self._clock() - self._paused_at,
            silent_seconds=self._silence(),
            snoozed=frozenset(self._snoozed),
        )

    def _silence(self) -> float | None:
        """Seconds without a snapshot, once that is longer than two polls and a second."""
        silence = self._clock() - self._newest_at
        return silence if silence > 1.0 + 2 * (self.view.interval_seconds or 1.0) else None

    def _check_silence(self) -> None:
        if self._silence() is not None and self._clock() - self._drawn_at >= 1.0:
            self.redraw()

    def on_resize(self, event: events.Resize) -> None:
        """A new size is drawn at once by the screens; the next snapshot need not wait."""
        self._drawn_at = float("-inf")

    def leave(self, code: int) -> None:
        """Ends the app with an exit code; from any thread and from signal handlers."""
        self._leaving = code
        if self._event_loop is not None:
            self._event_loop.call_soon_threadsafe(partial(self.exit, code, return_code=code))

    def action_interrupt(self) -> None:
        """Ctrl-C leaves with the exit code that shells expect of it."""
        self.exit(INTERRUPTED, return_code=INTERRUPTED)

    def action_help(self) -> None:
        """Opens the help."""
        from gpuwatch.dashboard.screens.pages import HelpScreen

        self._open(HelpScreen())

    def action_timeline(self) -> None:
        """Opens the timeline."""
        from gpuwatch.dashboard.screens.pages import TimelineScreen

        self._open(TimelineScreen())

    def action_processes(self) -> None:
        """Opens the processes."""
        from gpuwatch.dashboard.screens.pages import ProcessesScreen

        self._open(ProcessesScreen())

    def open_gpu(self, uuid: str) -> None:
        """Opens the page of a GPU."""
        from gpuwatch.dashboard.screens.pages import GpuScreen

        self._open(GpuScreen(uuid))

    def open_finding(self, key: FindingKey) -> None:
        """Opens a finding."""
        from gpuwatch.dashboard.screens.finding import FindingScreen

        self._open(FindingScreen(key))

    def explain(self, rule_id: str) -> None:
        """Opens a rule's page."""
        from gpuwatch.dashboard.screens.pages import RuleScreen
        from gpuwatch.diagnosis.registry import rule_by_id

        try:
            text: str | None = rule_by_id(rule_id).page
        except KeyError:
            text = None
        self._open(RuleScreen(rule_id, text))

    def _open(self, screen: ViewScreen) -> None:
        """Shows a screen; the same one asked for twice is left again, as pressing its key twice means."""
        if type(self.screen) is type(screen):
            self.pop_screen()
        else:
            self.push_screen(screen)

    def action_pause(self) -> None:
        """Holds the picture or lets it go on; collection is never touched."""
        self._paused_at = self._clock() if self._paused_at is None else None
        self.redraw()

    def action_zoom(self, steps: int) -> None:
        """Shows less or more time."""
        now = WINDOWS_SECONDS.index(int(self.view.window_seconds))
        index = max(0, min(len(WINDOWS_SECONDS) - 1, now + steps))
        self.view = replace(self.view, window_seconds=WINDOWS_SECONDS[index])
        self.redraw()

    def action_filter(self) -> None:
        """Asks for the filter on the bottom line."""
        if not self.screen.query(Input):
            self.screen.mount(Input(self.view.filter, placeholder="filter: rule, file, run, command", id="filter"))
            self.screen.query_one("#filter", Input).focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filters while one types."""
        self.set_filter(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keeps the filter and puts the line away."""
        event.input.remove()

    def on_key(self, event: events.Key) -> None:
        """Escape in the filter's line clears it."""
        if event.key == "escape" and isinstance(self.focused, Input):
            self.focused.remove()
            self.set_filter("")
            event.stop()

    def set_filter(self, text: str) -> None:
        """Shows only what holds this text."""
        self.view = replace(self.view, filter=text.strip())
        self.redraw()

    def copy_fix(self, finding: Finding | None) -> None:
        """Puts the fix on the clipboard."""
        if finding is None or finding.fix is None or self.view.snapshot is None:
            self.notify("There is no fix to copy here.", severity="warning")
            return
        text = finding.fix.code or change_words(finding, self.view.snapshot).split("→")[-1].strip()
        self.copy_to_clipboard(text)
        place = place_of(finding)
        self.notify(f"Copied{f' for {place}' if place else ''}: {text}", markup=False)

    def snooze(self, finding: Finding | None) -> None:
        """Hides a finding for an hour."""
        if finding is None or self._newest is None:
            return
        self._snoozed[key_of(finding)] = self._newest.time_ns + SNOOZE_NS
        self.notify(f"{finding.rule} is quiet for an hour; u brings it back.", markup=False)
        self.redraw()

    def action_undo_snooze(self) -> None:
        """Brings the last snoozed finding back."""
        if self._snoozed:
            self._snoozed.popitem()
            self.redraw()

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The palette's commands: our own, the theme, the way out."""
        yield SystemCommand("Timeline", "GPUs, steps, waits and phases on one axis (t)", self.action_timeline)
        yield SystemCommand("Processes", "Who uses the GPUs (p)", self.action_processes)
        yield SystemCommand("Hold or resume the picture", "Collection goes on (space)", self.action_pause)
        yield SystemCommand("Filter", "Findings, runs and processes (/)", self.action_filter)
        yield SystemCommand("Theme", "Change the colours; one theme is colour-blind safe", self.action_change_theme)
        yield SystemCommand("Help", "Keys and words (?)", self.action_help)
        yield SystemCommand("Quit", "Leave gpuwatch (q)", self.action_quit)

    @property
    def available_themes(self) -> dict[str, Theme]:
        """Only ours: the panels' colours have no meaning in the others."""
        everything = super().available_themes
        ours = {name: theme for name, theme in everything.items() if name.startswith("gpuwatch-")}
        return ours or everything
