"""A few very slow items hold up the whole queue.

Means:
    Most batches are ready in time; now and then one holds an item that takes many times as long (a huge image, a
    corrupt file, a retried download), and because batches are handed over in order, all later ones wait.
Evidence:
    The waits' shape: the worst 5% of the steps account for 75% of the lost time, the median step loses less than 2%,
    no rhythm of the workers (autocorrelation at lag N below 0.3), over at least 200 steps. Batches multiply slow items:
    with 1% of them a batch of 16 holds one 15% of the time. So where workers idle in between (busy less than 85%)
    the tail is all steps whose wait is above the median by 8 median deviations and costs 2% of a step, up to 25% of
    them. Where the workers report how long each batch took, those times have to differ too (deviation over mean of at
    least 0.5: 1% of the batches eight times as slow); from 1 on 60 steps are enough, because the shape is then not the
    only evidence.
Fires:
    That shape and 5% lost.
Clears:
    Below 3% lost, or after a stretch without late batches that, as often as they came in the window, chance would
    leave only once in 20 times.
Not when:
    Checkpoints, evaluation and epoch starts (left out); many workers that deliver at the same time and then all make
    the run wait, with batches that take about equally long; waits in rhythm, or ordinary batches that already take the
    workers too long, which means workers that are too slow on average; a loader without workers.
Causes:
    Items that are much larger than the others or corrupt; a retry over the network. The same items come late in every
    epoch.
Fix:
    Resize or drop the items that take so long. Until then a deeper queue: prefetch_factor 4 or 8, the smaller one
    where it saves nearly as much, if it fits into /dev/shm and the cores are not full. in_order=False only where that
    saves another 5% of the time: it changes the order of batches and so exact reproducibility.
Gain:
    The batches that the workers made are replayed through a model of torch's queues, with the present settings and with
    the advised ones: the measured loss shrinks as the modelled one does, as far as cores permit. How many slow items
    fall into a minute is chance, and a minute with many of them is the one that gets reported. So the batches of the
    last 10 minutes count, 1,024 at most, unless they lost clearly more or less. 24 draws from them give the range.
    Measured with torch 2.13 and one slow item in 100, with the model's prediction in parentheses: prefetch_factor=8
    2.11x (2.11x), prefetch_factor=4 1.60x (1.59x) and 1.25x (1.27x), in_order=False 2.18x (2.31x), 2.28x (2.31x) and
    1.24x (1.27x). With several ranks each also waits for the others' slow items, so the gain is at least this: a hint.
    Where batches are not timed, or the model misses the loss by a third of it and chance does not explain that: 40 to
    75% of the loss in outliers for both settings together, and no more than workers that are busy all the time
    deliver.
Verify:
    Such steps account for less than 30% of the lost time.
Source:
    pytorch#105203, DataLoader's in_order and its queues (torch/utils/data/dataloader.py); measured as above.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, median

from gpuwatch.diagnosis.advice.fixes import loader_fix, place_of
from gpuwatch.diagnosis.advice.gains import from_share, without
from gpuwatch.diagnosis.advice.loader_queue import deeper_prefetches, queue_model
from gpuwatch.diagnosis.advice.resources import is_cpu_exhausted
from gpuwatch.diagnosis.advice.starvation import HANDOVER_SECONDS, Starvation, lost_interval, starvation_of
from gpuwatch.diagnosis.advice.stream import MAD_TO_SIGMA, are_too_slow, batch_deviation, comb, robust_sigma, settled
from gpuwatch.diagnosis.finding import Draft, Fix, Gain, Level, Measure, RuledOut, Severity, share_measure
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import grouped, percent, seconds
from gpuwatch.timeline.windows import RankWindow, Share

WORST = 0.05
WORST_OF_IDLE = 0.25
IDLE_BUSY_SHARE = 0.85
USUAL_LOSS = 0.02
OUTLYING = 8.0 / MAD_TO_SIGMA  # robust sigmas: 8 median deviations
RHYTHM = 0.3
DIFFERENT_BATCHES, DEAR_BATCHES = 0.5, 1.0
FEW_STEPS = 60
LEAST_WORST = 2
"""One late batch is no pattern: a queue that is still filling looks the same."""
UNLIKELY = 0.05
RECOVERED = (0.4, 0.75)
"""Of the outliers' loss, what a deeper unordered queue recovered: 57% in one measurement, with room around it.
Promised where batches are not timed, or the model of the queue does not come to the loss."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    fire_share: float = threshold(0.05, "of the time is lost to waits: reported from here on")
    clear_share: float = threshold(0.03, "until less is lost", bounded_by="fire_share")
    steps: int = threshold(200, "in the window at least", least=20)
    held_share: float = threshold(0.75, "of the lost time that a few late batches cause, at least")


