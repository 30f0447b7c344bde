"""A loader's queue, played: what a training waits with batches that take this long, and what another queue would bring.

Each worker of a DataLoader has a queue of its own. In order, batch i goes to worker i mod N as soon as batch
i - N * prefetch is handed over, so one that takes long holds up all behind it once the queue is used up. Out of order
whatever is ready is handed over and its worker gets the next index: a worker that is stuck keeps `prefetch` batches
and no more (torch/utils/data/dataloader.py, `_try_put_index`).

For another queue the batches that the workers made are handed through it once more. Sources of error are the order of
the batches, which a shuffle changes, and what making them costs more next to a training that no longer waits.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import cycle, islice, takewhile
from statistics import fmean, stdev

from gpuwatch.diagnosis.advice.cost import StepCost, step_cost
from gpuwatch.diagnosis.advice.resources import SHM_SHARE, USUAL_PREFETCH, local_ranks, shm_mount
from gpuwatch.diagnosis.advice.starvation import Starvation, avoidable_share, lost_seconds
from gpuwatch.diagnosis.advice.stream import settled
from gpuwatch.diagnosis.finding import Gain, Level
from gpuwatch.diagnosis.rule import RunCase
from gpuwatch.numbers import cpu_cores

DEEPER = (4, 8)
LEAST_BATCHES, PLAYED_BATCHES = 60, 1_000
MISSED_OF_LOSS = 1 / 3
"""The model is trusted where its loss for the present queue is that near to the measured one, or chance explains it."""
SPREAD = 0.04
"""Of the gain, to both sides, in addition to what the model missed and to chance."""
DRAWS, SIGMAS = 24, 1.3
"""Other minutes that might as well have been seen, and how many of their deviations the range reaches to both sides."""
UNLIKE_SIGMAS = 2.5
"""Of its deviation: batches that lose so much more or less than those before them are of another kind."""
NEAR, CLEARLY = 0.02, 0.05
"""Of the time: less is no reason for a deeper queue, nor the other for batches in an order that cannot be repeated."""
NOTHING_LEFT = 0.03


@dataclass(frozen=True, slots=True)
class LoaderQueue:
    """The settings that decide how batches wait for each other."""

    workers: int
    prefetch: int
    in_order: bool = True

    @property
    def depth(self) -> int:
        """Batches asked for and not yet handed over."""
        return self.workers * self.prefetch


@lru_cache(maxsize=32)
def wait_seconds(
    queue: LoaderQueue, batch_seconds: tuple[float, ...], compute_seconds: float, lead: int | None = None
) -> float:
    """What a training waits for a batch in the mean, once the queue was full.

    Args:
        queue: its settings.
        batch_seconds: what one worker takes for each batch, in turn.
        compute_seconds: what the training takes for each.
        lead: this many batches come before those that count; None: as many as fill the queue.
    """
    waits = (_in_order if queue.in_order else _as_ready)(queue, batch_seconds, compute_seconds)
    return fmean(waits[queue.depth if lead is None else lead :] or waits)


# Both loops play some hundred thousand batches for one advice: comparisons instead of max() make them twice as fast.
def _in_order(queue: LoaderQueue, batch_seconds: Sequence[float], compute_seconds: float) -> list[float]:
    free, asked = [0.0] * queue.workers, [0.0] * queue.depth
    waits, now = [], 0.0
    for worker, making, asked_at in zip(cycle(range(queue.workers)), batch_seconds, asked, strict=False):
        free_at = free[worker]
        ready = free[worker] = (asked_at if asked_at > free_at else free_at) + making
        if ready > now:
            waits.append(ready - now)
            now = ready
        else:
            waits.append(0.0)
        asked.append(now)  # read `depth` batches later by this same loop
        now += compute_seconds
    return waits


def _as_ready(queue: LoaderQueue, batch_seconds: Sequence[float], compute_seconds: float) -> list[float]:
    free = [0.0] * queue.workers
    made: list[tuple[float, int]] = []
    for place, making in enumerate(batch_seconds[: queue.depth]):
        free[place % queue.workers] += making
        made.append((free[place % queue.workers], place % queue.workers))
    heapq.heapify(made)
    waits, now, replace_first = [], 0.0, heapq.heapreplace
    for making in batch_seconds[queue.depth :]:
        ready, worker = made[0]
        if ready > now:
            waits.append(ready - now)
            now = ready
        else:
            waits.append(0.0)
        free_at = free[worker]
        free[worker] = made_at = (now if now > free_at else free_at) + making
        replace_first(made, (made_at, worker))
        now += compute_seconds
    return waits


@dataclass(frozen=True, slots=True)
class QueueModel:
    """A run's loading, in seconds per batch, with the loss that was measured and that the model comes to.

    The first `lead` batches only fill the queue. `known` are the window's batches, and those before it where they are
    of the same kind.
    """

    present: LoaderQueue
    batch_seconds: tuple[float, ...]
    lead: int
    compute_seconds: float
    lost_seconds: float
    cost: StepCost
    known: tuple[float, ...]

    @property
    def period_seconds(self) -> float:
        """Training time for a batch."""
        return self.compute_seconds + self.lost_seconds

    @property
    def missed_seconds(self) -> float:
        """How far the model is from the measurement."""
        return abs(self._wait(self.present) - self.lost_seconds)

    def won_share(self, queue: LoaderQueue) -> float:
        """What a queue recovers of the time: the measured loss shrinks as the modelled one does."""
        stays = self._wait(queue) / self._wait(self.present)
        return self.lost_seconds * (1.0 - stays) / self.period_seconds

    def gain(self, queue: LoaderQueue) -> Gain:
        """The speed-up, as far as computing and cores permit it.

        A minute's expensive batches are a draw, and a minute with many of them is one that is reported: all batches
        that are known, drawn with repetition as 24 other times may have held them, are played through both queues.
        Their mean is what lasts where the model is right; those batches in their own order, and what the model misses
        of the loss, correct it: the middle lies between, and the range holds both.
        """
        won = self.won_share(queue)
        own_order = _modelled_gain(self.present, queue, self.compute_seconds, self.batch_seconds, self.lead)
        in_sequence, *drawn = _log_gains_of_draws(self.present, queue, self.compute_seconds, self.known)
        seen = math.log(1.0 / (1.0 - won)) - math.log(own_order) + in_sequence
        middle = (seen + fmean(drawn)) / 2.0
        reach = math.hypot(max(SIGMAS * stdev(drawn), abs(seen - fmean(drawn)) / 2.0), SPREAD)
        cores = max(1.0, self._cores_factor(slow=False))
        free = math.exp(middle + reach)
        high = min(free, cores)
        low = min(math.exp(middle - reach), max(1.0, self._cores_factor(slow=True)), high)
        if won > -1e-6:  # a queue that hides as much makes nothing slower
            low, high = max(1.0, low), max(1.0, high)
        left = self.lost_seconds / self.period_seconds - won
        return Gain(round(low, 3), round(high, 3), self._cap(queue, left, by_cores=cores < free))

    @property
    def is_trusted(self) -> bool:
        """Whether the measured loss is near to the modelled one, or as far from it as chance would have it."""
        if self.missed_seconds <= MISSED_OF_LOSS * self.lost_seconds:
            return True
        lost = _losses_of_draws(self.present, self.compute_seconds, self.known, self.lead)
        return min(lost) <= self.lost_seconds <= max(lost) and stdev(lost) <= fmean(lost)

    def best(self, depths: Sequence[int], *, may_reorder: bool) -> LoaderQueue | None:
        """The queue to advise: no deeper than pays, out of order only where that clearly wins more; None if none pays.

        Args:
            depths: the values of prefetch_factor to choose from, the smallest first.
            may_reorder: whether `in_order=False` is a choice.
        """
        deeper = self._smallest([replace(self.present, prefetch=depth) for depth in depths])
        if not may_reorder or not self.present.in_order:
            return deeper
        passing = self._smallest(
            [replace(self.present, prefetch=depth, in_order=False) for depth in (self.present.prefetch, *depths)]
        )
        kept = self.won_share(deeper) if deeper is not None else 0.0
        return passing if passing is not None and self.won_share(passing) >= kept + CLEARLY else deeper

    def _smallest(self, queues: Sequence[LoaderQueue]) -> LoaderQueue | None:
        least = max(NEAR, max(map(self.won_share, queues), default=0.0) - NEAR)
        return next((queue for queue in queues if self.won_share(queue) >= least), None)

    def _wait(self, queue: LoaderQueue) -> float:
        return wait_seconds(queue, self.batch_seconds, self.compute_seconds, self.lead)

    def _cores_factor(self, *, slow: bool) -> float:
        """How much faster the cores let it become."""
        cost = self.cost
        needed = fmean(cost.limits(block, self.present.workers, slow=slow)["cores"] for block in cost.blocks)
        return self.period_seconds * cost.batches_per_step / max(needed, 1e-9)

    def _cap(self, queue: LoaderQueue, left: float, *, by_cores: bool) -> str:
        if by_cores:
            return f"then limited by the {cpu_cores(self.cost.allowed_cores)}"
        if left < NOTHING_LEFT:
            return f"then the {'GPU' if self.cost.on_gpu else 'computation itself'} sets the pace"
        if fmean(self.batch_seconds) >= queue.workers * self.compute_seconds:
            return f"then limited by the {queue.workers} worker{'' if queue.workers == 1 else 's'}"
        return "then limited by the slow items themselves"


def queue_model(case: RunCase, starvation: Starvation) -> QueueModel | None:
    """The model of the run's training loader; None where batches are not known or the model does not come to the loss.

    The window is played once to fill the queue, and then again and counted: an expensive batch at its beginning weighs
    like any other. Where the newest steps waited and what they lost is not known yet, their batches are left out: else
    an expensive one would be looked for in it.
    """
    rank = case.run.critical
    loader, cost = rank.train_loader, step_cost(case, starvation)
    if loader is None or not loader.num_workers or rank.workers is None or cost is None:
        return None
    lost_of = lost_seconds(rank, starvation)
    rows = settled(rank, rank.columns.period_seconds, lost_of)
    seconds = sum(period for period, _ in rows)
    period = seconds / len(rows) / cost.batches_per_step if rows else 0.0
    if starvation.level is Level.E3 and seconds > 0.0:  # of quick steps a window holds more than are known one by one
        starvation = replace(starvation, share=sum(wait for _, wait in rows) / seconds)
    lost = avoidable_share(rank, starvation)
    newest, unknown = rank.workers.newest_batch_seconds, _waits_of_unknown_loss(rank.columns.wait_seconds, lost_of)
    left_out = len(unknown) * cost.batches_per_step if sum(unknown) > period else 0
    made = newest[: max(0, len(newest) - left_out)]
    if len(made) < LEAST_BATCHES or not 0.0 < lost < 1.0 or period <= 0.0:
        return None
    present = LoaderQueue(loader.num_workers, loader.prefetch_factor or USUAL_PREFETCH, loader.in_order is not False)
    compute = (1.0 - lost) * period
    earlier = tuple(rank.workers.earlier_batch_seconds)
    model = QueueModel(
        present=present,
        batch_seconds=tuple(made) * (1 + math.ceil(PLAYED_BATCHES / len(made))),
        lead=len(made),
        compute_seconds=compute,
        lost_seconds=lost * period,
        cost=cost,
        known=(*earlier, *made) if _are_alike(present, compute, earlier, tuple(made)) else tuple(made),
    )
    return model if model.is_trusted else None


def _are_alike(queue: LoaderQueue, compute_seconds: float, earlier: tuple[float, ...], made: tuple[float, ...]) -> bool:
    """Whether chance may have divided all batches into these two: what was before a change tells nothing of it."""
    if len(earlier) < LEAST_BATCHES:
        return False
    for part in (earlier, made):
        drawn = _losses_of_draws(queue, compute_seconds, (*earlier, *made), len(part))
        if abs(_lost_to(queue, part, compute_seconds) - fmean(drawn)) > UNLIKE_SIGMAS * stdev(drawn):
            return False
    return True


# Several rules ask for the model of the same window, and the draws are nearly all of its price.
@lru_cache(maxsize=8)
def _losses_of_draws(
    queue: LoaderQueue, compute_seconds: float, batches: tuple[float, ...], count: int
) -> tuple[float, ...]:
    return tuple(_lost_to(queue, each, compute_seconds) for each in _draws(batches, count))


@lru_cache(maxsize=8)
def _log_gains_of_draws(
    present: LoaderQueue, queue: LoaderQueue, compute_seconds: float, known: tuple[float, ...]
) -> tuple[float, ...]:
    """The logarithms of what a queue brings: with these batches in their own order, then with each draw of them."""
    return (
        math.log(_modelled_gain(present, queue, compute_seconds, _repeated(known, queue), len(known))),
        *(
            math.log(_modelled_gain(present, queue, compute_seconds, _repeated(each, queue)))
            for each in _draws(known, len(known))
        ),
    )


def _modelled_gain(
    present: LoaderQueue,
    queue: LoaderQueue,
    compute_seconds: float,
    batches: tuple[float, ...],
    lead: int | None = None,
) -> float:
    now, then = (compute_seconds + wait_seconds(each, batches, compute_seconds, lead) for each in (present, queue))
    return now / then


def _lost_to(queue: LoaderQueue, batches: tuple[float, ...], compute_seconds: float) -> float:
    return wait_seconds(queue, (*batches[: queue.depth], *batches), compute_seconds)


def _repeated(batches: tuple[float, ...], queue: LoaderQueue) -> tuple[float, ...]:
    return tuple(islice(cycle(batches), PLAYED_BATCHES + max(len(batches), queue.depth)))


def _draws(batches: Sequence[float], count: int) -> list[tuple[float, ...]]:
    """`count` of these batches, drawn from them with repetition, time after time."""
    rng = random.Random(1)
    return [tuple(rng.choices(batches, k=count)) for _ in range(DRAWS)]


def _waits_of_unknown_loss(waits: Sequence[float], lost: Sequence[float]) -> list[float]:
    """The waits of the newest steps, as far as what they lost is not known yet."""
    newest = takewhile(lambda row: math.isnan(row[1]), zip(reversed(waits), reversed(lost), strict=True))
    return [wait for wait, _ in newest]


def most_prefetch(case: RunCase) -> float:
    """The prefetch_factor whose batches fill what the queues may take of /dev/shm; infinite where that is not known."""
    rank = case.run.critical
    loader, mount = rank.train_loader, shm_mount(case)
    if mount is None or loader is None or not loader.num_workers or not loader.batch_bytes:
        return math.inf
    return SHM_SHARE * mount.total_bytes / (loader.num_workers * loader.batch_bytes * local_ranks(rank))


def deeper_prefetches(case: RunCase) -> tuple[int, ...]:
    """The values of prefetch_factor to choose from: above the present one, and no more than /dev/shm holds."""
    loader = case.run.critical.train_loader
    present = (loader.prefetch_factor if loader is not None else None) or USUAL_PREFETCH
    return tuple(depth for depth in DEEPER if present < depth <= most_prefetch(case))
