"""How much faster a run can get before its own loader sets the pace: no other change brings more than that.

Where the workers are busy all the time, a second saved elsewhere becomes a second of waiting for the next batch. In a
simulated job with busy workers, removing `.item()` brought 1.00x although the training thread spent 27 % of its time
in it, and so did a core of its own for that thread, which stood in line for one 12 % of the time.
"""

from __future__ import annotations

from typing import Protocol

from gpuwatch.diagnosis.advice.sampled import train_share, worker_busy
from gpuwatch.diagnosis.advice.shm import USUAL_PREFETCH
from gpuwatch.diagnosis.finding import Gain
from gpuwatch.timeline.windows import RankWindow

CAP = "then its loader sets the pace"
LEAST_BUSY = 0.02


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


def within_loader(rank: RankWindow, gain: Gain) -> Gain:
    """A gain of the training steps, limited to how much faster the workers can deliver batches."""
    busy = _busy(rank)
    return gain if busy is None else _capped(gain, 1.0 / busy, 1.0 / busy)


def pauses_within_loader(rank: RankWindow, gain: Gain, pauses: Pauses) -> Gain:
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
    stepping = (1.0 - pauses.share) * busy
    return _capped(
        gain,
        1.0 / max(LEAST_BUSY, stepping + pauses.share * filling),
        1.0 / max(LEAST_BUSY, stepping + pauses.share * least_filling),
    )


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
