"""One rank is slow and all others wait for it.

Means:
    Ranks meet in every backward pass; the first to arrive wait. The straggler is the rank that waits least.
Evidence:
    Per rank, seconds per step in backward, where the waiting for the others shows: the hook's, or from samples of its
    stack and its counted batches. A loop that asks for the loss in each step (`loss.item()`) waits there: time outside
    all known parts is added where the others have more of it. Score = (median rank's - least rank's) / median step.
    Where Python runs ahead of the GPUs the wait has no fixed place: there it is the time by which a GPU that is never
    idle takes longer than the others, which spin at lower power or have higher clocks. At least 80% of the ranks
    measured.
Fires:
    10%; critical from 20%.
Clears:
    Below 6%.
Not when:
    Ranks with different work by design; fewer than two ranks measured. A rank that is merely slower in forward or
    loading: only what the others wait for it counts. Loaders that are all too slow: then one rank can be the last one
    for minutes by chance, and fixing it gains nothing. So a rank's waits for its own loader count only if it waits more
    than the others in all parts of the window and its workers take longer for a batch, both beyond chance, and only as
    far as the others' workers have time to spare. A rank that waits for others which wait for data, as that shows in
    any part of its step; one that saves or evaluates for all; one whose first batch came later than the others'.
Causes:
    Its loading, its copies, its forward pass or its GPU's clock, whichever it has more of than the others. The same
    rank in every epoch: hardware. Another one in each: data.
Fix:
    What the straggler has more of than the others: waiting for its loader (shards, workers), copying, forward time,
    or a GPU that runs at a lower clock.
Gain:
    1 / (1 - score).
Verify:
    The others wait less than 6% of each step for it.
Source:
    TraceML@d5cec51 0.10/0.20, coverage 0.80; NVRx 0.75 relative speed; arXiv 2505.05713.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

from gpuwatch.diagnosis.advice.compute import trains_throughout
from gpuwatch.diagnosis.advice.sampled import enough, is_sampled, rests_on, worker_busy
from gpuwatch.diagnosis.advice.stream import NEWEST, stretches
from gpuwatch.diagnosis.finding import Draft, Fix, Gain, Level, Measure, RuledOut, Severity
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import percent, seconds
from gpuwatch.statistics import student_t_quantile
from gpuwatch.timeline.windows import GpuWindow, RankWindow

CAUSES = {
    "wait_share": (
        "waits for its own loader",
        "Its loader has as many workers as the others: compare its share of the data (larger or slower files) and what "
        "else runs on its cores",
    ),
    "copy_share": ("copies its batches more slowly", "Check this GPU's PCIe link and whether its batches are pinned"),
    "forward_share": ("computes its forward pass more slowly", "Check this GPU's clock and heat, and rank-only work"),
}

ALONE = frozenset({"eval", "checkpoint", "compile"})
ON_THE_CPU = "Compare what only this rank does in it, its threads, and what else runs on its cores"

PARTS, LEAST_PARTS = 8, 3
CHANCE = 0.05
"""That one of even ranks seems to wait longer than the others."""
LEAST_SAMPLES = 20
"""Of a worker whose load is compared with the others'."""
USUAL_DEVIATION = 0.5
"""Of what a batch costs, over its mean, where it is not measured."""

NO_SLOWED_GPU = RuledOut("a slowed GPU", "its GPU reports no throttling")

