"""Widgets that paint given lines: as they are, scrolled, or as a list with a cursor; and the line of the filter.

Textual's built-in widgets lay out and render rich content on every change: measured at 8 GPUs and two frames a
second, its Sparkline alone costs 20% of a core, lines painted this way 3%.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import ClassVar, Generic, TypeVar

from textual import events
from textual.binding import BindingType
from textual.filter import ANSIToTruecolor, LineFilter
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input

from gpuwatch.dashboard.actions import bindings
from gpuwatch.dashboard.lines import Line


class RepaintWanted(Message):
    """A cursor, the focus or a scroll position moved: the same view is to be drawn again."""

    def can_replace(self, message: Message) -> bool:
        """One drawing answers them all."""
        return isinstance(message, RepaintWanted)


class FilterChanged(Message):
    """The user wants to see only what holds this text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text


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
        return without_ansi(super().get_line_filters())

    @property
    def lines(self) -> Sequence[Line]:
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
        return self._strips[y] if y < len(self._strips) else Strip.blank(self.size.width, self.rich_style)


class Pager(ScrollView, can_focus=True):
    """A page of lines, scrolled with the usual keys and the wheel."""

    ALLOW_SELECT = False

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._lines: list[Line] = []
        self._strips: list[Strip] = []

    def get_line_filters(self) -> Sequence[LineFilter]:
        return without_ansi(super().get_line_filters())

    @property
    def lines(self) -> Sequence[Line]:
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


Entry = TypeVar("Entry")


class CursorList(LinesWidget, Generic[Entry], can_focus=True):
    """Head and entries in one widget. The cursor stays on its entry while others come and go.

    With `FIRST_UNTIL_MOVED` it is on the first entry, whichever that is, until the user has moved it.

    Args:
        key_of: what stays the same of an entry while its figures change.
        opened: the message of enter, or of a second click.
        id: the widget's.
    """

    HEAD_LINES: ClassVar[int] = 1
    FIRST_UNTIL_MOVED: ClassVar[bool] = False
    BINDINGS: ClassVar[list[BindingType]] = bindings("list")

    def __init__(
        self, key_of: Callable[[Entry], Hashable], opened: Callable[[Entry], Message], *, id: str | None = None
    ) -> None:
        super().__init__(id=id)
        self._key_of = key_of
        self._opened = opened
        self.entries: tuple[Entry, ...] = ()
        self.cursor = 0
        self.top = 0
        self._at: Hashable = None
        self._moved = not self.FIRST_UNTIL_MOVED

    @property
    def current(self) -> Entry | None:
        """The entry under the cursor."""
        return self.entries[self.cursor] if self.cursor < len(self.entries) else None

    def hold(self, entries: tuple[Entry, ...], height: int) -> None:
        """Takes the entries of now and finds the cursor's place among them, in sight of `height` lines."""
        height = max(1, height)
        self.entries = entries
        keys = [self._key_of(entry) for entry in entries]
        if self._moved and self._at in keys:
            self.cursor = keys.index(self._at)
        self.cursor = max(0, min(self.cursor, len(keys) - 1))
        self._at = keys[self.cursor] if keys else None
        self.top = max(min(self.top, self.cursor), self.cursor - height + 1)
        self.top = max(0, min(self.top, len(keys) - height))

    def action_cursor(self, step: int) -> None:
        self._move_to(self.cursor + step)

    def action_open(self) -> None:
        if self.entries:
            self.post_message(self._opened(self.entries[self.cursor]))

    def on_click(self, event: events.Click) -> None:
        """Chooses the clicked entry; a click on the chosen one opens it."""
        index = self.top + event.y - self.HEAD_LINES
        if event.y < self.HEAD_LINES or index >= len(self.entries):
            return
        again = index == self.cursor
        self._move_to(index)
        if again:
            self.action_open()

    def on_mouse_scroll_down(self) -> None:
        self._move_to(self.cursor + 1)

    def on_mouse_scroll_up(self) -> None:
        self._move_to(self.cursor - 1)

    def on_focus(self) -> None:
        """The head says where the keys go."""
        self._ask_repaint()

    def on_blur(self) -> None:
        self._ask_repaint()

    def _move_to(self, index: int) -> None:
        if self.entries:
            self.cursor = max(0, min(len(self.entries) - 1, index))
            self._at = self._key_of(self.entries[self.cursor])
            self._moved = True
            self._ask_repaint()

    def _ask_repaint(self) -> None:
        self.post_message(RepaintWanted())


class FilterInput(Input):
    """Filters while one types; enter keeps the filter, escape clears it, both put the line away."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("filter")

    def __init__(self, text: str) -> None:
        super().__init__(text, placeholder="filter: rule, file, run, command", id="filter")

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self.post_message(FilterChanged(event.value))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.remove()

    def action_cancel(self) -> None:
        self.post_message(FilterChanged(""))
        self.remove()
