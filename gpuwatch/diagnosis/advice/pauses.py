"""What stops a run once in a while (evaluations, saves, collections, epoch starts): its cost, and whether it ceased.

Steps that come quicker after a pause make up for a part of it: while a thread collects garbage the GPU works through
what is queued. In simulation a GPU that was busy all the time lost nothing to pauses of 0.62 s behind steps of 0.75 s:
the step after each took 0.16 s.

The window remembers a pause for a minute. The only honest sign that it came for the last time is that it stays away:
1.5 times as long as it ever did. With the six evaluations that clear a finding nothing may come for another 25 s, so
one that comes at random is not cleared between two of them.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, median, pstdev

from gpuwatch.diagnosis.advice.gains import from_share, phase_shares, within_loader
from gpuwatch.diagnosis.advice.resources import is_cpu_exhausted
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
from gpuwatch.diagnosis.rule import RunCase
from gpuwatch.timeline.columns import SECOND_NS
from gpuwatch.timeline.windows import PhaseTotals, RankWindow, Share

QUEUED_STEPS = 4
"""Steps that a thread runs ahead of its GPU at most: the driver's queue takes 1,024 launches, a step 300 or more."""
LEAST_STEPS = 8
"""Other steps than those behind a pause, for a mean that they can be compared with."""
SIGMAS = 2.0
LEAST_BUSY = 0.05
ROUNDS = 64
"""First rounds that are played with batches drawn from those that the workers made."""

TIMES_AWAY = 1.5
HEAVY_SHARE = 0.25
"""Of the longest one: collections of a millisecond come between those of a second and tell nothing of their end."""
STILL_NS = 10 * SECOND_NS
"""Without a batch: from outside a run that stands still is not distinguishable from one that merely stopped pausing."""

EPOCHS = 2
LONG_EPOCH = 3.0
MISSED_EPOCHS = 1.5
"""As many more or less than the length of one says may have begun in the time that was seen."""
JOINED = 10
"""Epochs in one: a tenth of the pauses is left."""
SPREAD = 0.05
"""Of the time that is won, to both sides: epochs to come are not those that were seen."""
REMAINING_WAIT = 0.4
"""Of the first wait, what persistent workers leave in the worst of the measured cases (62 of 168 ms)."""


def lost_to_pauses(rank: RankWindow, total: PhaseTotals) -> tuple[float, float]:
    """The least and the most of the time that pauses of one kind cost, less what the steps after them make up for."""
    least, most = phase_shares(total)
    low, high = felt(rank, total.kind)
    return least * low, most * high


def felt(rank: RankWindow, kind: str) -> tuple[float, float]:
    """The part of the pauses that no quicker step makes up for, at least and at most.

    All of it where steps are not known one by one.
    """
    columns = rank.columns
    periods, behind, others = columns.period_seconds, set[int](), set[int]()
    for name, start, _ in rank.phase_spans:
        first = bisect_right(columns.end_ns, start)
        after = range(first, min(first + QUEUED_STEPS, len(periods)))
        (behind if name == kind else others).update(after)
    usual = [
        each
        for place, (each, settled) in enumerate(zip(periods, columns.settled, strict=True))
        if settled and place not in behind and place not in others
    ]
    paused = sum(end - start for name, start, end in rank.phase_spans if name == kind) / 1e9
    quicker = [periods[place] for place in behind - others]
    if len(usual) < LEAST_STEPS or paused <= 0.0:
        return 1.0, 1.0
    caught = sum(fmean(usual) - each for each in quicker)
    reach = SIGMAS * pstdev(usual) * math.sqrt(len(quicker) * (1.0 + len(quicker) / len(usual)))
    low, high = (1.0 - (caught + error) / paused for error in (reach, -reach))
    return min(1.0, max(0.0, low)), min(1.0, max(0.0, high))


