"""What a simulated machine and training run are made of: plain numbers, no behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gpuwatch.samples import ModelFacts

GIB = 1024**3


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """A GPU model as its data sheet gives it. `full_load_celsius` is the rise over the room at the power limit."""

    name: str
    compute_capability: tuple[int, int]
    memory_total_bytes: int
    power_limit_watts: float
    idle_watts: float
    sm_clock_max_mhz: int
    memory_clock_max_mhz: int
    pcie_generation: int
    has_ecc: bool
    has_gpm: bool
    full_load_celsius: float = 42.0
    slowdown_celsius: float = 87.0


@dataclass(frozen=True, slots=True)
class LoaderSpec:
    """A DataLoader and its dataset. `batch_seconds` is one worker's time for one batch on a free core."""

    num_workers: int
    batch_size: int
    batch_seconds: float
    batch_bytes: int
    batches_per_epoch: int
    cpu_share: float = 1.0  # of `batch_seconds`; the rest waits for storage
    spread: float = 0.08  # sigma of the logarithm of a batch's time
    prefetch_factor: int = 2
    persistent_workers: bool = True
    pin_memory: bool = True
    dataset: str = "ImageFolder"
    line: int = 88


@dataclass(frozen=True, slots=True)
class ComputeSpec:
    """One step on the GPU. `intensity` is the share of the power limit it draws at full clock."""

    gpu_seconds: float
    launch_seconds: float
    intensity: float
    memory_share: float
    facts: ModelFacts
    tensor_activity_percent: float = 45.0
    spread: float = 0.01


@dataclass(frozen=True, slots=True)
class PhaseSpec:
    """A stretch that is not training, after every `every_steps` steps."""

    kind: Literal["eval", "checkpoint"]
    every_steps: int
    seconds: float
    line: int
    gpu_busy_share: float = 0.0
    batches: int = 0
    wait_share: float = 0.0  # of the phase, spent waiting for its own loader
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Scenario:
    """A labelled situation. `must` are the rules that have to find it, `may` those that are no mistake."""

    name: str
    description: str
    gpu: GpuSpec
    loader: LoaderSpec
    compute: ComputeSpec
    gpu_count: int = 1
    cpu_count: int = 16
    memory_total_bytes: int = 128 * GIB
    phases: tuple[PhaseSpec, ...] = ()
    heat_resistance: Mapping[int, float] = field(default_factory=dict)  # GPU index -> times the designed one
    inlet_celsius: float = 24.0
    hang_after_seconds: float | None = None
    attached: bool = False  # no hook is in the run: its stacks are read
    must: frozenset[str] = frozenset()
    may: frozenset[str] = frozenset()
