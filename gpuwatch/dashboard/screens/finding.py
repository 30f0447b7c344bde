"""One finding, full screen: what is wrong, what to change, what it brings, how it is known, how to verify it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import ClassVar

from textual.binding import BindingType

from gpuwatch.dashboard import formatting as say
from gpuwatch.dashboard.actions import Key, bindings, bottom_line
from gpuwatch.dashboard.lines import MARGIN, Line, LineWriter, Page
from gpuwatch.dashboard.panels.charts import Evidence, Grid, Trace, chart_cells, evidence_lines, values_per_cell
from gpuwatch.dashboard.panels.gpu_rows import power_limit
from gpuwatch.dashboard.screens.base import PageScreen, in_background
from gpuwatch.dashboard.themes import Look
from gpuwatch.dashboard.view import FindingKey, View, key_of
from gpuwatch.dashboard.words import (
    LEVELS,
    change_words,
    current_line_words,
    gain_words,
    gpu_label,
    line_place,
    plan_sentence,
    run_name,
)
from gpuwatch.diagnosis.finding import Finding, Fix, KeywordEdit, Level
from gpuwatch.diagnosis.proof import Proof
from gpuwatch.metrics import BY_SERIES
from gpuwatch.monitor.snapshot import RunNow, Snapshot
from gpuwatch.monitor.verdict import window_of
from gpuwatch.samples import RunFacts
from gpuwatch.timeline.charts import Series
from gpuwatch.timeline.windows import LineShare, RunWindow

MOST_LINES = 5

_LOADING = ("wait", "item", "collate", "send")
_PHASES: Mapping[str, tuple[str, ...]] = {
    "data-starvation": _LOADING,
    "workers-zero": _LOADING,
    "workers-too-few": _LOADING,
    "worker-cpu-bound": ("item", "collate"),
    "too-many-workers": _LOADING,
    "thread-oversubscription": _LOADING,
    "worker-affinity-pinned": _LOADING,
    "bursty-prefetch": _LOADING,
    "slow-samples": _LOADING,
    "slow-worker": _LOADING,
    "slow-collate-ipc": ("collate", "send"),
    "io-bound": _LOADING,
    "cpu-quota-throttled": _LOADING,
    "sync-per-step": ("sync",),
    "pageable-transfer": ("copy", "sync"),
    "launch-bound": ("sync", "log", "forward", "backward", "other"),
    "loop-code": ("other", "optimizer"),
    "eval-stall": ("eval",),
    "checkpoint-stall": ("save",),
    "log-stall": ("log",),
    "epoch-start-stall": ("start",),
}
"""Rule -> what a thread does on the lines that can be to blame."""

_STANDING = ("step-stalled", "collective-hang")


def finding_lines(page: Page, finding: Finding, run: RunWindow | None) -> None:
    """A section of the lines, where stacks were read and show some."""
    stacks = run.critical.stacks if run is not None else None
    if run is not None and finding.rule in _STANDING:
        _current_line(page, run)
    phases = _PHASES.get(finding.rule, ())
    if run is None or stacks is None or not phases:
        return
    own = [line for line in stacks.lines if line.phase in phases]
    workers = [line for line in stacks.worker_lines if line.phase in phases]
    if workers:
        own = []  # the training thread stands on its `for` statement then
    seen = f"{say.count(stacks.worker_samples)} samples"
    if any(loader.role == "eval" and loader.num_workers for loader in run.critical.facts.loaders):
        seen += ", evaluation's included"
    _table(page, "Lines of the workers, shares of their busy time", workers, seen)
    _table(
        page,
        "Lines of the training thread, shares of its time",
        own,
        f"{say.count(stacks.samples)} samples, {say.span(stacks.seconds)}",
    )


def _table(page: Page, title: str, lines: list[LineShare], right: str) -> None:
    if not lines:
        return
    page.heading(title, right=right)
    width = max(len(line_place(line)) for line in lines[:MOST_LINES])
    page.add([_row(line, min(width, 32), page.width, page.look) for line in lines[:MOST_LINES]])


def _row(line: LineShare, place_width: int, width: int, look: Look) -> Line:
    writer = LineWriter(width, look).to(MARGIN)
    writer.right(say.share(line.share.value), 6, look.strong).left(f" ±{say.points(line.share)}", 6, look.dim)
    writer.gap(1).left(line_place(line), place_width, look.accent).gap(2)
    writer.put(say.escape((line.text or f"in {line.function}()").strip().expandtabs(4)), look.text)
    below = f"  in {say.escape(line.leaf)}" if line.leaf else ""
    return writer.put(below if len(below) <= writer.room else "", look.dim).line()


def _current_line(page: Page, run: RunWindow) -> None:
    """The line that each rank is at: the others wait for the one that is elsewhere."""
    ranks = [(rank, rank.stacks.current_line) for rank in run.ranks if rank.stacks is not None]
    if not any(current_line for _, current_line in ranks):
        return
    page.heading("Where it is")
    for rank, current_line in ranks:
        name = "" if rank.facts.rank is None else f"rank {rank.facts.rank}"
        if current_line is None:
            continue
        writer = LineWriter(page.width, page.look).to(MARGIN)
        writer.put(f"{name} ".lstrip(), page.look.dim).put(f"{current_line_words(current_line)}  ", page.look.warning)
        page.lines.append(writer.put(say.escape((current_line.text or "").strip()), page.look.text).line())


BASES = {
    Level.E0: "what the GPU itself reports",
    Level.E1: "samples of this run's stack",
    Level.E2: "this run's own timings",
    Level.E3: "this run's own timings",
}
"""What a computed gain rests on."""


@dataclass(frozen=True, slots=True)
class Source:
    """What the user's file says around the line to change: a diff, else the lines, else why neither is there."""

    diff: str | None = None
    first_line: int = 1
    lines: tuple[str, ...] = ()
    reason: str = ""


