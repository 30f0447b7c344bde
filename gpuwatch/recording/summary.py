"""What a stretch of a recording comes to: the figures of its GPUs and runs, and its findings.

Up to 15 minutes its samples go through the same timeline as live ones, so the figures are those of the live report.
What is longer is put together from the minutes: a day of eight GPUs then takes well under a second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gpuwatch.recording.long import LONGEST_NS, LongStretch
from gpuwatch.recording.pooled import Swing
from gpuwatch.recording.reader import Recording
from gpuwatch.samples import GpuFacts, ProcessSample, RunFacts
from gpuwatch.timeline.figures import joules_per_sample
from gpuwatch.timeline.spans import Span
from gpuwatch.timeline.timeline import Timeline
from gpuwatch.timeline.windows import GpuWindow, RunWindow, Scene, Stats


@dataclass(frozen=True, slots=True)
class Level:
    """A mean and the greatest single value."""

    mean: float
    max: float


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


_LEAD_NS = 120 * 1_000_000_000
"""Of what came before, to know that the run had warmed up and what its counters had reached."""


def summarize(recording: Recording, start_ns: int, end_ns: int, *, longest_ns: int = LONGEST_NS) -> SessionSummary:
    """The figures of the stretch (start, end], and its findings; of what is longer than `longest_ns` from minutes."""
    found = _of_samples(recording, start_ns, end_ns) if end_ns - start_ns <= longest_ns else None
    gpus, runs = _without_warm_up(found or _of_minutes(recording, start_ns, end_ns), (start_ns, end_ns))
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


@dataclass(frozen=True, slots=True)
class _Cuts:
    """Scenes of any part of the stretch, and when a run had warmed up and made its last step."""

    scene: Callable[[int, int], Scene]
    made: Callable[[RunWindow], Span | None]


def _of_samples(recording: Recording, start_ns: int, end_ns: int) -> _Cuts | None:
    """From the samples themselves; None where they are no longer there."""
    lead_ns = max(recording.start_ns, start_ns - _LEAD_NS)
    timeline = Timeline(started_ns=start_ns, interval_seconds=recording.meta.interval_seconds)
    timeline.extend(recording.facts_at(lead_ns))
    count = 0
    for sample in recording.samples(lead_ns, end_ns):
        timeline.add(sample)
        count += 1
    if not count:
        return None

    def made(run: RunWindow) -> Span | None:
        histories = [timeline.trainers[rank.trainer] for rank in run.ranks]
        warm = [each.warm_up.over_ns for each in histories if each.warm_up.over_ns is not None]
        last = [each.last_step_ns for each in histories if each.last_step_ns is not None]
        return (max(warm), max(last)) if warm and last else None

    return _Cuts(lambda first_ns, last_ns: timeline.scene(last_ns, (last_ns - first_ns) / 1e9), made)


def _of_minutes(recording: Recording, start_ns: int, end_ns: int) -> _Cuts:
    timeline = Timeline(started_ns=start_ns, interval_seconds=recording.meta.interval_seconds)
    timeline.extend(recording.facts_at(end_ns))
    stretch, scene = LongStretch(recording, start_ns, end_ns), timeline.scene(end_ns, (end_ns - start_ns) / 1e9)
    return _Cuts(lambda first_ns, last_ns: stretch.scene(scene, (first_ns, last_ns)), stretch.made)


def _without_warm_up(cuts: _Cuts, span: Span) -> tuple[list[GpuSummary], list[RunSummary]]:
    """Each run and its GPUs since it had warmed up. Energy after its last step is none of its samples'."""
    start_ns, end_ns = span
    whole = cuts.scene(start_ns, end_ns)
    runs, gpus = [], {gpu.facts.uuid: gpu for gpu in whole.gpus}
    for run in whole.runs:
        made_ns = cuts.made(run) or span
        begin_ns = made_ns[0] if start_ns < made_ns[0] < end_ns else start_ns
        until_ns = made_ns[1] if begin_ns < made_ns[1] < end_ns else end_ns
        scene = whole if begin_ns == start_ns else cuts.scene(begin_ns, end_ns)
        run = next((each for each in scene.runs if each.id == run.id), run)
        gpus |= {gpu.facts.uuid: gpu for gpu in scene.gpus if gpu.facts.uuid in run.gpu_uuids}
        spent = gpus if until_ns == end_ns else {gpu.facts.uuid: gpu for gpu in cuts.scene(begin_ns, until_ns).gpus}
        runs.append(_run_of_window(run, spent))
    return [_gpu_of_window(gpu) for gpu in gpus.values()], runs


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
    return RunSummary(
        id=run.id,
        title=run.title,
        facts=rank.facts,
        gpu_uuids=run.gpu_uuids,
        steps=rank.steps,
        train_seconds=rank.train_seconds,
        samples_per_second=run.samples_per_second,
        wait_seconds_per_batch=rank.wait_seconds_per_batch,
        wait_share=rank.wait_share,
        step_p50_seconds=steps.p50 if steps else None,
        step_p95_seconds=steps.p95 if steps else None,
        energy_joules_per_sample=joules_per_sample(run, gpus),
        batch_size=loader.batch_size if loader else None,
        model_parameters=model.parameters,
        parameter_bits=model.parameter_bits,
        autocast=model.autocast_name,
    )


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
