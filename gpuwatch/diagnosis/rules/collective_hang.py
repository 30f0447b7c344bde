"""All GPUs look 100% busy but nothing moves: ranks are stuck waiting for each other.

Means:
    A collective (all-reduce) spins on the GPU until every rank joins. If one never does, the others look busy at low
    power until NCCL gives up, after 10 minutes by default.
Evidence:
    No step on any rank for 60 s or ten of the slowest steps; utilization at least 95% on all GPUs but at most one;
    power at most 45% of the limit or below 60% of what this run usually draws; no evaluation, checkpoint or
    compilation going on. Where stacks can be read, the line each rank is at, and since when: each of them for at
    least 10 s, without a hook for 60 s.
Fires:
    All of that holds in two evaluations. A single GPU whose thread's stack cannot be read may be evaluating:
    information at first, a warning after a quarter of an hour.
Clears:
    A step arrives.
Not when:
    A long first compilation, a known phase, NCCL's start, a process stopped by a signal, a program that generates or
    evaluates without steps: its threads move on, or it has left its training loop. The workers of the rank that the
    others wait for are computing: a batch takes that long.
Causes:
    One rank is at another line than the others, or its GPU idles: it is the culprit (an exception, a wait for data).
    All are in the same collective: the network, or collectives that do not match.
Fix:
    Look first at the rank that is at another line than the others, or makes no steps. Next time:
    TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1 name the collective, and a shorter timeout ends
    it.
Gain:
    It stops wasted hours.
Verify:
    Steps resume.
Source:
    nccl#968 (100% at about 70 W); pytorch PR 110947; torch_nccl environment variables.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median_low

from gpuwatch.diagnosis.advice.progress import (
    MOST_NAMED,
    SilenceThresholds,
    Stand,
    apart,
    apart_words,
    current_line_measures,
    is_unseen_long,
    process_words,
    silence_measure,
    silent_seconds,
    stands,
)
from gpuwatch.diagnosis.advice.sampled import is_sampled
from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, RuledOut, Severity
from gpuwatch.diagnosis.rule import RunCase, gpu_name, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import listed, seconds
from gpuwatch.timeline.windows import GpuWindow, RankWindow

IDLE_PERCENT = 5.0
LOADING_CORES = 0.8
"""Of the workers of the rank whose GPU idles: they make the batch that all wait for."""
COMPUTING_TIMES = 1.3


@dataclass(frozen=True, slots=True)
class Thresholds(SilenceThresholds):
    busy_percent: float = threshold(95.0, "utilization of all GPUs but one at least")
    power_share: float = threshold(0.45, "of its power limit that a GPU draws at most")
    usual_power_share: float = threshold(0.60, "or of what it usually draws")
    line_seconds: float = threshold(10.0, "that each rank's thread has been on its line, where stacks are read")


@rule("collective-hang", family="hang", subject="run", level=Level.E1, gated=False, thresholds=Thresholds)
def collective_hang(case: RunCase, limits: Thresholds) -> Draft | None:
    silence = silent_seconds(case, limits.silence_seconds)
    gpus = [gpu for gpu in case.gpus if gpu.latest is not None and gpu.latest.utilization_percent is not None]
    if silence is None or not gpus or len(gpus) < len(case.gpus):
        return None
    busy = [gpu for gpu in gpus if _utilization(gpu) >= limits.busy_percent]
    if len(busy) < max(1, len(gpus) - 1) or not all(_draws_little(gpu, case, limits) for gpu in busy):
        return None
    idle, found = [gpu for gpu in gpus if gpu not in busy], stands(case)
    if any(stand.seconds < limits.line_seconds for stand in found) or _is_loading(case, idle):
        return None
    if _computes_alone(busy):
        return None
    culprit = _culprit(case, idle, found)
    return Draft(
        summary=(
            f"{case.run.title} has made no step for {seconds(silence)} while its GPUs spin at low power: "
            f"{'the ranks wait for each other' if len(gpus) > 1 else 'a kernel does not end'}"
        ),
        severity=_severity(silence, may_evaluate=_may_evaluate(case, gpus, found)),
        level=Level.E2 if case.run.critical.facts.visibility == "exact" else Level.E1,
        evidence=(
            silence_measure(case, silence),
            *(
                Measure(
                    f"gpu_{gpu.facts.index}_power_watts",
                    gpu.latest.power_watts if gpu.latest else None,
                    f"{gpu_name(gpu)} {_utilization(gpu):.0f}% busy at {_watts(gpu):.0f} W",
                )
                for gpu in gpus
                if gpu.latest and gpu.latest.power_watts is not None
            ),
            *current_line_measures(found),
            Measure("culprit", culprit, culprit),
        ),
        fix=_fix(case, culprit, found),
        ruled_out=(
            *_slow_step(case, found),
            RuledOut("an evaluation or checkpoint", "none is open"),
        ),
        verify="Steps resume",
        chart=("run.step_seconds", "gpu.power_watts"),
    )


def _is_loading(case: RunCase, idle: list[GpuWindow]) -> bool:
    """Whether the workers of the rank whose GPU idles compute, over the window and in the last half minute."""
    uuids = {gpu.facts.uuid for gpu in idle}
    return any(
        _worker_cores(rank) >= LOADING_CORES for rank in case.run.ranks if not uuids.isdisjoint(rank.facts.gpu_uuids)
    )


def _worker_cores(rank: RankWindow) -> float:
    lately = rank.process.tree_cores_lately if rank.process is not None else None
    cores = (rank.workers.cpu_cores or 0.0) * rank.workers.count if rank.workers is not None else 0.0
    return cores if lately is None else min(cores, lately)


def _severity(silence: float, *, may_evaluate: bool) -> Severity:
    if not may_evaluate:
        return Severity.CRITICAL
    return Severity.WARNING if is_unseen_long(silence) else Severity.INFO


def _may_evaluate(case: RunCase, gpus: list[GpuWindow], found: tuple[Stand, ...]) -> bool:
    """Whether it is a single GPU, without a collective, and nothing shows that its thread is stuck."""
    return len(gpus) == 1 and (case.run.critical.facts.world_size or 1) == 1 and not found


def _computes_alone(busy: list[GpuWindow]) -> bool:
    """Whether one GPU draws clearly more than those that spin: its rank computes, and the others wait for that."""
    watts = sorted(_watts(gpu) for gpu in busy)
    return len(watts) > 1 and watts[-1] > COMPUTING_TIMES * median_low(watts)


def _fix(case: RunCase, culprit: str, found: tuple[Stand, ...]) -> Fix:
    code = "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1"
    if not found:
        look = listed(f"gpuwatch stacks {rank.facts.pid}" for rank in case.run.ranks[:MOST_NAMED])
        text = f"{culprit}. Look at the stacks of all ranks ({look}), then restart with NCCL's flight recorder on"
        return Fix(text=text, code=code)
    where = "; ".join(f"{stand.who} is at {stand.words}" for stand in found[:MOST_NAMED])
    chief = (apart(found) or found)[0].line
    text = f"{culprit}. {where[0].upper()}{where[1:]}. Restart with NCCL's flight recorder on"
    return Fix(text=text, code=code, file=chief.file, line=chief.line)


def _slow_step(case: RunCase, found: tuple[Stand, ...]) -> tuple[RuledOut, ...]:
    slowest = case.run.critical.step_p99_session_seconds
    if slowest is not None:
        return (RuledOut("a slow step", f"its slowest steps took {seconds(slowest)}"),)
    return tuple(
        RuledOut("a slow step", f"{each.who} has not left its line for {seconds(each.seconds)}") for each in found[:1]
    )


def _utilization(gpu: GpuWindow) -> float:
    return (gpu.latest.utilization_percent if gpu.latest else None) or 0.0


def _watts(gpu: GpuWindow) -> float:
    return (gpu.latest.power_watts if gpu.latest else None) or 0.0


def _draws_little(gpu: GpuWindow, case: RunCase, limits: Thresholds) -> bool:
    if gpu.latest is None or gpu.latest.power_watts is None:
        return False
    usual = case.run.usual_power_watts.get(gpu.facts.uuid)
    below_limit = bool(gpu.power_limit_watts) and gpu.latest.power_watts <= limits.power_share * (
        gpu.power_limit_watts or 0
    )
    return below_limit or (usual is not None and gpu.latest.power_watts < limits.usual_power_share * usual)


def _culprit(case: RunCase, idle: list[GpuWindow], found: tuple[Stand, ...]) -> str:
    """The rank that did not join: its GPU idles, it is at another line, or it has made the fewest steps."""
    for gpu in idle:
        if _utilization(gpu) < IDLE_PERCENT:
            owners = [rank for rank in case.run.ranks if gpu.facts.uuid in rank.facts.gpu_uuids]
            who = listed(process_words(rank) for rank in owners) or "its process"
            return f"{gpu_name(gpu)} idles: look at {who} first (crash, exception or data wait)"
    elsewhere = apart(found)
    if elsewhere:
        return f"{apart_words(elsewhere)}: look there first"
    if any(is_sampled(rank) for rank in case.run.ranks):
        # Each rank's batches are counted since it was first watched: that does not compare.
        return "No rank stands out: a network fault or mismatched collectives"
    slowest = min(case.run.ranks, key=lambda rank: rank.steps_total)
    behind = max(rank.steps_total for rank in case.run.ranks) - slowest.steps_total
    if behind:
        who = process_words(slowest)
        return f"{who[0].upper()}{who[1:]} is {behind} steps behind: look at it first"
    return "All ranks are at the same step: a network fault or mismatched collectives"
