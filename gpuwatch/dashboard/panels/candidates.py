"""The processes of this machine that train: a list to choose from, and all that is known of the chosen one."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.dashboard import formatting as say
from gpuwatch.dashboard.attaching import candidate_name, gpu_indices
from gpuwatch.dashboard.panels.page import Page
from gpuwatch.dashboard.text import Line, LineWriter, blanks, rule, selected
from gpuwatch.dashboard.themes import Look
from gpuwatch.dashboard.view import View
from gpuwatch.dashboard.wording import RUNG_MEANINGS, RUNGS
from gpuwatch.monitor.snapshot import Snapshot
from gpuwatch.samples import Candidate

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


_HEAD = _Row("PID", "GPU", "age", "can be seen", "user", "command")


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
            "All GPUs and all hooked runs, without the stacks of others."
            if attached
            else "Attaching reads a process's stacks from outside: it is not stopped, not changed, and does not notice."
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
    page.pair("can be seen", f"{RUNGS[candidate.rung]}: {RUNG_MEANINGS[candidate.rung]}", name_width=_NAME)
    if candidate.workers:
        page.pair("workers", f"{candidate.workers} DataLoader workers now", name_width=_NAME)
    if candidate.refusal:
        page.pair("not more because", candidate.refusal, page.look.warning, name_width=_NAME)
    if candidate.climb and candidate.rung != "exact":
        page.pair("to see more", candidate.climb, page.look.accent, name_width=_NAME)


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
        "attached now" if attached else RUNGS[entry.rung],
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
            "Looked for: processes with a context on a GPU, with libtorch in memory, or with DataLoader workers below "
            "them. Those of other users show only to root.",
            look.dim,
        )
    lines = [_entry(None, view.snapshot, width, look, at_cursor=True)] if entries and view.snapshot is not None else []
    lines += page.lines
    return lines[:height] + blanks(height - len(lines), width, look)
