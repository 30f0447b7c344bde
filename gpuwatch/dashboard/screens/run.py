"""All that is known of one run: its step, its history, its ranks, loaders, model, pauses and findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import ClassVar

from textual.binding import BindingType

from gpuwatch.dashboard import formatting as say
from gpuwatch.dashboard.actions import bindings
from gpuwatch.dashboard.lines import Line, LineWriter, Page
from gpuwatch.dashboard.panels.charts import Evidence, Grid, Trace, chart_cells, evidence_lines, values_per_cell
from gpuwatch.dashboard.panels.run import legend, parts_of, stacked_bar, words
from gpuwatch.dashboard.screens.base import PageScreen
from gpuwatch.dashboard.themes import Look
from gpuwatch.dashboard.view import View
from gpuwatch.dashboard.words import (
    VISIBILITIES,
    current_line_words,
    gain_words,
    gpu_label,
    gpus_of,
    line_place,
    place,
    run_name,
)
from gpuwatch.monitor.snapshot import RunNow, Snapshot
from gpuwatch.samples import LoaderFacts, ModelFacts
from gpuwatch.timeline.charts import Series

_CHARTED = ("run.wait_share", "run.step_seconds", "run.samples_per_second")
_MOST_PAUSES = 12
_PLACES = {"file", "line", "loop_file", "loop_line", "optimizer_file", "optimizer_line", "backward_file"}
_PLACES |= {"backward_line", "recompile_file", "recompile_line"}
_HIDDEN = _PLACES | {"loader", "role", "function"}
_INDENT = 2


def run_page(run: RunNow, view: View, width: int, look: Look, charts: Sequence[Evidence]) -> list[Line]:
    """The page of one run."""
    snapshot = view.snapshot
    assert snapshot is not None, "a run came with a snapshot"
    page = Page(width, look)
    visibility = VISIBILITIES.get(run.visibility, run.visibility)
    page.heading(f"{run_name(run)}  {run.state_words}", right=visibility)
    _facts(page, run)
    _step(page, run)
    if charts:
        page.heading("History", right=say.span(view.window_seconds))
        page.add(evidence_lines(charts, width, look))
    _findings(page, run, snapshot)
    _ranks(page, run, snapshot)
    for loader in dict.fromkeys(loader for rank in run.ranks[:1] for loader in rank.facts.loaders):
        _loader(page, loader)
    for rank in run.ranks[:1]:
        _fields(page, "Model and precision", rank.facts.model)
    _pauses(page, run, snapshot)
    return page.lines


def _facts(page: Page, run: RunNow) -> None:
    page.pair("command", say.command_line(run.command))
    if not run.ranks:
        return
    facts = run.ranks[0].facts
    page.pair("working folder", facts.cwd or say.UNKNOWN)
    on = gpus_of(run) if run.gpu_indices else {"cpu": "the CPU"}.get(facts.device or "", say.UNKNOWN)
    page.pair("trains on", on)
    page.pair("Python, torch", f"{facts.python or say.UNKNOWN}, {facts.torch or say.UNKNOWN}")
    cores = "" if facts.cpu_affinity is None else f", on {say.count(facts.cpu_affinity)} CPU cores"
    page.pair("torch threads", f"{say.count(facts.torch_threads)}{cores}")
    for note in facts.notes:
        page.pair("note", note, page.look.warning)
    if facts.debug_modes:
        page.pair("debug modes", ", ".join(facts.debug_modes), page.look.warning)
    if run.how_to_see_more:
        page.pair("to see more", run.how_to_see_more)


def _step(page: Page, run: RunNow) -> None:
    """What a step is made of, over the window of the panel."""
    page.heading(run.step_names[0].capitalize(), right=f"over {say.span(run.seconds)}" if run.seconds else "")
    parts, width, look = parts_of(run), page.width - 2 * _INDENT, page.look
    if parts:
        bar = (*LineWriter(_INDENT, look).to(_INDENT).line(), *stacked_bar(parts, width, look))
        page.add([(*bar, *LineWriter(_INDENT, look).line())])
        page.add([words([("  ", look.text), *legend(parts, width, look)], page.width, look)])
    if run.visibility == "sampled":
        least = "" if run.batches_exact else "at least "
        page.pair(f"{run.step_names[1]} per second", f"{least}{say.count(run.batches_per_second)}")
    else:
        p50, p95 = say.seconds(run.step_seconds_p50), say.seconds(run.step_seconds_p95)
        page.pair("step time", f"{p50} median, {p95} p95")
    page.pair("samples per second", say.count(run.samples_per_second))
    page.pair("GPU idle (data wait)", say.share(run.gap_share))
    page.pair("pauses", f"{say.share(run.phase_share)} of all time")
    page.pair(f"{run.step_names[1]} so far", say.count(run.steps_total))
    if run.batches_per_step is not None:
        page.pair("batches per step", f"{run.batches_per_step:.3g}")
    if run.current_line is not None:
        page.pair("now", current_line_words(run.current_line))
    if run.top_line is not None:
        share = say.share(run.top_line.share.value)
        page.pair("most often at", f"{line_place(run.top_line)}  {share} of the training thread")


def _findings(page: Page, run: RunNow, snapshot: Snapshot) -> None:
    own = [finding for finding in snapshot.findings if finding.run == run.id]
    if not own:
        return
    page.heading("Findings", right=str(len(own)))
    for finding in own:
        style = getattr(page.look, finding.severity.value, page.look.text)
        page.pair(finding.rule, f"{finding.summary}  ({gain_words(finding)})", style)


def _ranks(page: Page, run: RunNow, snapshot: Snapshot) -> None:
    if len(run.ranks) < 2:
        return
    page.heading("Ranks", right=str(len(run.ranks)))
    for rank, own in zip(run.ranks, run.own_seconds, strict=True):
        gpus = [gpu_label(uuid, snapshot) for uuid in rank.facts.gpu_uuids]
        where = f"GPU {', '.join(filter(None, gpus))}" if any(gpus) else "no GPU known"
        said = f"pid {rank.facts.pid}, {where}, step {say.seconds(rank.step_seconds)}, own work {say.seconds(own)}"
        said += f", wait {say.share(rank.wait_share)}, {say.count(rank.steps_total)} steps, {rank.state}"
        page.pair(f"rank {say.UNKNOWN if rank.facts.rank is None else rank.facts.rank}", said)


def _loader(page: Page, loader: LoaderFacts) -> None:
    role = {"train": "training", "eval": "evaluation"}.get(loader.role, loader.role)
    built = loader.file is not None and loader.line is not None
    where = place(loader.file or "", loader.line or 0) if built else "not known where"
    _fields(page, f"DataLoader of {role}, built at {say.escape(where)}", loader)


def _fields(page: Page, title: str, facts: LoaderFacts | ModelFacts) -> None:
    """Each field that is known, by the name that it has in torch or in a report."""
    known = [(field.name, getattr(facts, field.name)) for field in fields(facts) if field.name not in _HIDDEN]
    known = [(name, value) for name, value in known if value is not None]
    if known:
        page.heading(title)
    for name, value in known:
        if name.endswith("_share"):
            page.pair(name.removesuffix("_share").replace("_", " "), f"{say.share(value)} of the parameters")
        elif name.endswith("_bytes"):
            page.pair(name.removesuffix("_bytes").replace("_", " ") + " size", say.byte_size(value))
        else:
            is_number = isinstance(value, int) and not isinstance(value, bool)
            page.pair(name, say.count(value) if is_number else str(value))


def _pauses(page: Page, run: RunNow, snapshot: Snapshot) -> None:
    """The newest phases outside of training, the last first."""
    spans = sorted(run.phases, key=lambda span: -span.start_ns)[:_MOST_PAUSES]
    if spans:
        page.heading("Pauses", right="newest first")
    for span in spans:
        at = say.clock(snapshot.wall_time_at(span.start_ns))
        lasts = (snapshot.time_ns if span.end_ns is None else span.end_ns) - span.start_ns
        page.pair(at, f"{span.kind}, {say.seconds(lasts / 1e9)}{' so far' if span.end_ns is None else ''}")


class RunScreen(PageScreen):
    """All that is known of one run."""

    PLACE = "run"
    BINDINGS: ClassVar[list[BindingType]] = bindings("run")

    def __init__(self, run: str) -> None:
        super().__init__()
        self._run = run
        self._traces: dict[Series, Trace] = {}

    def page(self, view: View, width: int, height: int, look: Look) -> list[Line]:
        run, snapshot = view.run(self._run), view.snapshot
        if run is None or snapshot is None:
            return []
        grid = Grid.ending_at(
            snapshot.time_ns, view.window_seconds, chart_cells(width) * values_per_cell(look.glyphs.unicode)
        )
        asked = [(Series(name, run.id), view.hold_ns(run)) for name in _CHARTED]
        self._traces = self.dashboard.history.refresh(grid, asked, snapshot.time_ns) or self._traces
        charts = [
            Evidence("", series.name, self._traces.get(series, Trace()), grid, snapshot.wall_time_at, None)
            for series, _ in asked
        ]
        return run_page(run, view, width, look, charts)

    def action_next_run(self) -> None:
        """The run after this one; after the last comes the first."""
        runs = [run.id for run in self.dashboard.view.runs]
        if len(runs) < 2:
            self.notify("There is no other run.", timeout=3)
            return
        number = runs.index(self._run) if self._run in runs else -1
        self._run = runs[(number + 1) % len(runs)]
        self.show()
