"""One worker is slower than the others, which wait for it.

Means:
    Batches are handed over in order, each worker makes every N-th. One of them takes longer for each of its batches, so
    the others fill their part of the queue and idle until its batch is there.
Evidence:
    How busy each worker is, and the median time that its batches take: with a hook, by its own record of them. Without
    one: how busy it is by samples of its stack, and how the waits are distributed. Where stacks can be read, the line
    that the slow one is at.
Fires:
    data-starvation holds, half of the workers or fewer are busy at least 85% of the time, each of the others less than
    60%, and the batches of the slow ones take 1.5 times as long. Without a hook most of the
    waits are short: not seconds in which the training does nothing else.
Clears:
    The others are busy too, or the wait is gone.
Not when:
    Workers are not all seen for long enough: new ones in each epoch of a few seconds. Batches are handed over out of
    order (in_order=False), where a slow worker delays no other. Slow items that come to one worker after the other;
    from outside a worker with batches of seconds cannot be distinguished from one that got the slow items of a minute.
Causes:
    An IterableDataset whose shards are not alike: one is larger, compressed otherwise, or lies on slower storage; a
    worker that retries downloads or reads from slow files only; a worker on a core that other programs use.
Fix:
    Equal work for all: hand out single items or small shards round-robin by get_worker_info(). Where torch has it,
    in_order=False lets the others go ahead in the meantime; the order of batches is then not reproducible.
Gain:
    From distributing the same work evenly to letting each worker go at its own pace, by how busy they are now; at most
    what is lost to waits.
Verify:
    All workers are as busy as each other, and the wait is below 6%.
Source:
    DataLoader's in_order and its queues (torch/utils/data/dataloader.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from gpuwatch.diagnosis.advice.fixes import loader_fix, place_of
from gpuwatch.diagnosis.advice.gains import HIGHEST_SHARE, without
from gpuwatch.diagnosis.advice.rivals import rivals
from gpuwatch.diagnosis.advice.starvation import Starvation, lost_interval, starvation_of
from gpuwatch.diagnosis.advice.workers import WorkerLoad, worker_loads
from gpuwatch.diagnosis.finding import Draft, Fix, Gain, Level, Measure, Severity
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import percent, seconds
from gpuwatch.samples import LoaderFacts
from gpuwatch.timeline.windows import RankWindow

TIMES_LONGER = 1.5
WHOLLY = 0.9
"""Of a second of training in which it waits: that is one long wait, or part of it."""
LEAST_BUSY = 0.02
SURE = 0.9
"""Of the loss: what is left of it when no worker holds up the others is the handover, and what the queue smooths."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    busy_share: float = threshold(0.85, "of the time that a slow worker is busy, at least")
    others_share: float = threshold(0.60, "of the time that each of the others is busy, at most")


@rule("slow-worker", family="data", subject="run", level=Level.E1, thresholds=Thresholds)
def slow_worker(case: RunCase, limits: Thresholds) -> Draft | None:
    rank, starvation = case.run.critical, starvation_of(case)
    loader = rank.train_loader
    if starvation is None or loader is None or loader.in_order is False:
        return None
    workers = worker_loads(rank)
    slow = [each for each in workers if each.busy >= limits.busy_share]
    others = [each for each in workers if each.busy < limits.others_share]
    if not slow or len(slow) > len(others) or len(slow) + len(others) < len(workers):
        return None
    if not _is_always_slow(rank, slow, others):
        return None
    chief = max(slow, key=lambda each: (each.batch_seconds or 0.0, each.busy))
    return Draft(
        summary=_summary(chief, slow, others),
        severity=Severity.WARNING,
        level=min(starvation.level, Level.E2 if chief.batch_seconds is not None else Level.E1),
        evidence=_evidence(chief, slow, others),
        fix=_fix(loader, chief),
        gain=_gain(rank, starvation, workers),
        ruled_out=rivals(case, "cpu"),
        verify="All workers are as busy as each other, and less than 6% of the time is lost to waits",
        chart=("run.wait_share",),
    )


