"""What a stretch of a recording comes to: the figures of its GPUs and runs, and its findings.

Up to 15 minutes its samples go through the same timeline as live ones, so the figures are those of the live report.
What is longer is put together from the minutes: a day of eight GPUs then takes well under a second.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gpuwatch.recording import pooled
from gpuwatch.recording.minutes import known_in
from gpuwatch.recording.pooled import Level, Swing
from gpuwatch.recording.reader import Recording
from gpuwatch.recording.types import Rollup
from gpuwatch.samples import GpuFacts, PhaseKind, ProcessSample, RunFacts
from gpuwatch.timeline.figures import sampled_wait_share, wait_seconds_per_batch
from gpuwatch.timeline.runs import Run, gpus_of
from gpuwatch.timeline.spans import Span, outside, united
from gpuwatch.timeline.tiers import MINUTE_NS
from gpuwatch.timeline.timeline import Timeline
from gpuwatch.timeline.trainer import TrainerHistory
from gpuwatch.timeline.windows import GpuWindow, RunWindow, Scene, Stats


@dataclass(frozen=True, slots=True)
class GpuSummary:
    """One GPU. `utilization_percent` is of all samples, as the report has it.

    `train_utilization_percent` leaves out warm-up, evaluations, checkpoints and other pauses of the run on this GPU.
    """

    facts: GpuFacts
    utilization_percent: Swing | None = None
    train_utilization_percent: Swing | None = None
    power_watts: Level | None = None
    power_limit_watts: float | None = None
    memory_used_bytes: Level | None = None
    temperature_celsius: Level | None = None
    energy_joules: float | None = None


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run; its figures are those of the rank that all others wait for, but for `samples_per_second`: all ranks'.

    Warm-up is left out. A step is a batch where the run was seen from outside. `parameter_bits` are those of most
    parameters, `autocast` the type that autocast was seen to compute in ("bfloat16"), "" where it was off.
    """

    id: str
    title: str
    facts: RunFacts
    gpu_uuids: tuple[str, ...] = ()
    steps: int = 0
    train_seconds: float = 0.0
    samples_per_second: float | None = None  # of all ranks, over training time
    wait_seconds_per_batch: float | None = None
    wait_share: float | None = None
    step_p50_seconds: float | None = None
    step_p95_seconds: float | None = None
    energy_joules_per_sample: float | None = None
    batch_size: int | None = None  # of one rank
    model_parameters: int | None = None
    parameter_bits: int | None = None
    autocast: str | None = None


@dataclass(frozen=True, slots=True)
class FindingSummary:
    """One finding of the stretch, and for how much of it it held."""

    rule: str
    severity: str
    run: str | None
    gpu: str | None
    key: str
    first_ns: int
    stood_seconds: float
    is_open: bool  # at the end of the stretch
    blob: bytes = b""


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """A stretch of a recording. `basis`: from the samples themselves, or, where it is long, from minutes of them."""

    label: str
    hostname: str
    version: str
    started_wall: float
    start_ns: int
    end_ns: int
    basis: Literal["samples", "minutes"]
    gpus: tuple[GpuSummary, ...] = ()  # by index
    runs: tuple[RunSummary, ...] = ()  # longest training first
    findings: tuple[FindingSummary, ...] = ()
    problem: str | None = None
    ended: bool = True

    @property
    def seconds(self) -> float:
        """How long it is."""
        return (self.end_ns - self.start_ns) / 1e9


LONGEST_NS = 900 * 1_000_000_000
"""As far as the timeline keeps steps one by one."""
_LEAD_NS = 120 * 1_000_000_000
"""Of what came before, to know that the run had warmed up and what its counters had reached."""


def summarize(recording: Recording, start_ns: int, end_ns: int) -> SessionSummary:
    """The figures of the stretch (start, end], and its findings."""
    found = _from_samples(recording, start_ns, end_ns) if end_ns - start_ns <= LONGEST_NS else None
    gpus, runs = found or summarize_minutes(recording, start_ns, end_ns)
    meta = recording.meta
    return SessionSummary(
        label=meta.label,
        hostname=meta.hostname,
        version=meta.version,
        started_wall=recording.wall_time(start_ns),
        start_ns=start_ns,
        end_ns=end_ns,
        basis="samples" if found else "minutes",
        gpus=tuple(gpus),
        runs=tuple(sorted(_watched(recording, runs, start_ns, end_ns), key=lambda run: -run.train_seconds)),
        findings=tuple(_findings(recording, start_ns, end_ns)),
        problem=meta.problem,
        ended=meta.ended,
    )


def _watched(recording: Recording, runs: Sequence[RunSummary], start_ns: int, end_ns: int) -> Sequence[RunSummary]:
    """The runs that the recording is of: hooked runs of the machine speak up, too, where only a command is watched."""
    meta = recording.meta
    if len(runs) < 2 or (meta.attached_pid is None and not meta.command):
        return runs
    wanted, seen = {run.facts.pid for run in runs}, set()
    for sample in recording.samples(start_ns, end_ns, kinds=(ProcessSample,)):  # /proc is read of what is watched only
        if isinstance(sample, ProcessSample):
            seen.add(sample.pid)
        if wanted <= seen:
            break
    return [run for run in runs if run.facts.pid in seen] or runs