GPU_PARTS = ("forward_share", "backward_share", "optimizer_share")
NEVER_IDLE_PERCENT = 95.0
MORE_POWER = 1.04
LESS_CLOCK = 0.97
LEAST_PART = 0.10
"""Of the step: shorter parts say more of the scheduler than of the GPU."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    fire_share: float = threshold(0.10, "of a step that the other ranks wait for the slow one: reported from here on")
    critical_share: float = threshold(0.20, "critical from here on", bounded_by="fire_share")
    clear_share: float = threshold(0.06, "until they wait less", bounded_by="fire_share")
    measured_share: float = threshold(0.80, "of the ranks that are measured at least")


@rule(
    "straggler-rank",
    family="multi_gpu",
    subject="run",
    level=Level.E2,
    behind=("collective-hang",),
    fades=True,
    by_loss=True,
    thresholds=Thresholds,
)
def straggler_rank(case: RunCase, limits: Thresholds) -> Draft | None:
    ranks = [rank for rank in case.run.ranks if _is_measured(rank)]
    if len(ranks) < 2 or len(ranks) < limits.measured_share * (case.run.critical.facts.world_size or len(ranks)):
        return None
    waited = [_waited_for(rank, [other for other in ranks if other is not rank], case.gpus) for rank in ranks]
    longest = max(waited)
    straggler = ranks[waited.index(longest)]
    step = median(rank.train_seconds / rank.steps for rank in ranks)
    others = [rank for rank in ranks if rank is not straggler]
    score = longest / step
    part = _part(straggler, others, step, limits) if score >= limits.clear_share else None
    if part == "wait_share":
        is_slower = _waits_longer(straggler, others) and _loads_slower(straggler, others)
        score = min(score, _spare(others)) if is_slower else 0.0
    elif straggler.facts.device != "cpu":
        # Where Python runs ahead of the GPUs, this rank waits for others that wait for data in any part of its step.
        score -= sum(rank.wait_share or 0.0 for rank in others)
    if score < limits.clear_share:
        return None
    cause, fix, excess = _cause(straggler, others, part)
    slow_gpu = _slowed_gpu(straggler, case.gpus)
    name = f"Rank {straggler.facts.rank}" if straggler.facts.rank is not None else f"Process {straggler.facts.pid}"
    rank_name = f"{name[0].lower()}{name[1:]}"
    return Draft(
        summary=f"Other ranks wait {seconds(score * step)} ({percent(score)}) of each step for {rank_name}: it {cause}",
        severity=Severity.CRITICAL if score >= limits.critical_share else Severity.WARNING,
        level=min(rests_on(rank, Level.E2) for rank in ranks),
        evidence=(
            Measure("straggler_score", round(score, 4), f"other ranks wait {percent(score)} of each step for it"),
            Measure("rank", straggler.facts.rank, name),
            Measure(
                "others_wait_seconds",
                round(score * step, 4),
                f"others wait {seconds(score * step)} per step",
            ),
            *excess,
        ),
        fires=score >= limits.fire_share,
        fix=Fix(text=slow_gpu or fix, value=straggler.facts.rank),
        gain=Gain(low=1.0, high=round(1.0 / (1.0 - min(score, 0.9)), 2), cap="then the other ranks set the pace"),
        ruled_out=(
            RuledOut("a slow network", "then all ranks would wait alike; this one waits least"),
            *(() if slow_gpu or not _watches_gpu(straggler, case.gpus) else (NO_SLOWED_GPU,)),
        ),
        verify=f"The other ranks wait less than {percent(limits.clear_share)} of each step for this one",
        chart=("run.step_seconds", "gpu.utilization_percent"),
    )


def _is_measured(rank: RankWindow) -> bool:
    return rank.backward_share is not None and rank.steps >= 10 and (not is_sampled(rank) or enough(rank) is not None)


def _waited_for(rank: RankWindow, others: list[RankWindow], gpus: tuple[GpuWindow, ...]) -> float:
    """Seconds of each step in which the median of the others waits for this rank.

    Time outside of the known parts may be work as well: rank 0 logs, and the others wait for it in backward. So the
    others having more of it counts as their waiting, and this rank having more of it as nothing. Ranks that were seen
    earlier, at their first batch, waited for this one's: once, not in each step.
    """
    in_backward = median(_seconds_per_step(other, other.backward_share) for other in others)
    in_backward -= _seconds_per_step(rank, rank.backward_share)
    outside = median(_seconds_outside(other) for other in others) - _seconds_outside(rank)
    paused = _seconds_paused(rank) - median(_seconds_paused(other) for other in others)
    began_later = (median(other.window_seconds for other in others) - rank.window_seconds) / rank.steps
    once = max(0.0, paused) + max(0.0, began_later)
    return max(in_backward + max(0.0, outside) - once, _waited_for_gpu(rank, others, gpus))


def _seconds_outside(rank: RankWindow) -> float:
    """Seconds of each step in none of the known parts."""
    parts = (rank.wait_share, rank.copy_share, rank.forward_share, rank.backward_share, rank.optimizer_share)
    seconds_outside = _seconds_per_step(rank, max(0.0, 1.0 - sum(part or 0.0 for part in parts)))
    aside = rank.aside_seconds / rank.steps if is_sampled(rank) else 0.0  # a hook's steps are without it
    return max(0.0, seconds_outside - aside)


def _seconds_paused(rank: RankWindow) -> float:
    """Seconds per step of its evaluations and saves: one that does these alone is waited for, but is not slow."""
    return sum(total.seconds for kind, total in rank.phases.items() if kind in ALONE) / rank.steps


def _excess(straggler: RankWindow, others: list[RankWindow], name: str) -> float:
    """Seconds of each step that it has more of a part than the others."""
    theirs = median(_seconds_per_step(rank, getattr(rank, name)) for rank in others)
    return _seconds_per_step(straggler, getattr(straggler, name)) - theirs


def _part(straggler: RankWindow, others: list[RankWindow], step: float, limits: Thresholds) -> str | None:
    """The part of a step that it has most more of than the others; None where that explains nothing."""
    excess = {name: _excess(straggler, others, name) for name in CAUSES}
    name = max(excess, key=lambda key: excess[key])
    return name if excess[name] >= 0.25 * limits.clear_share * step else None


def _waits_longer(straggler: RankWindow, others: list[RankWindow]) -> bool:
    """Whether it waits longer for its loader than the others do in all parts of the window, so that it is no chance.

    Single slow items fall on one rank now and on another then.
    """
    parts = zip(_waits(straggler), *(_waits(other) for other in others), strict=False)
    longer = [own - median(theirs) for own, *theirs in parts]
    if len(longer) < LEAST_PARTS:
        return False
    error: float = stdev(longer) / math.sqrt(len(longer))
    return fmean(longer) > _reach(others, len(longer)) * error


def _loads_slower(straggler: RankWindow, others: list[RankWindow]) -> bool:
    """Whether its workers take longer for a batch, beyond chance: the rank whose queue is empty waits for all of them.

    A queue that has run empty stays so for minutes where all loaders are about as slow as the training.
    """
    own, *theirs = (_batch_cost(rank) for rank in (straggler, *others))
    known = [cost for cost in theirs if cost is not None]
    if own is None or len(known) < len(theirs):
        return True
    usual, error = median(cost for cost, _, _ in known), median(error for _, error, _ in known)
    return own[0] - usual > _reach(others, own[2]) * math.hypot(own[1], error)


def _batch_cost(rank: RankWindow) -> tuple[float, float, int] | None:
    """What a batch costs the loader, its standard error, and of how many; None without workers or their figures."""
    made, loader = rank.workers, rank.train_loader
    if made is None or loader is None or not loader.num_workers:
        return None
    if made.batch_seconds is not None and made.batch_seconds_sigma is not None:
        count = len(made.newest_batch_seconds)
        known = made.batch_seconds / loader.num_workers, made.batch_seconds_sigma / loader.num_workers
    else:
        busy, count = worker_busy(rank), rank.steps
        if busy is None:
            return None
        known = busy.value, max(USUAL_DEVIATION * busy.value, _deviation_of_workers(rank) * math.sqrt(count))
    return (known[0], known[1] / math.sqrt(count), count) if count >= LEAST_PARTS else None


def _deviation_of_workers(rank: RankWindow) -> float:
    """By how much the mean of the workers' busy shares is off by chance: a slow item keeps one busy, and others wait.

    0 where too few workers are distinguished.
    """
    stacks = rank.stacks
    shares = [each.busy.value for each in stacks.by_worker if each.samples >= LEAST_SAMPLES] if stacks else []
    return stdev(shares) / math.sqrt(len(shares)) if len(shares) >= LEAST_PARTS else 0.0


def _reach(others: list[RankWindow], count: int) -> float:
    """This many standard errors are chance, for the one rank of all that is furthest off."""
    return student_t_quantile(1.0 - 0.5 * CHANCE / (1 + len(others)), count - 1)


def _waits(rank: RankWindow) -> list[float]:
    """The share of waits in each part of the window."""
    rows: Sequence[tuple[float, float]] = rank.stacks.waits if is_sampled(rank) and rank.stacks is not None else ()
    if not is_sampled(rank):
        columns = rank.columns
        steps = zip(columns.period_seconds[-NEWEST:], columns.wait_seconds[-NEWEST:], strict=True)
        rows = [(period, wait) for period, wait in steps if wait == wait and period > 0.0]
    workers = rank.train_loader.num_workers if rank.train_loader else None
    rhythm = workers if workers and len(rows) >= PARTS * workers else 1
    return [sum(wait for _, wait in part) / sum(time for time, _ in part) for part in stretches(rows, PARTS, rhythm)]


def _spare(others: list[RankWindow]) -> float:
    """How much shorter a step the others' loaders would allow, at most: workers that are busy set the pace too."""
    busy = [worker_busy(rank) for rank in others]
    known = [share.value for share in busy if share is not None]
    return 1.0 - median(known) if known else 1.0


