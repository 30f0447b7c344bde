"""Whether a run still moves: what the two hang rules share."""

from __future__ import annotations

from gpuwatch.diagnosis.advice.sampled import is_sampled
from gpuwatch.diagnosis.advice.stalled_lines import stands
from gpuwatch.diagnosis.finding import Measure
from gpuwatch.diagnosis.rule import RunCase
from gpuwatch.diagnosis.wording import seconds
from gpuwatch.timeline.windows import RankWindow

LEAST_SILENCE_SECONDS = 60.0
STEPS_OF_SILENCE = 10.0
STEPS_BEFORE_JUDGING = 10
PHASE_SECONDS = 300.0
"""An evaluation, a save or a compilation in which nothing has moved for so long is no longer one."""
PHASE_WORDS = {"eval": "evaluating", "checkpoint": "saving", "compile": "compiling"}
PHASES_OF_STACKS = frozenset({"eval", "save", "compile"})
"""The same phases, as samples of stacks name them."""
IN_THE_LOOP = frozenset({"wait", "forward", "backward", "optimizer", "sync", "copy"})
"""Where a training that was attached to while it hung may stand; elsewhere it may not have begun."""


def silent_seconds(case: RunCase, least_seconds: float = LEAST_SILENCE_SECONDS) -> float | None:
    """Seconds since any rank's last step, if that is longer than `least_seconds` and ten of its slow (p99) steps.

    None while the run moves, is in a known phase or in no training loop, sleeps or stands in a debugger by
    its own line, was stopped by a signal, has ended, or has
    made too few steps to know its pace. From outside the pace is not known: the thread must stand on one line for as
    long. A run that was found at its line counts from then on, if it stands in a training loop.
    """
    ranks = [rank for rank in case.run.ranks if rank.ended is None]
    if not ranks or any(rank.open_phase is not None for rank in ranks):
        return None
    if all(rank.outside for rank in ranks):
        return None
    if any(rank.process is not None and rank.process.latest.state == "T" for rank in ranks):
        return None
    if any(stand.is_meant for stand in stands(case)):
        return None
    if all(is_sampled(rank) for rank in ranks):
        return _stood_seconds(case, ranks, least_seconds)
    if max(rank.steps_total for rank in ranks) < STEPS_BEFORE_JUDGING:
        return None
    last = max((rank.last_step_ns or 0) for rank in ranks)
    pace = max((rank.step_p99_session_seconds or 0.0) for rank in ranks)
    silence = (case.now_ns - last) / 1e9
    return silence if silence > max(least_seconds, STEPS_OF_SILENCE * pace) else None


def stuck_phase(case: RunCase) -> tuple[str, float] | None:
    """The phase that a run has been in for more than five minutes, as a word, and its seconds.

    Its stack must have stood in that phase for a minute: an evaluation's iterator that was left in the middle looks
    open too. Whether a core, a GPU or a byte moves, the caller checks.
    """
    ranks = [rank for rank in case.run.ranks if rank.ended is None]
    phases = [rank.open_phase for rank in ranks if rank.open_phase is not None]
    if not phases or any(phase.kind not in PHASE_WORDS for phase in phases):
        return None
    if any(rank.process is not None and rank.process.latest.state == "T" for rank in ranks):
        return None
    found = stands(case)
    if not any(stand.line.phase in PHASES_OF_STACKS for stand in found):
        return None
    if any(stand.seconds < LEAST_SILENCE_SECONDS for stand in found):
        return None
    newest = max(phases, key=lambda phase: phase.start_ns)
    lasts = (case.now_ns - max(newest.start_ns, *(rank.last_step_ns or 0 for rank in ranks))) / 1e9
    return (PHASE_WORDS[newest.kind], lasts) if lasts > PHASE_SECONDS else None


def _stood_seconds(case: RunCase, ranks: list[RankWindow], least_seconds: float) -> float | None:
    found = stands(case)
    if len(found) < len(ranks) or min(stand.seconds for stand in found) <= least_seconds:
        return None
    if max(rank.steps_total for rank in ranks) < STEPS_BEFORE_JUDGING:
        return (
            min(stand.seconds for stand in found) if all(stand.line.phase in IN_THE_LOOP for stand in found) else None
        )
    silence = (case.now_ns - max((rank.last_step_ns or 0) for rank in ranks)) / 1e9
    return silence if silence > least_seconds else None


def silence_measure(case: RunCase, silence: float) -> Measure:
    """The silence as evidence; of a run that was found current_line, when its last step was is not known."""
    known = any(rank.last_step_ns is not None for rank in case.run.ranks)
    text = (
        f"last step {seconds(silence)} ago"
        if known
        else f"no step seen for {seconds(silence)}, since gpuwatch began to watch it"
    )
    return Measure("seconds_since_step", round(silence, 1), text)
