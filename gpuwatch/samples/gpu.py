"""What a GPU says about itself, keyed by UUID because indices change when a driver is reloaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Reasons = Mapping[str, str]
"""Field name -> why it is unknown, such as "not supported by this GPU" or "no permission"."""


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What does not change while a GPU is present. Source: NVML, read once at start."""

    time_ns: int
    uuid: str
    index: int
    name: str
    pci_bus_id: str | None = None
    compute_capability: tuple[int, int] | None = None
    memory_total_bytes: int | None = None
    memory_unified: bool = False
    power_limit_watts: float | None = None
    power_limit_default_watts: float | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_max_mhz: int | None = None
    pcie_generation_max: int | None = None
    pcie_width_max: int | None = None
    mig: bool = False
    mig_parent: str | None = None
    unavailable: Reasons = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One poll of the 1 s lane.

    `utilization_ring` and `power_ring` are the driver's own buffers drained since the last poll, as
    (time_ns, value) pairs in time order: they show what happens between polls. Where there is a utilization
    ring, `utilization_percent` is the mean of its newest second or so, else the sensor's last window (1/6 to
    1 s). Counters (`*_ns`, `energy_joules`, `pcie_*_bytes`) only grow; a reset shows as a smaller value.
    """

    time_ns: int
    uuid: str
    utilization_percent: float | None = None
    memory_utilization_percent: float | None = None
    power_watts: float | None = None
    power_window_seconds: float | None = None  # 0: instant; 1: the sensor's own 1 s mean
    energy_joules: float | None = None
    memory_used_bytes: int | None = None
    temperature_celsius: float | None = None
    memory_temperature_celsius: float | None = None
    sm_clock_mhz: float | None = None
    event_reasons: int | None = None  # NVML clocks event reasons bit mask
    throttled_power_ns: int | None = None
    throttled_sw_thermal_ns: int | None = None
    throttled_hw_thermal_ns: int | None = None
    throttled_power_brake_ns: int | None = None
    pcie_tx_bytes: int | None = None
    pcie_rx_bytes: int | None = None
    sm_activity_percent: float | None = None  # GPM, Hopper and later
    tensor_activity_percent: float | None = None
    dram_activity_percent: float | None = None
    utilization_ring: tuple[tuple[int, float], ...] = ()
    power_ring: tuple[tuple[int, float], ...] = ()
    unavailable: Reasons = field(default_factory=dict)
    ages_seconds: Mapping[str, float] = field(default_factory=dict)
    """Field -> how much older than `time_ns` it is, for what a slower lane read and this sample repeats."""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process with a context on a GPU. `pid` is this namespace's, None where it cannot be mapped."""

    host_pid: int
    pid: int | None = None
    memory_bytes: int | None = None
    sm_percent: float | None = None
    command: str | None = None


@dataclass(frozen=True, slots=True)
class GpuStatus:
    """One poll of the 5 s lane: what is too expensive or too slow-moving for every second."""

    time_ns: int
    uuid: str
    memory_clock_mhz: float | None = None
    fan_percent: float | None = None
    performance_state: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    processes: tuple[GpuProcess, ...] | None = None
    unavailable: Reasons = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GpuHealth:
    """One poll of the 30 s lane: limits, memory health and links.

    `nvlink_*_errors`, `_replays`, `_recoveries` and `pcie_replays` count since the driver was loaded, over all links;
    `nvlink_count` are links that the GPU has, whether or not a bridge or switch is at their other end.
    """

    time_ns: int
    uuid: str
    power_limit_watts: float | None = None
    ecc_uncorrected_volatile: int | None = None
    ecc_corrected_volatile: int | None = None
    remapped_rows_uncorrectable: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    retired_pages: int | None = None
    recovery_action: str | None = None
    pcie_replays: int | None = None
    application_clock_mhz: float | None = None  # what applications are set to, a boost above it allowed or not
    nvlink_count: int | None = None
    nvlink_active: int | None = None
    nvlink_crc_errors: int | None = None
    nvlink_replays: int | None = None
    nvlink_recoveries: int | None = None
    unavailable: Reasons = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GpuLost:
    """A GPU that answered before and no longer does; a later GpuSample of the same UUID ends it."""

    time_ns: int
    uuid: str
    reason: str


@dataclass(frozen=True, slots=True)
class XidEvent:
    """An error the driver reported, once, at a time; not a state."""

    time_ns: int
    uuid: str | None
    xid: int
    text: str = ""


@dataclass(frozen=True, slots=True)
class NvmlState:
    """How NVML as a whole stands, and what asking it costs.

    `status`: "ok"; "absent" (no library, no driver or no device: nothing to watch); "failing" (init or all
    calls fail); "stale" (the child is silent for over a second); "restarting". The counts are of the whole
    session and only grow; `dropped_values` are sentinels and counters that ran backwards.
    """

    time_ns: int
    status: str
    reason: str | None = None  # one sentence: cause and cure
    driver_version: str | None = None
    cuda_version: str | None = None
    gpu_count: int | None = None
    calls: int = 0
    call_seconds: float = 0.0
    missed_polls: int = 0
    restarts: int = 0
    dropped_values: int = 0
