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
"""So many of them say within 8% what slow items cost; 600 steps hold seven."""
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
def speed(job: Job, seed: str, *, steps: int | None = None) -> tuple[float, float, float, float]:
    """Samples per second; the shares of wait, gap and busy GPU.

    Args:
        job: what runs.
        seed: of everything random.
        steps: at least as many, in whole cycles of pauses and epochs, however long that takes; None: about a minute.
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
    passed = training.steps
    least, most, cycle = steps or LEAST_STEPS, math.inf if steps else MOST_SECONDS, 1 if steps is None else _cycle(job)
    while (
        training.steps - passed < FEWEST_STEPS
        or (training.steps - passed) % cycle
        or (training.time - first < most and (training.steps - passed < least or training.time - first < LEAST_SECONDS))
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


def _lasting_steps(job: Job) -> int:
    """Three of its cycles, and 150 slow batches; 0 for a job that has neither."""
    cycle, slow = _cycle(job), job.loading.slow_share
    return max(CYCLES * cycle if cycle > 1 else 0, math.ceil(SLOW_BATCHES / slow / job.ranks) if slow else 0)


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
    """How much faster the changed job really is, in the long run.

    Both over as many steps: 128 workers on 64 cores begin together, and made 11% more over 2,736 steps than over 456.
    """
    job, changed = without_standstill(job), without_standstill(changed)
    steps = max(_lasting_steps(job), _lasting_steps(changed))
    return speed(changed, seed, steps=steps)[0] / speed(job, seed, steps=steps)[0]
