"""What a run would win where threads that fight for the cores, or other programs, hold it up.

A crowd slows down loading and the launches of the training thread alike, so the GPU idles for both: of a job that
waited for data 0.45 of the time the GPU worked 0.19, and without the crowd it was five times as fast. The bound is
therefore what the GPU itself needs, not 1 / (1 - waits).
"""

from __future__ import annotations

from statistics import fmean

from gpuwatch.diagnosis.advice.cost import StepCost
from gpuwatch.diagnosis.advice.gains import without
from gpuwatch.diagnosis.advice.starvation import Starvation, train_busy_percent
from gpuwatch.diagnosis.finding import Gain
from gpuwatch.diagnosis.rule import RunCase

LEAST_SEEN, MOST_SEEN = 4.0, 10.0
"""How much faster loading became with one thread per worker where threads fought: 4x (mmdetection#6867), 6.9x
(np.linalg.svd in 4 workers on 2 cores, measured), up to 10x (transferable-samplers#12)."""


def needed_share(case: RunCase, starvation: Starvation) -> float:
    """The part of today's time that computing needs at most: what the GPU is busy, else all that is no wait."""
    busy = train_busy_percent(case) if starvation.on_gpu else None
    return max(0.02, min(1.0 - starvation.share, 1.0 if busy is None else busy / 100.0))


def uncrowded_gain(case: RunCase, starvation: Starvation, cost: StepCost | None, crowd: float) -> Gain:
    """The range with one thread per worker, where now `crowd` threads fight for each core.

    A thread then has its core for itself, so a batch is made at least so many times as fast, as far as that was seen.
    """
    needed = needed_share(case, starvation)
    high = min(MOST_SEEN, 1.0 / needed)
    if cost is None or cost.workers < 1:
        return Gain(round(min(high, without(0.5 * starvation.share)), 3), round(high, 3), _CAP)
    period = fmean(block.period for block in cost.blocks)
    loading = cost.batch_seconds / cost.workers / min(LEAST_SEEN, max(1.0, crowd)) / period
    low = min(high, max(1.0, 1.0 / max(needed, loading)))
    return Gain(round(low, 3), round(high, 3), _CAP)


_CAP = "then limited by what computing itself needs"
