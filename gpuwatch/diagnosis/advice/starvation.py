"""S, the share of training time in which the GPU idles because the next batch is not ready: its size and interval.

Never the time the CPU spends in `next()`: GPU work is queued, so that wait can be free. In simulation a job that
waited 59% of its time had a GPU idle of 0%. Where training computes on the CPU nothing is queued and the wait
is the figure, exactly. Seen from outside the wait is a share of samples of the training thread's stack.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from statistics import fmean, median

from gpuwatch.diagnosis.advice.sampled import (
    SAMPLES,
    WATCHED_SECONDS,
    WORKER_SAMPLES,
    batch_period,
    busy_worker_samples,
    enough,
    epoch_start_share,
    is_sampled,
    phase_samples,
    settled_samples,
    settled_wait,
    share_in,
    trains_on,
    unended_wait_seconds,
    worker_busy,
)
from gpuwatch.diagnosis.advice.stream import (
    EARLY_STEPS,
    begun,
    few_settled,
    ratio_interval,
    ratio_reach,
    settled,
    stretches,
)
from gpuwatch.diagnosis.finding import Level
from gpuwatch.diagnosis.rule import RunCase
from gpuwatch.timeline.figures import STEPS
from gpuwatch.timeline.stacks import is_handed_over
from gpuwatch.timeline.windows import GpuWindow, RankWindow, Share

HANDOVER_SECONDS = 0.0012
"""What a ready batch of workers costs the training thread: 1.1-1.5 ms in the median, whatever their number."""
SLOW_HANDOVER_SECONDS = 0.002
FLOOR_WAIT_SECONDS = 0.003
FLOOR_BUSY_SHARE = 0.20
UTILIZATION_SAMPLES = 30
BUSY_BLOCKS = 12
LEAST_TRAINED = 0.2
"""Of a stretch of the window: of less it is not known how busy the GPU was in it."""
MOST_PAUSED = 0.9
EDGE_SHARE = 0.07
"""Of a stretch of 5 s, what the utilization's window of 1/6 s blurs at its two ends."""

_time_ns = itemgetter(0)

LONG_WAITS_SECONDS = 20.0
"""Waits that are evidence without any step: most workers have begun by then."""

BLOCK_SECONDS = 5.0
CLEAN_SHARE = 0.02
OVER_SECONDS, CHANGED_SECONDS = 20.0, 10.0
"""Without a loss: the end of one, or soon the end, where the window mixes two times that are alike in no shape."""
TIMES_PAUSED = 3.0
CALM_SHARE = 5.0 / 6.0
"""Of the clearing threshold, over five minutes: a run that loses 8% there, 10% in its worst minutes and 6% in its
best, was reported and cleared 3.8 times an hour by its minutes alone, once by this (20 simulated hours)."""
FALLEN_SHARE = 0.5
UNLIKELY = 0.05


@dataclass(frozen=True, slots=True)
class Starvation:
    """The figure, and what it rests on. `busy_percent` is the utilization where the figure needed it.

    `wait` is the wait's share with its interval, where it was sampled.
    """

    share: float
    level: Level
    on_gpu: bool
    wait_share: float | None
    busy_percent: float | None
    steps: int
    seconds: float
    wait: Share | None = None
    busy_reach: float = 0.0  # of the utilization, to both sides

    @property
    def idle_share(self) -> float:
        """What the utilization leaves; all of the time where it is not known."""
        return 1.0 if self.busy_percent is None else max(0.0, 1.0 - self.busy_percent / 100.0)


def starvation_of(case: RunCase) -> Starvation | None:
    """The figure of the run's critical rank; None where it cannot be measured (hardware alone never can)."""
    rank = case.run.critical
    if is_sampled(rank) or _is_unseen_by_hook(rank):
        return _sampled(case)
    few = few_settled(rank)
    wait = rank.settled_wait_share if rank.settled_wait_share is not None and not few else _begun_wait_share(rank)
    if rank.facts.device == "cpu":
        return None if wait is None else _of(rank, wait, Level.E3, on_gpu=False, wait=wait)
    if rank.facts.device is None and wait is not None and not case.scene.gpus:
        return _of(rank, wait, Level.E2, on_gpu=False, wait=wait)  # no GPU is known that could hide it
    gap = _begun_gap_share(rank) if few else rank.gap_share
    if gap is not None:
        return _of(rank, gap, Level.E3, on_gpu=True, wait=wait)
    busy = train_busy_percent(case)
    if wait is None or busy is None:
        return None
    lost = _idle_in_waits(case, wait, 1.0 - busy / 100.0)
    return _of(rank, lost, Level.E2, on_gpu=True, wait=wait, busy=busy)


