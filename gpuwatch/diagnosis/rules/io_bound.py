"""Workers spend their time waiting for storage or network, not computing.

Means:
    Batches come as slowly as files can be read: many small random reads, a saturated disk, or a network file
    system.
Evidence:
    Workers seen blocked on storage (state D) in 30% or more of the samples with less than half a core of CPU each,
    and a machine that sees it too: I/O pressure of 20% or a disk queue above 10. Or stacks: lines that read files
    take 30% or more of the workers' work (without workers: of the waits) while making a batch uses less than half
    a core, so those lines wait; network file systems show neither pressure nor state D.
Fires:
    data-starvation holds and so does the evidence above.
Clears:
    I/O pressure below 10% and workers blocked less than 15%; reading lines below 15%.
Not when:
    The first epoch still fills the page cache: the wait may pass by itself, and the finding says so. Memory is so short
    that the page cache is evicted: then memory is the cause. I/O wait in percent proves nothing, it is idle CPU. All
    cores are busy, a quota stops the run, or workers push each other off their cores: a line that reads may then wait
    for a core. Without the reading the cores would soon be the limit: removing it would bring less than 1.05x.
Causes:
    Many small reads, a device at its throughput, a network file system, or a page cache that memory pressure empties
    (then host-memory-pressure comes before it). A first epoch reads from a cold cache and may pass.
Fix:
    Read large pieces: shards (WebDataset, streaming) or a local copy on NVMe. More workers help as long as the
    device is not saturated, as they need little CPU; prefetch_factor=4; cache decoded or resized items.
Gain:
    From halving the workers' waits for storage to removing them, as far as the cores then carry what they compute, and
    at most 1 / (1 - S). Until every worker has delivered, or without workers, the range begins at nothing. Shards
    against small files on local disks: 3-10x of the reading.
Verify:
    I/O pressure and blocked workers down, the wait below 6%.
Source:
    SageMaker debugger's IOBottleneck, node-mixin's disk queue (10), the kernel's PSI notes, WebDataset, CoorDL.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpuwatch.diagnosis.advice.cost import LEAST_SWITCHING, MOST_CROWDED, SWITCHING, StepCost, step_cost
from gpuwatch.diagnosis.advice.fixes import loader_fix, place_of
from gpuwatch.diagnosis.advice.gains import from_share, middle, without
from gpuwatch.diagnosis.advice.lines import READS, HotLine, hottest, with_interval
from gpuwatch.diagnosis.advice.resources import (
    BLOCKED_SHARE,
    PRESSURE_IO_PERCENT,
    SWITCHES_PER_WORKER,
    THROTTLED_SHARE,
    allowed_cores,
    batch_cpu_share,
    is_cpu_exhausted,
    is_storage_bound,
    line_factor,
    worker_line_factor,
)
from gpuwatch.diagnosis.advice.rivals import rivals
from gpuwatch.diagnosis.advice.sampled import WORKER_SAMPLES, busy_worker_samples, phase_samples, share_of, worker_busy
from gpuwatch.diagnosis.advice.starvation import Starvation, starvation_of
from gpuwatch.diagnosis.advice.workers import advise
from gpuwatch.diagnosis.finding import Draft, Fix, Gain, Level, Measure, Severity, share_measure
from gpuwatch.diagnosis.rule import LIKELY_GAIN, RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import grouped, percent
from gpuwatch.timeline.windows import LineShare, RankWindow, Share

PREFETCH = 4
MEMORY_SHORT_SHARE = 0.10
CROWDED_BLOCKED_SHARE = 0.5
"""Where all cores are busy, storage is the cause only if the workers wait for it this share of their time."""
MEMORY_PRESSURE_PERCENT = 10.0
LEAST_BUSY = 0.05
CAP = "as far as storage can deliver more"

COMPUTING_SHARE = 0.5
"""Items that compute less of their time than this are waiting in the lines where they are seen."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    blocked_share: float = threshold(BLOCKED_SHARE, "of the workers is blocked on storage: reported from here on")
    clear_blocked_share: float = threshold(0.15, "until it is less", bounded_by="blocked_share")
    pressure_percent: float = threshold(PRESSURE_IO_PERCENT, "I/O pressure of the machine, with blocked workers")
    clear_pressure_percent: float = threshold(10.0, "until it is less", bounded_by="pressure_percent")


