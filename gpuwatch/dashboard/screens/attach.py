"""The screen on which one picks a running training to attach to."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import ClassVar

from textual.binding import BindingType
from textual.message import Message
from textual.widget import Widget

from gpuwatch.dashboard import formatting as say
from gpuwatch.dashboard.actions import Key, bindings, bottom_line
from gpuwatch.dashboard.lines import Line, LineWriter, Page, blanks, rule, selected
from gpuwatch.dashboard.screens.base import ViewScreen
from gpuwatch.dashboard.themes import Look
from gpuwatch.dashboard.view import View
from gpuwatch.dashboard.widgets import CursorList, LinesWidget, set_height
from gpuwatch.dashboard.words import VISIBILITIES, VISIBILITY_MEANINGS, candidate_name, candidates_of, gpu_indices
from gpuwatch.monitor.snapshot import Snapshot
from gpuwatch.samples import Candidate


class AttachWanted(Message):
    """The user wants to watch this process; None: everything again."""

    def __init__(self, candidate: Candidate | None) -> None:
        super().__init__()
        self.candidate = candidate


EVERYTHING = "everything on this machine again"

WITH_USER_FROM = 100

_NAME = 18

Entry = Candidate | None
"""None stands for everything: it ends the attachment."""


@dataclass(frozen=True, slots=True)
class _Row:
    pid: str
    gpu: str
    age: str
    seen: str
    user: str
    command: str


_HEAD = _Row("PID", "GPU", "age", "visibility", "user", "command")


def candidates_head(view: View, entries: tuple[Entry, ...], width: int, look: Look, *, focused: bool) -> list[Line]:
    """The list's heading, with its count and filter, and the columns' names."""
    known = len(view.snapshot.candidates) if view.snapshot is not None else 0
    listed = sum(entry is not None for entry in entries)
    words = [f"{listed} of {known}" if listed != known else str(known)]
    if view.filter:
        words.append(f"filter: {say.escape(view.filter)} (esc clears)")
    title = rule("Attach to", width, look, style=look.title if focused else look.strong, right=", ".join(words))
    return [title, _line(_HEAD, width, look, look.heading)]


def candidates_list(
    entries: tuple[Entry, ...], view: View, width: int, height: int, top: int, cursor: int, look: Look
) -> list[Line]:
    """`height` lines of the list from entry `top` on, with the entry under the cursor marked."""
    snapshot = view.snapshot
    if snapshot is None or not any(entry is not None for entry in entries):
        return _without(entries, view, width, height, look)
    lines = []
    for index, entry in enumerate(entries[top : top + height], start=top):
        line = _entry(entry, snapshot, width, look, at_cursor=index == cursor)
        lines.append(selected(line, look) if index == cursor else line)
    return lines + blanks(height - len(lines), width, look)


def candidate_details(entry: Entry, view: View, width: int, height: int, look: Look) -> list[Line]:
    """What gave the process away, how well it can be seen, and what would show more, in exactly `height` lines."""
    page = Page(width, look)
    snapshot = view.snapshot
    if entry is None or snapshot is None:
        attached = snapshot is not None and snapshot.attached_pid is not None
        page.heading("Everything" if attached else "How this works")
        page.prose(
            "All GPUs and all hooked runs; stacks of other processes are not read."
            if attached
            else "Attaching reads the stacks of a process from outside: the process is neither stopped nor changed."
        )
    else:
        _known(page, entry)
    return page.lines[:height] + blanks(height - len(page.lines), width, look)


def _known(page: Page, candidate: Candidate) -> None:
    page.heading(candidate_name(candidate))
    command = say.wrap(say.command_line(candidate.command), page.width - 20)
    page.pair(
        "command", " ".join(command[:2]) + (page.look.glyphs.ellipsis if len(command) > 2 else ""), name_width=_NAME
    )
    page.pair("known by", candidate.why, name_width=_NAME)
    page.pair(
        "visibility",
        f"{VISIBILITIES[candidate.visibility]}: {VISIBILITY_MEANINGS[candidate.visibility]}",
        name_width=_NAME,
    )
    if candidate.workers:
        page.pair("workers", f"{candidate.workers} DataLoader workers now", name_width=_NAME)
    if candidate.refusal:
        page.pair("why not more", candidate.refusal, page.look.warning, name_width=_NAME)
    if candidate.how_to_see_more and candidate.visibility != "exact":
        page.pair("to see more", candidate.how_to_see_more, page.look.accent, name_width=_NAME)


def _entry(entry: Entry, snapshot: Snapshot, width: int, look: Look, *, at_cursor: bool) -> Line:
    mark = look.glyphs.cursor if at_cursor else " "
    if entry is None:
        writer = LineWriter(width, look).put(mark, look.accent).put(f"{EVERYTHING} (detaches)", look.strong)
        return writer.line()
    attached = entry.pid == snapshot.attached_pid
    row = _Row(
        str(entry.pid),
        gpu_indices(entry, snapshot),
        say.age(round(entry.age_seconds * 1e9)),
        "attached now" if attached else VISIBILITIES[entry.visibility],
        say.escape(entry.user),
        say.short_command(entry.command),
    )
    return _line(row, width, look, None, mark)


def _line(row: _Row, width: int, look: Look, head: object | None, mark: str = " ") -> Line:
    text = look.heading if head is not None else look.text
    dim = look.heading if head is not None else look.dim
    writer = LineWriter(width, look).put(mark, look.heading if head is not None else look.accent)
    writer.right(row.pid, 8, look.heading if head is not None else look.accent).to(writer.cells + 2, text)
    writer.left(row.gpu, 5, text).right(row.age, 7, text).to(writer.cells + 2, text)
    seen = look.good if row.seen.startswith(("exact", "attached")) else dim
    writer.left(row.seen, 17, look.heading if head is not None else seen).to(writer.cells + 1, text)
    if width >= WITH_USER_FROM:
        writer.left(row.user, 10, dim).to(writer.cells + 1, text)
    return writer.put(row.command, text).line(text)


def _without(entries: tuple[Entry, ...], view: View, width: int, height: int, look: Look) -> list[Line]:
    """Why there is no process to attach to."""
    page = Page(width, look)
    page.gap()
    if view.filter:
        page.prose("No process matches the filter.", look.dim)
    else:
        page.prose("No process that trains was found on this machine.")
        page.prose(
            "Searched for: processes that use a GPU, have libtorch in memory, or have DataLoader workers as children. "
            "Processes of other users are visible only to root.",
            look.dim,
        )
    lines = [_entry(None, view.snapshot, width, look, at_cursor=True)] if entries and view.snapshot is not None else []
    lines += page.lines
    return lines[:height] + blanks(height - len(lines), width, look)


class CandidateList(CursorList[Entry]):
    """The candidates in the monitor's order; while attached, the way back comes first."""

    HEAD_LINES: ClassVar[int] = 2

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(_key_of, AttachWanted, id=id)

    def count(self, view: View) -> int:
        """How many lines it could use below its head."""
        return len(_entries(view))

    def update(self, view: View, width: int, height: int, look: Look) -> None:
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


DETAIL_LINES, LEAST_ENTRIES = 9, 6


class AttachScreen(ViewScreen):
    """Lists who trains here; enter attaches, or ends the attachment."""

    AUTO_FOCUS = "#candidates"
    CAN_FILTER = True
    PLACE = "attach"
    BINDINGS: ClassVar[list[BindingType]] = bindings("attach")

    def __init__(self) -> None:
        super().__init__()
        self._list = CandidateList(id="candidates")
        self._details = LinesWidget(id="details")

    def content(self) -> Iterable[Widget]:
        """The list, and below it what is known of the entry under the cursor."""
        return (self._list, self._details)

    def keys(self, view: View) -> list[Key]:
        if not self._list.entries:
            return bottom_line(self.PLACE)
        return bottom_line(self.PLACE, frozenset({"everything" if self._list.current is None else "process"}))

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

    def action_open(self) -> None:
        self._list.action_open()

    def action_back(self) -> None:
        """Takes the filter away first, then the screen."""
        if self.dashboard.view.filter:
            self.dashboard.set_filter("")
        else:
            self.dashboard.pop_screen()
