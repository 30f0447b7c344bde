"""The past of a stage from the recording's minutes: what charts show of the time before its samples begin."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import mul

from gpuwatch.metrics import charted
from gpuwatch.recording import pooled
from gpuwatch.recording.minutes import known_in
from gpuwatch.recording.pooled import NO_MINUTES, MinuteColumns
from gpuwatch.recording.reader import Recording
from gpuwatch.recording.tiers import HOUR_NS
from gpuwatch.timeline.columns import NAN
from gpuwatch.timeline.step_tiers import StepTiers
from gpuwatch.timeline.tiers import MINUTE_NS, MINUTES_KEPT, ValueTiers
from gpuwatch.timeline.timeline import Timeline

_RUN_METRICS = (
    *("step_seconds", "wait_seconds", "wait_share", "step_samples", "step_batches"),
    *(known_in("wait"), known_in("samples")),
)


def fill_past(
    timeline: Timeline, recording: Recording, until_ns: int, stop: Callable[[], bool] = lambda: False
) -> int | None:
    """Fills the minutes before a moment, for a day at most, of all GPUs, runs and the host that the timeline knows.

    Stopped, it returns the moment to go on before; else None.

    An hour at a time, as they are written, the newest first: a day of eight ranks is half a million figures.

    The minute that holds the moment is left out: samples will fill the rest of it, and half of it counted twice would
    be a lie. Its seconds are marked as not reaching back, so that charts take the minutes where they begin earlier.
    """
    start_ns = max(recording.start_ns, until_ns - MINUTES_KEPT * MINUTE_NS)
    last_ns = until_ns // MINUTE_NS * MINUTE_NS
    metrics = {*_RUN_METRICS, *(metric.name for subject in ("gpu", "host") for metric in charted(subject))}
    while start_ns < last_ns and not stop():
        hour_ns = max(start_ns, (last_ns - 1) // HOUR_NS * HOUR_NS)
        found = recording.minutes(hour_ns, last_ns - 1, metrics=metrics)
        with timeline.lock:
            _put(timeline, found)
        last_ns = hour_ns
    return last_ns if start_ns < last_ns else None


def _put(timeline: Timeline, found: Mapping[tuple[str, str], MinuteColumns]) -> None:
    for (subject, metric), minutes in found.items():
        tiers = _value_tiers(timeline, subject, metric)
        if tiers is not None:
            figures = {name: minutes.column(name) for name in ("count", "mean", "min", "max")}
            tiers.minutes.fill(minutes.column("minute_ns"), figures)
            tiers.seconds.trimmed = True
        elif metric == "step_seconds" and subject in timeline.trainers:
            own = {name: found[subject, name] for name in _RUN_METRICS if (subject, name) in found}
            _fill_steps(timeline.trainers[subject].tiers, own)


def _value_tiers(timeline: Timeline, subject: str, metric: str) -> ValueTiers | None:
    if subject == "host":
        return timeline.host.tiers.get(metric)
    gpu = timeline.gpus.get(subject)
    return gpu.tiers.get(metric) if gpu is not None else None


def _fill_steps(tiers: StepTiers, own: Mapping[str, MinuteColumns]) -> None:
    """Minutes of steps: their sums, and the range of their periods and waits."""

    def of(name: str) -> MinuteColumns:
        return own.get(name, NO_MINUTES)

    periods = of("step_seconds")
    times_ns, counts = periods.column("minute_ns"), periods.column("count")
    waits, shares, samples, batches = (
        dict(zip(of(name).column("minute_ns"), _rows(of(name)), strict=True))
        for name in ("wait_seconds", "wait_share", "step_samples", "step_batches")
    )
    waiting = pooled.known_seconds(periods, of("wait_seconds"), of(known_in("wait")))
    sampling = pooled.known_seconds(periods, of("step_samples"), of(known_in("samples")))
    unknown = (0, 0.0, NAN, NAN)
    share = [shares.get(at, unknown) for at in times_ns]
    tiers.fill_minutes(
        times_ns,
        {
            "steps": counts,
            "train": list(map(mul, counts, periods.column("mean"))),
            "wait": [count * mean for count, mean, _, _ in (waits.get(at, unknown) for at in times_ns)],
            "wait_steps": [waits.get(at, unknown)[0] for at in times_ns],
            "wait_train": [waiting.get(at, 0.0) for at in times_ns],
            "samples": [count * mean for count, mean, _, _ in (samples.get(at, unknown) for at in times_ns)],
            "batches": [count * mean for count, mean, _, _ in (batches.get(at, unknown) for at in times_ns)],
            "samples_train": [sampling.get(at, 0.0) for at in times_ns],
            "period_min": periods.column("min"),
            "period_max": periods.column("max"),
            "share_min": [row[2] for row in share],
            "share_max": [row[3] for row in share],
        },
    )


def _rows(minutes: MinuteColumns) -> Iterator[tuple[int, float, float, float]]:
    return zip(*(minutes.column(name) for name in ("count", "mean", "min", "max")), strict=True)
