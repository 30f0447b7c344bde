"""What the timeline gives the rules and the views, frozen: aggregates over a window; and figures of a list of numbers.

Shares are 0..1 of the window's training time (`train_seconds`: steps less their phases) unless the name says
otherwise. `None` means not measured in this window; in the timeline's arrays NaN does, and is left out.
"""

from __future__ import annotations

import math
import statistics
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields

from gpuwatch import metrics
from gpuwatch.samples import (
    Candidate,
    CurrentLine,
    GpuFacts,
    GpuHealth,
    GpuSample,
    GpuStatus,
    HostSample,
    LoaderFacts,
    MachineFacts,
    NvmlState,
    PhaseSpan,
    ProcessSample,
    RunFacts,
    XidEvent,
)


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
    overlaps, and is over that run's own window, which slow steps stretch to 15 min: only so can it be compared with
    their waits. Both use the driver's ring where it is drained (several values a second), else the polls.
    """

    facts: GpuFacts
    window_seconds: float
    status: str = "live"  # "live", "stale", "lost"
    status_reason: str | None = None
    status_since_ns: int | None = None
    latest: GpuSample | None = None
    latest_status: GpuStatus | None = None
    latest_health: GpuHealth | None = None
    idle_since_ns: int | None = None  # it has done nothing since; None while it works or that is not known
    utilization: Stats | None = None
    train_utilization: Stats | None = None
    train_utilization_series: Sequence[tuple[int, float]] = ()
    sensor_window_seconds: float | None = None  # estimated from the spacing of changed ring values
    power_watts: Stats | None = None
    power_limit_watts: float | None = None
    energy_joules: float | None = None  # spent in the window, from the counter
    energy_seconds: float | None = None  # of the window, that the counter's readings cover
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


GPU_DISTRIBUTIONS = tuple(
    each.name for each in fields(GpuWindow) if each.name in metrics.GPU and metrics.GPU[each.name].kind == "gauge"
)
"""The fields of GpuWindow that hold how a gauge of that name was distributed; live and from minutes alike."""


@dataclass(frozen=True, slots=True)
class MemoryGrowth:
    """How the workers' own memory grew over the last ten minutes: a straight line through it, and how well it fits."""

    bytes_per_second: float  # all workers together
    fit: float  # 0..1, the line's coefficient of determination
    seconds: float
    worker_bytes: float  # of one worker, now
    trainer_bytes_per_second: float | None = None  # resident memory of the training process itself


@dataclass(frozen=True, slots=True)
class WorkerPace:
    """What one worker says of its batches: how many, how long they take it in the median, how busy that keeps it."""

    pid: int
    batches: int
    batch_seconds: float
    busy_share: float


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
    pids_changed: bool = False
    max_affinity_cores: int | None = None
    cores_seen: int | None = None  # different cores that any of them was seen on
    active_threads: int | None = None  # of all workers, as those say that were asked
    system_share: float | None = None  # of their CPU time, what the kernel used
    batch_seconds_sigma: float | None = None
    growth: MemoryGrowth | None = None  # None before ten minutes with the same workers
    run_delay_share: float | None = None  # mean share in which one could run and did not
    by_worker: tuple[WorkerPace, ...] = ()
    newest_batch_seconds: Sequence[float] = ()  # of each of the newest 1,024 batches, in the order they were done
    earlier_batch_seconds: Sequence[float] = ()  # of those before them in the last 10 min: 1,024 with the newest ones


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


@dataclass(frozen=True, slots=True)
class Share:
    """A share of samples with its 95% interval (Wilson)."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class LineShare:
    """One line of the user's code. `share` is of all samples of its kind of thread, idle workers left out."""

    phase: str
    file: str
    line: int
    function: str
    samples: int
    share: Share
    text: str | None = None
    leaf: str | None = None
    callee: str | None = None
    """The function of the user's that it calls, where the share is that of the call and all below it."""
    callee_file: str | None = None
    callee_lines: tuple[int, ...] = ()
    """The lines of that function with the most samples, the most first, where they are known."""


@dataclass(frozen=True, slots=True)
class WorkerShare:
    """One worker: how busy it is, and the line that it was seen on most, as a share of its busy samples."""

    pid: int
    samples: int
    busy: Share
    line: LineShare | None = None


