"""A run's panel of the snapshot: what its ranks do now, and the last minute's figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpuwatch.monitor.snapshot import ENDS, RankNow, RunNow, RunState
from gpuwatch.samples import PhaseKind, PhaseSpan, RunFacts
from gpuwatch.timeline.columns import number
from gpuwatch.timeline.phases import LOST_TIME
from gpuwatch.timeline.process_history import ProcessHistory
from gpuwatch.timeline.rank_window import Bounds, bounds_of, sums_over
from gpuwatch.timeline.run_history import TrainerHistory
from gpuwatch.timeline.runs import Run
from gpuwatch.timeline.spans import covered_ns
from gpuwatch.timeline.stats import known, stats
from gpuwatch.timeline.step_tiers import share
from gpuwatch.timeline.tiers import SECOND_NS

_RECENT_NS = 60 * SECOND_NS
_BANDS_NS = 600 * SECOND_NS
_SHORTEST_BAND_SECONDS = 0.05
_MOST_BANDS = 256
_MOST_STEPS = 1_024  # for percentiles
_MOST_ROWS = 128  # summed one by one; beyond, the tiers' seconds are exact enough and five times cheaper

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
    "warming up",
    "training",
    "starting",
    "not hooked",
    "ended",
)
"""Which rank's state speaks for the run: while one saves, the others are silent because of it. A process of the job
that makes no steps (the parent of `mp.spawn`) says nothing of those that do."""

_HOW_TO_CLIMB = {
    "sampled": "steps and waits are estimated from stacks; `gpuwatch run COMMAND` measures them exactly",
    "proc": "no hook in this process: start it with `gpuwatch run COMMAND` to see steps, waits and the line to change",
    "hardware": "only the hardware is seen: start it with `gpuwatch run COMMAND` to see its steps and waits",
}


@dataclass(frozen=True, slots=True)
class _Recent:
    """One trainer's last minute."""

    trainer: TrainerHistory
    facts: RunFacts
    state: RunState
    bounds: Bounds
    sums: Mapping[str, float]

    @property
    def wait_share(self) -> float:
        """What part of training waits; 0 where that is not seen, to compare ranks."""
        return share(self.sums, "wait", "wait_train") or 0.0


def run_now(
    run: Run, gpu_indices: tuple[int, ...], processes: Mapping[tuple[int, int], ProcessHistory], now_ns: int
) -> RunNow:
    """One run. Shares are of the critical rank, the one that waits longest."""
    ranks = [_recent(trainer, processes, now_ns) for trainer in run.trainers]
    critical = max(ranks, key=lambda rank: (rank.state != "ended", rank.wait_share))
    counted = [rank for rank in ranks if rank.state != "ended"] or ranks
    rates = [share(rank.sums, "samples", "samples_train") for rank in counted]
    last_steps = [rank.trainer.last_step_ns for rank in ranks if rank.trainer.last_step_ns is not None]
    rows = _newest_steps(critical)
    percentiles = stats(critical.trainer.steps["period"][rows])
    return RunNow(
        id=run.id,
        title=run.title,
        pid=ranks[0].facts.pid,
        command=ranks[0].facts.command,
        rung=critical.facts.rung,
        state=min((rank.state for rank in ranks), key=_LOUDEST.index),
        ranks=tuple(_rank_now(rank) for rank in ranks),
        gpu_indices=gpu_indices,
        seconds=critical.bounds.seconds,
        steps_total=max(rank.trainer.steps_total for rank in ranks),
        last_step_ns=max(last_steps, default=None),
        step_seconds_p50=percentiles.p50 if percentiles else None,
        step_seconds_p95=percentiles.p95 if percentiles else None,
        samples_per_second=sum(known(number(rate) for rate in rates)) if any(rates) else None,
        wait_share=share(critical.sums, "wait", "wait_train"),
        gap_share=share(critical.sums, "gap", "gap_train"),
        **_fitted(_parts(critical, rows)),
        phases=_bands(run, now_ns),
        how_to_climb=_HOW_TO_CLIMB.get(critical.facts.rung),
        ended=_ended(run),
    )


def _ended(run: Run) -> str | None:
    if not run.has_ended:
        return None
    hows = {trainer.ended.how for trainer in run.trainers if trainer.ended is not None}
    return next((how for how in ENDS if how in hows), "exited")


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


def _recent(trainer: TrainerHistory, processes: Mapping[tuple[int, int], ProcessHistory], now_ns: int) -> _Recent:
    facts = trainer.facts
    assert facts is not None
    state = state_of(trainer, processes.get((facts.pid, facts.start_ticks)), now_ns)
    bounds = _bounds(trainer, state, now_ns)
    return _Recent(trainer, facts, state, bounds, sums_over(trainer, bounds, most_rows=_MOST_ROWS))


def _bounds(trainer: TrainerHistory, state: RunState, now_ns: int) -> Bounds:
    """The last minute; of a run that ended, its own last one.

    Of a run that steps it goes up to the last step: the one that is being made belongs to no part yet.
    """
    bounds = bounds_of(trainer, trainer.ended.time_ns if trainer.ended else now_ns, _RECENT_NS)
    if state in ("training", "warming up") and trainer.last_step_ns is not None:
        return Bounds(bounds.start_ns, max(bounds.start_ns, min(bounds.end_ns, trainer.last_step_ns)))
    return bounds


def _newest_steps(rank: _Recent) -> slice:
    steps = rank.trainer.steps
    low, high = steps.since(rank.bounds.start_ns), steps.until(rank.bounds.end_ns)
    return slice(max(low, high - _MOST_STEPS), high)


def _rank_now(rank: _Recent) -> RankNow:
    return RankNow(
        trainer=rank.trainer.trainer,
        facts=rank.facts,
        state=rank.state,
        steps_total=rank.trainer.steps_total,
        last_step_ns=rank.trainer.last_step_ns,
        step_seconds=share(rank.sums, "train", "steps"),
        wait_share=share(rank.sums, "wait", "wait_train"),
    )


def _of_wall(seconds: float | None, bounds: Bounds) -> float | None:
    return min(1.0, seconds / bounds.seconds) if seconds is not None and bounds.seconds > 0 else None


def _parts(rank: _Recent, rows: slice) -> dict[str, float | None]:
    """The parts of the bar. Those of the newest steps are scaled to all training of the minute."""
    steps, bounds, sums = rank.trainer.steps, rank.bounds, rank.sums
    parts = {"wait_wall_share": _of_wall(sums["wait"] if sums["wait_train"] else None, bounds)}
    period = sum(steps["period"][rows])
    for name in ("copy", "forward", "backward", "optimizer"):
        measured = known(steps[name][rows])
        parts[f"{name}_share"] = _of_wall(sum(measured) / period * sums["train"] if measured else None, bounds)
    lost = rank.trainer.phases.stretches(LOST_TIME, bounds.start_ns, bounds.end_ns)
    parts["phase_share"] = _of_wall(covered_ns(lost, bounds.start_ns, bounds.end_ns) / SECOND_NS, bounds)
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
