"""The vocabulary: everything that crosses from a source into the timeline.

Frozen and slotted, units in the names. Times are CLOCK_MONOTONIC nanoseconds, which all processes and
containers of one host share, so a trainer's spans and a GPU's samples lie on one axis. `None` means
"not known", never zero; where a device cannot answer, `unavailable` holds the reason.

GPUs are named by UUID, because indices change when a driver is reloaded. A *trainer* is one training process, named by
`trainer`, the string "PID.START_TICKS" (a pid alone is reused). A *run* is one trainer, or the ranks of one distributed
job: trainers that share `RunFacts.group`. A stack sample is the stack of one thread at one moment; shares of samples
are shares of time, and their error follows from the count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

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
    mig_slot: int | None = None  # of an instance: its number among those of its GPU, as `nvidia-smi -L` lists them
    mig_gpu_instance: int | None = None  # the id of its GPU instance
    unavailable: Reasons = field(default_factory=dict)

    @property
    def label(self) -> str:
        """What it is called after "GPU": its index, of a MIG instance with its number: "0", "0:1"."""
        return str(self.index) if self.mig_slot is None else f"{self.index}:{self.mig_slot}"

    @property
    def mig_profile(self) -> str | None:
        """An instance's size: "3g.40gb"."""
        return self.name.rpartition("MIG ")[2] or None if self.mig_parent is not None else None

    @property
    def place(self) -> tuple[int, int, str]:
        """Sorts GPUs by index, and MIG instances below their GPU."""
        return self.index, -1 if self.mig_slot is None else self.mig_slot, self.uuid

    @property
    def kernel_address(self) -> str:
        """Its PCI address as the kernel writes it: the domain has four digits there, eight in NVML."""
        domain, _, rest = (self.pci_bus_id or "").lower().partition(":")
        return f"{domain[-4:]}:{rest}"


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
    user: str | None = None  # by its effective uid; the number where it has no name
    age_seconds: float | None = None  # since it started, when the list was read


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


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """The machine that is watched. `cpu_quota_cores` is the tightest cgroup limit above gpuwatch itself.

    `gpu_numa_nodes` holds the node of each NVIDIA GPU that has one, by PCI address as the kernel writes it.
    """

    time_ns: int
    hostname: str
    kernel: str
    cpu_count: int
    cpu_model: str | None = None
    memory_total_bytes: int | None = None
    cpu_quota_cores: float | None = None
    container: bool = False
    wsl: bool = False
    numa_nodes: int | None = None
    gpu_numa_nodes: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class HostSample:
    """One second of the whole machine. Rates are over the time since the previous sample.

    Pressure (PSI) is the share of the last 10 s in which some task waited, in percent, as the kernel gives it.
    """

    time_ns: int
    cpu_percent: float | None = None  # of all cores, 0..100
    cpu_percent_by_core: tuple[float, ...] = ()
    cpu_iowait_percent: float | None = None
    load_1m: float | None = None
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    swap_in_bytes_per_second: float | None = None
    major_faults_per_second: float | None = None
    pressure_cpu_percent: float | None = None
    pressure_io_percent: float | None = None
    pressure_memory_percent: float | None = None
    disk_read_bytes_per_second: float | None = None
    disk_write_bytes_per_second: float | None = None
    disk_queue_length: float | None = None  # mean since the previous sample, of the most loaded disk
    network_receive_bytes_per_second: float | None = None
    network_send_bytes_per_second: float | None = None
    shm_total_bytes: int | None = None
    shm_used_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class WorkerSample:
    """One DataLoader worker of a run. `blocked_share` is the share of samples that saw state D.

    `active_threads` (those that ran a tenth as long as the busiest within a second) and `private_dirty_bytes` (memory
    that is this worker's alone and no file's) are read of one worker after the other and repeated until its next turn.
    """

    pid: int
    cpu_cores: float | None = None
    state: str | None = None  # R, S, D, T, Z as in /proc/PID/stat
    blocked_share: float | None = None
    threads: int | None = None
    rss_bytes: int | None = None
    affinity_cores: int | None = None
    system_cores: float | None = None  # of `cpu_cores`, what the kernel used
    last_core: int | None = None
    active_threads: int | None = None
    private_dirty_bytes: int | None = None
    run_delay_share: float | None = None  # its main thread runnable but not running


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """One second of one training process and its tree. Cores are CPU seconds per second.

    `cgroup_*` come from the tightest ancestor with a quota; counters only grow. `cpu_capacity_cores` is
    min(affinity, quota): what this process may use of the machine, None where the quota cannot be read.
    `worker_pids_changed`: a worker is new although others were seen before, so workers are restarted.
    `environment` holds the few variables that rules read, as the process was started with. `libraries` are those
    that start threads, and "torch_cuda" for a torch that is built for GPUs. Both are None where they may not be read.
    """

    time_ns: int
    pid: int
    start_ticks: int
    state: str | None = None
    command: str | None = None
    main_thread_cores: float | None = None
    tree_cores: float | None = None
    workers: tuple[WorkerSample, ...] = ()
    worker_pids_changed: bool = False
    affinity_cores: int | None = None
    cpu_quota_cores: float | None = None
    cpu_capacity_cores: float | None = None
    cgroup_periods: int | None = None
    cgroup_throttled_periods: int | None = None
    cgroup_throttled_seconds: float | None = None
    involuntary_switches_per_second: float | None = None  # sum over workers
    run_delay_share: float | None = None  # main thread runnable but not running
    rss_bytes: int | None = None  # of the process itself; its workers carry their own
    read_bytes_per_second: float | None = None  # from storage, by the process and its workers
    write_bytes_per_second: float | None = None
    shm_total_bytes: int | None = None  # in the process's own mount namespace
    shm_used_bytes: int | None = None
    cgroup_memory_limit_bytes: int | None = None  # tightest ancestor; None: no limit, or not known
    cgroup_memory_used_bytes: int | None = None  # without the file cache that can be dropped
    age_seconds: float | None = None
    environment: tuple[tuple[str, str], ...] | None = None
    libraries: tuple[str, ...] | None = None
    node_cores: tuple[float, ...] = ()  # cores of main thread and workers by NUMA node; empty on a machine of one


