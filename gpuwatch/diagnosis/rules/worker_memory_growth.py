"""Loader workers grow in memory each step because Python objects are copied page by page.

Means:
    Workers begin as copies of the training process that share its memory. Reading a Python object changes its
    reference count, so the page it lies on is copied for each worker: a dataset held in lists or dicts is in memory
    once per worker in the end, until the kernel kills the job.
Evidence:
    Memory that belongs to a worker alone (Private_Dirty, without any page cache), read of two workers every 30 s, for
    all of them; a straight line through ten minutes of it, and the memory that is left below 90% of the machine's or
    of the container's limit.
Fires:
    The line explains more than 80% of the points, and what is left lasts less than two hours.
Clears:
    No growth, or room for more than four hours.
Not when:
    Less than ten minutes were watched, or workers were restarted since; page cache, which is not theirs. Workers above
    4 GB are not measured, because measuring them costs too much.
Causes:
    Reference counts that copy shared pages (lists and dicts of the dataset), or a real leak: then the training
    process grows as well.
Fix:
    Keep what the dataset knows in NumPy or Arrow arrays, which are one object each; fewer workers; persistent_workers
    off, so that each epoch begins with new ones.
Gain:
    No speed: it keeps the job from being killed.
Verify:
    The workers' own memory stays what it is after the first epoch.
Source:
    pytorch#13246 and the warning in torch's data.md; ml-engineering on IDEFICS.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.advice.fixes import place_of
from gpuwatch.diagnosis.advice.resources import local_ranks
from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, RuledOut, Severity
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import gibibytes, percent, seconds
from gpuwatch.timeline.windows import MemoryGrowth, RankWindow

TRAINER_SHARE = 0.5
"""A training process that grows by so much of what a worker does leaks itself."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    fit: float = threshold(0.80, "how close the growth is to a straight line (r squared)", most=1.0)
    fire_seconds: float = threshold(2 * 3600.0, "until memory is full: reported below")
    clear_seconds: float = threshold(4 * 3600.0, "until there is more time than this", bounded_by="fire_seconds")
    full_share: float = threshold(0.90, "of the memory in use counts as full")


@rule("worker-memory-growth", family="data", subject="run", level=Level.E1, gated=False, thresholds=Thresholds)
def worker_memory_growth(case: RunCase, limits: Thresholds) -> Draft | None:
    rank, room = case.run.critical, _room_bytes(case, limits)
    growth = rank.workers.growth if rank.workers else None
    if (
        rank.workers is None
        or growth is None
        or room is None
        or growth.bytes_per_second <= 0.0
        or growth.fit <= limits.fit
    ):
        return None
    ranks = local_ranks(rank)
    left = room / (growth.bytes_per_second * ranks)
    if left > limits.clear_seconds:
        return None
    hourly = growth.bytes_per_second * ranks * 3600.0
    return Draft(
        summary=(
            f"The workers grow by {gibibytes(hourly)} an hour: memory is used up in about {seconds(left)}, "
            "and then the job is killed"
        ),
        severity=Severity.WARNING,
        level=Level.E1,
        evidence=(
            Measure(
                "worker_growth_bytes_per_second",
                round(growth.bytes_per_second),
                f"{rank.workers.count} workers grow by {gibibytes(growth.bytes_per_second * 3600.0)} an hour together, "
                f"seen for {seconds(growth.seconds)}",
            ),
            Measure("growth_fit", round(growth.fit, 3), f"a straight line explains {percent(growth.fit)} of it"),
            Measure(
                "worker_private_bytes", round(growth.worker_bytes), f"one has {gibibytes(growth.worker_bytes)} now"
            ),
            Measure("room_bytes", round(room), f"{gibibytes(room)} are left below 90% of the memory"),
        ),
        fires=left < limits.fire_seconds,
        fix=_fix(rank, growth, left),
        hint="no speedup: it keeps the job from being killed for lack of memory",
        ruled_out=(
            RuledOut("page cache", "only private memory counts: not file pages, not pages shared with other processes"),
        ),
        verify="The workers' own memory stays what it is after the first epoch",
    )


def _room_bytes(case: RunCase, limits: Thresholds) -> float | None:
    """What may still be taken before 90% are full: of the machine, or of the container where that is less."""
    rooms = []
    host = case.host.latest if case.host else None
    if host is not None and host.memory_available_bytes is not None and host.memory_total_bytes:
        rooms.append(host.memory_available_bytes - (1.0 - limits.full_share) * host.memory_total_bytes)
    process = case.run.critical.process
    own = process.latest if process else None
    if own is not None and own.cgroup_memory_limit_bytes and own.cgroup_memory_used_bytes is not None:
        rooms.append(limits.full_share * own.cgroup_memory_limit_bytes - own.cgroup_memory_used_bytes)
    return max(0.0, min(rooms)) if rooms else None


def _fix(rank: RankWindow, growth: MemoryGrowth, left: float) -> Fix:
    file, line = place_of(rank.train_loader)
    count = max(1, rank.workers.count if rank.workers else 1)
    trainer = growth.trainer_bytes_per_second
    if trainer is not None and trainer >= TRAINER_SHARE * growth.bytes_per_second / count:
        text = (
            "The training process grows as well, so something is kept at every step: look for lists that only grow "
            "(losses kept with their graph, caches without a bound)"
        )
        return Fix(
            text=text, code="losses.append(loss.item())  # not loss, which holds its graph", file=file, line=line
        )
    half = max(1, count // 2)
    text = (
        "Hold file names, labels and the like in NumPy or Arrow arrays instead of Python lists and dicts, so that "
        f"reading them copies nothing; {half} instead of {count} workers last {seconds(left * count / half)}"
    )
    return Fix(text=text, code="self.paths = np.array(paths)  # one object, not one per item", file=file, line=line)
