"""The dashboard: takes the monitor's snapshots, keeps how the user views them, and has screens draw that."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from textual import events
from textual.app import App, SystemCommand
from textual.binding import BindingType
from textual.message import Message
from textual.screen import Screen
from textual.theme import Theme

from gpuwatch.dashboard import formatting as say
from gpuwatch.dashboard.actions import bindings, palette_rows
from gpuwatch.dashboard.driver import CalmDriver
from gpuwatch.dashboard.panels.charts import History, Timeline
from gpuwatch.dashboard.screens.base import ViewScreen, in_background
from gpuwatch.dashboard.screens.main import MainScreen
from gpuwatch.dashboard.state import State, save
from gpuwatch.dashboard.terminal import notification
from gpuwatch.dashboard.themes import DEFAULT_THEME, Glyphs, Look, glyphs_for_terminal, look, textual_themes
from gpuwatch.dashboard.view import FindingKey, View, Viewing, key_of
from gpuwatch.dashboard.widgets import FilterChanged, FilterInput
from gpuwatch.dashboard.words import fix_to_copy, is_starting, place_of, recorded_words
from gpuwatch.diagnosis.finding import Finding
from gpuwatch.monitor.alerts import Alerts
from gpuwatch.monitor.recorder import default_name
from gpuwatch.monitor.snapshot import RecordingNow, Snapshot

if TYPE_CHECKING:
    from gpuwatch.dashboard.replay import ReplayLine


class MonitorLike(Protocol):
    """A monitor, as the dashboard sees it."""

    @property
    def timeline(self) -> Timeline:
        """The history behind the charts."""

    def snapshot(self) -> Snapshot:
        """The newest state of everything."""

    def subscribe(self, callback: Callable[[Snapshot], object]) -> object:
        """Calls back from its own thread with every new snapshot."""

    def record(self, path: Path) -> object:
        """Records into a file from now on.

        Raises:
            CannotRecordError, ValueError: with one sentence why not.
        """

    def stop_recording(self) -> RecordingNow | None:
        """Ends the recording and says what has become of it."""

    def attach(self, pid: int | None) -> object:
        """Narrows the watch to a process and those below it; None: watches everything again."""


class SnapshotArrived(Message, bubble=False):
    """The monitor has a new snapshot; it waits in the app, so that of several only the newest is drawn."""

    def can_replace(self, message: Message) -> bool:
        """A newer one makes an older one pointless."""
        return isinstance(message, SnapshotArrived)


FREEZE_AFTER_SECONDS = 7.0
"""Later than the first evaluation, which imports the rules after 5 s."""
RETURN_MEMORY_SECONDS = 60.0
"""The recording builds each minute's columns at once, 20 MB with 20 trainings, and frees them again."""
SILENCE_CHECK_SECONDS = 1.0
MIN_FRAME_SECONDS = 0.5
"""At most two frames a second, whatever the poll interval: cost follows painted area, eyes do not."""

INTERRUPTED = 130


