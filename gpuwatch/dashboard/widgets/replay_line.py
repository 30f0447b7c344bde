"""The line of a replay, on which one can click to go to a moment."""

from __future__ import annotations

from textual import events

from gpuwatch.dashboard.messages import MomentWanted
from gpuwatch.dashboard.panels.replay_bar import moment_at, replay_bar
from gpuwatch.dashboard.themes import Look
from gpuwatch.dashboard.view import View
from gpuwatch.dashboard.widgets.lines import LinesWidget
from gpuwatch.monitor.snapshot import ReplayNow


class ReplayLine(LinesWidget):
    """Shows where the replay stands."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._replay: ReplayNow | None = None

    def update(self, view: View, width: int, look: Look) -> None:
        """Shows this view's."""
        snapshot = view.snapshot
        self._replay = snapshot.replay if snapshot is not None else None
        if snapshot is not None and self._replay is not None:
            self.show([replay_bar(snapshot, self._replay, width, look)], width)

    def on_click(self, event: events.Click) -> None:
        """Goes to the clicked moment."""
        moment_ns = moment_at(self._replay, event.x, self.size.width) if self._replay is not None else None
        if moment_ns is not None:
            self.post_message(MomentWanted(moment_ns))
