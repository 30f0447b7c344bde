"""What a report sees of a recording.

Up to 15 minutes are played through the ordinary timeline and rules, so that the report is the one that would have been
written then. Of more, only the last minutes are played: they give what needs a scene. The figures of all of it are
put together from the recording's minutes, and the findings are those that were written down, with how long they lasted.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from gpuwatch import metrics
from gpuwatch.diagnosis.engine import Engine
from gpuwatch.diagnosis.finding import Finding, Severity
from gpuwatch.diagnosis.settings import Settings
from gpuwatch.edits.source import read_recorded_source
from gpuwatch.monitor.recorded_findings import RecordedFindings, from_blob, severity_of
from gpuwatch.monitor.replay import Stage
from gpuwatch.monitor.snapshot import Origin, Snapshot
from gpuwatch.recording import pooled
from gpuwatch.recording.minutes import known_in
from gpuwatch.recording.pooled import NO_MINUTES, MinuteColumns, Part
from gpuwatch.recording.reader import Recording
from gpuwatch.recording.summary import FEWEST_TRAINING_MINUTES, PAUSES, RunSummary, summarize, unpaused
from gpuwatch.recording.tiers import Hour
from gpuwatch.recording.types import FindingSpan
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
from gpuwatch.text.numbers import duration_words
from gpuwatch.timeline.figures import sampled_wait_share
from gpuwatch.timeline.gpu import THROTTLES
from gpuwatch.timeline.spans import Span
from gpuwatch.timeline.tiers import MINUTE_NS
from gpuwatch.timeline.timeline import Timeline
from gpuwatch.timeline.windows import GpuWindow, HostWindow, PhaseTotals, RankWindow, RunWindow, Scene, Stats

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
_LEAST_SECONDS = 60.0

_GAUGES = tuple(metric.name for metric in metrics.charted("gpu"))
_CAUSES = {cause: metrics.GPU[throttle.counter].minute for cause, throttle in THROTTLES.items()}
_PHASES = ("warmup", "eval", "checkpoint", "compile", "gc", "stopped", "user")
_HOST = ("cpu_percent", "pressure_cpu_percent", "pressure_io_percent", "pressure_memory_percent")
_PARTS = ("wait", "settled_gap", "copy", "forward", "backward", "optimizer")
_STEPS = ("step_seconds", *(f"{part}_seconds" for part in _PARTS), *map(known_in, (*_PARTS, "samples")))
_OTHERS = ("energy_joules", "step_batches", "step_samples", "counted_batches", "stack_wait_train_share")
METRICS = frozenset(
    (*_GAUGES, *_CAUSES.values(), *_HOST, *_STEPS, *_OTHERS, *(f"{kind}_phase_seconds" for kind in _PHASES))
)
"""All that a long report asks the minutes for."""
_OF_SWING = ("count", "mean", "sigma", "min", "max", "p5")
_UNKNOWN = math.nan

Minutes = Mapping[tuple[str, str], MinuteColumns]
"""By subject and metric."""


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
        scene = scene_of_minutes(scene, recording, start_ns, end_ns)
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
        yield f"findings in words that this version of gpuwatch does not know are left out: {', '.join(rules)}"


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
    more = f"it stood for {words} and is over" if lasted.is_over else f"so for {words}"
    return replace(finding, summary=f"{finding.summary}; {more}")


def scene_of_minutes(scene: Scene, recording: Recording, start_ns: int, end_ns: int) -> Scene:
    """The scene with the means, extremes and sums of all minutes; what minutes do not hold is not known."""
    minutes = recording.minutes(start_ns, end_ns, metrics=METRICS)
    seconds = (end_ns - start_ns) / 1e9
    counted = any((rank.trainer, "step_seconds") not in minutes for run in scene.runs for rank in run.ranks)
    summaries = {run.id: run for run in summarize(recording, start_ns, end_ns).runs} if counted else {}
    training = {uuid: _training(run, minutes) for run in scene.runs for uuid in run.gpu_uuids}
    return replace(
        scene,
        started_ns=start_ns,
        window_seconds=seconds,
        gpus=tuple(_gpu(gpu, minutes, training.get(gpu.facts.uuid, frozenset()), seconds) for gpu in scene.gpus),
        runs=tuple(_run(run, summaries.get(run.id), minutes, (start_ns, end_ns)) for run in scene.runs),
        host=None if scene.host is None else _host(scene.host, minutes),
    )


def _host(host: HostWindow, minutes: Minutes) -> HostWindow:
    def mean(metric: str) -> float | None:
        return pooled.mean(minutes.get(("host", metric), NO_MINUTES))

    return replace(
        host,
        cpu_percent=mean("cpu_percent"),
        pressure_cpu_percent=mean("pressure_cpu_percent"),
        pressure_io_percent=mean("pressure_io_percent"),
        pressure_memory_percent=mean("pressure_memory_percent"),
    )


def _training(run: RunWindow, minutes: Minutes) -> frozenset[int]:
    """The minutes in which a run trained and no pause of its ended, as a summary of the recording takes them."""
    training: set[int] = set()
    for rank in run.ranks:
        counts = [minutes.get((rank.trainer, metric), NO_MINUTES) for metric in ("step_seconds", "counted_batches")]
        made = sorted({at_ns for found in counts for at_ns in found.column("minute_ns")})
        phases = [minutes.get((rank.trainer, f"{kind}_phase_seconds"), NO_MINUTES) for kind in PAUSES]
        pauses = (pair for found in phases for pair in zip(found.column("minute_ns"), found.column("max"), strict=True))
        training |= unpaused(made[1:] or made, pauses)  # the first one is warm-up
    return frozenset(training)


def _only(found: MinuteColumns, wanted: Collection[int]) -> MinuteColumns:
    """Some of the minutes; none where they are too few to be called training."""
    places = [place for place, at_ns in enumerate(found.column("minute_ns")) if at_ns in wanted]
    if len(places) < FEWEST_TRAINING_MINUTES:
        return NO_MINUTES
    columns = {name: list(map(found.column(name).__getitem__, places)) for name in _OF_SWING}
    return MinuteColumns([Part(columns, 0, len(places))])


def _gpu(gpu: GpuWindow, minutes: Minutes, training: Collection[int], seconds: float) -> GpuWindow:
    uuid = gpu.facts.uuid

    def stats(metric: str) -> Stats | None:
        return _stats(minutes.get((uuid, metric), NO_MINUTES), with_percentiles=metric == "utilization_percent")

    energy = minutes.get((uuid, "energy_joules"), NO_MINUTES)
    throttled = {cause: pooled.mean(minutes.get((uuid, metric), NO_MINUTES)) for cause, metric in _CAUSES.items()}
    return replace(
        gpu,
        window_seconds=seconds,
        energy_joules=pooled.total(energy) if energy else None,
        throttle_shares={cause: min(1.0, share) for cause, share in throttled.items() if share is not None},
        utilization=stats("utilization_percent"),
        train_utilization=_stats(_only(minutes.get((uuid, "utilization_percent"), NO_MINUTES), training)),
        power_watts=stats("power_watts"),
        memory_used_bytes=stats("memory_used_bytes"),
        temperature_celsius=stats("temperature_celsius"),
        sm_clock_mhz=stats("sm_clock_mhz"),
    )


def _stats(found: MinuteColumns, *, with_percentiles: bool = False) -> Stats | None:
    """Percentiles are asked for where they are shown."""
    swing = pooled.swing(found)
    if swing is None:
        return None
    p5, p50, p95 = pooled.quantiles(found, (0.05, 0.5, 0.95)) if with_percentiles else (None, None, None)
    if not all(part.has_p5 for part in found.parts):
        p5 = None
    return Stats(
        count=pooled.count(found),
        mean=swing.mean,
        sigma=swing.sigma,
        p5=_UNKNOWN if p5 is None else p5,
        p50=_UNKNOWN if p50 is None else p50,
        p95=_UNKNOWN if p95 is None else p95,
        min=pooled.least(found),
        max=pooled.greatest(found),
    )


def _run(run: RunWindow, summary: RunSummary | None, minutes: Minutes, span: Span) -> RunWindow:
    ranks = tuple(_rank(rank, minutes, span) for rank in run.ranks)
    living = [rank for rank in ranks if rank.ended is None] or ranks
    critical = max(living, key=lambda rank: rank.wait_share or 0.0, default=run.critical)
    if critical.step_seconds is not None:
        rates = [rank.samples_per_second for rank in living if rank.samples_per_second is not None]
        return replace(run, ranks=ranks, critical=critical, samples_per_second=sum(rates) if rates else None)
    if summary is None:
        return replace(run, ranks=ranks, critical=critical)
    # Seen from outside: its batches were counted.
    critical = next((rank for rank in ranks if rank.trainer == summary.facts.trainer), critical)
    counted = replace(critical, steps=summary.steps, train_seconds=summary.train_seconds, wait_share=summary.wait_share)
    ranks = tuple(counted if rank is critical else rank for rank in ranks)
    return replace(run, ranks=ranks, critical=counted, samples_per_second=summary.samples_per_second)


def _rank(rank: RankWindow, minutes: Minutes, span: Span) -> RankWindow:
    """One rank: shares are sums over sums, of the steps in which the part is known."""

    def rows(metric: str) -> MinuteColumns:
        return minutes.get((rank.trainer, metric), NO_MINUTES)

    def share(part: str) -> float | None:
        return pooled.share(periods, rows(f"{part}_seconds"), rows(known_in(part)))

    periods = rows("step_seconds")
    train = pooled.total(periods)
    phases = {
        kind: found
        for kind in _PHASES
        if (found := _phase(kind, rows(f"{kind}_phase_seconds"), rank.open_phase, span)) is not None
    }
    rank = replace(rank, window_seconds=(span[1] - span[0]) / 1e9, phases=phases)
    if not periods:
        counted, waits = rows("counted_batches"), rows("stack_wait_train_share")
        waited = sampled_wait_share(pooled.mean(waits), reads_loader=rank.train_loader is not None)
        return replace(rank, steps=round(pooled.total(counted)), wait_share=waited) if counted else rank
    return replace(
        rank,
        samples_per_second=pooled.share(periods, rows("step_samples"), rows(known_in("samples"))),
        batches_per_step=pooled.mean(rows("step_batches")),
        steps=pooled.count(periods),
        train_seconds=train,
        step_seconds=_stats(periods, with_percentiles=True),
        wait_share=share("wait"),
        wait_seconds=pooled.mean(rows("wait_seconds")),
        gap_share=share("settled_gap"),
        copy_share=share("copy"),
        forward_share=share("forward"),
        backward_share=share("backward"),
        optimizer_share=share("optimizer"),
    )


def _phase(kind: str, rows: MinuteColumns, open_phase: PhaseSpan | None, span: Span) -> PhaseTotals | None:
    """All of one kind, as far as the span holds it: the phases that ended, by minute, and the one that still lasts."""
    start_ns, end_ns = span
    lengths, longest, count = [], [], 0
    for minute_ns, amount, mean, most in zip(*map(rows.column, ("minute_ns", "count", "mean", "max")), strict=True):
        room = (min(minute_ns + MINUTE_NS, end_ns) - start_ns) / 1e9
        count += amount
        lengths.append(min(amount * mean, room))
        longest.append(min(most, room))
    if open_phase is not None and open_phase.kind == kind and open_phase.end_ns is None:
        count += 1
        lengths.append((end_ns - max(start_ns, open_phase.start_ns)) / 1e9)
        longest.append(lengths[-1])
    if not count:
        return None
    total = min(math.fsum(lengths), (end_ns - start_ns) / 1e9)
    return PhaseTotals(
        kind=kind,
        count=count,
        seconds=total,
        share=total * 1e9 / (end_ns - start_ns),
        longest_seconds=max(longest),
    )


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
