"""What one trainer's processes and their memory did in a window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuwatch.samples import ProcessSample


@dataclass(frozen=True, slots=True)
class MemoryGrowth:
    """How the workers' own memory grew over the last ten minutes: a straight line through it, and how well it fits."""

    bytes_per_second: float  # all workers together
    fit: float  # 0..1, the line's coefficient of determination
    seconds: float
    worker_bytes: float  # of one worker, now
    trainer_bytes_per_second: float | None = None  # resident memory of the training process itself


@dataclass(frozen=True, slots=True)
class WorkerTotals:
    """The DataLoader workers of one trainer. Busy and batch figures come from the workers' own records."""

    count: int
    cpu_cores: float | None = None  # mean per worker
    blocked_share: float | None = None  # mean share in state D
    busy_share: float | None = None
    batch_seconds: float | None = None  # one worker's wall seconds per batch
    batch_cpu_seconds: float | None = None
    threads: int | None = None
    rss_bytes: int | None = None  # mean per worker
    min_affinity_cores: int | None = None
    pids_changed: bool = False
    max_affinity_cores: int | None = None
    cores_seen: int | None = None  # different cores that any of them was seen on
    active_threads: int | None = None  # of all workers, as those say that were asked
    system_share: float | None = None  # of their CPU time, what the kernel used
    batch_seconds_sigma: float | None = None
    growth: MemoryGrowth | None = None  # None before ten minutes with the same workers
    run_delay_share: float | None = None  # mean share in which one could run and did not
    newest_batch_seconds: Sequence[float] = ()  # of each of the newest 1,024 batches, in the order they were done


@dataclass(frozen=True, slots=True)
class ProcessTotals:
    """The trainer's process tree over the window, and what it may use."""

    latest: ProcessSample
    main_thread_cores: float | None = None
    tree_cores: float | None = None
    tree_cores_lately: float | None = None  # in the last 30 s, however long the window is
    throttled_period_share: float | None = None
    throttled_seconds: float | None = None
    involuntary_switches_per_second: float | None = None
    run_delay_share: float | None = None
    node_shares: tuple[float, ...] = ()  # of the CPU time of main thread and workers, by NUMA node


@dataclass(frozen=True, slots=True)
class MemoryTotals:
    """torch's CUDA allocator over the window; peaks are of the whole run."""

    allocated_peak_bytes: int | None = None
    reserved_peak_bytes: int | None = None
    total_bytes: int | None = None
    alloc_retries: int | None = None  # in the window
    out_of_memory: int | None = None
    growth: PeakGrowth | None = None


@dataclass(frozen=True, slots=True)
class PeakGrowth:
    """How torch's peak of allocated memory rose in each quarter of up to 15 min after the run's 100th step."""

    seconds: float
    steps: int
    start_bytes: int
    quarters_bytes: tuple[int, int, int, int]
