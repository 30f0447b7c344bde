"""What a simulated training is made of: its loading, its computing, its machine, its pauses and its faults."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal, TypeVar

from gpuwatch.samples import ModelFacts
from gpuwatch.sources.simulator.scenarios import GIB, GpuSpec

MIB = 1024**2
PERTURBATION = 0.30
EASY_SECONDS, EASY_BYTES = 0.02, 4_000_000
"""A batch or a step's launches that no job here waits for: of a cache that has filled, or a neighbour who has left."""

H100 = GpuSpec(
    name="NVIDIA H100 80GB HBM3",
    compute_capability=(9, 0),
    memory_total_bytes=80 * GIB,
    power_limit_watts=700.0,
    idle_watts=72.0,
    sm_clock_max_mhz=1980,
    memory_clock_max_mhz=2619,
    pcie_generation=5,
    has_ecc=True,
    has_gpm=True,
)
TUNED = ModelFacts(
    parameters=86_567_656,
    parameter_bytes=346_270_624,
    float32_share=1.0,
    matmul_share=0.97,
    conv_share=0.01,
    autocast=True,
    autocast_dtype="bfloat16",
    float32_matmul_precision="high",
    cudnn_allow_tf32=True,
    cudnn_benchmark=False,
    compiled=True,
    optimizer="AdamW",
    optimizer_fused=True,
    backward_file="/simulated/train.py",
    backward_line=131,
)
"""A model to which the precision rules have nothing to say."""


@dataclass(frozen=True, slots=True)
class Loading:
    """A DataLoader. A batch takes one worker `cpu_seconds` of a core of its own and `io_seconds` of a free disk."""

    workers: int = 8
    cpu_seconds: float = 0.4
    io_seconds: float = 0.0
    spread: float = 0.08  # sigma of the logarithm of a batch's time
    slow_share: float = 0.0  # of the batches,
    slow_times: float = 1.0  # that take this many times as long
    slow_worker_times: float = 1.0  # as long as the others' take the first worker's batches, all of them
    prefetch: int = 2
    in_order: bool = True
    persistent: bool = True
    pinned: bool = True
    batch_size: int = 64
    batch_bytes: int = 40_000_000
    batches_per_epoch: int = 100_000
    last_batch_share: float = 1.0  # the size of an epoch's last batch
    start_seconds: float = 0.15  # to fork a worker; the next one begins half as long after it
    threads: int = 1  # that a worker computes with
    handover_seconds: float = 0.0007
    free: bool = False  # the ideal: batches cost nothing and are always there


@dataclass(frozen=True, slots=True)
class Computing:
    """A step: what the GPU needs, what launching its kernels needs, and whether the loop asks for the loss."""

    gpu_seconds: float = 0.1
    launch_seconds: float = 0.018
    spread: float = 0.01
    asks: bool = False  # loss.item() in each step
    intensity: float = 0.9  # of the power limit, while busy
    tensor_percent: float = 45.0
    queue_steps: float = 1.7  # the driver takes 1,024 launches ahead: this many steps of 600 kernels
    memory_share: float = 0.8
    model: ModelFacts = TUNED
    batch_shapes: int = 1


@dataclass(frozen=True, slots=True)
class Host:
    """The machine. `foreign_cores` wants this many threads' worth of cores for other processes."""

    cores: int = 16
    quota: float | None = None
    foreign_cores: float = 0.3
    training_first: bool = False  # the workers leave the training thread a core whenever it wants one
    disk_streams: float = 16.0  # reads at once before they slow each other down
    memory_bytes: int = 256 * GIB
    shm_bytes: int = 128 * GIB
    shm_used_share: float = 0.0  # by others


