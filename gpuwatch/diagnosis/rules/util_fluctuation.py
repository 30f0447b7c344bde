"""GPU use swings up and down instead of staying flat.

Means:
    The GPU works in bursts. What it would gain by staying at its own good level is the distance from the mean to the
    95th percentile.
Evidence:
    Utilization outside phases over the window: its standard deviation, its swing (95th less 5th percentile) and the
    points lost compared with its own 95th percentile.
Fires:
    (standard deviation of 10 points or swing of 20) and 8 points lost. No warning: it describes, and what causes it
    has a rule of its own.
Clears:
    (standard deviation below 7 and swing below 15) or less than 5 points lost.
Not when:
    Steps are shorter than about twice the sensor's own window: it then averages the swings away, so that a flat
    line proves nothing. A shared GPU, a power limit and inputs of varying length swing too.
Causes:
    Checked in the order of the decision tree: waits for data, the phases (evaluation, checkpoint, logging, garbage
    collection), regular dips, single slow items, another process on the GPU.
Fix:
    That of the cause: waits for data, phases, single slow items, another process.
Gain:
    At most 95th percentile over mean.
Verify:
    Standard deviation below 10 points, swing below 20, mean of 85% or more.
Source:
    Target of tuned jobs (below 10 points); SageMaker debugger (95th above 70 and 5th below 10); on its own it meant a
    truly starved job in only 51% of simulated cases.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.advice.fluctuation import MEAN_FOR_RATIO, blind_words, step_swings, swings_of
from gpuwatch.diagnosis.advice.rivals import idle_rivals
from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, RuledOut, Severity, share_measure
from gpuwatch.diagnosis.rule import GpuCase, gpu_name, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.diagnosis.tree import IDLE_GPU
from gpuwatch.numbers import listed, percent, seconds
from gpuwatch.timeline.windows import Stats


@dataclass(frozen=True, slots=True)
class Thresholds:
    sigma_points: float = threshold(10.0, "standard deviation of the utilization: reported from here on")
    clear_sigma_points: float = threshold(7.0, "until it is less", bounded_by="sigma_points")
    swing_points: float = threshold(20.0, "between its 5th and 95th percentile: reported from here on")
    clear_swing_points: float = threshold(15.0, "until it is less", bounded_by="swing_points")
    lost_points: float = threshold(8.0, "between its 95th percentile and its mean at least")
    clear_lost_points: float = threshold(5.0, "until it is less", bounded_by="lost_points")


@rule(
    "util-fluctuation",
    family="utilization",
    subject="gpu",
    level=Level.E0,
    after=IDLE_GPU,
    behind=("data-starvation", "launch-bound", "epoch-start-stall", "checkpoint-stall", "gc-stall"),
    needs_gpu=True,
    thresholds=Thresholds,
)
def util_fluctuation(case: GpuCase, limits: Thresholds) -> Draft | None:
    stats = case.gpu.train_utilization
    if stats is None or case.run is None:
        return None
    swing, lost = stats.p95 - stats.p5, stats.p95 - stats.mean
    if (
        stats.sigma < limits.clear_sigma_points and swing < limits.clear_swing_points
    ) or lost < limits.clear_lost_points:
        return None
    causes = [name for name in IDLE_GPU if name in case.holding]
    measures = [
        Measure("sigma_points", round(stats.sigma, 1), f"standard deviation {stats.sigma:.0f} points"),
        Measure("swing_points", round(swing, 1), f"from {stats.p5:.0f} to {stats.p95:.0f}% (5th to 95th percentile)"),
        Measure("lost_points", round(lost, 1), f"mean {lost:.0f} points below its own 95th percentile"),
    ]
    measures += [*_dips(case, stats), *_steps(case), *_sensor(case)]
    ratio = f"at most {stats.p95 / stats.mean:.1f}x, flattened to its own 95th percentile"
    return Draft(
        summary=(
            f"{gpu_name(case.gpu)} swings between {stats.p5:.0f} and {stats.p95:.0f}%: "
            f"{stats.mean:.0f} ± {stats.sigma:.0f}% on average"
        ),
        severity=Severity.INFO,
        level=Level.E0,
        evidence=tuple(measures),
        fires=(stats.sigma >= limits.sigma_points or swing >= limits.swing_points) and lost >= limits.lost_points,
        fix=Fix(
            text=f"See {listed(causes)}" if causes else "No cause found yet: compare the dips with the run's phases"
        ),
        hint=ratio if stats.mean >= MEAN_FOR_RATIO else None,
        ruled_out=_ruled_out(case),
        verify="Standard deviation below 10 points, swing below 20, mean of 85% or more",
        chart=("gpu.utilization_percent", "run.wait_share"),
    )


def _dips(case: GpuCase, stats: Stats) -> list[Measure]:
    swings = swings_of(stats, case.gpu.train_utilization_series)
    measures = []
    if swings.relative_sigma is not None:
        relative = swings.relative_sigma
        text = f"standard deviation {relative:.2f} times the mean"
        measures.append(Measure("relative_sigma", round(relative, 3), text))
    if swings.dips:
        text = f"{swings.dips_per_minute:.1f} dips a minute, {percent(swings.dip_share)} of the time"
        measures.append(Measure("dips_per_minute", round(swings.dips_per_minute, 2), text))
        measures.append(share_measure("dip_share", swings.dip_share, "samples in dips"))
    return measures


def _steps(case: GpuCase) -> list[Measure]:
    """The step stream: what the sensor averages away shows there."""
    steps = step_swings(case.run.critical) if case.run is not None else None
    if steps is None:
        return []
    text = f"steps vary by {percent(steps.spread)}"
    if steps.spikes:
        count = len(steps.spikes)
        text += f"; {count} long one{'s cost' if count > 1 else ' costs'} {percent(steps.spike_share)} of the time"
    return [
        Measure("step_spread", round(steps.spread, 4), text),
        Measure("step_spike_share", round(steps.spike_share, 4), f"{percent(steps.spike_share)} in single long steps"),
    ]


def _sensor(case: GpuCase) -> list[Measure]:
    window = case.gpu.sensor_window_seconds
    if window is None:
        return []
    measures = [Measure("sensor_window_seconds", round(window, 3), f"the sensor averages over {seconds(window)}")]
    blind = blind_words(case.run.critical, window) if case.run is not None else None
    step = case.run.critical.step_seconds if case.run is not None else None
    if blind is not None and step is not None:
        measures.append(Measure("step_seconds", round(step.p50, 4), blind))
    return measures


def _ruled_out(case: GpuCase) -> tuple[RuledOut, ...]:
    found = [*idle_rivals(case, "phases")]
    if case.run is not None and any(total.share for total in case.run.critical.phases.values()):
        found.append(RuledOut("phases", "samples during evaluation and checkpoints are left out"))
    return tuple(found)
