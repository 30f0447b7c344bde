"""What a stretch of a recording comes to: the figures of its GPUs and runs, and its findings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpuwatch.samples import GpuFacts, RunFacts


@dataclass(frozen=True, slots=True)
class Swing:
    """A mean and the sample standard deviation of single values around it."""

    mean: float
    sigma: float


@dataclass(frozen=True, slots=True)
class Level:
    """A mean and the greatest single value."""

    mean: float
    max: float


@dataclass(frozen=True, slots=True)
class GpuSummary:
    """One GPU. `utilization_percent` is of all samples, as the report has it.

    `train_utilization_percent` leaves out warm-up, evaluations, checkpoints and other pauses of the run on this GPU.
    """

    facts: GpuFacts
    utilization_percent: Swing | None = None
    train_utilization_percent: Swing | None = None
    power_watts: Level | None = None
    power_limit_watts: float | None = None
    memory_used_bytes: Level | None = None
    temperature_celsius: Level | None = None
    energy_joules: float | None = None


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run; its figures are those of the rank that all others wait for, but for `samples_per_second`: all ranks'.

    Warm-up is left out. A step is a batch where the run was seen from outside. `parameter_bits` are those of most
    parameters, `autocast` the type that autocast was seen to compute in ("bfloat16"), "" where it was off.
    """

    id: str
    title: str
    facts: RunFacts
    gpu_uuids: tuple[str, ...] = ()
    steps: int = 0
    train_seconds: float = 0.0
    samples_per_second: float | None = None  # of all ranks, over training time
    wait_seconds_per_batch: float | None = None
    wait_share: float | None = None
    step_p50_seconds: float | None = None
    step_p95_seconds: float | None = None
    energy_joules_per_sample: float | None = None
    batch_size: int | None = None  # of one rank
    model_parameters: int | None = None
    parameter_bits: int | None = None
    autocast: str | None = None


@dataclass(frozen=True, slots=True)
class FindingSummary:
    """One finding of the stretch, and for how much of it it stood."""

    rule: str
    severity: str
    run: str | None
    gpu: str | None
    key: str
    first_ns: int
    stood_seconds: float
    standing: bool  # at the end
    blob: bytes = b""


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """A stretch of a recording. `basis`: from the samples themselves, or, where it is long, from minutes of them."""

    label: str
    hostname: str
    version: str
    started_wall: float
    start_ns: int
    end_ns: int
    basis: Literal["samples", "minutes"]
    gpus: tuple[GpuSummary, ...] = ()  # by index
    runs: tuple[RunSummary, ...] = ()  # longest training first
    findings: tuple[FindingSummary, ...] = ()
    problem: str | None = None
    ended: bool = True

    @property
    def seconds(self) -> float:
        """How long it is."""
        return (self.end_ns - self.start_ns) / 1e9
