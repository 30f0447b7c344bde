"""A run's panel of the snapshot: what its ranks do now, and the last minute's figures."""

from __future__ import annotations

from collections.abc import Mapping

from gpuwatch.monitor.snapshot import RankNow, RunNow, RunState
from gpuwatch.samples import PhaseKind, PhaseSpan
from gpuwatch.timeline.phases import LOST_TIME
from gpuwatch.timeline.process_history import ProcessHistory
from gpuwatch.timeline.rank_window import Bounds, bounds_of
from gpuwatch.timeline.run_history import TrainerHistory
from gpuwatch.timeline.runs import Run
from gpuwatch.timeline.spans import covered_ns
from gpuwatch.timeline.stats import stats
from gpuwatch.timeline.step_tiers import share
from gpuwatch.timeline.tiers import SECOND_NS

_RECENT_NS = 60 * SECOND_NS
_BANDS_NS = 600 * SECOND_NS
_SHORTEST_BAND_SECONDS = 0.05
_MOST_BANDS = 256
_MOST_STEPS = 1_024  # for percentiles

_SILENT_STEPS = 10
_SILENT_SECONDS = 5.0

_STATES: Mapping[PhaseKind, RunState] = {
    "eval": "evaluating",
    "checkpoint": "saving",
    "compile": "warming up",
    "warmup": "warming up",
}
_LOUDEST: tuple[RunState, ...] = (
    "stopped",
    "saving",
    "evaluating",
    "silent",
    "starting",
    "warming up",
    "training",
    "not hooked",
    "ended",
)
"""Which rank's state speaks for the run: while one saves, the others are silent because of it."""

_HOW_TO_CLIMB = {
    "sampled": "steps and waits are estimated from stacks; `gpuwatch run COMMAND` measures them exactly",
    "proc": "no hook in this process: start it with `gpuwatch run COMMAND` to see steps, waits and the line to change",
    "hardware": "only the hardware is seen: start it with `gpuwatch run COMMAND` to see its steps and waits",
}


def run_now(
    run: Run, gpu_indices: tuple[int, ...], processes: Mapping[tuple[int, int], ProcessHistory], now_ns: int
) -> RunNow:
    """One run. Shares are of the critical rank, the one that waits longest, and of wall time."""
    ranks = [_rank_now(trainer, processes, now_ns) for trainer in run.trainers]
    critical = max(range(len(ranks)), key=lambda place: (ranks[place].state != "ended", ranks[place].wait_share or 0.0))
    trainer = run.trainers[critical]
    facts = trainer.facts
    assert facts is not None
    bounds = bounds_of(trainer, now_ns, _RECENT_NS)
    sums = trainer.tiers.sums(bounds.start_ns, bounds.end_ns)
    low, high = trainer.steps.since(bounds.start_ns), trainer.steps.until(bounds.end_ns)
    recent = slice(max(low, high - _MOST_STEPS), high)
    percentiles = stats(trainer.steps["period"][recent])
    rates = [_samples_per_second(each, now_ns) for each in run.trainers if each.ended is None or run.has_ended]
    lost = trainer.phases.stretches(LOST_TIME, bounds.start_ns, bounds.end_ns)
    shares = {
        "wait_share": _of_wall(sums["wait"] if sums["wait_train"] else None, bounds),
        **_parts(trainer, recent, sums["train"], bounds),
        "phase_share": _of_wall(covered_ns(lost, bounds.start_ns, bounds.end_ns) / SECOND_NS, bounds),
    }
    lead = run.trainers[0].facts
    assert lead is not None
    return RunNow(
        id=run.id,
        title=run.title,
        pid=lead.pid,
        command=lead.command,
        rung=facts.rung,
        state=min((rank.state for rank in ranks), key=_LOUDEST.index),
        ranks=tuple(ranks),
        gpu_indices=gpu_indices,
        seconds=bounds.seconds,
        steps_total=max(rank.steps_total for rank in ranks),
        last_step_ns=max((rank.last_step_ns for rank in ranks if rank.last_step_ns is not None), default=None),
        step_seconds_p50=percentiles.p50 if percentiles else None,
        step_seconds_p95=percentiles.p95 if percentiles else None,
        samples_per_second=sum(known) if (known := [rate for rate in rates if rate is not None]) else None,
        gap_share=_of_wall(_gap_seconds(sums), bounds),
        **_fitted(shares),
        phases=_bands(run, now_ns),
        how_to_climb=_HOW_TO_CLIMB.get(facts.rung),
    )


