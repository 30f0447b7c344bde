"""What a training process does: derived in the monitor from the hook's raw records.

A *trainer* is one hooked process, named by `trainer`, the string "PID.START_TICKS" (a pid alone is reused).
A *run* is one trainer, or the ranks of one distributed job: trainers that share `RunFacts.group`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
