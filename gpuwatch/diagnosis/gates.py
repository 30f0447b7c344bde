"""When a rule may judge: after the warm-up, on enough steps and enough samples of the GPU or of the stack.

A window shorter than a minute is judged too, as soon as it holds enough: a starved run is to be named within
seconds, and 30 steps tell a 10 % share as well in 20 s as in 60 s. Where stacks tell it, 600 samples do. A rule that
weighs its figure by an interval is asked from eight settled steps on.
"""

from __future__ import annotations

from gpuwatch.diagnosis.advice.sampled import SAMPLES, WATCHED_SECONDS, enough, has_begun, is_sampled
from gpuwatch.diagnosis.advice.starvation import has_some_steps, is_early
from gpuwatch.diagnosis.rule import AnyCase, GpuCase, MachineCase, Rule
from gpuwatch.diagnosis.track import EVALUATION_NS
from gpuwatch.timeline.figures import STEPS
from gpuwatch.timeline.windows import GpuWindow, RankWindow, RunWindow

CRITICAL_STEPS = 50
GPU_SAMPLES = 30
UNHOOKED_SECONDS = 30.0
SLOW_STEPS = 2
"""Fewer in a minute are a standstill, which has rules of its own."""


def may_judge(rule: Rule, case: AnyCase) -> bool:
    """Whether the window holds enough for this rule."""
    if isinstance(case, MachineCase):
        return not rule.gated or case.window_seconds >= UNHOOKED_SECONDS
    if isinstance(case, GpuCase):
        if not rule.gated:
            return True
        return _read_often(case.gpu) and _may_judge_gpu(case) and not (rule.needs_gpu and _trains_too_little(case))
    if has_ended(case.run):
        return False
    if not rule.gated:
        return True
    if is_outside(case.run):
        return False
    if rule.early and is_early(case.run.critical) and has_some_steps(case.run.critical):
        return True
    return _settled(case.run, case.window_seconds) and (
        not rule.needs_gpu or (bool(case.gpus) and all(map(_read_often, case.gpus)))
    )


def may_be_critical(rule: Rule, case: AnyCase) -> bool:
    """Whether there are enough steps for the strongest word."""
    run = None if isinstance(case, MachineCase) else case.run
    if not rule.gated or run is None:
        return True
    if is_sampled(run.critical):
        return _seen_enough(run.critical, CRITICAL_STEPS)
    return not steps_known(run) or run.critical.steps >= CRITICAL_STEPS


def has_ended(run: RunWindow) -> bool:
    """Whether no rank of the run lives: what was found stays as it is, nothing new is said."""
    return all(rank.ended is not None for rank in run.ranks)


def is_outside(run: RunWindow) -> bool:
    """Whether no living rank is in a training loop: what its steps showed stays, nothing new is said of them."""
    living = [rank for rank in run.ranks if rank.ended is None]
    return bool(living) and all(rank.outside for rank in living)


def steps_known(run: RunWindow) -> bool:
    """Whether this run tells its steps: by its hook, or by its loader's counter as seen from outside."""
    return run.critical.facts.visibility == "exact" or run.critical.steps_total > 0


def have_spoken(rank: RankWindow, now_ns: int, started_ns: int) -> bool:
    """Whether the rules were asked twice about enough steps of a rank. Before that their silence means nothing."""
    if is_sampled(rank):
        return _has_been_seen_enough(rank)
    ends, settled = rank.columns.end_ns, list(rank.columns.settled)
    if not rank.warm or rank.steps < STEPS or True not in settled:
        return False
    before = rank.steps_total - len(ends)
    if before < STEPS:
        started_ns = max(started_ns, ends[STEPS - 1 - before], ends[settled.index(True)])
    return now_ns - started_ns >= 2 * EVALUATION_NS


def _may_judge_gpu(case: GpuCase) -> bool:
    """The GPU's own readings need no stacks: a run of which few come is judged by time, like one that gives none."""
    run = case.run
    if run is not None and is_outside(run):
        return False
    if run is None or _settled(run, case.window_seconds):
        return True
    return is_sampled(run.critical) and not has_ended(run) and case.window_seconds >= UNHOOKED_SECONDS


def _trains_too_little(case: GpuCase) -> bool:
    """Whether too little of the GPU's use fell into training: before the first step, and while it evaluates or saves.

    What was found of the training stays meanwhile. The six samples of the second in which a pause begins and is not
    known yet were 0 %.
    """
    gpu, run = case.gpu, case.run
    if run is None or gpu.utilization is None:
        return False
    if is_sampled(run.critical) and not has_begun(run.critical):
        return True
    return gpu.train_utilization is None or gpu.train_utilization.count < GPU_SAMPLES


def _seen_enough(rank: RankWindow, steps: int) -> bool:
    """Whether the window holds enough of a rank that is seen by its stacks and its loader's counter."""
    stacks = enough(rank)
    if stacks is None:
        return False
    if stacks.batches_per_second is None and not rank.steps_total:
        return stacks.seconds >= UNHOOKED_SECONDS
    is_slow = stacks.seconds >= WATCHED_SECONDS and rank.steps >= SLOW_STEPS
    return is_slow or (rank.warm and rank.steps >= steps)


def _has_been_seen_enough(rank: RankWindow) -> bool:
    """Whether it held enough two evaluations ago too, at the pace at which samples and steps came."""
    stacks = rank.stacks
    if stacks is None or not _seen_enough(rank, STEPS):
        return False
    needed = stacks.seconds * max(SAMPLES / stacks.samples, STEPS / rank.steps if rank.steps else 0.0)
    if stacks.batches_per_second is None and not rank.steps_total:
        needed = max(needed, UNHOOKED_SECONDS)
    return stacks.seconds >= WATCHED_SECONDS or stacks.seconds - needed >= 2 * EVALUATION_NS / 1e9


def _settled(run: RunWindow, window_seconds: float) -> bool:
    if is_sampled(run.critical):
        return not has_ended(run) and _seen_enough(run.critical, STEPS)
    if not steps_known(run):
        return window_seconds >= UNHOOKED_SECONDS
    return not is_early(run.critical) and not has_ended(run)


def _read_often(gpu: GpuWindow) -> bool:
    """Power and memory count where a GPU has no utilization at all (MIG)."""
    known = (gpu.utilization, gpu.power_watts, gpu.memory_used_bytes)
    return max((stats.count for stats in known if stats is not None), default=0) >= GPU_SAMPLES
