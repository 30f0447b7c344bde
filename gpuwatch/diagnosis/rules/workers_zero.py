"""Batches are loaded inside the training process, so the GPU waits for every one of them.

Means:
    With num_workers=0 the training thread itself reads, decodes and collates each batch; the GPU has nothing to do in
    the meantime. Worker processes prepare the next batches while the GPU computes.
Evidence:
    The loader's own num_workers (reported by the hook, or read from the live object), and a run that loses time to
    waits for data. The wait for a batch is what one worker would take for it. Where stacks can be read, the line of
    loading that takes most of the waits. Where a thread of the training process reads the loader ahead and training
    waits for it, a batch is counted as a whole step times the share of time in which the thread's stacks show it busy.
Fires:
    data-starvation holds and the training loader has no workers.
Clears:
    Workers appear or the wait is gone.
Not when:
    The data is in memory and a batch takes a millisecond: workers then made a 6 ms step 8 to 13 ms long. The wait is
    hidden behind queued GPU work. The loader is one for evaluation. The cores have no time to spare: training on the
    CPU needs them itself.
Causes:
    Reading, decoding or collating: the stacks' line says which, and the rules for workers apply once there are some.
Fix:
    num_workers = ceil(1.2 x seconds to load a batch / seconds to compute one), within what cores, memory, shared memory
    and the epoch allow; persistent_workers=True, so that they live on from epoch to epoch; pin_memory=True with a GPU.
    Under the start methods spawn and forkserver (Python 3.14's default) the dataset must pickle. An advised number
    stays until a new one differs by more than its uncertainty: 5% before rounding, more where the parts of the window
    differ by more.
Gain:
    Today's step time over that with workers: the longest of computing a step, loading a batch by that many workers, and
    the CPU seconds of both over the cores. The range is that of the parts of the window, or the interval of the
    samples.
Verify:
    As many processes called pt_data_worker appear, the wait is below 6%, and samples per second rise as predicted.
Source:
    PyTorch tuning guide and data loading notes; the formula was checked against real loaders with 0 to 8 workers
    (80 ms to load, 20 ms to compute: predicted waits within 6 points).
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.advice.cost import StepCost, step_cost
from gpuwatch.diagnosis.advice.fixes import loader_fix, worker_keywords
from gpuwatch.diagnosis.advice.gains import middle
from gpuwatch.diagnosis.advice.lines import loading_measures
from gpuwatch.diagnosis.advice.resources import affinity_cores
from gpuwatch.diagnosis.advice.rivals import rivals
from gpuwatch.diagnosis.advice.sampled import who_waits
from gpuwatch.diagnosis.advice.starvation import Starvation, starvation_of
from gpuwatch.diagnosis.advice.workers import WorkerAdvice, advise, batch_against_step
from gpuwatch.diagnosis.finding import Draft, Gain, Level, Measure, RuledOut, Severity
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import cpu_cores, factors, percent, seconds
from gpuwatch.samples import LoaderFacts
from gpuwatch.timeline.stacks import is_fed
from gpuwatch.timeline.windows import RankWindow

PICKLING = ("spawn", "forkserver")


@dataclass(frozen=True, slots=True)
class Thresholds:
    least_gain: float = threshold(1.05, "a smaller speed-up is not reported", least=1.0, most=100.0)


@rule("workers-zero", family="data", subject="run", level=Level.E1, thresholds=Thresholds)
def workers_zero(case: RunCase, limits: Thresholds) -> Draft | None:
    loader = case.run.critical.train_loader
    if loader is None or loader.num_workers != 0:
        return None
    starvation = starvation_of(case)
    cost = step_cost(case, starvation) if starvation is not None else None
    if starvation is None or cost is None:
        return None
    advice = advise(case, cost, earlier=case.advised.get("workers-zero"))
    if middle(advice.gain) < limits.least_gain:
        return None
    return Draft(
        summary=_summary(case.run.critical, cost, starvation),
        severity=Severity.WARNING,
        level=starvation.level,
        evidence=(*_evidence(cost), *loading_measures(case.run.critical)),
        fix=loader_fix(
            loader,
            worker_keywords(loader, advice.count, on_gpu=starvation.on_gpu),
            _text(loader, cost, advice, affinity_cores(case), by_thread=_by_thread(case.run.critical)),
            advice.count,
        ),
        gain=advice.promise,
        hint=advice.hint,
        ruled_out=(
            RuledOut(
                "loading too cheap for workers",
                f"a batch takes {seconds(cost.batch_seconds / cost.batches_per_step)}, handing one over 1.2 ms",
            ),
            *rivals(case, "cpu"),
        ),
        verify=(
            f"{advice.count} process{'es' if advice.count > 1 else ''} named pt_data_worker, the wait below 6%, "
            f"samples per second {_promised(advice.promise)}"
        ),
        chart=("run.wait_share", "run.samples_per_second"),
    )


def _promised(gain: Gain | None) -> str:
    return "up" if gain is None else f"{factors(gain.low, gain.high)} of now"


def _summary(rank: RankWindow, cost: StepCost, starvation: Starvation) -> str:
    per_batch = cost.batch_seconds / cost.batches_per_step
    whose = "by a thread of the training process" if _by_thread(rank) else "in the training process itself"
    text = f"Batches are loaded {whose}: each takes {seconds(per_batch)}"
    if not starvation.on_gpu:
        return f"{text}, and {who_waits(rank).lower()} waits for it"
    idle = starvation.share * cost.period_seconds / cost.batches_per_step
    return f"{text}, and the GPU idles for {seconds(idle)} of it"


def _by_thread(rank: RankWindow) -> bool:
    return rank.stacks is not None and is_fed(rank.stacks)


def _evidence(cost: StepCost) -> tuple[Measure, ...]:
    per_batch = cost.batch_seconds / cost.batches_per_step
    measures = [
        Measure("num_workers", 0, "num_workers=0" + (", read from the running loader" if cost.sampled else "")),
        Measure("batch_seconds", round(per_batch, 6), f"{seconds(per_batch)} to load a batch"),
        Measure(
            "compute_seconds",
            round(cost.compute_seconds, 6),
            f"{seconds(cost.compute_seconds)} to {'train on it' if cost.sampled else 'compute a step'}",
        ),
        Measure("cpu_cores", cost.allowed_cores, f"{cpu_cores(cost.allowed_cores)} for this rank"),
    ]
    if cost.batch_cpu_known:
        measures.append(
            Measure(
                "batch_cpu_share",
                round(cost.batch_cpu_share, 3),
                f"loading computes {percent(cost.batch_cpu_share)} of its time and {_rest(cost)}",
            )
        )
    return tuple(measures)


def _rest(cost: StepCost) -> str:
    in_line = cost.batch_demand_share - cost.batch_cpu_share
    return f"waits for a core {percent(in_line)}" if in_line >= 0.05 else "waits otherwise"


def _text(loader: LoaderFacts, cost: StepCost, advice: WorkerAdvice, cores_seen: int | None, *, by_thread: bool) -> str:
    text = (
        f"Load in {advice.count} worker process{'es' if advice.count > 1 else ''}: {batch_against_step(cost)}; "
        f"{advice.arithmetic}"
    )
    if by_thread:
        text += "; a thread shares the interpreter with the training, so while one runs Python, the other waits"
    if advice.cap is not None and advice.cap.name == "cpu":
        text += (
            f"; after that, make an item cheaper (decode smaller, cache{', augment on the GPU' if cost.on_gpu else ''})"
        )
    if cores_seen is not None and advice.count > cores_seen:
        text += f"; PyTorch will warn that these are more than the {cpu_cores(cores_seen)}"
        if cost.batch_cpu_known:
            share = percent(cost.batch_cpu_share)
            text += f"; computing {share} of the time, they need {advice.count * cost.batch_cpu_share:.1f} of them"
    if not cost.batch_cpu_known:
        text += "; how much of it is CPU work is not known yet, so all of it is assumed to be"
    if loader.iterable or (loader.iterable is None and loader.batches_per_epoch is None):
        who = "an IterableDataset" if loader.iterable else "if it reads an IterableDataset, that"
        text += f"; {who} must split its items by get_worker_info(), or every worker yields all of them"
    if loader.start_method in PICKLING:
        text += f"; the dataset must pickle ({loader.start_method} workers)"
    return text