def _begun_wait_share(rank: RankWindow) -> float | None:
    """The waits of a run with few settled steps, but for the first round of its workers."""
    if rank.wait_share is None or not few_settled(rank):
        return rank.wait_share
    return _share_of(begun(rank, rank.columns.wait_seconds))


def _begun_gap_share(rank: RankWindow) -> float | None:
    """The GPU's idle time of such a run by event pairs, from eight steps on: its utilization counts once it is warm."""
    rows = begun(rank, rank.columns.gap_seconds)
    return _share_of(rows) if len(rows) >= EARLY_STEPS else None


def _share_of(rows: Sequence[tuple[float, float]]) -> float | None:
    total = sum(period for period, _ in rows)
    return sum(lost for _, lost in rows) / total if total > 0.0 else None


def _is_unseen_by_hook(rank: RankWindow) -> bool:
    """Whether the training reads no loader, but waits for a thread that does: its stack alone shows that."""
    return rank.wait_share is None and rank.stacks is not None and is_handed_over(rank.stacks)


def _sampled(case: RunCase) -> Starvation | None:
    """The figure of a run that only its stacks tell of; None on too few samples, or where no wait can be seen."""
    rank, device = case.run.critical, trains_on(case)
    stacks, unended = rank.stacks, unended_wait_seconds(rank)
    if stacks is None or settled_samples(stacks, unended) < SAMPLES or device is None:
        return None
    if rank.train_loader is None and not phase_samples(stacks, "wait"):
        return None
    wait = settled_wait(stacks, unended)
    if device != "cuda":
        found = _of(rank, wait.value, Level.E1, on_gpu=False, wait=wait.value)
        return replace(found, wait=wait, seconds=stacks.seconds)
    idle = idle_share(case)
    if idle is None:
        return None
    busy_percent, reach = 100.0 * (1.0 - idle.value), (idle.high - idle.low) / 2.0
    lost = _idle_in_waits(case, wait.value, idle.value)
    found = _of(rank, lost, Level.E1, on_gpu=True, wait=wait.value, busy=busy_percent)
    return replace(found, wait=wait, seconds=stacks.seconds, busy_reach=reach)


def _idle_in_waits(case: RunCase, wait: float, idle: float) -> float:
    """What a GPU without event pairs idles for waits at most: where it idles longer than is waited, that is not theirs.

    In simulation collections of 23 s, which nothing shows from outside, left a GPU idle for 24% of a minute; the rest
    of it the thread waited for what was queued, 36% of the time, and an ideal loader brought 1.03x.
    """
    rank, gpu = case.run.critical, _busiest(case)
    blocks = _busy_and_waiting(rank, gpu, exact=False) if gpu is not None else []
    if not blocks:
        return min(wait, idle)
    length = sum(each for each, *_ in blocks)
    elsewhere = sum(each * max(0.0, 1.0 - busy - waited - EDGE_SHARE) for each, busy, waited in blocks) / length
    return max(0.0, min(wait, idle - elsewhere))


def train_busy_percent(case: RunCase) -> float | None:
    """Utilization outside phases of the busiest of the critical rank's GPUs (of the run's, where it names none).

    The busiest one sets the pace of a process with several: while it computes, neither loading nor launching holds
    the process up, however idle the others are. It is over the steps that the waits are of: a job of 7 s steps waited
    73% of four minutes and was busy 10% of the last one, which left 17% that no wait explained, and had none.
    """
    idle = idle_share(case)
    return None if idle is None else 100.0 * (1.0 - idle.value)


def idle_share(case: RunCase) -> Share | None:
    """What that leaves idle, with the interval that the swings within the window leave it."""
    gpu = _busiest(case)
    if gpu is None:
        return None
    rank = case.run.critical
    series = [percent / 100.0 for _, percent in _in_steps(gpu, rank)]
    training = 1.0 - _unseen_pauses(rank)
    busy = min(1.0, _busy(gpu, rank) / training)
    reach = ratio_reach([(float(len(block)), sum(block)) for block in stretches(series, BUSY_BLOCKS)], drifting=True)
    return Share(1.0 - busy, max(0.0, 1.0 - busy - (reach or 0.0)), min(1.0, 1.0 - busy + (reach or 0.0)))


