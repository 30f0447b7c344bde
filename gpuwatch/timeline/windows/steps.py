"""One trainer's steps in a window, one by one and added up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


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

    `mean_step_seconds` leaves the longest 2 % out: a hiccup of seconds is no pace.
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
