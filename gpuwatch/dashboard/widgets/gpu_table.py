"""The GPUs: one row widget each, in a window that scrolls when there are more than fit."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll

from gpuwatch.dashboard.history import Grid, Trace
from gpuwatch.dashboard.messages import OpenGpu, RepaintWanted
from gpuwatch.dashboard.panels.columns import Columns
from gpuwatch.dashboard.panels.gpu_row import gpu_row
from gpuwatch.dashboard.text import selected
from gpuwatch.dashboard.themes import Look
from gpuwatch.dashboard.view import View
from gpuwatch.dashboard.widgets.lines import LinesWidget, set_height
from gpuwatch.monitor.snapshot import GpuNow
from gpuwatch.timeline.series import Series

Traces = dict[tuple[Series, Grid], Trace]

_NO_TRACE = Trace()


class GpuRow(LinesWidget):
    """One GPU; a click opens its page."""

    uuid = ""

    def on_click(self) -> None:
        """Opens the GPU's page."""
        self.post_message(OpenGpu(self.uuid))


class GpuTable(VerticalScroll, can_focus=True):
    """The rows of all GPUs, with a cursor while it has the focus."""

    ALLOW_SELECT = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "cursor(-1)", "Up", show=False),
        Binding("down,j", "cursor(1)", "Down", show=False),
        Binding("pageup", "cursor(-8)", "Page up", show=False),
        Binding("pagedown", "cursor(8)", "Page down", show=False),
        Binding("home", "cursor(-9999)", "First", show=False),
        Binding("end", "cursor(9999)", "Last", show=False),
        Binding("enter", "open", "All about this GPU", show=False),
    ]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.rows: list[GpuRow] = []
        self.cursor = 0
        self._row_height = 1

    def visible_gpus(self, view: View, window_lines: int, row_height: int) -> tuple[GpuNow, ...]:
        """The GPUs whose rows can be seen: only they need charts."""
        gpus = view.snapshot.gpus if view.snapshot else ()
        first = int(self.scroll_offset.y) // max(1, row_height)
        return gpus[first : first + window_lines // max(1, row_height) + 2]

    def show(
        self, view: View, row_height: int, columns: Columns, look: Look, traces: Traces, grid: Grid, visible: set[str]
    ) -> None:
        """Brings all visible rows up to date."""
        gpus = view.snapshot.gpus if view.snapshot else ()
        self._row_height = row_height
        self._match_rows(len(gpus))
        self.cursor = max(0, min(self.cursor, len(gpus) - 1))
        for index, (row, gpu) in enumerate(zip(self.rows, gpus, strict=True)):
            row.uuid = gpu.facts.uuid
            set_height(row, row_height)
            if gpu.facts.uuid not in visible:
                continue
            utilization = traces.get((Series("gpu.utilization_percent", row.uuid), grid), _NO_TRACE)
            power = traces.get((Series("gpu.power_watts", row.uuid), grid), _NO_TRACE)
            lines = gpu_row(gpu, view, row_height, columns, look, utilization, power)
            if self.has_focus and index == self.cursor:
                lines = [selected(line, look) for line in lines]
            row.show(lines, columns.width)

    def _match_rows(self, count: int) -> None:
        """As many row widgets as GPUs; GPUs come and go with driver reloads, so usually there is nothing to do."""
        if len(self.rows) < count:
            new = [GpuRow() for _ in range(count - len(self.rows))]
            self.rows += new
            self.mount(*new)
        while len(self.rows) > count:
            self.rows.pop().remove()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Rows that come into sight need their content."""
        super().watch_scroll_y(old_value, new_value)
        if round(old_value) != round(new_value):
            self._ask_repaint()

    def action_cursor(self, step: int) -> None:
        """Moves the cursor."""
        if not self.rows:
            return
        self.cursor = max(0, min(len(self.rows) - 1, self.cursor + step))
        self.scroll_to_widget(self.rows[self.cursor], animate=False)
        self._ask_repaint()

    def action_open(self) -> None:
        """Opens the page of the GPU under the cursor."""
        if self.rows:
            self.post_message(OpenGpu(self.rows[self.cursor].uuid))

    def on_focus(self) -> None:
        """The cursor appears."""
        self._ask_repaint()

    def on_blur(self) -> None:
        """The cursor goes."""
        self._ask_repaint()

    def _ask_repaint(self) -> None:
        self.post_message(RepaintWanted())
