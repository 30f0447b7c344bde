"""How far a share of the steps may be believed: its interval, and what it takes to judge without one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpuwatch.diagnosis.advice.sampled import WATCHED_SECONDS, batch_period, enough, is_sampled
from gpuwatch.diagnosis.advice.starvation import Starvation, lost_seconds
from gpuwatch.diagnosis.advice.stream import begun, nothing_settled, ratio_interval, settled
from gpuwatch.timeline.figures import STEPS
from gpuwatch.timeline.windows import RankWindow, Share

EARLY_STEPS = 8
"""From here on a share is judged by its interval."""


def is_early(rank: RankWindow) -> bool:
    """Whether too few steps were measured for their figures to be judged as they are."""
    if not is_sampled(rank):
        return not (rank.warm and rank.steps >= STEPS)
    stacks = enough(rank)
    if stacks is None or (stacks.batches_per_second is None and not rank.steps_total):
        return False  # batches that nothing counts will never be enough
    return rank.steps < STEPS and stacks.seconds < WATCHED_SECONDS


def has_some_steps(rank: RankWindow) -> bool:
    """Whether there are enough steps for an interval; from outside, batches."""
    if is_sampled(rank):
        return rank.warm and rank.steps >= EARLY_STEPS
    return sum(rank.columns.settled) >= EARLY_STEPS or (nothing_settled(rank) and len(begun(rank)) >= EARLY_STEPS)


def lost_interval(rank: RankWindow, starvation: Starvation) -> Share | None:
    """The share of time that the settled steps lose, with its 95 % interval; None of fewer than eight of them.

    Workers that are too slow make waits repeat in their number: there a stretch
    of as many steps is left out at a time, where that leaves eight of them. Of samples it is the time of a batch, for
    those taken during one wait are one wait.
    """
    rows, size = _by_steps(rank, starvation) if not is_sampled(rank) else _by_seconds(rank)
    stretches = [rows[start : start + size] for start in range(0, len(rows) - size + 1, size)]
    parts = [(sum(period for period, _ in rows), sum(lost for _, lost in rows)) for rows in stretches]
    return ratio_interval(parts) if len(parts) >= EARLY_STEPS else None


def _by_steps(rank: RankWindow, starvation: Starvation) -> tuple[Sequence[tuple[float, ...]], int]:
    """(time, lost) of each settled step, and how many of them repeat."""
    rows: Sequence[tuple[float, ...]] = settled(rank, rank.columns.period_seconds, lost_seconds(rank, starvation))
    if nothing_settled(rank):
        rows = begun(rank)
    workers = rank.train_loader.num_workers if rank.train_loader else None
    return rows, workers if workers and len(rows) >= EARLY_STEPS * workers else 1


def _by_seconds(rank: RankWindow) -> tuple[Sequence[tuple[float, ...]], int]:
    """(time, waited) of each second of samples, and how many of them a batch takes."""
    rows = rank.stacks.waits if rank.stacks else ()
    period = batch_period(rank.stacks) if rank.stacks else None
    trained = sum(seconds for seconds, _ in rows)
    return rows, max(1, math.ceil(period * len(rows) / trained)) if period and trained else 1
