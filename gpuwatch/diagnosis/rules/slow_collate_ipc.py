"""Building or shipping the batch (collate, pickling, shared memory) is the slow part, not the items.

Means:
    After the items are made, a worker stacks them to a batch and hands it over through shared memory; the training
    thread maps it again. With large float batches, many small tensors or Python objects that costs more than the
    items themselves.
Evidence:
    Samples of stacks: what part of their busy time workers spend in collating and sending, and what part of its time
    the training thread spends in receiving a batch.
Fires:
    data-starvation holds, and either collating and sending take 30% of the workers' work and more than any line of the
    items does, or receiving takes 10% of the training thread.
Clears:
    Both below half of that.
Not when:
    A line of the items takes more: that one comes first. Cores, a quota, storage or too few workers explain it.
    Stacks cannot be read. Many bytes or many tensors per batch alone: they cost nothing that the shares would not
    show.
Causes:
    Many small tensors, few large ones (float32 images), or Python objects that are pickled: the hottest line and the
    bytes of a batch say which.
Fix:
    Fewer bytes and fewer objects: uint8 until after the copy (a quarter of float32), items as tensors of one size,
    padding once per batch, batched __getitems__.
Gain:
    From halving that work to leaving a quarter of it, as far as workers or training thread are then the limit.
Verify:
    The share of collating and receiving is down, and the wait below 6%.
Source:
    Measured with 38.5 MB float32 batches: a wait of 125 ms without workers, 115 with one and 47 with two.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.advice.cost import step_cost
from gpuwatch.diagnosis.advice.fixes import place_of
from gpuwatch.diagnosis.advice.gains import from_share
from gpuwatch.diagnosis.advice.lines import (
    HotLine,
    hottest_of_workers,
    watched,
    with_interval,
)
from gpuwatch.diagnosis.advice.rivals import rivals
from gpuwatch.diagnosis.advice.sampled import (
    WORKER_SAMPLES,
    busy_worker_samples,
    enough,
    share_in,
    share_of,
    worker_busy,
)
from gpuwatch.diagnosis.advice.starvation import Starvation, starvation_of
from gpuwatch.diagnosis.finding import Draft, Fix, Gain, Level, Measure, Severity
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import grouped, megabytes, percent
from gpuwatch.timeline.windows import RankWindow, Share

BUSY_SHARE = 0.85
RECOVERED = (0.50, 0.75)


@dataclass(frozen=True, slots=True)
class Thresholds:
    collate_share: float = threshold(0.30, "of the workers' time goes into building batches: reported from here on")
    clear_collate_share: float = threshold(0.15, "until less does", bounded_by="collate_share")
    receiving_share: float = threshold(
        0.10, "of the training thread's time goes into receiving batches: reported from here on"
    )
    clear_receiving_share: float = threshold(0.05, "until less does", bounded_by="receiving_share")


@dataclass(frozen=True, slots=True)
class Shipping:
    """What building and shipping take: of the workers' work, and of the training thread's time (None: unknown)."""

    building: Share | None
    of: int
    receiving: Share | None

    def exceeds(self, building: float, receiving: float) -> bool:
        """Whether either is at least so much."""
        made, taken = self.building, self.receiving
        return (made is not None and made.value >= building) or (taken is not None and taken.value >= receiving)


@rule("slow-collate-ipc", family="data", subject="run", level=Level.E1, thresholds=Thresholds)
def slow_collate_ipc(case: RunCase, limits: Thresholds) -> Draft | None:
    rank = case.run.critical
    count = rank.train_loader.num_workers if rank.train_loader else None
    if not count:
        return None
    shipping, starvation = _shipping(rank), starvation_of(case)
    if (
        shipping is None
        or starvation is None
        or not shipping.exceeds(limits.clear_collate_share, limits.clear_receiving_share)
    ):
        return None
    line, is_limit = hottest_of_workers(rank.stacks, "collate", "send"), _workers_limit(rank, shipping, limits)
    gain = _gain(case, starvation, shipping) if is_limit else _gain_of_receiving(shipping, limits)
    return Draft(
        summary=_summary(shipping, line, is_limit, limits),
        severity=Severity.WARNING,
        level=Level.E1,
        evidence=_evidence(rank, shipping, line),
        fires=shipping.exceeds(limits.collate_share, limits.receiving_share),
        fix=_fix(rank, line, on_gpu=starvation.on_gpu),
        gain=gain,
        hint=None
        if gain is not None
        else "no promise: the workers idle part of the time, so their pace is only part of the cause",
        ruled_out=rivals(case),
        verify="Collating and receiving take less than half of their share now, and the wait is below 6%",
        chart=("run.wait_share",),
    )


def _shipping(rank: RankWindow) -> Shipping | None:
    """The shares; building counts only where no line of the items takes more than all of it."""
    stacks = rank.stacks
    if stacks is None:
        return None
    building, of = None, busy_worker_samples(stacks)
    if of >= WORKER_SAMPLES:
        building = share_of(round(stacks.worker_samples * share_in(stacks.worker_phases, "collate", "send")), of)
        item = hottest_of_workers(stacks, "item")
        if item is not None and item.share.value > building.value:
            building = None
    receiving = None
    if enough(rank) is not None and stacks.receiving_share is not None:
        receiving = share_of(round(stacks.samples * stacks.receiving_share), stacks.samples)
    return Shipping(building, of, receiving)


def _workers_limit(rank: RankWindow, shipping: Shipping, limits: Thresholds) -> bool:
    """Whether what the workers build is the limit: not where they idle, for their batches are then ready."""
    busy, building = worker_busy(rank), shipping.building
    if building is None or building.value < limits.clear_collate_share:
        return False
    return busy is None or busy.value >= BUSY_SHARE


def _summary(shipping: Shipping, line: HotLine | None, is_limit: bool, limits: Thresholds) -> str:
    where = f" ({line.place})" if line is not None else ""
    taken = shipping.receiving.value if shipping.receiving else 0.0
    if shipping.building is not None and (is_limit or taken < limits.clear_receiving_share):
        share = percent(shipping.building.value)
        return f"Workers spend {share} of their work on building and sending batches{where}, not on the items"
    return f"Receiving the batches that workers send costs the training thread {percent(taken)} of its time"


def _evidence(rank: RankWindow, shipping: Shipping, line: HotLine | None) -> tuple[Measure, ...]:
    measures = []
    if shipping.building is not None:
        text = (
            f"collating and sending {with_interval(shipping.building)} of the workers' work "
            f"({grouped(shipping.of)} samples of their stacks)"
        )
        measures.append(Measure("worker_collate_share", round(shipping.building.value, 4), text))
    if shipping.receiving is not None and rank.stacks is not None:
        text = f"receiving batches {with_interval(shipping.receiving)} of the training thread {watched(rank.stacks)}"
        measures.append(Measure("receiving_share", round(shipping.receiving.value, 4), text))
    if line is not None:
        measures.append(line.measure("hot_line", "the workers' time"))
    size = rank.train_loader.batch_bytes if rank.train_loader else None
    if size is not None:
        measures.append(Measure("batch_bytes", size, f"a batch has {megabytes(size)}"))
    return tuple(measures)


def _fix(rank: RankWindow, line: HotLine | None, *, on_gpu: bool) -> Fix:
    file, number = (line.file, line.line) if line is not None else place_of(rank.train_loader)
    where = "on the GPU" if on_gpu else "on the whole batch"
    return Fix(
        text=(
            f"Ship fewer bytes and fewer objects: leave images uint8 and normalise them {where}, return items as "
            "tensors of one size that stack without conversion, pad once per batch, or fetch a batch in one call "
            "(Dataset.__getitems__)"
        ),
        code="images = images.to(device, non_blocking=True).float().div_(255)" if on_gpu else None,
        file=file,
        line=number,
    )


def _gain(case: RunCase, starvation: Starvation, shipping: Shipping) -> Gain | None:
    cost, (low, high) = step_cost(case, starvation), RECOVERED
    if cost is None or shipping.building is None:
        return None
    worst = cost.cheaper(low * shipping.building.low).gain(cost.workers)
    best = cost.cheaper(high * shipping.building.high).gain(cost.workers)
    return Gain(max(1.0, worst.low), max(1.0, best.high), best.cap)


def _gain_of_receiving(shipping: Shipping, limits: Thresholds) -> Gain | None:
    taken, (low, high) = shipping.receiving, RECOVERED
    return (
        None
        if taken is None or taken.value < limits.clear_receiving_share
        else from_share(low * taken.low, high * taken.high)
    )
