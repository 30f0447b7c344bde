"""A stretch of a recording: its scene, the figures of its GPUs and runs, and its findings.

Up to 15 minutes its samples go through the same timeline as live ones, so the figures are those of the live report.
What is longer is put together from the minutes, and here alone: a day of eight GPUs then takes well under a second.
Means, extremes and sums are of all minutes; what minutes do not hold is not known.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import mul
from typing import Any, Literal

from gpuwatch import metrics
from gpuwatch.recording import rollups
from gpuwatch.recording.minutes import known_in
from gpuwatch.recording.reader import Recording
from gpuwatch.recording.rollups import NO_MINUTES, MinuteColumns, Swing
from gpuwatch.samples import GpuFacts, LoaderFacts, PhaseKind, PhaseSpan, ProcessSample, RunFacts
from gpuwatch.timeline.columns import MINUTE_NS, NAN
from gpuwatch.timeline.figures import (
    PARTS,
    StepSums,
    critical_rank,
    joules_per_sample,
    rank_figures,
    run_rate,
    sampled_sums,
)
from gpuwatch.timeline.gpu import THROTTLES
from gpuwatch.timeline.phases import LOST_TIME, PAUSES
from gpuwatch.timeline.stacks import NOT_TRAINING, PHASES
from gpuwatch.timeline.steps import STEP_SUMS
from gpuwatch.timeline.timeline import Timeline
from gpuwatch.timeline.times import Span, outside, united
from gpuwatch.timeline.windows import (
    GPU_DISTRIBUTIONS,
    GpuWindow,
    HostWindow,
    PhaseTotals,
    RankWindow,
    RunWindow,
    Scene,
    Stats,
)

LONGEST_NS = 900 * 1_000_000_000
"""As far as the timeline keeps samples one by one: what is longer is reported from minutes."""
_FEWEST_TRAINING_MINUTES = 3
_LONGEST_PAUSE_SECONDS = 366 * 24 * 3600.0  # what a hostile file claims may be any number

_GAUGES = ("utilization_percent", "power_watts", *GPU_DISTRIBUTIONS)
_CAUSES = {cause: metrics.GPU[throttle.counter].minute for cause, throttle in THROTTLES.items()}
_PHASES: tuple[PhaseKind, ...] = tuple(sorted({*LOST_TIME, "user"}))
_HOST = ("cpu_percent", "pressure_cpu_percent", "pressure_io_percent", "pressure_memory_percent")
_MADE = ("step_seconds", "counted_batches")
_AMOUNTS = {
    "wait": "wait_seconds",
    "samples": "step_samples",
    "settled_wait": "settled_wait_seconds",
    "settled_gap": "settled_gap_seconds",
    **{part: f"{part}_seconds" for part in PARTS},
}
"""What need not be known of each step, and its metric."""
_STACKS = ("stack_seconds", "stack_wait_train_share", *(f"stack_{phase}_share" for phase in PHASES))
RUN_METRICS = frozenset(
    (
        *(*_MADE, "step_batches", "wait_share", "counted_seconds", *_STACKS, "stopped_phase_seconds"),
        *(*_AMOUNTS.values(), *map(known_in, _AMOUNTS)),
    )
)
_METRICS = RUN_METRICS.union(
    _GAUGES, _CAUSES.values(), _HOST, ("energy_joules",), (f"{kind}_phase_seconds" for kind in _PHASES)
)

Own = Callable[[str], MinuteColumns]
"""The minutes of one trainer, by metric."""


class LongStretch:
    """The minutes that touch (start, end], and scenes of parts of them."""

    def __init__(self, recording: Recording, start_ns: int, end_ns: int) -> None:
        self._minutes = recording.minutes(start_ns, end_ns, metrics=_METRICS)
        self.span = start_ns, end_ns

    def made(self, run: RunWindow) -> Span | None:
        """From the second minute in which all ranks made steps to the last one; the first is warm-up. None without."""
        found = [sorted(_made(self._own(rank.trainer, self.span))) for rank in run.ranks]
        known = [times for times in found if times]
        if not known:
            return None
        return max(times[min(1, len(times) - 1)] for times in known), max(times[-1] for times in known) + MINUTE_NS

    def scene(self, scene: Scene, span: Span | None = None) -> Scene:
        """The scene with the figures of these minutes, or of those that touch a part of them."""
        span = self.span if span is None else span
        training: dict[str, frozenset[int]] = {}
        for run in scene.runs:
            training |= dict.fromkeys(run.gpu_uuids, self._training(run))
        return replace(
            scene,
            started_ns=span[0],
            window_seconds=(span[1] - span[0]) / 1e9,
            gpus=tuple(
                _gpu(gpu, self._own(gpu.facts.uuid, span), training.get(gpu.facts.uuid, frozenset()), span)
                for gpu in scene.gpus
            ),
            runs=tuple(self._run(run, span) for run in scene.runs),
            host=None if scene.host is None else _host(scene.host, self._own("host", span)),
        )

    def _own(self, subject: str, span: Span) -> Own:
        def own(metric: str) -> MinuteColumns:
            found = self._minutes.get((subject, metric), NO_MINUTES)
            return found if span == self.span else found.between(*span)

        return own

    def _run(self, run: RunWindow, span: Span) -> RunWindow:
        ranks = tuple(_rank(rank, self._own(rank.trainer, span), span) for rank in run.ranks)
        return replace(
            run,
            ranks=ranks,
            critical=critical_rank(ranks),
            samples_per_second=run_rate([(rank.ended is not None, rank.samples_per_second) for rank in ranks]),
        )

    def _training(self, run: RunWindow) -> frozenset[int]:
        """The minutes in which a run trained, warm-up left out, and that no pause of its touches."""
        made = self.made(run)
        training: set[int] = set()
        for rank in run.ranks if made is not None else ():
            own = self._own(rank.trainer, self.span)
            ended = [own(f"{kind}_phase_seconds") for kind in sorted(PAUSES)]
            pauses = (pair for each in ended for pair in zip(each.column("minute_ns"), each.column("max"), strict=True))
            training |= unpaused([at_ns for at_ns in _made(own) if made and at_ns >= made[0]], pauses)
        return frozenset(training)


def _made(own: Own) -> set[int]:
    """The minutes in which steps were made."""
    return {at_ns for metric in _MADE for at_ns, amount in _totals(own(metric)).items() if amount > 0}


def unpaused(made: Collection[int], pauses: Iterable[tuple[int, float]]) -> set[int]:
    """Of some minutes, those that no pause touches.

    Args:
        made: their times in nanoseconds.
        pauses: the minute in which each ended, and its length in seconds.
    """
    spans = united(
        (
            at_ns // MINUTE_NS * MINUTE_NS - round(min(seconds, _LONGEST_PAUSE_SECONDS) // 60) * MINUTE_NS,
            at_ns + MINUTE_NS,
        )
        for at_ns, seconds in pauses
        if seconds >= 0
    )
    ordered = sorted(at_ns // MINUTE_NS * MINUTE_NS for at_ns in made)
    free = {ordered[place] for place in outside([at_ns + 1 for at_ns in ordered], spans)}
    return {at_ns for at_ns in made if at_ns // MINUTE_NS * MINUTE_NS in free}


def _host(host: HostWindow, own: Own) -> HostWindow:
    cpu, pressure_cpu, pressure_io, pressure_memory = (rollups.mean(own(metric)) for metric in _HOST)
    return replace(
        host,
        cpu_percent=cpu,
        pressure_cpu_percent=pressure_cpu,
        pressure_io_percent=pressure_io,
        pressure_memory_percent=pressure_memory,
    )


def _gpu(gpu: GpuWindow, own: Own, training: Collection[int], span: Span) -> GpuWindow:
    use, energy = own("utilization_percent"), own("energy_joules")
    trained = use.only(training)
    throttled = {cause: rollups.mean(own(metric)) for cause, metric in _CAUSES.items()}
    distributions: dict[str, Any] = {name: _stats(own(name)) for name in GPU_DISTRIBUTIONS}
    return replace(
        gpu,
        window_seconds=(span[1] - span[0]) / 1e9,
        energy_joules=rollups.total(energy) if energy else None,
        energy_seconds=min((span[1] - span[0]) / 1e9, 60.0 * len(energy)) if energy else None,
        throttle_shares={cause: min(1.0, share) for cause, share in throttled.items() if share is not None},
        utilization=_stats(use, with_percentiles=True),
        train_utilization=_stats(trained) if len(trained) >= _FEWEST_TRAINING_MINUTES else None,
        power_watts=_stats(own("power_watts")),
        **distributions,
    )


def _stats(found: MinuteColumns, *, with_percentiles: bool = False) -> Stats | None:
    """Percentiles are asked for where they are shown."""
    swing = rollups.swing(found)
    if swing is None:
        return None
    p5, p50, p95 = rollups.quantiles(found, (0.05, 0.5, 0.95)) if with_percentiles else (None, None, None)
    if not all(part.has_p5 for part in found.parts):
        p5 = None
    return Stats(
        count=rollups.count(found),
        mean=swing.mean,
        sigma=swing.sigma,
        p5=NAN if p5 is None else p5,
        p50=NAN if p50 is None else p50,
        p95=NAN if p95 is None else p95,
        min=rollups.least(found),
        max=rollups.greatest(found),
    )


def _rank(rank: RankWindow, own: Own, span: Span) -> RankWindow:
    """One rank, from its first minute of steps on; without a hook its batches are counted, its parts are of samples."""
    periods, loader, made = own("step_seconds"), rank.train_loader, _made(own)
    start_ns = max(span[0], min(made, default=span[0]))
    end_ns = span[1] if rank.ended is None else min(span[1], max(made, default=span[1]) + MINUTE_NS)
    window = start_ns, max(start_ns, end_ns)
    seconds = (window[1] - window[0]) / 1e9
    if periods or rank.facts.visibility == "exact":
        sums = replace(_step_sums(own), steps_wall=seconds)
    else:
        sums = _sampled_sums(own, loader is not None, loader.batch_size if loader is not None else None)
    phases = {kind: _phase(kind, own(f"{kind}_phase_seconds"), rank.open_phase, window) for kind in _PHASES}
    return replace(
        rank,
        window_seconds=seconds,
        phases={kind: found for kind, found in phases.items() if found is not None},
        step_seconds=_stats(periods, with_percentiles=True),
        **rank_figures(sums),
    )


def tier_columns(
    own: Own, loader: LoaderFacts | None, *, is_exact: bool
) -> tuple[Sequence[int], dict[str, Sequence[float]]]:
    """The minutes in which a trainer made steps or was sampled, and what the timeline's minutes hold of them."""
    periods = own("step_seconds")
    is_exact = is_exact or bool(periods)
    times = (periods if is_exact else own("stack_seconds")).column("minute_ns")
    found = _step_columns(own) if is_exact else _sampled_columns(own, loader)
    shares = own("wait_share" if is_exact else "stack_wait_train_share")
    columns = {name: amounts for name, amounts in found.items() if name in STEP_SUMS}
    for edge in ("min", "max"):
        if is_exact:
            columns[f"period_{edge}"] = periods.column(edge)
        known = _by_minute(shares, edge)
        columns[f"share_{edge}"] = [known.get(at_ns, NAN) for at_ns in times]
    return times, columns


