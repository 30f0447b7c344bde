"""The loader is fast enough on average but delivers in bursts that the queue cannot smooth.

Means:
    Batches differ in what they cost. The workers have time to spare, yet now and then several dear batches fall
    together and the queue runs empty.
Evidence:
    The hook's record of each batch: how busy the workers are, how much batches differ (their deviation over their
    mean), and how the waits are spread over the steps.
Fires:
    At least 5 % lost to waits for data, workers busy less than 85 % of the time, and batches that deviate by 30 % or
    more.
Clears:
    Below 3 %.
Not when:
    A few items hold the loss (slow-samples), every N-th batch is late (too few workers), or cores, a quota, storage
    or memory explain it; the queue holds as many batches already, or memory holds no more.
Causes:
    Batches whose cost varies, or workers that all pause at the same time.
Fix:
    prefetch_factor = 2 + 3 x deviation x seconds to make a batch / seconds to compute one, at most 8, and no more
    than fit into /dev/shm.
Gain:
    A hint: up to 1 / (1 - S), usually less than 1.1x.
Verify:
    Less than 3 % lost to waits for data.
Source:
    CoorDL and SPDL (data readiness).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpuwatch.diagnosis.advice.code import loader_fix
from gpuwatch.diagnosis.advice.cost import step_cost
from gpuwatch.diagnosis.advice.gains import without
from gpuwatch.diagnosis.advice.lull import CHANGED_SECONDS, is_over
from gpuwatch.diagnosis.advice.rivals import rivals
from gpuwatch.diagnosis.advice.sampled import worker_busy
from gpuwatch.diagnosis.advice.shm import local_ranks, shm_mount
from gpuwatch.diagnosis.advice.starvation import avoidable_share, is_at_handover_floor, starvation_of
from gpuwatch.diagnosis.advice.stream import batch_deviation, comb, settled
from gpuwatch.diagnosis.finding import Draft, Level, Measure, RuledOut, Severity
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.diagnosis.wording import gibibytes, percent, share_measure
from gpuwatch.timeline.windows import RankWindow

RHYTHM = 0.6
USUAL_PREFETCH, MOST_PREFETCH = 2, 8
SHM_SHARE = 0.8
OTHER_CAUSES = (
    "epoch-too-short",
    "slow-samples",
    "host-memory-pressure",
    "io-bound",
    "cpu-quota-throttled",
    "worker-affinity-pinned",
    "thread-oversubscription",
    "too-many-workers",
    "host-cpu-exhausted",
    "workers-too-few",
    "slow-collate-ipc",
)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What decides, as far as it may be set."""

    fire_share: float = threshold(0.05, "of the time is lost to waits: said from here on")
    clear_share: float = threshold(0.03, "until less is lost", beside="fire_share")
    busy_share: float = threshold(0.85, "workers that are busier are too slow, not bursty")
    batch_deviation: float = threshold(
        0.30, "the cost of batches deviates from its mean by at least this part", most=10.0
    )


@rule("bursty-prefetch", subject="run", level=Level.E2, after=("data-starvation", *OTHER_CAUSES), thresholds=Thresholds)
def bursty_prefetch(case: RunCase, limits: Thresholds) -> Draft | None:
    """Fires on a run whose workers keep up on average and still let it wait."""
    rank, starvation = case.run.critical, starvation_of(case)
    loader, busy, deviation = rank.train_loader, worker_busy(rank), batch_deviation(rank)
    if starvation is None or loader is None or not loader.num_workers or busy is None or deviation is None:
        return None
    if case.holding.intersection(OTHER_CAUSES) or is_at_handover_floor(rank) or busy.value >= limits.busy_share:
        return None
    share, rhythm = avoidable_share(rank, starvation), _rhythm(rank, loader.num_workers)
    deeper = _deeper(case, deviation)
    if share < limits.clear_share or deviation < limits.batch_deviation or (rhythm or 0.0) >= RHYTHM or deeper is None:
        return None
    if is_over(rank, starvation, share, CHANGED_SECONDS):
        return None
    present = loader.prefetch_factor or USUAL_PREFETCH
    more = loader.num_workers * (deeper - present) * (loader.batch_bytes or 0)
    return Draft(
        summary=(
            f"The workers have time to spare ({percent(busy.value)} busy) but deliver in bursts: "
            f"batches differ by {percent(deviation)}, and {percent(starvation.share)} of the time is lost in waits"
        ),
        severity=Severity.INFO,
        level=starvation.level,
        evidence=(
            share_measure("starvation_share", starvation.share, "lost to waits for data"),
            share_measure("worker_busy_share", busy.value, "workers busy"),
            Measure("batch_deviation", round(deviation, 3), f"the cost of a batch deviates by {percent(deviation)}"),
            Measure("prefetch_factor", present, f"prefetch_factor={present}"),
        ),
        fires=share >= limits.fire_share,
        fix=loader_fix(
            loader,
            {"prefetch_factor": str(deeper)},
            f"Raise prefetch_factor from {present} to {deeper}, so that the queue outlasts the dear batches"
            + (f"; costs {gibibytes(more)} of /dev/shm at most" if more else ""),
            deeper,
        ),
        hint=f"up to {without(starvation.share):.2f}x; the queue smooths bursts, it makes no batch cheaper",
        ruled_out=(
            RuledOut("workers too slow on average", f"they are busy {percent(busy.value)} of the time"),
            *rivals(case),
        ),
        verify="Less than 3 % lost to waits for data",
        chart=("run.wait_share", "run.step_seconds"),
    )


def _rhythm(rank: RankWindow, workers: int) -> float | None:
    return comb([wait for (wait,) in settled(rank, rank.columns.wait_seconds)], workers)


def _deeper(case: RunCase, deviation: float) -> int | None:
    """The queue's depth that the spread asks for, as far as shared memory holds it; None where that is no more."""
    rank, starvation = case.run.critical, starvation_of(case)
    cost = step_cost(case, starvation) if starvation is not None else None
    loader = rank.train_loader
    if cost is None or loader is None or not loader.num_workers:
        return None
    ratio = cost.batch_seconds / max(cost.compute_seconds, 1e-6)
    wanted = min(MOST_PREFETCH, math.ceil(USUAL_PREFETCH + 3.0 * deviation * ratio))
    mount = shm_mount(case)
    if mount is not None and loader.batch_bytes:
        fits = SHM_SHARE * mount.total_bytes / (loader.num_workers * loader.batch_bytes * local_ranks(rank))
        wanted = min(wanted, math.floor(fits))
    return wanted if wanted > (loader.prefetch_factor or USUAL_PREFETCH) else None
