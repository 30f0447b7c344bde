"""The main screen: the verdict, the GPUs, the runs on the same time axis, the findings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.message import Message
from textual.widget import Widget

from gpuwatch.dashboard.actions import Key, State, bindings, bottom_line
from gpuwatch.dashboard.lines import Line
from gpuwatch.dashboard.panels.charts import Grid, Trace, values_per_cell
from gpuwatch.dashboard.panels.findings import FindingsList, OpenFinding
from gpuwatch.dashboard.panels.hardware import GpuTable, OpenGpu, Traces, gpu_header, heat_lines, host_row, total_row
from gpuwatch.dashboard.panels.layout import (
    FRAMED_FROM,
    OWNERS_FROM,
    Arrangement,
    Columns,
    Needs,
    arrange,
    columns,
    owner_columns,
)
from gpuwatch.dashboard.panels.run import RunTraces, run_panel
from gpuwatch.dashboard.panels.verdict import Verdict, verdict_box, verdicts, wanted_lines
from gpuwatch.dashboard.screens.base import ViewScreen
from gpuwatch.dashboard.themes import Look
from gpuwatch.dashboard.view import View, key_of
from gpuwatch.dashboard.widgets import LinesWidget, set_height
from gpuwatch.dashboard.words import no_gpu_reason
from gpuwatch.diagnosis.finding import Finding
from gpuwatch.monitor.snapshot import Snapshot
from gpuwatch.timeline.charts import Series

HOST_CPU = Series("host.cpu_percent")
HOST_IO = Series("host.pressure_io_percent")
NO_TRACE = Trace()
_PLAYS: dict[str, State] = {"playing": "running", "paused": "held", "ended": "ended"}


def _needs(view: View, verdict_lines: int, gpu_rows: int, gpu_summary: int, *, alike: bool = False) -> Needs:
    snapshot, runs = view.snapshot, view.runs
    living = sum(1 for run in runs if run.state != "ended") or min(1, len(runs))
    return Needs(
        verdict_lines=verdict_lines,
        gpus=gpu_rows,
        gpu_summary=gpu_summary,
        alike=alike,
        runs=living,
        ended=len(runs) - living,
        ranks=len(runs[0].ranks) if runs else 0,
        findings=len(view.findings),
        host=snapshot is not None and snapshot.host is not None,
        reason=snapshot is not None and bool(runs) and no_gpu_reason(snapshot) is not None,
    )


class VerdictBox(LinesWidget):
    """The verdicts; a click opens the finding behind the first."""

    shown: tuple[list[Verdict], int, int, Look] | None = None

    def on_click(self) -> None:
        self.post_message(OpenFinding(of_verdict=True))


class OpenRun(Message):
    """The user clicked on a line of the runs' panels."""

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line


class Body(LinesWidget):
    """The host's lines and the runs' panels; a click opens the page of a run."""

    def on_click(self, event: events.Click) -> None:
        self.post_message(OpenRun(event.y))


