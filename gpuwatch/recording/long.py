"""A long stretch of a recording, from its minutes: the only place where reports, comparisons and charts read them.

Means, extremes and sums are of all minutes; what minutes do not hold is not known.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import mul

from gpuwatch import metrics
from gpuwatch.recording import pooled
from gpuwatch.recording.minutes import known_in
from gpuwatch.recording.pooled import NO_MINUTES, MinuteColumns
from gpuwatch.recording.reader import Recording
from gpuwatch.samples import LoaderFacts, PhaseKind, PhaseSpan
from gpuwatch.timeline.columns import NAN
from gpuwatch.timeline.figures import PARTS, StepSums, critical_rank, rank_figures, run_rate, sampled_sums
from gpuwatch.timeline.gpu import THROTTLES
from gpuwatch.timeline.phases import LOST_TIME, PAUSES
from gpuwatch.timeline.spans import Span, outside, united
from gpuwatch.timeline.stacks import NOT_TRAINING, PHASES
from gpuwatch.timeline.steps import STEP_SUMS
from gpuwatch.timeline.tiers import MINUTE_NS
from gpuwatch.timeline.windows import GpuWindow, HostWindow, PhaseTotals, RankWindow, RunWindow, Scene, Stats

LONGEST_NS = 900 * 1_000_000_000
"""As far as the timeline keeps samples one by one: what is longer is reported from minutes."""
_FEWEST_TRAINING_MINUTES = 3
_LONGEST_PAUSE_SECONDS = 366 * 24 * 3600.0  # what a hostile file claims may be any number

_GAUGES = tuple(metric.name for metric in metrics.charted("gpu"))
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
    cpu, pressure_cpu, pressure_io, pressure_memory = (pooled.mean(own(metric)) for metric in _HOST)
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
    throttled = {cause: pooled.mean(own(metric)) for cause, metric in _CAUSES.items()}
    return replace(
        gpu,
        window_seconds=(span[1] - span[0]) / 1e9,
        energy_joules=pooled.total(energy) if energy else None,
        throttle_shares={cause: min(1.0, share) for cause, share in throttled.items() if share is not None},
        utilization=_stats(use, with_percentiles=True),
        train_utilization=_stats(trained) if len(trained) >= _FEWEST_TRAINING_MINUTES else None,
        power_watts=_stats(own("power_watts")),
        memory_used_bytes=_stats(own("memory_used_bytes")),
        temperature_celsius=_stats(own("temperature_celsius")),
        sm_clock_mhz=_stats(own("sm_clock_mhz")),
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
        p5=NAN if p5 is None else p5,
        p50=NAN if p50 is None else p50,
        p95=NAN if p95 is None else p95,
        min=pooled.least(found),
        max=pooled.greatest(found),
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
    return _totals(known) if name.startswith("settled") else pooled.known_seconds(periods, amounts, known)


def _totals(found: MinuteColumns) -> dict[int, float]:
    """The sum of all values, by minute."""
    totals = map(mul, found.column("count"), found.column("mean"))
    return dict(zip(found.column("minute_ns"), totals, strict=True))


def _at(times: Sequence[int], amounts: Mapping[int, float]) -> list[float]:
    return [amounts.get(at_ns, 0.0) for at_ns in times]


def _step_sums(own: Own) -> StepSums:
    return StepSums(**{name: math.fsum(amounts) for name, amounts in _step_columns(own).items()})


def _sampled_sums(own: Own, reads_loader: bool, batch_size: int | None) -> StepSums:
    counted, stopped = own("counted_batches"), pooled.total(own("stopped_phase_seconds"))
    # Files of version 1 have neither seconds: their minutes count whole.
    counted_seconds = pooled.total(own("counted_seconds")) or 60.0 * len(counted)
    stack_seconds = pooled.total(own("stack_seconds")) or 60.0 * len(own("stack_wait_train_share"))
    hits = {phase: pooled.total(own(f"stack_{phase}_share")) for phase in PHASES}
    training = pooled.count(own("stack_wait_train_share"))
    samples = training + sum(hits[phase] for phase in NOT_TRAINING)
    return sampled_sums(
        stack_seconds,
        training / samples if samples else 0.0,
        {phase: hits[phase] / training for phase in PHASES if phase not in NOT_TRAINING and training},
        steps=pooled.total(counted),
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
