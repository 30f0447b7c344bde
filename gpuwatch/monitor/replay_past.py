"""The past of a stage from the recording's minutes: what charts show of the time before its samples begin."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from gpuwatch.recording.reader import Recording
from gpuwatch.recording.types import Rollup
from gpuwatch.timeline.gpu_history import TIERED as GPU_METRICS
from gpuwatch.timeline.host_history import TIERED as HOST_METRICS
from gpuwatch.timeline.step_tiers import StepTiers
from gpuwatch.timeline.tiers import MINUTE_NS, MINUTES_KEPT, ValueTiers
from gpuwatch.timeline.timeline import Timeline

_AT_ONCE_NS = 60 * MINUTE_NS
_RUN_METRICS = ("step_seconds", "wait_seconds", "wait_share", "samples_per_second")


def fill_past(
    timeline: Timeline, recording: Recording, until_ns: int, stop: Callable[[], bool] = lambda: False
) -> None:
    """Fills the minutes before a moment, for a day at most, of all GPUs, runs and the host that the timeline knows.

    An hour at a time, the newest first: a day of eight ranks is half a million figures.

    The minute that holds the moment is left out: samples will fill the rest of it, and half of it counted twice would
    be a lie. Its seconds are marked as not reaching back, so that charts take the minutes where they begin earlier.
    """
    start_ns = max(recording.start_ns, until_ns - MINUTES_KEPT * MINUTE_NS)
    last_ns = until_ns // MINUTE_NS * MINUTE_NS
    metrics = {*GPU_METRICS, *HOST_METRICS, *_RUN_METRICS}
    while start_ns < last_ns and not stop():
        hour_ns = max(start_ns, last_ns - _AT_ONCE_NS)
        rows = [row for row in recording.rollups(hour_ns, last_ns, metrics=metrics) if row.minute_ns < last_ns]
        with timeline.lock:
            _put(timeline, rows)
        last_ns = hour_ns


def _put(timeline: Timeline, rows: Iterable[Rollup]) -> None:
    runs: dict[tuple[str, int], dict[str, Rollup]] = {}
    for row in rows:
        tiers = _value_tiers(timeline, row)
        if tiers is not None:
            tiers.minutes.put(row.minute_ns, row.count, row.mean, row.min, row.max)
            tiers.seconds.trimmed = True
        elif row.subject in timeline.trainers:
            runs.setdefault((row.subject, row.minute_ns), {})[row.metric] = row
    for (trainer, minute_ns), figures in runs.items():
        _add_minute(timeline.trainers[trainer].tiers, minute_ns, figures)


def _value_tiers(timeline: Timeline, row: Rollup) -> ValueTiers | None:
    if row.subject == "host":
        return timeline.host.tiers.get(row.metric)
    gpu = timeline.gpus.get(row.subject)
    return gpu.tiers.get(row.metric) if gpu is not None else None


def _add_minute(tiers: StepTiers, minute_ns: int, rows: Mapping[str, Rollup]) -> None:
    """A minute's steps: their sums, and the range of their periods and waits."""
    steps = rows.get("step_seconds")
    if steps is None:
        return
    train = steps.count * steps.mean
    wait, share, speed = rows.get("wait_seconds"), rows.get("wait_share"), rows.get("samples_per_second")
    tiers.put_minute(
        minute_ns,
        {
            "steps": float(steps.count),
            "train": train,
            "wait": wait.count * wait.mean if wait is not None else 0.0,
            "wait_train": train if wait is not None else 0.0,
            "samples": speed.mean * train if speed is not None else 0.0,
            "samples_train": train if speed is not None else 0.0,
        },
        {
            "period": (steps.min, steps.max),
            **({"share": (share.min, share.max)} if share is not None else {}),
        },
    )