@dataclass(frozen=True, slots=True)
class Tail:
    """The worst steps: how many of how many, what part of the loss they hold, how long the median of them waits."""

    count: int
    of_steps: int
    held_share: float
    typical_seconds: float
    rhythm: float | None


@dataclass(frozen=True, slots=True)
class Remedy:
    """A fix, and what it brings or why that is not said."""

    fix: Fix
    gain: Gain | None
    hint: str | None = None


@rule("slow-samples", family="data", subject="run", level=Level.E2, thresholds=Thresholds)
def slow_samples(case: RunCase, limits: Thresholds) -> Draft | None:
    rank = case.run.critical
    loader = rank.train_loader
    starvation = starvation_of(case)
    if starvation is None or starvation.share < limits.clear_share or loader is None or not loader.num_workers:
        return None
    tail = _tail(rank, starvation, loader.num_workers, limits)
    if tail is None:
        return None
    remedy, ranks = _remedy(case, starvation, tail), len(case.run.ranks)
    if remedy.gain is not None and ranks > 1:
        least = f"{remedy.gain.low:.2f}x at least: each of {ranks} ranks also waits for slow items of the others"
        remedy = Remedy(remedy.fix, None, least)
    return Draft(
        summary=(
            f"A few slow items hold up the queue: {grouped(tail.count)} of {grouped(tail.of_steps)} steps wait about "
            f"{seconds(tail.typical_seconds)} each, {percent(starvation.share)} of the time in all"
        ),
        severity=Severity.WARNING,
        level=min(starvation.level, Level.E3),
        evidence=(
            share_measure("starvation_share", starvation.share, "lost to waits for data"),
            share_measure("tail_share", tail.held_share, f"the worst {grouped(tail.count)} steps account for"),
            Measure("tail_wait_seconds", round(tail.typical_seconds, 4), f"they wait {seconds(tail.typical_seconds)}"),
        ),
        fires=starvation.share >= limits.fire_share and tail.count >= LEAST_WORST,
        fix=remedy.fix,
        gain=remedy.gain,
        hint=remedy.hint,
        ruled_out=(
            RuledOut(
                "workers too slow on average",
                "the waits have no rhythm"
                + (
                    f" (autocorrelation {tail.rhythm:.2f} at lag {loader.num_workers})"
                    if tail.rhythm is not None
                    else ""
                ),
            ),
        ),
        verify="Such steps account for less than 30% of the lost time",
        chart=("run.step_seconds", "run.wait_share"),
    )


def _tail(rank: RankWindow, starvation: Starvation, workers: int, limits: Thresholds) -> Tail | None:
    columns = rank.columns
    exact_gpu = starvation.on_gpu and starvation.level is Level.E3
    rows = settled(rank, columns.period_seconds, columns.gap_seconds if exact_gpu else columns.wait_seconds)
    deviation = batch_deviation(rank)
    if deviation is not None and deviation < DIFFERENT_BATCHES:
        return None
    needed = limits.steps if deviation is None or deviation < DEAR_BATCHES else min(FEW_STEPS, limits.steps)
    if len(rows) < needed:
        return None
    # A ready batch costs its handover: that is no loss that an item could cause.
    lost = [max(0.0, wait - (0.0 if exact_gpu else HANDOVER_SECONDS)) for _, wait in rows]
    total, usual = sum(lost), median(lost)
    unnoticed = USUAL_LOSS * fmean(period for period, _ in rows)
    # Where most batches are ready the spread is 0, and a late handover of a millisecond is no slow item.
    outlying = max(unnoticed, usual + OUTLYING * robust_sigma(lost))
    outliers = [wait for wait in sorted(lost, reverse=True) if wait > outlying]
    worst = outliers[: max(1, int(WORST * len(lost)))]
    if sum(worst) < limits.held_share * total and _idle_between(rank) and len(outliers) <= WORST_OF_IDLE * len(lost):
        worst = outliers
    # The mean step: where a slow item takes hundreds of steps, the median one is all handover.
    if not worst or sum(worst) < limits.held_share * total or usual >= unnoticed:
        return None
    if _have_ceased([period for period, _ in rows], lost, worst):
        return None
    rhythm = comb(lost, workers)
    if rhythm is not None and rhythm >= RHYTHM:
        return None
    computing = fmean(period for period, _ in rows) - fmean(lost)
    if are_too_slow(rank, workers * computing, max(WORST, len(worst) / len(lost))):
        return None
    return Tail(len(worst), len(lost), sum(worst) / total, median(worst), rhythm)


