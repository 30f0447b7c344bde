"""Why a rule was silent: because it found nothing, or because it had too little to judge."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from gpuwatch.diagnosis.finding import Level
from gpuwatch.diagnosis.gates import may_judge
from gpuwatch.diagnosis.rule import MachineCase, Rule, gpu_case_of, run_case_of
from gpuwatch.timeline.windows import RunWindow, Scene

_BEST_LEVELS = {"exact": Level.E3, "sampled": Level.E1, "process": Level.E0, "hardware": Level.E0}
"""The best evidence that each visibility of a run gives."""

SEEN_IN_STACKS = frozenset(
    {
        "data-starvation",
        "epoch-start-stall",
        "h2d-bound",
        "launch-bound",
        "loader-overhead-floor",
        "loop-code",
        "pageable-transfer",
        "straggler-rank",
        "sync-per-step",
        "workers-too-few",
    }
)
"""Rules that prefer the hook's timings and judge stacks as well."""
_SEEN_BY = {"process": "/proc", "hardware": "its GPU"}


def why_silent(rules: Iterable[Rule], scene: Scene, judged: Collection[str] = ()) -> dict[str, str | None]:
    """By rule id: why it could not judge; None where it judged one case at least.

    A run that has ended by now was judged while it ran.

    Args:
        rules: The rules in question.
        scene: What was seen.
        judged: Ids of runs that were judged while they were recorded, of which the scene holds figures and no steps.
    """
    scene = replace(scene, runs=tuple(map(_as_it_ran, scene.runs)))
    return {rule.id: _why_not(rule, scene, judged) for rule in rules}


def _as_it_ran(run: RunWindow) -> RunWindow:
    return replace(run, ranks=tuple(replace(rank, ended=None) for rank in run.ranks))


def _why_not(rule: Rule, scene: Scene, judged: Collection[str]) -> str | None:
    """Why a rule was silent because it could not judge; None where one case at least was judged and found well."""
    if rule.subject == "machine":
        return None if may_judge(rule, MachineCase(scene=scene)) else "too little was seen of the machine"
    if rule.subject == "gpu":
        if not scene.gpus:
            return "no GPU was seen"
        is_judged = any(may_judge(rule, gpu_case_of(scene, gpu)) for gpu in scene.gpus)
        return None if is_judged else "too little was seen of the GPUs and their runs"
    return _first_or_none([_why_not_run(rule, scene, run, run.id in judged) for run in scene.runs])


def _first_or_none(reasons: Sequence[str | None]) -> str | None:
    if not reasons:
        return "no training run was seen"
    return None if None in reasons else reasons[0]


def _why_not_run(rule: Rule, scene: Scene, run: RunWindow, was_judged: bool) -> str | None:
    visibility = run.critical.facts.visibility
    if rule.level > _BEST_LEVELS[visibility] and not (visibility == "sampled" and rule.id in SEEN_IN_STACKS):
        return _missing(rule.level, visibility)
    case = run_case_of(scene, run)
    if may_judge(rule, case):
        return None
    if rule.needs_gpu and not case.gpus:
        return "no GPU of this run was seen"
    return None if was_judged else "too few steps were seen after the warm-up"


def _missing(level: Level, visibility: str) -> str:
    if level > Level.E1:
        return "needs the hook in the training: start it with gpuwatch run"
    return f"needs the stacks of the training process, which was seen only through {_SEEN_BY[visibility]}"
