"""What a run would win where threads that compete for the cores, or other programs, hold it up.

A crowd slows down loading and the launches of the training thread alike, so the GPU idles for both: of a job that
waited for data 0.45 of the time the GPU worked 0.19, and without the crowd it was five times as fast. The bound is
therefore what the GPU itself needs, not 1 / (1 - waits).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuwatch.diagnosis.advice.blocks import MINUTE_ERROR
from gpuwatch.diagnosis.advice.cores import line_factor, worker_line_factor
from gpuwatch.diagnosis.advice.cost import StepCost, step_cost
from gpuwatch.diagnosis.advice.gains import HIGHEST_SHARE, from_share, without
from gpuwatch.diagnosis.advice.sampled import worker_busy
from gpuwatch.diagnosis.advice.starvation import Starvation, train_busy_percent
from gpuwatch.diagnosis.finding import Gain
from gpuwatch.diagnosis.rule import RunCase

SWITCHING, MOST_CROWDED = 0.37, 4.0
"""Share of the cores' work lost to switching, at most, per worker per core beyond the first; and the workers per core
up to which that was measured."""
LEAST_SEEN, MOST_SEEN = 4.0, 10.0
"""How much faster loading became with one thread per worker where threads fought: 4x (mmdetection#6867), 6.9x
(np.linalg.svd in 4 workers on 2 cores, measured), up to 10x (transferable-samplers#12)."""
OPEN_RATIO = 1.25
"""A range whose ends lie further apart has no middle that is known: it is a hint."""


@dataclass(frozen=True, slots=True)
class Uncrowded:
    """What one thread per worker brings: a promise, or where too little is known for one what there is, in words."""

    gain: Gain | None
    hint: str | None


def needed_share(case: RunCase, starvation: Starvation) -> float:
    """The part of today's time that computing needs at most: what the GPU is busy, else all that is no wait."""
    busy = train_busy_percent(case) if starvation.on_gpu else None
    return max(0.02, min(1.0 - starvation.share, 1.0 if busy is None else busy / 100.0))


def uncrowded(case: RunCase, starvation: Starvation, cost: StepCost | None, crowd: float) -> Uncrowded:
    """The range with one thread per worker, where now `crowd` threads compete for each core.

    What computing needs is measured, and nearly always what is left to set the pace; what a batch waits for storage
    stays. How long a batch takes a thread that has its core for itself cannot be known while threads compete, not by
    their CPU time either, for they spin: four processes with two OpenBLAS threads each took 0.48 CPU seconds for an SVD
    of 1.8 ms and 26 ms for a product of 2.4 ms, on two cores that others kept busy too. It was `LEAST_SEEN` times as
    fast or more wherever others measured it. Where that leaves the range open there is no promise.
    """
    needed = needed_share(case, starvation)
    high = min(MOST_SEEN, 1.0 / needed)
    if cost is None or cost.workers < 1:
        low = min(high, without(0.5 * starvation.share))
    else:
        making = cost.batch_seconds / cost.workers / cost.period_seconds
        reading = cost.batch_blocked_share
        least, most = (reading + (1.0 - reading) / times for times in (min(LEAST_SEEN, max(1.0, crowd)), MOST_SEEN))
        low, high = (max(1.0, min(high, 1.0 / max(needed, making * left))) for left in (least, most))
    if high > OPEN_RATIO * low:
        unknown = "how long one thread takes for a batch is not known while they compete"
        return Uncrowded(None, f"no promise: {low:.1f}x by what others measured, {high:.1f}x at most; {unknown}")
    least, most = min(low, (1.0 - MINUTE_ERROR) * high), min(MOST_SEEN, (1.0 + MINUTE_ERROR) * high)
    return Uncrowded(Gain(round(max(1.0, least), 3), round(most, 3), _CAP), None)


def alone(case: RunCase, starvation: Starvation, launching: tuple[float, float], cap: str) -> Gain:
    """The range without the other programs on this machine, which slow down launches and workers alike.

    Workers are slowed down as much as the training thread is at least, and by all the time in which they neither
    compute nor wait for storage at most; a crowd also costs CPU seconds by itself.

    Args:
        case: the run.
        starvation: its waits for data.
        launching: the least and the most of the training time that launches on time win back.
        cap: what limits it then, where its workers do not.
    """
    rank, cost = case.run.critical, step_cost(case, starvation)
    busy, factor = worker_busy(rank), max(line_factor(rank), worker_line_factor(rank))
    if cost is None or cost.workers < 1 or busy is None:
        least, most = launching
        itself = starvation.share if cost is not None and cost.workers < 1 else 0.0  # its own thread makes the batches
        return from_share(least, most + itself * (1.0 - 1.0 / factor), cap)
    if not cost.sampled and rank.workers is not None and rank.workers.batch_seconds is None:
        cost = cost.cheaper(1.0 - busy.value)
    period = cost.period_seconds
    free = replace(cost.uncrowded(), cores=(cost.allowed_cores, cost.allowed_cores))
    crowd = min(cost.batch_seconds / max(free.batch_seconds, 1e-9), MOST_CROWDED)
    ends = (
        (launching[0], max(free.batch_seconds, cost.batch_seconds / factor)),
        (launching[1], free.batch_seconds / (1.0 + SWITCHING * (crowd - 1.0))),
    )
    low, high = (
        max(1.0, period / max((1.0 - min(starvation.share + won, HIGHEST_SHARE)) * period, made / cost.workers))
        for won, made in ends
    )
    return Gain(round(low, 3), round(max(low, high), 3), cap)


_CAP = "then limited by what computing itself needs"