def _is_always_slow(rank: RankWindow, slow: Sequence[WorkerLoad], others: Sequence[WorkerLoad]) -> bool:
    """Whether all of its batches take it long: one that got the only two slow items of a window is busy, too."""
    usual = [each.batch_seconds for each in others if each.batch_seconds is not None]
    if usual:
        return all((each.batch_seconds or 0.0) >= TIMES_LONGER * median(usual) for each in slow)
    waits = rank.stacks.waits if rank.stacks is not None else ()
    long = sum(waited for trained, waited in waits if waited >= WHOLLY * trained)
    return 2.0 * long < sum(waited for _, waited in waits)


def _summary(chief: WorkerLoad, slow: Sequence[WorkerLoad], others: Sequence[WorkerLoad]) -> str:
    count = len(slow) + len(others)
    who = f"One of {count} workers holds" if len(slow) == 1 else f"{len(slow)} of {count} workers hold"
    most = percent(max(each.busy for each in others))
    where = "" if chief.line is None else f" ({chief.line.place})"
    name = f"process {chief.pid} is" if len(slow) == 1 else f"the slowest, process {chief.pid}, is"
    return f"{who} up all batches: {name} busy {percent(chief.busy)} of the time{where}, the others at most {most}"


def _evidence(chief: WorkerLoad, slow: Sequence[WorkerLoad], others: Sequence[WorkerLoad]) -> tuple[Measure, ...]:
    rest = fmean(each.busy for each in others)
    measures = [
        Measure("slow_workers", len(slow), f"{len(slow)} of {len(slow) + len(others)} workers"),
        Measure("slow_worker_pid", chief.pid, f"the slowest is process {chief.pid}"),
        Measure("slow_worker_busy_share", round(chief.busy, 4), f"it is busy {percent(chief.busy)} of the time"),
        Measure("others_busy_share", round(rest, 4), f"the others {percent(rest)} in the mean"),
    ]
    known = [each.batch_seconds for each in others if each.batch_seconds is not None]
    if chief.batch_seconds is not None and known:
        text = f"a batch takes it {seconds(chief.batch_seconds)}, the others {seconds(fmean(known))}"
        measures.append(Measure("slow_worker_batch_seconds", round(chief.batch_seconds, 6), text))
    if chief.line is not None:
        measures.append(chief.line.measure("hot_line", "its time"))
    return tuple(measures)


def _fix(loader: LoaderFacts, chief: WorkerLoad) -> Fix:
    text = f"Find out why process {chief.pid} is slower than the other workers"
    if loader.iterable:
        text += (
            ", and give all workers equal work: hand out single items or small shards round-robin, by get_worker_info()"
        )
    if loader.in_order:
        text += (
            "; in_order=False lets the others go ahead in the meantime (the order of batches is then not reproducible)"
        )
        return loader_fix(loader, {"in_order": "False"}, text, None)
    file, line = (chief.line.file, chief.line.line) if chief.line is not None else place_of(loader)
    return Fix(text=text, file=file, line=line)


def _gain(rank: RankWindow, starvation: Starvation, workers: Sequence[WorkerLoad]) -> Gain:
    """By how busy each is: evenly dealt they share the work that there is, out of order each goes at its own pace."""
    busy = [max(LEAST_BUSY, each.busy) for each in workers]
    evenly, apart = fmean(busy), len(busy) / sum(1.0 / each for each in busy)
    interval = lost_interval(rank, starvation)
    least, most = (starvation.share,) * 2 if interval is None else (interval.low, interval.high)
    least, most = min(least, starvation.share), max(most, starvation.share)
    low = min(without(SURE * least), 1.0 / max(1.0 - min(least, HIGHEST_SHARE), evenly))
    high = 1.0 / max(1.0 - min(most, HIGHEST_SHARE), apart)
    return Gain(round(low, 3), round(high, 3), "if enough cores are free")