def state_of(trainer: TrainerHistory, process: ProcessHistory | None, now_ns: int) -> RunState:
    """What one trainer does now."""
    if trainer.ended is not None:
        return "ended"
    if process is not None and process.latest is not None and process.latest.state in ("T", "t"):
        return "stopped"
    if trainer.facts is not None and trainer.facts.rung in ("proc", "hardware"):
        return "not hooked"
    phase = trainer.phases.last(tuple(_STATES))
    if phase is not None and _lasts(phase, trainer, now_ns):
        return _STATES[phase.kind]
    if trainer.last_step_ns is None:
        return "starting"
    silence = (now_ns - trainer.last_step_ns) / SECOND_NS
    if silence > max(_SILENT_STEPS * (trainer.usual_step_seconds() or 0.0), _SILENT_SECONDS):
        return "silent"
    return "training" if trainer.warm_up.over_ns is not None else "warming up"


def _lasts(phase: PhaseSpan, trainer: TrainerHistory, now_ns: int) -> bool:
    """Whether the phase is open, or ended so lately that the step after it is not done yet."""
    if phase.end_ns is None:
        return True
    is_after_step = trainer.last_step_ns is None or phase.end_ns > trainer.last_step_ns
    patience = max(2 * (trainer.usual_step_seconds() or 0.0), 1.0)
    return is_after_step and (now_ns - phase.end_ns) / SECOND_NS <= patience


def _rank_now(trainer: TrainerHistory, processes: Mapping[tuple[int, int], ProcessHistory], now_ns: int) -> RankNow:
    facts = trainer.facts
    assert facts is not None
    bounds = bounds_of(trainer, now_ns, _RECENT_NS)
    sums = trainer.tiers.sums(bounds.start_ns, bounds.end_ns)
    return RankNow(
        trainer=trainer.trainer,
        facts=facts,
        state=state_of(trainer, processes.get((facts.pid, facts.start_ticks)), now_ns),
        steps_total=trainer.steps_total,
        last_step_ns=trainer.last_step_ns,
        step_seconds=share(sums, "train", "steps"),
        wait_share=share(sums, "wait", "wait_train"),
    )


def _samples_per_second(trainer: TrainerHistory, now_ns: int) -> float | None:
    bounds = bounds_of(trainer, now_ns, _RECENT_NS)
    return share(trainer.tiers.sums(bounds.start_ns, bounds.end_ns), "samples", "samples_train")


def _of_wall(seconds: float | None, bounds: Bounds) -> float | None:
    return min(1.0, seconds / bounds.seconds) if seconds is not None and bounds.seconds > 0 else None


def _gap_seconds(sums: Mapping[str, float]) -> float | None:
    """The GPU's idle time in all training, from the settled steps where it was measured."""
    gap = share(sums, "gap", "gap_train")
    return None if gap is None else gap * sums["train"]


def _parts(trainer: TrainerHistory, rows: slice, training: float, bounds: Bounds) -> dict[str, float | None]:
    """The parts of the newest steps, scaled to all training of the minute."""
    steps = trainer.steps
    period = sum(steps["period"][rows])
    parts: dict[str, float | None] = {}
    for name in ("copy", "forward", "backward", "optimizer"):
        seconds = sum(value for value in steps[name][rows] if value == value)
        is_known = any(value == value for value in steps[name][rows])
        parts[f"{name}_share"] = _of_wall(seconds / period * training if is_known and period else None, bounds)
    return parts


def _fitted(shares: dict[str, float | None]) -> dict[str, float | None]:
    """The parts of one bar: whole seconds of steps against exact phases may come to a hair over 1."""
    total = sum(share for share in shares.values() if share is not None)
    return {name: share / total if share is not None and total > 1.0 else share for name, share in shares.items()}


def _bands(run: Run, now_ns: int) -> tuple[PhaseSpan, ...]:
    """The phases of the last 10 min on any rank, less collections too short to be seen; each stretch of time once."""
    spans = {
        (span.kind, span.start_ns // SECOND_NS): span
        for trainer in run.trainers
        for span in trainer.phases.spans(now_ns - _BANDS_NS)
        if span.kind != "gc" or (span.end_ns or now_ns) - span.start_ns >= _SHORTEST_BAND_SECONDS * SECOND_NS
    }
    return tuple(sorted(spans.values(), key=lambda span: span.start_ns)[-_MOST_BANDS:])