def _sampled_columns(own: Own, loader: LoaderFacts | None) -> dict[str, Sequence[float]]:
    """The sums of `StepSums` minute by minute, of a run that was seen from outside."""
    seconds, waits = own("stack_seconds"), own("stack_wait_train_share")
    training, waited = _by_minute(waits, "count"), _by_minute(waits, "mean")
    counted, paused = _totals(own("counted_batches")), Counter[int]()
    for phase in NOT_TRAINING:
        paused.update(_totals(own(f"stack_{phase}_share")))
    times = seconds.column("minute_ns")
    train = {
        at_ns: amount * training[at_ns] / (training[at_ns] + paused[at_ns])
        for at_ns, amount in _totals(seconds).items()
        if training.get(at_ns)
    }
    wait = {at_ns: amount * waited[at_ns] for at_ns, amount in train.items()}
    known = train if loader is not None and counted else {at_ns: train[at_ns] for at_ns in wait if wait[at_ns]}
    batch_size = loader.batch_size if loader is not None else None
    amounts = {
        "steps": counted,
        "train": train,
        "wait": wait,
        "wait_train": known,
        "samples": {at_ns: steps * (batch_size or 0) for at_ns, steps in counted.items()},
        "samples_train": {} if batch_size is None else train,
    }
    return {name: _at(times, of) for name, of in amounts.items()}


