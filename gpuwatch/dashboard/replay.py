"""The dashboard for a recording: the same screens, with the keys of a player and a line that says where it stands."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from rich.style import Style
from textual import events
from textual.binding import BindingType
from textual.message import Message
from textual.widgets import Input

from gpuwatch.dashboard.actions import bindings
from gpuwatch.dashboard.app import DashboardApp, MonitorLike
from gpuwatch.dashboard.lines import Line, LineWriter
from gpuwatch.dashboard.panels.charts import History
from gpuwatch.dashboard.screens.main import MainScreen
from gpuwatch.dashboard.themes import Look
from gpuwatch.dashboard.view import View
from gpuwatch.dashboard.widgets import LinesWidget
from gpuwatch.dashboard.words import day_and_time
from gpuwatch.diagnosis.finding import Severity
from gpuwatch.monitor.snapshot import ReplayMark, ReplayNow, Snapshot
from gpuwatch.numbers import clock


class MomentWanted(Message):
    """The user wants to see a recorded moment."""

    def __init__(self, time_ns: int) -> None:
        super().__init__()
        self.time_ns = time_ns


_SHOWN = (Severity.CRITICAL, Severity.WARNING, Severity.INFO)
"""Hints stand most of the time, and would cover the bar."""

_STATE_CELLS = 13


def replay_bar(snapshot: Snapshot, replay: ReplayNow, width: int, look: Look) -> Line:
    """State and speed, the position, the bar, the length, the recorded wall time."""
    now_ns = replay.end_ns if replay.state == "ended" else snapshot.time_ns
    writer = LineWriter(width, look)
    start, end = bar_cells(replay, width)
    word, style = _state(replay, look)
    writer.put(f" {word} ", style).to(_STATE_CELLS, look.bar)
    at = clock((now_ns - replay.start_ns) / 1e9)
    writer.to(start - 1 - len(at), look.bar).put(f"{at} ", look.bar_strong)
    for text, cell_style in _cells(replay, now_ns, end - start, look):
        writer.chart(text, cell_style)
    tail = f" {clock(_seconds(replay))}{'+' if replay.is_growing else ''}"
    writer.put(tail, look.bar_dim)
    return writer.at_right(f"{day_and_time(snapshot.wall_time)} ", look.bar_strong, filler=look.bar).line(look.bar)


def bar_cells(replay: ReplayNow, width: int) -> tuple[int, int]:
    """The first column of the bar, and the one behind its last."""
    digits = len(clock(_seconds(replay)))
    start = _STATE_CELLS + digits + 2
    return start, max(start + 4, width - digits - len(day_and_time(0.0)) - 5)


def moment_at(replay: ReplayNow, column: int, width: int) -> int | None:
    """The recorded moment under a click; None outside the bar."""
    start, end = bar_cells(replay, width)
    if not start <= column < end:
        return None
    return replay.start_ns + round((column - start + 0.5) / (end - start) * (replay.end_ns - replay.start_ns))


def _seconds(replay: ReplayNow) -> float:
    return (replay.end_ns - replay.start_ns) / 1e9


def _state(replay: ReplayNow, look: Look) -> tuple[str, Style]:
    speed = f"{replay.speed:g}x"
    if replay.state == "ended":
        return "END", look.simulated
    if replay.state == "paused":
        return f"PAUSED {speed}", look.simulated
    return f"PLAY {speed}", look.bar_accent


def _cells(replay: ReplayNow, now_ns: int, count: int, look: Look) -> list[tuple[str, Style]]:
    """One sign per cell: the position, the worst finding that stood in it, or the line."""
    worst = _worst(replay.marks, replay, count)
    here = min(count - 1, max(0, (now_ns - replay.start_ns) * count // max(1, replay.end_ns - replay.start_ns)))
    cells: list[tuple[str, Style]] = []
    for cell in range(count):
        severity = worst[cell]
        if cell == here:
            cells.append((look.glyphs.bar, look.bar_accent))
        elif severity is not None:
            on_bar = Style(color=look.severity(severity).color, bgcolor=look.bar.bgcolor)
            goes_on = cell > 0 and worst[cell - 1] is severity
            cells.append((look.glyphs.span if goes_on else look.glyphs.severity(severity), on_bar))
        else:
            cells.append((look.glyphs.rule, look.bar_accent if cell < here else look.bar_dim))
    return cells


def _worst(marks: tuple[ReplayMark, ...], replay: ReplayNow, count: int) -> list[Severity | None]:
    worst: list[Severity | None] = [None] * count
    length_ns = max(1, replay.end_ns - replay.start_ns)
    for mark in marks:
        if mark.severity not in _SHOWN:
            continue
        first = max(0, (mark.start_ns - replay.start_ns) * count // length_ns)
        last = min(count - 1, (mark.end_ns - replay.start_ns) * count // length_ns)
        for cell in range(first, last + 1):
            known = worst[cell]
            if known is None or mark.severity.order < known.order:
                worst[cell] = mark.severity
    return worst


class ReplayLine(LinesWidget):
    """Shows where the replay stands."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._replay: ReplayNow | None = None

    def update(self, view: View, width: int, look: Look) -> None:
        snapshot = view.snapshot
        self._replay = snapshot.replay if snapshot is not None else None
        if snapshot is not None and self._replay is not None:
            self.show([replay_bar(snapshot, self._replay, width, look)], width)

    def on_click(self, event: events.Click) -> None:
        moment_ns = moment_at(self._replay, event.x, self.size.width) if self._replay is not None else None
        if moment_ns is not None:
            self.post_message(MomentWanted(moment_ns))


REFUSED = "This is a recording: {what}. Run `gpuwatch` to watch this machine."


class Player(MonitorLike, Protocol):
    """A monitor over a recording, as the dashboard sees it."""

    def toggle(self) -> object:
        """Holds the replay, or lets it go on."""

    def change_speed(self, steps: int) -> object:
        """The next faster or slower speed."""

    def seek(self, seconds: float) -> object:
        """Jumps by this many recorded seconds."""

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

    REPLAYS = True
    BINDINGS: ClassVar[list[BindingType]] = bindings("player")

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
        self._player.toggle()

    def action_seek(self, seconds: int) -> None:
        self._player.seek(seconds)

    def action_seek_start(self) -> None:
        self._player.seek_to_start()

    def action_seek_end(self) -> None:
        self._player.seek_to_end()

    def action_speed(self, steps: int) -> None:
        self._player.change_speed(steps)

    def on_moment_wanted(self, message: MomentWanted) -> None:
        self._player.seek_to(message.time_ns)

    def action_attach(self) -> None:
        self.notify(REFUSED.format(what="there is no process to attach to"), severity="warning", markup=False)

    def action_record(self) -> None:
        self.notify(REFUSED.format(what="it is recorded already"), severity="warning", markup=False)
