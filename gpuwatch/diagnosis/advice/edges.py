"""What the starts of epochs cost, from the hook's record of the session or from the window's stacks."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from gpuwatch.diagnosis.advice.gains import from_share
from gpuwatch.diagnosis.advice.sampled import (
    batch_period,
    enough,
    epoch_start_share,
    settled_wait,
    share_in,
    share_of,
    worker_busy,
)
from gpuwatch.diagnosis.advice.stream import settled
from gpuwatch.diagnosis.finding import Gain, Level
from gpuwatch.timeline.windows import RankWindow, Share

EPOCHS = 2
TIMES_LONGER = 3.0
MISSED_EPOCHS = 1.5
"""As many more or less than the length of one says may have begun in the time that was seen."""
REMAINING = 0.4
"""Of the first wait, what persistent workers leave in the worst of the measured cases (62 of 168 ms)."""


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
    """Workers that start, and what an epoch's first batches wait longer than others."""
    stacks = enough(rank)
    if stacks is None or stacks.epochs < EPOCHS or stacks.seconds <= 0.0:
        return None
    period = batch_period(stacks)
    usual = settled_wait(stacks).value * period if period else None
    starting = share_in(stacks.phases, "start") + (stacks.first_wait_share or 0.0)
    share = share_of(round(stacks.samples * starting), stacks.samples)
    batches = rank.train_loader.batches_per_epoch if rank.train_loader else None
    pause = share.value * stacks.seconds / stacks.epochs
    return EpochEdges(share.value, stacks.epochs, pause, usual, Level.E1, batches, share)


def edges_gain(rank: RankWindow, edges: EpochEdges, idle: tuple[float, float] = (1.0, 1.0)) -> Gain:
    """The range with workers that live on: what one of them takes for the first batch stays, at worst.

    Args:
        rank: the critical one.
        edges: the starts of its epochs.
        idle: what the GPU idles in all, at least and at most, where samples do not tell when.
    """
    shares = [edges.share] if edges.sampled is None else [edges.sampled.low, edges.sampled.high]
    cycle = _share_of_cycle(rank, edges)
    if cycle is not None:
        shares.append(cycle)
    felt = _felt_by_gpu(rank)
    least, most = min(min(shares) * felt, idle[0]), min(max(shares) * felt, idle[1])
    made = rank.workers.batch_seconds if rank.workers is not None else None
    if made is None and edges.sampled is not None:
        made = _batch_seconds(rank)
    pause = _pause_seconds(edges)
    if made is None or pause <= 0.0:
        return from_share((1.0 - REMAINING) * least, most)
    stays = min(1.0, made / pause)
    return from_share((1.0 - stays) * least, most)


def _pause_seconds(edges: EpochEdges) -> float:
    return max(edges.pause_seconds, edges.excess_seconds / edges.count if edges.excess_seconds else 0.0)


def _share_of_cycle(rank: RankWindow, edges: EpochEdges) -> float | None:
    """One pause as a share of its own epoch, of all time; None where the length of an epoch is not known.

    A few minutes hold two or three starts, so what they took of them is off by a third.
    """
    period = batch_period(rank.stacks) if edges.sampled is not None and rank.stacks is not None else None
    if edges.sampled is None:
        known = [each for (each,) in settled(rank, rank.columns.period_seconds)]
        period = fmean(known) / max(1.0, rank.batches_per_step or 1.0) if known else None
    elif period is not None and rank.stacks is not None:  # of all training: the pauses are no part of the other batches
        period *= 1.0 - epoch_start_share(rank.stacks)
    pause = _pause_seconds(edges)
    if not period or not edges.batches_per_epoch or pause <= 0.0:
        return None
    training = max(0.0, 1.0 - sum(total.share for total in rank.phases.values()))
    share = training * pause / (edges.batches_per_epoch * period + pause)
    # A loop that leaves its epochs early starts more of them.
    seen_seconds = edges.count * pause / max(edges.share, 1e-9)
    return share if abs(edges.count - share * seen_seconds / pause) <= MISSED_EPOCHS else None


def _batch_seconds(rank: RankWindow) -> float | None:
    """One worker's seconds for a batch, by how busy the workers are."""
    loader, busy = rank.train_loader, worker_busy(rank)
    period = batch_period(rank.stacks) if rank.stacks is not None else None
    if loader is None or not loader.num_workers or busy is None or period is None:
        return None
    return loader.num_workers * busy.value * period


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
