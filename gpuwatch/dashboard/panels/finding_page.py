"""One finding in full: what is wrong, what to change, what it brings, how it is known, how to verify it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuwatch.dashboard import formatting as say
from gpuwatch.dashboard.panels.evidence import Evidence, evidence_lines
from gpuwatch.dashboard.panels.finding_lines import finding_lines
from gpuwatch.dashboard.panels.page import Page
from gpuwatch.dashboard.text import Line, LineWriter
from gpuwatch.dashboard.themes import Look
from gpuwatch.dashboard.view import View
from gpuwatch.dashboard.wording import LEVELS, change_words, gain_words, gpu_index, plan_words, run_name
from gpuwatch.diagnosis.finding import Finding, Fix, KeywordEdit, Level
from gpuwatch.monitor.snapshot import Snapshot
from gpuwatch.timeline.windows import RunWindow

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
    finding_lines(page, finding, _window(finding, snapshot))
    if evidence:
        page.heading("Seen over time")
        page.add(evidence_lines(evidence, width, look))
    if finding.ruled_out:
        page.heading("Ruled out")
        names = [say.escape(other.cause) for other in finding.ruled_out]
        for name, other in zip(names, finding.ruled_out, strict=True):
            page.pair(name, other.reason, name_width=min(40, max(24, *map(len, names)) + 2))
    if finding.confidence_notes:
        page.heading("Less certain because")
        for note in finding.confidence_notes:
            page.prose(note)
    if finding.verify:
        page.heading("How to verify")
        page.prose(finding.verify)
    page.gap()
    return page.lines


def _window(finding: Finding, snapshot: Snapshot) -> RunWindow | None:
    windows = snapshot.scene.runs if snapshot.scene is not None else ()
    return next((window for window in windows if window.id == finding.run), None)


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
        words += f", came {finding.incidents} times"
    page.lines.append(writer.at_right(words, look.dim, margin=1).line())
    page.lines.append(LineWriter(page.width, look).line())
    page.prose(finding.summary, look.strong)
    subject = _subject(finding, snapshot)
    if subject:
        page.prose(subject, look.dim)
    if finding.behind is not None:
        page.prose(f"Comes after {finding.behind}: change that first, then see whether this is still there.", look.dim)


def _subject(finding: Finding, snapshot: Snapshot) -> str:
    for run in snapshot.runs:
        if run.id == finding.run:
            return f"{run_name(run)}: {say.command_line(run.command)}"
    if finding.gpu is not None:
        index = gpu_index(finding.gpu, snapshot)
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
    page.heading("What it brings")
    if finding.gain is not None:
        cap = f", {finding.gain.cap}" if finding.gain.cap else ""
        basis = BASES[finding.level]
        page.prose(f"{gain_words(finding)}{cap}. Computed from {basis}.", look.good)
        if finding.plan is not None and finding.plan.of > 1:
            page.prose(plan_words(finding.plan))
    elif finding.hint:
        page.prose(f"A hint, not a measurement: {finding.hint}. Prove it with a trial before you keep it.")
    else:
        page.prose("No figure: this finding describes a state, its cost was not measured.", look.dim)


def _numbers(page: Page, finding: Finding) -> None:
    window = f"over {say.span(finding.window_seconds)}" if finding.window_seconds else ""
    page.heading("How it is known", right=window)
    page.pair("evidence", f"{LEVELS[finding.level]} (level {finding.level.name})")
    for measure in finding.evidence:
        name = measure.name.replace("_", " ")
        page.pair(name, measure.text.removeprefix(f"{name}: "))
