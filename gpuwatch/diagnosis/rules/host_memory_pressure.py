"""The machine is short of memory: it swaps, or evicts the dataset from the page cache.

Means:
    What is read of the dataset does not stay in memory until it is needed again, or the memory of processes itself goes
    to disk and back. Reading then takes as long as the storage takes, in every epoch.
Evidence:
    Free memory as the kernel estimates it (page cache counts as free), the container's limit, memory pressure (PSI),
    pages that are read again, and swapping.
Fires:
    Less than 10% free (and less than 64 GiB), more than 90% of the container's limit used, or memory pressure of
    10%. With less than 20% free also 500 major faults or 1 MiB of swap a second.
Clears:
    More than 20% free, less than 80% of the limit, pressure below 5%.
Not when:
    Only the page cache fills the memory. Mapped datasets show as large processes, and fault when they are read first:
    neither is a shortage.
Causes:
    A dataset larger than the page cache, workers whose memory grows (worker-memory-growth), too much pinned memory,
    or other programs.
Fix:
    Fewer workers or smaller queues, by the memory that is missing; smaller caches, shards that are read in order; a
    higher limit.
Gain:
    A hint: 1 / (1 - S) of what is lost to reading.
Verify:
    Fewer than 100 major faults a second, more than 20% free.
Source:
    node-mixin (500 major faults a second), the kernel's PSI notes, CoorDL on page caches that thrash.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpuwatch.diagnosis.advice.fixes import loader_fix, place_of
from gpuwatch.diagnosis.advice.gains import without
from gpuwatch.diagnosis.advice.resources import worker_queue_bytes
from gpuwatch.diagnosis.advice.rivals import rivals
from gpuwatch.diagnosis.advice.starvation import starvation_of
from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, Severity
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import gibibytes, percent

PLENTY_BYTES = 64 * 2**30
"""A tenth of a machine of 2 TB is no shortage."""
SWAP_BYTES_PER_SECOND = 2**20


@dataclass(frozen=True, slots=True)
class Thresholds:
    free_share: float = threshold(0.10, "of the machine's memory: reported below")
    clear_free_share: float = threshold(0.20, "until more is free", bounded_by="free_share")
    used_share: float = threshold(0.90, "of the container's memory: reported above it")
    clear_used_share: float = threshold(0.80, "until less is used", bounded_by="used_share")
    pressure_percent: float = threshold(10.0, "memory pressure: reported from here on")
    clear_pressure_percent: float = threshold(5.0, "until it is less", bounded_by="pressure_percent")
    faults_per_second: float = threshold(500.0, "pages read again, while little is free: reported above it", most=1e6)


@dataclass(frozen=True, slots=True)
class MemoryShortage:
    """The signs of it, worst first, and whether they are more than a warning of what comes."""

    signs: tuple[Measure, ...]
    is_short: bool
    missing_bytes: int  # until a fifth is free again


@rule(
    "host-memory-pressure",
    family="host",
    subject="run",
    level=Level.E0,
    gated=False,
    thresholds=Thresholds,
)
def host_memory_pressure(case: RunCase, limits: Thresholds) -> Draft | None:
    shortage = _shortage(case, limits)
    if shortage is None:
        return None
    first = shortage.signs[0].text
    return Draft(
        summary=f"Memory is short: {first}, so file data is evicted from the page cache",
        severity=Severity.WARNING,
        level=Level.E0,
        evidence=(*shortage.signs, *_held(case)),
        fires=shortage.is_short,
        fix=_fix(case, shortage),
        hint=_hint(case),
        ruled_out=rivals(case, "memory", "storage") if "data-starvation" in case.holding else (),
        verify="More than 20% of the memory free, fewer than 100 major faults a second",
        chart=("host.cpu_percent", "run.wait_share"),
    )


def _shortage(case: RunCase, limits: Thresholds) -> MemoryShortage | None:
    """What speaks for a shortage; None where there is enough memory, or nothing is known.

    Faults and swapping count only where little is free: a file that is mapped and read for the first time faults as
    well, with all memory in the world.
    """
    host = case.host
    process = case.run.critical.process
    own = process.latest if process else None
    signs: list[Measure] = []
    is_short = is_low = False
    missing = 0
    if host is not None and host.memory_available_share is not None:
        share, total = host.memory_available_share, host.latest.memory_total_bytes
        if share < limits.clear_free_share and (total is None or share * total < PLENTY_BYTES):
            is_low, is_short = True, share < limits.free_share
            missing = round((limits.clear_free_share - share) * total) if total else 0
            signs.append(Measure("memory_available_share", round(share, 4), f"{percent(share)} of the memory is free"))
    if own is not None and own.cgroup_memory_limit_bytes and own.cgroup_memory_used_bytes is not None:
        limit, used = own.cgroup_memory_limit_bytes, own.cgroup_memory_used_bytes
        if used >= limits.clear_used_share * limit:
            is_low, is_short = True, is_short or used > limits.used_share * limit
            missing = max(missing, round(used - limits.clear_used_share * limit))
            text = f"{gibibytes(used)} of the container's {gibibytes(limit)} are used"
            signs.append(Measure("cgroup_memory_share", round(used / limit, 4), text))
    pressure = host.pressure_memory_percent if host else None
    if pressure is not None and pressure >= limits.clear_pressure_percent:
        is_short = is_short or pressure >= limits.pressure_percent
        signs.append(Measure("pressure_memory_percent", round(pressure, 1), f"memory pressure {pressure:.0f}%"))
    if host is not None and is_low:
        faults, swapped = host.major_faults_per_second, host.swap_in_bytes_per_second
        if faults is not None and faults > limits.faults_per_second:
            is_short = True
            signs.append(
                Measure("major_faults_per_second", round(faults), f"{faults:.0f} pages a second are read again")
            )
        if swapped is not None and swapped > SWAP_BYTES_PER_SECOND:
            is_short = True
            text = f"{swapped / 2**20:.1f} MiB a second come back from swap"
            signs.append(Measure("swap_in_bytes_per_second", round(swapped), text))
    return MemoryShortage(tuple(signs), is_short, missing) if signs else None


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
    return f"up to {without(starvation.share):.1f}x, to the extent that the wait is for evicted data"


def _fix(case: RunCase, shortage: MemoryShortage) -> Fix:
    rank = case.run.critical
    loader, growth = rank.train_loader, rank.workers.growth if rank.workers else None
    count = loader.num_workers if loader is not None else None
    missing = shortage.missing_bytes
    more = f"about {gibibytes(missing)} more memory" if missing else "more memory"
    # Of a worker's memory only what is its own comes back with it.
    each = worker_queue_bytes(loader) + (growth.worker_bytes if growth is not None else 0)
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
