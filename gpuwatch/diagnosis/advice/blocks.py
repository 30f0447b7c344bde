"""What the stretches of a window say of a step: its length, its computing, and the making of its batches."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, median

from gpuwatch.diagnosis.advice.evidence import lost_interval
from gpuwatch.diagnosis.advice.sampled import batch_period, epoch_start_share, share_of, train_share, worker_load
from gpuwatch.diagnosis.advice.starvation import Starvation
from gpuwatch.diagnosis.advice.stream import quartiles, settled, stretches
from gpuwatch.diagnosis.finding import Level
from gpuwatch.timeline.stacks import is_fed, making_threads
from gpuwatch.timeline.windows import RankWindow, Share

BLOCKS = 12
"""The window in as many stretches, each of which predicts its own gain: their spread is the range given."""
MINUTE_ERROR = 0.05
"""Of what the GPU is busy, a minute's figure against that of four: within 5 % in 12 of 13 simulated crowds."""
ERRORS = (1.0, 1.0 + MINUTE_ERROR)
AWAKE = 0.45
"""Threads that sleep through every wait get their cores back slowly on a busy machine. Kept busy by workers, the mean
computing time fell to 0.42-0.68 of what it was in four runs under heavy foreign load; on a quiet machine it stays."""


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch of the window: mean seconds of a step, of its computing, and of one worker making its batches."""

    period: float
    compute_low: float
    compute_high: float
    batch: float


def blocks_of(rank: RankWindow, starvation: Starvation, workers: int) -> tuple[tuple[Block, ...], float]:
    """The stretches, and the pace of computing."""
    if starvation.wait is not None:
        return _sampled(rank, starvation, starvation.wait, workers)
    return _measured(rank, starvation, workers)


def batches_per_step(rank: RankWindow) -> int:
    """How many batches a step takes: more than one where gradients are accumulated."""
    size = rank.train_loader.batch_size if rank.train_loader else None
    known = [samples for (samples,) in settled(rank, rank.columns.samples)]
    return max(1, round(median(known) / size)) if size and known else 1


def _measured(rank: RankWindow, starvation: Starvation, workers: int) -> tuple[tuple[Block, ...], float]:
    """The stretches, and the pace of computing; none before each worker has had its turn.

    Of 32 workers that are too slow one step in a round waits, for all of them: nine steps with that one took 19 s on
    average, 32 of them 2.5 s.
    """
    columns = rank.columns
    exact_gpu = starvation.on_gpu and starvation.level is Level.E3
    lost = columns.gap_seconds if exact_gpu else columns.wait_seconds
    rows = settled(rank, columns.period_seconds, columns.wait_seconds, lost)
    if len(rows) < workers:
        return (), 0.0
    made = rank.workers.batch_seconds if rank.workers is not None else None
    batches = batches_per_step(rank)
    found, paces = [], []
    for stretch in stretches(rows, BLOCKS, max(1, workers)):
        period, wait, idle = (fmean(column) for column in zip(*stretch, strict=True))
        if period <= 0.0:
            continue
        # While starved every worker is busy all the time, so one makes a step's batches in `workers` periods.
        batch = wait if workers == 0 else made * batches if made is not None else workers * period
        pace = None
        if starvation.level < Level.E3:
            low, high = (period * _computing_share(starvation, 0.0, wait / period, error) for error in ERRORS)
        elif starvation.on_gpu:
            # A GPU's queue moves its idle time into other steps than the wait's: only stretches of steps add up.
            low = high = max(period - idle, 0.0)
        else:
            computing = sorted(max(step - waited, 0.0) for step, waited, _ in stretch)
            pace, high = fmean(computing[: (len(computing) + 1) // 2]), fmean(computing)
            low = max(pace, AWAKE * high)
        paces.append(low if pace is None else pace)
        found.append(Block(period, low, high, batch))
    return tuple(found), quartiles(paces)[0] if paces else 0.0


def _sampled(rank: RankWindow, starvation: Starvation, wait: Share, workers: int) -> tuple[tuple[Block, ...], float]:
    """One stretch as the samples say, and the two ends of what they leave open.

    Batches stand for steps. What the starts of epochs take is left out, as it is of measured steps. Samples do not
    tell fast steps from slow ones, so computing is taken to stay what it is.
    """
    stacks = rank.stacks
    period = batch_period(stacks) if stacks else None
    if period is None and rank.step_seconds is not None:
        period = rank.step_seconds.mean
    if stacks is None or not period:
        return (), 0.0
    edge = epoch_start_share(stacks)
    busy = worker_load(rank) or Share(1.0, 1.0, 1.0)
    wall = period / train_share(stacks)
    found = []
    lost = _sampled_wait(rank, starvation, wait)
    for waited, worked, reach in (
        (lost.low, busy.high, starvation.busy_reach),
        (lost.value, busy.value, 0.0),
        (lost.high, busy.low, -starvation.busy_reach),
    ):
        low = high = period * _computing_share(starvation, edge, waited, reach=reach)
        if workers:
            batch = workers * worked * wall
        else:
            # A thread makes batches while the training computes as well.
            batch = wall * making_threads(stacks) if is_fed(stacks) else period * waited
        found.append(Block(period * (1.0 - edge), low, high, batch))
    return tuple(found), found[1].compute_low


def _sampled_wait(rank: RankWindow, starvation: Starvation, wait: Share) -> Share:
    """The wait's share with an interval over blocks of that many seconds, or else batches.

    Samples that were taken in one wait are one wait.
    """
    stacks, by_seconds = rank.stacks, lost_interval(rank, starvation)
    if by_seconds is None and (stacks is None or not stacks.waits or not stacks.batches):
        return wait
    if by_seconds is None and stacks is not None:
        by_seconds = share_of(round(wait.value * stacks.batches), stacks.batches)
    assert by_seconds is not None
    return Share(wait.value, min(wait.low, by_seconds.low), max(wait.high, by_seconds.high))


def _computing_share(
    starvation: Starvation, edge: float, waited: float, error: float = 1.0, reach: float = 0.0
) -> float:
    """What is left of the time without the waits: the thread's own part, or the GPU's where that is more.

    The thread launches ahead of the GPU, so whichever has more to do sets the pace: 1 - min(wait, idle), within 2 % in
    31 of 36 simulated jobs, within 9 % in four that pause.

    Args:
        starvation: with the utilization, where a GPU computes.
        edge: the starts of epochs, in which the thread does not compute either.
        waited: for data.
        error: of the utilization, as a factor.
        reach: of it too, as a share.
    """
    thread = max(0.0, 1.0 - edge - waited)
    busy = (1.0 - starvation.idle_share) * error + reach if starvation.on_gpu else 0.0
    return max(thread, min(busy, 1.0 - edge))