class DashboardApp(App[int]):
    """The Textual app over a monitor.

    Args:
        monitor: Gives snapshots and chart values; the caller starts and stops it.
        narrowed_to: What the view is narrowed to, for the top bar, such as "train.py (4711)".
        origin_label: What the top bar says until the first snapshot does.
        clock: Monotonic seconds, to notice a monitor that has gone silent.
        glyphs: The signs to use; by default those that the terminal can show.
        read_only: Whether it sends no signals to processes.
        notify: Whether the terminal tells of critical findings and of the ends of runs.
        state: What the user chose the last time; None where nothing is to be remembered.
    """

    CSS_PATH = "dashboard.tcss"
    TITLE = "gpuwatch"
    ALLOW_SELECT = False
    ENABLE_COMMAND_PALETTE = True
    REPLAYS: ClassVar[bool] = False
    BINDINGS: ClassVar[list[BindingType]] = bindings("app")

    def __init__(
        self,
        monitor: MonitorLike,
        *,
        narrowed_to: str | None = None,
        origin_label: str = "LIVE",
        clock: Callable[[], float] = time.monotonic,
        glyphs: Glyphs | None = None,
        read_only: bool = False,
        notify: bool = False,
        state: State | None = None,
    ) -> None:
        self.read_only = read_only
        self._alerts = Alerts() if notify else None
        self.remembered = state or State()
        self._remembers = state is not None
        self._themes: dict[str, Theme] = {}  # read for every line that Textual draws
        super().__init__(driver_class=CalmDriver)
        self.monitor = monitor
        self.history = History(monitor.timeline)
        interval = getattr(monitor.timeline, "interval_seconds", None)
        self.viewing = Viewing(View(narrowed_to=narrowed_to, planned_interval_seconds=interval), clock)
        self.origin_label = origin_label
        self._clock = clock
        self._glyphs = glyphs or glyphs_for_terminal(os.environ)
        self._newest: Snapshot | None = None
        self._drawn_at = float("-inf")
        self._announced = False
        self._draw_planned = False
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._leaving: int | None = None
        self._themes = {theme.name: theme for theme in textual_themes()}
        for theme in self._themes.values():
            self.register_theme(theme)
        self.theme = self.remembered.theme if self.remembered.theme in self._themes else DEFAULT_THEME
        self.viewing.zoom_to(self.remembered.window_seconds)

    @property
    def view(self) -> View:
        """What the screens draw."""
        return self.viewing.view

    @property
    def look(self) -> Look:
        """The styles of the current theme."""
        return look(self.theme, self._glyphs)

    def _take_theme(self) -> None:
        self.redraw()
        self.remember(theme=self.theme)

    def remember(self, **chosen: str | int | bool) -> None:
        """Keeps what the user has chosen for the next session."""
        before, self.remembered = self.remembered, replace(self.remembered, **chosen)  # type: ignore[arg-type]
        if self._remembers and self.remembered != before:
            self.run_worker(in_background(save, self.remembered), exclusive=False)

    def player_lines(self) -> list[ReplayLine]:
        """What every screen has above its keys: nothing where what is seen is live."""
        return []

    def get_default_screen(self) -> MainScreen:
        """The main screen, so that the first frame is the real one."""
        return MainScreen()

    def on_mount(self) -> None:
        """Subscribes once the first frame stands."""
        self._event_loop = asyncio.get_running_loop()
        if self._leaving is not None:
            self.exit(self._leaving, return_code=self._leaving)
            return
        self.theme_changed_signal.subscribe(self, lambda _theme: self._take_theme())
        self.app_resume_signal.subscribe(self, lambda _app: self.action_repaint())
        self.monitor.subscribe(self.receive)
        now = self.monitor.snapshot()
        if not is_starting(now):
            self.receive(now)
        self._event_loop.call_later(SILENCE_CHECK_SECONDS, self._watch_silence)
        self.set_timer(FREEZE_AFTER_SECONDS, _freeze_garbage)
        self.set_interval(RETURN_MEMORY_SECONDS, _return_free_memory)

    def receive(self, snapshot: Snapshot) -> None:
        """Takes a snapshot, on the monitor's thread: leaves it and one message, however many come before it is read."""
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
        self.viewing.take(self._newest)
        if self._alerts is not None and self._newest is not None and self._driver is not None:
            for alert in self._alerts.take(self._newest):
                self._driver.write(notification(alert.subject, alert.sentence))
        wait = self._drawn_at + MIN_FRAME_SECONDS - self._clock()
        if wait <= 0.05:
            self.redraw()
        elif not self._draw_planned:
            self._draw_planned = True
            self.set_timer(wait, self.redraw)

    def redraw(self) -> None:
        """Forms and draws the view again; the screen of an app that is ending may have lost its widgets."""
        self._draw_planned = False
        if self.return_code is not None:
            return
        self._drawn_at = self._clock()
        self.viewing.form()
        if self.screen_stack and isinstance(self.screen, ViewScreen):
            self.screen.show()

    def _watch_silence(self) -> None:
        """Looks once a second; a bare callback costs a tenth of a Textual timer's tick."""
        if self.is_running and self._event_loop is not None:
            self._event_loop.call_later(SILENCE_CHECK_SECONDS, self._watch_silence)
            self.check_silence()

    def check_silence(self) -> None:
        """Has a silent monitor said so, once a second."""
        if self.viewing.silence() is not None and self._clock() - self._drawn_at >= 1.0:
            self.call_next(self.redraw)

    def on_resize(self, event: events.Resize) -> None:
        """A new size is drawn at once by the screens; the next snapshot need not wait."""
        self._drawn_at = float("-inf")

    def leave(self, code: int) -> None:
        """Ends the app with an exit code; from any thread and from signal handlers."""
        self._leaving = code
        if self._event_loop is not None:
            with suppress(RuntimeError):  # the event loop closed in this moment: the app has ended
                self._event_loop.call_soon_threadsafe(partial(self.exit, code, return_code=code))

    def action_interrupt(self) -> None:
        """Ctrl-C leaves with the exit code that shells expect of it."""
        self.exit(INTERRUPTED, return_code=INTERRUPTED)

    # The screens above the main one are imported when they are opened: the first frame needs none of them.

    def action_help(self) -> None:
        from gpuwatch.dashboard.screens.help import HelpScreen

        self._open(HelpScreen())

    def action_timeline(self) -> None:
        from gpuwatch.dashboard.screens.timeline import TimelineScreen

        self._open(TimelineScreen())

    def action_processes(self) -> None:
        from gpuwatch.dashboard.screens.processes import ProcessesScreen

        self._open(ProcessesScreen())

    def action_attach(self) -> None:
        from gpuwatch.dashboard.screens.attach import AttachScreen

        self._open(AttachScreen())

    def open_gpu(self, uuid: str) -> None:
        from gpuwatch.dashboard.screens.gpu import GpuScreen

        self._open(GpuScreen(uuid))

    def open_run(self, run_id: str) -> None:
        from gpuwatch.dashboard.screens.run import RunScreen

        self._open(RunScreen(run_id))

    def open_finding(self, key: FindingKey) -> None:
        from gpuwatch.dashboard.screens.finding import FindingScreen

        self._open(FindingScreen(key))

    def explain(self, rule_id: str) -> None:
        """Opens a rule's page."""
        from gpuwatch.dashboard.screens.help import RuleScreen
        from gpuwatch.diagnosis.rules import rule_by_id

        try:
            text: str | None = rule_by_id(rule_id).page
        except KeyError:
            text = None
        self._open(RuleScreen(rule_id, text))

    def attach(self, pid: int | None, words: str) -> None:
        """Has the monitor watch one process, or everything again; `words` confirm it."""
        self.run_worker(self._change_focus(pid, words))

    def action_record(self) -> None:
        self.run_worker(self._toggle_recording())

    async def _change_focus(self, pid: int | None, words: str) -> None:
        """Has the monitor watch one process, or everything again."""
        try:
            await in_background(self.monitor.attach, pid)
        except (ValueError, OSError) as error:  # a simulated machine, a process that is gone
            self._refuse(str(error))
            return
        self.viewing.narrow(None)
        self.notify(words, markup=False)

    async def _toggle_recording(self) -> None:
        """Begins a recording in the current folder, or ends the one that is being written."""
        from gpuwatch.recording.schema import CannotRecordError

        snapshot = self.monitor.snapshot()
        if snapshot.recording is not None:
            ended = await in_background(self.monitor.stop_recording)
            if ended is not None:
                severity = "information" if ended.problem is None else "warning"
                self.notify(f"{recorded_words(ended)}.", severity=severity, markup=False)  # type: ignore[arg-type]
            return
        try:
            path = Path.cwd() / default_name(time.time())
            await in_background(self.monitor.record, path)
        except (CannotRecordError, ValueError, OSError) as error:
            self._refuse(str(error))
            return
        self.notify(f"Recording into {path.name}; r stops it.", markup=False)

    def _refuse(self, sentence: str, severity: Literal["warning", "error"] = "error") -> None:
        self.notify(say.escape(sentence), severity=severity, markup=False)

    def _open(self, screen: ViewScreen) -> None:
        """Shows a screen; the same one opened twice is left again, as pressing its key twice means."""
        if type(self.screen) is type(screen):
            self.pop_screen()
        else:
            self.push_screen(screen)

    def action_pause(self) -> None:
        """Holds the picture or lets it go on; collection is never touched."""
        self.viewing.toggle_pause()
        self.redraw()

    def action_repaint(self) -> None:
        """Paints every line, also those that did not change: after Ctrl-Z, or where another program wrote over them."""
        self.screen.refresh()

    def action_zoom(self, steps: int) -> None:
        self.viewing.zoom(steps)
        self.redraw()
        self.remember(window_seconds=int(self.view.window_seconds))

    def action_filter(self) -> None:
        """Asks for the filter on the bottom line."""
        if isinstance(self.screen, ViewScreen) and self.screen.CAN_FILTER and not self.screen.query(FilterInput):
            line = FilterInput(self.view.filter)
            self.screen.mount(line)
            line.focus()

    def on_filter_changed(self, message: FilterChanged) -> None:
        self.set_filter(message.text)

    def set_filter(self, text: str) -> None:
        """Shows only what holds this text."""
        self.viewing.filter(text)
        self.redraw()

    def copy_fix(self, finding: Finding | None) -> None:
        """Puts the fix on the clipboard."""
        text = fix_to_copy(finding) if finding is not None else None
        if finding is None or text is None:
            self.notify("There is no fix to copy here.", severity="warning")
            return
        self.copy_to_clipboard(text)
        place = place_of(finding)
        self.notify(f"Copied{f' for {place}' if place else ''}: {text}", markup=False)

    def try_fix(self, finding: Finding | None) -> None:
        """Shows the command that proves the fix before it is edited, or says why there is none."""
        snapshot = self.view.snapshot
        if finding is None or snapshot is None:
            self._refuse("There is no finding here whose fix could be tried.", "warning")
            return
        from gpuwatch.dashboard.screens.finding import TrialScreen
        from gpuwatch.diagnosis.proof import proof_of

        run = self.view.run(finding.run)
        trainers = [rank.facts for rank in run.ranks] if run is not None else []
        proof = proof_of(finding, snapshot.findings, trainers)
        if proof.trial is None:
            self._refuse(f"There is no trial for {finding.rule}: {proof.why_not}.", "warning")
            return
        self._open(TrialScreen(finding, proof, trainers[0].cwd))

    def copy(self, text: str) -> None:
        """Puts a command on the clipboard."""
        self.copy_to_clipboard(text)
        self.notify(f"Copied: {text}", markup=False)

    def snooze(self, finding: Finding | None) -> None:
        if finding is None:
            self._refuse("There is no finding here to snooze.", "warning")
            return
        self.viewing.snooze(key_of(finding))
        self.notify(f"{finding.rule} is snoozed for an hour; u undoes it.", markup=False)
        self.redraw()

    def action_undo_snooze(self) -> None:
        if self.viewing.undo_snooze():
            self.redraw()
        else:
            self._refuse("No finding is snoozed.", "warning")

    def clear_ended(self) -> int:
        """Takes the ended runs off the screen; how many there were."""
        count = self.viewing.clear_ended()
        self.redraw()
        return count

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The palette's commands: only ours."""
        for title, words, run in palette_rows(replays=self.REPLAYS):
            yield SystemCommand(title, words, partial(self.run_action, run))

    @property
    def available_themes(self) -> dict[str, Theme]:
        """Only ours: the panels' colours have no meaning in the others."""
        return self._themes or super().available_themes


def _freeze_garbage() -> None:
    """What start-up allocated stays: without this the collector walks all of Textual's classes again and again."""
    gc.collect()
    gc.freeze()
    _return_free_memory()  # 0.7 MB that start-up alone needed


def _return_free_memory() -> None:
    """Gives free pages of the C library's heap back to the system; only glibc has the call."""
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