def has_ceased(case: RunCase, rank: RankWindow, total: PhaseTotals) -> bool:
    """Whether a phase stays away: in seconds, and in steps where they are known, for a run may become slower."""
    spans = [(start, end) for kind, start, end in rank.phase_spans if kind == total.kind]
    heavy = [(start, end) for start, end in spans if end - start >= HEAVY_SHARE * total.longest_seconds * SECOND_NS]
    if not heavy:
        return False
    away = [after - end for (_, end), (after, _) in pairwise(heavy)]
    if len(heavy) == len(spans) and total.every_seconds is not None:
        away.append(round(total.every_seconds * SECOND_NS))
    last_ns = heavy[-1][1]
    if not away or case.now_ns - last_ns <= TIMES_AWAY * max(away):
        return False
    if not rank.columns.end_ns:
        return rank.last_step_ns is not None and case.now_ns - rank.last_step_ns <= STILL_NS
    since = sum(end_ns > last_ns for end_ns in rank.columns.end_ns)
    return since > TIMES_AWAY * (total.every_steps or 0.0)


def has_stopped_logging(rank: RankWindow) -> bool:
    """The same of logging, which samples of the stack show: in seconds of training, for an evaluation logs nothing."""
    stacks = rank.stacks
    if stacks is None or stacks.log_quiet_seconds is None or stacks.log_pause_seconds is None:
        return False
    return stacks.log_quiet_seconds > TIMES_AWAY * stacks.log_pause_seconds


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
        return _sampled_edges(rank)
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
    return usual >= 2.0 and position > LONG_EPOCH * usual


def _sampled_edges(rank: RankWindow) -> EpochEdges | None:
    """Workers that start, and what an epoch's first batches wait longer than others.

    The session's first epoch does not count: its workers have to be started whatever the settings.
    """
    stacks = enough(rank)
    if stacks is None or stacks.epochs < EPOCHS or stacks.seconds <= 0.0:
        return None
    period = batch_period(stacks)
    usual = settled_wait(stacks).value * period if period else None
    starting = share_in(stacks.phases, "start") + (stacks.first_wait_share or 0.0) - (stacks.beginning_share or 0.0)
    share = share_of(round(stacks.samples * starting), stacks.samples)
    batches = rank.train_loader.batches_per_epoch if rank.train_loader else None
    pause = share.value * stacks.seconds / stacks.epochs
    return EpochEdges(share.value, stacks.epochs, pause, usual, Level.E1, batches, share)


def edges_gain(
    case: RunCase, edges: EpochEdges, idle: tuple[float, float] = (1.0, 1.0), *, joined: bool = False
) -> Gain:
    """The range with workers that live on: what they take for the first batches stays.

    Args:
        case: its run's critical rank is the one.
        edges: the starts of its epochs.
        idle: what the GPU idles in all, at least and at most, where samples do not tell when.
        joined: with epochs that are joined until hardly a pause stays instead.
    """
    rank = case.run.critical
    shares = [edges.share] if edges.sampled is None else [edges.sampled.low, edges.sampled.high]
    cycle = _share_of_cycle(rank, edges)
    if cycle is not None:
        shares.append(cycle)
    felt = felt_by_gpu(rank)
    least, most = min(min(shares) * felt, idle[0]), min(max(shares) * felt, idle[1])
    if joined:
        return _as_delivered(case, from_share((1.0 - 1.0 / JOINED) * least, most))
    shortest, longest = first_batches_part(case, edges) or (0.0, REMAINING_WAIT)
    won = (1.0 - SPREAD) * (1.0 - longest) * least, min(1.0, (1.0 + SPREAD) * (1.0 - shortest)) * most
    return _as_delivered(case, from_share(*won))


