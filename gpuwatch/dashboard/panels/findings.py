"""The list of findings with its cursor, and what stands there when there are none: why that can be believed."""

from __future__ import annotations

from textual.message import Message

from gpuwatch.dashboard import formatting as say
from gpuwatch.dashboard.lines import Line, LineWriter, Page, blanks, rule, selected
from gpuwatch.dashboard.panels.layout import LEAST_PREVIEW_LINES
from gpuwatch.dashboard.themes import Look
from gpuwatch.dashboard.view import View, key_of
from gpuwatch.dashboard.widgets import CursorList
from gpuwatch.dashboard.words import (
    believed,
    brings_words,
    change_words,
    gain_words,
    gpu_count,
    is_searching,
    is_starting,
    looked_for,
    place_of,
    run_name,
    short_summary,
)
from gpuwatch.diagnosis.finding import Finding
from gpuwatch.monitor.snapshot import Snapshot
from gpuwatch.monitor.verdict import verdict_now


class OpenFinding(Message):
    """The user wants the finding under the cursor on a screen of its own, or the one behind the first verdict."""

    def __init__(self, *, of_verdict: bool = False) -> None:
        super().__init__()
        self.of_verdict = of_verdict


WITH_RULE_NAME_FROM = 140


def findings_head(view: View, width: int, look: Look, *, focused: bool) -> Line:
    """The list's heading with its counts: shown, filtered, snoozed."""
    snapshot = view.snapshot
    nothing = snapshot is not None and not snapshot.gpus and not snapshot.runs and not snapshot.findings
    if snapshot is not None and nothing and not is_starting(snapshot):
        return rule("Looked for", width, look, style=look.strong)
    total = len(snapshot.findings) if snapshot else 0
    words = [f"{len(view.findings)} of {total}" if len(view.findings) != total else str(total)]
    if view.filter:
        words.append(f"filter: {say.escape(view.filter)} (esc clears)")
    if view.snoozed_count:
        words.append(f"{view.snoozed_count} snoozed (u undoes)")
    return rule("Findings", width, look, style=look.title if focused else look.strong, right=", ".join(words))