@dataclass(frozen=True, slots=True)
class StackWindow:
    """What was seen from outside in the window: stacks of the training thread and its workers, the loader's counter.

    `phases` are shares of all samples of the training thread, `train_phases` of those outside evaluation, saving
    and compiling. Lines, and calls, are the 20 with the most samples, most first. No 10% threshold is decided on
    fewer than 600 samples: the interval is then wider than 2.4 points.
    """

    seconds: float  # covered by samples
    samples: int
    rejected: int
    phases: Mapping[str, Share]
    train_phases: Mapping[str, Share]
    lines: tuple[LineShare, ...] = ()
    calls: tuple[LineShare, ...] = ()  # below the loader's next(), and in the loop's own Python and copies
    eval_wait_share: float | None = None  # of the evaluation's samples
    receiving_share: float | None = None  # of all samples: taking over what a worker sent
    first_wait_share: float | None = (
        None  # of all samples: longer waits for the first batches of epochs, part of "wait"
    )
    beginning_share: float | None = None  # of all samples: the start of the session's first epoch, part of the starts
    log_quiet_seconds: float | None = None  # of training since the last look at logging; None without one
    log_pause_seconds: float | None = None  # at most so much of it passed from one to the next; None without two
    waits: Sequence[tuple[float, float]] = ()  # seconds of training and of waiting in it, tally by tally, oldest first
    workers: int = 0
    workers_mean: float | None = None  # over time: those of an evaluation loader, and none between epochs, count too
    worker_samples: int = 0
    worker_phases: Mapping[str, Share] = field(default_factory=dict)
    worker_lines: tuple[LineShare, ...] = ()
    worker_calls: tuple[LineShare, ...] = ()
    handed_samples: int = 0  # waits for what another thread or process hands over, in no loader's next()
    feeder_rounds: int = 0  # times that the threads which feed the training thread were sampled
    feeder_samples: int = 0  # one for each such thread
    feeder_phases: Mapping[str, Share] = field(default_factory=dict)
    feeder_lines: tuple[LineShare, ...] = ()
    feeder_calls: tuple[LineShare, ...] = ()
    by_worker: tuple[WorkerShare, ...] = ()
    current_line: CurrentLine | None = None
    batches_per_second: float | None = None  # of the training loader, over training time and phases alike
    batches_exact: bool = True
    batches_of_loader: bool = True  # else iterations of a loop without one, by its own count
    batches: int = 0  # in the window
    epochs: int = 0  # iterators that began in the window
    cpu_share: float | None = None  # what the samples cost gpuwatch, of one core


@dataclass(frozen=True, slots=True)
class StepColumns:
    """The window's steps as parallel columns, oldest first, at most the newest 4096.

    `period_seconds` is the step without its phases. Unknown values are NaN.
    """

    number: Sequence[int]
    end_ns: Sequence[int]
    period_seconds: Sequence[float]
    wait_seconds: Sequence[float]
    gap_seconds: Sequence[float]
    samples: Sequence[float]
    epoch_position: Sequence[int]  # -1 unknown
    settled: Sequence[bool]
    """False for steps that starvation leaves out: the first max(1, num_workers * prefetch_factor) of an epoch,
    batches under 0.9 of the usual size, warm-up."""


@dataclass(frozen=True, slots=True)
class PhaseTotals:
    """All spans of one kind in the window; `share` is of wall time."""

    kind: str
    count: int
    seconds: float
    share: float
    longest_seconds: float
    wait_seconds: float | None = None
    batches: int | None = None
    bytes: int | None = None
    every_steps: float | None = None  # median of steps between two spans
    every_seconds: float | None = None
    loader: int | None = None
    file: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True)
class PaceBlock:
    """A stretch of at least 100 settled steps and 10 s: the median step, and its parts as means per step.

    `mean_step_seconds` leaves the longest 2% out: a hiccup of seconds is no pace.
    """

    start_ns: int
    end_ns: int
    steps: int
    step_seconds: float
    parts_seconds: Mapping[str, float] = field(default_factory=dict)  # "wait", "copy", "forward", "backward", ...
    mean_step_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Pace:
    """The best that a run has held for two blocks at its present batch size, and its newest two, by the quicker one.

    `noise` is the usual change from one block to the next, as a share of the step: what a slower run must stand out of.
    """

    best: PaceBlock
    now: PaceBlock
    blocks: int = 0
    noise: float | None = None  # None before some blocks


@dataclass(frozen=True, slots=True)
class Recompiles:
    """Compilations after the run's 100th step, in the last 10 min or since that step; `share` is of that time."""

    count: int
    seconds: float
    share: float
    over_seconds: float


