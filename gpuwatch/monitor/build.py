"""Builds snapshots: cheap, once a second. Windows of the scene are cut only when rules are evaluated.

A run's panel says what its ranks do now, and gives the last minute's figures and the parts of its training.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypedDict

from gpuwatch.diagnosis.finding import Finding
from gpuwatch.monitor.snapshot import ENDS, STEPLESS, GpuNow, Origin, RankNow, RecordingNow, RunNow, RunState, Snapshot
from gpuwatch.samples import PhaseKind, PhaseSpan, RunFacts
from gpuwatch.timeline.columns import SECOND_NS
from gpuwatch.timeline.figures import StepSums, rank_figures, run_rate, urgency
from gpuwatch.timeline.gpu import REASON_HARDWARE, THROTTLES, GpuHistory, recent_power, recent_utilization, status_of
from gpuwatch.timeline.host import ProcessHistory
from gpuwatch.timeline.phases import LOST_TIME
from gpuwatch.timeline.runs import Bounds, Run, bounds_of, gpus_of, rows_of, stacks_over, sums_of_rows, sums_over
from gpuwatch.timeline.stacks import NOT_TRAINING
from gpuwatch.timeline.timeline import Timeline
from gpuwatch.timeline.times import Anchor, covered_ns
from gpuwatch.timeline.trainer import TrainerHistory
from gpuwatch.timeline.windows import Scene, StackWindow, mean_and_sigma, stats


class Bar(TypedDict, total=False):
    """Shares by their names in RunNow; what is not named is not known."""

    start_share: float | None
    copy_share: float | None
    forward_share: float | None
    backward_share: float | None
    optimizer_share: float | None
    sync_share: float | None
    other_share: float | None
    phase_share: float | None


def bar_of_steps(trainer: TrainerHistory, bounds: Bounds, wait_share: float | None, rows: slice) -> Bar:
    """The parts that the hook measures, each of the steps in which it is known."""
    figures = rank_figures(sums_of_rows(trainer.steps, rows))
    parts = {"copy": figures["copy_share"], "forward": figures["forward_share"]}
    parts |= {"backward": figures["backward_share"], "optimizer": figures["optimizer_share"]}
    # The wait may be of more steps than the parts: together they may come to a hair over 1.
    room, total = max(0.0, 1.0 - (wait_share or 0.0)), sum(each or 0.0 for each in parts.values())
    scale = min(1.0, room / total) if total > 0 else 1.0
    lost = trainer.phases.stretches(LOST_TIME, bounds.start_ns, bounds.end_ns)
    paused = covered_ns(lost, bounds.start_ns, bounds.end_ns) / SECOND_NS
    return Bar(
        copy_share=_scaled(parts["copy"], scale),
        forward_share=_scaled(parts["forward"], scale),
        backward_share=_scaled(parts["backward"], scale),
        optimizer_share=_scaled(parts["optimizer"], scale),
        phase_share=min(1.0, paused / bounds.seconds) if bounds.seconds > 0 else None,
    )


def bar_of_stacks(stacks: StackWindow | None) -> Bar:
    """The parts that the stacks show: with the wait they are all of training time. Nothing without samples."""
    if stacks is None or not stacks.phases:
        return Bar()
    pauses = sum(stacks.phases[phase].value for phase in NOT_TRAINING)
    shares = {phase: share.value for phase, share in stacks.train_phases.items()}
    if not shares:
        return Bar(phase_share=pauses)
    return Bar(
        start_share=shares["start"],
        copy_share=shares["copy"],
        forward_share=shares["forward"],
        backward_share=shares["backward"],
        optimizer_share=shares["optimizer"],
        sync_share=shares["sync"],
        other_share=shares["other"] + shares["log"],
        phase_share=pauses,
    )


def _scaled(part: float | None, scale: float) -> float | None:
    return None if part is None else part * scale


_RECENT_NS = 60 * SECOND_NS
_BANDS_NS = 600 * SECOND_NS
_SHORTEST_BAND_SECONDS = 0.05
_MOST_BANDS = 256
_MOST_STEPS = 1_024  # for percentiles
_MOST_COMPARED = 16  # ranks, each of whose newest steps are summed for every snapshot
_MOST_ROWS = 128  # summed one by one; beyond, the tiers' seconds are exact enough and five times cheaper

_STANDING_STATES: Mapping[str, RunState] = {"eval": "evaluating", "save": "saving", "compile": "warming up"}
_STANDING_NS = 5 * SECOND_NS // 2
_AT_WORK_NS = 10 * SECOND_NS
_SILENT_STEPS = 10
_SILENT_SECONDS = 5.0
_UP_TO_LAST_STEP: frozenset[RunState] = STEPLESS | {"training", "warming up", "ended"}

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
    "not training",
    "starting",
    "not linked",
    "not hooked",
    "ended",
)
"""Which rank's state speaks for the run: while one saves, the others are silent because of it. A process of the job
that makes no steps (the parent of `mp.spawn`) says nothing of those that do."""

_HOW_TO_SEE_MORE = {
    "sampled": "steps and waits are estimated from stacks; `gpuwatch run COMMAND` measures them exactly",
    "process": "no hook in it: start it with `gpuwatch run COMMAND` to see steps, waits and the line to change",
    "hardware": "only the hardware is seen: start it with `gpuwatch run COMMAND` to see its steps and waits",
}


@dataclass(frozen=True, slots=True)
class _Recent:
    """One trainer's last minute: the sums of its steps, or with no hook of its stacks."""

    trainer: TrainerHistory
    facts: RunFacts
    state: RunState
    bounds: Bounds
    sums: StepSums


