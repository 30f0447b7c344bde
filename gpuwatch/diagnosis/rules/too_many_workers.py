"""There are more loader workers (times ranks) than CPU cores can run.

Means:
    Workers take the cores from each other and from the training thread; each rank often chooses its number as if it
    owned the machine.
Evidence:
    Workers of all ranks on this machine above 1.2 times the cores they may use, and a sign that it hurts: tasks
    waiting for a core (PSI 20% or more), 200 forced switches per worker and second, or 5% lost to waits for data.
Fires:
    Both hold, and fewer workers make batches 1.2 times as fast (the middle of what is possible), judged over at least
    three batches of each worker. Information, because fewer may bring nothing; a warning where no wait is measured.
Clears:
    No more workers than cores, or fewer are not even 1.1 times as fast.
Not when:
    The cores are busy with batches that no other number of workers would make faster: host-cpu-exhausted. Or workers
    mostly wait for storage (less than 0.3 core each): 28 of them on 64 cores, or on 8, are then healthy.
Causes:
    A number chosen for the whole machine and taken once per rank; or one from a machine with more cores.
Fix:
    num_workers = cores / ranks on this machine, less one for the training thread from four cores on.
Gain:
    The cores that fewer workers get next to the training thread and other programs, which share what they leave, over
    those that loading uses now, times up to 1.37 for two workers per core, 1.74 for three, 2.11 for four or more. On 2
    cores a step took 140 ms with 2 workers, 176 with 3, 218 with 4 and 234 with 8; in another measurement 2, 4, 8 and
    16 workers made 58, 59, 58 and 60 batches a second, which is why the range begins at 1.0.
Verify:
    CPU pressure and waits fall, samples per second rise.
Source:
    PyTorch's own warning (#46867) knows affinity but no CPU quota; Lightning's formula; measured as above.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.advice.cost import MOST_CROWDED, SWITCHING, step_cost
from gpuwatch.diagnosis.advice.fixes import loader_fix
from gpuwatch.diagnosis.advice.gains import from_share, middle, without
from gpuwatch.diagnosis.advice.resources import (
    SWITCHES_PER_WORKER,
    allowed_cores,
    foreign_cores,
    line_factor,
    local_ranks,
    worker_line_factor,
)
from gpuwatch.diagnosis.advice.rivals import rivals
from gpuwatch.diagnosis.advice.starvation import Starvation, starvation_of
from gpuwatch.diagnosis.advice.workers import filling_workers
from gpuwatch.diagnosis.finding import Draft, Gain, Level, Measure, Severity, share_measure
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import cpu_cores
from gpuwatch.timeline.windows import WorkerTotals

SLEEPING_CORES = 0.3
ROUNDS = 3
"""Batches of each worker in the window, at least: they come in bursts, and one burst says little about the pace."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    workers_per_core: float = threshold(1.2, "reported above this")
    pressure_percent: float = threshold(20.0, "CPU pressure that counts as a sign")
    lost_share: float = threshold(0.05, "of the time lost to waits that counts as a sign")
    least_gain: float = threshold(
        1.2, "speed-up of loading with fewer workers (middle of the range): reported from here on", least=1.0
    )
    clear_gain: float = threshold(1.1, "until it is less", bounded_by="least_gain", least=1.0)


@rule("too-many-workers", family="data", subject="run", level=Level.E1, thresholds=Thresholds)
def too_many_workers(case: RunCase, limits: Thresholds) -> Draft | None:
    rank = case.run.critical
    loader, workers = rank.train_loader, rank.workers
    if loader is None or not loader.num_workers:
        return None
    if workers is None or workers.cpu_cores is None:
        return None
    ranks_here = local_ranks(rank)
    cores = allowed_cores(case)
    busy_cores = workers.cpu_cores * loader.num_workers
    # Starved of cores, a worker gets less than it wants: what all of them get together tells sleepers from sufferers.
    wanted_cores = workers.cpu_cores * worker_line_factor(rank)
    sleeping = wanted_cores < SLEEPING_CORES and busy_cores < 0.7 * cores
    if loader.num_workers <= cores or sleeping:
        return None
    starvation = starvation_of(case)
    advised = filling_workers(cores)
    faster = _faster_loading(case, starvation, advised)
    if starvation is not None and (faster is None or middle(faster) < limits.clear_gain):
        return None
    is_attached = starvation is not None and starvation.wait is not None  # then no single steps are known
    rounds = ROUNDS if is_attached else rank.steps / loader.num_workers
    signs = _signs(case, starvation, loader.num_workers, limits)
    total = loader.num_workers * ranks_here
    ranks = f" in {ranks_here} ranks" if ranks_here > 1 else ""
    gain = None if starvation is None or faster is None else _up_to(without(starvation.share), faster)
    return Draft(
        summary=f"{total} loader workers{ranks} share {cpu_cores(cores * ranks_here)}",
        severity=Severity.WARNING if gain is None else Severity.INFO,
        level=Level.E1 if starvation is None else min(starvation.level, Level.E2),
        evidence=(
            Measure("num_workers", loader.num_workers, f"num_workers={loader.num_workers}{ranks}"),
            Measure("cpu_cores", cores, f"{cpu_cores(cores)} per rank"),
            Measure(
                "worker_cpu_cores", round(workers.cpu_cores, 2), f"a worker gets {workers.cpu_cores:.2f} of a core"
            ),
            *_in_line(workers),
            *signs,
        ),
        fires=loader.num_workers > limits.workers_per_core * cores
        and bool(signs)
        and rounds >= ROUNDS
        and (faster is None or middle(faster) >= limits.least_gain),
        fix=loader_fix(
            loader,
            {"num_workers": str(advised)},
            f"Lower num_workers from {loader.num_workers} to {advised}: {cores:g} cores per rank run no more at a time",
            advised,
        ),
        gain=gain,
        hint=None if starvation is not None else "not measured: the waits of this run are not known",
        ruled_out=rivals(case, "cpu"),
        verify="CPU pressure and waits down, samples per second up",
        chart=("host.cpu_percent", "run.wait_share"),
    )


