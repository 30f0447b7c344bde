"""What the eye lands on: one sentence per run and per broken GPU, the gain, and the line to change."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from rich.cells import cell_len
from rich.style import Style

from gpuwatch.dashboard import formatting as say
from gpuwatch.dashboard.lines import Line, LineWriter, boxed, rule
from gpuwatch.dashboard.themes import Look
from gpuwatch.dashboard.view import View, key_of
from gpuwatch.dashboard.words import (
    START_COMMAND,
    believed,
    candidate_name,
    change_words,
    current_line_of,
    current_line_words,
    gain_words,
    gpu_count,
    gpu_label,
    is_searching,
    is_starting,
    offer,
    place_of,
    run_name,
)
from gpuwatch.diagnosis.finding import Finding, Severity
from gpuwatch.monitor.snapshot import STATE_WORDS, STEPLESS, RunNow, Snapshot
from gpuwatch.monitor.verdict import (
    DATA_PHASE,
    decapitalized,
    named,
    other_faults,
    own_findings,
    state_sentence,
    unhooked,
    verdict_now,
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One sentence about one subject, with what to change; `severity` None means that nothing is wrong."""

    severity: Severity | None
    word: str
    sentence: str
    gain: str = ""
    because: str = ""
    place: str = ""
    change: str = ""
    finding: Finding | None = None


def verdicts(view: View) -> list[Verdict]:
    """One verdict per run and one per broken GPU, worst first; never empty once there is a snapshot.

    While a run lives, those of ended ones come last.
    """
    snapshot = view.snapshot
    if snapshot is None or is_starting(snapshot):
        return [Verdict(None, "STARTING", "looking for GPUs and training runs")]
    awake = [finding for finding in snapshot.findings if key_of(finding) not in view.snoozed]
    found: list[Verdict] = []
    over: list[Verdict] = []
    runs = view.all_runs
    gone = {run.id for run in snapshot.runs} - {run.id for run in runs}
    awake = [finding for finding in awake if finding.run not in gone]
    lives = any(run.state != "ended" for run in runs)
    of_runs: list[Finding] = []
    for run in runs:
        own = own_findings(run, awake, snapshot)
        of_runs += own
        verdict = _of_run(run, own, snapshot)
        if lives and run.state == "ended":
            over.append(replace(verdict, because="", place="", change="", gain=""))
        else:
            found.append(verdict)
    found += [_of_finding(finding, snapshot) for finding in other_faults(awake, of_runs)]
    if not runs or (offer(snapshot) and not lives):
        found.append(_without_run(snapshot))
    found += [Verdict(None, "NOTICE", say.escape(notice)) for notice in snapshot.notices]
    if snapshot.recording is not None and snapshot.recording.problem is not None:
        found.append(Verdict(None, "NOTICE", say.escape(snapshot.recording.problem)))
    return [*sorted(found, key=_badness), *sorted(over, key=_badness)]


def _badness(verdict: Verdict) -> int:
    if verdict.severity is not None:
        return verdict.severity.order
    return len(Severity) + (verdict.word != "TRY")


def _of_run(run: RunNow, findings: list[Finding], snapshot: Snapshot) -> Verdict:
    judged = verdict_now(run, findings, snapshot)
    if judged.kind == "fault" and judged.finding is not None:
        return _of_finding(judged.finding, snapshot, run)
    name = run_name(run)
    state = state_sentence(run, snapshot)
    if state is not None:
        hint = run.how_to_see_more if run.state not in ("ended", "not linked") else None
        because = _stands(run, snapshot) or say.escape(hint or "")
        return Verdict(None, STATE_WORDS.get(run.state, run.state).upper(), f"{name}: {state}", because=because)
    why, waits = f"({believed(run, snapshot)})", _wait_words(run)
    match judged.kind:
        case "unseen":
            sentence = f"{name}: no warning from hardware and host"
            verdict = Verdict(None, "WATCHING", sentence, because=say.escape(run.how_to_see_more or ""))
        case "unjudged":
            verdict = Verdict(None, "WATCHING", f"{name}: not judged yet{waits}{waits and ' so far'}")
        case "unmeasured":
            sentence = f"{name}: no warning, but the wait for data is not measured {why}"
            verdict = Verdict(None, "WATCHING", sentence, because=DATA_PHASE)
        case "remark" if judged.finding is not None and judged.finding.fix is not None and _promises(judged.finding):
            return _to_try(name, judged.finding, f"no warning{waits} {why}", snapshot)
        case "remark":
            verdict = Verdict(None, "OK", f"{name}: no warning{waits} {why}")
        case _:
            verdict = Verdict(None, "OK", f"{name}: nothing to change{waits} {why}")
    return verdict if judged.finding is None else _with_offer(verdict, judged.finding)


