"""Every metric of GPUs, runs and the host, one row each. All lists of metrics are derived from these rows.

A row is what the rest of gpuwatch has to know of a metric: its unit, what values are possible, how the timeline keeps
it, what a recording's minute makes of it, and how it is charted. docs/architecture.md says how to add one.

The NVML child loads this module, so it imports nothing: `typing` and `dataclasses` would be 2 MB of the child's 15.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    Kind = Literal["gauge", "ring", "counter", "mask", "ratio", "fact"]
    Chart = Literal["headline", "detail"]

COUNTER_LIMIT = 1 << 62
"""A count above it is a sentinel: drivers hand out 2**63 and 2**64 - 1 for "unknown"."""

IMPOSSIBLE = "the driver gave an impossible value"
"""Why a value outside of its metric's limits is unknown."""

_CELSIUS = (-40, 150)
_WATTS = 10_000
_MHZ = 10_000
_MEMORY_MHZ = 50_000
_BYTES = 1 << 50
_GIB = 1 << 30


class Metric:
    """One metric.

    Attributes:
        series: its subject and name: "gpu.power_watts". Charts, findings and reports name it so.
        subject: "gpu", "run" or "host".
        name: the field of the sample that holds it, without the subject.
        unit: of the values as they are stored.
        kind: `gauge`: a reading; `ring`: a gauge of which the driver also keeps the values between two polls;
            `counter`: only grows; `mask`: bits; `ratio`: derived from a run's steps; `fact`: a property, state or
            limit of a device.
        low: the least possible value. A value outside of both limits is a sentinel of the driver and unknown.
        high: the greatest possible value.
        label: a word or two for narrow places.
        title: the same for headings.
        chart: where it is charted: `headline` in every overview, `detail` where there is room, None nowhere. Of a
            charted gauge the timeline keeps seconds for 2 hours and minutes for a day, else at most 10 min of polls.
        top: the end of the chart's scale in stored units; None: a round number above the values.
        from_zero: whether a chart with room for its own scale begins at zero.
        shown_unit: the unit on a page, where that is not the stored one.
        shown_factor: from stored values to shown ones.
        windowed: whether polls are kept for 10 min, to cut windows from.
        ring: the field of the sample with the driver's own values.
        minute: of a counter of every poll, the name of what it adds to a recording's minute.
        minute_scale: of a counter, makes a rate of the growth per nanosecond; None: the growth itself is recorded.
        help: what it is, in one sentence, for the exporter's `# HELP`.
    """

    __slots__ = (
        "chart",
        "from_zero",
        "help",
        "high",
        "kind",
        "label",
        "low",
        "minute",
        "minute_scale",
        "name",
        "ring",
        "series",
        "shown_factor",
        "shown_unit",
        "subject",
        "title",
        "top",
        "unit",
        "windowed",
    )

    def __init__(
        self,
        series: str,
        unit: str,
        kind: Kind,
        limits: tuple[float, float] = (0, COUNTER_LIMIT),
        *,
        label: str = "",
        title: str = "",
        chart: Chart | None = None,
        top: float | None = None,
        from_zero: bool = True,
        shown: tuple[str, float] | None = None,
        windowed: bool = False,
        ring: str | None = None,
        minute: tuple[str, float | None] | None = None,
        help: str = "",
    ) -> None:
        self.series = series
        self.subject, _, self.name = series.partition(".")
        self.unit = unit
        self.kind = kind
        self.low, self.high = limits
        self.label = label
        self.title = title or label
        self.chart = chart
        self.top = top
        self.from_zero = from_zero
        self.shown_unit, self.shown_factor = shown or (unit, 1.0)
        self.windowed = windowed
        self.ring = ring
        self.minute, self.minute_scale = minute or ("", None)
        self.help = help