def finding_page(
    finding: Finding,
    view: View,
    width: int,
    look: Look,
    *,
    still_there: bool,
    source: Source | None,
    evidence: Sequence[Evidence],
) -> list[Line]:
    """The whole page."""
    snapshot = view.snapshot
    assert snapshot is not None, "a finding came with a snapshot"
    page = Page(width, look)
    _sentence(page, finding, snapshot, still_there)
    if finding.fix is not None:
        _change(page, finding, finding.fix, snapshot, source)
    _gain(page, finding)
    _numbers(page, finding)
    finding_lines(page, finding, window_of(finding.run, snapshot))
    if evidence:
        page.heading("History")
        page.add(evidence_lines(evidence, width, look))
    if finding.ruled_out:
        page.heading("Ruled out")
        names = [say.escape(other.cause) for other in finding.ruled_out]
        for name, other in zip(names, finding.ruled_out, strict=True):
            page.pair(name, other.reason, name_width=min(40, max(24, *map(len, names)) + 2))
    if finding.confidence_notes:
        page.heading("Caveats")
        for note in finding.confidence_notes:
            page.prose(note)
    if finding.verify:
        page.heading("How to verify")
        page.prose(finding.verify)
    page.gap()
    return page.lines


def _sentence(page: Page, finding: Finding, snapshot: Snapshot, still_there: bool) -> None:
    look = page.look
    style = look.severity(finding.severity)
    page.gap()
    title = f"{look.glyphs.severity(finding.severity)} {finding.severity.value.upper()}  {finding.rule}"
    writer = LineWriter(page.width, look).to(2).put(title, style)
    since = say.since(snapshot.wall_time_at(finding.since_ns), snapshot.wall_time)
    ages = say.age(snapshot.time_ns - finding.since_ns)
    words = f"since {since} ({ages})" if still_there else f"no longer there; began {since}"
    if finding.state == "clearing":
        words += ", clearing"
    if finding.incidents > 1:
        words += f", appeared {finding.incidents} times"
    page.lines.append(writer.at_right(words, look.dim, margin=1).line())
    page.lines.append(LineWriter(page.width, look).line())
    page.prose(finding.summary, look.strong)
    subject = _subject(finding, snapshot)
    if subject:
        page.prose(subject, look.dim)
    if finding.behind is not None:
        page.prose(f"Comes after {finding.behind}: fix that first, then check whether this remains.", look.dim)


