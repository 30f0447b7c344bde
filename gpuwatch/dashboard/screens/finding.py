"""One finding, full screen."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType

from gpuwatch.dashboard import braille
from gpuwatch.dashboard.history import Grid
from gpuwatch.dashboard.panels.bars import Key
from gpuwatch.dashboard.panels.evidence import Evidence, chart_cells
from gpuwatch.dashboard.panels.finding_page import Source, finding_page
from gpuwatch.dashboard.panels.gpu_row import power_limit
from gpuwatch.dashboard.requests import in_background
from gpuwatch.dashboard.screens.base import PageScreen
from gpuwatch.dashboard.source import source_of
from gpuwatch.dashboard.text import Line
from gpuwatch.dashboard.themes import Look
from gpuwatch.dashboard.view import FindingKey, View, key_of
from gpuwatch.dashboard.wording import gpu_index, run_name
from gpuwatch.diagnosis.finding import Finding, Fix
from gpuwatch.metrics import BY_SERIES
from gpuwatch.timeline.series import Series

MAX_CHARTS = 4


class FindingScreen(PageScreen):
    """Follows its finding through the snapshots, and keeps its last state when it is gone."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "copy_fix", "Copy the fix", show=False),
        Binding("s", "snooze", "Snooze", show=False),
        Binding("e", "explain", "Explain the rule", show=False),
    ]
    KEYS: ClassVar[list[Key]] = [
        Key("esc", "back", "app.pop_screen"),
        Key("c", "copy fix", "copy_fix"),
        Key("s", "snooze", "snooze"),
        Key("e", "explain", "explain"),
        Key("t", "timeline", "app.timeline"),
        Key("+ -", "zoom", "app.zoom(-1)"),
        Key("?", "help", "app.help"),
        Key("q", "quit", "app.quit"),
    ]

    def __init__(self, key: FindingKey) -> None:
        super().__init__()
        self._key = key
        self._finding: Finding | None = None
        self._source: Source | None = None
        self._change: object = None  # what the source was read for

    def show(self) -> None:
        """The page at once; the source, which may lie on a slow disk, when it is read, and again for another change."""
        finding = self._now(self.dashboard.view)
        fix = finding.fix if finding is not None else None
        if finding is not None and fix is not None and (fix.file, fix.line, fix.edit, fix.also) != self._change:
            self._change, self._source = (fix.file, fix.line, fix.edit, fix.also), None
            self.run_worker(self._read_source(finding, fix), exclusive=True)
        super().show()

    async def _read_source(self, finding: Finding, fix: Fix) -> None:
        """Only of a live run: the files that a simulated one names are not this machine's."""
        view = self.dashboard.view
        live = view.snapshot is not None and view.snapshot.origin.kind == "live"
        if not live or (fix.edit is None and (fix.file is None or fix.line is None)):
            return
        run = view.run(finding.run)
        trainer = run.ranks[0].facts if run is not None and run.ranks else None
        self._source = await in_background(source_of, fix, trainer)
        super().show()

    def page(self, view: View, width: int, height: int, look: Look) -> list[Line]:
        """The finding as the newest view knows it."""
        current = self._now(view)
        self._finding = current or self._finding
        if self._finding is None:
            return []
        return finding_page(
            self._finding,
            view,
            width,
            look,
            still_there=current is not None,
            source=self._source,
            evidence=self._evidence(self._finding, view, width, look),
        )

    def _now(self, view: View) -> Finding | None:
        findings = view.snapshot.findings if view.snapshot is not None else ()
        return next((finding for finding in findings if key_of(finding) == self._key), None)

    def _evidence(self, finding: Finding, view: View, width: int, look: Look) -> list[Evidence]:
        """The charts that the rule names, for the finding's run and its GPUs."""
        snapshot = view.snapshot
        if snapshot is None:
            return []
        cells = chart_cells(width) * braille.values_per_cell(look.glyphs.unicode)
        grid = Grid.ending_at(snapshot.time_ns, view.window_seconds, cells)
        wanted = _series_of(finding, view)[:MAX_CHARTS]
        hold = round(2.5e9 * (view.interval_seconds or 1.0))
        traces = self.dashboard.history.refresh(grid, [(series, hold) for series in wanted], snapshot.time_ns)
        charts = []
        for series in wanted if traces else ():
            gpu, run = view.gpu(series.key), view.run(series.key)
            subject = f"GPU {gpu_index(series.key, snapshot)}" if gpu else run_name(run) if run else ""
            high = power_limit(gpu) if gpu and series.name == "gpu.power_watts" else None
            trace = traces[series] if traces else None
            if trace is not None:
                charts.append(Evidence(subject, series.name, trace, grid, snapshot.wall_time_at, high))
        return charts

    def action_copy_fix(self) -> None:
        """Copies the fix."""
        self.dashboard.copy_fix(self._finding)

    def action_snooze(self) -> None:
        """Hides the finding for a while and goes back."""
        self.dashboard.snooze(self._finding)
        self.dashboard.pop_screen()

    def action_explain(self) -> None:
        """Opens the rule's page."""
        self.dashboard.explain(self._key[0])


def _series_of(finding: Finding, view: View) -> list[Series]:
    """The rule's chart names with their keys; a run's finding shows the run's first GPU."""
    run = view.run(finding.run)
    uuids = [finding.gpu] if finding.gpu else []
    if not uuids and view.snapshot is not None:
        used = run.gpu_indices if run else ()
        uuids = [gpu.facts.uuid for gpu in view.snapshot.gpus if gpu.facts.index in used][:1]
    if run is None and finding.gpu and view.snapshot is not None:
        gpu = view.gpu(finding.gpu)
        index = gpu.facts.index if gpu else -1
        run = next((candidate for candidate in view.snapshot.runs if index in candidate.gpu_indices), None)
    series = []
    for name in finding.chart:
        if name not in BY_SERIES or not BY_SERIES[name].chart:  # of another version, in a recording
            continue
        if name.startswith("gpu."):
            series += [Series(name, uuid) for uuid in uuids]
        elif name.startswith("run."):
            series += [Series(name, run.id)] if run else []
        else:
            series.append(Series(name))
    return series