def findings_list(view: View, width: int, height: int, top: int, cursor: int, look: Look) -> list[Line]:
    """`height` lines of the list from entry `top` on, with the entry under the cursor marked."""
    findings = view.findings
    if not findings:
        return _without(view, width, height, look)
    place_width = min(24, width // 5, max(len(place_of(finding)) for finding in findings) + 1)
    lines = []
    for index, finding in enumerate(findings[top : top + height], start=top):
        line = _entry(finding, view, width, place_width, index == cursor, look)
        lines.append(selected(line, look) if index == cursor else line)
    for finding in findings[cursor:]:
        if view.snapshot is None or height - len(lines) < LEAST_PREVIEW_LINES:
            break
        lines += _preview(finding, view.snapshot, width, look)
    return lines[:height] + blanks(height - len(lines), width, look)


def _preview(finding: Finding, snapshot: Snapshot, width: int, look: Look) -> list[Line]:
    """A finding in short, where there is room for it: `enter` shows all of it."""
    page = Page(width, look)
    page.lines.append(rule(finding.rule, width, look, style=look.dim))
    fix, cap = finding.fix, finding.gain.cap if finding.gain is not None else None
    place, change = place_of(finding), change_words(finding, snapshot)
    said = (
        ("fix", fix.text if fix is not None else "", look.text),
        ("change", f"{place}  {change}".strip() if change != (fix.text if fix else "") else place, look.accent),
        ("expected", f"{gain_words(finding)}, {cap}" if cap else finding.hint or gain_words(finding), look.good),
        ("evidence", ", ".join(measure.text for measure in finding.evidence), look.text),
        ("ruled out", "; ".join(f"{each.cause} ({each.reason})" for each in finding.ruled_out), look.dim),
        ("verify", finding.verify or "", look.text),
    )
    for name, text, style in said:
        if text:
            page.pair(name, text, style, name_width=11)
    return page.lines


def _entry(finding: Finding, view: View, width: int, place_width: int, at_cursor: bool, look: Look) -> Line:
    writer = LineWriter(width, look)
    style = look.severity(finding.severity)
    writer.put(look.glyphs.cursor if at_cursor else " ", look.accent)
    writer.left(f"{look.glyphs.severity(finding.severity)} {finding.severity.value.upper()}", 11, style)
    if width >= WITH_RULE_NAME_FROM:
        writer.left(finding.rule, 22, look.dim)
    gain = brings_words(finding)
    if width < WITH_RULE_NAME_FROM:
        gain = gain.removesuffix(" faster")
    place = place_of(finding)
    gain_width = 10 if width < WITH_RULE_NAME_FROM else 18
    tail = place_width + gain_width + 2
    summary = short_summary(finding, view.snapshot) if view.snapshot else ""
    if finding.behind is not None:
        first = next((i for i, each in enumerate(view.findings, 1) if each.rule == finding.behind), None)
        summary = (
            f"follows from #{first}: {summary}" if first is not None else f"follows from {finding.behind}: {summary}"
        )
    if finding.state == "clearing":
        summary = f"(clearing) {summary}"
    body = look.dim if finding.behind is not None else look.text
    writer.put(summary, body, max(10, width - writer.cells - tail))
    writer.to(width - tail + 1).left(place, place_width - 1, look.accent).to(width - gain_width - 1)
    writer.right(gain, gain_width, look.good if finding.gain is not None else look.dim)
    return writer.line()


def _numbered(finding: Finding, listed: tuple[Finding, ...]) -> str:
    """The finding that it follows from by its place in the list: "#1"; one that is hidden by its rule."""
    for place, each in enumerate(listed, 1):
        if each.rule == finding.behind and each.run == finding.run:
            return f"#{place}"
    return str(finding.behind)


def _without(view: View, width: int, height: int, look: Look) -> list[Line]:
    """Why there is nothing to list."""
    snapshot = view.snapshot
    if snapshot is not None and not snapshot.gpus and not snapshot.runs and not is_starting(snapshot):
        page = Page(width, look)
        page.gap()
        for name, text in looked_for(snapshot):
            page.pair(name, text, look.accent if text.startswith("gpuwatch ") else None, name_width=20)
        return page.lines[:height] + blanks(height - len(page.lines), width, look)
    texts = _reasons(view)
    lines = []
    for text, good in texts:
        style = look.text if good else look.dim
        lines += [LineWriter(width, look).to(1).put(part, style).line() for part in say.wrap(text, width - 2)]
    return lines[:height] + blanks(height - len(lines), width, look)


def _reasons(view: View) -> list[tuple[str, bool]]:
    snapshot = view.snapshot
    if snapshot is None:
        return [("Not judged yet.", False)]
    if snapshot.findings:
        hidden = "match the filter" if view.filter else "are awake"
        return [(f"None of {len(snapshot.findings)} findings {hidden}.", False)]
    if snapshot.scene is None:
        wait = snapshot.next_evaluation_seconds
        soon = f" in {wait:.0f} s" if wait is not None else ""
        return [(f"Not judged yet: the first evaluation comes{soon}.", False)]
    no_run = "still searching for training runs" if is_searching(snapshot) else "no training run"
    seen: dict[bool, list[str]] = {True: [], False: []}
    for run in snapshot.runs:
        is_judged = verdict_now(run, (), snapshot).kind not in ("unjudged", "unseen")
        seen[is_judged].append(f"{run_name(run)}: {believed(run, snapshot)}")
    reasons = []
    if seen[True] or not seen[False]:
        over = f"No findings. Judged over {say.span(snapshot.scene.window_seconds)}"
        judged = f"; {'; '.join(seen[True])}." if seen[True] else f": {gpu_count(snapshot)}, {no_run}."
        reasons.append((over + judged, True))
    if seen[False]:
        reasons.append((f"Not judged yet. {'; '.join(seen[False])} so far.", False))
    reasons += [
        (f"{run_name(run)}: {say.escape(run.how_to_see_more)}", False) for run in snapshot.runs if run.how_to_see_more
    ]
    return reasons


class FindingsList(CursorList[Finding]):
    """The view's findings, worst first; an untouched cursor is where the verdict's "enter: the fix" leads."""

    FIRST_UNTIL_MOVED = True

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(key_of, lambda _: OpenFinding(), id=id)
        self._shown: tuple[object, ...] = ()

    def update(self, view: View, width: int, height: int, look: Look) -> None:
        self.hold(view.findings, height)
        shown = (
            self.entries,
            view.filter,
            view.snoozed_count,
            self.cursor,
            self.top,
            width,
            height,
            look,
            self.has_focus,
        )
        if self.entries and shown == self._shown:
            return
        self._shown = shown
        head = findings_head(view, width, look, focused=self.has_focus)
        self.show([head, *findings_list(view, width, height, self.top, self.cursor, look)], width)
