"""What a run may use of its machine (cores, shared memory, storage), what others take of it, and what is short."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.advice.sampled import WORKER_SAMPLES, busy_worker_samples, is_sampled
from gpuwatch.diagnosis.finding import Measure
from gpuwatch.diagnosis.rule import RunCase
from gpuwatch.numbers import cpu_cores
from gpuwatch.samples import LoaderFacts
from gpuwatch.timeline.stacks import is_fed, making_threads
from gpuwatch.timeline.windows import HostWindow, RankWindow, StackWindow

FOREIGN_SHARE = 0.30
LEAST_THREADS = 1.5

USUAL_PREFETCH = 2

BLOCKED_SHARE = 0.30
PRESSURE_IO_PERCENT = 20.0
QUEUE_LENGTH = 10.0
CPU_PERCENT = 90.0
PRESSURE_CPU_PERCENT = 40.0
THROTTLED_SHARE = 0.25
SWITCHES_PER_WORKER = 200.0
"""Times a second that a worker is put off its core: from here on they compete for it."""
SHM_SHARE = 0.8


def allowed_cores(case: RunCase) -> float:
    """min(affinity, tightest quota) over the ranks that share it."""
    rank = case.run.critical
    latest = rank.process.latest if rank.process else None
    cores = latest.cpu_capacity_cores if latest else None
    if cores is None:
        cores = rank.facts.cpu_affinity or (case.machine.cpu_count if case.machine else None)
    return max(1.0, float(cores or 1.0) / local_ranks(rank))


def cores_limit(case: RunCase) -> str | None:
    """What limits them to that number, in words: a CPU quota, the affinity, other ranks; None where they are all."""
    rank = case.run.critical
    latest, ranks = rank.process.latest if rank.process else None, local_ranks(rank)
    quota, affinity = (latest.cpu_quota_cores, latest.affinity_cores) if latest else (None, None)
    count = case.machine.cpu_count if case.machine else None
    found = []
    if quota is not None and (affinity is None or quota < affinity):
        found.append(f"a CPU quota allows {cpu_cores(quota)}")
    elif affinity is not None and count is not None and affinity < count:
        found.append(f"the affinity allows {affinity} of {count}")
    if ranks > 1:
        found.append(f"{ranks} ranks share {'them' if found else cpu_cores(round(allowed_cores(case) * ranks, 2))}")
    return " and ".join(found) or None


def affinity_cores(case: RunCase) -> int | None:
    """The cores that PyTorch compares a number of workers with: the affinity, whatever ranks and quotas divide it."""
    rank = case.run.critical
    latest = rank.process.latest if rank.process else None
    known = latest.affinity_cores if latest else None
    return known or rank.facts.cpu_affinity or (case.machine.cpu_count if case.machine else None)


def foreign_cores(case: RunCase) -> float | None:
    """Cores that processes outside this run keep busy; None where that is not known."""
    if case.host is None or case.host.cpu_percent is None or case.machine is None:
        return None
    busy = case.host.cpu_percent / 100.0 * case.machine.cpu_count
    own = [rank.process.tree_cores for rank in case.run.ranks if rank.process is not None]
    if not own or None in own:
        return None
    foreign = max(0.0, busy - sum(cores for cores in own if cores is not None))
    # Others spread over all cores; of a part of them they take a part.
    return foreign * min(1.0, allowed_cores(case) / case.machine.cpu_count)


def cores_left(case: RunCase) -> float:
    """What other processes leave this rank of what it may use.

    A CPU quota is no set of cores: of a quota of 23 on 32 cores, 13 of which others keep busy, 19 are left, not 13.
    """
    allowed, foreign = allowed_cores(case), foreign_cores(case)
    if foreign is None or case.machine is None:
        return allowed
    count, ranks = float(case.machine.cpu_count), local_ranks(case.run.critical)
    share = min(1.0, allowed / count)
    within = max(allowed, min(count, float(affinity_cores(case) or count)) / ranks)
    return min(allowed, within - foreign / share * within / count)


def is_shared(case: RunCase) -> bool:
    """Whether other processes are known to keep so much of this run's cores busy that its pace is not its own."""
    foreign = foreign_cores(case)
    return foreign is not None and foreign >= FOREIGN_SHARE * allowed_cores(case)


