"""The container CPU limit stops the workers part of the time, although the host looks idle.

Means:
    The kernel gives the group its quota of CPU time per period (usually 100 ms) and stops it for the rest. Programs
    see all the machine's cores and start too many workers or threads for the quota.
Evidence:
    The cgroup's own counters: periods in which it was throttled over all periods in the window, and its quota. Of
    nested groups the one with the lowest quota counts.
Fires:
    Throttled in more than 25% of the periods and at least 5% lost to waits for data.
Clears:
    Below 10% of the periods.
Not when:
    The waits are small: short bursts into the limit do no harm. Workers wait for storage: no limit changes that. A
    limit on which cores may be used is not a quota.
Causes:
    A number of workers computed from os.cpu_count() or the affinity, as PyTorch and Lightning do, neither of which
    knows the quota.
Fix:
    Raise the limit (docker --cpus, Kubernetes limits.cpu), or lower num_workers to the quota less one.
Gain:
    What loading gains from the cores of the advised limit, with its waits for storage unchanged; at most one over the
    share of the time that the GPU is busy, because launches are stopped too, and at most the advised limit over the
    cores that the run uses: all threads of its workers count. Fewer workers usually bring little.
Verify:
    Throttled in less than 10% of the periods.
Source:
    kubernetes-mixin CPUThrottlingHigh (25%); PyTorch and Lightning count cores by affinity only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from gpuwatch.diagnosis.advice.cost import MINUTE_ERROR, needed_share, step_cost
from gpuwatch.diagnosis.advice.fixes import call_code
from gpuwatch.diagnosis.advice.gains import middle
from gpuwatch.diagnosis.advice.resources import THROTTLED_SHARE, allowed_cores, foreign_cores, local_ranks
from gpuwatch.diagnosis.advice.rivals import rivals
from gpuwatch.diagnosis.advice.starvation import Starvation, starvation_of
from gpuwatch.diagnosis.finding import Draft, Fix, Gain, Level, Measure, Severity, share_measure
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import percent
from gpuwatch.timeline.windows import ProcessTotals


@dataclass(frozen=True, slots=True)
class Thresholds:
    fire_share: float = threshold(THROTTLED_SHARE, "of the periods of the CPU quota are throttled: reported above this")
    clear_share: float = threshold(0.10, "until fewer are", bounded_by="fire_share")
    lost_share: float = threshold(0.05, "of the time lost to waits, at least")
    least_gain: float = threshold(
        1.05, "speed-up from a higher limit, at least (middle of the range)", least=1.0, most=100.0
    )


@rule("cpu-quota-throttled", family="data", subject="run", level=Level.E1, fades=True, thresholds=Thresholds)
def cpu_quota_throttled(case: RunCase, limits: Thresholds) -> Draft | None:
    process = case.run.critical.process
    share = process.throttled_period_share if process else None
    starvation = starvation_of(case)
    if process is None or share is None or share < limits.clear_share or starvation is None:
        return None
    quota = process.latest.cpu_quota_cores
    limit = f"limit of {quota:g} cores" if quota is not None else "limit"
    fix = _fix(case, starvation, quota)
    gain = _gain(case, starvation, fix)
    return Draft(
        summary=f"The container's CPU {limit} stops the run in {percent(share)} of its periods",
        severity=Severity.WARNING,
        level=min(starvation.level, Level.E2),
        evidence=_evidence(process, share, starvation, quota),
        fires=share > limits.fire_share and starvation.share >= limits.lost_share and middle(gain) >= limits.least_gain,
        fix=fix,
        gain=gain,
        ruled_out=rivals(case, "cpu", "quota"),
        verify="Throttled in less than 10% of the periods, and the wait below 6%",
        chart=("run.wait_share", "host.cpu_percent"),
    )


def _evidence(process: ProcessTotals, share: float, starvation: Starvation, quota: float | None) -> tuple[Measure, ...]:
    measures = [share_measure("throttled_period_share", share, "throttled periods")]
    if process.throttled_seconds is not None:
        stopped = process.throttled_seconds
        measures.append(Measure("throttled_seconds", round(stopped, 2), f"stopped for {stopped:.1f} thread-seconds"))
    if quota is not None:
        measures.append(Measure("cpu_quota_cores", quota, f"quota {quota:g} cores"))
    if process.tree_cores is not None:
        measures.append(Measure("tree_cores", round(process.tree_cores, 2), f"{process.tree_cores:.1f} cores used"))
    measures.append(share_measure("starvation_share", starvation.share, "lost to waits for data"))
    return tuple(measures)


def _gain(case: RunCase, starvation: Starvation, fix: Fix) -> Gain:
    """With the advised limit: what its cores then carry of loading, and no more than the GPU's own pace."""
    cap = "from a higher limit; fewer workers alone bring little"
    highest = (1.0 + MINUTE_ERROR) / needed_share(case, starvation)
    cost = step_cost(case, starvation)
    if not isinstance(fix.value, int):
        return Gain(1.0, round(highest, 3), cap)
    ranks, used = local_ranks(case.run.critical), _used_cores(case)
    least, most = _cores_then(case, fix.value)
    if used:  # the work stays what it is: what 4 cores do in a second, 5 do 1.25 times as fast
        highest = min(highest, max(1.0, (1.0 + MINUTE_ERROR) * most / used))
    if cost is None or not cost.batch_cpu_known or cost.workers < 1:
        return Gain(1.0, round(highest, 3), cap)
    raised = replace(cost.uncrowded(), cores=(least / ranks, most / ranks), allowed_cores=most / ranks)
    reached = raised.gain(cost.workers)
    # What the model misses of today's pace no limit explains: ranks that wait for each other, batches that differ.
    missed = max(1.0, cost.gain(cost.workers).low)
    high = min(highest, max(1.0, (1.0 + MINUTE_ERROR) * reached.high / missed))
    low = min((1.0 - 2.0 * MINUTE_ERROR) * highest * least / most, (1.0 - MINUTE_ERROR) * reached.low / missed)
    return Gain(round(max(1.0, low), 3), round(high, 3), cap)


