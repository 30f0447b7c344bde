"""The metrics of a GPU's minute."""

from __future__ import annotations

from collections.abc import Sequence

from gpuwatch.recording.chunks import Stream
from gpuwatch.recording.metric_values import Metrics, known_of
from gpuwatch.timeline.gpu_history import PLAUSIBLE

_GAUGES = (
    "memory_utilization_percent",
    "memory_used_bytes",
    "temperature_celsius",
    "memory_temperature_celsius",
    "sm_clock_mhz",
    "sm_activity_percent",
    "tensor_activity_percent",
    "dram_activity_percent",
)
_RINGS = {"utilization_percent": "utilization_ring", "power_watts": "power_ring"}
_AMOUNTS = ("energy_joules",)
_RATES = {"pcie_tx_bytes": "pcie_tx_bytes_per_second", "pcie_rx_bytes": "pcie_rx_bytes_per_second"}
_SHARES = ("power", "sw_thermal", "hw_thermal", "power_brake")

Ring = Sequence[Sequence[tuple[int, float]]]


def gpu_metrics(stream: Stream, metrics: Metrics) -> None:
    """Derives them from the samples of one GPU, without the impossible values that the timeline leaves out too."""
    uuid, times_ns = stream.subject, stream.column("time_ns")
    for name, ring in _RINGS.items():
        _gauge_with_ring(uuid, name, stream, stream.column(ring), metrics)
    for name in _GAUGES:
        metrics.add(uuid, name, _plausible(name, stream.column(name)))
    for name in _AMOUNTS:
        metrics.add_growth(uuid, name, times_ns, stream.column(name), None)
    for name, rate in _RATES.items():
        metrics.add_growth(uuid, rate, times_ns, stream.column(name), 1e9)
    for cause in _SHARES:
        metrics.add_growth(uuid, f"throttled_{cause}_share", times_ns, stream.column(f"throttled_{cause}_ns"), 1.0)


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
    if name not in PLAUSIBLE:
        return values
    low, high = PLAUSIBLE[name]
    known = known_of(values)
    if not known or (low <= min(known) and max(known) <= high):
        return known
    return [value for value in known if low <= value <= high]
