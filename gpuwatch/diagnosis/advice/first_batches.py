"""What is known of loading before there are steps enough: how long training has waited, and what its workers do.

A first batch may take long for once: an index is read, a library is imported. So a wait counts while items are being
made, and what it says of the pace to come is what the workers took for the batches that they have made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from gpuwatch.diagnosis.advice.sampled import WORKER_SAMPLES, busy_worker_samples, is_sampled, share_in
from gpuwatch.diagnosis.advice.starvation import LONG_WAITS_SECONDS, known_losses, waited_long
from gpuwatch.diagnosis.advice.stream import few_settled
from gpuwatch.diagnosis.rule import RunCase
from gpuwatch.timeline.figures import STEPS
from gpuwatch.timeline.stacks import is_handed_over
from gpuwatch.timeline.windows import RankWindow

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
