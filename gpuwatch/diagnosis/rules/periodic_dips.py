"""The GPU dips at a regular interval; something periodic in the loop stops it.

Means:
    Not in every step, but at regular intervals the GPU idles: a checkpoint, a validation, an epoch's edge, logging, a
    cron job. The interval says which, because most of these come every N steps.
Evidence:
    Dips of the utilization outside known phases (below half of its 95th percentile and 20 points below its median),
    at least four, at a steady interval: the robust spread of the intervals is under a quarter of their median.
    Where the dips are too close to count, the autocorrelation of the utilization.
Fires:
    Four such dips or that autocorrelation, while waits for data explain less than 5%.
Clears:
    No dip for three intervals.
Not when:
    Waits for data come in the rhythm of the workers; evaluation, checkpoints and garbage collection that the hook
    saw are left out of the samples.
Causes:
    Ranked by how well their period fits: checkpoints, evaluations, epoch edges, logging, garbage collection, a cron
    job on the host.
Fix:
    Look at what the loop does every N steps; the next dip is predicted, so that the training thread's stack can be
    recorded at that moment.
Gain:
    At most 1 / (1 - share of the time in dips).
Verify:
    The dips are gone.
Source:
    Simulation: combs of starved loaders are periodic too, so those are judged first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from gpuwatch.diagnosis.advice.fluctuation import Beat, beat_of, causes_in_loop, owner_of, swings_of
from gpuwatch.diagnosis.advice.gains import without
from gpuwatch.diagnosis.advice.sampled import is_sampled
from gpuwatch.diagnosis.advice.starvation import starvation_of
from gpuwatch.diagnosis.advice.stream import autocorrelation, stretches
from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, RuledOut, Severity
from gpuwatch.diagnosis.rule import GpuCase, RunCase, gpu_name, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import grouped, listed, percent, seconds
from gpuwatch.timeline.columns import SECOND_NS
from gpuwatch.timeline.windows import RankWindow, Stats

SAMPLES = 60
BUCKETS = 120
LEAST_PERIODS = 8
PEAK, DOUBLE_PEAK = 0.3, 0.2
GONE_PERIODS = 3
SAID = {
    "gc": "garbage collection",
    "user": "a phase that the script marks",
    "eval": "evaluation",
    "checkpoint": "checkpointing",
    "compile": "compiling",
    "warmup": "warming up",
    "stopped": "a stop by a signal",
    "epoch start": "the start of an epoch",
    "long steps": "single long steps",
}
"""What of a loop dips belong to, in words."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    dips: int = threshold(4, "in the window at least", least=3)
    spread: float = threshold(0.25, "of their intervals around the median at most", most=1.0)
    starved_share: float = threshold(0.05, "of the time lost to waits, which is another explanation")


@dataclass(frozen=True, slots=True)
class Rhythm:
    """A steady interval between dips, the share of samples in them, and the last one's start; no beat: not counted."""

    period_seconds: float
    beat: Beat | None
    dip_share: float
    last_ns: int | None
    owner: tuple[str, float] | None = None  # what of the loop covers so much of the dips' time


@rule(
    "periodic-dips",
    family="utilization",
    subject="gpu",
    level=Level.E0,
    after=("data-starvation",),
    behind=("data-starvation", "epoch-start-stall", "checkpoint-stall", "gc-stall"),
    needs_gpu=True,
    thresholds=Thresholds,
)
def periodic_dips(case: GpuCase, limits: Thresholds) -> Draft | None:
    stats, series = case.gpu.train_utilization, case.gpu.train_utilization_series
    if case.run is None or stats is None or len(series) < SAMPLES or "data-starvation" in case.holding:
        return None
    starved = _starved_share(case)
    if starved is not None and starved >= limits.starved_share:
        return None
    rhythm = _counted(case, stats, series, limits) or _by_autocorrelation(stats, series)
    if rhythm is None:
        return None
    if rhythm.last_ns is not None and case.now_ns - rhythm.last_ns > GONE_PERIODS * rhythm.period_seconds * SECOND_NS:
        return None
    beat = rhythm.beat
    every = seconds(rhythm.period_seconds)
    if beat is not None and beat.in_steps and beat.period_steps is not None:
        every = f"{grouped(beat.period_steps)} steps ({every})"
    return Draft(
        summary=f"{gpu_name(case.gpu)} dips every {every}, {percent(rhythm.dip_share)} of the time",
        severity=Severity.INFO,
        level=Level.E0,
        evidence=_evidence(case, rhythm),
        fix=_fix(case, rhythm, limits),
        hint=f"at most {without(rhythm.dip_share):.2f}x, if the dips were gone",
        ruled_out=_ruled_out(case.run.critical, starved),
        verify="No dip for three intervals",
        chart=("gpu.utilization_percent", "run.step_seconds"),
    )


def _ruled_out(rank: RankWindow, starved: float | None) -> tuple[RuledOut, ...]:
    found = []
    if starved is not None:
        found.append(RuledOut("waiting for data", f"waits explain {percent(starved)} of the time"))
    if not is_sampled(rank):
        found.append(RuledOut("evaluation and checkpoints that the hook saw", "their samples are left out"))
    return tuple(found)