def _subject(finding: Finding, snapshot: Snapshot) -> str:
    for run in snapshot.runs:
        if run.id == finding.run:
            return f"{run_name(run)}: {say.command_line(run.command)}"
    if finding.gpu is not None:
        index = gpu_label(finding.gpu, snapshot)
        return finding.gpu if index is None else f"GPU {index} ({finding.gpu})"
    return ""


def _change(page: Page, finding: Finding, fix: Fix, snapshot: Snapshot, source: Source | None) -> None:
    look = page.look
    place = "" if fix.file is None else fix.file if fix.line is None else f"{fix.file}:{fix.line}"
    page.heading("What to change", right=say.escape(place))
    page.prose(fix.text)
    if source is not None and source.diff:
        page.gap()
        names = [line[6:] for line in source.diff.split("\n") if line.startswith("+++ b/")]
        elsewhere = any(not (fix.file or "").endswith(name) for name in names)
        for line in source.diff.removesuffix("\n").split("\n"):
            if elsewhere and line.startswith("+++ b/"):
                page.code(line[6:], look.dim)
            if not line.startswith(("---", "+++")):
                style = look.added if line.startswith("+") else look.removed if line.startswith("-") else look.dim
                page.code(line, style)
        if source.reason:
            page.gap()
            page.prose(source.reason, look.dim)
        return
    if source is not None and source.lines:
        page.gap()
        page.add(_excerpt_lines(source, fix, page.width, look))
    page.gap()
    if isinstance(fix.edit, KeywordEdit):
        page.code(change_words(finding, snapshot), look.added)
    elif fix.code:
        page.code(fix.code, look.added)
    if source is not None and source.reason:
        page.gap()
        page.prose(source.reason, look.dim)


def _excerpt_lines(source: Source, fix: Fix, width: int, look: Look) -> list[Line]:
    lines = []
    for number, text in enumerate(source.lines, start=source.first_line):
        here = number == fix.line
        writer = LineWriter(width, look).to(2).put(look.glyphs.cursor if here else " ", look.accent)
        writer.right(str(number), 5, look.accent if here else look.faint).put("  ", look.text)
        writer.put(say.escape(text.rstrip("\n").expandtabs(4)), look.strong if here else look.dim)
        lines.append(writer.line())
    return lines


def _gain(page: Page, finding: Finding) -> None:
    look = page.look
    page.heading("Expected speed-up")
    if finding.gain is not None:
        cap = f", {finding.gain.cap}" if finding.gain.cap else ""
        basis = BASES[finding.level]
        page.prose(f"{gain_words(finding)}{cap}. Computed from {basis}.", look.good)
        if finding.plan is not None and finding.plan.of > 1:
            page.prose(plan_sentence(finding.plan))
    elif finding.hint:
        page.prose(f"A hint, not a measurement: {finding.hint}. Check it with a trial before you keep it.")
    else:
        page.prose("No figure: this finding describes a state whose cost was not measured.", look.dim)


def _numbers(page: Page, finding: Finding) -> None:
    window = f"over {say.span(finding.window_seconds)}" if finding.window_seconds else ""
    page.heading("Evidence", right=window)
    page.pair("evidence", f"{LEVELS[finding.level]} (level {finding.level.name})")
    for measure in finding.evidence:
        name = measure.name.replace("_", " ")
        page.pair(name, measure.text.removeprefix(f"{name}: "))


LINES_AROUND = 3


