"""When a rule may judge, and how long what it finds must last to be reported, and to be cleared.

It judges after the warm-up, on enough steps and enough samples of the GPU or of the stack.

A window shorter than a minute is judged too, as soon as it holds enough: a starved run is to be named within
seconds, and 30 steps tell a 10% share as well in 20 s as in 60 s. Of stacks, 600 samples are enough. A rule that
weighs its figure by an interval may judge from eight settled steps on.

Two evaluations in, six out: on a stream that fluctuates around its threshold this gave 1 flip an hour in simulation, a
single threshold 188.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuwatch.diagnosis.advice.sampled import SAMPLES, WATCHED_SECONDS, enough, has_begun, is_sampled
from gpuwatch.diagnosis.advice.starvation import has_some_steps, is_early
from gpuwatch.diagnosis.finding import Draft, Severity, State
from gpuwatch.diagnosis.rule import AnyCase, GpuCase, MachineCase, Rule
from gpuwatch.timeline.columns import SECOND_NS
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
    """Whether there are enough steps for a critical finding."""
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
    """Whether this run's steps are known: from its hook, or from its loader's counter as seen from outside."""
    return run.critical.facts.visibility == "exact" or run.critical.steps_total > 0


def have_spoken(rank: RankWindow, now_ns: int, started_ns: int) -> bool:
    """Whether the rules have judged enough steps of a rank twice. Before that their silence means nothing."""
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
    """The GPU's own readings need no stacks: a run with few of them is judged by time, like one without any."""
    run = case.run
    if run is not None and is_outside(run):
        return False
    if run is None or _settled(run, case.window_seconds):
        return True
    return is_sampled(run.critical) and not has_ended(run) and case.window_seconds >= UNHOOKED_SECONDS


def _trains_too_little(case: GpuCase) -> bool:
    """Whether too little of the GPU's use fell into training: before the first step, and while it evaluates or saves.

    What was found of the training stays meanwhile. The six samples of the second in which a pause begins and is not
    known yet were 0%.
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


EVALUATION_NS = 5 * SECOND_NS
"""The usual time between two evaluations. One that follows sooner than half of it sees nearly the same
window: it brings new numbers, but is not a second confirmation."""
HOLD_NS = 30 * SECOND_NS
INCIDENT_NS = 600 * SECOND_NS
"""Fires again within this time: the same incident. Not judged for as long: forgotten."""


@dataclass(slots=True)
class Track:
    """One rule on one subject. `state` is None while all is well."""

    state: State | None = None
    draft: Draft | None = None  # the newest one; the last one while clearing
    window_seconds: float = 0.0
    since_ns: int = 0
    incidents: int = 0
    _streak: int = 0
    _fired_ns: int = 0
    _counted_ns: int | None = None
    _judged_ns: int = 0
    _over_ns: int | None = None
    _other_severity: Severity | None = None
    _other_streak: int = 0

    def judge(self, rule: Rule, draft: Draft | None, now_ns: int, window_seconds: float) -> None:
        """Takes what the rule found in one evaluation."""
        self._judged_ns = now_ns
        witness = self._counted_ns is None or now_ns - self._counted_ns >= EVALUATION_NS // 2
        if draft is not None:
            self.draft, self.window_seconds = self._with_lasting_severity(rule, draft, witness), window_seconds
        if draft is not None and draft.fires:
            self._condition_holds(1 if draft.is_certain else rule.fire_after, now_ns, witness)
        elif self.state in ("firing", "clearing"):
            self._condition_gone(rule, draft, now_ns, witness)
        else:
            self._forget()
        if witness:
            self._counted_ns = now_ns

    def holds(self) -> bool:
        """Whether the condition held when last judged; a firing one holds until it is below the clearing threshold."""
        return self.state in ("pending", "firing")

    def absent(self, now_ns: int) -> bool:
        """Takes note that the subject was not judged. True: nothing worth keeping is left."""
        if now_ns - self._judged_ns < INCIDENT_NS:
            return False
        self._forget()
        return True

    def end(self, now_ns: int) -> None:
        """The subject is gone."""
        if self.state is not None:
            self._over(now_ns)

    def _with_lasting_severity(self, rule: Rule, draft: Draft, witness: bool) -> Draft:
        """The draft with the severity that the finding has shown so far, until another one lasts: two in, six out.

        One without a gain is not weighed by it, and changes at once.
        """
        shown = self.draft.severity if self.draft is not None and self.state in ("firing", "clearing") else None
        if shown is None or draft.gain is None or shown in (draft.severity, draft.stays):
            self._other_severity, self._other_streak = None, 0
            return draft if draft.stays is not shown or shown is None else replace(draft, severity=shown)
        if draft.severity is not self._other_severity:
            self._other_severity, self._other_streak, witness = draft.severity, 0, True
        self._other_streak += int(witness)
        is_worse = draft.severity.order < shown.order
        if self._other_streak < (rule.fire_after if is_worse else rule.clear_after):
            return replace(draft, severity=shown)
        self._other_severity, self._other_streak = None, 0
        return draft

    def _condition_holds(self, fire_after: int, now_ns: int, witness: bool) -> None:
        if self.state in ("firing", "clearing"):
            self.state, self._streak = "firing", 0
            return
        if self.state is None:
            self.state, self._streak, witness = "pending", 0, True
            if self._over_ns is None or now_ns - self._over_ns > INCIDENT_NS:
                self.since_ns, self._over_ns = now_ns, None
        self._streak += int(witness)
        if self._streak >= fire_after:
            self.state, self._streak, self._fired_ns = "firing", 0, now_ns
            self.incidents += self._over_ns is None
            self._over_ns = None

    def _condition_gone(self, rule: Rule, draft: Draft | None, now_ns: int, witness: bool) -> None:
        if draft is not None:
            self.state, self._streak = "firing", 0
            return
        if self.state == "firing":
            self.state, witness = "clearing", True
        self._streak += int(witness)
        if self._streak >= rule.clear_after and now_ns - self._fired_ns >= HOLD_NS:
            self._over(now_ns)

    def _over(self, now_ns: int) -> None:
        if self.state in ("firing", "clearing"):
            self._over_ns = now_ns
        self._forget()

    def _forget(self) -> None:
        self.state, self.draft, self._streak = None, None, 0