def crowd_measures(host: HostWindow) -> tuple[Measure, ...]:
    """How full the machine's cores are, as evidence: what of it is known."""
    measures = []
    if host.pressure_cpu_percent is not None:
        pressure = host.pressure_cpu_percent
        measures.append(Measure("pressure_cpu_percent", round(pressure, 1), f"CPU pressure {pressure:.0f}%"))
    if host.cpu_percent is not None:
        cpu = host.cpu_percent
        measures.append(Measure("cpu_percent", round(cpu, 1), f"the machine's CPU is {cpu:.0f}% busy"))
    return tuple(measures)


def foreign_measures(case: RunCase) -> tuple[Measure, ...]:
    """What other processes take of the cores, as evidence: nothing where it is not known."""
    foreign = foreign_cores(case)
    if foreign is None:
        return ()
    words = f"other processes use {foreign:.1f} of {allowed_cores(case):g} cores"
    return (Measure("foreign_cores", round(foreign, 1), words),)


def batch_demand_share(rank: RankWindow, workers: int, cpu_share: float) -> float:
    """What part of making a batch needs a core, whether it gets one or not: 0..1.

    On a full machine a thread that computes looks like one that waits for storage: it is put off its core. What it was
    kept waiting for a core belongs to its computing. Eight workers that compute, on two cores that others use too,
    got 0.08 of a core each.
    """
    return min(1.0, cpu_share * (worker_line_factor(rank) if workers else line_factor(rank)))


def batch_threads(rank: RankWindow, workers: int, cpu_share: float) -> float:
    """How many threads of a worker compute for each batch: its process' CPU time over that of the thread that makes it.

    Libraries start threads of their own, whose work the cores have to carry too. 1 where that is not known, or where
    the two differ by what a second of /proc is off.
    """
    totals = rank.workers
    if not workers or totals is None or totals.cpu_cores is None or not totals.busy_share or is_sampled(rank):
        return 1.0
    found = totals.cpu_cores / max(totals.busy_share * cpu_share, 0.01)
    return found if found >= LEAST_THREADS and totals.cpu_cores >= 1.0 else 1.0


def line_factor(rank: RankWindow) -> float:
    """Seconds that the main thread wants a core for each one it gets; 1 where that is not known."""
    process = rank.process
    if process is None or process.run_delay_share is None or not process.main_thread_cores:
        return 1.0
    return 1.0 + process.run_delay_share / process.main_thread_cores


def worker_line_factor(rank: RankWindow) -> float:
    """The same of a worker."""
    totals = rank.workers
    if totals is None or totals.run_delay_share is None or not totals.cpu_cores:
        return 1.0
    return 1.0 + totals.run_delay_share / totals.cpu_cores


def batch_cpu_share(rank: RankWindow, workers: int, *, on_gpu: bool) -> float | None:
    """CPU seconds per second of making a batch, 0..1; None where neither workers nor samples show it."""
    if workers == 0:
        if rank.stacks is not None and is_fed(rank.stacks):
            return _thread_cpu_share(rank, rank.stacks)
        if rank.wait_cpu_share is not None:
            return min(1.0, max(0.0, rank.wait_cpu_share))
        main = rank.process.main_thread_cores if rank.process else None
        wait = rank.wait_share
        if main is None or not wait:
            return None
        # A computation on the CPU keeps its thread busy; launching GPU work may not, so this is an upper bound there.
        computing = 0.0 if on_gpu else 1.0 - wait
        return min(1.0, max(0.0, main - computing) / wait)
    totals = rank.workers
    if totals is None:
        return None
    if totals.batch_seconds and totals.batch_cpu_seconds is not None:
        return min(1.0, totals.batch_cpu_seconds / totals.batch_seconds)
    if totals.cpu_cores is None:
        return None
    busy = totals.busy_share if totals.busy_share is not None else _seen_busy(rank)
    return min(1.0, totals.cpu_cores / max(busy or 1.0, 0.05))


def _thread_cpu_share(rank: RankWindow, stacks: StackWindow) -> float | None:
    """CPU seconds per second of a thread that makes batches, at most: what the process uses without its main thread."""
    process = rank.process
    if process is None or process.tree_cores is None or process.main_thread_cores is None:
        return None
    return min(1.0, max(0.0, process.tree_cores - process.main_thread_cores) / making_threads(stacks))