@dataclass(frozen=True, slots=True)
class EpochTotals:
    """Epoch starts over the whole session: `share` of wall time spent in their excess wait."""

    count: int
    excess_seconds: float
    share: float
    first_wait_seconds: float  # median wait from the end of an epoch to the first batch of the next
    usual_wait_seconds: float
    batches_per_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class RankWindow:
    """One trainer over the window."""

    trainer: str
    facts: RunFacts
    window_seconds: float
    train_seconds: float
    steps: int  # in the window
    steps_total: int
    warm: bool  # 10 steps done and the last five within 20% of the five before
    columns: StepColumns
    step_seconds: Stats | None = None  # training periods
    step_p99_session_seconds: float | None = None
    steps_per_second: float | None = None  # over all of the window, phases included
    wait_share: float | None = None
    wait_seconds_per_batch: float | None = None  # mean of the steps in which it is known
    settled_wait_share: float | None = None  # over settled steps only
    gap_share: float | None = None  # GPU idle by event pairs, settled steps only
    copy_share: float | None = None
    forward_share: float | None = None
    backward_share: float | None = None
    optimizer_share: float | None = None
    wait_cpu_share: float | None = None  # CPU seconds per second of wait, where sampled
    samples_per_second: float | None = None
    batches_per_step: float | None = None  # over 1 where gradients are accumulated
    last_step_ns: int | None = None
    open_wait_seconds: float | None = None  # in the next() that has not returned, by its stacks; None outside of one
    open_phase: PhaseSpan | None = None
    outside: bool = False  # no training loop runs
    aside_seconds: float = 0.0  # of the window, in which it was outside of its loop, or for long at no part of a step
    phases: Mapping[str, PhaseTotals] = field(default_factory=dict)
    eval_cycles: PhaseTotals | None = None  # the newest evaluations over whole cycles, however long; None before three
    phase_spans: Sequence[tuple[str, int, int]] = ()  # kind, start and end, at most the newest 512 of the window
    train_loader: LoaderFacts | None = None
    eval_loaders: tuple[LoaderFacts, ...] = ()
    workers: WorkerTotals | None = None
    process: ProcessTotals | None = None
    memory: MemoryTotals | None = None
    epochs: EpochTotals | None = None
    ended: str | None = None  # "exited", "killed", "lost"
    dropped_records: int = 0
    pace: Pace | None = None  # whole session
    recompiles: Recompiles | None = None  # None before the 100th step
    stacks: StackWindow | None = None  # where they can be read; with a hook, in addition to its figures
    watched_seconds: float | None = None  # since its first step, from outside since it is sampled
    lasting_wait_share: float | None = None  # settled steps of up to five minutes; None without a hook
    lasting_gap_share: float | None = None


@dataclass(frozen=True, slots=True)
class RunWindow:
    """One run: its ranks over the window. `critical` is the rank with the largest wait: all wait for it."""

    id: str
    title: str  # the script's name, as a user would say it
    ranks: tuple[RankWindow, ...]
    critical: RankWindow
    gpu_uuids: tuple[str, ...] = ()
    samples_per_second: float | None = None  # of all ranks
    usual_power_watts: Mapping[str, float] = field(default_factory=dict)
    """GPU UUID -> median power while this run made steps; what a hang is compared with."""


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


_Z_95 = 1.959964  # standard normal quantile at 97.5%


def known(values: Iterable[float]) -> list[float]:
    """The values that are not NaN."""
    return [value for value in values if value == value]


def stats(values: Iterable[float]) -> Stats | None:
    """Mean, sample standard deviation and percentiles; None without a known value."""
    ordered = sorted(known(values))
    if not ordered:
        return None
    mean, sigma = mean_and_sigma(ordered)
    if len(ordered) == 1:
        return Stats(1, mean, 0.0, mean, mean, mean, mean, mean)
    cuts = statistics.quantiles(ordered, n=20, method="inclusive")
    return Stats(len(ordered), mean, sigma, cuts[0], cuts[9], cuts[18], ordered[0], ordered[-1])


def mean_and_sigma(values: list[float]) -> tuple[float, float]:
    """Mean and sample standard deviation of one or more known values.

    `statistics.stdev` computes in exact fractions: 250 us for the 420 ring values of a minute, against 12 us.
    """
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, 0.0
    return mean, math.dist(values, [mean] * len(values)) / math.sqrt(len(values) - 1)


def median(values: Iterable[float]) -> float | None:
    """The median of the known values."""
    ordered = known(values)
    return statistics.median(ordered) if ordered else None


def mean(values: Iterable[float]) -> float | None:
    """The mean of the known values."""
    numbers = known(values)
    return statistics.fmean(numbers) if numbers else None


def wilson(hits: int, count: int) -> Share:
    """A share of `count` > 0 samples with its 95% score interval, which holds for 0 hits and for few samples."""
    share = hits / count
    square = _Z_95 * _Z_95
    center = share + square / (2 * count)
    half = _Z_95 * math.sqrt(share * (1.0 - share) / count + square / (4 * count * count))
    scale = 1.0 + square / count
    # Rounding must not leave the share itself outside, which lies on a bound at 0 and 1.
    return Share(share, min(share, max(0.0, (center - half) / scale)), max(share, min(1.0, (center + half) / scale)))


class LogHistogram:
    """Quantiles of a stream of any length in 9 KB, each within 1% of the true value.

    Bins grow by 2%, from 10 us to a day, so that a 1 ms step and a ten-minute one are resolved equally well.
    """

    __slots__ = ("_bins", "count")

    _LOWEST = 1e-5
    _STEP = math.log(1.02)
    _BINS = 1 + math.ceil(math.log(86_400 / 1e-5) / math.log(1.02))

    def __init__(self) -> None:
        self._bins = array("Q", bytes(8 * self._BINS))
        self.count = 0

    def add(self, value: float) -> None:
        """Counts a value; those outside the range count as its ends."""
        index = int(math.log(max(value, self._LOWEST) / self._LOWEST) / self._STEP)
        self._bins[min(index, self._BINS - 1)] += 1
        self.count += 1

    def quantile(self, share: float) -> float | None:
        """The value below which `share` of the stream lies; None before the first value."""
        wanted = share * self.count
        seen = 0
        for index, count in enumerate(self._bins):
            seen += count
            if count and seen >= wanted:
                return float(self._LOWEST * math.exp((index + 0.5) * self._STEP))
        return None
