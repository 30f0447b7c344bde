"""What a job loses and why, from the simulation itself: no sensor, no rule, the same job run again with a change."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

from tests.scenarios.job import Job
from tests.scenarios.training import Training

LEAST_STEPS, FEWEST_STEPS, LEAST_SECONDS, MOST_SECONDS = 600, 200, 60.0, 240.0
"""So many steps, or as many as these seconds hold, but no fewer than the second number."""
BEGINNING_SECONDS = 6.0
"""At least, and until what the queue took in at once, when all workers began together, is used up twice."""
SLOW_BATCHES = 150
"""So many of them say within 8 % what slow items cost; 600 steps hold seven."""
CYCLES, RARE_SHARE = 3, 0.02
"""What a change brings is measured over whole cycles of its longest pause: 600 steps hold two or three of those that
come every 280, which is a quarter more or less than their share. Pauses that take less of the time than that are left
out."""
JOINED = 100_000
"""Batches of an epoch that never ends here."""


@dataclass(frozen=True, slots=True)
class Truth:
    """Shares of the time after the first seconds, and samples per second with and without the loading's cost."""

    samples_per_second: float
    ideal_samples_per_second: float
    wait_share: float
    gap_share: float
    busy_share: float

    @property
    def data_loss(self) -> float:
        """The part of the time that an ideal loader would save."""
        return max(0.0, 1.0 - self.samples_per_second / self.ideal_samples_per_second)

    @property
    def in_step_idle(self) -> float:
        """What the GPU idles in addition to the waits, pauses included."""
        return max(0.0, 1.0 - self.busy_share - self.gap_share)


@cache
def speed(job: Job, seed: str, *, lasting: bool = False) -> tuple[float, float, float, float]:
    """Samples per second; the shares of wait, gap and busy GPU.

    Args:
        job: what runs.
        seed: of everything random.
        lasting: whole cycles of pauses and epochs, and 150 slow batches, however long that takes.
    """
    training = Training(job, seed)
    queued = job.loading.workers * job.loading.prefetch
    while training.time < BEGINNING_SECONDS or training.steps < 2 * queued:
        training.advance()
    first = training.time
    begun = [
        (one.samples, one.wait_seconds, one.gap_seconds, one.busy_seconds)
        for one in (rank.totals for rank in training.ranks)
    ]
    steps = training.steps
    least, most, cycle = LEAST_STEPS, MOST_SECONDS, 1
    if lasting:
        cycle = _cycle(job)
        if cycle > 1:
            least, most = CYCLES * cycle, math.inf
        if job.loading.slow_share:
            least, most = max(least, math.ceil(SLOW_BATCHES / job.loading.slow_share / job.ranks)), math.inf
    while (
        training.steps - steps < FEWEST_STEPS
        or (training.steps - steps) % cycle
        or (training.time - first < most and (training.steps - steps < least or training.time - first < LEAST_SECONDS))
    ):
        training.advance()
    seconds = max(training.time - first, 1e-9)
    worst = max(
        range(len(training.ranks)), key=lambda place: training.ranks[place].totals.wait_seconds - begun[place][1]
    )
    totals, before = training.ranks[worst].totals, begun[worst]
    return (
        (totals.samples - before[0]) / seconds,
        (totals.wait_seconds - before[1]) / seconds,
        (totals.gap_seconds - before[2]) / seconds,
        (totals.busy_seconds - before[3]) / seconds,
    )


def _cycle(job: Job) -> int:
    """Steps after which the longest of its pauses comes again: 1 where there are none that count."""
    loading, step_seconds = job.loading, job.computing.gpu_seconds
    pauses = (pause for pause in job.pauses if pause.seconds >= RARE_SHARE * pause.every_steps * step_seconds)
    epochs = (loading.batches_per_epoch,) if loading.batches_per_epoch < JOINED else ()
    return max((*(pause.every_steps for pause in pauses), *epochs, 1))


def without_standstill(job: Job) -> Job:
    """The same job where it never stops for good."""
    return replace(job, faults=tuple(f for f in job.faults if f.kind not in ("hang", "stall", "restart")))


@cache
def truth_of(job: Job, seed: str) -> Truth:
    """The truth about a job."""
    job = without_standstill(job)
    rate, wait, gap, busy = speed(job, seed)
    ideal = speed(job.ideal(), seed)[0]
    return Truth(rate, max(rate, ideal), wait, gap, busy)


def factor(job: Job, changed: Job, seed: str) -> float:
    """How much faster the changed job really is, in the long run."""
    before = speed(without_standstill(job), seed, lasting=True)[0]
    return speed(without_standstill(changed), seed, lasting=True)[0] / before
