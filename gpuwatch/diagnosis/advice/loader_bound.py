"""How much faster a run can get before its own loader sets the pace: no other change brings more than that.

A second that something else wins back is a second more of waiting for the next batch where the workers are busy all
the time. In simulated jobs with busy workers, leaving out `.item()` was worth 1.00x where the GPU idled for 27 % of
the time because of it, and one core more for the training thread 1.00x where it stood in line for 12 %.
"""

from __future__ import annotations

from gpuwatch.diagnosis.advice.sampled import train_share, worker_busy
from gpuwatch.diagnosis.advice.shm import USUAL_PREFETCH
from gpuwatch.diagnosis.finding import Gain
from gpuwatch.timeline.windows import RankWindow

CAP = "then its loader sets the pace"
LEAST_BUSY = 0.02


def within_loader(rank: RankWindow, gain: Gain) -> Gain:
    """A gain of the training steps, as far as workers can deliver batches faster than they do."""
    busy = _busy(rank)
    return gain if busy is None else _capped(gain, 1.0 / busy, 1.0 / busy)


def pauses_within_loader(rank: RankWindow, gain: Gain, share: float, count: int, seconds: float) -> Gain:
    """A gain from shorter or rarer pauses, in which workers fill their queue ahead of the steps that follow.

    Without the pauses they have to make those batches in the time of the steps.

    Args:
        rank: whose workers.
        gain: without regard to them.
        share: of the time that passes in the pauses.
        count: of them in the window.
        seconds: of all of them together.
    """
    busy, loader = _busy(rank), rank.train_loader
    if busy is None or loader is None:
        return gain
    batch = rank.workers.batch_seconds if rank.workers is not None else None
    queue_seconds = None if batch is None else (loader.prefetch_factor or USUAL_PREFETCH) * batch
    filling = 1.0 if queue_seconds is None else min(1.0, queue_seconds * count / max(seconds, 1e-9))
    stepping = (1.0 - share) * busy
    least_filling = 0.0 if queue_seconds is None else filling
    return _capped(
        gain,
        1.0 / max(LEAST_BUSY, stepping + share * filling),
        1.0 / max(LEAST_BUSY, stepping + share * least_filling),
    )


def _busy(rank: RankWindow) -> float | None:
    """The part of the training time in which workers make batches; None without workers, or where it is not known."""
    loader = rank.train_loader
    if loader is None or not loader.num_workers or (rank.stacks is not None and train_share(rank.stacks) <= 0.0):
        return None
    busy = worker_busy(rank)
    return None if busy is None else min(1.0, max(busy.value, LEAST_BUSY))


def _capped(gain: Gain, low: float, high: float) -> Gain:
    if gain.high <= high and gain.low <= low:
        return gain
    cap = CAP if gain.high > high else gain.cap
    return Gain(round(min(gain.low, low), 3), round(min(gain.high, high), 3), cap)