def _as_delivered(case: RunCase, gain: Gain) -> Gain:
    """As far as the workers deliver batches that quickly: all of them, at most, and surely what the cores have left.

    64 workers that idled through most of epochs of 51 batches would have filled 32 cores: 1.8x of 2.4x was left.
    """
    rank, host = case.run.critical, case.host
    gain = within_loader(case, gain)
    workers = rank.train_loader.num_workers if rank.train_loader is not None else None
    if not workers or host is None or not host.cpu_percent:
        return gain
    return replace(gain, low=round(min(gain.low, max(1.0, 100.0 / host.cpu_percent)), 3))


def first_batches_part(case: RunCase, edges: EpochEdges) -> tuple[float, float] | None:
    """What part of a pause is the making of an epoch's first batches, however long workers live: at least, at most.

    Workers begin an epoch together. Where the cores are full each then gets less of them than while some are idle: in
    simulation eight workers, busy 54% of the time, made a batch in 0.9 s and their first ones in 1.5 s.
    """
    rank, pause = case.run.critical, _pause_seconds(edges)
    made = _first_round_seconds(rank, edges) or _batch_seconds(rank, edges)
    if made is None or pause <= 0.0:
        return None
    busy = worker_busy(rank)
    together = 1.0 / max(busy.value, LEAST_BUSY) if busy is not None and is_cpu_exhausted(case) else 1.0
    return min(1.0, made[0] / pause), min(1.0, made[1] * together / pause)


def _first_round_seconds(rank: RankWindow, edges: EpochEdges) -> tuple[float, float] | None:
    """What an epoch waits for the first batch of each worker, where all begin together, by batches that they made.

    In order, the training waits until the i-th one is made, less what it trained on those before. Of workers that
    persist this explains the pauses within 15% (12 simulated jobs). Few pauses may have been longer or shorter by
    chance.
    """
    loader, known = rank.train_loader, rank.workers.newest_batch_seconds if rank.workers is not None else ()
    count = (loader.num_workers or 0) if loader is not None else 0
    count = min(count, edges.batches_per_epoch or count)
    columns = rank.columns
    rows = zip(columns.period_seconds, columns.wait_seconds, strict=True)
    trained = [period - wait for period, wait in rows if wait == wait]
    if loader is None or not count or len(known) < LEAST_STEPS or not trained:
        return None
    computing = fmean(trained) / max(1.0, rank.batches_per_step or 1.0)
    rng, rounds = random.Random(1), list[float]()
    for _ in range(ROUNDS):
        drawn = rng.choices(known, k=count)
        in_turn = drawn if loader.in_order is not False else sorted(drawn)
        waited = max(made - place * computing for place, made in enumerate(in_turn))
        rounds.append(max(0.0, waited - count * (edges.usual_seconds or 0.0)))
    reach = SIGMAS * pstdev(rounds) / math.sqrt(edges.count)
    return max(0.0, min(median(rounds), fmean(rounds) - reach)), fmean(rounds) + reach


def _batch_seconds(rank: RankWindow, edges: EpochEdges) -> tuple[float, float] | None:
    """One worker's seconds for a batch: as the workers say, from outside by how busy they are."""
    made = rank.workers.batch_seconds if rank.workers is not None else None
    if made is not None:
        return made, made
    loader, busy = rank.train_loader, worker_busy(rank)
    period = batch_period(rank.stacks) if edges.sampled is not None and rank.stacks is not None else None
    if loader is None or not loader.num_workers or busy is None or period is None:
        return None
    return loader.num_workers * busy.low * period, loader.num_workers * busy.high * period


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


def felt_by_gpu(rank: RankWindow) -> float:
    """What part of the waits at the starts of epochs leaves the GPU idle, by the window's event pairs; all without."""
    columns = rank.columns
    at_starts = [
        (wait, gap)
        for wait, gap, settled in zip(columns.wait_seconds, columns.gap_seconds, columns.settled, strict=True)
        if not settled and gap == gap and wait == wait
    ]
    waited = sum(wait for wait, _ in at_starts)
    return min(1.0, sum(gap for _, gap in at_starts) / waited) if waited > 0.0 else 1.0
