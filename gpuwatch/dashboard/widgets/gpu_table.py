"""The GPUs: their rows in one painted widget, which scrolls when there are more than fit.

One widget for all rows, not one each: Textual asks every widget on the screen for its lines in every frame, changed or
not, which at 8 GPUs cost a third of the frame (measured with 8.2.8).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.filter import LineFilter
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from gpuwatch.dashboard.history import Trace
from gpuwatch.dashboard.messages import OpenGpu, RepaintWanted
from gpuwatch.dashboard.panels.columns import Columns
from gpuwatch.dashboard.panels.gpu_row import gpu_row
from gpuwatch.dashboard.text import Line, selected
from gpuwatch.dashboard.themes import Look
from gpuwatch.dashboard.view import View
from gpuwatch.dashboard.widgets.cursor_list import CURSOR_KEYS
from gpuwatch.dashboard.widgets.lines import line_regions, without_ansi
from gpuwatch.monitor.snapshot import GpuNow
from gpuwatch.timeline.series import Series

Traces = dict[Series, Trace]

_NO_TRACE = Trace()


class GpuTable(ScrollView, can_focus=True):
    """The rows of all GPUs, with a cursor while it has the focus; only rows in sight are made."""

    ALLOW_SELECT = False
    BINDINGS: ClassVar[list[BindingType]] = [*CURSOR_KEYS, Binding("enter", "open", "All about this GPU", show=False)]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.cursor = 0
        self._uuids: list[str] = []
        self._row_height = 1
        self._lines: dict[int, Line] = {}
        self._strips: dict[int, Strip] = {}

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Those of the app that have something to do here."""
        return without_ansi(super().get_line_filters())

    def visible_gpus(self, view: View, window_lines: int, row_height: int) -> tuple[GpuNow, ...]:
        """The GPUs whose rows can be seen: only they need charts."""
        gpus = view.snapshot.gpus if view.snapshot else ()
        first = int(self.scroll_offset.y) // max(1, row_height)
        return gpus[first : first + window_lines // max(1, row_height) + 2]

    def show(
        self, view: View, row_height: int, columns: Columns, look: Look, traces: Traces, visible: set[str]
    ) -> None:
        """Brings all visible rows up to date."""
        gpus = view.snapshot.gpus if view.snapshot else ()
        self._row_height = max(1, row_height)
        self._uuids = [gpu.facts.uuid for gpu in gpus]
        self.cursor = max(0, min(self.cursor, len(gpus) - 1))
        size = Size(columns.width - 1, len(gpus) * row_height)
        if size != self.virtual_size:
            self.virtual_size = size
        lines: dict[int, Line] = {}
        for index, gpu in enumerate(gpus):
            uuid = gpu.facts.uuid
            if uuid not in visible:
                continue
            utilization = traces.get(Series("gpu.utilization_percent", uuid), _NO_TRACE)
            power = traces.get(Series("gpu.power_watts", uuid), _NO_TRACE)
            row = gpu_row(gpu, view, row_height, columns, look, utilization, power)
            if self.has_focus and index == self.cursor:
                row = [selected(line, look) for line in row]
            lines.update(enumerate(row, start=index * row_height))
        self._show_lines(lines, columns.width)

    def _show_lines(self, lines: dict[int, Line], width: int) -> None:
        old, self._lines = self._lines, lines
        if lines == old:
            return
        changed = sorted(y for y in lines.keys() | old.keys() if lines.get(y) != old.get(y))
        for y in changed:
            if y in lines:
                self._strips[y] = Strip(lines[y], width)
            else:
                del self._strips[y]
        top = int(self.scroll_offset.y)
        self.refresh(*line_regions([y - top for y in changed if y >= top], width))

    def render_line(self, y: int) -> Strip:
        """One visible line."""
        strip = self._strips.get(y + int(self.scroll_offset.y))
        return Strip.blank(self.size.width, self.rich_style) if strip is None else strip

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Rows that come into sight need their content."""
        super().watch_scroll_y(old_value, new_value)
        if round(old_value) != round(new_value):
            self._ask_repaint()

    def on_click(self, event: events.Click) -> None:
        """Opens the page of the GPU that was clicked."""
        index = (event.y + int(self.scroll_offset.y)) // self._row_height
        if index < len(self._uuids):
            self.cursor = index
            self.action_open()

    def action_cursor(self, step: int) -> None:
        """Moves the cursor, and the window so that its row is seen."""
        if not self._uuids:
            return
        self.cursor = max(0, min(len(self._uuids) - 1, self.cursor + step))
        top, height = self.cursor * self._row_height, self.size.height
        seen_from = min(max(int(self.scroll_offset.y), top + self._row_height - height), top)
        self.scroll_to(y=seen_from, animate=False)
        self._ask_repaint()

    def action_open(self) -> None:
        """Opens the page of the GPU under the cursor."""
        if self._uuids:
            self.post_message(OpenGpu(self._uuids[self.cursor]))

    def on_focus(self) -> None:
        """The cursor appears."""
        self._ask_repaint()

    def on_blur(self) -> None:
        """The cursor goes."""
        self._ask_repaint()

    def _ask_repaint(self) -> None:
        self.post_message(RepaintWanted())
