"""How much faster a run can get before its own loader sets the pace: no other change brings more than that.

Where the workers are busy all the time, a second saved elsewhere becomes a second of waiting for the next batch. In a
simulated job with busy workers, removing `.item()` brought 1.00x although the training thread spent 27 % of its time
in it, and so did a core of its own for that thread, which stood in line for one 12 % of the time.
"""

from __future__ import annotations

from typing import Protocol

from gpuwatch.diagnosis.advice.sampled import is_sampled, settled_wait, train_share, worker_busy
from gpuwatch.diagnosis.advice.shm import USUAL_PREFETCH
from gpuwatch.diagnosis.finding import Gain
from gpuwatch.timeline.windows import RankWindow

CAP = "then its loader sets the pace"
LEAST_BUSY = 0.02
SATURATED, WAITED_SHARE = 0.85, 0.10


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


def within_loader(rank: RankWindow, gain: Gain, *, cores_full: bool = False) -> Gain:
    """A gain of the training steps, limited to how much faster the workers can deliver batches.

    Args:
        rank: whose steps.
        gain: without that limit.
        cores_full: whether the cores that the run may use are all busy.
    """
    busy = _busy(rank)
    if busy is None:
        return gain
    is_bound = _waits(rank) and (cores_full or busy >= SATURATED)
    return _capped(gain, 1.0 if is_bound else 1.0 / busy, 1.0 / busy)


def pauses_within_loader(rank: RankWindow, gain: Gain, pauses: Pauses, *, cores_full: bool = False) -> Gain:
    """A gain from shorter or rarer pauses, limited likewise.

    During a pause workers fill their queue; without it they have to make those batches during the steps.
    """
    busy, loader = _busy(rank), rank.train_loader
    if busy is None or loader is None:
        return gain
    batch = rank.workers.batch_seconds if rank.workers is not None else None
    queue_seconds = None if batch is None else (loader.prefetch_factor or USUAL_PREFETCH) * batch
    filling = 1.0 if queue_seconds is None else min(1.0, queue_seconds * pauses.count / max(pauses.seconds, 1e-9))
    least_filling = 0.0 if queue_seconds is None else filling
    room = 1.0 if _waits(rank) and (cores_full or busy >= SATURATED) else busy
    stepping = 1.0 - pauses.share
    return _capped(
        gain,
        1.0 / max(LEAST_BUSY, stepping * room + pauses.share * filling),
        1.0 / max(LEAST_BUSY, stepping * busy + pauses.share * least_filling),
    )


def _waits(rank: RankWindow) -> bool:
    """Whether the run waits for workers, so that what they idle is no room where they, or the cores, are saturated.

    Each waits for its turn in the queue now and then, and others use the cores meanwhile. In a simulated job on full
    cores that waited 41 % of its time for workers that were 81 % busy, logging ten times as rarely brought 1.00x.
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
    cap = CAP if gain.high > high else gain.cap
    return Gain(round(min(gain.low, low), 3), round(min(gain.high, high), 3), cap)