class MainScreen(ViewScreen):
    """Where everybody starts."""

    AUTO_FOCUS = "#findings"
    CAN_FILTER = True
    BINDINGS: ClassVar[list[BindingType]] = bindings("main")

    def __init__(self) -> None:
        super().__init__()
        self._traces: Traces = {}
        self._plan: Arrangement | None = None
        self._parts = (
            VerdictBox(id="verdict"),
            LinesWidget(id="gpu-head"),
            GpuTable(id="gpus"),
            Body(id="body"),
            FindingsList(id="findings"),
        )

    def content(self) -> Iterable[Widget]:
        if self.dashboard.remembered.gpu_order == "worst":
            self._parts[2].order = "worst"
        return self._parts

    def keys(self, view: View) -> list[Key]:
        snapshot = view.snapshot
        states: set[State] = {"finding"} if view.findings else set()
        if snapshot is not None and len(snapshot.gpus) > 1:
            states.add("gpus")
        if view.runs:
            states.add("training")
        if any(run.state == "ended" for run in view.all_runs):
            states.add("over")
        if snapshot is not None and snapshot.replay is not None:
            return bottom_line("player", frozenset(states | {_PLAYS[snapshot.replay.state]}))
        can_attach = snapshot is not None and (bool(snapshot.candidates) or snapshot.attached_pid is not None)
        is_recording = snapshot is not None and snapshot.recording is not None
        states.add("candidates" if can_attach else "alone")
        states.add("running" if view.paused_seconds is None else "held")
        states.add("recording" if is_recording else "idle")
        return bottom_line("main", frozenset(states))

    def draw(self, view: View, width: int, height: int, look: Look) -> None:
        verdicts_now = verdicts(view)
        wanted = wanted_lines(verdicts_now, width, framed=height >= FRAMED_FROM)
        parts = self._parts
        verdict, head, table, body, findings = parts
        gpus = view.snapshot.gpus if view.snapshot is not None else ()
        rows = len(table.arranged(view, collapsed=False))
        heat: list[Line] = []
        has_instances = any(gpu.facts.mig_parent is not None for gpu in gpus)
        plan = arrange(width, height, _needs(view, wanted, rows, gpu_summary=min(1, rows // 2), alike=has_instances))
        if plan.gpu_lines < rows * plan.gpu_row:
            rows = len(table.arranged(view, collapsed=True))
            heat = heat_lines(gpus, width, look)
            plan = arrange(width, height, _needs(view, wanted, rows, gpu_summary=1 + len(heat), alike=True))
        cells = columns(width)
        gpu_cells = owner_columns(width) if len(gpus) >= OWNERS_FROM or plan.gpu_row == 1 else cells
        if plan != self._plan:
            self._plan = plan
            heights = (
                plan.verdict,
                plan.gpu_head,
                plan.gpu_lines,
                plan.host + sum(plan.runs) + plan.ended,
                plan.findings + 1,
            )
            for part, lines in zip(parts, heights, strict=True):
                set_height(part, lines)
        if (verdicts_now, plan.verdict, width, look) != verdict.shown:
            verdict.shown = (verdicts_now, plan.verdict, width, look)
            verdict.show(verdict_box(verdicts_now, width, plan.verdict, look, framed=plan.framed), width)
        heads = [gpu_header(view, gpu_cells, look, plan.gpu_row, focused=table.has_focus)]
        if len(gpus) > 1:
            hidden = table.rows_below(plan.gpu_lines, plan.gpu_row)
            heads += [total_row(gpus, gpu_cells, look, hidden), *heat]
        head.show(heads, width)
        if view.snapshot is not None:
            visible = table.visible_gpus(plan.gpu_lines, plan.gpu_row)
            grid = self._refresh_traces(view, view.snapshot, plan, cells, look, visible)
            table.show(view, plan.gpu_lines, plan.gpu_row, gpu_cells, look, self._traces)
            body.show(self._body(view, view.snapshot, plan, cells, look, grid), width)
        findings.update(view, width, plan.findings, look)

    def _refresh_traces(
        self, view: View, snapshot: Snapshot, plan: Arrangement, cells: Columns, look: Look, visible: list[str]
    ) -> Grid:
        """Asks for the values of all charts in sight; while the timeline is busy, those of the last frame stay."""
        per_cell = values_per_cell(look.glyphs.unicode)
        grid = Grid.ending_at(snapshot.time_ns, view.window_seconds, cells.chart_width * per_cell)
        hold = view.hold_ns()
        wanted = [(Series("gpu.utilization_percent", uuid), hold) for uuid in visible]
        wanted += [(Series("gpu.power_watts", uuid), hold) for uuid in visible]
        for run in view.runs[: len(plan.runs)]:
            run_hold = view.hold_ns(run)
            wanted += [(Series("run.wait_share", run.id), run_hold), (Series("run.step_seconds", run.id), run_hold)]
        if plan.host > 1:
            wanted += [(HOST_CPU, hold), (HOST_IO, hold)]
        self._traces = self.dashboard.history.refresh(grid, wanted, snapshot.time_ns) or self._traces
        return grid

    def _body(
        self, view: View, snapshot: Snapshot, plan: Arrangement, cells: Columns, look: Look, grid: Grid
    ) -> list[Line]:
        """The host's lines and the runs' panels, whose charts continue those of the GPUs."""
        lines: list[Line] = []
        if plan.host:
            cpu, pressure = self._traces.get(HOST_CPU, NO_TRACE), self._traces.get(HOST_IO, NO_TRACE)
            lines += host_row(snapshot, plan.host, cells, look, cpu, pressure)
        panels = (*plan.runs, *([1] * plan.ended))
        for run, height in zip(view.runs, panels, strict=False):
            wait = self._traces.get(Series("run.wait_share", run.id), NO_TRACE)
            step = self._traces.get(Series("run.step_seconds", run.id), NO_TRACE)
            lines += run_panel(run, view, height, cells, look, RunTraces(grid, wait, step))
        return lines

    def _current(self) -> Finding | None:
        return self._parts[-1].current

    def on_open_finding(self, message: OpenFinding) -> None:
        """Opens the finding under the cursor, or the one behind the first verdict."""
        finding = self._current()
        if message.of_verdict:
            finding = verdicts(self.dashboard.view)[0].finding or finding
        if finding is not None:
            self.dashboard.open_finding(key_of(finding))

    def on_open_gpu(self, message: OpenGpu) -> None:
        self.dashboard.open_gpu(message.uuid)

    def on_open_run(self, message: OpenRun) -> None:
        plan = self._plan
        if plan is None:
            return
        below = plan.host
        for run, height in zip(self.dashboard.view.runs, (*plan.runs, *([1] * plan.ended)), strict=False):
            if below <= message.line < below + height:
                self.dashboard.open_run(run.id)
            below += height

    def action_run(self) -> None:
        """The run that the finding under the cursor is about, else the first."""
        finding, view = self._current(), self.dashboard.view
        run = view.run(finding.run) if finding is not None else None
        if run is None and view.runs:
            run = view.runs[0]
        if run is None:
            self.notify("There is no training run here.", severity="warning")
        else:
            self.dashboard.open_run(run.id)

    def action_open(self) -> None:
        self.on_open_finding(OpenFinding())

    def action_copy_fix(self) -> None:
        self.dashboard.copy_fix(self._current())

    def action_try_fix(self) -> None:
        self.dashboard.try_fix(self._current())

    def action_snooze(self) -> None:
        self.dashboard.snooze(self._current())

    def action_explain(self) -> None:
        finding = self._current()
        if finding is None:
            self.notify("There is no finding here whose rule could be explained.", severity="warning")
        else:
            self.dashboard.explain(finding.rule)

    def action_order(self) -> None:
        """GPUs by index, or what needs attention first."""
        order = self._parts[2].toggle_order()
        self.dashboard.remember(gpu_order=order)
        self.notify("GPUs by index" if order == "index" else "GPUs: failing, idle and throttled first", timeout=3)

    def action_clear_ended(self) -> None:
        count = self.dashboard.clear_ended()
        said = f"{count} ended run{'' if count == 1 else 's'} cleared." if count else "No run has ended."
        self.notify(said, timeout=3)

    def action_clear_filter(self) -> None:
        self.dashboard.set_filter("")
