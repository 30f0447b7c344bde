"""The line in which one types the filter."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widgets import Input

from gpuwatch.dashboard.messages import FilterChanged


class FilterInput(Input):
    """Filters while one types; enter keeps the filter, escape clears it, both put the line away."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Clear", show=False)]

    def __init__(self, text: str) -> None:
        super().__init__(text, placeholder="filter: rule, file, run, command", id="filter")

    def on_input_changed(self, event: Input.Changed) -> None:
        """A letter more or less."""
        event.stop()
        self.post_message(FilterChanged(event.value))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter."""
        event.stop()
        self.remove()

    def action_cancel(self) -> None:
        """Escape."""
        self.post_message(FilterChanged(""))
        self.remove()