def source_of(fix: Fix, trainer: RunFacts | None) -> Source:
    """A diff, else the lines around the place, else the reason. To be called off the UI thread: disks can be slow.

    Args:
        fix: With an edit, or with a file and a line.
        trainer: Whose code it is: its folder, and when it started (a file that changed since is not what runs).
    """
    # Here, not above: few sessions open a finding with an edit.
    from gpuwatch.edits.editor import edit_diff
    from gpuwatch.edits.source import UnreadableSourceError, process_started, read_source

    folder = Path(trainer.cwd) if trainer is not None and trainer.cwd is not None else None
    started = process_started(trainer.start_ticks) if trainer is not None else None

    def read(asked: Path) -> bytes:
        return read_source((folder or Path("/")) / asked, started, trainer)

    reason = ""
    if fix.edit is not None:
        diff = edit_diff((fix.edit, *fix.also), read, folder, trainer.command if trainer is not None else ())
        if diff.text is not None:
            return Source(diff=diff.text, reason=f"By hand: {diff.reason}." if diff.reason else "")
        reason = diff.reason or ""
    if fix.file is None or fix.line is None:
        return Source(reason=f"No diff: {reason}." if reason else "")
    try:
        lines = read(Path(fix.file)).decode("utf-8", "backslashreplace").split("\n")
    except UnreadableSourceError as error:
        return Source(reason=f"{error}.")
    first = max(1, fix.line - LINES_AROUND)
    shown = tuple(lines[first - 1 : fix.line + LINES_AROUND])
    if len(shown) <= fix.line - first:
        return Source(reason=f"{fix.file} has no line {fix.line}.")
    return Source(first_line=first, lines=shown, reason=f"No diff: {reason}." if reason else "")


MAX_CHARTS = 4


class FindingScreen(PageScreen):
    """Follows its finding through the snapshots, and keeps its last state when it is gone."""

    PLACE = "finding"
    BINDINGS: ClassVar[list[BindingType]] = bindings("finding")

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
        cells = chart_cells(width) * values_per_cell(look.glyphs.unicode)
        grid = Grid.ending_at(snapshot.time_ns, view.window_seconds, cells)
        wanted = _series_of(finding, view)[:MAX_CHARTS]
        others = {series: _others(series, view) for series in wanted if view.gpu(series.key) is not None}
        asked = [(series, view.hold_ns(view.run(series.key))) for series in wanted]
        asked += [(each, view.hold_ns()) for several in others.values() for each in several]
        traces = self.dashboard.history.refresh(grid, asked, snapshot.time_ns)
        charts = []
        for series in wanted if traces else ():
            gpu, run = view.gpu(series.key), view.run(series.key)
            subject = f"GPU {gpu_label(series.key, snapshot)}" if gpu else run_name(run) if run else ""
            high = power_limit(gpu) if gpu and series.name == "gpu.power_watts" else None
            trace = traces[series] if traces else None
            if trace is not None:
                charts.append(Evidence(subject, series.name, trace, grid, snapshot.wall_time_at, high))
            if traces and others.get(series):
                usual = median_trace([traces[each] for each in others[series]])
                named = f"median of {len(others[series])} others"
                charts.append(Evidence(named, series.name, usual, grid, snapshot.wall_time_at, high))
        return charts

    def action_copy_fix(self) -> None:
        self.dashboard.copy_fix(self._finding)

    def action_try_fix(self) -> None:
        self.dashboard.try_fix(self._finding)

    def action_snooze(self) -> None:
        """Hides the finding for a while and goes back."""
        self.dashboard.snooze(self._finding)
        self.dashboard.pop_screen()

    def action_explain(self) -> None:
        self.dashboard.explain(self._key[0])