@rule(
    "io-bound",
    family="data",
    subject="run",
    level=Level.E1,
    behind=("host-memory-pressure",),
    thresholds=Thresholds,
)
def io_bound(case: RunCase, limits: Thresholds) -> Draft | None:
    rank = case.run.critical
    starvation = starvation_of(case)
    if starvation is None:
        return None
    reading = _reading_of(case, on_gpu=starvation.on_gpu)
    blocked = rank.workers.blocked_share if rank.workers else None
    pressure = case.host.pressure_io_percent if case.host else None
    if reading is None and (blocked or 0.0) < CROWDED_BLOCKED_SHARE and is_cpu_exhausted(case):
        return None  # with faster storage the cores would still be full
    is_calm = blocked is None or (
        blocked < limits.clear_blocked_share and (pressure or 0.0) < limits.clear_pressure_percent
    )
    if is_calm and (reading is None or reading.share.value < limits.clear_blocked_share):
        return None
    gain = _gain(case, starvation, reading)
    return Draft(
        summary=_summary(rank, reading),
        severity=Severity.WARNING,
        level=min(starvation.level, Level.E2),
        evidence=_evidence(case, reading),
        fires=middle(gain) >= LIKELY_GAIN
        and (
            is_storage_bound(case, limits.blocked_share, limits.pressure_percent)
            or (reading is not None and reading.share.value >= limits.blocked_share)
        ),
        fix=_fix(case, step_cost(case, starvation), reading),
        gain=gain,
        ruled_out=rivals(case, "storage"),
        verify="I/O pressure below 10%, workers blocked less than 15%, the wait below 6%",
        chart=("host.pressure_io_percent", "run.wait_share"),
    )


def _gain(case: RunCase, starvation: Starvation, reading: _Reading | None) -> Gain:
    """From halving what batches wait for storage to its end, as far as the cores then carry the loading."""
    rank, cost = case.run.critical, step_cost(case, starvation)
    blocked = rank.workers.blocked_share if rank.workers is not None else None
    busy = worker_busy(rank)
    waiting = [blocked / max(busy.value, LEAST_BUSY)] if blocked is not None and busy is not None else []
    waiting += [reading.share.low] if reading is not None else []
    if cost is None or cost.workers < 1 or not waiting:
        return from_share(0.0, min(starvation.share, 1.0 - 1.0 / _carried_by_cores(case)), CAP)
    share = min(1.0, max(waiting))
    halved, without_it = (cost.reading_less(share * part) for part in (0.5, 1.0))
    least = halved.gain(cost.workers).low / (1.0 + SWITCHING * _more_crowded(cost, halved))
    highest = without_it.gain(cost.workers).high / (1.0 + LEAST_SWITCHING * _more_crowded(cost, without_it))
    most = without(starvation.share)
    low, high = (round(min(most, max(1.0, end)), 3) for end in (least, highest))
    return Gain(low, high, CAP)


def _carried_by_cores(case: RunCase) -> float:
    """How many times as fast the cores carry loading that never waits for storage, at most; infinite if not known."""
    rank, cores = case.run.critical, allowed_cores(case)
    used = rank.workers.cpu_cores * rank.workers.count if rank.workers and rank.workers.cpu_cores else 0.0
    if rank.workers is None or used <= 0.0:
        return math.inf
    crowd = min(MOST_CROWDED, max(1.0, rank.workers.count / cores))
    return max(1.0, cores / used / (1.0 + LEAST_SWITCHING * (crowd - 1.0)))


def _more_crowded(now: StepCost, then: StepCost) -> float:
    """How many more times over workers that wait less for storage would fill the cores: that costs their work."""
    before, after = (
        min(MOST_CROWDED, max(1.0, each.workers * each.batch_demand_share / each.allowed_cores)) for each in (now, then)
    )
    return max(0.0, after - before)


def _summary(rank: RankWindow, reading: _Reading | None) -> str:
    blocked = rank.workers.blocked_share if rank.workers else None
    if reading is None or (blocked or 0.0) > reading.share.value:
        return f"Workers wait for storage {percent(blocked or 0.0)} of their time instead of preparing batches"
    share, most = percent(reading.share.value), f"most at {reading.line.place}"
    if reading.in_workers:
        return f"Workers spend {share} of their time in reading files, {most}, and compute little meanwhile"
    return f"Loading spends {share} of its time in reading files, {most}, and computes little meanwhile"