def _starved_share(case: GpuCase) -> float | None:
    """The part of the time that waits for data explain; None where it cannot be measured."""
    assert case.run is not None
    starvation = starvation_of(RunCase(scene=case.scene, run=case.run, gpus=(case.gpu,)))
    return None if starvation is None else starvation.share


def _counted(case: GpuCase, stats: Stats, series: Sequence[tuple[int, float]], limits: Thresholds) -> Rhythm | None:
    """Dips counted one by one."""
    swings = swings_of(stats, series)
    rank = case.run.critical if case.run else None
    beat = beat_of([start for start, _ in swings.dips], rank, events=limits.dips, regular=limits.spread)
    if beat is None:
        return None
    owner = owner_of(swings.dips, causes_in_loop(rank, case.gpu.sensor_window_seconds)) if rank else None
    return Rhythm(beat.period_seconds, beat, swings.dip_share, swings.dips[-1][0], owner)


def _by_autocorrelation(stats: Stats, series: Sequence[tuple[int, float]]) -> Rhythm | None:
    """Dips too shallow to count that still repeat: the first peak of the autocorrelation, and its double."""
    if stats.sigma < 10.0:
        return None
    values = [fmean(value for _, value in stretch) for stretch in stretches(series, BUCKETS)]
    longest = len(values) // LEAST_PERIODS
    found = [autocorrelation(values, lag) or 0.0 for lag in range(1, 2 * longest + 2)]
    for lag in range(3, longest + 1):
        here = found[lag - 1]
        if here > PEAK and here >= found[lag - 2] and here >= found[lag] and found[2 * lag - 1] > DOUBLE_PEAK:
            spacing = (series[-1][0] - series[0][0]) / SECOND_NS / (len(values) - 1)
            below = sum(value < stats.p50 - 10.0 for value in values) / len(values)
            return Rhythm(lag * spacing, None, below, None)
    return None


def _evidence(case: GpuCase, rhythm: Rhythm) -> tuple[Measure, ...]:
    measures = [
        Measure("dip_period_seconds", round(rhythm.period_seconds, 2), f"every {seconds(rhythm.period_seconds)}"),
        Measure("dip_share", round(rhythm.dip_share, 3), f"{percent(rhythm.dip_share)} of the samples are in dips"),
    ]
    beat, steps = rhythm.beat, _period_in_steps(case, rhythm)
    if beat is not None:
        text = f"{grouped(beat.events)} dips, their intervals vary by {percent(beat.spread)}"
        if beat.steps_spread is not None:
            text += f" in seconds and by {percent(beat.steps_spread)} in steps"
        measures.append(Measure("dips", beat.events, text))
    if steps is not None:
        exact = "exactly" if beat is not None and beat.in_steps else "about"
        measures.append(Measure("dip_period_steps", steps, f"that is {exact} every {grouped(steps)} steps"))
    if rhythm.owner is not None:
        name, covered = rhythm.owner
        measures.append(Measure("dips_owner", name, f"{percent(covered)} of the dips' time is {SAID[name]}"))
    return tuple(measures)


def _period_in_steps(case: GpuCase, rhythm: Rhythm) -> int | None:
    if rhythm.beat is not None and rhythm.beat.period_steps is not None:
        return rhythm.beat.period_steps
    step = case.run.critical.step_seconds if case.run else None
    return round(rhythm.period_seconds / step.p50) if step is not None and step.p50 > 0.0 else None


def _fix(case: GpuCase, rhythm: Rhythm, limits: Thresholds) -> Fix:
    steps = _period_in_steps(case, rhythm)
    every = f"every {grouped(steps)} steps" if steps else f"every {seconds(rhythm.period_seconds)}"
    suspects = listed(_suspects(case, rhythm, limits))
    text = f"Look at what the loop does {every}: {suspects}"
    if rhythm.last_ns is not None:
        ahead = rhythm.last_ns / SECOND_NS + rhythm.period_seconds - case.now_ns / SECOND_NS
        while ahead < 0.0:
            ahead += rhythm.period_seconds
        text += f"; the next dip is due in {seconds(ahead)}, when the training thread's stack would name the line"
    return Fix(text=text, code=f"gpuwatch stacks {case.run.critical.facts.pid}" if case.run else None)


def _suspects(case: GpuCase, rhythm: Rhythm, limits: Thresholds) -> list[str]:
    """What usually comes in such a rhythm, the likelier first."""
    assert case.run is not None
    rank = case.run.critical
    if rhythm.owner is not None:
        return [SAID[rhythm.owner[0]]]
    suspects = []
    epoch = rank.train_loader.batches_per_epoch if rank.train_loader else None
    if (
        epoch
        and rank.step_seconds
        and abs(epoch * rank.step_seconds.mean / rhythm.period_seconds - 1.0) < limits.spread
    ):
        suspects.append(f"the edge of an epoch ({epoch} batches)")
    return [*suspects, "logging or metrics", "saving files", "a second loader", "another process of the machine"]
