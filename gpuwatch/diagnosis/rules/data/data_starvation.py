"""The GPU sits idle because the next batch is not ready.

Means:
    Loading and preparing batches is slower than training on them. What a faster GPU, lower precision or a compiled
    model would win is lost again in the wait, so this comes before all of those.
Evidence:
    S, the share of training time in which the GPU idles because of the wait. Exact: two CUDA events around the
    loader's next(), or a run that computes on the CPU, where nothing is queued. Estimated: the smaller of the wait
    in next() and of 100 % less utilization. From the hardware alone it is never claimed.
Fires:
    S of at least 10 %, not counting the 1.2 ms that handing over a ready batch costs; critical from 20 % and 50
    steps.
Clears:
    Below 6 %.
Not when:
    Warm-up and compilation; evaluation, checkpoints, logging and epoch starts, which have their own rules; a last,
    smaller batch; workers that are idle and hand over batches as fast as workers can; a wait that is hidden behind
    GPU work still queued (waiting 59 % of the time cost 0 % there).
Fix:
    That of the cause found: no workers, too few, too many, busy cores, a CPU quota, storage, single slow items.
Gain:
    At most 1 / (1 - S); what the fix of the cause can deliver where one is found.
Verify:
    S below 6 % for a minute, samples per second up by 3 % or more, utilization up.
Source:
    TensorFlow profiler (5 and 20 %), kineto (5 %), MLPerf Storage (accelerators at least 90 % busy); as a detector
    of truly starved jobs in simulation the event gap was right in 99 % of its verdicts, num_workers < 2 in 58 %.
"""

from __future__ import annotations

from dataclasses import replace

from gpuwatch.diagnosis.advice.gains import from_share
from gpuwatch.diagnosis.advice.rivals import rivals
from gpuwatch.diagnosis.advice.starvation import Starvation, avoidable_share, is_at_handover_floor, starvation_of
from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, Severity
from gpuwatch.diagnosis.rule import Rule, RunCase, rule
from gpuwatch.diagnosis.rules.data.cpu_quota_throttled import cpu_quota_throttled
from gpuwatch.diagnosis.rules.data.host_cpu_exhausted import host_cpu_exhausted
from gpuwatch.diagnosis.rules.data.io_bound import io_bound
from gpuwatch.diagnosis.rules.data.slow_samples import slow_samples
from gpuwatch.diagnosis.rules.data.too_many_workers import too_many_workers
from gpuwatch.diagnosis.rules.data.worker_cpu_bound import worker_cpu_bound
from gpuwatch.diagnosis.rules.data.workers_too_few import workers_too_few
from gpuwatch.diagnosis.rules.data.workers_zero import workers_zero
from gpuwatch.diagnosis.wording import percent, seconds, share_measure

FIRE_SHARE = 0.10
CLEAR_SHARE = 0.06
CRITICAL_SHARE = 0.20

CAUSES: tuple[Rule, ...] = (
    workers_zero,
    slow_samples,
    io_bound,
    cpu_quota_throttled,
    too_many_workers,
    host_cpu_exhausted,
    workers_too_few,
    worker_cpu_bound,
)
"""The decision tree: asked in this order, the first that fires is the cause."""


@rule("data-starvation", subject="run", level=Level.E3)
def data_starvation(case: RunCase) -> Draft | None:
    """Fires on a run that loses a tenth of its time to waits for data, and points to the cause's fix."""
    starvation = starvation_of(case)
    if starvation is None or starvation.share < CLEAR_SHARE or is_at_handover_floor(case.run.critical):
        return None
    share = avoidable_share(case.run.critical, starvation)
    if share < CLEAR_SHARE:
        return None
    cause, draft = _cause(case)
    return Draft(
        summary=_summary(starvation),
        severity=Severity.CRITICAL if share >= CRITICAL_SHARE else Severity.WARNING,
        level=starvation.level,
        evidence=(*_evidence(case, starvation), Measure("cause", cause, f"cause: {cause or 'not found'}")),
        fires=share >= FIRE_SHARE,
        fix=draft.fix if draft is not None else _how_to_find_out(case),
        gain=draft.gain if draft is not None else from_share(0.0, starvation.share, "once the cause is found"),
        hint=draft.hint if draft is not None else None,
        ruled_out=draft.ruled_out if draft is not None else rivals(case),
        verify=f"Less than {percent(CLEAR_SHARE)} lost to waits for a minute, and samples per second up by 3 % or more",
        chart=("gpu.utilization_percent", "run.wait_share") if starvation.on_gpu else ("run.wait_share",),
    )