def _evidence(case: RunCase, reading: _Reading | None) -> tuple[Measure, ...]:
    workers, host, measures = case.run.critical.workers, case.host, []
    if reading is not None:
        what = "the workers' work" if reading.in_workers else "the waits"
        text = f"lines that read files take {with_interval(reading.share)} of {what} ({grouped(reading.of)} samples)"
        measures += [
            Measure("reading_share", round(reading.share.value, 4), text),
            reading.line.measure("hot_line", what),
        ]
    if workers is not None and workers.blocked_share is not None:
        measures.append(share_measure("worker_blocked_share", workers.blocked_share, "workers blocked on storage"))
    if workers is not None and workers.cpu_cores is not None:
        text = f"a worker uses {workers.cpu_cores:.2f} of a core"
        measures.append(Measure("worker_cpu_cores", round(workers.cpu_cores, 2), text))
    if host is not None and host.pressure_io_percent is not None:
        pressure = host.pressure_io_percent
        measures.append(Measure("pressure_io_percent", pressure, f"I/O pressure {pressure:.0f}%"))
    if host is not None and host.disk_queue_length is not None:
        text = f"disk queue {host.disk_queue_length:.1f}"
        measures.append(Measure("disk_queue_length", round(host.disk_queue_length, 1), text))
    return tuple(measures)


def _fix(case: RunCase, cost: StepCost | None, reading: _Reading | None) -> Fix:
    loader = case.run.critical.train_loader
    notes = "Read large pieces instead of many small files: shards (WebDataset, streaming), or a copy on a local disk"
    no_workers = loader is not None and loader.num_workers == 0
    if reading is not None:
        notes += f"; the reading is done at {reading.line.words}"
    if _first_epoch(case):
        notes += "; this is the first epoch, which still fills the page cache, so the wait may pass by itself"
    if _memory_short(case):
        notes += "; memory is short, so the page cache is evicted: use fewer workers or more memory first"
        return (
            Fix(notes, None, *place_of(loader))
            if no_workers
            else loader_fix(loader, {"prefetch_factor": "2"}, notes, None)
        )
    if no_workers and cost is None:
        return Fix(notes, None, *place_of(loader))
    if cost is None or loader is None or loader.num_workers is None:
        return loader_fix(loader, {"prefetch_factor": str(PREFETCH)}, notes, PREFETCH)
    count = max(loader.num_workers, advise(case, cost, earlier=case.advised.get("io-bound")).count)
    keywords = {"num_workers": str(count), "prefetch_factor": str(PREFETCH)}
    return loader_fix(
        loader, keywords, f"{notes}; until then {count} worker{'s' if count > 1 else ''} with a deeper queue", count
    )


def _first_epoch(case: RunCase) -> bool:
    epochs = case.run.critical.epochs
    return epochs is not None and epochs.count <= 1


def _memory_short(case: RunCase) -> bool:
    host = case.host
    if host is None:
        return False
    available, pressure = host.memory_available_share, host.pressure_memory_percent
    return (available is not None and available < MEMORY_SHORT_SHARE) or (pressure or 0.0) >= MEMORY_PRESSURE_PERCENT


@dataclass(frozen=True, slots=True)
class _Reading:
    """The lines that read, as a share of the `of` samples of loading, and the first of them."""

    share: Share
    of: int
    line: HotLine
    in_workers: bool


def _reading_of(case: RunCase, *, on_gpu: bool) -> _Reading | None:
    """The share, where stacks tell it and making a batch leaves its core idle; None otherwise."""
    rank = case.run.critical
    stacks, count = rank.stacks, rank.train_loader.num_workers if rank.train_loader else None
    if stacks is None or count is None or _lacks_cores(case, count):
        return None
    computing = batch_cpu_share(rank, count, on_gpu=on_gpu)
    of = busy_worker_samples(stacks) if count else phase_samples(stacks, "wait")
    in_line = max(line_factor(rank), worker_line_factor(rank) if count else 1.0)
    if computing is None or computing * in_line >= COMPUTING_SHARE or of < WORKER_SAMPLES:
        return None
    phases = ("item",) if count else ("wait",)
    lines = [line for line in (stacks.worker_lines if count else stacks.lines) if line.phase in phases and _reads(line)]
    chief = hottest(lines, of, *phases)
    if chief is None:
        return None
    return _Reading(share_of(sum(line.samples for line in lines), of), of, chief, bool(count))


def _lacks_cores(case: RunCase, workers: int) -> bool:
    """Whether a line may wait for a core: all are busy, a quota stops the run, or workers push each other off."""
    process = case.run.critical.process
    throttled = (process.throttled_period_share if process else None) or 0.0
    switches = (process.involuntary_switches_per_second if process else None) or 0.0
    return is_cpu_exhausted(case) or throttled > THROTTLED_SHARE or switches >= SWITCHES_PER_WORKER * max(1, workers)


def _reads(line: LineShare) -> bool:
    return bool(READS.search(f"{line.leaf or ''} {line.text or ''}"))