def _from_samples(recording: Recording, start_ns: int, end_ns: int) -> tuple[list[GpuSummary], list[RunSummary]] | None:
    """None where the samples themselves are no longer there."""
    lead_ns = max(recording.start_ns, start_ns - _LEAD_NS)
    timeline = Timeline(started_ns=start_ns, interval_seconds=recording.meta.interval_seconds)
    timeline.extend(recording.facts_at(lead_ns))
    count = 0
    for sample in recording.samples(lead_ns, end_ns):
        timeline.add(sample)
        count += 1
    if not count:
        return None
    whole = _scene(timeline, start_ns, end_ns)
    runs, gpus = [], {gpu.facts.uuid: gpu for gpu in whole.gpus}
    for run in whole.runs:
        begin_ns = max(start_ns, _warm_ns(timeline, run) or start_ns)
        if start_ns < begin_ns < end_ns:
            warm = _scene(timeline, begin_ns, end_ns)
            run = next((each for each in warm.runs if each.id == run.id), run)
            gpus |= {gpu.facts.uuid: gpu for gpu in warm.gpus if gpu.facts.uuid in run.gpu_uuids}
        runs.append(_run_of_window(run, gpus))
    return [_gpu_of_window(gpu) for gpu in gpus.values()], runs


def _scene(timeline: Timeline, start_ns: int, end_ns: int) -> Scene:
    return timeline.scene(end_ns, (end_ns - start_ns) / 1e9)


def _warm_ns(timeline: Timeline, run: RunWindow) -> int | None:
    ends = [timeline.trainers[rank.trainer].warm_up.over_ns for rank in run.ranks]
    return max((end for end in ends if end is not None), default=None)


def _gpu_of_window(gpu: GpuWindow) -> GpuSummary:
    return GpuSummary(
        facts=gpu.facts,
        utilization_percent=_swing(gpu.utilization),
        train_utilization_percent=_swing(gpu.train_utilization),
        power_watts=_level(gpu.power_watts),
        power_limit_watts=gpu.power_limit_watts,
        memory_used_bytes=_level(gpu.memory_used_bytes),
        temperature_celsius=_level(gpu.temperature_celsius),
        energy_joules=gpu.energy_joules,
    )


def _swing(stats: Stats | None) -> Swing | None:
    return None if stats is None else Swing(stats.mean, stats.sigma)


def _level(stats: Stats | None) -> Level | None:
    return None if stats is None else Level(stats.mean, stats.max)


def _run_of_window(run: RunWindow, gpus: Mapping[str, GpuWindow]) -> RunSummary:
    rank = run.critical
    model, loader, steps = rank.facts.model, rank.train_loader, rank.step_seconds
    trained = sum((each.samples_per_second or 0.0) * each.train_seconds for each in run.ranks)
    return RunSummary(
        id=run.id,
        title=run.title,
        facts=rank.facts,
        gpu_uuids=run.gpu_uuids,
        steps=rank.steps,
        train_seconds=rank.train_seconds,
        samples_per_second=run.samples_per_second,
        wait_seconds_per_batch=wait_seconds_per_batch(rank),
        wait_share=rank.wait_share,
        step_p50_seconds=steps.p50 if steps else None,
        step_p95_seconds=steps.p95 if steps else None,
        energy_joules_per_sample=_per_sample(
            [gpus[uuid].energy_joules if uuid in gpus else None for uuid in run.gpu_uuids], trained
        ),
        batch_size=loader.batch_size if loader else None,
        model_parameters=model.parameters,
        parameter_bits=model.parameter_bits,
        autocast=model.autocast_name,
    )


def _per_sample(energies: Iterable[float | None], trained: float) -> float | None:
    known = list(energies)
    if not known or any(energy is None for energy in known) or trained <= 0:
        return None
    return sum(energy for energy in known if energy is not None) / trained


def _findings(recording: Recording, start_ns: int, end_ns: int) -> list[FindingSummary]:
    """One per key, first ones first; what only began to show is none."""
    by_key: dict[str, FindingSummary] = {}
    for span in recording.findings(start_ns, end_ns):
        if not span.is_active:
            continue
        first_ns, last_ns = max(span.start_ns, start_ns), min(end_ns if span.end_ns is None else span.end_ns, end_ns)
        before = by_key.get(span.key)
        by_key[span.key] = FindingSummary(
            rule=span.rule,
            severity=span.severity,
            run=span.run,
            gpu=span.gpu,
            key=span.key,
            first_ns=before.first_ns if before else first_ns,
            stood_seconds=(before.stood_seconds if before else 0.0) + max(0, last_ns - first_ns) / 1e9,
            is_open=span.end_ns is None or span.end_ns >= end_ns,
            blob=span.blob,
        )
    return sorted(by_key.values(), key=lambda found: found.first_ns)


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
    timeline.extend(recording.facts_at(end_ns))
    runs: list[RunSummary] = []
    training: dict[str, frozenset[int]] = {}
    for run in timeline.runs(end_ns, end_ns - start_ns):
        warm = {trainer.trainer: _warm(minutes, trainer.trainer) for trainer in run.trainers}
        summary = _run_of_minutes(
            run, warm, gpus_of(run, timeline.gpus, timeline.processes), minutes, (start_ns, end_ns)
        )
        if summary is not None:
            runs.append(summary)
            training |= dict.fromkeys(summary.gpu_uuids, _training_minutes(minutes, warm))
    gpus = [
        _gpu_of_minutes(timeline, gpu.uuid, minutes, training.get(gpu.uuid, frozenset()))
        for gpu in timeline.gpus_in_order()
    ]
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


def _gpu_of_minutes(timeline: Timeline, uuid: str, minutes: Minutes, training: Collection[int]) -> GpuSummary | None:
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


def _run_of_minutes(
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
        energy_joules_per_sample=_per_sample(energies, trained),
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
    share = sampled_wait_share(pooled.mean(own.get("stack_wait_train_share", ())), reads_loader=loader is not None)
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
