"""What the starts of epochs cost, from the hook's record of the session or from the window's stacks."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.advice.gains import from_share, without
from gpuwatch.diagnosis.advice.sampled import (
    batch_period,
    enough,
    settled_wait,
    share_in,
    share_of,
    train_share,
    worker_busy,
)
from gpuwatch.diagnosis.finding import Gain, Level
from gpuwatch.timeline.windows import RankWindow, Share

EPOCHS = 2
TIMES_LONGER = 3.0
REMAINING = 0.4
"""Of the first wait, what persistent workers leave in the worst of the measured cases (62 of 168 ms)."""
IDLE_BUSY_SHARE = 0.5
"""Workers that make batches for less of the time do not set the pace."""
OPEN_RATIO = 1.25
"""A range whose ends lie further apart has no middle that is known: it is a hint."""


@dataclass(frozen=True, slots=True)
class EpochEdges:
    """The pauses: their share of the time, how long one is, and a usual wait. `sampled`: the share's interval."""

    share: float
    count: int
    pause_seconds: float
    usual_seconds: float | None
    level: Level
    batches_per_epoch: int | None = None
    sampled: Share | None = None
    excess_seconds: float | None = None  # of all of them together, the workers' ends and later batches included


def epoch_edges(rank: RankWindow) -> EpochEdges | None:
    """The figures; None before two epochs began while watched."""
    epochs = rank.epochs
    if epochs is None:
        return _sampled(rank)
    if epochs.count < EPOCHS or _is_long_one(rank, epochs.count):
        return None
    pause, usual = epochs.first_wait_seconds, epochs.usual_wait_seconds
    return EpochEdges(
        epochs.share, epochs.count, pause, usual, Level.E2, epochs.batches_per_epoch, None, epochs.excess_seconds
    )


def _is_long_one(rank: RankWindow, count: int) -> bool:
    """Whether the present epoch is far longer than those before: what their starts cost says nothing of it."""
    position = rank.columns.epoch_position[-1] if len(rank.columns.epoch_position) else -1
    usual = (rank.steps_total - position) / count
    return usual >= 2.0 and position > TIMES_LONGER * usual


def _sampled(rank: RankWindow) -> EpochEdges | None:
    """Workers that start, and the waits for an epoch's first batch less what a batch's wait usually is."""
    stacks = enough(rank)
    if stacks is None or stacks.epochs < EPOCHS or stacks.seconds <= 0.0:
        return None
    period = batch_period(stacks)
    usual = settled_wait(stacks).value * period if period else None
    first = max(0.0, (stacks.first_wait_share or 0.0) - stacks.epochs * (usual or 0.0) / stacks.seconds)
    share = share_of(round(stacks.samples * (share_in(stacks.phases, "start") + first)), stacks.samples)
    batches = rank.train_loader.batches_per_epoch if rank.train_loader else None
    pause = share.value * stacks.seconds / stacks.epochs
    return EpochEdges(share.value, stacks.epochs, pause, usual, Level.E1, batches, share)


def edges_gain(rank: RankWindow, edges: EpochEdges) -> tuple[Gain | None, str | None]:
    """The range with workers that live on, or in words why it is not known.

    What one of them takes for the first batch stays, at worst. From outside only the wait for an epoch's first batch
    is told from others: new workers that begin one after the other hold up the batches behind it, too. Of a simulated
    job with idle workers that lost 68 % of its time to its epochs' starts, first waits were 19 %.
    """
    lost = edges.share * _felt_by_gpu(rank)
    made = rank.workers.batch_seconds if rank.workers is not None else None
    pause = max(edges.pause_seconds, edges.excess_seconds / edges.count if edges.excess_seconds else 0.0)
    stays = min(1.0, made / pause) if made is not None and pause > 0.0 else REMAINING
    low, most = (1.0 - stays) * lost, lost + _later_waits(rank, edges)
    if without(most) > OPEN_RATIO * without(lost):
        reach = f"{without(low):.1f}x by the waits for first batches, {without(most):.1f}x at most"
        return None, f"no promise: {reach}; whether later batches wait for new workers is not seen from outside"
    return from_share(low, lost), None


def _later_waits(rank: RankWindow, edges: EpochEdges) -> float:
    """What new workers may cost beyond the first batch, from outside: all waits, if they have time to spare."""
    loader, busy = rank.train_loader, worker_busy(rank)
    if edges.sampled is None or rank.stacks is None or loader is None or loader.persistent_workers is not False:
        return 0.0
    if busy is None or busy.value >= IDLE_BUSY_SHARE:
        return 0.0
    return settled_wait(rank.stacks).value * train_share(rank.stacks)


def _felt_by_gpu(rank: RankWindow) -> float:
    """What part of the waits at the starts of epochs leaves the GPU idle, by the window's event pairs; all without."""
    columns = rank.columns
    at_starts = [
        (wait, gap)
        for wait, gap, settled in zip(columns.wait_seconds, columns.gap_seconds, columns.settled, strict=True)
        if not settled and gap == gap and wait == wait
    ]
    waited = sum(wait for wait, _ in at_starts)
    return min(1.0, sum(gap for _, gap in at_starts) / waited) if waited > 0.0 else 1.0
