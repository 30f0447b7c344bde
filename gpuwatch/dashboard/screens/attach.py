"""The screen on which one picks a running training to attach to."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget

from gpuwatch.dashboard.attaching import candidate_name
from gpuwatch.dashboard.messages import AttachWanted
from gpuwatch.dashboard.panels.bars import Key
from gpuwatch.dashboard.panels.candidates import candidate_details
from gpuwatch.dashboard.screens.base import ViewScreen
from gpuwatch.dashboard.themes import Look
from gpuwatch.dashboard.view import View
from gpuwatch.dashboard.widgets.candidate_list import CandidateList
from gpuwatch.dashboard.widgets.lines import LinesWidget, set_height

DETAIL_LINES, LEAST_ENTRIES = 9, 6


@cache
def _keys(has_entries: bool, detaches: bool) -> list[Key]:
    return [
        Key("esc", "back", "back"),
        *([Key("enter", "detach" if detaches else "attach", "attach")] if has_entries else []),
        Key("/", "filter", "app.filter"),
        Key("?", "help", "app.help"),
        Key("q", "quit", "app.quit"),
    ]


class AttachScreen(ViewScreen):
    """Lists who trains here; enter attaches, or ends the attachment."""

    AUTO_FOCUS = "#candidates"
    CAN_FILTER = True
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,backspace", "back", "Back", show=False)]

    def __init__(self) -> None:
        super().__init__()
        self._list = CandidateList(id="candidates")
        self._details = LinesWidget(id="details")

    def content(self) -> Iterable[Widget]:
        """The list, and below it what is known of the entry under the cursor."""
        return (self._list, self._details)

    def keys(self, view: View) -> list[Key]:
        """What enter does depends on the entry."""
        return _keys(bool(self._list.entries), bool(self._list.entries) and self._list.current is None)

    def draw(self, view: View, width: int, height: int, look: Look) -> None:
        """The details follow the list, which is scrolled where it would take more than they leave it."""
        details = min(DETAIL_LINES, height // 3 + 1)
        most = height - 2 - CandidateList.HEAD_LINES - details
        entries = max(min(most, LEAST_ENTRIES), min(most, self._list.count(view) + 1))
        set_height(self._list, entries + CandidateList.HEAD_LINES)
        self._list.update(view, width, entries, look)
        rest = height - 2 - CandidateList.HEAD_LINES - entries
        self._details.show(candidate_details(self._list.current, view, width, rest, look), width)

    def on_attach_wanted(self, message: AttachWanted) -> None:
        """Attaches, and shows what comes of it."""
        candidate = message.candidate
        if candidate is None:
            self.dashboard.attach(None, "Detached: everything is watched again.")
        else:
            self.dashboard.attach(candidate.pid, f"Attached to {candidate_name(candidate)}.")
        self.dashboard.set_filter("")  # it was for this list, and would hide the findings
        self.dashboard.pop_screen()

    def action_attach(self) -> None:
        """Attaches to the entry under the cursor."""
        self._list.action_open()

    def action_back(self) -> None:
        """Takes the filter away first, then the screen."""
        if self.dashboard.view.filter:
            self.dashboard.set_filter("")
        else:
            self.dashboard.pop_screen()
