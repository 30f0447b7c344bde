"""The main screen: the verdict, the GPUs, the runs on the same time axis, the findings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget

from gpuwatch.dashboard import braille
from gpuwatch.dashboard.history import Grid, Trace
from gpuwatch.dashboard.messages import OpenFinding, OpenGpu
from gpuwatch.dashboard.panels.arrange import FRAMED_FROM, Arrangement, Needs, arrange
from gpuwatch.dashboard.panels.bars import Key
from gpuwatch.dashboard.panels.columns import Columns, columns
from gpuwatch.dashboard.panels.gpu_row import gpu_header
from gpuwatch.dashboard.panels.host_row import host_row
from gpuwatch.dashboard.panels.run_panel import RunTraces, run_panel
from gpuwatch.dashboard.panels.verdict_box import verdict_box, wanted_lines
from gpuwatch.dashboard.screens.base import ViewScreen
from gpuwatch.dashboard.themes import Look
from gpuwatch.dashboard.view import View, key_of
from gpuwatch.dashboard.widgets.findings_list import FindingsList
from gpuwatch.dashboard.widgets.gpu_table import GpuTable, Traces
from gpuwatch.dashboard.widgets.lines import LinesWidget, set_height
from gpuwatch.dashboard.wording import no_gpu_reason, verdicts
from gpuwatch.diagnosis.finding import Finding
from gpuwatch.monitor.snapshot import RunNow
from gpuwatch.timeline.series import Series

HOST_CPU = Series("host.cpu_percent")
HOST_IO = Series("host.pressure_io_percent")
NO_TRACE = Trace()


class VerdictBox(LinesWidget):
    """The verdicts; a click opens the finding behind the first."""

    def on_click(self) -> None:
        """Opens the finding."""
        self.post_message(OpenFinding(of_verdict=True))


class MainScreen(ViewScreen):
    """Where everybody starts."""

    AUTO_FOCUS = "#findings"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "clear_filter", "Clear the filter", show=False),
        Binding("c", "copy_fix", "Copy the fix", show=False),
        Binding("s", "snooze", "Snooze the finding", show=False),
        Binding("u", "app.undo_snooze", "Undo the snooze", show=False),
        Binding("e", "explain", "Explain the rule", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._traces: Traces = {}

    def content(self) -> Iterable[Widget]:
        """From the verdict down to the findings."""
        yield VerdictBox(id="verdict")
        yield LinesWidget(id="gpu-head")
        yield GpuTable(id="gpus")
        yield LinesWidget(id="host")
        yield LinesWidget(id="runs")
        yield FindingsList(id="findings")

    def keys(self, view: View) -> list[Key]:
        """What can be done here and now."""
        on_finding = [Key("enter", "open", "open"), Key("c", "copy fix", "copy_fix")] if view.findings else []
        more = [Key("s", "snooze", "snooze"), Key("e", "explain", "explain")] if view.findings else []
        return [
            *on_finding,
            Key("t", "timeline", "app.timeline"),
            Key("p", "processes", "app.processes"),
            Key("space", "resume" if view.paused_seconds is not None else "pause", "app.pause"),
            Key("?", "help", "app.help"),
            Key("q", "quit", "app.quit"),
            *more,
            Key("+ -", "zoom", "app.zoom(-1)"),
            Key("/", "filter", "app.filter"),
            Key("tab", "GPUs", "app.focus_next"),
        ]

    def draw(self, view: View, width: int, height: int, look: Look) -> None:
        """Shares out the height, gets the charts' values, and lets every widget show its lines."""
        snapshot = view.snapshot
        runs = view.runs
        plan = arrange(
            width,
            height,
            Needs(
                verdict_lines=wanted_lines(view, width, framed=height >= FRAMED_FROM),
                gpus=len(snapshot.gpus) if snapshot else 0,
                runs=len(runs),
                ranks=len(runs[0].ranks) if runs else 0,
                findings=len(view.findings),
                reason=snapshot is not None and bool(runs) and no_gpu_reason(snapshot) is not None,
                host=snapshot is not None and snapshot.host is not None,
            ),
        )
        cells = columns(width)
        verdict = self.query_one("#verdict", VerdictBox)
        set_height(verdict, plan.verdict)
        verdict.show(verdict_box(view, width, plan.verdict, look, framed=plan.framed), width)
        self._draw_history(view, runs, plan, cells, look)
        findings = self.query_one("#findings", FindingsList)
        set_height(findings, plan.findings + 1)
        findings.update(view, width, plan.findings, look)

    def _draw_history(
        self, view: View, runs: tuple[RunNow, ...], plan: Arrangement, cells: Columns, look: Look
    ) -> None:
        """The GPUs' rows and the runs' panels, whose charts share one grid of time."""
        table = self.query_one("#gpus", GpuTable)
        head = self.query_one("#gpu-head", LinesWidget)
        panels = self.query_one("#runs", LinesWidget)
        set_height(head, plan.gpu_head)
        head.show([gpu_header(view, cells, look, focused=table.has_focus)], cells.width)
        set_height(table, plan.gpu_lines)
        set_height(panels, sum(plan.runs))
        snapshot = view.snapshot
        if snapshot is None:
            return
        per_cell = braille.values_per_cell(look.glyphs.unicode)
        grid = Grid.ending_at(snapshot.time_ns, view.window_seconds, cells.chart_width * per_cell)
        visible = {gpu.facts.uuid for gpu in table.visible_gpus(view, plan.gpu_lines, plan.gpu_row)}
        shown = runs[: len(plan.runs)]
        hold = round(2.5e9 * (view.interval_seconds or 1.0))
        wanted = [(Series("gpu.utilization_percent", uuid), grid, hold) for uuid in sorted(visible)]
        wanted += [(Series("gpu.power_watts", uuid), grid, hold) for uuid in sorted(visible)]
        for run in shown:
            run_hold = max(hold, round(2.5e9 * (run.step_seconds_p50 or 0.0)))
            wanted += [(Series(name, run.id), grid, run_hold) for name in ("run.wait_share", "run.step_seconds")]
        if plan.host:
            wanted += [(series, grid, hold) for series in (HOST_CPU, HOST_IO)]
        traces = self.dashboard.history.refresh(wanted, snapshot.time_ns)
        if traces is not None:
            self._traces = traces
        table.show(view, plan.gpu_row, cells, look, self._traces, grid, visible)
        host = self.query_one("#host", LinesWidget)
        set_height(host, plan.host)
        if plan.host:
            cpu, pressure = (self._traces.get((series, grid), NO_TRACE) for series in (HOST_CPU, HOST_IO))
            host.show(host_row(snapshot, plan.host, cells, look, cpu, pressure), cells.width)
        lines = []
        for run, height in zip(shown, plan.runs, strict=False):
            wait = self._traces.get((Series("run.wait_share", run.id), grid))
            step = self._traces.get((Series("run.step_seconds", run.id), grid))
            history = RunTraces(grid, wait, step) if wait is not None and step is not None else None
            lines += run_panel(run, view, height, cells, look, history)
        panels.show(lines, cells.width)

    def _current(self) -> Finding | None:
        return self.query_one("#findings", FindingsList).current

    def on_open_finding(self, message: OpenFinding) -> None:
        """Opens the finding under the cursor, or the one behind the first verdict."""
        finding = self._current()
        if message.of_verdict:
            finding = verdicts(self.dashboard.view)[0].finding or finding
        if finding is not None:
            self.dashboard.open_finding(key_of(finding))

    def on_open_gpu(self, message: OpenGpu) -> None:
        """Opens the page of a GPU."""
        self.dashboard.open_gpu(message.uuid)

    def action_open(self) -> None:
        """Opens the finding under the cursor."""
        self.on_open_finding(OpenFinding())

    def action_copy_fix(self) -> None:
        """Copies the fix of the finding under the cursor."""
        self.dashboard.copy_fix(self._current())

    def action_snooze(self) -> None:
        """Hides the finding under the cursor for a while."""
        self.dashboard.snooze(self._current())

    def action_explain(self) -> None:
        """Opens the rule's page."""
        finding = self._current()
        if finding is not None:
            self.dashboard.explain(finding.rule)

    def action_clear_filter(self) -> None:
        """Shows everything again."""
        self.dashboard.set_filter("")
