"""What a finding's change brings in truth: the same job is simulated again with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpuwatch.diagnosis.finding import CallEdit, Finding, LoopEdit
from tests.scenarios.job import EASY_SECONDS, Job
from tests.scenarios.scenario import Draw
from tests.scenarios.truth import factor

Change = Callable[[Job, Finding], "Job | None"]


def _workers(job: Job, finding: Finding) -> Job | None:
    count = finding.fix.value if finding.fix else None
    if not isinstance(count, int):
        return None
    edit, loading = finding.fix.edit if finding.fix else None, job.loading
    keywords = edit.keywords if isinstance(edit, CallEdit) else {}
    return job.with_loading(
        workers=count,
        persistent=loading.persistent or "persistent_workers" in keywords,
        pinned=loading.pinned or "pin_memory" in keywords,
    )


def _queue(job: Job, finding: Finding) -> Job | None:
    """Another depth and order: what the slow items themselves take stays."""
    edit = finding.fix.edit if finding.fix else None
    if not isinstance(edit, CallEdit):
        return None
    return job.with_loading(
        prefetch=int(edit.keywords.get("prefetch_factor", job.loading.prefetch)),
        in_order=edit.keywords.get("in_order", str(job.loading.in_order)) == "True",
    )


def _rarer(kind: str) -> Change:
    def change(job: Job, finding: Finding) -> Job | None:
        times = finding.fix.value if finding.fix else None
        if not isinstance(times, int | float) or times < 1:
            return None
        pauses = tuple(
            replace(pause, every_steps=round(pause.every_steps * times)) if pause.kind == kind else pause
            for pause in job.pauses
        )
        return replace(job, pauses=pauses)

    return change


def _without(kind: str) -> Change:
    return lambda job, _: replace(job, pauses=tuple(pause for pause in job.pauses if pause.kind != kind))


def _whole(job: Job, finding: Finding) -> Job | None:
    quota = finding.fix.value if finding.fix else None
    return job.with_host(quota=float(quota)) if isinstance(quota, int | float) else None


def _in_line_no_more(job: Job, finding: Finding) -> Job | None:
    """Behind other programs: without them. Behind its own workers: fewer of them, or such as yield."""
    if "own workers" not in finding.summary:
        return job.with_host(foreign_cores=0.3)
    count = finding.fix.value if finding.fix else None
    fewer = isinstance(count, int) and count < job.loading.workers
    return (job.with_loading(workers=count) if fewer else job).with_host(training_first=True)


def _joined_epochs(job: Job, finding: Finding) -> Job:
    """Workers that live on, where that is the advice; else epochs that are joined."""
    edit = finding.fix.edit if finding.fix else None
    if isinstance(edit, CallEdit | LoopEdit) and "persistent_workers" in edit.keywords:
        return job.with_loading(persistent=True)
    return job.with_loading(batches_per_epoch=100_000)


CHANGES: dict[str, Change] = {
    "workers-zero": _workers,
    "workers-too-few": _workers,
    "too-many-workers": _workers,
    "slow-samples": _queue,
    "slow-worker": lambda job, _: job.with_loading(in_order=False),
    "bursty-prefetch": _queue,
    "cpu-quota-throttled": _whole,
    "thread-oversubscription": lambda job, _: job.with_loading(threads=1),
    "epoch-start-stall": _joined_epochs,
    "checkpoint-stall": _without("checkpoint"),
    "log-stall": _rarer("log"),
    "gc-stall": _without("gc"),
    "recompile-storm": _without("compile"),
    "sync-per-step": lambda job, _: job.with_computing(asks=False),
    "pageable-transfer": lambda job, _: job.with_loading(pinned=True),
    "noisy-neighbour": _in_line_no_more,
}
"""By rule: the job with the finding's fix. What a rule advises without a number that the model has is left out."""
REMEDIES: dict[str, Change] = {
    "data-starvation": lambda job, _: job.ideal(),
    "eval-stall": _without("eval"),
    "loop-code": _without("code"),
    "straggler-rank": lambda job, _: replace(job, slow_rank=None),
    "gpu-imbalance": lambda job, _: replace(job, slow_rank=None, gpus_of_one_process=()),
    "launch-bound": lambda job, _: job.with_computing(launch_seconds=min(job.computing.launch_seconds, EASY_SECONDS)),
    "io-bound": lambda job, _: job.with_loading(io_seconds=0.0),
    "worker-cpu-bound": lambda job, _: job.with_loading(cpu_seconds=0.5 * job.loading.cpu_seconds),
    "host-cpu-exhausted": lambda job, finding: (
        job.with_host(foreign_cores=0.3)
        if finding.summary.startswith("Other processes")
        else job.with_loading(cpu_seconds=0.5 * job.loading.cpu_seconds)
    ),
}
"""By rule: the job without what the rule says is wrong, where it names no single value to set."""


def real_factor(drawn: Draw, finding: Finding) -> float | None:
    """How much faster the job really is with the fix; None where that cannot be tried."""
    change = CHANGES.get(finding.rule) or REMEDIES.get(finding.rule)
    if change is None:
        return None
    changed = change(drawn.job, finding)
    return None if changed is None else factor(drawn.job, changed, drawn.name)