Role = Literal["train", "eval", "unknown"]

Visibility = Literal["exact", "sampled", "process", "hardware"]
"""How well a process is seen: by its hook, by its stacks from outside, by /proc alone, by what its GPU says alone."""

PhaseKind = Literal["warmup", "eval", "checkpoint", "gc", "compile", "stopped", "user", "outside"]
"""`outside`: the pass over its loader is over, and nothing that belongs to a training has followed for a second."""


@dataclass(frozen=True, slots=True)
class LoaderFacts:
    """The live settings of one DataLoader, and the line of the user's code that built it."""

    loader: int
    file: str | None = None
    line: int | None = None
    function: str | None = None
    library: str | None = None  # that built it, called from the line; None where the user's line did
    dataset: str | None = None
    iterable: bool | None = None  # an IterableDataset, which each worker iterates over on its own
    num_workers: int | None = None
    batch_size: int | None = None
    pin_memory: bool | None = None
    persistent_workers: bool | None = None
    prefetch_factor: int | None = None
    in_order: bool | None = None
    drop_last: bool | None = None
    start_method: str | None = None
    batches_per_epoch: int | None = None
    batch_bytes: int | None = None
    batch_shape: str | None = None
    batches_inspected: int | None = None  # batches whose shapes were inspected: the first ones, then about one in 30 s
    batch_shapes: int | None = None  # different shapes among them, the first dimension left out; 64 at most
    role: Role = "unknown"
    loop_file: str | None = None  # the line that iterates over it, where stacks were read
    loop_line: int | None = None


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the model, its precision and its optimizer look like, as far as the hook could see."""

    parameters: int | None = None
    trained_parameters: int | None = None  # those of them that gradients are taken of
    parameter_bytes: int | None = None
    float32_share: float | None = None  # of floating-point parameters
    matmul_share: float | None = None  # parameters in linear or attention layers
    conv_share: float | None = None
    autocast: bool | None = None  # seen active in a step
    autocast_dtype: str | None = None
    float32_matmul_precision: str | None = None  # "highest", "high", "medium"
    cudnn_allow_tf32: bool | None = None
    cudnn_benchmark: bool | None = None
    deterministic: bool | None = None  # asked of cuDNN or of all of torch
    channels_last: bool | None = None  # the layout of most convolution kernels whose layout is known
    misaligned_share: float | None = None  # parameters in matrices with a side that is no multiple of 8
    misaligned_shape: str | None = None  # of the largest of them: "50257x768"
    compiled: bool | None = None
    optimizer: str | None = None
    optimizer_fused: bool | None = None
    optimizer_foreach: bool | None = None  # None: left to torch, which takes it on CUDA
    optimizer_file: str | None = None
    optimizer_line: int | None = None
    backward_file: str | None = None
    backward_line: int | None = None
    recompile_reason: str | None = None  # the newest one, in Dynamo's words
    recompile_file: str | None = None  # of the function that was recompiled
    recompile_line: int | None = None

    @property
    def parameter_bits(self) -> int | None:
        """The bits of a parameter, in the mean: 32, or 16 of a model that was cast."""
        if not self.parameters or self.parameter_bytes is None:
            return None
        return round(8 * self.parameter_bytes / self.parameters)

    @property
    def autocast_name(self) -> str | None:
        """The type that autocast computes in ("bfloat16"), "" where it is off, None where it was not seen."""
        if self.autocast is None:
            return None
        return (self.autocast_dtype or "on") if self.autocast else ""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a trainer says of itself: at hello, and again whenever it changes (the newest one counts)."""

    time_ns: int
    trainer: str
    pid: int
    start_ticks: int
    command: tuple[str, ...]
    cwd: str | None = None
    python: str | None = None
    torch: str | None = None
    group: str | None = None  # equal for the ranks of one distributed job
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    local_world_size: int | None = None
    device: str | None = None  # "cuda" or "cpu"; None while nothing was trained
    gpu_uuids: tuple[str, ...] = ()
    cpu_affinity: int | None = None
    torch_threads: int | None = None
    loaders: tuple[LoaderFacts, ...] = ()
    model: ModelFacts = ModelFacts()
    gpu_gap_measured: bool = False  # CUDA event pairs are being read
    visibility: Visibility = "exact"
    hooked: bool = False  # its presence file is known; with visibility "process" its hook is not linked
    how_to_see_more: str | None = None  # one line, where visibility is not "exact"
    notes: tuple[str, ...] = ()
    debug_modes: tuple[str, ...] = ()  # of torch, as its hook last saw them: "anomaly", "sync-debug", "deterministic"
    overrides: tuple[str, ...] = ()  # settings of a trial that took effect in this process
    user: int | None = None  # with whose rights it opens files
    mount_namespace: int | None = None  # with `boot`: where its file names hold
    boot: str | None = None  # boot_id of its kernel


