"""All CPU cores are busy, so workers cannot go faster; more workers will not help.

Means:
    The run waits for data that the cores cannot prepare any faster. What to do depends on whose work fills them.
Evidence:
    The machine's CPU at 90% or more, or tasks that wait for a core 40% of the time (PSI).
Fires:
    data-starvation holds and so does the evidence above, for a run with workers.
Clears:
    CPU below 80%, or the wait below 6%.
Not when:
    Fewer workers would be faster, or a CPU quota throttles: those have their own rules. Without workers, or with items
    that need a core for less than 30% of their time, the cores are not the limit. Where workers also wait for storage
    30% of their time, it is not known which of the two is the limit: information only.
Causes:
    This run's own workers, or other processes: what the cores do beyond this run's process tree shows which.
Fix:
    Where other processes own more than 30% of the cores: move them away. Otherwise less CPU per item (augment on
    the GPU, decode smaller, precompute), or more cores.
Gain:
    None without less CPU work per item; then at most 1 / (1 - S). On 2 cores 2, 4, 8 and 16 workers made 58, 59, 58
    and 60 batches a second.
Verify:
    CPU below 90% and the wait below 6%.
Source:
    SageMaker debugger's CPUBottleneck (90%), node-mixin (90% for 15 min).
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.advice.fixes import place_of
from gpuwatch.diagnosis.advice.gains import without
from gpuwatch.diagnosis.advice.lines import loading_line, loading_measures
from gpuwatch.diagnosis.advice.resources import (
    CPU_PERCENT,
    FOREIGN_SHARE,
    PRESSURE_CPU_PERCENT,
    allowed_cores,
    batch_cpu_share,
    crowd_measures,
    foreign_cores,
    foreign_measures,
    is_cpu_exhausted,
    is_storage_bound,
    line_factor,
    worker_line_factor,
)
from gpuwatch.diagnosis.advice.rivals import rivals
from gpuwatch.diagnosis.advice.sampled import trains_on
from gpuwatch.diagnosis.advice.starvation import starvation_of
from gpuwatch.diagnosis.advice.workers import filling_workers
from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, Severity
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import cpu_cores, percent


@dataclass(frozen=True, slots=True)
class Thresholds:
    cpu_percent: float = threshold(CPU_PERCENT, "busy cores: reported from here on")
    clear_cpu_percent: float = threshold(80.0, "until they are less busy", bounded_by="cpu_percent")
    pressure_percent: float = threshold(
        PRESSURE_CPU_PERCENT, "CPU pressure above which the cores count as busy, whatever their use"
    )
    computing_share: float = threshold(0.3, "of a batch's time that its worker computes, at least")


@rule("host-cpu-exhausted", family="data", subject="run", level=Level.E1, thresholds=Thresholds)
def host_cpu_exhausted(case: RunCase, limits: Thresholds) -> Draft | None:
    rank, host = case.run.critical, case.host
    count = rank.train_loader.num_workers if rank.train_loader else None
    if not count:
        return None
    starvation = starvation_of(case)
    cores = allowed_cores(case)
    if starvation is None:
        return None
    computing = batch_cpu_share(rank, count, on_gpu=starvation.on_gpu)
    # On a full machine a worker that computes waits for a core most of its time, as the main thread does.
    factor = max(line_factor(rank), worker_line_factor(rank))
    if computing is not None and computing * factor < limits.computing_share:
        return None
    if host is None or (host.cpu_percent or 0.0) < limits.clear_cpu_percent:
        return None
    foreign = foreign_cores(case)
    share = (foreign or 0.0) / cores
    return Draft(
        summary=_summary(cores, share),
        severity=Severity.INFO if is_storage_bound(case) else Severity.WARNING,
        level=min(starvation.level, Level.E2),
        evidence=(
            *crowd_measures(host),
            *foreign_measures(case),
            Measure("num_workers", count, f"num_workers={count}"),
            *loading_measures(rank),
        ),
        fires=is_cpu_exhausted(case, limits.cpu_percent, limits.pressure_percent),
        fix=_fix(case, cores, share),
        hint=(
            f"up to {without(starvation.share):.1f}x from less CPU work per item; "
            "no other number of workers brings anything here"
        ),
        ruled_out=rivals(case, "cpu"),
        verify="CPU below 90% and the wait below 6%",
        chart=("host.cpu_percent", "run.wait_share"),
    )


def _summary(cores: float, foreign_share: float) -> str:
    if foreign_share > FOREIGN_SHARE:
        return f"Other processes take {percent(foreign_share)} of the {cpu_cores(cores)} that loading needs"
    busy = f"All {cpu_cores(cores)} are" if cores > 1 else "The one CPU core is"
    return f"{busy} busy, so batches cannot be prepared any faster"


def _fix(case: RunCase, cores: float, foreign_share: float) -> Fix:
    loader, line = case.run.critical.train_loader, loading_line(case.run.critical)
    if foreign_share > FOREIGN_SHARE:
        text = "Move the other jobs off this machine's cores (taskset, cgroup), or give this run its own"
        if line is None:
            return Fix(text=text)
        return Fix(text=f"{text}; else make {line.words} cheaper", file=line.file, line=line.line)
    where = f", first of all {line.words}" if line is not None else ""
    on_gpu = "augment on the GPU, " if trains_on(case) == "cuda" else ""
    carried, count = filling_workers(cores), (loader.num_workers if loader is not None else None) or 0
    more = "more cores" if count > carried else "more cores with as many more workers"
    text = f"Make an item cheaper ({on_gpu}decode smaller, precompute){where}; or use {more}"
    if count > carried:
        text += f"; more than {carried} workers bring nothing on {cores:g} cores"
    file, number = (line.file, line.line) if line is not None else place_of(loader)
    return Fix(text=text, file=file, line=number)
