"""All loader workers are pinned to the same cores.

Means:
    The workers take turns on one or two cores while the others idle: something narrowed the set of cores that they
    may use, often a library that an import brought in.
Evidence:
    The affinity of every worker, that of the training process, and the cores that the workers were seen on.
Fires:
    data-starvation holds, two or more workers may use at most two cores each and were seen on fewer cores together
    than there are workers, while the training process may use four or more.
Clears:
    The workers may use more cores, or the wait is below 6%.
Not when:
    The whole process may use fewer than four cores (Slurm with one CPU per task, a pinned rank): that is the
    launcher's choice. Workers that are pinned to a core each. An affinity alone is no sign, nor are a few seconds on
    one core: both together are.
Causes:
    An OpenMP runtime that changed the mask when it was imported, or the launcher (Slurm, Kubernetes): the training
    process's own affinity tells them apart.
Fix:
    Give the workers the cores back in worker_init_fn (os.sched_setaffinity), or switch the pinning off
    (KMP_AFFINITY=disabled, no GOMP_CPU_AFFINITY); under Slurm --cpus-per-task.
Gain:
    The workers' pace times the cores they get, up to 1 / (1 - S).
Verify:
    The workers are seen on as many cores as there are workers.
Source:
    pytorch#101850: an OpenMP runtime of conda-forge pinned all workers to one core.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.advice.cost import step_cost
from gpuwatch.diagnosis.advice.fixes import worker_init_fix
from gpuwatch.diagnosis.advice.gains import from_share, without
from gpuwatch.diagnosis.advice.rivals import rivals
from gpuwatch.diagnosis.advice.starvation import Starvation, starvation_of
from gpuwatch.diagnosis.finding import Draft, Fix, Gain, Level, Measure, Severity
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import cpu_cores

FUNCTION = "use_all_cores"


@dataclass(frozen=True, slots=True)
class Thresholds:
    pinned_cores: int = threshold(2, "that workers may use at most", least=1)
    own_cores: int = threshold(4, "that the training process may use at least", least=2)


@rule(
    "worker-affinity-pinned",
    family="data",
    subject="run",
    level=Level.E1,
    thresholds=Thresholds,
)
def worker_affinity_pinned(case: RunCase, limits: Thresholds) -> Draft | None:
    rank, starvation = case.run.critical, starvation_of(case)
    workers, own = rank.workers, _own_cores(case)
    if starvation is None:
        return None
    if workers is None or workers.max_affinity_cores is None or workers.cores_seen is None or own is None:
        return None
    is_pinned = workers.max_affinity_cores <= limits.pinned_cores and workers.cores_seen < workers.count
    if own < limits.own_cores or not is_pinned:
        return None
    seen = "core" if workers.cores_seen == 1 else "cores"
    return Draft(
        summary=(
            f"The {workers.count} workers share {workers.cores_seen} CPU {seen}, "
            f"while the training process may use {own}"
        ),
        severity=Severity.WARNING,
        level=min(starvation.level, Level.E2),
        evidence=(
            Measure(
                "worker_affinity_cores",
                workers.max_affinity_cores,
                f"each worker may use {cpu_cores(workers.max_affinity_cores)}",
            ),
            Measure("worker_cores_seen", workers.cores_seen, f"together they were seen on {workers.cores_seen} {seen}"),
            Measure("affinity_cores", own, f"the training process may use {cpu_cores(own)}"),
            Measure("num_workers", workers.count, f"{workers.count} workers"),
        ),
        fix=_fix(case, own),
        gain=_gain(case, starvation, workers.count),
        ruled_out=rivals(case, "pinned workers"),
        verify="The workers are seen on as many cores as there are workers, and the wait is below 6%",
        chart=("run.wait_share", "host.cpu_percent"),
    )


def _own_cores(case: RunCase) -> int | None:
    """What the training process may use: at its start or now, whichever is more."""
    rank = case.run.critical
    known = [rank.process.latest.affinity_cores if rank.process else None, rank.facts.cpu_affinity]
    return max((cores for cores in known if cores is not None), default=None)


def _gain(case: RunCase, starvation: Starvation, workers: int) -> Gain:
    cost = step_cost(case, starvation)
    if cost is None or not cost.batch_cpu_known:
        return from_share(0.0, starvation.share, "then limited by the workers' own pace")
    predicted, highest = cost.uncrowded().gain(workers), without(starvation.share)
    return Gain(max(1.0, min(predicted.low, highest)), max(1.0, min(predicted.high, highest)), predicted.cap)


def _fix(case: RunCase, own: int) -> Fix:
    return worker_init_fix(
        case.run.critical.train_loader,
        FUNCTION,
        ("os.sched_setaffinity(0, range(os.cpu_count()))",),
        f"Give the workers all {own} cores back in a worker_init_fn of the DataLoader; what narrowed them is usually "
        "an OpenMP runtime (KMP_AFFINITY=disabled, no GOMP_CPU_AFFINITY) or the launcher "
        f"(Slurm: --cpus-per-task={own})",
        own,
    )
