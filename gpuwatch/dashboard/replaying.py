"""The dashboard over a recording: the same screens, with the keys of a player."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Protocol

from textual.app import SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Input

from gpuwatch.dashboard.app import DashboardApp
from gpuwatch.dashboard.history import History
from gpuwatch.dashboard.messages import MomentWanted
from gpuwatch.dashboard.palette import LIVE_ONLY
from gpuwatch.dashboard.screens.main import MainScreen
from gpuwatch.dashboard.watched import MonitorLike
from gpuwatch.dashboard.widgets.replay_line import ReplayLine
from gpuwatch.monitor.snapshot import ReplayNow

REFUSED = "This is a recording: {what}. Run `gpuwatch` to watch this machine."


class Player(MonitorLike, Protocol):
    """A monitor over a recording, as the dashboard sees it."""

    def toggle(self) -> object:
        """Holds the replay, or lets it go on."""

    def change_speed(self, steps: int) -> object:
        """The next faster or slower speed."""

    def seek(self, seconds: float) -> object:
        """Jumps by so many recorded seconds."""

    def seek_to(self, time_ns: int) -> object:
        """Jumps to a recorded moment."""

    def seek_to_start(self) -> object:
        """Jumps to the beginning."""

    def seek_to_end(self) -> object:
        """Jumps to the last moment."""


class ReplayApp(DashboardApp):
    """The app over a player.

    Args:
        monitor: plays the recording.
        options: as for the dashboard.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left_square_bracket", "seek(-10)", "Back 10 s", show=False),
        Binding("right_square_bracket", "seek(10)", "Forward 10 s", show=False),
        Binding("left_curly_bracket", "seek(-300)", "Back 5 min", show=False),
        Binding("right_curly_bracket", "seek(300)", "Forward 5 min", show=False),
        Binding("less_than_sign", "speed(-1)", "Slower", show=False),
        Binding("greater_than_sign", "speed(1)", "Faster", show=False),
        Binding("home", "seek_start", "To the beginning", show=False, priority=True),
        Binding("end", "seek_end", "To the end", show=False, priority=True),
    ]

    def __init__(self, monitor: Player, **options: Any) -> None:
        super().__init__(monitor, **options)
        self._player = monitor
        self._shown: ReplayNow | None = None

    def player_lines(self) -> list[ReplayLine]:
        """The line above the keys."""
        return [ReplayLine(id="replay")]

    def on_snapshot_arrived(self) -> None:
        """What a key has changed is drawn at once. Behind a jump the charts are of another timeline."""
        replay = self._newest.replay if self._newest is not None else None
        shown, self._shown = self._shown, replay
        if replay is not None and shown is not None:
            if replay.jumps != shown.jumps:
                self.history = History(self.monitor.timeline)
            if (replay.jumps, replay.state, replay.speed) != (shown.jumps, shown.state, shown.speed):
                self._drawn_at = float("-inf")
        super().on_snapshot_arrived()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Home and end stay with the lists of other screens, and with the filter's line."""
        if action in ("seek_start", "seek_end"):
            return isinstance(self.screen, MainScreen) and not isinstance(self.focused, Input)
        return super().check_action(action, parameters)

    def action_pause(self) -> None:
        """Holds the replay, or lets it go on."""
        self._player.toggle()

    def action_seek(self, seconds: int) -> None:
        """Jumps back or forward."""
        self._player.seek(seconds)

    def action_seek_start(self) -> None:
        """Jumps to the beginning."""
        self._player.seek_to_start()

    def action_seek_end(self) -> None:
        """Jumps to the end."""
        self._player.seek_to_end()

    def action_speed(self, steps: int) -> None:
        """Plays faster or slower."""
        self._player.change_speed(steps)

    def on_moment_wanted(self, message: MomentWanted) -> None:
        """The line was clicked."""
        self._player.seek_to(message.time_ns)

    def action_attach(self) -> None:
        """There is nothing to attach to."""
        self.notify(REFUSED.format(what="there is no process to attach to"), severity="warning", markup=False)

    def action_record(self) -> None:
        """There is nothing that is not recorded."""
        self.notify(REFUSED.format(what="it is recorded already"), severity="warning", markup=False)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The palette's commands, less those that need a living machine."""
        return (command for command in super().get_system_commands(screen) if command.title not in LIVE_ONLY)
