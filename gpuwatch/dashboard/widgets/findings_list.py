"""The list of findings with its cursor."""

from __future__ import annotations

from gpuwatch.dashboard.messages import OpenFinding
from gpuwatch.dashboard.panels.findings import findings_head, findings_list
from gpuwatch.dashboard.themes import Look
from gpuwatch.dashboard.view import View, key_of
from gpuwatch.dashboard.widgets.cursor_list import CursorList
from gpuwatch.diagnosis.finding import Finding


class FindingsList(CursorList[Finding]):
    """The view's findings, worst first; an untouched cursor is where the verdict's "enter: the fix" leads."""

    FIRST_UNTIL_MOVED = True

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(key_of, lambda _: OpenFinding(), id=id)
        self._shown: tuple[object, ...] = ()

    def update(self, view: View, width: int, height: int, look: Look) -> None:
        """Shows the view's findings in `height` lines below the head."""
        self.hold(view.findings, height)
        shown = (
            self.entries,
            view.filter,
            view.snoozed_count,
            self.cursor,
            self.top,
            width,
            height,
            look,
            self.has_focus,
        )
        if self.entries and shown == self._shown:
            return
        self._shown = shown
        head = findings_head(view, width, look, focused=self.has_focus)
        self.show([head, *findings_list(view, width, height, self.top, self.cursor, look)], width)
