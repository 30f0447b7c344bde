"""What a report sees of a recording.

Up to 15 minutes are played through the ordinary timeline and rules, so that the report is the one that would have been
written then. Of more, only the last minutes are played: they give what needs a scene. The figures of all of it are
put together from the recording's minutes, and the findings are those that were written down, with how long they lasted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from gpuwatch.diagnosis.engine import Engine
from gpuwatch.diagnosis.finding import Finding, Severity
from gpuwatch.diagnosis.thresholds import Settings
from gpuwatch.edits.source import read_recorded_source
from gpuwatch.monitor.recorded_findings import RecordedFindings, from_blob, severity_of
from gpuwatch.monitor.replay import Stage
from gpuwatch.monitor.snapshot import Origin, Snapshot
from gpuwatch.numbers import duration_words
from gpuwatch.recording.reader import Recording
from gpuwatch.recording.rollups import Hour
from gpuwatch.recording.schema import FindingSpan
from gpuwatch.recording.stretch import LONGEST_NS, LongStretch
from gpuwatch.report.observation import (
    FindingDuration,
    Key,
    Observation,
    Stretch,
    finding_stretches,
    fine_curves,
    longest,
    phase_stretches,
    short_history,
    total_seconds,
)
from gpuwatch.samples import PhaseSpan, RunFacts
from gpuwatch.timeline.timeline import Timeline
from gpuwatch.timeline.windows import Scene

_MINUTE = 60.0  # of which a long recording's curves are made
_TICKS_PER_SECOND = 100
_ENOUGH_STEPS, _ENOUGH_SECONDS = 100, 30.0
"""The rules ask for 30 steps behind the warm-up, and for 10 s more."""
_NOT_CLOSED = "the recording was not closed: it is still being written, or its writer was killed"
_OF_MINUTES = (
    "longer than 15 minutes: the figures, including percentiles, are computed from those of each minute; "
    "polls, records and stacks cover only the last minutes"
)
_OF_THEIR_TIME = (
    "the config's thresholds apply to reports of up to 15 minutes: these findings were judged during the recording"
)
_DEFAULTS = Settings()
_LEAST_SECONDS = 60.0


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
        return self.end_ns - self.start_ns > LONGEST_NS

    @property
    def is_judged_again(self) -> bool:
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
    latest, durations = snapshot.findings, durations_in(recording, start_ns, end_ns)
    if part.is_long:
        scene = LongStretch(recording, start_ns, end_ns).scene(scene)
    snapshot = replace(
        snapshot,
        time_ns=end_ns,
        started_ns=start_ns,
        wall_time=recording.wall_time(end_ns),
        findings=merged(latest, durations, start_ns, end_ns) if part.is_long else latest,
    )
    meta = recording.meta
    of_time = (timeline, scene, start_ns, end_ns, meta.interval_seconds)
    return Observation(
        snapshot=snapshot,
        scene=scene,
        charts=short_history(*of_time),
        curves=fine_curves(*of_time, least_seconds=_MINUTE if part.is_long else 0.0) if with_curves else (),
        stretches=_stretches(part, timeline, latest) if with_curves else (),
        notes=snapshot.notices,
        hostname=meta.hostname,
        problems=(*_problems(part), *(_unread(durations) if part.is_long else ())),
        durations={each.key: each for each in durations} if part.is_long else {},
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
        if part.is_judged_again:
            monitor.judge_with(Engine(settings=part.settings))
        monitor.run_until(end_ns)
        return stage.timeline, monitor.snapshot(), monitor.final_scene((end_ns - part.start_ns) / 1e9)
    finally:
        stage.close()


def _stretches(part: _Part, timeline: Timeline, latest: Sequence[Finding]) -> tuple[Stretch, ...]:
    """Its phases and its findings."""
    recording, start_ns, end_ns = part.recording, part.start_ns, part.end_ns
    if part.is_long:
        phases = recorded_phases(recording, timeline, start_ns, end_ns)
    else:
        phases = phase_stretches(timeline, start_ns, end_ns)
    if part.is_judged_again:
        return (*phases, *finding_stretches(latest, start_ns, end_ns))
    return (*phases, *finding_spans(recording, latest, start_ns, end_ns))


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


def _unread(durations: Sequence[FindingDuration]) -> Iterator[str]:
    """Which findings are left out because they cannot be read here."""
    rules = sorted({each.key[0] for each in durations if known(each.blob) is None})
    if rules:
        yield f"findings that this version of gpuwatch does not know are left out: {', '.join(rules)}"


def _origin(recording: Recording) -> Origin:
    label = recording.meta.label
    made_up = "" if label == "LIVE" else f" ({label})"
    return Origin("recording", f"RECORDING {recording.path.name}{made_up}")


def process_started(recording: Recording, facts: RunFacts) -> float | None:
    """When a recorded process started, as wall time; None where that is not known.

    Its start is counted from the boot of the machine, and the recording's clock stops in a suspend: the start cannot
    be later than the process's first sample.
    """
    if not facts.start_ticks:
        return None
    started_ns = facts.start_ticks * (1_000_000_000 // _TICKS_PER_SECOND)
    return recording.wall_time(min(started_ns, facts.time_ns))


class MinutesOnce(Recording):
    """Keeps what it has decoded, so it is for one report: a day of eight GPUs and their ranks is 300,000 figures."""

    _hours: dict[int, tuple[object, Hour]] | None = None

    def _hour(self, hour_ns: int, data: object) -> Hour:
        if self._hours is None:
            self._hours = {}
        before, hour = self._hours.get(hour_ns, (None, None))
        if hour is None or before != data:
            hour = super()._hour(hour_ns, data)
            self._hours[hour_ns] = (data, hour)
        return hour


def durations_in(recording: Recording, start_ns: int, end_ns: int) -> list[FindingDuration]:
    """All findings of the part, those that lasted longest first."""
    stretches: dict[Key, list[Stretch]] = {}
    last: dict[Key, tuple[int, bytes]] = {}
    for span, stretch in _present(recording, start_ns, end_ns):
        key = (span.rule, span.run, span.gpu)
        stretches.setdefault(key, []).append(stretch)
        last[key] = max(last.get(key, (0, b"")), (stretch.end_ns, span.blob))
    found = [
        FindingDuration(key, total_seconds(same), last[key][0] < end_ns, last[key][1])
        for key, same in stretches.items()
    ]
    return sorted(found, key=lambda each: (-each.seconds, each.key[0]))


def _present(recording: Recording, start_ns: int, end_ns: int) -> Iterator[tuple[FindingSpan, Stretch]]:
    """When findings were there, each time within the part that is reported on."""
    for span in recording.findings(start_ns, end_ns):
        if span.is_active:
            first_ns = max(start_ns, span.start_ns)
            until_ns = end_ns if span.end_ns is None else min(span.end_ns, end_ns)
            yield span, Stretch("finding", span.rule, first_ns, until_ns, span.run, span.gpu, severity_of(span))


def merged(
    latest: Sequence[Finding], durations: Iterable[FindingDuration], start_ns: int, end_ns: int
) -> tuple[Finding, ...]:
    """Those of the end and those that are over, each with its duration; worst first, brief ones after lasting ones."""
    total = (end_ns - start_ns) / 1e9
    now = {key_of(finding): finding for finding in latest}
    shown: list[tuple[float, Finding]] = []
    for each in durations:
        finding = now.pop(each.key, None) or known(each.blob)
        if finding is None:
            continue
        is_brief = each.is_over and each.seconds < _LEAST_SECONDS and finding.severity is not Severity.CRITICAL
        if not is_brief:
            shown.append((each.seconds, _with_duration(finding, each, total)))
    shown += [(0.0, finding) for finding in now.values()]
    return tuple(
        finding
        for seconds, finding in sorted(
            shown,
            key=lambda entry: (
                entry[1].behind is not None,
                entry[0] < total / 20 and entry[1].severity is not Severity.CRITICAL,
                entry[1].severity.order,
                -entry[0],
            ),
        )
    )


def finding_spans(recording: Recording, latest: Sequence[Finding], start_ns: int, end_ns: int) -> tuple[Stretch, ...]:
    """When findings were there, for the page's lanes; those of the end where the recording holds none."""
    series = {key_of(finding): finding.chart for finding in latest}
    found: dict[tuple[Key, Severity], list[Stretch]] = {}
    for span, stretch in _present(recording, start_ns, end_ns):
        key = (span.rule, span.run, span.gpu)
        if stretch.severity is None:
            continue
        if key not in series:
            finding = known(span.blob)
            series[key] = () if finding is None else finding.chart
        same = found.setdefault((key, stretch.severity), [])
        if same and stretch.start_ns <= same[-1].end_ns:  # it wavered between firing and clearing
            same[-1] = replace(same[-1], end_ns=max(stretch.end_ns, same[-1].end_ns))
        else:
            same.append(replace(stretch, series=series[key]))
    every = [each for same in found.values() for each in same]
    return longest(every, end_ns - start_ns) if every else finding_stretches(latest, start_ns, end_ns)


