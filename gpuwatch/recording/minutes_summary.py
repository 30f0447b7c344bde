"""The figures of a long stretch from its minutes alone: no sample is read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from gpuwatch.recording import pooled
from gpuwatch.recording.reader import Recording
from gpuwatch.recording.session_summary import GpuSummary, RunSummary
from gpuwatch.recording.step_metrics import known_in
from gpuwatch.recording.types import Rollup
from gpuwatch.samples import PhaseKind
from gpuwatch.timeline.run_history import TrainerHistory
from gpuwatch.timeline.runs import Run, gpus_of
from gpuwatch.timeline.spans import Span, outside, united
from gpuwatch.timeline.tiers import MINUTE_NS
from gpuwatch.timeline.timeline import Timeline

PAUSES: tuple[PhaseKind, ...] = ("warmup", "eval", "checkpoint", "compile", "stopped")
_TRAINING = ("step_seconds", "counted_batches")
FEWEST_TRAINING_MINUTES = 3
_LONGEST_SECONDS = 366 * 24 * 3600.0  # of a pause: what a hostile file claims may be any number
_METRICS = frozenset(
    {
        *("utilization_percent", "power_watts", "memory_used_bytes", "temperature_celsius", "energy_joules"),
        *(f"{kind}_phase_seconds" for kind in PAUSES),
        *("step_seconds", "step_batches", "step_samples", "wait_seconds", known_in("wait"), known_in("samples")),
        *("counted_batches", "stack_wait_train_share"),
    }
)

Minutes = Mapping[tuple[str, str], Sequence[Rollup]]
"""By subject and metric, in order of time."""


def summarize_minutes(recording: Recording, start_ns: int, end_ns: int) -> tuple[list[GpuSummary], list[RunSummary]]:
    """GPUs by index, and runs.

    A minute belongs to training if steps were made in it and no pause ended in it; the first minute with steps is
    taken for warm-up. So a run that evaluates every minute has a utilization of all time only.
    """
    minutes: dict[tuple[str, str], list[Rollup]] = defaultdict(list)
    for rollup in recording.rollups(start_ns, end_ns, metrics=_METRICS):
        minutes[rollup.subject, rollup.metric].append(rollup)
    timeline = Timeline(started_ns=start_ns, interval_seconds=recording.meta.interval_seconds)
    timeline.extend(recording.standing_facts(end_ns))
    runs: list[RunSummary] = []
    training: dict[str, frozenset[int]] = {}
    for run in timeline.runs(end_ns, end_ns - start_ns):
        warm = {trainer.trainer: _warm(minutes, trainer.trainer) for trainer in run.trainers}
        summary = _run(run, warm, gpus_of(run, timeline.gpus, timeline.processes), minutes, (start_ns, end_ns))
        if summary is not None:
            runs.append(summary)
            training |= dict.fromkeys(summary.gpu_uuids, _training_minutes(minutes, warm))
    gpus = [_gpu(timeline, gpu.uuid, minutes, training.get(gpu.uuid, frozenset())) for gpu in timeline.gpus_in_order()]
    return [gpu for gpu in gpus if gpu is not None], runs


def _warm(minutes: Minutes, trainer: str) -> dict[str, list[Rollup]]:
    """A trainer's metrics without its first minute of steps, where there is a second one."""
    own = {metric: list(found) for (subject, metric), found in minutes.items() if subject == trainer}
    made = sorted({minute.minute_ns for metric in _TRAINING for minute in own.get(metric, ())})
    begin_ns = made[1] if len(made) > 1 else 0
    return {metric: [each for each in found if each.minute_ns >= begin_ns] for metric, found in own.items()}


def _training_minutes(minutes: Minutes, warm: Mapping[str, Mapping[str, Sequence[Rollup]]]) -> frozenset[int]:
    training: set[int] = set()
    for trainer, own in warm.items():
        made = {minute.minute_ns for metric in _TRAINING for minute in own.get(metric, ())}
        pauses = (
            (minute.minute_ns, minute.max)
            for kind in PAUSES
            for minute in minutes.get((trainer, f"{kind}_phase_seconds"), ())
        )
        training |= unpaused(made, pauses)
    return frozenset(training)