def _have_ceased(periods: list[float], lost: list[float], worst: list[float]) -> bool:
    """Whether this many late steps would hardly all be so old by chance: then what made all steps late has passed.

    A window that holds the end of any starvation has the shape of a tail too, until the calm in it prevails. Slow items
    pause by chance, 40 s and more where one comes in 15: no shorter calm tells their end.
    """
    last = max(place for place, wait in enumerate(lost) if wait >= worst[-1])
    return (sum(periods[: last + 1]) / sum(periods)) ** len(worst) < UNLIKELY


def _idle_between(rank: RankWindow) -> bool:
    """Whether the workers have time to spare, so that their pace is not what makes a quarter of the steps wait."""
    busy = rank.workers.busy_share if rank.workers else None
    return busy is not None and busy < IDLE_BUSY_SHARE


def _remedy(case: RunCase, starvation: Starvation, tail: Tail) -> Remedy:
    """The queue that pays, and what it brings; where the model does not come to the measured loss, the usual one."""
    rank, depths = case.run.critical, deeper_prefetches(case)
    if is_cpu_exhausted(case):  # more batches at once would share the same cores, and each take longer
        return Remedy(
            _fix(rank, None, reorder=False), None, f"up to {without(tail.held_share * starvation.share):.2f}x"
        )
    loader, model = rank.train_loader, queue_model(case, starvation)
    # Older versions of torch have no in_order, and the only worker cannot be passed by another.
    ordered = loader is not None and loader.in_order is True and (loader.num_workers or 0) > 1
    if model is None:
        deepest = max(depths, default=None)
        gain = _usual_gain(rank, tail.held_share, lost_interval(rank, starvation)) if deepest or ordered else None
        return Remedy(_fix(rank, deepest, reorder=ordered), gain)
    queue = model.best(depths, may_reorder=ordered)
    if queue is None:
        most = without(tail.held_share * starvation.share)
        return Remedy(_fix(rank, None, reorder=False), None, f"up to {most:.2f}x without them")
    deeper = queue.prefetch if queue.prefetch in depths else None
    return Remedy(_fix(rank, deeper, reorder=queue.in_order is not model.present.in_order), model.gain(queue))


def _usual_gain(rank: RankWindow, held_share: float, lost: Share | None) -> Gain | None:
    """What was recovered in the measurement, up to what the workers make when none of them idles."""
    if lost is None:
        return None
    low, high = RECOVERED[0] * held_share * lost.low, RECOVERED[1] * held_share * lost.high
    made = rank.workers
    if made is None or not made.busy_share or without(high) * made.busy_share <= 1.0:
        return from_share(low, high, "then limited by the slow items themselves")
    spare = 1.0 - made.busy_share
    return from_share(
        min(low, spare), spare, f"then limited by the {made.count} worker{'' if made.count == 1 else 's'}"
    )


def _fix(rank: RankWindow, prefetch: int | None, *, reorder: bool) -> Fix:
    loader = rank.train_loader
    keywords = {"in_order": "False"} if reorder else {}
    helps = ["in_order=False lets the other batches pass (their order is then not reproducible)"] if reorder else []
    if prefetch is not None:
        keywords["prefetch_factor"] = str(prefetch)
        helps.insert(0, "a deeper queue hides some of them")
    text = "Find and resize or drop the slow items"
    if not helps:
        file, line = place_of(loader)
        return Fix(f"{text}: no setting of the queue hides them", file=file, line=line)
    return loader_fix(loader, keywords, f"{text}; {', and '.join(helps)}", prefetch)
