"""What the eye lands on: one sentence per run and per broken GPU, the gain, and the line to change."""

from __future__ import annotations

from dataclasses import dataclass

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
    gain_words,
    gpu_count,
    gpu_index,
    is_searching,
    is_starting,
    offer,
    place_of,
    run_name,
    standing_of,
    standing_words,
    unhooked,
    window_of,
)
from gpuwatch.diagnosis.finding import Finding, Severity
from gpuwatch.diagnosis.gates import have_spoken
from gpuwatch.diagnosis.track import EVALUATION_NS
from gpuwatch.monitor.snapshot import STEPLESS, RunNow, Snapshot

DATA_PHASE = 'its batches come from no DataLoader: put what makes them into `with gpuwatch.phase("data"):`'


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
    told = [finding for finding in snapshot.findings if key_of(finding) not in view.snoozed]
    found: list[Verdict] = []
    over: list[Verdict] = []
    lives = any(run.state != "ended" for run in snapshot.runs)
    spoken_for: set[int] = set()
    for run in snapshot.runs:
        own = [finding for finding in told if _concerns(finding, run, snapshot)]
        spoken_for.update(id(finding) for finding in own)
        (over if lives and run.state == "ended" else found).append(_of_run(run, own, snapshot))
    for finding in told:
        loud = finding.severity in (Severity.CRITICAL, Severity.WARNING)
        if id(finding) not in spoken_for and loud and finding.behind is None:
            found.append(_of_finding(finding, snapshot))
    if not snapshot.runs or (offer(snapshot) and all(run.state == "ended" for run in snapshot.runs)):
        found.append(_without_run(snapshot))
    found += [Verdict(None, "NOTICE", say.escape(notice)) for notice in snapshot.notices]
    if snapshot.recording is not None and snapshot.recording.problem is not None:
        found.append(Verdict(None, "NOTICE", say.escape(snapshot.recording.problem)))
    return [*sorted(found, key=_badness), *sorted(over, key=_badness)]


def _badness(verdict: Verdict) -> int:
    return verdict.severity.order if verdict.severity else len(Severity)


def _concerns(finding: Finding, run: RunNow, snapshot: Snapshot) -> bool:
    if finding.run is not None:
        return finding.run == run.id
    if finding.gpu is None:
        return False
    used = {gpu.facts.uuid for gpu in snapshot.gpus if gpu.facts.index in run.gpu_indices}
    return finding.gpu in used


def _of_run(run: RunNow, findings: list[Finding], snapshot: Snapshot) -> Verdict:
    first = [finding for finding in findings if finding.behind is None] or findings
    loud = [finding for finding in first if finding.severity in (Severity.CRITICAL, Severity.WARNING)]
    if loud:
        return _of_finding(min(loud, key=lambda finding: finding.severity.order), snapshot, run)
    state = _state_sentence(run, snapshot)
    if state is not None:
        climb = run.how_to_climb if run.state not in ("ended", "not linked") else None
        because = _stands(run, snapshot) or say.escape(climb or "")
        return Verdict(None, run.state.upper(), f"{run_name(run)}: {state}", because=because)
    if not first and not is_judged(run, snapshot):
        return Verdict(None, "WATCHING", f"{run_name(run)}: not judged yet, {_wait_words(run)} so far")
    if _is_blind(run):
        sentence = f"{run_name(run)}: no warning, but {_wait_words(run)} ({believed(run, snapshot)})"
        return Verdict(None, "WATCHING", sentence, because=DATA_PHASE)
    sentence = f"{run_name(run)}: nothing to change, {_wait_words(run)} ({believed(run, snapshot)})"
    if not first:
        return Verdict(None, "OK", sentence)
    hint = first[0]
    return Verdict(
        None,
        "OK",
        sentence,
        gain=gain_words(hint),
        place=place_of(hint),
        change=f"to try: {hint.fix.text if hint.fix else hint.summary}",
        finding=hint,
    )


def is_judged(run: RunNow, snapshot: Snapshot) -> bool:
    """Whether no finding means that there is none; where no window was cut yet, the rules get time to look twice."""
    window = window_of(run, snapshot)
    if window is None:
        return snapshot.time_ns - snapshot.started_ns >= 2 * EVALUATION_NS
    return have_spoken(window.critical, snapshot.time_ns, snapshot.started_ns)


def _is_blind(run: RunNow) -> bool:
    """Whether the batches come from where the hook sees nothing, so that no rule about them can fire."""
    return run.gap_share is None and run.wait_share is None


