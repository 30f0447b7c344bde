"""What one GPU did in a window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpuwatch.samples import GpuFacts, GpuHealth, GpuSample, GpuStatus, XidEvent


@dataclass(frozen=True, slots=True)
class Stats:
    """A distribution's usual figures; `sigma` is the sample standard deviation (ddof 1), 0 for one value."""

    count: int
    mean: float
    sigma: float
    p5: float
    p50: float
    p95: float
    min: float
    max: float


@dataclass(frozen=True, slots=True)
class LinkErrors:
    """What one GPU's links repeated in the newest minute or so (`seconds`; 0: not a minute was watched yet).

    `nvlink_lost` are links that were up earlier in this session and no longer are.
    """

    seconds: float
    pcie_replays_per_minute: float | None = None
    nvlink_crc_errors_per_second: float | None = None
    nvlink_replays: int | None = None
    nvlink_recoveries: int | None = None
    nvlink_lost: int | None = None


@dataclass(frozen=True, slots=True)
class GpuWindow:
    """One GPU over the window.

    `utilization` is over all samples; `train_utilization` leaves out those that a phase of the run on this GPU
    overlaps. Both use the driver's ring where it is drained (several values a second), else the polls.
    """

    facts: GpuFacts
    window_seconds: float
    status: str = "live"  # "live", "stale", "lost"
    status_reason: str | None = None
    status_since_ns: int | None = None
    latest: GpuSample | None = None
    latest_status: GpuStatus | None = None
    latest_health: GpuHealth | None = None
    utilization: Stats | None = None
    train_utilization: Stats | None = None
    train_utilization_series: Sequence[tuple[int, float]] = ()
    sensor_window_seconds: float | None = None  # estimated from the spacing of changed ring values
    power_watts: Stats | None = None
    power_limit_watts: float | None = None
    energy_joules: float | None = None  # spent in the window, from the counter
    memory_used_bytes: Stats | None = None
    temperature_celsius: Stats | None = None
    sm_clock_mhz: Stats | None = None
    sm_clock_cool_mhz: float | None = None  # median while nothing slowed it down, whole session
    sm_activity_percent: Stats | None = None
    tensor_activity_percent: Stats | None = None
    pcie_rx_bytes_per_second: float | None = None
    pcie_tx_bytes_per_second: float | None = None
    throttle_shares: Mapping[str, float] = field(default_factory=dict)
    """Share of wall time per cause: "power", "sw-thermal", "hw-thermal", "power-brake"; from the counters,
    else from the mask's share of samples."""
    reason_bit_shares: Mapping[int, float] = field(default_factory=dict)  # share of samples with the bit set
    reason_bit_events: Mapping[int, int] = field(default_factory=dict)  # rising edges in the last 10 min
    xids: tuple[XidEvent, ...] = ()  # whole session
    links: LinkErrors | None = None
    unavailable: Mapping[str, str] = field(default_factory=dict)