def run_now(
    run: Run, gpu_indices: tuple[int, ...], processes: Mapping[tuple[int, int], ProcessHistory], now_ns: int
) -> RunNow:
    """One run. Shares are of the critical rank, the one that waits longest."""
    ranks = [_recent(trainer, processes, now_ns) for trainer in run.trainers]
    loudest = min(ranks, key=lambda rank: _LOUDEST.index(rank.state))
    critical = max(
        ranks, key=lambda rank: urgency(rank.state == "ended", rank.sums.wait_share, rank.sums.settled_wait_share)
    )
    last_steps = [rank.trainer.last_step_ns for rank in ranks if rank.trainer.last_step_ns is not None]
    rows = _newest_steps(critical)
    percentiles = stats(critical.trainer.steps["period"][rows])
    stacks = stacks_over(critical.trainer, critical.bounds)
    return RunNow(
        id=run.id,
        title=run.title,
        pid=ranks[0].facts.pid,
        command=ranks[0].facts.command,
        visibility=critical.facts.visibility,
        state=loudest.state,
        pause_seconds=_pause_seconds(loudest, now_ns),
        ranks=tuple(_rank_now(rank, compared=1 < len(ranks) <= _MOST_COMPARED) for rank in ranks),
        gpu_indices=gpu_indices,
        seconds=critical.bounds.seconds,
        steps_total=max(rank.trainer.steps_total for rank in ranks),
        last_step_ns=max(last_steps, default=None),
        step_seconds_p50=percentiles.p50 if percentiles else None,
        step_seconds_p95=percentiles.p95 if percentiles else None,
        step_seconds=critical.sums.step_seconds,
        samples_per_second=run_rate([(rank.state == "ended", rank.sums.samples_per_second) for rank in ranks]),
        batches_per_step=critical.sums.batches_per_step,
        wait_share=critical.sums.wait_share,
        gap_share=critical.sums.gap_share,
        **_bar(critical, stacks, rows),
        batches_per_second=stacks.batches_per_second if stacks else None,
        batches_of_loader=stacks.batches_of_loader if stacks else True,
        batches_exact=stacks.batches_exact if stacks else True,
        samples=stacks.samples if stacks else 0,
        current_line=critical.trainer.stacks.current_line,
        top_line=stacks.lines[0] if stacks and stacks.lines else None,
        phases=_bands(run, now_ns),
        how_to_see_more=critical.facts.how_to_see_more or _HOW_TO_SEE_MORE.get(critical.facts.visibility),
        ended=_ended(run),
        ended_ns=_ended_ns(run),
    )


def _pause_seconds(rank: _Recent, now_ns: int) -> float | None:
    phase = rank.trainer.phases.current()
    if phase is None or _STATES.get(phase.kind) != rank.state:
        return None
    return (now_ns - phase.start_ns) / SECOND_NS


def _ended(run: Run) -> str | None:
    if not run.has_ended:
        return None
    hows = {trainer.ended.how for trainer in run.trainers if trainer.ended is not None}
    return next((how for how in ENDS if how in hows), "exited")


def _ended_ns(run: Run) -> int | None:
    moments = [trainer.ended.time_ns for trainer in run.trainers if trainer.ended is not None]
    return max(moments) if run.has_ended and moments else None


