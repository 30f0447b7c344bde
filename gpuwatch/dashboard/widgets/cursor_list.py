"""A list with a cursor: what the findings and the processes to attach to have in common."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import ClassVar, Generic, TypeVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from gpuwatch.dashboard.messages import RepaintWanted
from gpuwatch.dashboard.widgets.lines import LinesWidget

Entry = TypeVar("Entry")

CURSOR_KEYS: tuple[Binding, ...] = (
    Binding("up,k", "cursor(-1)", "Up", show=False),
    Binding("down,j", "cursor(1)", "Down", show=False),
    Binding("pageup", "cursor(-8)", "Page up", show=False),
    Binding("pagedown", "cursor(8)", "Page down", show=False),
    Binding("home", "cursor(-9999)", "First", show=False),
    Binding("end", "cursor(9999)", "Last", show=False),
)


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
    BINDINGS: ClassVar[list[BindingType]] = [*CURSOR_KEYS, Binding("enter", "open", "Open", show=False)]

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
        """Moves the cursor."""
        self._move_to(self.cursor + step)

    def action_open(self) -> None:
        """Opens the entry under the cursor."""
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
        """The wheel moves the cursor."""
        self._move_to(self.cursor + 1)

    def on_mouse_scroll_up(self) -> None:
        """The wheel moves the cursor."""
        self._move_to(self.cursor - 1)

    def on_focus(self) -> None:
        """The head says where the keys go."""
        self._ask_repaint()

    def on_blur(self) -> None:
        """The head says where the keys go."""
        self._ask_repaint()

    def _move_to(self, index: int) -> None:
        if self.entries:
            self.cursor = max(0, min(len(self.entries) - 1, index))
            self._at = self._key_of(self.entries[self.cursor])
            self._moved = True
            self._ask_repaint()

    def _ask_repaint(self) -> None:
        self.post_message(RepaintWanted())
