"""Workers spend their time waiting for storage or network, not computing.

Means:
    Batches come as slowly as files can be read: many small random reads, a saturated disk, or a network file
    system.
Evidence:
    Workers seen blocked on storage (state D) in 30 % or more of the looks with less than half a core of CPU each,
    and a machine that sees it too: I/O pressure of 20 % or a disk queue above 10.
Fires:
    data-starvation holds and so does that.
Clears:
    I/O pressure below 10 % and workers blocked less than 15 %.
Not when:
    The first epoch still fills the page cache: it may vanish by itself and the text says so. Memory is so short
    that the cache is thrown out: then memory is the cause. I/O wait in percent proves nothing, it is idle CPU.
Fix:
    Read large pieces: shards (WebDataset, streaming) or a local copy on NVMe. More workers help as long as the
    device is not saturated, as they need little CPU; prefetch_factor=4; cache decoded or resized items.
Gain:
    At most 1 / (1 - S). Shards against small files on local disks: 3-10x of the reading.
Verify:
    I/O pressure and blocked workers down, the wait below 6 %.
Source:
    SageMaker debugger's IOBottleneck, node-mixin's disk queue (10), the kernel's PSI notes, WebDataset, CoorDL.
"""

from __future__ import annotations

from gpuwatch.diagnosis.advice.code import loader_fix
from gpuwatch.diagnosis.advice.cost import StepCost, step_cost
from gpuwatch.diagnosis.advice.gains import from_share
from gpuwatch.diagnosis.advice.rivals import is_storage_bound, rivals
from gpuwatch.diagnosis.advice.starvation import starvation_of
from gpuwatch.diagnosis.advice.workers import advise
from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, Severity
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.wording import percent, share_measure

CLEAR_BLOCKED_SHARE = 0.15
CLEAR_PRESSURE_PERCENT = 10.0
PREFETCH = 4
MEMORY_SHORT_SHARE = 0.10
MEMORY_PRESSURE_PERCENT = 10.0


@rule("io-bound", subject="run", level=Level.E1, after=("data-starvation", "slow-samples"))
def io_bound(case: RunCase) -> Draft | None:
    """Fires on a starved run whose workers are blocked on storage."""
    rank, host = case.run.critical, case.host
    workers = rank.workers
    blocked = workers.blocked_share if workers else None
    pressure = host.pressure_io_percent if host else None
    if "data-starvation" not in case.holding or workers is None or blocked is None:
        return None
    if blocked < CLEAR_BLOCKED_SHARE and (pressure or 0.0) < CLEAR_PRESSURE_PERCENT:
        return None
    starvation = starvation_of(case)
    if starvation is None:
        return None
    measures = [share_measure("worker_blocked_share", blocked, "workers blocked on storage")]
    if workers.cpu_cores is not None:
        text = f"a worker uses {workers.cpu_cores:.2f} of a core"
        measures.append(Measure("worker_cpu_cores", round(workers.cpu_cores, 2), text))
    if pressure is not None:
        measures.append(Measure("pressure_io_percent", pressure, f"I/O pressure {pressure:.0f} %"))
    if host is not None and host.disk_queue_length is not None:
        text = f"disk queue {host.disk_queue_length:.1f}"
        measures.append(Measure("disk_queue_length", round(host.disk_queue_length, 1), text))
    return Draft(
        summary=f"Workers wait for storage {percent(blocked)} of their time instead of preparing batches",
        severity=Severity.WARNING,
        level=min(starvation.level, Level.E2),
        evidence=tuple(measures),
        fires=is_storage_bound(case),
        fix=_fix(case, step_cost(case, starvation)),
        gain=from_share(0.0, starvation.share, "as far as storage can deliver more"),
        ruled_out=rivals(case, "storage"),
        verify="I/O pressure below 10 %, workers blocked less than 15 %, the wait below 6 %",
        chart=("host.pressure_io_percent", "run.wait_share"),
    )


def _fix(case: RunCase, cost: StepCost | None) -> Fix:
    loader = case.run.critical.train_loader
    notes = "Read large pieces instead of many small files: shards (WebDataset, streaming), or a copy on a local disk"
    if _first_epoch(case):
        notes += "; this is the first epoch, which still fills the page cache, so it may vanish by itself"
    if _memory_short(case):
        notes += "; memory is short, so the page cache is thrown out again: fewer workers or more memory come first"
        return loader_fix(loader, {"prefetch_factor": "2"}, notes, None)
    if cost is None or loader is None or not loader.num_workers:
        return loader_fix(loader, {"prefetch_factor": str(PREFETCH)}, notes, PREFETCH)
    count = max(loader.num_workers, advise(case, cost).count)
    keywords = {"num_workers": str(count), "prefetch_factor": str(PREFETCH)}
    return loader_fix(loader, keywords, f"{notes}; until then {count} workers with a deeper queue", count)


def _first_epoch(case: RunCase) -> bool:
    epochs = case.run.critical.epochs
    return epochs is not None and epochs.count <= 1


def _memory_short(case: RunCase) -> bool:
    host = case.host
    if host is None:
        return False
    available, pressure = host.memory_available_share, host.pressure_memory_percent
    return (available is not None and available < MEMORY_SHORT_SHARE) or (pressure or 0.0) >= MEMORY_PRESSURE_PERCENT