def _cause(straggler: RankWindow, others: list[RankWindow], name: str | None) -> tuple[str, str, tuple[Measure, ...]]:
    if name is None:
        return (
            "is slower for a reason not measured here",
            "Record stacks of that rank and of one other, and compare",
            (),
        )
    excess = _excess(straggler, others, name)
    words, fix = CAUSES[name]
    if name == "wait_share":
        fix = _fewer_workers(straggler, others) or fix
    if name == "forward_share" and straggler.facts.device == "cpu":
        fix = ON_THE_CPU
    label = name.removesuffix("_share")
    return (
        words,
        fix,
        (Measure(f"{label}_excess_seconds", round(excess, 4), f"{label} {seconds(excess)} longer"),),
    )


def _fewer_workers(straggler: RankWindow, others: list[RankWindow]) -> str | None:
    own, *theirs = (rank.train_loader.num_workers if rank.train_loader else None for rank in (straggler, *others))
    most = max((count for count in theirs if count is not None), default=0)
    if own is None:
        return "Compare its loader with the others': workers, share of the data, and what else runs on its cores"
    return f"Give this rank's loader the {most} workers that others have; it has {own}" if own < most else None


def _watches_gpu(straggler: RankWindow, gpus: tuple[GpuWindow, ...]) -> bool:
    return any(gpu.facts.uuid in straggler.facts.gpu_uuids and gpu.throttle_shares for gpu in gpus)


