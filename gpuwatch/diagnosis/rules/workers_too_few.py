"""There are loader workers, but not enough of them to keep up with the GPU, and CPU cores are free.

Means:
    Every worker is busy all the time and still the training thread waits, typically for every N-th batch with N
    workers; the machine has cores that nothing uses.
Evidence:
    Workers busy at least 85% of the time (their own records, else samples of their stacks), or, by their own records,
    batches that take them so long that they would be too slow even if they never idled; free cores within affinity and
    quota, and, where a hook times the waits, the comb: their autocorrelation at lag N is 0.6 or more where every worker
    is too slow (0.84-0.94 measured, 0.07-0.25 otherwise).
Fires:
    data-starvation holds, workers are busy, at least 2 cores (or what the added workers need) are free, and there
    are fewer than 0.7 of the workers that the cores carry.
Clears:
    The wait is below 6% or the number of workers changes.
Not when:
    The cores are busy, a CPU quota throttles, storage is the limit, the workers are pinned, start too many threads or
    outnumber the cores: the comb shows there too, so free cores decide and not the comb. Single slow items have their
    own rule, and so have workers that hand over as fast as workers can.
Causes:
    Workers that compute, each of which needs a core, or workers that wait for storage, many of which share one.
Fix:
    num_workers = ceil(1.2 x seconds for one worker to make a batch / seconds to compute one), at least one more than
    now, within what cores, memory, shared memory and the epoch allow. It costs the memory of the added workers. An
    advised number stays until a new one differs by more than its uncertainty: 5% before rounding, more where the parts
    of the window differ by more.
Gain:
    Today's step time over the longest of computing a step and loading a batch by that many workers.
Verify:
    The comb is gone (below 0.3) and the wait is below 6%.
Source:
    pytorch#19836; measured with real loaders: 1 worker 226 ms a step, 2 workers 140 ms, with as many cores.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.advice.cost import StepCost, step_cost
from gpuwatch.diagnosis.advice.fixes import loader_fix
from gpuwatch.diagnosis.advice.gains import middle
from gpuwatch.diagnosis.advice.lines import loading_measures
from gpuwatch.diagnosis.advice.resources import free_cores
from gpuwatch.diagnosis.advice.rivals import rivals
from gpuwatch.diagnosis.advice.sampled import worker_busy
from gpuwatch.diagnosis.advice.starvation import starvation_of
from gpuwatch.diagnosis.advice.stream import are_too_slow, comb, settled
from gpuwatch.diagnosis.advice.workers import LEAST_CPU_SHARE, WorkerAdvice, advise, batch_against_step, cpu_workers
from gpuwatch.diagnosis.finding import Draft, Level, Measure, Severity, share_measure
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import gibibytes, percent
from gpuwatch.timeline.windows import RankWindow


@dataclass(frozen=True, slots=True)
class Thresholds:
    busy_share: float = threshold(0.85, "of the time that workers are busy, at least")
    comb: float = threshold(
        0.6, "autocorrelation of the waits at the number of workers, where their load is unknown", most=1.0
    )
    room_share: float = threshold(0.7, "of the workers that the cores carry: reported below")
    free_cores: float = threshold(2.0, "free cores, at least, or what the added workers need")
    least_gain: float = threshold(1.05, "a smaller speed-up is not reported", least=1.0, most=100.0)


@rule("workers-too-few", family="data", subject="run", level=Level.E2, thresholds=Thresholds)
def workers_too_few(case: RunCase, limits: Thresholds) -> Draft | None:
    rank = case.run.critical
    count = rank.train_loader.num_workers if rank.train_loader else None
    if not count:
        return None
    starvation = starvation_of(case)
    cost = step_cost(case, starvation) if starvation is not None else None
    waits = [wait for (wait,) in settled(rank, rank.columns.wait_seconds)]
    rhythm = comb(waits, count)
    if starvation is None or cost is None or not _cannot_keep_up(rank, cost, rhythm, limits):
        return None
    advice = advise(case, cost, at_least=count + 1, earlier=case.advised.get("workers-too-few"))
    free = free_cores(case)
    if not _has_room(cost, count, advice.count, free, limits) or middle(advice.gain) < limits.least_gain:
        return None
    busy = _busy_share(rank)
    return Draft(
        summary=(
            f"The {f'{count} workers are' if count > 1 else 'one worker is'} {percent(busy)} busy and cannot keep up"
            if busy is not None
            else f"One batch in {count} comes late: the {count} workers cannot keep up"
        )
        + _room_words(cost, free),
        severity=Severity.WARNING,
        level=starvation.level,
        evidence=(*_evidence(cost, count, busy, rhythm, free, limits), *loading_measures(rank)),
        fix=loader_fix(
            rank.train_loader, {"num_workers": str(advice.count)}, _text(rank, cost, count, advice), advice.count
        ),
        gain=advice.promise,
        hint=advice.hint,
        ruled_out=rivals(case),
        verify="The waits lose their rhythm and fall below 6%; samples per second rise as predicted",
        chart=("run.wait_share", "run.step_seconds", "host.cpu_percent"),
    )


def _busy_share(rank: RankWindow) -> float | None:
    busy = worker_busy(rank)
    return busy.value if busy is not None else None


def _cannot_keep_up(rank: RankWindow, cost: StepCost, rhythm: float | None, limits: Thresholds) -> bool:
    """Whether the workers are busy, or idle only because batches are handed over in order and one takes long."""
    busy = _busy_share(rank)
    if are_too_slow(rank, cost.workers * cost.compute_seconds):
        return True
    return busy >= limits.busy_share if busy is not None else rhythm is not None and rhythm >= limits.comb


def _has_room(cost: StepCost, count: int, advised: int, free: float | None, limits: Thresholds) -> bool:
    """Whether the cores carry more workers: those that mostly wait need little of one, and get it on a full machine."""
    carried = cpu_workers(cost.allowed_cores, cost.batch_demand_share, cost.training_cores_busy)
    wanted = min(limits.free_cores, cost.batch_cpu_share * (advised - count))
    return count < limits.room_share * carried and (free is None or free >= wanted or _mostly_wait(cost))


def _mostly_wait(cost: StepCost) -> bool:
    return cost.batch_cpu_known and cost.batch_demand_share <= LEAST_CPU_SHARE


def _room_words(cost: StepCost, free: float | None) -> str:
    if _mostly_wait(cost):
        return f": loading computes only {percent(cost.batch_cpu_share)} of the time, so more workers hardly need cores"
    return f", while {_free_words(cost, free)} are free" if free is not None else ""


def _free_words(cost: StepCost, free: float) -> str:
    """Of several ranks each has its part of the machine, whose free cores may be more than that part."""
    return f"{free:.0f} cores" if free > cost.allowed_cores else f"{free:.0f} of {cost.allowed_cores:g} cores"


def _evidence(
    cost: StepCost, count: int, busy: float | None, rhythm: float | None, free: float | None, limits: Thresholds
) -> tuple[Measure, ...]:
    measures = [Measure("num_workers", count, f"num_workers={count}")]
    if busy is not None:
        measures.append(share_measure("worker_busy_share", busy, "workers busy"))
    if free is not None:
        measures.append(Measure("free_cores", round(free, 1), f"{_free_words(cost, free)} free"))
    if rhythm is not None and rhythm >= limits.comb:
        measures.append(Measure("wait_autocorrelation", round(rhythm, 2), f"one batch in {count} late ({rhythm:.2f})"))
    measures.append(
        Measure("batch_seconds", round(cost.batch_seconds / cost.batches_per_step, 6), batch_against_step(cost))
    )
    return tuple(measures)


def _text(rank: RankWindow, cost: StepCost, count: int, advice: WorkerAdvice) -> str:
    text = (
        f"Raise num_workers from {count} to {advice.count}: with one worker {batch_against_step(cost)}; "
        f"{advice.arithmetic}"
    )
    if rank.workers is not None and rank.workers.rss_bytes:
        text += f"; costs {gibibytes((advice.count - count) * rank.workers.rss_bytes)} of memory at most"
    return text
