"""What a report sees of a recording.

Up to 15 minutes are played through the ordinary timeline and rules, so that the report is the one that would have been
written then. Of more, only the last minutes are played: they give what needs a scene. The figures of all of it are
put together from the recording's minutes, and the findings are those that were written down, with how long they stood.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from gpuwatch.diagnosis.engine import Engine
from gpuwatch.diagnosis.finding import Finding, Severity
from gpuwatch.diagnosis.settings import Settings
from gpuwatch.edits.source import read_recorded_source
from gpuwatch.monitor.recorded_findings import RecordedFindings, from_blob, severity_of
from gpuwatch.monitor.replay import Stage
from gpuwatch.monitor.snapshot import Origin, Snapshot
from gpuwatch.recording.reader import Recording
from gpuwatch.recording.tiers import Hour
from gpuwatch.report.observation import (
    Key,
    Observation,
    Stood,
    Stretch,
    finding_stretches,
    fine_curves,
    longest,
    phase_stretches,
    short_history,
    total_seconds,
)
from gpuwatch.report.recorded_minutes import recorded_phases, scene_of_minutes
from gpuwatch.samples import RunFacts
from gpuwatch.text.numbers import duration_words
from gpuwatch.timeline.timeline import Timeline
from gpuwatch.timeline.windows import Scene

LONGEST_PLAYED_NS = 900 * 1_000_000_000
"""As far as the timeline keeps samples one by one."""
_MINUTE = 60.0  # of which a long recording's curves are made
_TICKS_PER_SECOND = 100
_ENOUGH_STEPS, _ENOUGH_SECONDS = 100, 30.0
"""The rules ask for 30 steps behind the warm-up, and for 10 s more."""
_NOT_CLOSED = "the recording was not closed: it is still being written, or what wrote it was killed"
_OF_MINUTES = (
    "more than 15 minutes: the figures are those of the recording's minutes, percentiles are put together from theirs; "
    "polls, records and stacks are those of the last minutes"
)
_OF_THEIR_TIME = (
    "thresholds of the config count for a report of up to 15 minutes: these findings are those of the time of recording"
)
_DEFAULTS = Settings()


@dataclass(frozen=True, slots=True)
class _Part:
    """The part (start, end] of a recording that is reported on."""

    recording: Recording
    start_ns: int
    end_ns: int
    settings: Settings

    @property
    def is_long(self) -> bool:
        """Whether only its last minutes are played."""
        return self.end_ns - self.start_ns > LONGEST_PLAYED_NS

    @property
    def is_judged_anew(self) -> bool:
        """Whether its findings are those of thresholds that the recording knows nothing of."""
        return bool(self.settings.thresholds) and not self.is_long


def observe(
    recording: Recording, start_ns: int, end_ns: int, *, with_curves: bool, settings: Settings = _DEFAULTS
) -> Observation:
    """The part (start, end] of a recording.

    Args:
        recording: that is reported on.
        start_ns: where the part begins.
        end_ns: where it ends.
        with_curves: whether they are needed: for a page.
        settings: thresholds that the rules are to judge by, where it is played; the recording has words for its own.
    """
    part = _Part(recording, start_ns, end_ns, settings)
    timeline, snapshot, scene = _played(part)
    standing, stood = snapshot.findings, stood_in(recording, start_ns, end_ns)
    if part.is_long:
        scene = scene_of_minutes(scene, recording, start_ns, end_ns)
    snapshot = replace(
        snapshot,
        time_ns=end_ns,
        started_ns=start_ns,
        wall_time=recording.wall_time(end_ns),
        findings=merged(standing, stood, start_ns, end_ns) if part.is_long else standing,
    )
    meta = recording.meta
    of_time = (timeline, scene, start_ns, end_ns, meta.interval_seconds)
    return Observation(
        snapshot=snapshot,
        scene=scene,
        charts=short_history(*of_time),
        curves=fine_curves(*of_time, least_seconds=_MINUTE if part.is_long else 0.0) if with_curves else (),
        stretches=_stretches(part, timeline, standing) if with_curves else (),
        notes=snapshot.notices,
        hostname=meta.hostname,
        problems=(*_problems(part), *(_unread(stood) if part.is_long else ())),
        stood={each.key: each for each in stood} if part.is_long else {},
        read_source=partial(read_recorded_source, recording.path) if meta.label == "LIVE" else None,
        process_started=lambda facts: process_started(recording, facts),
        judged=_judged(scene) if part.is_long else frozenset(),
        zero=recording.start_ns,
    )


def _played(part: _Part) -> tuple[Timeline, Snapshot, Scene]:
    """What its playing has left in the timeline, on the screen and before the rules."""
    recording, end_ns = part.recording, part.end_ns
    since_ns = None if part.is_long else part.start_ns
    stage = Stage(recording, RecordedFindings(recording), end_ns, _origin(recording), 1.0, since_ns=since_ns)
    try:
        monitor = stage.monitor
        if part.is_judged_anew:
            monitor.judge_with(Engine(settings=part.settings))
        monitor.run_until(end_ns)
        return stage.timeline, monitor.snapshot(), monitor.final_scene((end_ns - part.start_ns) / 1e9)
    finally:
        stage.close()


def _stretches(part: _Part, timeline: Timeline, standing: Sequence[Finding]) -> tuple[Stretch, ...]:
    """Its phases, and when its findings stood."""
    recording, start_ns, end_ns = part.recording, part.start_ns, part.end_ns
    if part.is_long:
        phases = recorded_phases(recording, timeline, start_ns, end_ns)
    else:
        phases = phase_stretches(timeline, start_ns, end_ns)
    if part.is_judged_anew:
        return (*phases, *finding_stretches(standing, start_ns, end_ns))
    return (*phases, *finding_spans(recording, standing, start_ns, end_ns))


def _problems(part: _Part) -> tuple[str, ...]:
    """What a reader has to know of its figures; of damage, what has been met by now."""
    meta = part.recording.meta
    return (
        *((meta.problem,) if meta.problem else ()),
        *(() if meta.ended else (_NOT_CLOSED,)),
        *((_OF_MINUTES,) if part.is_long else ()),
        *((_OF_THEIR_TIME,) if part.is_long and part.settings.thresholds else ()),
    )


def _judged(scene: Scene) -> frozenset[str]:
    """The runs that had ended before what was played, after more than the rules need to speak."""
    return frozenset(
        run.id
        for run in scene.runs
        if run.critical.ended is not None
        and not run.critical.columns.end_ns
        and run.critical.steps >= _ENOUGH_STEPS
        and run.critical.train_seconds >= _ENOUGH_SECONDS
    )


def _unread(stood: Sequence[Stood]) -> Iterator[str]:
    """Which findings are left out because they cannot be read here."""
    rules = sorted({each.key[0] for each in stood if known(each.blob) is None})
    if rules:
        yield f"findings in words that this version of gpuwatch does not know are left out: {', '.join(rules)}"


def _origin(recording: Recording) -> Origin:
    label = recording.meta.label
    made_up = "" if label == "LIVE" else f" ({label})"
    return Origin("recording", f"RECORDING {recording.path.name}{made_up}")


def process_started(recording: Recording, facts: RunFacts) -> float | None:
    """When a recorded process started, as wall time; None where that is not known.

    Its start is counted from the boot of the machine, and the recording's clock stands still in a suspend: a moment
    that would lie behind the process's first word is no start.
    """
    if not facts.start_ticks:
        return None
    started_ns = facts.start_ticks * (1_000_000_000 // _TICKS_PER_SECOND)
    return recording.wall_time(min(started_ns, facts.time_ns))


class MinutesOnce(Recording):
    """Keeps what it has decoded, so it is for one report: a day of eight GPUs and their ranks is 300 000 figures."""

    _hours: dict[int, tuple[object, Hour]] | None = None

    def _hour(self, hour_ns: int, data: object) -> Hour:
        if self._hours is None:
            self._hours = {}
        before, hour = self._hours.get(hour_ns, (None, None))
        if hour is None or before != data:
            hour = super()._hour(hour_ns, data)
            self._hours[hour_ns] = (data, hour)
        return hour


_STANDS = ("firing", "clearing")
_LEAST_SECONDS = 60.0


def stood_in(recording: Recording, start_ns: int, end_ns: int) -> list[Stood]:
    """All findings of a stretch, those that stood longest first."""
    spans: dict[Key, list[Stretch]] = {}
    last: dict[Key, tuple[int, bytes]] = {}
    for span in recording.findings(start_ns, end_ns):
        if span.state not in _STANDS:
            continue
        key = (span.rule, span.run, span.gpu)
        until_ns = end_ns if span.end_ns is None else min(span.end_ns, end_ns)
        spans.setdefault(key, []).append(Stretch("finding", span.rule, max(start_ns, span.start_ns), until_ns))
        last[key] = max(last.get(key, (0, b"")), (until_ns, span.blob))
    found = [Stood(key, total_seconds(spans[key]), last[key][0] < end_ns, last[key][1]) for key in spans]
    return sorted(found, key=lambda each: (-each.seconds, each.key[0]))


def merged(standing: Sequence[Finding], stood: Iterable[Stood], start_ns: int, end_ns: int) -> tuple[Finding, ...]:
    """Those that stand and those that did, each saying for how long; worst first, brief ones behind lasting ones."""
    total = (end_ns - start_ns) / 1e9
    now = {key_of(finding): finding for finding in standing}
    told: list[tuple[float, Finding]] = []
    for each in stood:
        finding = now.pop(each.key, None) or known(each.blob)
        if finding is None:
            continue
        is_brief = each.is_over and each.seconds < _LEAST_SECONDS and finding.severity is not Severity.CRITICAL
        if not is_brief:
            told.append((each.seconds, _with_length(finding, each, total)))
    told += [(0.0, finding) for finding in now.values()]
    return tuple(
        finding
        for seconds, finding in sorted(
            told,
            key=lambda entry: (
                entry[1].behind is not None,
                entry[0] < total / 20 and entry[1].severity is not Severity.CRITICAL,
                entry[1].severity.order,
                -entry[0],
            ),
        )
    )


def finding_spans(recording: Recording, standing: Sequence[Finding], start_ns: int, end_ns: int) -> tuple[Stretch, ...]:
    """When findings stood, for the page's lanes; as the rules say it now, where nothing was written down."""
    series = {key_of(finding): finding.chart for finding in standing}
    found: dict[tuple[Key, Severity], list[Stretch]] = {}
    for span in recording.findings(start_ns, end_ns):
        key, severity = (span.rule, span.run, span.gpu), severity_of(span)
        if span.state not in _STANDS or severity is None:
            continue
        if key not in series:
            finding = known(span.blob)
            series[key] = () if finding is None else finding.chart
        first_ns = max(start_ns, span.start_ns)
        until_ns = end_ns if span.end_ns is None else min(end_ns, span.end_ns)
        same = found.setdefault((key, severity), [])
        if same and first_ns <= same[-1].end_ns:  # it wavered between firing and clearing
            same[-1] = replace(same[-1], end_ns=max(until_ns, same[-1].end_ns))
        else:
            same.append(Stretch("finding", span.rule, first_ns, until_ns, span.run, span.gpu, severity, series[key]))
    every = [each for same in found.values() for each in same]
    return longest(every, end_ns - start_ns) if every else finding_stretches(standing, start_ns, end_ns)


def key_of(finding: Finding) -> Key:
    """What tells a finding from all others that stand at the same time."""
    return (finding.rule, finding.run, finding.gpu)


def known(blob: bytes) -> Finding | None:
    """A finding as it was written down; None where another version did so in words that this one does not know."""
    try:
        return from_blob(blob)
    except ValueError:
        return None


def _with_length(finding: Finding, stood: Stood, total: float) -> Finding:
    """Its sentence is of when it stood: one that is over says that it is."""
    length = f"{duration_words(stood.seconds)} of {duration_words(total)}"
    told = f"it stood for {length} and is over" if stood.is_over else f"so for {length}"
    return replace(finding, summary=f"{finding.summary}; {told}")
