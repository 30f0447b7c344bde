"""What a stretch of a recording comes to.

Up to 15 minutes its samples go through the same timeline as live ones, so the figures are those of the live report.
What is longer is put together from the minutes: a day of eight GPUs then takes well under a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gpuwatch.recording.minutes_summary import summarize_minutes
from gpuwatch.recording.reader import Recording
from gpuwatch.recording.session_summary import (
    FindingSummary,
    GpuSummary,
    Level,
    RunSummary,
    SessionSummary,
    Swing,
)
from gpuwatch.samples import ProcessSample
from gpuwatch.timeline.per_batch import wait_seconds_per_batch
from gpuwatch.timeline.timeline import Timeline
from gpuwatch.timeline.windows import GpuWindow, RunWindow, Scene, Stats

LONGEST_NS = 900 * 1_000_000_000
"""As far as the timeline keeps steps one by one."""
_LEAD_NS = 120 * 1_000_000_000
"""Of what came before, to know that the run had warmed up and what its counters stood at."""
_STANDS = ("firing", "clearing")


def summarize(recording: Recording, start_ns: int, end_ns: int) -> SessionSummary:
    """The figures of the stretch (start, end], and its findings."""
    basis, found = "samples", _from_samples(recording, start_ns, end_ns) if end_ns - start_ns <= LONGEST_NS else None
    if found is None:
        basis, found = "minutes", summarize_minutes(recording, start_ns, end_ns)
    gpus, runs = found
    meta = recording.meta
    return SessionSummary(
        label=meta.label,
        hostname=meta.hostname,
        version=meta.version,
        started_wall=recording.wall_time(start_ns),
        start_ns=start_ns,
        end_ns=end_ns,
        basis="samples" if basis == "samples" else "minutes",
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
    timeline.extend(recording.standing_facts(lead_ns))
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
        runs.append(_run(run, gpus))
    return [_gpu(gpu) for gpu in gpus.values()], runs


def _scene(timeline: Timeline, start_ns: int, end_ns: int) -> Scene:
    return timeline.scene(end_ns, (end_ns - start_ns) / 1e9)


def _warm_ns(timeline: Timeline, run: RunWindow) -> int | None:
    ends = [timeline.trainers[rank.trainer].warm_up.over_ns for rank in run.ranks]
    return max((end for end in ends if end is not None), default=None)


def _gpu(gpu: GpuWindow) -> GpuSummary:
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


def _run(run: RunWindow, gpus: Mapping[str, GpuWindow]) -> RunSummary:
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
        if span.state not in _STANDS:
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
            standing=span.end_ns is None or span.end_ns >= end_ns,
            blob=span.blob,
        )
    return sorted(by_key.values(), key=lambda found: found.first_ns)
