"""GPUs of the same job do unequal work.

Means:
    A synchronous job is as fast as its slowest GPU; the others wait.
Evidence:
    Over the window, among the GPUs of one run: mean utilization at least 20 points apart, or memory at least 20 % of
    the GPU apart with the fullest above 30 %, or power with a coefficient of variation of at least 0.15.
Fires:
    Any of the three.
Clears:
    Utilization less than 10 points apart and the others below half of their threshold.
Not when:
    Different models of GPU, MIG slices, pipeline parallelism (each stage has its own load by design).
Fix:
    DistributedDataParallel instead of DataParallel, even shards with drop_last, extra work of rank 0 spread out; a
    GPU that is itself slow shows in straggler-rank, thermal-throttle or pcie-degraded.
Gain:
    A hint: the time of the busiest GPU is what counts, and that does not follow from utilization.
Verify:
    Utilization within 10 points.
Source:
    SageMaker LoadBalancing; TraceML imbalance 20/30 %; kineto's advice DataParallel to DDP.
"""

from __future__ import annotations

from statistics import mean, stdev

from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, RuledOut, Severity
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.wording import gpu_name, percent
from gpuwatch.timeline.windows import GpuWindow

UTILIZATION_POINTS = 20.0
UTILIZATION_CLEAR_POINTS = 10.0
MEMORY_SHARE = 0.20
MEMORY_FULL_SHARE = 0.30
POWER_VARIATION = 0.15


@rule("gpu-imbalance", subject="run", level=Level.E0)
def gpu_imbalance(case: RunCase) -> Draft | None:
    """Fires on a run whose GPUs are unequally loaded."""
    gpus = [gpu for gpu in case.gpus if gpu.status == "live" and gpu.utilization is not None]
    if len(gpus) < 2 or len({gpu.facts.name for gpu in gpus}) > 1 or any(gpu.facts.mig for gpu in gpus):
        return None
    by_load = sorted(gpus, key=_busy)
    spread = _busy(by_load[-1]) - _busy(by_load[0])
    memory = _memory_spread(gpus)
    power = _power_variation(gpus)
    if spread < UTILIZATION_CLEAR_POINTS and memory < MEMORY_SHARE / 2 and power < POWER_VARIATION / 2:
        return None
    least, most = by_load[0], by_load[-1]
    return Draft(
        summary=_sentence(case.run.title, least, most, spread, memory, power),
        severity=Severity.WARNING,
        level=Level.E0,
        evidence=(
            Measure("utilization_spread_points", round(spread, 1), f"utilization {spread:.0f} points apart"),
            Measure("memory_spread_share", round(memory, 3), f"memory {percent(memory)} of a GPU apart"),
            Measure("power_variation", round(power, 3), f"power varies by {percent(power)} of its mean"),
            *(
                Measure(
                    f"gpu_{gpu.facts.index}_utilization_percent",
                    round(_busy(gpu), 1),
                    f"{gpu_name(gpu)} {_busy(gpu):.0f} %",
                )
                for gpu in gpus
            ),
        ),
        fires=spread >= UTILIZATION_POINTS or memory >= MEMORY_SHARE or power >= POWER_VARIATION,
        fix=Fix(
            text=(
                "Give each rank an equal share: DistributedDataParallel rather than DataParallel, a DistributedSampler "
                "with drop_last, and rank 0's extra work spread out"
            ),
        ),
        hint="the busiest GPU sets the pace; how much of its work can move is not known from outside",
        ruled_out=(RuledOut("different hardware", f"all {len(gpus)} are {gpus[0].facts.name}"),),
        verify="Utilization of all GPUs within 10 points",
        chart=("gpu.utilization_percent",),
    )


def _busy(gpu: GpuWindow) -> float:
    stats = gpu.train_utilization or gpu.utilization
    return stats.mean if stats else 0.0


def _memory_spread(gpus: list[GpuWindow]) -> float:
    shares = [
        gpu.memory_used_bytes.mean / gpu.facts.memory_total_bytes
        for gpu in gpus
        if gpu.memory_used_bytes and gpu.facts.memory_total_bytes
    ]
    if len(shares) < 2 or max(shares) < MEMORY_FULL_SHARE:
        return 0.0
    return max(shares) - min(shares)


def _power_variation(gpus: list[GpuWindow]) -> float:
    watts = [gpu.power_watts.mean for gpu in gpus if gpu.power_watts]
    return stdev(watts) / mean(watts) if len(watts) >= 2 and mean(watts) > 0 else 0.0


def _sentence(title: str, least: GpuWindow, most: GpuWindow, spread: float, memory: float, power: float) -> str:
    if spread >= UTILIZATION_POINTS or (memory < MEMORY_SHARE and power < POWER_VARIATION):
        return (
            f"The GPUs of {title} work unequally: {gpu_name(most)} is busy {_busy(most):.0f} % of the time, "
            f"{gpu_name(least)} {_busy(least):.0f} %"
        )
    if memory >= MEMORY_SHARE:
        return f"The GPUs of {title} hold unequal loads: their memory differs by {percent(memory)} of a GPU"
    return f"The GPUs of {title} draw unequal power: it varies by {percent(power)} of its mean"