def worker_cores(rank: RankWindow) -> float | None:
    """Cores that a worker of the training loader uses; from outside, idle ones of an evaluation loader are no part."""
    totals, count = rank.workers, rank.train_loader.num_workers if rank.train_loader else None
    if totals is None or totals.cpu_cores is None or not count or not is_sampled(rank):
        return totals.cpu_cores if totals else None
    return totals.cpu_cores * max(1.0, totals.count / count)


def _seen_busy(rank: RankWindow) -> float | None:
    """What part of their time all workers that were sampled were busy, as /proc's mean is over all of them."""
    stacks = rank.stacks
    if stacks is None or stacks.worker_samples < WORKER_SAMPLES:
        return None
    return busy_worker_samples(stacks) / stacks.worker_samples


@dataclass(frozen=True, slots=True)
class ShmMount:
    """Its size, and what all processes use of it."""

    total_bytes: int
    used_bytes: int

    @property
    def used_share(self) -> float:
        """0..1."""
        return self.used_bytes / self.total_bytes


def shm_mount(case: RunCase) -> ShmMount | None:
    """The run's own mount, which a container has; else the machine's. None where its use is not known."""
    process = case.run.critical.process
    for source in (process.latest if process else None, case.host.latest if case.host else None):
        if source is not None and source.shm_total_bytes and source.shm_used_bytes is not None:
            return ShmMount(source.shm_total_bytes, source.shm_used_bytes)
    return None


def local_ranks(rank: RankWindow) -> int:
    """The ranks on this machine, which share its cores, its memory and the mount."""
    return max(1, rank.facts.local_world_size or 1)


def queued_bytes(rank: RankWindow) -> int:
    """What full queues of all its loaders with workers hold; 0 where no batch's size is known."""
    loaders = (*((rank.train_loader,) if rank.train_loader else ()), *rank.eval_loaders)
    return local_ranks(rank) * sum((loader.num_workers or 0) * worker_queue_bytes(loader) for loader in loaders)


def worker_queue_bytes(loader: LoaderFacts | None) -> int:
    """What the full queue of one worker holds; 0 where the size of a batch is not known."""
    if loader is None or loader.batch_bytes is None:
        return 0
    return (loader.prefetch_factor or USUAL_PREFETCH) * loader.batch_bytes


def is_storage_bound(
    case: RunCase, blocked_share: float = BLOCKED_SHARE, pressure_percent: float = PRESSURE_IO_PERCENT
) -> bool:
    """Whether workers are mostly blocked on storage that the machine too sees as slow."""
    workers, host = case.run.critical.workers, case.host
    if workers is None or workers.blocked_share is None or workers.blocked_share < blocked_share:
        return False
    if workers.cpu_cores is not None and workers.cpu_cores >= 0.5:
        return False
    pressure = host.pressure_io_percent if host else None
    queue = host.disk_queue_length if host else None
    return (pressure or 0.0) >= pressure_percent or (queue or 0.0) > QUEUE_LENGTH


def is_cpu_exhausted(
    case: RunCase, cpu_percent: float = CPU_PERCENT, pressure_percent: float = PRESSURE_CPU_PERCENT
) -> bool:
    """Whether the cores that the run may use are all busy."""
    host = case.host
    if host is None:
        return False
    return (host.cpu_percent or 0.0) >= cpu_percent or (host.pressure_cpu_percent or 0.0) >= pressure_percent


def used_cores(case: RunCase) -> float | None:
    """Cores that the processes of the run keep busy; None where none was read."""
    own = [rank.process.tree_cores for rank in case.run.ranks if rank.process and rank.process.tree_cores is not None]
    return sum(own) if own else None


def free_cores(case: RunCase) -> float | None:
    """Cores of the run's share that nothing uses; None where that is not known."""
    host, machine = case.host, case.machine
    process = case.run.critical.process
    if host is None or host.cpu_percent is None or machine is None:
        return None
    idle = (1.0 - host.cpu_percent / 100.0) * machine.cpu_count
    capacity = process.latest.cpu_capacity_cores if process else None
    used = used_cores(case)
    return idle if capacity is None or used is None else max(0.0, min(idle, capacity - used))
