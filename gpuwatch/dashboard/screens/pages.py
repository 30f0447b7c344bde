"""The smaller pages: timeline, processes, one GPU, help, a rule."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType

from gpuwatch.dashboard import braille
from gpuwatch.dashboard.history import Grid, Trace
from gpuwatch.dashboard.panels.bars import Key
from gpuwatch.dashboard.panels.evidence import Evidence, chart_cells
from gpuwatch.dashboard.panels.gpu_page import gpu_page
from gpuwatch.dashboard.panels.gpu_row import power_limit
from gpuwatch.dashboard.panels.help_page import help_page
from gpuwatch.dashboard.panels.process_page import process_page
from gpuwatch.dashboard.panels.rule_page import rule_page
from gpuwatch.dashboard.panels.timeline_page import timeline_grid, timeline_page, timeline_series
from gpuwatch.dashboard.screens.base import PageScreen
from gpuwatch.dashboard.text import Line
from gpuwatch.dashboard.themes import Look
from gpuwatch.dashboard.view import View
from gpuwatch.timeline.series import Series

PAN_STEP = 0.25
"""How much of the window one press of an arrow moves."""

BACK = Key("esc", "back", "app.pop_screen")
ZOOM = Key("+ -", "zoom", "app.zoom(-1)")
HELP = Key("?", "help", "app.help")
QUIT = Key("q", "quit", "app.quit")


class TimelineScreen(PageScreen):
    """Everything on one axis, as far back as the timeline reaches."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,H", "pan(1)", "Back in time", show=False),
        Binding("right,L", "pan(-1)", "Forward in time", show=False),
        Binding("end", "live", "Now", show=False, priority=True),
        Binding("d", "detail", "More series per GPU", show=False),
    ]
    KEYS: ClassVar[list[Key]] = [
        BACK,
        ZOOM,
        Key("left right", "move", "pan(1)"),
        Key("end", "now", "live"),
        Key("d", "detail", "detail"),
        Key("space", "pause", "app.pause"),
        HELP,
        QUIT,
    ]

    def __init__(self) -> None:
        super().__init__()
        self.pan_seconds = 0.0
        self.detail = False
        self._traces: dict[Series, Trace] = {}

    def page(self, view: View, width: int, height: int, look: Look) -> list[Line]:
        """The charts of the chosen stretch of time."""
        grid = timeline_grid(view, width, look, self.pan_seconds)
        wanted = timeline_series(view, self.detail)
        hold = round(2.5e9 * (view.interval_seconds or 1.0))
        steps = {run.id: run.step_seconds_p50 or run.step_seconds or 0.0 for run in view.runs}
        asked = [(series, max(hold, round(2.5e9 * steps.get(series.key, 0.0)))) for series in wanted]
        now_ns = view.snapshot.time_ns if view.snapshot is not None else 0
        self._traces = self.dashboard.history.refresh(grid, asked, now_ns) or self._traces
        return timeline_page(view, width, height, look, grid, self._traces, wanted, self.pan_seconds)

    def action_pan(self, steps: int) -> None:
        """Moves the window; never past now."""
        view = self.dashboard.view
        self.pan_seconds = max(0.0, self.pan_seconds + steps * PAN_STEP * view.window_seconds)
        self.show()

    def action_live(self) -> None:
        """Back to now."""
        self.pan_seconds = 0.0
        self.show()

    def action_detail(self) -> None:
        """Shows or hides memory, temperature and clock."""
        self.detail = not self.detail
        self.show()


class ProcessesScreen(PageScreen):
    """Who uses the GPUs."""

    CAN_FILTER = True
    KEYS: ClassVar[list[Key]] = [BACK, Key("a", "attach", "app.attach"), Key("/", "filter", "app.filter"), HELP, QUIT]

    def keys(self, view: View) -> list[Key]:
        """Less attaching, where there is nothing to attach to."""
        replays = view.snapshot is not None and view.snapshot.replay is not None
        return [key for key in self.KEYS if not (replays and key.key == "a")]

    def page(self, view: View, width: int, height: int, look: Look) -> list[Line]:
        """The table."""
        return process_page(view, width, look)


class GpuScreen(PageScreen):
    """All that is known of one GPU."""

    KEYS: ClassVar[list[Key]] = [BACK, ZOOM, Key("t", "timeline", "app.timeline"), HELP, QUIT]

    def __init__(self, uuid: str) -> None:
        super().__init__()
        self._uuid = uuid
        self._traces: dict[Series, Trace] = {}

    def page(self, view: View, width: int, height: int, look: Look) -> list[Line]:
        """Facts, history, readings with their age, and reasons."""
        gpu = view.gpu(self._uuid)
        snapshot = view.snapshot
        if gpu is None or snapshot is None:
            return []
        cells = chart_cells(width) * braille.values_per_cell(look.glyphs.unicode)
        grid = Grid.ending_at(snapshot.time_ns, view.window_seconds, cells)
        names = ("gpu.utilization_percent", "gpu.power_watts", "gpu.temperature_celsius")
        hold = round(2.5e9 * (view.interval_seconds or 1.0))
        asked = [(Series(name, self._uuid), hold) for name in names]
        self._traces = self.dashboard.history.refresh(grid, asked, snapshot.time_ns) or self._traces
        subject, limit = f"GPU {gpu.facts.index}", power_limit(gpu)
        charts = [
            Evidence(
                subject,
                series.name,
                self._traces.get(series, Trace()),
                grid,
                snapshot.wall_time_at,
                limit if series.name == "gpu.power_watts" else None,
            )
            for series, _ in asked
        ]
        return gpu_page(gpu, view, width, look, charts)


class HelpScreen(PageScreen):
    """Keys and words."""

    def page(self, view: View, width: int, height: int, look: Look) -> list[Line]:
        """The help."""
        return help_page(view, width, look)


class RuleScreen(PageScreen):
    """A rule's page."""

    def __init__(self, rule_id: str, text: str | None) -> None:
        super().__init__()
        self._rule_id = rule_id
        self._text = text

    def page(self, view: View, width: int, height: int, look: Look) -> list[Line]:
        """The rule's docstring."""
        return rule_page(self._rule_id, self._text, width, look)