class TrialScreen(PageScreen):
    """The commands that prove a fix. They stay as they were when it was opened, so that what is read is copied.

    Args:
        finding: whose fix it is.
        proof: with a trial.
        folder: the working folder of the training, where it is known.
    """

    PLACE = "trial"
    BINDINGS: ClassVar[list[BindingType]] = bindings("trial")

    def __init__(self, finding: Finding, proof: Proof, folder: str | None) -> None:
        super().__init__()
        self._finding = finding
        self._proof = proof
        self._folder = folder

    def keys(self, view: View) -> list[Key]:
        return bottom_line("trial", frozenset(() if self._proof.tune is None else ("several",)))

    def page(self, view: View, width: int, height: int, look: Look) -> list[Line]:
        simulated = view.snapshot is not None and view.snapshot.origin.kind == "simulated"
        return trial_page(self._finding, self._proof, self._folder, width, look, simulated=simulated)

    def action_copy_trial(self) -> None:
        if self._proof.trial is not None:
            self.dashboard.copy(self._proof.trial)

    def action_copy_tune(self) -> None:
        if self._proof.tune is not None:
            self.dashboard.copy(self._proof.tune)


def trial_page(
    finding: Finding, proof: Proof, folder: str | None, width: int, look: Look, *, simulated: bool
) -> list[Line]:
    """What the commands do, where and when to run them, and the commands themselves."""
    page = Page(width, look)
    page.heading("Try it before you edit it", right=finding.rule)
    page.prose(finding.summary, look.strong)
    if finding.fix is not None:
        page.prose(finding.fix.text)
    if finding.behind is not None:
        page.prose(f"Comes after {finding.behind}: try that first.", look.dim)
    if simulated:
        page.gap()
        page.prose("This run is simulated: there is no such program to start.", look.warning)
    page.heading("This fix alone", right="c copies it")
    page.prose("Runs the training several times, with and without the fix alternating; says which is faster.", look.dim)
    page.gap()
    page.shell(proof.trial or "", look.added)
    if finding.gain is not None:
        page.gap()
        page.prose(f"Predicted: {gain_words(finding)}.", look.dim)
    if proof.tune is not None:
        page.heading(f"All {proof.fixes} fixes of this run that a trial can try", right="C copies it")
        page.prose("Tries one after the other, keeps what is proved faster, and ends with one patch.", look.dim)
        page.gap()
        page.shell(proof.tune, look.added)
    page.heading("Where and when")
    where = f"In {folder}, where" if folder is not None else "In the folder where"
    page.prose(
        f"{where} the training was started, in the same environment. Wait until the training that runs now has ended: "
        "two at a time slow each other down, and the trial would measure that. No file is edited; checkpoints and logs "
        "go where the program always writes them, or with --scratch into a folder of their own."
    )
    page.gap()
    return page.lines


LEAST_OTHERS = 2


def _others(series: Series, view: View) -> list[Series]:
    """The same of the other GPUs of its run; none where they are too few for a median."""
    gpu = view.gpu(series.key)
    if gpu is None or view.snapshot is None:
        return []
    index = gpu.facts.index
    used = next((run.gpu_indices for run in view.all_runs if index in run.gpu_indices), ())
    uuids = [each.facts.uuid for each in view.snapshot.gpus if each.facts.index in used and each is not gpu]
    return [Series(series.name, uuid) for uuid in uuids] if len(uuids) >= LEAST_OTHERS else []


def median_trace(traces: Sequence[Trace]) -> Trace:
    """Bucket by bucket, of those that have a value there."""

    def middle(name: str) -> tuple[float | None, ...]:
        columns = zip(*(getattr(trace, name) for trace in traces), strict=False)
        known = ([value for value in column if value is not None] for column in columns)
        return tuple(median(values) if values else None for values in known)

    return Trace(middle("mean"), middle("peak"), middle("low"))


def _gpu_of_rank(finding: Finding, run: RunNow | None) -> list[str]:
    """The GPU of the rank that a finding is about."""
    number = next((measure.value for measure in finding.evidence if measure.name == "rank"), None)
    ranks = [rank for rank in run.ranks if rank.facts.rank == number] if run is not None and number is not None else []
    return [uuid for rank in ranks for uuid in rank.facts.gpu_uuids[:1]]


def _series_of(finding: Finding, view: View) -> list[Series]:
    """The rule's chart names with their keys; a run's finding shows its rank's GPU, or the run's first."""
    run = view.run(finding.run)
    uuids = [finding.gpu] if finding.gpu else _gpu_of_rank(finding, run)
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
