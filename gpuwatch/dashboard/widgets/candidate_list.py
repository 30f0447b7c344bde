"""The list of processes to attach to, with its cursor."""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

from gpuwatch.dashboard.attaching import candidates_of
from gpuwatch.dashboard.messages import AttachWanted
from gpuwatch.dashboard.panels.candidates import Entry, candidates_head, candidates_list
from gpuwatch.dashboard.themes import Look
from gpuwatch.dashboard.view import View
from gpuwatch.dashboard.widgets.cursor_list import CursorList


class CandidateList(CursorList[Entry]):
    """The candidates in the monitor's order; while attached, the way back comes first."""

    HEAD_LINES: ClassVar[int] = 2

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(_key_of, AttachWanted, id=id)

    def count(self, view: View) -> int:
        """How many lines it could use below its head."""
        return len(_entries(view))

    def update(self, view: View, width: int, height: int, look: Look) -> None:
        """Shows the candidates in `height` lines below the head."""
        self.hold(_entries(view), height)
        head = candidates_head(view, self.entries, width, look, focused=self.has_focus)
        self.show([*head, *candidates_list(self.entries, view, width, height, self.top, self.cursor, look)], width)


def _key_of(entry: Entry) -> Hashable:
    """The process, which a pid alone is not; None stands for everything."""
    return "everything" if entry is None else (entry.pid, entry.start_ticks)


def _entries(view: View) -> tuple[Entry, ...]:
    snapshot = view.snapshot
    if snapshot is None:
        return ()
    back: tuple[Entry, ...] = (None,) if snapshot.attached_pid is not None else ()
    return (*back, *candidates_of(snapshot, view.filter))