@dataclass(frozen=True, slots=True)
class StepEnd:
    """One optimizer step, from the end of the previous one to its own end.

    `period = end - start` holds everything in between; `phase_seconds` is the part of it spent in evaluation,
    checkpoints, compilation and garbage collection, to be taken off before shares are formed; waits and phases
    never overlap. `wait_seconds` is None where no loader is read on the training thread: the wait is then not
    seen, not zero. `epoch_position` is the index of the step's first batch in its epoch.
    """

    trainer: str
    number: int
    start_ns: int
    end_ns: int
    wait_seconds: float | None
    loader: int | None = None
    samples: int | None = None
    epoch_position: int | None = None
    batches: int = 1
    phase_seconds: float = 0.0
    copy_seconds: float | None = None
    forward_seconds: float | None = None
    backward_seconds: float | None = None
    optimizer_seconds: float | None = None
    wait_cpu_seconds: float | None = None  # CPU time inside the wait, where it was sampled


@dataclass(frozen=True, slots=True)
class BatchWait:
    """One `next()` on a loader's iterator, once its role is known.

    `part` is "start" for an `iter()` by itself, in which workers start, and "end" for the `next()` that finds the
    epoch over, in which workers that do not persist are ended: no batch comes of these.
    """

    trainer: str
    loader: int | None
    role: Role
    start_ns: int
    end_ns: int
    epoch_position: int | None = None
    part: Literal["start", "batch", "end"] = "batch"


