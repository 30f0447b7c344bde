"""The machine in a window, and all that the diagnosis sees at one evaluation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gpuwatch.samples import Candidate, HostSample, MachineFacts, NvmlState, XidEvent
from gpuwatch.timeline.windows.gpu import GpuWindow
from gpuwatch.timeline.windows.run import RunWindow


@dataclass(frozen=True, slots=True)
class HostWindow:
    """The machine's CPU side over the window (means)."""

    window_seconds: float
    latest: HostSample
    cpu_percent: float | None = None
    pressure_cpu_percent: float | None = None
    pressure_io_percent: float | None = None
    pressure_memory_percent: float | None = None
    disk_queue_length: float | None = None
    memory_available_share: float | None = None
    major_faults_per_second: float | None = None
    swap_in_bytes_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class Quality:
    """How well gpuwatch itself measured in the window."""

    poll_interval_seconds: float
    gpu_samples: int = 0
    poll_gap_p95_seconds: float | None = None
    longest_gap_seconds: float | None = None
    dropped_records: int = 0
    received_records: int = 0
    malformed_packets: int = 0
    nvml: NvmlState | None = None
    nvml_calls_per_gpu_second: float | None = None
    own_cpu_share: float | None = None  # of one core, gpuwatch with its child
    dropped_values: int = 0  # impossible readings (sentinels), whole session
    counter_resets: int = 0  # counters that went backwards, whole session


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything the diagnosis sees at one evaluation, and the report prints."""

    now_ns: int
    started_ns: int
    window_seconds: float
    machine: MachineFacts | None
    host: HostWindow | None
    gpus: tuple[GpuWindow, ...]  # by index
    runs: tuple[RunWindow, ...]
    quality: Quality
    xids: tuple[XidEvent, ...] = ()  # of no known GPU, whole session
    candidates: tuple[Candidate, ...] = ()  # processes of this machine that train, as far as they were looked for
    newest_half: Callable[[], Scene] | None = field(default=None, compare=False, repr=False)
    """The same of the window's newest half, while nothing newer has come; None where that is too short."""