def state_of(trainer: TrainerHistory, process: ProcessHistory | None, now_ns: int) -> RunState:
    """What one trainer does now."""
    if trainer.ended is not None:
        return "ended"
    if process is not None and process.latest is not None and process.latest.state in ("T", "t"):
        return "stopped"
    if trainer.facts is not None and trainer.facts.visibility in ("process", "hardware"):
        return "not linked" if trainer.facts.hooked else "not hooked"
    stands_in = _stands_in(trainer, now_ns)
    if stands_in is not None:
        return stands_in
    phase = trainer.phases.last(tuple(_STATES))
    if phase is not None and _lasts(phase, trainer, now_ns):
        return _STATES[phase.kind]
    if trainer.last_step_ns is None:
        return _stepless(trainer, now_ns)
    silence = (now_ns - trainer.last_step_ns) / SECOND_NS
    if silence > max(_SILENT_STEPS * (trainer.usual_step_seconds() or 0.0), _SILENT_SECONDS):
        return "not training" if trainer.is_outside(now_ns) else "silent"
    return "training" if trainer.warm_up.over_ns is not None else "warming up"


def _stands_in(trainer: TrainerHistory, now_ns: int) -> RunState | None:
    """The pause of the last stack sample, where no hook says so: spans are known once a few samples agree."""
    current_line = trainer.stacks.current_line
    if trainer.is_exact or current_line is None or now_ns - current_line.time_ns > _STANDING_NS:
        return None
    return _STANDING_STATES.get(current_line.phase)


def _stepless(trainer: TrainerHistory, now_ns: int) -> RunState:
    """Before the first step: a loop that is seen at work from outside need not read a loader that counts."""
    is_at_work = not trainer.is_exact and trainer.stacks.trains_since(now_ns - _AT_WORK_NS)
    return "training" if is_at_work else "starting"


def _lasts(phase: PhaseSpan, trainer: TrainerHistory, now_ns: int) -> bool:
    """Whether the phase is open, or ended so recently that the step after it is not done yet."""
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
    stacks = None if trainer.is_exact else stacks_over(trainer, bounds, with_lines=False)
    return _Recent(trainer, facts, state, bounds, sums_over(trainer, stacks, bounds, most_rows=_MOST_ROWS))


def _bounds(trainer: TrainerHistory, state: RunState, now_ns: int) -> Bounds:
    """The last minute; of a run that ended, its own last one.

    Of a run that steps it goes up to the last step: the one that is being made belongs to no part yet. Of one that is
    silent or ended, a pause behind that step still counts; what came after both is not known to be computing.
    """
    bounds = bounds_of(trainer, trainer.ended.time_ns if trainer.ended else now_ns, _RECENT_NS)
    if not trainer.is_exact or trainer.last_step_ns is None or state not in _UP_TO_LAST_STEP:
        return bounds
    known_ns = trainer.last_step_ns
    pause = trainer.phases.last(LOST_TIME) if state in STEPLESS | {"ended"} else None
    if pause is not None:
        known_ns = max(known_ns, bounds.end_ns if pause.end_ns is None else pause.end_ns)
    return Bounds(bounds.start_ns, max(bounds.start_ns, min(bounds.end_ns, known_ns)))


def _newest_steps(rank: _Recent) -> slice:
    rows = rows_of(rank.trainer, rank.bounds)
    return slice(max(rows.start, rows.stop - _MOST_STEPS), rows.stop)


def _rank_now(rank: _Recent, *, compared: bool) -> RankNow:
    figures = rank_figures(sums_of_rows(rank.trainer.steps, _newest_steps(rank))) if compared else None
    return RankNow(
        trainer=rank.trainer.trainer,
        facts=rank.facts,
        state=rank.state,
        steps_total=rank.trainer.steps_total,
        last_step_ns=rank.trainer.last_step_ns,
        step_seconds=rank.sums.step_seconds,
        wait_share=rank.sums.wait_share,
        backward_share=figures["backward_share"] if figures is not None else None,
    )


def _bar(rank: _Recent, stacks: StackWindow | None, rows: slice) -> Bar:
    if rank.trainer.is_exact:
        return bar_of_steps(rank.trainer, rank.bounds, rank.sums.wait_share, rows)
    return bar_of_stacks(stacks)