def key_of(finding: Finding) -> Key:
    """What distinguishes a finding from all others at the same time."""
    return (finding.rule, finding.run, finding.gpu)


def known(blob: bytes) -> Finding | None:
    """A finding as it was written down; None where another version did so in words that this one does not know."""
    try:
        return from_blob(blob)
    except ValueError:
        return None


def _with_duration(finding: Finding, lasted: FindingDuration, total: float) -> Finding:
    words = f"{duration_words(lasted.seconds)} of {duration_words(total)}"
    more = f"it lasted {words} and has ended" if lasted.is_over else f"so for {words}"
    return replace(finding, summary=f"{finding.summary}; {more}")


def recorded_phases(recording: Recording, timeline: Timeline, start_ns: int, end_ns: int) -> tuple[Stretch, ...]:
    """The phases of a long recording, each stretch of time once though several ranks had it."""
    runs = {trainer.trainer: run.id for run in timeline.runs(end_ns, end_ns - start_ns) for trainer in run.trainers}
    found = {}
    for sample in recording.samples(start_ns, end_ns, kinds=(PhaseSpan,)):
        if isinstance(sample, PhaseSpan) and sample.end_ns is not None and sample.trainer in runs:
            run = runs[sample.trainer]
            found[run, sample.kind, sample.start_ns // 1_000_000_000] = Stretch(
                "phase", sample.kind, max(start_ns, sample.start_ns), min(end_ns, sample.end_ns), run
            )
    return longest(found.values(), end_ns - start_ns)
