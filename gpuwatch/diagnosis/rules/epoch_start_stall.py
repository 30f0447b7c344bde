"""Every epoch begins with a pause while workers start and the queue refills.

Means:
    Without persistent_workers a loader ends its workers with the epoch and starts new ones; with short epochs that
    pause is a large part of the run.
Evidence:
    The wait for the end of each epoch (workers that do not persist are ended in it) and, beyond the usual wait, for the
    first batches of the next, over the whole session; whether worker processes change between epochs. Without a hook:
    the samples of the training thread's stack that are in iter() or wait for the first batch of each worker, beyond the
    usual wait, in a window in which at least two epochs began; the session's first epoch is left out.
Fires:
    5% of the time over at least two epochs.
Clears:
    Below 3%.
Not when:
    There was only one epoch so far.
Causes:
    New worker processes from epoch to epoch: they are not persistent. The same ones: the sampler or dataset is
    rebuilt. Fewer than two batches per worker: epoch-too-short.
Fix:
    persistent_workers=True; where workers already persist, the sampler or dataset is rebuilt in the training process;
    where an epoch has fewer than twice as many batches as workers, longer epochs (a repeating sampler). Where the
    pause is the time that the first batches take the workers, persistent workers gain nothing: join epochs there too,
    so that the queue stays filled.
Gain:
    At most 1 / (1 - E), where E counts only time in which the GPU idles: in these pauses by event pairs, from outside
    over the whole window. Persistent workers still have to make the first batches of an epoch: the time for
    a first round of them remains, estimated from the batches that the workers made (without a hook: one batch), and
    longer where the cores are full, because all of them start together. Persistent workers took the first batch from
    168-383 ms to 42-62 ms (4 workers, 2 cores). Joined epochs leave a tenth of the pauses at most. The gain is limited
    to what busy workers deliver, and its lower end to what the free cores allow.
Verify:
    The wait from the end of an epoch to the first batch of the next is less than three times the usual one.
Source:
    pytorch#15849, Lightning's speed guide; measured as above.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean

from gpuwatch.diagnosis.advice.fixes import loader_fix, place_of
from gpuwatch.diagnosis.advice.gains import within_loader
from gpuwatch.diagnosis.advice.lines import watched, with_interval
from gpuwatch.diagnosis.advice.pauses import JOINED, EpochEdges, edges_gain, epoch_edges, first_batches_part
from gpuwatch.diagnosis.advice.resources import is_cpu_exhausted
from gpuwatch.diagnosis.advice.sampled import trains_on
from gpuwatch.diagnosis.advice.starvation import idle_share
from gpuwatch.diagnosis.finding import Draft, Fix, Gain, Level, Measure, RuledOut, Severity, share_measure
from gpuwatch.diagnosis.rule import LEAST_GAIN, RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.diagnosis.tree import SYMPTOM
from gpuwatch.numbers import grouped, percent, seconds
from gpuwatch.timeline.windows import RankWindow

FIRST_BATCH_PART, MOSTLY = 0.9, 0.5
"""Of a pause: if the first batches take as much of it, the pause is their making, and no start; from the second on it
is where workers that persist would win too little for a warning."""
THROTTLED_SHARE = 0.10


@dataclass(frozen=True, slots=True)
class Thresholds:
    fire_share: float = threshold(0.05, "of the time passes at the starts of epochs: reported from here on")
    clear_share: float = threshold(0.03, "until less passes", bounded_by="fire_share")


@rule("epoch-start-stall", family="data", subject="run", level=Level.E2, after=(SYMPTOM,), thresholds=Thresholds)
def epoch_start_stall(case: RunCase, limits: Thresholds) -> Draft | None:
    rank = case.run.critical
    edges = epoch_edges(rank)
    if edges is None or edges.share < limits.clear_share:
        return None
    measured = idle_share(case) if edges.sampled is not None and trains_on(case) == "cuda" else None
    idle = (1.0, 1.0) if measured is None else (measured.low, measured.high)
    joined = _waits_for_a_batch(case, edges, idle)
    others = "unknown" if edges.usual_seconds is None else seconds(edges.usual_seconds)
    return Draft(
        summary=(
            f"Between two epochs lies a pause of {seconds(edges.pause_seconds)}: "
            f"{percent(edges.share)} of the time in all"
        ),
        severity=Severity.WARNING,
        level=edges.level,
        evidence=(
            _share(rank, edges),
            Measure("epochs", edges.count, f"{grouped(edges.count)} epochs seen"),
            Measure(
                "first_wait_seconds",
                round(edges.pause_seconds, 4),
                f"from the end of an epoch to the next one's first batch {seconds(edges.pause_seconds)}, "
                f"for other batches {others}",
            ),
            *_restarts(rank),
            *(_made(rank) if joined else ()),
        ),
        fires=edges.share >= limits.fire_share,
        fix=join_epochs(rank) if joined else _fix(rank, edges),
        gain=_gain(case, edges, idle, joined=joined),
        ruled_out=()
        if edges.usual_seconds is None
        else (RuledOut("slow loading throughout", f"the usual batch waits {seconds(edges.usual_seconds)}"),),
        verify="Ending an epoch and waiting for the first batch of the next takes less than three times a usual wait",
        chart=("run.wait_share", "run.step_seconds"),
    )


def _share(rank: RankWindow, edges: EpochEdges) -> Measure:
    if edges.sampled is None or rank.stacks is None:
        return share_measure("epoch_start_share", edges.share, "pauses between epochs take")
    text = f"pauses between epochs take {with_interval(edges.sampled)} {watched(rank.stacks)}"
    return Measure("epoch_start_share", round(edges.share, 4), text)


def _waits_for_a_batch(case: RunCase, edges: EpochEdges, idle: tuple[float, float]) -> bool:
    """Whether the pauses are the making of the first batches, while cores are left to make them earlier.

    In a simulated job 8 workers on 2 cores took 870 ms each for their first batches: with workers that persist it was
    1.00 times as fast, with epochs that are joined 1.13 times. Another's 64 workers started one after the other, so
    that the first batch came after 0.5 s; together they took 2.4 s for it, and again persistence brought 1.00x.
    """
    loader, process = case.run.critical.train_loader, case.run.critical.process
    if loader is None or not loader.num_workers:
        return False
    if is_cpu_exhausted(case, pressure_percent=math.inf):  # workers that all begin at once press on idle cores too
        return False
    if process is not None and (process.throttled_period_share or 0.0) >= THROTTLED_SHARE:
        return False
    part = first_batches_part(case, edges)
    if part is None:
        return False
    if loader.persistent_workers:
        return part[1] >= FIRST_BATCH_PART
    made = fmean(part)
    return made >= FIRST_BATCH_PART or (made >= MOSTLY and edges_gain(case, edges, idle).high < LEAST_GAIN)


def _gain(case: RunCase, edges: EpochEdges, idle: tuple[float, float], *, joined: bool) -> Gain:
    joins = joined or _is_short(case.run.critical, edges)
    gain = edges_gain(case, edges, idle, joined=joins)
    return within_loader(case, gain) if joins else gain


def _made(rank: RankWindow) -> tuple[Measure, ...]:
    made = rank.workers.batch_seconds if rank.workers is not None else None
    if made is None:
        return ()
    return (Measure("batch_seconds", round(made, 4), f"a worker takes {seconds(made)} for a batch"),)


def join_epochs(rank: RankWindow) -> Fix:
    """Epochs that follow each other in one iterator: workers begin the next one's batches before this one has ended."""
    file, line = place_of(rank.train_loader)
    return Fix(
        text=(
            f"Join {JOINED} epochs into one by a sampler that repeats, in place of shuffle=True: the run waits for the "
            "workers' first batch, which persistent workers would have to make as well"
        ),
        code=f"DataLoader(..., sampler=RandomSampler(dataset, num_samples={JOINED} * len(dataset)))",
        file=file,
        line=line,
        value=JOINED,
    )


