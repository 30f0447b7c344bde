"""Widgets that paint given lines: one that shows them as they are, one that scrolls over more than fit.

Textual's built-in widgets lay out and render rich content on every change: measured at 8 GPUs and two frames a
second, its Sparkline alone costs 20 % of a core, lines painted this way 3 %.
"""

from __future__ import annotations

from collections.abc import Sequence

from textual.filter import ANSIToTruecolor, LineFilter
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from gpuwatch.dashboard.text import Line

_NOTHING = Strip([], 0)


def without_ansi(filters: Sequence[LineFilter]) -> Sequence[LineFilter]:
    """The filters less the search for ANSI colours: our themes are in RGB, or meant for the terminal's own."""
    return [each for each in filters if not isinstance(each, ANSIToTruecolor)]


class LinesWidget(Widget):
    """Paints lines, and repaints only those that changed."""

    ALLOW_SELECT = False

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._lines: list[Line] = []
        self._strips: list[Strip] = []

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Those of the app that have something to do here."""
        return without_ansi(super().get_line_filters())

    @property
    def lines(self) -> Sequence[Line]:
        """What is shown."""
        return self._lines

    def show(self, lines: list[Line], width: int) -> None:
        """Shows these lines from now on, all of them `width` cells wide."""
        old, self._lines = self._lines, lines
        if lines == old:
            return
        changed = [y for y, line in enumerate(lines) if y >= len(old) or line != old[y]]
        changed += range(len(lines), len(old))
        del self._strips[len(lines) :]
        self._strips += [_NOTHING] * (len(lines) - len(self._strips))
        for y in changed:
            if y < len(lines):
                self._strips[y] = Strip(lines[y], width)
        self.refresh(*line_regions(changed, width))

    def render_line(self, y: int) -> Strip:
        """One line."""
        return self._strips[y] if y < len(self._strips) else Strip.blank(self.size.width, self.rich_style)


class Pager(ScrollView, can_focus=True):
    """A page of lines, scrolled with the usual keys and the wheel."""

    ALLOW_SELECT = False

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._lines: list[Line] = []
        self._strips: list[Strip] = []

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Those of the app that have something to do here."""
        return without_ansi(super().get_line_filters())

    @property
    def lines(self) -> Sequence[Line]:
        """The whole page."""
        return self._lines

    def show(self, lines: list[Line], width: int) -> None:
        """Shows this page from now on, all its lines `width` cells wide, keeping the place."""
        if lines == self._lines:
            return
        self._lines = lines
        self._strips = [Strip(line, width) for line in lines]
        size = Size(width, len(lines))
        if size != self.virtual_size:
            self.virtual_size = size
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """One visible line."""
        row = y + self.scroll_offset.y
        if row < len(self._strips):
            return self._strips[row].crop_extend(0, self.size.width, self.rich_style)
        return Strip.blank(self.size.width, self.rich_style)


def set_height(widget: Widget, height: int) -> None:
    """Sets a widget's height, with a new layout only when it differs."""
    current = widget.styles.height
    if current is None or current.value != height:
        widget.styles.height = height
    if widget.display != (height > 0):
        widget.display = height > 0


def line_regions(rows: Sequence[int], width: int) -> list[Region]:
    """Neighbouring rows joined into regions."""
    regions: list[Region] = []
    for row in rows:
        if regions and regions[-1].bottom == row:
            regions[-1] = regions[-1].grow((0, 0, 1, 0))
        else:
            regions.append(Region(0, row, width, 1))
    return regions