_FACTORS = re.compile(r"\d+(\.\d+)?(-\d+(\.\d+)?)?x")
"""What a hint begins with where it says by how much."""


def _promises(finding: Finding) -> bool:
    """Whether it says what to write where, or what that brings."""
    has_place = finding.fix is not None and finding.fix.file is not None
    return finding.gain is not None or finding.severity is Severity.HINT or (finding.hint is not None and has_place)


def _to_try(name: str, finding: Finding, otherwise: str, snapshot: Snapshot) -> Verdict:
    """A run without a warning that may be faster all the same: what to try, before that nothing is wrong."""
    text = finding.fix.text if finding.fix is not None else finding.summary
    because = f"{finding.hint}; {otherwise}" if finding.hint else otherwise
    hinted = _FACTORS.match(finding.hint or "") if finding.gain is None else None
    return Verdict(
        None,
        "TRY",
        say.escape(f"{name}: {decapitalized(text)}"),
        gain=f"typically {hinted[0]}" if hinted is not None else gain_words(finding),
        because=say.escape(because),
        place=place_of(finding),
        change=change_words(finding, snapshot),
        finding=finding,
    )


def _with_offer(verdict: Verdict, finding: Finding) -> Verdict:
    """With what may be tried though nothing is known to be wrong."""
    change = f"to try: {finding.fix.text if finding.fix else finding.summary}"
    return replace(verdict, gain=gain_words(finding), place=place_of(finding), change=change, finding=finding)


def _wait_words(run: RunNow) -> str:
    if run.gap_share is not None:
        return f", the GPU waits for data {say.share(run.gap_share)} of the time"
    if run.wait_share is not None:
        return f", it waits for data {say.share(run.wait_share)} of the time"
    return ""


def _stands(run: RunNow, snapshot: Snapshot) -> str:
    """Where a run that makes no steps stands, with the code of that line."""
    current_line = current_line_of(run, snapshot) if run.state in STEPLESS else None
    if current_line is None:
        return ""
    code = f": {say.escape(current_line.text.strip())}" if current_line.text else ""
    return f"{current_line_words(current_line)}{code}"


def _of_finding(finding: Finding, snapshot: Snapshot, run: RunNow | None = None) -> Verdict:
    summary = finding.summary
    if run is not None:
        summary = named(run.title, run.pid, summary, has_ended=run.state == "ended")
    elif finding.gpu is not None:
        index = gpu_label(finding.gpu, snapshot)
        if index is not None and f"GPU {index}" not in summary:
            summary = f"GPU {index}: {decapitalized(summary)}"
    return Verdict(
        severity=finding.severity,
        word=finding.severity.value.upper(),
        sentence=say.escape(summary),
        gain=gain_words(finding),
        because=say.escape(", ".join(measure.text for measure in finding.evidence[:3])),
        place=place_of(finding),
        change=change_words(finding, snapshot),
        finding=finding,
    )


def _without_run(snapshot: Snapshot) -> Verdict:
    unseen = offer(snapshot)
    if unseen:
        named = ", ".join(candidate_name(candidate) for candidate in unhooked(snapshot))
        return Verdict(None, "NOT WATCHED YET", unseen, because=f"attaching needs no restart: {named}")
    if is_searching(snapshot):
        return Verdict(None, "WATCHING", f"{gpu_count(snapshot)}; looking for training runs")
    if snapshot.gpus:
        looked = f"no training run with the hook yet; watching {gpu_count(snapshot)}"
        return Verdict(None, "WATCHING", looked, because=f"start one with: {START_COMMAND}")
    return Verdict(None, "NOTHING TO WATCH", "no GPU and no training run on this machine")


TITLE = "What to change"

GAIN_BESIDE_FROM = 96
"""Below this width the gain stands next to the change, so that the sentence has the whole line."""