def _in_line(workers: WorkerTotals) -> tuple[Measure, ...]:
    if workers.run_delay_share is None:
        return ()
    return (share_measure("worker_run_delay_share", workers.run_delay_share, "workers waiting for a core"),)


def _signs(case: RunCase, starvation: Starvation | None, count: int, limits: Thresholds) -> tuple[Measure, ...]:
    """What shows that the crowd hurts."""
    found = []
    pressure = case.host.pressure_cpu_percent if case.host else None
    if pressure is not None and pressure >= limits.pressure_percent:
        found.append(Measure("pressure_cpu_percent", pressure, f"tasks wait for a core {pressure:.0f}% of the time"))
    process = case.run.critical.process
    switches = process.involuntary_switches_per_second if process else None
    if switches is not None and switches / count >= SWITCHES_PER_WORKER:
        each = switches / count
        found.append(
            Measure("involuntary_switches_per_second", round(each), f"{each:.0f} forced switches per worker and second")
        )
    if starvation is not None and starvation.share >= limits.lost_share:
        text = f"{starvation.share * 100:.0f}% lost to waits for data"
        found.append(Measure("starvation_share", round(starvation.share, 4), text))
    return tuple(found)


def _faster_loading(case: RunCase, starvation: Starvation | None, advised: int) -> Gain | None:
    """How many times as fast batches come with the advised number of workers; None where their cost is not known."""
    cost = step_cost(case, starvation) if starvation is not None else None
    if starvation is None or cost is None:
        return None
    totals = case.run.critical.workers
    if not cost.batch_cpu_known or totals is None:
        return from_share(0.0, starvation.share)
    # Wall seconds of a worker on a core of its own shrink to its CPU seconds, and those to what they are uncrowded.
    others = _others(case)
    by_kernel = (totals.cpu_cores or 0.0) * cost.workers  # which counts what no batch tells: forks, pickling, polling
    now = min(cost.allowed_cores, max(by_kernel, cost.batch_cpu_seconds / cost.period_seconds))
    alone = advised * cost.uncrowded().batch_cpu_share
    then = min(alone, cost.allowed_cores * advised / (advised + others))
    before, after = (max(1.0, (count + others) / cost.allowed_cores) for count in (cost.workers, advised))
    crowding = min(before, MOST_CROWDED) - min(after, MOST_CROWDED)
    low = then / max(now, 1e-9)
    return Gain(round(low, 3), round(low * (1.0 + SWITCHING * max(0.0, crowding)), 3), cost.bound(advised))


def _others(case: RunCase) -> float:
    """Threads other than the workers' that want a core of this rank: its training thread, and those of other programs.

    The scheduler divides full cores among all that want one, so what fewer workers leave is not theirs alone: in a
    simulated job of 4 workers next to other programs on 2 cores, 2 of them made it 0.86 times as fast.
    """
    rank = case.run.critical
    in_line = max(line_factor(rank), worker_line_factor(rank))
    main = rank.process.main_thread_cores if rank.process is not None else None
    training = 1.0 if main is None else min(1.0, main * in_line)
    return training + (foreign_cores(case) or 0.0) * in_line


def _up_to(most: float, faster: Gain) -> Gain:
    low, high = (min(max(1.0, factor), round(most, 3)) for factor in (faster.low, faster.high))
    return Gain(low, high, faster.cap)