def _restarts(rank: RankWindow) -> tuple[Measure, ...]:
    if rank.workers is None or not rank.workers.pids_changed:
        return ()
    return (Measure("worker_pids_changed", 1, "its worker processes are new ones from epoch to epoch"),)


def _is_short(rank: RankWindow, edges: EpochEdges) -> bool:
    """Whether epochs are too short for workers that persist already: joining them is part of the advice."""
    loader, batches = rank.train_loader, edges.batches_per_epoch
    if loader is None or not loader.persistent_workers or not loader.num_workers:
        return False
    return batches is not None and batches < 2 * loader.num_workers


def _fix(rank: RankWindow, edges: EpochEdges) -> Fix:
    loader = rank.train_loader
    workers = loader.num_workers if loader else None
    restarts = rank.workers is not None and rank.workers.pids_changed
    if workers and (loader is None or not loader.persistent_workers):
        return loader_fix(loader, {"persistent_workers": "True"}, "Keep the workers from one epoch to the next", "True")
    if workers and edges.batches_per_epoch is not None and _is_short(rank, edges):
        count = max(1, edges.batches_per_epoch // 4)
        return loader_fix(
            loader,
            {"num_workers": str(count)},
            f"An epoch has {grouped(edges.batches_per_epoch)} batches for {workers} workers: use {count}, or join "
            "several epochs into one with a repeating sampler",
            count,
        )
    what = "new worker processes start although they should persist: the loader is rebuilt each epoch"
    if not restarts:
        what = "the sampler or the dataset does work in the training process at each start (shuffling, scanning)"
    file, line = place_of(loader)
    return Fix(
        text=f"Build the loader once, before the loop, and move that work out of the epoch's start: {what}",
        file=file,
        line=line,
    )