def verdict_box(verdicts_now: list[Verdict], width: int, height: int, look: Look, *, framed: bool) -> list[Line]:
    """The verdicts in exactly `height` lines, the worst first; those without room are counted."""
    inner = width - 4 if framed else width - 2
    room = height - (2 if framed else 1)
    lines: list[Line] = []
    shown = 0
    for verdict in verdicts_now:
        if len(lines) >= room:
            break
        lines += _lines_of(verdict, inner, look, full=framed)[: room - len(lines)]
        shown += 1
    hidden = len(verdicts_now) - shown
    more = f"and {hidden} more" if hidden else ""
    lines += [LineWriter(inner, look).line()] * (room - len(lines))
    if framed:
        return boxed(lines, TITLE, width, look, _style(verdicts_now[0], look), right=more)
    edge = LineWriter(1, look).line()
    return [rule(TITLE, width, look, right=more), *((*edge, *line, *edge) for line in lines)]


def wanted_lines(verdicts_now: list[Verdict], width: int, *, framed: bool) -> int:
    """How many lines the box would like, frame included."""
    inner = width - 4 if framed else width - 2
    lines = 0
    for verdict in verdicts_now:
        sentence, because = _wrapped(verdict, inner, full=framed)
        lines += len(sentence) + len(because) + _has_change(verdict)
    return lines + (2 if framed else 1)


def _wrapped(verdict: Verdict, width: int, *, full: bool) -> tuple[list[str], list[str]]:
    """The sentence, and what it rests on where that is to be shown, in two lines each at most."""
    gain_room = len(verdict.gain) + 2 if verdict.gain and width >= GAIN_BESIDE_FROM else 0
    sentence = say.wrap(verdict.sentence, max(20, width - _indent(verdict) - gain_room))
    if len(sentence) > 2:
        sentence = [sentence[0], f"{sentence[1]}…"]
    if not verdict.because or not (full or not _has_change(verdict)):
        return sentence, []
    because = say.wrap(verdict.because, width - _indent(verdict))
    if len(because) > 2:
        because = [because[0], f"{say.fit(because[1], width - _indent(verdict) - 1)}…"]
    return sentence, because


def _indent(verdict: Verdict) -> int:
    return max(12, len(verdict.word) + 4)


def _has_change(verdict: Verdict) -> bool:
    return bool(verdict.change or verdict.place)


def _lines_of(verdict: Verdict, width: int, look: Look, *, full: bool) -> list[Line]:
    """The sentence with its sign and gain; what it rests on; the change."""
    quiet = {"OK": look.glyphs.fine, "TRY": look.glyphs.hint}.get(verdict.word, look.glyphs.info)
    sign = quiet if verdict.severity is None else look.glyphs.severity(verdict.severity)
    indent = _indent(verdict)
    gain_first = width >= GAIN_BESIDE_FROM
    sentence, because = _wrapped(verdict, width, full=full)
    has_room = len(sentence) > 1 and indent + cell_len(sentence[1]) + len(verdict.gain) < width
    gain_below = not gain_first and not has_room
    lines = []
    for index, part in enumerate(sentence):
        writer = LineWriter(width, look)
        if index == 0:
            writer.put(f"{sign} {verdict.word}", _style(verdict, look))
        writer.to(indent).put(part, look.strong)
        if index == (0 if gain_first else 1) and verdict.gain and (gain_first or not gain_below):
            writer.at_right(verdict.gain, _gain_style(verdict, look))
        lines.append(writer.line())
    lines += [LineWriter(width, look).to(indent).put(part, look.dim).line() for part in because]
    if _has_change(verdict):
        lines.append(_change(verdict, width, indent, look, gain_here=gain_below))
    return lines


def _change(verdict: Verdict, width: int, indent: int, look: Look, *, gain_here: bool) -> Line:
    needed = indent + len(verdict.place) + 2 + len(verdict.change)
    key = "enter: the fix" if verdict.finding is not None else ""
    tail = verdict.gain if gain_here and verdict.gain else key if needed + len(key) + 2 <= width else ""
    style = _gain_style(verdict, look) if tail == verdict.gain else look.dim
    writer = LineWriter(width, look).to(indent)
    if verdict.place:
        writer.put(f"{verdict.place}  ", look.accent)
    writer.put(verdict.change, look.text, max(0, writer.room - len(tail) - 2))
    return writer.at_right(tail, style).line() if tail else writer.line()


def _gain_style(verdict: Verdict, look: Look) -> Style:
    return look.dim if verdict.gain == "hint" or verdict.gain.startswith("typically") else look.good


def _style(verdict: Verdict, look: Look) -> Style:
    if verdict.severity is not None:
        return look.severity(verdict.severity)
    return {"OK": look.good, "TRY": look.severity(Severity.HINT)}.get(verdict.word, look.info)