def _cause(case: RunCase) -> tuple[str | None, Draft | None]:
    """The first cause of the tree that fires, each seeing those asked before it as holding."""
    case = replace(case, holding=case.holding | {"data-starvation"})
    for cause in CAUSES:
        draft: Draft | None = cause.check(case)
        if draft is not None and draft.fires:
            return cause.id, draft
    return None, None


def _summary(starvation: Starvation) -> str:
    about = "about " if starvation.level < Level.E3 else ""
    share = f"{about}{percent(starvation.share)}"
    if starvation.on_gpu:
        return f"The GPU idles {share} of the time waiting for the next batch"
    return f"Training waits {share} of the time for the next batch"


def _evidence(case: RunCase, starvation: Starvation) -> tuple[Measure, ...]:
    rank = case.run.critical
    over = f"({starvation.seconds:.0f} s, {starvation.steps} steps)"
    what = "GPU idle" if starvation.on_gpu else "waiting"
    name = "gpu_idle_from_wait_share" if starvation.on_gpu else "wait_share"
    measures = [Measure(name, round(starvation.share, 4), f"{what} {percent(starvation.share)} {over}")]
    if starvation.on_gpu and starvation.wait_share is not None:
        measures.append(share_measure("wait_share", starvation.wait_share, "the training thread waits in next()"))
    if starvation.busy_percent is not None:
        measures.append(
            Measure(
                "utilization_percent", round(starvation.busy_percent, 1), f"GPU {starvation.busy_percent:.0f} % busy"
            )
        )
    if rank.step_seconds is not None:
        measures.append(
            Measure("step_seconds", round(rank.step_seconds.mean, 6), f"a step takes {seconds(rank.step_seconds.mean)}")
        )
    if len(case.run.ranks) > 1:
        waiting = "unknown" if rank.facts.rank is None else str(rank.facts.rank)
        measures.append(Measure("rank", rank.facts.rank, f"rank {waiting} waits longest, the others wait for it"))
    return tuple(measures)


def _how_to_find_out(case: RunCase) -> Fix:
    """No cause of the tree holds: what is not known, and the next step that tells."""
    rank = case.run.critical
    loader, workers = rank.train_loader, rank.workers
    if loader is None and rank.facts.rung == "exact":
        unknown = (
            "Its batches come from no DataLoader that the hook sees: look at what the loop does before each step, "
            "or record its stack for a minute (py-spy dump)"
        )
    elif loader is None or loader.num_workers is None:
        unknown = "Its loader's settings are not known: start the script with gpuwatch run, so that the hook sees them"
    elif loader.num_workers == 0:
        unknown = (
            "Loading in workers would not be faster here, because training needs the same CPU cores: "
            "make an item cheaper (decode smaller, cache, precompute)"
        )
    elif workers is None or workers.busy_share is None:
        unknown = (
            "What its workers do is not known: record their stacks for a minute (py-spy dump --pid of a pt_data_worker)"
        )
    elif workers.busy_share < 0.85:
        unknown = (
            f"Its workers are busy only {percent(workers.busy_share)} of the time, so the time goes into collating or "
            "shipping batches, or into bursts: record the stacks of the training thread for a minute"
        )
    else:
        unknown = "Its workers are busy and no limit of the machine explains it: record their stacks for a minute"
    return Fix(
        text=unknown,
        file=loader.file if loader else None,
        line=loader.line if loader else None,
    )
