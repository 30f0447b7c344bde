"""GPUs of the same job do unequal work.

Means:
    A synchronous job is as fast as its slowest GPU; the others wait.
Evidence:
    Over the window, among the GPUs of one run: mean utilization at least 20 points apart, or memory at least 20% of
    the GPU apart with the fullest above 30%, or power with a coefficient of variation of at least 0.15.
Fires:
    Any of the three.
Clears:
    Utilization less than 10 points apart and the others below half of their threshold.
Not when:
    Different models of GPU, MIG slices, pipeline parallelism (each stage has its own load by design). Ranks that wait
    for data in turn: while one waits its GPU idles, and the others spin at 100% until it has come. Idle time in which
    a GPU's own rank waits for data counts as busy, and where these waits differ, power is not compared. Ranks that made
    fewer than 30 steps in the window: in a few steps one GPU may have had more work than another. Before the first step
    the others may wait for a rank that prepares the data alone; where nothing counts steps, the stacks of all ranks
    must show them. A different GPU is the busier one from time to time: which rank gets an expensive batch is chance. A
    rank that saves, evaluates or samples alone: on no GPU does that time count as training. All cores are busy: then
    the rank whose thread gets one is ahead, and memory alone is compared.
Causes:
    nn.DataParallel (the first GPU does more), uneven shards, extra work of rank 0, or one GPU that is slower by heat
    or link.
Fix:
    DistributedDataParallel instead of DataParallel, even shards with drop_last, extra work of rank 0 spread out; a
    GPU that is itself slow shows in straggler-rank, thermal-throttle or pcie-degraded.
Gain:
    A hint: the time of the busiest GPU is what counts, and that does not follow from utilization.
Verify:
    Utilization within 10 points.
Source:
    SageMaker LoadBalancing; TraceML imbalance 20/30%; kineto's advice DataParallel to DDP.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import mean, stdev

from gpuwatch.diagnosis.advice.compute import TRAINING_SHARE, trains_throughout
from gpuwatch.diagnosis.advice.resources import is_cpu_exhausted
from gpuwatch.diagnosis.advice.sampled import is_sampled, share_in
from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, RuledOut, Severity
from gpuwatch.diagnosis.rule import RunCase, gpu_name, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import percent
from gpuwatch.statistics import student_t_quantile
from gpuwatch.timeline.figures import STEPS
from gpuwatch.timeline.windows import GpuWindow, RankWindow, RunWindow

PARTS, LEAST_PARTS = 8, 3
CHANCE = 0.05
"""That one of even GPUs seems to be busier than another."""
COMPUTING = ("forward", "backward", "optimizer", "sync", "copy")


@dataclass(frozen=True, slots=True)
class Thresholds:
    utilization_points: float = threshold(20.0, "between the busiest and the least busy GPU: reported from here on")
    clear_utilization_points: float = threshold(10.0, "until they are closer", bounded_by="utilization_points")
    memory_share: float = threshold(0.20, "of their memory between the fullest and the emptiest: reported from here on")
    memory_full_share: float = threshold(0.30, "that the fullest one is full at least")
    power_variation: float = threshold(0.15, "deviation of their power over its mean: reported from here on", most=10.0)


@rule("gpu-imbalance", family="multi_gpu", subject="run", level=Level.E0, fades=True, thresholds=Thresholds)
def gpu_imbalance(case: RunCase, limits: Thresholds) -> Draft | None:
    gpus = [gpu for gpu in case.gpus if gpu.status == "live" and gpu.utilization is not None]
    if len(gpus) < 2 or len({gpu.facts.name for gpu in gpus}) > 1 or any(gpu.facts.mig for gpu in gpus):
        return None
    if not _compares(case.run):
        return None
    by_load = sorted(gpus, key=_busy)
    waited = [_waited(case, gpu) for gpu in gpus]
    loads = [_busy(gpu) + idle for gpu, idle in zip(gpus, waited, strict=True)]
    spread = min(_busy(by_load[-1]) - _busy(by_load[0]), max(loads) - min(loads))
    is_crowded = is_cpu_exhausted(case)
    if is_crowded or not _lasts(by_load[0], by_load[-1], len(gpus)):
        spread = 0.0
    memory_spread = _memory_spread(gpus, limits)
    waits_differ = max(waited) - min(waited) >= limits.clear_utilization_points
    # What idles or starts up draws what it likes.
    compares_power = not waits_differ and not is_crowded and case.run.critical.steps > 0
    power_variation = _power_variation(gpus) if compares_power else None
    memory, power = memory_spread or 0.0, power_variation or 0.0
    if (
        spread < limits.clear_utilization_points
        and memory < limits.memory_share / 2
        and power < limits.power_variation / 2
    ):
        return None
    least, most = by_load[0], by_load[-1]
    return Draft(
        summary=_sentence(case.run.title, least, most, spread, memory, power, limits),
        severity=Severity.WARNING,
        level=Level.E0,
        evidence=(
            Measure("utilization_spread_points", round(spread, 1), f"utilization {spread:.0f} points apart"),
            *_spread_measures(memory_spread, power_variation),
            *(
                Measure(
                    f"gpu_{gpu.facts.index}_utilization_percent",
                    round(_busy(gpu), 1),
                    f"{gpu_name(gpu)} {_busy(gpu):.0f}%",
                )
                for gpu in gpus
            ),
        ),
        fires=spread >= limits.utilization_points or memory >= limits.memory_share or power >= limits.power_variation,
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


def _compares(run: RunWindow) -> bool:
    """Whether the window holds enough steps of all GPUs; where steps are not counted, whether all ranks make some."""
    rank = run.critical
    if rank.steps_total or rank.facts.visibility == "exact":
        return len(run.ranks) == 1 or rank.steps >= STEPS
    return not is_sampled(rank) or all(map(_computes, run.ranks))


def _computes(rank: RankWindow) -> bool:
    """Whether nearly all samples of its stack saw parts of a step other than a wait."""
    return rank.stacks is not None and share_in(rank.stacks.phases, *COMPUTING) >= TRAINING_SHARE


def _busy(gpu: GpuWindow) -> float:
    stats = gpu.train_utilization or gpu.utilization
    return stats.mean if stats else 0.0


def _waited(case: RunCase, gpu: GpuWindow) -> float:
    """Points that it idles at most because its rank, one of several, waits for data, a wait without an end included."""
    ranks = case.run.ranks
    rank = next((rank for rank in ranks if gpu.facts.uuid in rank.facts.gpu_uuids), None)
    if len(ranks) < 2 or rank is None:
        return 0.0
    series = gpu.train_utilization_series
    since_ns = series[0][0] if series else case.now_ns - round(gpu.window_seconds * 1e9)
    window, waited = max(1.0, (case.now_ns - since_ns) / 1e9), rank.wait_share or 0.0
    if rank.stacks is not None and rank.stacks.waits:
        newest = rank.stacks.waits[-math.ceil(window) :]
        lately = sum(wait for _, wait in newest) / max(sum(time for time, _ in newest), 1e-9)
        waited = max(waited, lately)  # which leaves out the starts of epochs
    if rank.last_step_ns is not None and rank.columns.end_ns:
        steps = zip(rank.columns.end_ns, rank.columns.wait_seconds, strict=True)
        ended = sum(wait for end_ns, wait in steps if end_ns > since_ns and wait == wait)
        waited = max(waited, (ended + max(0.0, (case.now_ns - rank.last_step_ns) / 1e9)) / window)
    return min(100.0 - _busy(gpu), 100.0 * waited)


def _lasts(least: GpuWindow, most: GpuWindow, count: int) -> bool:
    """Whether one is busier than the other in all parts of the window, beyond chance: some batches take a rank long.

    In simulation four ranks with a slow item in 22 were 50 to 86% busy over a minute, now one and then another.
    """
    series = [gpu.train_utilization_series for gpu in (least, most)]
    if not all(series):
        return True
    start_ns, end_ns = max(each[0][0] for each in series), min(each[-1][0] for each in series)
    differences = []
    for number in range(PARTS):
        since_ns, until_ns = (start_ns + (end_ns - start_ns) * place // PARTS for place in (number, number + 1))
        parts = [[busy for time_ns, busy in each if since_ns <= time_ns < until_ns] for each in series]
        if all(parts):
            differences.append(mean(parts[1]) - mean(parts[0]))
    if len(differences) < LEAST_PARTS:
        return True
    reach = student_t_quantile(1.0 - 0.5 * CHANCE / count, len(differences) - 1)
    error: float = stdev(differences) / math.sqrt(len(differences))
    return mean(differences) > reach * error


def _spread_measures(memory: float | None, power: float | None) -> tuple[Measure, ...]:
    measures = []
    if memory is not None:
        measures.append(Measure("memory_spread_share", round(memory, 3), f"memory {percent(memory)} of a GPU apart"))
    if power is not None:
        measures.append(Measure("power_variation", round(power, 3), f"power varies by {percent(power)} of its mean"))
    return tuple(measures)


def _memory_spread(gpus: list[GpuWindow], limits: Thresholds) -> float | None:
    """None where a GPU's memory is not known, or where none is full enough for it to tell anything."""
    shares = [
        gpu.memory_used_bytes.mean / gpu.facts.memory_total_bytes
        for gpu in gpus
        if gpu.memory_used_bytes and gpu.facts.memory_total_bytes
    ]
    if len(shares) < len(gpus) or max(shares) < limits.memory_full_share:
        return None
    return max(shares) - min(shares)


def _power_variation(gpus: list[GpuWindow]) -> float | None:
    if not all(map(trains_throughout, gpus)):
        return None
    watts = [gpu.power_watts.mean for gpu in gpus if gpu.power_watts]
    return stdev(watts) / mean(watts) if len(watts) == len(gpus) and mean(watts) > 0 else None


def _sentence(
    title: str, least: GpuWindow, most: GpuWindow, spread: float, memory: float, power: float, limits: Thresholds
) -> str:
    if spread >= limits.utilization_points or (memory < limits.memory_share and power < limits.power_variation):
        return (
            f"The GPUs of {title} work unequally: {gpu_name(most)} is busy {_busy(most):.0f}% of the time, "
            f"{gpu_name(least)} {_busy(least):.0f}%"
        )
    if memory >= limits.memory_share:
        return f"The GPUs of {title} hold unequal loads: their memory differs by {percent(memory)} of a GPU"
    return f"The GPUs of {title} draw unequal power: it varies by {percent(power)} of its mean"