# Pages draw their charts in the order of these rows, and a minute of a recording has its rows in it.
METRICS = (
    Metric("gpu.utilization_percent", "%", "ring", (0, 100), label="utilization", title="GPU utilization",
           chart="headline", top=100.0, windowed=True, ring="utilization_ring",
           help="Share of time with a kernel running, over the driver's newest second or so."),
    Metric("run.wait_share", "share", "ratio", (0, 1), label="wait", title="wait for data", chart="headline", top=1.0,
           shown=("%", 100.0), help="Share of training time that waits for data, over the last minute."),
    Metric("run.step_seconds", "s", "ratio", label="step time", chart="headline", shown=("ms", 1000.0),
           help="Mean training time of a step (sampled runs: of a batch), over the last minute."),
    Metric("run.samples_per_second", "1/s", "ratio", label="samples", title="samples per second", chart="detail",
           help="Samples trained per second of training time, over the last minute."),
    Metric("gpu.power_watts", "W", "ring", (0, _WATTS), label="power", chart="headline", windowed=True,
           ring="power_ring", help="Power draw."),
    Metric("gpu.memory_utilization_percent", "%", "gauge", (0, 100),
           help="Share of time in which device memory was read or written."),
    Metric("gpu.memory_used_bytes", "bytes", "gauge", (0, _BYTES), label="memory", title="GPU memory", chart="detail",
           shown=("GiB", 1 / _GIB), windowed=True, help="Device memory in use, by all processes."),
    Metric("gpu.temperature_celsius", "°C", "gauge", _CELSIUS, label="temperature", chart="detail", top=100.0,
           from_zero=False, windowed=True, help="Temperature of the GPU."),
    Metric("gpu.memory_temperature_celsius", "°C", "gauge", _CELSIUS, help="Temperature of the memory."),
    Metric("gpu.sm_clock_mhz", "MHz", "gauge", (0, _MHZ), label="SM clock", chart="detail", from_zero=False,
           windowed=True, help="Clock of the multiprocessors."),
    Metric("gpu.sm_activity_percent", "%", "gauge", (0, 100), windowed=True,
           help="Share of cycles with a warp on a multiprocessor, mean over all of them."),
    Metric("gpu.tensor_activity_percent", "%", "gauge", (0, 100), windowed=True,
           help="Share of cycles in which tensor cores worked."),
    Metric("gpu.dram_activity_percent", "%", "gauge", (0, 100),
           help="Share of cycles in which device memory moved data."),
    Metric("gpu.energy_joules", "J", "counter", minute=("energy_joules", None),
           help="Energy used since the driver was loaded."),
    Metric("gpu.pcie_tx_bytes", "bytes", "counter", minute=("pcie_tx_bytes_per_second", 1e9),
           help="Bytes sent over PCIe."),
    Metric("gpu.pcie_rx_bytes", "bytes", "counter", minute=("pcie_rx_bytes_per_second", 1e9),
           help="Bytes received over PCIe."),
    Metric("gpu.throttled_power_ns", "ns", "counter", minute=("throttled_power_share", 1.0),
           help="Time slowed down by the power limit."),
    Metric("gpu.throttled_sw_thermal_ns", "ns", "counter", minute=("throttled_sw_thermal_share", 1.0),
           help="Time slowed down by the driver because of heat."),
    Metric("gpu.throttled_hw_thermal_ns", "ns", "counter", minute=("throttled_hw_thermal_share", 1.0),
           help="Time slowed down by the hardware because of heat."),
    Metric("gpu.throttled_power_brake_ns", "ns", "counter", minute=("throttled_power_brake_share", 1.0),
           help="Time slowed down by the external power brake."),
    Metric("gpu.event_reasons", "bits", "mask", (0, (1 << 32) - 1), help="NVML's clocks event reasons."),
    Metric("host.cpu_percent", "%", "gauge", (0, 100), label="host CPU", chart="headline", top=100.0, windowed=True,
           help="Share of all CPU cores in use."),
    Metric("host.pressure_cpu_percent", "%", "gauge", (0, 100), label="CPU pressure", windowed=True,
           help="Share of the last 10 s in which some task waited for a core."),
    Metric("host.pressure_io_percent", "%", "gauge", (0, 100), label="I/O pressure", chart="detail", top=100.0,
           windowed=True, help="Share of the last 10 s in which some task waited for I/O."),
    Metric("host.pressure_memory_percent", "%", "gauge", (0, 100), windowed=True,
           help="Share of the last 10 s in which some task waited for memory."),
    Metric("host.disk_queue_length", "requests", "gauge", windowed=True,
           help="Mean queue length of the most loaded disk."),
    Metric("host.major_faults_per_second", "1/s", "gauge", windowed=True,
           help="Page faults per second that read from storage."),
    Metric("host.swap_in_bytes_per_second", "bytes/s", "gauge", windowed=True,
           help="Bytes per second read back from swap."),
    Metric("host.load_1m", "", "gauge", help="Tasks running or waiting, mean over a minute."),
    Metric("host.memory_total_bytes", "bytes", "fact", help="Memory of the machine."),
    Metric("host.memory_available_bytes", "bytes", "gauge", help="Memory that programs can still get."),
    Metric("host.shm_total_bytes", "bytes", "fact", help="Size of /dev/shm."),
    Metric("host.shm_used_bytes", "bytes", "gauge", help="Used in /dev/shm."),
    Metric("host.disk_read_bytes_per_second", "bytes/s", "gauge", help="Read from all disks."),
    Metric("host.disk_write_bytes_per_second", "bytes/s", "gauge", help="Written to all disks."),
    Metric("host.network_receive_bytes_per_second", "bytes/s", "gauge", help="Received over all network interfaces."),
    Metric("host.network_send_bytes_per_second", "bytes/s", "gauge", help="Sent over all network interfaces."),
    # The slower lanes: the timeline keeps the latest reading.
    Metric("gpu.memory_clock_mhz", "MHz", "fact", (0, _MEMORY_MHZ), help="Clock of the memory."),
    Metric("gpu.fan_percent", "%", "fact", (0, 200),  # NVML: may exceed 100
           help="Fan speed, of its maximum."),
    Metric("gpu.performance_state", "", "fact", (0, 15), help="Performance state, 0 the fastest."),
    Metric("gpu.pcie_generation", "", "fact", (1, 15), help="PCIe generation of the link now."),
    Metric("gpu.pcie_width", "lanes", "fact", (1, 32), help="PCIe lanes of the link now."),
    Metric("gpu.power_limit_watts", "W", "fact", (1, _WATTS), help="Power limit in force."),
    Metric("gpu.application_clock_mhz", "MHz", "fact", (1, _MHZ), help="Clock that applications are set to."),
    Metric("gpu.nvlink_count", "links", "fact", (0, 64), help="NVLinks that the GPU has."),
    Metric("gpu.nvlink_active", "links", "fact", (0, 64), help="NVLinks that are up."),
    Metric("gpu.ecc_uncorrected_volatile", "errors", "counter",
           help="Uncorrected memory errors since the driver was loaded."),
    Metric("gpu.ecc_corrected_volatile", "errors", "counter",
           help="Corrected memory errors since the driver was loaded."),
    Metric("gpu.remapped_rows_uncorrectable", "rows", "counter",
           help="Memory rows remapped because of uncorrectable errors."),
    Metric("gpu.retired_pages", "pages", "counter", help="Memory pages retired."),
    Metric("gpu.pcie_replays", "replays", "counter", help="PCIe transfers repeated."),
    Metric("gpu.nvlink_crc_errors", "errors", "counter", help="NVLink CRC errors, over all links."),
    Metric("gpu.nvlink_replays", "replays", "counter", help="NVLink transfers repeated, over all links."),
    Metric("gpu.nvlink_recoveries", "recoveries", "counter", help="NVLink recoveries, over all links."),
    Metric("gpu.memory_total_bytes", "bytes", "fact", (1, _BYTES), help="Device memory."),
    Metric("gpu.power_limit_default_watts", "W", "fact", (1, _WATTS), help="Power limit that the GPU starts with."),
    Metric("gpu.sm_clock_max_mhz", "MHz", "fact", (1, _MHZ), help="Highest clock of the multiprocessors."),
    Metric("gpu.memory_clock_max_mhz", "MHz", "fact", (1, _MEMORY_MHZ), help="Highest clock of the memory."),
    Metric("gpu.pcie_generation_max", "", "fact", (1, 15), help="Highest PCIe generation of GPU and slot."),
    Metric("gpu.pcie_width_max", "lanes", "fact", (1, 32), help="Most PCIe lanes of GPU and slot."),
)  # fmt: skip

BY_SERIES = {metric.series: metric for metric in METRICS}
GPU = {metric.name: metric for metric in METRICS if metric.subject == "gpu"}
HOST = {metric.name: metric for metric in METRICS if metric.subject == "host"}

GPU_GAUGES = tuple(metric for metric in GPU.values() if metric.kind in ("gauge", "ring"))
GPU_RINGS = {metric.name: metric.ring for metric in GPU_GAUGES if metric.ring}
"""Gauge -> the field of GpuSample with what the driver kept of it between two polls."""
GPU_COUNTERS = {metric.name: metric for metric in GPU.values() if metric.minute}
"""The counters of every poll."""


def charted(subject: str, *, only_headline: bool = False) -> tuple[Metric, ...]:
    """The metrics of a subject that have a chart."""
    return tuple(
        metric
        for metric in METRICS
        if metric.subject == subject and metric.chart and (metric.chart == "headline" or not only_headline)
    )
