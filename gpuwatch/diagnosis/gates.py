"""When a rule may judge: after the warm-up, on enough steps and enough samples of the GPU.

A window shorter than a minute is judged too, as soon as it holds enough: a starved run is to be named within
seconds, and 30 steps tell a 10 % share as well in 20 s as in 60 s.
"""

from __future__ import annotations

from gpuwatch.diagnosis.rule import GpuCase, MachineCase, Rule, RunCase
from gpuwatch.diagnosis.track import EVALUATION_NS
from gpuwatch.timeline.windows import GpuWindow, RankWindow, RunWindow

STEPS = 30
CRITICAL_STEPS = 50
GPU_SAMPLES = 30
UNHOOKED_SECONDS = 30.0


def may_judge(rule: Rule, case: RunCase | GpuCase | MachineCase) -> bool:
    """Whether the window holds enough for this rule."""
    if isinstance(case, MachineCase):
        return not rule.gated or case.window_seconds >= UNHOOKED_SECONDS
    if isinstance(case, GpuCase):
        return not rule.gated or (_sampled(case.gpu) and (case.run is None or _settled(case.run, case.window_seconds)))
    if has_ended(case.run):
        return False
    if not rule.gated:
        return True
    return _settled(case.run, case.window_seconds) and (
        not rule.needs_gpu or (bool(case.gpus) and all(map(_sampled, case.gpus)))
    )


def may_be_critical(rule: Rule, case: RunCase | GpuCase | MachineCase) -> bool:
    """Whether there are enough steps for the strongest word."""
    run = None if isinstance(case, MachineCase) else case.run
    return not rule.gated or run is None or not steps_known(run) or run.critical.steps >= CRITICAL_STEPS


def has_ended(run: RunWindow) -> bool:
    """Whether no rank of the run lives: what was found stays as it is, nothing new is said."""
    return all(rank.ended is not None for rank in run.ranks)


def steps_known(run: RunWindow) -> bool:
    """Whether this run tells its steps; one without a hook does not, ever."""
    return run.critical.facts.rung == "exact" or run.critical.steps_total > 0


def have_spoken(rank: RankWindow, now_ns: int, started_ns: int) -> bool:
    """Whether the rules were asked twice about enough steps of a rank. Before that their silence means nothing."""
    ends, settled = rank.columns.end_ns, list(rank.columns.settled)
    if not rank.warm or rank.steps < STEPS or True not in settled:
        return False
    before = rank.steps_total - len(ends)
    if before < STEPS:
        started_ns = max(started_ns, ends[STEPS - 1 - before], ends[settled.index(True)])
    return now_ns - started_ns >= 2 * EVALUATION_NS


def _settled(run: RunWindow, window_seconds: float) -> bool:
    if not steps_known(run):
        return window_seconds >= UNHOOKED_SECONDS
    return run.critical.warm and run.critical.steps >= STEPS and not has_ended(run)


def _sampled(gpu: GpuWindow) -> bool:
    """Power and memory count where a GPU has no utilization at all (MIG)."""
    known = (gpu.utilization, gpu.power_watts, gpu.memory_used_bytes)
    return max((stats.count for stats in known if stats is not None), default=0) >= GPU_SAMPLES
