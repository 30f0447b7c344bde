"""Decoding and augmentation in the workers cost more CPU than the machine can spare per batch.

Means:
    Each worker keeps a core busy and there is no room for more of them: only cheaper items help.
Evidence:
    Mean CPU of a worker of 0.85 core or more, with as many workers as the cores carry, or CPU seconds per batch
    over the time to compute one that exceed the cores left for loading.
Fires:
    data-starvation holds and so does that, where neither a CPU quota nor busy cores nor too many workers explain
    it.
Clears:
    The wait is below 6 %.
Not when:
    Workers use several cores each (they start thread pools of their own); other jobs own the cores.
Fix:
    Make an item cheaper: move augmentation to the GPU (torchvision.transforms.v2 or kornia on the batch, with
    data_keys for masks), decode smaller or with a faster decoder, store items resized, cache what repeats.
Gain:
    At most 1 / (1 - S): an operation with share a of the workers' time leaves Tb x (1 - a). Which operation that
    is, is not known from these figures.
Verify:
    CPU per worker down, the wait below 6 %.
Source:
    torchvision's transforms performance guide; swapping the JPEG decoder alone brought 1.18-1.28x of decode time.
"""

from __future__ import annotations

from gpuwatch.diagnosis.advice.cost import StepCost, step_cost
from gpuwatch.diagnosis.advice.gains import without
from gpuwatch.diagnosis.advice.rivals import rivals
from gpuwatch.diagnosis.advice.starvation import starvation_of
from gpuwatch.diagnosis.advice.workers import batch_against_step, cpu_workers
from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, Severity
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.wording import cpu_cores, seconds

WORKER_CORES = 0.85
SEVERAL_CORES = 1.2
ROOM_SHARE = 0.7
OTHER_CAUSES = ("cpu-quota-throttled", "too-many-workers", "host-cpu-exhausted", "workers-too-few", "io-bound")


@rule("worker-cpu-bound", subject="run", level=Level.E1, after=("data-starvation", *OTHER_CAUSES))
def worker_cpu_bound(case: RunCase) -> Draft | None:
    """Fires on a starved run whose workers compute all the time and cannot usefully be more."""
    rank = case.run.critical
    workers, loader = rank.workers, rank.train_loader
    cores = workers.cpu_cores if workers else None
    if "data-starvation" not in case.holding or case.holding.intersection(OTHER_CAUSES):
        return None
    if cores is None or not WORKER_CORES <= cores <= SEVERAL_CORES or loader is None or not loader.num_workers:
        return None
    starvation = starvation_of(case)
    cost = step_cost(case, starvation) if starvation is not None else None
    if starvation is None or cost is None or not _no_room(cost, loader.num_workers):
        return None
    per_batch = cost.batch_cpu_seconds / cost.batches_per_step
    affordable = cost.compute_seconds * cost.loading_cores(slow=True) / cost.batches_per_step
    return Draft(
        summary=(
            f"The {loader.num_workers} workers compute all the time: a batch costs {seconds(per_batch)} "
            f"of CPU and the {cost.allowed_cores:g} cores carry no more workers"
        ),
        severity=Severity.WARNING,
        level=starvation.level,
        evidence=(
            Measure("worker_cpu_cores", round(cores, 2), f"a worker uses {cores:.2f} of a core"),
            Measure("batch_cpu_seconds", round(per_batch, 6), batch_against_step(cost)),
            Measure("num_workers", loader.num_workers, f"num_workers={loader.num_workers}"),
            Measure("cpu_cores", cost.allowed_cores, f"{cpu_cores(cost.allowed_cores)} for this rank"),
        ),
        fix=Fix(
            text=(
                "Make an item cheaper: augment on the GPU after the copy, decode smaller or faster, or store items "
                f"resized. To keep up, a batch may cost {seconds(affordable)} of CPU"
            ),
            code="images = transforms.v2.RandomResizedCrop(224)(images.to(device, non_blocking=True))",
            file=loader.file,
            line=loader.line,
        ),
        hint=f"at most {without(starvation.share):.1f}x, when items cost so little that the run no longer waits",
        ruled_out=rivals(case),
        verify="CPU seconds per batch down, the wait below 6 %",
        chart=("run.wait_share", "host.cpu_percent"),
    )


def _no_room(cost: StepCost, count: int) -> bool:
    carried = cpu_workers(cost.allowed_cores, cost.batch_cpu_share, cost.training_cores_busy)
    wanted = cost.batch_cpu_seconds / max(cost.compute_seconds, 1e-9)
    return count >= ROOM_SHARE * carried or wanted > cost.loading_cores(slow=False)
