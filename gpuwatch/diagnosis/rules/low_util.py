"""The GPU is busy less than the target share of the time.

Means:
    Utilization is the share of time in which any kernel runs. A training job that is limited by its GPU stays above
    85%. This only describes: the cause is another finding, or not yet known.
Evidence:
    Mean utilization over the window, leaving out evaluation, checkpoints and other phases.
Fires:
    Below 85% on a GPU that a run or another process uses.
Clears:
    Above 88% in the window or in its newest 30 s.
Not when:
    Warm-up and compilation; a job that has ended; a GPU that does not report utilization (MIG).
Causes:
    Any rule that takes the GPU's time: waits for data, phases, launches, copies, a hang. The evidence names those
    that hold now.
Fix:
    That of the cause. Where none is found, start the script with gpuwatch run, so that its waits and phases are
    seen.
Gain:
    None by itself: only a cause that explains the idle time can promise it back.
Verify:
    Mean utilization of 85% or more.
Source:
    The target of tuned jobs; kineto calls below 50% low, TraceML below 30%.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from gpuwatch.diagnosis.advice.rivals import idle_rivals
from gpuwatch.diagnosis.advice.sampled import enough, is_sampled
from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, Severity
from gpuwatch.diagnosis.rule import GpuCase, gpu_name, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.diagnosis.tree import IDLE_GPU
from gpuwatch.numbers import listed
from gpuwatch.timeline.windows import Stats

USED_PERCENT = 5.0
NEWEST_NS, NEWEST_SAMPLES = 30 * 1_000_000_000, 29


@dataclass(frozen=True, slots=True)
class Thresholds:
    fire_percent: float = threshold(85.0, "mean utilization: reported below")
    clear_percent: float = threshold(88.0, "until it is higher", bounded_by="fire_percent")
    hardly_percent: float = threshold(30.0, "called hardly busy below", bounded_by="fire_percent")


@rule(
    "low-util",
    family="utilization",
    subject="gpu",
    level=Level.E0,
    after=IDLE_GPU,
    behind=("data-starvation", "launch-bound", "epoch-start-stall"),
    needs_gpu=True,
    thresholds=Thresholds,
)
def low_util(case: GpuCase, limits: Thresholds) -> Draft | None:
    stats = case.gpu.train_utilization if case.run is not None else case.gpu.utilization
    if stats is None or stats.mean > limits.clear_percent or not _in_use(case, stats) or _has_risen(case, limits):
        return None
    causes = [name for name in IDLE_GPU if name in case.holding]
    how = "hardly busy" if stats.mean < limits.hardly_percent else "busy only part of the time"
    return Draft(
        summary=(
            f"{gpu_name(case.gpu)} is {how}: {stats.mean:.0f}% on average, the target is {limits.fire_percent:.0f}%"
        ),
        severity=Severity.INFO,
        level=Level.E0,
        evidence=(
            Measure(
                "utilization_percent", round(stats.mean, 1), f"{stats.mean:.0f}% busy ({case.window_seconds:.0f} s)"
            ),
            Measure("utilization_p95_percent", round(stats.p95, 1), f"{stats.p95:.0f}% at its 95th percentile"),
            Measure("cause", causes[0] if causes else None, f"cause: {listed(causes) or 'unknown'}"),
        ),
        fires=stats.mean < limits.fire_percent,
        fix=_fix(case, causes),
        ruled_out=idle_rivals(case),
        verify=f"Mean utilization of {limits.fire_percent:.0f}% or more",
        chart=("gpu.utilization_percent", "gpu.power_watts"),
    )


def _has_risen(case: GpuCase, limits: Thresholds) -> bool:
    """Whether the newest half minute is as busy as the whole window has to be, which remembers twice as long."""
    since_ns = case.now_ns - NEWEST_NS
    newest = [value for time_ns, value in case.gpu.train_utilization_series if time_ns > since_ns]
    return case.run is not None and len(newest) >= NEWEST_SAMPLES and fmean(newest) > limits.clear_percent


def _in_use(case: GpuCase, stats: Stats) -> bool:
    """An idle GPU without a training run is no finding."""
    if case.run is not None:
        return True
    processes = case.gpu.latest_status.processes if case.gpu.latest_status else None
    return bool(processes) and stats.mean >= USED_PERCENT


def _fix(case: GpuCase, causes: list[str]) -> Fix:
    if causes:
        return Fix(text=f"See {listed(causes)}")
    if case.run is not None and enough(case.run.critical) is not None and is_sampled(case.run.critical):
        text = "No cause found in the samples of its stack; the hook sees more: start the script with gpuwatch run"
        return Fix(text=text, code="gpuwatch run python train.py")
    if case.run is None or case.run.critical.facts.visibility != "exact":
        return Fix(
            text="The cause is not visible from outside: start the script with gpuwatch run",
            code="gpuwatch run python train.py",
        )
    return Fix(text="No cause found: neither waits for data nor phases nor kernel launches explain it")
