"""What the machine and the processes of a run do on the CPU side."""

from __future__ import annotations

from dataclasses import dataclass


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