def _compiling(rank: RankWindow) -> float:
    return share_in(rank.stacks.phases, "compile") if is_sampled(rank) and rank.stacks is not None else 0.0


def _busiest(case: RunCase) -> GpuWindow | None:
    rank = case.run.critical
    own = set(rank.facts.gpu_uuids)
    gpus: tuple[GpuWindow, ...] = tuple(gpu for gpu in case.gpus if gpu.facts.uuid in own) or case.gpus
    known = [(gpu.train_utilization, gpu) for gpu in gpus if gpu.train_utilization is not None]
    if not known or len(known) < len(gpus) or min(stats.count for stats, _ in known) < UTILIZATION_SAMPLES:
        return None
    return max((gpu for _, gpu in known), key=lambda gpu: _busy(gpu, rank))


def _busy(gpu: GpuWindow, rank: RankWindow) -> float:
    """The mean over the steps, 0..1; over all samples where too few fell into steps that were seen."""
    series = _in_steps(gpu, rank)
    if len(series) < UTILIZATION_SAMPLES and gpu.train_utilization is not None:
        return gpu.train_utilization.mean / 100.0
    return fmean(percent for _, percent in series) / 100.0


def _in_steps(gpu: GpuWindow, rank: RankWindow) -> Sequence[tuple[int, float]]:
    """The samples from the first step's beginning to the last one's end; all where steps are not seen one by one."""
    columns, series = rank.columns, gpu.train_utilization_series
    if not len(columns.end_ns) or is_sampled(rank):
        return series
    first_ns = columns.end_ns[0] - round(columns.period_seconds[0] * 1e9)
    until = bisect_right(series, columns.end_ns[-1], key=_time_ns)
    return series[bisect_right(series, first_ns, key=_time_ns) : until]


def _unseen_pauses(rank: RankWindow) -> float:
    """The part of the GPU's samples that fell into pauses which do not mask them: collections, compiling from outside.

    Masking each collection would leave no sample where there are many a second.
    """
    if is_sampled(rank):
        phases = rank.stacks.phases if rank.stacks is not None else {}
        compiling = share_in(phases, "compile")
        return min(MOST_PAUSED, compiling / max(1e-9, 1.0 - share_in(phases, "eval", "save")))
    collecting = rank.phases["gc"].seconds if "gc" in rank.phases else 0.0
    return min(MOST_PAUSED, collecting / max(1e-9, collecting + rank.train_seconds))


def idle_outside_waits(rank: RankWindow, starvation: Starvation | None, busy_percent: float) -> float:
    """Share of the training time in which the GPU idles neither for data, be it at an epoch's start, nor for logging.

    Each idle second has one cause: in a job that paused 0.95 s between epochs of 1.4 s the GPU idled 64% of the time
    in those pauses, and calling `.item()` less often was worth nothing.
    """
    logging = share_in(rank.stacks.train_phases, "log") if rank.stacks is not None else 0.0
    starved = starvation.share if starvation is not None else 0.0
    return max(0.0, 1.0 - busy_percent / 100.0 - max(starved, _idle_in_all_waits(rank)) - logging)


def idle_range(case: RunCase, starvation: Starvation) -> tuple[float, float] | None:
    """The same at least and at most, by the swings within the window; None where the GPU's use is not known.

    Without event pairs it is not known which waits the GPU spent at work that was queued: all of them, but for what is
    longer than it worked meanwhile. In simulation a thread waited 5% of its time, the GPU idled 5%, and copies that
    do not block won all of that.
    """
    rank, gpu, busy_percent = case.run.critical, _busiest(case), train_busy_percent(case)
    if gpu is None or busy_percent is None:
        return None
    least = most = idle_outside_waits(rank, starvation, busy_percent)
    blocks = _busy_and_waiting(rank, gpu, exact=starvation.level is Level.E3)
    reach = (
        ratio_reach([(length, length * (1.0 - busy - waited)) for length, busy, waited in blocks], drifting=True) or 0.0
    )
    if starvation.level < Level.E3 and blocks:
        for_certain = sum(length * max(0.0, waited - busy) for length, busy, waited in blocks)
        edges = epoch_start_share(rank.stacks) if is_sampled(rank) and rank.stacks is not None else 0.0
        most = max(least, 1.0 - busy_percent / 100.0 - edges - for_certain / sum(length for length, *_ in blocks))
        if edges:  # the swings are theirs, and when they were is not known
            reach = min(reach, most)
    return max(0.0, least - reach), most + reach