def unpaused(made: Collection[int], pauses: Iterable[tuple[int, float]]) -> set[int]:
    """Of some minutes, those that no pause touches.

    Args:
        made: their times in nanoseconds.
        pauses: the minute in which each ended, and its length in seconds.
    """
    spans = united(
        (at_ns // MINUTE_NS * MINUTE_NS - round(min(seconds, _LONGEST_SECONDS) // 60) * MINUTE_NS, at_ns + MINUTE_NS)
        for at_ns, seconds in pauses
        if seconds >= 0
    )
    ordered = sorted(at_ns // MINUTE_NS * MINUTE_NS for at_ns in made)
    free = {ordered[place] for place in outside([at_ns + 1 for at_ns in ordered], spans)}
    return {at_ns for at_ns in made if at_ns // MINUTE_NS * MINUTE_NS in free}


def _gpu(timeline: Timeline, uuid: str, minutes: Minutes, training: Collection[int]) -> GpuSummary | None:
    history = timeline.gpus[uuid]
    if history.facts is None:
        return None
    use = minutes.get((uuid, "utilization_percent"), ())
    trained = [minute for minute in use if minute.minute_ns in training]
    health = history.latest_health
    return GpuSummary(
        facts=history.facts,
        utilization_percent=pooled.swing(use),
        train_utilization_percent=pooled.swing(trained) if len(trained) >= FEWEST_TRAINING_MINUTES else None,
        power_watts=pooled.level(minutes.get((uuid, "power_watts"), ())),
        power_limit_watts=(health.power_limit_watts if health else None) or history.facts.power_limit_watts,
        memory_used_bytes=pooled.level(minutes.get((uuid, "memory_used_bytes"), ())),
        temperature_celsius=pooled.level(minutes.get((uuid, "temperature_celsius"), ())),
        energy_joules=_energy(minutes, uuid, None),
    )


def _energy(minutes: Minutes, uuid: str, only: Collection[int] | None) -> float | None:
    found = [each for each in minutes.get((uuid, "energy_joules"), ()) if only is None or each.minute_ns in only]
    return pooled.total(found) if found else None


def _run(
    run: Run,
    warm: Mapping[str, Mapping[str, Sequence[Rollup]]],
    gpu_uuids: tuple[str, ...],
    minutes: Minutes,
    span: Span,
) -> RunSummary | None:
    ranks = [_rank(trainer, warm[trainer.trainer], span) for trainer in run.trainers]
    known = [rank for rank in ranks if rank is not None]
    if not known:
        return None
    critical = max(known, key=lambda rank: rank.wait_share or 0.0)
    rates = [rank.samples_per_second for rank in known if rank.samples_per_second is not None]
    trained = sum((rank.samples_per_second or 0.0) * rank.train_seconds for rank in known)
    spent_in = {each.minute_ns for own in warm.values() for metric in _TRAINING for each in own.get(metric, ())}
    energies = [_energy(minutes, uuid, spent_in) for uuid in gpu_uuids]
    is_known = energies and None not in energies and trained > 0
    model, steps = critical.facts.model, warm[critical.facts.trainer].get("step_seconds", ())
    return RunSummary(
        id=run.id,
        title=run.title,
        facts=critical.facts,
        gpu_uuids=gpu_uuids,
        steps=critical.steps,
        train_seconds=critical.train_seconds,
        samples_per_second=sum(rates) if rates else None,
        wait_seconds_per_batch=critical.wait_seconds_per_batch,
        wait_share=critical.wait_share,
        step_p50_seconds=pooled.quantile(steps, 0.5),
        step_p95_seconds=pooled.quantile(steps, 0.95),
        energy_joules_per_sample=sum(each or 0.0 for each in energies) / trained if is_known else None,
        batch_size=critical.batch_size,
        model_parameters=model.parameters,
        parameter_bits=model.parameter_bits,
        autocast=model.autocast_name,
    )


def _rank(trainer: TrainerHistory, own: Mapping[str, Sequence[Rollup]], span: Span) -> RunSummary | None:
    """One trainer's figures; None of one that made no step."""
    facts = trainer.facts
    if facts is None:
        return None
    steps, waits = own.get("step_seconds", ()), own.get("wait_seconds", ())
    loader = trainer.train_loader()
    batch_size = loader.batch_size if loader else None
    if steps:
        batches = pooled.count(waits) * (pooled.mean(own.get("step_batches", ())) or 1.0)
        samples, known_samples = own.get("step_samples", ()), own.get(known_in("samples"), ())
        return RunSummary(
            id=trainer.trainer,
            title="",
            facts=facts,
            steps=pooled.count(steps),
            train_seconds=pooled.total(steps),
            samples_per_second=pooled.share(steps, samples, known_samples),
            wait_seconds_per_batch=pooled.total(waits) / batches if batches else None,
            wait_share=pooled.share(steps, waits, own.get(known_in("wait"), ())),
            batch_size=batch_size,
        )
    counted = pooled.total(own.get("counted_batches", ()))
    if not counted:
        return None
    seconds = sum(_seconds_within(minute, span) for minute in own["counted_batches"])
    share = pooled.mean(own.get("stack_wait_train_share", ()))
    pauses = sum(pooled.total(own.get(f"{kind}_phase_seconds", ())) for kind in PAUSES)
    train_seconds = max(0.0, seconds - pauses)
    return RunSummary(
        id=trainer.trainer,
        title="",
        facts=facts,
        steps=round(counted),
        train_seconds=train_seconds,
        samples_per_second=None if batch_size is None else counted * batch_size / seconds,
        wait_seconds_per_batch=None if share is None else share * train_seconds / counted,
        wait_share=share,
        batch_size=batch_size,
    )


def _seconds_within(minute: Rollup, span: Span) -> float:
    """How much of the minute the stretch covers: its last one may have just begun."""
    return max(0, min(minute.minute_ns + MINUTE_NS, span[1]) - max(minute.minute_ns, span[0])) / 1e9
