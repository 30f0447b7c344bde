"""A GPU's row of the snapshot."""

from __future__ import annotations

from gpuwatch.monitor.snapshot import GpuNow
from gpuwatch.timeline.gpu_history import (
    REASON_HARDWARE,
    REASON_HW_THERMAL,
    REASON_POWER,
    REASON_POWER_BRAKE,
    REASON_SW_THERMAL,
    GpuHistory,
)
from gpuwatch.timeline.gpu_status import status_of
from gpuwatch.timeline.gpu_window import recent_utilization
from gpuwatch.timeline.stats import mean_and_sigma
from gpuwatch.timeline.tiers import SECOND_NS
from gpuwatch.timeline.timeline import Timeline

_RECENT_NS = 60 * SECOND_NS
_FELT_SHARE = 0.05  # of the time between two polls: below it a counter's step is not worth a word

_WORDS = (
    ("power", REASON_POWER, ("throttled_power_ns",)),
    ("heat", REASON_SW_THERMAL | REASON_HW_THERMAL, ("throttled_sw_thermal_ns", "throttled_hw_thermal_ns")),
    ("hardware brake", REASON_POWER_BRAKE, ("throttled_power_brake_ns",)),
)


def gpu_now(gpu: GpuHistory, timeline: Timeline, now_ns: int) -> GpuNow:
    """The latest of one GPU whose facts are known, and its last minute's utilization."""
    assert gpu.facts is not None
    status = status_of(gpu, now_ns, timeline.interval_seconds, timeline.nvml)
    recent = recent_utilization(gpu, now_ns - _RECENT_NS, now_ns)
    mean, sigma = mean_and_sigma(recent) if recent else (None, None)
    return GpuNow(
        facts=gpu.facts,
        status=status.word,
        status_reason=status.reason,
        status_since_ns=status.since_ns,
        latest=gpu.latest,
        latest_status=gpu.latest_status,
        latest_health=gpu.latest_health,
        throttled_by=throttled_by(gpu),
        utilization_mean_percent=mean,
        utilization_sigma_percent=sigma,
    )


def throttled_by(gpu: GpuHistory) -> tuple[str, ...]:
    """What slows the GPU down now: by the latest mask, and by what the counters gained since the poll before.

    The bit for a hardware slowdown says no cause; it is named only where neither heat nor the brake is.
    """
    if gpu.latest is None:
        return ()
    mask = gpu.latest.event_reasons or 0
    words = [word for word, bits, counters in _WORDS if mask & bits or any(_gained(gpu, name) for name in counters)]
    if mask & REASON_HARDWARE and "heat" not in words and "hardware brake" not in words:
        words.append("hardware brake")
    return tuple(words)


def _gained(gpu: GpuHistory, counter: str) -> bool:
    if len(gpu.polls) < 2:
        return False
    before, after = gpu.polls[counter][-2:]
    between_ns = gpu.polls.times[-1] - gpu.polls.times[-2]
    return bool(after - before > _FELT_SHARE * between_ns)
