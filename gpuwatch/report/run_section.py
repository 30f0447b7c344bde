"""The report's `runs`: one object per training run; its figures are those of the rank all others wait for."""

from __future__ import annotations

import shlex

from gpuwatch.report.escape import encodable
from gpuwatch.report.observation import Json, figure
from gpuwatch.samples import LoaderFacts
from gpuwatch.timeline.windows import PhaseTotals, RankWindow, RunWindow

_LOADER_KEYS = (
    "file",
    "line",
    "num_workers",
    "batch_size",
    "pin_memory",
    "persistent_workers",
    "prefetch_factor",
    "role",
)


def run_section(runs: tuple[RunWindow, ...]) -> list[Json]:
    """All runs."""
    return [_run(run) for run in runs]


def _run(run: RunWindow) -> Json:
    rank = run.critical
    steps = rank.step_seconds
    return {
        "id": run.id,
        "title": encodable(run.title),
        "pid": rank.facts.pid,
        "command": encodable(shlex.join(rank.facts.command)),
        "rung": rank.facts.rung,
        "gpus": list(run.gpu_uuids),
        "steps": rank.steps if steps_known(rank) else None,
        "steps_total": rank.steps_total if steps_known(rank) else None,
        "step_seconds": None if steps is None else {"p50": figure(steps.p50), "p95": figure(steps.p95)},
        "samples_per_second": figure(run.samples_per_second),
        "data_wait_share": figure(rank.wait_share),
        "gpu_idle_from_wait_share": figure(rank.gap_share),
        "step_shares": {
            "copy": figure(rank.copy_share),
            "forward": figure(rank.forward_share),
            "backward": figure(rank.backward_share),
            "optimizer": figure(rank.optimizer_share),
        },
        "phases": {kind: _phase(totals) for kind, totals in rank.phases.items()},
        "loaders": [_loader(loader) for loader in rank.facts.loaders],
        "ranks": [_rank(each) for each in run.ranks],
        "ended": rank.ended,
        "torch": rank.facts.torch,
        "python": rank.facts.python,
        "unavailable": _unavailable(run),
    }


def steps_known(rank: RankWindow) -> bool:
    """Whether this process tells its steps; 0 of them is a figure only then."""
    return rank.facts.rung == "exact" or rank.steps_total > 0


def _unavailable(run: RunWindow) -> dict[str, str]:
    rank = run.critical
    reasons: dict[str, str] = {}
    if not steps_known(rank):
        reasons["steps"] = "steps are seen with the hook only"
    if rank.step_seconds is None:
        why = "no step was seen in this window" if rank.facts.rung == "exact" else "steps are seen with the hook only"
        reasons["step_seconds"] = why
        if rank.wait_share is None:
            reasons["data_wait_share"] = why
    elif rank.wait_share is None:
        reasons["data_wait_share"] = "the loop's waits for data are not seen by the hook"
    if run.samples_per_second is None:
        reasons["samples_per_second"] = reasons.get("step_seconds", "the batch size is not known")
    if rank.gap_share is None:
        reasons["gpu_idle_from_wait_share"] = _why_no_gap(rank)
    return reasons


def _why_no_gap(rank: RankWindow) -> str:
    if rank.facts.device == "cpu":
        return "the model computes on the CPU"
    if rank.facts.rung != "exact":
        return "measured with the hook only"
    if not rank.facts.gpu_gap_measured:
        return "no CUDA events are read in this run"
    return "no settled step was seen in this window"


def _phase(totals: PhaseTotals) -> Json:
    return {
        "count": totals.count,
        "seconds": figure(totals.seconds),
        "share": figure(totals.share),
        "longest_seconds": figure(totals.longest_seconds),
    }


def _loader(loader: LoaderFacts) -> Json:
    values = {key: getattr(loader, key) for key in _LOADER_KEYS}
    if loader.file is not None:
        values["file"] = encodable(loader.file)
    return values


def _rank(rank: RankWindow) -> Json:
    return {
        "pid": rank.facts.pid,
        "rank": rank.facts.rank,
        "gpus": list(rank.facts.gpu_uuids),
        "steps": rank.steps if steps_known(rank) else None,
        "step_seconds_p50": figure(rank.step_seconds.p50) if rank.step_seconds else None,
        "data_wait_share": figure(rank.wait_share),
        "gpu_idle_from_wait_share": figure(rank.gap_share),
    }