def _busy_and_waiting(rank: RankWindow, gpu: GpuWindow, *, exact: bool) -> list[tuple[float, float, float]]:
    """Of stretches of the window their samples of utilization, how busy the GPU was, and how long the thread waited."""
    series = _in_steps(gpu, rank)
    found = []
    rows = rank.stacks.waits if is_sampled(rank) and rank.stacks is not None else ()
    for number, stretch in enumerate(stretches(series, BUSY_BLOCKS)):
        if is_sampled(rank):
            part = rows[len(rows) * number // BUSY_BLOCKS : len(rows) * (number + 1) // BUSY_BLOCKS]
            trained, waited = sum(seconds for seconds, _ in part), sum(seconds for _, seconds in part)
            whole = len(part) if _compiling(rank) else trained
        else:
            trained, waited = _waited_between(rank, stretch[0][0], stretch[-1][0], exact=exact)
            whole = trained
        if trained > LEAST_TRAINED * whole:
            busy = min(1.0, fmean(busy for _, busy in stretch) / 100.0 * whole / trained)
            found.append((len(stretch) * trained / whole, busy, waited / trained))
    return found


def _waited_between(rank: RankWindow, start_ns: int, end_ns: int, *, exact: bool) -> tuple[float, float]:
    """Seconds of training, and those of them that its waits cost; a step begins with its wait."""
    columns, trained, waited = rank.columns, 0.0, 0.0
    costs = columns.gap_seconds if exact else columns.wait_seconds
    for ended_ns, period, wait, cost in zip(
        columns.end_ns, columns.period_seconds, columns.wait_seconds, costs, strict=True
    ):
        since, until = (ended_ns - start_ns) / 1e9 - period, (end_ns - start_ns) / 1e9
        if since + period <= 0.0 or since >= until or wait != wait:
            continue
        trained += min(since + period, until) - max(since, 0.0)
        lost = wait if cost != cost else cost
        waited += max(0.0, min(since + wait, until) - max(since + wait - lost, 0.0))
    return trained, waited


def _idle_in_all_waits(rank: RankWindow) -> float:
    if is_sampled(rank):
        phases = rank.stacks.phases if rank.stacks is not None else {}
        return share_in(phases, "wait") + share_in(phases, "start")
    columns = rank.columns
    known = [
        (period, wait if gap != gap else gap)
        for period, wait, gap in zip(columns.period_seconds, columns.wait_seconds, columns.gap_seconds, strict=True)
        if wait == wait
    ]
    total = sum(period for period, _ in known)
    return sum(lost for _, lost in known) / total if total > 0.0 else 0.0


def avoidable_share(rank: RankWindow, starvation: Starvation) -> float:
    """The figure less what handing a batch over costs in any case, so that no setting of a loader could win it.

    A step of 1 ms that takes its batch from memory in 0.3 ms waits 23% of its time, and workers would make it
    slower.
    """
    if starvation.wait is not None:
        period = batch_period(rank.stacks) if rank.stacks else None
        lost_to_floor = min(starvation.share, HANDOVER_SECONDS / period) if period else 0.0
        return max(0.0, starvation.share - lost_to_floor)
    rows = settled(rank, rank.columns.period_seconds, lost_seconds(rank, starvation))
    total = sum(period for period, _ in rows)
    if total <= 0.0:
        return starvation.share
    floor = HANDOVER_SECONDS
    if rank.train_loader is not None and rank.train_loader.num_workers:
        shortest = sorted(wait for _, wait in rows)[len(rows) // 10]
        floor = min(max(shortest, floor), SLOW_HANDOVER_SECONDS)
    lost_to_floor = sum(min(wait, floor) for _, wait in rows) / total
    return max(0.0, starvation.share - lost_to_floor)


def lost_seconds(rank: RankWindow, starvation: Starvation) -> Sequence[float]:
    """The column of what each step loses: of a GPU with event pairs its gap, which is known some steps later."""
    use_gaps = starvation.level is Level.E3 and starvation.on_gpu
    return rank.columns.gap_seconds if use_gaps else rank.columns.wait_seconds


def is_at_handover_floor(rank: RankWindow) -> bool:
    """Whether idle workers hand over batches as fast as workers can: no loader setting makes that faster."""
    loader, busy = rank.train_loader, worker_busy(rank)
    if loader is None or not loader.num_workers or busy is None or busy.value >= FLOOR_BUSY_SHARE:
        return False
    if is_sampled(rank):
        stacks = rank.stacks
        period = batch_period(stacks) if stacks else None
        return stacks is not None and period is not None and settled_wait(stacks).value * period <= FLOOR_WAIT_SECONDS
    waits = sorted(wait for (wait,) in settled(rank, rank.columns.wait_seconds))
    if not waits or waits[len(waits) // 2] > FLOOR_WAIT_SECONDS:
        return False
    return 2.0 * sum(wait for wait in waits if wait > FLOOR_WAIT_SECONDS) <= sum(waits)  # else few items take long


def _of(
    rank: RankWindow, share: float, level: Level, *, on_gpu: bool, wait: float | None, busy: float | None = None
) -> Starvation:
    return Starvation(
        share=min(1.0, max(0.0, share)),
        level=level,
        on_gpu=on_gpu,
        wait_share=wait,
        busy_percent=busy,
        steps=rank.steps,
        seconds=rank.window_seconds,
    )


def is_early(rank: RankWindow) -> bool:
    """Whether too few steps were measured for their figures to be judged as they are."""
    if not is_sampled(rank):
        return not (rank.warm and rank.steps >= STEPS)
    stacks = enough(rank)
    if stacks is None or (stacks.batches_per_second is None and not rank.steps_total):
        return False  # batches that nothing counts will never be enough
    return rank.steps < STEPS and stacks.seconds < WATCHED_SECONDS


def has_some_steps(rank: RankWindow) -> bool:
    """Whether there are enough steps for an interval, from outside batches; or waits so long that they tell as much."""
    if waited_long(rank):
        return True
    if is_sampled(rank):
        return rank.warm and rank.steps >= EARLY_STEPS
    return sum(rank.columns.settled) >= EARLY_STEPS or (
        few_settled(rank) and len(begun(rank, rank.columns.wait_seconds)) >= EARLY_STEPS
    )


def waited_long(rank: RankWindow) -> bool:
    """Whether the waits are long enough to be evidence by themselves, the one that has not ended included."""
    return sum(lost for _, lost in known_losses(rank)) + (rank.open_wait_seconds or 0.0) >= LONG_WAITS_SECONDS


def known_losses(rank: RankWindow) -> list[tuple[float, float]]:
    """(time, lost) of all steps of the window: what their waits left the GPU idle, where not known the waits."""
    columns = rank.columns
    rows = zip(columns.period_seconds, columns.wait_seconds, columns.gap_seconds, strict=True)
    return [(period, wait if gap != gap else min(wait, gap)) for period, wait, gap in rows if wait == wait]


def lost_interval(rank: RankWindow, starvation: Starvation) -> Share | None:
    """The share of time that the settled steps lose, with its 95% interval; None of fewer than eight of them.

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
    if few_settled(rank) or len(rows) < EARLY_STEPS:  # the gaps of the newest steps are not known yet
        rows = begun(rank, lost_seconds(rank, starvation))
    workers = rank.train_loader.num_workers if rank.train_loader else None
    return rows, workers if workers and len(rows) >= EARLY_STEPS * workers else 1


def _by_seconds(rank: RankWindow) -> tuple[Sequence[tuple[float, ...]], int]:
    """(time, waited) of each second of samples, and how many of them a batch takes."""
    rows = rank.stacks.waits if rank.stacks else ()
    period = batch_period(rank.stacks) if rank.stacks else None
    trained = sum(seconds for seconds, _ in rows)
    return rows, max(1, math.ceil(period * len(rows) / trained)) if period and trained else 1


def is_over(case: RunCase, starvation: Starvation, avoidable: float, over_seconds: float = OVER_SECONDS) -> bool:
    """Whether nothing is lost any more: for 20 s of training, and three times as long as it ever paused before.

    After a cause has gone a minute's mean still holds it: a run that lost half of its time falls below 6% after 53 s.
    Where single items take long, the time without a loss is no end but the usual pause.
    """
    rank, most = case.run.critical, CLEAN_SHARE + starvation.share - avoidable
    if starvation.wait is not None:
        return _is_over_outside(case, starvation, most, over_seconds)
    lost = rank.columns.gap_seconds if _is_of_gpu(starvation) else rank.columns.wait_seconds
    clean = [share <= most for share in _block_shares(settled(rank, rank.columns.period_seconds, lost))]
    runs = [(is_clean, len(list(run))) for is_clean, run in groupby(clean)]
    if not runs or not runs[-1][0]:
        return False
    paused = max((length for is_clean, length in runs[:-1] if is_clean), default=0)
    return runs[-1][1] * BLOCK_SECONDS >= over_seconds and runs[-1][1] >= TIMES_PAUSED * paused


def _is_over_outside(case: RunCase, starvation: Starvation, most: float, over_seconds: float) -> bool:
    """The same of waits that samples show: this many blocks with a loss would hardly all be so old by chance.

    Steps are not seen one by one, so slow items that come at random are distinguished from other waits by that alone.
    """
    shares, block_seconds = _lost_outside(case, starvation)
    lost = [share > most for share in shares]
    if True not in lost:
        return bool(lost) and len(lost) * block_seconds >= over_seconds
    calm = lost[::-1].index(True)
    chance = (1.0 - calm / len(lost)) ** sum(lost)
    return calm * block_seconds >= over_seconds and chance < UNLIKELY


def _lost_outside(case: RunCase, starvation: Starvation) -> tuple[list[float], float]:
    """What was lost of each stretch of training, and its seconds: what a GPU had queued meanwhile is not lost.

    A job that waited 17% of its time for what its GPU's queue hid lost nothing any more.
    """
    rank, gpu = case.run.critical, _busiest(case)
    rows = rank.stacks.waits if rank.stacks is not None else ()
    if starvation.on_gpu and gpu is not None:
        blocks = _busy_and_waiting(rank, gpu, exact=False)
        if blocks:
            seconds = sum(trained for trained, _ in rows) / len(blocks)
            return [min(waited, 1.0 - busy) for _, busy, waited in blocks], seconds
    return _block_shares(rows), BLOCK_SECONDS


def fluctuates(rank: RankWindow, starvation: Starvation, avoidable: float, clear_share: float) -> bool:
    """Whether a minute below the threshold is one of the better ones of a run that loses as much as before."""
    lasting = rank.lasting_gap_share if _is_of_gpu(starvation) else rank.lasting_wait_share
    if lasting is None or starvation.level < Level.E3:
        return False
    lasting -= starvation.share - avoidable
    return lasting >= CALM_SHARE * clear_share and avoidable >= FALLEN_SHARE * lasting


def _is_of_gpu(starvation: Starvation) -> bool:
    return starvation.on_gpu and starvation.level is Level.E3


def _block_shares(rows: Sequence[tuple[float, ...]]) -> list[float]:
    """What was lost of each stretch of 5 s of training, oldest first; the newest steps fill the last one."""
    shares, trained, lost = [], 0.0, 0.0
    for period, wait in reversed(rows):
        trained, lost = trained + period, lost + wait
        if trained >= BLOCK_SECONDS:
            shares.append(lost / trained)
            trained = lost = 0.0
    return shares[::-1]


WARNED_SECONDS = 60.0
"""A minute without a step is what is reported of a hang too."""
WAITED_SHARE = 0.5
"""Of the time since the first next() was entered, where no pace is known yet."""
BEHIND_SHARE = 0.2
AT_WORK_SHARE = 0.5
LEAST_CORES, LEAST_BYTES_PER_SECOND = 0.1, 100_000.0
"""Of the process tree: below both it does nothing, and its standstill has a rule of its own."""
PACED_STEPS = 5
"""From here on a step takes as long as its kernels: two or three are queued before the thread waits for any of them."""
MAKING = ("item", "collate", "send")


@dataclass(frozen=True, slots=True)
class FirstBatches:
    """The waits of a run that has made few steps or none; seconds.

    `open_seconds` of `waited_seconds` have not ended. `batch_seconds` is what a worker takes for a batch, by its newest
    ones, and `step_seconds` what training takes for one, without the wait; None where too few have been made.
    """

    waited_seconds: float
    open_seconds: float
    trained_seconds: float
    batches: int
    workers: int
    batch_seconds: float | None = None
    step_seconds: float | None = None

    @property
    def all_workers_seconds(self) -> float | None:
        """From one batch to the next, with all workers at work."""
        return self.batch_seconds / self.workers if self.batch_seconds is not None else None

    @property
    def behind_share(self) -> float | None:
        """What part of the time training will wait if batches go on taking as long."""
        made = self.all_workers_seconds
        return None if made is None or self.step_seconds is None else max(0.0, 1.0 - self.step_seconds / made)

    @property
    def seems_to_keep_up(self) -> bool:
        """Whether, by the few steps so far, training takes as long for a batch as all workers: a first round passes.

        In simulation 16 workers of each of 8 ranks read their first batches together: training waited 76 s for them
        and then no more.
        """
        made = self.all_workers_seconds
        return made is not None and self.batches > 0 and self.trained_seconds >= self.batches * made


def first_batches(case: RunCase) -> FirstBatches | None:
    """The waits; None where they are short, or over by what is known, and of a run whose steps tell more."""
    rank = case.run.critical
    if (rank.steps >= STEPS and not few_settled(rank)) or not waited_long(rank):
        return None
    workers = _workers(rank)
    losses, idle_seconds = known_losses(rank), _idle_seconds(case)
    open_seconds = min(rank.open_wait_seconds or 0.0, idle_seconds) if _is_at_work(rank, workers) else 0.0
    ended_seconds = sum(lost for _, lost in losses)
    if all(gap != gap for gap in rank.columns.gap_seconds):
        ended_seconds = min(ended_seconds, idle_seconds)
    batches = rank.steps_total if is_sampled(rank) else round(rank.steps_total * max(1.0, rank.batches_per_step or 1.0))
    found = FirstBatches(
        waited_seconds=ended_seconds + open_seconds,
        open_seconds=open_seconds,
        trained_seconds=max(0.0, sum(period for period, _ in losses) - ended_seconds),
        batches=batches,
        workers=workers,
        batch_seconds=_batch_seconds(rank, workers),
        step_seconds=median(period - lost for period, lost in losses) if len(losses) >= PACED_STEPS else None,
    )
    return found if found.waited_seconds >= LONG_WAITS_SECONDS and _is_behind(found) else None


def _idle_seconds(case: RunCase) -> float:
    """What the window holds in which no GPU of the rank works: a wait behind queued kernels costs nothing."""
    rank = case.run.critical
    own = [gpu for gpu in case.gpus if gpu.facts.uuid in rank.facts.gpu_uuids] or case.gpus
    busy = [gpu.utilization.mean / 100.0 for gpu in own if gpu.utilization is not None]
    return (1.0 - max(busy, default=0.0)) * max(rank.window_seconds, rank.open_wait_seconds or 0.0)


def _is_behind(found: FirstBatches) -> bool:
    if found.behind_share is not None:
        return found.behind_share >= BEHIND_SHARE
    return found.waited_seconds > WAITED_SHARE * (found.waited_seconds + found.trained_seconds)


def _workers(rank: RankWindow) -> int:
    loader, stacks = rank.train_loader, rank.stacks
    if loader is not None and loader.num_workers is not None:
        return loader.num_workers
    return stacks.workers if stacks is not None else 0


def _batch_seconds(rank: RankWindow, workers: int) -> float | None:
    made = rank.workers.newest_batch_seconds if rank.workers is not None else ()
    return median(made[-workers:]) if workers and len(made) else None


def _is_at_work(rank: RankWindow, workers: int) -> bool:
    """Whether the batch that is waited for is being made: something computes or reads, and a worker is in an item."""
    stacks, process = rank.stacks, rank.process
    if stacks is None or process is None or is_handed_over(stacks):
        return False
    read = process.latest.read_bytes_per_second or 0.0
    if (process.tree_cores_lately or 0.0) < LEAST_CORES and read < LEAST_BYTES_PER_SECOND:
        return False
    return not workers or max(_busy_workers(rank), default=0.0) >= AT_WORK_SHARE


def _busy_workers(rank: RankWindow) -> Iterator[float]:
    """How busy each worker is: by its stacks, as long as they are in the dataset's code; else by /proc."""
    stacks, process = rank.stacks, rank.process
    if stacks is not None and stacks.worker_samples >= WORKER_SAMPLES:
        making = stacks.worker_samples * share_in(stacks.worker_phases, *MAKING)
        if making >= AT_WORK_SHARE * busy_worker_samples(stacks):
            yield from (worker.busy.value for worker in stacks.by_worker)
    elif process is not None:
        yield from ((each.cpu_cores or 0.0) + (each.blocked_share or 0.0) for each in process.latest.workers)