def _wait_words(run: RunNow) -> str:
    if run.gap_share is not None:
        return f"the GPU waits for data {say.share(run.gap_share)} of the time"
    if run.wait_share is not None:
        return f"it waits for data {say.share(run.wait_share)} of the time"
    return "the wait for data is not measured"


def _state_sentence(run: RunNow, snapshot: Snapshot) -> str | None:
    """What keeps a run from a verdict, if anything does."""
    if run.state == "starting":
        return "no training step yet"
    if run.state == "warming up":
        made = "batches" if run.rung == "sampled" else "steps"
        return f"{say.count(run.steps_total)} {made} so far, judged once their time is steady"
    if run.state == "silent":
        return f"no step for {_last_step_age(run, snapshot)}"
    if run.state == "not training":
        return f"no training loop is running, last step {_last_step_age(run, snapshot)} ago"
    if run.state == "stopped":
        return "stopped by a signal (SIGSTOP, Ctrl-Z), not starved"
    if run.state == "ended":
        if run.rung == "sampled" and not run.steps_total:
            return "ended; its batches were not counted"
        return f"ended after {say.count(run.steps_total)} {'batches' if run.rung == 'sampled' else 'steps'}"
    if run.state == "not hooked":
        return "not hooked, so its steps and waits are not seen"
    if run.state == "not linked":
        return run.how_to_climb or "hooked, but not linked to this gpuwatch"
    return None


def _stands(run: RunNow, snapshot: Snapshot) -> str:
    """Where a run that makes no steps stands, with the code of that line."""
    standing = standing_of(run, snapshot) if run.state in STEPLESS else None
    if standing is None:
        return ""
    code = f": {say.escape(standing.text.strip())}" if standing.text else ""
    return f"{standing_words(standing)}{code}"


def _last_step_age(run: RunNow, snapshot: Snapshot) -> str:
    return "a while" if run.last_step_ns is None else say.age(snapshot.time_ns - run.last_step_ns)


def _of_finding(finding: Finding, snapshot: Snapshot, run: RunNow | None = None) -> Verdict:
    prefix, summary = "", finding.summary
    if run is not None:
        prefix, summary = _named(run, summary)
    elif finding.gpu is not None:
        index = gpu_index(finding.gpu, snapshot)
        prefix = "" if index is None or f"GPU {index}" in summary else f"GPU {index}: "
    if prefix and summary[1:2].islower():
        summary = summary[0].lower() + summary[1:]
    return Verdict(
        severity=finding.severity,
        word=finding.severity.value.upper(),
        sentence=say.escape(prefix + summary),
        gain=gain_words(finding),
        because=say.escape(", ".join(measure.text for measure in finding.evidence[:3])),
        place=place_of(finding),
        change=change_words(finding, snapshot),
        finding=finding,
    )


def _named(run: RunNow, summary: str) -> tuple[str, str]:
    """The run's name before what is said of it: several runs may be of one script, and a line of it is no name."""
    name = run_name(run)
    if summary.startswith(name):
        return "", summary
    if summary.startswith(f"{run.title} "):
        return name, summary.removeprefix(run.title)
    return f"{name}{', ended' if run.state == 'ended' else ''}: ", summary


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
"""Below this width the gain stands beside the change, so that the sentence has the whole line."""


def verdict_box(told: list[Verdict], width: int, height: int, look: Look, *, framed: bool) -> list[Line]:
    """The verdicts in exactly `height` lines, the worst first; those without room are counted."""
    inner = width - 4 if framed else width - 2
    room = height - (2 if framed else 1)
    lines: list[Line] = []
    shown = 0
    for verdict in told:
        if len(lines) >= room:
            break
        lines += _lines_of(verdict, inner, look, full=framed)[: room - len(lines)]
        shown += 1
    hidden = len(told) - shown
    more = f"and {hidden} more" if hidden else ""
    lines += [LineWriter(inner, look).line()] * (room - len(lines))
    if framed:
        return boxed(lines, TITLE, width, look, _style(told[0], look), right=more)
    edge = LineWriter(1, look).line()
    return [rule(TITLE, width, look, right=more), *((*edge, *line, *edge) for line in lines)]


def wanted_lines(told: list[Verdict], width: int, *, framed: bool) -> int:
    """How many lines the box would like, frame included."""
    inner = width - 4 if framed else width - 2
    lines = 0
    for verdict in told:
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
    quiet = look.glyphs.fine if verdict.word == "OK" else look.glyphs.info
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
    return look.good if verdict.gain != "hint" else look.dim


def _style(verdict: Verdict, look: Look) -> Style:
    if verdict.severity is not None:
        return look.severity(verdict.severity)
    return look.good if verdict.word == "OK" else look.info
