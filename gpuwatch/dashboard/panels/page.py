"""A page of text: headings, paragraphs, pairs of name and value, code, all wrapped to the width."""

from __future__ import annotations

from rich.style import Style

from gpuwatch.dashboard import formatting as say
from gpuwatch.dashboard.text import Line, LineWriter, blank, rule
from gpuwatch.dashboard.themes import Look

MARGIN = 2
READABLE = 110
"""Longer lines of prose are hard to read, whatever the terminal's width."""


class Page:
    """Collects a page's lines."""

    def __init__(self, width: int, look: Look) -> None:
        self.width = width
        self.look = look
        self.lines: list[Line] = []

    def gap(self) -> None:
        """An empty line, unless there is one."""
        if self.lines and self.lines[-1] != blank(self.width, self.look):
            self.lines.append(blank(self.width, self.look))

    def heading(self, title: str, right: str = "") -> None:
        """A section's head."""
        self.gap()
        self.lines.append(rule(title, self.width, self.look, right=right))

    def prose(self, text: str, style: Style | None = None, indent: int = MARGIN, first: str = "") -> None:
        """A paragraph; `first` stands before its first line."""
        room = min(READABLE, self.width - indent - 1)
        for index, part in enumerate(say.wrap(say.escape(text), room)):
            writer = LineWriter(self.width, self.look)
            if index == 0 and first:
                writer.to(indent - len(first)).put(first, self.look.dim)
            self.lines.append(writer.to(indent).put(part, style or self.look.text).line())

    def pair(self, name: str, text: str, style: Style | None = None, name_width: int = 26) -> None:
        """A name and what belongs to it."""
        room = min(READABLE, self.width - MARGIN - name_width - 1)
        for index, part in enumerate(say.wrap(say.escape(text), max(10, room))):
            writer = LineWriter(self.width, self.look).to(MARGIN)
            writer.put(name if index == 0 else "", self.look.dim, name_width - 2).to(MARGIN + name_width)
            self.lines.append(writer.put(part, style or self.look.text).line())

    def code(self, text: str, style: Style | None = None) -> None:
        """Code, line by line, cut at the page's edge."""
        for part in text.expandtabs(4).split("\n"):
            writer = LineWriter(self.width, self.look).to(2 * MARGIN)
            self.lines.append(writer.put(say.escape(part), style or self.look.text).line())

    def add(self, lines: list[Line]) -> None:
        """Ready lines."""
        self.lines += lines