@dataclass(frozen=True, slots=True)
class GpuGap:
    """GPU idle time that one step's waits caused, measured by CUDA event pairs and read steps later."""

    trainer: str
    number: int  # the StepEnd it belongs to
    seconds: float


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """A stretch of the run that is not training. `end_ns` is None while it lasts; a closing twin follows.

    A closing twin with `end_ns == start_ns` takes the open one back: it was training after all.
    """

    trainer: str
    kind: PhaseKind
    start_ns: int
    end_ns: int | None
    loader: int | None = None
    batches: int | None = None
    wait_seconds: float | None = None
    bytes: int | None = None
    file: str | None = None
    line: int | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class WorkerFetch:
    """One batch made by a DataLoader worker, reported by the worker itself."""

    trainer: str  # of the parent
    worker_pid: int
    worker: int
    start_ns: int
    end_ns: int
    cpu_seconds: float | None = None
    loader: int | None = None  # as LoaderFacts names it; None where the worker does not know it


@dataclass(frozen=True, slots=True)
class RunMemory:
    """torch's CUDA caching allocator of one trainer; counters only grow."""

    trainer: str
    time_ns: int
    allocated_peak_bytes: int | None = None
    reserved_peak_bytes: int | None = None
    total_bytes: int | None = None
    alloc_retries: int | None = None
    out_of_memory: int | None = None


@dataclass(frozen=True, slots=True)
class TrainerEnded:
    """A trainer is gone. `how` is "exited", "killed" or "lost" (the link broke and the pid lives)."""

    trainer: str
    time_ns: int
    how: Literal["exited", "killed", "lost"]


@dataclass(frozen=True, slots=True)
class LinkLoss:
    """Records that did not reach the monitor: dropped in the hook's ring, or malformed packets."""

    trainer: str | None
    time_ns: int
    dropped: int = 0
    malformed: int = 0
    detail: str = ""


StackPhase = Literal[
    "wait",  # in the training loader's next(), the first of an epoch too, or for a queue that another thread fills
    "start",  # in iter() of the training loader: its workers start
    "forward",
    "backward",
    "optimizer",
    "sync",  # the line asks for a number or the device: .item(), .cpu(), .tolist(), synchronize()
    "copy",  # host to device: .to(, .cuda(
    "eval",  # anything in a loop over a loader that does not train, its waits too
    "save",
    "log",  # print, tqdm, tensorboard, wandb, matplotlib
    "compile",
    "other",  # the user's own Python in the training loop, or nothing known
]
"""What the training thread does. Every usable sample belongs to exactly one."""

WorkerPhase = Literal["item", "collate", "send", "idle", "other"]
"""What a DataLoader worker does: `item` is the dataset's own code, `idle` waits for work, `send` ships a batch."""

FeederPhase = Literal["make", "wait", "idle", "pin", "pin-idle"]
"""What a thread does that feeds the training thread: `wait` is in a loader's next() with workers, `idle` on a queue.

`pin` and `pin-idle` are those of a DataLoader's own thread, which pins the batches that workers send.
"""


@dataclass(frozen=True, slots=True)
class LineCount:
    """Samples whose culprit, the innermost frame of the user's own code, stood on one line.

    `text` is the line as the file had it, None where the file cannot be read or is newer than the process.
    `leaf` names the library function at work below it ("PIL/Image.py:resize"), None where the line itself runs.
    """

    phase: str  # StackPhase, WorkerPhase or FeederPhase
    file: str
    line: int
    function: str
    samples: int
    text: str | None = None
    leaf: str | None = None


@dataclass(frozen=True, slots=True)
class CallCount:
    """Samples taken inside of one function of the user's while one line of the user's called it, at whatever depth.

    What a function costs that spends its time on many lines, or in others that it calls, is seen here only.
    """

    phase: str  # StackPhase or WorkerPhase
    file: str
    line: int
    function: str
    callee_file: str
    callee: str
    samples: int
    text: str | None = None