def _bands(run: Run, now_ns: int) -> tuple[PhaseSpan, ...]:
    """The phases of the last 10 min on any rank, less collections too short to be seen; each stretch of time once."""
    spans = {
        (span.kind, span.start_ns // SECOND_NS): span
        for trainer in run.trainers
        for span in trainer.phases.spans(now_ns - _BANDS_NS)
        if span.kind != "gc" or (span.end_ns or now_ns) - span.start_ns >= _SHORTEST_BAND_SECONDS * SECOND_NS
    }
    return tuple(sorted(spans.values(), key=lambda span: span.start_ns)[-_MOST_BANDS:])


_FELT_SHARE = 0.05  # of the time between two polls: below it a counter's step is not worth a word


def gpu_now(gpu: GpuHistory, timeline: Timeline, now_ns: int) -> GpuNow:
    """The latest of one GPU whose facts are known, and its last minute's utilization."""
    assert gpu.facts is not None
    status = status_of(gpu, now_ns, timeline.interval_seconds, timeline.nvml)
    recent = recent_utilization(gpu, now_ns - _RECENT_NS, now_ns)
    mean, sigma = mean_and_sigma(recent) if recent else (None, None)
    powers = recent_power(gpu, now_ns - _RECENT_NS, now_ns)
    return GpuNow(
        facts=gpu.facts,
        status=status.word,
        status_reason=status.reason,
        status_since_ns=status.since_ns,
        latest=gpu.latest,
        latest_status=gpu.latest_status,
        latest_health=gpu.latest_health,
        throttled_by=throttled_by(gpu),
        utilization_mean_percent=mean,
        utilization_sigma_percent=sigma,
        power_mean_watts=sum(powers) / len(powers) if powers else None,
        idle_since_ns=gpu.idle_since_ns,
        idle_when_found=gpu.idle_when_found,
    )


def throttled_by(gpu: GpuHistory) -> tuple[str, ...]:
    """What slows the GPU down now: by the latest mask, and by what the counters gained since the poll before.

    The bit for a hardware slowdown says no cause; it is named only where neither heat nor the brake is.
    """
    if gpu.latest is None:
        return ()
    mask = gpu.latest.event_reasons or 0
    slowing = (each.word for each in THROTTLES.values() if mask & each.bit or _gained(gpu, each.counter))
    words = list(dict.fromkeys(slowing))
    if mask & REASON_HARDWARE and "thermal" not in words and "power brake" not in words:
        words.append("HW slowdown")
    return tuple(words)


def _gained(gpu: GpuHistory, counter: str) -> bool:
    if len(gpu.polls) < 2:
        return False
    before, after = gpu.polls[counter][-2:]
    between_ns = gpu.polls.times[-1] - gpu.polls.times[-2]
    return bool(after - before > _FELT_SHARE * between_ns)


_ENDED_SHOWN_NS = 600 * SECOND_NS  # an ended run stays on the screen for 10 min


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What the last evaluation found."""

    scene: Scene | None = None
    findings: tuple[Finding, ...] = ()


def build_snapshot(
    timeline: Timeline,
    *,
    now_ns: int,
    wall_time: float,
    origin: Origin,
    evaluation: Evaluation,
    next_evaluation_ns: int | None = None,
    only_pids: frozenset[int] | None = None,
    attached_pid: int | None = None,
    notices: tuple[str, ...] = (),
    recording: RecordingNow | None = None,
    wall_anchors: tuple[Anchor, ...] = (),
) -> Snapshot:
    """The state of everything at `now_ns`."""
    with timeline.lock:
        runs = timeline.runs(now_ns, _ENDED_SHOWN_NS, only_pids)
        used = {run.id: gpus_of(run, timeline.gpus, timeline.processes) for run in runs}
        gpus = timeline.gpus_in_order({uuid for uuids in used.values() for uuid in uuids} if only_pids else None)
        index = {gpu.uuid: gpu.facts.index for gpu in gpus if gpu.facts}
        return Snapshot(
            time_ns=now_ns,
            wall_time=wall_time,
            started_ns=now_ns if timeline.started_ns is None else timeline.started_ns,
            origin=origin,
            machine=timeline.machine,
            nvml=timeline.nvml,
            host=timeline.host.latest,
            gpus=tuple(gpu_now(gpu, timeline, now_ns) for gpu in gpus),
            runs=tuple(
                run_now(run, tuple(index[uuid] for uuid in used[run.id] if uuid in index), timeline.processes, now_ns)
                for run in runs
            ),
            findings=in_order(evaluation.findings),
            scene=evaluation.scene,
            next_evaluation_seconds=(
                None if next_evaluation_ns is None else max(0.0, (next_evaluation_ns - now_ns) / SECOND_NS)
            ),
            candidates=timeline.candidates,
            searched=timeline.searched,
            attached_pid=attached_pid,
            notices=notices,
            recording=recording,
            wall_anchors=wall_anchors,
        )


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those that fire or clear, worst first, those behind another last."""
    shown = [finding for finding in findings if finding.state != "pending"]
    return tuple(sorted(shown, key=lambda finding: (finding.behind is not None, finding.severity.order)))
