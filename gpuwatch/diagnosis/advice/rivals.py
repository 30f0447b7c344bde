"""Competing explanations of a wait for data, each with the number that speaks against it."""

from __future__ import annotations

from collections.abc import Iterator

from gpuwatch.diagnosis.advice.cores import allowed_cores
from gpuwatch.diagnosis.finding import RuledOut
from gpuwatch.diagnosis.rule import RunCase
from gpuwatch.diagnosis.wording import percent

BLOCKED_SHARE = 0.30
PRESSURE_IO_PERCENT = 20.0
QUEUE_LENGTH = 10.0
THROTTLED_SHARE = 0.25
CPU_PERCENT = 90.0
PRESSURE_CPU_PERCENT = 40.0
SWITCHES_PER_WORKER = 200.0
"""Times a second that a worker is put off its core: from here on they compete for it."""
FREE_CORES = 2.0
CALM_THREADS_PER_CORE = 1.2
FREE_MEMORY_SHARE = 0.20
LEAST_PHASE_SHARE = 0.005


def rivals(case: RunCase, *but: str) -> tuple[RuledOut, ...]:
    """What else could make the run wait and does not; unknown numbers rule out nothing."""
    return tuple(rival for rival in _all(case) if rival.cause not in but)


def _all(case: RunCase) -> Iterator[RuledOut]:
    rank, host = case.run.critical, case.host
    workers, process = rank.workers, rank.process
    if workers is not None and workers.blocked_share is not None and workers.blocked_share < BLOCKED_SHARE:
        yield RuledOut("storage", f"workers are blocked on storage {percent(workers.blocked_share)} of the time")
    elif host is not None and host.pressure_io_percent is not None and host.pressure_io_percent < PRESSURE_IO_PERCENT:
        yield RuledOut("storage", f"I/O pressure is {host.pressure_io_percent:.0f} %")
    if host is not None and host.cpu_percent is not None and host.cpu_percent < CPU_PERCENT:
        yield RuledOut("cpu", f"the machine's cores are {host.cpu_percent:.0f} % busy")
    throttled = process.throttled_period_share if process is not None else None
    if throttled is not None and throttled <= THROTTLED_SHARE:
        yield RuledOut("quota", f"the CPU quota held it back in {percent(throttled)} of its periods")
    yield from _of_workers(case)
    free = host.memory_available_share if host is not None else None
    if free is not None and free >= FREE_MEMORY_SHARE:
        yield RuledOut("memory", f"{percent(free)} of the memory is free")
    if rank.copy_share is not None and rank.copy_share < 0.05 and rank.facts.device != "cpu":
        yield RuledOut("transfer", f"copies to the GPU take {percent(rank.copy_share)}")
    for kind, total in sorted(rank.phases.items()):
        if kind in ("eval", "checkpoint", "gc") and total.share >= LEAST_PHASE_SHARE:
            yield RuledOut(kind, f"its {percent(total.share)} of the time is not counted as waiting")


def _of_workers(case: RunCase) -> Iterator[RuledOut]:
    """What the workers do to each other."""
    workers, cores = case.run.critical.workers, allowed_cores(case)
    if workers is None:
        return
    if workers.active_threads is not None and workers.active_threads < CALM_THREADS_PER_CORE * cores:
        count = workers.active_threads
        threads = "1 thread of the workers is" if count == 1 else f"{count} threads of the workers are"
        yield RuledOut("threads", f"{threads} at work on {cores:g} core{'' if cores == 1 else 's'}")
    if workers.cores_seen is not None and workers.cores_seen >= workers.count > 1:
        yield RuledOut("pinned workers", f"the {workers.count} workers were seen on {workers.cores_seen} cores")


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


def free_cores(case: RunCase) -> float | None:
    """Cores of the run's share that nothing uses; None where that is not known."""
    host, machine = case.host, case.machine
    process = case.run.critical.process
    if host is None or host.cpu_percent is None or machine is None:
        return None
    idle = (1.0 - host.cpu_percent / 100.0) * machine.cpu_count
    capacity = process.latest.cpu_capacity_cores if process else None
    own = [rank.process.tree_cores for rank in case.run.ranks if rank.process and rank.process.tree_cores is not None]
    return idle if capacity is None or not own else max(0.0, min(idle, capacity - sum(own)))
