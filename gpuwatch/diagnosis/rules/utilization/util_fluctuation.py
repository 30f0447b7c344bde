"""GPU use swings up and down instead of staying flat.

Means:
    The GPU works in bursts. What it would win by staying at its own good level is the distance from the mean to the
    95th percentile.
Evidence:
    Utilization outside phases over the window: its standard deviation, its swing (95th less 5th percentile) and the
    points lost against its own 95th percentile.
Fires:
    (standard deviation of 10 points or swing of 20) and 8 points lost; a warning where utilization is low as well.
Clears:
    (standard deviation below 7 and swing below 15) or less than 5 points lost.
Not when:
    Steps are shorter than about twice the sensor's own window: it then averages the swings away, so that a flat
    line proves nothing. A shared GPU, a power limit and inputs of varying length swing too.
Causes:
    Asked in the order of the decision tree: waits for data, the phases (evaluation, checkpoint, logging, garbage
    collection), regular dips, single slow items, another process on the GPU.
Fix:
    That of the cause: waits for data, phases, single slow items, another process.
Gain:
    At most 95th percentile over mean.
Verify:
    Standard deviation below 10 points, swing below 20, mean of 85 % or more.
Source:
    Target of tuned jobs (below 10 points); SageMaker debugger (95th above 70 and 5th below 10); alone it was a
    truly starved job in 51 % of simulated cases only.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, RuledOut, Severity
from gpuwatch.diagnosis.rule import GpuCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.diagnosis.wording import gpu_name, listed, seconds

MEAN_FOR_RATIO = 20.0
CAUSES = (
    "data-starvation",
    "launch-bound",
    "eval-stall",
    "checkpoint-stall",
    "gc-stall",
    "epoch-start-stall",
    "shared-gpu",
)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What decides, as far as it may be set."""

    sigma_points: float = threshold(10.0, "standard deviation of the utilization: said from here on")
    clear_sigma_points: float = threshold(7.0, "until it is less", beside="sigma_points")
    swing_points: float = threshold(20.0, "between its 5th and 95th percentile: said from here on")
    clear_swing_points: float = threshold(15.0, "until it is less", beside="swing_points")
    lost_points: float = threshold(8.0, "between its 95th percentile and its mean at least")
    clear_lost_points: float = threshold(5.0, "until it is less", beside="lost_points")


@rule(
    "util-fluctuation",
    subject="gpu",
    level=Level.E0,
    after=("low-util", *CAUSES),
    behind=("data-starvation", "launch-bound", "epoch-start-stall", "checkpoint-stall", "gc-stall"),
    thresholds=Thresholds,
)
def util_fluctuation(case: GpuCase, limits: Thresholds) -> Draft | None:
    """Fires on a training GPU whose utilization swings far below its own good level."""
    stats = case.gpu.train_utilization
    if stats is None or case.run is None:
        return None
    swing, lost = stats.p95 - stats.p5, stats.p95 - stats.mean
    if (
        stats.sigma < limits.clear_sigma_points and swing < limits.clear_swing_points
    ) or lost < limits.clear_lost_points:
        return None
    causes = [name for name in CAUSES if name in case.holding]
    measures = [
        Measure("sigma_points", round(stats.sigma, 1), f"standard deviation {stats.sigma:.0f} points"),
        Measure("swing_points", round(swing, 1), f"from {stats.p5:.0f} to {stats.p95:.0f} % (5th to 95th percentile)"),
        Measure("lost_points", round(lost, 1), f"{lost:.0f} points below its own 95th percentile"),
    ]
    if case.gpu.sensor_window_seconds is not None:
        window = case.gpu.sensor_window_seconds
        measures.append(
            Measure("sensor_window_seconds", round(window, 3), f"the sensor averages over {seconds(window)}")
        )
    ratio = f"at most {stats.p95 / stats.mean:.1f}x, flattened to its own 95th percentile"
    return Draft(
        summary=(
            f"{gpu_name(case.gpu)} swings between {stats.p5:.0f} and {stats.p95:.0f} %: "
            f"{stats.mean:.0f} ± {stats.sigma:.0f} % on average"
        ),
        severity=Severity.WARNING if "low-util" in case.holding else Severity.INFO,
        level=Level.E0,
        evidence=tuple(measures),
        fires=(stats.sigma >= limits.sigma_points or swing >= limits.swing_points) and lost >= limits.lost_points,
        fix=Fix(
            text=f"See {listed(causes)}" if causes else "No cause found yet: compare the dips with the run's phases"
        ),
        hint=ratio if stats.mean >= MEAN_FOR_RATIO else None,
        ruled_out=_ruled_out(case),
        verify="Standard deviation below 10 points, swing below 20, mean of 85 % or more",
        chart=("gpu.utilization_percent", "run.wait_share"),
    )


def _ruled_out(case: GpuCase) -> tuple[RuledOut, ...]:
    found = []
    if case.run is not None and "shared-gpu" not in case.holding:
        found.append(RuledOut("another process", "no other process computes on this GPU"))
    if case.run is not None and any(total.share for total in case.run.critical.phases.values()):
        found.append(RuledOut("phases", "samples during evaluation and checkpoints are left out"))
    return tuple(found)
