"""The report's `gpus`: one object per GPU, with a reason for every figure that is not known."""

from __future__ import annotations

from gpuwatch.report.observation import Json, figure
from gpuwatch.timeline.windows import GpuWindow, Stats

_SOURCES = {
    "utilization_percent": "utilization_percent",
    "power_watts": "power_watts",
    "memory_bytes": "memory_used_bytes",
    "temperature_celsius": "temperature_celsius",
    "sm_clock_mhz": "sm_clock_mhz",
    "energy_joules": "energy_joules",
}
"""Key of the report -> field of the sample under which a device gives its reason."""


def gpu_section(gpus: tuple[GpuWindow, ...]) -> list[Json]:
    """All GPUs, by index."""
    return [_gpu(gpu) for gpu in gpus]


def _gpu(gpu: GpuWindow) -> Json:
    figures: Json = {
        "utilization_percent": _part(gpu.utilization, "mean", "sigma", "p5", "p95"),
        "train_utilization_percent": _part(gpu.train_utilization, "mean", "sigma", "p5", "p95"),
        "power_watts": _part(gpu.power_watts, "mean", "max"),
        "memory_bytes": _part(gpu.memory_used_bytes, "mean", "max"),
        "temperature_celsius": _part(gpu.temperature_celsius, "mean", "max"),
        "sm_clock_mhz": _part(gpu.sm_clock_mhz, "mean", "max"),
        "energy_joules": figure(gpu.energy_joules),
    }
    unavailable = {
        metric: gpu.unavailable.get(source, "not measured in this window")
        for metric, source in _SOURCES.items()
        if figures[metric] is None
    }
    if figures["power_watts"] is not None:
        figures["power_watts"]["limit"] = figure(gpu.power_limit_watts)
        if gpu.power_limit_watts is None:
            unavailable["power_watts.limit"] = gpu.unavailable.get("power_limit_watts", "not reported by the driver")
    if figures["memory_bytes"] is not None:
        figures["memory_bytes"]["total"] = gpu.facts.memory_total_bytes
        if gpu.facts.memory_total_bytes is None:
            unavailable["memory_bytes.total"] = gpu.unavailable.get("memory_total_bytes", "not reported by the driver")
    return {
        "index": gpu.facts.index,
        "uuid": gpu.facts.uuid,
        "name": gpu.facts.name,
        "status": gpu.status,
        "status_reason": gpu.status_reason,
        **figures,
        "throttled_share": {cause: figure(share) for cause, share in gpu.throttle_shares.items()},
        "sensor_window_seconds": figure(gpu.sensor_window_seconds),
        "unavailable": unavailable,
    }


def _part(stats: Stats | None, *names: str) -> Json | None:
    return None if stats is None else {name: figure(getattr(stats, name)) for name in names}
