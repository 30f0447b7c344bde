"""Whether a run still moves: what the two hang rules share."""

from __future__ import annotations

from gpuwatch.diagnosis.rule import RunCase

LEAST_SILENCE_SECONDS = 60.0
STEPS_OF_SILENCE = 10.0
STEPS_BEFORE_JUDGING = 10


def silent_seconds(case: RunCase) -> float | None:
    """Seconds since any rank's last step, if that is longer than 60 s and ten of its slow (p99) steps.

    None while the run moves, is in a known phase, was stopped by a signal, has ended, or has made too few steps to
    know its pace.
    """
    ranks = [rank for rank in case.run.ranks if rank.ended is None]
    if not ranks or any(rank.open_phase is not None for rank in ranks):
        return None
    if max(rank.steps_total for rank in ranks) < STEPS_BEFORE_JUDGING:
        return None
    if any(rank.process is not None and rank.process.latest.state == "T" for rank in ranks):
        return None
    last = max((rank.last_step_ns or 0) for rank in ranks)
    pace = max((rank.step_p99_session_seconds or 0.0) for rank in ranks)
    silence = (case.now_ns - last) / 1e9
    return silence if silence > max(LEAST_SILENCE_SECONDS, STEPS_OF_SILENCE * pace) else None