def _slowed_gpu(straggler: RankWindow, gpus: tuple[GpuWindow, ...]) -> str | None:
    for gpu in gpus:
        slowed = {cause: share for cause, share in gpu.throttle_shares.items() if share >= 0.05 and cause != "power"}
        if gpu.facts.uuid in straggler.facts.gpu_uuids and slowed:
            cause, share = max(slowed.items(), key=lambda item: item[1])
            slowed_time = f"Its GPU {gpu.facts.index} is slowed {percent(share)} of the time ({cause})"
            return f"{slowed_time}: cool it or use another node"
    return None


def _seconds_per_step(rank: RankWindow, share: float | None) -> float:
    """A share of the training time as seconds of each step."""
    return (share or 0.0) * rank.train_seconds / rank.steps


def _waited_for_gpu(rank: RankWindow, others: Sequence[RankWindow], gpus: Sequence[GpuWindow]) -> float:
    """Seconds of each step in which the others wait for this rank's GPU; 0 where nothing says that it is slower.

    A loop that never asks the GPU for anything launches at the GPU's pace, so each part of a step lasts as long as its
    kernels: on the slow GPU all of them longer by the same factor. The others' wait in the collective may show in
    any part, and across two, for the driver's queue holds about a thousand launches; the part that is longest
    against the others' is the one that holds none of it. That alone may be the same wait shown elsewhere, so the
    GPUs have to agree: this one is never idle, and it draws more power than those that spin in the collective, or
    its clock is lower.
    """
    own = _gpu_of(rank, gpus)
    theirs = [gpu for gpu in (_gpu_of(other, gpus) for other in others) if gpu is not None]
    if own is None or not theirs or not _is_never_idle(own) or not _differs(own, theirs):
        return 0.0
    if not all(map(trains_throughout, (own, *theirs))):
        return 0.0  # power and clock are known of the whole window only
    step = rank.train_seconds / rank.steps
    factors = []
    for part in GPU_PARTS:
        usual = median(_seconds_per_step(other, getattr(other, part)) for other in others)
        if usual >= LEAST_PART * step:
            factors.append(_seconds_per_step(rank, getattr(rank, part)) / usual)
    longer = max(factors, default=1.0)
    return step * (1.0 - 1.0 / longer) if longer > 1.0 else 0.0


def _gpu_of(rank: RankWindow, gpus: Sequence[GpuWindow]) -> GpuWindow | None:
    return next((gpu for gpu in gpus if gpu.facts.uuid in rank.facts.gpu_uuids), None)


def _is_never_idle(gpu: GpuWindow) -> bool:
    busy = gpu.train_utilization
    return busy is not None and busy.mean >= NEVER_IDLE_PERCENT


def _differs(gpu: GpuWindow, others: Sequence[GpuWindow]) -> bool:
    power = [other.power_watts.mean for other in others if other.power_watts is not None]
    clocks = [other.sm_clock_mhz.mean for other in others if other.sm_clock_mhz is not None]
    draws_more = gpu.power_watts is not None and bool(power) and gpu.power_watts.mean >= MORE_POWER * median(power)
    is_clocked_lower = (
        gpu.sm_clock_mhz is not None and bool(clocks) and gpu.sm_clock_mhz.mean <= LESS_CLOCK * median(clocks)
    )
    return draws_more or is_clocked_lower