def _by_minute(found: MinuteColumns, figure: str) -> dict[int, float]:
    return dict(zip(found.column("minute_ns"), found.column(figure), strict=True))


def _step_columns(own: Own) -> dict[str, Sequence[float]]:
    """The sums of `StepSums` minute by minute, of the minutes of "step_seconds"."""
    periods, batches = own("step_seconds"), own("step_batches")
    times, counts = periods.column("minute_ns"), periods.column("count")
    train = list(map(mul, counts, periods.column("mean")))
    columns: dict[str, Sequence[float]] = {"steps": counts, "train": train, "steps_train": train}
    columns["batches"] = _at(times, _totals(batches))
    for name, metric in _AMOUNTS.items():
        amounts = own(metric)
        columns[name] = _at(times, _totals(amounts))
        columns[f"{name}_train"] = _at(times, _known_seconds(own, name, periods, amounts))
    columns["wait_steps"] = _at(times, _by_minute(own("wait_seconds"), "count"))
    return columns


def _known_seconds(own: Own, name: str, periods: MinuteColumns, amounts: MinuteColumns) -> dict[int, float]:
    known = own(known_in(name))
    return _totals(known) if name.startswith("settled") else rollups.known_seconds(periods, amounts, known)


def _totals(found: MinuteColumns) -> dict[int, float]:
    """The sum of all values, by minute."""
    totals = map(mul, found.column("count"), found.column("mean"))
    return dict(zip(found.column("minute_ns"), totals, strict=True))