@dataclass(frozen=True, slots=True)
class Pause:
    """What stops the training now and then. Of an evaluation the GPU works `gpu_share` and the rest waits for data."""

    kind: Literal["eval", "checkpoint", "gc", "log", "compile", "code"]
    seconds: float
    every_steps: int = 0
    every_seconds: float = 0.0
    first_seconds: float = 0.0
    gpu_share: float = 0.0
    batches: int = 0
    times: int = 1_000_000


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong from `start` on; what `amount` is depends on the kind."""

    kind: Literal[
        "hang", "stall", "heat", "brake", "share", "creep", "xid", "ecc", "slower", "mig", "sensor-1s", "restart", "cap"
    ]
    start: float = 0.0
    amount: float = 0.0
    gpu: int = 0


@dataclass(frozen=True, slots=True)
class Job:
    """One run on one machine."""

    loading: Loading = Loading()
    computing: Computing = Computing()
    host: Host = Host()
    pauses: tuple[Pause, ...] = ()
    faults: tuple[Fault, ...] = ()
    ranks: int = 1
    gpu: GpuSpec = H100
    gpus_of_one_process: tuple[float, ...] = ()  # DataParallel: the busy share of each GPU's step
    slow_rank: tuple[int, float, float] | None = None  # rank, times the loading, times the computing

    def with_loading(self, **changes: Any) -> Job:
        """The same with another loader."""
        return replace(self, loading=replace(self.loading, **changes))

    def with_computing(self, **changes: Any) -> Job:
        """The same with another step."""
        return replace(self, computing=replace(self.computing, **changes))

    def with_host(self, **changes: Any) -> Job:
        """The same on another machine."""
        return replace(self, host=replace(self.host, **changes))

    def relieved(self) -> Job:
        """The same job when its trouble has passed while it runs: what a running process cannot change stays."""
        loading = self.loading
        easy = self.with_loading(
            cpu_seconds=min(loading.cpu_seconds, EASY_SECONDS),
            io_seconds=min(loading.io_seconds, EASY_SECONDS),
            slow_share=0.0,
            batch_bytes=min(loading.batch_bytes, EASY_BYTES),
            batches_per_epoch=max(loading.batches_per_epoch, 100_000),
        ).with_computing(
            launch_seconds=min(self.computing.launch_seconds, EASY_SECONDS),
            intensity=max(self.computing.intensity, 0.9),
            asks=False,
        )
        return replace(
            easy.with_host(foreign_cores=min(self.host.foreign_cores, 0.3), shm_used_share=0.0),
            pauses=(),
            faults=tuple(fault for fault in self.faults if fault.kind == "mig"),
            gpus_of_one_process=(1.0,) * len(self.gpus_of_one_process),
            slow_rank=None,
        )

    def ideal(self) -> Job:
        """The same with batches that cost nothing: what a fix of the loading could bring at best."""
        return self.with_loading(free=True)


_PHYSICAL = frozenset(
    {
        "gpu_seconds",
        "launch_seconds",
        "cpu_seconds",
        "io_seconds",
        "start_seconds",
        "seconds",
        "every_steps",
        "every_seconds",
        "spread",
        "slow_share",
        "slow_times",
        "batch_bytes",
        "foreign_cores",
        "amount",
    }
)
_Part = TypeVar("_Part")


def perturbed(part: _Part, rng: random.Random) -> _Part:
    """Every physical quantity of a job, each by its own factor of 0.7 to 1.3."""
    changes: dict[str, Any] = {}
    for one in fields(part):  # type: ignore[arg-type]
        value = getattr(part, one.name)
        if one.name in _PHYSICAL and value:
            changed = value * rng.uniform(1.0 - PERTURBATION, 1.0 + PERTURBATION)
            changes[one.name] = max(1, round(changed)) if isinstance(value, int) else changed
        elif isinstance(value, tuple) and value and is_dataclass(value[0]):
            changes[one.name] = tuple(perturbed(item, rng) for item in value)
        elif isinstance(value, Loading | Computing | Host):
            changes[one.name] = perturbed(value, rng)
    return replace(part, **changes)  # type: ignore[type-var]


@dataclass(frozen=True, slots=True)
class About:
    """What of a stretch its phase does not say: the line, whether it is in the training loop, what it moves."""

    line: int
    text: str
    in_loop: bool = True
    moves: bool = False  # from line to line: else the thread stands there all the time
    read_bytes_per_second: float = 0.0
    write_bytes_per_second: float = 0.0
    state: str | None = None  # of the process, where a core does not say it: "T", "D"


@dataclass(frozen=True, slots=True)
class Stretch:
    """What a thread did for a while, and how much of a core it used."""

    start: float
    end: float
    phase: str
    cores: float
    about: About | None = None


@dataclass(slots=True)
class Totals:
    """What a rank did, for the simulated truth."""

    steps: int = 0
    samples: int = 0
    train_seconds: float = 0.0
    wait_seconds: float = 0.0
    gap_seconds: float = 0.0
    busy_seconds: float = 0.0
    ends: list[float] = field(default_factory=list)
