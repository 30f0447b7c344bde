"""The machine is short of memory: it swaps, or throws the dataset out of the page cache.

Means:
    What is read of the dataset does not stay in memory until it is needed again, or the memory of processes itself
    goes to disk and back. Reading then costs what the storage costs, in every epoch.
Evidence:
    Free memory as the kernel estimates it (page cache counts as free), the container's limit, memory pressure (PSI),
    pages that are read again, and swapping.
Fires:
    Less than 10 % free (and less than 64 GiB), more than 90 % of the container's limit used, or memory pressure of
    10 %. With less than 20 % free also 500 major faults or 1 MiB of swap a second.
Clears:
    More than 20 % free, less than 80 % of the limit, pressure below 5 %.
Not when:
    Only the page cache fills the memory. Mapped datasets show as large processes, and fault when they are read first:
    neither is a shortage.
Fix:
    Fewer workers or smaller queues, by the memory that is missing; smaller caches, shards that are read in order; a
    higher limit.
Gain:
    A hint: 1 / (1 - S) of what is lost to reading.
Verify:
    Fewer than 100 major faults a second, more than 20 % free.
Source:
    node-mixin (500 major faults a second), the kernel's PSI notes, CoorDL on page caches that thrash.
"""

from __future__ import annotations

import math

from gpuwatch.diagnosis.advice.code import loader_fix, place_of
from gpuwatch.diagnosis.advice.gains import without
from gpuwatch.diagnosis.advice.memory import MemoryShortage, memory_shortage
from gpuwatch.diagnosis.advice.starvation import starvation_of
from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, Severity
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.wording import gibibytes

LOST_SHARE = 0.05


@rule("host-memory-pressure", subject="run", level=Level.E0, after=("data-starvation",), gated=False)
def host_memory_pressure(case: RunCase) -> Draft | None:
    """Fires on a run whose machine or container has hardly any memory left."""
    shortage = memory_shortage(case)
    if shortage is None:
        return None
    first = shortage.signs[0].text
    return Draft(
        summary=f"Memory is short: {first}, so data that was read is thrown out again",
        severity=Severity.WARNING,
        level=Level.E0,
        evidence=(*shortage.signs, *_held(case)),
        fires=shortage.is_short,
        fix=_fix(case, shortage),
        hint=_hint(case),
        verify="More than 20 % of the memory free, fewer than 100 major faults a second",
        chart=("host.cpu_percent", "run.wait_share"),
    )


def _held(case: RunCase) -> tuple[Measure, ...]:
    workers = case.run.critical.workers
    if workers is None or not workers.rss_bytes:
        return ()
    text = f"{workers.count} workers of {gibibytes(workers.rss_bytes)} each, shared pages included"
    return (Measure("worker_rss_bytes", workers.rss_bytes, text),)


def _hint(case: RunCase) -> str:
    starvation = starvation_of(case) if "data-starvation" in case.holding else None
    if starvation is None:
        return "no promise: what the shortage costs is not known"
    return f"up to {without(starvation.share):.1f}x, as far as the wait is for data that was thrown out"


def _fix(case: RunCase, shortage: MemoryShortage) -> Fix:
    rank = case.run.critical
    loader, growth = rank.train_loader, rank.workers.growth if rank.workers else None
    count = loader.num_workers if loader is not None else None
    missing = shortage.missing_bytes
    more = f"about {gibibytes(missing)} more memory" if missing else "more memory"
    queue = (loader.batch_bytes or 0) * (loader.prefetch_factor or 2) if loader is not None else 0
    # Of a worker's memory only what is its own comes back with it.
    each = queue + (growth.worker_bytes if growth is not None else 0)
    if count and count > 1 and missing and each:
        fewer = count - math.ceil(missing / each)
        if fewer >= 1:
            return loader_fix(
                loader,
                {"num_workers": str(fewer)},
                f"Give the run {more}, or lower num_workers from {count} to {fewer}; then read shards in order",
                fewer,
            )
    file, line = place_of(loader)
    return Fix(
        text=f"Give the run {more} (its limit, or a larger machine), cache less, and read shards in order",
        file=file,
        line=line,
        value=math.ceil(missing / 2**30) if missing else None,
    )
