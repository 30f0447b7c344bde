"""The list of findings with its cursor."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType

from gpuwatch.dashboard.messages import OpenFinding, RepaintWanted
from gpuwatch.dashboard.panels.findings import findings_head, findings_list
from gpuwatch.dashboard.themes import Look
from gpuwatch.dashboard.view import FindingKey, View, key_of
from gpuwatch.dashboard.widgets.lines import LinesWidget
from gpuwatch.diagnosis.finding import Finding


class FindingsList(LinesWidget, can_focus=True):
    """Head and entries in one widget. The cursor stays on its finding while others come and go."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "cursor(-1)", "Up", show=False),
        Binding("down,j", "cursor(1)", "Down", show=False),
        Binding("pageup", "cursor(-8)", "Page up", show=False),
        Binding("pagedown", "cursor(8)", "Page down", show=False),
        Binding("home", "cursor(-9999)", "First", show=False),
        Binding("end", "cursor(9999)", "Last", show=False),
        Binding("enter", "open", "Open", show=False),
    ]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._findings: tuple[Finding, ...] = ()
        self._at: FindingKey | None = None
        self._cursor = 0
        self._top = 0
        self._height = 1
        self._shown: tuple[object, ...] = ()

    @property
    def current(self) -> Finding | None:
        """The finding under the cursor."""
        return self._findings[self._cursor] if self._cursor < len(self._findings) else None

    def update(self, view: View, width: int, height: int, look: Look) -> None:
        """Shows the view's findings in `height` lines below the head."""
        self._findings = view.findings
        self._height = max(1, height)
        keys = [key_of(finding) for finding in self._findings]
        if self._at in keys:
            self._cursor = keys.index(self._at)
        self._cursor = max(0, min(self._cursor, len(keys) - 1))
        self._at = keys[self._cursor] if keys else None
        self._top = max(min(self._top, self._cursor), self._cursor - self._height + 1)
        self._top = max(0, min(self._top, len(keys) - self._height))
        shown = (
            self._findings,
            view.filter,
            view.snoozed_count,
            self._cursor,
            self._top,
            width,
            height,
            look,
            self.has_focus,
        )
        if self._findings and shown == self._shown:
            return
        self._shown = shown
        head = findings_head(view, width, look, focused=self.has_focus)
        self.show([head, *findings_list(view, width, height, self._top, self._cursor, look)], width)

    def action_cursor(self, step: int) -> None:
        """Moves the cursor."""
        self._move_to(self._cursor + step)

    def action_open(self) -> None:
        """Opens the finding under the cursor."""
        if self.current is not None:
            self.post_message(OpenFinding())

    def on_click(self, event: events.Click) -> None:
        """Chooses the clicked entry; a click on the chosen one opens it."""
        index = self._top + event.y - 1
        if event.y < 1 or index >= len(self._findings):
            return
        again = index == self._cursor
        self._move_to(index)
        if again:
            self.action_open()

    def on_mouse_scroll_down(self) -> None:
        """The wheel moves the cursor."""
        self._move_to(self._cursor + 1)

    def on_mouse_scroll_up(self) -> None:
        """The wheel moves the cursor."""
        self._move_to(self._cursor - 1)

    def on_focus(self) -> None:
        """The head says where the keys go."""
        self._ask_repaint()

    def on_blur(self) -> None:
        """The head says where the keys go."""
        self._ask_repaint()

    def _move_to(self, index: int) -> None:
        if self._findings:
            self._cursor = max(0, min(len(self._findings) - 1, index))
            self._at = key_of(self._findings[self._cursor])
            self._ask_repaint()

    def _ask_repaint(self) -> None:
        self.post_message(RepaintWanted())
