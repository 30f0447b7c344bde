"""Lines of styled text with known cell widths, which panels make and widgets paint, and pages of them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style

from gpuwatch.dashboard import formatting as say
from gpuwatch.dashboard.themes import Look

Line = tuple[Segment, ...]
"""Segments of exactly the panel's width in cells. Tuples, so that an unchanged line is found by comparison."""


def plain(lines: Iterable[Line]) -> list[str]:
    """The text of lines without their styles."""
    return ["".join(segment.text for segment in line).rstrip() for line in lines]


class LineWriter:
    """Builds one line from left to right; what does not fit is cut with an ellipsis."""

    __slots__ = ("_cells", "_glyphs", "_look", "_segments", "width")

    def __init__(self, width: int, look: Look) -> None:
        self.width = width
        self._look = look
        self._glyphs = look.glyphs
        self._segments: list[Segment] = []
        self._cells = 0

    @property
    def cells(self) -> int:
        """Cells written so far."""
        return self._cells

    @property
    def room(self) -> int:
        """Cells left."""
        return self.width - self._cells

    def put(self, text: str, style: Style, limit: int | None = None) -> LineWriter:
        """Appends text, in at most `limit` cells."""
        room = self.width - self._cells
        if limit is not None and limit < room:
            room = limit
        text = self._said(text)
        cells = len(text) if text.isascii() else cell_len(text)
        if cells > room:
            text = say.fit(text, room, self._glyphs.ellipsis)
            cells = len(text) if text.isascii() else cell_len(text)
        if cells:
            self._segments.append(Segment(text, style))
            self._cells += cells
        return self

    def chart(self, text: str, style: Style) -> LineWriter:
        """Appends a chart's row, whose characters are one cell each and need no measuring."""
        text = text[: self.room]
        if text:
            self._segments.append(Segment(text, style))
            self._cells += len(text)
        return self

    def to(self, column: int, style: Style | None = None) -> LineWriter:
        """Appends blanks up to a column."""
        gap = (column if column < self.width else self.width) - self._cells
        if gap > 0:
            self._segments.append(Segment(" " * gap, style or self._look.text))
            self._cells += gap
        return self

    def gap(self, cells: int, style: Style | None = None) -> LineWriter:
        """Appends this many blanks."""
        return self.to(self._cells + cells, style)

    def left(self, text: str, width: int, style: Style) -> LineWriter:
        """Appends a left-aligned field, as one segment."""
        if text.isascii() and text.isprintable() and len(text) <= width <= self.width - self._cells:
            self._segments.append(Segment(text.ljust(width), style))
            self._cells += width
            return self
        end = self._cells + width
        return self.put(text, style, width).to(end, style)

    def right(self, text: str, width: int, style: Style) -> LineWriter:
        """Appends a right-aligned field, as one segment."""
        text = self._said(text)
        cells = _cells(text)
        if cells <= width <= self.width - self._cells:
            self._segments.append(Segment(" " * (width - cells) + text, style))
            self._cells += width
            return self
        text = say.fit(text, width, self._glyphs.ellipsis)
        return self.to(self._cells + width - _cells(text), style).put(text, style)

    def at_right(self, text: str, style: Style, margin: int = 0, filler: Style | None = None) -> LineWriter:
        """Appends text that ends `margin` cells before the line's end, if there is room for it."""
        said = self._said(text)
        column = self.width - margin - _cells(said)
        if column < self._cells:
            return self
        return self.to(column, filler).put(said, style)

    def _said(self, text: str) -> str:
        """Text as this terminal may have it; most was escaped before it was wrapped or cut, and is as it was."""
        if not text.isprintable():
            text = say.escape(text)
        return text if text.isascii() else self._glyphs.say(text)

    def line(self, style: Style | None = None) -> Line:
        """The finished line, filled to its width."""
        self.to(self.width, style)
        return tuple(self._segments)


def blank(width: int, look: Look) -> Line:
    """An empty line in the theme's background."""
    return (Segment(" " * width, look.text),)


def blanks(count: int, width: int, look: Look) -> list[Line]:
    """Empty lines."""
    return [blank(width, look)] * max(0, count)


def rule(title: str, width: int, look: Look, *, style: Style | None = None, right: str = "") -> Line:
    """A section's head: its title in a horizontal rule."""
    writer = LineWriter(width, look)
    mark = look.glyphs.rule
    writer.put(mark, look.faint).put(f" {title} ", style or look.title)
    tail = f" {look.glyphs.say(right)} " if right else ""
    gap = width - writer.cells - _cells(tail) - 1
    if tail and gap < 1:
        tail, gap = "", width - writer.cells - 1
    writer.put(mark * max(0, gap), look.faint).put(tail, look.dim).put(mark, look.faint)
    return writer.line()


def boxed(lines: Sequence[Line], title: str, width: int, look: Look, edge: Style, right: str = "") -> list[Line]:
    """Lines of `width - 4` cells inside a box with a title."""
    corners, mark = look.glyphs.corners, look.glyphs.rule
    head = LineWriter(width, look).put(f"{corners[0]}{mark}", edge).put(f" {title} ", look.title)
    tail = f" {right} {mark}" if right else ""
    head.put(mark * (head.room - len(tail) - 1), edge).put(tail, edge).put(corners[1], edge)
    side_left, side_right = Segment(f"{look.glyphs.side} ", edge), Segment(f" {look.glyphs.side}", edge)
    body = [(side_left, *line, side_right) for line in lines]
    foot = LineWriter(width, look).put(f"{corners[2]}{mark * (width - 2)}{corners[3]}", edge)
    return [head.line(), *body, foot.line()]


def selected(line: Line, look: Look) -> Line:
    """The line with the selection's background."""
    return tuple(Segment(text, (style or look.text) + look.selection) for text, style, _ in line)


def _cells(text: str) -> int:
    return len(text) if text.isascii() else cell_len(text)


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

    def shell(self, command: str, style: Style | None = None) -> None:
        """A shell command, continued on further lines as a shell takes it where it is longer than the page is wide."""
        room = self.width - 2 * MARGIN - 1
        lines = [""]
        for word in map(shlex.quote, shlex.split(command)):
            if lines[-1] and cell_len(f"{lines[-1]} {word} \\") > room:
                lines[-1] += " \\"
                lines.append("   ")
            lines[-1] += f" {word}" if lines[-1] else word
        for line in lines:
            for part in [line] if cell_len(line) <= room else say.wrap(line, room):
                self.code(part, style)

    def add(self, lines: list[Line]) -> None:
        """Ready lines."""
        self.lines += lines
