"""What lay over the time of a report: phases of its runs, and how long its findings stood."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from gpuwatch.diagnosis.finding import Finding, Severity
from gpuwatch.samples import PhaseSpan
from gpuwatch.timeline.timeline import Timeline

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
class Stood:
    """How long a finding stood in a stretch of a recording, and as what it was last written down."""

    key: Key
    seconds: float
    is_over: bool
    blob: bytes


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
