"""What a change brings, as factors on the samples per second, and never more than the run's own loader permits.

Factors multiply; percentages are never added. Where the workers are busy all the time, a second saved elsewhere
becomes a second of waiting for the next batch. In a simulated job with busy workers, removing `.item()` brought 1.00x
although the training thread spent 27% of its time in it, and so did a core of its own for that thread, which stood in
line for one 12% of the time.
"""

from __future__ import annotations

import math
from typing import Protocol

from gpuwatch.diagnosis.advice.resources import (
    USUAL_PREFETCH,
    allowed_cores,
    is_cpu_exhausted,
    worker_cores,
)
from gpuwatch.diagnosis.advice.sampled import is_sampled, settled_wait, train_share, worker_busy
from gpuwatch.diagnosis.finding import Gain
from gpuwatch.diagnosis.rule import RunCase
from gpuwatch.timeline.windows import PhaseTotals, RankWindow

HIGHEST_SHARE = 0.98
"""A share above it would promise more than 50 times the speed from one number's last digit."""

LOADER_CAP = "then its loader sets the pace"
LEAST_BUSY = 0.02
SATURATED, WAITED_SHARE = 0.85, 0.10


def without(share: float) -> float:
    """The speed-up from losing nothing of a share of the time any more."""
    return 1.0 / (1.0 - min(max(share, 0.0), HIGHEST_SHARE))


def from_share(low_share: float, high_share: float, cap: str | None = None) -> Gain:
    """The gain from winning back between the two shares of the time."""
    return Gain(round(without(low_share), 3), round(without(high_share), 3), cap)


def from_rarer_phase(share: float, times: float) -> float:
    """The speed-up from doing something `times` as rarely that takes a share of the time."""
    return without(share * (1.0 - 1.0 / max(1.0, times)))


def rarer_times(total: PhaseTotals, target_share: float) -> int:
    """As how many times as rarely a phase has to come to take no more than this share of the time.

    With t the training between two of them and e one of them, v = e / (e + t); k times the training between them gives
    e / (e + k t) = `target_share`.
    """
    share = min(total.share, 0.95)
    return max(2, math.ceil(share * (1.0 - target_share) / (target_share * (1.0 - share)) - 1e-6))


def phase_shares(total: PhaseTotals) -> tuple[float, float]:
    """What a phase takes of the time, the lower and the higher of two figures: of the window, and of its own cycle.

    A window of a minute holds two or three pauses that come every 25 s, so its share is off by a quarter; the longest
    pause over the usual time from one to the next is not, but knows nothing of shorter ones.
    """
    if not total.every_seconds:
        return total.share, total.share
    cycle = min(total.longest_seconds / total.every_seconds, HIGHEST_SHARE)
    return min(total.share, cycle), max(total.share, cycle)


def middle(gain: Gain) -> float:
    """The factor in the middle of the range."""
    return math.sqrt(gain.low * gain.high)


class Pauses(Protocol):
    """What is known of the pauses of one kind in a window: evaluations, saves, collections, compilations."""

    @property
    def share(self) -> float:
        """Of the time."""

    @property
    def count(self) -> int:
        """How many."""

    @property
    def seconds(self) -> float:
        """Of all of them together."""


def within_loader(case: RunCase, gain: Gain, *, alone: bool = False) -> Gain:
    """A gain of the critical rank's training steps, limited to how much faster its workers can deliver batches.

    Args:
        case: of the run.
        gain: without that limit.
        alone: whether the change is that nothing else uses the cores.
    """
    rank = case.run.critical
    busy = _busy(rank)
    if busy is None:
        return gain
    is_bound = _waits(rank) and (busy >= SATURATED or (not alone and is_cpu_exhausted(case)))
    most = min(1.0 / busy, _more_batches_by_cpu(case))
    return _capped(gain, 1.0 if is_bound else most, most)


def pauses_within_loader(case: RunCase, gain: Gain, pauses: Pauses) -> Gain:
    """A gain from shorter or rarer pauses, limited likewise.

    During a pause workers fill their queue; without it they have to make those batches during the steps.
    """
    rank = case.run.critical
    busy, loader = _busy(rank), rank.train_loader
    if busy is None or loader is None:
        return gain
    batch = rank.workers.batch_seconds if rank.workers is not None else None
    queue_seconds = None if batch is None else (loader.prefetch_factor or USUAL_PREFETCH) * batch
    filling = 1.0 if queue_seconds is None else min(1.0, queue_seconds * pauses.count / max(pauses.seconds, 1e-9))
    least_filling = 0.0 if queue_seconds is None else filling
    room = 1.0 if _waits(rank) and (busy >= SATURATED or is_cpu_exhausted(case)) else busy
    stepping, by_cpu = 1.0 - pauses.share, _more_batches_by_cpu(case)
    return _capped(
        gain,
        min(by_cpu, 1.0 / max(LEAST_BUSY, stepping * room + pauses.share * filling)),
        min(by_cpu, 1.0 / max(LEAST_BUSY, stepping * busy + pauses.share * least_filling)),
    )


def _more_batches_by_cpu(case: RunCase) -> float:
    """How many times as many batches the cores of the rank permit, if its workers had all of them.

    A batch costs what it costs, however long its worker stands in line: in a simulated job whose workers kept 15.2 of
    16 cores busy, copies that wait for nothing brought 0.91x, not the 1.6x of workers that were busy 61% of the time.
    """
    rank = case.run.critical
    each, count = worker_cores(rank), rank.train_loader.num_workers if rank.train_loader else None
    if not each or not count:
        return math.inf
    return max(1.0, allowed_cores(case) / (each * count))


def _waits(rank: RankWindow) -> bool:
    """Whether the run waits for workers, so that what they idle is no room where they, or the cores, are saturated.

    Each waits for its turn in the queue now and then, and others use the cores meanwhile. In a simulated job on full
    cores that waited 41% of its time for workers that were 81% busy, logging ten times as rarely brought 1.00x.
    """
    waited = rank.gap_share if rank.gap_share is not None else rank.settled_wait_share
    if is_sampled(rank) and rank.stacks is not None:
        waited = settled_wait(rank.stacks).value
    return (waited or 0.0) >= WAITED_SHARE


def _busy(rank: RankWindow) -> float | None:
    """The part of the training time in which workers make batches; None without workers, or where it is not known."""
    loader = rank.train_loader
    if loader is None or not loader.num_workers or (rank.stacks is not None and train_share(rank.stacks) <= 0.0):
        return None
    busy, made = worker_busy(rank), rank.workers.batch_seconds if rank.workers is not None else None
    if busy is None:
        return None
    period = None if rank.step_seconds is None else rank.step_seconds.mean / max(1.0, rank.batches_per_step or 1.0)
    # Workers that fill a deep queue are busy, whatever their pace.
    pace = made / loader.num_workers / period if made is not None and period else 1.0
    return min(1.0, max(min(busy.value, pace), LEAST_BUSY))


def _capped(gain: Gain, low: float, high: float) -> Gain:
    if gain.high <= high and gain.low <= low:
        return gain
    cap = LOADER_CAP if gain.high > high else gain.cap
    return Gain(round(min(gain.low, low), 3), round(min(gain.high, high), 3), cap)
