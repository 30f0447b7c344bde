"""The bottom line: the keys of the screen, which can be clicked."""

from __future__ import annotations

from textual import events

from gpuwatch.dashboard.messages import KeyPressed
from gpuwatch.dashboard.panels.bars import Key, key_at, key_bar
from gpuwatch.dashboard.themes import Look
from gpuwatch.dashboard.widgets.lines import LinesWidget


class KeyBar(LinesWidget):
    """Shows the keys."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._keys: list[Key] = []

    def update(self, keys: list[Key], width: int, look: Look) -> None:
        """Shows these keys."""
        self._keys = keys
        self.show([key_bar(keys, width, look)], width)

    def on_click(self, event: events.Click) -> None:
        """Does what the clicked key does."""
        key = key_at(self._keys, event.x)
        if key is not None:
            self.post_message(KeyPressed(key.action))
