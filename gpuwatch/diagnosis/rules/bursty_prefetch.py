"""The loader is fast enough on average but delivers in bursts that the queue cannot smooth.

Means:
    Batches differ in cost. The workers have time to spare, yet now and then several expensive batches fall together and
    the queue runs empty.
Evidence:
    The hook's record of each batch: how busy the workers are, how much batches differ (their deviation over their
    mean), and how the waits are spread over the steps.
Fires:
    At least 5% lost to waits for data, workers busy less than 85% of the time, and batches that deviate by 30% or
    more.
Clears:
    Below 3%.
Not when:
    A few items cause most of the loss (slow-samples); every N-th batch is late, or the workers would be too slow even
    if they never idled (too few of them: they wait for each other in order, so a deeper queue gains next to nothing);
    cores, a quota, storage or memory explain it; the queue already holds as many batches, memory holds no more, or, by
    the model, no deeper queue saves 2% of the time. Workers that wait for a core at least a quarter as long as they
    compute: then the machine causes the bursts.
Causes:
    Batches whose cost varies, or workers that all pause at the same time.
Fix:
    prefetch_factor 4 or 8, the smaller one where it saves nearly as much, and no more than fit into /dev/shm. Where the
    model below does not reproduce the measured loss: 2 + 3 x deviation x seconds to make a batch / seconds to compute
    one, at most 8.
Gain:
    The batches that the workers made are replayed through a model of torch's queues, with the present depth and with
    deeper ones: the measured loss shrinks as the modelled one does. Where the model misses the loss by a third of it or
    8% of the time, or several ranks wait for each other's bursts, there is a hint instead: up to 1 / (1 - S), usually
    less than 1.1x.
Verify:
    Less than 3% lost to waits for data.
Source:
    CoorDL and SPDL (data readiness).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpuwatch.diagnosis.advice.cost import step_cost
from gpuwatch.diagnosis.advice.fixes import loader_fix
from gpuwatch.diagnosis.advice.gains import without
from gpuwatch.diagnosis.advice.loader_queue import deeper_prefetches, most_prefetch, queue_model
from gpuwatch.diagnosis.advice.resources import USUAL_PREFETCH, worker_line_factor
from gpuwatch.diagnosis.advice.rivals import rivals
from gpuwatch.diagnosis.advice.sampled import worker_busy
from gpuwatch.diagnosis.advice.starvation import (
    CHANGED_SECONDS,
    Starvation,
    avoidable_share,
    is_at_handover_floor,
    is_over,
    starvation_of,
)
from gpuwatch.diagnosis.advice.stream import are_too_slow, batch_deviation, comb, settled
from gpuwatch.diagnosis.finding import Draft, Gain, Level, Measure, RuledOut, Severity, share_measure
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import gibibytes, percent
from gpuwatch.timeline.windows import RankWindow

RHYTHM = 0.6
MOST_PREFETCH = 8
CROWDED_FACTOR = 1.25
"""Seconds that a worker wants a core for each one that it gets."""
ONLY_SMOOTHS = "the queue smooths bursts but makes no batch cheaper"


@dataclass(frozen=True, slots=True)
class Thresholds:
    fire_share: float = threshold(0.05, "of the time is lost to waits: reported from here on")
    clear_share: float = threshold(0.03, "until less is lost", bounded_by="fire_share")
    busy_share: float = threshold(0.85, "workers that are busier are too slow, not bursty")
    batch_deviation: float = threshold(0.30, "deviation of the cost of batches over its mean, at least", most=10.0)


@rule("bursty-prefetch", family="data", subject="run", level=Level.E2, thresholds=Thresholds)
def bursty_prefetch(case: RunCase, limits: Thresholds) -> Draft | None:
    rank, starvation = case.run.critical, starvation_of(case)
    loader, busy, deviation = rank.train_loader, worker_busy(rank), batch_deviation(rank)
    if starvation is None or loader is None or not loader.num_workers or busy is None or deviation is None:
        return None
    if is_at_handover_floor(rank) or busy.value >= limits.busy_share:
        return None
    cost = step_cost(case, starvation)
    if worker_line_factor(rank) >= CROWDED_FACTOR:
        return None
    if cost is not None and are_too_slow(rank, cost.workers * cost.compute_seconds):
        return None
    share, rhythm = avoidable_share(rank, starvation), _rhythm(rank, loader.num_workers)
    if share < limits.clear_share or deviation < limits.batch_deviation or (rhythm or 0.0) >= RHYTHM:
        return None
    deeper, gain = _deeper(case, starvation, deviation)
    if len(case.run.ranks) > 1:
        gain = None  # each of them waits for the others' bursts too
    if deeper is None or is_over(case, starvation, share, CHANGED_SECONDS):
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
            f"Raise prefetch_factor from {present} to {deeper}, so that the queue outlasts the expensive batches"
            + (f"; costs {gibibytes(more)} of /dev/shm at most" if more else ""),
            deeper,
        ),
        gain=gain,
        hint=None if gain is not None else f"up to {without(starvation.share):.2f}x; {ONLY_SMOOTHS}",
        ruled_out=(
            RuledOut("workers too slow on average", f"they are busy {percent(busy.value)} of the time"),
            *rivals(case),
        ),
        verify="Less than 3% lost to waits for data",
        chart=("run.wait_share", "run.step_seconds"),
    )


def _rhythm(rank: RankWindow, workers: int) -> float | None:
    return comb([wait for (wait,) in settled(rank, rank.columns.wait_seconds)], workers)


def _deeper(case: RunCase, starvation: Starvation, deviation: float) -> tuple[int | None, Gain | None]:
    """The depth that the model of the queue picks and its gain; where it says nothing, what the spread asks for."""
    model = queue_model(case, starvation)
    if model is None:
        return _by_spread(case, starvation, deviation), None
    queue = model.best(deeper_prefetches(case), may_reorder=False)
    return (None, None) if queue is None else (queue.prefetch, model.gain(queue))


def _by_spread(case: RunCase, starvation: Starvation, deviation: float) -> int | None:
    """The depth that the spread asks for, as far as shared memory holds it; None where that is no more."""
    cost, loader = step_cost(case, starvation), case.run.critical.train_loader
    if cost is None or loader is None or not loader.num_workers:
        return None
    ratio = cost.batch_seconds / max(cost.compute_seconds, 1e-6)
    wanted = min(MOST_PREFETCH, math.ceil(USUAL_PREFETCH + 3.0 * deviation * ratio))
    most = most_prefetch(case)
    wanted = wanted if wanted <= most else math.floor(most)
    return wanted if wanted > (loader.prefetch_factor or USUAL_PREFETCH) else None
