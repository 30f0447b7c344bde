"""Decoding and augmentation in the workers cost more CPU than the machine can spare per batch.

Means:
    Each worker keeps a core busy and there is no room for more of them: only cheaper items help.
Evidence:
    Mean CPU of a worker of 0.85 core or more, with as many workers as the cores carry, or CPU seconds per batch
    over the time to compute one that exceed the cores left for loading. Where the workers' stacks can be read, the
    line that takes the largest share of their busy time, with its 95% interval and the library function below it,
    which tells decoding from augmenting, preprocessing and collating.
Fires:
    data-starvation holds and so does the evidence above, and neither a CPU quota nor busy cores nor too many workers
    explain it.
Clears:
    The wait is below 6%.
Not when:
    Workers use several cores each (they start thread pools of their own); other jobs own the cores.
Causes:
    By the line that costs most: decoding (PIL, a decoder), augmentation (torchvision, albumentations, NumPy), parsing
    (JSON, a tokenizer). Collating has its own rule, slow-collate-ipc.
Fix:
    Make an item cheaper, at the line that costs most: move augmentation to the GPU (torchvision.transforms.v2 or
    kornia on the batch, with data_keys for masks), decode smaller or with a faster decoder, preprocess once before
    training, store items resized, cache what repeats.
Gain:
    Without an operation that takes the share a of the workers' time Tb, Tb x (1 - a) is left. The gain is today's step
    time over the longest of computing a step, what is left, and the CPU seconds of both over the cores: from halving
    the line to removing it. Without stacks the line is not known: then at most 1 / (1 - S).
Verify:
    CPU per worker down, the wait below 6%.
Source:
    torchvision's transforms performance guide; swapping the JPEG decoder alone brought 1.18-1.28x of decode time.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.advice.cost import StepCost, step_cost
from gpuwatch.diagnosis.advice.fixes import place_of
from gpuwatch.diagnosis.advice.gains import middle, without
from gpuwatch.diagnosis.advice.lines import HotLine, cheaper, loading_line, loading_measures, with_interval, work_of
from gpuwatch.diagnosis.advice.resources import worker_cores
from gpuwatch.diagnosis.advice.rivals import rivals
from gpuwatch.diagnosis.advice.starvation import starvation_of
from gpuwatch.diagnosis.advice.workers import batch_against_step, cpu_workers
from gpuwatch.diagnosis.finding import Draft, Fix, Gain, Level, Measure, Severity
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import cpu_cores, percent, seconds
from gpuwatch.samples import LoaderFacts

WORDS = {
    "read": "reading",
    "decode": "decoding",
    "augment": "augmentation",
    "preprocess": "preprocessing",
    "collate": "collating",
}
SEVERAL_CORES = 1.2
ROOM_SHARE = 0.7


@dataclass(frozen=True, slots=True)
class Thresholds:
    worker_cores: float = threshold(0.85, "that each worker keeps busy at least", most=1.2)
    least_gain: float = threshold(1.05, "a smaller speed-up is not reported", least=1.0, most=100.0)


@rule("worker-cpu-bound", family="data", subject="run", level=Level.E1, thresholds=Thresholds)
def worker_cpu_bound(case: RunCase, limits: Thresholds) -> Draft | None:
    rank = case.run.critical
    loader, cores = rank.train_loader, worker_cores(rank)
    if cores is None or not limits.worker_cores <= cores <= SEVERAL_CORES or loader is None or not loader.num_workers:
        return None
    starvation = starvation_of(case)
    cost = step_cost(case, starvation) if starvation is not None else None
    if starvation is None or cost is None or not _no_room(cost, loader.num_workers):
        return None
    per_batch = cost.batch_cpu_seconds / cost.batches_per_step
    line = loading_line(rank)
    gain = _gain(cost, line, loader.num_workers, limits)
    return Draft(
        summary=(
            f"{_workers(loader.num_workers)} all the time: a batch costs {seconds(per_batch)} "
            f"of CPU and the {cost.allowed_cores:g} cores carry no more workers"
            + (f"; {percent(line.share.value)} of it goes into {line.place}" if line is not None else "")
        ),
        severity=Severity.WARNING,
        level=starvation.level,
        evidence=(
            Measure("worker_cpu_cores", round(cores, 2), f"a worker uses {cores:.2f} of a core"),
            Measure("batch_cpu_seconds", round(per_batch, 6), batch_against_step(cost)),
            Measure("num_workers", loader.num_workers, f"num_workers={loader.num_workers}"),
            Measure("cpu_cores", cost.allowed_cores, f"{cpu_cores(cost.allowed_cores)} for this rank"),
            *loading_measures(rank),
        ),
        fix=_fix(cost, loader, line),
        gain=gain,
        hint=None
        if gain is not None
        else f"at most {without(starvation.share):.1f}x, when items cost so little that the run no longer waits",
        ruled_out=rivals(case),
        verify="CPU seconds per batch down, the wait below 6%",
        chart=("run.wait_share", "host.cpu_percent"),
    )


def _workers(count: int) -> str:
    return f"The {count} workers compute" if count > 1 else "The one worker computes"


def _fix(cost: StepCost, loader: LoaderFacts, line: HotLine | None) -> Fix:
    affordable = cost.compute_seconds * cost.loading_cores(slow=True) / cost.batches_per_step
    keep_up = f"To keep up, a batch may cost {seconds(affordable)} of CPU"
    if line is None:
        file, number = place_of(loader)
        gpu = "images = transforms.v2.RandomResizedCrop(224)(images.to(device, non_blocking=True))"
        augment = "augment on the GPU after the copy, " if cost.on_gpu else ""
        text = f"Make an item cheaper: {augment}decode smaller or faster, or store items resized. {keep_up}"
        return Fix(text=text, code=gpu if cost.on_gpu else None, file=file, line=number)
    work = work_of(line)
    how, code = cheaper(line, work, on_gpu=cost.on_gpu)
    kind = f"is {WORDS[work]} and " if work is not None else ""
    share = f"{with_interval(line.share)} of the workers' time"
    text = f"Make {line.words} cheaper, which {kind}takes {share}: {how}. {keep_up}"
    return Fix(text=text, code=code, file=line.file, line=line.line)


def _gain(cost: StepCost, line: HotLine | None, workers: int, limits: Thresholds) -> Gain | None:
    """From halving the line's cost to removing it; none where that is not worth a promise."""
    if line is None:
        return None
    halved, removed = cost.cheaper(line.share.low / 2).gain(workers), cost.cheaper(line.share.high).gain(workers)
    gain = Gain(max(1.0, halved.low), max(1.0, removed.high), f"from halving that to removing it, {removed.cap}")
    return gain if middle(gain) >= limits.least_gain else None


def _no_room(cost: StepCost, count: int) -> bool:
    carried = cpu_workers(cost.allowed_cores, cost.batch_cpu_share, cost.training_cores_busy)
    wanted = cost.batch_cpu_seconds / max(cost.compute_seconds, 1e-9)
    return count >= ROOM_SHARE * carried or wanted > cost.loading_cores(slow=False)
