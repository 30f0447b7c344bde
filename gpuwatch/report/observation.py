"""What a report is made of: everything that was seen, frozen at its end, its curves, and what lay over their time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from gpuwatch.diagnosis.finding import Finding, Severity
from gpuwatch.edits.source import process_started
from gpuwatch.metrics import charted
from gpuwatch.monitor.snapshot import Snapshot
from gpuwatch.report.model import MOST_POINTS
from gpuwatch.samples import PhaseSpan, RunFacts
from gpuwatch.timeline.charts import Chart, Series
from gpuwatch.timeline.timeline import Timeline
from gpuwatch.timeline.windows import Scene

HISTORY_BUCKETS = 60
_LEAST_SECONDS = 0.25  # the drivers' rings hold utilization and power several times a second
_RING_SECONDS = 540.0  # what is kept of them reaches ten minutes back: beyond it, a fine curve would have a hole


def _names(subject: str, *, only_headline: bool = False) -> tuple[str, ...]:
    return tuple(metric.series for metric in charted(subject, only_headline=only_headline))


_HISTORY_OF_GPU = _names("gpu", only_headline=True)
_HISTORY_OF_RUN = _names("run", only_headline=True)
OF_GPU, OF_RUN, OF_HOST = _names("gpu"), _names("run"), _names("host")
_MOST = 400
_NARROWEST = 1 / 2000  # of the report's time: less than a column of any screen


@dataclass(frozen=True, slots=True)
class Stretch:
    """A phase or a finding with its beginning and its end."""

    kind: Literal["phase", "finding"]
    name: str
    start_ns: int
    end_ns: int
    run: str | None = None
    gpu: str | None = None
    severity: Severity | None = None
    series: tuple[str, ...] = ()  # that show a finding


Key = tuple[str, "str | None", "str | None"]
"""Rule, run, GPU."""


@dataclass(frozen=True, slots=True)
class FindingDuration:
    """How long a finding lasted in a part of a recording, and as what it was last written down."""

    key: Key
    seconds: float
    is_over: bool
    blob: bytes


def started_here(facts: RunFacts) -> float | None:
    """When a process of this machine started."""
    return process_started(facts.start_ticks)


@dataclass(frozen=True, slots=True)
class Observation:
    """One session. `scene` covers all of it, `snapshot` holds the findings of its last evaluation.

    `charts` are the short ones of every report, `curves` those of a page with charts: up to 1,500 points each.
    """

    snapshot: Snapshot
    scene: Scene
    charts: tuple[Chart, ...] = ()
    curves: tuple[Chart, ...] = ()
    stretches: tuple[Stretch, ...] = ()
    interrupted: bool = False
    notes: tuple[str, ...] = ()
    read_source: Callable[[Path, float | None, RunFacts | None], bytes] | None = None
    """Reads the user's file for a diff; None where files named by the samples are not this machine's."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """By rule: why the user's settings leave it out."""
    process_started: Callable[[RunFacts], float | None] = started_here
    """When a process of the samples started, as wall time: a source file changed since is not what ran."""
    hostname: str = ""
    """Of a recording that does not hold the machine's facts."""
    problems: tuple[str, ...] = ()
    """What is missing of a recording, and how the rest was put together."""
    durations: Mapping[Key, FindingDuration] = field(default_factory=dict)
    """How long findings lasted, where the report is of a long recording."""
    judged: frozenset[str] = frozenset()
    """Runs that were judged while they were recorded, of which `scene` holds figures and no steps."""
    zero: int | None = None
    """What curves count their seconds from, where that is not the beginning: that of a recording."""

    @property
    def clock_jump_seconds(self) -> float:
        """By how much the clock on the wall went ahead of the time that passed; about 0 where it was not set."""
        start_ns, end_ns = self.snapshot.started_ns, self.snapshot.time_ns
        return self.snapshot.wall_time_at(end_ns) - self.snapshot.wall_time_at(start_ns) - (end_ns - start_ns) / 1e9

    @property
    def zero_ns(self) -> int:
        """The moment 0 of all curves."""
        return self.snapshot.started_ns if self.zero is None else self.zero


def leave_out(seen: Observation, ignored: Mapping[str, str]) -> Observation:
    """The same without these rules' findings, none of which comes before another one.

    Args:
        seen: what is to be reported.
        ignored: why, by rule.
    """
    kept = tuple(
        replace(finding, behind=None) if finding.behind in ignored else finding
        for finding in seen.snapshot.findings
        if finding.rule not in ignored
    )
    return replace(
        seen,
        snapshot=replace(seen.snapshot, findings=kept),
        stretches=tuple(each for each in seen.stretches if each.kind != "finding" or each.name not in ignored),
        left_out=ignored,
    )