@dataclass(frozen=True, slots=True)
class WorkerCount:
    """Samples of one worker, those in which it was idle, and the line that it was seen on most."""

    pid: int
    samples: int
    idle: int
    line: LineCount | None = None


@dataclass(frozen=True, slots=True)
class StackTally:
    """About one second of samples of one trainer and its workers.

    `samples` counts usable samples of the training thread and equals the sum of `phases`; `rejected` those that
    were torn. `worker_samples` are samples of workers, idle ones too. `waiting_samples` is the part of the samples in
    phase "eval" that stood in the evaluation loader's next().
    """

    trainer: str
    start_ns: int
    end_ns: int
    samples: int
    phases: Mapping[str, int]
    lines: tuple[LineCount, ...] = ()
    rejected: int = 0
    eval_waiting_samples: int = 0
    workers: int = 0
    worker_samples: int = 0
    worker_rejected: int = 0
    worker_phases: Mapping[str, int] = field(default_factory=dict)
    worker_lines: tuple[LineCount, ...] = ()
    receiving_samples: int = 0  # of phase "wait": unpickling and mapping what a worker sent, on the training thread
    first_wait_samples: int = 0  # of phase "wait": for an epoch's first batch of each worker
    cpu_seconds: float = 0.0  # what the samples cost gpuwatch
    calls: tuple[CallCount, ...] = ()  # below the loader's next(), and in the loop's own Python and copies
    worker_calls: tuple[CallCount, ...] = ()
    handed_samples: int = 0  # of phase "wait": for what another thread or process hands over, in no loader's next()
    feeder_rounds: int = 0  # times that the threads which feed the training thread were sampled
    feeder_phases: Mapping[str, int] = field(default_factory=dict)  # one count for each thread that feeds a queue
    feeder_lines: tuple[LineCount, ...] = ()
    feeder_calls: tuple[CallCount, ...] = ()
    by_worker: tuple[WorkerCount, ...] = ()


@dataclass(frozen=True, slots=True)
class CurrentLine:
    """Where the training thread was in the last sample, and since when it is at that line."""

    trainer: str
    time_ns: int
    since_ns: int
    phase: str
    file: str
    line: int
    function: str
    text: str | None = None
    leaf: str | None = None
    in_loop: bool | None = None  # of a training; None while no loop that trains has been seen


NO_LOADER: Final = 0


@dataclass(frozen=True, slots=True)
class BatchCount:
    """Batches that one loop over a loader took since watching began; the number only grows.

    `exact`: read from the loader's own counter. Else entries into its next() were counted, which misses short ones.
    Of a training loop without a loader it is the iterations, from the variable that the loop counts them with.
    """

    trainer: str
    time_ns: int
    loader: int  # LoaderFacts.loader, or NO_LOADER
    role: Role
    batches: int
    epochs: int = 0  # iterators that began while watched
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Candidate:
    """A process of this machine that trains, or seems to. `why` says what gave it away, in words."""

    pid: int
    start_ticks: int
    command: tuple[str, ...]
    user: str
    age_seconds: float
    visibility: Visibility  # the best that is possible now
    why: str
    workers: int = 0
    gpu_uuids: tuple[str, ...] = ()
    refusal: str | None = None  # why its stacks cannot be read
    how_to_see_more: str | None = None  # one line


@dataclass(frozen=True, slots=True)
class Candidates:
    """All of them, hooked ones first, then by age."""

    time_ns: int
    processes: tuple[Candidate, ...]


Sample = (
    GpuFacts
    | GpuSample
    | GpuStatus
    | GpuHealth
    | GpuLost
    | NvmlState
    | XidEvent
    | MachineFacts
    | HostSample
    | ProcessSample
    | RunFacts
    | StepEnd
    | BatchWait
    | GpuGap
    | PhaseSpan
    | WorkerFetch
    | RunMemory
    | TrainerEnded
    | LinkLoss
    | StackTally
    | CurrentLine
    | BatchCount
    | Candidates
)
"""Whatever a source may emit."""