def _cores_then(case: RunCase, limit: int) -> tuple[float, float]:
    """What the machine has of the advised limit: less what other programs keep busy, at least, and all of it."""
    if case.machine is None:
        return float(limit), float(limit)
    count = float(case.machine.cpu_count)
    others = (foreign_cores(case) or 0.0) * count / min(count, allowed_cores(case))
    most = min(float(limit), count)
    return min(most, max(1.0, count - others)), most


def _used_cores(case: RunCase) -> float | None:
    """Cores that all ranks under the limit keep busy; None where that is not known."""
    used = [rank.process.tree_cores if rank.process is not None else None for rank in case.run.ranks]
    known = [each for each in used if each is not None]
    return sum(known) if len(known) == len(used) else None


def _fix(case: RunCase, starvation: Starvation, quota: float | None) -> Fix:
    loader = case.run.critical.train_loader
    workers = loader.num_workers if loader else None
    cost = step_cost(case, starvation)
    if quota is None:
        return Fix(text="Raise the container's CPU limit (docker --cpus, Kubernetes limits.cpu)")
    ranks = local_ranks(case.run.critical)
    wanted = math.ceil(max(quota, ranks * (workers or 0))) + ranks
    if cost is not None and cost.compute_seconds > 0.0:
        wanted = max(math.ceil(quota) + 1, ranks * (math.ceil(cost.batch_cpu_seconds / cost.compute_seconds) + 1))
    if case.machine is not None and case.machine.cpu_count > quota:
        wanted = min(wanted, case.machine.cpu_count)
    fewer = max(1, math.floor(quota / ranks) - 1)
    text = f"Raise the CPU limit from {quota:g} to {wanted} cores (docker --cpus={wanted}; Kubernetes limits.cpu)"
    if workers is not None and workers > fewer:
        text += (
            f"; where that is not possible, {call_code({'num_workers': str(fewer)})} stops the workers from competing"
        )
    return Fix(
        text=text,
        code=f"docker run --cpus={wanted}",
        file=loader.file if loader else None,
        line=loader.line if loader else None,
        value=wanted,
    )
