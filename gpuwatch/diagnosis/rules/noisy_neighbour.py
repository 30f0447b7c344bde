"""The CPU is so busy that the training thread cannot launch GPU work on time.

Means:
    The GPU is fast enough and the data is there, but the thread that starts its kernels waits for a core:
    behind this run's own workers, or behind other programs.
Evidence:
    GPU idle in training that no wait for data explains (1 - utilization - S), pressure on the cores (PSI, or the
    machine's CPU), and the time in which the training thread could run and did not (the scheduler's own account).
Fires:
    10% idle inside steps, tasks waiting for a core 20% of the time or the CPU at 80%, and a training thread that
    waits for a core 5% of the time.
Clears:
    CPU pressure below 10%, or less than 5% idle inside steps.
Not when:
    The cores are calm: then kernels are too small (launch-bound). A CPU quota stops the group: the time for which it is
    stopped counts as waiting for a core too, so the rule is silent once a tenth of the periods are throttled. The run
    waits for batches from the very workers that take its core: with less CPU time they would be even slower.
Causes:
    Foreign processes, where they use 30% of the cores or more; else this run's own workers.
Fix:
    Foreign work: off this run's cores (taskset, cgroup). Own workers: fewer where fewer keep up, and a lower priority
    for them (os.nice(10) in worker_init_fn).
Gain:
    Behind other programs: from the time spent waiting for a core to the idle time inside steps, and to the waits for
    data where the workers are slowed down at least as much as the training thread. Behind its own workers: at most the
    time spent waiting for a core, and no more than their loading permits: nothing in three of four simulated jobs, so
    no warning.
Verify:
    The training thread waits for a core less than 5% of the time, utilization up.
Source:
    SPDL's noisy-neighbour guide (keep the host's CPU below 40%); in simulation all 29 of 146 starved-looking jobs
    that no wait for data explained were of this kind.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.advice.cost import alone, step_cost
from gpuwatch.diagnosis.advice.fixes import loader_fix, worker_init_fix
from gpuwatch.diagnosis.advice.gains import from_share, within_loader
from gpuwatch.diagnosis.advice.resources import (
    allowed_cores,
    crowd_measures,
    foreign_cores,
    foreign_measures,
    is_shared,
)
from gpuwatch.diagnosis.advice.rivals import rivals
from gpuwatch.diagnosis.advice.sampled import trains_on
from gpuwatch.diagnosis.advice.starvation import (
    Starvation,
    idle_outside_waits,
    idle_range,
    starvation_of,
    train_busy_percent,
)
from gpuwatch.diagnosis.advice.workers import advise
from gpuwatch.diagnosis.finding import Draft, Fix, Gain, Level, Measure, RuledOut, Severity, share_measure
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import cpu_cores, percent

THROTTLED_SHARE = 0.10
FUNCTION = "yield_to_training"


@dataclass(frozen=True, slots=True)
class Thresholds:
    fire_share: float = threshold(0.10, "of the time the GPU idles within steps: reported from here on")
    clear_share: float = threshold(0.05, "until it idles less", bounded_by="fire_share")
    pressure_percent: float = threshold(20.0, "CPU pressure of a crowded machine")
    clear_pressure_percent: float = threshold(10.0, "until it is less", bounded_by="pressure_percent")
    cpu_percent: float = threshold(80.0, "busy cores of a crowded machine")
    in_line_share: float = threshold(0.05, "of its time that the launching thread waits for a core, at least")


@rule(
    "noisy-neighbour",
    family="host",
    subject="run",
    level=Level.E1,
    after=("data-starvation", "cpu-quota-throttled"),
    behind=("data-starvation",),
    needs_gpu=True,
    fades=True,
    thresholds=Thresholds,
)
def noisy_neighbour(case: RunCase, limits: Thresholds) -> Draft | None:
    process, starvation, busy = case.run.critical.process, starvation_of(case), train_busy_percent(case)
    if trains_on(case) != "cuda" or process is None or starvation is None or busy is None or case.host is None:
        return None
    in_line, throttled = process.run_delay_share, process.throttled_period_share
    if in_line is None or "cpu-quota-throttled" in case.holding or (throttled or 0.0) >= THROTTLED_SHARE:
        return None
    if "data-starvation" in case.holding and not is_shared(case):
        return None  # the run waits for these workers: with less CPU time they would be slower still
    idle = idle_outside_waits(case.run.critical, starvation, busy)
    pressure, cpu = case.host.pressure_cpu_percent, case.host.cpu_percent
    is_calm = (pressure or 0.0) < limits.clear_pressure_percent and (cpu or 0.0) < limits.cpu_percent
    if idle < limits.clear_share or is_calm:
        return None
    crowded = (pressure or 0.0) >= limits.pressure_percent or (cpu or 0.0) >= limits.cpu_percent
    return Draft(
        summary=(
            f"The GPU idles {percent(idle)} of the time inside steps: the training thread waits for a core "
            f"{percent(in_line)} of the time, {_behind_whom(case)}"
        ),
        severity=Severity.WARNING if is_shared(case) else Severity.INFO,
        level=min(starvation.level, Level.E2),
        evidence=(
            share_measure("in_step_idle_share", idle, "GPU idle inside steps"),
            share_measure("run_delay_share", in_line, "the training thread could run and did not"),
            *crowd_measures(case.host),
            *foreign_measures(case),
            Measure("utilization_percent", round(busy, 1), f"GPU {busy:.0f}% busy in training"),
        ),
        fires=idle >= limits.fire_share and crowded and in_line >= limits.in_line_share,
        fix=_fix(case, starvation),
        gain=_gain(case, starvation, in_line, idle),
        ruled_out=(
            RuledOut("waiting for data", f"that explains {percent(starvation.share)}"),
            RuledOut("small kernels", "the training thread does not get to launch them"),
            *rivals(case, "storage", "cpu"),
        ),
        verify="The training thread waits for a core less than 5% of the time, utilization and samples per second up",
        chart=("gpu.utilization_percent", "host.cpu_percent"),
    )


def _gain(case: RunCase, starvation: Starvation, in_line: float, idle: float) -> Gain:
    """Without other programs, at least the time waiting for a core; ahead of its own workers, at most that time."""
    cap = "when the training thread always gets a core"
    least, most = idle_range(case, starvation) or (idle, idle)
    if is_shared(case):
        return alone(case, starvation, (min(in_line, least), most), cap)
    return within_loader(case, from_share(0.0, min(in_line, most), cap), alone=True)


def _behind_whom(case: RunCase) -> str:
    if is_shared(case):
        return "behind other programs"
    workers = case.run.critical.workers
    is_own = workers is not None and workers.count and foreign_cores(case) is not None
    return "behind its own workers" if is_own else "behind other threads"


def _fix(case: RunCase, starvation: Starvation) -> Fix:
    rank, cores = case.run.critical, allowed_cores(case)
    loader, cost = rank.train_loader, step_cost(case, starvation)
    foreign = foreign_cores(case)
    if foreign is not None and is_shared(case):
        text = (
            f"Move the other jobs, which use {foreign:.1f} cores, off the {cpu_cores(cores)} of this run "
            "(taskset, cgroup), or give this run cores of its own"
        )
        return Fix(text=text, code=f"taskset -acp CORES {rank.facts.pid}", value=round(foreign, 1))
    count = loader.num_workers if loader is not None else None
    if not count:
        return Fix(text=f"Leave the training thread a core of the {cpu_cores(cores)}: run fewer other threads")
    fewer = advise(case, cost).count if cost is not None else count
    statement = "os.nice(10)"
    if fewer < count:
        return loader_fix(
            loader,
            {"num_workers": str(fewer)},
            f"Lower num_workers from {count} to {fewer}, which keep up as well; {statement} in a worker_init_fn lets "
            "the training thread go first",
            fewer,
        )
    text = "Let the workers yield to the training thread, by a worker_init_fn of the DataLoader; cheaper items help too"
    return worker_init_fix(loader, FUNCTION, (statement,), text, 10)