def short_history(
    timeline: Timeline, scene: Scene, start_ns: int, end_ns: int, interval_seconds: float
) -> tuple[Chart, ...]:
    """Utilization and power of each GPU, waits and step time of each run: a line of text each."""
    # A bucket holds at least one poll: finer ones would show gaps that are none.
    polls = int((end_ns - start_ns) / 1e9 / interval_seconds)
    buckets = max(1, min(HISTORY_BUCKETS, polls))
    wanted = _series(scene, _HISTORY_OF_GPU, _HISTORY_OF_RUN, ())
    return _charts(timeline, wanted, start_ns, end_ns, buckets)


def fine_curves(
    timeline: Timeline,
    scene: Scene,
    start_ns: int,
    end_ns: int,
    interval_seconds: float,
    least_seconds: float = _LEAST_SECONDS,
) -> tuple[Chart, ...]:
    """All that a page draws, in buckets of `least_seconds` at least; without those of which nothing is known."""
    seconds = (end_ns - start_ns) / 1e9
    width = _LEAST_SECONDS if interval_seconds <= 1.0 and seconds <= _RING_SECONDS else max(1.0, interval_seconds)
    buckets = max(1, min(MOST_POINTS, int(seconds / max(width, least_seconds))))
    found = _charts(timeline, _series(scene, OF_GPU, OF_RUN, OF_HOST), start_ns, end_ns, buckets)
    return tuple(chart for chart in found if any(value is not None for value in chart.mean))


def _series(scene: Scene, of_gpu: Iterable[str], of_run: Iterable[str], of_host: Iterable[str]) -> list[Series]:
    wanted = [Series(name, gpu.facts.uuid) for gpu in scene.gpus for name in of_gpu]
    wanted += [Series(name, run.id) for run in scene.runs for name in of_run]
    return wanted + [Series(name) for name in of_host]


def _charts(
    timeline: Timeline, wanted: Sequence[Series], start_ns: int, end_ns: int, buckets: int
) -> tuple[Chart, ...]:
    return tuple(timeline.chart(series, start_ns, end_ns, buckets) for series in wanted)


def phase_stretches(timeline: Timeline, start_ns: int, end_ns: int) -> tuple[Stretch, ...]:
    """The phases of all runs, each stretch of time once though several ranks had it."""
    with timeline.lock:
        found = {
            (run.id, span.kind, span.start_ns // 1_000_000_000): _of_phase(run.id, span, start_ns, end_ns)
            for run in timeline.runs(end_ns, end_ns - start_ns)
            for trainer in run.trainers
            for span in trainer.phases.spans(start_ns)
        }
    return longest(found.values(), end_ns - start_ns)


def finding_stretches(findings: Iterable[Finding], start_ns: int, end_ns: int) -> tuple[Stretch, ...]:
    """Findings that stand at the end."""
    return tuple(
        Stretch(
            "finding", each.rule, max(start_ns, each.since_ns), end_ns, each.run, each.gpu, each.severity, each.chart
        )
        for each in findings
        if each.since_ns < end_ns
    )


def longest(stretches: Iterable[Stretch], span_ns: int) -> tuple[Stretch, ...]:
    """Those that can be seen in so long a span; of very many the longest, in time order."""
    visible = [each for each in stretches if each.end_ns - each.start_ns >= span_ns * _NARROWEST]
    kept = sorted(visible, key=lambda each: each.start_ns - each.end_ns)[:_MOST]
    return tuple(sorted(kept, key=lambda each: (each.start_ns, each.name)))


def total_seconds(stretches: Iterable[Stretch]) -> float:
    """The time that they cover together, overlaps once."""
    covered, reached = 0, 0
    for start, end in sorted((each.start_ns, each.end_ns) for each in stretches):
        covered += max(0, end - max(start, reached))
        reached = max(reached, end)
    return covered / 1e9


def _of_phase(run: str, span: PhaseSpan, start_ns: int, end_ns: int) -> Stretch:
    last_ns = end_ns if span.end_ns is None else min(span.end_ns, end_ns)
    return Stretch("phase", span.kind, max(span.start_ns, start_ns), last_ns, run)
