"""The metrics of a GPU's minute."""

from __future__ import annotations

from collections.abc import Sequence

from gpuwatch import metrics as registry
from gpuwatch.recording.chunks import Stream
from gpuwatch.recording.metric_values import Metrics, known_of

Ring = Sequence[Sequence[tuple[int, float]]]


def gpu_metrics(stream: Stream, metrics: Metrics) -> None:
    """Derives them from the samples of one GPU, without the impossible values that the timeline leaves out too."""
    uuid, times_ns = stream.subject, stream.column("time_ns")
    for name, ring in registry.GPU_RINGS.items():
        _gauge_with_ring(uuid, name, stream, stream.column(ring), metrics)
    for gauge in registry.GPU_GAUGES:
        if gauge.ring is None:
            metrics.add(uuid, gauge.name, _plausible(gauge.name, stream.column(gauge.name)))
    for counter in registry.GPU_COUNTERS.values():
        metrics.add_growth(uuid, counter.minute, times_ns, stream.column(counter.name), counter.minute_scale)


def _gauge_with_ring(uuid: str, name: str, stream: Stream, rings: Ring, metrics: Metrics) -> None:
    """What happened between the polls where the driver kept it, each value once however the drains overlap."""
    if not any(rings):
        metrics.add(uuid, name, _plausible(name, stream.column(name)))
        return
    until, values = metrics.last_reading(uuid, f"{name} ring"), []
    for ring, poll in zip(rings, stream.column(name), strict=True):
        new = [(time_ns, value) for time_ns, value in ring if time_ns > until]
        if new:
            until = new[-1][0]
            values += [value for _, value in new]
        elif not ring:
            values.append(poll)
    metrics.counted_until(uuid, f"{name} ring", until)
    metrics.add(uuid, name, _plausible(name, values))


def _plausible(name: str, values: Sequence[float | None]) -> Sequence[float | None]:
    """Without what a driver hands out in place of a value; mostly that is none, which is seen in no time."""
    low, high = registry.GPU[name].low, registry.GPU[name].high
    known = known_of(values)
    if not known or (low <= min(known) and max(known) <= high):
        return known
    return [value for value in known if low <= value <= high]
