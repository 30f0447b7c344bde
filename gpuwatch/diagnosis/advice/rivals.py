"""Competing explanations of a wait for data, or of a GPU that idles, each with the number that speaks against it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuwatch.diagnosis.advice.resources import (
    BLOCKED_SHARE,
    CPU_PERCENT,
    PRESSURE_IO_PERCENT,
    THROTTLED_SHARE,
    allowed_cores,
)
from gpuwatch.diagnosis.finding import RuledOut
from gpuwatch.diagnosis.rule import GpuCase, RunCase
from gpuwatch.numbers import listed, percent
from gpuwatch.timeline.windows import GpuWindow, RankWindow, RunWindow

CALM_THREADS_PER_CORE = 1.2
FREE_MEMORY_SHARE = 0.20
LEAST_PHASE_SHARE = 0.005

LEAST_SHARE = 0.05
"""A phase, copies, or clocks that are held back count from here on, as their own rules have it."""
WAIT_SHARE = 0.10
THREAD_CORES = 0.85
CAUSE_OF = {
    "data-starvation": "waiting for data",
    "epoch-start-stall": "waiting for data",
    "eval-stall": "phases",
    "checkpoint-stall": "phases",
    "log-stall": "phases",
    "gc-stall": "phases",
    "pageable-transfer": "transfer",
    "h2d-bound": "transfer",
    "launch-bound": "launches",
    "shared-gpu": "another process",
    "thermal-throttle": "heat and power",
    "power-capped": "heat and power",
    "hw-slowdown": "heat and power",
    "xid-error": "hardware errors",
    "ecc-or-remap": "hardware errors",
}
"""By rule, the explanation that is not ruled out while it holds."""
PHASES = {"eval": "evaluation", "checkpoint": "checkpoints", "log": "logging", "gc": "garbage collection"}


def rivals(case: RunCase, *but: str) -> tuple[RuledOut, ...]:
    """What else could make the run wait and does not; unknown numbers rule out nothing."""
    return tuple(rival for rival in _of_waits(case) if rival.cause not in but)


def _of_waits(case: RunCase) -> Iterator[RuledOut]:
    rank, host = case.run.critical, case.host
    workers, process = rank.workers, rank.process
    if workers is not None and workers.blocked_share is not None and workers.blocked_share < BLOCKED_SHARE:
        yield RuledOut("storage", f"workers are blocked on storage {percent(workers.blocked_share)} of the time")
    elif host is not None and host.pressure_io_percent is not None and host.pressure_io_percent < PRESSURE_IO_PERCENT:
        yield RuledOut("storage", f"I/O pressure is {host.pressure_io_percent:.0f}%")
    if host is not None and host.cpu_percent is not None and host.cpu_percent < CPU_PERCENT:
        yield RuledOut("cpu", f"the machine's cores are {host.cpu_percent:.0f}% busy")
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


def idle_rivals(case: RunCase | GpuCase, *but: str) -> tuple[RuledOut, ...]:
    """What else could make the GPUs idle and does not; unknown numbers and rules that hold rule out nothing."""
    gpus = case.gpus if isinstance(case, RunCase) else (case.gpu,)
    found = [*(_of_rank(case.run.critical) if case.run is not None else ()), *_of_gpus(case.run, gpus)]
    explained = {cause for rule, cause in CAUSE_OF.items() if rule in case.holding}
    return tuple(rival for rival in found if rival.cause not in but and rival.cause not in explained)


def _of_rank(rank: RankWindow) -> Iterator[RuledOut]:
    idle = rank.gap_share if rank.gap_share is not None else rank.settled_wait_share
    if idle is not None and idle < WAIT_SHARE:
        yield RuledOut("waiting for data", f"it takes {percent(idle)} of the training time")
    known = {kind: total.share for kind, total in rank.phases.items() if kind in PHASES}
    if known and max(known.values()) < LEAST_SHARE:
        said = listed(f"{PHASES[kind]} {percent(share)}" for kind, share in known.items())
        yield RuledOut("phases", f"of the time {said}")
    if rank.copy_share is not None and rank.copy_share < LEAST_SHARE and rank.facts.device != "cpu":
        yield RuledOut("transfer", f"copies to the GPU take {percent(rank.copy_share)}")
    cores = rank.process.main_thread_cores if rank.process is not None else None
    if cores is not None and cores < THREAD_CORES:
        yield RuledOut("launches", f"the training thread keeps {cores:.1f} of a core busy")


def _of_gpus(run: RunWindow | None, gpus: Sequence[GpuWindow]) -> Iterator[RuledOut]:
    if gpus and all(_is_own(run, gpu) for gpu in gpus):
        yield RuledOut("another process", "no other process computes on this GPU")
    held = [max(gpu.throttle_shares.values()) for gpu in gpus if gpu.throttle_shares]
    if gpus and len(held) == len(gpus) and max(held) < LEAST_SHARE:
        yield RuledOut("heat and power", f"they hold the clocks back {percent(max(held))} of the time")
    errors = [gpu.latest_health.ecc_uncorrected_volatile if gpu.latest_health is not None else None for gpu in gpus]
    if gpus and all(count == 0 for count in errors) and not any(gpu.xids for gpu in gpus):
        yield RuledOut("hardware errors", "the driver counts no uncorrected memory error and reported no XID")


def _is_own(run: RunWindow | None, gpu: GpuWindow) -> bool:
    """Whether the list of processes is known, and holds none but the run's."""
    processes = gpu.latest_status.processes if gpu.latest_status is not None else None
    if run is None or not processes:
        return False
    own = {rank.facts.pid for rank in run.ranks}
    return all(process.pid in own for process in processes)