def _at(times: Sequence[int], amounts: Mapping[int, float]) -> list[float]:
    return [amounts.get(at_ns, 0.0) for at_ns in times]


def _step_sums(own: Own) -> StepSums:
    return StepSums(**{name: math.fsum(amounts) for name, amounts in _step_columns(own).items()})


def _sampled_sums(own: Own, reads_loader: bool, batch_size: int | None) -> StepSums:
    counted, stopped = own("counted_batches"), rollups.total(own("stopped_phase_seconds"))
    # Files of version 1 have neither seconds: their minutes count whole.
    counted_seconds = rollups.total(own("counted_seconds")) or 60.0 * len(counted)
    stack_seconds = rollups.total(own("stack_seconds")) or 60.0 * len(own("stack_wait_train_share"))
    hits = {phase: rollups.total(own(f"stack_{phase}_share")) for phase in PHASES}
    training = rollups.count(own("stack_wait_train_share"))
    samples = training + sum(hits[phase] for phase in NOT_TRAINING)
    return sampled_sums(
        stack_seconds,
        training / samples if samples else 0.0,
        {phase: hits[phase] / training for phase in PHASES if phase not in NOT_TRAINING and training},
        steps=rollups.total(counted),
        counted_seconds=max(0.0, counted_seconds - stopped) if counted else None,
        reads_loader=bool(counted) and reads_loader,
        batch_size=batch_size,
    )


def _phase(kind: PhaseKind, rows: MinuteColumns, open_phase: PhaseSpan | None, span: Span) -> PhaseTotals | None:
    """All of one kind, as far as the span holds it: the phases that ended, by minute, and the one that still lasts."""
    start_ns, end_ns = span
    lengths, longest, count = [], [], 0
    for minute_ns, amount, mean, most in zip(*map(rows.column, ("minute_ns", "count", "mean", "max")), strict=True):
        room = max(0, min(minute_ns + MINUTE_NS, end_ns) - start_ns) / 1e9
        count += amount
        lengths.append(min(amount * mean, room))
        longest.append(min(most, room))
    if open_phase is not None and open_phase.kind == kind and open_phase.end_ns is None:
        count += 1
        lengths.append(max(0, end_ns - max(start_ns, open_phase.start_ns)) / 1e9)
        longest.append(lengths[-1])
    if not count or end_ns <= start_ns:
        return None
    total = min(math.fsum(lengths), (end_ns - start_ns) / 1e9)
    return PhaseTotals(
        kind=kind,
        count=count,
        seconds=total,
        share=total * 1e9 / (end_ns - start_ns),
        longest_seconds=max(longest),
    )


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
