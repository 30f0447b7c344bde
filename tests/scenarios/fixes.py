"""What a finding's change brings in truth: the same job is simulated again with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpuwatch.diagnosis.finding import CallEdit, Finding
from tests.scenarios.job import Job
from tests.scenarios.scenario import Draw
from tests.scenarios.truth import factor

Change = Callable[[Job, Finding], "Job | None"]


def _workers(job: Job, finding: Finding) -> Job | None:
    count = finding.fix.value if finding.fix else None
    if not isinstance(count, int):
        return None
    return job.with_loading(workers=count, persistent=True, pinned=True)


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


CHANGES: dict[str, Change] = {
    "workers-zero": _workers,
    "workers-too-few": _workers,
    "too-many-workers": _workers,
    "slow-samples": _queue,
    "bursty-prefetch": _queue,
    "cpu-quota-throttled": _whole,
    "thread-oversubscription": lambda job, _: job.with_loading(threads=1),
    "epoch-start-stall": lambda job, _: job.with_loading(persistent=True),
    "checkpoint-stall": _without("checkpoint"),
    "log-stall": _rarer("log"),
    "gc-stall": _without("gc"),
    "recompile-storm": _without("compile"),
    "sync-per-step": lambda job, _: job.with_computing(asks=False),
    "pageable-transfer": lambda job, _: job.with_loading(pinned=True),
    "noisy-neighbour": lambda job, _: job.with_host(foreign_cores=0.3),
}
"""By rule: the job with the finding's fix. What a rule advises without a number that the model has is left out."""


def real_factor(drawn: Draw, finding: Finding) -> float | None:
    """How much faster the job really is with the fix; None where that cannot be tried."""
    change = CHANGES.get(finding.rule)
    if change is None or finding.gain is None:
        return None
    changed = change(drawn.job, finding)
    return None if changed is None else factor(drawn.job, changed, drawn.name)
