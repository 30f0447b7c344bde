"""The figures of a long recording in the place of those that its last minutes gave."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace

from gpuwatch import metrics
from gpuwatch.recording import pooled
from gpuwatch.recording.minutes import known_in
from gpuwatch.recording.pooled import NO_MINUTES, MinuteColumns, Part
from gpuwatch.recording.reader import Recording
from gpuwatch.recording.summary import FEWEST_TRAINING_MINUTES, PAUSES, RunSummary, summarize, unpaused
from gpuwatch.report.observation import Stretch, longest
from gpuwatch.samples import PhaseSpan
from gpuwatch.timeline.gpu import THROTTLES
from gpuwatch.timeline.spans import Span
from gpuwatch.timeline.tiers import MINUTE_NS
from gpuwatch.timeline.timeline import Timeline
from gpuwatch.timeline.windows import GpuWindow, HostWindow, PhaseTotals, RankWindow, RunWindow, Scene, Stats

_GAUGES = tuple(metric.name for metric in metrics.charted("gpu"))
_CAUSES = {cause: metrics.GPU[throttle.counter].minute for cause, throttle in THROTTLES.items()}
_PHASES = ("warmup", "eval", "checkpoint", "compile", "gc", "stopped", "user")
_HOST = ("cpu_percent", "pressure_cpu_percent", "pressure_io_percent", "pressure_memory_percent")
_PARTS = ("wait", "settled_gap", "copy", "forward", "backward", "optimizer")
_STEPS = ("step_seconds", *(f"{part}_seconds" for part in _PARTS), *map(known_in, (*_PARTS, "samples")))
_OF_SUMMARIES = (
    "step_batches",
    "step_samples",
    "counted_batches",
    "stack_wait_train_share",
)
METRICS = frozenset(
    {
        *_OF_SUMMARIES,
        *_GAUGES,
        *_CAUSES.values(),
        *_HOST,
        *_STEPS,
        "energy_joules",
        *(f"{kind}_phase_seconds" for kind in _PHASES),
    }
)
"""All that a long report asks the minutes for."""
_OF_SWING = ("count", "mean", "sigma", "min", "max", "p5")
_UNKNOWN = math.nan

Minutes = Mapping[tuple[str, str], MinuteColumns]
"""By subject and metric."""


def scene_of_minutes(scene: Scene, recording: Recording, start_ns: int, end_ns: int) -> Scene:
    """The scene with the means, extremes and sums of all minutes; what minutes do not hold is not known."""
    minutes = recording.minutes(start_ns, end_ns, metrics=METRICS)
    seconds = (end_ns - start_ns) / 1e9
    counted = any((rank.trainer, "step_seconds") not in minutes for run in scene.runs for rank in run.ranks)
    summaries = {run.id: run for run in summarize(recording, start_ns, end_ns).runs} if counted else {}
    training = {uuid: _training(run, minutes) for run in scene.runs for uuid in run.gpu_uuids}
    return replace(
        scene,
        started_ns=start_ns,
        window_seconds=seconds,
        gpus=tuple(_gpu(gpu, minutes, training.get(gpu.facts.uuid, frozenset()), seconds) for gpu in scene.gpus),
        runs=tuple(_run(run, summaries.get(run.id), minutes, (start_ns, end_ns)) for run in scene.runs),
        host=None if scene.host is None else _host(scene.host, minutes),
    )


def _host(host: HostWindow, minutes: Minutes) -> HostWindow:
    def mean(metric: str) -> float | None:
        return pooled.mean(minutes.get(("host", metric), NO_MINUTES))

    return replace(
        host,
        cpu_percent=mean("cpu_percent"),
        pressure_cpu_percent=mean("pressure_cpu_percent"),
        pressure_io_percent=mean("pressure_io_percent"),
        pressure_memory_percent=mean("pressure_memory_percent"),
    )


def _training(run: RunWindow, minutes: Minutes) -> frozenset[int]:
    """The minutes in which a run trained and no pause of its ended, as a summary of the recording takes them."""
    training: set[int] = set()
    for rank in run.ranks:
        counts = [minutes.get((rank.trainer, metric), NO_MINUTES) for metric in ("step_seconds", "counted_batches")]
        made = sorted({at_ns for found in counts for at_ns in found.column("minute_ns")})
        phases = [minutes.get((rank.trainer, f"{kind}_phase_seconds"), NO_MINUTES) for kind in PAUSES]
        pauses = (pair for found in phases for pair in zip(found.column("minute_ns"), found.column("max"), strict=True))
        training |= unpaused(made[1:] or made, pauses)  # the first one is warm-up
    return frozenset(training)


def _only(found: MinuteColumns, wanted: Collection[int]) -> MinuteColumns:
    """Some of the minutes; none where they are too few to be called training."""
    places = [place for place, at_ns in enumerate(found.column("minute_ns")) if at_ns in wanted]
    if len(places) < FEWEST_TRAINING_MINUTES:
        return NO_MINUTES
    columns = {name: list(map(found.column(name).__getitem__, places)) for name in _OF_SWING}
    return MinuteColumns([Part(columns, 0, len(places))])


def _gpu(gpu: GpuWindow, minutes: Minutes, training: Collection[int], seconds: float) -> GpuWindow:
    uuid = gpu.facts.uuid

    def stats(metric: str) -> Stats | None:
        return _stats(minutes.get((uuid, metric), NO_MINUTES), with_percentiles=metric == "utilization_percent")

    energy = minutes.get((uuid, "energy_joules"), NO_MINUTES)
    throttled = {cause: pooled.mean(minutes.get((uuid, metric), NO_MINUTES)) for cause, metric in _CAUSES.items()}
    return replace(
        gpu,
        window_seconds=seconds,
        energy_joules=pooled.total(energy) if energy else None,
        throttle_shares={cause: min(1.0, share) for cause, share in throttled.items() if share is not None},
        utilization=stats("utilization_percent"),
        train_utilization=_stats(_only(minutes.get((uuid, "utilization_percent"), NO_MINUTES), training)),
        power_watts=stats("power_watts"),
        memory_used_bytes=stats("memory_used_bytes"),
        temperature_celsius=stats("temperature_celsius"),
        sm_clock_mhz=stats("sm_clock_mhz"),
    )


def _stats(found: MinuteColumns, *, with_percentiles: bool = False) -> Stats | None:
    """Percentiles are asked for where they are shown."""
    swing = pooled.swing(found)
    if swing is None:
        return None
    p5, p50, p95 = pooled.quantiles(found, (0.05, 0.5, 0.95)) if with_percentiles else (None, None, None)
    if not all(part.has_p5 for part in found.parts):
        p5 = None
    return Stats(
        count=pooled.count(found),
        mean=swing.mean,
        sigma=swing.sigma,
        p5=_UNKNOWN if p5 is None else p5,
        p50=_UNKNOWN if p50 is None else p50,
        p95=_UNKNOWN if p95 is None else p95,
        min=pooled.least(found),
        max=pooled.greatest(found),
    )


def _run(run: RunWindow, summary: RunSummary | None, minutes: Minutes, span: Span) -> RunWindow:
    ranks = tuple(_rank(rank, minutes, span) for rank in run.ranks)
    living = [rank for rank in ranks if rank.ended is None] or ranks
    critical = max(living, key=lambda rank: rank.wait_share or 0.0, default=run.critical)
    if critical.step_seconds is not None:
        rates = [rank.samples_per_second for rank in living if rank.samples_per_second is not None]
        return replace(run, ranks=ranks, critical=critical, samples_per_second=sum(rates) if rates else None)
    if summary is None:
        return replace(run, ranks=ranks, critical=critical)
    # Seen from outside: its batches were counted.
    critical = next((rank for rank in ranks if rank.trainer == summary.facts.trainer), critical)
    counted = replace(critical, steps=summary.steps, train_seconds=summary.train_seconds, wait_share=summary.wait_share)
    ranks = tuple(counted if rank is critical else rank for rank in ranks)
    return replace(run, ranks=ranks, critical=counted, samples_per_second=summary.samples_per_second)


def _rank(rank: RankWindow, minutes: Minutes, span: Span) -> RankWindow:
    """One rank: shares are sums over sums, of the steps in which the part is known."""

    def rows(metric: str) -> MinuteColumns:
        return minutes.get((rank.trainer, metric), NO_MINUTES)

    def share(part: str) -> float | None:
        return pooled.share(periods, rows(f"{part}_seconds"), rows(known_in(part)))

    periods = rows("step_seconds")
    train = pooled.total(periods)
    phases = {
        kind: found
        for kind in _PHASES
        if (found := _phase(kind, rows(f"{kind}_phase_seconds"), rank.open_phase, span)) is not None
    }
    rank = replace(rank, window_seconds=(span[1] - span[0]) / 1e9, phases=phases)
    if not periods:
        counted, waits = rows("counted_batches"), rows("stack_wait_train_share")
        return replace(rank, steps=round(pooled.total(counted)), wait_share=pooled.mean(waits)) if counted else rank
    return replace(
        rank,
        samples_per_second=pooled.share(periods, rows("step_samples"), rows(known_in("samples"))),
        batches_per_step=pooled.mean(rows("step_batches")),
        steps=pooled.count(periods),
        train_seconds=train,
        step_seconds=_stats(periods, with_percentiles=True),
        wait_share=share("wait"),
        wait_seconds=pooled.mean(rows("wait_seconds")),
        gap_share=share("settled_gap"),
        copy_share=share("copy"),
        forward_share=share("forward"),
        backward_share=share("backward"),
        optimizer_share=share("optimizer"),
    )


def _phase(kind: str, rows: MinuteColumns, open_phase: PhaseSpan | None, span: Span) -> PhaseTotals | None:
    """All of one kind, as far as the span holds it: the phases that ended, by minute, and the one that still lasts."""
    start_ns, end_ns = span
    lengths, longest, count = [], [], 0
    for minute_ns, amount, mean, most in zip(*map(rows.column, ("minute_ns", "count", "mean", "max")), strict=True):
        room = (min(minute_ns + MINUTE_NS, end_ns) - start_ns) / 1e9
        count += amount
        lengths.append(min(amount * mean, room))
        longest.append(min(most, room))
    if open_phase is not None and open_phase.kind == kind and open_phase.end_ns is None:
        count += 1
        lengths.append((end_ns - max(start_ns, open_phase.start_ns)) / 1e9)
        longest.append(lengths[-1])
    if not count:
        return None
    total = min(math.fsum(lengths), (end_ns - start_ns) / 1e9)
    return PhaseTotals(
        kind=kind,
        count=count,
        seconds=total,
        share=total * 1e9 / (end_ns - start_ns),
        longest_seconds=max(longest),
    )


def recorded_phases(recording: Recording, timeline: Timeline, start_ns: int, end_ns: int) -> tuple[Stretch, ...]:
    """The phases of a long recording, each stretch of time once though several ranks had it."""
    runs = {trainer.trainer: run.id for run in timeline.runs(end_ns, end_ns - start_ns) for trainer in run.trainers}
    found = {}
    for sample in recording.samples(start_ns, end_ns, kinds=(PhaseSpan,)):
        if isinstance(sample, PhaseSpan) and sample.end_ns is not None and sample.trainer in runs:
            run = runs[sample.trainer]
            found[run, sample.kind, sample.start_ns // 1_000_000_000] = Stretch(
                "phase", sample.kind, max(start_ns, sample.start_ns), min(end_ns, sample.end_ns), run
            )
    return longest(found.values(), end_ns - start_ns)
